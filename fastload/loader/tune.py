"""What `tune` chooses: the candidates run on the data, and the fastest is taken."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable

from fastload.backends import available_backends
from fastload.device import DeviceStage
from fastload.errors import FastloadError
from fastload.loader.colour_place import ColourPlace
from fastload.loader.feed import Feed
from fastload.recipe import SplitRecipe
from fastload.sampler import Order

MEASURED_SECONDS = 2.0
"""For each candidate of `tune`, after its first batch."""


def backend_measured(
    measure: Callable[[str], float], *, prepared: bool, by_rule: Callable[[], tuple[str, str]]
) -> tuple[str, str]:
    """(backend, reason): the fastest, when each candidate runs on this data for some seconds.

    Args:
        measure: returns the samples/s of one.
        prepared: whether the data is arrays already. A backend that has to prepare all of it first
            (to build a cache) is no candidate.
        by_rule: (backend, reason) where no candidate can be measured.
    """
    rates: dict[str, float] = {}
    notes: list[str] = []
    for status in available_backends():
        if status.available and (prepared or not status.traits.prepares):
            try:
                rates[status.name] = measure(status.name)
            except FastloadError as error:
                notes.append(f"{status.name}: not measured ({str(error).split('. ')[0]})")
    if not rates:
        ruled, reason = by_rule()
        return ruled, "\n".join([f"{reason}; no candidate could be measured", *notes])
    ranked = sorted(rates, key=lambda name: -rates[name])
    rows = [f"{name}: {rates[name]:,.0f} samples/s" for name in ranked]
    return ranked[0], "\n".join(["the fastest measured here", *rows, *notes])


def place_measured(place: ColourPlace, measure: Callable[[SplitRecipe], float]) -> ColourPlace:
    """The faster of the two; `measure` returns the samples/s of one."""
    if place.other is None:
        return place
    there, here = sorted((place.split, place.other), key=lambda split: bool(split.host_programs))
    device = measure(there)
    try:
        host = measure(here)
    except FastloadError as error:
        return ColourPlace(there, f"on the device: {str(error).split('. ')[0]}")
    rows = f"device: {device:,.0f} samples/s\nhost: {host:,.0f} samples/s"
    if host > device:
        return ColourPlace(here, f"on the host, the faster measured here\n{rows}")
    return ColourPlace(there, f"on the device, the faster measured here\n{rows}")


def samples_per_second(order: Order, stage: DeviceStage, feed: Feed) -> float:
    """In the steady state: batches finished ahead during the first one do not count. Closes the
    feed."""
    samples = 0
    positions = (
        (epoch, step) for epoch in itertools.count() for step in range(order.steps_in(epoch))
    )
    with contextlib.closing(feed):
        for position in itertools.islice(positions, feed.in_flight):
            stage.deliver(feed.batch(position))
        started = time.perf_counter()
        for position in positions:
            stage.deliver(feed.batch(position))
            samples += len(order.batch(position[1]))
            if (elapsed := time.perf_counter() - started) > MEASURED_SECONDS:
                return samples / elapsed
    raise AssertionError("positions never end")
