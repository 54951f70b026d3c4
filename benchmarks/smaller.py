"""What a cache smaller than pixels costs: `python -m benchmarks.smaller FOLDER [--images 200]`.

Keeps photographs, as they are and reduced to a short side of 256, as pixels, in lossless codecs
(`pip install imagecodecs`) and as JPEG, and makes the crops of RandomResizedCrop(224) of them in
the calling thread: of eight images at a time in each way in turn. Prints bytes and processor time
an image, of each eight the best of the rounds. Lossless codecs decode an image whole, which is
compared with the pixels, before the crop is cut; of a JPEG fastload decodes the crop alone.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from torchvision.transforms import v2

from benchmarks.seek import AT_ONCE, decode, read_files
from fastload.cache.samples import shrink
from fastload.draws import Draws
from fastload.geometry import GeometryPlan
from fastload.native.pool import NativePool, resolve
from fastload.native.seek import SeekIndex
from fastload.recipe import Recipe
from fastload.sources.columns import PixelArray

Pixels = npt.NDArray[np.uint8]


class Codec(NamedTuple):
    """A lossless way to keep pixels (H, W, 3) uint8; `decode` gets their shape as well."""

    name: str
    encode: Callable[[Pixels], bytes]
    decode: Callable[[bytes, tuple[int, ...]], Pixels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    whole = [pixels_of(file) for file in read_files(options.folder, options.images)]
    if not whole:
        parser.error(f"{options.folder}: there are no JPEGs in it")
    print("imagecodecs", metadata.version("imagecodecs"))
    (plan,) = Recipe.from_transform(v2.RandomResizedCrop(options.size)).split().geometries
    for short_side in (None, 256):
        kept = [np.ascontiguousarray(shrink(pixels, "image", short_side)) for pixels in whole]
        print(f"\n{len(kept)} photographs, short side {short_side or 'as it is'}")
        compare(kept, plan, options.rounds)


def pixels_of(file: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))


def lossless() -> list[Codec]:
    import imagecodecs as codecs

    def differences(pixels: Pixels) -> Any:
        return codecs.delta_encode(pixels, axis=1)

    def sums(data: bytes, shape: tuple[int, ...]) -> Pixels:
        made = np.frombuffer(data, np.uint8).reshape(shape)
        summed: Pixels = codecs.delta_decode(made, axis=1)
        return summed

    def packed(encode: Callable[..., bytes], decode: Callable[..., bytes], **options: Any) -> Any:
        return (
            lambda pixels: encode(differences(pixels), **options),
            lambda data, shape: sums(decode(data), shape),
        )

    def whole(encode: Callable[..., bytes], decode: Callable[..., Pixels], **options: Any) -> Any:
        return partial(encode, **options), lambda data, shape: decode(data)

    blosc = {"compressor": "zstd", "level": 1, "shuffle": "noshuffle", "numthreads": 1}
    return [
        Codec("LZ4 of differences", *packed(codecs.lz4_encode, codecs.lz4_decode)),
        Codec("zstd 1 of differences", *packed(codecs.zstd_encode, codecs.zstd_decode, level=1)),
        Codec(
            "Blosc2 (zstd 1) of differences",
            *packed(codecs.blosc2_encode, codecs.blosc2_decode, **blosc),
        ),
        Codec("QOI", *whole(codecs.qoi_encode, codecs.qoi_decode)),
        Codec("PNG, level 1", *whole(codecs.png_encode, codecs.png_decode, level=1)),
        Codec(
            "WebP, lossless", *whole(codecs.webp_encode, codecs.webp_decode, lossless=True, level=0)
        ),
        Codec("JPEG-LS", *whole(codecs.jpegls_encode, codecs.jpegls_decode)),
        Codec(
            "JPEG XL, lossless, effort 1",
            *whole(
                codecs.jpegxl_encode,
                partial(codecs.jpegxl_decode, numthreads=1),
                lossless=True,
                effort=1,
                numthreads=1,
            ),
        ),
    ]


def compare(kept: list[Pixels], plan: GeometryPlan, rounds: int) -> None:
    pool, codecs = NativePool(1), lossless()
    files = {codec.name: [codec.encode(pixels) for pixels in kept] for codec in codecs}
    sizes = {"pixels": sum(pixels.nbytes for pixels in kept)}
    sizes |= {name: sum(map(len, made)) for name, made in files.items()}
    spent: dict[str, float] = {"pixels": 0.0, **dict.fromkeys(files, 0.0)}
    with tempfile.TemporaryDirectory() as folder:
        indexes = {}
        for quality in (95, 90):
            name = f"JPEG, quality {quality}"
            files[name] = made = [jpeg(pixels, quality) for pixels in kept]
            indexes[f"{name}, seek index"] = index = SeekIndex(Path(folder, name), len(made))
            decode(pool, plan, made, 0, index)
            index.flush()
            sizes[name] = sum(map(len, made))
            sizes[f"{name}, seek index"] = sizes[name] + index.contents.bytes
            spent |= {name: 0.0, f"{name}, seek index": 0.0}
        for start in range(0, len(kept), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            best = dict.fromkeys(spent, float("inf"))
            for _ in range(rounds):
                for name in spent:
                    stored = name.removesuffix(", seek index")
                    if stored.startswith("JPEG, quality"):
                        points = indexes.get(name)
                        _, seconds = decode(pool, plan, files[stored][part], start, points)
                    elif name == "pixels":
                        wanted, seconds = cut(pool, plan, kept[part], start)
                    else:
                        (codec,) = (codec for codec in codecs if codec.name == name)
                        shapes = [pixels.shape for pixels in kept[part]]
                        started = time.thread_time()
                        decoded = list(map(codec.decode, files[name][part], shapes))
                        seconds = time.thread_time() - started
                        for made_of, pixels in zip(decoded, kept[part], strict=True):
                            if not np.array_equal(made_of, pixels):
                                raise SystemExit(f"{name} is not lossless")
                        crops, cutting = cut(pool, plan, decoded, start)
                        assert np.array_equal(crops, wanted)
                        seconds += cutting
                    best[name] = min(best[name], seconds)
            for name, seconds in best.items():
                spent[name] += seconds
    report(sizes, spent, len(kept))


def jpeg(pixels: Pixels, quality: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=quality)
    return file.getvalue()


def cut(
    pool: NativePool, plan: GeometryPlan, images: Sequence[Pixels], first: int
) -> tuple[Pixels, float]:
    """The crops of pixels, and the processor time that they took [seconds]."""
    lengths = [pixels.size for pixels in images]
    sizes = np.array([pixels.shape[:2] for pixels in images], np.int32)
    flat = np.concatenate([pixels.ravel() for pixels in images])
    array = PixelArray(flat, sizes=sizes, offsets=np.cumsum([0, *lengths[:-1]]))
    draws = Draws(seed=0, epoch=0, indices=np.arange(first, first + len(images)))
    assert plan.out_size is not None
    out = np.zeros((len(images), *plan.out_size, 3), np.uint8)
    started = time.thread_time()
    geometry = resolve(plan, draws, sizes.astype(np.int64))
    rows = np.arange(len(images))
    pool.gather_batch(array, rows, geometry=geometry, out=out, here=True).wait()
    return out, time.thread_time() - started


def report(sizes: dict[str, int], spent: dict[str, float], count: int) -> None:
    print(f"{'':30} {'KB':>6} {'smaller':>8} {'us':>7} {'rate':>6}")
    for name, seconds in spent.items():
        smaller, rate = sizes["pixels"] / sizes[name], spent["pixels"] / seconds
        print(
            f"{name:30} {sizes[name] / count / 1e3:6.0f} {smaller:8.2f} "
            f"{seconds / count * 1e6:7.0f} {rate:6.2f}"
        )


if __name__ == "__main__":
    main()
