"""Backends of other packages that were written for `submit` and `receive`, served for one version
as if they had `start`."""

from __future__ import annotations

import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

from fastload.backends.base import BackendOptions, HostBatch, Work
from fastload.draws import Draws
from fastload.errors import WorkerError


class SubmittedBackend:
    """A backend with `submit` and `receive`."""

    Options: ClassVar[type[BackendOptions]] = BackendOptions

    def __init__(self, backend: Any) -> None:
        cls = type(backend)
        warnings.warn(
            f"backend {backend.name!r}: {cls.__module__}.{cls.__qualname__} has submit(), "
            "receive(), reread() and cancel(). Give it start(draws) in their place, which returns "
            "an object with result() and cancel() (fastload.backends.base.Work): the next version "
            "calls no others.",
            DeprecationWarning,
            stacklevel=2,
        )
        self._backend = backend
        self._submitted: deque[_Submitted] = deque()
        """Not received, the oldest first."""

    def start(self, draws: Draws) -> Work:
        self._backend.submit(draws)
        self._submitted.append(_Submitted(self))
        return self._submitted[-1]

    def finished(self, work: _Submitted) -> HostBatch:
        """The batch. Those that were submitted before it are received first."""
        while work.answer is None:
            if not self._submitted:
                raise WorkerError(
                    f"backend {self.name!r}: it was closed while batches were outstanding."
                )
            try:
                self._submitted[0].answer = self._backend.receive()
            except Exception as error:
                self._submitted[0].answer = error
            self._submitted.popleft()
        if isinstance(work.answer, Exception):
            raise work.answer
        return work.answer

    def drop(self, work: _Submitted) -> None:
        """What was submitted can only be forgotten as a whole."""
        work.dropped = True
        if all(one.dropped for one in self._submitted):
            self._submitted.clear()
            self._backend.cancel()

    def close(self) -> None:
        self._submitted.clear()
        self._backend.close()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the backend's: its name, `depth`, `explain`."""
        if name.startswith("__") or name in ("reread", "cancel", "submit", "receive"):
            raise AttributeError(name)
        return getattr(self._backend, name)


@dataclass(eq=False)
class _Submitted:
    """A batch that was submitted."""

    backend: SubmittedBackend
    answer: HostBatch | Exception | None = None
    dropped: bool = False

    def result(self) -> HostBatch:
        return self.backend.finished(self)

    def cancel(self) -> None:
        self.backend.drop(self)
