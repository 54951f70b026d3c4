"""States are honest: other content is refused, however alike it is, and a copy of the same is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import fastload
from fastload.errors import StateMismatchError


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
    for wrap in (Rows, lambda rows: Subset(Rows(rows), [1, 0]), lambda rows: ConcatDataset([Rows(rows), Rows(rows)])):
        state = state_of(wrap(one))
        assert goes_on(state, wrap(one))
        assert not goes_on(state, wrap(other))
    assert not goes_on(state_of(Subset(Rows(one), [1, 0])), Subset(Rows(one), [0, 1]))
    assert state_of(list(one))["source"] != state_of(list(other))["source"]


def test_huggingface_datasets_are_known_by_their_own_fingerprint() -> None:
    datasets = pytest.importorskip("datasets", reason="pip install fastload[integrations]")
    one, same, other = (datasets.Dataset.from_dict({"n": rows}) for rows in ([1, 2, 3], [1, 2, 3], [1, 2, 4]))
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
