"""What `TurboJpegOptions(draft=True)` gains on photographs of 12 megapixels, and what it does to their pixels.

    python -m benchmarks.large_photographs                      # photographs that are made
    python -m benchmarks.large_photographs --data ~/photos      # yours: one folder per class, JPEG
    python -m benchmarks.large_photographs --noise 3            # with grain of that standard deviation, as of a camera

The files are enlarged to 4000x3000 pixels and saved with quality 90. Then the native core makes crops of 224 pixels of
them, one thread, exactly and reduced in turn: processor time an image, the ratio (median over the rounds), and the
difference of the pixels.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.inputs import ROOT, photographs, sample_set
from fastload.backends.base import PixelDifference
from fastload.geometry import Geometry
from fastload.native import NativePool

SIZE = (224, 224)
LONG, SHORT = 4000, 3000


def enlarged(path: Path, noise: float, rng: np.random.Generator) -> bytes:
    """The photograph with 12 megapixels, as a JPEG."""
    with Image.open(path) as image:
        size = (LONG, SHORT) if image.width >= image.height else (SHORT, LONG)
        large = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    if noise:
        grain = rng.normal(0, noise, (size[1], size[0], 1))
        large = Image.fromarray((np.asarray(large) + grain).clip(0, 255).astype(np.uint8))
    out = io.BytesIO()
    large.save(out, "JPEG", quality=90)
    return out.getvalue()


def crops(shapes: list[tuple[int, int]], share: tuple[float, float], rng: np.random.Generator) -> Geometry:
    """Boxes of the images' aspect ratio and some share of their area, anywhere; each to SIZE."""
    boxes = []
    for height, width in shapes:
        side = rng.uniform(*share) ** 0.5
        h, w = int(height * side), int(width * side)
        boxes.append([rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w])
    count = len(shapes)
    sizes = np.tile(np.array(SIZE, np.int32), (count, 1))
    windows = np.tile(np.array([0, 0, *SIZE], np.int32), (count, 1))
    return Geometry(np.array(boxes, np.int32), sizes, windows, np.zeros((count, 2), np.bool_))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder of class folders of JPEGs")
    parser.add_argument("--images", type=int, default=24, help="how many of them (default: %(default)s)")
    parser.add_argument("--noise", type=float, default=0.0, help="of 255 (default: none)")
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    wanted = parser.parse_args()
    work = ROOT / "build" / "peers"
    work.mkdir(parents=True, exist_ok=True)
    found = photographs(wanted.data or sample_set(work, wanted.images, print), work, 1)
    files = sorted(found.few.glob("*/*"))
    rng = np.random.default_rng(0)
    data = [enlarged(path, wanted.noise, rng) for path in files[:: -(-len(files) // wanted.images)]]
    pool = NativePool(1)
    shapes = [(int(height), int(width)) for height, width in pool.read_headers(data)[0][:, :2]]
    print(
        f"{len(data)} photographs of 12 megapixels, {sum(map(len, data)) / len(data) / 1e6:.1f} MB on average; "
        f"{pool.simd}"
    )
    out = {draft: np.empty((len(data), *SIZE, 3), np.uint8) for draft in (False, True)}
    for name, share in [("whole images", (1.0, 1.0)), ("crops of 8% to 100%", (0.08, 1.0))]:
        seconds: dict[bool, list[float]] = {False: [], True: []}
        differences = []
        for _ in range(wanted.rounds):
            geometry = crops(shapes, share, rng)
            for draft in (False, True):
                start = time.process_time()
                failures = pool.decode_batch(data, geometry=geometry, out=out[draft], draft=draft).wait()
                seconds[draft].append((time.process_time() - start) / len(data))
                assert not failures, failures
            differences.append(PixelDifference.between(torch.from_numpy(out[True]), torch.from_numpy(out[False])))
        ratio = statistics.median(exact / draft for exact, draft in zip(seconds[False], seconds[True], strict=True))
        times = [f"{1000 * statistics.median(seconds[draft]):.1f} ms" for draft in (False, True)]
        mean, psnr = (statistics.mean(getattr(d, part) for d in differences) for part in ("mean", "psnr"))
        print(
            f"{name:20} exact {times[0]}, draft {times[1]}: {ratio:.2f} times as fast; pixels differ by {mean:.2f} "
            f"of 255 (largest {max(d.largest for d in differences)}), PSNR {psnr:.1f} dB"
        )


if __name__ == "__main__":
    main()
