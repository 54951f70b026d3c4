"""Files divided among the devices of a machine: `CacheOptions(storage="device", compressed=True)`
where one device does not hold them. Ranks are processes, kernels run on the host, and the memory
that they share is files; the calls for a GPU are tried with the host in the driver's place."""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import create_loader, native
from fastload.backends.cache import CacheOptions
from fastload.cache import parts, resident_files
from fastload.cache.parts import Note, Parts, Place, place_of, say_whole, why_not_divided
from fastload.errors import BackendUnavailableError, CacheError
from fastload.render import peer_memory
from fastload.render.jpeg_share import OnDevice
from fastload.render.jpegs_on_device import MEMORY, ON_HOST
from fastload.render.peer_memory import OnGpu, OnHost
from tests import mixed_jpegs, warm
from tests.cuda_driver import driver_on_host
from tests.mixed_jpegs import GOOD, assert_same, batches
from tests.waiting import has_ended, wait_until

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

CROP = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])
CPU = torch.device("cpu")
EPOCHS = 6
"""More than are made ahead: a batch is two of ten images."""


def loader_of(root: str, rank: int, ranks: int, *, by_host: bool = False) -> fastload.Loader:
    options: Any = CacheOptions(
        storage="device", compressed=True, directory=Path(root) / "kept", progress=False
    )
    given: dict[str, Any] = {"shuffle": True, "num_workers": 1, "transform": CROP}
    shard = fastload.Shard(rank, ranks)
    if by_host:
        return create_loader(f"{root}/mixed", 2, backend="turbojpeg", shard=shard, **given)
    return create_loader(f"{root}/mixed", 2, backend="cache", options=options, shard=shard, **given)


# -- ranks that are processes ----------------------------------------------------------------------


def rank_main(rank: int, ranks: int, port: int, root: str, free: int, what: str) -> None:
    """A rank whose device has `free` bytes for files; writes what it has served and said."""
    tempfile.tempdir = root  # what TMPDIR says was read before this process began
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks), **{ON_HOST: "1"})
    torch.set_num_threads(1)
    resident: Any = resident_files
    resident._free_on = lambda device: 2 * MEMORY + free
    resident._SLICE, resident._AT_ONCE, resident._PART = 1, 3, 20_000
    if what == "other files" and rank == 1:
        resident.crc32 = lambda data: 1
    if what == "one cannot read" and rank == 1:
        resident.ResidentImages._prepare = lambda *given: 1 / 0
    if what == "one dies early":
        resident.ResidentImages._place_others = _after_the_other(
            rank, Path(root), resident.ResidentImages._place_others
        )
    said: dict[str, Any] = {"error": ""}
    served = list[Any]()
    try:
        with loader_of(root, rank, ranks) as loader:
            if what in ("one dies", "one ends"):
                _one_first(loader, rank, Path(root), served, dies=what == "one dies")
            else:
                served += batches(loader, EPOCHS)
            on_device: Any = loader.stats().on_device or OnDevice()
            said |= {"resident": on_device.resident, "parts": on_device.parts}
            said |= {"images": on_device.images, "explain": loader.explain()}
    except (CacheError, ZeroDivisionError) as error:
        said["error"] = str(error)
        if what == "one cannot read" and rank == 1:  # neither error nor process is gone
            wait_until(Path(f"{root}/0.json").exists)
    torch.save(served, f"{root}/{rank}.pt")
    Path(f"{root}/{rank}.json").write_text(json.dumps(said))


def _after_the_other(rank: int, root: Path, exchange: Any) -> Any:
    """Both have read all files; rank 1 is killed, and rank 0 waits for its part."""

    def changed(*given: Any) -> Any:
        (root / f"{rank}.began").write_text(str(os.getpid()))
        wait_until(lambda: all((root / f"{other}.began").exists() for other in (0, 1)))
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return exchange(*given)

    return changed


def _one_first(
    loader: fastload.Loader, rank: int, root: Path, served: list[Any], *, dies: bool
) -> None:
    """Rank 1 is done after a batch: it is killed, or closes its loader and ends; then rank 0 goes
    on."""
    iterator = iter(loader)
    served.append([part.clone() for part in next(iterator)])
    (root / f"{rank}.began").write_text(str(os.getpid()))
    wait_until(lambda: all((root / f"{other}.began").exists() for other in (0, 1)))
    if rank == 1:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        loader.close()
        (root / "1.closed").touch()
        return
    if dies:
        wait_until(lambda: has_ended(int((root / "1.began").read_text() or 0)))
    else:
        wait_until((root / "1.closed").exists)
    served += [[part.clone() for part in batch] for batch in iterator]
    served += batches(loader, EPOCHS - 1)


class Ranks:
    """What processes have served and said, which had the memory for a share of the files each."""

    def __init__(self, root: Path, ranks: int, what: str = "", share: float | None = None) -> None:
        mixed_jpegs.write(root / "mixed")
        with pytest.MonkeyPatch.context() as here:
            here.setenv(ON_HOST, "1")
            # Points are noted first: ranks that write them to one file may lack some.
            with loader_of(str(root), 0, 1) as loader:
                batches(loader)
                on_device: Any = loader.stats().on_device
                self.whole = int(on_device.resident)
                assert on_device.parts == 1
        files = sum(path.stat().st_size for path in (root / "mixed").rglob("*.*"))
        self.free = int(files * (share or 1.2 / ranks))
        self.wanted = list[Any]()
        for rank in range(ranks):
            with loader_of(str(root), rank, ranks, by_host=True) as loader:
                self.wanted.append(batches(loader, EPOCHS))
        port = warm.reserved_port()
        running = [
            warm.CONTEXT.Process(  # type: ignore[attr-defined]
                target=rank_main, args=(rank, ranks, port, str(root), self.free, what)
            )
            for rank in range(ranks)
        ]
        for process in running:
            process.start()
        try:
            for process in running:
                process.join(240)
            self.codes = [process.exitcode for process in running]
        finally:
            for process in running:
                process.kill()
        self.served = [_loaded(root / f"{rank}.pt") for rank in range(ranks)]
        self.said: list[Any] = [
            json.loads(path.read_text()) if path.exists() else {}
            for path in (root / f"{rank}.json" for rank in range(ranks))
        ]
        self.left = [*root.glob("fastload-parts-*"), *root.glob("fastload-parts-*/*")]


def _loaded(path: Path) -> Any:
    return torch.load(path) if path.exists() else None


@pytest.mark.whole
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_samples_are_those_of_the_host(tmp_path: Path, ranks: int) -> None:
    found = Ranks(tmp_path, ranks)
    assert found.codes == [0] * ranks, found.said
    assert [said["error"] for said in found.said] == [""] * ranks
    for served, wanted in zip(found.served, found.wanted, strict=True):
        assert_same(served, wanted)
    for said in found.said:
        assert said["parts"] == ranks
        assert f"{GOOD} of 10 images, " in said["explain"]
        assert f"of cpu (a part of {ranks}) and " in said["explain"]
        assert said["resident"] < found.whole
    # Each byte is in one of them; 16 of each try whether its memory can be read.
    assert sum(said["resident"] for said in found.said) == found.whole + 16 * ranks
    decoded = sum(len(batch[0]) for served in found.served for batch in served)
    assert sum(said["images"] for said in found.said) >= decoded * GOOD // 10 - 4 * ranks
    assert found.left == []


@pytest.mark.whole
def test_where_one_device_holds_all_nothing_is_divided(tmp_path: Path) -> None:
    found = Ranks(tmp_path, 2, share=2.0)
    for served, wanted, said in zip(found.served, found.wanted, found.said, strict=True):
        assert_same(served, wanted)
        assert (said["parts"], said["resident"]) == (1, found.whole)
    assert found.left == []


@pytest.mark.whole
def test_images_that_are_others_for_another_rank_are_read(tmp_path: Path) -> None:
    """None of those that the other one holds has the checksum that it should have."""
    found = Ranks(tmp_path, 2, "other files")
    for served, wanted in zip(found.served, found.wanted, strict=True):
        assert_same(served, wanted)
    counts = [int(said["explain"].split(" of 10 images")[0].split()[-1]) for said in found.said]
    assert min(counts) > 0
    assert sum(counts) == GOOD


@pytest.mark.whole
def test_a_rank_that_is_killed_is_an_error_of_the_others(tmp_path: Path) -> None:
    found = Ranks(tmp_path, 2, "one dies")
    assert found.codes == [0, -signal.SIGKILL]
    assert "rank 1 of this machine has ended, and a part of the files was" in found.said[0]["error"]
    assert "decode_on='device'" in found.said[0]["error"]


@pytest.mark.whole
def test_a_rank_that_has_ended_keeps_its_part_as_long_as_another_reads_it(tmp_path: Path) -> None:
    found = Ranks(tmp_path, 2, "one ends")
    assert found.codes == [0, 0]
    assert [said["error"] for said in found.said] == ["", ""]
    assert_same(found.served[0], found.wanted[0])
    assert found.left == []


@pytest.mark.whole
def test_a_rank_that_cannot_read_is_an_error_of_the_others(tmp_path: Path) -> None:
    found = Ranks(tmp_path, 2, "one cannot read")
    assert "division by zero" in found.said[1]["error"]
    assert "rank 1 of this machine has failed" in found.said[0]["error"]


@pytest.mark.whole
def test_a_rank_that_is_killed_while_it_reads_is_an_error_of_the_others(tmp_path: Path) -> None:
    found = Ranks(tmp_path, 2, "one dies early")
    assert found.codes == [0, -signal.SIGKILL]
    assert "rank 1 of this machine has ended before its part was there" in found.said[0]["error"]


# -- what ranks say to each other ------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Of rank 0 of 2."""
    return Place(0, 2, tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = len(parts._live)
    yield
    assert len(parts._live) == before
    while parts._failed:
        parts._failed.pop().close()


def other(place: Place, handle: bytes) -> Note:
    """Rank 1 has come, and has memory of this handle."""
    return Note(place.folder / "1.reading", handle)


def test_ranks_that_do_not_come(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_PATIENCE", 0.2)
    with pytest.raises(
        CacheError, match=r"there is nothing of the ranks 1 of this machine.*Use sm"
    ):
        Parts("photos", CPU, place)
    other(place, b"").close()  # it has ended
    parts._failed.pop().close()
    with pytest.raises(CacheError, match="there is nothing of the ranks 1"):
        Parts("photos", CPU, place)


def test_a_rank_that_has_failed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so to those that come later."""
    monkeypatch.setattr(parts, "_PATIENCE", 0.2)
    with pytest.raises(CacheError, match="there is nothing of the ranks 1"):
        Parts("photos", CPU, place)
    monkeypatch.undo()
    with pytest.raises(CacheError, match="rank 0 of this machine has failed"):
        Parts("photos", CPU, place._replace(rank=1))


def test_a_rank_that_holds_all(place: Place) -> None:
    note = say_whole(place._replace(rank=1))
    with pytest.raises(CacheError, match="rank 1 of this machine holds all files"):
        Parts("photos", CPU, place)
    note.close()


def test_memory_that_cannot_be_read(place: Place) -> None:
    note = other(place, b"nowhere")
    with pytest.raises(CacheError, match="the memory of rank 1 .* cannot be read here: .*peer"):
        Parts("photos", CPU, place)
    note.close()
    parts._live[-1].free_if_unread()


def test_a_part_is_freed_when_nobody_reads_it(place: Place) -> None:
    theirs = OnHost(place.folder)
    theirs.hold([np.zeros(16, np.uint8)])
    note = other(place, theirs.handles[0])
    mine = Parts("photos", CPU, place)
    mine.memory.hold([np.arange(9, dtype=np.uint8)])
    assert (mine.blocks, mine.ranks) == (1, 2)
    assert [mine.is_mine(number) for number in range(4)] == [True, False, True, False]
    table = io.BytesIO()
    np.savez(table, handles=np.array([handle.hex() for handle in theirs.handles]), sums=[3, 4])
    their_part = Note(place.folder / "1.part", table.getvalue())
    (((address,), given),) = mine.exchange(sums=np.array([1, 2]))
    assert given["sums"].tolist() == [3, 4]
    assert ctypes.string_at(address, 16) == bytes(16)
    mine.check()
    mine.release()
    assert mine.memory.nbytes == 16 + 9
    their_part.close()
    note.close()
    theirs.free()
    mine.free_if_unread()
    assert mine.memory.nbytes == 0
    assert not place.folder.exists()


def test_a_note_is_true_as_long_as_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "note"
    (tmp_path / "note").write_bytes(b"of a run that was killed")
    assert parts._opened(path) is None
    note = Note(path, b"words")
    file = parts._opened(path)
    assert file is not None
    assert file.read() == b"words"
    file.close()
    note.close()
    assert parts._opened(path) is None
    with pytest.raises(CacheError, match="cannot be written .*TMPDIR"):
        Note(tmp_path / "no" / "such" / "folder", b"")


def test_the_place_is_that_of_a_run_and_of_a_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(parts, "_met", Counter())
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert "LOCAL_WORLD_SIZE names no other" in why_not_divided(CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert "LOCAL_RANK is '2'" in why_not_divided(CPU)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert "MASTER_ADDR and MASTER_PORT" in why_not_divided(CPU)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert why_not_divided(CPU) == ""
    first, second = place_of("photos"), place_of("photos")
    assert (first.rank, first.ranks) == (1, 2)
    assert first.folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(parts, "_met", Counter())
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert place_of("photos") == first._replace(rank=0)  # of another rank
    monkeypatch.setenv("MASTER_PORT", "29501")
    assert len({first.folder, second.folder, place_of("photos").folder}) == 3
    first.folder.chmod(0o777)
    monkeypatch.setattr(parts, "_met", Counter())
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(CacheError, match="others may write there"):
        place_of("photos")


def test_folders_of_runs_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{parts._PREFIX}-{os.getuid()}-{name}" for name in ("dead", "live", "new")]
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
        (folder / "0.part").write_bytes(b"tables")
    note = Note(folders[1] / "1.part", b"tables")
    for folder in folders[:2]:
        os.utime(folder, (time.time() - 7200,) * 2)
    parts._remove_stale(tmp_path)
    assert [folder.exists() for folder in folders] == [False, True, True]
    note.close()


class Column:
    """40 files of 1,000 bytes."""

    def __len__(self) -> int:
        return 40

    def read(self, row: int) -> bytes:
        return bytes(1000)


def test_what_does_not_fit_in_parts_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the loader is made: by the share of a rank, or by all files where nothing is shared."""
    column: Any = Column()
    monkeypatch.setattr(resident_files, "_free_on", lambda device: 2 * MEMORY + 30_000)
    monkeypatch.setattr(resident_files, "ranks_here", lambda: 2)
    monkeypatch.setattr(resident_files, "why_not_divided", lambda device: "")
    resident_files.require_room("photos", column, CPU)
    monkeypatch.setattr(resident_files, "why_not_divided", lambda device: "no reason")
    with pytest.raises(CacheError, match="cannot be divided among the GPUs .*: no reason"):
        resident_files.require_room("photos", column, CPU)
    monkeypatch.setattr(resident_files, "why_not_divided", lambda device: "")
    monkeypatch.setattr(resident_files, "_free_on", lambda device: 2 * MEMORY + 10_000)
    with pytest.raises(CacheError, match="takes 0.00 GB of cpu or more"):
        resident_files.require_room("photos", column, CPU)


# -- the driver's calls ----------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    driver = driver_on_host()
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    return driver


def test_memory_of_a_gpu_is_opened_by_its_handle(driver: Any) -> None:
    """As the driver wants it: whole granules, opened before it is freed, each call in a context."""
    mine, theirs = (OnGpu(torch.device("cuda", number)) for number in (0, 1))
    data = [np.arange(200, dtype=np.uint8), np.zeros(0, np.uint8), np.full(100, 7, np.uint8)]
    address = theirs.hold(data)
    theirs.settle()
    (handle,) = theirs.handles
    assert len(handle) == 64
    assert theirs.nbytes == 2 << 20
    opened = mine.open(handle)
    assert opened != address
    assert driver.read(opened, 300) == b"".join(map(bytes, data))
    assert driver.peers == [(0, 1)]
    mine.close_opened()
    theirs.free()
    assert (theirs.nbytes, theirs.handles, driver.allocated) == (0, [], {})
    with pytest.raises(BackendUnavailableError, match="cuda:0 says CUDA_ERROR_INVALID_VALUE"):
        mine.open(handle)
    with pytest.raises(BackendUnavailableError, match="7 bytes are no handle"):
        mine.open(b"block-1")


def test_machines_whose_gpus_cannot_read_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: False)
    assert "cuda:1 cannot read the memory of another" in peer_memory.why_no_peers(gpu)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: other == 2)
    assert peer_memory.why_no_peers(gpu) == ""
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # the others are not visible
    assert peer_memory.why_no_peers(torch.device("cuda", 0)) == ""
    monkeypatch.setattr(sys, "platform", "win32")
    assert "Linux" in peer_memory.why_no_peers(gpu)
