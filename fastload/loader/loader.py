"""The Loader: the only iterator that a user sees."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fastload.backends.base import Backend
from fastload.device.stage import DeviceStage
from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, FastloadError, StateMismatchError
from fastload.loader.config import LoaderConfig
from fastload.loader.cursor import Cursor
from fastload.loader.pipeline import READY, Pipeline
from fastload.sampler import LoaderSampler, Order
from fastload.sources.base import Source
from fastload.spans import SpanLog

__all__ = ["Loader", "LoaderParts", "Stats"]

STATE_VERSION = 1


@dataclass(frozen=True)
class Stats:
    """What a loader has done so far."""

    batches: int = 0
    """Batches handed out."""
    samples: int = 0
    """Samples handed out."""
    substituted: int = 0
    """Samples replaced because they could not be read (`on_error="substitute"`), those prefetched included."""
    wait_seconds: float = 0.0
    """Time the trainer spent waiting inside the loader [seconds], the first batch apart."""
    first_batch_seconds: float = 0.0
    """From the first `next` to the first batch [seconds]."""
    elapsed_seconds: float = 0.0
    """From the first batch to the latest one [seconds]."""

    @property
    def wait_share(self) -> float:
        """Share of the time since the first batch that the trainer waited, 0 to 1."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0


@dataclass(frozen=True)
class LoaderParts:
    """What `build` has chosen and built for a configuration; the Loader puts it to work."""

    source: Source
    order: Order
    backend: Backend
    stage: DeviceStage
    recipe_fingerprint: str
    batch_transform: Callable[..., Any] | None = None
    """Runs on each finished batch in the trainer's thread: what could not be lowered to mixup or cutmix."""
    explanation: Mapping[str, str] = field(default_factory=dict)


class Loader:
    """Iterates over batches of a source, epoch after epoch. Made by `fastload.create_loader`.

    Iterating is lazy: nothing is read, no thread started before the first `next`. An epoch may be abandoned at any
    batch; the next `iter()` begins the next epoch. Only one iterator is alive at a time: making a new one ends the old
    one. Epochs count up by themselves; `set_epoch` overrides.
    """

    def __init__(self, config: LoaderConfig, parts: LoaderParts) -> None:
        self.config = config
        """The arguments it was made from."""
        self._parts = parts
        self._pipeline = Pipeline(backend=parts.backend, stage=parts.stage, order=parts.order, on_error=config.on_error)
        self._finalizer = weakref.finalize(self, self._pipeline.close)
        self._stats = Stats()
        self._spans: SpanLog | None = None
        self._cursor = Cursor()
        self._iteration = 0
        self._started = 0.0
        self.dataset = config.source
        self.batch_size = parts.order.batch_size
        self.drop_last = parts.order.drop_last
        self.backend = parts.backend.name
        self.device = parts.stage.device
        owner = weakref.ref(self)
        self.sampler = LoaderSampler(parts.order, batched=False, owner=owner)
        self.batch_sampler = LoaderSampler(parts.order, batched=True, owner=owner)

    def __len__(self) -> int:
        """Batches an epoch on this rank; the same on every rank and in every epoch."""
        return self._parts.order.steps

    def __iter__(self) -> Iterator[Any]:
        """One epoch of batches, from its start or, after `load_state_dict`, from where the state was taken.

        Yields:
            (images, labels): images (B, C, H, W), labels (B,) int64, on `device`; other sources follow their columns.

        Raises:
            DecodeError: a sample could not be read (with `on_error="raise"`), or none could replace it.
            WorkerError: a worker process died.
        """
        self._iteration += 1
        return self._batches(self._iteration, self._cursor.begin())

    def _batches(self, iteration: int, epoch: int) -> Iterator[Any]:
        while True:
            entered = time.perf_counter()
            if iteration != self._iteration:
                raise FastloadError(
                    "this iterator has ended, because iter() was called again on the same Loader (or a state was "
                    "loaded). Create a second Loader to iterate twice at the same time."
                )
            step = self._cursor.step
            if step >= len(self):
                self._cursor.end()
                return
            self._pipeline.seek((epoch, step))
            batch = self._parts.stage.deliver(self._pipeline.next())
            if self._parts.batch_transform is not None:
                batch = self._transform(batch, epoch, step)
            self._cursor.take()
            self._count(batch, entered)
            if self._spans is not None:
                args = {"epoch": epoch, "step": step}
                self._spans.add("wait for a batch", entered, time.perf_counter(), track="trainer", args=args)
            yield batch

    @property
    def batches_in_flight(self) -> int:
        """How many batches may be under way or ready ahead of the trainer."""
        return self._parts.backend.depth + READY

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter()`; one under way goes on. Optional: epochs count up by themselves.

        The epoch that a loaded state is in the middle of may be set again without losing its place.
        """
        if epoch < 0:
            raise ConfigurationError(f"epoch: must be 0 or more, got {epoch}.")
        self._cursor.choose(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is: small, made of plain Python values, the same on every rank.

        It counts batches handed out, not those prefetched. Taken after the last batch of an epoch but before the loop
        has ended, it resumes to an epoch that is over: the loop ends at once, and the next one begins the next epoch.
        """
        epoch, step = self._cursor.position
        order = self._parts.order
        # Orders that are not ours are remembered by a hash, so that resuming into another one is noticed.
        fingerprint = order.fingerprint(self._pipeline.order_of(epoch)) if 0 < step < len(self) else None
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            "order": order.reproducible() | ({} if fingerprint is None else {"fingerprint": fingerprint}),
            "source": self._parts.source.fingerprint,
            "recipe": self._parts.recipe_fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next `iter()` gives the remaining batches of that epoch.

        The number of ranks may differ, as long as the global batch size is the same.

        Raises:
            StateMismatchError: the state is of another data set, seed, global batch size, order or recipe. Both sides
                are in the message, and the loader is left as it was.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != STATE_VERSION:
            raise StateMismatchError(
                f"state: this is fastload's loader state version {STATE_VERSION}, got {version!r}. "
                "Pass what Loader.state_dict() returned."
            )
        mine = self._parts.order.reproducible() | {
            "source": self._parts.source.fingerprint,
            "recipe": self._parts.recipe_fingerprint,
        }
        theirs = dict(state.get("order", {})) | {k: state.get(k) for k in ("source", "recipe")}
        order_print = theirs.pop("fingerprint", None)
        differing = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
        if differing:
            rows = "; ".join(f"{key}: state {theirs.get(key)!r}, this loader {mine.get(key)!r}" for key in differing)
            raise StateMismatchError(
                f"state: it was taken from a loader that differs in {rows}. Create the loader with the same arguments, "
                "or start the epoch anew with set_epoch()."
            )
        epoch, step = state.get("epoch"), state.get("step")
        if not isinstance(epoch, int) or not isinstance(step, int) or epoch < 0 or not 0 <= step <= len(self):
            raise StateMismatchError(
                f"state: epoch {epoch!r}, step {step!r} is not a place in epochs of {len(self)} batches."
            )
        if order_print is not None and self._parts.order.fingerprint(self._pipeline.order_of(epoch)) != order_print:
            raise StateMismatchError(
                f"state: the sampler {theirs.get('sampler')} gives another order for epoch {epoch} than it gave when "
                "the state was taken, so the remaining batches cannot be known. Use a sampler whose order follows "
                "from set_epoch(), or shuffle=True."
            )
        self._cursor.move(epoch, step)
        self._iteration += 1

    def stats(self) -> Stats:
        """Counts and times so far; an immutable snapshot."""
        return replace(self._stats, substituted=self._pipeline.substituted)

    def record(self, spans: SpanLog | None) -> None:
        """Write what each batch spends its time on to a log, from now on; None: no longer.

        Tracks: "backend", where each batch is from being asked for to being taken; "loader", the stages in the
        loader's own thread (submit, receive, substitute, device stage); "copy", the device stage on the GPU's own
        timeline; "trainer", the time inside `next`. Each span has `epoch` and `step` (0-based).
        """
        self._spans = spans
        self._pipeline.record(spans)

    def explain(self) -> str:
        """For a person: which backend was chosen and why, what was measured, and where each transform runs."""
        rows = dict(self._parts.explanation) | dict(self._parts.backend.explain())
        width = max(map(len, rows))
        lines = []
        for key, text in rows.items():
            first, *more = text.splitlines() or [""]
            lines.append(f"{key:<{width}}  {first}")
            lines.extend(f"{'':<{width}}  {line}" for line in more)
        return "\n".join(lines)

    def close(self) -> None:
        """Stop threads and workers and free the buffers; batches handed out stay valid. May be called twice."""
        self._iteration += 1
        self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<fastload.Loader: {self._parts.source.name}, {len(self._parts.source)} samples, "
            f"batch size {self.batch_size}, {len(self)} batches, backend {self.backend}, on {self.device}>"
        )

    def _transform(self, batch: Any, epoch: int, step: int) -> Any:
        draws = Draws(self._parts.order.seed, epoch, np.array([step], dtype=np.int64))
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(draws.integers(Stream.BATCH_TRANSFORM)[0]) >> 1)
            function = self._parts.batch_transform
            assert function is not None
            return function(*batch) if isinstance(batch, tuple | list) else function(batch)

    def _count(self, batch: Any, entered: float) -> None:
        now = time.perf_counter()
        stats = self._stats
        first = stats.batches == 0
        self._started = now if first else self._started
        self._stats = replace(
            stats,
            batches=stats.batches + 1,
            samples=stats.samples + _length(batch),
            wait_seconds=stats.wait_seconds + (0.0 if first else now - entered),
            first_batch_seconds=now - entered if first else stats.first_batch_seconds,
            elapsed_seconds=now - self._started,
        )


def _length(batch: Any) -> int:
    """Samples in a batch, as far as its structure tells."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping):
        return _length(next(iter(batch.values()), None))
    if isinstance(batch, list | tuple):
        return _length(batch[0]) if batch else 0
    return 0
