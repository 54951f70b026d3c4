"""`mode="unchanged"`: pixels of 16 bits and of floating point on all backends, and what is
refused."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import fastload
from fastload import native
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.sources import open_source
from fastload.tools.pack import PackOptions, pack
from tests import images, pngs
from tests.backends import Contestant, contestants

Deep = npt.NDArray[np.uint16]
UNCHANGED = ("torch-0", "torch-2", "turbojpeg", "turbojpeg-threads", "cache-disk", "cache-device")
SIZES = [(31 + row, 40 + 3 * row) for row in range(6)]


def deep(height: int, width: int, channels: int, seed: int) -> Deep:
    """Smooth, with all 16 bits in use: what a resampler makes of noise says little."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 65536, (1, channels, 5, 6)).astype(np.float32)
    fine = torch.nn.functional.interpolate(
        torch.from_numpy(coarse), (height, width), mode="bicubic", align_corners=False
    )
    return fine.round().clamp(0, 65535)[0].permute(1, 2, 0).numpy().astype(np.uint16)


PIXELS = {
    channels: [deep(*size, channels, row) for row, size in enumerate(SIZES)] for channels in (1, 3)
}


def png16(pixels: Deep) -> bytes:
    return pngs.png(pixels, colour=0 if pixels.shape[2] == 1 else 2, depth=16)


def tiff(pixels: npt.NDArray[Any]) -> bytes:
    """Uncompressed, one strip, little-endian (TIFF 6.0, sections 2 and 6)."""
    height, width, channels = pixels.shape
    bits, real = pixels.dtype.itemsize * 8, 3 if pixels.dtype.kind == "f" else 1
    body = pixels.astype(pixels.dtype.newbyteorder("<")).tobytes()
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, channels, bits if channels == 1 else 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1 if channels == 1 else 2),
        (273, 4, 1, 32),
        (277, 3, 1, channels),
        (278, 4, 1, height),
        (279, 4, 1, len(body)),
        (284, 3, 1, 1),
        (339, 3, channels, real if channels == 1 else 16),
    ]
    counts = struct.pack("<3H", *[bits] * 3) + b"\0\0" + struct.pack("<3H", *[real] * 3)
    head = b"II*\0" + struct.pack("<I", 32 + len(body)) + counts
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *e) for e in entries)
    return head.ljust(32, b"\0") + body + table + bytes(4)


def folder(root: Path, files: list[bytes], ending: str) -> str:
    for row, data in enumerate(files):
        path = root / "deep" / f"class{row % 2}" / f"{row}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(root / "deep")


def in_order(pixels: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """As the folder has them: by class."""
    return pixels[::2] + pixels[1::2]


def planes(pixels: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


FILES = {
    "grey png": (1, lambda pixels: png16(pixels), ".png"),
    "rgb png": (3, lambda pixels: png16(pixels), ".png"),
    "grey tiff": (1, lambda pixels: tiff(pixels), ".tif"),
    "rgb tiff": (3, lambda pixels: tiff(pixels), ".tif"),
}


@pytest.mark.parametrize("kind", FILES)
@contestants(*UNCHANGED)
def test_sixteen_bits_are_those_of_the_file(
    contestant: Contestant, kind: str, tmp_path: Path
) -> None:
    channels, write, ending = FILES[kind]
    if kind == "rgb tiff":
        pytest.importorskip("tifffile", reason="RGB TIFFs of 16 bits are read by tifffile")
    data = folder(tmp_path, [write(pixels) for pixels in PIXELS[channels]], ending)
    crop = v2.CenterCrop((24, 30))
    with contestant.create(
        open_source(data, mode="unchanged"), tmp_path, batch_size=6, transform=crop
    ) as loader:
        found, labels = next(iter(loader))
        assert f"{'grey' if channels == 1 else 'RGB'} of 16 bits" in loader.explain()
    wanted = torch.stack([crop(planes(pixels)) for pixels in in_order(PIXELS[channels])])
    assert found.dtype == torch.uint16
    assert torch.equal(found.cpu(), wanted)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest-exact"])
@contestants(*UNCHANGED)
def test_geometry_is_torchvisions_and_scale_divides_by_65535(
    contestant: Contestant, interpolation: str, tmp_path: Path
) -> None:
    data = folder(tmp_path, [png16(pixels) for pixels in PIXELS[3]], ".png")
    resize = v2.Resize((20, 25), v2.InterpolationMode(interpolation), antialias=True)
    scaled = [resize, v2.RandomHorizontalFlip(1), v2.ToDtype(torch.float32, scale=True)]
    data = open_source(data, mode="unchanged")
    with contestant.create(data, tmp_path, transform=v2.Compose(scaled), batch_size=6) as loader:
        found = next(iter(loader))[0].cpu()
    wanted = torch.stack(
        [
            functional.horizontal_flip(
                functional.resize(
                    planes(pixels).float(), [20, 25], resize.interpolation, antialias=True
                )
            )
            for pixels in in_order(PIXELS[3])
        ]
    ).clamp(0, 65535)
    assert found.dtype == torch.float32
    # The number of the file, rounded once, divided as torchvision does.
    assert (found * 65535 - wanted).abs().max() <= 0.51
    assert torch.equal((found * 65535).round(), (found * 65535).round().clamp(0, 65535))


@contestants(*UNCHANGED)
def test_normalised_pixels_are_torchvisions(contestant: Contestant, tmp_path: Path) -> None:
    data = folder(tmp_path, [png16(pixels) for pixels in PIXELS[1]], ".png")
    steps = [v2.CenterCrop(24), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.25])]
    transform = v2.Compose(steps)
    with contestant.create(
        open_source(data, mode="unchanged"), tmp_path, batch_size=6, transform=transform
    ) as loader:
        found = next(iter(loader))[0].cpu()
    wanted = torch.stack([transform(planes(pixels)) for pixels in in_order(PIXELS[1])])
    assert found.shape == (6, 1, 24, 24)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@contestants("torch-0", "turbojpeg", "cache-disk")
def test_floating_point_is_served_as_it_is(contestant: Contestant, tmp_path: Path) -> None:
    depth = [(pixels / 1000).astype(np.float32) for pixels in PIXELS[1]]
    data = folder(tmp_path, [tiff(pixels) for pixels in depth], ".tif")
    crop = v2.CenterCrop(24)
    with contestant.create(
        open_source(data, mode="unchanged"), tmp_path, batch_size=6, transform=crop
    ) as loader:
        found = next(iter(loader))[0].cpu()
    assert torch.equal(found, torch.stack([crop(planes(pixels)) for pixels in in_order(depth)]))


@contestants(*UNCHANGED)
def test_masks_keep_numbers_above_255(contestant: Contestant, tmp_path: Path) -> None:
    numbers = [pixels.copy() for pixels in PIXELS[1]]
    for row, size in enumerate(SIZES):
        for name, data in (
            ("images", images.png(images.photo(*size))),
            ("masks", png16(numbers[row])),
        ):
            path = tmp_path / "pairs" / name / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    # One whose numbers fit 8 bits, saved so.
    numbers[3] = (numbers[3] // 256).astype(np.uint16)
    small = Image.fromarray(numbers[3][..., 0].astype(np.uint8))
    small.save(tmp_path / "pairs" / "masks" / "3.png")
    source = str(tmp_path / "pairs")
    nearest = v2.Resize((20, 25), v2.InterpolationMode.NEAREST)
    transform = v2.Compose([v2.CenterCrop((24, 30)), v2.Resize((20, 25))])
    with contestant.create(
        open_source(source, mode="unchanged"), tmp_path, batch_size=6, transform=transform
    ) as loader:
        pictures, masks = next(iter(loader))
    wanted = torch.stack(
        [nearest(v2.CenterCrop((24, 30))(planes(mask).float()))[0] for mask in numbers]
    )
    assert (pictures.dtype, masks.dtype) == (torch.uint8, torch.uint16)
    assert torch.equal(masks.cpu().float(), wanted)


@pytest.mark.whole
@contestants(*UNCHANGED)
def test_grey_stays_grey(contestant: Contestant, tmp_path: Path) -> None:
    grey = [images.photo(*size, seed=row, channels=1) for row, size in enumerate(SIZES)]
    data = folder(tmp_path, [images.png(pixels) for pixels in grey], ".png")
    crop = v2.CenterCrop(24)
    for mode, channels in (("unchanged", 1), ("RGB", 3)):
        with contestant.create(
            open_source(data, mode=mode), tmp_path / mode, batch_size=6, transform=crop
        ) as loader:
            found = next(iter(loader))[0].cpu()
        assert found.shape == (6, channels, 24, 24)
        assert found.dtype == torch.uint8
        wanted = torch.stack([crop(planes(pixels)) for pixels in in_order(grey)])
        assert torch.equal(found, wanted.expand(-1, channels, -1, -1))


@contestants(*UNCHANGED)
def test_verdicts_are_the_same(contestant: Contestant, tmp_path: Path) -> None:
    good = [png16(pixels) for pixels in PIXELS[1]]
    bad = {
        "cut off": good[0][: len(good[0]) // 2],
        "a wrong checksum": flipped(good[0]),
        "of 8 bits": images.png(images.photo(31, 40, channels=1)),
        "in colour": png16(PIXELS[3][0]),
    }
    data = folder(tmp_path, [good[0], *bad.values()], ".png")
    with contestant.create(
        open_source(data, mode="unchanged"),
        tmp_path,
        batch_size=1,
        transform=v2.CenterCrop(20),
        **({"options": cache_that_waits(tmp_path)} if contestant.backend == "cache" else {}),
    ) as loader:
        iterator, verdicts = iter(loader), []
        for _ in range(len(bad) + 1):
            try:
                next(iterator)
                verdicts.append("")
            except DecodeError as error:
                verdicts.append(str(error))
    assert [bool(said) for said in verdicts] == [False, True, True, True, True]
    texts = " ".join(verdicts)
    assert "its pixels are grey of 8 bits, and those of the first image" in texts
    assert "its pixels are RGB of 16 bits" in texts


@pytest.mark.skipif(not native.available(), reason="the native core is not built here")
@pytest.mark.parametrize("simd", ["plain", "auto"])
def test_the_core_reads_every_row_filter_and_refuses_the_rest(simd: str) -> None:
    if "PNG" not in native_formats():
        pytest.skip("the core is built without PNG")
    read = native.load().read_png16

    def found(file: bytes, shape: tuple[int, ...]) -> Deep | None:
        made = np.empty(shape, np.uint16)
        return made if read(np.frombuffer(file, np.uint8), made, simd) == "" else None

    rng = np.random.default_rng(0)
    for height, width in [(1, 1), (9, 13), (40, 33)]:
        picture = images.photo(height, width, seed=width)
        for colour, channels in ((0, 1), (2, 3)):
            samples = pngs.samples_of(picture, colour, 16)
            for filters in ((0, 1, 2, 3, 4), (4,), (3, 2)):
                file = pngs.png(
                    samples, colour, 16, filters=filters, piece=int(rng.integers(9, 99))
                )
                assert np.array_equal(found(file, samples.shape), samples)
            assert found(file, (height, width + 1, channels)) is None
            assert found(file, (height, width, 4 - channels)) is None
            assert found(flipped(file), samples.shape) is None
            assert found(file[:-13], samples.shape) is None
            assert found(b"\x00" + file[1:], samples.shape) is None  # no signature of a PNG
            interlaced = pngs.png(samples, colour, 16, interlaced=True)
            assert found(interlaced, samples.shape) is None
        for colour, depth in ((0, 8), (2, 8), (3, 8), (4, 16), (6, 16)):
            samples = pngs.samples_of(picture, colour, depth)
            file = pngs.png(samples, colour, depth)
            assert found(file, (*samples.shape[:2], samples.shape[2])) is None


def test_what_the_core_finds_odd_is_read_by_others(tmp_path: Path) -> None:
    for channels, colour in ((1, 0), (3, 2)):
        file = pngs.png(PIXELS[channels][0], colour, 16, interlaced=True)
        data = folder(tmp_path / str(channels), [file], ".png")
        with fastload.create_loader(open_source(data, mode="unchanged")) as loader:
            assert torch.equal(next(iter(loader))[0][0], planes(PIXELS[channels][0]))


@contestants("torch-0", "turbojpeg", "turbojpeg-threads", "cache-disk")
def test_bits_that_are_left_out_are_said(
    contestant: Contestant,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastload.narrowed._narrowed", set())
    data = folder(tmp_path, [png16(pixels) for pixels in PIXELS[3]], ".png")
    with contestant.create(data, tmp_path, batch_size=6, transform=v2.CenterCrop(24)) as loader:
        found = next(iter(loader))[0].cpu()
        counts = loader.stats().decoded
    said = [record.message for record in caplog.records if "16 bits" in record.message]
    assert len(said) == 1
    assert "mode='unchanged'" in said[0]
    if contestant.name == "turbojpeg" and "PNG" in native_formats():
        assert counts["narrowed"] >= 6, "and batches that were made ahead"
    wanted = [v2.CenterCrop(24)(planes(pixels >> 8)) for pixels in in_order(PIXELS[3])]
    assert torch.equal(found, torch.stack(wanted).to(torch.uint8))


def native_formats() -> Any:
    return native.load().formats() if native.available() else {}


def flipped(data: bytes) -> bytes:
    """With another byte in the middle."""
    half = len(data) // 2
    return data[:half] + bytes([data[half] ^ 0x55]) + data[half + 1 :]


def cache_that_waits(directory: Path) -> Any:
    from fastload.backends.cache import CacheOptions

    return CacheOptions(directory=directory / "filled", fill="while-training", progress=False)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (pngs.png(pngs.samples_of(images.photo(9, 9), 6, 8), 6, 8), "alpha channel"),
        (images.palette_mask_png(images.labels(9, 9)), "palette"),
        (images.cmyk_jpeg(images.photo(16, 16)), "CMYK"),
        (b"no image", "cannot identify"),
        (tiff(np.zeros((9, 9, 1), np.int32)), "neither grey nor RGB|signed"),
    ],
)
def test_what_cannot_be_kept_is_refused(file: bytes, words: str, tmp_path: Path) -> None:
    data = folder(tmp_path, [file], ".tif" if file.startswith(b"II") else ".png")
    with pytest.raises(SourceError, match=f"mode='unchanged'.*0.*({words})"):
        open_source(data, mode="unchanged")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"transform": v2.RandomRotation(5)}, "warps"),
        ({"transform": v2.Pad(3, fill=7)}, "fill of"),
        ({"transform": v2.Compose([v2.CenterCrop(9), v2.ColorJitter(0.3)])}, "ColorJitter"),
        ({"transform": v2.CenterCrop(9), "dtype": torch.float16}, "dtype.*float16"),
        ({"transform": v2.CenterCrop(9), "backend": "dali"}, "backend 'dali'|dali"),
    ],
)
def test_what_is_of_eight_bits_is_refused(arguments: Any, words: str, tmp_path: Path) -> None:
    data = folder(tmp_path, [png16(PIXELS[1][0])], ".png")
    with pytest.raises((ConfigurationError, fastload.BackendUnavailableError), match=words):
        fastload.create_loader(open_source(data, mode="unchanged"), **arguments)


def test_there_are_two_modes(tmp_path: Path) -> None:
    data = folder(tmp_path, [png16(PIXELS[1][0])], ".png")
    with pytest.raises(ConfigurationError, match="'RGB' or 'unchanged'"):
        open_source(data, mode="grey")  # type: ignore[arg-type]


def test_code_of_the_data_set_is_not_asked_for_another_mode(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    data = ImageFolder(folder(tmp_path, [png16(PIXELS[1][0])] * 2, ".png"))
    with pytest.raises(ConfigurationError, match="mode: 'unchanged'"):
        fastload.create_loader(open_source(data, mode="unchanged"), transform=lambda image: image)
    with fastload.create_loader(
        open_source(data, mode="unchanged"), transform=v2.CenterCrop(9)
    ) as loader:
        assert next(iter(loader))[0].dtype == torch.uint16


def test_an_opaque_transform_gets_all_bits(tmp_path: Path) -> None:
    for channels in (1, 3):
        data = folder(tmp_path / str(channels), [png16(PIXELS[channels][0])] * 2, ".png")

        def counted(image: Any) -> torch.Tensor:
            pixels = np.asarray(image)
            pixels = pixels[None] if pixels.ndim == 2 else pixels
            return torch.from_numpy(pixels.astype(np.int64))

        with fastload.create_loader(
            open_source(data, mode="unchanged"), transform=counted, num_workers=0
        ) as loader:
            found = next(iter(loader))[0][0]
        assert torch.equal(found, planes(PIXELS[channels][0]).long())


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_albumentations_as_written_gets_all_bits(dtype: Any, tmp_path: Path) -> None:
    package = pytest.importorskip("albumentations", reason="pip install .[albumentations]")
    pixels = PIXELS[1][0].astype(dtype)
    file, end = (png16(pixels), ".png") if dtype == np.uint16 else (tiff(pixels), ".tif")
    data = open_source(folder(tmp_path, [file] * 2, end), mode="unchanged")
    transform = package.Morphological((1, 1), p=1)  # a square of one pixel: changes nothing
    with fastload.create_loader(data, transform=transform, num_workers=0) as loader:
        assert "Morphological" in str(loader.explain())
        found = next(iter(loader))[0][0]
    assert torch.equal(found, planes(pixels))


@pytest.mark.parametrize("name", ["MotionBlur", "MedianBlur", "CLAHE", "RandomBrightnessContrast"])
def test_what_albumentations_does_to_bytes_refuses_other_numbers(name: str, tmp_path: Path) -> None:
    package = pytest.importorskip("albumentations", reason="pip install .[albumentations]")
    data = folder(tmp_path, [tiff(PIXELS[1][0] / np.float32(65535))], ".tif")
    for p in (0.5, 1.0):
        with pytest.raises(ConfigurationError, match=r"needs uint8 images, got torch\.float32"):
            fastload.create_loader(
                open_source(data, mode="unchanged"), transform=getattr(package, name)(p=p)
            )


def test_without_tifffile_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    data = folder(tmp_path, [tiff(PIXELS[3][0])], ".tif")
    with (
        fastload.create_loader(open_source(data, mode="unchanged"), backend="turbojpeg") as loader,
        pytest.raises(DecodeError, match=r"pip install .*\[tiff\]"),
    ):
        next(iter(loader))


def test_packing_says_that_the_mode_belongs_to_reading(tmp_path: Path) -> None:
    data = folder(tmp_path, [png16(PIXELS[1][0])] * 2, ".png")
    with pytest.raises(SourceError, match="Leave mode out"):
        pack(open_source(data, mode="unchanged"), tmp_path / "out", PackOptions(), progress=False)


def test_states_know_the_mode(tmp_path: Path) -> None:
    data = folder(tmp_path, [png16(PIXELS[1][0])] * 2, ".png")
    opened = {mode: open_source(data, mode=mode).source for mode in ("RGB", "unchanged")}
    assert opened["RGB"].fingerprint != opened["unchanged"].fingerprint
    taken = opened["unchanged"].take(np.array([1]))
    assert taken.images["image"].dtype == np.uint16
    picture = Image.open(io.BytesIO(taken.encoded["image"].read(0)))
    assert np.array_equal(np.asarray(picture), PIXELS[1][0][..., 0])
