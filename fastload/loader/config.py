"""What a Loader is to be: the arguments of `create_loader`, checked. Strings, defaults and "auto"
end here."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from fastload.backends.base import BackendOptions, WorkerSettings
from fastload.compat.parallel import shares_a_model
from fastload.errors import ConfigurationError, OnError, counted
from fastload.loader.colour_place import Place
from fastload.recipe import Recipe
from fastload.recipe.mix import lower_batch_transform
from fastload.sampler import BlockShuffle, NodePlacement, Shard, Tail
from fastload.sources.huggingface_streams import is_huggingface_stream

logger = logging.getLogger("fastload")

# Threads or processes of a loader: a million take all memory.
MOST_WORKERS = 4096
# Batches that a worker makes ahead, all of them held in memory: 1,000 of 256 images of 224 pixels
# are 38 GB. A trainer that waits with tens of them waits with thousands, too.
MOST_AHEAD = 1000


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The arguments of `create_loader`, which documents them, and what a DataLoader adds.

    The constructor checks the arguments without looking at the data, and brings them to one form.

    Raises:
        ConfigurationError: an argument is wrong or cannot have an effect; the message names it.
    """

    source: Any
    batch_size: int = 1
    shuffle: bool | BlockShuffle = False
    drop_last: bool = False
    transform: Callable[..., Any] | Recipe | None = None
    batch_transform: Any = None
    backend: str = "auto"
    num_workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    sampler: Iterable[int] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    collate: str | Callable[[dict[str, Any]], Any] | None = None
    seed: int = 0
    shard: Shard | Literal["auto"] | None = None
    placement: NodePlacement | Literal["node"] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.channels_last
    on_error: OnError = "raise"
    tune: bool = False
    place: Place = "auto"
    options: BackendOptions | None = None
    split: str | None = None
    strict: bool = False
    masks: bool = False
    format: str | None = None
    assume_plain: bool = False
    mode: Literal["RGB", "unchanged"] = "RGB"

    adoption: Any = None
    """The DataLoader that it was read from, an `Adoption` of `fastload.loader.adoption`; None:
    there was none. Then samples are `source[index]` for every source; `num_workers` and
    `prefetch_factor` were chosen for worker processes, so that a backend that uses threads chooses
    its own; and without a shard every rank gets all samples."""
    own_seed: bool = False
    """Whether each process has another seed; ranks that share the data need a common one."""
    script_seeds: bool = False
    """Whether the seeds of worker processes are drawn as by a DataLoader: from its generator, or
    from torch's global one."""
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
        for name in ("drop_last", "tune", "strict", "masks", "assume_plain"):
            self._settle(name, _flag(name, getattr(self, name)))
        if not isinstance(self.shuffle, BlockShuffle):
            what = "True, False or a fastload.BlockShuffle"
            self._settle("shuffle", _flag("shuffle", self.shuffle, what))
        shard, layouts = self.shard, (torch.channels_last, torch.contiguous_format)
        good = shard in (None, "auto") or isinstance(shard, Shard)
        _require("shard", good, "a fastload.Shard, 'auto' or None", shard)
        if self.placement == "node":
            self._settle("placement", NodePlacement())
        good = self.placement is None or isinstance(self.placement, NodePlacement)
        _require("placement", good, "'node', a fastload.NodePlacement or None", self.placement)
        if self.placement is not None and not self.shuffle:
            raise ConfigurationError(
                "placement: it is a way to shuffle; give shuffle=True, and no sampler of your own."
            )
        if self.placement is not None and isinstance(self.shuffle, BlockShuffle):
            raise ConfigurationError(
                "placement: it is a way to shuffle, and so is a BlockShuffle; give one of the two."
            )
        _require(
            "dtype",
            self.dtype is None or isinstance(self.dtype, torch.dtype),
            "a torch.dtype",
            self.dtype,
        )
        what = f"a torch.memory_format, {layouts[0]} or {layouts[1]}"
        _require("memory_format", self.memory_format in layouts, what, self.memory_format)
        good = self.collate_fn is None or callable(self.collate_fn)
        _require("collate_fn", good, "a function of a list of samples", self.collate_fn)
        good = self.collate is None or isinstance(self.collate, str) or callable(self.collate)
        _require("collate", good, "'detr', 'torchvision', 'yolo' or a function", self.collate)
        if self.collate is not None and self.collate_fn is not None:
            raise ConfigurationError(
                "collate: it makes a batch from whole columns, and collate_fn from single samples; "
                "give one of the two."
            )
        _require(
            "on_error", self.on_error in get_args(OnError), "'raise' or 'substitute'", self.on_error
        )
        _require("mode", self.mode in ("RGB", "unchanged"), "'RGB' or 'unchanged'", self.mode)
        _require("place", self.place in get_args(Place), "'auto', 'device' or 'host'", self.place)
        for name, what in (("sampler", "indices"), ("batch_sampler", "lists of indices")):
            given = getattr(self, name)
            good = given is None or hasattr(given, "__iter__") or hasattr(given, "__getitem__")
            _require(name, good, f"an iterable of {what}", given)
        if self.sampler is not None and self.shuffle:
            raise ConfigurationError(
                "shuffle: must be False when a sampler is given, which decides the order."
            )
        risk = getattr(self.options, "risk", "")
        if self.tune and risk:
            raise ConfigurationError(
                "tune: it tries backends in this process, which these options may end: "
                f"{risk}. Name the backend, or leave the options out."
            )
        if self.tail is None:
            self._settle("tail", "exact" if isinstance(self.shard, Shard) else "filled")
        self._settle("collate_fn", None if self.collate_fn is default_collate else self.collate_fn)
        if self.batch_transform is not None:
            self._settle("batch_transform", lower_batch_transform(self.batch_transform))
        self._settle("device", _device(self.device))

    @classmethod
    def of_arguments(
        cls,
        *,
        generator: torch.Generator | None,
        worker_init_fn: Callable[[int], None] | None,
        multiprocessing_context: Any,
        timeout: float,
        persistent_workers: bool,
        in_order: bool,
        pin_memory_device: str,
        **arguments: Any,
    ) -> LoaderConfig:
        """From the arguments of `create_loader`: the fields above, and those that only DataLoader
        has."""
        if generator is not None:
            good = isinstance(generator, torch.Generator)
            _require("generator", good, "a torch.Generator", generator)
            if arguments["seed"]:
                raise ConfigurationError(
                    "generator: it is there for its seed, and seed= is given too; leave one out."
                )
            arguments["seed"] = generator.initial_seed() & 0x7FFFFFFFFFFFFFFF
        if arguments["batch_sampler"] is not None:
            for name, default in (
                ("batch_size", 1),
                ("shuffle", False),
                ("sampler", None),
                ("drop_last", False),
            ):
                if arguments[name] is not default and arguments[name] != default:
                    raise ConfigurationError(
                        f"batch_sampler: it decides what {name} is for; leave {name} out."
                    )
        lasting = "workers live as long as the Loader; close it to end them"
        for name, value, only, why in (
            ("persistent_workers", persistent_workers, True, lasting),
            (
                "in_order",
                in_order,
                True,
                "batches come in the order of the seed, so that a run can be repeated",
            ),
            (
                "pin_memory_device",
                pin_memory_device,
                "",
                "memory is page-locked for the GPU of `device`",
            ),
        ):
            if value != only:
                raise ConfigurationError(f"{name}={value!r}: {why}. Leave it out.")
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0
        _require("timeout", number, "a number of seconds of at least 0", timeout)
        callable_or_none = worker_init_fn is None or callable(worker_init_fn)
        _require(
            "worker_init_fn", callable_or_none, "a function of a worker's number", worker_init_fn
        )
        method = getattr(
            multiprocessing_context, "get_start_method", lambda: multiprocessing_context
        )()
        known = method in (None, "fork", "spawn", "forkserver")
        _require(
            "multiprocessing_context",
            known,
            "'fork', 'spawn', 'forkserver' or such a context",
            method,
        )
        return cls(workers=WorkerSettings(worker_init_fn, method, float(timeout)), **arguments)

    @property
    def shown_collate(self) -> str:
        """What `collate` is, for people."""
        given = self.collate
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

    def shard_here(self) -> Shard:
        """The shard as it is now: what was said, or what this process finds."""
        if isinstance(self.shard, Shard):
            return self.shard
        alone = self.shard is None and self.adopted and self.sampler is None
        if alone:
            return Shard()
        found = Shard.detect()
        shares = "" if self.adopted and self.shard is None else shares_a_model()
        if shares and found.world_size > 1 and self.sampler is None and self.batch_sampler is None:
            raise ConfigurationError(
                f"shard: there is {shares}, whose ranks must get the same samples, and by "
                f"torch.distributed this is rank {found.rank} of {found.world_size}, each with "
                "samples of its own. Say which part this process reads: "
                "shard=fastload.Shard(data_parallel_rank, data_parallel_size), of a DeviceMesh "
                'mesh["dp"].get_local_rank() and mesh["dp"].size().'
            )
        return found

    def noted(self, change: str) -> tuple[str, ...]:
        """The notes with one more."""
        return (*self.notes, f"changed: {change}")

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _require(name: str, good: bool, what: str, value: Any) -> None:
    if not good:
        raise ConfigurationError(f"{name}: must be {what}, got {value!r}.")


def integer(name: str, value: Any, least: int | None) -> int:
    """An int, of Python's type or numpy's."""
    number = not isinstance(value, bool) and isinstance(value, Integral)
    good = number and (least is None or int(value) >= least)
    _require(name, good, "an int" if least is None else f"an int of at least {least}", value)
    return int(value)


def _flag(name: str, value: Any, what: str = "True or False") -> bool:
    """A bool, of Python's type or numpy's; DataLoader takes None for False."""
    _require(name, value is None or isinstance(value, bool | np.bool_), what, value)
    return bool(value)


def _device(device: Any) -> torch.device:
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"device: {device!r} is not a device; say 'cuda', 'cuda:1' or 'cpu' ({error})."
        ) from None
    if resolved.type != "cuda":
        return _other_device(resolved)
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"device: {str(device)!r} was asked for, but torch sees no CUDA device here. Use "
            "device='cpu', or see `fastload doctor`."
        )
    index: int | None = resolved.index
    if index is not None and index >= torch.cuda.device_count():
        raise ConfigurationError(
            f"device: {str(device)!r} was asked for, and torch sees "
            f"{counted(torch.cuda.device_count(), 'GPU')}, numbered from 0. Where each task has a "
            "GPU of its own (SLURM's --gpus-per-task=1) that is cuda:0 in all of them: say 'cuda'."
        )
    if index is not None:
        return resolved
    current, rank = torch.cuda.current_device(), os.environ.get("LOCAL_RANK", "0")
    if current == 0 and rank.isdecimal() and 0 < int(rank) < torch.cuda.device_count():
        logger.warning(
            "device='cuda' is cuda:0 here, in local rank %s of this machine: its batches go to the "
            "GPU of rank 0. Call torch.cuda.set_device(%s) before, or say device='cuda:%s'.",
            *(rank, rank, rank),
        )
    return torch.device("cuda", current)


def _other_device(device: torch.device) -> torch.device:
    """A device that is no GPU of CUDA's. Raises ConfigurationError: it is not here, or keeps no
    data."""
    found: Exception | str = "tensors there have no data"
    if device.type != "meta":
        try:
            torch.empty(1, device=device)
            return device
        except Exception as error:  # RuntimeError, NotImplementedError, AssertionError, by device
            found = str(error).splitlines()[0]
    raise ConfigurationError(
        f"device: {str(device)!r} was asked for, and torch cannot use it here ({found}). Use "
        "device='cpu' or 'cuda'; `fastload doctor` shows what this machine has."
    )
