"""Accelerate with two processes: `prepare` leaves the Loader what it is, and gives it its rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastload
from fastload.errors import ConfigurationError
from tests.clients.processes import result, run_script

accelerate = pytest.importorskip("accelerate", reason="pip install fastload[integrations]")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_steps_flags_and_metrics_are_those_of_a_dataloader(tmp_path: Path) -> None:
    run_script("accelerate_loop.py", str(tmp_path), ranks=2)
    ranks = [result(tmp_path, "found", rank) for rank in range(2)]
    for count in (16, 17, 37):
        for way in ("adopted", "created"):
            orders: list[list[int]] = [[], []]
            for found in ranks:
                plain, ours = found[f"plain {count}"], found[f"{way} {count}"]
                assert ours["kinds"] == ["Loader", "Loader"]
                assert ours["lengths"] == plain["lengths"]
                assert ours["gathered"] == plain["gathered"] == list(range(count)), "each sample counted once, in order"
                for epoch, (theirs, mine) in enumerate(zip(plain["epochs"], ours["epochs"], strict=True)):
                    assert [sync for _, sync in mine] == [sync for _, sync in theirs], "gradients, also at the end"
                    orders[epoch] += [index for batch, _ in mine for index in batch]
                assert len(ours["skipped"]) == len(ours["epochs"][0]) - 1
            assert all(set(order) == set(range(count)) for order in orders), "all samples over both ranks"
            assert all(len(order) == count + count % 2 for order in orders), "of equal number on both"


def test_a_plain_loader_made_by_skip_first_batches_names_the_way() -> None:
    loader = fastload.from_dataloader(DataLoader(TensorDataset(torch.arange(8)), 2))
    with pytest.raises(ConfigurationError, match=r"loader\.skip\(n\)"):
        list(accelerate.skip_first_batches(loader, 1))


def test_skipping_leaves_out_the_first_batches_of_one_epoch() -> None:
    data = TensorDataset(torch.arange(8))

    def values(loader: Any) -> list[Any]:
        return [batch[0].tolist() for batch in loader]

    with (
        fastload.create_loader(data, 2, shuffle=True) as loader,
        fastload.create_loader(data, 2, shuffle=True) as other,
    ):
        first, second = values(other), values(other)
        loader.skip(3)
        assert values(loader) == first[3:]
        loader.skip(1)
        assert values(loader) == second[1:]
        next(iter(loader))
        loader.skip(2)
        other.set_epoch(3)
        assert values(loader) == values(other)[2:], "of the epoch after the one that was left"
        with pytest.raises(ConfigurationError, match="batches: must be from 0 to 4"):
            loader.skip(5)
