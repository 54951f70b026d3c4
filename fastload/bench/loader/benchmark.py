"""The loader benchmark from settings to results."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

import fastload
from fastload.bench import LoaderSettings
from fastload.bench.loader.contestants import Conditions, Row, check_contestants, contestant_names, prepare, rows
from fastload.bench.loader.images import LoaderImages, read_loader_images
from fastload.bench.loader.verdict import Situation, verdict
from fastload.errors import ConfigurationError, counted
from fastload.machine import affinity_cores, memory_bytes, quota_cores
from fastload.measure.loaders import DATALOADER, LoaderRunner, NetworkTrainer, RateTrainer, Trainer
from fastload.measure.results import Measurement, Results, new_results
from fastload.measure.rounds import Entry, Progress, measure
from fastload.monitor import GpuMonitor

_WARM_UP = 0.3
"""Of the length of a round."""


def run_loader_benchmark(
    settings: LoaderSettings,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda message: None,
) -> Results:
    """Measure. KeyboardInterrupt during the rounds gives what there is, marked as incomplete.

    Args:
        say: told what takes its time before the rounds begin.

    Raises:
        SourceError: the folder has no usable images.
        ConfigurationError: something that cannot be honoured.
    """
    device = _checked(settings)
    assert settings.folder is not None
    with _named_once(), tempfile.TemporaryDirectory(prefix="fastload-bench-") as room:
        say("Reading the images and checking them.")
        images = read_loader_images(settings.folder, settings.images, Path(room) / "sample")
        conditions = Conditions(images, settings.batch_size, device, Path(room))
        names = settings.backends or contestant_names()
        there = {status.name for status in fastload.available_backends() if status.available}
        caches = frozenset(s.name for s in fastload.available_backends() if s.traits.prepares)
        for name in names:
            if name in caches & there:
                say(f"Having `{name}` build its cache of them, which is not measured.")
                prepare(name, conditions)
        trainer: Trainer
        if settings.consume is None:
            trainer = NetworkTrainer(settings.network, images.classes, device)
        else:
            trainer = RateTrainer(settings.consume)
        watch = GpuMonitor(device, period=0.2)  # turns are short
        chosen = rows(names, settings.workers, settings.prefetch, alone=settings.consume is None)
        measured = measure(
            [_entry(row, conditions, trainer, watch) for row in chosen],
            rounds=settings.rounds,
            seconds=settings.seconds / settings.rounds,
            warmup_seconds=_WARM_UP * settings.seconds / settings.rounds,
            keep_open=False,
            on_progress=on_progress,
        )
    swept = (("workers", settings.workers), ("prefetch", settings.prefetch))
    situation = Situation(
        settings.consume,
        images.cache_bytes,
        memory_bytes(),
        _cores(),
        caches,
        tuple(name for name, values in swept if values),
    )
    measurements = _with_remedies(measured.measurements)
    return new_results(
        "loader",
        {
            "folder": "sample set" if settings.made else str(settings.folder),
            "images": len(images.source),
            "images_in_folder": images.total,
            "batch_size": settings.batch_size,
            "device": str(device),
            "network": None if settings.consume is not None else settings.network,
            "consume": settings.consume,
            "workers": list(settings.workers),
            "prefetch": list(settings.prefetch),
            "cache_bytes": images.cache_bytes,
            "seconds": settings.seconds,
            "rounds": settings.rounds,
        },
        measurements,
        complete=measured.complete,
        notes=(*verdict(measurements, situation), *_notes(images, names, watch)),
    )


def _checked(settings: LoaderSettings) -> torch.device:
    """The device. Raises ConfigurationError: a setting that cannot be honoured."""
    for option, values, least in (("--workers", settings.workers, 0), ("--prefetch", settings.prefetch, 1)):
        if any(value < least for value in values):
            raise ConfigurationError(f"{option}: {values} must be numbers of at least {least}.")
    if settings.consume is not None and not settings.consume > 0:
        raise ConfigurationError(f"--consume: {settings.consume} must be a rate above 0, in images a second.")
    if settings.batch_size < 1:
        raise ConfigurationError(f"--batch-size: {settings.batch_size} must be at least 1.")
    check_contestants(settings.backends or ())
    try:
        device = torch.device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ConfigurationError(f"--device {settings.device}: is no device of torch ({error}).") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            f"--device {settings.device}: torch sees no CUDA device here; leave it out, or see fastload doctor."
        )
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


@contextmanager
def _named_once() -> Iterator[None]:
    """Damaged files are in the results; each loader of each round would log them too."""
    logger = logging.getLogger("fastload")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _entry(row: Row, conditions: Conditions, trainer: Trainer, watch: GpuMonitor) -> Entry:
    open_feed = row.opener(conditions)
    images = conditions.images
    named = {images.original(path): message for path, message in images.damaged.items()}
    mode = "simulated trainer" if isinstance(trainer, RateTrainer) else "training"

    def open_runner() -> LoaderRunner:
        return LoaderRunner(
            open_feed,
            trainer,
            cores=_cores(),
            watch=watch,
            see_epoch_end=bool(row.parameters),
            damaged=named,
        )

    version = torch.__version__ if row.contestant == DATALOADER else fastload.__version__
    return Entry(row.contestant, mode, row.parameters, open_runner, version)


def _with_remedies(measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """A backend that is not there says so once, not once for each setting."""
    kept: list[Measurement] = []
    for row in measurements:
        if row.status == "unavailable":
            if any(other.contestant == row.contestant for other in kept):
                continue
            row = msgspec.structs.replace(row, parameters={})
        kept.append(row)
    return tuple(kept)


def _notes(images: LoaderImages, names: Sequence[str], watch: GpuMonitor) -> list[str]:
    notes = []
    if not watch.available:
        notes.append(f"GPU busy share and windows at 0%: not measured, {watch.reason}.")
    if images.total > len(images.source):
        notes.append(
            f"Measured on {len(images.source):,} of the {counted(images.total, 'image')}: they stay in the page "
            f"cache, and an epoch ends {images.total / len(images.source):,.0f} times as often as with all."
        )
    if images.damaged:
        named = f"{counted(len(images.damaged), 'damaged file')} among {len(images.source):,}"
        notes.append(f"{named}, replaced by fastload, which went on.")
        if DATALOADER in names:
            notes.append(f"A {DATALOADER} would have stopped there, so it was measured without.")
    return notes


def _cores() -> float:
    quota = quota_cores()
    return float(affinity_cores()) if quota is None else min(float(affinity_cores()), quota)
