"""What bad input gets: an error that names the file and the remedy, from every backend; or a
counted substitute."""

from __future__ import annotations

import logging
import math
import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload import native
from fastload.backends.base import BackendOptions
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.loader import build
from tests.backends import Contestant, contestants, once_in_workers
from tests.images import (
    cmyk_jpeg,
    cmyk_jpeg_of_no_program,
    corrupt,
    huge_png_header,
    jpeg,
    photo,
    png,
    truncated,
    with_extraneous_bytes,
    write_photo_folder,
    ycck_jpeg,
)

RESIZE = v2.Resize((24, 24), antialias=True)
GOOD = jpeg(photo(60, 80, seed=1))

BAD = {
    "truncated": (truncated(GOOD), "truncated"),
    "zero bytes": (b"", "empty|0 bytes|zero"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "(?i)html"),
    "bomb": (huge_png_header(60_000, 60_000), "limit"),
    "random bytes": (bytes(range(256)) * 8, "image"),
    "header only": (GOOD[:200], "."),
}


def write(root: Path, data: bytes, name: str = "bad.jpg") -> Path:
    """A class folder of five good images, and one file more."""
    folder = write_photo_folder(root, classes=2, per_class=3)
    (folder / "class_0" / "0.jpg").unlink()
    path = folder / "class_0" / name
    path.write_bytes(data)
    return path


@contestants()
@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_no_image_raises_and_names_itself(
    contestant: Contestant, tmp_path: Path, kind: str
) -> None:
    once_in_workers(contestant, kind, next(iter(BAD)))
    data, words = BAD[kind]
    path = write(tmp_path / "data", data)
    with contestant.create(tmp_path / "data", tmp_path, batch_size=3, transform=RESIZE) as loader:
        with pytest.raises(DecodeError, match=re.escape(str(path))) as caught:
            list(loader)
        assert re.search(words, str(caught.value)), caught.value


@contestants()
@pytest.mark.parametrize("kind", ["truncated", "html", "bomb"])
def test_substitution_keeps_the_number_of_steps_and_counts(
    contestant: Contestant, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "data", BAD[kind][0])
    arguments: dict[str, Any] = {"batch_size": 2, "transform": RESIZE, "on_error": "substitute"}
    with (
        caplog.at_level(logging.WARNING, "fastload"),
        contestant.create(tmp_path / "data", tmp_path, **arguments) as loader,
    ):
        for _ in range(2):
            batches = list(loader)
            assert [len(labels) for _, labels in batches] == [2, 2, 2]
            assert all(images.flatten(1).float().std(1).min() > 0 for images, _ in batches), (
                "a row of zeros"
            )
        assert loader.stats().substituted >= 2
    messages = [
        record.getMessage() for record in caplog.records if str(path) in record.getMessage()
    ]
    assert len(messages) == 1, "once per file"


@contestants()
def test_the_substitute_is_the_same_in_every_backend(
    contestant: Contestant, tmp_path: Path
) -> None:
    write(tmp_path / "data", b"")
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "transform": RESIZE,
        "on_error": "substitute",
        "shuffle": True,
    }
    plain = Contestant("torch-0", "torch", {"num_workers": 0})
    with plain.create(tmp_path / "data", tmp_path, **arguments) as loader:
        wanted = [labels for _, labels in loader]
    with contestant.create(tmp_path / "data", tmp_path, **arguments) as loader:
        got = [labels for _, labels in loader]
    assert torch.equal(torch.cat(got), torch.cat(wanted))


@pytest.mark.whole
@contestants()
def test_a_folder_of_nothing_but_bad_files_ends_in_an_error(
    contestant: Contestant, tmp_path: Path
) -> None:
    for label in "ab":
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "data" / label / f"{number}.jpg").write_bytes(b"no image")
    for on_error in ("raise", "substitute"):
        loader = contestant.create(
            tmp_path / "data", tmp_path, batch_size=2, transform=RESIZE, on_error=on_error
        )
        with loader, pytest.raises(DecodeError, match=r"\.jpg"):
            list(loader)


UNUSUAL = {
    "cmyk.jpg": cmyk_jpeg(photo(40, 50, seed=3)),
    "cmyk-of-no-program.jpg": cmyk_jpeg_of_no_program(photo(40, 50, seed=3)),
    "ycck.jpg": ycck_jpeg(photo(40, 50, seed=3)),
    "grey.jpg": jpeg(photo(40, 50, seed=4, channels=1)),
    "progressive.jpg": jpeg(photo(40, 50, seed=5), progressive=True),
    "extraneous.jpg": with_extraneous_bytes(jpeg(photo(40, 50, seed=6))),
    "grey.png": png(photo(40, 50, seed=7, channels=1)),
    "alpha.png": png(np.dstack([photo(40, 50, seed=8), np.full((40, 50), 99, np.uint8)])),
    "palette.png": png(photo(40, 50, seed=9), mode="P"),
}


@contestants()
def test_unusual_images_are_served_as_pillow_converts_them(
    contestant: Contestant, tmp_path: Path
) -> None:
    paths = [write(tmp_path / "data", data, name) for name, data in UNUSUAL.items()]
    names = sorted(path.name for path in paths[0].parent.iterdir())
    with contestant.create(tmp_path / "data", tmp_path, batch_size=20, transform=RESIZE) as loader:
        images, _ = next(iter(loader))
    for path in paths:
        with Image.open(path) as image:
            wanted = F.resize(F.pil_to_tensor(image.convert("RGB")), [24, 24], antialias=True)
        difference = (images[names.index(path.name)].float() - wanted.float()).abs()
        if contestant.psnr is None:
            assert difference.max() <= 2, path.name
        else:
            limit = 255**2 / 10 ** (contestant.psnr / 10)
            assert difference.square().mean() <= limit, path.name


@contestants()
def test_sixteen_bit_png_is_scaled_and_not_clipped(contestant: Contestant, tmp_path: Path) -> None:
    values = (photo(24, 24, seed=2, channels=1)[..., 0].astype(np.uint16)) << 8
    path = write(tmp_path / "data", b"", "deep.png")
    Image.fromarray(values).save(path)
    index = sorted(p.name for p in path.parent.iterdir()).index("deep.png")
    with contestant.create(tmp_path / "data", tmp_path, batch_size=6, transform=RESIZE) as loader:
        images, _ = next(iter(loader))
    assert np.array_equal(images[index, 0].numpy(), (values >> 8).astype(np.uint8))


@contestants()
@pytest.mark.parametrize("turned", [False, True])
def test_exif_orientation_is_ignored_unless_asked(
    contestant: Contestant, tmp_path: Path, turned: bool
) -> None:
    pixels = photo(40, 64, seed=3)
    path = write(tmp_path / "data", jpeg(pixels, orientation=6), "turned.jpg")
    index = sorted(p.name for p in path.parent.iterdir()).index("turned.jpg")
    with _oriented(contestant, tmp_path, turned) as loader:
        images, _ = next(iter(loader))
    with Image.open(path) as image:
        upright = image.convert("RGB").rotate(-90, expand=True) if turned else image.convert("RGB")
        wanted = F.resize(F.pil_to_tensor(upright), [24, 24], antialias=True)
    difference = (images[index].float() - wanted.float()).abs()
    assert difference.mean() <= (0.2 if contestant.psnr is None else 1.0)


def _oriented(contestant: Contestant, tmp_path: Path, turned: bool) -> fastload.Loader:
    if contestant.options is None:
        options: Any = BackendOptions(exif_orientation=turned)
    else:
        options = replace(contestant.options(tmp_path), exif_orientation=turned)
    return contestant.create(
        tmp_path / "data", tmp_path, batch_size=6, transform=RESIZE, options=options
    )


@contestants()
def test_an_image_smaller_than_its_crop_is_named(contestant: Contestant, tmp_path: Path) -> None:
    path = write(tmp_path / "data", jpeg(photo(20, 20)), "small.jpg")
    with contestant.create(
        tmp_path / "data", tmp_path, batch_size=6, transform=v2.RandomCrop(32)
    ) as loader:
        with pytest.raises(DecodeError, match=re.escape(str(path))) as caught:
            list(loader)
        assert "pad_if_needed" in str(caught.value)


@contestants()
def test_images_of_different_sizes_without_a_crop_are_explained(
    contestant: Contestant, tmp_path: Path
) -> None:
    folder = write_photo_folder(tmp_path / "data", classes=2, per_class=3)
    with contestant.create(folder, tmp_path, batch_size=6) as loader:
        with pytest.raises(fastload.errors.ConfigurationError, match=r"Resize|crop"):
            list(loader)
    with contestant.create(folder, tmp_path, batch_size=1) as loader:
        assert [tuple(images.shape[:2]) for images, _ in loader] == [(1, 3)] * 6


@contestants()
def test_a_mask_of_another_size_than_its_image_is_named(
    contestant: Contestant, tmp_path: Path
) -> None:
    for kind in ("images", "masks"):
        (tmp_path / "data" / kind).mkdir(parents=True)
    for number in range(3):
        (tmp_path / "data" / "images" / f"{number}.jpg").write_bytes(
            jpeg(photo(40, 40, seed=number))
        )
        mask = np.zeros((40, 40 - (number == 1), 1), np.uint8)
        (tmp_path / "data" / "masks" / f"{number}.png").write_bytes(png(mask))
    with contestant.create(
        tmp_path / "data", tmp_path, batch_size=3, transform=v2.CenterCrop(32)
    ) as loader:
        with pytest.raises(DecodeError, match=r"masks/1\.png"):
            list(loader)


@contestants("torch-0", "turbojpeg", "cache-disk")
def test_damage_inside_the_compressed_data_is_found(contestant: Contestant, tmp_path: Path) -> None:
    path = write(tmp_path / "data", corrupt(GOOD))
    with contestant.create(tmp_path / "data", tmp_path, batch_size=3, transform=RESIZE) as loader:
        with pytest.raises(DecodeError, match=re.escape(str(path))):
            list(loader)


@pytest.mark.skipif(not native.available(), reason="the native core is not built here")
def test_damage_below_the_crop_is_found_where_the_options_ask_for_it(tmp_path: Path) -> None:
    path = write(tmp_path / "data", corrupt(GOOD, where=0.95))
    arguments: dict[str, Any] = {
        "batch_size": 6,
        "transform": v2.CenterCrop(8),
        "backend": "turbojpeg",
    }
    with fastload.create_loader(tmp_path / "data", **arguments) as loader:
        assert "damage outside a crop is not looked for" in loader.explain()
        assert len(list(loader)) == 1
    options = TurboJpegOptions(check_whole=True)
    with fastload.create_loader(tmp_path / "data", options=options, **arguments) as loader:
        with pytest.raises(DecodeError, match=re.escape(str(path))):
            list(loader)


@contestants()
def test_a_file_that_vanishes_is_named(contestant: Contestant, tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path / "data", classes=2, per_class=3)
    with contestant.create(folder, tmp_path, batch_size=6, transform=RESIZE) as loader:
        (folder / "class_1" / "2.jpg").unlink()
        with pytest.raises(DecodeError, match=r"class_1/2\.jpg"):
            list(loader)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@contestants("turbojpeg")
def test_a_file_without_permission_is_named(contestant: Contestant, tmp_path: Path) -> None:
    path = write(tmp_path / "data", GOOD)
    path.chmod(0 & stat.S_IRUSR)
    with contestant.create(tmp_path / "data", tmp_path, batch_size=3, transform=RESIZE) as loader:
        with pytest.raises(DecodeError, match="(?i)permission"):
            list(loader)


# -- arguments


@pytest.mark.parametrize(("backend", "workers"), [("torch", 2), ("turbojpeg", 2)])
def test_batches_ahead_that_memory_cannot_hold_are_refused_with_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, workers: int
) -> None:
    write_photo_folder(tmp_path)
    monkeypatch.setattr(build, "memory_bytes", lambda: 4_000_000)
    given: dict[str, Any] = {"transform": RESIZE, "backend": backend, "num_workers": workers}
    batch = 4 * 3 * math.prod(RESIZE.size)
    fits = 4_000_000 // batch // (workers if backend == "torch" else 1)
    fastload.create_loader(tmp_path, 4, prefetch_factor=fits, **given).close()
    with pytest.raises(
        ConfigurationError,
        match=r"prefetch_factor: .* made ahead are .* this machine has 0.0 GB",
    ):
        fastload.create_loader(tmp_path, 4, prefetch_factor=fits + 1, **given)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 1_000_000}, "num_workers: must be at most 4,096, got 1,000,000"),
        (
            {"prefetch_factor": 20_000},
            "prefetch_factor: must be at most 1,000, got 20,000: so many batches are held",
        ),
        ({"generator": 3}, "generator"),
        ({"split": 3}, "split"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"seed": "x"}, "seed"),
        ({"shuffle": "yes"}, "shuffle"),
        ({"drop_last": 2}, "drop_last"),
        ({"shard": (0, 2)}, "fastload.Shard"),
        ({"dtype": "float16"}, "torch.dtype"),
        ({"memory_format": "channels_last"}, "torch.memory_format"),
        ({"memory_format": torch.channels_last_3d}, "memory_format"),
        ({"collate_fn": "list"}, "collate_fn"),
        ({"sampler": []}, "sampler: list is empty"),
        ({"batch_sampler": []}, "batch_sampler: list is empty"),
        ({"sampler": 5}, "sampler: must be an iterable of indices, got 5"),
        ({"sampler": [2**70]}, "sampler: list must give ints"),
        ({"batch_sampler": 5}, "batch_sampler: must be an iterable of lists"),
        ({"batch_sampler": [0, 1]}, "batch_sampler: list must give lists of indices.*gave 0"),
        ({"batch_sampler": iter([0])}, "list_iterator must give lists of indices.*gave 0"),
        ({"on_error": "ignore"}, "on_error"),
        ({"backend": "fast"}, "'turbojpeg'"),
        ({"device": "warp"}, "device"),
        ({"shuffle": True, "sampler": [0, 1]}, "sampler"),
        ({"sampler": [0, 99]}, "99"),
        ({"batch_size": 64, "drop_last": True}, "drop_last"),
        ({"transform": 5}, "transform"),
        ({"transform": v2.Resize}, r"the class Resize.*write Resize\(...\)"),
        ({"transform": v2.Normalize([0.5], [0.5])}, "ToDtype"),
        ({"options": object()}, "options"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_named(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    folder = write_photo_folder(tmp_path / "data")
    with pytest.raises(ValueError, match=words) as caught:
        next(iter(fastload.create_loader(folder, **{"transform": RESIZE, **arguments})))
    assert isinstance(caught.value, fastload.errors.FastloadError)


@pytest.mark.parametrize("batches", [1.5, "1", None, -1, 4])
def test_batches_that_cannot_be_skipped_are_named(tmp_path: Path, batches: Any) -> None:
    folder = write_photo_folder(tmp_path / "data")
    with fastload.create_loader(folder, 2, transform=RESIZE) as loader:
        with pytest.raises(ConfigurationError, match=f"batches: .*{batches!r}"):
            loader.skip(batches)
        assert len(list(loader)) == 3


def test_numpys_integers_are_integers(tmp_path: Path) -> None:
    two = np.int64(2)
    folder = write_photo_folder(tmp_path)
    with fastload.create_loader(folder, two, num_workers=two, seed=two, transform=RESIZE) as loader:
        assert len(next(iter(loader))[1]) == 2
        assert all(
            type(value) is int
            for value in (loader.state_dict()["order"]["seed"], loader.batch_size)
        )


def test_a_sampler_of_fractions_is_refused(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path)
    with fastload.create_loader(folder, 2, sampler=[0.5, 1.5], transform=RESIZE) as loader:
        with pytest.raises(ConfigurationError, match="sampler: list must give ints"):
            next(iter(loader))


def test_cuda_without_a_device_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(fastload.errors.ConfigurationError, match="doctor"):
        fastload.create_loader(write_photo_folder(tmp_path), device="cuda")


def test_an_empty_folder_is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=re.escape(str(tmp_path))):
        fastload.create_loader(tmp_path)


def test_a_device_that_is_called_gpu_names_cuda(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="device: 'gpu' is not a device; say 'cuda'"):
        fastload.create_loader(write_photo_folder(tmp_path), device="gpu")
