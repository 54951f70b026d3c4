"""Which files are served as images, and what is said of those that are left out."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.errors import SourceError
from fastload.sources import image_files, open_source
from fastload.sources.image_files import is_image_name, is_never_data, may_be_image
from tests import images
from tests.backends import Contestant, contestants
from tests.test_sources_folders import touch


@pytest.mark.parametrize(
    "name", ["1.gif", "1.JFIF", "1.jpe", "1.Jp2", "1.tga", "1.apng", "1.mpo", "a.b.gif"]
)
def test_what_pillow_reads_is_an_image(name: str) -> None:
    assert is_image_name(name)


@pytest.mark.parametrize(
    "name", ["1.heic", "1.svg", "1.txt", "gif", "1.eps", "1.h5", "1.mpg", "1.pdf", "1.npy", "1"]
)
def test_what_it_cannot_read_is_none(name: str) -> None:
    assert not is_image_name(name)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "TGA", "PCX"])
def test_an_image_is_known_by_its_first_bytes(kind: str) -> None:
    assert may_be_image(saved(kind, 3)[:500])


@pytest.mark.parametrize("start", [bytes(4096), b"<!doctype html>" * 99, b"PK\3\4" + bytes(999)])
def test_what_no_image_begins_with(start: bytes) -> None:
    assert not may_be_image(start)


@pytest.fixture(autouse=True)
def _without_pillow_heif(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests say of `.heic` is of machines without it; `test_heif.py` has the others."""
    monkeypatch.setattr(image_files, "reads_heif", lambda: False)


def test_a_plugin_of_the_programs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pillow_heif.register_heif_opener() does it."""
    assert not is_image_name("1.heic")
    monkeypatch.setitem(Image.EXTENSION, ".heic", "HEIF")
    monkeypatch.setitem(Image.OPEN, "HEIF", (None, None))
    assert is_image_name("1.HEIC")


@pytest.mark.parametrize(
    "name", ["__MACOSX", "._1.jpg", ".DS_Store", ".ipynb_checkpoints", "Thumbs.db", "desktop.ini"]
)
def test_names_that_are_never_data(name: str) -> None:
    assert is_never_data(name)
    assert not is_never_data(name.strip("._") + "x")


def saved(kind: str, seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(images.photo(32, 40, seed=seed)).save(buffer, kind)
    return buffer.getvalue()


@contestants()
def test_all_of_them_are_served(contestant: Contestant, tmp_path: Path) -> None:
    """Equal to Pillow's pixels, from every backend."""
    kinds = {
        "a/1.gif": "gif",
        "a/2.jfif": "jpeg",
        "b/3.JPE": "jpeg",
        "b/4.jp2": "jpeg2000",
        "b/5.tga": "tga",
    }
    for seed, (name, kind) in enumerate(kinds.items()):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(saved(kind, seed))
    with contestant.create(
        tmp_path / "data", tmp_path, batch_size=5, transform=v2.Resize((32, 40))
    ) as loader:
        pixels, labels = next(iter(loader))
    assert labels.tolist() == [0, 0, 1, 1, 1]
    for row, name in enumerate(kinds):
        with Image.open(tmp_path / "data" / name) as image:
            wanted = np.asarray(image.convert("RGB")).astype(int)
        found = pixels[row].permute(1, 2, 0).cpu().numpy().astype(int)
        assert np.abs(found - wanted).max() <= (2 if kinds[name] == "jpeg" else 0), name


def test_class_folders_say_what_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    touch(
        tmp_path,
        "a/1.jpg",
        "a/2.heic",
        "a/3.HEIC",
        "a/boxes.txt",
        "b/1.jpg",
        "b/._1.jpg",
        "b/.ipynb_checkpoints/1.jpg",
        "__MACOSX/b/._1.jpg",
        ".DS_Store",
        "stray.png",
        "README.md",
    )
    with caplog.at_level(logging.WARNING, logger="fastload"):
        opened = open_source(tmp_path)
    assert opened.source.classes == ("a", "b")
    assert len(opened.source) == 2
    assert opened.notes == (
        "left out: 3 files of formats that Pillow cannot read here (.heic: 2, .txt: 1; first "
        "a/2.heic)",
        "left out: 1 image beside the class folders, without a label (first stray.png)",
        "left out: 4 files or folders that no data set needs (first .DS_Store)",
    )
    assert len(caplog.records) == 1, "said once"
    assert "a/2.heic" in caplog.text
    with fastload.create_loader(tmp_path) as loader:
        assert "left out: 3 files" in loader.explain()


def test_files_that_are_no_images_are_noted_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_source(touch(tmp_path, "a/1.jpg", "a/boxes.txt", "b/1.jpg"))
    assert opened.notes == ("left out: 1 file other than images (.txt: 1; first a/boxes.txt)",)
    assert not caplog.records


LAYOUTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "class folders": (("a/1.jpg", "b/1.jpg", "b/2.heic"), {}),
    "an image of no class": (("a/1.jpg", "b/1.jpg", "2.jpg"), {}),
    "pairs": (("images/1.jpg", "masks/1.png", "images/2.heic"), {}),
    "a table": (("1.jpg", "2.heic", "labels.csv"), {}),
    "images": (("1.jpg", "x/2.heic"), {"format": "images"}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strict_refuses_what_would_be_left_out(tmp_path: Path, layout: str) -> None:
    names, options = LAYOUTS[layout]
    touch(tmp_path, *names, ".DS_Store", "__MACOSX/1.jpg")
    if "labels.csv" in names:
        (tmp_path / "labels.csv").write_text("file,label\n1.jpg,x\n")
    assert any("left out: 1 " in note for note in open_source(tmp_path, **options).notes)
    with pytest.raises(SourceError, match=r"strict=True, and 1 (file|image) .*2\.(heic|jpg)"):
        open_source(tmp_path, strict=True, **options)
    next(path for path in tmp_path.rglob("2.*")).unlink()
    notes = open_source(tmp_path, strict=True, **options).notes
    assert [note for note in notes if "left out" in note] == [
        "left out: 2 files or folders that no data set needs (first .DS_Store)"
    ] or layout == "pairs"


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_an_archive_made_on_a_mac(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"photos{suffix}"
    with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w") as archive:
        for name in ("._a", "a/._1.jpg", "a/1.jpg", "b/._1.jpg", "b/1.jpg", "__MACOSX/b/1.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"data"))
    opened = open_source(path)
    assert opened.source.classes == ("a", "b")
    assert len(opened.source) == 2
    assert "left out: 4 files or folders that no data set needs (first ._a)" in opened.notes


def test_a_flat_folder_is_what_its_user_says(tmp_path: Path) -> None:
    touch(tmp_path, "2.jpg", "1.gif", "more/3.jpg")
    with pytest.raises(SourceError, match=r"no class folders"):
        open_source(touch(tmp_path / "flat", "1.jpg"))
    (tmp_path / "flat" / "1.jpg").unlink()
    (tmp_path / "flat").rmdir()
    source = open_source(tmp_path, format="images").source
    assert list(source.columns) == ["image"]
    assert [source.describe(row) for row in range(3)] == [
        str(tmp_path / name) for name in ("1.gif", "2.jpg", "more/3.jpg")
    ]
    with pytest.raises(SourceError, match=r"the images in it lie in no class folders"):
        open_source(touch(tmp_path / "flat", "1.jpg"), format="folder")
