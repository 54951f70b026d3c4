"""PNG and WebP by the core: to the last bit the pixels of the Python path, in every box, and its
verdicts."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload import create_loader, native
from fastload.decode import DecodeSettings, get_decoder
from fastload.decode.header import pixel_chunks
from fastload.decode.image import decode_image
from fastload.decode.libraries import core_formats
from fastload.errors import DecodeError
from fastload.geometry import Geometry, Resampling, View
from fastload.render.host import render_row
from tests import images, pngs
from tests.test_native_jpeg import SIMD, Box, Decoder, boxes_of

needs_png = pytest.mark.skipif(
    "PNG" not in core_formats(), reason="the core is not built, or without PNG"
)
needs_webp = pytest.mark.skipif(
    "WEBP" not in core_formats(), reason="the core is not built, or without libwebp"
)

Pixels = npt.NDArray[np.uint8]
PHOTO = images.photo(45, 70)
WEBP: dict[str, tuple[str, dict[str, Any]]] = {
    "lossy": ("RGB", {"quality": 80}),
    "coarse": ("RGB", {"quality": 5}),
    "lossless": ("RGB", {"lossless": True}),
    "lossy with alpha": ("RGBA", {"quality": 80}),
    "lossless with alpha": ("RGBA", {"lossless": True}),
    "grey": ("L", {"quality": 60, "method": 6}),
}


def webp(pixels: Pixels, kind: str) -> bytes:
    mode, options = WEBP[kind]
    image = Image.fromarray(pixels).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(np.ascontiguousarray(pixels[::-1, :, 0])))
    return images._save(image, format="WEBP", **options)


def assert_boxes(
    decoder: Decoder, data: bytes, whole: Pixels, boxes: list[Box], note: object = ""
) -> None:
    for check in (False, True):
        found, failures = decoder.decode(data, boxes, whole=check)
        assert failures == [], note
        for pixels, (top, left, height, width) in zip(found, boxes, strict=True):
            wanted = whole[top : top + height, left : left + width]
            np.testing.assert_array_equal(
                pixels, wanted, err_msg=f"{note} {(top, left, height, width)}"
            )


def by_python(
    data: bytes, monkeypatch: pytest.MonkeyPatch, as_stored: bool = False
) -> Pixels | None:
    """What there is without the core; None if it is refused."""
    with monkeypatch.context() as without:
        without.setattr("fastload.native.available", lambda: False)
        return by_all(data, as_stored)


def by_all(data: bytes, as_stored: bool = False) -> Pixels | None:
    try:
        return decode_image(
            data,
            name="x",
            decoder=get_decoder("pillow"),
            settings=DecodeSettings(),
            as_stored=as_stored,
        )
    except DecodeError:
        return None


@needs_png
@pytest.mark.parametrize(("height", "width"), [(45, 70), (8, 8), (3, 2), (1, 9), (9, 1), (1, 1)])
def test_every_kind_of_png(height: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder()
    boxes = boxes_of(height, width, 3)
    by_core = 0
    for name, data, shown in pngs.every_kind(images.photo(height, width)):
        if "interlaced" in name:
            assert "interlaced" in decoder.verdict(data, boxes[0])
        else:
            assert_boxes(decoder, data, shown, boxes, name)
            by_core += 2 * len(boxes)
        assert decoder.pool.decoded["png"] == by_core
        for found in (by_all(data), by_python(data, monkeypatch)):
            assert found is not None
            np.testing.assert_array_equal(found, shown, err_msg=name)


@needs_png
@pytest.mark.parametrize("simd", SIMD)
def test_filters_of_every_instruction_set(simd: str) -> None:
    try:
        decoder = Decoder(simd)
    except ValueError:
        pytest.skip("not on this processor")
    noise = np.random.default_rng(0).integers(0, 256, (24, 37, 3), dtype=np.uint8)
    for colour in (0, 2, 4, 6):
        samples = pngs.samples_of(noise, colour, 8)
        for filters in [(f, g) for f in range(5) for g in range(f, 5)]:
            data = pngs.png(samples, colour, 8, filters=filters)
            assert_boxes(
                decoder,
                data,
                pngs.shown(samples, colour, 8),
                [(0, 0, 24, 37), (11, 5, 7, 20)],
                filters,
            )


@needs_png
def test_many_rows_and_wide_ones() -> None:
    """More than are inflated at a time, and rows longer than that."""
    for height, width in [(150, 300), (5, 20_000)]:
        pixels = (
            np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8) & 0xF0
        )
        for colour, depth in [(2, 8), (0, 16), (3, 4)]:
            samples = pngs.samples_of(pixels, colour, depth)
            data = pngs.png(samples, colour, depth, piece=8192, level=1)
            assert_boxes(
                Decoder(),
                data,
                pngs.shown(samples, colour, depth),
                boxes_of(height, width, 2),
                colour,
            )


def _with_stream(stream: bytes, data: bytes | None = None) -> bytes:
    """A PNG of one IDAT chunk with another one in its place."""
    parts = pngs.chunks(GOOD if data is None else data)
    return pngs.joined([(kind, stream if kind == b"IDAT" else body) for kind, body in parts])


def _header(at: int, value: int) -> bytes:
    parts = list(pngs.chunks(GOOD))
    body = bytearray(parts[0][1])
    body[at] = value
    return pngs.joined([(b"IHDR", bytes(body)), *parts[1:]])


def _inserted(at: int, *new: bytes) -> bytes:
    parts = [pngs.chunk(kind, body) for kind, body in pngs.chunks(GOOD)]
    return pngs.SIGNATURE + b"".join([*parts[:at], *new, *parts[at:]])


GOOD = images.png(PHOTO)
STREAM = next(body for kind, body in pngs.chunks(GOOD) if kind == b"IDAT")
RAW = zlib.decompress(STREAM)
PALETTE = images.png(PHOTO, mode="P")
BOMB = b"x\x9c" + b"\0\0\0\xff\xff" * 100_000 + zlib.compress(RAW)[2:]
"""Blocks of nothing before the pixels: each costs a decoder far more than its bytes."""
ODD: dict[str, tuple[Callable[[], bytes], bool]] = {
    "good": (lambda: GOOD, True),
    "something after the end": (lambda: GOOD + b"trailer", True),
    "more rows than there are": (lambda: _with_stream(zlib.compress(RAW + RAW)), True),
    "something after the stream": (lambda: _with_stream(STREAM + b"xxxx"), True),
    "an empty piece": (lambda: _inserted(1, pngs.chunk(b"IDAT")), True),
    "wrong checksum of text": (lambda: _inserted(1, pngs.chunk(b"tEXt", b"a\0b", 5)), True),
    "text that unpacks to megabytes": (
        lambda: _inserted(1, pngs.chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(9 << 20)))),
        True,
    ),
    "short pHYs": (lambda: _inserted(1, pngs.chunk(b"pHYs", b"a")), True),
    "colour profile of nothing": (lambda: _inserted(1, pngs.chunk(b"iCCP", b"a\0\1")), True),
    "a palette that is not needed": (lambda: _inserted(1, pngs.chunk(b"PLTE", bytes(9))), True),
    "animated": (lambda: _inserted(1, pngs.chunk(b"acTL", struct.pack(">II", 1, 0))), True),
    "wrong checksum of pixels": (
        lambda: GOOD.replace(STREAM, STREAM[:400] + b"\0" + STREAM[401:]),
        False,
    ),
    "wrong checksum of the header": (lambda: GOOD[:29] + b"\0\0\0\0" + GOOD[33:], False),
    "wrong checksum of the stream": (lambda: _with_stream(STREAM[:-4] + b"abcd"), False),
    "rows are missing": (lambda: _with_stream(zlib.compress(RAW[:-500])), False),
    "a byte is missing": (lambda: _with_stream(zlib.compress(RAW[:-1])), False),
    "no filter 5": (lambda: _with_stream(zlib.compress(RAW[:422] + b"\5" + RAW[423:])), False),
    "a stream of something else": (lambda: _with_stream(bytes(500)), False),
    "a dictionary": (lambda: _with_stream(b"\x78\xbb" + STREAM[2:]), False),
    "unknown chunk": (lambda: _inserted(1, pngs.chunk(b"ABCD")), False),
    "no letters": (lambda: _inserted(1, pngs.chunk(b"a\0bc")), False),
    "two headers": (lambda: _inserted(1, pngs.chunk(*next(iter(pngs.chunks(GOOD))))), False),
    "unknown compression": (lambda: _header(10, 1), False),
    "unknown filters": (lambda: _header(11, 1), False),
    "unknown interlacing": (lambda: _header(12, 2), False),
    "RGB of 4 bits": (lambda: _header(8, 4), False),
    "colour type 5": (lambda: _header(9, 5), False),
    "no width": (lambda: _header(3, 0), False),
    "no palette": (
        lambda: pngs.joined([p for p in pngs.chunks(PALETTE) if p[0] != b"PLTE"]),
        False,
    ),
    "palette after the pixels": (
        lambda: pngs.joined(
            sorted(pngs.chunks(PALETTE), key=lambda p: (p[0] == b"IEND", p[0] == b"PLTE"))
        ),
        False,
    ),
    "half of a colour": (
        lambda: pngs.joined([(k, b[:-1] if k == b"PLTE" else b) for k, b in pngs.chunks(PALETTE)]),
        False,
    ),
    "no pixels": (lambda: pngs.joined([p for p in pngs.chunks(GOOD) if p[0] != b"IDAT"]), False),
    "pieces apart": (
        lambda: _inserted(2, pngs.chunk(b"tEXt", b"a\0b"), pngs.chunk(b"IDAT", b"")),
        False,
    ),
    "no end": (lambda: GOOD[:-12], False),
    "cut": (lambda: GOOD[:-400], False),
    "blocks of nothing": (lambda: _with_stream(BOMB), False),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_pngs_have_one_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the core and without; in the core alone, never a good one of what is refused."""
    make, good = ODD[name]
    data = make()
    with_core, without = by_all(data), by_python(data, monkeypatch)
    assert (with_core is not None) == (without is not None) == good
    if good:
        np.testing.assert_array_equal(with_core, PHOTO)
        np.testing.assert_array_equal(without, PHOTO)
    elif "PNG" in core_formats():
        assert Decoder().verdict(data, (0, 0, *PHOTO.shape[:2])) != ""


@needs_png
def test_checksums_count_wherever_the_box_is() -> None:
    """Damage of a disk below the crop is found, too; but not the faults that its writer
    made."""
    torn = GOOD.replace(STREAM, STREAM[:-20] + b"\0\0\0" + STREAM[-17:])
    short = _with_stream(zlib.compress(RAW[:-500]))
    decoder, top = Decoder(), (0, 0, 5, 70)
    assert "checksum" in decoder.verdict(torn, top)
    assert decoder.verdict(short, top) == ""
    assert "damaged" in decoder.verdict(short, top, whole=True)
    unfinished = _with_stream(STREAM[:-4])
    assert "damaged" in decoder.verdict(unfinished, (0, 0, 45, 70))
    assert "damaged" in decoder.verdict(unfinished, top, whole=True)


def changed_at_random(data: bytes, rng: np.random.Generator, start: int) -> bytearray:
    """With a few bytes changed, left out or put in."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(start, len(changed)))
        match int(rng.integers(0, 4)):
            case 0:
                changed[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                changed[at : at + 4] = rng.bytes(4)
            case 2:
                del changed[at : at + int(rng.integers(1, 20))]
            case _:
                changed[at:at] = rng.bytes(int(rng.integers(1, 5)))
    return changed


def damaged_png(data: bytes, rng: np.random.Generator) -> bytes:
    """Changed anywhere; or with checksums made right again, so that the change gets to the parser
    and the inflater; or within the stream, so that it gets to the filters."""
    how = int(rng.integers(0, 3))
    if how == 0:
        stream = next(body for kind, body in pngs.chunks(data) if kind == b"IDAT")
        return _with_stream(zlib.compress(changed_at_random(zlib.decompress(stream), rng, 0)), data)
    changed = changed_at_random(data, rng, 8)
    if how == 1:
        return bytes(changed)
    position = 8
    while position + 12 <= len(changed):
        (length,) = struct.unpack_from(">I", changed, position)
        stop = position + 8 + length
        if stop + 4 > len(changed):
            break
        changed[stop : stop + 4] = struct.pack(">I", zlib.crc32(changed[position + 4 : stop]))
        position = stop + 4
    return bytes(changed)


@needs_png
@pytest.mark.parametrize(("colour", "depth"), [(2, 8), (3, 4), (6, 16)])
def test_damaged_pngs_get_the_verdict_and_pixels_of_python(
    colour: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = images.photo(20, 30)
    data = pngs.png(pngs.samples_of(pixels, colour, depth), colour, depth)
    rng = np.random.default_rng([colour, depth])
    decoder, good = Decoder(), 0
    for _ in range(200):
        bad = damaged_png(data, rng)
        height, width = struct.unpack_from(">II", bad, 16)[::-1] if len(bad) > 24 else (1, 1)
        if not 0 < height * width <= 10_000:
            continue
        (found,), failures = decoder.decode(bad, [(0, 0, height, width)], whole=True)
        if not failures:
            wanted = by_python(bad, monkeypatch)
            assert wanted is not None, bad
            np.testing.assert_array_equal(found, wanted)
            good += 1
    assert good > 5


@needs_webp
@pytest.mark.parametrize("kind", WEBP)
@pytest.mark.parametrize(("height", "width"), [(45, 70), (17, 16), (1, 9), (9, 1), (130, 90)])
def test_every_kind_of_webp(
    height: int, width: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = webp(images.photo(height, width), kind)
    whole = by_python(data, monkeypatch)
    assert whole is not None
    decoder, boxes = Decoder(), boxes_of(height, width, 25)
    assert_boxes(decoder, data, whole, boxes)
    assert decoder.pool.decoded["webp"] == 2 * len(boxes)


@needs_webp
def test_damaged_webps_get_the_verdict_and_pixels_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    decoder, good = Decoder(), 0
    for kind in WEBP:
        data = webp(images.photo(20, 30), kind)
        for _ in range(30):
            bad = bytes(changed_at_random(data, rng, 8))
            (found,), failures = decoder.decode(bad, [(0, 0, 20, 30)], whole=True)
            wanted = by_python(bad, monkeypatch)
            if not failures:
                assert wanted is not None, (kind, bad)
                np.testing.assert_array_equal(found, wanted[:20, :30])
                good += 1
    assert good > 5


@needs_webp
def test_animated_webp_is_for_pillow() -> None:
    frames = [Image.fromarray(images.photo(20, 30, seed=seed)) for seed in range(3)]
    data = images._save(
        frames[0], format="WEBP", save_all=True, append_images=frames[1:], lossless=True
    )
    assert "moving" in Decoder().verdict(data, (0, 0, 20, 30))
    found = by_all(data)
    assert found is not None
    np.testing.assert_array_equal(found, np.asarray(frames[0]))


@needs_png
@needs_webp
@pytest.mark.parametrize("orientation", range(1, 9))
def test_headers_and_orientation(orientation: int) -> None:
    exif = images._exif(orientation)
    data = [
        images.png(PHOTO, orientation=orientation),
        images._save(Image.fromarray(PHOTO), format="WEBP", exif=exif),
    ]
    data.append(
        images.png(
            np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8),
            orientation=orientation,
        )
    )
    assert len(data[2]) > 64 << 10  # more than is read for a header at first
    pool = native.NativePool(1)
    headers, failures = pool.read_headers(data)
    pool.close()
    assert failures == []
    assert headers[:2].tolist() == [[45, 70, 3, orientation, 0, 0]] * 2
    assert headers[2].tolist() == [200, 300, 3, orientation, 0, 0]


@pytest.mark.parametrize(
    "make", [images.png, lambda pixels: webp(pixels, "lossless")], ids=["PNG", "WebP"]
)
def test_limit_on_pixels(make: Callable[[Pixels], bytes]) -> None:
    settings = DecodeSettings(max_pixels=45 * 70 - 1)
    with pytest.raises(DecodeError, match="above the limit of 3,149"):
        decode_image(make(PHOTO), name="x", decoder=get_decoder("pillow"), settings=settings)
    if len(core_formats()) == 2:
        pool = native.NativePool(1)
        _, failures = pool.read_headers([make(PHOTO)], settings=settings)
        pool.close()
        assert failures[0].status is native.Status.TOO_LARGE


def test_masks_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core makes colours of a palette; a mask wants its indices."""
    classes = images.labels(40, 50)
    for data in (
        images.palette_mask_png(classes),
        images.png(classes),
        images.png(classes.astype(np.uint16)),
    ):
        for found in (by_all(data, as_stored=True), by_python(data, monkeypatch, as_stored=True)):
            assert found is not None
            np.testing.assert_array_equal(found[..., 0], classes)


def decoded_masks(pool: Any, data: bytes, geometry: Geometry, sampling: Resampling) -> Pixels:
    """(n, height, width) by the core, of a batch of one mask again and again; of zeros where it
    gives it back."""
    count = len(geometry)
    out = np.full((count, *geometry.window[0, 2:], 1), 77, np.uint8)
    view = View(geometry, sampling, out)
    failures = pool.decode_columns([([data] * count, [view])], check_whole=True).wait()
    assert not failures or (len(failures) == count and not out.any())
    return out[..., 0]


@needs_png
@pytest.mark.parametrize(("height", "width"), [(45, 70), (3, 2), (1, 9), (1, 1)])
def test_masks_of_every_kind_by_the_core(
    height: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers that Pillow reads; or the mask is given back, and Pillow reads it."""
    pool = native.NativePool(1)
    rng = np.random.default_rng([height, width])
    boxes = np.array(boxes_of(height, width, 6), np.int32)
    back, grey = set(), images.jpeg(images.photo(height, width, channels=1))
    kinds = [(name, data) for name, data, _ in pngs.every_kind(images.photo(height, width))]
    for name, data in [*kinds, ("JPEG", grey), ("JPEG, in colour", images.jpeg(PHOTO))]:
        size = rng.integers(1, 60, 2).astype(np.int32)
        window = np.array([rng.integers(-5, 20), rng.integers(-5, 20), 31, 23], np.int32)
        count = len(boxes)
        geometry = Geometry(
            boxes,
            np.tile(size, (count, 1)),
            np.tile(window, (count, 1)),
            rng.integers(0, 2, (count, 2)).astype(np.bool_),
        )
        nearest = ("nearest", "nearest-exact")[int(rng.integers(2))]
        padding = ("constant", "edge", "reflect", "symmetric")[int(rng.integers(4))]
        sampling = Resampling(nearest, False, padding, (9.0,), as_stored=True)  # type: ignore[arg-type]
        found = decoded_masks(pool, data, geometry, sampling)
        whole, alone = by_python(data, monkeypatch, True), by_all(data, as_stored=True)
        assert (whole is None) == (alone is None), name
        np.testing.assert_array_equal(alone, whole, err_msg=name)
        if not found.any():
            back.add(name)
            continue
        assert whole is not None, name
        for row in range(count):
            wanted = np.empty((31, 23, 1), np.uint8)
            render_row(whole, row, View(geometry, sampling, {row: wanted}))  # type: ignore[arg-type]
            np.testing.assert_array_equal(found[row], wanted[..., 0], err_msg=name)
    pool.close()
    taken = [name for name, _ in kinds if name not in back]
    assert "JPEG" not in back
    assert "JPEG, in colour" in back
    assert len(taken) >= 9  # grey of 1, 2, 4, 8 bits; palettes of as many; grey with alpha


@needs_png
@needs_webp
def test_mixed_folders_and_who_read_what(tmp_path: Path) -> None:
    folder = tmp_path / "kind"
    folder.mkdir()
    files = {
        "a.png": images.png(PHOTO),
        "b.jpg": images.jpeg(PHOTO),
        "c.webp": webp(PHOTO, "lossless"),
        "d.png": webp(PHOTO, "lossless"),  # the bytes decide, not the name
        "e.png": images._save(Image.fromarray(PHOTO).convert("P"), format="GIF"),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    box = v2.CenterCrop((30, 40))
    with create_loader(
        tmp_path, batch_size=5, transform=box, backend="turbojpeg", prefetch_factor=1
    ) as loader:
        batch = next(iter(loader))[0]
        said = str(loader.explain())
    for pixels, data in zip(batch, files.values(), strict=True):
        with Image.open(io.BytesIO(data)) as image:
            wanted = box(v2.functional.pil_to_tensor(image.convert("RGB")))
        assert (pixels.int() - wanted.int()).abs().max() <= (2 if data == files["b.jpg"] else 0)
    for words in (f"PNG ({core_formats()['PNG']})", "WEBP (libwebp)"):
        assert words in said
    assert re.search(r"^decoded .*png \d+, webp \d+, python \d+$", said, re.MULTILINE)


@needs_png
def test_decode_jpeg_reads_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload.decode.image._with_pillow", None)
    np.testing.assert_array_equal(fastload.decode_jpeg(GOOD), PHOTO)


def test_pixel_chunks_leaves_out_metadata_only() -> None:
    data = _inserted(1, pngs.chunk(b"tEXt", b"a\0b"), pngs.chunk(b"gAMA", bytes(4)))
    assert pixel_chunks(data) == GOOD


@pytest.mark.whole
@pytest.mark.parametrize("with_core", [True, False])
@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_explain_names_what_reads_png(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, with_core: bool
) -> None:
    """simplejpeg, which is named for JPEGs, cannot."""
    for index in range(4):
        path = tmp_path / "data" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images.png(PHOTO))
    if with_core and "PNG" not in core_formats():
        pytest.skip("the core is not built, or without PNG")
    if not with_core:
        monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    transforms = [None] if backend == "cache" else [None, v2.RandomCrop(16)]
    for transform in transforms:
        with create_loader(tmp_path / "data", 2, backend=backend, transform=transform) as loader:
            next(iter(loader))
            explained = loader.explain()
        assert "by Pillow" in explained
        assert (core_formats().get("PNG", "?") in explained) is with_core
