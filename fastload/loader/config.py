"""What a Loader is to be: the arguments of `create_loader`, checked. Strings, defaults and "auto"
end here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from fastload.arguments import flag, integer, require
from fastload.backends.base import BackendOptions, Place, WorkerSettings
from fastload.errors import ConfigurationError, OnError, counted
from fastload.recipe import Recipe
from fastload.recipe.mix import lower_batch_transform
from fastload.sampler import Compared, Ordering, Shard, ShardHere, Shuffle, Tail
from fastload.sources.base import Opened
from fastload.sources.given import is_huggingface_stream

logger = logging.getLogger("fastload")

# Threads or processes of a loader: a million take all memory.
MOST_WORKERS = 4096
# Batches that a worker makes ahead, all of them held in memory: 1,000 of 256 images of 224 pixels
# are 38 GB. A trainer that waits with tens of them waits with thousands, too.
MOST_AHEAD = 1000
_OF_OPTIONS = "options=fastload.BackendOptions({0}=...), or the options of a backend with {0}=..."
_OF_SOURCE = "create_loader(fastload.open_source(source, {}=...), ...)"
MOVED = {name: _OF_OPTIONS.format(name) for name in ("tune", "place")}
"""Arguments of earlier versions, and what to write in their place: of `from_dataloader`."""
FORMS = "'torchvision', 'detr', 'yolo' or 'ultralytics'"
"""What `collate_fn=` takes by name: the forms of batches of fastload/loader/collate.py."""
MOVED_OF_CREATE = (
    MOVED
    | {
        name: _OF_SOURCE.format(name)
        for name in ("strict", "masks", "format", "mode", "assume_plain")
    }
    | {
        "placement": "order=fastload.NodePlacement(), without shuffle",
        "collate": f"collate_fn={FORMS}; of a function of whole columns "
        "collate_fn=fastload.CollateColumns(function)",
    }
)
"""Those of `create_loader`."""


@dataclass(frozen=True)
class CollateColumns:
    """A function of the columns of a finished batch, for `collate_fn=`. A function that is given
    there by itself gets a list of samples.

    Raises:
        ConfigurationError: it is no function.
    """

    function: Callable[[dict[str, Any]], Any]
    """Gets the columns by name, tensors of B rows or `Ragged` of tensors, on `device`, and returns
    what the trainer gets. It is called by the thread that makes the batch."""

    def __post_init__(self) -> None:
        require("CollateColumns", callable(self.function), "given a function", self.function)


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The arguments of `create_loader`, which documents them, and what a DataLoader adds.

    The constructor checks the arguments without looking at the data, and brings them to one form.

    Raises:
        ConfigurationError: an argument is wrong or cannot have an effect; the message names it.
    """

    source: Any
    """What was given; of what `open_source` has opened, what that was given."""
    opened: Opened | None = None
    """What `open_source` has opened. None: it has not, or somebody has changed what it gave."""
    split: str | None = None
    batch_size: int = 1
    order: Ordering | None = None
    """None: as they come, or by a sampler."""
    drop_last: bool = False
    transform: Callable[..., Any] | Recipe | None = None
    batch_transform: Any = None
    backend: str = "auto"
    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    sampler: Iterable[int] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    """A function of single samples."""
    collate: str | Callable[[dict[str, Any]], Any] | None = None
    """The form of batches of columns, or a function of them."""
    seed: int = 0
    shard: Any = None
    """A Shard, "auto" or None; a mesh, group or name is made a Shard."""
    broadcast: Any = None
    """The process group whose first rank makes the batches of all, see `MeshShard`."""
    compare: Compared | None = None
    """The ranks that compare what they are about to give, see `MeshShard`."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.channels_last
    on_error: OnError = "raise"
    options: BackendOptions | None = None
    assume_plain: bool = False
    """See `open_source`."""

    adoption: Any = None
    """The DataLoader that it was read from, an `Adoption` of `fastload.loader.adoption`; None:
    there was none. Then samples are `source[index]` for every source; `num_workers` and
    `prefetch_factor` were chosen for worker processes, so that a backend that uses threads chooses
    its own; and without a shard every rank gets all samples."""
    batch_sampler: Any = None
    """The user's own batch sampler, whose batches are served; `batch_size` and `drop_last` then
    have no effect."""
    unbatched: bool = False
    """Whether each sample is handed out on its own, as by a DataLoader with batch_size=None."""
    tail: Tail | None = None
    """What happens to samples that cannot be divided evenly among the ranks. None: each is served
    once; no rank gets an empty batch if that is possible, unless `shard` is a Shard."""
    interleaved: bool = False
    """How an epoch is divided among the ranks, see `EpochOrder`."""
    follows: Any = None
    """The user's sampler; once the script has set its `epoch`, `iter()` starts that epoch."""
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    """How worker processes are started, where the backend has some."""
    notes: tuple[str, ...] = ()
    """What the user should know about these choices, for `explain()`."""

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_size", 1),
            ("num_workers", 0),
            ("prefetch_factor", 1),
            ("seed", None),
        ):
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "seed"):
                self._settle(name, integer(name, value, least))
        if (self.num_workers or 0) > MOST_WORKERS:
            raise ConfigurationError(
                f"num_workers: must be at most {MOST_WORKERS:,}, got {self.num_workers:,}."
            )
        if (self.prefetch_factor or 0) > MOST_AHEAD and not self.adopted:
            raise ConfigurationError(
                f"prefetch_factor: must be at most {MOST_AHEAD:,}, got {self.prefetch_factor:,}: "
                "so many batches are held in memory, and a few are enough to keep a trainer busy."
            )
        for name in ("drop_last", "assume_plain"):
            self._settle(name, flag(name, getattr(self, name)))
        if isinstance(self.source, Opened) and self.source.asked is not None:
            self._settle("opened", self.source)
            self._settle("source", self.source.asked.spec)
            self._settle("assume_plain", self.opening.get("assume_plain", False))
        if not isinstance(self.shard, Shard):
            self._settle_shard()
        layouts = (torch.channels_last, torch.contiguous_format)
        require(
            "dtype",
            self.dtype is None or isinstance(self.dtype, torch.dtype),
            "a torch.dtype",
            self.dtype,
        )
        what = f"a torch.memory_format, {layouts[0]} or {layouts[1]}"
        require("memory_format", self.memory_format in layouts, what, self.memory_format)
        self._settle("collate_fn", None if self.collate_fn is default_collate else self.collate_fn)
        require(
            "on_error", self.on_error in get_args(OnError), "'raise' or 'substitute'", self.on_error
        )
        for name, what in (("sampler", "indices"), ("batch_sampler", "lists of indices")):
            given = getattr(self, name)
            good = given is None or hasattr(given, "__iter__") or hasattr(given, "__getitem__")
            require(name, good, f"an iterable of {what}", given)
        good = self.options is None or isinstance(self.options, BackendOptions)
        require("options", good, "the options of a backend, or a BackendOptions", self.options)
        if self.sampler is not None and self.order is not None:
            argument = "shuffle" if self.order == Shuffle() else "order"
            raise ConfigurationError(
                f"{argument}: leave it out where a sampler is given, which decides the order."
            )
        if self.tail is None:
            self._settle("tail", "exact" if isinstance(self.shard, Shard) else "filled")
        if self.batch_transform is not None:
            self._settle("batch_transform", lower_batch_transform(self.batch_transform))
        self._settle("device", _device(self.device))

    @property
    def opening(self) -> Mapping[str, Any]:
        """What `open_source` was asked for, but defaults."""
        asked = None if self.opened is None else self.opened.asked
        return {} if asked is None else asked.options

    @property
    def tune(self) -> bool:
        """See `BackendOptions`."""
        return self.options is not None and self.options.tune

    @property
    def place(self) -> Place:
        """See `BackendOptions`."""
        return "auto" if self.options is None else self.options.place

    @property
    def last_epoch(self) -> int | None:
        """See `BackendOptions`."""
        return None if self.options is None else self.options.last_epoch

    @property
    def shown_collate(self) -> str:
        """What `collate` is, for people; empty: None was given."""
        given = self.collate
        if given is None:
            return ""
        return (
            repr(given) if isinstance(given, str) else getattr(given, "__qualname__", "a function")
        )

    @property
    def adopted(self) -> bool:
        """Whether it was read from a DataLoader."""
        return self.adoption is not None

    @property
    def existing(self) -> DataLoader[Any] | None:
        """The DataLoader that it was read from."""
        existing: DataLoader[Any] | None = getattr(self.adoption, "existing", None)
        return existing

    @property
    def own_sampler(self) -> Any:
        """The user's sampler or batch sampler; None: the order is fastload's."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def streamed(self) -> bool:
        """Whether the data can only be iterated."""
        if isinstance(self.source, str | os.PathLike):
            return False
        adopted = self.adopted and isinstance(self.source, IterableDataset)
        return adopted or is_huggingface_stream(self.source)

    @property
    def shared(self) -> bool:
        """Whether `shard` of `from_dataloader` shares the samples among ranks, which the samplers
        of its DataLoader know nothing of."""
        return self.adoption is not None and bool(self.adoption.shared)

    @property
    def sets_epochs(self) -> bool:
        """Whether each epoch is set on the data set, as on a sampler: on one that can only be
        iterated and was not adopted, whose script may set none."""
        return self.streamed and not self.adopted

    @property
    def renewed(self) -> bool:
        """Whether worker processes are started again for each epoch, so that they get the data set
        as it is by then."""
        return self.existing is not None and not self.existing.persistent_workers

    @property
    def pinned(self) -> bool:
        """Whether host memory is to be page-locked."""
        wanted = self.device.type == "cuda" if self.pin_memory is None else self.pin_memory
        return bool(wanted) and torch.cuda.is_available()

    def shard_here(self) -> ShardHere:
        """The part that this process reads now: what was said, or what is found here."""
        if isinstance(self.shard, Shard):
            return ShardHere(self.shard)
        if self.shard is None and self.adopted and self.sampler is None:
            return ShardHere(Shard())
        shard = Shard.detect()
        if (
            shard.world_size == 1
            or self.own_sampler is not None
            or (self.adopted and self.shard is None)
        ):
            return ShardHere(shard)
        from fastload.compat.parallel import shard_here

        return shard_here()

    def noted(self, change: str) -> tuple[str, ...]:
        """The notes with one more."""
        return (*self.notes, f"changed: {change}")

    def _settle_shard(self) -> None:
        if self.shard is None or (isinstance(self.shard, str) and self.shard == "auto"):
            return
        from fastload.sampler.mesh import shard_of

        here = shard_of(self.shard)
        if here.broadcast is not None:
            others = {
                "from_dataloader": self.adopted,
                "a sampler": self.own_sampler is not None,
                "data that can only be iterated": self.streamed,
            }
            for what in (what for what, given in others.items() if given):
                raise ConfigurationError(
                    f"shard: broadcast needs an order that all ranks compute, and beside {what} "
                    'there is none. Leave broadcast out: shard=mesh["dp"].'
                )
        self._settle("shard", here.shard)
        self._settle("broadcast", here.broadcast)
        self._settle("compare", here.compare)
        self._settle("notes", (*self.notes, here.note))

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


# -- What several arguments of `create_loader` say together ----------------------------------------


def ordering_of(shuffle: Any, order: Any) -> Ordering | None:
    """What `shuffle` and `order` say. Raises ConfigurationError: they are of other types, or say
    both something."""
    if isinstance(shuffle, Ordering):
        raise ConfigurationError(
            f"shuffle: True or False, and {type(shuffle).__name__} has moved. Write "
            f"order={shuffle!r}, without shuffle."
        )
    shuffled = flag("shuffle", shuffle)
    good = order is None or isinstance(order, Ordering)
    what = "a fastload.BlockShuffle, Shuffle, Buckets or another order, or None"
    require("order", good, what, order)
    given: Ordering | None = order
    if not shuffled:
        return given
    return Shuffle() if given is None else given.shuffled()


def collates_of(given: Any) -> tuple[Callable[[list[Any]], Any] | None, Any]:
    """(`collate_fn`, `collate`) of what `collate_fn=` was given. Raises ConfigurationError: it is
    none."""
    if isinstance(given, str | CollateColumns):
        return None, given if isinstance(given, str) else given.function
    what = f"a function of a list of samples, {FORMS}, or a CollateColumns of a function of columns"
    require("collate_fn", given is None or callable(given), what, given)
    return given, None


def seed_of(seed: Any, generator: Any) -> Any:
    """That of the generator, if there is one. Raises ConfigurationError: both say one."""
    if generator is None:
        return seed
    good = isinstance(generator, torch.Generator)
    require("generator", good, "a torch.Generator", generator)
    if seed:
        raise ConfigurationError(
            "generator: it is there for its seed, and seed= is given too; leave one out."
        )
    return generator.initial_seed() & 0x7FFFFFFFFFFFFFFF


def workers_of(init: Any, context: Any, timeout: Any) -> WorkerSettings:
    """Of `worker_init_fn`, `multiprocessing_context` and `timeout`. Raises ConfigurationError: one
    is none."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0
    require("timeout", number, "a number of seconds of at least 0", timeout)
    good = init is None or callable(init)
    require("worker_init_fn", good, "a function of a worker's number", init)
    method = getattr(context, "get_start_method", lambda: context)()
    known = method in (None, "fork", "spawn", "forkserver")
    what = "'fork', 'spawn', 'forkserver' or such a context"
    require("multiprocessing_context", known, what, method)
    return WorkerSettings(init, method, float(timeout))


def _device(device: Any) -> torch.device:
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"device: {device!r} is not a device; say 'cuda', 'cuda:1' or 'cpu' ({error})."
        ) from None
    if resolved.type == "cpu":
        return resolved
    return _gpu(resolved) if resolved.type == "cuda" else _other_device(resolved)


def _gpu(device: torch.device) -> torch.device:
    """One of CUDA's, with its number. Raises ConfigurationError: it is not here."""
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"device: {str(device)!r} was asked for, but torch sees no CUDA device here. Use "
            "device='cpu', or see `fastload doctor`."
        )
    index: int | None = device.index
    if index is not None and index >= torch.cuda.device_count():
        raise ConfigurationError(
            f"device: {str(device)!r} was asked for, and torch sees "
            f"{counted(torch.cuda.device_count(), 'GPU')}, numbered from 0. Where each task has a "
            "GPU of its own (SLURM's --gpus-per-task=1) that is cuda:0 in all of them: say 'cuda'."
        )
    if index is not None:
        return device
    current, rank = torch.cuda.current_device(), os.environ.get("LOCAL_RANK", "0")
    if current == 0 and rank.isdecimal() and 0 < int(rank) < torch.cuda.device_count():
        logger.warning(
            "device='cuda' is cuda:0 here, in local rank %s of this machine: its batches go to the "
            "GPU of rank 0. Call torch.cuda.set_device(%s) before, or say device='cuda:%s'.",
            *(rank, rank, rank),
        )
    return torch.device("cuda", current)


def _other_device(device: torch.device) -> torch.device:
    """A device that is neither the CPU nor a GPU of CUDA's. Raises ConfigurationError: it is not
    here, or keeps no data."""
    reason: Exception | str = "tensors there have no data"
    if device.type != "meta":
        try:
            torch.empty(1, device=device)
            return device
        except Exception as error:  # RuntimeError, NotImplementedError, AssertionError, by device
            reason = str(error).splitlines()[0]
    raise ConfigurationError(
        f"device: {str(device)!r} was asked for, and torch cannot use it here ({reason}). Use "
        "device='cpu' or 'cuda'; `fastload doctor` shows what this machine has."
    )
