"""backend="auto": by rule, or by measuring."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from fastload.backends import available_backends
from fastload.errors import FastloadError
from fastload.loader import Loader
from fastload.recipe import SplitRecipe
from fastload.sources.base import EncodedImages, Objects, Source

__all__ = ["choose_by_rule", "measure"]

MEASURED_SECONDS = 2.0
"""For each candidate, after its first batch."""


def choose_by_rule(source: Source, recipe: SplitRecipe, collate_fn: Any) -> tuple[str, str]:
    """(backend, reason), from the kinds of columns and transforms alone."""
    if collate_fn is not None:
        return "torch", "a collate_fn needs Python samples"
    if any(isinstance(column, Objects) for column in source.columns.values()):
        return "torch", "the samples come from a Dataset's own Python code"
    if recipe.opaque is not None:
        return "torch", "a transform runs one sample at a time, in Python"
    if any(isinstance(column, EncodedImages) for column in source.columns.values()):
        return "turbojpeg", "compressed images, decoded by threads without worker processes"
    return "cache", "the samples are arrays already: nothing to decode"


def measure(ruled: str, make: Callable[[str], Loader]) -> tuple[str, str]:
    """(backend, reason), by running each candidate on this data for some seconds.

    The cache is a candidate only where there is nothing to build: building decodes the whole data set.
    """
    candidates = [row.name for row in available_backends() if row.available]
    if ruled == "turbojpeg":
        candidates.remove("cache")
    rates: dict[str, float] = {}
    notes: list[str] = []
    for name in candidates:
        try:
            with make(name) as loader:
                rates[name] = _samples_per_second(loader)
        except FastloadError as error:
            notes.append(f"{name}: not measured ({str(error).split('. ')[0]})")
    if not rates:
        return ruled, "by rule; no candidate could be measured\n" + "\n".join(notes)
    best = max(rates, key=lambda name: rates[name])
    rows = [f"{name}: {rate:,.0f} samples/s" for name, rate in sorted(rates.items(), key=lambda r: -r[1])]
    return best, "the fastest measured here\n" + "\n".join(rows + notes)


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
