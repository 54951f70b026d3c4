"""The Loader, over a backend made for the test: what has nothing to do with images."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from fastload.backends import torch_workers
from fastload.backends.base import HostBatch
from fastload.backends.torch_workers import TorchOptions
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.draws import Draws
from fastload.errors import (
    ConfigurationError,
    DecodeError,
    FastloadError,
    StateMismatchError,
    WorkerError,
)
from fastload.fingerprint import fingerprint_of
from fastload.host_memory import BufferPool
from fastload.loader import Loader
from fastload.loader.iterator import _generators_seeded
from fastload.machine import use_one_thread_here
from fastload.recipe import Recipe
from fastload.sampler import EpochOrder, ForeignOrder, Shard
from tests.images import write_photo_folder
from tests.recorder import Recorder, indices_of, loader_over
from tests.waiting import LIMIT, wait_until


def test_the_next_epoch_is_under_way_when_one_ends() -> None:
    backend = Recorder(depth=3)
    with loader_over(backend, EpochOrder(6, 2, shuffle=True)) as loader:
        first = indices_of(loader)
        assert [epoch for epoch, _ in backend.started[:5]] == [0, 0, 0, 1, 1]
        second = indices_of(loader)
        assert backend.cancelled == 0
        assert [i for _, i in backend.started[:6]] == first + second


def test_no_more_is_submitted_than_the_backend_wants() -> None:
    backend = Recorder(depth=4)
    with loader_over(backend, EpochOrder(100, 1)) as loader:
        next(iter(loader))
        wait_until(lambda: len(backend.started) >= 1 + 4)
        assert len(backend.started) <= 1 + loader.batches_in_flight


def test_epochs_count_up_and_set_epoch_overrides() -> None:
    def run(*plan: int | None) -> list[list[list[int]]]:
        with loader_over(Recorder(), EpochOrder(8, 2, shuffle=True)) as loader:
            result = []
            for epoch in plan:
                if epoch is not None:
                    loader.set_epoch(epoch)
                result.append(indices_of(loader))
            return result

    zero, one, two = run(None, None, None)
    assert run(2, None) == [two, run(3)[0]]
    assert run(1, 1, 0) == [one, one, zero]
    assert run(0, 1, 2) == [zero, one, two]


@pytest.mark.parametrize("epoch", [0, 5])
def test_set_epoch_in_the_middle_of_an_epoch_is_for_the_next_one(epoch: int) -> None:
    order = EpochOrder(8, 2, shuffle=True)

    def batches_of(epoch: int) -> list[list[int]]:
        return [order.epoch(epoch)[order.batch(step)].tolist() for step in range(4)]

    with loader_over(Recorder(), order) as loader:
        seen = []
        for batch in loader:
            seen.append(batch[0].tolist())
            loader.set_epoch(epoch)
            assert len(seen) <= 4
        assert seen == batches_of(0)
        assert indices_of(loader) == batches_of(epoch)
        for _ in loader:
            loader.set_epoch(epoch)
            break
        assert indices_of(loader) == batches_of(epoch)


def test_set_epoch_reaches_the_loader_through_its_samplers() -> None:
    with loader_over(Recorder(), EpochOrder(8, 2, shuffle=True)) as loader:
        for sampler in (loader.sampler, loader.batch_sampler):
            sampler.set_epoch(5)
            assert len(sampler) == len(list(sampler))
            expected = list(loader.batch_sampler)
            assert indices_of(loader) == expected or sampler is loader.sampler
        with pytest.raises(ConfigurationError, match="epoch"):
            loader.set_epoch(-1)


def test_an_abandoned_epoch_is_followed_by_the_next() -> None:
    order = EpochOrder(8, 2, shuffle=True)
    with loader_over(Recorder(), order) as loader:
        next(iter(loader))
        assert indices_of(loader) == [order.epoch(1)[order.batch(s)].tolist() for s in range(4)]


def test_state_counts_batches_handed_out_and_not_those_ahead() -> None:
    backend = Recorder(depth=3)
    with loader_over(backend, EpochOrder(20, 2)) as loader:
        iterator = iter(loader)
        assert loader.state_dict()["step"] == 0
        next(iterator)
        wait_until(lambda: len(backend.started) > 3)
        assert loader.state_dict()["step"] == 1
        assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"step": 11},
        {"step": None},
        {"version": 2},
        {"source": "x"},
        {"order": {"seed": 1}},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    with loader_over(Recorder(), EpochOrder(20, 2)) as loader:
        state = loader.state_dict()
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(state | change)
        assert loader.state_dict() == state


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_a_state_goes_on_in_another_precision(dtype: torch.dtype | None) -> None:
    images = torch.zeros(8, 3, 4, 4, dtype=torch.uint8)
    floats = v2.ToDtype(torch.float32, scale=True)

    def create(**given: Any) -> fastload.Loader:
        return fastload.create_loader({"image": images}, 2, **given)

    with (
        create(transform=floats, dtype=torch.float16) as one,
        create(transform=floats, dtype=dtype) as other,
    ):
        next(iter(one))
        state = one.state_dict()
        # Older states hold a fingerprint with the dtype: BLAKE2b of the transform's fingerprint,
        # "None" for no mixing, and the dtype's name.
        older = fingerprint_of(Recipe.from_transform(floats).fingerprint, "None", "torch.float16")
        for recipe in (state["recipe"], older):
            other.load_state_dict(state | {"recipe": recipe})
            assert other.state_dict()["step"] == 1
    with (
        create() as one,
        create(dtype=torch.float16) as other,
        pytest.raises(StateMismatchError, match="recipe"),
    ):
        other.load_state_dict(one.state_dict())  # floats from bytes: not only rounded


@pytest.mark.whole
def test_losing_the_loader_stops_its_thread() -> None:
    backend = Recorder()
    loader = loader_over(backend, EpochOrder(8, 2))
    next(iter(loader))
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    assert backend.closed == 1
    assert not any(t.name == "fastload-prefetcher" and t.is_alive() for t in threading.enumerate())


def test_an_error_in_the_backend_reaches_the_trainer_and_the_loader_can_go_on() -> None:
    class Breaks(Recorder):
        broken = True

        def result(self, draws: Draws) -> HostBatch:
            batch = super().result(draws)
            if self.broken and 4 in np.asarray(batch.columns["value"]):
                raise WorkerError("worker 3 died.")
            return batch

    backend = Breaks()
    with loader_over(backend, EpochOrder(8, 2)) as loader:
        got = []
        with pytest.raises(WorkerError, match="worker 3"):
            for values, _ in loader:
                got.append(values.tolist())
        assert got == [[0, 1], [2, 3]]
        state = loader.state_dict()
        backend.broken = False
        loader.load_state_dict(state)
        assert indices_of(loader) == [[4, 5], [6, 7]]


def test_a_new_iterator_throws_away_what_was_under_way() -> None:
    backend = Recorder()
    backend.hold = threading.Event()
    with loader_over(backend, EpochOrder(40, 2, shuffle=True)) as loader:
        backend.hold.set()
        iterator = iter(loader)
        next(iterator)
        backend.hold.clear()
        loader.set_epoch(7)
        release = threading.Timer(0.05, backend.hold.set)
        release.start()
        assert indices_of(loader)[0] == loader.sampler.order.epoch(7)[:2].tolist()
        release.join()


# -- substitution


def test_substitutes_come_from_the_ranks_own_shard() -> None:
    bad = frozenset(range(0, 64, 4))  # many: a few might come from the right shard by luck
    for rank in range(2):
        backend = Recorder(bad=bad)
        order = EpochOrder(64, 2, Shard(rank, 2), shuffle=True, seed=2)
        own = {i for step in range(order.steps) for i in order.epoch(0)[order.batch(step)].tolist()}
        with loader_over(backend, order, on_error="substitute") as loader:
            batches = indices_of(loader)
            assert [len(batch) for batch in batches] == [2] * 16
            got = {i for batch in batches for i in batch}
            assert got <= own - bad
            assert own - bad <= got
            assert loader.stats().substituted == len(own & bad)


def test_substitutes_survive_a_resume() -> None:
    def make() -> Loader:
        return loader_over(
            Recorder(bad=frozenset({1, 5})), EpochOrder(12, 2, shuffle=True), on_error="substitute"
        )

    with make() as loader, make() as resumed:
        iterator = iter(loader)
        next(iterator)
        resumed.load_state_dict(loader.state_dict())
        assert [values.tolist() for values, _ in iterator] == indices_of(resumed)


def test_when_nothing_can_be_read_the_error_says_so() -> None:
    backend = Recorder(bad=frozenset(range(8)))
    with (
        loader_over(backend, EpochOrder(8, 2), on_error="substitute") as loader,
        pytest.raises(DecodeError, match=r"file \d: broken.*No replacement"),
    ):
        list(loader)


# -- samplers of the user's own


class Unrepeatable:
    """Draws from a generator that nobody else can wind back."""

    def __init__(self) -> None:
        self.calls = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        return iter(np.roll(np.arange(8), self.calls).tolist())


def test_a_foreign_sampler_is_asked_once_an_epoch_and_not_ahead() -> None:
    sampler = Unrepeatable()
    with loader_over(Recorder(), ForeignOrder(sampler, 2, 8)) as loader:
        assert sampler.calls == 0
        first = indices_of(loader)
        assert sampler.calls == 1
        second = indices_of(loader)
        assert sampler.calls == 2
        assert first == [[7, 0], [1, 2], [3, 4], [5, 6]]
        assert second == [[6, 7], [0, 1], [2, 3], [4, 5]]


def test_resuming_into_another_order_is_noticed() -> None:
    with loader_over(Recorder(), ForeignOrder(Unrepeatable(), 2, 8)) as loader:
        next(iter(loader))
        state = loader.state_dict()
    sampler = Unrepeatable()
    sampler.calls = 1
    with loader_over(Recorder(), ForeignOrder(sampler, 2, 8)) as other:
        other.load_state_dict(state)
        with pytest.raises(StateMismatchError, match="another order"):
            next(iter(other))
    with loader_over(Recorder(), ForeignOrder(Unrepeatable(), 2, 8)) as same:
        same.load_state_dict(state)
        assert indices_of(same) == [[1, 2], [3, 4], [5, 6]]


def test_a_sample_that_comes_twice_is_drawn_twice() -> None:
    with loader_over(Recorder(), ForeignOrder([3, 3, 1], 3, 8)) as loader:
        _, noise = next(iter(loader))
        assert noise[0] != noise[1]


# -- real processes


@pytest.mark.slow
def test_a_killed_worker_is_an_error_within_seconds(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, per_class=8)
    transform = v2.RandomResizedCrop(16, antialias=True)
    with fastload.create_loader(
        folder, 2, backend="torch", num_workers=2, transform=transform
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        workers = multiprocessing.active_children()
        assert len(workers) == 2
        for worker in workers:
            worker.kill()
        with pytest.raises(WorkerError, match="memory"):
            for _ in range(100):
                next(iterator)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()]
)
def test_a_worker_that_dies_while_handing_over_a_batch_is_a_worker_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(_: Any) -> Any:
        raise error

    folder = write_photo_folder(tmp_path, per_class=8)
    transform = v2.RandomResizedCrop(16, antialias=True)
    with fastload.create_loader(
        folder, 2, backend="torch", num_workers=1, transform=transform
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_next_data", broken)
        with pytest.raises(WorkerError, match="memory"):
            for _ in range(100):
                next(iterator)


def fails(items: list[Any]) -> Any:
    raise FileNotFoundError("no worker is to blame")


def test_an_error_of_the_users_collate_function_is_no_worker_error() -> None:
    for workers in (0, 1):
        with (
            fastload.create_loader([1, 2, 3], 2, collate_fn=fails, num_workers=workers) as loader,
            pytest.raises(FileNotFoundError, match="no worker is to blame"),
        ):
            next(iter(loader))


@pytest.mark.slow
def test_closing_after_a_worker_was_killed_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown, ended = _MultiProcessingDataLoaderIter._shutdown_workers, 0

    def interrupted(self: Any) -> None:
        if not self._shutdown:
            shutdown(self)
            nonlocal ended
            ended += 1
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    folder = write_photo_folder(tmp_path, per_class=8)
    loader = fastload.create_loader(
        folder,
        2,
        backend="torch",
        num_workers=1,
        transform=v2.RandomResizedCrop(16, antialias=True),
    )
    next(iter(loader))
    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_shutdown_workers", interrupted)
    loader.close()
    assert ended


@pytest.mark.reliability
def test_a_forked_child_gets_an_error_and_does_not_hang(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, per_class=4)
    program = f"""
import os, fastload
from torchvision.transforms import v2
transform = v2.RandomResizedCrop(16, antialias=True)
loader = fastload.create_loader({str(folder)!r}, 2, transform=transform)
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except fastload.errors.FastloadError as error:
        os._exit(7 if "fork" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 7 << 8
print(len(list(iterator)))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "3"


@pytest.mark.reliability
def test_leaving_without_closing_ends_the_process(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, per_class=4)
    for backend in ("turbojpeg", "torch"):
        program = f"""
import fastload
from torchvision.transforms import v2
transform = v2.RandomResizedCrop(16, antialias=True)
options = {{"backend": {backend!r}, "num_workers": 1}}
loader = fastload.create_loader({str(folder)!r}, 2, transform=transform, **options)
next(iter(loader))
"""
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT
        )
        assert (result.returncode, result.stderr) == (0, "")


class Dying(Recorder):
    """One of whose workers dies while it is closed."""

    def close(self) -> None:
        super().close()
        os.kill(os.getpid(), signal.SIGCHLD)
        time.sleep(0.01)


def test_a_worker_that_dies_while_the_loader_is_closed_disturbs_nobody() -> None:
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        """As torch's, which raises in the main thread wherever it is."""
        heard.append(number)
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, handler)
    try:
        backend = Dying()
        loader = loader_over(backend, EpochOrder(8, 2))
        next(iter(loader))
        loader.close()
        assert (backend.closed, heard) == (1, [signal.SIGCHLD])
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, before)


# -- what is delivered


def test_stats_and_explain_tell_what_happened(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, per_class=4)
    transform = v2.Compose(
        [v2.RandomResizedCrop(16, antialias=True), v2.ToImage(), v2.ToDtype(torch.float32, True)]
    )
    with fastload.create_loader(
        folder, 3, transform=transform, dtype=torch.float16, seed=4
    ) as loader:
        for images, _ in loader:
            assert images.dtype == torch.float16
        stats = loader.stats()
        assert (stats.batches, stats.samples, stats.substituted) == (3, 8, 0)
        assert stats.first_batch_seconds > 0
        assert 0 <= stats.wait_share <= 1
        text = loader.explain()
        for word in (
            "turbojpeg",
            "without worker processes",
            "8 samples",
            "seed 4",
            "RandomResizedCrop",
            "device",
        ):
            assert word in text, text
        assert "8 samples" in repr(loader)


def test_stats_count_the_time_that_the_trainer_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that is one second further each time the loader looks: when a batch is asked for, and
    # when it is there.
    monkeypatch.setattr(
        "fastload.loader.iterator.time",
        SimpleNamespace(perf_counter=itertools.count(100.0).__next__),
    )
    with loader_over(Recorder(), EpochOrder(10, 2)) as loader:
        assert len(list(loader)) == 5
        stats = loader.stats()
    assert (stats.first_batch_seconds, stats.wait_seconds, stats.elapsed_seconds) == (1.0, 4.0, 8.0)
    assert stats.wait_share == 0.5


def test_explain_says_which_decoder_would_not_notice_damage(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg", reason="it has no wheel for this Python")
    folder = write_photo_folder(tmp_path, per_class=2)
    for backend, options in (("torch", TorchOptions), ("turbojpeg", TurboJpegOptions)):
        for decoder, silent in (("pillow", True), ("simplejpeg", False)):
            loader = fastload.create_loader(
                folder, backend=backend, options=options(decoder=decoder)
            )
            assert decoder in loader.explain()
            assert ("does not report damage" in loader.explain()) == silent


def test_batch_transforms_are_mixed_or_called_with_seeded_numbers(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, per_class=4)
    transform = v2.Compose(
        [v2.RandomResizedCrop(16, antialias=True), v2.ToImage(), v2.ToDtype(torch.float32, True)]
    )

    def noisy(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images + torch.rand(images.shape), labels

    for batch_transform in (v2.MixUp(num_classes=2), noisy):
        runs = []
        state = torch.random.get_rng_state()
        for _ in range(2):
            with fastload.create_loader(
                folder, 4, transform=transform, batch_transform=batch_transform
            ) as loader:
                runs.append([images for images, _ in loader])
        assert torch.equal(torch.random.get_rng_state(), state)
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    with fastload.create_loader(
        folder, 4, transform=transform, batch_transform=v2.MixUp(num_classes=2)
    ) as loader:
        _, labels = next(iter(loader))
        assert labels.shape == (4, 2)
        assert torch.allclose(labels.sum(1), torch.ones(4))


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "mps"])
def test_a_batch_transform_seeds_the_generators_of_its_device_alone(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """Those of other GPUs are the trainer's: its dropout would be the same in all ranks."""
    current, seeded = [0], list[tuple[int, int]]()

    @contextlib.contextmanager
    def use(which: torch.device) -> Iterator[None]:
        current[0] = which.index
        yield
        current[0] = 0

    fork_rng = torch.random.fork_rng

    def fork(devices: list[torch.device]) -> Any:
        assert [str(one) for one in devices] == [device] * (device == "cuda:1")
        return fork_rng(devices=[])

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda n: seeded.append((current[0], n)))
    seeded_all: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeded_all.append)
    with _generators_seeded(7, torch.device(device)):
        assert torch.initial_seed() == 7
    assert seeded == [(1, 7)] * (device == "cuda:1")
    assert seeded_all == [7] * (device == "mps")


def test_buffers_return_when_their_last_view_is_gone() -> None:
    pool = BufferPool(least=1)
    first = pool.allocate((2, 3))
    address = first.ctypes.data
    tensor = torch.from_numpy(first[1:])
    del first
    assert pool.allocate((2, 3)).ctypes.data != address, "a tensor still uses it"
    del tensor
    assert pool.allocate((6,)).ctypes.data == address
    assert pool.allocate((0, 4)).shape == (0, 4)
    used = pool.allocated
    for _ in range(100):
        pool.allocate((2, 3))
    assert pool.allocated <= used + 12


def test_page_locked_batches_on_the_cpu_come_from_torchs_allocator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone knows of copies that the trainer has queued; a pool of ours would overwrite a batch
    under them."""
    pinned: list[int] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        pinned.append(copy.data_ptr())
        return copy

    pools: list[torch.device | None] = []
    made = BufferPool.__init__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(
        BufferPool,
        "__init__",
        lambda self, pinned_for=None: (pools.append(pinned_for), made(self))[1],
    )
    folder = write_photo_folder(tmp_path)
    transform = v2.RandomResizedCrop(16, antialias=True)
    with fastload.create_loader(
        folder, 2, transform=transform, pin_memory=True, num_workers=1
    ) as loader:
        images, labels = next(iter(loader))
        assert images.data_ptr() in pinned
        assert labels.data_ptr() in pinned
    assert not any(pools)


def test_a_closed_loader_says_so() -> None:
    loader = loader_over(Recorder(), EpochOrder(8, 2))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(FastloadError):
        next(iterator)
    with pytest.raises(FastloadError, match="closed"):
        next(iter(loader))


def test_one_intraop_thread_in_one_thread_only() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    found: list[int] = []

    def ours() -> None:
        use_one_thread_here()
        found.append(torch.get_num_threads())

    try:
        for target in (ours, lambda: found.append(torch.get_num_threads())):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        assert found == [1, 3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_a_default_device_of_the_users_changes_nothing(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, per_class=4)
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(16, antialias=True),
            v2.ToImage(),
            v2.ToDtype(torch.float32, True),
            v2.Normalize([0.5], [1]),
        ]
    )
    for backend in ("turbojpeg", "torch"):
        with (
            torch.device("meta"),
            fastload.create_loader(
                folder, 4, transform=transform, backend=backend, num_workers=1
            ) as loader,
        ):
            for images, labels in loader:
                assert images.device.type == labels.device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("opaque", [False, True])
def test_a_dtype_that_would_cut_off_fractions_is_refused(
    dtype: torch.dtype, opaque: bool, tmp_path: Path
) -> None:
    steps = [v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*steps, *([v2.Lambda(lambda image: image / 2)] if opaque else [])])
    folder = write_photo_folder(tmp_path)
    with (
        pytest.raises(ConfigurationError, match=r"dtype: .*torch\.float32"),
        fastload.create_loader(
            folder, 2, transform=transform, dtype=dtype, num_workers=0
        ) as loader,
    ):
        next(iter(loader))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
def test_a_dtype_that_cannot_hold_pixels_is_refused(dtype: torch.dtype) -> None:
    images = np.full((4, 8, 8, 3), 200, np.uint8)
    with pytest.raises(ConfigurationError, match="dtype: .*uint8"):
        fastload.create_loader((images, np.arange(4)), 2, dtype=dtype)
    with fastload.create_loader((images, np.arange(4)), 2, dtype=torch.int64) as loader:
        assert int(next(iter(loader))[0].max()) == 200


@pytest.mark.parametrize("device", ["mps", "xpu", "meta", "hpu", torch.device("mps", 0)])
def test_a_device_that_is_not_here_is_refused(device: Any) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"device: '.*' was asked for, and torch cannot use it here .*'cpu'",
    ):
        fastload.create_loader((np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)), 2, device=device)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]
)
def test_the_copy_of_a_started_loader_begins_with_the_first_batch(copied: Any) -> None:
    arrays = (np.zeros((12, 8, 8, 3), np.uint8), np.arange(12))
    with fastload.create_loader(arrays, 2, shuffle=True) as loader:
        loader.set_epoch(3)
        whole = [labels.tolist() for _, labels in copied(loader)]
        assert len(whole) == 6
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        with copied(loader) as other:
            assert [labels.tolist() for _, labels in other] == whole
        state = loader.state_dict()
        assert [labels.tolist() for _, labels in iterator] == whole[4:], (
            "the first one goes on undisturbed"
        )
        loader.load_state_dict(state)
        with copied(loader) as other:
            assert [labels.tolist() for _, labels in other] == whole[4:], (
                "nothing was taken since the state was loaded"
            )


def test_single_samples_are_as_the_data_set_gives_them(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path)
    transform = v2.Compose([v2.Resize((8, 8)), v2.ToImage()])
    plain = torch.utils.data.DataLoader(ImageFolder(folder, transform=transform), batch_size=None)
    with fastload.from_dataloader(plain) as loader:
        for (image, label), (expected, wanted) in zip(loader, plain, strict=True):
            assert type(label) is type(wanted) is int
            assert label == wanted
            assert torch.equal(image, expected)


@pytest.mark.parametrize("skipped", [0, 1, 3])
def test_a_saved_position_counts_skipped_batches(skipped: int) -> None:
    order = EpochOrder(12, 2, shuffle=True)
    batches = [order.epoch(0)[order.batch(step)].tolist() for step in range(6)]
    with loader_over(Recorder(), order) as loader:
        loader.skip(skipped)
        assert loader.state_dict()["step"] == skipped
        iterator = iter(loader)
        assert next(iterator)[0].tolist() == batches[skipped]
        state = loader.state_dict()
        assert (state["epoch"], state["step"]) == (0, skipped + 1)
    with loader_over(Recorder(), order) as other:
        other.load_state_dict(state)
        assert indices_of(other) == batches[skipped + 1 :]


def test_batches_skipped_during_an_epoch_are_those_of_the_next_one() -> None:
    order = EpochOrder(12, 2, shuffle=True)
    with loader_over(Recorder(), order) as loader:
        next(iter(loader))
        loader.skip(4)
        state = loader.state_dict()
        assert (state["epoch"], state["step"]) == (1, 4)
        with loader_over(Recorder(), order) as other:
            other.load_state_dict(state)
            assert indices_of(other) == [
                order.epoch(1)[order.batch(step)].tolist() for step in (4, 5)
            ]
        for wrong in (-1, 7):
            with pytest.raises(ConfigurationError, match="batches: must be from 0 to 6"):
                loader.skip(wrong)


# -- worker processes beside ranks on other machines


class Doubled(torch.utils.data.Dataset[torch.Tensor]):
    """Can be pickled."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([2 * index, os.getppid()])


@pytest.fixture
def two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr("multiprocessing.get_start_method", lambda **given: "fork")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


@pytest.mark.parametrize(
    ("here", "slurm", "wanted"),
    [
        ("2", "", "forkserver"),
        ("4", "2", None),
        ("", "2", "forkserver"),
        ("", "1", None),
        ("", "", None),
    ],
)
def test_workers_are_not_forked_beside_ranks_on_other_machines(
    two_machines: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: Any,
    here: str,
    slurm: str,
    wanted: Any,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", slurm)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    script = tmp_path / "train.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    script.write_text('if __name__ == "__main__":\n    main()\n')
    assert torch_workers._start_method() == wanted
    script.write_text("main()\n")  # a server that imports it would run it all
    assert torch_workers._start_method() is None
    assert ("may hang" in caplog.text) is (wanted is not None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    script.write_text('if __name__ == "__main__":\n    main()\n')
    assert torch_workers._start_method() is None


@pytest.mark.slow
def test_a_fork_server_starts_them(two_machines: None) -> None:
    shard = fastload.Shard(0, 1)
    with fastload.create_loader(
        Doubled(), 4, backend="torch", num_workers=1, shard=shard
    ) as loader:
        rows = torch.cat(list(loader)).tolist()
    assert [row[0] for row in rows] == [2 * index for index in range(8)]
    assert os.getpid() not in {row[1] for row in rows}, "their parent is the server"


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_what_a_fork_server_cannot_be_sent_is_said(two_machines: None) -> None:
    class Local(Doubled):
        pass

    shard = fastload.Shard(0, 1)
    with fastload.create_loader(Local(), 4, backend="torch", num_workers=1, shard=shard) as loader:
        with pytest.raises(
            ConfigurationError, match=r"multiprocessing_context: .* picklable, and are not .*Local"
        ):
            next(iter(loader))
    options = TorchOptions(multiprocessing_context="fork")
    with fastload.create_loader(
        Local(), 4, backend="torch", num_workers=1, shard=shard, options=options
    ) as loader:
        assert next(iter(loader))[0, 1] == os.getpid()
