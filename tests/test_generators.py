"""The global generators of a process: set for a sample, and left as they were."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fastload import generators
from fastload.draws import native_core
from fastload.generators import (
    Seeds,
    preserved_random_state,
    seed_generators,
    states_of_generators,
)
from tests.waiting import LIMIT

SEEDS = [0, 3, (1 << 32) - 1, 1 << 32, (1 << 40) + 5, (1 << 63) - 1]


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The states lie otherwise than they are known to."""
    monkeypatch.setattr(generators, "_place_of_second", lambda _: None)
    generators._memory_of.cache_clear()
    yield
    generators._memory_of.cache_clear()


def _use_all() -> None:
    random.gauss(0, 1)
    np.random.standard_normal()  # Of a pair: both keep the second number.
    torch.rand(())


def _check_seeds() -> None:
    _use_all()
    before = states_of_generators()
    with preserved_random_state():
        seeds = Seeds(np.array(SEEDS * 20, dtype=np.uint64))
        for row in (0, 1, 2, 3, 4, 5, 3, 119, 63, 64):
            seeds.set(row)
            found = states_of_generators(), torch.initial_seed()
            _use_all()
            seed_generators(SEEDS[row % len(SEEDS)])
            assert found == (states_of_generators(), torch.initial_seed())
            _use_all()
    assert states_of_generators() == before


def test_seeds_of_a_batch_do_what_seeding_does() -> None:
    _check_seeds()


@pytest.mark.usefixtures("_elsewhere")
def test_seeds_of_a_batch_where_states_lie_elsewhere() -> None:
    assert generators._memory() is None
    _check_seeds()


@pytest.mark.skipif(
    not hasattr(native_core(), "mersenne_states"), reason="the native core is not built"
)
def test_states_are_written_where_they_lie() -> None:
    assert generators._memory() is not None


def test_a_script_may_replace_numpys_generator() -> None:
    numpy: Any = np.random
    seeds = Seeds(np.array([3], dtype=np.uint64))
    before = numpy.get_bit_generator()
    try:
        numpy.set_bit_generator(np.random.MT19937(1))
        seeds.set(0)
        assert np.random.rand() == np.random.RandomState(3).rand()
        numpy.set_bit_generator(np.random.MT19937(1))
        with preserved_random_state():
            np.random.rand()
        assert np.random.rand() == np.random.RandomState(np.random.MT19937(1)).rand()
    finally:
        numpy.set_bit_generator(before)


def test_the_three_generators_are_left_as_they_were() -> None:
    before = states_of_generators()
    with preserved_random_state():
        seed_generators(3)
        found = random.random(), np.random.rand(), torch.rand(()).item()
    assert states_of_generators() == before
    with preserved_random_state():
        seed_generators(3)
        assert found == (random.random(), np.random.rand(), torch.rand(()).item())


def test_one_thread_at_a_time_has_the_generators() -> None:
    before = states_of_generators()
    entered, found = threading.Event(), list[float]()

    def other() -> None:
        with preserved_random_state():
            entered.set()
            seed_generators(4)

    thread = threading.Thread(target=other)
    with preserved_random_state():
        seed_generators(3)
        thread.start()
        assert not entered.wait(0.2)
        found = [random.random(), float(np.random.rand()), torch.rand(()).item()]
    thread.join(LIMIT)
    assert states_of_generators() == before
    with preserved_random_state():
        seed_generators(3)
        assert found == [random.random(), float(np.random.rand()), torch.rand(()).item()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX alone")
def test_a_forked_child_has_the_generators_that_another_thread_had() -> None:
    entered, over = threading.Event(), threading.Event()

    def hold() -> None:
        with preserved_random_state():
            entered.set()
            over.wait(LIMIT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(LIMIT)
    child = multiprocessing.get_context("fork").Process(target=_use_generators)
    child.start()
    child.join(LIMIT)
    over.set()
    thread.join(LIMIT)
    child.kill()
    assert child.exitcode == 0


def _use_generators() -> None:
    with preserved_random_state():
        seed_generators(3)


def test_generators_are_seeded_each_as_by_its_own_library() -> None:
    with preserved_random_state():
        for seed in (3, (1 << 40) + 5):
            seed_generators(seed)
            assert random.random() == random.Random(seed).random()
            assert np.random.rand() == np.random.RandomState(seed % (1 << 32)).rand()
            own = torch.Generator().manual_seed(seed)
            assert torch.equal(torch.rand(3), torch.rand(3, generator=own))


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.rand, lambda: torch.rand(())],
    ids=["Python", "numpy", "torch"],
)
def test_a_number_of_a_generator_changes_the_state(draw: Callable[[], Any]) -> None:
    with preserved_random_state():
        seed_generators(3)
        draw()  # of numpy's many, which are made at once
        before = states_of_generators()
        assert states_of_generators() == before
        draw()
        assert states_of_generators() != before
