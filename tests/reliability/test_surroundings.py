"""What is around the process: storage that stalls, resets and cuts off, disks that are full or
read-only, clocks."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.torch_workers import TorchOptions
from fastload.errors import WorkerError
from fastload.sources import EncodedFiles, EncodedImages, Source, ValueArray
from fastload.sources.buffers import PathTable
from tests import images
from tests.backends import Contestant, contestants
from tests.reliability.outside import mounting, outside
from tests.reliability.test_processes import SAMPLES, labels_of, loader_of

RESIZE = v2.Resize((16, 16))


def read_all(name: str, folder: str, directory: str) -> list[int]:
    with loader_of(name, folder, own=directory) as loader:
        return labels_of(loader)


@mounting
@contestants()
def test_read_only_data(contestant: Contestant, tmp_path: Path) -> None:
    """Nothing is ever written beside the data."""
    loader_of("torch-0", str(tmp_path)).close()  # which makes the data
    data = tmp_path / "data"
    (tmp_path / "own").mkdir()
    read_only = [
        f"mount --bind {data} {data}",
        f"mount -o remount,ro,bind {data}",
        f"! touch {data}/x 2>/dev/null",
    ]
    ended = outside(
        read_all, contestant.name, str(tmp_path), str(tmp_path / "own"), mounts=read_only
    )
    assert ended.answer == list(range(SAMPLES))


@mounting
@contestants()
def test_temporary_space_is_full(contestant: Contestant, tmp_path: Path) -> None:
    """What needs none, works; sockets of worker processes are no files with content."""
    (tmp_path / "tmp").mkdir()
    full = [
        f"mount -t tmpfs -o size=64k tmpfs {tmp_path}/tmp",
        f"! head -c 1M /dev/zero >{tmp_path}/tmp/fill 2>/dev/null",
    ]
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    ended = outside(
        read_all,
        contestant.name,
        str(tmp_path),
        str(tmp_path / "own"),
        mounts=full,
        environment=environment,
    )
    assert ended.answer == list(range(SAMPLES))
    assert not ended.survivors


@dataclass(frozen=True)
class Storage(EncodedImages):
    """Images on a network with faults: one is slow, one resets the connection, one is cut
    off."""

    good: bytes
    slow: int = 3
    reset: int = 8
    cut: int = 17
    seconds: float = 1.5

    def __len__(self) -> int:
        return SAMPLES

    def read(self, index: int) -> bytes:
        if index == self.slow:
            time.sleep(self.seconds)
        if index == self.reset:
            raise ConnectionResetError(104, "Connection reset by peer")
        return self.good[: len(self.good) // 2] if index == self.cut else self.good


def bad_storage(**faults: Any) -> Source:
    column = Storage(images.jpeg(images.photo(24, 24)), **faults)
    return Source(
        {"image": column, "label": ValueArray(np.arange(SAMPLES))}, "storage", name="far away"
    )


@contestants()
def test_storage_that_stalls_resets_and_cuts_off(contestant: Contestant, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "transform": RESIZE}
    with contestant.create(bad_storage(), tmp_path, **arguments, on_error="substitute") as loader:
        found = labels_of(loader)
        assert loader.stats().substituted == 2
    assert [
        a for a, b in zip(found, range(SAMPLES), strict=True) if a != b and b not in (8, 17)
    ] == []
    assert found[8] not in (8, 17)
    assert found[17] not in (8, 17)
    for fault, words in ({"reset": -1}, "17"), ({"cut": -1}, "Connection reset by peer"):
        with (
            contestant.create(
                bad_storage(slow=-1, **fault), tmp_path / words, **arguments
            ) as loader,
            pytest.raises(fastload.DecodeError, match=words),
        ):
            labels_of(loader)


def stall_for_ever() -> list[Any]:
    options = TorchOptions(worker_timeout=10)
    with fastload.create_loader(
        bad_storage(seconds=1e6),
        4,
        backend="torch",
        num_workers=2,
        transform=RESIZE,
        options=options,
    ) as loader:
        try:
            return labels_of(loader)
        except WorkerError as error:
            return [str(error)]


def test_storage_that_stalls_for_ever() -> None:
    (words,) = outside(stall_for_ever).answer
    assert "the samples 0, 1, 2, 3 of epoch 0" in words


@contestants()
def test_time_goes_backwards(
    contestant: Contestant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the wall is set back by a year, again and again; and files come from the
    future."""
    with loader_of(contestant.name, str(tmp_path)) as loader:
        for path in (tmp_path / "data").rglob("*.jpg"):
            os.utime(path, (4e9, 4e9))
        batches = iter(loader)
        found = next(batches)[1].tolist()
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now - 3e7 * threading.active_count())
        found += [int(label) for _, labels in batches for label in labels]
        assert found == list(range(SAMPLES))
        assert labels_of(loader) == found
        stats = loader.stats()
        assert stats.elapsed_seconds >= 0
        assert stats.wait_seconds >= 0


# -- two ranks


def rank_main(rank: int, folder: str, backend: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    # Over a file: no port is chosen that another program could take before it is bound.
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    with loader_of(backend, folder, on_error="substitute", own=f"{folder}/own{rank}") as loader:
        found, steps = [], 0
        for _, labels in loader:
            # As a trainer does: ranks of unequal length would hang here.
            torch.distributed.all_reduce(torch.ones(1))
            found += labels.tolist()
            steps += 1
        gathered: list[Any] = [None, None]
        torch.distributed.all_gather_object(gathered, (found, steps, loader.stats().substituted))
    torch.distributed.destroy_process_group()
    if rank == 0:
        torch.save(gathered, f"{folder}/gathered.pt")


def two_ranks(folder: str, backend: str) -> Any:
    torch.multiprocessing.start_processes(  # type: ignore[no-untyped-call]
        rank_main, (folder, backend), nprocs=2, start_method="fork"
    )
    return torch.load(f"{folder}/gathered.pt")


@contestants("torch-2", "turbojpeg", "cache-disk")
def test_bad_files_in_one_ranks_shard(contestant: Contestant, tmp_path: Path) -> None:
    """The other rank neither waits for ever nor gets other samples."""
    loader_of("torch-0", str(tmp_path)).close()
    paths = sorted((tmp_path / "data").rglob("*.jpg"))
    # Batches of two: 0, 1 are rank 0's.
    bad = [index for index in range(SAMPLES) if index % 4 < 2 and index % 3 == 0]
    for index in bad:
        paths[index].write_bytes(b"")
    (first, second) = outside(two_ranks, str(tmp_path), contestant.name).answer
    assert first[1] == second[1] == SAMPLES // 4
    mine = [index for index in range(SAMPLES) if index % 4 < 2]
    assert second[0] == [index for index in range(SAMPLES) if index % 4 >= 2]
    assert second[2] == 0
    # The next epoch's, which are made ahead, may be among them.
    assert len(bad) <= first[2] <= 2 * len(bad)
    for got, wanted in zip(first[0], mine, strict=True):
        assert got == wanted or (wanted in bad and got in mine and got not in bad)


# -- memory


def memory_of_workers(method: str, count: int, workers: int) -> tuple[int, float]:
    """Bytes of so many paths and labels in this process, and the bytes that each worker has for
    itself alone."""
    paths = PathTable.of((f"class{n % 1000:04}/{n:032}.jpg" for n in range(count)), "/nowhere")
    labels = np.arange(count) % 1000
    source = Source(
        {"image": EncodedFiles(paths), "label": ValueArray(labels)}, "paths", name="paths"
    )
    with fastload.create_loader(
        source,
        8,
        shuffle=True,
        backend="torch",
        num_workers=workers,
        prefetch_factor=1,
        transform=RESIZE,
        options=TorchOptions(multiprocessing_context=method),
    ) as loader:
        for _ in range(30):  # no file is there: the paths of so many batches have been looked up
            with pytest.raises(fastload.DecodeError):
                next(iter(loader))
        children = [
            child
            for child in psutil.Process().children()
            if "resource_tracker" not in str(child.cmdline())
        ]
        assert len(children) == workers
        own = sum(child.memory_full_info().uss for child in children)
        return paths.blob.nbytes + paths.ends.nbytes + labels.nbytes, own / workers


def compare_memory(method: str) -> list[float]:
    little, before = memory_of_workers(method, 1000, 1)
    much, after = memory_of_workers(method, 2_000_000, 8)
    return [much - little, 8 * (after - before)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_million_paths(method: str) -> None:
    """Eight workers need little more memory for them than one process."""
    held, added = outside(compare_memory, method).answer
    assert held > 100e6
    assert added <= 0.05 * held + 8e6, f"{added / 1e6:.0f} MB for {held / 1e6:.0f} MB"
