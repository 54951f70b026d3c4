"""The `torch` backend: torch.utils.data.DataLoader with worker processes, tuned; runs any transform
and dataset.

One DataLoader lives as long as the backend. Its sampler is the queue of started batches, so
workers stay alive over epochs, restarts and resumes, and a worker receives whole batches to
assemble, not single samples.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
import multiprocessing.util
import os
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import psutil
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fastload.arguments import flag
from fastload.backends.base import (
    DEFAULT_PREFETCH,
    HOST_TRAITS,
    KILLED_WORKER,
    BackendOptions,
    Context,
    Fit,
    HostBatch,
    MadeHere,
    StartedWork,
    Work,
)
from fastload.backends.forked import forget_in_children
from fastload.backends.objects import ObjectReader
from fastload.backends.rows import RowReader
from fastload.backends.torch_workers_processes import CONTEXTS, Batches
from fastload.decode.libraries import describe_decoder, get_decoder
from fastload.draws import Draws
from fastload.errors import ConfigurationError, FastloadError, WorkerError, counted
from fastload.files import DecodeSettings
from fastload.machine import usable_cores
from fastload.sources.sharing import free_shared_memory, share

if TYPE_CHECKING:
    from fastload.backends.own_numbers import OwnNumbers
    from fastload.backends.torch_workers_threads import ThreadWorkers

logger = logging.getLogger("fastload")

_MORE_ROOM = "Give the container more (docker run --shm-size=8g, or --ipc=host)"


@dataclass(frozen=True)
class TorchOptions(BackendOptions):
    """Options of the `torch` backend.

    Raises:
        ConfigurationError: (when the Loader is made:) no such decoder; no such way to start
            processes, or one that cannot be here; too little shared memory.
    """

    decoder: str = "auto"
    """Which JPEG decoder the workers use; see `fastload doctor`."""
    multiprocessing_context: str | None = None
    """"fork", "spawn" or "forkserver"; None: Python's default on this machine, but not "fork" in a
    process group over several machines."""
    worker_timeout: float = 0.0
    """Give up on a batch after this long [seconds]; 0: wait as long as the workers live."""
    threads: bool | None = None
    """Whether workers are threads, which is for Pythons without the GIL (3.14t). None: where the
    GIL is off and only code of torchvision and of fastload runs. True: your dataset and functions
    are safe in several threads, too, and draw random numbers with torch's functions alone, which
    have a generator in each thread. (Python's `random` and numpy's are of the whole process; where
    they are seen in the code, that is a ConfigurationError.) False: processes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threads is not None:
            object.__setattr__(self, "threads", flag("threads", self.threads))


class TorchBackend:
    """Worker processes that assemble batches; `num_workers=0` works in the calling thread, as in
    torch."""

    name = "torch"
    Options = TorchOptions
    traits = replace(
        HOST_TRAITS,
        summary="torch's DataLoader, tuned: worker processes that run any transform and any "
        "Dataset",
        processes=True,
        runs_opaque=True,
        runs_datasets=True,
        fits={
            "python": Fit(0.9, ""),
            "encoded": Fit(0.3, "worker processes can do it too"),
            "arrays": Fit(0.3, "worker processes can do it too"),
        },
    )

    def __init__(self, context: Context, options: TorchOptions) -> None:
        self._context = context
        self._options = options
        self._workers = _workers_here(context.num_workers, options)
        self._prefetch = context.prefetch_factor or DEFAULT_PREFETCH
        self.background = self._workers > 0
        # One more than the DataLoader takes: a request must be waiting whenever it asks for the
        # next.
        self.depth = self._workers * self._prefetch + 1
        self._requests = _Requests(self._workers)
        self._batches: Batches | None = None
        self._reader = _reader_for(context, options.decode_settings, options.decoder)
        self._threads, self._why = self._threads_for(context, options)

    def _threads_for(
        self, context: Context, options: TorchOptions
    ) -> tuple[ThreadWorkers | None, str]:
        """Threads that make the batches, or None, and why. Raises ConfigurationError."""
        off = not getattr(sys, "_is_gil_enabled", lambda: True)()
        if not self._workers or options.threads is False or not (off or options.threads):
            return None, ""
        from fastload.backends.torch_workers_threads import (
            ThreadWorkers,
            check_threads,
            why_processes,
        )

        asked = context.source, context.recipe, context.collate_fn, context.workers.init
        if options.threads:
            check_threads(*asked)
        elif options.multiprocessing_context or context.workers.start_method:
            return None, "multiprocessing_context is given"
        elif why := why_processes(*asked):
            return None, f"{why} (threads=True says that all of it is)"
        timeout = options.worker_timeout or context.workers.timeout
        return ThreadWorkers(self._workers, self._batch_in_thread, timeout), ""

    def _batch_in_thread(self, draws: Draws, numbers: OwnNumbers) -> HostBatch:
        reader, allocate = self._reader, self._context.allocate
        return (
            reader.batch(draws, allocate, numbers=numbers)
            if isinstance(reader, ObjectReader)
            else reader.batch(draws, allocate)
        )

    def start(self, draws: Draws) -> Work:
        if self._threads is not None:
            return self._threads.start(draws)
        if not self._workers:
            return MadeHere(partial(self._reader.batch, draws))
        request = _Request(draws)
        self._requests.queue.append(request)
        if self._batches is None and len(self._requests.queue) >= self.depth:
            self._start(draws.epoch)
        # The backend keeps requests, which do not keep it.
        return StartedWork(partial(self.answer, request), partial(self.drop, request))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
        batches, self._batches = self._batches, None
        self._requests = _Requests(self._workers)
        if batches is not None:
            if not all(column.survives_fork for column in self._context.source.encoded.values()):
                # A worker that waits for a store does not see that it is to end.
                batches.kill_workers()
            try:
                batches._shutdown_workers()
            # From torch's handler of SIGCHLD; all workers have ended all the same.
            except RuntimeError as error:
                logger.debug("Ignored while the workers were stopped: %s", error)

    def forget(self) -> None:
        """Called in a forked child: neither its exit nor the end of its copy of the iterator may
        end the workers."""
        batches: Any = self._batches
        if batches is not None:
            batches._shutdown = True  # as far as this process is concerned
            # What multiprocessing would end at the exit of this process, too.
            multiprocessing.process._children.difference_update(batches._workers)  # type: ignore[attr-defined]

    def drop(self, request: _Request) -> None:
        """What is on its way through the workers already is received for nobody."""
        with contextlib.suppress(ValueError):
            self._requests.queue.remove(request)

    def explain(self) -> Mapping[str, str]:
        chosen = "as asked" if self._context.num_workers is not None else "one for each usable core"
        flight = f"{counted(self._prefetch, 'batch')} in flight for each"
        kind = "worker process" if self._threads is None else "worker thread"
        words = f"{counted(self._workers, kind)} ({chosen}), {flight}"
        rows = {"torch": f"{words}; no threads, as {self._why}" if self._why else words}
        if not self._workers:
            rows = {"torch": "batches are assembled in the calling thread (num_workers=0)"}
        if self._context.source.encoded:
            rows["decoder"] = describe_decoder(get_decoder(self._options.decoder))
        return rows

    def _check_shared_memory(self) -> None:
        """Whether the batches in flight fit into it, where their size is known. Raises
        ConfigurationError."""
        batch, free = self._context.image_bytes, free_shared_memory()
        if batch is None:
            return
        # The batch that was received last has not been freed yet.
        flying = self._workers * self._prefetch + 1
        if batch * flying <= free:
            return
        fits = int(free // batch) - 1 if batch else 0
        workers = min(self._workers, fits)
        smaller = (
            f"num_workers={workers} and prefetch_factor={fits // workers} fit, or a smaller "
            "batch_size"
            if workers
            else "not even one worker fits: use a smaller batch_size, num_workers=0 or "
            "backend='turbojpeg'"
        )
        raise ConfigurationError(
            f"backend 'torch': batches of {counted(self._workers, 'worker')} come through shared "
            f"memory (/dev/shm), where {counted(flying, 'batch')} of {batch / 1e6:.1f} MB must fit "
            f"({flying * batch / 1e6:.0f} MB), and {free / 1e6:.0f} MB are free. {_MORE_ROOM}; or "
            f"{smaller}."
        )

    def _start(self, epoch: int) -> None:
        """Start the workers; `epoch`: of the first batch. After an exception, KeyboardInterrupt
        included, none is left, and no request."""
        self._check_shared_memory()
        options, context = self._options, self._context
        given = options.multiprocessing_context or context.workers.start_method
        asked = given or _start_method()
        if not all(column.survives_fork for column in context.source.encoded.values()):
            if given == "fork":
                raise ConfigurationError(
                    f"multiprocessing_context: {context.source.name} is read by a client with "
                    "threads, which a forked process does not have; leave it out, or say 'spawn'."
                )
            if given is None and not _main_may_be_imported():
                raise ConfigurationError(
                    f"backend 'torch': {context.source.name} is read by a client with threads, so "
                    "that worker processes are spawned and import the script, which would run it "
                    'again: put its code under `if __name__ == "__main__":`, or use a backend of '
                    "threads ('turbojpeg')."
                )
            asked = given or "spawn"
        method = asked or multiprocessing.get_start_method()
        reader = self._reader
        if method != "fork":
            # Forked workers share the source's arrays as they are; others would get a copy each.
            shared = replace(context, source=share(context.source))
            reader = _reader_for(shared, options.decode_settings, options.decoder)
        loader: DataLoader[Any] = DataLoader(
            _BatchDataset(reader),
            batch_size=None,
            sampler=self._requests,
            num_workers=self._workers,
            collate_fn=_unchanged,
            prefetch_factor=self._prefetch,
            multiprocessing_context=CONTEXTS[method],
            worker_init_fn=_WorkerStart(context.workers.init, os.getpid(), own_folder()),
            timeout=options.worker_timeout or context.workers.timeout,
            generator=torch.Generator()
            if context.workers.seeds is None
            else context.workers.seeds(epoch),
        )
        # A fork server may be started here, which keeps the mask, and so outlives a SIGTERM to the
        # process group.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        batches = Batches.__new__(Batches)
        try:
            # Each worker would make a folder of its own, which stays when the worker is killed.
            # This one goes with the trainer, or with its workers after it.
            check_sockets()
            # torch draws its seed on the user's default device, which may have no generator.
            with torch.device("cpu"):
                batches.start_workers(loader)
                self._batches = batches
            forget_in_children(self)
        except BaseException as error:
            self.close()
            batches.end_interrupted_start()
            if asked == given or not isinstance(error, PicklingError | AttributeError | TypeError):
                raise
            raise ConfigurationError(
                f"multiprocessing_context: workers are started by {asked!r} here, because to fork "
                "beside ranks on other machines may hang; then dataset, transform and functions "
                f"must be picklable, and are not ({error}). Define them at the top level of a "
                "module, or say multiprocessing_context='fork' (which is safe without InfiniBand)."
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def answer(self, request: _Request) -> HostBatch:
        """What the workers make of it. Raises WorkerError; what the user's own code has raised."""
        if self._batches is None and request in self._requests.queue:
            self._start(request.draws.epoch)
        self._requests.put_first(request)
        while request.answer is None:
            if self._batches is None:
                raise WorkerError(
                    "backend 'torch': its workers were ended while a batch was waited for."
                )
            taken, error = self._requests.taken, None
            try:
                answer: HostBatch | Exception | None = next(self._batches)
            except Exception as raised:
                answer = error = self._explained(raised, taken[0])
            if isinstance(answer, HostBatch):
                answer.unpack()
            answered = taken.popleft()  # the DataLoader answers in order
            if answered is not None:
                answered.answer = answer
            if isinstance(error, WorkerError):
                raise error
        if isinstance(request.answer, Exception):
            raise request.answer
        return request.answer

    def _explained(self, error: Exception, asked: _Request | None) -> Exception:
        """A WorkerError where workers have died or are late; then all is closed. What else was
        raised, as it is."""
        said = str(error).rstrip(". ")
        workers = counted(self._workers, "worker")
        if isinstance(error, StopIteration) and not error.args:
            goes_on = "To go on, create a new loader and load this one's state_dict()."
            words = f"backend 'torch': none of its {workers} is left. {KILLED_WORKER} {goes_on}"
        elif (
            isinstance(error, FastloadError)
            or not isinstance(error, RuntimeError | OSError | EOFError)
            or said.startswith("Caught ")  # torch raises again what a worker's own code has raised
            or (
                isinstance(error, RuntimeError)
                and "DataLoader" not in said
                and "worker" not in said
            )
        ):
            return error
        elif asked is not None and "timed out" in said:
            words = f"backend 'torch': {_late(said, asked.draws)}"
        # OSError, EOFError: a worker that dies between announcing a batch and handing it over
        else:
            flight = f"{counted(self._prefetch, 'batch')} in flight for each"
            words = f"backend 'torch', {workers}, {flight}: {said}. {KILLED_WORKER}"
        self.close()  # what is on its way would be taken for what is asked for next
        explained = WorkerError(words)
        explained.__cause__ = error
        return explained


def _workers_here(number: int | None, options: TorchOptions) -> int:
    """How many workers there are where so many are asked for; None: one for each usable core. On
    Windows there are threads, and no processes. Raises ConfigurationError."""
    if hasattr(signal, "pthread_sigmask") or options.threads or number == 0:
        return usable_cores() if number is None else number
    if number is None:
        return 0
    raise ConfigurationError(
        f"num_workers: {number} worker processes are asked for, and fastload has none on this "
        "system (Windows). Say num_workers=0, or threads=True of TorchOptions if your dataset and "
        "functions are safe in threads, or use a backend of threads ('turbojpeg')."
    )


def check_sockets() -> None:
    """Try a socket where Python puts those through which batches of workers travel: in a folder of
    this process in `TMPDIR`. Where none can be, a DataLoader waits for its first batch for ever.

    Raises:
        ConfigurationError: no socket can be there. Its path may be too long: Linux takes 107 bytes.
    """
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    address = multiprocessing.connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(address)
        os.unlink(address)
    except OSError as error:
        raise ConfigurationError(
            f"TMPDIR: no socket can be made at {address} ({len(os.fsencode(address))} bytes): "
            f"{error}. Batches of worker processes travel through sockets there: set TMPDIR to a "
            "local folder with a shorter name, such as /tmp, or say num_workers=0."
        ) from error


def _start_method() -> str | None:
    """How workers start where nobody has said: as Python has it (None), but not by fork beside
    ranks on other machines.

    NCCL and gloo over InfiniBand do not survive a fork: "you will likely experience deadlocks",
    says the manual of torch.nn.parallel.DistributedDataParallel.
    """
    if multiprocessing.get_start_method() != "fork" or not (
        dist.is_available() and dist.is_initialized()
    ):
        return None
    here, machines = (
        os.environ.get(name, "") for name in ("LOCAL_WORLD_SIZE", "SLURM_JOB_NUM_NODES")
    )
    alone = dist.get_world_size() <= int(here) if here.isdecimal() else machines in ("", "1")
    if alone:
        return None
    if _main_may_be_imported():
        return "forkserver"
    logger.warning(
        "Workers are forked, which may hang beside ranks on other machines (NCCL or gloo over "
        "InfiniBand): the script "
        "runs on import, so that nothing else can start them. Put its code under `if __name__ "
        '== "__main__":`.'
    )
    return None


def _main_may_be_imported() -> bool:
    """Whether a fresh process may import the script, as those of a fork server and spawned ones do,
    without running it all over again."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return True  # those are not imported
    try:
        return "__name__" in Path(file).read_text(errors="replace")
    except OSError:
        return False


@dataclass(eq=False)
class _Request:
    """A batch that somebody asks for, and what came of it."""

    draws: Draws
    answer: HostBatch | Exception | None = None


class _Requests:
    """The DataLoader's endless sampler: hands out the requests, and idle ones (None)
    while there are none.

    The DataLoader gives them to the workers in turn. Idle ones precede each epoch until it is the
    first worker's turn, so that worker k mod W makes batch k of every epoch, as under a DataLoader
    with persistent workers: a data set that keeps state in its worker makes the same samples.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.queue: deque[_Request] = deque()
        self.taken: deque[_Request | None] = deque()
        """Handed out, not yet answered."""

    def put_first(self, request: _Request) -> None:
        """Hand it out next, if it is still here: it is waited for."""
        if self.queue and self.queue[0] is not request and request in self.queue:
            self.queue.remove(request)
            self.queue.appendleft(request)

    def __iter__(self) -> Iterator[Draws | None]:
        for count in itertools.count():
            waits = self.queue and self.queue[0].draws.begins and count % self._workers
            asked = self.queue.popleft() if self.queue and not waits else None
            self.taken.append(asked)
            yield None if asked is None else asked.draws


@dataclass(frozen=True)
class _WorkerStart:
    """What a worker does first."""

    init: Callable[[int], None] | None
    """Of the user."""
    trainer: int
    """The trainer's process id."""
    folder: str | None
    """See `own_folder`: of the trainer."""

    def __call__(self, worker: int) -> None:
        # Out of the trainer's process group: what is sent to all of that (Ctrl-C; torchrun's
        # SIGTERM) is for the trainer, which may want some more batches before it stops. Workers end
        # when it ends them, or is gone.
        os.setpgid(0, 0)
        multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_not_sent)  # type: ignore[attr-defined]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        threading.Thread(
            target=_end_with,
            args=(os.getppid(), self.trainer, self.folder),
            name="fastload-watch",
            daemon=True,
        ).start()
        info: Any = get_worker_info()
        if info is not None and info.dataset.users is not None:
            # What the user's code finds there is the data set that the samples come from.
            # (WorkerInfo is read-only.)
            object.__setattr__(info, "dataset", info.dataset.users)
        if self.init is not None:
            self.init(worker)


def _reader_for(
    context: Context, settings: DecodeSettings, decoder: str
) -> RowReader | ObjectReader:
    """The reader that this source and recipe need: for columns, or for Python objects and opaque
    transforms."""
    source, recipe = context.source, context.recipe
    if source.objects or recipe.opaque is not None or context.collate_fn is not None:
        return ObjectReader(
            source,
            recipe,
            settings=settings,
            decoder=decoder,
            collate_fn=context.collate_fn,
            as_dataloader=context.as_dataloader,
            memory_format=context.memory_format,
        )
    return RowReader(source, recipe, settings=settings, decoder=decoder, padded=context.padded)


class _BatchDataset(Dataset[Any]):
    """What the workers run: a request in, a batch out."""

    def __init__(self, reader: RowReader | ObjectReader) -> None:
        self._reader = reader

    @property
    def users(self) -> Any:
        """The user's Dataset, if the samples come from one."""
        objects = (
            self._reader.source.objects.values() if isinstance(self._reader, ObjectReader) else ()
        )
        return next((getattr(column, "dataset", None) for column in objects), None)

    def __getitem__(self, draws: Draws | None) -> HostBatch | None:
        if draws is None:
            return None
        batch = self._reader.batch(draws, _shared_memory)
        batch.pack(_shared_memory)
        for name, column in batch.columns.items():
            # Tensors travel between processes by handle; arrays would be copied through a pipe.
            sent = batch.columns[name] = (
                torch.from_numpy(column) if isinstance(column, np.ndarray) else column
            )
            if isinstance(sent, torch.Tensor) and sent.device.type == "cpu":
                # Here, where an error reaches the trainer; the thread that sends batches would do
                # it, too, and lose it.
                with _space_needed():
                    sent.share_memory_()
        return batch


@contextlib.contextmanager
def _space_needed() -> Iterator[None]:
    """Says what to do where there is no shared memory left."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise WorkerError(
            "backend 'torch': no shared memory (/dev/shm) for a batch "
            f"({str(error).splitlines()[0]}). {_MORE_ROOM}, or use a smaller batch_size, "
            "num_workers or prefetch_factor."
        ) from None


def _late(said: str, asked: Draws) -> str:
    """What to say of a batch that did not come in time."""
    indices = asked.indices.tolist()
    listed = ", ".join(map(str, indices[:16])) + (
        f", ... ({len(indices)} in all)" if len(indices) > 16 else ""
    )
    return (
        f"{said} while it waited for the samples {listed} of epoch {asked.epoch}: one of them "
        "takes that long or never ends. Try them by themselves (dataset[index]), or give more time "
        "(worker_timeout, DataLoader's timeout)."
    )


def own_folder() -> str | None:
    """Where this process has its sockets, if it has made that folder, and so is the last to use it.
    One that was forked, or started by multiprocessing, has that of its parent."""
    folder = multiprocessing.util.get_temp_dir()
    for finalizer in getattr(multiprocessing.util, "_finalizer_registry", {}).values():
        args = getattr(finalizer, "_args", None) or ()
        if getattr(finalizer, "_pid", None) == os.getpid() and folder in args:
            return folder
    return None


def _end_with(parent: int, trainer: int, folder: str | None) -> None:
    """End this worker when its parent does, or knows no longer of it, whatever the user's code is
    doing; and leave nothing behind. `folder`: what the trainer leaves if it is killed."""
    # `parent` may be a fork server, which lives as long as its children. This one is the trainer:
    # it is taken for dead when it lets go of its end of a pipe, as it does when an interrupt comes
    # while it starts the worker.
    process = multiprocessing.parent_process()
    while os.getppid() == parent and (process is None or process.is_alive()):
        if process is None:
            time.sleep(1)
        else:
            process.join(1)
    for _ in range(10):
        if _is_gone(trainer):
            # While it lives, its other workers, and later ones, are still using the folder.
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            break
        time.sleep(0.1)  # it may be about to end
    os._exit(1)


def _is_gone(process: int) -> bool:
    """Whether a process has ended; its parent need not know yet."""
    try:
        return psutil.Process(process).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return True


def _not_sent(error: Exception, sent: Any) -> None:
    """End a worker that cannot send a batch, so that the trainer, which watches its workers, does
    not wait for it."""
    traceback.print_exception(error)
    if isinstance(sent, tuple) and any(isinstance(part, HostBatch) for part in sent):
        print(
            "fastload: this batch could not be sent to the trainer; the worker ends.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def _shared_memory(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    with _space_needed():
        storage = torch.UntypedStorage._new_shared(
            int(np.prod(shape, dtype=np.int64)), device="cpu"
        )
    return torch.empty(0, dtype=torch.uint8).set_(storage).reshape(shape).numpy()


def _unchanged(batch: Any) -> Any:
    return batch
