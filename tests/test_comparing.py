"""Ranks that compare what they are about to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.loader.comparing import check
from tests.clients.processes import result, run_script


def said(**values: Any) -> dict[str, Any]:
    return {"seed": 0, "step": 0, "part": 0, "parts": 2, "samples": "a"} | values


@pytest.mark.parametrize(
    ("all_said", "divided", "words"),
    [
        ([said(), said()], False, ""),
        ([said(), said(part=1, samples="b")], True, ""),
        ([said(), said(seed=1), said()], True, "seed: 0 on ranks 4 6, 1 on rank 5"),
        ([said(), said(part=1)], False, "part: 0 on rank 4, 1 on rank 5"),
        ([said(), said(samples="b")], False, "samples: 'a' on rank 4"),
        ([said(), said(samples="b"), said(part=1), said(part=1)], True, "samples: 'a' on ranks"),
        ([said(), said(), said(part=1)], True, "part: 0 on ranks 4 5, 1 on rank 6"),
        (
            [said(), {"error": "ValueError: no"}],
            False,
            "differ in error: None on rank 4, 'ValueError: no' on rank 5. Make",
        ),
    ],
)
def test_what_ranks_have_said_is_alike_or_an_error(
    all_said: list[dict[str, Any]], divided: bool, words: str
) -> None:
    ranks = range(4, 4 + len(all_said))
    if not words:
        check(all_said, ranks, divided=divided)
        return
    with pytest.raises(StateMismatchError, match=words):
        check(all_said, ranks, divided=divided)


def test_without_process_groups_there_is_nothing_to_compare() -> None:
    shard = fastload.MeshShard(fastload.Shard(0, 2), compare=True)
    with pytest.raises(ConfigurationError, match=r"compare: torch.distributed does not run"):
        fastload.create_loader(list(range(8)), shard=shard)


@pytest.mark.whole
def test_ranks_of_a_mesh_compare(tmp_path: Path) -> None:
    run_script("comparing_loop.py", str(tmp_path), ranks=4)
    for rank in range(4):
        one = result(tmp_path, "comparing", rank)
        tp = one["place"][1]
        first, *compared = one["alike"]
        assert compared == [first] * 3
        pair = f"{rank - tp}", f"{rank - tp + 1}"
        by_seed = "seed: 0 on rank {}, 1 on rank {}"
        same, everybody, data = one["seed"]
        assert by_seed.format(*pair) in same
        assert "seed: 0 on ranks 0 2, 1 on ranks 1 3" in everybody
        assert isinstance(data, list), "the ranks of one tp have the same seed"
        same, everybody, data = one["seed of rank 3"]
        assert (by_seed.format(2, 3) in same) == (rank > 1)
        assert "seed: 0 on ranks 0 1 2, 1 on rank 3" in everybody
        assert (by_seed.format(1, 3) in data) == (tp == 1)
        same, everybody, data = one["data of rank 2"]
        assert ("source: " in same) == (rank > 1)
        assert "source: " in everybody
        assert ("source: " in data) == (tp == 0)
        alike, by_step, at_the_end, ended = one["state"]
        assert isinstance(alike, list)
        assert "differ in step: 2 on rank {}, 3 on rank {}. ".format(*pair) in by_step
        assert "step: 7 on rank {}, 8 on rank {}".format(*pair) in at_the_end
        assert ended == "end"
        assert "shuffle" in one["order"]
        assert "part: 0 on rank {}, 1 on rank {}".format(*pair) in one["part"]
        assert "part: 0 on ranks 0 1 2, 1 on rank 3" in one["parts of everybody"]
        drawn, differing = one["sampler"]
        assert isinstance(drawn, list)
        assert "samples: " in differing
        assert "no order today" in one["broken"]
        assert one["broken"].startswith("RuntimeError" if tp else "StateMismatchError")
        assert "rows.npz: was written again" in one["rewritten"]
        assert one["rewritten"].startswith("SourceError" if tp else "StateMismatchError")
        assert one["epochs"] == one["plain"]
        assert one["part of the loader"]
        assert "compare: must be True, None, a DeviceMesh" in one["refused"]
