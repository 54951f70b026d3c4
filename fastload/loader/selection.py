"""backend="auto": by rule, or by measuring."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from fastload.backends import available_backends, backend_class
from fastload.backends.base import Fit, Job, fit_of
from fastload.errors import ConfigurationError, FastloadError
from fastload.loader.loader import Loader

MEASURED_SECONDS = 2.0
"""For each candidate, after its first batch."""


def choose_by_rule(job: Job) -> tuple[str, str]:
    """(backend, reason): the one that says it suits best, from the kinds of columns and transforms alone."""
    fits = _fits(job)
    if not fits:
        raise ConfigurationError(f"backend: 'auto' finds none that can do this ({job.needs_python or 'no fit'}).")
    best = max(fits, key=lambda name: fits[name].score)  # of equals the first
    return best, fits[best].reason


def measure(job: Job, make: Callable[[str], Loader]) -> tuple[str, str]:
    """(backend, reason), by running each candidate on this data for some seconds.

    One that has to prepare all of the data first (to build a cache) is no candidate.
    """
    rates: dict[str, float] = {}
    notes: list[str] = []
    for status in available_backends():
        if not status.available or (status.traits.prepares and not job.arrays):
            continue
        name = status.name
        try:
            with make(name) as loader:
                rates[name] = _samples_per_second(loader)
        except FastloadError as error:
            notes.append(f"{name}: not measured ({str(error).split('. ')[0]})")
    if not rates:
        ruled, reason = choose_by_rule(job)
        return ruled, f"{reason}; no candidate could be measured\n" + "\n".join(notes)
    best = max(rates, key=lambda name: rates[name])
    rows = [f"{name}: {rate:,.0f} samples/s" for name, rate in sorted(rates.items(), key=lambda r: -r[1])]
    return best, "the fastest measured here\n" + "\n".join(rows + notes)


def _fits(job: Job) -> dict[str, Fit]:
    """What the backends that are available and able say, in the order in which they are listed."""
    names = [status.name for status in available_backends() if status.available]
    fits = {name: fit_of(backend_class(name), job) for name in names}
    return {name: fit for name, fit in fits.items() if fit.score > 0}


def _samples_per_second(loader: Loader) -> float:
    """In the steady state: batches finished ahead during the first one do not count."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
    for _ in itertools.islice(batches, loader.batches_in_flight):
        pass
    begin, before = time.perf_counter(), loader.stats().samples
    for _ in batches:
        if time.perf_counter() - begin > MEASURED_SECONDS:
            break
    return (loader.stats().samples - before) / (time.perf_counter() - begin)
