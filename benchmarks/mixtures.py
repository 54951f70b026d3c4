"""A mixture of folders of JPEGs, 3 to 1: fastload beside Grain, with as many threads, in processor
time.

    pip install grain simplejpeg opencv-python-headless
    python -m benchmarks.mixtures DATA  # class folders of JPEGs, cut in two for the mix

Both give batches of 64 uint8 images of 224 pixels (RandomResizedCrop, flip), their labels, and the
sources by the weights. Grain has no decoder: it is given Pillow's with torchvision's resize, as
its users write it, and the cheapest there is in Python (simplejpeg, OpenCV's INTER_AREA). fastload
is there as in a first epoch, and with the index of places where decoding can start, which the first
round makes. Each round has every contestant once, in a process of its own, which counts its
processor time (user and system, of all threads) after 8 batches of warm-up. It says nothing about
time on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH, SIDE, WARM = 64, 224, 8
WEIGHTS = (3, 1)
OURS = "fastload"


def halves(data: str) -> list[list[tuple[str, int]]]:
    """(path, label) of the images of two sources: every second class folder."""
    folders = sorted(path for path in Path(data).iterdir() if path.is_dir())
    files = [
        (str(path), label)
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    return [[one for one in files if one[1] % 2 == half] for half in range(2)]


def by_fastload(data: str, threads: int, seek_index: Any) -> Iterator[Any]:
    import numpy as np
    from torchvision.transforms import v2

    import fastload
    from fastload.backends.turbojpeg import TurboJpegOptions
    from fastload.sources import EncodedFiles, Source, ValueArray
    from fastload.sources.buffers import PathTable

    def source(files: list[tuple[str, int]]) -> Source:
        paths = PathTable.of(path for path, _ in files)
        labels = np.array([label for _, label in files], dtype=np.int64)
        columns = {"image": EncodedFiles(paths), "label": ValueArray(labels)}
        return Source(columns, str(len(files)), "files")

    first, second = map(source, halves(data))
    mixed = fastload.mix({"a": first, "b": second}, weights=WEIGHTS, until=1 << 20)
    transform = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()])
    loader = fastload.create_loader(
        mixed,
        BATCH,
        shuffle=True,
        transform=transform,
        num_workers=threads,
        backend="turbojpeg",
        options=TurboJpegOptions(seek_index=seek_index),
    )
    return iter(loader)


def by_pillow(path: str, draw: random.Random) -> Any:
    import numpy as np
    from PIL import Image
    from torchvision.transforms.v2 import functional

    with Image.open(path) as image:
        pixels = image.convert("RGB")
    top, left, height, width = _box(pixels.height, pixels.width, draw)
    made = functional.resized_crop(pixels, top, left, height, width, [SIDE, SIDE])
    array = np.asarray(made)
    return array[:, ::-1] if draw.random() < 0.5 else array


def by_simplejpeg(path: str, draw: random.Random) -> Any:
    import cv2
    from simplejpeg import decode_jpeg

    image = decode_jpeg(Path(path).read_bytes())
    top, left, height, width = _box(image.shape[0], image.shape[1], draw)
    how = cv2.INTER_AREA if width >= SIDE and height >= SIDE else cv2.INTER_LINEAR
    box = image[top : top + height, left : left + width]
    made = cv2.resize(box, (SIDE, SIDE), interpolation=how)
    return made[:, ::-1] if draw.random() < 0.5 else made


def _box(height: int, width: int, draw: random.Random) -> tuple[int, int, int, int]:
    """As torchvision's RandomResizedCrop draws it: (top, left, height, width)."""
    import math

    for _ in range(10):
        area = height * width * draw.uniform(0.08, 1)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return draw.randint(0, height - high), draw.randint(0, width - wide), high, wide
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def by_grain(data: str, threads: int, read: Callable[..., Any]) -> Iterator[Any]:
    import cv2
    import grain
    import numpy as np
    import torch

    cv2.setNumThreads(0)
    torch.set_num_threads(1)

    def load(one: tuple[str, int], generator: Any) -> tuple[Any, int]:
        draw = random.Random(int(generator.integers(1 << 62)))
        return np.ascontiguousarray(read(one[0], draw)), one[1]

    parts = [grain.MapDataset.source(files).shuffle(seed=1).repeat() for files in halves(data)]
    mixed = grain.MapDataset.mix(parts, weights=WEIGHTS).seed(1).random_map(load)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * BATCH)
    return iter(mixed.to_iter_dataset(options).batch(BATCH, drop_remainder=True))


CONTESTANTS: dict[str, Callable[[str, int], Iterator[Any]]] = {
    OURS: lambda data, threads: by_fastload(data, threads, False),
    "fastload, seek index": lambda data, threads: by_fastload(data, threads, "auto"),
    "Grain, Pillow": lambda data, threads: by_grain(data, threads, by_pillow),
    "Grain, simplejpeg and OpenCV": lambda data, threads: by_grain(data, threads, by_simplejpeg),
}


def measure(name: str, data: str, threads: int, batches: int) -> dict[str, float]:
    """Images a second of the processor, and of the clock; the mean pixel, which must be alike."""
    import numpy as np

    given = CONTESTANTS[name](data, threads)
    for _ in range(WARM):
        next(given)
    before, start, pixels = sum(os.times()[:2]), time.perf_counter(), []
    for _ in range(batches):
        images = next(given)[0]
        assert tuple(images.shape) in ((BATCH, 3, SIDE, SIDE), (BATCH, SIDE, SIDE, 3))
        pixels.append(float(np.asarray(images).mean()))
    spent, passed = sum(os.times()[:2]) - before, time.perf_counter() - start
    count = batches * BATCH
    return {
        "images a CPU second": count / spent,
        "images a second": count / passed,
        "mean pixel": statistics.mean(pixels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a folder of class folders of JPEGs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="write all rounds here")
    parser.add_argument("--of", choices=CONTESTANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.of:
        print(json.dumps(measure(given.of, given.data, given.threads, given.batches)), flush=True)
        os._exit(0)  # Grain's threads go on reading ahead
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for number in range(given.rounds):
        names = list(CONTESTANTS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            options = [f"--threads={given.threads}", f"--batches={given.batches}", f"--of={name}"]
            command = [sys.executable, "-m", "benchmarks.mixtures", given.data, *options]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number + 1}: {name}: {rounds[name][-1]}", flush=True)
    ours, key = rounds[OURS], "images a CPU second"
    for name, theirs in rounds.items():
        ratios = [a[key] / b[key] for a, b in zip(ours, theirs, strict=True)]
        rate, times = statistics.median(one[key] for one in theirs), statistics.median(ratios)
        print(f"{name}: {rate:.0f} {key}; fastload {times:.2f} times as many")
    if given.json:
        results = {"threads": given.threads, "batches": given.batches, "rounds": rounds}
        Path(given.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
