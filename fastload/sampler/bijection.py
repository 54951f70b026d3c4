"""The order of an epoch without an array of it: a bijection of 0 .. length - 1, computed for the
positions that are asked for.

A Feistel network of six rounds permutes the numbers of 2b bits, where 4^b is the least such power
that is not below the length. What comes out at or above the length goes in again until it does not
(cycle walking; J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002): at most
some four times on average, as the domain is less than four times the length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

ROUNDS = 6


class ComputedOrder(ABC):
    """Stands for a (length,) int64 array: `len(order)`, `order[3:7]`, `order[indices]`."""

    length: int

    @abstractmethod
    def at(self, positions: Int64Array) -> Int64Array:
        """Of (n,) positions from 0 to below the length."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, positions: Any) -> Any:
        """int64 of the shape of `positions`: a slice, an index, or an array of indices."""
        if isinstance(positions, slice):
            return self.at(np.arange(*positions.indices(self.length), dtype=np.int64))
        asked = np.asarray(positions, dtype=np.int64)
        if asked.size and not -self.length <= asked.min() <= asked.max() < self.length:
            raise IndexError(f"{positions} of an order of {self.length:,}")
        indices = self.at(np.where(asked < 0, asked + self.length, asked).reshape(-1))
        return indices.reshape(asked.shape)[()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """All of it: 8 bytes a sample."""
        return np.asarray(self[:], dtype=dtype)

    def tolist(self) -> list[int]:
        whole: list[int] = self[:].tolist()
        return whole


@dataclass(frozen=True)
class Bijection(ComputedOrder):
    """A permutation of the numbers from 0 to below the length."""

    length: int
    keys: UInt64Array
    """(ROUNDS,) random numbers."""

    def at(self, positions: Int64Array) -> Int64Array:
        bits = np.uint64(max(1, -(-(self.length - 1).bit_length() // 2)))
        mask = (np.uint64(1) << bits) - np.uint64(1)
        places = positions.astype(np.uint64)
        rest = np.arange(len(places))
        while len(rest):
            left, right = places[rest] >> bits, places[rest] & mask
            for key in self.keys:
                left, right = right, left ^ (_mixed(right + key) & mask)
            places[rest] = left << bits | right
            rest = rest[places[rest] >= self.length]
        return places.astype(np.int64)


def _mixed(numbers: UInt64Array) -> UInt64Array:
    """The finalizer of splitmix64 (G. Steele, D. Lea and C. Flood, 2014); products wrap."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)
