"""The arguments of public functions: which there are; an error for one that there is not, or no
longer, names what to write."""

from __future__ import annotations

import inspect
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fastload
from fastload.backends.dali import DaliOptions
from fastload.errors import ConfigurationError, FastloadError

FUNCTIONS = {
    name: found
    for name in fastload.__all__
    if inspect.isfunction(found := getattr(fastload, name)) and inspect.signature(found).parameters
}


PIPELINES = [
    name
    for name in fastload.pipelines.__all__
    if inspect.signature(getattr(fastload.pipelines, name)).parameters
]


@pytest.mark.parametrize("name", PIPELINES)
def test_an_argument_that_a_pipeline_does_not_have_is_refused(name: str) -> None:
    function: Any = getattr(fastload.pipelines, name)
    last = [*inspect.signature(function).parameters][-1]
    words = rf"^{name}: .*'{last}s'\. Did you mean {last}\? fastload\.pipelines\.\w+ says which"
    with pytest.raises(ConfigurationError, match=words):
        function(**{f"{last}s": 1})
    with pytest.raises(TypeError, match=f"'of_another_version'. There are .*{last}"):
        function(of_another_version=1)


def test_pipelines_without_arguments_take_none() -> None:
    without = {*fastload.pipelines.__all__} - {*PIPELINES}
    assert without == {"torchvision_detection_eval"}
    for name in without:
        with pytest.raises(TypeError, match=f"{name}.*'size'"):
            getattr(fastload.pipelines, name)(size=1)


def test_all_public_functions_are_tried() -> None:
    assert {"create_loader", "from_dataloader", "open_source", "build_cache"} <= {*FUNCTIONS}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_misspelt_argument_is_refused_with_the_nearest(name: str) -> None:
    function: Any = FUNCTIONS[name]
    last = [*inspect.signature(function).parameters][-1]
    with pytest.raises(TypeError, match=rf"^{name}: there is no .*'{last}s'\. Did you mean {last}"):
        function("anything", **{f"{last}s": 1})


def test_the_error_is_ours_and_pythons() -> None:
    for kind in (FastloadError, ConfigurationError, ValueError, TypeError):
        with pytest.raises(kind, match=r"no argument 'num_worker'\. Did you mean num_workers\?"):
            fastload.create_loader("data", num_worker=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no argument 'xyz'\. There are source, batch_size, "):
        fastload.create_loader("data", xyz=4)  # type: ignore[call-arg]


def test_names_and_documentation_stay() -> None:
    parameters = inspect.signature(fastload.create_loader).parameters
    assert [*parameters][:3] == ["source", "batch_size", "shuffle"]
    assert (fastload.create_loader.__doc__ or "").startswith("Make a Loader.")


DATALOADERS = inspect.signature(DataLoader).parameters.keys() - {"dataset"}
OWN = {
    "source", "transform", "batch_transform", "backend", "options", "order", "seed", "shard",
    "device", "dtype", "memory_format", "on_error", "split",
}  # fmt: skip


def test_create_loader_has_dataloaders_names_and_one_for_each_noun() -> None:
    parameters = inspect.signature(fastload.create_loader).parameters
    assert parameters.keys() == DATALOADERS | OWN
    assert len(parameters) <= 29
    named = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    assert len(named) == len(parameters) - 2, "all but source and batch_size"


def test_no_function_hands_on_its_local_names() -> None:
    """So that a reader, and a tool, can follow each argument."""
    called = re.compile(r"(?<![\w.`])locals\(")
    paths = Path(fastload.__file__).parent.rglob("*.py")
    assert [path for path in paths if called.search(path.read_text("utf-8"))] == []


PIXELS = {"image": np.zeros((4, 8, 8, 3), np.uint8)}
MOVED: dict[str, tuple[Any, str]] = {
    "strict": (True, "open_source(source, strict=...)"),
    "masks": (True, "open_source(source, masks=...)"),
    "format": ("folder", "open_source(source, format=...)"),
    "mode": ("unchanged", "open_source(source, mode=...)"),
    "assume_plain": (True, "open_source(source, assume_plain=...)"),
    "tune": (True, "options=fastload.BackendOptions(tune=...)"),
    "place": ("host", "options=fastload.BackendOptions(place=...)"),
    "placement": ("node", "order=fastload.NodePlacement()"),
    "collate": ("detr", "collate_fn='torchvision', 'detr', 'yolo' or 'ultralytics'"),
    "shuffle": (fastload.BlockShuffle(8), "order=BlockShuffle(block=8, window=None)"),
}
"""What has another spelling: the value that it had, and what the error says to write."""


@pytest.mark.parametrize("name", MOVED)
def test_what_has_moved_names_its_new_spelling(name: str) -> None:
    value, now = MOVED[name]
    with pytest.raises(ConfigurationError, match=rf"{name}\b.* moved.*{re.escape(now)}"):
        fastload.create_loader(PIXELS, **{name: value})


def test_of_from_dataloader_two_have_moved() -> None:
    existing: DataLoader[Any] = DataLoader([1])  # type: ignore[arg-type]
    for name in ("tune", "place"):
        with pytest.raises(ConfigurationError, match=f"{name}= has moved.*BackendOptions"):
            fastload.from_dataloader(existing, **{name: True})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fastload.BackendOptions(tune="yes"), "tune: must be True or False"),
        (lambda: fastload.BackendOptions(place="gpu"), "place: must be 'auto'"),
        (lambda: fastload.BackendOptions(last_epoch=-1), "last_epoch: must be an int of at least"),
        (
            lambda: fastload.BackendOptions(last_epoch=True),
            "last_epoch: must be an int of at least",
        ),
        (lambda: DaliOptions(device="mixed", tune=True), "tune: it tries .*Leave tune out"),
        (lambda: fastload.CollateColumns("detr"), "CollateColumns: must be given a function"),
        (lambda: fastload.open_source(PIXELS, strict=1), "strict: must be True or False"),
        (lambda: fastload.create_loader(PIXELS, options={}), "options: must be"),
        (lambda: fastload.create_loader(PIXELS, shuffle="yes"), "shuffle: must be True or False"),
    ],
)
def test_values_check_themselves(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_a_loader_of_what_was_opened_is_that_of_its_source() -> None:
    """And follows a data set with code of its own: what was opened is opened again, as it was
    asked for."""
    rows = [1]
    dataset = Listed(rows)
    with fastload.create_loader(fastload.open_source(dataset), 1, num_workers=0) as loader:
        assert len(list(loader)) == 1
        rows.append(rows[0])
        assert len(list(loader)) == 2
    opened = fastload.open_source(PIXELS)
    changed = replace(opened, source=opened.source.take(np.arange(2)))
    with fastload.create_loader(changed) as loader:
        assert len(list(loader)) == 2
    with fastload.create_loader(opened, 4) as loader:
        again = pickle.loads(pickle.dumps(loader))
        assert next(iter(again))["image"].shape == next(iter(loader))["image"].shape


def test_what_was_opened_twice_was_asked_for_at_once() -> None:
    """Else a loader would open it again without what the first call said."""
    arrays = {**PIXELS, "bbox": np.zeros((4, 4)), "spot": np.zeros((4, 2))}
    once = fastload.open_source(arrays, roles={"bbox": "boxes"}, strict=True)
    twice = fastload.open_source(once, roles={"spot": "unmoved"})
    assert twice.asked is not None
    assert twice.asked.spec is arrays
    both = {"bbox": "boxes", "spot": "unmoved"}
    assert twice.asked.options == {"strict": True, "roles": both}
    at_once = fastload.open_source(arrays, roles=both)
    assert {n: c.role for n, c in twice.source.columns.items()} == {
        n: c.role for n, c in at_once.source.columns.items()
    }


class Listed(Dataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2), self.rows[index]
