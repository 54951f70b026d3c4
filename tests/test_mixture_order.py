"""The order of a mixture: how many samples of each component come, and where; each component's
passes; ranks, and states."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest

from fastload.draws import Draws
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.sampler import BlockShuffle, EpochOrder, NodePlacement, Shard, Shuffle
from fastload.sampler.merging import Merge
from fastload.sampler.mixture import Mixture, MixtureOrder
from fastload.sampler.packed import Packed
from fastload.sampler.scales import BatchSize
from fastload.sampler.weights import Pieces, Weights, WeightSchedule, apportioned

SIZES = (1000, 50, 300, 7)
WEIGHTS = (3.0, 1.0, 2.5, 0.1)


def order_of(
    sizes: Any = SIZES,
    weights: Any = WEIGHTS,
    batch_size: int = 16,
    *,
    until: Any = 5000,
    homogeneous: bool = False,
    shuffle: bool = True,
    shard: Shard | None = None,
    drop_last: bool = False,
    seed: int = 5,
    names: str = "abcdefghij",
    goes_on: bool = False,
) -> MixtureOrder:
    chosen = list(names[: len(sizes)])
    mixture = Mixture(
        tuple(chosen),
        tuple(sizes),
        Weights.of(weights, chosen, sizes),
        until,
        homogeneous,
        tuple(f"content of {name}" for name in chosen),
        goes_on,
    )
    plain = EpochOrder(sum(sizes), batch_size, shard or Shard(), seed=seed, drop_last=drop_last)
    return replace(mixture.order(plain), shuffle=shuffle)


def components(order: MixtureOrder, samples: Any) -> np.ndarray:
    return np.searchsorted(np.cumsum(order.mixture.sizes), np.asarray(samples), "right")


def served(order: MixtureOrder, epoch: int = 0) -> list[list[int]]:
    """The batches of an epoch as a backend is asked for them."""
    whole = order.epoch(epoch)
    repeats = order.repeats(whole)
    draws = [order.draws(epoch, step, whole, repeats) for step in range(order.steps)]
    assert all(type(one) is Draws and one.indices.dtype == np.int64 for one in draws)
    return [one.indices.tolist() for one in draws]


# -- How many, and where ---------------------------------------------------------------------------


@pytest.mark.parametrize("until", [1, 40, 5000, 5001])
def test_an_epoch_has_of_each_its_share_to_within_one(until: int) -> None:
    order = order_of(until=until)
    counts = np.bincount(components(order, order.epoch(3)), minlength=4)
    shares = np.array(WEIGHTS) / sum(WEIGHTS)
    assert counts.sum() == until
    assert (np.abs(counts - shares * until) < 1).all()


def test_at_every_place_each_is_near_its_share() -> None:
    order = order_of()
    here = components(order, order.epoch(0))
    places = np.arange(1, len(here) + 1)
    for number, weight in enumerate(WEIGHTS):
        share = weight / sum(WEIGHTS)
        away = np.abs(np.cumsum(here == number) - share * places)
        assert away.max() < 2 + share * len(WEIGHTS)


def test_each_pass_has_every_sample_once_across_epochs() -> None:
    order = order_of()
    samples = np.concatenate([np.asarray(order.epoch(epoch)) for epoch in range(3)])
    here, start = components(order, samples), 0
    for number, size in enumerate(SIZES):
        mine = samples[here == number] - start
        passes = [mine[at : at + size].tolist() for at in range(0, len(mine) - size + 1, size)]
        assert len(passes) > 2 or size == 1000
        assert all(sorted(each) == list(range(size)) for each in passes)
        assert len(set(map(tuple, passes))) == len(passes)  # in an order of its own
        assert size < 50 or passes[0] != sorted(passes[0])
        start += size


def test_components_of_equal_size_have_orders_of_their_own() -> None:
    order = order_of((50, 50), (1, 1), until=100)
    samples = np.asarray(order.epoch(0))
    first, second = samples[samples < 50], samples[samples >= 50] - 50
    assert first.tolist() != second.tolist()
    assert (components(order, samples)[::2] != components(order, samples)[1::2]).mean() < 0.9


def test_items_that_are_due_at_the_same_time() -> None:
    pieces = Pieces(np.array([0.0, 15.0]), np.full((1, 3), 1 / 3))
    merge = Merge(np.array([5, 5, 5]), [7, 7, 7], 0, pieces)  # equal seeds
    component, ordinal = merge.at(np.arange(15))
    assert component.tolist() == [0, 1, 2] * 5
    assert np.array_equal(merge.place_of(component, ordinal), np.arange(15))


def test_unshuffled_components_come_in_their_own_order() -> None:
    order = order_of((5, 4), (1, 2), until=18, shuffle=False)
    samples = np.asarray(order.epoch(0))
    assert samples[samples < 5].tolist() == [0, 1, 2, 3, 4, 0]
    assert samples[samples >= 5].tolist() == [5, 6, 7, 8] * 3


def test_the_end_of_an_epoch() -> None:
    # Of 10 and 40 samples at 1:1 the first has gone through once when 20 have come.
    assert order_of((10, 40), (1, 1), until="first_exhausted").samples == 20
    assert order_of((10, 40), (1, 1), until="all_exhausted").samples == 80
    assert order_of((10, 40), (1, 2), until="first_exhausted").samples == 30
    assert order_of((10, 40), (1, 0), until="all_exhausted").samples == 10
    # 1/3 is no number of two digits: 10 of 30, exactly.
    thirds = order_of((10, 10, 10), (0.1, 0.1, 0.1), until="first_exhausted")
    assert thirds.samples == 30
    assert thirds.counts(0).tolist() == [10, 10, 10]
    # What would be left out of every epoch is not part of it.
    assert order_of((10, 40), (1, 1), until=50, drop_last=True).samples == 48


def test_counts_follow_the_method_of_largest_remainders() -> None:
    assert apportioned([Fraction(47, 100), Fraction(16, 100), Fraction(37, 100)], 10).tolist() == [
        5,
        1,
        4,
    ]
    assert apportioned([1.0, 1.0, 1.0], 2).tolist() == [1, 1, 0]


@pytest.mark.parametrize("names", ["abcd", "dcba"])
def test_what_is_at_a_place_and_where_it_is(names: str) -> None:
    merge = order_of(names=names).merge(2)
    places = np.arange(merge.length)
    component, ordinal = merge.at(places)
    assert np.array_equal(merge.place_of(component, ordinal), places)
    for place in (0, 1, 777, 4999, 5000):
        expected = np.bincount(component[:place], minlength=4)
        assert np.array_equal(merge.counts_before(place), expected)


def test_parts_of_an_epoch_are_those_of_the_whole() -> None:
    order = order_of(until=30_000)  # several stretches
    whole = np.asarray(order.epoch(1))
    again = order.epoch(1)
    rows = np.random.default_rng(0).integers(0, 30_000, 500)
    assert np.array_equal(again[rows], whole[rows])
    assert np.array_equal(order.epoch(1)[8190:8200], whole[8190:8200])
    assert not np.array_equal(np.asarray(order.epoch(0)), whole)
    assert not np.array_equal(np.asarray(order_of(until=30_000, seed=6).epoch(1)), whole)


# -- By chance -------------------------------------------------------------------------------------


def chi_square(observed: Any, expected: Any) -> float:
    """How likely a sum of squares as large is by chance."""
    from scipy import stats

    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.whole
def test_over_1000_epochs_places_are_drawn_by_the_weights() -> None:
    order = order_of((60, 20, 40), (3, 1, 2.5), until=26)
    epochs = [np.asarray(order.epoch(epoch)) for epoch in range(1000)]
    here = components(order, np.stack(epochs))
    shares = np.array([12, 4, 10]) / 26  # what 26 samples have of each
    for place in (0, 1, 13, 25):
        counts = np.bincount(here[:, place], minlength=3)
        # Jittered: nearer to the shares than chance, or as near.
        assert chi_square(counts, shares * 1000) > 1e-3, place
    # Neighbours do not follow a pattern: each pair of components comes.
    pairs = np.bincount((here[:, :-1] * 3 + here[:, 1:]).reshape(-1), minlength=9)
    assert (pairs > 0).all()


@pytest.mark.whole
@pytest.mark.parametrize("size", [2, 3, 30, 1030])
def test_over_many_passes_each_sample_comes_at_each_place(size: int) -> None:
    order = order_of((size,), (1,), until=size)
    passes = np.stack([np.asarray(order.epoch(epoch)) for epoch in range(1000)])
    kinds = np.minimum(passes * 8 // size, 7)  # 8 groups of samples, or fewer
    expected = np.bincount(np.minimum(np.arange(size) * 8 // size, 7), minlength=8) / size
    kept = expected > 0
    chances = []
    for place in range(0, size, max(1, size // 10)):
        counts = np.bincount(kinds[:, place], minlength=8)
        chances.append(chi_square(counts[kept], expected[kept] * 1000))
    assert min(chances) > 1e-3 / len(chances)
    if size == 3:  # each of 6 permutations
        numbers = passes @ np.array([9, 3, 1])
        assert chi_square(np.unique(numbers, return_counts=True)[1], [1000 / 6] * 6) > 1e-3


def test_a_sample_that_comes_again_in_an_epoch_has_other_draws() -> None:
    order = order_of()
    for epoch in range(2):
        whole = order.epoch(epoch)
        repeats = order.repeats(whole)
        assert repeats is not None
        seen = set(zip(np.asarray(whole).tolist(), np.asarray(repeats).tolist(), strict=True))
        assert len(seen) == order.samples
        assert np.asarray(repeats).max() > 3


def test_without_repeats_none_are_said() -> None:
    assert order_of((100, 50), (2, 1), until="first_exhausted").repeats(np.zeros(1)) is None
    assert order_of((100, 50), (2, 1), until=75).repeats(np.zeros(1)) is None  # halves of passes
    assert order_of((100, 50), (2, 1), until=90).repeating  # an end and a beginning


# -- Ranks, orders, batches ------------------------------------------------------------------------


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_the_same_global_batches(homogeneous: bool, drop_last: bool) -> None:
    options: Any = {"homogeneous": homogeneous, "drop_last": drop_last, "until": 999}
    one = served(order_of(batch_size=16, **options), 2)
    for world in (2, 4):
        ranks = [
            served(order_of(batch_size=16 // world, shard=Shard(rank, world), **options), 2)
            for rank in range(world)
        ]
        assert {len(rank) for rank in ranks} == {len(one)}
        joined = [[*chain(*parts)] for parts in zip(*ranks, strict=True)]
        assert joined == one


def test_batches_of_one_component_each() -> None:
    order = order_of(homogeneous=True, until=1600)
    batches = served(order)
    kinds = [set(components(order, batch).tolist()) for batch in batches]
    assert all(len(kind) == 1 for kind in kinds)
    shares = np.array(WEIGHTS) / sum(WEIGHTS)
    counts = np.bincount([kind.pop() for kind in kinds], minlength=4)
    assert (np.abs(counts - 100 * shares) < 1).all()
    assert {len(batch) for batch in batches} == {16}
    assert order.samples == 1600


@pytest.mark.parametrize("window", [16, 64])
def test_blocks_within_components(window: int) -> None:
    order = order_of(until="first_exhausted", sizes=(400, 100), weights=(4, 1))
    blocked = BlockShuffle(8, window).applied_to(order)
    samples = np.asarray(blocked.epoch(0))
    assert sorted(samples.tolist()) == list(range(500))
    # Neighbours are read together: each sample once, in the group of the step that needs it first.
    read: dict[int, int] = {}
    whole = blocked.epoch(0)
    for step in range(blocked.steps):
        batch = set(samples[blocked.batch(step)].tolist())
        for group in blocked.together(0, step, 0, whole):
            assert batch & set(group.tolist())
            assert np.ptp(group) < 8 or np.ptp(group) > 80  # on a circle
            for one in group.tolist():
                assert read.setdefault(one, step) == step
    steps = {one: at // 16 for at, one in enumerate(samples.tolist())}
    assert all(step <= steps[one] for one, step in read.items())
    assert len(read) > 300


def test_an_order_that_has_no_weights_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="NodePlacement"):
        NodePlacement(1).applied_to(order_of())
    interleaved = EpochOrder(1357, 4, interleaved=True)
    with pytest.raises(ConfigurationError, match="DistributedSampler"):
        order_of().mixture.order(interleaved)


def test_an_order_of_100_million_samples_is_no_array() -> None:
    sizes = tuple(10_000_000 for _ in range(10))
    order = order_of(sizes, tuple(range(1, 11)), 256, until=100_000_000)
    tracemalloc.start()
    first = order.draws(7, 0, order.epoch(7), None)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(first) == 256
    assert most < 20e6  # bytes; the bar is 200 MB


# -- Weights that change ---------------------------------------------------------------------------


def test_weights_by_epoch() -> None:
    schedule = WeightSchedule({1: (1, 1), 3: (3, 1)}, by="epoch")
    order = order_of((100, 100), schedule, until=40)
    counts = [np.bincount(components(order, order.epoch(e)), minlength=2) for e in range(5)]
    assert [each.tolist() for each in counts] == [[20, 20]] * 3 + [[30, 10]] * 2
    assert order.taken_before(4).tolist() == [90, 70]
    line = WeightSchedule({0: (1, 0), 4: (0, 1)}, between="linear")
    counts = [order_of((100, 100), line, until=40).counts(e) for e in range(6)]
    assert [each.tolist() for each in counts] == [
        [40, 0],
        [30, 10],
        [20, 20],
        [10, 30],
        [0, 40],
        [0, 40],
    ]
    by_function = order_of((100, 100), lambda epoch: (1 + epoch, 1), until=40)
    assert by_function.counts(2).tolist() == [30, 10]


def test_weights_by_step_change_at_that_step() -> None:
    schedule = WeightSchedule({0: (1, 0), 12: (0, 1), 15: (1, 1)}, by="step")
    order = order_of((1000, 1000), schedule, 20, until=200)  # 10 steps an epoch
    first = components(order, order.epoch(0)).reshape(10, 20)
    second = components(order, order.epoch(1)).reshape(10, 20)
    assert (first == 0).all()
    assert (second[:2] == 0).all()
    assert (second[2:5] == 1).all()
    assert abs(int(second[5:].sum()) - 50) <= 1
    merge = order.merge(1)
    places = np.arange(200)
    assert np.array_equal(merge.place_of(*merge.at(places)), places)


def test_weights_by_step_on_a_line() -> None:
    schedule = WeightSchedule({0: (1, 0), 100: (0, 1)}, by="step", between="linear")
    order = order_of((1000, 1000), schedule, 20, until=2000)
    here = components(order, order.epoch(0)).reshape(10, 200)
    expected = 200 * (np.arange(10) + 0.5) / 10
    assert np.abs(here.sum(axis=1) - expected).max() < 8
    # After the last point, and in an epoch that follows.
    assert (components(order, order.epoch(1)) == 1).all()


def test_temperature_brings_weights_nearer_to_each_other() -> None:
    weights = Weights.of("size", ["a", "b"], [900, 100], 2.0)
    assert weights.at(0) == pytest.approx([0.75, 0.25])
    assert Weights.of("size", ["a", "b"], [900, 100]).at(0) == pytest.approx([0.9, 0.1])
    assert Weights.of("equal", ["a", "b"], [900, 100]).at(0) == pytest.approx([0.5, 0.5])


# -- States ----------------------------------------------------------------------------------------


def test_a_state_says_what_was_taken() -> None:
    order = order_of()
    epoch, step = 1, 37
    said = json.loads(order.carried(epoch, step))
    samples = [*np.asarray(order.epoch(0)), *np.asarray(order.epoch(1))[: 37 * 16]]
    assert list(said["taken"].values()) == np.bincount(components(order, samples)).tolist()
    assert order_of().go_on(order.carried(epoch, step), (epoch, step), changed=False) == (1, 37)


def test_another_mix_goes_on_where_each_component_was_left() -> None:
    old = order_of()
    said = old.carried(0, 100)
    before = np.asarray(old.epoch(0))[: 100 * 16]
    # Other weights, "b" gone, one more, in another order of the components.
    new = order_of((1000, 40, 300, 7), (1, 1, 1, 1), names="axcd", goes_on=True)
    assert new.may_differ
    assert new.go_on(said, (0, 100), changed=True) == (1, 0)
    after = np.asarray(new.epoch(1))
    for size, old_number, new_number in ((1000, 0, 0), (300, 2, 2)):
        took = before[components(old, before) == old_number] - sum(SIZES[:old_number])
        goes = after[components(new, after) == new_number] - sum((1000, 40, 300)[:new_number])
        whole = [*took.tolist(), *goes.tolist()]
        passes = [whole[at : at + size] for at in range(0, len(whole) - size + 1, size)]
        assert passes
        assert all(sorted(each) == list(range(size)) for each in passes)
    # A state of the changed mix says from where it was counted.
    again = order_of((1000, 40, 300, 7), (1, 1, 1, 1), names="axcd", goes_on=True)
    assert again.go_on(new.carried(2, 5), (2, 5), changed=False) == (2, 5)
    assert np.array_equal(np.asarray(again.epoch(2)), np.asarray(new.epoch(2)))


def test_epochs_that_were_cut_before_a_state_is_loaded_are_cut_again() -> None:
    costs = np.random.default_rng(0).integers(1, 20, 140)

    def made(*weights: float) -> Any:
        mixed = order_of((100, 40), weights, 1, until=64, goes_on=True)
        rows = BatchSize(Packed(Shuffle(), length=32), sizes={0: 8, 3: 4})
        return rows.knowing(lambda: costs, lambda name: costs).applied_to(mixed)

    said, new, fresh = made(1, 1).carried(2, 0), made(1, 3), made(1, 3)
    before = {epoch: np.asarray(new.epoch(epoch)) for epoch in (2, 4)}
    for order in (new, fresh):
        assert order.go_on(said, (2, 0), changed=True) == (2, 0)
    for epoch, was in before.items():
        assert np.array_equal(new.epoch(epoch), fresh.epoch(epoch))
        assert not np.array_equal(new.epoch(epoch), was)


@pytest.mark.parametrize(
    "carried",
    [
        "",
        "{}",
        "[1]",
        None,
        7,
        '{"began": -1, "before": {}, "taken": {}, "of": {}, "at": [0, 0]}',
        '{"began": 0, "before": {"a": -1}, "taken": {}, "of": {}, "at": [0, 0]}',
        '{"began": 0, "before": {}, "taken": {"a": 1.5}, "of": {}, "at": [0, 0]}',
        '{"began": 0, "before": {}, "taken": {}, "of": {}, "at": [0, -1]}',
        '{"began": 0, "before": {}, "taken": {}, "of": {}, "at": [2, 0]}',
    ],
)
def test_a_damaged_state_is_refused(carried: Any) -> None:
    with pytest.raises(StateMismatchError, match="how far the sources"):
        order_of().go_on(carried, (0, 0), changed=False)


def test_a_function_that_gives_other_weights_than_before_is_refused() -> None:
    first = order_of((100, 100), lambda epoch: (1 + epoch, 1), until=40)
    other = order_of((100, 100), lambda epoch: (1, 1 + epoch), until=40)
    before = np.asarray(other.epoch(3))
    with pytest.raises(StateMismatchError, match="function of the epoch"):
        other.go_on(first.carried(2, 1), (2, 1), changed=False)
    assert np.array_equal(np.asarray(other.epoch(3)), before)  # nothing has changed


# -- Bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1, -1), "'b' must be a number of at least 0, got -1"),
        ((1, float("nan")), "'b' must be a number of at least 0, got nan"),
        ((float("inf"), 1), "'a' must be a number of at least 0, got inf"),
        ((0, 0), "all are 0"),
        ((1, 2, 3), "a number for each of a, b"),
        ((1, "2"), "'b' must be a number"),
        ((1, True), "'b' must be a number"),
        ({"a": 1}, "'b' has none"),
        ({"a": 1, "b": 1, "bb": 1}, "'bb' is no source of the mix.*Did you mean b"),
        (3, "a number for each"),
        ("sizes", "'size', 'equal'"),
        (WeightSchedule({0: (1, 1), 5: (-1, 1)}), r"\(epoch 5\).*'a'"),
    ],
)
def test_bad_weights(weights: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Weights.of(weights, ["a", "b"], [10, 20])


def test_bad_weights_of_a_function_are_refused_when_it_is_asked() -> None:
    order = order_of((10, 10), lambda epoch: (1, epoch - 1), until=10)
    with pytest.raises(ConfigurationError, match=r"epoch 0, by a function\): that of 'b'"):
        order.epoch(0)[:1]


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), "2", True])
def test_bad_temperature(temperature: Any) -> None:
    with pytest.raises(ConfigurationError, match="temperature: must be a number above 0"):
        Weights.of("size", ["a", "b"], [10, 20], temperature)


@pytest.mark.parametrize(
    "arguments",
    [{"points": {}}, {"points": {-1: (1, 1)}}, {"points": {0.5: (1, 1)}}, {"points": [1]}],
)
def test_bad_schedules(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match="a WeightSchedule takes"):
        WeightSchedule(**arguments)
    with pytest.raises(ConfigurationError, match="by of a WeightSchedule must be 'epoch' or"):
        WeightSchedule({0: (1, 1)}, by="batch")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": 10, "homogeneous": True}, "until=10 is less than a global batch of 16"),
        ({"until": 10, "drop_last": True}, "until=10 is less than a global batch of 16"),
        ({"until": "first_exhausted", "homogeneous": True}, "'d' has too few samples"),
    ],
)
def test_an_epoch_without_a_batch_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        order_of(**options)
