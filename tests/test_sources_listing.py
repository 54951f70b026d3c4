"""Local folders are listed by the native core as by Python; a large one once, while nothing in it
changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder
from typer.testing import CliRunner

from fastload import native
from fastload.cli.app import app
from fastload.machine import file_system_of
from fastload.sources import listing, open_source
from fastload.sources.base import Opened
from fastload.sources.folders import subfolders

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native core")

NAMES = (
    "a.jpg",
    "B.JPEG",
    "b.png",
    ".jpg",
    "..jpg",
    "c.tar.gif",
    ".gif",
    "d.GIF",
    "e.txt",
    "._a.jpg",
    ".DS_Store",
    "Thumbs.db",
    "f.",
    "g",
    "é.jpg",
    "漢字.webp",
    "\U0001f600.jpg",
    "￿.jpg",
    "a b'.jpg",
    "h.heic",
)


def tree(root: Path) -> Path:
    """Folders in folders, which sort otherwise by their whole paths, with files of such names."""
    generator = np.random.default_rng(0)
    for folder in ("a", "a-b", "a/b", "a/b/c", "a.b", "Z", "é", "a/__MACOSX", "z/.hidden"):
        (root / folder).mkdir(parents=True)
    for folder, *_ in list(os.walk(root))[1:]:
        for name in generator.permutation(NAMES)[: generator.integers(3, len(NAMES))]:
            Path(folder, name).touch()
        Path(folder, "certain.jpg").touch()
    (root / "a" / "link.jpg").symlink_to("certain.jpg")
    (root / "a" / "broken.jpg").symlink_to("nowhere")
    return root


def contents(opened: Opened) -> tuple[list[str], list[int], set[str], str]:
    image = opened.source.columns["image"]
    labels = opened.source.columns["label"].at(np.arange(len(opened.source)))
    notes = {note for note in opened.notes if "listing" not in note}
    return image.paths.all_held(), labels.tolist(), notes, opened.source.fingerprint


def by_python(monkeypatch: pytest.MonkeyPatch, root: Path) -> Opened:
    with monkeypatch.context() as patched:
        patched.setattr(listing, "listing_of", lambda root, folders: None)
        patched.setattr("fastload.sources.folders.listing_of", lambda root, folders: None)
        patched.setattr("fastload.sources.signs.listing_of", lambda root, folders: None)
        return open_source(str(root))


def test_as_python_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "data")
    assert listing.listing_of(str(root), subfolders(str(root))) is not None
    opened = open_source(str(root))
    assert contents(opened) == contents(by_python(monkeypatch, root))
    assert any(".txt" in note for note in opened.notes)


def test_in_the_order_of_image_folder(tmp_path: Path) -> None:
    root = tree(tmp_path / "data")
    for name in ("h.heic", "d.GIF", "c.tar.gif", "._a.jpg"):
        for path in root.rglob(name):
            path.unlink()
    for path in [*root.rglob("__MACOSX/*")]:
        path.unlink()
    samples = ImageFolder(root, allow_empty=True).samples
    paths, labels, *_ = contents(open_source(str(root)))
    there = [sample for sample in samples if os.path.exists(sample[0])]
    ours = [
        (path, label) for path, label in zip(paths, labels, strict=True) if os.path.exists(path)
    ]
    assert ours == there


def add_link(root: Path) -> None:
    (root / "a" / "linked").symlink_to(root / "Z")


def add_bytes(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root / "Z") + b"/\x80.jpg")).touch()


@pytest.mark.parametrize("make_odd", [add_link, add_bytes])
def test_what_needs_judgement_is_left_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_odd: Callable[[Path], None]
) -> None:
    root = tree(tmp_path / "data")
    make_odd(root)
    assert listing.listing_of(str(root), subfolders(str(root))) is None
    assert contents(open_source(str(root))) == contents(by_python(monkeypatch, root))


def test_a_folder_that_cannot_be_read_is_left_to_python(tmp_path: Path) -> None:
    root = tree(tmp_path / "data")
    assert listing.listing_of(str(root), ["Z", "missing"]) is None


# -- Kept ------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images whose listing is kept at once."""
    if file_system_of(str(tmp_path)) not in listing._NOTE_TIMES:
        pytest.skip(f"{tmp_path} is on {file_system_of(str(tmp_path))}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(listing, "SETTLED", 0.0)
    monkeypatch.setattr(listing, "KEPT_FROM", 1)
    root = tree(tmp_path / "data")
    for path in root.rglob("certain.jpg"):
        Image.new("RGB", (4, 4)).save(path)
    return root


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The roots that were listed."""
    roots: list[str] = []
    real = listing._list

    def counting(root: str, *arguments: object) -> object:
        roots.append(root)
        return real(root, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(listing, "_list", counting)
    return roots


def rename(root: Path) -> None:
    (root / "a/b/c/certain.jpg").rename(root / "a/b/c/other.jpg")


def exchange(root: Path) -> None:
    """Another folder of the same name, times and number of files."""
    times = os.stat(root / "Z")
    (root / "Z").rename(root.parent / "old")
    (root / "Z").mkdir()
    (root / "Z" / "new.jpg").touch()
    os.utime(root / "Z", ns=(times.st_atime_ns, times.st_mtime_ns))


def remove(root: Path) -> None:
    (root / "a/certain.jpg").unlink()


def new_folder(root: Path) -> None:
    (root / "a/b/more").mkdir()
    (root / "a/b/more/1.jpg").touch()


def new_class(root: Path) -> None:
    (root / "more").mkdir()
    (root / "more/1.jpg").touch()


def test_kept_until_a_folder_changes(
    kept: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = contents(open_source(str(kept)))
    assert len(listed) == 1
    assert contents(open_source(str(kept))) == first
    assert len(listed) == 1
    assert any("its listing is kept" in note for note in open_source(str(kept)).notes)
    for change in (rename, exchange, remove, new_folder, new_class):
        change(kept)
        del listed[:]
        changed = contents(open_source(str(kept)))
        assert listed, change
        assert changed == contents(by_python(monkeypatch, kept)), change
        assert changed != first, change
        first = changed


def test_not_kept_where_a_change_might_not_show(
    kept: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SETTLED", 3600.0)
    for _ in range(2):
        open_source(str(kept))
    assert len(listed) == 2
    monkeypatch.setattr(listing, "SETTLED", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(listing, "file_system_of", lambda path: "fuse.s3fs")
        open_source(str(kept))
    open_source(str(kept))
    assert len(listed) == 4


def test_a_damaged_listing_is_made_again(
    kept: Path, listed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = contents(open_source(str(kept)))
    (file,) = (kept.parent / "cache/fastload/listings").glob("*.index")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert contents(open_source(str(kept))) == first
    assert len(listed) == 2
    assert "is not used" in caplog.text


def test_one_of_the_processes_of_a_machine_lists(
    kept: Path, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(contents(open_source(str(kept)))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listed) == 1
    assert len(results) == 4
    assert all(found == results[0] for found in results)


def test_the_command_keeps_a_listing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["index", str(kept)])
    assert done.exit_code == 0, done.output
    assert "class folder" in done.output
    assert (kept.parent / "cache/fastload/listings").is_dir()
    refused = CliRunner().invoke(app, ["index", str(kept), "--output", "somewhere"])
    assert refused.exit_code == 1
    assert "--output" in refused.output
    monkeypatch.setattr(listing, "file_system_of", lambda path: "fuse.s3fs")
    new_class(kept)
    refused = CliRunner().invoke(app, ["index", str(kept)])
    assert refused.exit_code == 1
    assert "fuse.s3fs" in refused.output
