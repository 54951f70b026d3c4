"""What the core's own JPEG decoder is worth beside libjpeg-turbo's, in the same pool:
`python -m benchmarks.jpegs FOLDER [--progressive] [--images 200] [--rounds 5]`.

Decodes the crops of RandomResizedCrop(224) in the calling thread: of eight images at a time in turn
by our own decoder and by libjpeg-turbo, which decodes the region of the crop. Prints processor time
an image, of each eight the best of the rounds, and the ratio. Pixels are compared: libjpeg-turbo's
differ by a little at the edges of some boxes. `--progressive` rewrites the files by `jpegtran` of
libjpeg-turbo first (the same coefficients); `--restart 1` with a restart marker after each row.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from torchvision.transforms import v2

from benchmarks.seek import AT_ONCE, decode, read_files
from fastload.geometry import GeometryPlan
from fastload.native.pool import NativePool
from fastload.recipe import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--progressive", action="store_true", help="by jpegtran")
    parser.add_argument("--restart", metavar="ROWS", help="restart markers, by jpegtran")
    options = parser.parse_args()
    files = read_files(options.folder, options.images)
    if not files:
        parser.error(f"{options.folder}: there are no JPEGs in it")
    command = ["-progressive"] if options.progressive else []
    command += ["-restart", options.restart] if options.restart else []
    if command:
        files = [rewritten(data, command) for data in files]
    (plan,) = Recipe.from_transform(v2.RandomResizedCrop(options.size)).split().geometries
    measure(files, plan, options.rounds)


def rewritten(data: bytes, options: list[str]) -> bytes:
    """The same coefficients in another order (Debian, Ubuntu: apt-get install
    libjpeg-turbo-progs)."""
    return subprocess.run(
        ["jpegtran", *options], input=data, capture_output=True, check=True
    ).stdout


def measure(files: list[bytes], plan: GeometryPlan, rounds: int) -> None:
    pools = {"own": NativePool(1), "libjpeg-turbo": NativePool(1, always_libjpeg=True)}
    spent = dict.fromkeys(pools, 0.0)
    equal = 0
    for start in range(0, len(files), AT_ONCE):
        part = files[start : start + AT_ONCE]
        best = dict.fromkeys(pools, float("inf"))
        made = {}
        for turn in range(rounds):
            for name in pools if turn % 2 == 0 else reversed(pools):
                made[name], seconds = decode(pools[name], plan, part, start, None)
                best[name] = min(best[name], seconds)
        for name in pools:
            spent[name] += best[name]
        equal += int((made["own"] == made["libjpeg-turbo"]).all(axis=(1, 2, 3)).sum())
    size = sum(map(len, files))
    print(f"{len(files)} images of {size / len(files) / 1e3:.0f} KB, best of {rounds} rounds")
    for name, seconds in spent.items():
        microseconds, ratio = seconds / len(files) * 1e6, spent["libjpeg-turbo"] / seconds
        print(f"{name:14} {microseconds:7.1f} us an image, {ratio:.2f} times as fast")
    print(f"{equal} of {len(files)} crops are equal")
    for name, pool in pools.items():
        counts = ", ".join(f"{kind} {count}" for kind, count in pool.decoded.items() if count)
        print(f"decoded by {name}: {counts}")


if __name__ == "__main__":
    main()
