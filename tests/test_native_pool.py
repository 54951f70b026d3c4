"""The native core in a process with others: bad input, cancelling, forks, several batches at once,
the GIL, its absence."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import native
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.files import DecodeSettings
from fastload.geometry import Geometry
from fastload.sources.buffers import PathTable
from tests import images, warm
from tests.waiting import LIMIT

built = pytest.mark.skipif(not native.available(), reason="the native core is not built")


@pytest.fixture
def pool() -> Iterator[Any]:
    pool = native.NativePool(2)
    yield pool
    pool.close()


def whole(sizes: list[tuple[int, int]], out: tuple[int, int] = (16, 16)) -> Geometry:
    count = len(sizes)
    box = np.array([(0, 0, *size) for size in sizes], np.int32)
    window = np.tile(np.array([0, 0, *out], np.int32), (count, 1))
    return Geometry(
        box, np.tile(np.array(out, np.int32), (count, 1)), window, np.zeros((count, 2), np.bool_)
    )


def decode_one(
    pool: Any, data: bytes, box: tuple[int, int, int, int], **options: Any
) -> tuple[Any, Any]:
    """(failure or None, pixels) of one buffer."""
    placed = whole([(1, 1)])
    placed.box[0] = box
    out = np.full((1, 16, 16, 3), 255, np.uint8)
    failures = pool.decode_batch([data], geometry=placed, out=out, **options).wait()
    here = np.full_like(out, 255)
    pending = pool.decode_batch([data], geometry=placed, out=here, here=True, **options)
    assert pending.done()
    assert (pending.wait(), here.tobytes()) == (failures, out.tobytes()), "in the calling thread"
    return (failures[0] if failures else None), out[0]


GOOD = images.jpeg(images.photo(64, 80))
ALL = (0, 0, 64, 80)
TOP = (0, 0, 8, 80)


@built
@pytest.mark.parametrize(
    ("data", "box", "status", "words"),
    [
        (b"", ALL, "DAMAGED", "the file is empty"),
        (images.HTML, ALL, "OTHER_FORMAT", "no format that the core reads"),
        (images.cmyk_jpeg(images.photo(64, 80)), ALL, "UNSUPPORTED", "4 components"),
        (images.truncated(GOOD), ALL, "DAMAGED", "Premature end of JPEG file"),
        (images.truncated(GOOD), TOP, "DAMAGED", "Premature end of JPEG file"),
        (GOOD[:-2], TOP, "DAMAGED", "Premature end of JPEG file"),
        (GOOD[:30], ALL, "DAMAGED", "Premature end of JPEG file"),
        (images.torn(GOOD), ALL, "DAMAGED", "premature end of data segment"),
        (images.corrupt(GOOD), ALL, "DAMAGED", "Corrupt JPEG data"),
        (
            GOOD,
            (0, 0, 64, 81),
            "BAD_GEOMETRY",
            "64x81 at (0, 0) does not lie inside the image of 64x80",
        ),
        (GOOD, (-1, 0, 10, 10), "BAD_GEOMETRY", "does not lie inside"),
        (GOOD, (0, 0, 0, 10), "BAD_GEOMETRY", "does not lie inside"),
    ],
)
def test_bad_input_fails_with_words_and_zeros(
    pool: Any, data: bytes, box: tuple[int, int, int, int], status: str, words: str
) -> None:
    failure, pixels = decode_one(pool, data, box)
    assert failure is not None
    assert failure.status is native.Status[status]
    assert words in failure.message
    assert (pixels == 0).all()
    failure, _ = decode_one(pool, GOOD, ALL)
    assert failure is None, "what a bad file leaves behind must not hurt the next"


@built
@pytest.mark.parametrize("damage", [images.torn, images.corrupt])
def test_damage_below_the_crop_is_seen_when_asked_for(pool: Any, damage: Any) -> None:
    assert decode_one(pool, damage(GOOD), TOP)[0] is None
    failure, _ = decode_one(pool, damage(GOOD), TOP, check_whole=True)
    assert failure is not None
    assert failure.status is native.Status.DAMAGED


@built
def test_benign_warnings_are_no_failures(pool: Any) -> None:
    failure, pixels = decode_one(pool, images.with_extraneous_bytes(GOOD), ALL)
    assert failure is None
    np.testing.assert_array_equal(pixels, decode_one(pool, GOOD, ALL)[1])


@built
def test_pixel_limit(pool: Any) -> None:
    failure, _ = decode_one(pool, GOOD, ALL, settings=DecodeSettings(max_pixels=64 * 80 - 1))
    assert failure is not None
    assert failure.status is native.Status.TOO_LARGE
    assert failure.message == "64x80 pixels are more than the limit of 5119"
    assert decode_one(pool, GOOD, ALL, settings=DecodeSettings(max_pixels=64 * 80))[0] is None


@built
def test_files_that_cannot_be_read(pool: Any, tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(GOOD)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    table = PathTable.of(
        ["good.jpg", "missing.jpg", "folder", "pipe", "good.jpg"], root=str(tmp_path)
    )
    out = np.empty((5, 16, 16, 3), np.uint8)
    failures = pool.decode_batch(table, geometry=whole([(64, 80)] * 5), out=out).wait()
    assert [(f.row, f.message) for f in failures] == [
        (1, "No such file or directory"),
        (2, "Is a directory"),
        (3, "not a regular file"),
    ]
    assert {f.status for f in failures} == {native.Status.UNREADABLE}
    assert out[0].any()
    np.testing.assert_array_equal(out[0], out[4])
    assert (out[1:4] == 0).all()


@built
def test_arguments_are_checked(pool: Any) -> None:
    out = np.empty((2, 16, 16, 3), np.uint8)
    placed = whole([(64, 80)] * 2)
    with pytest.raises(ConfigurationError, match="images has 1 row and out has 2"):
        pool.decode_batch([GOOD], geometry=placed, out=out)
    with pytest.raises(ConfigurationError, match="geometry has 2 rows and out has 1"):
        pool.decode_batch([GOOD], geometry=placed, out=out[:1])
    with pytest.raises(ConfigurationError, match="got float32"):
        pool.decode_batch([GOOD] * 2, geometry=placed, out=out.astype(np.float32))
    readonly = out.copy()
    readonly.flags.writeable = False
    with pytest.raises(ConfigurationError, match="read-only"):
        pool.decode_batch([GOOD] * 2, geometry=placed, out=readonly)
    with pytest.raises(ConfigurationError, match="threads must be at least 1, got 0"):
        native.NativePool(0)
    with pytest.raises(ConfigurationError, match="unknown"):
        native.NativePool(1, simd="mmx")  # type: ignore[arg-type]


@built
def test_window_of_another_size_than_the_output(pool: Any) -> None:
    out = np.empty((1, 17, 16, 3), np.uint8)
    (failure,) = pool.decode_batch([GOOD], geometry=whole([(64, 80)]), out=out).wait()
    assert failure.status is native.Status.BAD_GEOMETRY


@built
def test_empty_batch(pool: Any) -> None:
    out = np.empty((0, 16, 16, 3), np.uint8)
    placed = Geometry(*(np.empty((0, n), np.int32) for n in (4, 2, 4)), np.empty((0, 2), np.bool_))
    pending = pool.decode_batch([], geometry=placed, out=out)
    assert pending.wait() == []
    assert pending.done()


@built
def test_many_batches_in_flight_from_several_threads(pool: Any) -> None:
    data = [images.jpeg(images.photo(50, 40 + seed, seed=seed)) for seed in range(8)]
    placed = whole([(50, 40 + seed) for seed in range(8)])
    wanted = np.empty((8, 16, 16, 3), np.uint8)
    assert pool.decode_batch(data, geometry=placed, out=wanted).wait() == []
    wrong: list[int] = []

    def work(number: int) -> None:
        outs = np.zeros((6, 8, 16, 16, 3), np.uint8)
        pending = [pool.decode_batch(data, geometry=placed, out=out) for out in outs]
        for batch, out in zip(pending, outs, strict=True):
            if batch.wait() or not np.array_equal(out, wanted):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@built
def test_cancel_and_close(pool: Any) -> None:
    data = [images.jpeg(images.photo(400, 400))] * 64
    placed = whole([(400, 400)] * 64)
    batches = []
    for _ in range(4):
        out = np.full((64, 16, 16, 3), 255, np.uint8)
        batches.append((pool.decode_batch(data, geometry=placed, out=out), out))
    for batch, _ in batches:
        batch.cancel()
    for batch, out in batches:
        failures = batch.wait()
        assert {f.status for f in failures} <= {native.Status.CANCELLED}
        for failure in failures:
            assert (out[failure.row] == 0).all()
    assert len(batches[-1][0].wait()) == 0, "failures are handed out once"

    last = np.empty((64, 16, 16, 3), np.uint8)
    pending = pool.decode_batch(data, geometry=placed, out=last)
    pool.close()
    pool.close()
    assert pending.done()
    assert pool.decode_batch(data[:1], geometry=whole([(400, 400)]), out=last[:1]).wait() == []


@built
def test_dropped_batches_do_no_harm(pool: Any) -> None:
    data = [images.jpeg(images.photo(100, 100))] * 16
    for _ in range(20):
        pool.decode_batch(
            data, geometry=whole([(100, 100)] * 16), out=np.empty((16, 16, 16, 3), np.uint8)
        )
    assert decode_one(pool, GOOD, ALL)[0] is None


FORK = """
import os, sys, numpy as np
from fastload import native
from fastload.geometry import Geometry
data = [open(sys.argv[1], "rb").read()] * 200
def batch(pool, out):
    n = len(out)
    box = np.tile(np.array([0, 0, 64, 80], np.int32), (n, 1))
    grid = np.tile(np.array([0, 0, 16, 16], np.int32), (n, 1))
    placed = Geometry(box, grid[:, 2:], grid, np.zeros((n, 2), np.bool_))
    return pool.decode_batch(data[:n], geometry=placed, out=out)
pool = native.NativePool(2)
outs = np.zeros((3, 200, 16, 16, 3), np.uint8)
flying = [batch(pool, out) for out in outs]  # the fork finds the pool at work
child = os.fork()
mine = np.zeros((50, 16, 16, 3), np.uint8)
assert batch(pool, mine).wait() == []
if child == 0:
    try:
        if not flying[-1].done():
            flying[-1].wait()
    except RuntimeError as error:
        assert "before the process was forked" in str(error)
    flying.clear()
    pool.close()
    os._exit(0 if (mine == mine[0]).all() and mine.any() else 1)
assert os.waitpid(child, 0)[1] == 0
assert [f.wait() for f in flying] == [[], [], []]
assert (outs == mine[0]).all()
"""


@pytest.mark.slow
@built
def test_a_forked_child_gets_threads_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(GOOD)
    (tmp_path / "program.py").write_text(FORK)
    done = warm.run("program.py", "good.jpg", directory=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@built
def test_waiting_leaves_the_gil_to_others(pool: Any) -> None:
    """A thread that waits for a batch of another pool's making lets Python go on: it counts while
    the batch is done."""
    data = [images.jpeg(images.photo(300, 300))] * 200
    out = np.empty((200, 16, 16, 3), np.uint8)
    pending = pool.decode_batch(data, geometry=whole([(300, 300)] * 200), out=out)
    waiter = threading.Thread(target=pending.wait)
    waiter.start()
    turns = 0
    while waiter.is_alive():
        turns += 1
    waiter.join()
    assert turns > 100, "the main thread stood still while the batch was decoded"


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastload.native._core", None)
    assert not native.available()
    with pytest.raises(BackendUnavailableError, match="apt-get install g\\+\\+ libjpeg-dev"):
        native.load()
    with pytest.raises(BackendUnavailableError):
        native.NativePool(1)


def test_importing_fastload_does_not_load_the_extension() -> None:
    code = "import sys, fastload, fastload.native; sys.exit('fastload.native._core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT).returncode == 0


def flags_of_processor() -> list[str]:
    """As Linux reads them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line for line in lines if line.startswith("flags")).split()


@built
@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64")
@pytest.mark.parametrize(
    ("simd", "needed"),
    [
        ("sse4.1", {"sse4_1"}),
        ("avx2", {"avx2", "bmi1", "bmi2"}),
        ("avx512", {"avx2", "bmi1", "bmi2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"}),
    ],
)
def test_kernels_are_there_where_the_system_says_that_the_processor_has_their_instructions(
    simd: Any, needed: set[str]
) -> None:
    """Linux's own reading of the processor, against the core's, whatever compiled that."""
    flags = flags_of_processor()
    there = True
    try:
        assert native.NativePool(1, simd=simd).simd == simd
    except ConfigurationError:
        there = False
    assert there == (needed <= set(flags))


@built
@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64")
def test_colour_is_fused_where_the_processor_has_the_instructions() -> None:
    flags = flags_of_processor()
    assert native.load().can_fuse_colour() == ({"avx2", "fma"} <= set(flags))
