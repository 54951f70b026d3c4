"""Before and after: when a trainer works and when it waits, fed by a plain DataLoader and by fastload.

`python benchmarks/timelines.py timelines.png [FOLDER]` trains the same network on the same JPEGs (a folder for each
class; without one, the photographs of `fastload demo`) with each loader in turn, and draws both on one scale of time.
Nothing else should be running.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fastload
from fastload.machine import usable_cores
from fastload.measure.loaders import PlainLoader
from fastload.measure.machine import describe_machine
from fastload.measure.photographs import write_photographs
from fastload.measure.pixels import training
from fastload.measure.trainers import SmallNetwork
from fastload.monitor import IdleSummary, Step, draw_timelines, step_clock

WARM_UP = 5
"""Steps before the clock is read."""


def main() -> None:
    arguments = _arguments()
    device = torch.device(arguments.device)
    with tempfile.TemporaryDirectory(prefix="fastload-timelines-") as room:
        folder = arguments.folder
        if folder is None:
            folder = write_photographs(Path(room) / "photographs", arguments.images) / "train"
        plain = PlainLoader(folder, training(), arguments.batch_size, device, workers=usable_cores())
        before = f"DataLoader,\n{usable_cores()} workers"
        timelines = {before: _measured(before, plain, arguments, device)}
        del plain  # and its workers
        with fastload.create_loader(
            folder, arguments.batch_size, shuffle=True, transform=training(), backend="turbojpeg", device=device
        ) as loader:
            after = "fastload\nturbojpeg"
            timelines[after] = _measured(after, loader, arguments, device)
    what = arguments.network if arguments.consume is None else f"Simulated trainer of {arguments.consume:g} images/s"
    machine = describe_machine()
    where = machine.gpus[0] if machine.gpus and device.type == "cuda" else f"{machine.affinity_cores} cores"
    draw_timelines(
        arguments.picture,
        timelines,
        arguments.seconds,
        title=f"{what}, batches of {arguments.batch_size} JPEGs",
        note=f"{machine.cpu}, {where}",
    )
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


def _measured(name: str, loader: Iterable[Any], arguments: argparse.Namespace, device: torch.device) -> list[Step]:
    work = _work(arguments, device)
    clock = step_clock(device, keep=None)
    batches = _endless(loader)
    begun, count = float("inf"), 0
    for number in range(1 << 62):
        if number == WARM_UP:
            clock.restart()
            begun, count = time.perf_counter(), 0
        clock.begin()
        images, labels = next(batches)
        clock.mark("compute")
        work(images, labels)
        clock.end()
        count += len(images)
        if time.perf_counter() - begun >= arguments.seconds:
            break
    batches.close()
    print(f"{' '.join(name.split())}: {_words(clock.summary(wait=True), count)}", flush=True)
    return list(clock.steps())


def _words(summary: IdleSummary, count: int) -> str:
    rate = count / summary.seconds
    shares = (f"{name} {100 * getattr(summary, f'{name}_share'):.1f}%" for name in ("busy", "wait", "copy", "launch"))
    return f"{rate:,.0f} images/s; {', '.join(shares)}"


def _work(arguments: argparse.Namespace, device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What is done with a batch."""
    if arguments.consume is not None:
        return lambda images, labels: time.sleep(len(images) / arguments.consume)
    torch.manual_seed(0)
    if arguments.network == "small":
        network: nn.Module = SmallNetwork(1000)
    else:
        from torchvision.models import get_model

        network = get_model(arguments.network, weights=None)
    network = network.to(device).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return train


def _endless(loader: Iterable[Any]) -> Generator[Any, None, None]:
    while True:
        yield from loader


if __name__ == "__main__":
    main()
