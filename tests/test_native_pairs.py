"""Images that a thread decodes beside each other: of each the pixels, the verdict and the points
that it has alone."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import native
from fastload.errors import ConfigurationError
from fastload.geometry import Geometry
from fastload.native.seek import SeekIndex
from tests import images, jpegs
from tests.test_native_jpeg import KINDS, SIMD, Box, Pixels, boxes_of, damaged

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

SIDE = 24


@cache
def files() -> dict[str, bytes]:
    """One of each kind."""
    made = {
        kind: images.jpeg(images.photo(90 + 7 * number, 300 - 11 * number, seed=number), **options)
        for number, (kind, options) in enumerate(KINDS.items())
    }
    sound = images.jpeg(images.photo(200, 260), quality=80)
    noise = jpegs.noise(100, 120, "4:1:0", np.random.default_rng(1))
    return made | {
        "sound": sound,
        "wide": images.jpeg(images.photo(20, 1500)),
        "tall": images.jpeg(images.photo(1500, 20)),
        "one MCU": images.jpeg(images.photo(7, 5)),
        "grey": images.jpeg(images.photo(140, 150, channels=1)),
        "grey, one block": images.jpeg(images.photo(8, 8, channels=1)),
        "turned": images.jpeg(images.photo(120, 160), orientation=6),
        "4:1:0 in scans": jpegs.write(
            noise, jpegs.script(len(noise.sampling), np.random.default_rng(2)), progressive=True
        ),
        "corrupt near its beginning": images.corrupt(sound, 0.1),
        "corrupt": images.corrupt(sound),
        "corrupt near its end": images.corrupt(sound, 0.95),
        "torn": images.torn(sound),
        "truncated": images.truncated(sound),
        "without an end marker": sound[:-2],
        "truncated restart rows": images.truncated(made["restart rows"]),
        "truncated progressive": images.truncated(made["progressive"]),
        "CMYK": images.cmyk_jpeg(images.photo(40, 50)),
        "PNG": images.png(images.photo(40, 50)),
        "no image": images.HTML,
        "nothing": b"",
    }


def size_of(data: bytes) -> tuple[int, int]:
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.height, image.width
    except OSError:
        return 30, 30


def decode(
    datas: list[bytes],
    boxes: Sequence[Box],
    *,
    pool: Any = None,
    index: SeekIndex | None = None,
    whole: bool = False,
) -> tuple[Pixels, list[tuple[int, str]]]:
    """Boxes of a batch, resized to one size; which rows failed, and the words."""
    count = len(datas)
    geometry = Geometry(
        np.array(boxes, np.int32),
        np.full((count, 2), SIDE, np.int32),
        np.tile(np.array([0, 0, SIDE, SIDE], np.int32), (count, 1)),
        np.zeros((count, 2), np.bool_),
    )
    out = np.full((count, SIDE, SIDE, 3), 255, np.uint8)
    pending = (pool or native.NativePool(1)).decode_batch(
        datas, geometry=geometry, out=out, index=index, check_whole=whole, here=True
    )
    return out, [(failure.row, failure.message) for failure in pending.wait()]


def alone(
    datas: list[bytes], boxes: list[Box], **options: Any
) -> tuple[Pixels, list[tuple[int, str]]]:
    """The same, each in a batch of its own."""
    made, failed = [], []
    for row, (data, box) in enumerate(zip(datas, boxes, strict=True)):
        pixels, failures = decode([data], [box], **options)
        made.append(pixels)
        failed += [(row, words) for _, words in failures]
    return np.concatenate(made), failed


@cache
def reference(name: str, row: int, part: int, whole: bool) -> tuple[Box, Pixels, list[str]]:
    """One of the boxes of a file, and what it is alone."""
    data = files()[name]
    box = boxes_of(*size_of(data), 2, seed=row)[part]
    pixels, failures = decode([data], [box], whole=whole)
    return box, pixels, [words for _, words in failures]


def records(path: Path) -> dict[tuple[int, int], bytes]:
    """What a file of points holds: the points of each image, by its hash and size."""
    data = path.read_bytes()
    (slots,) = struct.unpack_from("<Q", data, 16)
    found: dict[tuple[int, int], bytes] = {}
    at = 64 + 8 * (slots + 64)
    while at < len(data):
        _, digest, size, count = struct.unpack_from("<4Q", data, at)
        assert (digest, size) not in found
        found[digest, size] = data[at + 32 : at + 32 + count]
        at += 32 + (count + 7) // 8 * 8
    return found


def assert_same(found: tuple[Pixels, Any], wanted: tuple[Pixels, Any]) -> None:
    assert found[1] == wanted[1]
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("first", files())
@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.whole)], ids=["", "whole"]
)
def test_an_image_beside_any_other_is_what_it_is_alone(first: str, whole: bool) -> None:
    pool = native.NativePool(1)
    for second in files():
        names = (first, second, "sound")
        # All of one and a part of the other, and the reverse.
        for parts in ((0, -1, -1), (-1, 0, -2)):
            boxes, pixels, words = zip(
                *(
                    reference(name, row, part, whole)
                    for row, (name, part) in enumerate(zip(names, parts, strict=True))
                ),
                strict=True,
            )
            found = decode([files()[name] for name in names], boxes, pool=pool, whole=whole)
            failed = [(row, each) for row, said in enumerate(words) for each in said]
            assert_same(found, (np.concatenate(pixels), failed))


@pytest.mark.parametrize("simd", SIMD)
def test_damaged_files_do_not_touch_those_beside_them(simd: str) -> None:
    try:
        native.NativePool(1, simd=simd)  # type: ignore[arg-type]
    except ConfigurationError:
        pytest.skip("not on this processor")
    rng = np.random.default_rng(5)
    kinds = list(files().values())
    for _ in range(12):
        datas = [kinds[number] for number in rng.integers(0, len(kinds), 40)]
        datas = [
            damaged(data, rng) if len(data) > 30 and rng.random() < 0.4 else data for data in datas
        ]
        boxes = [boxes_of(*size_of(data), 1, seed=int(rng.integers(1 << 30)))[-1] for data in datas]
        pool = native.NativePool(1, simd=simd)  # type: ignore[arg-type]
        assert_same(decode(datas, boxes, pool=pool), alone(datas, boxes))


@pytest.mark.parametrize("whole", [False, True], ids=["", "whole"])
def test_points_are_those_that_an_image_gives_alone(tmp_path: Path, whole: bool) -> None:
    rng = np.random.default_rng(6)
    datas = [*files().values(), *(images.corrupt(files()["sound"], k / 30) for k in range(1, 30))]
    datas += [images.jpeg(images.photo(130 + 9 * k, 250 - 9 * k, seed=k)) for k in range(12)]
    datas = [datas[number] for number in rng.permutation(len(datas))]
    boxes = [boxes_of(*size_of(data), 1)[-1] for data in datas]
    held, made = [], []
    for name, way in (("together", decode), ("alone", alone)):
        index = SeekIndex(tmp_path / name, len(datas), 1 << 30)
        made.append(way(datas, boxes, index=index, whole=whole))
        index.flush()
        held.append(records(tmp_path / name))
    assert_same(*made)
    assert len(held[1]) > 20
    assert held[0] == held[1]
    # By points, too, which some have and others do not.
    index = SeekIndex(tmp_path / "together", len(datas), 1 << 30)
    assert_same(decode(datas, boxes, index=index, whole=whole), made[1])


def test_each_row_is_run_once_by_threads_that_take_two() -> None:
    datas = [data for data in files().values() if data != b""] * 12
    boxes = [boxes_of(*size_of(data), 1)[-1] for data in datas]
    wanted = decode(datas, boxes)
    for threads in (1, 2, 5, 64):
        pool = native.NativePool(threads)
        geometry = Geometry(
            np.array(boxes, np.int32),
            np.full((len(datas), 2), SIDE, np.int32),
            np.tile(np.array([0, 0, SIDE, SIDE], np.int32), (len(datas), 1)),
            np.zeros((len(datas), 2), np.bool_),
        )
        out = np.full((len(datas), SIDE, SIDE, 3), 255, np.uint8)
        failures = pool.decode_batch(datas, geometry=geometry, out=out).wait()
        assert_same((out, [(failure.row, failure.message) for failure in failures]), wanted)
        pool.close()
