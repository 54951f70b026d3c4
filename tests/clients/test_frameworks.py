"""Training frameworks that take a DataLoader as it is: the same steps, samples and figures with a
Loader in its place."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.clients.processes import result, run_script

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

COUNT, EPOCHS = 22, 2
"""Of frameworks_loop.py."""


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("composer", 1),
        ("fastai", 1),
        ("fastai", 2),
        ("ignite", 1),
        ("ignite", 2),
        ("keras", 1),
        ("lightly", 1),
        ("monai", 1),
        ("monai", 2),
        ("skorch", 1),
    ],
)
def test_steps_samples_and_figures_are_those_of_a_dataloader(
    name: str, ranks: int, tmp_path: Path
) -> None:
    if importlib.util.find_spec(name) is None:  # unimported: Keras asks for its backend at that
        pytest.skip(f"{name} is not installed")
    run_script("frameworks_loop.py", name, str(tmp_path), ranks=ranks)
    found = [result(tmp_path, "found", rank) for rank in range(ranks)]
    epochs: dict[str, list[Any]] = {"plain": [], "ours": []}
    for rank in found:
        plain, ours = rank["plain"], rank["ours"]
        assert [len(batch) for batch in ours["seen"]] == [len(batch) for batch in plain["seen"]]
        assert ours["figures"] == pytest.approx(plain["figures"], rel=1e-6)
        assert rank["ours"].get("random", True)
    steps = len(found[0]["ours"]["seen"]) // EPOCHS
    for way, orders in epochs.items():
        for epoch in range(EPOCHS):
            own = slice(epoch * steps, (epoch + 1) * steps)
            orders.append([i for rank in found for batch in rank[way]["seen"][own] for i in batch])
            assert sorted(orders[-1]) == list(range(COUNT)), (way, epoch)
    assert epochs["ours"][0] != sorted(epochs["ours"][0]), "in a random order"
