"""Processes that do what they are asked: answers, errors, reports, several of them, and how they
end."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.errors import BackendUnavailableError, WorkerError
from fastload.tools.measure import process
from fastload.tools.measure.child import report
from fastload.tools.measure.process import Child, Outcome, run
from tests.waiting import has_ended, wait_until

ROOT = Path(__file__).parents[1]
"""Where the child finds these tests."""


def called(name: str, *arguments: object, **more: Any) -> Outcome:
    """Of this module, in another process."""
    return run(f"{__name__}:{name}", *arguments, cwd=ROOT, **more)


# -- What runs there -------------------------------------------------------------------------------


def double(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 2 * values


def counts(upto: int) -> str:
    for number in range(upto):
        print("counting", number)
        report(number)
    return f"rank {os.environ.get('RANK', 'none')}"


def fails(after: int) -> None:
    counts(after)
    raise KeyError("missing")


def says(words: str, code: int) -> None:
    print(words, flush=True)
    os._exit(code)


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fails_on_rank_1() -> None:
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    if torch.distributed.get_rank() == 1:
        raise ValueError("the cause")
    torch.distributed.barrier()


def has_a_family(folder: str) -> None:
    """A process that will not end, and one that it has put out of reach, as torchrun does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True
    )
    (Path(folder) / "pid.part").write_text(str(other.pid))
    (Path(folder) / "pid.part").rename(Path(folder) / "pid")
    time.sleep(300)


class Counter:
    """An object that lives there."""

    def __init__(self, start: int, kept: str = "") -> None:
        if start < 0:
            raise BackendUnavailableError("pip install it")
        self.count, self.kept = start, kept

    def add(self, step: int) -> int:
        if step < 0:
            raise ValueError(f"step={step}")
        self.count += step
        return self.count

    def crash(self) -> None:
        os._exit(3)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def unknown(self) -> None:
        raise ZeroDivisionError("by nothing")

    def close(self) -> None:
        if self.kept:
            Path(self.kept).write_text("closed")


# -- One call --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_arguments_and_answers_are_objects() -> None:
    done = called("double", np.arange(1 << 18))
    assert done.code == 0
    np.testing.assert_array_equal(done.answer, 2 * np.arange(1 << 18))


@pytest.mark.whole
def test_reports_come_at_once_and_what_is_printed_is_kept(tmp_path: Path) -> None:
    seen: list[int] = []
    done = called("counts", 3, on_report=seen.append)
    assert (seen, done.answer) == ([0, 1, 2], "rank none")
    assert done.output.splitlines() == ["counting 0", "counting 1", "counting 2"]
    (tmp_path / "log").write_text("before\n")
    assert called("counts", 1, output=tmp_path / "log").output == ""
    assert (tmp_path / "log").read_text().splitlines() == ["before", "counting 0"]


@pytest.mark.slow
def test_what_is_raised_is_reported_and_the_reports_are_kept() -> None:
    seen: list[int] = []
    done = called("fails", 2, on_report=seen.append)
    assert (done.code, done.errors, seen, done.answer) == (1, ["KeyError: 'missing'"], [0, 1], None)
    assert done.words == "KeyError: 'missing'"
    assert "Traceback" in done.output


@pytest.mark.whole
@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("nothing like an error", 3, "nothing like an error"),
        ("torch.SomeError: this\nnoise", 1, "torch.SomeError: this"),
        ("", 3, "ended with exit code 3 and said nothing"),
        ("ValueError: " + "x" * 5000, 1, "ValueError: " + "x" * 285 + "..."),
        (
            "  exitcode  : -11 (pid: 7)\n  traceback : Signal 11 (SIGSEGV) received by PID "
            "7\n=====",
            1,
            "killed by signal 11",
        ),
    ],
)
def test_last_words_of_what_says_nothing_to_us(words: str, code: int, expected: str) -> None:
    done = called("says", words, code)
    assert (done.code, done.answers) == (code, {})
    assert done.words.startswith(expected)
    assert len(done.words) <= 300


@pytest.mark.slow
def test_what_is_killed_is_reported_by_its_signal() -> None:
    done = called("kills_itself")
    assert done.code == -signal.SIGKILL
    assert done.words == "killed by signal 9 (SIGKILL): the system does that when memory runs out."


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.whole
def test_ranks_of_torchrun_answer_one_by_one() -> None:
    seen: list[int] = []
    done = called("counts", 1, launcher=TORCHRUN, on_report=seen.append)
    assert done.code == 0
    assert done.answers == {0: "rank 0", 1: "rank 1"}
    assert done.answer == "rank 0"
    assert seen == [0, 0]


@pytest.mark.reliability
def test_a_rank_that_fails_ends_the_others_and_is_reported_first() -> None:
    done = called("fails_on_rank_1", launcher=TORCHRUN)
    assert done.code == 1
    assert done.words == "ValueError: the cause"


# -- An object that lives there --------------------------------------------------------------------


@pytest.mark.slow
def test_an_object_answers_until_it_is_closed(tmp_path: Path) -> None:
    child = Child(cwd=ROOT)
    child.open(f"{__name__}:Counter", 5, str(tmp_path / "kept"))
    assert [child.ask("add", step) for step in (1, 2)] == [6, 8]
    with pytest.raises(ValueError, match="step=-1"):
        child.ask("add", -1)
    with pytest.raises(WorkerError, match="ZeroDivisionError: by nothing"):
        child.ask("unknown")
    assert child.ask("add", 1) == 9, "it goes on after an error"
    child.close()
    assert (tmp_path / "kept").read_text() == "closed"
    assert child.code == 0


@pytest.mark.slow
def test_errors_of_ours_come_as_they_are() -> None:
    child = Child(cwd=ROOT)
    with pytest.raises(BackendUnavailableError, match="pip install it"):
        child.open(f"{__name__}:Counter", -1)
    child.close()


@pytest.mark.whole
def test_no_answer_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child(cwd=ROOT)
    child.open(f"{__name__}:Counter", 0)
    with pytest.raises(WorkerError, match="'sleep' gave no answer in time"):
        child.ask("sleep", 60.0, limit=0.2)
    child.close(grace=0.0)
    child = Child(cwd=ROOT)
    child.open(f"{__name__}:Counter", 0)
    with pytest.raises(WorkerError, match="'crash' ended with exit code 3"):
        child.ask("crash")
    with pytest.raises(WorkerError, match="exit code 3"):
        child.ask("add", 1)
    child.close()


# -- The end ---------------------------------------------------------------------------------------


@pytest.mark.whole
def test_what_takes_too_long_is_ended_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GRACE", 0.2)
    done = called("has_a_family", str(tmp_path), limit=5)
    assert (done.code, done.answers) == (None, {})
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended(pid))


@pytest.mark.slow
def test_ctrl_c_ends_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_GRACE", 0.2)

    def press() -> None:
        wait_until((tmp_path / "pid").is_file)
        time.sleep(0.1)
        _thread.interrupt_main()
        os.kill(os.getpid(), signal.SIGINT)  # so that the main thread wakes up

    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        called("has_a_family", str(tmp_path))
    finger.join()
    wait_until(lambda: has_ended(int((tmp_path / "pid").read_text())))


@pytest.mark.slow
def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert called("counts", 0).code == 0
    assert not list(tmp_path.iterdir())
