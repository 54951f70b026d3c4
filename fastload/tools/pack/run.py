"""`pack`: all shards of a data set, by threads of this process or by the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastload import open_source, stores
from fastload.errors import ConfigurationError, DecodeError, PackError, SourceError, counted
from fastload.machine import usable_cores
from fastload.sources import Source
from fastload.sources.inspection import refuse_among_samples
from fastload.stores.reads import ReaderPool
from fastload.terminal import progress as shown_progress
from fastload.tools.pack.contents import Contents, described
from fastload.tools.pack.plan import PackOptions, ShardJob, parts_of, plan_shards
from fastload.tools.pack.report import page_of, pictures_of
from fastload.tools.pack.shard import ShardRow, pack_shard, require_parquet
from fastload.tools.pack.target import Packed, Target

_VERSION = 1
"""Of the layout; another one is another plan."""


def pack(
    source: Any,
    destination: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    split: str | None = None,
    format: str | None = None,
    num_workers: int | None = None,
    strict: bool = False,
    ray: str | None = None,
    progress: bool = True,
) -> Packed:
    """Write a data set as shards. Run again after an interruption, it goes on with what is missing.

    Args:
        source: what `create_loader` takes, or a Source.
        destination: a folder that is new, empty or was filled by this very call before; or a URL
            of an object store.
        options: of the shards.
        split: of a source that holds several, which part is packed.
        format: of the source, as `open_source` takes it.
        num_workers: threads. None: one for each usable core.
        strict: whether a sample that cannot be read is an error. Else it is left out and named in
            the report.
        ray: the address of a Ray cluster whose nodes write the shards ("auto": the one that this
            machine belongs to); a cluster that this process has joined already is used. The source
            must be a path or URL that all of them can read, the destination one that all can write.
        progress: draw a bar on standard error.

    Returns:
        What became of each shard.

    Raises:
        PackError: the disk is full, the destination holds something else, another process fills
            it, a sample cannot be read for a reason that may pass (the network, access), or the
            samples changed while they were packed.
        SourceError: the source cannot be opened, or cannot be packed.
        ConfigurationError: an argument that cannot be honoured.
        DecodeError: a sample cannot be read, and `strict`.
    """
    options = options or PackOptions()
    if num_workers is not None and num_workers < 1:
        raise ConfigurationError(f"num_workers: must be None, 1 or more, got {num_workers!r}.")
    if ray is not None and not isinstance(source, str | os.PathLike):
        raise ConfigurationError(
            "ray: the source must be a path or URL, which each node opens for itself, not a "
            f"{type(source).__name__}."
        )
    if options.format == "parquet":
        require_parquet()
    opening: dict[str, Any] = {"split": split, "format": format}
    opened = open_source(source, **opening).source
    # Of a folder with splits, one of which is packed, the target may lie beside that.
    a_folder = isinstance(source, str | os.PathLike) and stores.is_folder(os.fspath(source))
    whole = [os.fspath(source)] if a_folder and split is None else []
    refuse_among_samples("destination", os.fspath(destination), opened, *whole)
    contents = Contents(opened, options)
    parts = parts_of(len(opened), options)
    target = Target(destination)
    plan = {
        "version": _VERSION,
        "source": opened.name.rstrip("/").rpartition("/")[2],
        "fingerprint": opened.fingerprint,
        "samples": len(opened),
        **{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(options).items()},
        "quality": options.jpeg_quality,
    }
    with target.claimed(plan, lambda: contents.typical_size) as typical:
        contents.planned = target.planned()
        jobs = plan_shards(parts, typical, options)
        sizes = {job.name: len(job.rows) for job in jobs}
        done = {
            name: row
            for name, row in target.rows().items()
            if row.samples + len(row.rejected) == sizes.get(name)
        }
        there = len(done)
        left = [job for job in jobs if job.name not in done]
        # One more thread writes what the target is to be and makes the page's pictures meanwhile.
        with ReaderPool(1, "fastload-pack-page") as beside:
            said: Future[None] | None = None
            if left:
                abouts = {
                    part: _about(contents, samples, whole=False)
                    for part, samples in _parts(jobs).items()
                }
                said = beside.submit(target.say, abouts)
            pictures = beside.submit(pictures_of, contents)
            if said is not None:
                if ray is not None:
                    said.result()
                title = f"Packing {opened.name}"
                with shown_progress(
                    title, sum(len(job.rows) for job in left), show=progress
                ) as advance:
                    threads = num_workers or usable_cores()
                    packing = (
                        _by_threads(contents, left, target, threads, said.result)
                        if ray is None
                        else _by_ray(ray, source, opening, contents, left, target)
                    )
                    with contextlib.closing(packing):  # nothing is written any more after an error
                        for job, row in packing:
                            if strict:
                                _refuse_rejected(row)
                            done[row.name] = row
                            advance(len(job.rows))
                _check_unchanged(source, opening, opened)
            shown = pictures.result()
        rows = [done[job.name] for job in jobs]
        if strict:
            for row in rows:
                _refuse_rejected(row)
        packed = Packed(target.place, tuple(rows), there)
        kept = Counter[str]()
        for row in rows:
            kept[row.name.rpartition("/")[0]] += row.samples
        abouts = {part: _about(contents, count, whole=True) for part, count in kept.items()}
        target.finish(rows, page_of(packed, contents, jobs, shown), abouts)
        target.tidy(rows)
    return packed


def _refuse_rejected(row: ShardRow) -> None:
    """Raises DecodeError: a sample of the shard cannot be read."""
    if row.rejected:
        raise DecodeError(f"{row.rejected[0].reason} (Without strict it is left out.)")


def _parts(jobs: tuple[ShardJob, ...]) -> Counter[str]:
    """Samples of each part by its name."""
    samples = Counter[str]()
    for job in jobs:
        samples[job.name.rpartition("/")[0]] += len(job.rows)
    return samples


def _about(contents: Contents, samples: int, *, whole: bool) -> dict[str, Any]:
    """What `fastload.json` says beside the shards of a part."""
    source = contents.source
    return {
        "whole": whole,
        "samples": samples,
        "columns": described(contents.fields),
        "classes": None if source.classes is None else list(source.classes),
        "layout": source.layout,
        "upright": source.upright,
    }


def _check_unchanged(source: Any, opening: dict[str, Any], opened: Source) -> None:
    if not isinstance(source, str | os.PathLike):
        return
    again = open_source(source, **opening).source
    if again.fingerprint != opened.fingerprint:
        raise PackError(
            f"{opened.name}: its samples changed while they were packed, so that shards of before "
            "and after may lie side by side. Pack it again, to a new folder."
        )


# -- By whom ---------------------------------------------------------------------------------------


def _by_threads(
    contents: Contents,
    jobs: list[ShardJob],
    target: Target,
    threads: int,
    before: Callable[[], None],
) -> Generator[tuple[ShardJob, ShardRow]]:
    """Shards as they are done. Reading, decoding, hashing and writing hold no interpreter lock.
    `before`: returns as soon as shards may get their names."""
    stop = threading.Event()

    def run(job: ShardJob) -> ShardRow:
        return _packed(contents, job, target, lambda: not stop.is_set(), before)

    with ReaderPool(min(threads, len(jobs)), "fastload-pack") as pool:
        tasks = {pool.submit(run, job): job for job in jobs}
        try:
            for task in as_completed(tasks):
                yield tasks[task], task.result()
        finally:
            stop.set()
            pool.give_up()  # at the end of all there is nothing left


def _packed(
    contents: Contents,
    job: ShardJob,
    target: Target,
    go_on: Callable[[], bool] = lambda: True,
    before: Callable[[], None] = lambda: None,
) -> ShardRow:
    def made(path: Path) -> ShardRow:
        row = pack_shard(contents, job, path, go_on)
        before()
        return row

    return target.put(job.name, made)


def _by_ray(
    address: str,
    source: Any,
    opening: dict[str, Any],
    contents: Contents,
    jobs: list[ShardJob],
    target: Target,
) -> Generator[tuple[ShardJob, ShardRow]]:
    from fastload.tools.pack.ray_cluster import packed_by_ray

    task = RayTask(
        os.fspath(source),
        tuple(sorted(opening.items())),
        contents.source.fingerprint,
        contents.options,
        target.place,
        target.plan,
        contents.planned,
    )
    with contextlib.closing(packed_by_ray(address, task, jobs)) as packing:
        for job, row in packing:
            target.check_there(row)
            yield job, row


@dataclass(frozen=True)
class RayTask:
    """What a node is to do, beside which shard: small, and the same for all."""

    source: str
    opening: tuple[tuple[str, Any], ...]
    fingerprint: str
    options: PackOptions
    place: str
    plan: bytes
    planned: int | None

    def __call__(self, job: ShardJob) -> ShardRow:
        """Raises SourceError: this node sees other samples than the one that planned."""
        return _packed(_contents_here(self), job, Target(self.place, self.plan))


@lru_cache(maxsize=1)
def _contents_here(task: RayTask) -> Contents:
    """Of this process, which opens the source once."""
    source = open_source(task.source, **dict(task.opening)).source
    if source.fingerprint != task.fingerprint:
        raise SourceError(
            f"{task.source}: has other samples on the node {os.uname().nodename} than where the "
            f"shards were planned ({counted(len(source), 'sample')} here). Give a folder that all "
            "nodes share, or a URL."
        )
    contents = Contents(source, task.options)
    contents.planned = task.planned
    return contents
