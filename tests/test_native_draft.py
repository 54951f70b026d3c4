"""Large photographs decoded at 1/2, 1/4 and 1/8: libjpeg-turbo's pixels, in the same place as the
exact ones."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from fastload import Loader, create_loader, native
from fastload.backends.tolerance import PixelDifference
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.errors import ConfigurationError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry
from fastload.native.pool import NativePool, Simd
from tests import images, jpegs

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

Pixels = npt.NDArray[np.uint8]
KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:0": {"subsampling": "4:4:0"},
    "4:2:0": {"subsampling": "4:2:0"},
    "4:1:1": {"subsampling": "4:1:1"},
    "every coefficient": {"subsampling": "4:2:0", "quality": 100},
    "restart markers": {"subsampling": "4:2:0", "restart_marker_blocks": 3},
    "progressive": {"progressive": True},
}


def resized(
    pool: NativePool,
    data: bytes,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    *,
    draft: bool,
    exif: bool = False,
) -> Pixels:
    """A box (top, left, height, width) of a JPEG, resized to (height, width)."""
    geometry = Geometry(
        np.array([box], np.int32),
        np.array([size], np.int32),
        np.array([[0, 0, *size]], np.int32),
        np.zeros((1, 2), bool),
    )
    out = np.zeros((1, *size, 3), np.uint8)
    settings = DecodeSettings(exif_orientation=exif)
    pending = pool.decode_batch([data], geometry=geometry, out=out, settings=settings, draft=draft)
    assert pending.wait() == []
    return out[0]


def pillow_draft(data: bytes, shift: int) -> Image.Image:
    """The whole image at 1 / 2**shift."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        image.draft(None, (width >> shift, height >> shift))
        assert image.size == (-(-width >> shift), -(-height >> shift))
        return image.convert("RGB")


@pytest.mark.slow
@pytest.mark.parametrize("simd", ["avx512", "avx2", "sse4.1", "neon", "plain"])
def test_the_pixels_are_those_of_pillows_draft(simd: Simd) -> None:
    try:
        pool = NativePool(1, simd=simd)
    except ConfigurationError:
        pytest.skip("not on this processor")
    rng = np.random.default_rng(0)
    count = 0
    for kind in [*KINDS, "grey"]:
        for height, width in [(77, 101), (48, 33), (130, 211)]:
            picture = images.photo(height, width, channels=1 if kind == "grey" else 3)
            data = images.jpeg(picture, **KINDS.get(kind, {}))
            for shift in (1, 2, 3):
                wanted = np.asarray(pillow_draft(data, shift))
                for _ in range(3):
                    h, w = (
                        int(rng.integers(1, (height >> shift) + 1)),
                        int(rng.integers(1, (width >> shift) + 1)),
                    )
                    y, x = (
                        int(rng.integers(0, (height >> shift) - h + 1)),
                        int(rng.integers(0, (width >> shift) - w + 1)),
                    )
                    box = (y << shift, x << shift, h << shift, w << shift)
                    found = resized(pool, data, box, (h, w), draft=True)
                    np.testing.assert_array_equal(
                        found, wanted[y : y + h, x : x + w], err_msg=str((kind, shift, box))
                    )
                    count += 1
    assert pool.reduced == count
    assert pool.decoded["own"] == count


@pytest.mark.parametrize("sampling", jpegs.SAMPLINGS)
def test_any_sampling_in_any_scans(sampling: str) -> None:
    rng = np.random.default_rng(list(sampling.encode()))
    pool = NativePool(1)
    for height, width in [(77, 101), (48, 133)]:
        picture = jpegs.noise(height, width, sampling, rng)
        scans = jpegs.script(len(picture.sampling), rng)
        for data in (jpegs.write(picture), jpegs.write(picture, scans, progressive=True)):
            for shift in (1, 2, 3):
                wanted = np.asarray(pillow_draft(data, shift))
                h, w = height >> shift, width >> shift
                found = resized(pool, data, (0, 0, h << shift, w << shift), (h, w), draft=True)
                np.testing.assert_array_equal(found, wanted[:h, :w])
    assert pool.decoded["own"] == pool.reduced == 12


def test_boxes_keep_their_place_between_pixels() -> None:
    pool = NativePool(1)
    data = images.jpeg(images.photo(301, 403), subsampling="4:4:4", quality=95)
    for box in [(3, 5, 290, 390), (1, 2, 299, 397), (13, 7, 150, 201), (0, 6, 77, 90)]:
        for size in [(36, 48), (64, 60), (33, 21)]:
            shift = min(3, int(np.log2(min(box[2] / size[0], box[3] / size[1]))))
            top, left, height, width = (value / 2**shift for value in box)
            place = (left, top, left + width, top + height)
            wanted = pillow_draft(data, shift).resize(
                size[::-1], Image.Resampling.BILINEAR, box=place
            )
            found = resized(pool, data, box, size, draft=True)
            # Pillow's filter looks beyond the box, torchvision's does not.
            inside = found[2:-2, 2:-2].astype(int) - np.asarray(wanted)[2:-2, 2:-2]
            assert np.abs(inside).max() <= 1, (box, size)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_images_keep_their_place(orientation: int) -> None:
    # Sides that are no multiples of eight: an image that is read from its end begins within a
    # reduced pixel.
    ramp = np.linspace(0, 255, 257)[:, None] * np.ones(251)
    picture = np.stack(
        [ramp, ramp[::-1], np.linspace(0, 255, 251) * np.ones((257, 1))], axis=-1
    ).astype(np.uint8)
    data = images.jpeg(picture, quality=98, subsampling="4:4:4", orientation=orientation)
    pool = NativePool(1)
    for box in [(0, 0, 251, 251), (11, 3, 201, 230)]:
        exact = resized(pool, data, box, (24, 24), draft=False, exif=True)
        draft = resized(pool, data, box, (24, 24), draft=True, exif=True)
        assert np.abs(exact.astype(int) - draft)[2:-2, 2:-2].max() <= 2
    assert pool.reduced == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(6):
        path = tmp_path / "photos" / "abc"[index % 3] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images.jpeg(images.photo(300 + index, 420), progressive=index == 5))
    return tmp_path / "photos"


def loaded(folder: Path, options: TurboJpegOptions, **changes: Any) -> Loader:
    changes = {
        "transform": v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()]),
        **changes,
    }
    return create_loader(
        folder, batch_size=6, shuffle=True, seed=3, options=options, backend="turbojpeg", **changes
    )


@pytest.mark.slow
def test_a_loader_decodes_large_photographs_reduced(folder: Path) -> None:
    with (
        loaded(folder, TurboJpegOptions()) as exact,
        loaded(folder, TurboJpegOptions(draft=True)) as draft,
    ):
        (wanted, labels), (found, again) = next(iter(exact)), next(iter(draft))
        assert "draft" not in exact.explain()
        assert "reduced" not in exact.stats().decoded
        assert draft.state_dict() == exact.state_dict()
        counts = draft.stats().decoded
        assert "1/2, 1/4 or 1/8" in str(draft.explain())
    assert torch.equal(labels, again)
    difference = PixelDifference.between(found, wanted)
    assert 0 < difference.mean < 3  # the same crops, other pixels
    # At least of one batch: the next are under way.
    assert counts["reduced"] >= 6
    assert counts["own"] >= 6


@pytest.mark.slow
def test_what_is_not_twice_its_output_is_decoded_exactly(folder: Path) -> None:
    transform = v2.Resize((160, 220))
    with (
        loaded(folder, TurboJpegOptions(), transform=transform) as exact,
        loaded(folder, TurboJpegOptions(draft=True), transform=transform) as draft,
    ):
        assert torch.equal(next(iter(exact))[0], next(iter(draft))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transform": v2.RandomCrop(32)}, "resizes nothing"),
        (
            {"transform": v2.Compose([v2.ToImage(), v2.Resize((32, 32), antialias=False)])},
            "antialiasing",
        ),
        (
            {"transform": v2.Resize((32, 32), interpolation=InterpolationMode.NEAREST)},
            "antialiasing",
        ),
        ({"decoder": "pillow"}, "only the native core"),
    ],
)
def test_it_is_refused_where_it_has_no_meaning(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    options = TurboJpegOptions(draft=True)
    if "decoder" in changes:
        options = replace(options, decoder=changes.pop("decoder"))
    with pytest.raises(ConfigurationError, match=f"draft=True has no meaning here: .*{words}"):
        loaded(folder, options, **changes)


def test_it_is_refused_for_arrays() -> None:
    arrays = (np.zeros((4, 64, 64, 3), np.uint8), np.zeros(4, np.int64))
    with pytest.raises(ConfigurationError, match="are arrays, not JPEGs"):
        create_loader(
            arrays,
            batch_size=2,
            transform=v2.Resize((32, 32)),
            backend="turbojpeg",
            options=TurboJpegOptions(draft=True),
        )
