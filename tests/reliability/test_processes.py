"""Processes that fork, end, are killed or are given too little: the others go on, or say what is
wrong."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from fastload.backends.torch_workers import TorchOptions
from fastload.errors import FastloadError
from fastload.loader import compared, production
from tests import images
from tests.backends import CONTESTANTS, Contestant, contestants
from tests.reliability.outside import outside
from tests.waiting import wait_until

RESIZE = v2.Resize((16, 16))
SAMPLES = 24


def loader_of(name: str, folder: str, *, own: str = "", **arguments: Any) -> fastload.Loader:
    """Over images in `folder` of which each has a label of its own; `own`: where it may write, if
    not there."""
    data = Path(folder, "data")
    if not data.exists():
        images.write_photo_folder(data, classes=SAMPLES, per_class=1, size=(24, 24))
    contestant = next(c for c in CONTESTANTS if c.name == name)
    return contestant.create(
        data, Path(own or folder), **{"batch_size": 2, "transform": RESIZE, **arguments}
    )


def labels_of(loader: fastload.Loader) -> list[int]:
    return [int(label) for _, labels in loader for label in labels]


# -- a process forks that has a loader under way


def exit_it(loader: fastload.Loader) -> None:
    sys.exit(0)


def drop_it(loader: fastload.Loader) -> None:
    loader.close()
    del loader
    sys.exit(0)


def go_on_with_it(loader: fastload.Loader) -> None:
    try:
        next(iter(loader))
    except FastloadError as error:
        sys.exit(0 if "started in another process" in str(error) else 1)
    sys.exit(2)


def fork_under_way(name: str, folder: str) -> list[int]:
    """The parent's labels, and what became of the children."""
    with loader_of(name, folder) as loader:
        batches = iter(loader)
        found = next(batches)[1].tolist()
        for run_child in (exit_it, drop_it, go_on_with_it):
            child = os.fork()
            if child == 0:
                del batches
                run_child(loader)
            found.append(-os.waitpid(child, 0)[1])
            found += next(batches)[1].tolist()
        return [*found, *(int(label) for _, labels in batches for label in labels)]


@contestants()
def test_a_forked_child(contestant: Contestant, tmp_path: Path) -> None:
    """It ends as if there was no loader, and its parent goes on as if there had been no child."""
    ended = outside(fork_under_way, contestant.name, str(tmp_path))
    assert ended.answer == [0, 1, 0, 2, 3, 0, 4, 5, 0, *range(6, SAMPLES)]
    for word in ("Traceback", "nanobind", "Exception ignored", "leaked"):
        assert word not in ended.output, ended.output
    assert not ended.survivors


def read_it(loader: fastload.Loader) -> None:
    sys.exit(0 if labels_of(loader) == labels_of(loader) == [*range(SAMPLES)] else 1)


def fork_before_the_first_batch(name: str, folder: str) -> list[int]:
    """What became of two children, and the parent's labels."""
    torch.set_num_threads(1)  # those of its OpenMP do not fork, no matter who uses them
    with loader_of(name, folder) as loader:
        loader.explain()
        found = []
        for _ in range(2):
            child = os.fork()
            if child == 0:
                read_it(loader)
            found.append(-os.waitpid(child, 0)[1])
        return found + labels_of(loader)


@contestants()
def test_a_loader_that_nobody_has_started_works_in_a_forked_child(
    contestant: Contestant, tmp_path: Path
) -> None:
    """As a DataLoader does."""
    ended = outside(fork_before_the_first_batch, contestant.name, str(tmp_path))
    assert ended.answer == [0, 0, *range(SAMPLES)]
    for word in ("Traceback", "nanobind", "Exception ignored", "leaked"):
        assert word not in ended.output, ended.output
    assert not ended.survivors


# -- a program ends that has a loader under way

MATRIX = torch.ones(400, 400)


def multiply(image: Any) -> Any:
    """Torch lets other threads run meanwhile; it ends a program whose threads Python ends there."""
    for _ in range(10):
        torch.mm(MATRIX, MATRIX)
    return image


class Multiplies(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(multiply(index))


def end_with_one_under_way(name: str, folder: str, children: int) -> list[int]:
    """How children end, each at another moment; `name`: of a contestant, or "compared"."""
    torch.set_num_threads(1)
    opaque = any(each.name == name and each.opaque for each in CONTESTANTS)
    transform = v2.Compose([v2.Lambda(multiply), RESIZE]) if opaque else RESIZE
    if name == "compared":
        compared.EVERY = 1
        images.write_photo_folder(Path(folder, "data"), classes=2, per_class=30, size=(24, 24))
        data = Multiplies(str(Path(folder, "data")), v2.Compose([v2.ToImage(), RESIZE]))
    else:
        loader_of(name, folder).close()  # which makes the images, and a cache
    statuses = []
    for number in range(children):
        child = os.fork()
        if child == 0:
            if name == "compared":
                adopted = DataLoader(data, 4)
                loader = fastload.from_dataloader(adopted, assume_plain=True, backend="turbojpeg")
            else:
                loader = loader_of(name, folder, transform=transform)
            next(iter(loader))
            time.sleep(number * 0.003)
            sys.exit(0)
        statuses.append(os.waitpid(child, 0)[1])
    return statuses


@contestants()
def test_a_program_ends_with_a_loader_under_way(contestant: Contestant, tmp_path: Path) -> None:
    ended = outside(end_with_one_under_way, contestant.name, str(tmp_path), 3)
    assert ended.answer == [0] * 3, ended.output
    assert "terminate" not in ended.output
    assert not ended.survivors


def test_a_program_ends_while_samples_are_compared(tmp_path: Path) -> None:
    ended = outside(end_with_one_under_way, "compared", str(tmp_path), 3)
    assert ended.answer == [0] * 3, ended.output


IN_TORCH = threading.Event()


def stay_in_torch(columns: Any = None) -> Any:
    """For ever, in a thread of the loader's."""
    while threading.current_thread() is not threading.main_thread():
        IN_TORCH.set()
        torch.mm(MATRIX, MATRIX)
    return columns


class Stays(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        stay_in_torch()
        return super().__getitem__(index)


def end_while_a_function_stays_in_torch(folder: str, where: str) -> int:
    """How a child ends."""
    torch.set_num_threads(1)
    images.write_photo_folder(Path(folder, "data"), classes=2, per_class=30, size=(24, 24))
    compared.EVERY, compared._PATIENCE, production._PATIENCE = 1, 0.1, 0.1
    child = os.fork()
    if child == 0:
        if where == "compare":
            data = Stays(str(Path(folder, "data")), v2.Compose([v2.ToImage(), RESIZE]))
            loader = fastload.from_dataloader(
                DataLoader(data, 4), assume_plain=True, backend="turbojpeg"
            )
            next(iter(loader))
        else:
            loader = fastload.create_loader(
                Path(folder, "data"),
                4,
                transform=RESIZE,
                collate_fn=fastload.CollateColumns(stay_in_torch),
            )
            threading.Thread(target=next, args=(iter(loader),), daemon=True).start()
        wait_until(IN_TORCH.is_set)
        sys.exit(0)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("where", ["compare", "collate"])
def test_a_program_ends_while_a_function_stays_in_torch(where: str, tmp_path: Path) -> None:
    ended = outside(end_while_a_function_stays_in_torch, str(tmp_path), where)
    assert ended.answer == 0, ended.output


# -- workers and trainers that are killed


class Sleepy(torch.utils.data.Dataset[Any]):
    """One sample never comes."""

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        while index == self.bad:
            time.sleep(1)
        return torch.zeros(3), index


def wait_for_a_sample() -> list[Any]:
    # Forked: what the limit is for is the sample, not how long an interpreter takes to start.
    options = TorchOptions(worker_timeout=15, multiprocessing_context="fork")
    with fastload.create_loader(
        Sleepy(11), 2, backend="torch", num_workers=2, options=options
    ) as loader:
        found: list[Any] = []
        for _ in range(2):  # the second time with workers of its own: nothing stale is delivered
            try:
                found += labels_of(loader)
            except FastloadError as error:
                found += [type(error).__name__, str(error)]
            loader.set_epoch(0)
        batches = iter(loader)
        return [*found, *next(batches)[1].tolist()]


def test_a_sample_that_sleeps_for_ever() -> None:
    ended = outside(wait_for_a_sample)
    first, words, second, again, *started = ended.answer
    assert [first, second] == ["WorkerError", "WorkerError"]
    assert "the samples 10, 11 of epoch 0" in words
    assert again == words
    assert started == [0, 1]
    assert not ended.survivors


def lose_workers(folder: str, pin: bool) -> list[Any]:
    """Kills a worker and goes on, in one Loader, three times over."""
    loader = loader_of("torch-2", folder, pin_memory=pin)
    found: list[Any] = []
    with loader:
        for _ in range(3):
            loader.set_epoch(0)
            batches = iter(loader)
            seen = next(batches)[1].tolist()
            for child in psutil.Process().children():
                child.kill()
            try:
                seen += [int(label) for _, labels in batches for label in labels]
            except FastloadError as error:
                found.append(type(error).__name__)
            assert seen == list(range(len(seen)))
        loader.set_epoch(0)
        found.append(labels_of(loader))
    return [*found, os.listdir(os.environ["TMPDIR"])]


@pytest.mark.parametrize("pin", [False, True])
def test_killed_workers(pin: bool, tmp_path: Path) -> None:
    """An error, never other samples, and the Loader itself can go on; no folders of sockets are
    left."""
    (tmp_path / "tmp").mkdir()
    ended = outside(lose_workers, str(tmp_path), pin, environment={"TMPDIR": str(tmp_path / "tmp")})
    *errors, labels, during = ended.answer
    assert set(errors) <= {"WorkerError"}
    assert errors
    assert labels == list(range(SAMPLES))
    assert len(during) <= 1
    assert not list((tmp_path / "tmp").iterdir())
    assert not ended.survivors


def train_for_ever(folder: str, name: str) -> None:
    with loader_of(name, folder) as loader:
        Path(folder, "started").touch()
        while True:
            labels_of(loader)


def train_with_a_stuck_worker(folder: str, method: str) -> None:
    options = TorchOptions(multiprocessing_context=method)
    with fastload.create_loader(
        Sleepy(3), 2, backend="torch", num_workers=2, options=options
    ) as loader:
        next(iter(loader))
        Path(folder, "started").touch()
        labels_of(loader)


def killed(folder: Path) -> Callable[[psutil.Process], None]:
    def kill(process: psutil.Process) -> None:
        wait_until((folder / "started").exists)
        time.sleep(0.5)
        process.kill()

    return kill


@contestants("torch-2", "turbojpeg", "cache-disk", "dali")
def test_the_trainer_is_killed(contestant: Contestant, tmp_path: Path) -> None:
    """Its children are gone in seconds, with their folders, and it can be started again at once."""
    (tmp_path / "tmp").mkdir()
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    for _ in range(2):
        (tmp_path / "started").unlink(missing_ok=True)
        ended = outside(
            train_for_ever,
            str(tmp_path),
            contestant.name,
            status=-9,
            environment=environment,
            during=killed(tmp_path),
        )
        assert not ended.survivors
    assert not list((tmp_path / "tmp").glob("pymp-*"))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_trainer_is_killed_while_a_sample_hangs(method: str, tmp_path: Path) -> None:
    ended = outside(
        train_with_a_stuck_worker, str(tmp_path), method, status=-9, during=killed(tmp_path)
    )
    assert not ended.survivors


# -- processes beside a loader


def use_a_loader(folder: str) -> None:
    with loader_of("turbojpeg", folder) as loader:
        sys.exit(0 if labels_of(loader) == list(range(SAMPLES)) else 1)


def start_beside(folder: str, method: str) -> list[int]:
    """Processes of multiprocessing, with loaders of their own, beside two loaders under way."""
    with loader_of("torch-2", folder) as first, loader_of("turbojpeg", folder) as second:
        ours = iter(first), iter(second)
        found = [next(batches)[1].tolist() for batches in ours]
        processes = [
            multiprocessing.get_context(method).Process(target=use_a_loader, args=(folder,))
            for _ in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        for batches, seen in zip(ours, found, strict=True):
            seen += [int(label) for _, labels in batches for label in labels]
        assert found == [list(range(SAMPLES))] * 2
        return [process.exitcode or 0 for process in processes]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_beside_a_loader(method: str, tmp_path: Path) -> None:
    ended = outside(start_beside, str(tmp_path), method)
    assert ended.answer == [0, 0]
    assert not ended.survivors


def start_together(folder: str, rounds: int) -> int:
    """The validation loader is built and read while the first workers and threads of the training
    loader start."""
    for number in range(rounds):
        name = ("turbojpeg", "turbojpeg-threads", "torch-0")[number % 3]
        with loader_of(name, folder) as train:
            started = threading.Thread(target=next, args=(iter(train),))
            started.start()
            with loader_of("turbojpeg", folder, shuffle=False) as validation:
                assert labels_of(validation) == list(range(SAMPLES)), number
            started.join()
    for number in range(rounds // 30):
        with loader_of("torch-2", folder) as train:
            batches = iter(train)
            with loader_of("torch-2", folder, shuffle=False) as validation:
                started = threading.Thread(target=next, args=(iter(validation),))
                started.start()
                assert next(batches)[1].tolist() == [0, 1], number
                started.join()
    return rounds


def test_a_validation_loader_while_the_training_loader_starts(tmp_path: Path) -> None:
    assert outside(start_together, str(tmp_path), 300).answer == 300
