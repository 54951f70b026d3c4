"""Before and after: when a trainer works and when it waits, fed by a plain DataLoader and by fastload.

`python -m benchmarks.timelines timelines.png [FOLDER]` trains the same network on the same JPEGs (a folder for each
class; without one, photographs that are made) with each loader in turn, and draws both on one scale of time. Nothing
else should be running.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fastload
from benchmarks.gpu.feeds import Feed
from benchmarks.gpu.training import of_torchvision, train
from fastload.machine import usable_cores
from fastload.measure.images import training
from fastload.measure.loaders import Batch, PlainLoader
from fastload.measure.photographs import write_photographs
from fastload.measure.results import describe_machine
from fastload.monitor import draw_timelines


class _Pause:
    """A simulated trainer: a pause for each batch."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.device = torch.device("cpu")

    def step(self, batch: Batch, mark: Callable[[str], None]) -> None:
        mark("compute")
        time.sleep(len(batch[0]) / self._rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("picture", type=Path, help="the picture to write: .png or .svg")
    add("folder", type=Path, nargs="?", help="class folders of JPEGs (default: made on the spot)")
    add("--batch-size", type=int, default=64, help="default: %(default)s")
    add("--network", default="resnet50", help="torchvision's name of one (default: %(default)s)")
    add("--consume", type=float, help="simulate a trainer of so many images/s, which takes no processor time, instead")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    add("--seconds", type=float, default=4.0, help="of each loader (default: %(default)s)")
    given = parser.parse_args()
    device, size, workers = torch.device(given.device), given.batch_size, usable_cores()
    trainer = _Pause(given.consume) if given.consume else of_torchvision(given.network, device)
    timelines = {}
    with tempfile.TemporaryDirectory(prefix="fastload-timelines-") as room:
        folder = given.folder or write_photographs(room, 1024) / "train"
        before = PlainLoader(folder, training(), size, device, workers=workers)
        after = fastload.create_loader(
            folder, size, shuffle=True, transform=training(), backend="turbojpeg", device=device
        )
        for name, loader in ((f"DataLoader,\n{workers} workers", before), ("fastload\nturbojpeg", after)):
            feed = Feed(loader)
            train(feed, trainer, steps=5)
            clock = train(feed, trainer, given.seconds, keep=True)
            feed.close()
            timelines[name], idle = clock.steps(wait=True), clock.summary(wait=True)
            rate = f"{size * idle.steps / idle.seconds:,.0f} images/s"
            print(f"{' '.join(name.split())}: {rate}; busy {idle.busy_share:.1%}, wait {idle.wait_share:.1%}")
    what = f"Simulated trainer of {given.consume:g} images/s" if given.consume else given.network
    machine = describe_machine()
    where = machine.gpus[0] if machine.gpus and device.type == "cuda" else f"{machine.affinity_cores} cores"
    title, note = f"{what}, batches of {size} JPEGs", f"{machine.cpu}, {where}"
    draw_timelines(given.picture, timelines, given.seconds, title=title, note=note)
    print(machine, given.picture, sep="\n")


if __name__ == "__main__":
    main()
