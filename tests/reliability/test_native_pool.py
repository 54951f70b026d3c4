"""The threads of the native core under forks, at the interpreter's end, and where memory runs
out."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import native
from tests import images
from tests.reliability.outside import outside
from tests.test_native_pool import whole
from tests.waiting import LIMIT

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")
ROOT = Path(__file__).parents[2]
HANGS = 120
"""After so long a child that should need milliseconds hangs, on any machine [seconds]."""


def submit(pool: Any, data: bytes, rows: int, size: tuple[int, int] = (64, 80)) -> tuple[Any, Any]:
    out = np.zeros((rows, 16, 16, 3), np.uint8)
    return pool.decode_batch([data] * rows, geometry=whole([size] * rows), out=out), out


def use_as_a_child(pool: Any, data: bytes) -> int:
    """Four threads at once submit and wait; the number of rows that are wrong. Killed by the alarm
    if they hang."""
    signal.alarm(HANGS)
    wrong: list[Any] = []

    def work() -> None:
        pending, out = submit(pool, data, 4)
        wrong.extend(pending.wait())
        wrong.extend(row for row in out if not (row == out[0]).all() or not row.any())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    return len(wrong)


def fork_at_the_first_batch(children: int) -> list[int]:
    """Exit statuses of children that were forked while another thread submitted the first batch of
    a pool."""
    data = images.jpeg(images.photo(64, 80))
    statuses = []
    with ThreadPoolExecutor(1) as other:
        for number in range(children):
            pool = native.NativePool(8)
            first = other.submit(submit, pool, data, 16)
            time.sleep((number % 10) * 2e-5)
            child = os.fork()
            if child == 0:
                os._exit(use_as_a_child(pool, data))
            statuses.append(os.waitpid(child, 0)[1])
            assert first.result()[0].wait() == []
    return statuses


def test_children_forked_while_the_first_batch_is_submitted() -> None:
    statuses = outside(fork_at_the_first_batch, 100).answer
    assert statuses == [0] * 100, "a child hung (14 is the alarm), died or got wrong pixels"


def leave_with_a_batch_in_flight(threads: int) -> None:
    pool = native.NativePool(2)
    data = images.jpeg(images.photo(600, 600))
    for _ in range(threads):
        pending, _ = submit(pool, data, 100, (600, 600))
        threading.Thread(target=pending.wait, daemon=True).start()


@pytest.mark.parametrize("threads", [1, 4])
def test_daemon_threads_that_wait_when_the_interpreter_ends(threads: int) -> None:
    for _ in range(3):
        ended = outside(leave_with_a_batch_in_flight, threads)
        assert "leaked" not in ended.output
        assert "terminate" not in ended.output


def ask_for_a_batch_of_the_parent() -> list[Any]:
    pool = native.NativePool(2)
    data = images.jpeg(images.photo(600, 600))
    flying, _ = submit(pool, data, 40, (600, 600))
    over, _ = submit(pool, data, 1, (600, 600))
    over.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(HANGS)
        words = []
        for pending in (flying, over):
            try:
                pending.wait()
            except RuntimeError as error:
                words.append(str(error))
        os._exit(
            0 if words == ["this batch was submitted before the process was forked"] * 2 else 1
        )
    return [os.waitpid(child, 0)[1], len(flying.wait())]


def test_a_child_gets_an_error_that_a_batch_is_its_parents() -> None:
    assert outside(ask_for_a_batch_of_the_parent).answer == [0, 0]


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stress test of the C++ pool, plain and with ThreadSanitizer."""
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        pytest.skip("building needs cmake and g++: apt-get install cmake g++ libjpeg-dev")
    programs = {}
    for name, sanitizer in {"plain": "", "thread": "thread"}.items():
        build = tmp_path_factory.mktemp(f"stress-{name}")
        options = [
            "-DFASTLOAD_PYTHON=OFF",
            "-DFASTLOAD_STRESS=ON",
            f"-DFASTLOAD_SANITIZE={sanitizer}",
        ]
        subprocess.run(
            ["cmake", "-S", str(ROOT), "-B", str(build), *options], check=True, capture_output=True
        )
        make = ["cmake", "--build", str(build), "--target", "stress_pool", "--parallel", "2"]
        subprocess.run(make, check=True, capture_output=True)
        programs[name] = build / "tests" / "native" / "stress_pool"
    return programs


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("build", "mode", "number"),
    [
        ("plain", "fork", 200),
        ("plain", "memory", 3),
        ("thread", "memory", 1),
        ("thread", "threads", 10),
    ],
)
def test_stress(stress: dict[str, Path], build: str, mode: str, number: int) -> None:
    """Forks are not tried with ThreadSanitizer, which knows no threads in the child of a process
    with threads."""
    done = subprocess.run(
        [stress[build], mode, str(number)], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ThreadSanitizer" not in done.stderr
