"""One file a format: what it is, is said there alone; it is loaded when its signs fit; and without
it all others are opened as before."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload
from fastload.errors import FastloadError
from fastload.sources import formats
from fastload.sources.formats import FORMATS, Format, Later
from tests.test_sources_folders import touch

PACKAGE = Path(formats.__file__).parent
FILES = {form.name: form.recognise.module for form in FORMATS if isinstance(form.recognise, Later)}
ORDINARY = {
    "arrays",
    "cache",
    "captions",
    "dataset",
    "folder",
    "images",
    "pairs",
    "records",
    "table",
    "tar",
    "zip",
}
"""Names of formats that are words of other things, too."""


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_is_read_is_what_the_file_says(form: Format) -> None:
    said: Format = importlib.import_module(FILES[form.name]).FORMAT
    for field in dataclasses.fields(Format):
        read, own = getattr(form, field.name), getattr(said, field.name)
        if isinstance(read, dict):
            read = {name: value.loaded() for name, value in read.items()}
        assert (read.loaded() if isinstance(read, Later) else read) == own, field.name


def test_there_is_a_file_for_each() -> None:
    assert len({*FILES.values()}) == len(FORMATS) == len(FILES)
    there = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert there == {module.rsplit(".", 1)[1] for module in FILES.values()} - {"reading"}


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_no_other_module_of_the_sources_knows_a_format() -> None:
    """Nor does one format know another."""
    wrong = []
    names = FILES.keys() - ORDINARY
    for path in sorted(PACKAGE.parent.rglob("*.py")):
        # A format's module, and those of its reader, which are named after it.
        stems = path.stem, path.stem.split("_")[0]
        own = {
            name
            for name, module in FILES.items()
            if module.endswith(tuple(f".{one}" for one in stems))
        }
        known = re.compile(rf"(?<![.\w])({'|'.join(sorted(names - own))})\b")
        for line, text in strings_of(path):
            if known.search(text) and path.stem != "__init__":
                wrong.append(f"{path.name}:{line}: {text[:60]!r}")
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_that_of_a_format() -> None:
    imported = re.compile(r"^ *from fastload\.sources\.formats\.", re.MULTILINE)
    paths = sorted(PACKAGE.parents[1].rglob("*.py"))
    assert [str(path) for path in paths if imported.search(path.read_text())] == []


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules of formats that were called for."""
    found: list[str] = []

    def loading(later: Later) -> Any:
        found.append(later.module.rsplit(".", 1)[1])
        return getattr(importlib.import_module(later.module), later.name)

    monkeypatch.setattr(Later, "loaded", loading)
    return found


def test_a_class_folder_loads_no_other_format(loaded: list[str], tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.jpg", "dog/1.jpg")
    fastload.open_source(tmp_path)
    assert {*loaded} == {"class_folders"}


def test_an_array_loads_no_format_of_files(loaded: list[str]) -> None:
    fastload.open_source((np.zeros((2, 4, 4, 3), np.uint8), np.arange(2)))
    assert {*loaded} == {"arrays"}


@pytest.mark.parametrize("hidden", sorted(FILES))
def test_without_its_file_there_is_one_format_less(
    hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = formats.read_formats([module for name, module in FILES.items() if name != hidden])
    monkeypatch.setitem(sys.modules, FILES[hidden], None)  # to import it raises ImportError
    for module in ("opening", "beside", "torchvision_objects", "index"):
        monkeypatch.setattr(f"fastload.sources.{module}.FORMATS", left, raising=False)
    touch(tmp_path, "folder/cat/1.jpg", "folder/dog/1.jpg", "folder/cat/1.xml", "folder/dog/1.txt")
    touch(tmp_path, "pairs/images/1.png", "pairs/masks/1.png")
    touch(tmp_path, "table/1.jpg")
    (tmp_path / "table" / "labels.csv").write_text("file,label\n1.jpg,0\n")
    np.save(tmp_path / "pixels.npy", np.zeros((2, 4, 4, 3), np.uint8))
    given = {"folder": "folder", "pairs": "pairs", "table": "table", "arrays": "pixels.npy"}
    for name, place in given.items():
        if name != hidden:
            assert fastload.open_source(tmp_path / place).source.class_count in (None, 1, 2)
        else:
            with pytest.raises(FastloadError):
                fastload.open_source(tmp_path / place)
    with pytest.raises(FastloadError, match=f"format='{hidden}': there is no such format"):
        fastload.open_source(tmp_path / "folder", format=hidden)
