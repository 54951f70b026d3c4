"""Caches that are damaged or made to do harm: refused when they are opened, before anything is
served from them."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

import fastload
from fastload.cache import open_cache
from fastload.errors import CacheError, SourceError
from fastload.sources import open_source
from tests import images

Json = Any


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of different sizes, with names and labels."""
    folder = tmp_path_factory.mktemp("built")
    fastload.build_cache(images.write_photo_folder(folder / "data"), folder / "cache")
    return folder / "cache"


@pytest.fixture
def cache(built: Path, tmp_path: Path) -> Path:
    """Without checksums, as older versions wrote it: what can be known without them is."""
    copy = Path(shutil.copytree(built, tmp_path / "cache"))
    document = manifest_of(copy)
    del document["checksum"]
    for column in document["columns"].values():
        for array in column["arrays"].values():
            array["checksum"] = None
    write_manifest(copy, document)
    return copy


def manifest_of(cache: Path) -> Json:
    return json.loads((cache / "manifest.json").read_text())


def write_manifest(cache: Path, document: Json) -> None:
    (cache / "manifest.json").write_text(json.dumps(document))


def refused(cache: Path) -> str:
    """The words of the refusal; and nobody works long or crashes. Who waits for ever meets the
    limit of the test."""
    started = time.process_time()
    with pytest.raises(CacheError) as caught:
        open_cache(cache)
    with pytest.raises((CacheError, SourceError)):
        open_source(cache)
    assert time.process_time() - started < 5
    assert str(cache) in str(caught.value)
    return str(caught.value)


def change(path: str, value: Any) -> Callable[[Path], None]:
    """Another value in the manifest, at a path such as "columns/image/channels"."""

    def apply(cache: Path) -> None:
        document = manifest_of(cache)
        *way, last = path.split("/")
        place = document
        for key in way:
            place = place[key]
        place[last] = value
        write_manifest(cache, document)

    return apply


def array(field: str, make: Callable[[Any], Any], column: str = "image") -> Callable[[Path], None]:
    """Another array, with a manifest that fits it."""

    def apply(cache: Path) -> None:
        document = manifest_of(cache)
        entry = document["columns"][column]["arrays"][field]
        new = make(np.load(cache / entry["file"]))
        np.save(cache / entry["file"], new)
        entry |= {"dtype": new.dtype.str, "shape": list(new.shape)}
        write_manifest(cache, document)

    return apply


def at(place: Any, value: int) -> Callable[[Any], Any]:
    def make(array: Any) -> Any:
        array[place] = value
        return array

    return make


CASES: dict[str, Callable[[Path], None]] = {
    "nested 100,000 deep": lambda cache: (
        (cache / "manifest.json").write_text("[" * 100_000) and None
    ),
    "a number of 5,000 digits": lambda cache: (
        (cache / "manifest.json").write_text("1" * 5000) and None
    ),
    "not UTF-8": lambda cache: (
        (cache / "manifest.json").write_bytes(b'{"format": "fastload-cache", "x": "\xff"}') and None
    ),
    "a list": lambda cache: write_manifest(cache, ["fastload-cache"]),
    "no channels": change("columns/image/channels", 0),
    "negative channels": change("columns/image/channels", -3),
    "huge channels": change("columns/image/channels", 1 << 62),
    "channels in words": change("columns/image/channels", "three"),
    "an unknown role": change("columns/image/role", "picture"),
    "an unknown kind": change("columns/image/kind", "tensor"),
    "an unknown layout": change("layout", "rows"),
    "columns that are none": change("columns", []),
    "no columns": change("columns", {}),
    "more samples": change("samples", 7),
    "samples without number": change("samples", None),
    "fewer classes than labels": change("classes", ["only one"]),
    "a file of another folder": change("columns/image/arrays/array/file", "../x.npy"),
    "a file that is missing": change("columns/image/arrays/array/file", "gone.npy"),
    "another dtype": change("columns/image/arrays/sizes/dtype", "<i8"),
    "sizes of nothing": array("sizes", at((0, 0), 0)),
    "negative sizes": array("sizes", at((0, 1), -5)),
    "huge sizes": array("sizes", at(0, 2**31 - 1)),
    "sizes of one column": array("sizes", lambda sizes: sizes[:, :1]),
    "sizes of fractions": array("sizes", lambda sizes: sizes.astype(np.float32)),
    "fewer sizes": array("sizes", lambda sizes: sizes[:-1]),
    "negative offsets": array("offsets", at(0, -1)),
    "offsets past the end": array("offsets", at(-1, 2**62)),
    "offsets in two dimensions": array("offsets", lambda offsets: offsets[:, None]),
    "pixels of 64 bits": array("array", lambda pixels: pixels.astype(np.float64)),
    "signed pixels": array("array", lambda pixels: pixels.astype(np.int16)),
    "names past the end": array("name_ends", at(-1, 2**40)),
    "names backwards": array("name_ends", lambda ends: ends[::-1].copy()),
    "labels beyond the classes": array("array", at(0, 99), "label"),
    "negative labels": array("array", at(0, -1), "label"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, cache: Path) -> None:
    CASES[case](cache)
    refused(cache)


@pytest.mark.parametrize("kind", ["pipe", "zero", "link"])
@pytest.mark.parametrize("name", ["manifest.json", "image.array"])
def test_files_that_are_none(kind: str, name: str, cache: Path, built: Path) -> None:
    if name == "image.array":
        name = manifest_of(cache)["columns"]["image"]["arrays"]["array"]["file"]
    (cache / name).unlink()
    if kind == "pipe":
        os.mkfifo(cache / name)
    else:
        (cache / name).symlink_to("/dev/zero" if kind == "zero" else built / name)
    if name == "manifest.json":
        if kind == "link":
            assert len(open_cache(cache)) == 6  # the manifest names no file outside
        else:
            with pytest.raises(CacheError, match="not a regular file"):
                open_cache(cache)
    else:
        refused(cache)


@settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(data=st.data())
def test_mutated_manifests(
    built: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes of the manifest changed: refused, or every sample is still served."""
    cache = tmp_path_factory.getbasetemp() / "mutated"
    if not cache.exists():
        shutil.copytree(built, cache)
    text = bytearray((built / "manifest.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        cut = data.draw(st.integers(0, 3))
        text[place : place + cut] = data.draw(
            st.sampled_from([b"0", b"9", b"-", b"[", b"", b"x", b'"'])
        )
    (cache / "manifest.json").write_bytes(bytes(text))
    try:
        source = open_cache(cache)
    except CacheError:
        return
    with fastload.create_loader(source, 6, transform=v2.Resize((8, 8))) as loader:
        assert sum(len(labels) for _, labels in loader) == 6
