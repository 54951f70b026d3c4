"""Tests that run in forks of the process that has collected them (`tests/forks.py`): what is said
of them is what is said without forks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).parents[1]

ALL_OUTCOMES = """
import os, signal, sys, warnings
import pytest

imported = os.getpid()

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with open("made", "a") as made:
        print(os.getpid(), file=made)
    yield tmp_path_factory.mktemp("shared")
    with open("released", "a") as released:
        print(os.getpid(), file=released)

@pytest.mark.parametrize("number", range(4))
def test_numbers(number, shared, tmp_path):
    assert os.getpid() != imported
    print("printed", number)
    assert number != 2

def test_warns(): warnings.warn("as it should be")
def test_leaves(): os._exit(3)
def test_is_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_skips(): pytest.skip("not here")
@pytest.mark.xfail
def test_is_known(): assert False
def test_passes(): pass
"""


def command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.forks",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def ran(folder: Path, *arguments: str, **files: str) -> str:
    """What pytest prints of the tests in `files`, by two forks."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        command("--forks", "2", "-ra", *arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def pids(folder: Path, name: str) -> list[int]:
    file = folder / name
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def test_each_outcome_is_reported_once(tmp_path: Path) -> None:
    text = ran(tmp_path, "--durations=1", test_a=ALL_OUTCOMES)
    assert re.search(r"3 failed, 5 passed, 1 skipped, 1 xfailed, 1 warning in", text), text
    assert "assert 2 != 2" in text, "the test's own words"
    assert text.count("printed 2") == 1, "of what was printed, that of the test alone"
    assert "as it should be" in text
    assert "the process of this test ended at once, with status 3" in text
    assert "the process of this test ended by signal 9 (Killed), with status -9" in text
    assert "slowest 1 durations" in text


@pytest.mark.whole
def test_a_fork_that_dies_while_it_runs_no_test_is_an_error(tmp_path: Path) -> None:
    dies = "import atexit, os\ndef test_passes(): atexit.register(os.kill, os.getpid(), 9)\n"
    text = ran(tmp_path, test_a=dies)
    assert "a fork that ran no test ended by signal 9 (Killed), with status -9" in text


@pytest.mark.whole
def test_fixtures_of_a_module_are_made_once_a_fork_and_released(tmp_path: Path) -> None:
    files = dict.fromkeys(("test_a", "test_b", "test_c"), ALL_OUTCOMES)
    text = ran(tmp_path, "-k", "numbers", "--whole-files", **files)
    assert "3 failed, 9 passed" in text
    made = pids(tmp_path, "made")
    assert len(made) == 3, "one a file"
    assert 1 <= len(set(made)) <= 2
    assert sorted(pids(tmp_path, "released")) == sorted(made)


@pytest.mark.whole
def test_what_is_left_of_a_file_is_shared(tmp_path: Path) -> None:
    meet = """
import pathlib, os, time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_meets(number):
    "Ends when another fork runs one, too."
    pathlib.Path(f"pid-{os.getpid()}").touch()
    while len(list(pathlib.Path().glob("pid-*"))) < 2:
        time.sleep(0.01)
"""
    assert "6 passed" in ran(tmp_path, test_a=meet)


@pytest.mark.whole
def test_the_first_failure_ends_all(tmp_path: Path) -> None:
    waits = "import time\ndef test_waits(): time.sleep(600)\n"
    text = ran(tmp_path, "-x", test_a="def test_fails(): assert False\n", test_b=waits)
    assert "stopping after 1 failures" in text
    assert "1 failed in" in text


@pytest.mark.whole
@pytest.mark.parametrize("whom", ["all", "the first"])
def test_interrupted_forks_release_what_they_hold(whom: str, tmp_path: Path) -> None:
    waits = """
import os, pathlib, time
import pytest

@pytest.fixture(scope="session")
def resource():
    yield
    pathlib.Path(f"released-{os.getpid()}").touch()

def test_waits(resource):
    pathlib.Path(f"waits-{os.getpid()}").touch()
    time.sleep(600)
"""
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(waits)
    process = subprocess.Popen(
        command("--forks", "2"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: len(list(tmp_path.glob("waits-*"))) == 2)
    (os.killpg if whom == "all" else os.kill)(process.pid, signal.SIGINT)
    text, _ = process.communicate()
    assert "KeyboardInterrupt" in text
    assert process.returncode == 2
    assert {file.name[9:] for file in tmp_path.glob("released-*")} == {
        file.name[6:] for file in tmp_path.glob("waits-*")
    }


@pytest.mark.whole
def test_forks_beside_workers_of_xdist_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    assert "--forks and -n" in ran(tmp_path, "-p", "xdist", "-n", "2", test_a=ALL_OUTCOMES)
