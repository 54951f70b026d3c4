"""The Loader: the only iterator that a user sees."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, default_collate

from fastload.compat.accelerate import PreparedByAccelerate, SkippedBatches
from fastload.compat.dataloader import (
    REMEDY,
    GuardedCollate,
    LoaderBatchSampler,
    LoaderSampler,
    SourceView,
    missing_attribute,
    sampler_over,
    shown_collate,
)
from fastload.compat.lightning import record_arguments
from fastload.compat.torchdata import position_of_torchdata_state
from fastload.errors import ConfigurationError, StateMismatchError, counted
from fastload.loader.build import LoaderParts, assemble
from fastload.loader.config import LoaderConfig
from fastload.loader.cursor import STATE_VERSION, Cursor, Position, checked_epoch, read_state
from fastload.loader.feed import Feed
from fastload.loader.following import FollowedSampler
from fastload.loader.iterator import LoaderIterator, Progress, Watcher
from fastload.loader.stats import Stats
from fastload.sampler import Shard
from fastload.spans import SpanLog

logger = logging.getLogger("fastload")


class Loader(PreparedByAccelerate, DataLoader[Any]):
    """Iterates over batches of a source, epoch after epoch. Made by `create_loader` and
    `from_dataloader`.

    Iterating is lazy: nothing is read, no thread started before the first `next`. An epoch may be
    left at any batch; the next `iter()` starts the next epoch. Only one iterator is alive at a
    time: making a new one ends the old one. Epochs count up; `set_epoch` chooses another one.

    `isinstance(loader, DataLoader)` holds and it has all attributes of a DataLoader, but
    iterates with code of its own. A Loader can be pickled and deep-copied before it is iterated.
    The copy of one that was iterated starts with the first batch of the epoch.
    """

    dataset: Any
    config: LoaderConfig
    """The arguments it was made from."""
    classes: tuple[str, ...] | None
    """Names of the classes, by label; None where the data have none. `class_to_idx` has the label
    by name."""

    def __init__(
        self,
        config: LoaderConfig,
        parts: LoaderParts | None = None,
        *,
        dataset: Any = None,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        drop_last: bool = False,
    ) -> None:
        """
        Args:
            config: the arguments of `create_loader` or `from_dataloader`.
            parts: what was built for this configuration; None: it is built here.
            dataset, batch_size, shuffle, sampler, batch_sampler, drop_last: given by frameworks
                that make a DataLoader again from the attributes of an old one. The sampler, or that
                of the batch sampler, says the rank and whether to shuffle. Batch size and data stay
                those of `config`.

        Raises:
            ConfigurationError: it was called with the arguments of DataLoader, or with other data.
        """
        if not isinstance(config, LoaderConfig):
            raise ConfigurationError(
                "Loader: it is made by fastload.create_loader(source, batch_size, ...), or by "
                "fastload.from_dataloader(DataLoader(...)) from the arguments of a DataLoader."
            )
        given = (
            sampler if batch_sampler is None else getattr(batch_sampler, "sampler", batch_sampler)
        )
        if given is not None:
            if (
                dataset is not None
                and not isinstance(dataset, SourceView)
                and dataset is not config.source
            ):
                raise ConfigurationError(
                    f"dataset: this Loader serves {type(config.source).__name__}, and cannot be "
                    f"made again with a {type(dataset).__name__}. {REMEDY}"
                )
            length = len(config.source if dataset is None else dataset)
            config = config.with_sampler(given, length, rebuilt=True)
            if batch_sampler is not None:
                config = replace(config, drop_last=batch_sampler.drop_last)
        if parts is None or given is not None:
            parts = assemble(config)
        self.config = config
        self._settled = False
        """Whether the rank can no longer change, because an iterator was made."""
        self._skipped = SkippedBatches(weakref.ref(self))
        self._progress = Progress(parts, parts.feed(config))
        super().__init__(
            config.source
            if config.adopted or isinstance(config.source, Dataset)
            else SourceView(parts.source),
            batch_size=None
            if config.unbatched or config.batch_sampler is not None
            else parts.order.batch_size,
            sampler=None if config.streamed else (),  # ours comes with the order
            drop_last=parts.order.drop_last,
            collate_fn=GuardedCollate(config.collate_fn or default_collate, self._skipped),
            **{"pin_memory": config.pinned, "num_workers": 0, **config.shown},
        )
        self.classes = names = parts.source.classes
        self.class_to_idx = (
            None if names is None else {name: label for label, name in enumerate(names)}
        )
        self._show()
        self._followed = FollowedSampler(config.follows)
        if self._followed.chosen is not None:
            self._cursor.choose(self._followed.chosen)
        record_arguments(self, {"config": config, "shuffle": parts.order.shuffle})

    @property
    def _parts(self) -> LoaderParts:
        return self._progress.parts

    @property
    def _cursor(self) -> Cursor:
        return self._progress.cursor

    @property
    def _feed(self) -> Feed:
        return self._progress.feed

    def _show(self) -> None:
        """Set the attributes that follow from its parts. Nothing is started here."""
        parts = self._parts
        order = parts.order
        self.backend, self.device = parts.backend.name, parts.stage.device
        self._finalizer = weakref.finalize(self, self._feed.close)
        sampler = sampler_over(order, self.dataset, weakref.ref(self))
        batches = LoaderBatchSampler(sampler, order.batch_size, order.drop_last)
        batches.skipped = self._skipped
        # By their own names: Ray Train's wrapper takes over what it finds in here.
        vars(self).update(sampler=sampler, batch_sampler=None if self.config.unbatched else batches)

    def _settle(self, *, thoroughly: bool = False) -> None:
        """Build the parts again if what the arguments mean has changed.

        With shard="auto" that is the rank, before the first `iter()`; for an adopted DataLoader the
        data set, between two epochs.
        """
        progress = self._progress
        auto = self.config.shard == "auto" and Shard.detect() != progress.parts.order.shard
        if auto or (not progress.cursor.taken and progress.parts.changed(thoroughly=thoroughly)):
            self._assemble_again()

    def _assemble_again(self) -> None:
        parts = assemble(self.config)  # if this raises, the old parts stay
        self._finalizer()
        self._progress.parts, self._progress.feed = parts, parts.feed(self.config)
        self._feed.record(self._progress.spans)
        self._show()

    @property  # type: ignore[override]
    def sampler(self) -> LoaderSampler:
        """This rank's indices; a DistributedSampler where the loader is one of several ranks."""
        self._settle()
        sampler: LoaderSampler = vars(self)["sampler"]
        return sampler

    @sampler.setter
    def sampler(self, value: Any) -> None:
        """Only DataLoader's own constructor gets here: afterwards it refuses the assignment."""

    @property  # type: ignore[override]
    def batch_sampler(self) -> LoaderBatchSampler | None:
        """The same, a list for each batch; None where samples are handed out one by one."""
        self._settle()
        batches: LoaderBatchSampler | None = vars(self)["batch_sampler"]
        return batches

    @batch_sampler.setter
    def batch_sampler(self, value: Any) -> None:
        """As that of `sampler`."""

    @property
    def shard(self) -> Shard:
        """The rank that it serves."""
        self._settle()
        return self._parts.order.shard

    @property
    def epoch(self) -> int:
        """The epoch under way, or the next one if none is; 0-based."""
        return self._cursor.position[0]

    def _reconfigure(self, config: LoaderConfig, asked_by: str) -> None:
        """A hook for frameworks: take another configuration. Raises ConfigurationError: the loader
        was iterated."""
        if self._settled:
            raise ConfigurationError(
                f"{asked_by}: this loader has been iterated already, by one rank. Prepare it "
                "before its first iter(), or make a new one."
            )
        self.config = config
        self._assemble_again()

    def _watch(self, watcher: Watcher) -> None:
        """A hook for frameworks: from now on `watcher` is called at each epoch and batch."""
        self._progress.watcher = watcher

    @property
    def collate_fn(self) -> Any:
        """The collate function: torch's `default_collate`, or the user's."""
        return shown_collate(vars(self)["collate_fn"])

    @collate_fn.setter
    def collate_fn(self, value: Any) -> None:
        vars(self)["collate_fn"] = value

    def check_worker_number_rationality(self) -> None:
        """DataLoader's warning of too many workers: backends choose their own."""

    def __reduce__(self) -> Any:
        return _copied, (self.config, self._cursor.start)

    def __len__(self) -> int:
        """Batches an epoch on this rank; the same on every rank and in every epoch.

        Raises:
            TypeError: an adopted IterableDataset that has no length.
        """
        self._settle()
        return self._parts.order.count()

    def __iter__(self) -> LoaderIterator:  # type: ignore[override]
        """One epoch of batches, from its start or, after `load_state_dict`, from where the state
        was taken.

        Yields:
            (images, labels): images (B, C, H, W), labels (B,) int64, on `device`; other sources
            follow their columns.

        Raises:
            DecodeError: a sample could not be read (with `on_error="raise"`), or none could replace
                it.
            WorkerError: a worker process died.
        """
        progress = self._progress
        with progress.one_thread:
            progress.iteration += 1
            if progress.cursor.taken and progress.parts.renewed:
                progress.feed.rest()
            self._begin_epoch()
            self._settle(thoroughly=True)
            if not self._settled:
                self._warn_of_duplicates()
                self.config = replace(
                    self.config, shard=progress.parts.order.shard if self.config.shard else None
                )
            self._settled = True
        return LoaderIterator(progress, self)

    def _begin_epoch(self) -> None:
        """Start the next epoch, or the one that the script has set on its own sampler."""
        config, followed = self.config, self._followed
        if followed.chosen is not None:
            self._cursor.choose(followed.chosen)
        epoch = self._cursor.begin()
        if config.sampler is not None or config.batch_sampler is not None:
            followed.set_epoch(epoch)  # which its order will do, too
        followed.note()

    def _warn_of_duplicates(self) -> None:
        """Warn, once, if there are several processes and each gets all the data though the caller
        did not ask for that."""
        world = Shard.detect().world_size
        if world > 1 and self.config.shard is None and not self._parts.order.shared:
            remedy = (
                "Give the DataLoader a DistributedSampler, or pass shard='auto' to from_dataloader"
                if self.config.adopted
                else "Make the loader after init_process_group, or pass shard='auto' to "
                "create_loader"
            )
            logger.warning(
                f"This is one of {counted(world, 'process')}, and this loader gives each of them "
                f"all {counted(len(self._parts.source), 'sample')}: they train on duplicates, and "
                f"count each sample {world} times. {remedy}; shard=fastload.Shard(0, 1) says that "
                "it is meant."
            )

    @property
    def batches_in_flight(self) -> int:
        """How many batches may be made ahead of the trainer, finished ones included."""
        return self._feed.in_flight

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter()`; the present one goes on. Optional: epochs count up
        without it.

        After `load_state_dict` in the middle of an epoch, setting that same epoch keeps the
        position.
        """
        self._cursor.choose(checked_epoch(epoch))

    def skip(self, batches: int) -> None:
        """Leave out this many batches at the start of the next epoch; they are not read.

        Raises:
            ConfigurationError: a negative number, or more than an epoch has.
        """
        if not 0 <= batches <= self._parts.order.steps:
            raise ConfigurationError(
                f"batches: must be from 0 to {len(self)}, an epoch of this loader, got {batches}."
            )
        self._cursor.skip(batches)

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is, as a small dict of plain Python values, the same on every rank.

        It counts the batches handed out, not those prefetched. A state taken after the last batch
        of an epoch, before the loop has ended, resumes at the end of that epoch: the first loop
        ends at once, and the second one starts the next epoch.
        """
        self._settle()
        epoch, step = self._cursor.position
        order = self._parts.order
        # Orders that are not ours are remembered by a hash, so that resuming into another one is
        # noticed.
        fingerprint = (
            order.fingerprint_at(epoch, step, self._feed.order_of, saving=True)
            if 0 < step < order.steps
            else None
        )
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            "order": order.reproducible()
            | ({} if fingerprint is None else {"fingerprint": fingerprint}),
            "source": self._parts.source.fingerprint,
            "recipe": self._parts.recipe_fingerprints[0],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next `iter()` gives the remaining batches of that
        epoch.

        The number of ranks may be another one if the global batch size is the same. A state of
        torchdata's StatefulDataLoader is accepted if the order is not random, since only then the
        order is the same here.

        Raises:
            StateMismatchError: the state is of another data set, seed, global batch size, order or
                recipe. The message has both sides, and the loader does not change.
        """
        self._settle()
        place = position_of_torchdata_state(state, self._parts.order, self.epoch)
        self._cursor.move(*(self._read(state) if place is None else place))
        self._followed.note()  # the order may just have set its epoch
        self._progress.iteration += 1

    def _read(self, state: Mapping[str, Any]) -> Position:
        """The place that a state of ours names, if it is of a loader like this."""
        recipe, *others = self._parts.recipe_fingerprints
        if isinstance(state, Mapping) and str(state.get("recipe")) in others:
            recipe = str(state["recipe"])
        mine = self._parts.order.reproducible() | {
            "source": self._parts.source.fingerprint,
            "recipe": recipe,
        }
        (epoch, step), fingerprint, sampler = read_state(state, mine, self._parts.order.steps)
        order, order_of = self._parts.order, self._feed.order_of
        if (
            fingerprint is not None
            and order.fingerprint_at(epoch, step, order_of, saving=False) != fingerprint
        ):
            raise StateMismatchError(
                f"state: the sampler {sampler} gives another order for epoch {epoch} than it gave "
                "when the state was taken, so the remaining batches cannot be known. Use a sampler "
                "whose order follows from set_epoch(), or shuffle=True; for one that looks at what "
                "the trainer does, save states between two epochs."
            )
        return epoch, step

    def stats(self) -> Stats:
        """Counts and times so far; a snapshot."""
        decoded = getattr(self._parts.backend, "decoded", {})  # of those who count
        return replace(self._progress.stats, substituted=self._feed.substituted, decoded=decoded)

    def record(self, spans: SpanLog | None) -> None:
        """Write what each batch spends its time on to a log, from now on; None: no longer.

        Tracks: "backend", where each batch is from being asked for to being taken; "loader", the
        stages in the loader's own thread (submit, receive, substitute, device stage); "copy", the
        device stage on the GPU's own timeline; "trainer", the time inside `next`. Each span has
        `epoch` and `step` (0-based).
        """
        self._progress.spans = spans
        self._feed.record(spans)

    def explain(self) -> str:
        """For a person: which backend was chosen and why, what was measured, and where each
        transform runs."""
        self._settle()
        rows = {
            **self._parts.explanation,
            "order": self._parts.order.explain(),
            **self._parts.backend.explain(),
        }
        width = max(map(len, rows))
        return "\n".join(
            f"{'' if line else key:<{width}}  {text}"
            for key, texts in rows.items()
            for line, text in enumerate(texts.splitlines() or [""])
        )

    def close(self) -> None:
        """Stop threads and workers and free the buffers; batches handed out stay valid. May be
        called twice."""
        self._progress.iteration += 1
        self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    if not TYPE_CHECKING:  # a type checker is to know the attributes that there are

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        return (
            f"<fastload.Loader: {self._parts.explanation['source'].splitlines()[0]}; batch size "
            f"{self.batch_size}, {self._parts.order.describe()}; backend {self.backend}, on "
            f"{self.device}>"
        )


def _copied(config: LoaderConfig, position: tuple[int, int]) -> Loader:
    loader = Loader(config)
    loader._progress.cursor.move(*position)
    return loader
