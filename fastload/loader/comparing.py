"""Ranks that compare what they are about to give: `MeshShard(compare=...)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from fastload.errors import StateMismatchError
from fastload.fingerprint import fingerprint_of
from fastload.loader.iterator import IterationState, LoaderIterator, Owner, Progress
from fastload.sampler import Compared

_ERROR, _PART, _PARTS, _SAMPLES = "error", "part", "parts", "samples"
"""What a rank says beside the keys of a state: what it has raised; its part of the data, and of how
many; the fingerprint of what its sampler gives."""


class Telling:
    """A context in which an error is said to the ranks that compare, which hear it at their first
    `next`."""

    def __init__(self, compared: Compared) -> None:
        self._with = compared

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            _all_said({_ERROR: f"{type(error).__name__}: {error}"}, self._with)


def _all_said(mine: dict[str, Any], compared: Compared) -> list[Any]:
    """What each rank of the group says: one collective."""
    said: list[Any] = [None] * dist.get_world_size(compared.group)
    dist.all_gather_object(said, mine, compared.group)
    return said


class ComparingIterator(LoaderIterator):
    """Before its first batch all ranks of the group say what they are about to give, by one
    collective in the trainer's thread. What one of them raises until then is an error on all, so
    that none waits for another; so is a rank whose epoch is over at once."""

    def __init__(self, progress: Progress, owner: Owner, compared: Compared) -> None:
        super().__init__(progress, owner)
        self._with = compared

    def __next__(self) -> Any:
        """As that of `LoaderIterator`. Raises StateMismatchError: ranks differ."""
        if self._state is IterationState.NEW and self._iteration == self._progress.iteration:
            with self._progress.one_thread:
                try:
                    self._compare(self._with)
                except Exception:
                    self._state = IterationState.OVER
                    raise
        return super().__next__()

    def _compare(self, compared: Compared) -> None:
        error: Exception | None = None
        try:
            mine = self._said()
        except Exception as raised:
            error, mine = raised, {_ERROR: f"{type(raised).__name__}: {raised}"}
        said = _all_said(mine, compared)
        if error is not None:
            raise error
        check(said, dist.get_process_group_ranks(compared.group), divided=compared.divided)

    def _said(self) -> dict[str, Any]:
        """What this rank is about to give. Calls the user's sampler."""
        self._owner._contents_changed()
        progress = self._progress
        epoch, step = progress.cursor.epoch, progress.cursor.step
        order = progress.parts.order
        # Of a sampler that is read in step: up to the batch that comes now.
        read = step + (order.read_ahead is not None)
        samples = order.fingerprint_at(epoch, read, progress.feed.order_of, saving=False)
        return progress.parts.identity() | {
            "epoch": epoch,
            "step": step,
            "what the order carries": fingerprint_of(order.carried(epoch, step)),
            _PART: order.shard.rank,
            _PARTS: order.shard.world_size,
            _SAMPLES: samples,
        }


def check(said: Sequence[dict[str, Any]], ranks: Sequence[int], *, divided: bool) -> None:
    """What these ranks have said, each of its own.

    Args:
        divided: whether the data are divided among them: then their parts differ, and as many of
            them have each part; else all have the same one.

    Raises:
        StateMismatchError: they cannot go on together.
    """
    rows = []
    keys = dict.fromkeys(key for one in said for key in one)
    for key in [_ERROR] if _ERROR in keys else keys:  # who has raised one has not said the rest
        values = [one.get(key) for one in said]
        if key == _PART and divided:
            unlike = len({*Counter(values).values()}) > 1
        elif key == _SAMPLES and divided:
            of_part = {(one.get(_PART), value) for one, value in zip(said, values, strict=True)}
            unlike = len(of_part) > len({part for part, _ in of_part})
        else:
            unlike = any(value != values[0] for value in values)
        if unlike:
            rows.append(f"{key}: {_by_rank(values, ranks)}")
    if rows:
        same = "" if divided else " (these ranks must get the same samples)"
        raise StateMismatchError(
            f"shard: the ranks that were to be compared{same} differ in {'; '.join(rows)}. Make "
            "all loaders with the same arguments, load the same state on each, and iterate over "
            "all alike. Each of these ranks has raised this, and no batch was given."
        )


def _by_rank(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """Each value, with the ranks that have said it."""
    having: dict[str, list[str]] = {}
    for value, rank in zip(values, ranks, strict=True):
        having.setdefault(repr(value), []).append(str(rank))
    return ", ".join(
        f"{value} on rank{'s' * (len(its) > 1)} {' '.join(its)}" for value, its in having.items()
    )
