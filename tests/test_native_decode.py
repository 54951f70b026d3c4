"""The native core's decoding against torchvision, on JPEGs of every kind; its SIMD variants against
each other."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from fastload import native
from fastload.files import DecodeSettings
from fastload.geometry import Geometry, Resampling, View
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles
from tests import images

pytestmark = [
    pytest.mark.skipif(not native.available(), reason="the native core is not built"),
    # torchvision announces that its decoders move to another package; here they are the reference.
    pytest.mark.filterwarnings(
        "ignore:The image decoding and encoding capabilities of TorchVision:DeprecationWarning"
    ),
]

SIMD = ("avx512", "avx2", "sse4.1", "plain")


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    pool = native.NativePool(2)
    yield pool
    pool.close()


def geometry(
    rows: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[bool, bool]]],
) -> Geometry:
    box, size, window, flip = (np.array(column) for column in zip(*rows, strict=True))
    return Geometry(
        box.astype(np.int32), size.astype(np.int32), window.astype(np.int32), flip.astype(np.bool_)
    )


def resize_only(boxes: list[tuple[int, ...]], size: tuple[int, int]) -> Geometry:
    return geometry([(box, size, (0, 0, *size), (False, False)) for box in boxes])


def reference(
    data: bytes,
    box: tuple[int, ...],
    size: tuple[int, int],
    interpolation: str = "bilinear",
    antialias: bool = True,
) -> npt.NDArray[np.uint8]:
    """The same by torchvision: decode all, crop, resize."""
    image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
    top, left, height, width = box
    image = image[:, top : top + height, left : left + width]
    image = F.resize(image, list(size), InterpolationMode(interpolation), antialias=antialias)
    return image.permute(1, 2, 0).numpy()


def assert_close(
    found: npt.NDArray[np.uint8],
    wanted: npt.NDArray[np.uint8],
    note: object = "",
    *,
    mean: float = 0.2,
) -> None:
    difference = np.abs(found.astype(np.int64) - wanted)
    assert difference.max() <= 2, note
    assert difference.mean() <= mean, note


def random_boxes(
    rng: np.random.Generator, height: int, width: int, count: int
) -> list[tuple[int, ...]]:
    """Random boxes, among them single pixels and strips, at every edge and corner."""
    boxes = [
        (0, 0, height, width),
        (0, 0, 1, 1),
        (height - 1, width - 1, 1, 1),
        (0, width - 1, height, 1),
    ]
    boxes += [
        (height - 1, 0, 1, width),
        (height // 2, 0, height - height // 2, 3 if width > 3 else 1),
    ]
    for _ in range(count):
        h, w = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        boxes.append(
            (int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w)
        )
    return boxes


@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("layout", ["4:4:4", "4:2:2", "4:2:0", "grey"])
@pytest.mark.parametrize(
    ("height", "width"), [(75, 101), (64, 48), (17, 16), (1, 9), (9, 1), (1, 1)]
)
def test_region_decode_agrees_with_torchvision(
    pool: Any, height: int, width: int, layout: str, progressive: bool
) -> None:
    rng = np.random.default_rng([height, width])
    pixels = images.photo(height, width, channels=1 if layout == "grey" else 3)
    subsampling = "4:4:4" if layout == "grey" else layout
    data = images.jpeg(pixels, subsampling=subsampling, progressive=progressive)
    boxes = random_boxes(rng, height, width, 24)
    out = np.empty((len(boxes), 29, 37, 3), np.uint8)
    assert (
        pool.decode_batch(
            [data] * len(boxes), geometry=resize_only(boxes, (29, 37)), out=out
        ).wait()
        == []
    )
    for row, box in enumerate(boxes):
        assert_close(out[row], reference(data, box, (29, 37)), box)


@pytest.mark.parametrize("antialias", [True, False], ids=["antialias", "sharp"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "nearest-exact"])
@pytest.mark.parametrize("size", [(224, 224), (7, 5), (1, 1), (151, 400), (200, 33)])
def test_resampling_agrees_with_torchvision(
    pool: Any, size: tuple[int, int], interpolation: str, antialias: bool
) -> None:
    data = images.jpeg(images.photo(200, 150))
    boxes = random_boxes(np.random.default_rng(7), 200, 150, 6)
    out = np.empty((len(boxes), *size, 3), np.uint8)
    sampling = Resampling(interpolation, antialias)
    pending = pool.decode_batch(
        [data] * len(boxes), geometry=resize_only(boxes, size), out=out, sampling=sampling
    )
    assert pending.wait() == []
    for row, box in enumerate(boxes):
        # Without antialiasing, older torch has another kernel for uint8, whose rounding shows in a
        # few pixels.
        mean = 0.2 if antialias else 1.0
        assert_close(out[row], reference(data, box, size, interpolation, antialias), box, mean=mean)


def test_flips_and_windows_are_cuts_of_the_resized_box(pool: Any) -> None:
    data = images.jpeg(images.photo(90, 120))
    box, size = (5, 11, 70, 95), (60, 80)
    whole = reference(data, box, size)
    rows = [
        (box, size, (top, left, 40, 50), flip)
        for top, left in [(0, 0), (20, 30), (7, 13)]
        for flip in [(False, False), (True, False), (False, True), (True, True)]
    ]
    out = np.empty((len(rows), 40, 50, 3), np.uint8)
    assert pool.decode_batch([data] * len(rows), geometry=geometry(rows), out=out).wait() == []
    for row, (_, _, (top, left, height, width), (mirror, upside_down)) in enumerate(rows):
        wanted = whole[top : top + height, left : left + width]
        wanted = wanted[:: -1 if upside_down else 1, :: -1 if mirror else 1]
        assert_close(out[row], wanted, rows[row])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_window_outside_the_grid_is_padding(pool: Any, mode: str) -> None:
    data = images.jpeg(images.photo(60, 50))
    box, size = (0, 0, 60, 50), (30, 25)
    pad = 9
    out = np.empty((2, 30 + 2 * pad, 25 + 2 * pad, 3), np.uint8)
    window = (-pad, -pad, *out.shape[1:3])
    placed = geometry([(box, size, window, (False, False)), (box, size, window, (True, False))])
    sampling = Resampling(padding_mode=mode, fill=(10.0, 20.0, 30.0))
    assert pool.decode_batch([data, data], geometry=placed, out=out, sampling=sampling).wait() == []
    inner = torch.from_numpy(reference(data, box, size)).permute(2, 0, 1)
    fill = [10, 20, 30] if mode == "constant" else 0
    wanted = F.pad(inner, [pad] * 4, fill=fill, padding_mode=mode).permute(1, 2, 0).numpy()
    assert_close(out[0], wanted)
    assert_close(out[1], wanted[:, ::-1])


def test_nothing_but_padding(pool: Any) -> None:
    data = images.jpeg(images.photo(20, 20))
    out = np.empty((1, 4, 4, 3), np.uint8)
    placed = geometry([((0, 0, 20, 20), (10, 10), (50, 50, 4, 4), (False, False))])
    assert (
        pool.decode_batch([data], geometry=placed, out=out, sampling=Resampling(fill=(7.0,))).wait()
        == []
    )
    assert (out == 7).all()


@pytest.mark.whole
def test_simd_variants_are_equal() -> None:
    """On boxes and sizes of every alignment, and weights of every precision."""
    rng = np.random.default_rng(3)
    data = [
        images.jpeg(images.photo(181, 233, seed=seed), subsampling=s)
        for seed, s in enumerate(["4:2:0", "4:4:4"])
    ]
    for size in [(224, 224), (64, 61), (3, 300), (300, 3), (5, 2), (33, 22), (96, 85)]:
        for interpolation, antialias in [
            ("bilinear", True),
            ("bicubic", True),
            ("bilinear", False),
        ]:
            boxes = random_boxes(rng, 181, 233, 10)
            found = {}
            for simd in SIMD:
                try:
                    pool = native.NativePool(1, simd=simd)
                except ValueError:
                    continue  # not on this processor
                assert pool.simd == simd
                out = np.empty((len(boxes), *size, 3), np.uint8)
                pending = pool.decode_batch(
                    [data[row % 2] for row in range(len(boxes))],
                    geometry=resize_only(boxes, size),
                    out=out,
                    sampling=Resampling(interpolation, antialias),
                )
                assert pending.wait() == []
                found[simd] = out
                pool.close()
            for simd, out in found.items():
                np.testing.assert_array_equal(
                    out, found["plain"], err_msg=f"{simd} {size} {interpolation}"
                )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_pillows(pool: Any, orientation: int) -> None:
    data = images.jpeg(images.photo(48, 66), subsampling="4:4:4", orientation=orientation)
    with Image.open(io.BytesIO(data)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    top, left, height, width = box = (3, 5, 30, 25)
    out = np.empty((1, height, width, 3), np.uint8)
    settings = DecodeSettings(exif_orientation=True)
    pending = pool.decode_batch(
        [data], geometry=resize_only([box], (height, width)), out=out, settings=settings
    )
    assert pending.wait() == []
    assert_close(out[0], upright[top : top + height, left : left + width])
    headers, failures = pool.read_headers([data])
    assert failures == []
    assert headers.tolist() == [[48, 66, 3, orientation, 0, 0]]


def test_files_and_byte_ranges(pool: Any, tmp_path: Any) -> None:
    data = [images.jpeg(images.photo(40, 40 + 7 * seed, seed=seed)) for seed in range(30)]
    for row, content in enumerate(data):
        (tmp_path / f"{row}.jpg").write_bytes(content)
    (tmp_path / "shard").write_bytes(b"head" + b"".join(data) + b"tail")
    boxes = [(0, 0, 40, 40 + 7 * seed) for seed in range(30)]
    placed = resize_only(boxes, (24, 24))
    outs = np.empty((3, 30, 24, 24, 3), np.uint8)

    table = PathTable.of([f"{row}.jpg" for row in range(30)], root=str(tmp_path))
    assert pool.decode_batch(table, geometry=placed, out=outs[0]).wait() == []
    lengths = np.array([len(content) for content in data])
    ranges = EncodedFiles(
        PathTable.of(["shard"], root=str(tmp_path)).take(np.zeros(30, np.int64)),
        offsets=4 + np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        lengths=lengths,
    )
    assert pool.decode_batch(ranges, geometry=placed, out=outs[1]).wait() == []
    assert pool.decode_batch(data, geometry=placed, out=outs[2]).wait() == []
    np.testing.assert_array_equal(outs[0], outs[2])
    np.testing.assert_array_equal(outs[1], outs[2])

    rows = np.array([5, 2, 2, 29])
    some = np.empty((4, 24, 24, 3), np.uint8)
    taken = Geometry(placed.box[rows], placed.size[rows], placed.window[rows], placed.flip[rows])
    assert pool.decode_batch(table.take(rows), geometry=taken, out=some).wait() == []
    np.testing.assert_array_equal(some, outs[2][rows])


@pytest.mark.parametrize("metadata", [0, 9_000, 16_300, 16_384, 20_000, 64_900, 65_500, 300_000])
def test_headers_of_files_are_those_of_their_bytes(pool: Any, tmp_path: Any, metadata: int) -> None:
    """Of files so much is read as has the header: less than is asked for at first, or more."""
    plain = images.jpeg(images.photo(300, 400), quality=95, orientation=6)
    more = bytearray()
    while len(more) < metadata:  # comments, before the EXIF data
        size = min(metadata - len(more) + 4, 65_000)
        more += b"\xff\xfe" + size.to_bytes(2, "big") + bytes(size - 2)
    png = io.BytesIO()
    exif = Image.Exif()
    exif[0x112] = 6
    noise = np.random.default_rng(metadata).integers(0, 256, (40 + metadata // 600, 200, 3))
    Image.fromarray(noise.astype(np.uint8)).save(png, "PNG")
    pixels, end = png.getvalue()[:-12], png.getvalue()[-12:]
    chunk = b"eXIf" + exif.tobytes()[6:]
    after = len(chunk[4:]).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    data = [plain[:2] + bytes(more) + plain[2:], pixels + after + end, plain[:150], b""]
    for row, content in enumerate(data):
        (tmp_path / str(row)).write_bytes(content)
    files = PathTable.of([str(row) for row in range(4)], root=str(tmp_path))
    headers, failures = pool.read_headers(files)
    whole, reasons = pool.read_headers(data)
    assert whole[0].tolist() == [300, 400, 3, 6, 0, 0]
    assert headers[0].tolist() == whole[0].tolist()
    assert headers[1].tolist() == whole[1].tolist()
    assert whole[1][3] == 6
    assert [failure.row for failure in failures] == [failure.row for failure in reasons] == [2, 3]


def test_headers(pool: Any) -> None:
    data = [
        images.jpeg(images.photo(33, 47)),
        images.jpeg(images.photo(8, 9, channels=1), progressive=True),
        images.cmyk_jpeg(images.photo(10, 11)),
        b"GIF89a" + bytes(20),
        b"",
    ]
    headers, failures = pool.read_headers(data)
    here = pool.read_headers(data, here=True)
    assert (here[0].tolist(), here[1]) == (headers.tolist(), failures)
    assert headers.tolist() == [
        [33, 47, 3, 1, 0, 0],
        [8, 9, 1, 1, 1, 0],
        [10, 11, 4, 1, 0, 0],
        [0] * 6,
        [0] * 6,
    ]
    assert [(f.row, f.status) for f in failures] == [
        (3, native.Status.OTHER_FORMAT),
        (4, native.Status.DAMAGED),
    ]


# 8 x 36 pixels, three components of 2 x 2, 1 x 1 and 1 x 4 blocks, of which the only scan has the
# first. Found by `make fuzz`.
FOUR_ROWS = bytes.fromhex(
    "ffd8ff00ffdb004300fffffffffffffffffffffffffffffff7ffffffffffffffffffffffffffffffffffffffdb0043"
    "0101010101010101010101010101010101250101010101010101ffc00011080024000803012200021122711481ffda"
    "0008010100001b51a2f0b39cb4927369a82b2494211495d3ffd9"
)


def test_rows_are_not_skipped_where_libjpeg_would_never_return(pool: Any) -> None:
    """In an image of four rows of blocks to one, jpeg_skip_scanlines waited for blocks after the
    last ones, for ever."""

    def rows(count: int) -> npt.NDArray[np.uint8]:
        out = np.zeros((1, count, 8, 3), np.uint8)
        view = View(resize_only([(0, 0, count, 8)], (count, 8)), Resampling(), out)
        settings = DecodeSettings()
        assert not pool.decode_views(
            [FOUR_ROWS], [view], settings=settings, check_whole=True
        ).wait()
        return out

    whole = rows(36)
    assert whole.std() > 0
    for count in range(1, 36):
        assert np.array_equal(rows(count), whole[:, :count]), count
