"""Orders in which neighbours come soon after each other, so that they can be read together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.sampler import (
    BlockOrder,
    BlockShuffle,
    EpochOrder,
    NodePlacement,
    Shard,
    Shuffle,
    block_order,
)
from tests import warm

SHAPES = [  # samples, ranks, batch size, block, window, drop_last
    (1000, 2, 8, 32, None, False),
    (4096, 1, 64, 32, None, True),
    (997, 4, 16, 7, 8, False),
    (2001, 4, 2, 16, 24, False),
    (50, 1, 64, 32, None, False),
    (33, 1, 4, 32, 8, False),
    (100, 1, 10, 100, 5, True),
    (131, 1, 8, 16, 1, False),
    (7, 4, 3, 1, 3 * 4, False),
]


def orders(
    samples: int, world: int, batch: int, block: int, window: int | None, drop_last: bool = False
) -> list[BlockOrder]:
    """Of each rank."""
    shards = [Shard(rank, world) for rank in range(world)]
    return [
        BlockShuffle(block, window).applied_to(
            EpochOrder(samples, batch, shard, shuffle=True, drop_last=drop_last, seed=3)
        )
        for shard in shards
    ]


def runs(lane: list[int], samples: int) -> list[list[int]]:
    """Neighbours on the circle of the data set that follow each other in a lane, in any order:
    each as long as it can be from where the last one ends."""
    found, start = [], 0
    while start < len(lane):
        ends = [
            end
            for end in range(start + 1, min(start + 32, len(lane)) + 1)
            if spread(lane[start:end], samples) == end - start
        ]
        found.append(lane[start : ends[-1]])
        start = ends[-1]
    return found


def spread(some: list[int], samples: int) -> int:
    """How many samples lie between the first and the last of these on the circle, with both."""
    ordered = sorted(some)
    gaps = [other - one for one, other in pairwise([*ordered, ordered[0] + samples])]
    return samples - max(gaps) + 1


@pytest.mark.parametrize("shape", SHAPES)
def test_an_epoch_has_each_sample_once(shape: Any) -> None:
    samples, world, batch, *_, drop_last = shape
    ranks = orders(*shape)
    for epoch in (0, 1, 5):
        order = ranks[0].epoch(epoch)
        assert sorted(order.tolist()) == list(range(samples))
        seen = [index for rank in ranks for part in rank.batches(epoch) for index in part]
        if drop_last:
            assert len(seen) == samples // (batch * world) * batch * world
            assert len(set(seen)) == len(seen)
        else:
            assert set(seen) == set(range(samples))
            if samples % (batch * world) >= world or samples % (batch * world) == 0:
                assert len(seen) == samples
    if samples > 100:
        assert not np.array_equal(ranks[0].epoch(0), ranks[0].epoch(1))


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_computed_batch_by_batch_is_the_same(
    shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = orders(*shape)[0].epoch(4)
    monkeypatch.setattr(block_order, "_AT_ONCE", 100)
    assert np.array_equal(orders(*shape)[0].epoch(4), whole)
    monkeypatch.setattr(block_order, "_LARGEST_IN_MEMORY", 0)
    computed = orders(*shape)[0]
    for step in range(computed.steps):
        found = computed.draws(4, step, computed.epoch(4), None).indices
        assert found.tolist() == whole[computed.batch(step)].tolist()


@pytest.mark.parametrize("window", [None, 16, 128, 192])
def test_a_lane_goes_through_blocks_of_its_own(window: int | None) -> None:
    """64 rows of a global batch; a lane is read off the batches row by row, without asking the
    order for lanes."""
    (order,) = orders(20_480, 1, 64, 32, window)
    lanes = order.window
    batches = [np.array(batch) for batch in order.batches(1)]
    rows = max(1, 64 // lanes)
    times = max(1, lanes // 64)
    pieces = []
    for lane in range(lanes):
        mine = [
            batch.reshape(-1, rows)[lane % 64] for batch in batches[lane // 64 % times :: times]
        ]
        pieces += runs(np.concatenate(mine).tolist(), 20_480)
    whole = [piece for piece in pieces if len(piece) == 32]
    assert len(whole) >= 20_480 // 32 - 3 * lanes - 1
    assert len(pieces) <= 20_480 // 32 + 3 * lanes + 1
    assert sum(piece == sorted(piece) for piece in whole) == 0, "shuffled"


def test_a_global_batch_has_samples_of_as_many_blocks_as_the_window_has() -> None:
    for window in (16, 64, 128):
        (order,) = orders(50_000, 1, 64, 32, window)
        cut = block_order.BlockEpoch(50_000, order, 0).first_sample
        for batch in list(order.batches(0))[:-64]:
            found = len({(index - cut) % 50_000 // 32 for index in batch})
            # Before the end, where blocks that are divided between two lanes come in both. Where
            # one ends, a batch has samples of the next one, too.
            assert 0.9 * min(window, 64) <= found <= (64 if window >= 64 else 2 * window)


@pytest.mark.parametrize("window", [None, 16, 128])
@pytest.mark.parametrize("samples", [5000, 64 * 70 + 3])
def test_ranks_share_the_same_batches_however_many_they_are(
    samples: int, window: int | None
) -> None:
    def batches(world: int) -> list[list[int]]:
        each = [order.batches(2) for order in orders(samples, world, 64 // world, 32, window)]
        return [[index for part in parts for index in part] for parts in zip(*each, strict=True)]

    alone = batches(1)
    for world in (2, 4, 8, 16):
        shared = batches(world)
        assert shared[:-1] == alone[:-1]
        assert set(shared[-1]) == set(alone[-1])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("since", [0, 3])
def test_groups_have_what_a_rank_needs_from_a_step_on_once(shape: Any, since: int) -> None:
    samples, world, batch, block, *_ = shape
    whole = samples // (batch * world)
    for order in orders(*shape):
        indices = order.epoch(1)
        needed = [
            index
            for step in range(since, min(order.steps, whole))
            for index in indices[order.batch(step)].tolist()
        ]
        grouped: list[int] = []
        for step in range(since, order.steps):
            now = indices[order.batch(step)].tolist()
            for group in order.together(1, step, since, indices):
                assert group[0] in now, "the first is needed now"
                assert len(group) <= spread(group.tolist(), samples) <= block
                grouped += group.tolist()
        assert len(set(grouped)) == len(grouped)
        assert set(grouped) <= set(needed)
        if since == 0 and samples > 1000:  # what is alone in its piece is in no group
            assert len(grouped) > 0.9 * len(needed)


def test_groups_begin_evenly_and_small() -> None:
    """Of 64 lanes over blocks of 32, two begin a block in each batch. The first batch needs no more
    than eight of a block."""
    (order,) = orders(64 * 32 * 20, 1, 64, 32, None)
    indices = order.epoch(0)
    groups = [order.together(0, step, 0, indices) for step in range(order.steps)]
    assert len(groups[0]) >= 60
    assert max(map(len, groups[0])) == 8
    assert len(groups[8]) >= 40, "what is left of their first blocks"
    assert np.mean([len(group) for group in groups[8]]) == pytest.approx(12, abs=2)
    started = [len(each) for each in groups[9:-32]]
    assert max(started) <= 5
    assert sum(started[:32]) == pytest.approx(64, abs=6)


def test_of_a_short_epoch_the_first_batches_need_an_eighth() -> None:
    """So much is read past the end of an epoch, for nothing after the last one."""
    for samples, most in ((64 * 64, 8), (64 * 32, 4)):
        (order,) = orders(samples, 1, 64, 32, None)
        assert order.read_with_first == samples / 8
        indices = order.epoch(0)
        groups = order.together(0, 0, 0, indices)
        lengths = sorted(map(len, groups))
        assert lengths[-3] == most, "but for the few lanes that begin a block at once"
        assert sum(lengths) <= samples / 8 + 2 * 32
        # A state of another version, which had a short epoch in another order, is refused.
        assert order.reproducible()["blocks"].get("first", 8) == most


@pytest.mark.whole
@pytest.mark.parametrize("samples", [24, 32, 35])
def test_each_sample_may_come_at_each_place(samples: int) -> None:
    counts = np.zeros((samples, samples), dtype=np.int64)
    for epoch in range(200 * samples):
        (order,) = orders(samples, 1, 4, 4, 4)
        counts[np.arange(samples), order.epoch(epoch)] += 1
    assert abs(counts - 200).max() < 75  # some five deviations


def test_ten_billion_samples_take_no_memory() -> None:
    order = BlockShuffle(32).applied_to(
        EpochOrder(10**10, 256, Shard(7999, 8000), shuffle=True, seed=1)
    )
    indices = order.epoch(3)
    found = order.draws(3, 2, indices, None).indices
    assert len(np.unique(found)) == 256
    assert 10**9 < found.max() < 10**10
    groups = order.together(3, 2, 2, indices)
    assert {int(group[0]) for group in groups} <= set(found.tolist())
    assert len(groups) > 240


def arrays(samples: int = 400) -> tuple[Any, Any]:
    return np.arange(samples, dtype=np.float32), np.arange(samples)


def labels(batches: Any) -> list[int]:
    return [int(label) for batch in batches for label in batch[1]]


SECOND = """
import torch
import fastload
from tests.test_sampler_blocks import arrays, labels

with fastload.create_loader(arrays(), 4, order=fastload.BlockShuffle(8, 16)) as loader:
    loader.load_state_dict(torch.load("state.pt", weights_only=False))
    print(labels(loader))
"""


@pytest.mark.slow
def test_a_state_goes_on_in_another_process_and_on_more_ranks(tmp_path: Path) -> None:
    def loader(rank: int, world: int, order: Any) -> Any:
        shard = Shard(rank, world)
        return fastload.create_loader(arrays(), 4 // world, order=order, shard=shard)

    order = BlockShuffle(8, 16)
    with loader(0, 1, order) as one:
        batches = iter(one)
        for _ in range(37):
            next(batches)
        state = one.state_dict()
        rest = labels(batches)
    torch.save(state, tmp_path / "state.pt")
    (tmp_path / "second.py").write_text(SECOND)
    done = warm.run("second.py", directory=tmp_path)
    assert done.stdout.strip() == str(rest)
    found = []
    for rank in range(2):
        with loader(rank, 2, order) as now:
            now.load_state_dict(state)
            found += labels(now)
    assert sorted(found) == sorted(rest)
    for other in (Shuffle(), BlockShuffle(4, 16), BlockShuffle(8, 32)):
        with loader(0, 1, other) as wrong, pytest.raises(StateMismatchError, match="blocks"):
            wrong.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"block": 0},
            "of a BlockShuffle must be an int of at least 1, or 'row group', got 0",
        ),
        ({"block": True}, "block"),
        ({"block": 2.5}, "block"),
        ({"block": None}, "block"),
        ({"window": 0}, "window"),
        ({"window": "64"}, "window"),
    ],
)
def test_numbers_that_mean_nothing(options: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"order: .*{words}"):
        BlockShuffle(**options)


def test_windows_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match=r"window .* global batch size, 96.* or give 48\."):
        orders(1000, 4, 24, 32, 50)
    with pytest.raises(ConfigurationError, match=r"multiple of the 4 ranks, got 2\. .*give 4\."):
        orders(1000, 4, 8, 32, 2)
    assert [order.window for order in orders(1000, 4, 24, 32, 48)] == [48] * 4
    assert orders(1000, 1, 24, 32, None)[0].window == 72
    assert orders(1000, 1, 300, 32, None)[0].window == 300


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shuffle": True}, "leave shuffle out"),
        ({"sampler": list(range(400))}, "order: leave it out where a sampler is given"),
        ({"batch_sampler": [[0]], "batch_size": 1}, "leave order out"),
    ],
)
def test_what_does_not_go_with_it(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        fastload.create_loader(arrays(), order=BlockShuffle(), **arguments)


def test_a_distributed_sampler_is_refused_by_one_sentence() -> None:
    """Which a framework has put in, and which decides which samples a rank gets, too."""
    shared = EpochOrder(400, 4, Shard(0, 2), shuffle=True, interleaved=True)
    said = []
    for argument, apply in (
        ("order .BlockShuffle", BlockShuffle().applied_to),
        ("order .NodePlacement", NodePlacement(nodes=2).applied_to),
    ):
        with pytest.raises(ConfigurationError, match=rf"^{argument}.*: .*shard='auto'") as refused:
            apply(shared)
        said.append(str(refused.value).partition(": ")[2])
    assert said[0] == said[1]


def test_order_is_a_value() -> None:
    for given in (BlockShuffle, "node", True):
        with pytest.raises(ConfigurationError, match=r"order: must be a fastload\.BlockShuffle"):
            fastload.create_loader(arrays(), 4, order=given)  # type: ignore[arg-type]
    with fastload.create_loader(arrays(), 4, order=BlockShuffle(np.int64(8), 16)) as loader:
        assert sorted(labels(loader)) == list(range(400))
        assert "in blocks of 8 samples" in loader.explain()
        assert "come within 32 batches" in loader.explain()
        assert loader.sampler.shuffle is True


@pytest.mark.parametrize(
    ("world", "batch", "window"), [(1, 8, 8), (4, 2, 8), (2, 16, 64), (3, 4, 3)]
)
def test_row_groups_of_any_size_come_whole_and_on_one_rank(
    world: int, batch: int, window: int
) -> None:
    begins = np.cumsum([0, *np.random.default_rng(1).integers(1, 40, 60)])
    samples = int(begins[-1])
    shuffle = BlockShuffle("row group", window).knowing(lambda: begins, lambda _: begins[:-1])
    sharded = [
        shuffle.applied_to(EpochOrder(samples, batch, Shard(rank, world), seed=5))
        for rank in range(world)
    ]
    whole = shuffle.applied_to(EpochOrder(samples, batch * world, seed=5)).epoch(1)
    assert sorted(whole.tolist()) == list(range(samples))
    assert whole.tolist() != sharded[0].epoch(2).tolist()
    ranks_of = dict[int, set[int]]()
    for rank, order in enumerate(sharded):
        assert np.array_equal(order.epoch(1), whole)
        assert isinstance(order, BlockOrder)
        places = np.arange(samples - 1, -1, -7)
        assert np.array_equal(order.computed(1).at(places), whole[places])
        announced: list[int] = []
        for step in range(order.steps):
            groups = order.together(1, step, 0, whole)
            for group in groups:
                numbers = np.unique(np.searchsorted(begins, group, "right") - 1)
                assert len(numbers) == 1
                ranks_of.setdefault(int(numbers[0]), set()).add(rank)
            announced += np.concatenate([*groups, whole[:0]]).tolist()
        assert len(announced) == len({*announced})
    lanes_within = sum(len(ranks) - 1 for ranks in ranks_of.values())
    assert lanes_within <= window


def test_row_groups_that_are_not_of_these_samples() -> None:
    for begins in ([], [1, 5], [0, 5, 5], [0, 90]):
        shuffle = BlockShuffle("row group").knowing(lambda: np.zeros(0), lambda _: np.array(begins))  # noqa: B023
        with pytest.raises(ConfigurationError, match="are not of these 80 samples"):
            shuffle.applied_to(EpochOrder(80, 4))
