"""Runs a scenario in a process of its own, under a limit that nothing in it can outlast, and sees
what it leaves.

The process is a fork of one that has imported torch, torchvision and the backends of the tests, and
has done nothing else: imports take an interpreter 6 to 9 s of processor time. It ends as an
interpreter does, except that the garbage collector leaves what was imported alone: else a process
with torch takes 3 s to end.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import socket
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

__all__ = ["Ended", "mounting", "outside"]

PATIENCE = 60
"""How long what a scenario started may take to end after it: it notices in a second on a machine
that has nothing else to do [seconds]."""
_ANSWER = "answer: "
_MARK = "FASTLOAD_TEST_SCENARIO"
_LONGEST = 1 << 17
"""Of a request [bytes]."""
_SERVER = f"""
import ctypes, gc, importlib, os, socket, subprocess, sys
sys.modules["triton"] = None  # of what it leaves to the collector nanobind says that it leaked
import msgspec, torch, torchvision.datasets, torchvision.transforms.v2
import tests.backends

gc.freeze()
asked = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, outputs, *_ = socket.recv_fds(asked, {_LONGEST}, 1)
    if not request:
        sys.exit()
    child = os.fork()
    if child == 0:
        break
    os.close(outputs[0])
    asked.send(b"%d" % child)
    asked.send(b"%d" % os.waitpid(child, 0)[1])

asked.close()
os.setsid()
for descriptor in (1, 2):
    os.dup2(outputs[0], descriptor)
os.close(outputs[0])
module, name, arguments, directory, environment, mounts = msgspec.json.decode(request)
os.chdir(directory)
os.environ.clear()
os.environ.update(environment)
if mounts:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(0x20000):  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), "unshare")
    for command in ("mount --make-rprivate /", *mounts):
        subprocess.run(command, shell=True, check=True)
result = getattr(importlib.import_module(module), name)(*arguments)
print({_ANSWER!r} + msgspec.json.encode(result).decode(), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a scenario ended."""

    answer: Any
    """What the function returned, as JSON keeps it; None if it did not return."""
    status: int
    """Exit status, negative for a signal."""
    output: str
    """Standard output and standard error, as they came."""
    survivors: list[str]
    """Command lines of processes that it started and that were still there a minute after its end;
    killed since."""


def outside(
    scenario: Callable[..., Any],
    *arguments: Any,
    limit: float = 600,
    status: int | None = 0,
    mounts: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    during: Callable[[psutil.Process], None] | None = None,
) -> Ended:
    """Run `scenario(*arguments)`, a function of a module, in a process of its own.

    Args:
        arguments: of JSON's kinds, which the scenario gets.
        limit: after so long its threads' stacks are printed, all its processes killed, and the test
            fails [seconds].
        status: the exit status to insist on; None: any.
        mounts: commands of a shell that run before it; what they mount nobody else sees. For tests
            marked as `mounting`.
        environment: variables to set.
        during: called with the running process, to do to it what the scenario is about.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    request = (
        *(scenario.__module__, scenario.__name__, arguments, os.getcwd()),
        {**os.environ, **(environment or {}), _MARK: mark},
        mounts,
    )
    server, end = _server(), time.monotonic() + limit
    with tempfile.TemporaryFile() as output:
        socket.send_fds(server, [msgspec.json.encode(request)], [output.fileno()])
        process = psutil.Process(int(server.recv(99)))
        ending = b""
        try:
            if during is not None:
                during(process)
            server.settimeout(max(end - time.monotonic(), 0.1))
            ending = server.recv(99)
        except TimeoutError:
            for one in _processes(process.pid, mark):
                one.send_signal(signal.SIGABRT)  # the fault handler prints where each thread is
            time.sleep(0.5)
        finally:
            survivors = _survivors(process.pid, mark, PATIENCE if ending else 0)
            server.settimeout(None)
            code = os.waitstatus_to_exitcode(int(ending or server.recv(99)))
        output.seek(0)
        text = output.read().decode(errors="replace")
    wrong = "" if status in (None, code) else f"ended with {code}, not {status}"
    if not ending:
        wrong = f"had not ended after {limit} s"
    if wrong:
        pytest.fail(f"{scenario.__name__} {wrong}:\n{text[-6000:]}", pytrace=False)
    answers = [line for line in text.splitlines() if line.startswith(_ANSWER)]
    answer = msgspec.json.decode(answers[-1].removeprefix(_ANSWER)) if answers else None
    return Ended(answer, code, text, survivors)


@functools.cache
def _server() -> socket.socket:
    """The process that is forked for each scenario of this one; it ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        options = ("-X", "faulthandler", "-W", "ignore::DeprecationWarning")
        process = subprocess.Popen(
            [sys.executable, *options, "-c", _SERVER, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _processes(session: int, mark: str) -> list[psutil.Process]:
    """Those of one scenario, wherever they have gone: in its session, or with its mark in the
    environment that they were started with."""
    found = []
    for process in psutil.process_iter():
        try:
            its = os.getsid(process.pid) == session or process.environ().get(_MARK) == mark
            if its and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def _survivors(session: int, mark: str, patience: float) -> list[str]:
    end = time.monotonic() + patience
    while (left := _processes(session, mark)) and time.monotonic() < end:
        time.sleep(0.1)
    names = []
    for process in left:
        try:
            names.append(" ".join(process.cmdline())[-200:])
            process.kill()
        except psutil.Error:
            continue
    return names


def _can_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


mounting = pytest.mark.skipif(not _can_mount(), reason="mounting needs root and mount namespaces")
"""For tests that mount something."""
