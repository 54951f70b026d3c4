"""Running a command and looking on.

The command has our terminal, our environment and our process group. A Ctrl-C that the terminal
sends reaches it as it reaches us; a signal that is sent to us alone is passed on. Its exit
code becomes ours, a signal that ends it ends us. What it has started is watched as long as it runs
itself, and is not ended with it.
"""

from __future__ import annotations

import os
import resource
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from fastload.errors import ConfigurationError
from fastload.tools.watch.beside import ProcessWatch
from fastload.tools.watch.record import Watched
from fastload.tools.watch.verdict import verdict

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# si_code SI_KERNEL of sigaction(2): the terminal's Ctrl-C, which the whole process group gets
_SENT_BY_KERNEL = 128
_LOOK = 0.2  # seconds after which a signal that another thread of this process got is passed on


@dataclass(frozen=True)
class Ending:
    """How the command ended."""

    code: int  # exit code; 0 where a signal ended it
    signal: int = 0
    left: tuple[int, ...] = ()  # processes that it started and that still run

    def __str__(self) -> str:
        if self.signal:
            name = (
                signal.Signals(self.signal).name
                if self.signal in set(signal.Signals)
                else str(self.signal)
            )
            words = f"ended by signal {self.signal} ({name})"
            words += (
                ", as the system does when memory runs out" if self.signal == signal.SIGKILL else ""
            )
        else:
            words = f"ended with exit code {self.code}"
        return words + (f"; still running: {', '.join(map(str, self.left))}" if self.left else "")

    def leave(self) -> None:
        """End this process in the same way."""
        if self.signal:
            # The core that counts is the command's.
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if self.signal not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(self.signal, signal.SIG_DFL)
            os.kill(os.getpid(), self.signal)
        raise SystemExit(self.code)


def watch(
    command: Sequence[str], *, period: float = 1.0, on_moment: Callable[[Watched], None]
) -> tuple[Watched, Ending]:
    """Run a command, look at it every `period` seconds, and wait for its end. To be called in the
    main thread.

    `on_moment` is called after each look, in another thread. Raises ConfigurationError: the command
    cannot be started.
    """
    child = 0

    def pass_on(number: int, frame: FrameType | None = None) -> None:
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, number)

    with _signals_kept(pass_on) as before:
        try:
            # Python ignores SIGPIPE and SIGXFSZ, and a program inherits what is ignored.
            child = os.posix_spawnp(
                command[0],
                list(command),
                os.environ,
                setsigmask=before,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError as error:
            raise ConfigurationError(
                f"{command[0]}: cannot be started ({error.strerror})."
            ) from error
        beside = ProcessWatch(child, shlex.join(command), period=period, on_moment=on_moment)
        pid = status = 0
        while not pid:
            received = signal.sigtimedwait({*_PASSED_ON, signal.SIGCHLD}, _LOOK)
            if (
                received is not None
                and received.si_signo != signal.SIGCHLD
                and received.si_code != _SENT_BY_KERNEL
            ):
                pass_on(received.si_signo)
            pid, status = os.waitpid(child, os.WNOHANG)
        child = 0
        watched = beside.stop(look=False)
    code = os.waitstatus_to_exitcode(status)
    ending = Ending(max(code, 0), max(-code, 0), beside.left())
    watched.ended = str(ending)
    _, watched.verdict, watched.change = verdict(watched)
    return watched, ending


@contextmanager
def _signals_kept(
    handler: Callable[[int, FrameType | None], None],
) -> Iterator[set[signal.Signals]]:
    """Within, signals wait for `sigtimedwait`, which tells who sent them. Libraries have threads
    that were there before and block nothing: what they get goes to `handler`. Gives the mask that
    was in force before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    handlers = {number: signal.signal(number, handler) for number in _PASSED_ON}
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        for number, old in handlers.items():
            signal.signal(number, old)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
