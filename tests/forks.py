"""Runs tests in processes that are forks of the one that has collected them: a plugin of pytest,
`python -m pytest -p tests.forks --forks 4`.

    this process                            each fork
    imports and collects, once
    forks; says which test is next ──────►  runs it
    counts and prints what comes  ◄──────── reports, warnings

To import torch and to read the tests takes some 30 s of processor time, and 1 GB, which with
pytest-xdist each process takes (`tests/conftest.py` keeps the garbage collector away from it, so
that it stays shared). A fork gets the tests of a file one after the other, so that fixtures of a
module are made once; when no file is left, half of what another fork has left of its own.

What ends a fork (a signal, `os._exit`) is a failure of the test that it ran, and another fork takes
the rest; if it ran none, it is an error of the whole run. `-x`, `-k`, `--durations`, `--junit-xml`,
`--last-failed` and Ctrl-C do what they do without. Not on machines whose GPU was used before the
fork: CUDA does not work in forks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest

_PATIENCE = 20.0
"""For a fork to end what its tests have started [seconds]."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forks")
    group.addoption("--forks", type=int, default=0, help="processes that run tests; 0: this one")
    group.addoption(
        "--whole-files", action="store_true", help="all tests of a file run in the same process"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("forks") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--forks and -n both say which processes run the tests: give one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if not options.forks or not session.items or options.collectonly or options.usepdb:
        return None
    if session.testsfailed and not options.continue_on_collection_errors:
        return None  # pytest says so
    _Forks(session, options.forks, options.whole_files).run()
    return True


@dataclass(eq=False)
class _Fork:
    """A process that runs tests, as the one sees it that forked it."""

    process: int
    ended: int
    """A descriptor that can be read once it has ended: what it has started may outlive it, and
    keep its end of the line."""
    line: Connection
    running: int | None = None
    """The test that it was given last, until it asks for another."""
    queue: deque[int] = field(default_factory=deque)
    """The rest of its file."""


class _Forks:
    def __init__(self, session: pytest.Session, count: int, whole_files: bool) -> None:
        self._session = session
        self._whole_files = whole_files
        numbers: Iterable[int] = range(len(session.items))
        if whole_files:
            places = {item.path: n for n, item in reversed(list(enumerate(session.items)))}
            numbers = sorted(numbers, key=lambda n: places[session.items[n].path])
        files = itertools.groupby(numbers, lambda n: session.items[n].path)
        self._files = deque(deque(numbers) for _, numbers in files)
        self._forks: list[_Fork] = []
        self._numbers = itertools.count()
        self._count = min(count, len(session.items))
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # reports of several files come in turn

    def run(self) -> None:
        session = self._session
        try:
            for _ in range(self._count):
                self._fork()
            while self._forks:
                ready = wait([end for fork in self._forks for end in (fork.line, fork.ended)])
                for fork in list(self._forks):
                    if fork.line in ready or fork.ended in ready:
                        self._listen(fork)
                    if fork.ended in ready:
                        self._bury(fork)
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
        finally:
            self._stop()

    def _fork(self) -> None:
        number = next(self._numbers)
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            for other in self._forks:
                other.line.close()
                os.close(other.ended)
            ours.close()
            _work(self._session, theirs, number)
        theirs.close()
        self._forks.append(_Fork(process, os.pidfd_open(process), ours))

    def _listen(self, fork: _Fork) -> None:
        """Take what a fork has said so far."""
        try:
            while fork.line.poll():
                kind, value = fork.line.recv()
                getattr(self, f"_on_{kind}")(fork, value)
        except (EOFError, ConnectionResetError):
            pass  # it has ended, or is about to

    def _on_asks(self, fork: _Fork, _: None) -> None:
        fork.running = self._next(fork)
        with contextlib.suppress(BrokenPipeError):  # it has ended
            fork.line.send(fork.running)

    def _on_report(self, fork: _Fork, data: dict[str, Any]) -> None:
        config = self._session.config
        self._log(config.hook.pytest_report_from_serializable(config=config, data=data))

    def _on_warning(self, fork: _Fork, values: dict[str, Any]) -> None:
        hook = self._session.config.hook
        hook.pytest_warning_recorded.call_historic(kwargs=values)

    def _on_broken(self, fork: _Fork, text: str) -> NoReturn:
        raise RuntimeError(f"a fork that runs tests has failed by itself:\n{text}")

    def _log(self, report: Any) -> None:
        self._session.config.hook.pytest_runtest_logreport(report=report)

    def _next(self, fork: _Fork) -> int | None:
        if not fork.queue and self._files:
            fork.queue = self._files.popleft()
        elif not fork.queue and not self._whole_files:
            other = max(self._forks, key=lambda one: len(one.queue))
            taken = [other.queue.pop() for _ in range((len(other.queue) + 1) // 2)]
            fork.queue.extend(reversed(taken))
        return fork.queue.popleft() if fork.queue else None

    def _bury(self, fork: _Fork) -> None:
        """It has ended: of itself, or by the test that it ran."""
        self._forks.remove(fork)
        status = os.waitstatus_to_exitcode(os.waitpid(fork.process, 0)[1])
        fork.line.close()
        os.close(fork.ended)
        how = f"by signal {-status} ({signal.strsignal(-status)})" if status < 0 else "at once"
        if fork.running is None and status:  # before its first test, or after its last one
            raise RuntimeError(f"a fork that ran no test ended {how}, with status {status}")
        if fork.running is not None:
            item = self._session.items[fork.running]
            text = f"the process of this test ended {how}, with status {status}"
            self._log(pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call", []))
        if fork.queue:
            self._files.appendleft(fork.queue)
        if self._files and not self._session.shouldfail:
            self._fork()

    def _stop(self) -> None:
        """End those that are left: after Ctrl-C, which they may have seen, too, or `-x`."""
        # First some time for those that Ctrl-C has reached: a second one would break off fixtures.
        for order, patience in ((0, 0.2), (signal.SIGINT, _PATIENCE), (signal.SIGKILL, _PATIENCE)):
            end = time.monotonic() + patience
            for fork in self._forks:
                os.kill(fork.process, order)
            while self._forks and time.monotonic() < end:
                ended = wait([fork.ended for fork in self._forks], max(end - time.monotonic(), 0))
                for fork in [one for one in self._forks if one.ended in ended]:
                    self._forks.remove(fork)
                    os.waitpid(fork.process, 0)
                    fork.line.close()
                    os.close(fork.ended)


class _Voice:
    """Hands what pytest reports in a fork over to the one that forked it."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self._config = config
        self._line = line
        self.heard = False
        """Of warnings pytest tells each new plugin what there were before it."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._line.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if not self.heard:
            return
        said, category = warning_message.message, warning_message.category
        try:
            pickle.dumps((said, category))
        except Exception:
            said, category = UserWarning(str(said)), UserWarning
        place = warning_message.filename, warning_message.lineno
        message = warnings.WarningMessage(said, category, *place)
        values = {"when": when, "nodeid": nodeid, "location": location}
        self._line.send(("warning", {"warning_message": message, **values}))


def _work(session: pytest.Session, line: Connection, number: int) -> NoReturn:
    """Run the tests that are handed out by the other end of `line`; ends the process."""
    status = 1
    try:
        _set_up(session, line, number)
        _run(session, line)
        status = 0
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        # Fixtures release what they hold.
        session._setupstate.teardown_exact(None)  # type: ignore[attr-defined]
    except BaseException:
        line.send(("broken", traceback.format_exc()))
    finally:
        # As an interpreter ends, except that nothing is looked through for garbage.
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        finally:
            os._exit(status)


def _set_up(session: pytest.Session, line: Connection, number: int) -> None:
    config, plugins = session.config, session.config.pluginmanager
    for name in ("terminalreporter", "terminalprogress-plugin"):
        if plugins.has_plugin(name):
            plugins.unregister(name=name)
    # The files into which output goes are those of all forks, with one place at which to write.
    capture = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.getbasetemp() / f"fork-{number}"
    folders._basetemp.mkdir(mode=0o700)
    voice = _Voice(config, line)
    plugins.register(voice)
    voice.heard = True


class _Next:
    """The test after the one that runs, for pytest, which asks which fixtures that needs. It is
    given out no earlier than that: else it would wait for this one, though another fork is free."""

    def __init__(self, session: pytest.Session, line: Connection) -> None:
        self._session, self._line = session, line

    @functools.cached_property
    def item(self) -> pytest.Item | None:
        self._line.send(("asks", None))
        number: int | None = self._line.recv()
        return None if number is None else self._session.items[number]

    def __bool__(self) -> bool:
        return self.item is not None

    def listchain(self) -> list[pytest.Item | pytest.Collector]:
        assert self.item is not None
        return self.item.listchain()


def _run(session: pytest.Session, line: Connection) -> None:
    item = _Next(session, line).item
    while item is not None:
        following = _Next(session, line)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following.item
