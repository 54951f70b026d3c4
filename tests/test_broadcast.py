"""Batches that one rank of a group makes and all ranks of it get, in real processes."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload.loader.broadcast import _is_dense, _pickled, _Reader, _Writer
from tests.clients import mesh_loop
from tests.clients.processes import result, run_script


@pytest.mark.parametrize(
    "world",
    [pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.whole)],
)
def test_ranks_of_a_mesh(world: int, tmp_path: Path) -> None:
    run_script("mesh_loop.py", str(tmp_path), ranks=world)
    ranks = [result(tmp_path, "mesh", rank) for rank in range(world)]
    for name, sizes in mesh_loop.MESHES[world].items():
        results = [one[name] for one in ranks]
        check_division(results, list(sizes))
        same = next((n for n, one in enumerate(sizes) if not one.startswith("dp")), None)
        for one in results:
            for how in {"by names", "by group"} & {*one}:
                assert one[how]["batches"] == one["alone"]["batches"]
            if same is not None:
                check_sharing(one, first=one["coordinate"][same] == 0)

    for one in (rank["wrong"] for rank in ranks):
        assert ("of the same part of the data" in one["said"]) == (not one["first"])


def check_division(results: list[dict[str, Any]], names: list[str]) -> None:
    """Ranks at one place of the data parallel dimensions have the same samples; the others divide
    an epoch."""
    by_place = defaultdict(list)
    for one in results:
        place = tuple(
            c for c, name in zip(one["coordinate"], names, strict=True) if name[:2] == "dp"
        )
        by_place[place].append(one["alone"]["batches"])
    for epoch in range(2):
        labels = []
        for batches in by_place.values():
            assert all(other == batches[0] for other in batches)
            labels += [label for batch in batches[0][epoch] for label in batch[0]]
        assert sorted(labels) == list(range(mesh_loop.SAMPLES))
    parts = {tuple(one["alone"]["part"]) for one in results}
    assert parts == {(rank, len(by_place)) for rank in range(len(by_place))}


def check_sharing(one: dict[str, Any], *, first: bool) -> None:
    assert one["shared"]["started"] == first, "the others start nothing"
    assert ("seed: 0 there" in one["differing"]) == (not first)
    assert one["shared"]["batches"] == one["alone"]["batches"]
    assert one["shared"]["samples"] == one["alone"]["samples"]
    epoch, following = one["alone"]["batches"]
    assert one["first half"] == epoch[:2]
    assert one["second half"] == [epoch[2:], following]
    alone, shared = one["errors"]
    assert alone == shared
    assert "makes the batches of ranks" in one["shared"]["explained"]


def test_what_is_sent_comes_back() -> None:
    square = torch.arange(24.0).reshape(2, 3, 4)
    batch = {
        "dense": square,
        "turned": square.permute(2, 0, 1),
        "spread": square[:, :, ::2],
        "repeated": torch.ones(1).expand(3),
        "none": torch.empty(0, 3),
        "one": torch.tensor(True),
        "leaf": torch.ones(2, requires_grad=True),
        "rest": ["text", 3, None, (square, {"again": square})],
    }
    writer = _Writer(["cpu"])
    structure = writer.written(batch)
    assert len(writer.tensors) == 6, "those without gaps; one that comes twice is sent twice"
    again = _Reader(structure, writer.tensors).load()
    assert again["rest"][:3] == batch["rest"][:3]
    assert again["rest"][3][1]["again"] is square
    for name in ("dense", "turned", "spread", "repeated", "none", "one", "leaf"):
        torch.testing.assert_close(again[name], batch[name])
    assert _Writer(["cuda"]).written(square), "of a device that the group cannot send, whole"


def test_dense_memory() -> None:
    images = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert all(map(_is_dense, (images, images[:1], images.permute(3, 0, 1, 2), torch.zeros(()))))
    assert not any(map(_is_dense, (images[:, :2], images[:, :, ::2], torch.zeros(1).expand(2))))


class TwoArgumentsError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_be_pickled_keeps_its_words() -> None:
    assert str(pickle.loads(_pickled(TwoArgumentsError(1, 2)))) == "TwoArgumentsError: 1 and 2"
    assert type(pickle.loads(_pickled(KeyError("a")))) is KeyError
