"""Samples drawn by weights, which change while a loader is iterated."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.sampler import EpochOrder, Shard
from fastload.sampler.weighted import SampleWeights, WeightedOrder, WeightedShuffle


def order_of(
    weights: Any, count: int = 100, batch_size: int = 10, shard: Shard | None = None, seed: int = 3
) -> WeightedOrder:
    plain = EpochOrder(count, batch_size, shard or Shard(), seed=seed)
    return WeightedShuffle(weights).applied_to(plain)


def loader_of(weights: Any = None, count: int = 64, batch_size: int = 8, **options: Any) -> Any:
    data = {"number": np.arange(count, dtype=np.int64)}
    order = WeightedShuffle(weights)
    return fastload.create_loader(data, batch_size, order=order, seed=7, **options)


def numbers(batches: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in batches]


# -- How often -------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, np.ones(100), np.full(100, 0.3)])
@pytest.mark.parametrize("count", [1, 100, 5000])
def test_of_equal_weights_each_sample_comes_once(weights: Any, count: int) -> None:
    given = None if weights is None else np.full(count, weights[0])
    samples = np.asarray(order_of(given, count).epoch(2))
    assert sorted(samples.tolist()) == list(range(count))
    assert count == 1 or samples.tolist() != sorted(samples.tolist())
    assert count == 1 or not np.array_equal(samples, np.asarray(order_of(given, count).epoch(3)))


def test_a_sample_comes_its_expected_number_of_times_to_within_two() -> None:
    rng = np.random.default_rng(0)
    weights = rng.gamma(0.5, size=3000).astype(np.float32)
    weights[::7] = 0
    counts = np.bincount(np.asarray(order_of(weights, 3000).epoch(0)), minlength=3000)
    expected = 3000 * weights.astype(np.float64) / weights.sum(dtype=np.float64)
    assert (counts[weights == 0] == 0).all()
    # As many parts as lie whole in its stretch, and at most one at each of its ends.
    assert (np.abs(counts - expected) < 2).all()


@pytest.mark.whole
def test_over_1000_epochs_samples_come_by_their_weights() -> None:
    from scipy import stats

    weights = np.array([1, 2, 3, 0.5, 0, 4, 0.25, 1.25] * 4)
    order = order_of(weights, 32)
    epochs = np.stack([np.asarray(order.epoch(epoch)) for epoch in range(1000)])
    expected = 32_000 * weights / weights.sum()
    counts = np.bincount(epochs.reshape(-1), minlength=32)
    drawn = weights > 0
    assert stats.chisquare(counts[drawn], expected[drawn]).pvalue > 1e-3
    assert counts[~drawn].sum() == 0
    for place in (0, 15, 31):
        here = np.bincount(epochs[:, place], minlength=32)[drawn]
        assert stats.chisquare(here, expected[drawn] / 32).pvalue > 1e-3, place


def test_a_sample_that_comes_again_has_other_draws() -> None:
    weights = np.array([50.0, 0.01, 20, 30])
    order = order_of(weights, 4, 2)
    order.change(order.sample_weights([1000.0, 1, 1, 1]), (0, 1))
    whole = order.epoch(0)
    repeats = order.repeats(whole)
    pairs = set(zip(np.asarray(whole).tolist(), np.asarray(repeats).tolist(), strict=True))
    assert len(pairs) == 4
    many = order_of(np.array([1e6, *[1] * 999]), 1000)
    repeats = many.repeats(many.epoch(0))
    samples = np.asarray(many.epoch(0))
    assert len(set(zip(samples.tolist(), np.asarray(repeats).tolist(), strict=True))) == 1000


@pytest.mark.parametrize("seed", range(8))
def test_draws_before_and_after_a_change_differ(seed: int) -> None:
    order = order_of(None, 8, 2, seed=seed)
    first = int(order.epoch(0)[0])
    order.change(order.sample_weights(only(first, count=8)), (0, 1))
    whole = order.epoch(0)
    repeats: Any = order.repeats(whole)
    pairs = zip(np.asarray(whole).tolist(), np.asarray(repeats).tolist(), strict=True)
    assert len(set(pairs)) == 8


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_same_global_batches(world: int) -> None:
    weights = np.arange(100)
    one = order_of(weights, batch_size=8)
    ranks = [order_of(weights, batch_size=8 // world, shard=Shard(r, world)) for r in range(world)]
    for step in range(one.steps):
        whole = one.draws(1, step, one.epoch(1), one.repeats(one.epoch(1)))
        parts = [r.draws(1, step, r.epoch(1), r.repeats(r.epoch(1))) for r in ranks]
        joined = np.concatenate([part.indices for part in parts])
        assert joined.tolist() == whole.indices.tolist()
        assert np.concatenate([p.repeats for p in parts]).tolist() == whole.repeats.tolist()  # type: ignore[union-attr]


# -- Weights that are set --------------------------------------------------------------------------


def only(*samples: int, count: int = 64) -> np.ndarray:
    weights = np.zeros(count)
    weights[list(samples)] = 1
    return weights


def test_weights_hold_from_the_next_batch_on_though_more_were_made_ahead() -> None:
    with loader_of() as plain:
        before = numbers(plain)
    with loader_of() as loader:
        iterator = iter(loader)
        first = numbers(next(iterator) for _ in range(3))
        loader.set_weights(only(5, 9))
        rest = numbers(iterator)
        assert first == before[:3]
        assert len(rest) == 5
        assert {n for batch in rest for n in batch} == {5, 9}
        assert {n for batch in numbers(loader) for n in batch} == {5, 9}
        assert "the heaviest comes 32 times an epoch" in loader.explain()
        assert "62 samples of weight 0 never" in loader.explain()


def test_weights_from_a_later_step_and_from_the_next_epoch_on() -> None:
    with loader_of() as plain:
        before = numbers(plain)
    with loader_of() as loader:
        iterator = iter(loader)
        next(iterator)
        loader.set_weights(torch.from_numpy(only(1)), from_step=4)
        loader.set_weights(only(2), from_step=8)
        rest = numbers(iterator)
        assert rest[:3] == before[1:4]
        assert {n for batch in rest[3:] for n in batch} == {1}
        assert {n for batch in numbers(loader) for n in batch} == {2}
        loader.set_weights(only(3))  # before an epoch
        assert {n for batch in numbers(loader) for n in batch} == {3}


def test_weights_hold_for_the_epoch_under_way_and_for_the_one_that_is_chosen() -> None:
    for chosen in (0, 5):
        with loader_of() as loader:
            iterator = iter(loader)
            next(iterator)
            loader.set_epoch(chosen)
            loader.set_weights(only(1))
            assert set(next(iterator)["number"].tolist()) == {1}
            assert {n for batch in numbers(loader) for n in batch} == {1}


def test_weights_that_are_set_replace_those_of_later_steps() -> None:
    with loader_of() as loader:
        iterator = iter(loader)
        next(iterator)
        loader.set_weights(only(1), from_step=6)
        loader.set_weights(only(2), from_step=3)
        assert {n for batch in numbers(iterator)[2:] for n in batch} == {2}


@pytest.mark.parametrize("taken", [2, 3, 5, 8])
def test_a_state_has_the_weights(taken: int) -> None:
    """Also those that hold from a later step on; at another number of ranks."""
    rng = np.random.default_rng(1)
    one, other = rng.random(64), rng.random(64)
    with loader_of(one) as loader:
        iterator = iter(loader)
        for step in range(taken):
            next(iterator)
            if step == 1:
                loader.set_weights(other, from_step=4)
        state = json.loads(json.dumps(loader.state_dict()))  # plain values
        rest = numbers(iterator)
        again = numbers(loader)
    halves = [loader_of(batch_size=4, shard=Shard(rank, 2)) for rank in range(2)]
    for half in halves:
        half.load_state_dict(state)
    parts = [[numbers(half), numbers(half)] for half in halves]
    for whole, *both in zip([rest, again], *parts, strict=True):
        assert whole == [a + b for a, b in zip(*both, strict=True)]
    for half in halves:
        half.close()


def test_a_sample_seen_again_after_a_change_has_another_crop() -> None:
    images = {"image": np.random.default_rng(0).integers(0, 255, (8, 40, 40, 3), dtype=np.uint8)}
    transform = v2.RandomResizedCrop(16)
    with fastload.create_loader(
        images, 4, order=WeightedShuffle(only(0, count=8)), transform=transform
    ) as loader:
        iterator = iter(loader)
        first = next(iterator)["image"]
        loader.set_weights(only(0, count=8) * 2)
        crops = torch.cat([first, next(iterator)["image"]]).flatten(1)
    assert len(crops.unique(dim=0)) == 8


def test_weights_within_sizes_by_the_order() -> None:
    images = {"image": np.zeros((16, 40, 40, 3), dtype=np.uint8), "number": np.arange(16)}
    order = fastload.MultiScale(WeightedShuffle(), sizes=[16, 24])
    with fastload.create_loader(
        images, 4, order=order, transform=v2.RandomResizedCrop(16)
    ) as loader:
        loader.set_weights(only(3, count=16))
        assert {n for batch in numbers(loader) for n in batch} == {3}


def test_weights_hold_for_all_sizes_of_batches() -> None:
    def loader() -> Any:
        order = fastload.BatchSize(WeightedShuffle(), sizes={0: 8, 1: 4})
        return fastload.create_loader({"number": np.arange(16)}, order=order)

    with loader() as one, loader() as same:
        iterator = iter(one)
        next(iterator)
        one.set_weights(only(3, count=16))
        same.load_state_dict(one.state_dict())
        assert numbers(iterator) == numbers(same) == [[3] * 8]
        assert numbers(one) == numbers(same) == [[3] * 4] * 4


# -- Bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"a number for each of 64 samples, got a ndarray of shape \(3,\)"),
        (np.ones((64, 1)), r"of shape \(64, 1\)"),
        ([*[1.0] * 63, -1.0], "that of sample 63 is -1.0"),
        ([float("nan"), *[1.0] * 63], "that of sample 0 is nan"),
        (np.full(64, 1e300), "sample 0 is 1e\\+300"),
        (np.zeros(64), "all are 0"),
        (None, "got a NoneType"),
        (torch.full((64,), -1.0, dtype=torch.bfloat16), "that of sample 0 is -1.0"),
        ("abc", "got a str"),
        ([["a"]] * 64, "a number for each"),
    ],
)
def test_bad_weights_change_nothing(weights: Any, message: str) -> None:
    with loader_of() as loader:
        with pytest.raises(ConfigurationError, match=f"weights: .*{message}"):
            loader.set_weights(weights)
        assert sorted(n for batch in numbers(loader) for n in batch) == list(range(64))


@pytest.mark.parametrize("step", [-1, 1, 9, 2.5, "3"])
def test_a_step_that_is_past_or_beyond_is_refused(step: Any) -> None:
    with loader_of() as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        with pytest.raises(ConfigurationError, match="from_step: must be"):
            loader.set_weights(np.ones(64), from_step=step)


def test_what_has_no_weights_of_samples_is_refused() -> None:
    data = {"number": np.arange(8)}
    with (
        fastload.create_loader(data, 2, shuffle=True) as loader,
        pytest.raises(ConfigurationError, match=r"order=fastload.WeightedShuffle\(\)"),
    ):
        loader.set_weights(np.ones(8))
    mixed = fastload.mix({"a": data}, weights=[1])
    with pytest.raises(ConfigurationError, match=r"leave those of mix out"):
        fastload.create_loader(mixed, 2, order=WeightedShuffle())
    with pytest.raises(ConfigurationError, match="inside Buckets"):
        order_of(None).in_groups(np.zeros(100, dtype=np.uint16), 1)


@pytest.mark.parametrize(
    "carried",
    [None, "", "3", "[[0, 0]]", '[[0, 0, 0, "abc"]]', "[[0, 0, 0, 7]]", '[[-1, 0, 0, ""]]'],
)
def test_a_damaged_state_is_refused(carried: Any) -> None:
    with pytest.raises(StateMismatchError, match="which weights the samples had"):
        order_of(None).go_on(carried, (0, 0), changed=False)


def test_a_state_of_other_samples_is_refused() -> None:
    text = order_of(np.ones(100)).carried(0, 0)
    with pytest.raises(StateMismatchError, match="another number of samples"):
        order_of(None, 99).go_on(text, (0, 0), changed=False)
    bomb = SampleWeights.of(np.ones(10_000), 10_000).text
    with pytest.raises(ValueError, match="another number of samples"):
        SampleWeights.from_text(bomb, 100)


# -- Several ranks ---------------------------------------------------------------------------------


def _on_a_rank(rank: int, store: str, results: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    said: list[Any] = []
    with loader_of(batch_size=4) as loader:
        iterator = iter(loader)
        next(iterator)
        for weights, options in (
            (only(rank), {}),
            (only(3), {"from_step": 2 + rank}),
            (only(3) if rank else np.zeros(64), {}),
        ):
            try:
                loader.set_weights(weights, **options)
                said.append("set")
            except ConfigurationError as error:
                said.append(str(error))
        loader.set_weights(only(4, 5))
        said.append(sorted({n for batch in numbers(iterator) for n in batch}))
    results.put((rank, said))
    dist.destroy_process_group()


@pytest.mark.whole
def test_ranks_with_other_weights_or_steps_raise_all_and_go_on(tmp_path: Any) -> None:
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    processes = [
        context.Process(target=_on_a_rank, args=(rank, str(tmp_path / "store"), results))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    said = dict(results.get() for _ in processes)
    for process in processes:
        process.join(60)
    for rank in range(2):
        first, second, third, seen = said[rank]
        assert f"rank {1 - rank} says" in first
        assert "'step': 3" in second
        assert "'step': 2" in second
        assert "all are 0" in third
        assert set(seen) <= {4, 5}
