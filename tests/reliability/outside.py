"""Runs a scenario in a process of its own, under a limit that nothing in it can outlast, and sees
what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import psutil
import pytest

__all__ = ["Ended", "outside"]

PATIENCE = 60
"""How long what a scenario started may take to end after it: it notices in a second on a machine
that has nothing else to do [seconds]."""
_ANSWER = "answer: "
_CALL = f"""
import importlib, sys, msgspec
module, name, arguments = sys.argv[1:]
result = getattr(importlib.import_module(module), name)(*msgspec.json.decode(arguments))
print({_ANSWER!r} + msgspec.json.encode(result).decode(), flush=True)
"""
_MARK = "FASTLOAD_TEST_SCENARIO"


@dataclass(frozen=True)
class Ended:
    """How a scenario ended."""

    answer: Any
    """What the function returned, as JSON keeps it; None if it did not return."""
    status: int
    """Exit status, negative for a signal."""
    output: str
    """Standard output and standard error, as they came."""
    seconds: float
    survivors: list[str]
    """Command lines of processes that it started and that were still there a minute after its end;
    killed since."""


def outside(
    scenario: Callable[..., Any],
    *arguments: Any,
    limit: float = 600,
    status: int | None = 0,
    under: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    during: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Ended:
    """Run `scenario(*arguments)`, a function of a module, in a fresh process.

    Args:
        arguments: of JSON's kinds, which the scenario gets.
        limit: after so long its threads' stacks are printed, all its processes killed, and the test
            fails [seconds].
        status: the exit status to insist on; None: any.
        under: a command that runs it, such as ("unshare", "-m", "sh", "-c", 'mount ...; exec "$@"',
            "sh").
        environment: variables to set.
        during: called with the running process, to do to it what the scenario is about.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    command = [
        *under,
        *(sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c", _CALL),
        *(scenario.__module__, scenario.__name__, msgspec.json.encode(arguments).decode()),
    ]
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {}), _MARK: mark},
            start_new_session=True,
        )
        late = False
        try:
            if during is not None:
                during(process)
            process.wait(max(limit - (time.monotonic() - started), 0.1))
        except subprocess.TimeoutExpired:
            late = True
            for one in _marked(mark):
                one.send_signal(signal.SIGABRT)  # the fault handler prints where each thread is
            time.sleep(0.5)
        finally:
            seconds = time.monotonic() - started
            survivors = _survivors(mark, 0 if late else PATIENCE)
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if late:
        pytest.fail(
            f"{scenario.__name__} had not ended after {limit} s:\n{text[-6000:]}", pytrace=False
        )
    answers = [line for line in text.splitlines() if line.startswith(_ANSWER)]
    answer = msgspec.json.decode(answers[-1].removeprefix(_ANSWER)) if answers else None
    ended = Ended(answer, process.returncode, text, seconds, survivors)
    if status is not None and ended.status != status:
        pytest.fail(
            f"{scenario.__name__} ended with {ended.status}, not {status}:\n{text[-6000:]}",
            pytrace=False,
        )
    return ended


def _marked(mark: str) -> list[psutil.Process]:
    """The processes that carry the mark of one scenario in their environment, wherever they have
    gone."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _survivors(mark: str, patience: float) -> list[str]:
    end = time.monotonic() + patience
    while (left := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    names = []
    for process in left:
        try:
            names.append(" ".join(process.cmdline())[-200:])
            process.kill()
        except psutil.Error:
            continue
    return names
