"""A size drawn for each batch, a size by the epoch, a number of samples by the epoch: the same on
all ranks, at all numbers of ranks, on each backend, and after a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.sampler import BlockShuffle, EpochOrder, NodePlacement, Ordering, Shard, Shuffle
from fastload.sampler.buckets import Buckets
from fastload.sampler.scales import BatchSize, MultiScale, PhasedOrder, Progressive
from tests import images

SIZES: list[Any] = [24, 28, (24, 32), 20]
TRAIN = v2.Compose([v2.RandomResizedCrop(28), v2.RandomHorizontalFlip(), v2.ToImage()])
PICTURES = np.random.default_rng(0).integers(20, 60, (70, 2))
"""(height, width) of each image."""


def order_of(ordering: Ordering, batch_size: int = 1, *, count: int = 70, **given: Any) -> Any:
    shard, drop_last = given.get("shard", Shard()), given.get("drop_last", False)
    order = EpochOrder(count, batch_size, shard, drop_last=drop_last, seed=given.get("seed", 3))
    return ordering.knowing(lambda: PICTURES[:count]).applied_to(order)


def batches_of(order: Any, epoch: int = 0) -> list[tuple[Any, list[int]]]:
    """(size, samples) of each."""
    indices = order.epoch(epoch)
    steps = range(order.steps_in(epoch))
    draws = [order.draws(epoch, step, indices, order.repeats(indices)) for step in steps]
    return [(one.size, one.indices.tolist()) for one in draws]


# -- A size for each batch -------------------------------------------------------------------------


def test_all_ranks_have_the_size_that_is_drawn_for_the_global_batch() -> None:
    whole = batches_of(order_of(MultiScale(Shuffle(), sizes=SIZES), 8), epoch=2)
    assert sorted(index for _, some in whole for index in some) == list(range(70))
    assert [some for _, some in whole] == [
        some for _, some in batches_of(order_of(Shuffle(), 8), 2)
    ]
    for world in (2, 4):
        ranks = [
            batches_of(
                order_of(MultiScale(Shuffle(), sizes=SIZES), 8 // world, shard=Shard(rank, world)),
                epoch=2,
            )
            for rank in range(world)
        ]
        for parts in zip(*ranks, whole, strict=True):
            *mine, (size, samples) = parts
            assert {one for one, _ in mine} == {size}
            assert sorted(index for _, some in mine for index in some) == sorted(samples)


def test_all_sizes_are_as_likely() -> None:
    order = order_of(MultiScale(sizes=SIZES), 10)
    counts = dict.fromkeys(order.shapes, 0)
    for epoch in range(1000):
        for step in range(order.steps):
            counts[order.size_of(epoch, step)] += 1
    expected = 1000 * order.steps / 4
    # Chi-square of 3 degrees of freedom: above 16.3 in one of 1,000 cases.
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 16.3
    # Two neighbours are as likely to have one size as any two.
    drawn = [order.size_of(0, step) for step in range(2_000)]
    assert sum(one == other for one, other in pairwise(drawn)) == pytest.approx(500, abs=90)


def test_a_size_stays_for_so_many_steps() -> None:
    order = order_of(MultiScale(sizes=SIZES, every=5), 1)
    drawn = [size for size, _ in batches_of(order)]
    runs = [drawn[first : first + 5] for first in range(0, 70, 5)]
    assert all(len(set(run)) == 1 for run in runs)
    assert len({run[0] for run in runs}) > 1


def test_sizes_by_the_epoch() -> None:
    order = order_of(Progressive(Shuffle(), sizes={0: 20, 2: (24, 32), 5: 28}), 8)
    assert order.shapes == ((20, 20), (24, 32), (28, 28))
    made = [{size for size, _ in batches_of(order, epoch)} for epoch in range(7)]
    assert made == [{(20, 20)}] * 2 + [{(24, 32)}] * 3 + [{(28, 28)}] * 2
    plain = order_of(Shuffle(), 8)
    assert [some for _, some in batches_of(order, 5)] == [some for _, some in batches_of(plain, 5)]


def test_buckets_by_the_epoch() -> None:
    small, large = Buckets(sizes=[(16, 32), (24, 24)]), Buckets(area=64 * 64, step=32)
    order = order_of(Progressive(Shuffle(), sizes={0: small, 3: large}), 4)
    alone = order_of(Buckets(Shuffle(), area=64 * 64, step=32), 4)
    assert batches_of(order, 3) == batches_of(alone, 3)
    assert {size for size, _ in batches_of(order, 2)} <= {(16, 32), (24, 24)}
    assert set(order.shapes) == {(16, 32), (24, 24), *alone.shapes}
    beside = Progressive(sizes={0: small, 3: large}).shuffled()
    assert batches_of(order_of(beside, 4), 3) == batches_of(alone, 3)


# -- A number of samples by the epoch --------------------------------------------------------------

INNER: dict[str, tuple[Any, int]] = {
    "in order": (None, 8),
    "shuffled": (Shuffle(), 8),
    "blocks": (BlockShuffle(4), 8),
    "nodes": (NodePlacement(nodes=1), 8),
    "buckets": (Buckets(Shuffle(), sizes=[(16, 32), (24, 24)]), 8),
    "scales": (MultiScale(Shuffle(), sizes=SIZES), 8),
    "progressive": (Progressive(Shuffle(), sizes={0: 20, 2: 28}), 8),
}


@pytest.mark.parametrize("name", INNER)
def test_each_epoch_is_that_of_a_loader_with_its_batch_size(name: str) -> None:
    inner, _ = INNER[name]
    order = order_of(BatchSize(inner, sizes={0: 4, 2: 8, 3: 6}))
    assert order.batch_size == 8
    for epoch, size in enumerate((4, 4, 8, 6)):
        alone = EpochOrder(70, size, seed=3)
        if inner is not None:
            alone = inner.knowing(lambda: PICTURES).applied_to(alone)
        assert order.steps_in(epoch) == alone.steps_in(epoch)
        assert batches_of(order, epoch) == batches_of(alone, epoch)
        assert list(order.batches(epoch)) == [some for _, some in batches_of(alone, epoch)]


@pytest.mark.parametrize("name", [name for name in INNER if name != "nodes"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_the_global_batches_of_each_epoch(name: str, drop_last: bool) -> None:
    inner, _ = INNER[name]
    whole = order_of(BatchSize(inner, sizes={0: 4, 2: 8}), drop_last=drop_last)
    for world in (2, 4):
        sizes = {0: 4 // world, 2: 8 // world}
        ranks = [
            order_of(BatchSize(inner, sizes=sizes), shard=Shard(rank, world), drop_last=drop_last)
            for rank in range(world)
        ]
        assert ranks[0].reproducible() == whole.reproducible()
        for epoch in (1, 2):
            parts = [batches_of(rank, epoch) for rank in ranks]
            for *mine, (size, samples) in zip(*parts, batches_of(whole, epoch), strict=True):
                assert {one for one, _ in mine} == {size}
                assert {index for _, some in mine for index in some} == set(samples)


def test_an_order_of_another_rank() -> None:
    from dataclasses import replace

    order = order_of(BatchSize(MultiScale(Shuffle(), sizes=SIZES), sizes={0: 2}), shard=Shard(0, 2))
    other = order_of(BatchSize(MultiScale(Shuffle(), sizes=SIZES), sizes={0: 2}), shard=Shard(1, 2))
    assert batches_of(replace(order, shard=Shard(1, 2))) == batches_of(other)
    assert batches_of(order) != batches_of(other)


def test_what_must_agree_survives_json() -> None:
    for ordering in (
        BatchSize(Shuffle(), sizes={0: 4, 2: 8}),
        Progressive(sizes={0: 20, 1: Buckets(sizes=[(16, 32), (24, 24)])}),
        MultiScale(sizes=SIZES, every=2),
    ):
        said = order_of(ordering, 4 if not isinstance(ordering, BatchSize) else 1).reproducible()
        assert json.loads(json.dumps(said)) == said
    one, other = (BatchSize(sizes={0: 4, first: 8}) for first in (2, 3))
    assert order_of(one).reproducible() != order_of(other).reproducible()
    one, other = (MultiScale(sizes=SIZES, every=every) for every in (1, 2))
    assert order_of(one).reproducible() != order_of(other).reproducible()


# -- What there cannot be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MultiScale(), "1 to 1,000 sizes, got 0"),
        (lambda: MultiScale(sizes=[24, 0]), "above 0, got 0"),
        (lambda: MultiScale(sizes=[24, (24, 24)]), "twice"),
        (lambda: MultiScale(sizes=[24.0]), "got 24.0"),
        (lambda: MultiScale(sizes=SIZES, every=0), "every"),
        (lambda: MultiScale("shuffle", sizes=SIZES), "another order"),
        (lambda: MultiScale(Buckets(area=4096), sizes=SIZES), "both say"),
        (lambda: MultiScale(MultiScale(sizes=SIZES), sizes=SIZES), "both say"),
        (lambda: MultiScale(BatchSize(sizes={0: 4}), sizes=SIZES), "put it around"),
        (lambda: Progressive(), "0 among them"),
        (lambda: Progressive(sizes={1: 24}), "0 among them"),
        (lambda: Progressive(sizes={0: 24, -1: 28}), "0 among them"),
        (lambda: Progressive(sizes=[24, 28]), "must be a dict"),
        (lambda: Progressive(sizes={0: "24"}), "got '24'"),
        (lambda: Progressive(Buckets(area=4096), sizes={0: 24}), "Buckets for each of its epochs"),
        (lambda: Progressive(Shuffle(), sizes={0: Buckets(Shuffle(), area=4096)}), "both"),
        (
            lambda: order_of(Progressive(sizes={0: 24, 2: Buckets(Shuffle(), area=4096)}), 4),
            "0 and 2 differ",
        ),
        (lambda: BatchSize(sizes={}), "0 among them"),
        (lambda: BatchSize(sizes={0: 4, 3: 0}), "got 0 from epoch 3"),
        (lambda: BatchSize(sizes={0: True}), "got True"),
        (lambda: BatchSize(BatchSize(sizes={0: 4}), sizes={0: 4}), "cannot be inside"),
        (lambda: Buckets(MultiScale(sizes=SIZES), area=4096), "cannot be inside"),
        (lambda: Buckets(BatchSize(sizes={0: 4}), area=4096), "goes around"),
        (lambda: MultiScale(Shuffle(), sizes=SIZES).shuffled(), "leave shuffle out"),
        (lambda: order_of(BatchSize(sizes={0: 4}), 8), "leave batch_size out"),
        (
            lambda: order_of(BatchSize(sizes={0: 4, 9: 80}), drop_last=True),
            "from epoch 9 on 70 samples fill no global batch of 80",
        ),
    ],
)
def test_orders_that_there_cannot_be(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


# -- The loader ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number, (height, width) in enumerate(PICTURES[:22].tolist()):
        (root / f"class_{number % 2}").mkdir(exist_ok=True)
        data = images.jpeg(images.photo(height, width, seed=number))
        (root / f"class_{number % 2}" / f"{number:02}.jpg").write_bytes(data)
    return root


def loader_of(folder: Path, order: Ordering, batch_size: int = 1, **more: Any) -> fastload.Loader:
    given: dict[str, Any] = {"transform": TRAIN, "seed": 5, "backend": "turbojpeg"} | more
    return fastload.create_loader(folder, batch_size, order=order, **given)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_the_pixels_are_those_of_a_loader_of_one_size(
    folder: Path, own_cache: Path, backend: str
) -> None:
    more = {"backend": backend, "num_workers": 0 if backend == "torch" else 1}
    with loader_of(folder, MultiScale(Shuffle(), sizes=SIZES), 4, **more) as loader:
        assert loader.shapes == ((24, 24), (28, 28), (24, 32), (20, 20))
        epochs = [list(loader) for _ in range(2)]
    sizes = {tuple(pixels.shape[2:]) for epoch in epochs for pixels, _ in epoch}
    assert len(sizes) > 2
    for size in sizes:
        one = v2.Compose([v2.RandomResizedCrop(size), *TRAIN.transforms[1:]])
        with loader_of(folder, Shuffle(), 4, **more, transform=one) as alone:
            for mine in epochs:
                for (pixels, labels), (wanted, others) in zip(mine, alone, strict=True):
                    assert torch.equal(labels, others)
                    if tuple(pixels.shape[2:]) == size:
                        assert torch.equal(pixels, wanted)


def test_batches_and_images_grow_with_the_epoch_and_a_state_goes_on(folder: Path) -> None:
    order = BatchSize(Progressive(Shuffle(), sizes={0: 20, 1: 28}), sizes={0: 3, 1: 5, 2: 11})
    with loader_of(folder, order) as loader:
        lengths, seen, states = [], [], []
        for epoch in range(4):
            loader.set_epoch(epoch)
            lengths.append(len(loader))
            batches = iter(loader)
            assert len(batches) == len(loader.batch_sampler) == lengths[-1]
            for step, (pixels, labels) in enumerate(batches):
                assert len(loader) == lengths[-1]
                if (epoch, step) == (1, 3):
                    states.append(loader.state_dict())
                seen.append((pixels, labels))
        assert lengths == [8, 5, 2, 2]
        assert {tuple(pixels.shape[2:]) for pixels, _ in seen[:8]} == {(20, 20)}
        assert {tuple(pixels.shape[2:]) for pixels, _ in seen[8:]} == {(28, 28)}
        assert [len(labels) for _, labels in seen[8:15]] == [5, 5, 5, 5, 2, 11, 11]
        assert "from epoch 2: shuffled, seed 5, rank 0 of 1, 2 batches of 11" in loader.explain()
        with pytest.raises(ConfigurationError, match="from 0 to 2"):
            loader.skip(3)
    (state,) = states
    assert (state["epoch"], state["step"]) == (1, 4)
    with loader_of(folder, order) as again:
        again.load_state_dict(json.loads(json.dumps(state)))
        assert len(again) == 5
        left = [*again, *again]
        for (pixels, labels), (wanted, others) in zip(left, seen[12:15], strict=True):
            assert torch.equal(pixels, wanted)
            assert torch.equal(labels, others)
        with pytest.raises(StateMismatchError, match="not a place in epochs of 2 batches"):
            again.load_state_dict(state | {"epoch": 3})
    other = BatchSize(Progressive(Shuffle(), sizes={0: 20, 1: 28}), sizes={0: 3, 1: 5, 3: 11})
    with loader_of(folder, other) as loader:
        with pytest.raises(StateMismatchError, match="global_batch_size"):
            loader.load_state_dict(state)


def test_without_images_there_is_no_size() -> None:
    arrays = {"tokens": np.zeros((8, 3), np.int64)}
    with pytest.raises(ConfigurationError, match="has no images"):
        fastload.create_loader(arrays, 2, order=MultiScale(sizes=SIZES))
    order = BatchSize(Shuffle(), sizes={0: 3, 1: 4})
    with fastload.create_loader(arrays, order=order) as loader:
        assert [len(batch["tokens"]) for _ in range(2) for batch in loader] == [3, 3, 2, 4, 4]
        assert isinstance(loader.sampler.order, PhasedOrder)
