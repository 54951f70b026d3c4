"""Orders that are read while their epoch goes on: of samplers of the user's own classes, which may
look at what the trainer does, and of samplers that cannot say how long they are."""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fastload.draws import Draws
from fastload.errors import ConfigurationError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sampler.order import EndOfOrder, Int64Array, count_repeats
from fastload.sampler.users import (
    UsersOrder,
    copies_of_each,
    indices_and_keys,
    listed,
    never_looks,
)

logger = logging.getLogger("fastload")


@dataclass(frozen=True)
class FeedbackOrder(UsersOrder):
    """The order of a sampler, or batch sampler, of a class that is not known: what it gives next
    may depend on what the trainer has done with the batches before (a feedback sampler).

    It is read in the trainer's thread, batch by batch, at most `read_ahead` batches beyond those
    handed out, as a DataLoader with that many batches in flight does. A loaded state is found again
    by reading up to it; a fingerprint of all that was read tells whether it is the same order.
    """

    ahead: ClassVar[bool] = False
    open_ended: ClassVar[bool] = True
    read_ahead: int = 0
    _readings: dict[int, _Reading] = field(default_factory=dict, compare=False)
    """By epoch; only of the one under way."""
    _said: list[int] = field(default_factory=list, compare=False)
    """The epoch of the warning about a wrong length; empty until there is one."""

    def iterate(self, epoch: int, step: int) -> None:
        if not step and self.direct:
            self._readings.clear()
            self._readings[epoch] = _Reading(self, epoch)

    def epoch(self, epoch: int) -> Int64Array:
        """Start reading. The indices are not known yet."""
        reading = self._readings.get(epoch)
        if reading is None or reading.started or not self.direct:
            self._readings.clear()
            self._readings[epoch] = _Reading(self, epoch)
        return np.empty(0, dtype=np.int64)

    def repeats(self, indices: Int64Array) -> None:
        """They are counted as they come."""

    def batch(self, step: int) -> Int64Array:
        """The positions of the batch, by the length that the sampler says."""
        first = step * self.batch_size
        return np.arange(first, min(first + self.batch_size, self.samples), dtype=np.int64)

    def draws(
        self, epoch: int, step: int, indices: Int64Array, repeats: Int64Array | None
    ) -> Draws:
        """Raises EndOfOrder; ConfigurationError: what it gives are no samples; what the sampler's
        own code raises."""
        return self._read(epoch, step).draws

    def _read(self, epoch: int, step: int) -> _Read:
        if self._readings[epoch].has_forgotten(step):
            self.epoch(epoch)
        return self._readings[epoch].batch(step)

    def batches(self, epoch: int) -> Iterator[list[Any]]:
        given = self._iterated(epoch)
        while (batch := self._next_batch(given)) is not None:
            yield batch

    def _next_batch(self, given: Iterator[Any]) -> list[Any] | None:
        """The next of an epoch; None: there is none."""
        if self.in_batches:
            batch = next(given, None)
            return None if batch is None else listed(batch, self.sampler)
        batch = list(itertools.islice(given, self.batch_size))
        return batch if len(batch) >= (self.batch_size if self.drop_last else 1) else None

    def goes_on(self, epoch: int, step: int) -> bool:
        """Asked of it in the trainer's thread, which reads the sampler to its end."""
        if epoch not in self._readings:  # of a loaded state
            self.epoch(epoch)
        try:
            self._read(epoch, step)
        except EndOfOrder:
            return False
        return True

    def end_epoch(self, epoch: int) -> None:
        """Says, once, if the sampler has given another number than its length, as torch says it of
        an IterableDataset."""
        reading = self._readings.get(epoch)
        if self.endless or self._said or reading is None or not reading.ended:
            return
        if reading.steps == self.steps:
            return
        self._said.append(epoch)
        logger.warning(
            "%s: %s says that its length is %d, which is %s, and gave %d. The epoch ended where it "
            "did, as under a DataLoader; what counts by len(loader), such as a schedule of the "
            "learning rate, does not know.",
            self._argument,
            type(self.sampler).__name__,
            len(self.sampler),
            counted(self.steps, "batch"),
            reading.steps,
        )

    def any_sample(
        self, epoch: int, step: int, indices: Int64Array, chance: tuple[float, float]
    ) -> int | None:
        """Chosen from the last batches that were read up to this one."""
        earliest = max(0, step - _KEPT + 1)
        chosen = earliest + int(chance[0] * (step - earliest + 1))
        batch = self._read(epoch, chosen).draws.indices
        return int(batch[int(chance[1] * len(batch))]) if len(batch) else None

    def fingerprint_at(
        self, epoch: int, step: int, order_of: Callable[[int], Int64Array], *, saving: bool
    ) -> str | None:
        """Covers all that was read up to there. None: nothing was read of this epoch yet."""
        if saving and epoch not in self._readings:
            return None
        order_of(epoch)
        try:
            return self._read(epoch, step - 1).fingerprint
        except EndOfOrder:
            return None

    @property
    def _kind(self) -> str:
        name, ahead = type(self.sampler).__name__, self.read_ahead
        how = "each batch when it is asked for"
        if ahead:
            how = f"at most {counted(ahead, 'batch')} ahead"
        return f"by {name}, read in step, {how}"

    def explain(self) -> str:
        return f"{self.describe()}\n{self._cost}".rstrip()

    @property
    def _cost(self) -> str:
        """What it costs, and how to avoid it; empty where it costs nothing."""
        if never_looks(self.sampler):
            return ""
        like = (
            f"as a DataLoader with {counted(self.read_ahead, 'batch')} in flight does"
            if self.read_ahead
            else "as a DataLoader without workers does"
        )
        waits = "" if self.read_ahead else "no batch is made while the trainer works, "
        return (
            f"its class is not known and may look at what the trainer does, so it is read {like}. "
            f"That costs speed: {waits}the last step of a batch is done in the trainer's thread, "
            "and none is made before its epoch starts. If it never looks: num_workers (times "
            "prefetch_factor) says how far ahead it may be read, and list(sampler) is read at "
            "once, if all epochs have the same order"
        )


@dataclass(frozen=True)
class UncountedOrder(FeedbackOrder):
    """The order of a sampler, or batch sampler, that has no length: an infinite one, or one that
    cannot know. The epoch ends when it does."""

    endless: ClassVar[bool] = True
    steps: ClassVar[int] = sys.maxsize
    samples: ClassVar[int] = sys.maxsize
    own_samples: ClassVar[int] = sys.maxsize

    def __post_init__(self) -> None:
        """No length is required here."""

    def count(self, epoch: int = 0) -> int:
        raise TypeError(f"object of type {type(self.sampler).__name__!r} has no len()")

    def describe(self) -> str:
        return f"{self._kind}; it has no length; a loaded state is found again by reading up to it"

    def reproducible(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "rank": self.shard.rank,
            "world_size": self.shard.world_size,
            "sampler": type(self.sampler).__name__,
        }


_KEPT = 1024
"""Batches that are kept after they were read, beside those that are read ahead: for a state that is
saved, a batch that is made again after an error, and samples that replace damaged ones."""


@dataclass(frozen=True)
class _Read:
    """A batch that the sampler has given."""

    draws: Draws
    fingerprint: str
    """Covers all that it has given up to here."""


class _Reading:
    """How far the sampler was read in one epoch, and the last batches that it gave."""

    def __init__(self, order: FeedbackOrder, epoch: int) -> None:
        self.steps = 0
        """Batches that it has given."""
        self.ended = False
        """Whether it has no more."""
        self._order, self._epoch = order, epoch
        self._kept: dict[int, _Read | Exception] = {}
        """By step; what the sampler's own code has raised in the place of a batch."""
        self._given = order._iterated(epoch)
        self._samples = 0
        """Samples that it has given."""
        self._fingerprint = ""
        """Of all of them."""
        self._counts: Int64Array | None = None
        """(length,): how often it has given each sample."""
        self._keyed = False
        """Whether it gives keys of the data set, not indices."""
        self._whole = True
        """False after an exception during a read: parts of a batch may be lost."""

    @property
    def started(self) -> bool:
        """Whether anything was read."""
        return self.steps > 0 or self.ended or not self._whole

    def has_forgotten(self, step: int) -> bool:
        """Whether this batch was read, and is not kept."""
        return step < self.steps and step not in self._kept

    def batch(self, step: int) -> _Read:
        """Raises EndOfOrder: there is no such batch."""
        if not self._whole:
            self._read_again()
        while step >= self.steps:
            self._read_next()
        batch = self._kept[step]
        if isinstance(batch, Exception):
            raise batch
        return batch

    def _read_next(self) -> None:
        if self.ended:
            raise EndOfOrder
        self._whole = False
        read: _Read | Exception
        try:
            given = self._order._next_batch(self._given)
            if given is None:
                self.ended = self._whole = True
                raise EndOfOrder
            draws = self._draws_of(given)
            parts = [self._fingerprint, draws.indices, *map(repr, draws.keys or [])]
            self._fingerprint = fingerprint_of(*parts)
            read = _Read(draws, self._fingerprint)
            self._samples += len(given)
        except EndOfOrder:
            raise
        except Exception as error:  # A DataLoader raises it as well, and goes on after it.
            read = error
        self._kept[self.steps] = read
        self._kept.pop(self.steps - _KEPT - self._order.read_ahead - 1, None)
        self.steps += 1
        self._whole = True

    def _read_again(self) -> None:
        """From the start of the epoch to where it was interrupted."""
        again = _Reading(self._order, self._epoch)
        with contextlib.suppress(EndOfOrder):
            while again.steps < self.steps:
                again._read_next()
        if (again.steps, again._fingerprint) != (self.steps, self._fingerprint):
            raise ConfigurationError(
                f"sampler: {type(self._order.sampler).__name__} was interrupted while it was read, "
                "and gives other samples when it is read again from the start of the epoch. Start "
                "the epoch again, with set_epoch()."
            )
        vars(self).update(vars(again))

    def _draws_of(self, given: list[Any]) -> Draws:
        order = self._order
        places = np.arange(self._samples, self._samples + len(given), dtype=np.int64)
        indices: Int64Array | None = None
        keys: list[Any] | None = given
        if not self._keyed:
            indices, keys = indices_and_keys(order.sampler, given, order.length, keyed=order.keyed)
            self._keyed = indices is None
        if indices is None:
            return Draws(order.seed, self._epoch, places, keys=keys)
        return Draws(
            order.seed, self._epoch, indices, repeats=self._repeats(indices, places), keys=keys
        )

    def _repeats(self, indices: Int64Array, places: Int64Array) -> Int64Array | None:
        """How often each came earlier in the epoch. A sampler with replacement must not show a
        sample under the same crop twice."""
        sampler, copies = self._order.sampler, copies_of_each(self._order.sampler)
        if copies > 1:
            dealt: Int64Array = (sampler.rank + sampler.num_replicas * places) % copies
            return dealt
        if self._counts is None:
            self._counts = np.zeros(self._order.length, dtype=np.int64)
        repeats = self._counts[indices]
        within = count_repeats(indices)
        if within is not None:
            repeats += within
        np.add.at(self._counts, indices, 1)
        return repeats if repeats.any() else None
