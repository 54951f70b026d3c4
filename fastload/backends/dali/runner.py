"""A thread that runs a DALI graph for other threads, and replaces the graph when it has failed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.dali.pipeline import DaliPipeline, Encoded
from fastload.backends.dali.regions import Regions
from fastload.errors import WorkerError

__all__ = ["DaliDecodeError", "PipelineRunner"]

DevicePixels = npt.NDArray[np.uint8] | torch.Tensor


class DaliDecodeError(Exception):
    """DALI could not decode some file of a batch; which one is not always said."""


@dataclass
class _Job:
    encoded: list[Encoded]
    regions: Regions
    done: Future[DevicePixels] = field(default_factory=Future)


class PipelineRunner:
    """Takes batches from any thread and has DALI make their pixels, several at once, first come, first served."""

    def __init__(self, build: Callable[[], DaliPipeline], *, queue_depth: int) -> None:
        """
        Args:
            build: makes the pipeline; called in the runner's thread, when it is first needed and after a failure.
            queue_depth: batches inside DALI at once.
        """
        self.rebuilt = 0
        """How often the pipeline was replaced because it had failed."""
        self._build = build
        self._queue_depth = queue_depth
        self._waiting: deque[_Job] = deque()
        self._running: deque[_Job] = deque()
        self._pipeline: DaliPipeline | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="fastload-dali", daemon=True)
        self._thread.start()

    def submit(self, encoded: list[Encoded], regions: Regions) -> Future[DevicePixels]:
        """The future (n, H, W, 3) uint8 pixels of n files.

        It fails with DaliDecodeError, or with WorkerError if it is not a file's fault.
        """
        job = _Job(encoded, regions)
        with self._changed:
            if self._closing:
                job.done.set_exception(_closed())
            else:
                self._waiting.append(job)
                self._changed.notify()
        return job.done

    def close(self, *, wait: bool = True) -> None:
        """Fail what is outstanding, stop the thread, free DALI's threads and memory."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (self._closing or self._waiting or self._running):
                        self._changed.wait()
                    if self._closing:
                        return
                    fresh = (
                        self._waiting.popleft() if self._waiting and len(self._running) < self._queue_depth else None
                    )
                # DALI's input comes first: it must never run dry while we wait for its output.
                if fresh is not None:
                    self._feed(fresh)
                else:
                    self._collect()
                fresh = None
        finally:
            self._discard_pipeline()
            with self._changed:
                self._closing = True
                outstanding = [*self._running, *self._waiting]
                self._running.clear()
                self._waiting.clear()
            for job in outstanding:
                job.done.set_exception(_closed())

    def _feed(self, job: _Job) -> None:
        self._running.append(job)
        failure: Exception | None = None
        try:
            if self._pipeline is None:
                self._pipeline = self._build()
            self._pipeline.feed(job.encoded, job.regions)
        except Exception as error:  # DALI has no exceptions of its own; none may end this thread
            failure = WorkerError(f"backend 'dali': DALI could not be started or fed: {error}")
        if failure is not None:  # only now: the caught error's traceback would keep the old pipeline alive
            self._fail(job, failure)

    def _collect(self) -> None:
        job = self._running[0]
        assert self._pipeline is not None
        failure: Exception | None = None
        try:
            pixels = self._pipeline.collect()
        except Exception as error:  # as above
            said = str(error)
            # DALI names the operator that failed.
            failure = (
                DaliDecodeError(said) if "decoders" in said else WorkerError(f"backend 'dali': DALI failed: {said}")
            )
        if failure is not None:
            self._fail(job, failure)
        else:
            self._running.popleft()
            job.done.set_result(pixels)

    def _fail(self, job: _Job, error: Exception) -> None:
        """Start over with a new pipeline, as DALI demands after an error, and feed it again what else was inside."""
        self._discard_pipeline()
        self.rebuilt += 1
        self._running.remove(job)
        with self._changed:
            self._waiting.extendleft(reversed(self._running))
        self._running.clear()
        job.done.set_exception(error)

    def _discard_pipeline(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None


def _closed() -> WorkerError:
    return WorkerError("backend 'dali': it was closed while batches were outstanding; create a new loader.")
