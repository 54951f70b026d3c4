"""Random crops decoded on the GPU by the points of a seek index: planned by the core's threads,
copied, decoded by the kernels of `fastload/native/cuda/`, resized where they are.

As a loader does it with decode_on="device" (docs/gpu-decode.md), put together by hand: without the
loader, to be measured beside those that decode elsewhere. What is left to the CPU (small
photographs, no points) the core decodes as ever, in the same batch. Without a GPU the kernels run
on the host, one thread after the other, which shows that the code runs, and nothing of speed.

`python -m benchmarks.gpu.points PHOTOS --rounds 15` says what a thread of the host takes for it,
and for decoding and resizing the same crops itself: microseconds of processor time an image.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs
from PIL import Image

from benchmarks.gpu.feeds import rate_of, synchronize
from benchmarks.gpu.setting import Setting
from fastload.draws import Draws
from fastload.geometry import Geometry, View
from fastload.native import load
from fastload.native.pool import FusedGeometry, NativePool, Pending, fuse
from fastload.native.seek import SeekIndex
from fastload.recipe import Recipe
from fastload.render.jpegs_on_device import (
    MEMORY,
    ChunkArguments,
    DeviceDecoder,
    Launch,
    driver_launch,
    planned_rows,
    run_here,
)
from fastload.tools.measure.images import training_pixels
from fastload.tools.measure.results import Round

NAME = "fastload's kernels, by points"
_FILES = 512
"""Photographs held in memory."""
_AHEAD = 2
"""Batches that are planned before they are decoded."""


@dataclass(frozen=True)
class Planned:
    """A batch in work."""

    files: list[bytes]
    plan: Any
    pending: Pending
    host: npt.NDArray[np.uint8]
    """(B, size, size, 3): what the CPU makes of those that were left to it."""


class PointCrops:
    """Batches of random crops of photographs in memory."""

    def __init__(self, setting: Setting, threads: int, launch: Launch) -> None:
        self.device, self.size = setting.where(), setting.size
        paths = sorted(Path(setting.photos).glob("*/*"))[:_FILES]
        self.files = [path.read_bytes() for path in paths]
        self.pool = NativePool(threads)
        self.index = SeekIndex(Path(setting.kept or setting.out) / "points.seek", len(self.files))
        self.decoder = DeviceDecoder(self.device, launch)
        self.on_device = self.on_host = self.failed = 0
        """Crops that were planned for the device, that were left to the CPU, that failed."""
        self._geometry = Recipe.from_transform(training_pixels(self.size)).split(None).geometry
        self._next = 0
        # One pixel of each, and all of its points.
        one = np.array([[0, 0, 1, 1]] * len(paths), np.int32)
        pixel = Geometry(one, one[:, 2:].copy(), one, np.zeros((len(paths), 2), np.bool_))
        out = np.empty((len(paths), 1, 1, 3), np.uint8)
        self.pool.decode_batch(self.files, geometry=pixel, out=out, index=self.index).wait()
        self.index.flush()

    def close(self) -> None:
        self.pool.close()

    def fused(self, draws: Draws) -> FusedGeometry:
        found = fuse(self._geometry, draws)
        assert found is not None
        return found

    def plan(self, count: int) -> Planned:
        """The next batch, which the pool's threads plan."""
        rows = np.arange(self._next, self._next + count)
        self._next += count
        files = [self.files[row] for row in rows % len(self.files)]
        plan = load().DevicePlan(count, count, MEMORY)
        host = np.empty((count, self.size, self.size, 3), np.uint8)
        view = View(self.fused(Draws(0, 0, rows)), self._geometry.resampling, host)
        pending = self.pool.decode_columns([(files, [view])], index=self.index, plans=[plan])
        return Planned(files, plan, pending, host)

    def wait(self, batch: Planned) -> npt.NDArray[np.int64]:
        """For the plan of a batch: the rows that it has."""
        batch.pending.wait()
        batch.plan.finish()
        return planned_rows(batch.plan)

    def make(self, batch: Planned) -> torch.Tensor:
        """(B, size, size, 3) uint8 on the device."""
        rows, count = self.wait(batch), len(batch.files)
        self.on_device += len(rows)
        self.on_host += count - len(rows)
        images = torch.empty(batch.host.shape, dtype=torch.uint8, device=self.device)
        self.decoder.make(batch.plan, images)
        if len(rest := np.setdiff1d(np.arange(count), rows)):
            made = torch.from_numpy(batch.host[rest]).to(self.device)
            images[torch.from_numpy(rest).to(self.device)] = made
        return images

    def batches(self, count: int) -> Iterator[int]:
        """Makes one at each step, with the next ones planned meanwhile."""
        ready = deque(self.plan(count) for _ in range(_AHEAD))
        while True:
            batch = ready.popleft()
            ready.append(self.plan(count))
            self.make(batch)
            yield count


def launch_on(device: torch.device) -> Launch:
    """By the driver; without a GPU by the host, which raises nothing of what a GPU may."""
    return driver_launch(device) if device.type == "cuda" else run_here


class Timed:
    """A launch that takes the time of each kernel, by events on a GPU."""

    def __init__(self, launch: Launch, device: torch.device) -> None:
        self._launch, self._device = launch, device
        self._marks: list[tuple[str, Any, Any]] = []

    def __call__(self, name: str, blocks: int, threads: int, arguments: ChunkArguments) -> None:
        begin = self._mark()
        self._launch(name, blocks, threads, arguments)
        self._marks.append((name, begin, self._mark()))

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self) -> dict[str, float]:
        """Of each kernel in all launches so far, once they are done."""
        synchronize(self._device)
        found: dict[str, float] = {}
        for name, begin, end in self._marks:
            gpu = self._device.type == "cuda"
            took = begin.elapsed_time(end) if gpu else 1000 * (end - begin)
            found[name] = found.get(name, 0.0) + took
        return found


def rate(setting: Setting, threads: int) -> Round:
    """Crops of one size on the device, a second; and how many were left to the CPU."""
    with closing(PointCrops(setting, threads, launch_on(setting.where()))) as crops:
        batches = crops.batches(setting.batch_size)
        found = rate_of(batches, seconds=setting.rate_seconds, device=setting.where(), ahead=_AHEAD)
        share = crops.on_host / max(crops.on_host + crops.on_device, 1)
        return structs.replace(found, metrics={"left_to_cpu": share})


def compare(setting: Setting) -> dict[str, float | None]:
    """Crops that are those of the CPU to the last bit, before they are resized; what one batch
    takes on the device, stage by stage; and what planning it takes of a thread."""
    device = setting.where()
    timed = Timed(launch_on(device), device)
    with closing(PointCrops(setting, 1, timed)) as crops:
        crops.make(crops.plan(setting.batch_size))  # memory, and what the driver loads
        timed.milliseconds()
        timed = Timed(launch_on(device), device)
        crops.decoder = DeviceDecoder(device, timed)
        cpu = time.process_time()
        batch = crops.plan(setting.batch_size)
        crops.wait(batch)
        cpu = time.process_time() - cpu
        crops.make(batch)
        took = timed.milliseconds()
        made = crops.decoder.decode(batch.plan)
        pixels, failures = made.pixels.cpu().numpy(), made.failures.cpu().numpy()
        equal = 0
        for number, row in enumerate(made.rows.tolist()):
            top, left, height, width = made.boxes[number].tolist()
            start = int(made.start[number])
            with Image.open(io.BytesIO(batch.files[row])) as image:
                whole = np.asarray(image.convert("RGB"))
            found = pixels[start : start + height * width].reshape(height, width, 3)
            wanted = whole[top : top + height, left : left + width]
            equal += bool(not failures[number] and np.array_equal(found, wanted))
        return {
            "images": len(made.rows),
            "equal": equal,
            "refused": int((failures != 0).sum()),
            "plan_ms_of_a_thread": 1000 * cpu,
            "data_mb": batch.plan.buffer.nbytes / 1e6,
            **{f"{name.removeprefix('fastload_')}_ms": value for name, value in took.items()},
        }


def host_cost(setting: Setting, rounds: int) -> dict[str, float]:
    """Microseconds of processor time an image, medians of the rounds: planning, copying what was
    planned, and what the core takes to decode the same crops by points and to resize them."""
    took: dict[str, list[float]] = {"plan": [], "copy": [], "core": []}
    with closing(PointCrops(setting, 1, launch_on(torch.device("cpu")))) as crops:
        count, side = setting.batch_size, setting.size
        out = np.empty((count, side, side, 3), np.uint8)
        sampling = crops._geometry.resampling
        for _ in range(rounds):
            marks = [time.process_time()]
            batch = crops.plan(count)
            crops.wait(batch)
            marks.append(time.process_time())
            np.array(batch.plan.buffer)
            marks.append(time.process_time())
            crops.pool.decode_batch(
                batch.files,
                geometry=crops.fused(Draws(0, 0, np.arange(crops._next - count, crops._next))),
                out=out,
                sampling=sampling,
                index=crops.index,
            ).wait()
            marks.append(time.process_time())
            for what, seconds in zip(took, np.diff(marks).tolist(), strict=True):
                took[what].append(1e6 * seconds / count)
    return {what: float(np.median(values)) for what, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="a folder of class folders of JPEGs")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with TemporaryDirectory() as kept:
        setting = Setting(device="cpu", photos=str(given.photos), kept=kept)
        for what, cost in host_cost(setting, given.rounds).items():
            print(f"{what}: {cost:.1f} us an image")


if __name__ == "__main__":
    main()
