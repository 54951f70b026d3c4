"""States are honest: other content is refused, however alike it is, and a copy of the same is
not."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import fastload
from fastload import files
from fastload.errors import StateMismatchError
from fastload.sources import open_source


class Files(Dataset[Any]):
    """Uncompressed images, all of one size, by their paths."""

    def __init__(self, root: Path, names: list[str]) -> None:
        self.root = root
        self.samples = [(str(root / name), n) for n, name in enumerate(names)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return index


class Rows(Dataset[Any]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.seen = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> int:
        self.seen += 1
        return index


def state_of(data: Any) -> dict[str, Any]:
    with fastload.from_dataloader(DataLoader(data, 2)) as loader:
        next(iter(loader))
        return loader.state_dict()


def goes_on(state: dict[str, Any], data: Any) -> bool:
    with fastload.from_dataloader(DataLoader(data, 2)) as loader:
        try:
            loader.load_state_dict(state)
        except StateMismatchError as error:
            return "source" not in str(error)
        return True


def write(folder: Path, value: int) -> list[str]:
    folder.mkdir()
    for n in range(4):
        Image.fromarray(np.full((8, 8, 3), value + n, np.uint8)).save(folder / f"{n}.bmp")
    return [f"{n}.bmp" for n in range(4)]


def test_files_of_equal_names_and_sizes_and_other_content_are_refused(tmp_path: Path) -> None:
    names = write(tmp_path / "one", 10)
    write(tmp_path / "other", 90)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    state = state_of(Files(tmp_path / "one", names))
    assert goes_on(state, Files(tmp_path / "copy", names)), "the same files elsewhere"
    assert not goes_on(state, Files(tmp_path / "other", names))
    assert not goes_on(state, Files(tmp_path / "one", names[::-1]))


def classes_in(folder: Path, value: int) -> Path:
    for name in "ab":
        (folder / name).parent.mkdir(exist_ok=True)
        write(folder / name, value)
    return folder


def archive_of(folder: Path) -> Path:
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "data")
    return path


def shard_of(folder: Path) -> Path:
    path = folder.with_suffix(".shard.tar")
    with tarfile.open(path, "w") as archive:
        for image in sorted(folder.rglob("*.bmp")):
            archive.add(image, f"{image.parent.name}{image.name}")
    return path


def pairs_of(folder: Path) -> Path:
    (folder / "a").rename(folder / "images")
    (folder / "b").rename(folder / "masks")
    return folder


@pytest.mark.parametrize("kind", [lambda folder: folder, archive_of, shard_of, pairs_of])
def test_folders_and_archives_of_equal_names_and_sizes_and_other_content_are_refused(
    tmp_path: Path, kind: Callable[[Path], Path]
) -> None:
    one, other = (
        kind(classes_in(tmp_path / name, value)) for name, value in (("one", 10), ("other", 90))
    )
    with fastload.create_loader(one, batch_size=2) as loader:
        state = loader.state_dict()
        loader.load_state_dict(state)
    with (
        fastload.create_loader(other, batch_size=2) as loader,
        pytest.raises(StateMismatchError, match="source"),
    ):
        loader.load_state_dict(state)


def test_looking_into_files_costs_no_more_for_many_of_them_and_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(2000):
        (tmp_path / f"class{n % 2}").mkdir(exist_ok=True)
        (tmp_path / f"class{n % 2}" / f"{n}.jpg").touch()
    os.remove(tmp_path / "class0/0.jpg")
    os.mkfifo(tmp_path / "class0/0.jpg")  # the first in order: nobody will ever write to it
    opened = []
    original = files.open_regular
    monkeypatch.setattr(
        files, "open_regular", lambda path, **how: opened.append(path) or original(path, **how)
    )
    assert len(open_source(tmp_path).source) == 2000
    assert opened[0].endswith("class0/0.jpg")
    assert len(opened) == 32


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a", "b", "c"], ["a", "b", "d"]),
        ([("x", 0), ("y", 1)], [("x", 1), ("y", 0)]),
        (np.arange(9), np.arange(9) + 1),
        (torch.ones(4, 2), torch.zeros(4, 2)),
        ([torch.ones(2)] * 3, [torch.zeros(2)] * 3),
        ([{"text": "a"}] * 3, [{"text": "b"}] * 3),
    ],
)
def test_what_is_kept_for_each_sample_tells_data_sets_apart(one: Any, other: Any) -> None:
    for wrap in (
        Rows,
        lambda rows: Subset(Rows(rows), [1, 0]),
        lambda rows: ConcatDataset([Rows(rows), Rows(rows)]),
    ):
        state = state_of(wrap(one))
        assert goes_on(state, wrap(one))
        assert not goes_on(state, wrap(other))
    assert not goes_on(state_of(Subset(Rows(one), [1, 0])), Subset(Rows(one), [0, 1]))
    assert state_of(list(one))["source"] != state_of(list(other))["source"]


def test_huggingface_datasets_are_known_by_their_own_fingerprint() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install .[integrations]")
    one, same, other = (
        datasets.Dataset.from_dict({"n": rows}) for rows in ([1, 2, 3], [1, 2, 3], [1, 2, 4])
    )
    state = state_of(one)
    assert goes_on(state, same)
    assert not goes_on(state, other)
    assert not goes_on(state, one.shuffle(seed=1))


def test_between_iter_and_next_a_state_names_the_epoch_that_runs() -> None:
    with fastload.from_dataloader(DataLoader(Rows(range(4)), 2)) as loader:
        list(loader)
        iterator = iter(loader)
        state = loader.state_dict()
        assert (state["epoch"], state["step"], loader.epoch) == (1, 0, 1)
        list(iterator)
        next(iter(loader))
        iter(loader)  # which leaves epoch 2
        assert loader.state_dict()["epoch"] == loader.epoch == 3
    with fastload.from_dataloader(DataLoader(Rows(range(4)), 2)) as loader:
        loader.load_state_dict(state)
        iter(loader)
        assert loader.state_dict() == state
