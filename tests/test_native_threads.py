"""Objects of the native core in the hands of several threads at once. On a Python without the GIL
(3.14t) nothing else keeps them apart: `PYTHON_GIL=0 python -m pytest tests/test_native_threads.py`,
and with the core built by `scripts/sanitize.sh`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import native
from fastload.geometry import Geometry
from fastload.native.seek import SeekIndex
from tests import images

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

THREADS = 4
TURNS = int(os.environ.get("FASTLOAD_STRESS_TURNS", "6"))
DATA = [images.jpeg(images.photo(64 + 3 * n, 80 + n, seed=n)) for n in range(6)]
BAD = images.truncated(DATA[0])


def geometry(count: int) -> Geometry:
    box = np.tile(np.array([4, 6, 48, 60], np.int32), (count, 1))
    window = np.tile(np.array([0, 0, 16, 16], np.int32), (count, 1))
    size = np.full((count, 2), 16, np.int32)
    return Geometry(box, size, window, np.zeros((count, 2), np.bool_))


def together(*work: Callable[[int], None]) -> None:
    """Each in threads of its own, which start at the same moment; errors are raised."""
    meet = threading.Barrier(THREADS * len(work))

    def run(task: Callable[[int], None], number: int) -> None:
        meet.wait(60)
        for turn in range(TURNS):
            task(number * TURNS + turn)

    with ThreadPoolExecutor(THREADS * len(work)) as pool:
        for one in [pool.submit(run, task, n) for task in work for n in range(THREADS)]:
            one.result(120)


def decoded(pool: Any, files: list[bytes], **options: Any) -> tuple[Any, list[int]]:
    out = np.empty((len(files), 16, 16, 3), np.uint8)
    pending = pool.decode_batch(files, geometry=geometry(len(files)), out=out, **options)
    return out, [failure.row for failure in pending.wait()]


def test_one_pool_serves_threads_while_others_count_and_close_it() -> None:
    pool = native.NativePool(2)
    wanted, failed = decoded(pool, [*DATA, BAD])
    assert failed == [6]

    def decode(turn: int) -> None:
        found, rows = decoded(pool, [*DATA, BAD], here=turn % 3 == 0)
        # `close` cancels what was submitted and not started, in other threads, too.
        good = [row for row in range(7) if row not in rows]
        assert (found[good] == wanted[good]).all()
        assert not found[rows].any()

    def drop(turn: int) -> None:
        out = np.empty((6, 16, 16, 3), np.uint8)
        pool.decode_batch(DATA, geometry=geometry(6), out=out)  # its end waits

    def look(turn: int) -> None:
        assert sum(pool.decoded.values()) >= 0
        if turn % 5 == 0:
            pool.close()

    together(decode, drop, look)
    assert decoded(pool, DATA)[1] == []
    pool.close()


def test_one_batch_is_waited_for_and_cancelled_by_several_threads() -> None:
    pool = native.NativePool(2)
    core = native.load()
    out = np.empty((40, 64, 80, 3), np.uint8)
    buffers = core.Encoded.buffers([np.frombuffer(DATA[n % 6], np.uint8) for n in range(40)])
    flips = np.zeros((40, 2), np.bool_)
    shared = core.Geometries.resized(flips, (64, 80), 0, 0, None)
    resampling = core.Resampling(1, True, 0, (0, 0, 0, 0))
    sizes = np.tile(np.array([64, 80], np.int64), (40, 1))
    numbers = np.empty((40, 12), np.int32)
    shared.resolve(sizes, numbers)

    for turn in range(TURNS):
        view = core.View(shared, out, resampling)
        made = [(buffers, [view])]
        ticket = pool._pool.decode(made, 1 << 28, False, False, False, False)
        reported: list[int] = []
        meet = threading.Barrier(THREADS + 2)

        def wait(ticket: Any = ticket, reported: list[int] = reported, meet: Any = meet) -> None:
            meet.wait(60)
            reported.append(len(ticket.wait()))
            assert ticket.done()

        def cancel(ticket: Any = ticket, meet: Any = meet, turn: int = turn) -> None:
            meet.wait(60)
            if turn % 2:
                ticket.cancel()

        def resolve(meet: Any = meet) -> None:
            meet.wait(60)
            mine = np.empty((40, 12), np.int32)
            shared.resolve(sizes, mine)
            assert (mine == numbers).all()

        del ticket, view, made
        with ThreadPoolExecutor(THREADS + 2) as threads:
            work = [*[wait] * THREADS, cancel, resolve]
            for one in [threads.submit(task) for task in work]:
                one.result(60)
        # One thread takes the failures; the others find none.
        assert sum(count > 0 for count in reported) <= 1
    pool.close()


def test_one_seek_index_is_filled_and_read_by_threads(tmp_path: Path) -> None:
    large = [images.jpeg(images.photo(400, 300, seed=n)) for n in range(4)]
    index = SeekIndex(tmp_path / "index", 8)
    pool = native.NativePool(2)
    wanted, _ = decoded(pool, large)

    def decode(turn: int) -> None:
        found, rows = decoded(pool, large, index=index, here=turn % 2 == 0)
        assert not rows
        assert (found == wanted).all()

    def look(turn: int) -> None:
        index.flush()
        assert index.contents.images <= 4

    together(decode, look)
    index.flush()
    assert index.contents.images == 4
    pool.close()


def test_drawing_and_warping_share_nothing() -> None:
    core = native.load()
    indices = np.arange(500, dtype=np.int64)
    wanted = np.empty(500, np.uint64)
    core.integers(indices, None, 3, 1, 2, wanted)
    image = images.photo(30, 40)
    matrix = np.array([[0.9, 0.1, 1.0], [-0.1, 1.1, 2.0], [0.0, 0.0, 1.0]])
    fill = np.zeros(3, np.float32)
    turned = np.empty((30, 40, 3), np.uint8)
    core.warp(image, turned, matrix, True, True, False, fill)

    def draw(turn: int) -> None:
        found = np.empty(500, np.uint64)
        core.integers(indices, None, 3, 1, 2, found)
        assert (found == wanted).all()

    def warp(turn: int) -> None:
        found = np.empty_like(turned)
        core.warp(image, found, matrix, True, True, False, fill)
        assert (found == turned).all()

    together(draw, warp)
