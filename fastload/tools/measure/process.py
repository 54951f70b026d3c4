"""One protocol for what is measured in processes of its own: start it, give it a task, get the
answer, end it.

    done = run("benchmarks.gpu.idle:run", setting, limit=60.0)  # calls the function once
    done.answer, done.words, done.code

    child = Child(launcher=["/other/bin/python"], cwd=root)  # lives until it is closed
    child.open("benchmarks.peers.serve:Stream", setting)      # makes an object in it
    child.ask("measure", 2.0, limit=300.0)                    # calls a method of that object
    child.close()

Tasks and answers are pickled; functions are named "module:function" and imported by the child. A
child of another environment needs this package on its path and nothing but the standard library. In
the child, `fastload.tools.measure.child.report(value)` tells the parent something before the end.
Every process has a session of its own, so that Ctrl-C is for the parent, and is ended with all that
it started: torchrun's ranks and DataLoader's workers too.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import psutil

from fastload import errors
from fastload.errors import WorkerError
from fastload.tools.measure.child import ADDRESS
from fastload.tools.measure.clock import descendants

_GRACE = 5.0  # how long processes have to end by themselves [seconds]
_LONGEST = 300  # characters of last words that are kept
_LOOK = 0.1  # how often to see whether a silent process is still there [seconds]


@dataclass
class Outcome:
    """The outcome of a `run`."""

    answers: dict[int, Any] = field(default_factory=dict)
    """What the function returned, by rank; 0 of one process."""
    errors: list[str] = field(default_factory=list)
    """What ranks raised, as "Kind: words", the first one first."""
    code: int | None = None
    """Exit status, or minus the signal that ended it; None: it was ended, as its time was over."""
    output: str = ""
    """What was printed, if it was not sent elsewhere."""

    @property
    def answer(self) -> Any:
        """The answer of rank 0; None if there is none."""
        return self.answers.get(0)

    @property
    def words(self) -> str:
        """Why it failed: the first error that was reported; else how it was killed; else its most
        telling line."""
        if self.errors:
            return short(self.errors[0])
        # As torchrun says it.
        if killed := re.search(r"Signal (\d+) \(\w+\) received by PID", self.output):
            return _killed(int(killed[1]))
        if self.code is not None and self.code < 0:
            return _killed(-self.code)
        lines = [line.strip() for line in self.output.splitlines() if re.search(r"\w", line)]
        telling = [
            line for line in lines if re.match(r"[\w.]*(?:Error|Exception|Interrupt)\b", line)
        ]
        return short(
            (telling or lines or [f"ended with exit code {self.code} and said nothing"])[-1]
        )


def run(
    function: str,
    *arguments: object,
    limit: float = math.inf,
    launcher: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    output: Path | None = None,
    on_report: Callable[[Any], None] = lambda value: None,
) -> Outcome:
    """Call a function in a process of its own, or in several, and wait for the end of it.

    Args:
        function: "module:function"; with several processes each calls it.
        limit: after which it is given up [seconds].
        launcher: of the processes: Python, or Python with torchrun (`-m torch.distributed.run
            ...`).
        environment: all of it; None: this process'.
        output: file to append what is printed to; None: it is kept in the outcome.
        on_report: called with each report at once.
    """
    outcome = Outcome()
    with tempfile.TemporaryFile("w+") if output is None else output.open("a") as log:
        child = Child(launcher=launcher, environment=environment, cwd=cwd, output=log)
        try:
            for rank, tag, value in child.messages(("run", function, arguments), limit):
                if tag == "answer":
                    outcome.answers[rank] = value
                elif tag == "error":
                    (name, *_), words = value
                    outcome.errors.append(
                        f"{name.removeprefix('builtins.').rpartition('.')[2]}: {words}"
                    )
                else:
                    on_report(value)
            outcome.code = child.code
        finally:
            child.close(grace=0.0)
        if output is None:
            log.seek(0)
            outcome.output = log.read()
    return outcome


class Child:
    """A process that calls what it is asked to, or several that a launcher starts."""

    def __init__(
        self,
        *,
        launcher: Sequence[str] = (sys.executable,),
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        output: Any = None,
    ) -> None:
        """As `run`, but `output` is an open file; None: this process' standard error."""
        # The name of a socket has about 100 characters at most.
        where = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
        self._room = tempfile.TemporaryDirectory(prefix="fastload-", dir=where)
        address = os.path.join(self._room.name, "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._channels: list[connection.Connection] = []
        self._ranks: dict[connection.Connection, int] = {}
        self._process = subprocess.Popen(
            [*launcher, "-m", "fastload.tools.measure.child"],
            stdin=subprocess.DEVNULL,
            stdout=2 if output is None else output,
            stderr=output,
            env={**(os.environ if environment is None else environment), ADDRESS: address},
            cwd=cwd,
            start_new_session=True,
        )

    @property
    def code(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    def open(self, maker: str, *arguments: object, limit: float = math.inf) -> None:
        """Have it call "module:function" and keep what that returns, for `ask`. Raises as `ask`."""
        self._request(("open", maker, arguments), limit)

    def ask(self, method: str, *arguments: object, limit: float = math.inf) -> Any:
        """What a method of the object returns that `open` made. Raises FastloadError, ValueError
        and OSError as it did;
        WorkerError: it raised something else, died, or gave no answer within `limit` seconds."""
        return self._request(("ask", method, arguments), limit)

    def close(self, grace: float = _GRACE) -> None:
        """End of input ends it; if it does not go by itself in `grace` seconds, by force."""
        for channel in self._channels:
            channel.close()
        self._listener.close()
        if grace:
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                self._process.wait(grace)
        end(self._process, grace or _GRACE)
        self._room.cleanup()

    def _request(self, request: tuple[str, str, tuple[object, ...]], limit: float) -> Any:
        for _, tag, value in self.messages(request, limit):
            if tag == "answer":
                return value
            if tag == "error":
                raise _error(*value)
        how = "gave no answer in time" if self.code is None else f"ended with exit code {self.code}"
        raise WorkerError(f"The process of {request[1]!r} {how}.")

    def messages(
        self, request: tuple[str, str, tuple[object, ...]], limit: float
    ) -> Iterator[tuple[int, str, Any]]:
        """Send a request to each process and yield (rank, kind, value) of what comes back
        ("answer", "error", "report"), until the limit [seconds], or until all have ended."""
        deadline = time.monotonic() + limit
        for channel in self._ranks:
            _send(channel, request)
        while True:
            ended = self._process.poll() is not None
            left = min(_LOOK, deadline - time.monotonic())
            if left < 0 and not ended:
                return
            ready = connection.wait([self._listener, *self._channels], 0 if ended else left)
            for source in ready:
                if isinstance(source, socket.socket):
                    self._channels.append(connection.Connection(source.accept()[0].detach()))
                    continue
                assert isinstance(source, connection.Connection)
                try:
                    tag, value = source.recv()
                except (EOFError, OSError):
                    self._channels.remove(source)
                    self._ranks.pop(source, None)
                    source.close()
                    continue
                if tag == "hello":
                    self._ranks[source] = value
                    _send(source, request)
                else:
                    yield self._ranks[source], tag, value
            if ended and not ready:
                return


def _send(channel: connection.Connection, request: object) -> None:
    with suppress(BrokenPipeError, ConnectionError):  # it ended; who waits for the answer will see
        channel.send(request)


def _error(classes: Sequence[str], words: str) -> Exception:
    """What the child raised, as far as it is of a kind that callers tell apart."""
    known = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in (ValueError, OSError)}
    known |= {
        f"{errors.__name__}.{name}": cls
        for name, cls in vars(errors).items()
        if name.endswith("Error")
    }
    cls = next((known[name] for name in classes if name in known), None)
    return (
        WorkerError(f"{classes[0].removeprefix('builtins.')}: {words}")
        if cls is None
        else cls(words)
    )


def end(process: subprocess.Popen[Any], grace: float = _GRACE) -> None:
    """End a process of a session of its own, and all that it started; a second Ctrl-C shortens the
    grace.

    torchrun puts its ranks into further sessions, out of reach of a signal to the group: so by
    their ids.
    """
    family = descendants(process.pid)
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(grace)
        family += descendants(process.pid)
        process.kill()
        process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind when it ended
    for member in family:
        with suppress(psutil.Error):
            member.kill()  # only if it still is that process: psutil looks at its time of birth


def _killed(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    hint = ": the system does that when memory runs out" if number == signal.SIGKILL else ""
    return f"killed by signal {number} ({name}){hint}."


def short(words: str) -> str:
    """On one line, cut after some 300 characters."""
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
