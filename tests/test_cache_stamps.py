"""A cache whose files have changed since, and one whose files were only copied, touched, or made
readable."""

from __future__ import annotations

import io
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from torchvision.transforms import v2

import fastload
from fastload.cache import build, stamps
from fastload.cache.build import build_cache, is_current
from fastload.cache.stamps import FILE_NAME, Look, columns_with_files, read_stamps
from fastload.errors import CacheError, SourceError
from fastload.sources import open_source
from tests.objectserver import ObjectServer
from tests.waiting import LIMIT

RESIZE = v2.Resize((16, 16))
FORMATS = ("jpg", "png", "tif")
TEXT, OTHER = "made by somebody", "made by another1"


def encoded(ending: str, *, text: str = TEXT, seed: int = 0, above: int | None = None) -> bytes:
    """An image of 24 x 32 with a text before its pixels and some bytes after them. `above`: what
    the upper rows are; the middle of the file, which is in the fingerprint, stays."""
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), np.uint8)
    if above is not None:
        pixels[:4] = above
    file, options = io.BytesIO(), dict[str, Any]()
    if ending == "jpg":
        options = {"format": "jpeg", "quality": 95, "comment": text.encode()}
    elif ending == "png":
        info = PngImagePlugin.PngInfo()
        info.add_text("Author", text)
        options = {"format": "png", "pnginfo": info, "compress_level": 0}
    else:
        options = {"format": "tiff", "description": text}
    Image.fromarray(pixels).save(file, **options)
    return file.getvalue() + b"after the image"


def edits() -> list[tuple[str, Callable[[bytes], bytes]]]:
    """29 of them, in place and of the same size: (ending of the file, what it does)."""

    def flipped(share: float) -> Callable[[bytes], bytes]:
        def edit(data: bytes) -> bytes:
            at = int(share * (len(data) - 1))
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

        return edit

    found: list[tuple[str, Callable[[bytes], bytes]]] = []
    for ending in FORMATS:
        found += [
            (ending, lambda data: data.replace(TEXT.encode(), OTHER.encode())),
            (ending, lambda data: data[:-5] + b"IMAGE"),
        ]
    found += [
        (ending, lambda _, ending=ending: encoded(ending, seed=9)) for ending in ("png", "tif")
    ]
    shares = np.linspace(0.0, 1.0, 7).tolist()
    return found + [(ending, flipped(share)) for share in shares for ending in FORMATS]


def write_over(path: Path, data: bytes) -> None:
    """In place, and with the time of modification that it had, as `exiftool -P` does."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def folder(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of images, one of each format in each. A look has all the time that it needs."""
    monkeypatch.setattr(build, "LOOK", LIMIT)
    top = tmp_path / "data"
    for number in range(2):
        (top / f"class{number}").mkdir(parents=True)
        for ending in FORMATS:
            (top / f"class{number}" / f"a.{ending}").write_bytes(encoded(ending, seed=number))
    return top


def looked(folder: Path, cache: Path) -> str:
    """The file that has changed since the cache was built; "" for none."""
    source = open_source(str(folder)).source
    kept = read_stamps(cache, len(source), len(source.images))
    assert kept is not None
    found = Look(columns_with_files(source.images), kept, cache).within(LIMIT)
    assert found is not None
    return found


def test_every_edit_in_place_is_found(folder: Path) -> None:
    """By size and 512 bytes of the middle, 24 of 29 such edits were once not seen."""
    cache = build_cache(str(folder), progress=False)
    assert len(edits()) == 29
    for number, (ending, edit) in enumerate(edits()):
        path = folder / f"class{number % 2}" / f"a.{ending}"
        before = path.read_bytes()
        after = edit(before)
        assert after != before, number
        assert len(after) == len(before), number
        write_over(path, after)
        assert looked(folder, cache) == str(path), number
        write_over(path, before)
        assert looked(folder, cache) == "", number


def images_of(source: Any, **options: Any) -> torch.Tensor:
    with fastload.create_loader(source, 3, transform=RESIZE, **options) as loader:
        return torch.cat([batch.clone() for batch, _ in loader])


def test_a_cache_of_changed_files_is_built_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images_of(str(folder), backend="cache")
    path = folder / "class1" / "a.png"
    write_over(path, encoded("png", seed=1, above=7))
    served = images_of(str(folder), backend="cache")
    assert torch.equal(served, images_of(str(folder), backend="turbojpeg"))
    assert f"{path} has changed since the cache" in caplog.text
    caplog.clear()
    assert torch.equal(served, images_of(str(folder), backend="cache"))
    assert not caplog.records


def test_a_given_directory_is_for_its_owner_to_delete(folder: Path, tmp_path: Path) -> None:
    cache = build_cache(str(folder), tmp_path / "cache", progress=False)
    write_over(folder / "class0" / "a.tif", encoded("tif", above=7))
    with pytest.raises(CacheError, match=r"class0/a\.tif has changed since.*rm -r") as caught:
        build_cache(str(folder), tmp_path / "cache", progress=False)
    assert str(cache) in str(caught.value)


def touched(path: Path) -> None:
    os.utime(path, (1, 1))


def copied(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


def made_readable(path: Path) -> None:
    path.chmod(0o640)


@pytest.mark.parametrize("change", [touched, copied, made_readable])
def test_what_has_other_times_and_the_same_bytes_is_kept(
    change: Callable[[Path], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = build_cache(str(folder), progress=False)
    before = (cache / "manifest.json").stat()
    for path in folder.rglob("a.*"):
        change(path)
    assert build_cache(str(folder), progress=False) == cache
    assert os.path.samestat((cache / "manifest.json").stat(), before)
    # The times are noted: the files are not read again.
    monkeypatch.setattr(stamps, "hash_of", lambda _: pytest.fail("a file was read again"))
    assert looked(folder, cache) == ""


def test_images_in_an_archive(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "data.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("a.*")):
            file.write(path, path.relative_to(folder))
    cache = build_cache(str(archive), progress=False)
    copied(archive)
    assert looked(archive, cache) == ""
    data = archive.read_bytes()
    at = data.index(TEXT.encode())
    write_over(archive, data[:at] + OTHER.encode() + data[at + len(OTHER) :])
    assert looked(archive, cache).startswith(f"{archive}:")


def test_objects_in_a_store(folder: Path, server: ObjectServer) -> None:
    for path in folder.rglob("a.*"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    url = "s3://bucket/train"
    images_of(url, backend="cache")
    changed = encoded("png", seed=1, above=7)
    server.objects["bucket/train/class1/a.png"] = changed
    (folder / "class1" / "a.png").write_bytes(changed)
    right = images_of(str(folder), backend="turbojpeg")
    assert torch.equal(images_of(url, backend="cache"), right)


@pytest.mark.parametrize("damage", ["none", "cut", "changed"])
def test_a_cache_without_stamps_is_served_and_said(
    damage: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = build_cache(str(folder), progress=False)
    path = cache / FILE_NAME
    data = path.read_bytes()
    flipped = bytes([data[9] ^ 0xFF])
    path.write_bytes(data[:-1] if damage == "cut" else data[:9] + flipped + data[10:])
    if damage == "none":  # as of an older fastload
        path.unlink()
    served = images_of(str(folder), backend="cache")
    assert f"{cache}: the cache of 6 samples has no times of their files" in caplog.text
    assert torch.equal(served, images_of(str(folder), backend="turbojpeg"))


def test_a_change_that_is_found_late_is_an_error_before_the_second_epoch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_cache(str(folder), progress=False)
    path = folder / "class0" / "a.jpg"
    write_over(path, encoded("jpg", seed=0).replace(TEXT.encode(), OTHER.encode()))
    slow, original = threading.Event(), stamps._state_of

    def state_of(path: str) -> Any:
        if threading.current_thread().name.startswith("fastload-look"):
            assert slow.wait(LIMIT)
        return original(path)

    monkeypatch.setattr(stamps, "_state_of", state_of)
    monkeypatch.setattr(build, "LOOK", 0.01)
    with fastload.create_loader(str(folder), 6, transform=RESIZE, backend="cache") as loader:
        iterator = iter(loader)
        next(iterator)
        assert "whose files are looked at until the next epoch" in loader.explain()
        slow.set()
        assert list(iterator) == []
        with pytest.raises(SourceError, match=rf"^{path}: has changed since the cache"):
            next(iter(loader))
    # A look is ended with its loader.
    slow.clear()
    with fastload.create_loader(str(folder), 6, transform=RESIZE, backend="cache") as loader:
        next(iter(loader))
        slow.set()


def test_one_rank_of_a_node_looks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = build_cache(str(folder), progress=False)
    looks = list[Any]()

    class Counted(Look):
        def __init__(self, *arguments: Any) -> None:
            looks.append(arguments)
            super().__init__(*arguments)

    monkeypatch.setattr(build, "Look", Counted)
    build_cache(str(folder), progress=False)
    assert len(looks) == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    os.utime(cache / FILE_NAME, (1, 1))  # looked at before this process started
    for _ in range(2):
        build_cache(str(folder), progress=False)
        assert len(looks) == 2


def test_before_it_is_filled_again_a_cache_of_changed_files_is_removed(folder: Path) -> None:
    source = open_source(str(folder)).source
    assert not is_current(source)
    cache = build_cache(source, progress=False)
    assert is_current(source)
    write_over(folder / "class0" / "a.jpg", encoded("jpg")[:-5] + b"IMAGE")
    assert not is_current(source)
    assert not cache.exists()


def test_what_a_killed_build_has_left_of_changed_files_is_not_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_NOTE_EVERY", 0.0)
    bad = folder / "class1" / "a.png"
    data = bad.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it were killed
        write_over(bad, data.replace(b"IDAT", b"IDAT\xff", 1)[: len(data)])
        with pytest.raises(fastload.DecodeError):
            build_cache(str(folder), tmp_path / "cache", progress=False)
    assert (tmp_path / "cache.partial" / FILE_NAME).exists()
    write_over(bad, data)
    write_over(folder / "class0" / "a.jpg", encoded("jpg")[:-5] + b"IMAGE")
    cache = build_cache(str(folder), tmp_path / "cache", progress=False)
    assert looked(folder, cache) == ""
