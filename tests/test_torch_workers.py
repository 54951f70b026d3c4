"""Worker processes of the torch backend: their seeds, and what an interrupted start leaves
after."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import fastload
from fastload.backends.torch_workers import TorchBackend, TorchOptions, own_folder
from fastload.backends.torch_workers_processes import CONTEXTS, Batches
from fastload.errors import WorkerError
from fastload.sources.columns import ValueArray
from tests import warm
from tests.cases import whole_but
from tests.host import context_of, draws_of, source_of
from tests.interrupts import interrupted_at
from tests.reliability.outside import outside
from tests.waiting import LIMIT, has_ended, wait_until

SAMPLES, EPOCHS = 6, 3


class Augmented(Dataset[Any]):
    """As MONAI's: the transform has a random state of its own, which `worker_init_fn` sets to the
    worker's seed."""

    def __init__(self) -> None:
        self.random = np.random.RandomState(0)
        self.seed = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, int(self.random.randint(1 << 30)), self.seed])


def set_random_state(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.random.seed(info.seed % (1 << 32))
    dataset.seed = info.seed


def plain(
    generator: torch.Generator | None, *, persistent: bool = False, workers: int = 1, batch: int = 2
) -> DataLoader[Any]:
    return DataLoader(
        Augmented(),
        batch,
        num_workers=workers,
        generator=generator,
        worker_init_fn=set_random_state,
        persistent_workers=persistent,
    )


def epochs_of(loader: Any) -> list[list[list[int]]]:
    """Rows [index, random number, seed of the worker] of some epochs."""
    return [torch.cat(list(loader)).tolist() for _ in range(EPOCHS)]


@pytest.mark.whole
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("own_generator", [True, False])
def test_an_adopted_loader_seeds_its_workers_as_the_plain_one(
    own_generator: bool, persistent: bool
) -> None:
    def generator() -> torch.Generator | None:
        torch.manual_seed(7)
        return torch.Generator().manual_seed(3) if own_generator else None

    expected = epochs_of(plain(generator(), persistent=persistent))
    with fastload.from_dataloader(plain(generator(), persistent=persistent)) as loader:
        torch.manual_seed(7)
        found = epochs_of(loader)
    assert found == expected
    assert len({row[1] for epoch in found for row in epoch}) == SAMPLES * EPOCHS, (
        "no two samples are augmented alike"
    )


@pytest.mark.slow
@pytest.mark.parametrize("batch", whole_but([3], [1, 2, 3]))
def test_each_worker_makes_the_batches_that_it_would_under_a_dataloader(batch: int) -> None:
    """A data set has a state of its own in each. Epochs begin with the first worker, also where
    the one before ended with it."""
    states: list[Any] = [torch.Generator().manual_seed(3) for _ in range(2)]
    theirs, existing = (plain(state, persistent=True, workers=2, batch=batch) for state in states)
    assert {len(plain(None, workers=2, batch=b)) % 2 for b in (1, 2, 3)} == {0, 1}
    with fastload.from_dataloader(existing) as loader:
        assert epochs_of(loader) == epochs_of(theirs)


@pytest.mark.whole
def test_the_global_seed_reaches_the_workers() -> None:
    seeds = set()
    for seed in (1, 2):
        with fastload.from_dataloader(plain(None)) as loader:
            torch.manual_seed(seed)
            seeds |= {row[2] for epoch in epochs_of(loader) for row in epoch}
    assert len(seeds) == 2 * EPOCHS


@pytest.mark.whole
def test_where_fastload_owns_the_order_seeds_follow_seed_epoch_and_rank() -> None:
    def seeds(rank: int, seed: int, epochs: tuple[int, ...]) -> list[int]:
        found = []
        for epoch in epochs:
            with fastload.create_loader(
                Augmented(),
                1,
                seed=seed,
                num_workers=1,
                shard=fastload.Shard(rank, 2),
                worker_init_fn=set_random_state,
            ) as loader:
                loader.set_epoch(epoch)
                found.append(int(next(iter(loader))[0, 2]))
        return found

    state = torch.random.get_rng_state()
    runs = [seeds(rank, seed, (0, 1)) for rank in range(2) for seed in (0, 5)]
    assert len({seed for run in runs for seed in run}) == 8
    assert seeds(1, 5, (1,)) == [runs[3][1]], "the same again"
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.whole
def test_ranks_that_share_an_adopted_loader_have_seeds_of_their_own() -> None:
    found = set()
    for rank in range(2):
        loader = plain(torch.Generator())
        with fastload.from_dataloader(loader, shard=fastload.Shard(rank, 2)) as shared:
            found |= {row[2] for epoch in epochs_of(shared) for row in epoch}
    assert len(found) == 2 * EPOCHS


# -- an interrupt while workers start

STARTING = (
    "backends/torch_workers.py",
    "backends/torch_workers_processes.py",
    "data/dataloader.py",
    "loader/feed.py",
    "loader/production.py",
    "process.py",
)


def interrupt_starts(first: int, stride: int) -> int:
    """Interrupts the start at each `stride`-th step, then goes on with the iterator and the next
    epoch. How often."""
    interrupted = 0
    # The trainer is interrupted, not its workers.
    os.register_at_fork(after_in_child=lambda: sys.settrace(None))
    for step in range(first, 10_000, stride):
        with fastload.create_loader(Augmented(), 2, backend="torch", num_workers=1) as loader:
            iterator = iter(loader)
            if not interrupted_at(step, STARTING, lambda iterator=iterator: next(iterator)):  # type: ignore[misc]
                return interrupted
            interrupted += 1
            rest = [int(row[0]) for batch in iterator for row in batch]
            assert rest in ([*range(SAMPLES)], [*range(2, SAMPLES)]), (step, rest)
            assert [int(row[0]) for batch in loader for row in batch] == [*range(SAMPLES)], step
        assert not multiprocessing.active_children(), step
    return interrupted


class Noted:
    """Refers to itself, so that only a collection of garbage ends it; notes in which process that
    was. Memory of a GPU may be freed by the process that took it, and by no other."""

    def __init__(self, path: Path) -> None:
        self.path, self.itself = path, self

    def __del__(self) -> None:
        with self.path.open("a") as file:
            print(os.getpid(), file=file)


class Collecting(Dataset[Any]):
    """Collects garbage, and tells whether that is done by itself, too."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        gc.collect()
        return torch.tensor(gc.isenabled())


@pytest.mark.parametrize("enabled", whole_but([True], [True, False]))
def test_garbage_of_the_parent_is_not_collected_by_its_workers(
    tmp_path: Path, enabled: bool
) -> None:
    note, before = tmp_path / "collected", gc.isenabled()
    noted = Noted(note)
    gc.collect()  # it is old from now on: no collection of young objects finds it
    gc.disable()
    try:
        del noted
        if enabled:
            gc.enable()
        with fastload.create_loader(
            Collecting(), 2, backend="torch", num_workers=2, multiprocessing_context="fork"
        ) as loader:
            found = torch.cat(list(loader))
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if before else gc.disable()
    assert found.tolist() == [enabled] * SAMPLES
    gc.collect()
    assert note.read_text().split() == [str(os.getpid())]


@pytest.mark.whole
def test_a_worker_that_is_killed_leaves_no_lock_behind() -> None:
    """Among the locks of torch's iterator is that of an event, which workers and trainer ask."""
    with fastload.create_loader(
        torch.utils.data.TensorDataset(torch.arange(1000)),
        2,
        backend="torch",
        num_workers=2,
        multiprocessing_context="fork",
    ) as loader:
        batches = iter(loader)
        next(batches)
        with locked(current_iterator()._workers_done_event):
            for worker in multiprocessing.active_children():
                worker.kill()
            with pytest.raises(WorkerError):
                for _ in range(100):
                    next(batches)


@pytest.mark.parametrize("method", CONTEXTS)
def test_no_start_method_has_an_event_with_a_lock(method: str) -> None:
    event = CONTEXTS[method].Event()
    with locked(event):
        event.set()
        assert event.is_set()


@contextlib.contextmanager
def locked(event: Any) -> Iterator[None]:
    """Holds the lock of an event, as one that was killed while it had it. What waits for it waits
    for a minute; then the test has failed."""
    event._cond.acquire()
    given_up = threading.Timer(60, event._cond.release)
    given_up.start()
    try:
        yield
        assert given_up.is_alive()
    finally:
        given_up.cancel()


def current_iterator() -> Any:
    """Torch's iterator of the loader under way."""
    # By their types: `isinstance` asks a weak reference for its object, which may be gone.
    batches = [o for o in gc.get_objects() if issubclass(type(o), Batches)]
    (found,) = (each for each in batches if not each._shutdown)
    return found


@pytest.mark.whole
def test_an_interrupt_while_workers_start_leaves_nothing_behind(tmp_path: Path) -> None:
    code = "from tests.test_torch_workers import interrupt_starts; print(interrupt_starts(3, 58))"
    (tmp_path / "starts.py").write_text(code)
    done = warm.run("starts.py", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 5


@pytest.mark.slow
@pytest.mark.reliability
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first", range(3, 32))
def test_an_interrupt_at_every_step_leaves_nothing_behind(first: int) -> None:
    """An interrupted start once removed the folder through
    whose sockets all later workers of the process send their batches."""
    assert outside(interrupt_starts, first, 29).answer > 5


def test_of_two_threads_that_start_workers_each_ends_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The start of one thread is interrupted after another has started workers."""
    original: Any = _MultiProcessingDataLoaderIter.__init__
    workers, started = list[Any](), threading.Event()

    def start(self: Any, loader: Any) -> None:
        original(self, loader)
        workers.append(self._workers)
        if len(workers) == 1:
            assert started.wait(LIMIT)
            raise KeyboardInterrupt
        started.set()

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "__init__", start)
    loaders = [
        fastload.create_loader(Augmented(), 2, backend="torch", num_workers=1) for _ in range(2)
    ]
    with loaders[0], loaders[1], ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(lambda: next(iter(loaders[0])))
        wait_until(lambda: bool(workers))
        rows = [int(row[0]) for batch in loaders[1] for row in batch]
        with pytest.raises(KeyboardInterrupt):
            interrupted.result(LIMIT)
        assert rows == [*range(SAMPLES)]
        assert [worker.is_alive() for worker in workers[0]] == [False]


LONG = """
import multiprocessing, os, sys, tempfile
import torch
from torch.utils.data import DataLoader, TensorDataset
import fastload
from fastload.errors import ConfigurationError

multiprocessing.current_process()._config.pop("tempdir", None)
tempfile.tempdir = sys.argv[1]
numbers = TensorDataset(torch.arange(4))
plain = DataLoader(numbers, 2, num_workers=1, multiprocessing_context="fork")
loader = fastload.from_dataloader(plain, backend="torch")
try:
    print([batch[0].tolist() for batch in loader])
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the longest name of a socket is that of Linux")
@pytest.mark.parametrize("longer", [0, 1])
def test_a_temporary_folder_with_a_name_too_long_for_sockets_is_refused(
    tmp_path: Path, longer: int
) -> None:
    """A DataLoader waits for its first batch for ever."""
    (tmp_path / "long.py").write_text(LONG)
    with tempfile.TemporaryDirectory() as base:  # the name of `tmp_path` may be long itself
        length = 107 - len(f"{base}//pymp-12345678/listener-12345678") + longer
        folder = Path(base, "x" * length)
        folder.mkdir()
        done = warm.run("long.py", str(folder), directory=tmp_path)
    if longer:
        assert re.search(r"^TMPDIR: no socket .*\(108 bytes\).*such as /tmp", done.stdout), done
    else:
        assert done.stdout.strip() == "[[0, 1], [2, 3]]", done


def _trained(folder: Path) -> None:
    """A trainer with a worker that is killed in its first epoch."""
    loader = fastload.from_dataloader(DataLoader(Augmented(), 1, num_workers=1), backend="torch")
    next(iter(loader))
    (worker,) = multiprocessing.active_children()
    (folder / "worker").write_text(str(worker.pid))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_child_leaves_its_parent_the_folder_of_sockets(tmp_path: Path) -> None:
    """A DataLoader of the parent would wait for its first batch for ever."""
    mine = multiprocessing.util.get_temp_dir()
    assert own_folder() == mine
    child = multiprocessing.get_context("fork").Process(target=_trained, args=(tmp_path,))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    worker = int((tmp_path / "worker").read_text())
    wait_until(lambda: has_ended(worker))
    assert Path(mine).is_dir()


def requested(backend: TorchBackend, count: int) -> list[Any]:
    """What the workers would be given, in turn: indices, or None of an idle request."""
    asked = iter(backend._requests)
    found = [next(asked) for _ in range(count)]
    return [None if draws is None else draws.indices.tolist() for draws in found]


def not_started() -> TorchBackend:
    """A backend whose worker processes start with more requests than a test makes."""
    context = context_of(source_of(value=ValueArray(np.arange(9))), None)
    return TorchBackend(context, TorchOptions(threads=False))


def test_a_cancelled_request_is_not_handed_out() -> None:
    backend = not_started()
    works = [backend.start(draws_of(n)) for n in range(3)]
    works[1].cancel()
    assert requested(backend, 3) == [[0], [2], None]
    works[0].cancel()  # it is on its way, and received for nobody


def test_what_is_waited_for_is_handed_out_first() -> None:
    backend = not_started()
    for number in range(3):
        backend.start(draws_of(number))
    requests = [*backend._requests.queue]
    for number in (2, 2, 0, 1):
        backend._requests.put_first(requests[number])
    assert requested(backend, 4) == [[1], [0], [2], None]
    backend._requests.put_first(requests[1])
    assert requested(backend, 1) == [None], "it was handed out already"


def test_each_epoch_begins_with_the_first_worker() -> None:
    backend = not_started()
    for number in range(3):
        backend.start(replace(draws_of(number), begins=number in (0, 1)))
    assert requested(backend, 4) == [[0], None, [1], [2]]


def test_a_batch_that_was_started_before_the_end_of_the_workers_does_not_come() -> None:
    backend = not_started()
    work = backend.start(draws_of(0))
    backend.close()
    with pytest.raises(WorkerError, match="its workers were ended while"):
        work.result()
    work.cancel()
