"""Batches of so many tokens, rows into which sequences are packed: what fits, what is left, what
all ranks have, and the batch that a trainer gets."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.loader.packing import PackedForm
from fastload.sampler import BlockShuffle, EpochOrder, NodePlacement, Shard, Shuffle
from fastload.sampler.balanced import Balanced
from fastload.sampler.best_fit import best_fit
from fastload.sampler.buckets import Buckets
from fastload.sampler.budgets import Budget
from fastload.sampler.packed import Packed
from fastload.sampler.scales import BatchSize, MultiScale
from tests import images
from tests.captions import caption_lengths

RNG = np.random.default_rng(0)
LENGTHS = np.minimum(RNG.lognormal(3, 1, 150).astype(np.int64) + 1, 100)


def order_of(ordering: Any, batch_size: int = 1, of: Any = LENGTHS, **given: Any) -> Any:
    shard, drop_last = given.get("shard", Shard()), given.get("drop_last", False)
    order = EpochOrder(len(of), batch_size, shard, drop_last=drop_last, seed=3)
    return ordering.knowing(lambda: of, lambda name: of).applied_to(order)


def draws_of(order: Any, epoch: int = 1) -> list[Any]:
    indices = order.epoch(epoch)
    return [order.draws(epoch, step, indices, None) for step in range(order.steps_in(epoch))]


# -- Best fit --------------------------------------------------------------------------------------


def left_by_reference(lengths: Any, capacity: int) -> list[int]:
    """What is left of each row, ascending, where each sequence is placed by itself."""
    rows: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fits = [row for row, left in enumerate(rows) if left >= length]
        if fits:
            best = min(fits, key=lambda row: rows[row])
        else:
            best = len(rows)
            rows.append(capacity)
        rows[best] -= length
    return sorted(rows)


def test_rows_are_filled_as_by_placing_one_after_the_other() -> None:
    for _ in range(150):
        capacity = int(RNG.integers(1, 60))
        lengths = RNG.integers(1, capacity + 1, int(RNG.integers(1, 90)))
        rows = best_fit(lengths, capacity)
        assert set(rows.tolist()) == set(range(int(rows.max()) + 1))
        left = capacity - np.bincount(rows, lengths).astype(np.int64)
        assert sorted(left.tolist()) == left_by_reference(lengths, capacity)
    assert best_fit(np.zeros(3, np.int64), 5).tolist() == [0, 0, 0]
    assert best_fit(np.array([5, 0, 5]), 5).tolist() == [0, 0, 1]
    assert best_fit(np.zeros(0, np.int64), 5).tolist() == []


def test_padding_of_real_captions() -> None:
    """The bar: at most 2%."""
    of = caption_lengths()
    packed = order_of(Packed(Shuffle(), length=256), 8, of)
    rows = len(packed.ends(0)) - 1
    assert 1 - of.sum() / (rows * 256) <= 0.02
    sorted_in_windows = order_of(Budget(Shuffle(), total=4096, cost="tokens", padded=True), 1, of)
    batches = [of[one.indices] for one in draws_of(sorted_in_windows)]
    padded = sum(len(some) * some.max() for some in batches)
    assert 1 - of.sum() / padded <= 0.02
    assert of.sum() / (len(batches) * 4096) >= 0.96  # and nearly full
    as_they_come = order_of(Shuffle(), round(len(of) / len(batches)), of)
    plain = [of[one.indices] for one in draws_of(as_they_come)]
    assert 1 - of.sum() / sum(len(some) * some.max() for some in plain) > 0.5
    full = order_of(Budget(Shuffle(), total=4096, cost="tokens"), 1, of)
    assert of.sum() / (full.steps * 4096) >= 0.98
    kept = packed.costs.nbytes + packed.epoch(0).nbytes + packed.ends(0).nbytes
    assert kept <= 16 * len(of)


# -- Orders ----------------------------------------------------------------------------------------

CUTS: dict[str, Callable[..., Any]] = {
    "budget": lambda inner: Budget(inner, total=128, cost="tokens", window=64),
    "padded": lambda inner: Budget(inner, total=128, cost="tokens", padded=True, window=64),
    "packed": lambda inner: Packed(inner, length=128, window=64),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("inner", [None, Shuffle()], ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_each_rank_gets_what_fits_and_all_get_as_many_batches(
    name: str, inner: Any, drop_last: bool, world: int
) -> None:
    size = 2 if name == "packed" else 1
    ranks = [
        order_of(CUTS[name](inner), size, shard=Shard(rank, world), drop_last=drop_last)
        for rank in range(world)
    ]
    for epoch in (0, 1):
        steps = ranks[0].steps_in(epoch)
        assert all(np.array_equal(rank.epoch(epoch), ranks[0].epoch(epoch)) for rank in ranks)
        parts = [draws_of(rank, epoch) for rank in ranks]
        assert {len(part) for part in parts} == {steps}
        seen = [index for part in parts for one in part for index in one.indices.tolist()]
        units = len(ranks[0].ends(epoch)) - 1
        if drop_last:
            assert steps == units // (size * world)
            assert len(set(seen)) == len(seen)
        else:
            assert steps == -(-units // (size * world))
            assert sorted(seen) == list(range(150))
        for part in (one for own in parts for one in own):
            costs = LENGTHS[part.indices]
            assert len(costs)
            if name == "packed":
                assert np.bincount(part.groups, costs).max() <= 128
                assert part.groups.max() < size
                assert (np.diff(part.groups) >= 0).all()
            else:
                assert (len(costs) * costs.max() if name == "padded" else costs.sum()) <= 128
        for mine in zip(*parts, strict=True):  # of a loss over tokens, or over samples
            amounts = [LENGTHS[one.indices].sum() if name == "packed" else len(one) for one in mine]
            shares = np.array(amounts) * world / sum(amounts)
            assert [one.weight for one in mine] == pytest.approx(shares)
    own = sum(rank.own_samples for rank in ranks)
    assert own == sum(len(one) for rank in ranks for one in draws_of(rank, 0))
    assert ranks[0].epoch(0).tolist() != ranks[0].epoch(1).tolist() or inner is None


def test_fewer_samples_than_ranks() -> None:
    for inner in (None, Shuffle()):
        ranks = [
            order_of(
                Budget(inner, total=9, cost="tokens"), of=np.array([3, 4, 2]), shard=Shard(n, 5)
            )
            for n in range(5)
        ]
        parts = [draws_of(rank)[0] for rank in ranks]
        assert {rank.steps_in(1) for rank in ranks} == {1}
        joined = [index for part in parts for index in part.indices.tolist()]
        assert set(joined) == {0, 1, 2}
        assert len(joined) == (3 if inner is None else 5)
        # Each sample counts as much.
        counts = [sum(p.weight for p in parts if n in p.indices) for n in range(3)]
        assert counts == pytest.approx([5 / 3] * 3)


def test_epochs_have_other_batches_and_lengths_that_are_known_before() -> None:
    order = order_of(Budget(Shuffle(), total=110, cost="tokens", window=16))
    steps = [order.steps_in(epoch) for epoch in range(12)]
    assert len(set(steps)) > 1
    for epoch in (7, 2, 7, 11, 0):  # forgotten, and cut again
        assert len(draws_of(order, epoch)) == steps[epoch]
        assert list(map(len, order.batches(epoch))) == [len(one) for one in draws_of(order, epoch)]
    small = order_of(Budget(Shuffle(), total=110, cost="tokens", padded=True, most=4))
    assert max(len(one) for one in draws_of(small)) == 4 == small.largest_batch


@pytest.mark.parametrize("padded", [False, True])
def test_samples_that_cost_nothing(padded: bool) -> None:
    costs = np.r_[np.zeros(40, np.int64), LENGTHS]
    order = order_of(Budget(Shuffle(), total=110, cost="tokens", padded=padded), of=costs)
    batches = draws_of(order)
    assert sorted(np.concatenate([one.indices for one in batches]).tolist()) == list(range(190))
    assert max(map(len, batches)) <= order.largest_batch


def test_what_replaces_a_sample_that_is_alone_in_its_batch() -> None:
    costs = np.r_[np.full(20, 100), np.full(20, 10)]
    order = order_of(Budget(Shuffle(), total=100, cost="tokens"), of=costs)
    indices, chances = order.epoch(0), np.random.default_rng(0).random((32, 2)).tolist()
    for step, batch in enumerate(draws_of(order, 0)):
        given = [order.any_sample(0, step, indices, (one, two)) for one, two in chances]
        chosen = [one for one in given if one is not None]
        assert len(set(chosen)) > 1
        assert max(costs[chosen]) <= costs[batch.indices].min()


@pytest.mark.parametrize("name", CUTS)
def test_short_and_long_samples_come_at_any_step(name: str) -> None:
    """Chi-square of 15 degrees of freedom: above 37.7 in one of 1,000 cases."""
    order, of = order_of(CUTS[name](Shuffle()), of=np.arange(113, 129)), 240
    steps = np.array([[one.indices[0] for one in draws_of(order, epoch)] for epoch in range(of)])
    assert steps.shape == (of, 16)
    for sample in (0, 7, 15):  # the shortest, and the longest
        counts = np.bincount(np.nonzero(steps == sample)[1], minlength=16)
        assert ((counts - of / 16) ** 2 / (of / 16)).sum() < 37.7


def test_rows_do_not_depend_on_the_number_of_ranks() -> None:
    whole = order_of(Packed(Shuffle(), length=128), 8)
    halves = [order_of(Packed(Shuffle(), length=128), 4, shard=Shard(n, 2)) for n in range(2)]
    assert whole.reproducible() == halves[0].reproducible()
    for all_rows, *parts in zip(draws_of(whole), *map(draws_of, halves), strict=True):
        assert all_rows.indices.tolist() == [i for part in parts for i in part.indices.tolist()]
    one, two = (order_of(Budget(total=128, cost="tokens"), shard=Shard(0, n)) for n in (1, 2))
    assert one.reproducible()["global_batch_size"] == "1 batch of at most 128"
    assert two.reproducible()["global_batch_size"] == "2 batches of at most 128"
    for ordering in CUTS.values():
        said = order_of(ordering(Shuffle())).reproducible()
        assert json.loads(json.dumps(said)) == said


def test_samples_that_do_not_fit(caplog: Any) -> None:
    huge = order_of(Packed(length=10, long="leave_out"), of=np.array([3, (1 << 32) + 3, 4]))
    assert sorted(i for one in draws_of(huge) for i in one.indices.tolist()) == [0, 2]
    of = np.array([3, 50, 4, 60, 2])
    with pytest.raises(
        ConfigurationError, match=r"2 samples of 5 .* 1 \(50\), 3 \(60\).*leave_out"
    ):
        order_of(Packed(length=10), of=of)
    with caplog.at_level(logging.WARNING, "fastload"):
        without = order_of(Packed(length=10, long="leave_out"), of=of)
        cut = order_of(Packed(length=10, long="cut"), of=of)
        budget = order_of(Budget(total=11, cost="tokens", long="leave_out"), of=of)
    assert "2 samples of 5 cost more than the 10 of Packed and are left out" in caplog.text
    assert "and are cut off there" in caplog.text
    assert sorted(i for one in draws_of(without) for i in one.indices.tolist()) == [0, 2, 4]
    assert sorted(i for one in draws_of(budget) for i in one.indices.tolist()) == [0, 2, 4]
    assert sorted(i for one in draws_of(cut) for i in one.indices.tolist()) == [0, 1, 2, 3, 4]
    assert len(cut.ends(0)) - 1 == 3
    assert "left out, as they are longer: 2 sequences" in without.explain()
    assert "cut off at the end of a row: 2 sequences" in cut.explain()
    assert "left out, as they cost more: 2 samples" in budget.explain()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Budget(), "needs total="),
        (lambda: Budget(total=True), "needs total="),
        (lambda: Budget(total=1 << 63), "needs total="),
        (lambda: Budget(total=9, window=0), "window"),
        (lambda: Budget(total=9, most=0, padded=True), "most"),
        (lambda: Budget(total=9, most=4), "beside padded=True"),
        (lambda: Budget(total=9, padded=True), "largest height and the largest width"),
        (lambda: Budget(total=9, cost="tokens", long="cut"), "'error' or 'leave_out'"),
        (lambda: Budget(BlockShuffle(), total=9), "takes a Shuffle"),
        (lambda: Budget(NodePlacement(), total=9), "takes a Shuffle"),
        (lambda: Budget(Buckets(area=4096), total=9), "takes a Shuffle"),
        (lambda: Budget(Shuffle(), total=9).shuffled(), "leave shuffle out"),
        (lambda: Buckets(Budget(total=9), area=4096), "cannot be inside"),
        (lambda: Packed(), "needs length="),
        (lambda: Packed(length=8, tokens=[]), "name of a column"),
        (lambda: Packed(length=8, pad=0.5), "pad"),
        (lambda: Packed(length=8, cost="labels"), "leave cost out"),
        (lambda: Packed(length=8, cost=LENGTHS), "leave cost out"),
        (lambda: Packed(length=8, pad={"labels": 1}), "pad"),
        (lambda: Packed(length=8, long="drop"), "long"),
        (lambda: Packed(MultiScale(sizes=[24]), length=8), "takes a Shuffle"),
        (lambda: order_of(Budget(total=200, cost="tokens"), 8), "leave batch_size out"),
        (lambda: order_of(Budget(total=200, cost=LENGTHS / 7)), "whole numbers"),
        (lambda: order_of(Budget(total=200, cost=LENGTHS[:4])), "150 samples"),
        (lambda: order_of(BatchSize(Budget(total=200, cost="tokens"), sizes={0: 8})), "leave"),
        (
            lambda: order_of(Packed(length=8, long="leave_out"), of=np.array([9, 9])),
            "all samples cost more",
        ),
    ],
)
def test_orders_that_there_cannot_be(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


# -- Batches ---------------------------------------------------------------------------------------


def texts(count: int = 60, most: int = 30, seed: int = 1, least: int = 1) -> dict[str, Any]:
    """Tokens that say where they come from: sample x 1000 + place + 1; their labels, negative."""
    lengths = np.random.default_rng(seed).integers(least, most + 1, count)
    tokens = [np.arange(1, n + 1) + 1000 * row for row, n in enumerate(lengths)]
    return {
        "tokens": fastload.Ragged.of(tokens),
        "labels": fastload.Ragged.of([-row for row in tokens]),
        "id": np.arange(count),
    }


def packed_by_hand(rows: list[list[Any]], length: int) -> dict[str, Any]:
    """What a batch of these sequences must be, by loops."""
    tokens = torch.zeros((len(rows), length), dtype=torch.int64)
    position, document, bounds = tokens.clone(), tokens.clone() - 1, []
    for row, sequences in enumerate(rows):
        at = 0
        for number, sequence in enumerate(sequences):
            if len(sequence):
                bounds.append(row * length + at)
            for place, token in enumerate(sequence):
                tokens[row, at], position[row, at], document[row, at] = int(token), place, number
                at += 1
        if at < length:
            bounds.append(row * length + at)
    return {
        "tokens": tokens,
        "position_ids": position,
        "document_ids": document,
        "cu_seqlens": torch.tensor([*bounds, len(rows) * length], dtype=torch.int32),
    }


def rows_of(batch: dict[str, Any]) -> list[list[Any]]:
    """The sequences of each row, by the ids of the samples."""
    rows = []
    for row in batch["tokens"]:
        ids = dict.fromkeys((row[row != 0] // 1000).tolist())
        rows.append([row[(row != 0) & (row // 1000 == one)] for one in ids])
    return rows


def test_a_packed_batch_is_that_made_by_hand() -> None:
    data, seen = texts(), []
    order = Packed(Shuffle(), length=32, tokens=("tokens", "labels"), pad={"labels": -100})
    with fastload.create_loader(data, 4, order=order) as loader:
        assert len(loader) == len(list(loader.batch_sampler))
        for batch in loader:
            rows = rows_of(batch)
            wanted = packed_by_hand(rows, 32)
            for name, tensor in wanted.items():
                assert torch.equal(batch[name], tensor)
                assert batch[name].dtype == tensor.dtype
            labels = torch.where(batch["document_ids"] < 0, -100, -batch["tokens"])
            assert torch.equal(batch["labels"], labels)
            spans = [end - start for start, end in pairwise(batch["cu_seqlens"].tolist())]
            assert batch["max_seqlen"] == max(spans)
            ids = [int(sequence[0]) // 1000 for row in rows for sequence in row]
            assert batch["id"].tolist() == ids
            assert all(len(row) == 0 or int(row[0]) % 1000 == 1 for some in rows for row in some)
            seen += ids
        assert loader.stats().samples == 60
        assert "60 sequences in" in loader.explain()
    assert sorted(seen) == list(range(60))


def test_attention_in_a_packed_row_is_that_in_each_sequence() -> None:
    torch.manual_seed(0)
    embedded = torch.nn.Embedding(60_100, 8, dtype=torch.float64)
    with fastload.create_loader(texts(), 4, order=Packed(length=64)) as loader:
        batch = next(iter(loader))
    vectors, document = embedded(batch["tokens"]), batch["document_ids"]
    same = (document[:, :, None] == document[:, None, :]) & (document >= 0)[:, :, None]
    causal = torch.ones((64, 64), dtype=torch.bool).tril()
    mask = (same & causal) | torch.eye(64, dtype=torch.bool)
    attended = scaled_dot_product_attention(vectors, vectors, vectors, attn_mask=mask)
    flat, bounds = vectors.view(-1, 8), batch["cu_seqlens"].tolist()
    for start, end in pairwise(bounds):
        if batch["tokens"].view(-1)[start] == 0:
            continue
        one = flat[start:end][None]
        alone = scaled_dot_product_attention(one, one, one, is_causal=True)[0]
        assert torch.allclose(attended.view(-1, 8)[start:end], alone)
        assert batch["position_ids"].view(-1)[start:end].tolist() == list(range(end - start))


def test_sequences_that_are_cut_or_empty() -> None:
    data = texts(count=40, most=50, least=0)
    with fastload.create_loader(data, 3, order=Packed(length=24, long="cut")) as loader:
        seen: list[int] = []
        for batch in loader:
            rows = rows_of(batch)
            assert torch.equal(batch["tokens"], packed_by_hand(rows, 24)["tokens"])
            assert torch.equal(batch["cu_seqlens"], packed_by_hand(rows, 24)["cu_seqlens"])
            seen += batch["id"].tolist()
            for sequence in (one for row in rows for one in row):
                index, length = (
                    int(sequence[0]) // 1000,
                    len(data["tokens"][int(sequence[0]) // 1000]),
                )
                assert len(sequence) == min(length, 24)
                assert sequence.tolist() == [index * 1000 + n + 1 for n in range(len(sequence))]
    assert sorted(seen) == list(range(40))


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_a_state_goes_on_on_each_backend(backend: str) -> None:
    data, options = texts(), {"backend": backend, "num_workers": 0 if backend == "torch" else 1}
    for order, size in (
        (Packed(Shuffle(), length=64), 4),
        (Budget(Shuffle(), total=99, cost="tokens"), 1),
    ):
        with fastload.create_loader(data, size, order=order, seed=2, **options) as loader:
            epochs, states = [], []
            for _ in range(2):
                for batch in loader:
                    epochs.append(batch["id"].tolist())
                    states.append(loader.state_dict())
        for at in (0, len(states) // 2, len(states) - 2):
            with fastload.create_loader(data, size, order=order, seed=2, **options) as again:
                again.load_state_dict(json.loads(json.dumps(states[at])))
                left = [batch["id"].tolist() for batch in again]
                assert left == epochs[at + 1 : at + 1 + len(left)]
        if size == 4:
            ranks = [
                fastload.create_loader(
                    data, 2, order=order, seed=2, shard=Shard(rank, 2), **options
                )
                for rank in range(2)
            ]
            for rank in ranks:
                rank.load_state_dict(states[1])
            parts = zip(*ranks, strict=True)
            joined = [[i for part in some for i in part["id"].tolist()] for some in parts]
            assert joined == epochs[2 : 2 + len(joined)]
            continue
        with fastload.create_loader(
            data, order=order, seed=2, shard=Shard(0, 2), **options
        ) as other:
            with pytest.raises(StateMismatchError, match=r"1 batch of at most 99.*2 batches of"):
                other.load_state_dict(states[1])


def test_a_budget_and_its_gradient() -> None:
    """The mean over the global batch, of ranks with other numbers of samples."""
    data = texts() | {"x": np.random.default_rng(3).normal(size=(60, 2))}
    order = Budget(Shuffle(), total=64, cost="tokens")
    ranks = [
        fastload.create_loader(data, order=order, shard=Shard(rank, 3), seed=2) for rank in range(3)
    ]
    for parts in zip(*ranks, strict=True):
        assert all(len(part["tokens"].values) <= 64 for part in parts)
        losses = [
            part["x"].sum(1).mean() * rank.loss_weight
            for part, rank in zip(parts, ranks, strict=True)
        ]
        whole = torch.cat([part["x"].sum(1) for part in parts]).mean()
        assert torch.allclose(torch.stack(losses).mean(), whole)


def test_batches_of_so_many_pixels(tmp_path: Path) -> None:
    """Of the files, whatever is made of them."""
    (tmp_path / "class_0").mkdir()
    sides = [16, 64, 16, 64, 48, 16, 48, 16, 32, 40]
    for number, side in enumerate(sides):
        data = images.jpeg(images.photo(side, 32, seed=number))
        (tmp_path / "class_0" / f"{number}.jpg").write_bytes(data)
    order, resize = Budget(Shuffle(), total=100 * 32), v2.Resize((16, 16))
    with fastload.create_loader(tmp_path, order=order, transform=resize) as loader:
        batches = list(loader.batch_sampler)
        assert [len(labels) for _, labels in loader] == list(map(len, batches))
        assert len(batches) == 4  # 360 rows of pixels
        assert all(sum(sides[index] for index in batch) <= 100 for batch in batches)
    with pytest.raises(ConfigurationError, match="4 samples of 10 cost more than the 1,280"):
        fastload.create_loader(tmp_path, order=Budget(total=40 * 32), transform=resize)


@pytest.mark.parametrize(
    ("order", "size"),
    [
        (Packed(Shuffle(), length=64), 4),
        (Budget(Shuffle(), total=128, cost="tokens", padded=True), 1),
        (Balanced(Shuffle(), cost="tokens"), 8),
    ],
    ids=["packed", "budget", "balanced"],
)
def test_of_a_mix(order: Any, size: int) -> None:
    """Its samples come again, in each epoch other ones; a state goes on in them."""

    def loader() -> fastload.Loader:
        parts = {"a": texts(40), "b": texts(25, seed=2)}
        mixed = fastload.mix(parts, weights={"a": 1, "b": 1}, until=50)
        return fastload.create_loader(mixed, size, order=order, seed=3)

    with loader() as one:
        seen, states = [], []
        for _ in range(3):
            for batch in one:
                seen.append(batch["id"].tolist())
                states.append(one.state_dict())
    assert sum(map(len, seen)) == 150
    for at in (1, len(seen) // 2, len(seen) - 2):
        with loader() as again:
            again.load_state_dict(json.loads(json.dumps(states[at])))
            left = [batch["id"].tolist() for batch in again]
            assert left == seen[at + 1 : at + 1 + len(left)]


def test_packing_goes_with_growing_batches_and_a_function() -> None:
    order = BatchSize(Packed(Shuffle(), length=64), sizes={0: 2, 1: 4})
    collate = fastload.CollateColumns(lambda columns: (columns["tokens"], columns["id"]))
    with fastload.create_loader(texts(), order=order, collate_fn=collate) as loader:
        for size in (2, 4):
            shapes = [tuple(tokens.shape) for tokens, _ in loader]
            assert shapes[:-1] == [(size, 64)] * (len(shapes) - 1)


def test_what_packing_cannot_be_beside() -> None:
    data, order = texts(), Packed(length=64)
    for words, more in (
        ("CollateColumns", {"collate_fn": list}),
        ("CollateColumns", {"collate_fn": "detr"}),
        ("need not fit", {"on_error": "substitute"}),
    ):
        with pytest.raises(ConfigurationError, match=words):
            fastload.create_loader(data, 2, order=order, **more)  # type: ignore[arg-type]
    for words, columns in (
        ("Ragged of the tokens", {"tokens": np.arange(60)}),
        ("adds 'position_ids'", {"position_ids": np.arange(60)}),
        ("differs from 'tokens'", {"labels": texts(seed=5)["labels"]}),
        ("no column 'tokens'", {"tokens": np.zeros((60, 3))}),
    ):
        names = ("tokens", "labels") if "labels" in columns else "tokens"
        with pytest.raises(ConfigurationError, match=words):
            fastload.create_loader(data | columns, 2, order=Packed(length=64, tokens=names))
    form = PackedForm(4, {"tokens": 0})
    ragged = fastload.Ragged(torch.arange(6), torch.tensor([0, 3, 6]))
    draws = order_of(Packed(length=9), of=np.array([3, 3])).draws(0, 0, np.arange(2), None)
    with pytest.raises(ConfigurationError, match="a row of 4 tokens would get 6"):
        form.of_draws({"tokens": ragged}, draws)
