"""Accelerate with two processes: it prepares the DataLoader, with a Loader in that one's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import fastload
from fastload.errors import ConfigurationError
from tests.clients.processes import result, run_script

accelerate = pytest.importorskip("accelerate", reason="pip install .[integrations]")


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
                assert ours["gathered"] == plain["gathered"] == list(range(count)), (
                    "each sample counted once, in order"
                )
                for epoch, (theirs, mine) in enumerate(
                    zip(plain["epochs"], ours["epochs"], strict=True)
                ):
                    assert [[len(batch), sync] for batch, sync in mine] == [
                        [len(batch), sync] for batch, sync in theirs
                    ], "gradients, also at the end"
                    orders[epoch] += [index for batch, _ in mine for index in batch]
                assert len(ours["skipped"]) == len(ours["epochs"][0]) - 1
            assert all(set(order) == set(range(count)) for order in orders), (
                "all samples over both ranks"
            )


@pytest.mark.parametrize("shuffle", [False, True])
def test_skip_first_batches_gives_the_loaders_own_batches(shuffle: bool) -> None:
    data = TensorDataset(torch.arange(11))
    with (
        fastload.create_loader(data, 2, shuffle=shuffle) as loader,
        fastload.create_loader(data, 2, shuffle=shuffle) as other,
    ):
        for epoch in range(2):
            whole = [batch[0].tolist() for batch in other]
            skipped = accelerate.skip_first_batches(loader, 2)
            assert len(skipped) == 4
            assert [batch[0].tolist() for batch in skipped] == whole[2:]
            loader.set_epoch(epoch + 1)  # nobody has iterated over this one


OPTIONS: list[dict[str, bool]] = [
    {"split_batches": True},
    {"dispatch_batches": True, "even_batches": True},
    {"even_batches": False},
    {"split_batches": True, "even_batches": False},
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_its_options_mean_what_they_mean_for_a_dataloader(tmp_path: Path) -> None:
    run_script("accelerate_options.py", str(tmp_path), ranks=2)
    ranks = [result(tmp_path, "found", rank) for rank in range(2)]
    for options in OPTIONS:
        for count in (16, 17, 37):
            name = f"{sorted(options.items())} {count}"
            theirs, ours = (
                [found[f"{way} {name}"] for found in ranks] for way in ("plain", "ours")
            )
            for plain, mine in zip(theirs, ours, strict=True):
                if options.get("even_batches", True):
                    assert mine["lengths"] == plain["lengths"]
                    assert mine["gathered"] == plain["gathered"] == list(range(count))
                assert all(len(batch) for batch in mine["batches"]), "no empty batch on any rank"
                assert max(map(len, mine["batches"])) == max(map(len, plain["batches"]))
                assert mine["skipped"] == mine["batches"][1:], (
                    "accelerator.skip_first_batches, with the flags"
                )
                assert mine["ends"] == [False] * (len(mine["batches"]) - 2) + [True]
            both = [index for found in ours for batch in found["batches"] for index in batch]
            assert set(both) == set(range(count))
    for found in ranks:
        rest, again = found["stateful"]
        assert rest == again
        assert len(rest) == 2


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
