"""`create_loader`, and the Loader that it makes: the only iterator that a user sees."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from fastload.arguments import checks_names, integer
from fastload.backends.base import BackendOptions
from fastload.compat.dataloader import LoaderSampler, ShownAsDataLoader, stand_in
from fastload.compat.handover import nothing_read
from fastload.errors import ConfigurationError, OnError, counted
from fastload.loader.build import LoaderParts, assemble
from fastload.loader.config import (
    MOVED_OF_CREATE,
    CollateColumns,
    LoaderConfig,
    collates_of,
    ordering_of,
    seed_of,
    workers_of,
)
from fastload.loader.feed import Feed
from fastload.loader.iterator import Cursor, LoaderIterator, Progress, Stats
from fastload.loader.rules import refuse_beside_batches, refuse_of_dataloader
from fastload.loader.states import STATE_VERSION, LoadedOrder, checked_epoch, no_place, read_state
from fastload.recipe import Recipe
from fastload.sampler import Order, Ordering, Position, Shard, announce_epoch
from fastload.sources.base import Source
from fastload.spans import SpanLog

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from fastload.loader.adoption import Adoption
    from fastload.loader.following import FollowedSampler
    from fastload.sampler import Compared
    from fastload.sampler.mesh import MeshShard

logger = logging.getLogger("fastload")


@checks_names(MOVED_OF_CREATE)
def create_loader(
    source: Any,
    batch_size: int = 1,
    *,
    shuffle: bool = False,
    order: Ordering | None = None,
    drop_last: bool = False,
    transform: Callable[..., Any] | Recipe | None = None,
    batch_transform: Callable[..., Any] | None = None,
    backend: str = "auto",
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    pin_memory: bool | None = None,
    sampler: Iterable[int] | None = None,
    collate_fn: Callable[[list[Any]], Any]
    | Literal["detr", "torchvision", "yolo", "ultralytics"]
    | CollateColumns
    | None = None,
    seed: int = 0,
    shard: Shard | MeshShard | DeviceMesh | ProcessGroup | str | Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.channels_last,
    on_error: OnError = "raise",
    options: BackendOptions | None = None,
    split: str | None = None,
    generator: torch.Generator | None = None,
    batch_sampler: Iterable[list[int]] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: Any = None,
    timeout: float = 0.0,
    persistent_workers: bool = True,
    in_order: bool = True,
    pin_memory_device: str = "",
) -> Loader:
    """Make a Loader. Names and defaults are those of torch.utils.data.DataLoader where it has them.

    Args:
        source: a folder of classes, a folder with `images/` and `masks/`, images with a table of
            their labels, CIFAR or IDX files, `.tar` shards, a built cache, arrays or tensors (a
            tuple (images, labels), or a dict), `.npy` files, any map-style Dataset, or a streaming
            data set of Hugging Face's. Or what `open_source` has opened, which says how: by its
            `format`, with `masks`, with 16 bits (`mode`), `strict`, `assume_plain`.
        batch_size: samples a batch on this rank.
        shuffle: a new order every epoch, from (seed, epoch).
        order: in place of `shuffle`, another order that changes every epoch. `Buckets` has batches
            of one image size each, of several, in the order inside it. A `BlockShuffle` keeps
            neighbours near each other, which are then read from a store by one request. With a
            `NodePlacement` each node reads a part of the data only, a tenth of it another one in
            each epoch; for data that the disk or memory of a node does not hold whole.
        drop_last: leave out the last, incomplete global batch. If False, every sample comes exactly
            once an epoch, and the last batch is divided among the ranks. If that batch has fewer
            samples than there are ranks and the order is not shuffled: with `shard=Shard(...)` some
            ranks get an empty batch (B = 0); with `shard=None` or "auto" they get samples of the
            batch before it.
        transform: torchvision transforms (v2 or v1), a Recipe, or any function of one sample's
            image. None: the dataset's own transform, or else uint8 pixels without changes.
        batch_transform: torchvision v2.MixUp or CutMix, whose random numbers then depend on (seed,
            epoch, batch) alone; or any function of the batch's parts. Runs on the device.
        backend: "auto", "torch", "turbojpeg", "cache", "dali", or one registered by a third party.
        num_workers: how many threads or processes. None: chosen for this machine.
        prefetch_factor: batches that each worker makes ahead. None: chosen by the backend.
        pin_memory: use page-locked host memory. None: if `device` is a GPU.
        sampler: the indices of this rank, in order; in place of `shuffle`. One of a class that is
            not known is read as far ahead as a DataLoader with these `num_workers` and
            `prefetch_factor` reads it, None counting as 0 workers: it may look at what the trainer
            does.
        collate_fn: makes a batch from a list of samples. Only a backend that runs Python on single
            samples can call it. Or the form of batches of images with boxes (`docs/detection.md`):
            "torchvision", a list of images and a list of dicts; "detr", images, a mask of padding
            and a list of dicts; "yolo", images and (T, 6) targets; "ultralytics", the dict of its
            trainer. Or a `CollateColumns` of a function of the columns of a finished batch. None: a
            list or dict of the columns.
        seed: the order and every random choice follow from it.
        shard: this process's rank among those that divide the data: a Shard; or, where groups of
            ranks get the same samples, the ranks that divide them: a DeviceMesh (`mesh["dp"]`), a
            process group, names of a mesh's dimensions, or a `MeshShard`. None: from Accelerate's
            mesh, torch.distributed or torchrun's environment, else 0 of 1. "auto": the same, but
            read at the first `iter()`, for loaders that are made before `init_process_group`.
        device: where the batches are delivered.
        dtype: dtype of the images delivered; values keep their range. None: the transform's (uint8
            if it converts nothing).
        memory_format: memory format of the images delivered.
        on_error: "raise"; or "substitute": replace a sample that cannot be read by another sample
            of this rank, log it once, and count it in `stats()`.
        options: the chosen backend's options (a frozen dataclass), or a `BackendOptions`, which
            holds the options that all backends have, such as `tune`, for backend="auto".
        split: which part of a source that has several: "train", "val", "test". None: all of it; of
            CIFAR, IDX and archives of splits, the training part.
        generator: a torch.Generator whose seed is taken in place of `seed`; no number is drawn from
            it.
        batch_sampler: this rank's own batches, lists of indices, in place of batch_size, shuffle,
            sampler, drop_last.
        worker_init_fn: called in each worker process with its number from 0, as by DataLoader. A
            backend that uses threads has no such processes, and `explain()` says so.
        multiprocessing_context: how worker processes are started, as in DataLoader: "fork",
            "spawn", "forkserver", or a context of multiprocessing.
        timeout: how long a batch of worker processes is waited for, as in DataLoader [seconds]; 0:
            for ever.
        persistent_workers: must be True: workers live as long as the Loader.
        in_order: must be True: batches come in order.
        pin_memory_device: must be ""; give `device` instead.

    Returns:
        A Loader that yields [images, labels] on `device`: images (B, C, H, W), labels (B,) int64,
        masks (B, H, W) uint8. A batch is a list where a sample is a tuple, as torch's
        `default_collate` makes it, and a dict where the source has named columns.

    Raises:
        ConfigurationError: an argument is wrong, or cannot have an effect.
        SourceError: the data cannot be opened as a data set.
        UnsupportedTransformError: the backend asked for cannot run this transform; the message
            names those that can.
        BackendUnavailableError: the backend's package is not installed.
    """
    refuse_of_dataloader(
        persistent_workers=persistent_workers,
        in_order=in_order,
        pin_memory_device=pin_memory_device,
    )
    if batch_sampler is not None:
        refuse_beside_batches(
            batch_size=batch_size,
            shuffle=shuffle,
            order=order,
            sampler=sampler,
            drop_last=drop_last,
        )
    of_samples, of_columns = collates_of(collate_fn)
    config = LoaderConfig(
        source=source,
        split=split,
        batch_size=batch_size,
        order=ordering_of(shuffle, order),
        sampler=sampler,
        batch_sampler=batch_sampler,
        drop_last=drop_last,
        seed=seed_of(seed, generator),
        shard=shard,
        transform=transform,
        batch_transform=batch_transform,
        collate_fn=of_samples,
        collate=of_columns,
        backend=backend,
        options=options,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        workers=workers_of(worker_init_fn, multiprocessing_context, timeout),
        on_error=on_error,
        pin_memory=pin_memory,
        device=device,  # type: ignore[arg-type]  # it checks it, and makes it one
        dtype=dtype,
        memory_format=memory_format,
    )
    return Loader(config)


class Loader(ShownAsDataLoader):
    """Iterates over batches of a source, epoch after epoch. Made by `create_loader` and
    `from_dataloader`.

    Iterating is lazy: nothing is read, no thread started before the first `next`. An epoch may be
    left at any batch; the next `iter()` starts the next epoch. Only one iterator is alive at a
    time: making a new one ends the old one. Epochs count up; `set_epoch` chooses another one.

    `isinstance(loader, DataLoader)` holds and it has all attributes of a DataLoader, but
    iterates with code of its own. A Loader can be pickled and deep-copied before it is iterated.
    The copy of one that was iterated starts with the first batch of the epoch.
    """

    config: LoaderConfig
    """The arguments it was made from."""
    backend: str
    device: torch.device
    classes: tuple[str, ...] | None
    """Names of the classes, by label; None where the data have none."""
    class_to_idx: dict[str, int] | None
    """The label by name."""

    _own = frozenset(
        (
            *("config", "existing", "_finalizer", "_followed", "_progress", "_seen", "_settled"),
            "_telling",
        )
    )

    def __init__(
        self, config: LoaderConfig, parts: LoaderParts | None = None, **arguments: Any
    ) -> None:
        """
        Args:
            config: the arguments of `create_loader` or `from_dataloader`.
            parts: what was built for this configuration; None: it is built here.
            arguments: of a DataLoader, which are refused.

        Raises:
            ConfigurationError: it was called with the arguments of DataLoader.
        """
        if arguments or not isinstance(config, LoaderConfig):
            raise ConfigurationError(
                "Loader: it is made by fastload.create_loader(source, batch_size, ...), or by "
                "fastload.from_dataloader(DataLoader(...)) from the arguments of a DataLoader."
            )
        adoption = config.adoption
        seen = None if adoption is None else adoption.seen()
        parts = parts or assemble(config)
        super().__init__(
            _stand_in(config, parts.source, parts.order) if adoption is None else adoption.existing,
            theirs=adoption is not None,
        )
        self.config = config
        self._seen = seen
        """What its DataLoader said when `config` was read from it; None: it is not read again."""
        self._settled = False
        """Whether the rank can no longer change, because an iterator was made."""
        self._progress = Progress(parts, parts.feed(config.on_error))
        self._telling = nullcontext() if config.compare is None else _telling(config.compare)
        self._show_parts()
        self._follow()

    @property
    def _parts(self) -> LoaderParts:
        return self._progress.parts

    @property
    def _cursor(self) -> Cursor:
        return self._progress.cursor

    @property
    def _feed(self) -> Feed:
        return self._progress.feed

    def _show_parts(self) -> None:
        """Set the attributes that follow from its parts. Nothing is started here."""
        parts, config = self._parts, self.config
        names = parts.source.classes
        numbers = None if names is None else {name: label for label, name in enumerate(names)}
        shown = {
            "backend": parts.backend.name,
            "device": parts.stage.device,
            "classes": names,
            "class_to_idx": numbers,
        }
        # A class of the user's may have attributes of these names, which scripts mean.
        vars(self).update((name, shown[name]) for name in shown if not self._is_theirs(name))
        self._finalizer = weakref.finalize(self, self._feed.close)
        self._show(parts.order, unbatched=config.unbatched, shared=config.shared)

    def _follow(self) -> None:
        """Follow the epochs that the script sets on the sampler, or data set, of `config`."""
        config = self.config
        follows = config.source if config.sets_epochs else config.follows
        self._followed: FollowedSampler | None = None
        if follows is None:
            return
        from fastload.loader.following import FollowedSampler

        self._followed = FollowedSampler(follows)
        if self._followed.chosen is not None:
            self._cursor.choose(self._followed.chosen)

    def _settle(self) -> None:
        """Build the parts again if what they were made of says something else now: the DataLoader
        that was adopted, the length of the data set, with shard="auto" the rank. Between two epochs
        only. Contents are compared when the first batch was asked for, see `_contents_changed`."""
        if self._progress.cursor.taken:
            return
        adoption, seen = self.config.adoption, self._seen
        if adoption is not None and seen is not None:
            from fastload.loader.adoption import is_same

            if not is_same(seen, adoption.seen()):
                self._read_again(adoption)
                return
        if (
            self.config.shard == "auto"
            and self.config.shard_here().shard != self._parts.order.shard
        ) or self._changed(thoroughly=False):
            self._assemble_again()

    def _read_again(self, adoption: Adoption) -> None:
        """Serve what the DataLoader says now. Raises what is wrong with that; then it is read again
        the next time."""
        followed, seen, config = self.config.follows, adoption.seen(), adoption.config()
        if self._settled and config.shard == "auto":
            config = replace(config, shard=self.config.shard)
        before, self.config = self.config, config
        try:
            self._assemble_again()
        except BaseException:
            self.config = before
            raise
        self._seen = seen
        if config.follows is not followed:
            self._follow()

    def _changed(self, *, thoroughly: bool) -> bool:
        changed = self._parts.changed
        return changed is not None and changed(thoroughly=thoroughly)

    def _contents_changed(self) -> bool:
        """Whether the data set or the transforms hold something else than is served, which is then
        built again. It looks at each sample's entry in lists: 50 ms for a million."""
        if not self._changed(thoroughly=True):
            return False
        self._assemble_again()
        return True

    def _check_within(self) -> None:
        adoption, config = self.config.adoption, self.config
        cut = None if adoption is None else adoption.cut()
        if cut is not None and cut != (config.batch_size, config.drop_last):
            raise ConfigurationError(
                f"batch_sampler: its (batch_size, drop_last) became {cut} in the middle of an "
                f"epoch that had started with {config.batch_size, config.drop_last}. Change them "
                "between two epochs."
            )

    def _assemble_again(self) -> None:
        parts = assemble(self.config)  # if this raises, the old parts stay
        place = self._cursor.position
        if carried := self._parts.order.carried(*place):
            parts.order.go_on(carried, place, changed=False)
        self._finalizer()
        self._progress.parts, self._progress.feed = parts, parts.feed(self.config.on_error)
        self._feed.record(self._progress.spans)
        self._show_parts()

    @property
    def shard(self) -> Shard:
        """The rank that it serves."""
        self._settle()
        return self._parts.order.shard

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of all images that batches of an order with sizes (`Buckets`,
        `MultiScale`, `Progressive`) may have, for what is compiled for each; () where the transform
        alone says it."""
        return self._parts.order.shapes

    @property
    def loss_weight(self) -> float:
        """What the mean loss over the batch handed out last is to be multiplied by, so that the
        mean over the ranks (which DDP takes of gradients) is the mean over the samples of the
        global batch, or over the tokens of packed sequences: 1 where all ranks have as many, as
        they have but for the last batch of an epoch, unless the order lets them differ
        (`Balanced(at_most=...)`, `Budget`, `Packed`); 0 of an empty batch."""
        return self._progress.loss_weight

    @property
    def epoch(self) -> int:
        """The epoch under way, or the next one if none is; 0-based. That of the DataLoader, if its
        class counts epochs."""
        theirs = self._is_theirs("epoch")
        return int(self.existing.epoch) if theirs else self._cursor.position[0]  # type: ignore[attr-defined]

    def _handed_over(self) -> DataLoader[Any]:
        """A hook for frameworks that make a DataLoader of another one: that other one. It has all
        ranks' samples, which the framework shares, where `create_loader` was given no rank."""
        config, parts = self.config, self._parts
        if config.adopted:
            return self.existing
        if config.streamed:
            from fastload.loader.streams import dataloader_of

            return dataloader_of(config, Shard())
        order = parts.order
        if not isinstance(config.shard, Shard) and config.sampler is None:
            order = replace(order, shard=Shard())  # type: ignore[type-var]  # orders are dataclasses
        dataloader = _stand_in(config, parts.source, order)
        if isinstance(dataloader.sampler, LoaderSampler):
            dataloader.sampler.set_epoch(self.epoch)
        return dataloader

    def _adopted_again(self, dataloader: DataLoader[Any], device: torch.device | None) -> Any:
        """A hook for the same: what they have made of it, as a Loader with the arguments of this
        one. `device`: where they will copy the batches."""
        from fastload.loader.adoption import config_of, made_again

        config, adoption = self.config, self.config.adoption
        if adoption is not None:
            arguments = dict(adoption.arguments)
            if adoption.is_shared_by(dataloader):
                arguments["shard"] = None
            return Loader(config_of(arguments, dataloader, device))
        if device is not None and config.device.type == "cpu":
            config = replace(config, device=device)
        adopted = made_again(config, dataloader)
        if self._parts.order.own_batches and adopted.order != config.order:
            raise ConfigurationError(
                f"order: batches of {type(config.order).__name__} are dealt to ranks by fastload, "
                f"and {type(dataloader).__name__} deals them by itself. Make the loader after "
                "init_process_group, or with shard='auto', so that the framework leaves it."
            )
        again = Loader(adopted)
        again.set_epoch(self.epoch)
        return again

    def __reduce__(self) -> Any:
        return _copied, (self.config, self._cursor.start)

    def __len__(self) -> int:
        """Batches of the epoch under way, or of the next one if none is, on this rank; the same on
        every rank. Only orders that say so (`BatchSize`) have another number in another epoch. Of
        an adopted DataLoader its own length.

        Raises:
            TypeError: an adopted IterableDataset that has no length.
        """
        self._settle()
        theirs = self.config.adopted and not self.config.shared
        return len(self.existing) if theirs else self._parts.order.count(self._cursor.position[0])

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
            SourceError: an archive was written again since it was opened; a file has changed since
                the cache that is served was built.
            StateMismatchError: ranks that compare what they are about to give
                (`MeshShard(compare=...)`) differ, or one of them has raised an error.
        """
        progress = self._progress
        nothing_read()
        with progress.one_thread, self._telling:
            progress.iteration += 1
            if progress.cursor.taken and progress.parts.renewed:
                progress.feed.rest()
            if progress.parts.archives is not None:
                progress.parts.archives.check()
            if (check := getattr(progress.parts.backend, "before_epoch", None)) is not None:
                check()
            self._begin_epoch()
            self._settle()
            self._ask_as_a_dataloader()
            if not self._settled:
                if self.config.shard is None and (world := Shard.detect().world_size) > 1:
                    self._warn_of_duplicates(world)
                self.config = replace(
                    self.config, shard=progress.parts.order.shard if self.config.shard else None
                )
            self._settled = True
        return (LoaderIterator if self.config.compare is None else _comparing)(progress, self)

    def _ask_as_a_dataloader(self) -> None:
        """What a DataLoader does at an `iter()`, in its order: it takes an iterator of a batch
        sampler of the script's own, and draws the seed of workers."""
        if self.config.adoption is not None and self._parts.stream is None:
            self._parts.order.iterate(self._cursor.epoch, self._cursor.step)
            self.config.adoption.draw()

    def _begin_epoch(self) -> None:
        """Start the next epoch, or the one that the script has set on its own sampler."""
        config, followed = self.config, self._followed
        if followed is not None and followed.chosen is not None:
            self._cursor.choose(followed.chosen)
        epoch = self._cursor.begin()
        if followed is not None:
            if config.sets_epochs or (config.own_sampler is not None and not config.adopted):
                followed.set_epoch(epoch)  # The order sets it again when it reads the sampler.
            followed.note()

    def _warn_of_duplicates(self, world: int) -> None:
        """Warn, once, if each of so many processes gets all the data though the caller did not ask
        for that."""
        if not self._parts.order.shared:
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
        self._tell_epoch(int(epoch))
        if self._parts.stream is not None:
            self._parts.stream.choose(int(epoch))
            if self._followed is not None:
                self._followed.note()

    def _tell_epoch(self, epoch: int) -> None:
        """Set it where the script would, if it had the DataLoader: by a method of its class, else
        on the samplers."""
        if self.config.adopted:
            if callable(theirs := getattr(self.existing, "set_epoch", None)):
                theirs(epoch)
            else:
                announce_epoch(epoch, self.existing.sampler, self.existing.batch_sampler)
            if self._followed is not None:
                self._followed.note()

    def set_weights(
        self, weights: Any, *, from_step: int | None = None, group: ProcessGroup | None = None
    ) -> None:
        """Draw samples by other weights, of a loader with `order=fastload.WeightedShuffle()`: from
        the next batch on, or from a later step of the epoch. What was made ahead is dropped, and
        made again; weights that were set for later steps are dropped, too. States have the weights.

        Where ranks divide the data, all of them must call this, at the same step with the same
        weights: they are compared over the process group, in this thread, as in any collective.

        Args:
            weights: (samples,): one of at least 0 for each sample of the data set, array or tensor;
                kept as float32. A sample of twice the weight comes twice as often.
            from_step: the step (0-based, of the epoch under way, or of the one that begins next)
                from which on they hold; the number of steps of the epoch is the start of the next
                one. None: the next batch.
            group: the ranks to compare with. None: all of `torch.distributed`.

        Raises:
            ConfigurationError: samples are not drawn by weights; these are negative, not finite,
                all zero or not one for each sample; the step is one of the past, or beyond the
                epoch; or another rank has other weights, or is elsewhere. All ranks raise it then,
                and nothing changes.
        """
        from fastload.loader.agreement import agreed

        self._settle()
        order, cursor = self._parts.order, self._cursor
        epoch, step = cursor.position
        if cursor.taken:  # the epoch under way may go on, whatever is chosen for the next `iter()`
            epoch, step = min((epoch, step), (cursor.epoch, cursor.step))
        with agreed(order.shard, group, "set_weights") as said:
            if step >= order.steps_in(epoch):
                epoch, step = epoch + 1, 0
            checked = order.sample_weights(weights)
            steps = order.steps_in(epoch)
            first = step if from_step is None else integer("from_step", from_step, None)
            if not step <= first <= steps:
                raise ConfigurationError(
                    f"from_step: must be from {step}, the next batch, to {steps}, the end of epoch "
                    f"{epoch}, got {first}."
                )
            place = (epoch, first) if first < steps else (epoch + 1, 0)
            said.update(weights=checked.digest, epoch=place[0], step=place[1])
        order.change(checked, place)
        self._feed.forget()

    def skip(self, batches: int) -> None:
        """Leave out this many batches at the start of the next epoch; they are not read.

        Raises:
            ConfigurationError: no int, a negative number, or more than an epoch has.
        """
        batches = integer("batches", batches, None)
        steps = self._parts.order.steps_in(self._cursor.next_epoch)
        if not 0 <= batches <= steps:
            raise ConfigurationError(
                f"batches: must be from 0 to {steps}, an epoch of this loader, got {batches}."
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
        order, loaded = self._parts.order, self._progress.loaded
        # Orders that are not ours are remembered by a hash, so that resuming into another one is
        # noticed.
        fingerprint = None
        if loaded is not None and loaded.position == (epoch, step):
            fingerprint = loaded.fingerprint
        elif 0 < step < order.steps_in(epoch) or (order.open_ended and step > order.steps):
            fingerprint = order.fingerprint_at(epoch, step, self._feed.order_of, saving=True)
        stream, served = self._parts.stream, getattr(self._parts.backend, "next", (0, 0))
        inside = {} if stream is None else stream.state((epoch, step), served)
        carried = order.carried(epoch, step)
        reproducible = order.reproducible()
        if fingerprint is not None or "sampler" in reproducible:
            # There at the start of an epoch, too: torch.distributed.checkpoint loads the keys that
            # a new loader has.
            reproducible["fingerprint"] = fingerprint
        return (
            {
                "version": STATE_VERSION,
                "epoch": epoch,
                "step": step,
                "order": reproducible,
                "source": self._parts.source.fingerprint,
                "recipe": self._parts.recipe_fingerprints[0],
            }
            | ({"dataset": inside} if inside else {})
            | ({"carried": carried} if carried else {})
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: the next `iter()` gives the remaining batches of that
        epoch.

        The number of ranks may be another one if the global batch size is the same. A state of
        torchdata's StatefulDataLoader is accepted if the order is not random, since only then the
        order is the same here.

        Raises:
            StateMismatchError: the state is of another data set, seed, global batch size, order or
                recipe. The message has both sides, and the loader does not change. Whether a
                sampler of your own gives the same samples is known when it is read, after the
                script has seeded its generator or set its epoch: then the first `next` raises it.
        """
        from fastload.compat.torchdata import position_of_torchdata_state

        self._settle()
        place = position_of_torchdata_state(state, self._parts.order, self._cursor.position[0])
        place = self._read(state) if place is None else place
        if self._parts.stream is not None:
            self._parts.stream.load(state.get("dataset", {}), place)
        self._cursor.move(*place)
        if self._followed is not None:
            self._followed.note()  # the order may just have set its epoch
        self._progress.iteration += 1

    def _read(self, state: Mapping[str, Any]) -> Position:
        """The place that a state of ours names, if it is of a loader like this."""
        recipe, *others = self._parts.recipe_fingerprints
        if isinstance(state, Mapping) and str(state.get("recipe")) in others:
            recipe = str(state["recipe"])
        mine = self._parts.identity() | {"recipe": recipe}
        order, here = self._parts.order, self._cursor.position
        kept = order.carried(*here)

        def steps_in(epoch: int) -> int:
            # Where a mix has gone on after another one, what it carries says how epochs are cut.
            return sys.maxsize if order.open_ended or kept else order.steps_in(epoch)

        position, fingerprint, sampler, changed = read_state(
            state, mine, steps_in, order.may_differ
        )
        if kept:
            position = order.go_on(state.get("carried"), position, changed=changed)
            steps = order.steps_in(position[0])
            if position[1] > steps:
                order.go_on(kept, here, changed=False)
                raise no_place(*position, steps)
            self._feed.forget()
        loaded = None if fingerprint is None else LoadedOrder(position, fingerprint, str(sampler))
        if loaded is not None and order.ahead:
            loaded.check(order, self._feed.order_of)
            loaded = None
        self._progress.loaded = loaded
        return position

    def stats(self) -> Stats:
        """Counts and times so far; a snapshot."""
        backend = self._parts.backend
        decoded = getattr(backend, "decoded", {})  # of those who count
        on_device = getattr(backend, "on_device", None)
        return replace(self._progress.stats, decoded=decoded, on_device=on_device)

    def record(self, spans: SpanLog | None) -> None:
        """Write what each batch spends its time on to a log, from now on; None: no longer.

        Tracks: "backend", where each batch is from being asked for to being taken; "loader", the
        stages in the loader's own thread (start, result, substitute, device stage); "copy", the
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
            **self._parts.explain(),
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

    def __repr__(self) -> str:
        return (
            f"<fastload.Loader: {self._parts.explain()['source'].splitlines()[0]}; batch size "
            f"{self._parts.order.batch_size}, {self._parts.order.describe()}; backend "
            f"{self._parts.backend.name}, on {self._parts.stage.device}>"
        )


def _stand_in(config: LoaderConfig, source: Source, order: Order) -> DataLoader[Any]:
    """What a Loader that was not made from a DataLoader has in its place."""
    return stand_in(
        source,
        config.source if isinstance(config.source, Dataset) else None,
        order,
        unbatched=config.unbatched or config.batch_sampler is not None,
        arguments={"collate_fn": config.collate_fn or default_collate, "pin_memory": config.pinned},
    )


def _telling(compared: Compared) -> AbstractContextManager[None]:
    from fastload.loader.comparing import Telling

    return Telling(compared)


def _comparing(progress: Progress, loader: Loader) -> LoaderIterator:
    from fastload.loader.comparing import ComparingIterator

    assert loader.config.compare is not None
    return ComparingIterator(progress, loader, loader.config.compare)


def _copied(config: LoaderConfig, position: tuple[int, int]) -> Loader:
    loader = Loader(config)
    loader._progress.cursor.move(*position)
    return loader
