"""torchdata's StatefulDataLoader: adopted where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.integrations import stateful_dataloader_state
from tests.clients.processes import result, run_script

stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="pip install .[integrations]"
)
DATA = TensorDataset(torch.arange(20))
pytestmark = pytest.mark.filterwarnings("ignore")  # torchdata uses what this torch calls deprecated


def values(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_where_the_other_stands(workers: int) -> None:
    existing = stateful.StatefulDataLoader(DATA, 3, num_workers=workers)
    with fastload.from_dataloader(existing) as loader:
        assert values(loader) == values(DataLoader(DATA, 3)), "from the beginning"
    iterator = iter(existing)
    next(iterator), next(iterator)
    state = existing.state_dict()
    with fastload.from_dataloader(existing) as loader, fastload.create_loader(DATA, 3) as fresh:
        fresh.load_state_dict(state)
        rest = values(iterator)
        assert values(loader) == values(fresh) == rest
        assert rest
        assert len(values(loader)) == 7, "and then whole epochs"
        fresh.load_state_dict(existing.state_dict())
        assert len(values(fresh)) == 7, "of an epoch that is over, the next one"


def test_a_random_order_cannot_be_gone_on_with() -> None:
    existing = stateful.StatefulDataLoader(DATA, 3, shuffle=True)
    next(iter(existing))
    with pytest.raises(StateMismatchError, match="StatefulDataLoader, after 1 batch,"):
        fastload.from_dataloader(existing)


def test_a_shuffled_one_goes_on_with_states_of_its_own() -> None:
    with fastload.from_dataloader(stateful.StatefulDataLoader(DATA, 3, shuffle=True)) as loader:
        first = iter(loader)
        states = [loader.state_dict()]
        seen = [next(first)[0].tolist() for _ in range(3)]
        states.append(loader.state_dict())
        seen += values(first)
        assert sorted(index for batch in seen for index in batch) == list(range(20))
        assert seen != values(loader), "another epoch, another order"
        for state, rest in zip(states, (seen, seen[3:]), strict=True):
            loader.load_state_dict(state)
            assert values(loader) == rest


def played(*, line: bool, given: bool) -> list[Any]:
    """Two epochs of a shuffle, whose generator, if it is given one, is seeded for each; and a
    random number after each."""
    torch.manual_seed(7)
    generator = torch.Generator() if given else None
    loader = stateful.StatefulDataLoader(DATA, 3, shuffle=True, generator=generator)
    if line:
        loader = fastload.from_dataloader(loader)
    found: list[Any] = []
    for epoch in range(2):
        if generator is not None:
            generator.manual_seed(epoch)
        found += [values(loader) if given else len(list(loader)), torch.rand(1).item()]
    return found


@pytest.mark.parametrize("given", [True, False])
def test_the_generator_of_a_shuffle_is_the_scripts(given: bool) -> None:
    """Also: as many random numbers are drawn of torch's as without the line."""
    assert played(line=True, given=given) == played(line=False, given=given)


def test_a_loader_is_not_adopted_twice() -> None:
    with pytest.raises(ConfigurationError, match="it is a fastload Loader already"):
        fastload.from_dataloader(fastload.create_loader(DATA, 3))


def test_it_goes_back_where_the_loader_stands() -> None:
    with fastload.from_dataloader(stateful.StatefulDataLoader(DATA, 3)) as loader:
        for taken in (0, 2, 7):
            loader.set_epoch(taken)
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
            back = stateful.StatefulDataLoader(DATA, 3)
            back.load_state_dict(stateful_dataloader_state(loader))
            assert values(back) == values(iterator) == values(DataLoader(DATA, 3))[taken:]
    with (
        fastload.create_loader(DATA, 3, shuffle=True) as shuffled,
        pytest.raises(ConfigurationError, match="StatefulDataLoader cannot go on"),
    ):
        stateful_dataloader_state(shuffled)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_share_the_data_and_their_states_go_both_ways(tmp_path: Path) -> None:
    run_script("torchdata_loop.py", str(tmp_path), ranks=2)
    ranks = [result(tmp_path, "found", rank) for rank in range(2)]
    for count in (16, 17, 37):
        trained: list[int] = []
        for found in (rank[str(count)] for rank in ranks):
            assert found["ours"] == found["plain"]
            assert found["figures"][0] == found["figures"][1]
            assert found["taken over"] == found["given back"] == found["plain"][1:]
            assert [len(batch) for batch in found["trained"]] == [
                len(batch) for batch in found["plain"]
            ]
            trained += [index for batch in found["trained"] for index in batch]
        assert set(trained) == set(range(count))
        assert len(trained) == count + count % 2
