"""Sources reach spawned workers by reference: small pickles, the same samples."""

from __future__ import annotations

import io
import logging
import multiprocessing
import multiprocessing.resource_sharer
import os
import pickle
import struct
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload.sources import Source, open_source
from fastload.sources.buffers import PathTable, is_by_reference
from fastload.sources.columns import EncodedFiles, EncodedImages, PixelImages, ValueArray, Values
from fastload.sources.sharing import share
from tests import warm
from tests.test_sources_tar import shard, write_tar

COUNT = 20_000
SMALL = 8192
"""Bytes that a source of any size may take in a worker's arguments."""


@pytest.fixture(autouse=True)
def _stop_resource_sharer() -> Iterator[None]:
    """Pickling file descriptors outside of a process start leaves its thread behind."""
    yield
    multiprocessing.resource_sharer.stop(timeout=5)


def class_folder_source() -> Source:
    """Of 20,000 paths that need not exist."""
    paths = PathTable.of((f"class/{n:060}.jpg" for n in range(COUNT)), "/root")
    return Source(
        {"image": EncodedFiles(paths), "label": ValueArray(np.arange(COUNT) % 7)},
        "fingerprint",
        "name",
        format="class folder",
    )


def array_source() -> Source:
    rng = np.random.default_rng(0)
    return open_source(
        (rng.integers(0, 256, (COUNT, 6, 6, 3), dtype=np.uint8), np.arange(COUNT) % 5)
    ).source


def tokens(folder: Path) -> Source:
    np.save(folder / "ids.npy", np.arange(COUNT * 8, dtype=np.uint16).reshape(COUNT, 8))
    return open_source({"input_ids": folder / "ids.npy"}).source


def idx(folder: Path) -> Source:
    images = (np.arange(COUNT * 30) % 251).astype(np.uint8).reshape(COUNT, 5, 6)
    for name, array in (("images-idx3", images), ("labels-idx1", images[:, 0, 0] % 10)):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"train-{name}-ubyte").write_bytes(header + array.tobytes())
    return open_source(folder).source


def tar(folder: Path) -> Source:
    return open_source(write_tar(folder / "s.tar", shard(0, 400))).source


def subset(folder: Path) -> Source:
    return array_source().take(np.arange(COUNT)[::-1].copy())


def make(kind: str, folder: Path) -> Source:
    functions: dict[str, Any] = {
        "class folder": lambda _: class_folder_source(),
        "arrays": lambda _: array_source(),
        "npy": tokens,
        "idx": idx,
        "tar": tar,
        "subset": subset,
    }
    source = functions[kind](folder)
    assert isinstance(source, Source)
    return source


def digest(source: Source) -> list[Any]:
    """What the samples of a source are, looked at from whichever process."""
    rows = np.array([0, 1, len(source) // 2, len(source) - 1])
    found: list[Any] = [source.fingerprint, len(source), source.layout]
    for name, column in source.columns.items():
        if isinstance(column, EncodedImages):
            found.append([name, *(column.locate(int(row)) for row in rows), column.describe(1)])
        elif isinstance(column, PixelImages):
            found.append([name, *(column.pixels(int(row)).tobytes() for row in rows)])
        elif isinstance(column, Values):
            found.append([name, column.at(rows).tobytes(), column.array.dtype.str])
    return found


def pickled(source: Source) -> bytes:
    buffer = io.BytesIO()
    ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(source)
    return buffer.getvalue()


def worker(sources: dict[str, Source], results: Any) -> None:
    by_reference = [
        is_by_reference(column.array)
        for source in sources.values()
        for column in source.columns.values()
        if isinstance(column, PixelImages | Values) and column.array.nbytes > SMALL
    ]
    sizes = {kind: len(pickled(source)) for kind, source in sources.items()}
    results.send(({kind: digest(source) for kind, source in sources.items()}, by_reference, sizes))
    results.close()


KINDS = ["class folder", "arrays", "npy", "idx", "tar", "subset"]
LIMITS = {"tar": 60_000}
"""The arrays of this one are too small to be worth a file descriptor each."""


@pytest.mark.parametrize("kind", KINDS)
def test_shared_sources_have_small_pickles(kind: str, tmp_path: Path) -> None:
    source = make(kind, tmp_path)
    shared = share(source)
    assert digest(shared) == digest(source)
    assert len(pickled(shared)) < LIMITS.get(kind, SMALL)
    if kind not in ("npy", "tar"):
        assert len(pickled(source)) > 10 * SMALL
    # Again is no second copy.
    again = share(shared)
    for name, column in shared.columns.items():
        array = getattr(column, "array", None)
        assert getattr(again.columns[name], "array", None) is array


@pytest.mark.slow
def test_a_worker_that_is_no_fork_of_this_process_receives_references(tmp_path: Path) -> None:
    sources = {}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        sources[kind] = share(make(kind, tmp_path / kind))
    ours, theirs = warm.CONTEXT.Pipe(duplex=False)
    process = warm.CONTEXT.Process(target=worker, args=(sources, theirs))
    process.start()
    theirs.close()
    assert ours.poll(100), "the worker did not answer"
    found, by_reference, sizes = ours.recv()
    process.join()
    process.close()
    ours.close()
    assert found == {kind: digest(source) for kind, source in sources.items()}
    assert all(by_reference)
    assert all(size < LIMITS.get(kind, SMALL) for kind, size in sizes.items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_plain_pickles_hold_the_samples(kind: str, shared: bool, tmp_path: Path) -> None:
    source = make(kind, tmp_path)
    again = pickle.loads(pickle.dumps(share(source) if shared else source))
    assert digest(again) == digest(source)


def windows(array: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "whole": array,
        "slice": array[3:9],
        "steps": array[1::3],
        "columns": array[:, 2:4],
        "transposed": array.T,
        "view": array.view(np.int16),
        "base class": np.asarray(array)[2:],
        "empty": array[:0],
        "reversed": array[::-1],
        "row": array[5],
    }


@pytest.mark.parametrize("window", list(windows(np.zeros((12, 4), np.int64))))
def test_windows_of_memory_maps(window: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(48, dtype=np.int64).reshape(12, 4))
    array = windows(np.load(tmp_path / "x.npy", mmap_mode="r"))[window]
    again = pickle.loads(pickle.dumps(ValueArray(array))).array
    np.testing.assert_array_equal(again, array)
    assert again.dtype == array.dtype
    assert is_by_reference(array) is (window not in ("empty", "reversed"))
    assert is_by_reference(again) is is_by_reference(array)


@pytest.mark.parametrize("window", list(windows(np.zeros((12, 4), np.int64))))
def test_windows_of_shared_memory(window: str) -> None:
    tensor = torch.empty(48 * 8, dtype=torch.uint8).share_memory_()
    whole = tensor.numpy().view(np.int64).reshape(12, 4)
    whole[:] = np.arange(48).reshape(12, 4)
    array = windows(whole)[window]
    again = pickle.loads(bytes(ForkingPickler.dumps(ValueArray(array)))).array
    np.testing.assert_array_equal(again, array)
    if window not in ("empty", "reversed"):
        assert is_by_reference(again)
        whole += 100
        np.testing.assert_array_equal(again, array)


def test_private_changes_to_a_map_travel_by_content(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(10, np.int64))
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    array[3] = 7
    assert pickle.loads(pickle.dumps(ValueArray(array))).array.tolist() == array.tolist()


def test_too_little_shared_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = array_source()

    class Full:
        f_blocks, f_bfree, f_bavail, f_frsize = 16, 10, 10, 1024

    monkeypatch.setattr(os, "statvfs", lambda _: Full)
    monkeypatch.setattr(os.path, "isdir", lambda _: True)
    with caplog.at_level(logging.WARNING, logger="fastload"):
        assert share(source) is source
    assert "--shm-size" in caplog.text


class InAStore(EncodedImages):
    """A column as a user writes it: a plain class."""

    def __init__(self, sizes: Any) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, index: int) -> bytes:
        return bytes(int(self.sizes[index]))


def test_a_column_of_a_class_of_ones_own_is_pickled_as_it_is() -> None:
    column = InAStore(np.arange(COUNT))
    source = share(Source({"image": column, "label": ValueArray(np.arange(COUNT))}, "f", "name"))
    assert source.columns["image"] is column
    found = pickle.loads(ForkingPickler.dumps(source))
    assert found.columns["image"].read(9) == bytes(9)
    assert found.values["label"].at(np.array([5])).tolist() == [5]
