"""Rows of a fixed number of tokens, or patches, into which sequences, or images, are packed by best
fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload.errors import ConfigurationError, counted
from fastload.sampler.best_fit import best_fit
from fastload.sampler.costs import PIXELS
from fastload.sampler.cuts import CutOrder, CutOrdering
from fastload.sampler.nested import is_count
from fastload.sampler.order import EpochOrder, Int64Array

PATCHES = "patches"
"""As `tokens`: the patches of images."""


@dataclass(frozen=True)
class Packed(CutOrdering):
    """Batches of `batch_size` rows of `length` tokens, each filled with whole sequences:
    `create_loader({"tokens": Ragged...}, 8, order=Packed(Shuffle(), length=2048))`.

    A batch is a dict. Of each packed column: (B, length) of its dtype, with `pad` where a row is
    not full. `position_ids` (B, length) int64: the place of each token in its sequence, 0 in
    padding. `document_ids` (B, length) int64: the number of its sequence in the row, from 0; -1 in
    padding. `cu_seqlens` (n + 1,) int32: where each sequence begins in the B x length tokens of all
    rows, as flash-attention's functions of variable length take it; the padding of a row counts as
    one more sequence, and the last number is B x length. `max_seqlen`: an int, the longest of
    these. Other columns have a row for each sequence, in the order of the sequences in the batch.

    With `tokens="patches"` images are packed, which a `fastload.ResizeToPatches` in the transform
    resizes: `patches` (B, length, side x side x C), each patch row by row, with the channels last;
    `position_ids` (B, length, 2) int64: row and column of each patch in its image, 0 in padding.
    The other columns have a row for each image. The weight of a loss counts images.

    Raises:
        ConfigurationError: a number is none; inside is another order than a Shuffle; (when the
            Loader is made:) a column is no numbers of variable length, packed columns differ in
            length, or a sequence is longer than `length` and `long` does not say what becomes of
            it; the number of patches does not follow from the size of an image.
    """

    length: int = field(default=0, kw_only=True)
    """Tokens of a row."""
    tokens: str | Sequence[str] = field(default="tokens", kw_only=True)
    """Names of the columns that are packed, whose rows are as long in each sample: tokens, and for
    example the labels of each. Or "patches", of images."""
    pad: int | Mapping[str, int] = field(default=0, kw_only=True)
    """What stands where a row is not full; or by the name of the column, 0 for others."""
    alone: bool = field(default=False, kw_only=True)
    """Whether each sequence, or image, has a row of its own, padded to `length`, as NaFlex models
    take them."""

    def __post_init__(self) -> None:
        names = (self.tokens,) if isinstance(self.tokens, str) else tuple(self.tokens)
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(
                "order: tokens of Packed must be the name of a column, or several names, got "
                f"{self.tokens!r}."
            )
        if not isinstance(self.cost, str) or self.cost not in (PIXELS, names[0]):
            raise ConfigurationError(
                f"order: Packed counts the tokens of {names[0]!r}; leave cost out, got "
                f"{self.cost!r}."
            )
        object.__setattr__(self, "tokens", names)
        object.__setattr__(self, "cost", names[0])
        super().__post_init__()
        if PATCHES in names and names != (PATCHES,):
            raise ConfigurationError(
                f"order: tokens of Packed are {PATCHES!r}, those of images, or names of columns, "
                f"got {self.tokens!r}."
            )
        self._check_long(self._longs)
        if not is_count(self.length):
            raise ConfigurationError(
                "order: Packed needs length=, an int of at least 1: the tokens of a row; got "
                f"{self.length!r}."
            )
        pads = self.pad if isinstance(self.pad, Mapping) else dict.fromkeys(names, self.pad)
        if not {*pads} <= {*names} or not all(type(one) is int for one in pads.values()):
            raise ConfigurationError(
                f"order: pad of Packed must be an int, or ints by the names of the columns "
                f"{', '.join(names)}, got {self.pad!r}."
            )

    @property
    def _longs(self) -> tuple[str, ...]:
        # Part of an image is none.
        return ("error", "leave_out") if PATCHES in self.tokens else super()._longs

    def applied_to(self, order: EpochOrder) -> PackedOrder:
        inner, names = self._inner(order), tuple(self.tokens)
        costs, left_out, cut = self._fitting(order, int(self.length))
        assert self._values is not None, "the loader says the values"
        for name in names[1:]:
            if not np.array_equal(self._values(name), self._values(names[0])):
                raise ConfigurationError(
                    f"order: packed together are columns whose rows are as long in each sample, "
                    f"and {name!r} differs from {names[0]!r}; leave it out of tokens=."
                )
        pads = self.pad if isinstance(self.pad, Mapping) else dict.fromkeys(names, self.pad)
        return PackedOrder.of(
            inner,
            costs=costs,
            most=int(self.length),
            window=int(self.window),
            left_out=left_out,
            cut=cut,
            packing={name: pads.get(name, 0) for name in names},
            row_length=int(self.length),
            alone=bool(self.alone),
        )


@dataclass(frozen=True, eq=False)
class PackedOrder(CutOrder):
    """Units are rows."""

    cut: int = 0
    """Samples that are longer than a row, of which the end is not served."""
    packing: Mapping[str, int] = field(default_factory=dict)
    row_length: int = 1
    alone: bool = False

    def _units(self, costs: Int64Array) -> Int64Array:
        if self.alone:
            return np.arange(len(costs))
        return best_fit(costs, self.most)

    @property
    def _units_a_rank(self) -> int:
        return self.batch_size

    def _amount(self, indices: Int64Array, part: tuple[int, int]) -> int:
        """Tokens; of patches images, of which a label is."""
        if PATCHES in self.packing:
            return super()._amount(indices, part)
        return int(self.costs[indices[slice(*part)]].sum())

    def _groups(self, epoch: int, part: tuple[int, int]) -> Int64Array:
        rows = np.searchsorted(self.ends(epoch), np.arange(*part), "right")
        return np.asarray(rows - rows.min(initial=len(self.ends(epoch))), dtype=np.int64)

    @property
    def _fill(self) -> tuple[int, float, int]:
        """Of epoch 0: rows, the share of them that is tokens, and the most sequences of one."""
        ends = self.ends(0)
        rows, tokens = len(ends) - 1, int(self.costs[self.epoch(0)].sum(dtype=np.int64))
        return rows, tokens / (rows * self.most), int(np.diff(ends).max())

    @property
    def largest_batch(self) -> int:
        """By the rows of the first epoch."""
        return self._fill[2] * self.batch_size

    def reproducible(self) -> dict[str, Any]:
        said = super().reproducible()
        alone = {"alone": True} if self.alone else {}
        return said | {"cuts": {**said["cuts"], "length": self.most, "cut": self.cut, **alone}}

    @property
    def _words(self) -> tuple[str, str]:
        """What is packed, and what it has."""
        return ("image", "patch") if PATCHES in self.packing else ("sequence", "token")

    @property
    def _kind(self) -> str:
        return f"{self.inner._kind}, packed into rows of {counted(self.most, self._words[1])}"

    def explain(self) -> str:
        (rows, filled, _), (thing, _) = self._fill, self._words
        said = [
            self.describe(),
            f"{counted(self.samples, thing)} in {counted(rows, 'row')} (epoch 0), filled to "
            f"{filled:.2%}",
        ]
        if self.left_out:
            said.append(f"left out, as they are longer: {counted(self.left_out, thing)}")
        if self.cut:
            said.append(f"cut off at the end of a row: {counted(self.cut, 'sequence')}")
        dropped = rows % self._units_a_step if self.drop_last else 0
        if dropped:
            said.append(f"left out by drop_last: {counted(dropped, 'row')} of epoch 0")
        return "\n".join(said)
