"""What the backends share that make batches on the host, with threads of this process.

They differ in what the columns hold (compressed bytes, or pixels) and in what must be done before the first batch; how
a batch is made is the business of an engine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Literal

from fastload.backends.base import Context, Engine, HostBatch, PendingBatch
from fastload.draws import Draws
from fastload.errors import ConfigurationError


class HostBackend:
    """Keeps the batches of an engine in order."""

    name: ClassVar[str]
    background = True
    depth: int

    def __init__(self, context: Context) -> None:
        """
        Raises:
            ConfigurationError: there is a collate function.
            UnsupportedTransformError: the recipe has an opaque part.
        """
        context.require_whole_batches(self.name)
        self._context = context
        self._pending: deque[PendingBatch] = deque()
        self._layout: Literal["tuple"] | None = None
        """Of the batches, where the source does not tell."""

    def engine(self) -> Engine:
        """The engine; made by the first call if not before."""
        raise NotImplementedError

    @property
    def light(self) -> bool:
        """See `Backend`."""
        return self.engine().light

    def submit(self, draws: Draws) -> None:
        try:
            task = self.engine().start(draws)
        except ConfigurationError as error:
            task = _Refused(error)
        self._pending.append(task)

    def receive(self) -> HostBatch:
        assert self._pending, "receive() without a submitted batch"
        return self._labelled(self._pending.popleft().result())

    def reread(self, draws: Draws) -> HostBatch:
        return self._labelled(self.engine().now(draws))

    def cancel(self) -> None:
        tasks = list(self._pending)
        self._pending.clear()
        for task in reversed(tasks):  # the last ones first, or threads would begin what is about to be dropped
            task.cancel()
        for task in tasks:
            task.wait()

    def _labelled(self, batch: HostBatch) -> HostBatch:
        batch.layout = self._layout
        return batch


@dataclass(frozen=True)
class _Refused(PendingBatch):
    """A batch that there cannot be: whoever would receive it is told why."""

    error: ConfigurationError

    def result(self) -> HostBatch:
        raise self.error
