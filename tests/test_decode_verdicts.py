"""Files about which readers differ: what `decode_image`, as of the backend `torch`, and the native
core say of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fastload import native
from fastload.decode import DecodeSettings, get_decoder
from fastload.decode.image import decode_image
from fastload.errors import DecodeError
from fastload.geometry import Geometry
from tests import images, pngs
from tests.reliability.test_verdicts import AFTER_PIXELS, JPEG, PHOTO, claiming, with_chunk

needs_core = pytest.mark.skipif(not native.available(), reason="the native core is not built")


def by_python(data: bytes) -> npt.NDArray[np.uint8] | None:
    """None where it is refused."""
    try:
        return decode_image(data, name="it", decoder=get_decoder("auto"), settings=DecodeSettings())
    except DecodeError:
        return None


def by_core(data: bytes) -> tuple[npt.NDArray[np.uint8] | None, str]:
    """Pixels, or None and the core's words."""
    pool = native.NativePool(1)
    headers, failures = pool.read_headers([data], here=True)
    if not failures:
        height, width = headers[0, :2].tolist()
        # One pixel, so that no output is in the way of what is measured.
        size = (1, 1) if height * width > 1 << 20 else (height, width)
        box, window = np.array([[0, 0, *size]], np.int32), np.array([[0, 0, *size]], np.int32)
        out = np.empty((1, *size, 3), np.uint8)
        placed = Geometry(box, window[:, 2:].copy(), window, np.zeros((1, 2), np.bool_))
        failures = pool.decode_batch(
            [data], geometry=placed, out=out, check_whole=True, here=True
        ).wait()
    pool.close()
    return (None, failures[0].message) if failures else (out[0], "")


@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_that_claims_to_be_large_costs_nothing(progressive: bool) -> None:
    """A few hundred bytes that said 13,000 x 13,000 cost 1.4 GB before they were refused."""
    data = claiming(13_000, 13_000, progressive=progressive)
    assert len(data) < 400
    tracemalloc.start()
    with pytest.raises(DecodeError, match="truncated: .* cannot hold 13000 x 13000"):
        decode_image(data, name="it", decoder=get_decoder("auto"), settings=DecodeSettings())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20


@needs_core
@pytest.mark.parametrize("progressive", [False, True])
def test_the_core_refuses_it_too(progressive: bool) -> None:
    assert by_core(claiming(13_000, 13_000, progressive=progressive)) == (
        None,
        "Premature end of JPEG file",
    )


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (333, 257), (1024, 1024)])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_the_smallest_jpegs_that_there_are_are_read(
    size: tuple[int, int], subsampling: str, progressive: bool
) -> None:
    """One colour throughout, optimised codes."""
    data = images.jpeg(
        np.full((*size, 3), 90, np.uint8),
        subsampling=subsampling,
        quality=1,
        optimize=True,
        progressive=progressive,
    )
    assert by_python(data) is not None
    if native.available():
        assert by_core(data)[1] == ""


@pytest.mark.slow
def test_the_smallest_png_that_there_is_is_read() -> None:
    data = images._save(Image.new("1", (4000, 4000)), format="PNG", compress_level=9)
    assert by_python(data) is not None
    if native.available():
        assert by_core(data)[1] == ""


@pytest.mark.parametrize("interlaced", [False, True])
def test_a_png_of_too_few_data(interlaced: bool) -> None:
    data = pngs.png(pngs.samples_of(PHOTO, 2, 8), 2, 8, interlaced=interlaced)
    header = bytearray(next(body for kind, body in pngs.chunks(data) if kind == b"IHDR"))
    header[:8] = (13_000).to_bytes(4, "big") * 2
    parts = [(kind, bytes(header) if kind == b"IHDR" else body) for kind, body in pngs.chunks(data)]
    with pytest.raises(DecodeError, match="cannot hold 13000 x 13000"):
        decode_image(
            pngs.joined(parts), name="it", decoder=get_decoder("auto"), settings=DecodeSettings()
        )
    if native.available():
        assert by_core(pngs.joined(parts))[0] is None


def test_an_empty_piece_of_a_png_has_a_checksum_too() -> None:
    good, bad = (with_chunk(-1, pngs.chunk(b"IDAT", b"", checksum)) for checksum in (None, 5))
    assert by_python(good) is not None
    assert by_python(bad) is None
    if native.available():
        assert by_core(good)[1] == ""
        assert by_core(bad)[0] is None


@pytest.mark.parametrize("name", AFTER_PIXELS)
def test_what_follows_the_pixels_of_a_jpeg_does_not_count(name: str) -> None:
    if not native.available():
        pytest.skip("decoders of other libraries refuse these")
    plain = by_core(JPEG)[0]
    for found in (by_python(AFTER_PIXELS[name]()), by_core(AFTER_PIXELS[name]())[0]):
        assert found is not None
        assert plain is not None
        assert np.abs(found.astype(int) - plain).max() <= 2


WEBP: dict[str, Any] = {
    "lossy": {"mode": "RGB"},
    "lossless": {"mode": "RGB", "lossless": True},
    "alpha": {"mode": "RGBA"},
    "turned": {"mode": "RGB", "exif": images._exif(6)},
}


@needs_core
@pytest.mark.parametrize("kind", WEBP)
def test_webps_with_odd_headers_have_one_verdict(kind: str) -> None:
    """Each byte of the container's and the first chunks' headers, changed in some ways."""
    options = dict(WEBP[kind])
    image = Image.fromarray(PHOTO).convert(options.pop("mode"))
    data = images._save(image, format="WEBP", **options)
    delivered = 0
    for at in [*range(4, 8), *range(12, 48)]:
        for value in (0, 1, 0xFF, data[at] ^ 1, data[at] ^ 0x10, (data[at] + 2) & 0xFF):
            mutant = data[:at] + bytes([value]) + data[at + 1 :]
            pixels, _ = by_core(mutant)
            if pixels is None:
                continue  # the backend `turbojpeg` then asks the one below
            delivered += 1
            found = by_python(mutant)
            assert found is not None, (at, value)
            assert np.array_equal(found, pixels), (at, value)
    assert delivered > 10
