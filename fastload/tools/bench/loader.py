"""`fastload bench loader`, from settings to results: every backend, and the plain DataLoader,
through the same recipe into a trainer."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

import fastload
from fastload import open_source
from fastload.backends import backend_class
from fastload.cache.samples import samples_of
from fastload.decode import DecodeSettings
from fastload.errors import ConfigurationError, DecodeError, FastloadError, SourceError, counted
from fastload.machine import memory_bytes, usable_cores
from fastload.sources import Source
from fastload.tools.bench import LoaderSettings
from fastload.tools.bench.loader_report import ALONE, DEFAULT, verdict
from fastload.tools.measure.images import image_folders, training
from fastload.tools.measure.loaders import (
    DATALOADER,
    Feed,
    LoaderRunner,
    NetworkTrainer,
    OneBatch,
    PlainLoader,
    RateTrainer,
    Trainer,
)
from fastload.tools.measure.results import Measurement, Results, new_results
from fastload.tools.measure.rounds import Entry, Progress, measure
from fastload.tools.monitor import GpuMonitor

_WARM_UP = 0.3  # of the length of a round
_COMMON_WORKERS = 4  # what most scripts have


def run_loader_benchmark(
    settings: LoaderSettings,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda message: None,
) -> Results:
    """Measure; `say` is called with what takes its time before the rounds begin. KeyboardInterrupt
    during
    the rounds gives what there is, marked as incomplete. Raises SourceError: no usable images;
    ConfigurationError: a bad setting."""
    device = _checked(settings)
    assert settings.folder is not None
    names = settings.backends or contestant_names()
    caches = {status.name for status in fastload.available_backends() if status.traits.prepares}
    with _named_once(), tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        temporary = Path(folder)
        say("Reading the images and checking them.")
        images = read_loader_images(settings.folder, settings.images, temporary / "sample")
        for status in fastload.available_backends():
            if status.name in caches & set(names) and status.available:
                say(f"Having `{status.name}` build its cache of them, which is not measured.")
                with (
                    suppress(FastloadError),
                    closing(_feed(Row(status.name), settings, images, device, temporary)) as feed,
                ):
                    next(iter(feed), None)  # if that fails, its rows will
        trainer: Trainer
        if settings.consume is None:
            trainer, mode = NetworkTrainer(settings.network, images.classes, device), "training"
        else:
            trainer, mode = RateTrainer(settings.consume), "simulated trainer"
        watch = GpuMonitor(device, period=0.2)  # turns are short
        damaged = {images.original(path): message for path, message in images.damaged.items()}

        def entry(row: Row) -> Entry:
            def open_runner() -> LoaderRunner:
                return LoaderRunner(
                    lambda: _feed(row, settings, images, device, temporary),
                    trainer,
                    watch=watch,
                    see_epoch_end=row.contestant != ALONE,
                    damaged=damaged,
                )

            version = torch.__version__ if row.contestant == DATALOADER else fastload.__version__
            return Entry(row.contestant, mode, row.parameters, open_runner, version)

        measured = measure(
            [entry(row) for row in rows(names, settings)],
            rounds=settings.rounds,
            seconds=settings.seconds / settings.rounds,
            warmup_seconds=_WARM_UP * settings.seconds / settings.rounds,
            keep_open=False,
            on_progress=on_progress,
        )
    measurements = _with_remedies(measured.measurements)
    story = verdict(
        measurements,
        consume=settings.consume,
        cache_bytes=images.cache_bytes,
        memory=memory_bytes(),
        caches=caches,
        swept=[name for name in ("workers", "prefetch") if getattr(settings, name)],
    )
    return new_results(
        "loader",
        {
            "folder": "sample set" if settings.sample_set else str(settings.folder),
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
        notes=(*story, *_notes(images, names, watch)),
    )


def _checked(settings: LoaderSettings) -> torch.device:
    """The device. Raises ConfigurationError: a setting that cannot be honoured."""
    for option, values, least in (
        ("--workers", settings.workers, 0),
        ("--prefetch", settings.prefetch, 1),
    ):
        if any(value < least for value in values):
            raise ConfigurationError(f"{option}: {values} must be numbers of at least {least}.")
    if settings.consume is not None and not settings.consume > 0:
        raise ConfigurationError(
            f"--consume: {settings.consume} must be a rate above 0, in images a second."
        )
    for name in settings.backends or ():
        if name not in contestant_names():
            raise ConfigurationError(
                f"--backends: {name!r} is not known; choose from {', '.join(contestant_names())}."
            )
    try:
        device = torch.device(settings.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise ConfigurationError(
            f"--device {settings.device}: is no device of torch ({error})."
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            f"--device {settings.device}: torch sees no CUDA device here; leave it out, or see "
            "fastload doctor."
        )
    return (
        torch.device("cuda", torch.cuda.current_device())
        if device == torch.device("cuda")
        else device
    )


@contextmanager
def _named_once() -> Iterator[None]:
    """Silence the log of damaged files: they are in the results, and each loader of each round
    would log them again."""
    logger = logging.getLogger("fastload")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _with_remedies(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Rows of a backend that is not installed as one, not one for each setting."""
    kept: dict[object, Measurement] = {}
    for row in measurements:
        if row.status == "unavailable":
            kept.setdefault(row.contestant, msgspec.structs.replace(row, parameters={}))
        else:
            kept[row.key] = row
    return list(kept.values())


def _notes(images: LoaderImages, names: Sequence[str], watch: GpuMonitor) -> list[str]:
    notes = []
    taken = len(images.source)
    if not watch.available:
        notes.append(f"GPU busy share and windows at 0%: not measured, {watch.reason}.")
    if images.total > taken:
        notes.append(
            f"Measured on {taken:,} of the {counted(images.total, 'image')}: they stay in the page "
            f"cache, and an epoch ends {images.total / taken:,.0f} times as often as with all."
        )
    if images.damaged:
        named = f"{counted(len(images.damaged), 'damaged file')} among {taken:,}"
        notes.append(f"{named}, replaced by fastload, which went on.")
        if DATALOADER in names:
            notes.append(f"A {DATALOADER} would have stopped there, so it was measured without.")
    return notes


# -- Who is measured, with which settings ----------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One contestant with one setting; None: its own choice."""

    contestant: str
    workers: int | None = None
    prefetch: int | None = None

    @property
    def parameters(self) -> dict[str, str | int]:
        if self.contestant == ALONE:
            return {}
        given = {"workers": self.workers, "prefetch": self.prefetch}
        return {name: DEFAULT if value is None else value for name, value in given.items()}


def contestant_names() -> tuple[str, ...]:
    """The DataLoader and all backends, installed or not."""
    return (DATALOADER, *(status.name for status in fastload.available_backends()))


def rows(names: Sequence[str], settings: LoaderSettings) -> list[Row]:
    """The trainer alone, where a network is trained; each contestant with its own choices, and then
    with each number of workers and each prefetch factor by itself."""
    every = [Row(ALONE)] if settings.consume is None else []
    # To threads, 0 workers means nothing.
    processes = {
        DATALOADER,
        *(status.name for status in fastload.available_backends() if status.traits.processes),
    }
    for name in names:
        common = _COMMON_WORKERS if name == DATALOADER else None
        every += [Row(name, 0)] if name == DATALOADER else []
        every += [Row(name, common)]
        every += [Row(name, count) for count in settings.workers if count or name in processes]
        every += [Row(name, common, factor) for factor in settings.prefetch]
    return list(dict.fromkeys(every))


def _feed(
    row: Row, settings: LoaderSettings, images: LoaderImages, device: torch.device, temporary: Path
) -> Feed:
    """The feed of a row. Raises what the contestant raises."""
    drop_last = images.whole >= settings.batch_size  # as training does, where that leaves anything
    if row.contestant == ALONE:
        return OneBatch(settings.batch_size, images.classes, device)
    if row.contestant == DATALOADER:
        return PlainLoader(
            images.folder,
            training(),
            settings.batch_size,
            device,
            drop_last=drop_last,
            workers=row.workers or 0,
            prefetch=row.prefetch,
            damaged=images.damaged.keys(),
        )
    return fastload.create_loader(
        str(images.folder),
        settings.batch_size,
        shuffle=True,
        drop_last=drop_last,
        transform=training(),
        backend=row.contestant,
        num_workers=row.workers,
        prefetch_factor=row.prefetch,
        device=device,
        on_error="substitute",
        options=backend_class(row.contestant).Options.within(temporary / row.contestant),
    )


# -- The images ------------------------------------------------------------------------------------

_HEADERS = 1000  # read for the size of a cache; more change the estimate by less than a percent
_BYTES_PER_SAMPLE = 64  # that a cache takes beside the pixels: label, size, offset, name


@dataclass(frozen=True)
class LoaderImages:
    """The images of a run, and the folder that they are a sample of."""

    folder: Path  # with one folder per class
    source: Source  # of that folder
    total: int  # images in the user's whole folder
    cache_bytes: int  # that a cache of the user's whole folder would take, at full resolution
    damaged: Mapping[str, str]  # of those to run on: path: what is wrong

    @property
    def classes(self) -> int:
        return len(self.source.classes or ())

    @property
    def whole(self) -> int:
        """How many are not damaged."""
        return len(self.source) - len(self.damaged)

    def original(self, path: str) -> str:
        """The file's path in the user's folder: samples of large folders are links."""
        return str(Path(path).resolve()) if Path(path).is_symlink() else path


def read_loader_images(folder: Path, most: int, temporary: Path) -> LoaderImages:
    """Images of class folders, perhaps under `train`; if there are more than `most`, about so many
    of them, as links in `temporary`. Raises SourceError: no folder or images, or all taken are
    damaged; ConfigurationError: another kind of data set."""
    folders = image_folders(folder, most, temporary)
    source = open_source(str(folders.train)).source
    damaged = dict(_find_damaged(source))
    if len(damaged) == len(source):
        first = ": ".join(next(iter(damaged.items())))
        raise SourceError(
            f"{folder}: none of {counted(len(source), 'image')} can be decoded. {first}"
        )
    return LoaderImages(
        folders.train, source, len(folders.whole), cache_bytes(folders.whole), damaged
    )


def cache_bytes(source: Source) -> int:
    """What `fastload.build_cache(source)` would take [bytes], from the headers of an even sample of
    its images."""
    samples = samples_of(source, DecodeSettings())
    count = min(len(source), _HEADERS)
    needed, known = 0, 0
    for number in range(count):
        for size, column in zip(
            samples.sizes(number * len(source) // count), samples.images, strict=True
        ):
            if size is not None:
                needed += size[0] * size[1] * column.channels
                known += 1
    images = len(source) * len(samples.images)
    return images * (needed // known if known else 0) + len(source) * _BYTES_PER_SAMPLE


def _find_damaged(source: Source) -> Iterator[tuple[str, str]]:
    """Decode everything once: the path of each image that cannot be, and why."""
    samples = samples_of(source, DecodeSettings())

    def trouble(index: int) -> DecodeError | None:
        return next(
            (pixels for pixels in samples.read(index).pixels if isinstance(pixels, DecodeError)),
            None,
        )

    with ThreadPoolExecutor(usable_cores()) as pool:
        for index, error in enumerate(pool.map(trouble, range(len(source)))):
            if error is not None:
                name = source.describe(index)
                yield name, str(error).removeprefix(f"{name}: ")
