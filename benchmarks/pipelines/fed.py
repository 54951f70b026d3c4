"""An original's random numbers, replaced by those that ours has drawn: its generators are wrapped,
so that both do the same to a sample, and geometry can be compared to a fraction of a pixel."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

Numbers = Iterator[float]
"""Uniform numbers in the order in which an original asks for them."""


class Fed:
    """What the generators of Python, NumPy and torch give."""

    def __init__(self) -> None:
        self.numbers: Numbers = iter(())
        self.asked = 0
        """How many numbers the call asks for that is being answered."""
        self.whole = False
        """Whether they are whole numbers."""

    def random(self) -> float:
        self.asked, self.whole = 1, False
        return float(next(self.numbers))

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        return low + (high - low) * self._several(size)

    def randint(self, low: int, last: int) -> int:
        """Of Python: `last` is among them."""
        return low + math.floor(self.random() * (last - low + 1))

    def choice(self, among: Sequence[Any] | int, p: Sequence[float] | None = None) -> Any:
        among, number = range(among) if isinstance(among, int) else among, self.random()
        if p is None:
            return among[math.floor(number * len(among))]
        return among[int(np.searchsorted(np.cumsum(p), number, side="right"))]

    def below(self, low: int, end: int | None = None, size: Any = None) -> Any:
        """Of NumPy."""
        low, end = (0, low) if end is None else (low, end)
        return low + np.floor(self._several(size, True) * (end - low)).astype(np.int64)

    def rand(self, *size: int) -> Any:
        """Of NumPy; of the normal distribution as well: what is given is then its numbers."""
        return self._several(size or None)

    def tensor_randint(
        self, low: int = 0, high: Any = None, size: Any = None, **_: Any
    ) -> torch.Tensor:
        if size is None:
            low, high, size = 0, low, high
        return torch.as_tensor(self.below(low, high, tuple(size)))

    def tensor_rand(self, *size: Any, **_: Any) -> torch.Tensor:
        return torch.as_tensor(self._several(size if isinstance(size[0], int) else size[0]))

    def _several(self, size: Any, whole: bool = False) -> Any:
        if size is None:
            self.asked, self.whole = 1, whole
            return np.float64(next(self.numbers))
        self.whole, self.asked = whole, math.prod(np.atleast_1d(size).astype(int).tolist())
        return np.array([next(self.numbers) for _ in range(self.asked)]).reshape(size)


@contextmanager
def fed(numbers: Callable[[Fed], Numbers]) -> Iterator[None]:
    """Within it the generators give these numbers. Raises StopIteration: an original asks for more;
    AssertionError: for fewer."""
    source = Fed()
    source.numbers = numbers(source)
    with ExitStack() as stack:
        for owner, name, function in (
            (random, "random", source.random),
            (random, "uniform", source.uniform),
            (random, "randint", source.randint),
            (random, "choice", source.choice),
            (np.random, "uniform", source.uniform),
            (np.random, "randint", source.below),
            (np.random, "choice", source.choice),
            (np.random, "rand", source.rand),
            (np.random, "randn", source.rand),
            (np.random, "random_sample", source.random),
            (np.random, "random", source.random),
            (torch, "randint", source.tensor_randint),
            (torch, "rand", source.tensor_rand),
        ):
            stack.enter_context(mock.patch.object(owner, name, function))
        yield
        left = sum(1 for _ in source.numbers)
        assert not left, f"{left} numbers were not asked for"
