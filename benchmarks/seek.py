"""What a seek index is worth: `python -m benchmarks.seek FOLDER [--images 200] [--rounds 5]`.

Decodes the crops of RandomResizedCrop(224) in the calling thread: of eight images at a time in turn
without an index, noting points as an epoch does, and by points. Prints processor time an image, of
each eight the best of the rounds, and ratios. Other work on the machine changes the times, and the
ratios less. Pixels are compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torchvision.transforms import v2

from fastload.draws import Draws
from fastload.geometry import GeometryPlan
from fastload.native.pool import NativePool, fuse
from fastload.native.seek import SeekIndex
from fastload.recipe import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    files = read_files(options.folder, options.images)
    if not files:
        parser.error(f"{options.folder}: there are no JPEGs in it")
    (plan,) = Recipe.from_transform(v2.RandomResizedCrop(options.size)).split().geometries
    with tempfile.TemporaryDirectory() as folder:
        measure(files, plan, options.rounds, Path(folder))


def read_files(folder: Path, most: int) -> list[bytes]:
    """The first JPEGs of a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return [path.read_bytes() for path in paths[:most]]


def measure(files: list[bytes], plan: GeometryPlan, rounds: int, folder: Path) -> None:
    pool = NativePool(1)
    complete = SeekIndex(folder / "complete", len(files))
    decode(pool, plan, files, 0, complete)
    complete.flush()
    spent = dict.fromkeys(("without", "noting", "with"), 0.0)
    for start in range(0, len(files), AT_ONCE):
        part = files[start : start + AT_ONCE]
        best = dict.fromkeys(spent, float("inf"))
        for turn in range(rounds):
            empty = SeekIndex(folder / f"{start}-{turn}", len(part), only_cheap=True)
            made = {}
            for name, index in (("without", None), ("noting", empty), ("with", complete)):
                made[name], seconds = decode(pool, plan, part, start, index)
                best[name] = min(best[name], seconds)
            for name, pixels in made.items():
                if not np.array_equal(pixels, made["without"]):
                    raise SystemExit(f"the pixels {name} an index differ from those without")
        for name in spent:
            spent[name] += best[name]
    size = sum(map(len, files))
    print(f"{len(files)} images of {size / len(files) / 1e3:.0f} KB, best of {rounds} rounds")
    print(f"index: {complete.contents}, {complete.contents.bytes / size:.2%} of the files")
    for name, seconds in spent.items():
        microseconds, ratio = seconds / len(files) * 1e6, spent["without"] / seconds
        print(f"{name:8} {microseconds:7.1f} us an image, {ratio:.3f} times as fast as without")


def decode(
    pool: NativePool, plan: GeometryPlan, files: list[bytes], first: int, index: SeekIndex | None
) -> tuple[npt.NDArray[np.uint8], float]:
    """The crops of some images, and the processor time that they took [seconds]."""
    assert plan.out_size is not None
    draws = Draws(seed=0, epoch=0, indices=np.arange(first, first + len(files)))
    geometry = fuse(plan, draws)
    assert geometry is not None
    out = np.zeros((len(files), *plan.out_size, 3), np.uint8)
    start = time.thread_time()
    pool.decode_batch(files, geometry=geometry, out=out, index=index, here=True).wait()
    return out, time.thread_time() - start


AT_ONCE = 8
"""Images that are decoded in one way before the next way has its turn."""
SUFFIXES = (".jpg", ".jpeg")

if __name__ == "__main__":
    main()
