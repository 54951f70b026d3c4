"""Hugging Face's Trainer with two processes: one method overridden, one callback to resume in
mid-epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.processes import result, run_script

pytest.importorskip("transformers", reason="pip install .[integrations]")
pytest.importorskip("accelerate", reason="pip install .[integrations]")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_steps_and_figures_are_those_of_the_trainers_own_loader(tmp_path: Path) -> None:
    run_script("trainer_loop.py", str(tmp_path), ranks=2)
    ranks = [result(tmp_path, "found", rank) for rank in range(2)]
    for count in (16, 17, 37):
        trained: list[list[int]] = [[], []]
        for found in ranks:
            plain, ours = found[f"plain {count}"], found[f"ours {count}"]
            assert ours["steps"] == plain["steps"]
            assert ours["figures"] == plain["figures"] == [sum(range(count)), count]
            half = len(ours["seen"]) // 2
            for epoch, batches in enumerate((ours["seen"][:half], ours["seen"][half:])):
                trained[epoch] += [index for batch in batches for index in batch]
        for epoch in trained:
            assert set(epoch) == set(range(count))
            assert len(epoch) == count + count % 2
    for found in ranks:
        for name in ("resumed", "resumed by itself"):
            assert found[name]["seen"] == found["ours 37"]["seen"][3:], (
                "from the third step on, in mid-epoch"
            )
