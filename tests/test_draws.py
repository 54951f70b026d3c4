"""Random numbers: the generator is Philox, and nothing but the counter matters."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastload import native
from fastload.draws import (
    Draws,
    StagedDraws,
    Stream,
    native_core,
    philox4x32,
    stretch_of,
)
from fastload.sampler import EpochOrder

# Known-answer vectors of philox4x32-10 from the Random123 distribution (kat_vectors): counter, key,
# result.
KNOWN = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_vectors(counter: str, key: str, result: str) -> None:
    words = [np.array([int(word, 16)], dtype=np.uint64) for word in counter.split()]
    low, high = (int(word, 16) for word in key.split())
    out = philox4x32((words[0], words[1], words[2], words[3]), low | high << 32)
    assert " ".join(f"{int(word[0]):08x}" for word in out) == result


def test_a_sample_gets_the_same_numbers_in_any_batch() -> None:
    whole = Draws(7, 3, np.arange(100))
    part = Draws(7, 3, np.array([42, 5]))
    assert np.array_equal(part.uniform(4, 9), whole.uniform(4, 9)[[42, 5]])
    assert np.array_equal(whole.take(slice(40, 50)).integers(1), whole.integers(1)[40:50])
    assert np.array_equal(pickle.loads(pickle.dumps(part)).uniform(4, 9), part.uniform(4, 9))


def test_epochs_have_32_bits() -> None:
    indices = np.arange(2)
    assert Draws(7, (1 << 32) - 1, indices).uniform(0, 1).shape == (2, 1)
    for epoch in (-1, 1 << 32):
        with pytest.raises(AssertionError, match="32 bits"):
            Draws(7, epoch, indices)


def test_what_is_within_a_stream_has_a_seed_of_two_words_of_philox() -> None:
    zero = np.zeros(1, dtype=np.uint64)
    counter = (zero + np.uint64(5), zero, zero, zero + np.uint64(0xFFFFFFFF))
    words = [int(word[0]) for word in philox4x32(counter, 7)]
    inner = Draws(7, 3, np.arange(2)).within(5)
    assert (inner.seed, inner.epoch) == (words[0] << 32 | words[1], 3)


def test_asking_for_more_numbers_does_not_change_the_first() -> None:
    draws = Draws(7, 3, np.arange(10))
    assert np.array_equal(draws.uniform(0, 5), draws.uniform(0, 22)[:, :5])


@pytest.mark.parametrize(
    "other",
    [
        Draws(8, 3, np.array([5])),
        Draws(7 + (1 << 40), 3, np.array([5])),
        Draws(7, 4, np.array([5])),
        Draws(7, 3, np.array([6])),
        Draws(7, 3, np.array([5 + (1 << 33)])),
        Draws(7, 3, np.array([5]), np.array([1])),
    ],
    ids=["seed", "high half of the seed", "epoch", "index", "high half of the index", "repeat"],
)
def test_everything_in_the_counter_counts(other: Draws) -> None:
    assert not np.array_equal(Draws(7, 3, np.array([5])).uniform(0, 4), other.uniform(0, 4))


def test_streams_differ_and_no_repeat_is_repeat_zero() -> None:
    draws = Draws(7, 3, np.array([5]))
    assert not np.array_equal(draws.uniform(0, 4), draws.uniform(1, 4))
    assert np.array_equal(
        Draws(7, 3, np.array([5]), np.array([0])).uniform(0, 4), draws.uniform(0, 4)
    )


def test_uniforms_are_uniform_and_uncorrelated() -> None:
    numbers = Draws(1, 0, np.arange(50_000)).uniform(0, 2)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    expected = numbers.size / 100
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 50 < chi_square < 160  # 99 degrees of freedom: mean 99, deviation 14
    assert abs(np.corrcoef(numbers.T)[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.02


@pytest.mark.skipif(not native.available(), reason="the native core is not built")
@pytest.mark.parametrize("repeats", [None, np.arange(300) % 7])
def test_the_native_core_computes_the_same_numbers(
    repeats: np.ndarray | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = np.r_[np.arange(297), 1 << 33, (1 << 40) - 1, 5]
    draws = Draws(-3, (1 << 32) - 1, indices, repeats)
    module = native.load()
    for stream in (0, 7, 0xFFFF):
        found = []
        for implementation in (None, module):
            monkeypatch.setattr("fastload.draws.native_core", lambda chosen=implementation: chosen)
            found.append(
                [draws.uniform(stream, n) for n in (1, 2, 5, 22)] + [draws.integers(stream)]
            )
        assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.skipif(not native.available(), reason="the native core is not built")
@pytest.mark.parametrize("repeats", [None, np.arange(200) * 7919 % 5 << 20])
def test_every_instruction_set_draws_the_same_integers(repeats: np.ndarray | None) -> None:
    indices = np.r_[np.arange(197) * 5_000_000_011, 1 << 33, (1 << 40) - 1, 5] % (1 << 40)
    found = 0
    for simd in ("plain", "sse4.1", "avx2", "avx512", "neon"):
        for count in (0, 1, 3, 8, 15, 16, 33, 200):
            some = repeats if repeats is None else repeats[:count]
            draws = Draws(0xFEDCBA9876543210, (1 << 32) - 1, indices[:count], some)
            words = draws._words(0xFFFF, 1)
            expected = ((words[0] << np.uint64(32)) | words[1])[:, 0]
            drawn = np.full(count, 7, dtype=np.uint64)
            try:
                native.load().integers(
                    draws.indices, some, draws.seed, draws.epoch, 0xFFFF, drawn, simd=simd
                )
            except ValueError:  # not on this processor
                continue
            assert np.array_equal(drawn, expected), (simd, count)
            found += 1
    assert found >= 16  # "plain" and another one


def test_the_numbers_of_streams_are_those_of_earlier_versions() -> None:
    numbers = {name: number for name, number in vars(Stream).items() if name.isupper()}
    assert numbers == {
        "ORDER": 65535,
        "OPAQUE": 65534,
        "SUBSTITUTE": 65533,
        "BATCH_TRANSFORM": 65532,
        "MIX": 65531,
        "MIX_CHOICE": 65530,
        "MASKED_TOKENS": 65529,
        "SPLIT": 65528,
        "WORKERS": 65527,
        "COMPARED": 65526,
        "PLACEMENT": 65525,
        "BLOCKS": 65524,
        "BUCKETS": 65523,
        "MIXTURE": 65522,
        "MIXTURE_ORDER": 65521,
        "WEIGHTED": 65520,
        "SCALES": 65519,
        "BUDGETS": 65518,
    }


def test_no_samples_have_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload.draws.native_core", lambda: None)
    assert Draws(0, 0, np.arange(0)).uniform(0, 5).shape == (0, 5)


def test_the_native_core_is_used_where_it_is_built() -> None:
    assert (native_core() is not None) == native.available()


def test_staged_draws() -> None:
    own, early = (Draws(seed, 1, np.arange(5), np.arange(5)) for seed in (3, 4))
    staged = np.array([False, True, True, False, True])
    fields = own.seed, own.epoch, own.indices, own.repeats, own.keys
    whole = StagedDraws(*fields, early=early, until=2, staged=staged)

    def wanted(stream: int, of: Callable[[Draws], Any]) -> Any:
        rows = zip(staged & (stream < 2), of(early), of(own), strict=True)
        return np.array([one if stage else other for stage, one, other in rows])

    def uniform(draws: Draws) -> Any:
        return draws.uniform(stream, 3)

    def integers(draws: Draws) -> Any:
        return draws.integers(stream)

    def inside(draws: Draws) -> Any:  # where streams count up from 0 again
        return draws.within(stream).uniform(7, 2)

    for draws in (whole, whole.take(slice(1, 3)), whole.take(np.array([4, 0, 4]))):
        for stream in (1, 2):
            for of in (uniform, integers, inside):
                assert np.array_equal(of(draws), wanted(stream, of)[draws.indices])


def test_a_stretch_is_known_by_the_memory_that_it_lies_in() -> None:
    order = np.arange(20)[::-1].copy()
    whole, first = stretch_of(order[4:9])
    assert whole is order
    assert first == 4
    whole, first = stretch_of(order.reshape(4, 5)[1])
    assert (whole is order, first) == (True, 5)
    for other in (order, order[::2], order[3:9].copy(), order.view(np.uint64)[2:5]):
        whole, first = stretch_of(other)
        assert (whole is other, first) == (True, 0)


def test_draws_of_several_batches_are_those_of_one() -> None:
    order = EpochOrder(10, 4, shuffle=True)
    indices = order.epoch(0)
    one, two, three = (order.draws(0, step, indices, None) for step in range(3))
    joined = one.followed_by(two)
    assert joined is not None
    whole = joined.followed_by(three)
    assert whole is not None
    assert whole.indices.tolist() == indices.tolist()
    assert (whole.seed, whole.epoch) == (one.seed, one.epoch)
    assert stretch_of(whole.indices)[0] is stretch_of(one.indices)[0], "a view of the order"
    elsewhere = replace(two, indices=(indices + 100)[4:8])
    joined = one.followed_by(elsewhere)
    assert joined is not None
    assert joined.indices.tolist() == [*one.indices, *elsewhere.indices]
    apart = one.followed_by(three)
    assert apart is not None
    assert apart.indices.tolist() == [*one.indices, *three.indices]
    assert np.array_equal(apart.integers(3), np.r_[one.integers(3), three.integers(3)])
    others = order.epoch(1)
    alone = np.zeros(4, np.int64)
    for other in (
        order.draws(1, 1, others, None),
        replace(two, seed=7),
        replace(two, repeats=alone),
        replace(two, keys=[0] * 4),
        StagedDraws(two.seed, 0, two.indices, early=two, until=1, staged=alone > 0),
    ):
        assert one.followed_by(other) is None


def test_the_size_of_a_batch_stays_with_its_draws() -> None:
    one = Draws(3, 1, np.arange(4), size=(48, 64))
    assert one.take(slice(1, 3)).size == (48, 64)
    assert one.take(np.array([2])).size == (48, 64)
    two = Draws(3, 1, np.arange(4, 8), size=(48, 64))
    joined = one.followed_by(two)
    assert joined is not None
    assert joined.size == (48, 64)
    assert one.followed_by(Draws(3, 1, np.arange(4, 8), size=(64, 48))) is None
