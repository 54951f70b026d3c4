"""Before and after: when a trainer works and when it waits, fed by a plain DataLoader and by fastload.

`python -m benchmarks.timelines timelines.png [FOLDER]` trains the same network on the same JPEGs (a folder for each
class; without one, photographs that are made) with each loader in turn, and draws both on one scale of time. Nothing
else should be running.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import fastload
from benchmarks.gpu.feeds import Feed, of_loader
from benchmarks.gpu.training import Training, feed_steps, of_torchvision
from fastload.machine import usable_cores
from fastload.measure.images import training
from fastload.measure.loaders import SMALL, PlainLoader, SmallNetwork
from fastload.measure.photographs import write_photographs
from fastload.measure.results import describe_machine
from fastload.monitor import Step, StepClock, draw_timelines, step_clock

_WARM_UP = 5
"""Steps before the clock is read."""


class _Pause:
    """A simulated trainer: a pause for each batch."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.device = torch.device("cpu")

    def step(self, batch: tuple[torch.Tensor, torch.Tensor], clock: StepClock | None = None) -> None:
        if clock is not None:
            clock.mark("compute")
        time.sleep(len(batch[0]) / self._rate)


def main() -> None:
    arguments = _arguments()
    device = torch.device(arguments.device)
    size = arguments.batch_size
    timelines = {}
    with tempfile.TemporaryDirectory(prefix="fastload-timelines-") as room:
        folder = arguments.folder
        if folder is None:
            folder = write_photographs(Path(room) / "photographs", arguments.images) / "train"
        plain = PlainLoader(folder, training(), size, device, workers=usable_cores())
        before = f"DataLoader,\n{usable_cores()} workers"
        timelines[before] = _measured(before, Feed(plain), arguments)
        plain.close()
        with fastload.create_loader(
            folder, size, shuffle=True, transform=training(), backend="turbojpeg", device=device
        ) as loader:
            after = "fastload\nturbojpeg"
            timelines[after] = _measured(after, of_loader(loader), arguments)
    what = arguments.network if arguments.consume is None else f"Simulated trainer of {arguments.consume:g} images/s"
    machine = describe_machine()
    where = machine.gpus[0] if machine.gpus and device.type == "cuda" else f"{machine.affinity_cores} cores"
    title, note = f"{what}, batches of {size} JPEGs", f"{machine.cpu}, {where}"
    draw_timelines(arguments.picture, timelines, arguments.seconds, title=title, note=note)
    print(machine)
    print(arguments.picture)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("picture", type=Path, help="the picture to write: .png or .svg")
    add("folder", type=Path, nargs="?", help="class folders of JPEGs (default: made on the spot)")
    add("--images", type=int, default=1024, help="to make, without a folder (default: %(default)s)")
    add("--batch-size", type=int, default=64, help="default: %(default)s")
    add("--network", default="resnet50", help="'small', or torchvision's name of one (default: %(default)s)")
    add("--consume", type=float, help="simulate a trainer of so many images/s, which takes no processor time, instead")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    add("--seconds", type=float, default=4.0, help="of each loader (default: %(default)s)")
    return parser.parse_args()


def _measured(name: str, feed: Feed, arguments: argparse.Namespace) -> tuple[Step, ...]:
    device = torch.device(arguments.device)
    trainer: Training | _Pause
    if arguments.consume is not None:
        trainer = _Pause(arguments.consume)
    elif arguments.network == SMALL:
        trainer = Training(SmallNetwork(1000), device)
    else:
        trainer = of_torchvision(arguments.network, device)
    for _ in range(_WARM_UP):
        trainer.step(next(feed))
    clock = step_clock(device, keep=None)
    clock.restart()
    samples = feed_steps(feed, trainer, arguments.seconds, clock)
    idle = clock.summary(wait=True)
    shares = ", ".join(f"{what} {getattr(idle, f'{what}_share'):.1%}" for what in ("busy", "wait", "copy", "launch"))
    print(f"{' '.join(name.split())}: {samples / idle.seconds:,.0f} images/s; {shares}", flush=True)
    return clock.steps(wait=True)


if __name__ == "__main__":
    main()
