"""Equal work for every rank: the same global batches, dealt by cost; costs; what the loss is
multiplied by."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload.errors import ConfigurationError
from fastload.sampler import BlockShuffle, EpochOrder, NodePlacement, Shard, Shuffle
from fastload.sampler.balanced import Balanced, dealt
from fastload.sampler.buckets import Buckets
from fastload.sampler.budgets import Budget
from fastload.sampler.scales import BatchSize, MultiScale, Progressive
from tests import images

COSTS = np.random.default_rng(0).lognormal(5, 1, 200).astype(np.int64)
SIZES = np.random.default_rng(1).integers(20, 60, (200, 2))


def order_of(ordering: Any, batch_size: int = 1, *, count: int = 200, **given: Any) -> Any:
    shard, drop_last = given.get("shard", Shard()), given.get("drop_last", False)
    order = EpochOrder(count, batch_size, shard, drop_last=drop_last, seed=3)
    known = ordering.knowing(lambda: SIZES[:count], lambda name: COSTS[:count])
    return known.applied_to(order)


def draws_of(order: Any, epoch: int = 1) -> list[Any]:
    indices = order.epoch(epoch)
    steps = range(order.steps_in(epoch))
    return [order.draws(epoch, step, indices, order.repeats(indices)) for step in steps]


# -- Dealing ---------------------------------------------------------------------------------------


def largest_over_mean(costs: np.ndarray, ranks: np.ndarray, world: int) -> float:
    loads = np.bincount(ranks, costs, world)
    return float(loads.max() / loads.mean())


@pytest.mark.parametrize("world", [8, 64])
@pytest.mark.parametrize("law", ["pixels", "tokens", "exponential"])
def test_ranks_of_32_samples_have_equal_costs(world: int, law: str) -> None:
    """The bar: at most 1.02, where no sample costs more than the mean of a rank."""
    rng, seen = np.random.default_rng(world), 0
    for _ in range(5):
        drawn: Any = {
            "pixels": lambda n: rng.integers(200, 2000, n) * rng.integers(200, 2000, n),
            "tokens": lambda n: rng.lognormal(5, 1, n),
            "exponential": lambda n: rng.exponential(100, n),
        }[law](world * 32)
        costs = drawn.astype(np.int64) + 1
        if costs.max() * world > costs.sum():
            continue
        seen += 1
        ranks = dealt(costs, world)
        assert (np.bincount(ranks) == 32).all()
        assert largest_over_mean(costs, ranks, world) <= 1.02
        free = dealt(costs, world, 64)
        assert np.bincount(free, minlength=world).min() >= 1
        assert np.bincount(free).max() <= 64
        assert largest_over_mean(costs, free, world) <= 1.02
    assert seen >= 2


def test_few_samples_are_dealt_nearly_as_well_as_can_be() -> None:
    """Beside all ways to deal eight samples to two ranks, four each."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        costs = rng.integers(1, 100, 8)
        halves = itertools.combinations(range(8), 4)
        best = min(
            max(costs[list(half)].sum(), costs.sum() - costs[list(half)].sum()) for half in halves
        )
        loads = np.bincount(dealt(costs, 2), costs, 2)
        assert best <= loads.max() <= best * 1.05


def test_counts_differ_only_where_they_may() -> None:
    costs = np.array([1000, *[1] * 11])
    assert np.bincount(dealt(costs, 3)).tolist() == [4, 4, 4]
    assert sorted(np.bincount(dealt(costs, 3, 8)).tolist()) == [1, 5, 6]
    assert sorted(np.bincount(dealt(costs[:11], 3)).tolist()) == [3, 4, 4]
    assert np.bincount(dealt(np.zeros(6, np.int64), 3, 6)).tolist() == [2, 2, 2]


# -- The order -------------------------------------------------------------------------------------

INNER: dict[str, Any] = {
    "in order": None,
    "shuffled": Shuffle(),
    "buckets": Buckets(Shuffle(), sizes=[(16, 32), (24, 24)]),
    "scales": MultiScale(Shuffle(), sizes=[24, 28]),
    "progressive": Progressive(Shuffle(), sizes={0: 20, 1: 28}),
}


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("at_most", [None, 30])
def test_the_global_batches_stay_what_they_were(
    name: str, drop_last: bool, at_most: int | None
) -> None:
    inner = INNER[name]
    plain = inner or EpochOrder(200, 24, drop_last=drop_last, seed=3)
    if inner is not None:
        plain = order_of(inner, 24, drop_last=drop_last)
    states = [plain.reproducible()]
    for world in (1, 2, 4):
        balanced = Balanced(inner, cost="tokens", at_most=at_most)
        ranks = [
            order_of(balanced, 24 // world, shard=Shard(rank, world), drop_last=drop_last)
            for rank in range(world)
        ]
        states.append(ranks[0].reproducible())
        for *mine, whole in zip(*map(draws_of, ranks), draws_of(plain), strict=True):
            joined = [index for part in mine for index in part.indices.tolist()]
            assert {part.size for part in mine} == {whole.size}
            if len(whole) >= world:
                assert sorted(joined) == sorted(whole.indices.tolist())
                weights = [part.weight for part in mine]
                assert weights == [len(part) * world / len(whole) for part in mine]
            if at_most is None:
                assert max(map(len, mine)) - min(map(len, mine)) <= 1
    assert all(one == states[0] for one in states)


def test_ranks_have_less_to_wait_for() -> None:
    for balanced, most in ((False, None), (True, 1.1)):
        ordering = Balanced(Shuffle(), cost=COSTS) if balanced else Shuffle()
        ranks = [order_of(ordering, 8, shard=Shard(rank, 4)) for rank in range(4)]
        loads = np.array([[COSTS[one.indices].sum() for one in draws_of(rank)] for rank in ranks])
        worst = (loads.max(axis=0) / loads.mean(axis=0))[:-1].max()
        assert worst <= most if most else worst > 1.3


def test_orders_around_it() -> None:
    order = order_of(
        BatchSize(Balanced(Shuffle(), cost="tokens"), sizes={0: 4, 1: 8}), shard=Shard(1, 2)
    )
    alone = order_of(Balanced(Shuffle(), cost="tokens"), 8, shard=Shard(1, 2))
    assert [one.indices.tolist() for one in draws_of(order)] == [
        one.indices.tolist() for one in draws_of(alone)
    ]
    assert list(order.batches(1)) == list(alone.batches(1))
    inside = order_of(
        Balanced(BatchSize(Shuffle(), sizes={0: 4, 1: 8}), cost="tokens"), shard=Shard(1, 2)
    )
    assert list(inside.batches(1)) == list(alone.batches(1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Balanced(Shuffle(), at_most=0), "at_most"),
        (lambda: Balanced("shuffle"), "another order"),
        (lambda: Balanced(NodePlacement()), "part of its own"),
        (lambda: Balanced(MultiScale(NodePlacement(), sizes=[24])), "part of its own"),
        (lambda: Balanced(Balanced()), "one of them is enough"),
        (lambda: Balanced(Budget(total=9)), "equal costs already"),
        (lambda: Buckets(Balanced(), area=4096), "cannot be inside"),
        (lambda: order_of(Balanced(BlockShuffle()), 8), "read by one rank each"),
        (lambda: order_of(Balanced(cost=COSTS, at_most=7), 8), "has 8 samples on average"),
        (lambda: order_of(Balanced(cost=COSTS[:9]), 8), r"200 samples.*shape \(9,\)"),
        (lambda: order_of(Balanced(cost=-COSTS), 8), "from 0 to"),
        (lambda: order_of(Balanced(cost=COSTS * np.nan), 8), "gives nan for sample 0"),
        (lambda: order_of(Balanced(cost=COSTS * 0), 8), "are 0"),
        (lambda: order_of(Balanced(cost=["a"] * 200), 8), "must be a number"),
        (lambda: order_of(Balanced(cost=lambda indices: 5), 8), r"shape \(\)"),
    ],
)
def test_orders_that_there_cannot_be(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_costs_that_are_no_whole_numbers() -> None:
    fractions = COSTS / 7
    one = order_of(Balanced(Shuffle(), cost=fractions), 8, shard=Shard(1, 4))
    other = order_of(Balanced(Shuffle(), cost=lambda rows: COSTS[rows]), 8, shard=Shard(1, 4))
    loads = [[COSTS[part.indices].sum() for part in draws_of(order)] for order in (one, other)]
    assert loads[0] == pytest.approx(loads[1], rel=0.05)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world", [1, 3, 40])
def test_weighted_means_of_ranks_have_the_mean_of_the_global_batch(
    world: int, shuffle: bool, balanced: bool
) -> None:
    """Of 7 samples, too, that are to be shared by 40 ranks."""
    values = np.random.default_rng(1).random(127)
    ranks: list[Any] = [
        EpochOrder(127, 1 + 119 // world, Shard(rank, world), shuffle=shuffle, seed=3)
        for rank in range(world)
    ]
    if balanced:
        ranks = [Balanced(cost=values).applied_to(rank) for rank in ranks]
    for mine in zip(*map(draws_of, ranks), strict=True):
        whole = np.unique(np.concatenate([part.indices for part in mine]))
        assert all((part.weight == 0) == (len(part) == 0) for part in mine)
        means = [part.weight * values[part.indices].mean() for part in mine if len(part)]
        assert sum(means) / world == pytest.approx(values[whole].mean())


# -- The loader ------------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_gradient_stays_what_it_was() -> None:
    """That of a mean over the global batch, beside the mean over ranks of weighted means."""
    lengths = np.random.default_rng(2).integers(1, 60, 50)
    data: Any = {
        "x": np.random.default_rng(3).normal(size=(50, 4)),
        "tokens": fastload.Ragged.of([np.zeros(n, np.int64) for n in lengths]),
    }
    model = torch.nn.Linear(4, 1, dtype=torch.float64)

    def gradients(ranks: list[fastload.Loader]) -> list[torch.Tensor]:
        made, batches = [], [iter(rank) for rank in ranks]
        for parts in zip(*batches, strict=True):
            model.zero_grad()
            for loader, part in zip(ranks, parts, strict=True):
                loss = (model(part["x"]) ** 2).mean() * loader.loss_weight / len(ranks)
                loss.backward()
            assert model.weight.grad is not None
            made.append(model.weight.grad.clone())
        return made

    def loaders(world: int, size: int, order: Any) -> list[fastload.Loader]:
        return [
            fastload.create_loader(data, size, order=order, shard=Shard(rank, world), seed=7)
            for rank in range(world)
        ]

    wanted = gradients(loaders(1, 16, Shuffle()))
    for at_most in (None, 8):
        order = Balanced(Shuffle(), cost="tokens", at_most=at_most)
        ranks = loaders(4, 4, order)
        for mine, theirs in zip(gradients(ranks), wanted, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-12)
        assert "dealt to ranks by cost: the largest over the mean is" in ranks[0].explain()
    state = ranks[0].state_dict()
    (one,) = loaders(1, 16, Shuffle())
    one.load_state_dict(json.loads(json.dumps(state)))
    with pytest.raises(ConfigurationError, match=r"no column 'labels'.*: x, tokens"):
        loaders(2, 4, Balanced(cost="labels"))
    with pytest.raises(ConfigurationError, match="no column 'x'"):
        loaders(2, 4, Balanced(cost="x"))
    with pytest.raises(ConfigurationError, match="sizes of images"):
        loaders(2, 4, Balanced())


def test_the_cost_of_an_image_is_its_pixels(tmp_path: Path) -> None:
    (tmp_path / "class_0").mkdir()
    sides = [16, 64, 16, 64, 48, 16, 48, 16]
    for number, side in enumerate(sides):
        data = images.jpeg(images.photo(side, 32, seed=number))
        (tmp_path / "class_0" / f"{number}.jpg").write_bytes(data)
    for rank in range(2):
        loader = fastload.create_loader(
            tmp_path, 4, order=Balanced(), shard=Shard(rank, 2), transform=None
        )
        with loader:
            (batch,) = loader.batch_sampler
            assert sum(sides[index] for index in batch) == sum(sides) / 2
