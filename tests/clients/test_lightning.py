"""Lightning with two processes: it makes its loaders again, and fastload's stay fastload's, one
rank each."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.processes import result, run_cold

if find_spec("lightning") is None:  # importing it takes seconds of every run
    pytest.skip("pip install .[integrations]", allow_module_level=True)
pytestmark = [pytest.mark.timeout(600), pytest.mark.whole]


def test_steps_and_validation_figures_are_those_of_a_dataloader(tmp_path: Path) -> None:
    run_cold("lightning_loop.py", "compare", str(tmp_path))
    ranks = [result(tmp_path, "compare", rank) for rank in range(2)]
    for count in (16, 17, 37):
        for way in ("hook", "argument"):
            trained: list[list[int]] = [[], []]
            for found in ranks:
                (_, plain, wanted), (kind, seen, figure) = (
                    found[f"plain {count}"],
                    found[f"{way} {count}"],
                )
                assert kind == "Loader"
                assert figure == wanted, "to the last digit"
                assert [(name, epoch, len(batch)) for name, epoch, batch in seen] == [
                    (name, epoch, len(batch)) for name, epoch, batch in plain
                ]
                assert [batch for name, _, batch in seen if name == "val"] == [
                    batch for name, _, batch in plain if name == "val"
                ]
                for name, epoch, batch in seen:
                    if name == "train":
                        trained[epoch] += batch
            for (
                epoch
            ) in trained:  # every sample over both ranks, and one twice where they would be uneven
                assert set(epoch) == set(range(count))
                assert len(epoch) == count + count % 2
            assert trained[0] != trained[1], "another order in each epoch"
        evaluated = [
            batch
            for found in ranks
            for name, _, batch in found[f"created {count}"][1]
            if name == "val"
        ]
        assert all(evaluated), (
            "no rank has a batch without samples, whose mean would not be a number"
        )
        assert all(math.isfinite(found[f"created {count}"][2]) for found in ranks)


def test_runs_resume_from_the_middle_and_the_end_of_an_epoch(tmp_path: Path) -> None:
    run_cold("lightning_loop.py", "resume", str(tmp_path))
    for rank in range(2):
        found = result(tmp_path, "resume", rank)
        _, whole = found["whole"]
        for begin, seen in (found["middle"], found["end"]):
            assert seen == whole[begin:]
            assert seen


def test_spawned_processes_get_a_rank_each(tmp_path: Path) -> None:
    run_cold("lightning_loop.py", "spawn", str(tmp_path))
    trained: list[int] = []
    for rank in range(2):
        kind, seen = result(tmp_path, "spawn", rank)["spawn"]
        assert kind == "Loader"
        trained += [i for name, _, batch in seen if name == "train" for i in batch]
    assert set(trained) == set(range(17))
    assert len(trained) == 18
