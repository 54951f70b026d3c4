"""Shards written by the nodes of a Ray cluster: one task a shard.

Not Ray Data: its sinks choose the names and the order of files by what is done first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError

Job = TypeVar("Job")
Row = TypeVar("Row")

_RETRIES = 3
"""Of a task whose node is lost."""
_WINDOW = 4
"""Tasks for each core of the cluster that are known to Ray at once."""


def packed_by_ray(
    address: str, task: Callable[[Job], Row], jobs: Sequence[Job]
) -> Generator[tuple[Job, Row]]:
    """What `task` gives for each job, as they are done. A cluster that this process has joined
    already is used, whatever the address. Raises BackendUnavailableError: Ray is not installed;
    what a task raises; RayError: a job was lost more than three times."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise BackendUnavailableError(f"ray: not installed: {install_command('ray')}") from None
    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address, log_to_driver=False)
    try:
        yield from _run(ray, task, jobs)
    finally:
        if ours:
            ray.shutdown()


def _run(ray: Any, task: Callable[[Job], Row], jobs: Sequence[Job]) -> Generator[tuple[Job, Row]]:
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_call)
    shared = ray.put(task)
    most = max(1, int(_WINDOW * ray.cluster_resources().get("CPU", 1)))
    rest, running = iter(jobs), dict[Any, Job]()
    try:
        while True:
            for job in rest:
                running[remote.remote(shared, job)] = job
                if len(running) >= most:
                    break
            if not running:
                return
            done, _ = ray.wait(list(running), num_returns=1)
            for each in done:
                job = running.pop(each)
                try:
                    row = ray.get(each)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                yield job, row
    finally:  # after an error: what nobody waits for
        for each in running:
            ray.cancel(each, force=False)


def _call(task: Callable[[Any], Any], job: Any) -> Any:
    return task(job)
