"""Order, ranks and foreign samplers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import fastload
from fastload.draws import Draws, Stream, stretch_of
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.sampler import EpochOrder, ForeignOrder, Shard, Tail
from fastload.sampler import order as order_module
from fastload.sampler.bijection import Bijection
from fastload.sampler.order import count_repeats, sorted_by_keys


def all_batches(order: EpochOrder, epoch: int = 0) -> list[list[int]]:
    return list(order.batches(epoch))


@pytest.mark.parametrize(
    ("rank", "world", "said"),
    [
        (2, 2, "rank must be from 0 to 1"),
        (-1, 2, "rank must be from 0 to 1"),
        (0, 0, "world_size must be at least 1"),
        (5, 4, "rank must be from 0 to 3"),
    ],
)
def test_a_shard_that_cannot_be_is_refused(rank: int, world: int, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Shard(rank, world)


def test_the_shard_is_found_in_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Shard.detect() == Shard(0, 1)
    monkeypatch.setenv("RANK", "3")
    assert Shard.detect() == Shard(0, 1), "half of it says nothing"
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Shard.detect() == Shard(3, 4)
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigurationError, match="WORLD_SIZE='many'"):
        Shard.detect()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 6)
    assert Shard.detect() == Shard(5, 6), "what torch.distributed says goes first"


def test_the_shard_is_found_where_torch_comes_without_its_distributed_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.delattr(torch.distributed, "is_initialized")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Shard.detect() == Shard(1, 2)


def test_shuffles_are_permutations_that_differ_by_epoch_and_seed() -> None:
    order = EpochOrder(1000, 10, shuffle=True, seed=3)
    first = order.epoch(0)
    assert sorted(first.tolist()) == list(range(1000))
    assert not np.array_equal(first, order.epoch(1))
    assert not np.array_equal(first, EpochOrder(1000, 10, shuffle=True, seed=4).epoch(0))
    assert np.array_equal(first, EpochOrder(1000, 10, shuffle=True, seed=3).epoch(0))
    unseeded = EpochOrder(1000, 10, shuffle=True)
    assert np.array_equal(unseeded.epoch(0), EpochOrder(1000, 10, shuffle=True, seed=0).epoch(0))


def test_every_position_is_equally_likely() -> None:
    places = np.array([EpochOrder(6, 1, shuffle=True, seed=s).epoch(0) for s in range(3000)])
    for place in range(6):
        counts = np.bincount(places[:, place], minlength=6)
        assert abs(counts - 500).max() < 100  # five deviations


# -- Orders that are not arrays --------------------------------------------------------------------


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shuffled order is computed batch by batch."""
    monkeypatch.setattr("fastload.sampler.order.LARGEST_IN_MEMORY", 0)


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 1025])
def test_a_bijection_has_every_index_once(length: int) -> None:
    order = EpochOrder(length, 3, shuffle=True, seed=3).epoch(5)
    assert isinstance(order, Bijection)
    assert len(order) == length
    whole = np.asarray(order)
    assert sorted(whole.tolist()) == list(range(length))
    assert order.tolist() == whole.tolist()
    assert order[length // 3 :].tolist() == whole[length // 3 :].tolist()
    assert order[::-2].tolist() == whole[::-2].tolist()
    some = np.array([[0, -1], [length - 1, length // 2]])
    assert np.array_equal(order[some], whole[some])
    assert order[-1] == whole[-1]
    for wrong in (length, -length - 1):
        with pytest.raises(IndexError):
            order[wrong]


@pytest.mark.whole
@pytest.mark.usefixtures("computed")
def test_a_bijection_is_as_random_as_a_shuffle() -> None:
    places = np.array([EpochOrder(6, 1, shuffle=True, seed=s).epoch(0) for s in range(3000)])
    for place in range(6):
        counts = np.bincount(places[:, place], minlength=6)
        assert abs(counts - 500).max() < 100  # five deviations
    # Neighbours do not stay together: of 4,096 some 2 of them would by chance, in either order.
    whole = np.asarray(EpochOrder(4096, 1, shuffle=True, seed=1).epoch(0))
    assert (abs(np.diff(whole)) == 1).sum() < 12
    assert abs(np.corrcoef(np.arange(4096), whole)[0, 1]) < 0.08


@pytest.mark.usefixtures("computed")
@pytest.mark.parametrize("tail", ["exact", "drop"])
def test_ranks_share_a_bijection_as_they_share_an_array(tail: Tail) -> None:
    alone = EpochOrder(103, 8, shuffle=True, seed=2, tail=tail)
    ranks = [
        EpochOrder(103, 2, Shard(rank, 4), shuffle=True, seed=2, tail=tail) for rank in range(4)
    ]
    for step in range(12):
        parts = [order.draws(1, step, order.epoch(1), None).indices for order in ranks]
        assert np.array_equal(np.concatenate(parts), alone.epoch(1)[alone.batch(step)])


@pytest.mark.parametrize("tail", ["exact", "pad"])
def test_only_what_is_shuffled_and_not_padded_is_computed(
    monkeypatch: pytest.MonkeyPatch, tail: Tail
) -> None:
    for shuffle in (False, True):
        order = EpochOrder(10, 4, Shard(1, 3), shuffle, seed=5, tail=tail)
        before, needs = order.epoch(2), order.reproducible()
        with monkeypatch.context() as patch:
            patch.setattr("fastload.sampler.order.LARGEST_IN_MEMORY", 9)
            if shuffle and tail == "exact":
                assert isinstance(order.epoch(2), Bijection)
            else:
                assert order.epoch(2).tolist() == before.tolist()
                assert order.reproducible() == needs


def test_up_to_100_million_samples_have_an_array() -> None:
    """docs/multi-node.md has the number."""
    for length, computed in ((100_000_000, False), (100_000_001, True)):
        said = EpochOrder(length, 256, shuffle=True).describe()
        assert ("computed batch by batch" in said) is computed


def test_ten_billion_images_take_no_memory_and_have_states_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = EpochOrder(10**10, 256, Shard(999, 1000), shuffle=True)
    found = order.draws(3, 10**10 // 256_000, order.epoch(3), None).indices
    assert len(found) == 10**10 % 256_000 // 1000
    assert len(np.unique(found)) == len(found)
    assert found.min() >= 0
    assert 10**9 < found.max() < 10**10
    assert "computed batch by batch" in order.describe()
    small = EpochOrder(100, 4, shuffle=True)
    before = small.reproducible()
    monkeypatch.setattr("fastload.sampler.order.LARGEST_IN_MEMORY", 0)
    assert small.reproducible() != before


@pytest.mark.usefixtures("computed")
def test_a_loader_goes_on_in_a_bijection() -> None:
    arrays = (np.arange(40, dtype=np.float32), np.arange(40))

    def labels(batches: Iterator[list[torch.Tensor]]) -> list[int]:
        return [int(label) for batch in batches for label in batch[1]]

    with fastload.create_loader(arrays, 4, shuffle=True) as loader:
        whole = labels(iter(loader))
        assert sorted(whole) == list(range(40))
        batches = iter(loader)
        second = labels(next(batches) for _ in range(3))
        state = loader.state_dict()
        rest = labels(batches)
    assert sorted(second + rest) == list(range(40)) != second + rest
    with fastload.create_loader(arrays, 4, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert labels(iter(loader)) == rest


# -- Ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 7, 16, 23, 64])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_are_disjoint_complete_and_share_global_batches(
    length: int, world: int, drop_last: bool
) -> None:
    make = lambda rank, size, batch: EpochOrder(length, batch, Shard(rank, size), False, drop_last)  # noqa: E731
    whole = all_batches(make(0, 1, 8))
    ranks = [all_batches(make(rank, world, 8 // world)) for rank in range(world)]
    assert {len(batches) for batches in ranks} == {len(whole)}
    for step, batch in enumerate(whole):
        assert [i for batches in ranks for i in batches[step]] == batch
    seen = sorted(i for batch in whole for i in batch)
    assert seen == list(range(length - length % 8 if drop_last else length))


def test_no_rank_trains_on_an_empty_batch() -> None:
    ranks = [all_batches(EpochOrder(9, 1, Shard(rank, 4), shuffle=True)) for rank in range(4)]
    # 9 samples over 4 ranks: one is left for the third step.
    last = [batches[-1] for batches in ranks]
    assert [len(batch) for batch in last] == [1, 1, 1, 1]
    assert {i for batches in ranks for batch in batches for i in batch} == set(range(9))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_padded_sample_that_comes_again_is_counted(interleaved: bool) -> None:
    """So that it gets another crop than before."""
    seen: list[tuple[int, int]] = []
    for rank in range(4):
        order = EpochOrder(17, 2, Shard(rank, 4), shuffle=True, tail="pad", interleaved=interleaved)
        indices = order.epoch(0)
        repeats = order.repeats(indices)
        assert repeats is not None
        for step in range(order.steps):
            draws = order.draws(0, step, indices, repeats)
            assert draws.repeats is not None
            assert draws.indices.tolist() == indices[order.batch(step)].tolist()
            seen += zip(draws.indices.tolist(), draws.repeats.tolist(), strict=True)
    again = indices[:3].tolist()
    assert sorted(seen) == sorted([(index, 0) for index in range(17)] + [(i, 1) for i in again])
    alone = EpochOrder(9, 2, shuffle=True, interleaved=interleaved)
    assert alone.repeats(alone.epoch(0)) is None
    assert alone.draws(0, 1, alone.epoch(0), None).repeats is None


def test_a_sample_in_place_of_another_is_any_of_the_ranks_own() -> None:
    """By the grid of what two numbers of [0, 1) may be."""
    order = EpochOrder(26, 4, Shard(1, 2), shuffle=True, seed=1)
    indices = order.epoch(0)
    for step, batch in enumerate(order.batches(0)):
        chances = [
            ((step + 0.5) / order.steps, (at + 0.5) / len(batch)) for at in range(len(batch))
        ]
        assert [order.any_sample(0, 0, indices, chance) for chance in chances] == batch
    highest = 1 - 2**-53
    assert order.any_sample(0, 0, indices, (0.0, 0.0)) == indices[4]
    assert order.any_sample(0, 0, indices, (highest, highest)) == indices[25]
    lone = EpochOrder(1, 1, Shard(0, 2))
    assert lone.any_sample(0, 0, lone.epoch(0), (0.5, 0.5)) is None, "its batch is empty"


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_batch_without_samples_is_asked_for_as_such(interleaved: bool) -> None:
    order = EpochOrder(1, 1, Shard(0, 2), interleaved=interleaved)
    if interleaved:
        order = replace(order, shard=Shard(1, 2))
    assert order.draws(0, 0, order.epoch(0), None).indices.tolist() == []


def test_a_batch_shows_that_it_is_a_stretch_of_an_epochs_order() -> None:
    """So a GPU takes indices from the order that it has already."""
    order = EpochOrder(26, 4, Shard(1, 2), shuffle=True)
    indices = order.epoch(0)
    whole, first = stretch_of(order.draws(0, 2, indices, None).indices)
    assert whole is indices
    assert first == 2 * 8 + 4


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_an_order_says_of_itself(world: int, shuffle: bool) -> None:
    ranks = [EpochOrder(12, 2, Shard(rank, world), shuffle) for rank in range(world)]
    order, first = ranks[0], ranks[0].epoch(0).tolist()
    assert order.sequential is (first == list(range(12)))
    assert order.count() == order.steps == len(all_batches(order)) == 6 // world
    assert ("shuffled" in order.describe()) is shuffle
    assert not order.endless
    assert order.global_batch_size == 2 * world
    assert order.total_samples == sum(one.own_samples for one in ranks) == 12
    assert order.shared is (all_batches(order) != all_batches(ranks[-1]))


def test_what_the_order_of_a_users_sampler_says_of_itself() -> None:
    order = ForeignOrder(RandomSampler(range(10)), 4, 10)
    assert not order.shuffle, "its sampler shuffles, and not the loader"
    assert not order.sequential
    assert not order.endless
    assert order.count() == len(order.sampler) // 4 + 1


def test_repeats_count_earlier_occurrences() -> None:
    assert count_repeats(np.array([3, 1, 2])) is None
    repeats = count_repeats(np.array([3, 1, 3, 3, 1, 7]))
    assert repeats is not None
    assert repeats.tolist() == [0, 0, 1, 2, 1, 0]


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(50)),
        RandomSampler(range(50), replacement=True, num_samples=80),
        WeightedRandomSampler([0.1] * 25 + [0.9] * 25, 60),
        SubsetRandomSampler(range(10, 30)),
    ],
    ids=lambda s: type(s).__name__,
)
def test_torch_samplers_become_functions_of_seed_and_epoch(sampler: RandomSampler) -> None:
    state = torch.random.get_rng_state()
    order = ForeignOrder(sampler, 4, 50, seed=1)
    assert order.ahead
    first = order.epoch(0)
    assert np.array_equal(first, order.epoch(0))
    assert not np.array_equal(first, order.epoch(1))
    assert not np.array_equal(first, ForeignOrder(sampler, 4, 50, seed=2).epoch(0))
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was touched"
    assert sampler.generator is None, "the user's sampler was changed"


class Curriculum:
    """A sampler of the user's own, with set_epoch."""

    def __init__(self, lie: int = 0) -> None:
        self.epoch = 0
        self.lie = lie

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 5 + self.lie

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch, self.epoch + 5))


def test_a_samplers_own_set_epoch_is_used_and_its_word_checked() -> None:
    order = ForeignOrder(Curriculum(), 2, 10)
    assert not order.ahead
    assert order.epoch(3).tolist() == [3, 4, 5, 6, 7]
    assert order.steps == 3
    with pytest.raises(ConfigurationError, match="index 10"):
        order.epoch(6)
    with pytest.raises(ConfigurationError, match="its length is 6, but gave 5"):
        ForeignOrder(Curriculum(lie=1), 2, 10).epoch(0)
    with pytest.raises(ConfigurationError, match="__len__"):
        ForeignOrder(iter([1, 2]), 2, 10)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 64, 65, 5000])
@pytest.mark.parametrize("different", [1, 7, 2**20, 2**64])
@pytest.mark.parametrize("piece", [1, 64, 1 << 18])
def test_sorting_by_keys_is_stable(
    length: int, different: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "_PIECE", piece if length < 100 else max(piece, 64))
    keys = np.random.default_rng(length).integers(
        0, different, length, dtype=np.uint64, endpoint=different < 2**64
    )
    for scaled in (keys, keys << np.uint64(40)):
        np.testing.assert_array_equal(
            sorted_by_keys(length, lambda rows, scaled=scaled: scaled[rows]),
            np.argsort(scaled, kind="stable"),
        )


def test_keys_that_are_alike_cost_as_many_keys_more_and_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 3.3 million random keys and more, some have the same upper bits."""
    monkeypatch.setattr(order_module, "_PIECE", 1 << 12)
    length, asked = 300_000, []
    keys = np.random.default_rng(0).integers(0, 2**64, length, dtype=np.uint64)
    keys[7], keys[200_000] = keys[1000] ^ np.uint64(1), keys[1000]

    def keys_of(rows: Any) -> Any:
        asked.append(len(rows))
        return keys[rows]

    tracemalloc.start()
    try:
        found = sorted_by_keys(length, keys_of)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, np.argsort(keys, kind="stable"))
    assert sum(asked) == length + 3
    pieces = 3 * 8 * order_module._PIECE
    assert peak < 8 * length + pieces + 50_000, "the result, and what is made at once"


def test_the_order_of_an_epoch_is_that_of_earlier_versions() -> None:
    """Sorted by the 64 bits of each index, whatever sorts them: saved states hold no order."""
    order = EpochOrder(1000, 10, shuffle=True, seed=3).epoch(2)
    keys = Draws(3, 2, np.arange(1000)).integers(Stream.ORDER)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))
    assert stretch_of(order[10:20])[0] is order


@pytest.mark.parametrize("batch_size", [2, 3, 5])
@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_no_rank_evaluates_an_empty_batch_where_samples_suffice(
    batch_size: int, world: int
) -> None:
    for length in range(world * batch_size + 1, 4 * world * batch_size):
        orders = [
            EpochOrder(
                length, batch_size, Shard(rank, world), tail="filled", interleaved=bool(length % 2)
            )
            for rank in range(world)
        ]
        assert len({order.steps for order in orders}) == 1
        batches = [order.batch(step) for order in orders for step in range(order.steps)]
        assert sorted(np.concatenate(batches).tolist()) == list(range(length)), "each sample once"
        assert all(0 < len(batch) <= batch_size for batch in batches)


def test_who_found_its_rank_by_itself_evaluates_no_empty_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    sizes = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with fastload.create_loader(torch.arange(17), 4) as loader:
            sizes.append([len(batch[0]) for batch in loader])
            state = loader.state_dict()
    assert sizes == [[4, 3, 1], [4, 4, 1]]
    monkeypatch.delenv("RANK")
    with (
        fastload.create_loader(torch.arange(17), 8) as loader,
        pytest.raises(StateMismatchError, match="lent"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("tail", ["exact", "filled", "pad", "drop"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_table_of_tails(
    world: int, batch_size: int, tail: Tail, shuffle: bool, drop_last: bool
) -> None:
    """Of docs/guarantees.md, "What each rank gets"."""
    for length in range(1, 2 * world * batch_size + 6):  # two steps of all ranks and more
        ranks = [
            EpochOrder(length, batch_size, Shard(rank, world), shuffle, drop_last, tail=tail)
            for rank in range(world)
        ]
        assert len({order.steps for order in ranks}) == 1
        if not ranks[0].steps:
            assert drop_last or tail == "drop"
            continue
        batches = [all_batches(order) for order in ranks]
        order = ranks[0].epoch(0)
        seen = np.bincount(
            [i for rank in batches for batch in rank for i in batch], minlength=length
        )
        last = [len(rank[-1]) for rank in batches]
        own = [sum(map(len, rank)) for rank in batches]
        assert [one.own_samples for one in ranks] == own, "what len(loader.sampler) says"
        assert all(len(batch) == batch_size for rank in batches for batch in rank[:-2])
        if drop_last:
            assert set(last) == {batch_size}
            if tail == "pad":
                padded = np.resize(order, -(-length // world) * world)
                kept = padded[: len(padded) // (world * batch_size) * world * batch_size]
                assert seen.tolist() == np.bincount(kept, minlength=length).tolist()
            else:
                usable = length // world * world if tail == "drop" else length
                left_out = order[usable - usable % (world * batch_size) :]
                assert set(np.flatnonzero(seen == 0)) >= set(left_out.tolist())
                assert seen.max() == 1
                assert seen.sum() == usable - usable % (world * batch_size)
        elif tail == "pad":
            assert seen.min() >= 1
            assert seen.sum() == -(-length // world) * world
            assert min(last) >= 1
        elif tail == "drop":
            assert seen.max() == 1
            assert seen.sum() == length // world * world
            assert min(last) >= 1
        elif shuffle:
            assert seen.min() >= 1
            left = length % (world * batch_size)
            assert seen.sum() - length == (world - left if 0 < left < world else 0) <= world - 1
            assert min(last) >= 1
        else:
            assert set(seen) == {1}
            if tail == "filled" and batch_size > 1 and ranks[0].steps > 1:
                assert min(last) >= 1
            else:
                left = length - (ranks[0].steps - 1) * world * batch_size
                ends = [left * rank // world for rank in range(world + 1)]
                assert last == np.diff(ends).tolist(), "nothing is moved to the last batch"


def test_a_batch_beyond_the_end_of_an_epoch_is_empty() -> None:
    for rank in range(2):
        assert not len(EpochOrder(8, 2, Shard(rank, 2), shuffle=True).batch(2))


def test_what_a_state_must_agree_on() -> None:
    """Of the tail only what makes other batches. States saved by earlier versions have no more."""
    always = {"length", "global_batch_size", "shuffle", "drop_last", "seed"}
    of = {
        (length, tail): EpochOrder(length, 4, Shard(0, 2), tail=tail).reproducible()
        for length in (16, 17)
        for tail in ("exact", "filled", "pad", "drop")
    }
    for (length, tail), found in of.items():
        assert set(found) - {"lent", "tail"} == always
        assert (found["length"], found["global_batch_size"]) == (length, 8)
        assert found.get("lent") == (1 if (length, tail) == (17, "filled") else None)
        assert found.get("tail") == (tail if tail in ("pad", "drop") else None)


def test_37_samples_on_8_ranks() -> None:
    """The example of docs/guarantees.md."""
    ranks = [all_batches(EpochOrder(37, 4, Shard(rank, 8), shuffle=True)) for rank in range(8)]
    seen = np.bincount([i for rank in ranks for batch in rank for i in batch])
    assert [len(rank[-1]) for rank in ranks] == [1] * 8
    assert sorted(seen.tolist(), reverse=True)[:3] == [3, 2, 1]
    assert seen.sum() == 40
