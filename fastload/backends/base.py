"""What a backend is, and which there are.

It turns (indices, draws) into batches of pixels, and knows nothing else. Epochs, ranks, resuming,
the device stage and substitution are in the Loader. What other code must know of a backend is in
its `Traits` and its `fit`; no other code depends on its name.

To add one: a file with a class and its options, and a line in `_BUILT_IN`. A third party registers
its class under the entry-point group `fastload.backends`; the class takes (context, options) and
has an `Options` attribute, like ours. It takes part in `backend="auto"`, `fastload bench`, `demo`
and `doctor` as the built-in ones do.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field, replace
from enum import Enum, auto
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch

from fastload.arguments import flag, integer, require
from fastload.backends.needs import HOST, Abilities, Asked, lacking, needs_in
from fastload.backends.tolerance import PixelDifference as PixelDifference
from fastload.backends.tolerance import Tolerance as Tolerance
from fastload.distribution import install_command
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.files import DecodeSettings
from fastload.modules import class_attribute, text_of
from fastload.recipe import SplitRecipe
from fastload.recipe.outputs import SIZES as SIZES
from fastload.recipe.outputs import Outputs
from fastload.sources.base import Source
from fastload.sources.ragged import Packed, Ragged

KILLED_WORKER = (
    "A killed worker usually means that memory ran out: lower num_workers, prefetch_factor or the "
    "batch size; `dmesg` names the killed process. A bus error means that /dev/shm is too small: "
    "see `fastload doctor`."
)
"""What to tell a person whose worker process died."""

DEFAULT_PREFETCH = 2
"""Batches in flight per worker process: torch's own default. More costs memory and gains nothing
once workers are busy."""

WorkloadKind = Literal["encoded", "arrays", "python"]
Place = Literal["auto", "device", "host"]

BufferAllocator = Callable[[tuple[int, ...]], npt.NDArray[Any]]


@dataclass(frozen=True)
class BackendOptions:
    """Options that every backend takes; each backend derives its own frozen dataclass from this
    one.

    Raises:
        ConfigurationError: no such `place`, or a `last_epoch` below 0; `tune` with options that may
            end the process.
    """

    exif_orientation: bool = False
    """Turn images upright by their EXIF orientation tag. Off, as in torchvision."""
    max_pixels: int = DecodeSettings.max_pixels
    """Refuse images with more pixels than this, unread."""
    tune: bool = field(default=False, kw_only=True)
    """With backend="auto", choose by measuring the candidates on this data for some seconds;
    likewise the place, with place="auto"."""
    place: Place = field(default="auto", kw_only=True)
    """Where the operations of colour run that a batch of uint8 images begins with, such as
    ColorJitter, GaussianBlur, GaussianNoise, JPEG, RandAugment and RandomApply of these. "device":
    there, after the copy. "host": before it, by the threads of the native core, with the same uint8
    pixels as on a CPU. "auto": on the device if that is a GPU, else on the host, or by `tune`;
    `explain()` says which."""
    last_epoch: int | None = field(default=None, kw_only=True)
    """The number of the last epoch that the trainer will ask for, counted from 0: nothing of a
    later one is fetched or made ahead. One that is asked for nevertheless is served, from then on.
    None: batches are made ahead past the end of every epoch."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tune", flag("tune", self.tune))
        require("place", self.place in get_args(Place), "'auto', 'device' or 'host'", self.place)
        if self.last_epoch is not None:
            object.__setattr__(self, "last_epoch", integer("last_epoch", self.last_epoch, 0))
        if self.tune and self.risk:
            raise ConfigurationError(
                "tune: it tries backends in this process, which these options may end: "
                f"{self.risk}. Leave tune out, and name the backend."
            )

    @property
    def decode_settings(self) -> DecodeSettings:
        return DecodeSettings(self.exif_orientation, self.max_pixels)

    @property
    def may_be_declined(self) -> bool:
        """Whether `backend="auto"` may still choose another backend. That one then gets those of
        these options that every backend takes, and `explain()` says why it was chosen."""
        return False

    @property
    def risk(self) -> str:
        """Why a backend with these options may end the process that it runs in; empty if it does
        not. Benchmarks try such options in a process of their own."""
        return ""

    @classmethod
    def within(cls, directory: Path) -> BackendOptions:
        """The defaults for benchmarks: no progress bar, and all files are in `directory`."""
        return cls()


@dataclass(frozen=True)
class Dependency:
    """An optional package that a backend cannot work without."""

    package: str
    """Its import name."""
    install: str
    """The command that installs it."""
    distribution: str = ""
    """Beginning of the names of the distributions that hold it ("nvidia-dali"), to look up the
    version; empty: as `package`."""


@dataclass(frozen=True)
class Traits(Abilities):
    """Properties of a backend, as the class attribute `traits`: its abilities, and more. The
    defaults are those of a backend that uses threads, renders as torchvision does, and has no
    ability. Of one that makes its batches with the code that the built-in ones share, start from
    `HOST_TRAITS`."""

    summary: str = ""
    """One line for people: what it is."""
    processes: bool = False
    """Whether `num_workers` are processes (each with its own Python, so `worker_init_fn` is
    called), else threads."""
    owns_batches: bool = False
    """Whether nobody else uses the memory of its batches, so that operations of colour may write to
    it. Else they work on a copy: the arrays may be those of the data set."""
    tolerance: Tolerance = field(default_factory=Tolerance)
    requires: Dependency | None = None
    """The module of the class must be importable without it."""
    fits: Mapping[WorkloadKind, Fit] = field(default_factory=dict)
    """How well it fits a workload of each kind, where that depends on the kind alone; else the
    class has a method `fit`. An empty reason is replaced by why Python is needed."""
    prepares: bool = False
    """Whether it works once through all samples that are not arrays yet, before its first batch (it
    builds a cache). That takes too long to be measured: `tune` tries it only where there is nothing
    to prepare, and a benchmark lets it prepare before it measures."""

    needs: InitVar[None] = None
    """The name of `requires` in earlier versions."""

    def __post_init__(self, needs: None) -> None:
        if needs is not None:
            raise ConfigurationError(f"Traits: needs={needs!r} is now requires=...; rename it.")


HOST_TRAITS = Traits(**vars(HOST), owns_batches=True)
"""Of a backend that makes its batches on the host with the code that the built-in ones share
(`fastload.backends.rows`); `dataclasses.replace` adds what it has of its own."""


@dataclass(frozen=True)
class Workload:
    """What a backend is to do; `backend="auto"` chooses one that fits."""

    source: Source
    recipe: SplitRecipe
    collate_fn: Callable[[list[Any]], Any] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    options: BackendOptions | None = None
    """What the user gave, for one of the backends or for all."""
    padded: bool = False
    """See `Context.padded`."""

    @property
    def kind(self) -> WorkloadKind:
        """Of "python" Python must run on single samples; else "encoded" has compressed images, and
        "arrays" has none."""
        if self.needs_python:
            return "python"
        return "encoded" if self.source.encoded else "arrays"

    @property
    def needs_python(self) -> str:
        """What Python is to do with single samples (`Need.task`); empty if nothing."""
        return next((task for need, task in needs_in(self).items() if need.in_python), "")

    @property
    def arrays(self) -> bool:
        """Whether all samples are arrays already: nothing to decode, no Python to run."""
        return not (self.source.encoded or self.source.objects)


@dataclass(frozen=True)
class Fit:
    """How well a backend fits a workload; `backend="auto"` takes the one with the highest score."""

    score: float
    """0: cannot do it. Below 0.5: can do it. From 0.5 to 1: made for it. Of equal scores the
    backend listed first is taken; the built-in ones are listed first."""
    reason: str
    """For a person, as in "turbojpeg: compressed images, decoded by threads without worker
    processes"."""


@dataclass(frozen=True)
class WorkerSettings:
    """How worker processes are started, as in torch's DataLoader. A backend that uses threads
    ignores it."""

    init: Callable[[int], None] | None = None
    """`worker_init_fn`: called in each worker with its number, before anything else."""
    start_method: str | None = None
    """"fork", "spawn" or "forkserver"; None: Python's default on this machine."""
    timeout: float = 0.0
    """Give up on a batch after this long [seconds]; 0: wait as long as the workers live."""
    seeds: Callable[[int], torch.Generator | None] | None = None
    """From an epoch to the generator that the seed of its workers is drawn from, as DataLoader's
    `generator`; where it returns None, torch's global generator. None: always the same seed."""


@dataclass(frozen=True)
class Context:
    """What a backend is built from. The numbers are in range: `create_loader` has checked them."""

    source: Source
    recipe: SplitRecipe
    """Split for the source: the backend runs `recipe.geometry` (or `recipe.opaque`), the rest is
    done elsewhere."""
    batch_size: int
    num_workers: int | None = None
    """Threads or processes; None: the backend's choice for this machine."""
    prefetch_factor: int | None = None
    """Batches in flight per worker, as in torch's DataLoader; None: the backend's choice."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the batches end up. A backend that decodes on the GPU may produce them there."""
    allocate: BufferAllocator | None = None
    """Returns a uint8 array of this shape, pinned and used again later; None: numpy's memory."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    as_dataloader: bool = False
    """Whether samples of a data set that nothing is done to are put together by torch's
    `default_collate`, with its errors, as under a DataLoader."""
    memory_format: torch.memory_format = torch.contiguous_format
    """What the device stage makes of the images of a finished batch, before all else: a batch that
    comes so is not copied."""
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    takes_pending: bool = False
    """Whether images may come as `fastload.render.drawn.PendingImages`: the device stage makes
    them, with what is to be done to their numbers."""
    padded: bool = False
    """Whether images of a batch may come out in several sizes, see `Traits.pads_images`. There is
    one column of images then, and one view."""

    @functools.cached_property
    def outputs(self) -> Outputs:
        """The columns of batches, in order."""
        return Outputs.of(self.source, self.recipe, padded=self.padded)

    @property
    def image_bytes(self) -> int | None:
        """Of the images of a batch on the host; None where their sizes are not known."""
        images = self.outputs.images
        if self.recipe.opaque is not None or any(one.size is None for one in images):
            return None
        return self.batch_size * sum(one.nbytes for one in images)

    def require_whole_batches(self, backend: str) -> None:
        """Does nothing any more: no backend is built for what its `traits` do not name. For one
        version, for backends of other packages."""


@dataclass(frozen=True)
class Failure:
    """One sample that could not be read; its row of the batch holds zeros."""

    row: int
    """Position in the batch."""
    error: Exception
    """A DecodeError (or what the dataset raised), naming the file."""


class Absent(Enum):
    """What is not there, where None would be something. The same object in every process."""

    COLLATED = auto()


@dataclass
class HostBatch:
    """A batch as a backend returns it, in host memory or on a device."""

    columns: dict[str, Any]
    """Images (B, H, W, C) of the dtype of their column, which is uint8 for most, or of what an
    opaque transform made of them; masks (B, H, W, 1) likewise; values (B, ...), or a `Ragged` of B
    rows. Tensors where they are on a device."""
    failures: list[Failure] = field(default_factory=list)
    collated: Any = Absent.COLLATED
    """Instead of columns: a finished batch from a dataset or collate function of the user's, which
    may be None."""
    layout: Literal["tuple", "dict", "single"] | None = None
    """What the trainer gets, where the source does not know it (datasets of the user's)."""
    named: Callable[..., Any] | None = None
    """The class of the samples, where that is a named tuple: so is the batch."""
    packed: Packed | None = None
    """The columns of rows of variable length, on their way between processes."""

    def pack(self, allocate: BufferAllocator) -> None:
        """Put the columns of rows of variable length into one buffer: a process then sends one
        tensor for all of them."""
        ragged = {name: one for name, one in self.columns.items() if isinstance(one, Ragged)}
        if ragged:
            packed = Packed.of(ragged, allocate, bounds=False)
            self.packed = replace(packed, buffer=torch.from_numpy(packed.buffer))
            self.columns |= dict.fromkeys(ragged)  # None in their places keeps the order.

    def unpack(self) -> None:
        """What `pack` did, undone in the process that has received it."""
        if self.packed is not None:
            self.columns |= self.packed.arrays()
            self.packed = None

    def emptied(self) -> HostBatch:
        """This batch without its samples."""
        columns = {name: _emptied(column) for name, column in self.columns.items()}
        collated = self.collated if self.collated is Absent.COLLATED else _emptied(self.collated)
        return replace(self, columns=columns, collated=collated)


def _emptied(batch: Any) -> Any:
    """A column, or what torch's `default_collate` has made, without its samples."""
    if isinstance(batch, Mapping):
        return {name: _emptied(part) for name, part in batch.items()}
    if isinstance(batch, list | tuple) and batch and not isinstance(batch[0], str | bytes):
        parts = map(_emptied, batch)
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch.take(np.zeros(0, np.int64)) if isinstance(batch, Ragged) else batch[:0]


class EndOfData(Exception):  # noqa: N818
    """The epoch is over. Raised by a backend in place of a batch, where the length of an epoch is
    not known before."""


class Work(Protocol):
    """A batch that was started. Called by one thread at a time."""

    def result(self) -> HostBatch:
        """The batch; blocks until it is there. Called once at most. Batches are waited for in the
        order in which they were started, but for single samples in place of failed ones, which are
        waited for as soon as they were started.

        Raises:
            WorkerError: a worker died; the message says which, how, and the usual cause.
        """

    def cancel(self) -> None:
        """Nobody wants it any more: drop what of it was not started, and wait until nothing writes
        to its memory. Of several the one that was started last is cancelled first. May be called
        after `result` has raised, and after `Backend.close`."""


@dataclass(frozen=True)
class MadeHere:
    """Work that is done when it is waited for, in the calling thread."""

    make: Callable[[], HostBatch]

    def result(self) -> HostBatch:
        return self.make()

    def cancel(self) -> None:
        """Nothing was started."""


@dataclass(frozen=True)
class StartedWork:
    """Work that threads or processes do."""

    finish: Callable[[], HostBatch]
    drop: Callable[[], None]

    def result(self) -> HostBatch:
        return self.finish()

    def cancel(self) -> None:
        self.drop()


def made_now(backend: Backend, draws: Draws) -> HostBatch:
    """A batch that is wanted at once, before others that were started, whatever epoch it is of."""
    work = backend.start(replace(draws, begins=False))
    try:
        return work.result()
    except BaseException:
        work.cancel()
        raise


class Backend(Protocol):
    """Makes batches.

    The class is called with (context, options). All calls come from one thread at a time. A backend
    may start threads or processes at the first `start`, not before.

    It may also have:

    - `traits: Traits`, what others must know of it
    - a class method `fit(workload: Workload) -> Fit`, how well it fits a workload. Without it,
      `backend="auto"` chooses it only where no other backend can do the workload, or where `tune`
      measures that it is faster
    - `light: bool`, True from the first `start` on where making a batch takes less time than
      handing it from thread to thread. The trainer's thread may then call it, too; still one thread
      at a time
    - `at_once(draws: Draws) -> int`, how many batches like this one it is best asked for as one,
      with the draws of all. All their columns are tensors then, and none of their samples fails
    - `in_place: bool`, whether it reads the arrays of its source where they are, each time that it
      makes a batch
    - `decoded`, how many images each decoder has decoded so far, for `Loader.stats`
    - `before_epoch() -> None`, called by the trainer's thread, at any time, before it is given the
      first batch of an epoch; raises SourceError where what was served is not what the files hold
    """

    Options: ClassVar[type[BackendOptions]]
    """The frozen dataclass of its options, all of which have defaults."""
    name: str
    depth: int
    """How many batches it wants in flight."""
    background: bool
    """Whether it works between calls, in threads or processes. If not, the Loader calls it in the
    trainer's thread."""

    def start(self, draws: Draws) -> Work:
        """Start on a batch: `draws.indices` in that order. Does not block. What is wrong with this
        batch alone is raised by its `result`."""

    def close(self) -> None:
        """Drop what was started, stop threads and processes, free buffers. May be called twice, and
        before the first `start`, which may follow."""

    def explain(self) -> Mapping[str, str]:
        """What was chosen and why, for people: {"decoder": "simplejpeg 1.9 (libjpeg-turbo 3.1)",
        ...}."""


def traits_of(backend: type[Any]) -> Traits:
    """What a backend's class says of itself, or the defaults."""
    traits: Traits = getattr(backend, "traits", None) or Traits()
    return traits


def check_able(backend: str, traits: Traits, asked: Asked) -> None:
    """Raise the error of the first need that a backend of these traits does not meet; it names
    those that do."""
    for need, task in lacking(traits, asked).items():
        usable = {row.name: row.traits for row in available_backends() if row.available}
        others = [name for name, can in usable.items() if not lacking(can, asked)]
        others = others or [name for name, can in usable.items() if need.is_met(can)]
        raise need.refusal(task, backend, others)


def fit_of(backend: BackendStatus, workload: Workload) -> Fit:
    """How well a backend fits a workload: not at all where it lacks an ability; else what the `fit`
    of its class says, or what follows from its traits. `fit` is asked where options were given, or
    the traits say nothing of such workloads."""
    lacks, fits = lacking(backend.traits, workload), backend.traits.fits
    if lacks:
        return Fit(0.0, f"it cannot {' or '.join(lacks.values())}")
    if workload.options is not None or workload.kind not in fits:
        own = getattr(backend_class(backend.name), "fit", None)
        if own is not None:
            fit: Fit = own(workload)
            return fit
    fit = fits.get(workload.kind, Fit(0.1, "able to do it"))
    return Fit(fit.score, fit.reason or f"it can {workload.needs_python}")


# -- Which there are -------------------------------------------------------------------------------

ENTRY_POINT_GROUP = "fastload.backends"

_BUILT_IN = {
    "torch": "fastload.backends.torch_workers:TorchBackend",
    "turbojpeg": "fastload.backends.turbojpeg:TurboJpegBackend",
    "cache": "fastload.backends.cache:CacheBackend",
    "dali": "fastload.backends.dali:DaliBackend",
}


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can be used here, and what it says of itself."""

    name: str
    available: bool
    remedy: str = ""
    """The command that makes it available, or what is wrong with it, if it is not."""
    traits: Traits = field(default_factory=Traits)


def available_backends() -> list[BackendStatus]:
    """All backends known here, the built-in ones first; imports no optional package."""
    return [_status(entry) for entry in _registered().values()]


def backend_class(name: str) -> Any:
    """The class of a backend.

    Raises:
        ConfigurationError: there is no backend of this name.
        BackendUnavailableError: its package is not installed; the message has the command.
    """
    registered = _registered()
    if name not in registered:
        known = ", ".join(map(repr, registered))
        raise ConfigurationError(
            f"backend: {name!r} is not known; choose 'auto' or one of {known}."
        )
    cls = registered[name].load()
    requires = traits_of(cls).requires
    if requires is not None and not _importable(requires.package):
        raise BackendUnavailableError(
            f"backend {name!r} needs the package {requires.package}, which is not installed: "
            f"{requires.install}"
        )
    return cls


def backend_by_rule(workload: Workload) -> tuple[str, str]:
    """(backend, reason): the one whose `fit` has the highest score. The reason has that of the
    backend whose options were given, if it is declined."""
    usable = [status for status in available_backends() if status.available]
    fits = {status.name: fit_of(status, workload) for status in usable}
    best = max(fits, key=lambda name: fits[name].score)  # of equals the first
    if fits[best].score <= 0:
        tasks = " and ".join(needs_in(workload).values()) or "do this"
        raise ConfigurationError(f"backend: 'auto' finds none that can {tasks}.")
    reasons, options = [fits[best].reason], workload.options
    if getattr(options, "may_be_declined", False):  # what is no options is refused later
        reasons += [
            f"{name}: {fits[name].reason}"
            for name in fits
            if name != best and isinstance(options, backend_class(name).Options)
        ]
    return best, "\n".join(reasons)


def _registered() -> dict[str, EntryPoint]:
    built_in = {
        name: EntryPoint(name, target, ENTRY_POINT_GROUP) for name, target in _BUILT_IN.items()
    }
    others = _third_party(tuple(sys.path))
    return built_in | {entry.name: entry for entry in others if entry.name not in built_in}


@functools.lru_cache(maxsize=1)
def _third_party(path: tuple[str, ...]) -> list[EntryPoint]:
    """Those of other packages on the search path, `sys.path`, by name. Read once for each path: the
    metadata of all installed packages are looked through, 3.6 ms for 220 packages, and a Loader
    asks six times."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)


def _status(entry: EntryPoint) -> BackendStatus:
    try:
        traits = _traits_in_text(entry.value) if entry.name in _BUILT_IN else None
        traits = traits or traits_of(entry.load())
    except Exception as error:
        # Code of a third party, or a broken torch: it is reported, and the others go on.
        return BackendStatus(
            entry.name, False, f"its import failed with {type(error).__name__}: {error}"
        )
    requires = traits.requires
    present = requires is None or _importable(requires.package)
    return BackendStatus(entry.name, present, "" if requires is None else requires.install, traits)


@functools.cache
def _traits_in_text(target: str) -> Traits | None:
    """What the class of a backend says of itself, without loading its module; None where the text
    alone does not tell."""
    module, _, name = target.partition(":")
    statement = class_attribute(text_of(module) or "", name, "traits")
    if statement is None:
        return None
    try:
        traits: Traits = eval(statement, _NAMES_IN_TRAITS.copy())
    except NameError:
        return None
    return traits


_NAMES_IN_TRAITS = {
    each.__name__: each for each in (Traits, Fit, Tolerance, Dependency, replace, install_command)
} | {"HOST_TRAITS": HOST_TRAITS}


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
