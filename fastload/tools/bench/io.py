"""What a store gives: latency, images and bytes a second, by the number of requests in flight, and
whether that is what a trainer needs.

Whole images are read as the loader reads them, in random order, but each by a request of its own,
    without the local tier: the worst case of a shuffled data set's first epoch.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console

from fastload import open_source, stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.sources import EncodedFiles
from fastload.stores import Range, Store
from fastload.stores.flight import MOST, S3_RATE
from fastload.stores.reads import ReaderPool
from fastload.tools.bench import IoSettings
from fastload.tools.measure.results import Measurement, Results, new_results
from fastload.tools.measure.rounds import Entry, Progress, Work, measure
from fastload.tools.measure.table import milliseconds, number, print_fitting, spread


def run_io_benchmark(
    settings: IoSettings, on_progress: Callable[[Progress], None] = lambda progress: None
) -> Results:
    """Measure a store: a row for each number of requests in flight.

    Raises:
        SourceError: nothing there, or no images.
        ConfigurationError: it is on a local disk, or a number of requests is out of range.
    """
    wrong = [count for count in settings.in_flight if not 1 <= count <= MOST]
    if wrong or not settings.in_flight:
        raise ConfigurationError(f"--in-flight: {wrong}: must be numbers from 1 to {MOST}.")
    source = open_source(settings.url, split=settings.split).source
    column = next(iter(source.encoded.values()), None)
    if not isinstance(column, EncodedFiles) or not column.is_remote:
        raise ConfigurationError(
            f"{settings.url}: its images are not read from a store; give the URL of files, "
            "folders or tar shards, such as s3://bucket/train."
        )
    entries = [
        Entry(
            stores.store_of(column.paths[0])[0].url,
            "random images",
            {"in_flight": count},
            lambda count=count: _StoreRunner(column, count),  # type: ignore[misc]
        )
        for count in settings.in_flight
    ]
    measured = measure(
        entries,
        rounds=settings.rounds,
        seconds=settings.seconds,
        warmup_seconds=min(0.2, settings.seconds),
        on_progress=on_progress,
    )
    given: dict[str, Any] = {"url": settings.url, "rate": settings.rate, "samples": len(source)}
    notes = [verdict(measured.measurements, settings.rate, settings.url)]
    return new_results("io", given, measured.measurements, complete=measured.complete, notes=notes)


class _StoreRunner:
    """`in_flight` threads, each of which reads one image after the other."""

    def __init__(self, column: EncodedFiles, in_flight: int) -> None:
        self._in_flight = in_flight
        self._threads = ReaderPool(in_flight, "fastload-bench-io")
        self._wanted = _in_random_order(column, seed=in_flight)
        self._lock = threading.Lock()

    def run(self, seconds: float) -> Work:
        until = time.monotonic() + seconds
        began = time.perf_counter()
        tasks = [self._threads.submit(self._read_until, until) for _ in range(self._in_flight)]
        answers = [answer for task in tasks for answer in task.result()]
        took = time.perf_counter() - began
        return Work(
            len(answers),
            took,
            latencies=[seconds for seconds, _ in answers],
            metrics={"bytes_each": float(np.mean([size for _, size in answers]))},
        )

    def _read_until(self, until: float) -> list[tuple[float, int]]:
        answers = list[tuple[float, int]]()
        while not answers or time.monotonic() < until:
            with self._lock:
                store, wanted = next(self._wanted)
            began = time.perf_counter()
            try:
                data = store.read(*wanted)
            except OSError as error:
                raise SourceError(f"{store.url}/{wanted.name}: {error}") from error
            answers.append((time.perf_counter() - began, len(data)))
        return answers

    def close(self) -> None:
        self._threads.shutdown()


def _in_random_order(column: EncodedFiles, seed: int) -> Iterator[tuple[Store, Range]]:
    """All images again and again, each time in another order."""
    draws = np.random.default_rng(seed)
    for _ in itertools.count():
        for index in draws.permutation(len(column)).tolist():
            asked = column.range_of(index)
            store, name = stores.store_of(asked.name)
            yield store, asked._replace(name=name)


def verdict(rows: tuple[Measurement, ...], rate: float, url: str) -> str:
    """What the rows mean for a trainer that takes `rate` images a second, in words."""
    done = [row for row in rows if row.speed]
    if not done:
        return "Nothing was measured."
    each = next(metric.median for row in done if (metric := row.metric("bytes_each")) is not None)
    need = (
        f"{rate:,.0f} images a second are {rate * each / 1e6:,.0f} MB and {rate:,.0f} requests a "
        f"second at {each / 1e3:,.0f} kB an image."
    )
    enough = [row for row in done if row.speed >= rate]
    best = max(done, key=lambda row: row.speed)
    if enough:
        least = min(enough, key=lambda row: int(str(row.parameters["in_flight"])))
        words = f"{least.parameters['in_flight']} requests in flight gave {least.speed:,.0f}."
    else:
        words = (
            f"The most that was seen is {best.speed:,.0f}, with {best.parameters['in_flight']} in "
            "flight: a trainer would wait in the first epoch. Later epochs read from the local "
            "tier, as far as that is large enough (fastload cache list). Larger objects cost fewer "
            "requests only where they are read in order: fastload pack --shuffle."
        )
    if url.startswith("s3") and rate > S3_RATE:
        words += (
            " S3 answers 5,500 requests a second for each prefix, and fastload makes "
            f"{S3_RATE:,.0f}: spread the objects over several prefixes, or use several nodes."
        )
    return f"{need} {words}"


def print_io(results: Results, console: Console) -> None:
    """The table, and the verdict."""
    rows = [
        {
            "in flight": str(row.parameters["in_flight"]),
            "images/s": number(row.speed) if row.speed else row.note,
            "spread": spread(row),
            "MB/s": _megabytes(row),
            "median": "" if row.latency is None else milliseconds(row.latency.p50),
            "99 of 100": "" if row.latency is None else milliseconds(row.latency.p99),
        }
        for row in results.measurements
    ]
    count = int(str(results.settings["samples"]))
    console.print(f"{results.settings['url']}: {counted(count, 'image')}")
    print_fitting(console, rows)
    for note in results.notes:
        console.print(note, soft_wrap=True)


def _megabytes(row: Measurement) -> str:
    each = row.metric("bytes_each")
    return "" if each is None else number(row.speed * each.median / 1e6)
