"""The global generators of a process: set for a sample, and left as they were."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fastload.generators import (
    preserved_random_state,
    seed_generators,
    states_of_generators,
)
from tests.waiting import LIMIT


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
