"""The global random generators of a process, those of Python, numpy and torch: set for each sample
that a user's own code makes, and left as they were."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import UInt64Array, native_core

UInt32Array = npt.NDArray[np.uint32]

_WORDS = 624
"""Of a Mersenne twister."""
_BLOCK = 64
"""Samples whose states are computed at a time."""

_generators = threading.RLock()
"""Held by the thread that has set the global generators for a while."""


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """The global generators of Python, numpy and torch are left as they were.

    One thread at a time: of two, one would get the other's numbers, and the state that is left
    would be the one that the other had set.
    """
    with _generators:
        memory, of_torch = _memory(), torch.random.get_rng_state()
        python, numpy = memory.read() if memory else (random.getstate(), np.random.get_state())
        try:
            yield
        finally:
            if memory:
                memory.write(python, numpy)
            else:
                random.setstate(python)
                np.random.set_state(numpy)
            torch.random.set_rng_state(of_torch)


def _free_generators() -> None:
    """In a forked child, where a thread that held them is not."""
    global _generators
    if _generators.acquire(blocking=False):  # nobody had them, or the thread that has forked
        _generators.release()
    else:
        _generators = threading.RLock()


os.register_at_fork(after_in_child=_free_generators)


def seed_generators(seed: int) -> None:
    """Set the seeds of the three."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would start CUDA.
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def states_of_generators() -> tuple[Any, ...]:
    """Equal to an earlier one if none of the three has given a number since."""
    numpy: Any = np.random.get_state()
    of_torch = torch.random.get_rng_state().numpy().tobytes()
    return random.getstate(), numpy[1].tobytes(), numpy[2:], of_torch


class Seeds:
    """Seeds of the samples of a batch: `set(row)` does what `seed_generators` does with one of
    them, in less time."""

    def __init__(self, seeds: UInt64Array) -> None:
        self._seeds, self._memory = seeds, _memory()
        self._first = -_BLOCK
        self._python = self._numpy = np.empty((0, _WORDS + 1), dtype=np.uint32)
        """Of the samples from `_first` on: what the memory of Python's and numpy's gets."""

    def set(self, row: int) -> None:
        seed, memory = int(self._seeds[row]), self._memory
        if memory is None or not memory.is_current():
            seed_generators(seed)
            return
        if not self._first <= row < self._first + _BLOCK:
            self._compute(row)
        torch.default_generator.manual_seed(seed)
        memory.seed(self._python[row - self._first], self._numpy[row - self._first])

    def _compute(self, row: int) -> None:
        seeds = np.ascontiguousarray(self._seeds[row : row + _BLOCK])
        self._first = row
        self._python, self._numpy = np.empty((2, len(seeds), _WORDS + 1), dtype=np.uint32)
        native_core().mersenne_states(seeds, self._python, self._numpy)


# -- Where Python and numpy keep their states ------------------------------------------------------
#
# random.seed and numpy.random.seed take 8 us, the ways to get and set both states 150 us, and a
# sample of a data set in memory often 1 us. So the states are read and written where they lie, if
# that is where they are known to lie: `_memory_of` tries it.


@dataclass(frozen=True)
class _Memory:
    """Where the states of Python's and numpy's global generators lie."""

    python: UInt32Array
    """(625,): the place, and the words."""
    numpy: UInt32Array
    """(625,): the words, and the place."""
    second: npt.NDArray[np.uint64]
    """(2,): whether numpy has the second of a pair of normal numbers, and that."""
    owners: tuple[Any, Any, Any]
    """Of this memory: Python's Random, numpy's RandomState, and the bit generator in that, which a
    script may replace."""

    def is_current(self) -> bool:
        return self.owners[1]._bit_generator is self.owners[2]

    def read(self) -> tuple[Any, Any]:
        python = self.python.copy(), self.owners[0].gauss_next
        return python, (self.numpy.copy(), self.second.copy())

    def write(self, python: Any, numpy: Any) -> None:
        self.python[:], self.owners[0].gauss_next = python
        self.numpy[:], self.second[:] = numpy

    def seed(self, python: UInt32Array, numpy: UInt32Array) -> None:
        self.python[:] = python
        self.owners[0].gauss_next = None
        self.numpy[:] = numpy
        self.second[:] = 0


def _memory() -> _Memory | None:
    python, numpy = (getattr(one, "__self__", None) for one in (random.seed, np.random.rand))
    return _memory_of(python, numpy, getattr(numpy, "_bit_generator", None))


@lru_cache(maxsize=1)
def _memory_of(*owners: Any) -> _Memory | None:
    """None: the native core is not built, or the states lie otherwise than they are known to, by
    what those of other generators show."""
    classes = random.Random, np.random.RandomState, np.random.MT19937
    if not hasattr(native_core(), "mersenne_states") or tuple(map(type, owners)) != classes:
        return None
    if random.Random.__basicsize__ < object.__basicsize__ + 4 * (_WORDS + 1):
        return None
    numpy: Any = np.random.RandomState(1)
    place = _place_of_second(numpy)
    others = random.Random(1), numpy, numpy._bit_generator
    if place is None or not _is_seeded(_memory_at(others, place)):
        return None
    return _memory_at(owners, place)


def _memory_at(owners: Any, place: int) -> _Memory:
    """Of these owners. `place`: where a RandomState has the second number of a pair [bytes]."""
    python, numpy, bits = owners
    return _Memory(
        _view(id(python) + object.__basicsize__, ctypes.c_uint32, _WORDS + 1),
        _view(bits.ctypes.state_address, ctypes.c_uint32, _WORDS + 1),
        _view(id(numpy) + place, ctypes.c_uint64, 2),
        owners,
    )


def _view(address: int, kind: Any, count: int) -> Any:
    return np.frombuffer((kind * count).from_address(address), kind)


def _place_of_second(numpy: np.random.RandomState) -> int | None:
    """Where it has whether it has the second number of a pair, and after that the number."""
    words = _view(id(numpy), ctypes.c_uint64, np.random.RandomState.__basicsize__ // 8)
    numpy.standard_normal()
    state: Any = numpy.get_state()
    places = np.flatnonzero(words == np.float64(state[4]).view(np.uint64))
    if len(places) != 1 or words[places[0] - 1] & 0xFFFFFFFF != 1:
        return None
    return 8 * (int(places[0]) - 1)


def _is_seeded(memory: _Memory) -> bool:
    """Whether writing there does what seeding does."""
    seeds = np.array([3, (1 << 63) - 1], dtype=np.uint64)
    rows = np.empty((2, len(seeds), _WORDS + 1), dtype=np.uint32)
    native_core().mersenne_states(seeds, *rows)
    python, numpy, _ = memory.owners
    for seed, *words in zip(seeds.tolist(), *rows, strict=True):
        memory.seed(*words)
        found: Any = numpy.get_state()
        wanted: Any = np.random.RandomState(seed & 0xFFFFFFFF).get_state()
        if python.getstate() != random.Random(seed).getstate() or found[2:] != wanted[2:]:
            return False
        if not np.array_equal(found[1], wanted[1]):
            return False
    return True
