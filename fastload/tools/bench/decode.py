"""`fastload bench decode`, from settings to results: images, trial of the pixels, interleaved
rounds."""

from __future__ import annotations

import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from fastload.decode.header import read_header
from fastload.errors import BackendUnavailableError, ConfigurationError, DecodeError, counted
from fastload.machine import usable_cores
from fastload.tools.bench import DecodeSettings
from fastload.tools.bench.decoders import chosen_contestants
from fastload.tools.bench.passes import (
    FORMATS,
    MODES,
    READINGS,
    Contestant,
    Images,
    ImageSet,
    PixelRunner,
    Pixels,
    Place,
    Task,
    can_evict,
    places_of,
    read_images,
)
from fastload.tools.bench.pillow import build_pillow_simd, pillow_simd_folder
from fastload.tools.measure.results import Failure, Measurement, Parameter, Results, new_results
from fastload.tools.measure.rounds import Entry, Progress, measure, status_of


def default_threads() -> tuple[int, ...]:
    """1, 2, 4 and so on, and as many as there are usable cores."""
    cores = usable_cores()
    powers = [1 << power for power in range(cores.bit_length())]
    return tuple(sorted({n for n in powers if n <= cores} | {cores}))


def run_decode_benchmark(
    settings: DecodeSettings,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    say: Callable[[str], None] = lambda message: None,
) -> Results:
    """Measure; `say` is called with what takes its time before the rounds begin. KeyboardInterrupt
    during
    the rounds gives what there is, marked as incomplete. Raises SourceError: no usable images;
    ConfigurationError: an unknown name."""
    threads = _checked(settings)
    say("Reading the images and checking them.")
    assert settings.folder is not None
    images = read_images(settings.folder, settings.images, settings.format)
    notes = _about(images)
    readings = list(settings.readings)
    if "cold" in readings and not can_evict(images.good.paths):
        readings.remove("cold")
        notes.append(
            "Cold reads were left out: the system does not let these files out of its page cache."
        )
    absent: dict[tuple[str, str], Measurement] = {}
    contestants = [
        contestant
        for contestant in chosen_contestants(settings.decoders)
        if _wanted(contestant, settings)
    ]
    entries: list[Entry] = []
    failures: dict[tuple[str, str], dict[str, str]] = {}
    with _one_thread_an_image(), held_back_errors(notes):
        for mode in settings.modes:
            task, expected = reference(images.good, places_of(mode, images.good))
            say(f"Comparing pixels: {MODES[mode]}.")
            for contestant in contestants:
                name = contestant.name
                if (name, "any") in absent or mode not in contestant.modes:
                    continue
                try:
                    _prepare(contestant, settings, say)
                    with closing(contestant.open(task, {})) as runner:
                        metrics, failures[name, mode] = try_out(
                            runner, task, expected, images.damaged
                        )
                    version = contestant.version()
                except Exception as error:  # also of its library; the others go on
                    status, note = status_of(error)
                    where = "any" if status == "unavailable" else mode
                    absent[name, where] = Measurement(name, where, status=status, note=note)
                    continue
                for each in _tasks(mode, images.good, readings, threads, settings):
                    resampling = contestant.resampler if each.places[0] else "none"
                    parameters: dict[str, Parameter] = {
                        "from": each.reading,
                        "threads": each.threads,
                        "resampling": resampling,
                    }
                    entries.append(
                        Entry(
                            name, mode, parameters, partial(contestant.open, each, metrics), version
                        )
                    )
        measured = measure(
            entries,
            rounds=settings.rounds,
            seconds=settings.seconds / settings.rounds,
            warmup_seconds=0.0,  # one pass: all kinds of images, once
            on_progress=on_progress,
        )
    rows = [
        _with_failures(row, failures[row.contestant, row.mode]) for row in measured.measurements
    ]
    return new_results(
        "decode",
        {
            "format": settings.format,
            "folder": "sample set" if settings.sample_set else str(settings.folder),
            "images": len(images.good),
            "megapixels": images.good.pixels / 1e6,
            "bytes": sum(map(len, images.good.data)),
            "modes": list(settings.modes),
            "from": list(readings),
            "threads": list(threads),
            "seconds": settings.seconds,
            "rounds": settings.rounds,
        },
        (*rows, *absent.values()),
        complete=measured.complete,
        notes=notes,
    )


def _checked(settings: DecodeSettings) -> tuple[int, ...]:
    """The numbers of threads. Raises ConfigurationError: an unknown name, or no number of
    threads."""
    options: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
        ("--modes", settings.modes, tuple(MODES)),
        ("--from", settings.readings, READINGS),
        ("--format", (settings.format,), tuple(FORMATS)),
    )
    for option, values, known in options:
        for value in values:
            if value not in known:
                raise ConfigurationError(
                    f"{option}: {value!r} is not known; choose from {', '.join(known)}."
                )
    threads = default_threads() if settings.threads is None else settings.threads
    if not threads or min(threads) < 1:
        raise ConfigurationError(f"--threads: {threads} must be numbers of at least 1.")
    chosen_contestants(settings.decoders)
    return threads


def _wanted(contestant: type[Contestant], settings: DecodeSettings) -> bool:
    """Whether to try a contestant: one that cannot run here is listed only if it was named."""
    reads = settings.format in contestant.formats
    return settings.decoders is not None or (
        reads and (not contestant.gpu or torch.cuda.is_available())
    )


def _prepare(
    contestant: type[Contestant], settings: DecodeSettings, say: Callable[[str], None]
) -> None:
    """Raises BackendUnavailableError: it does not read these files, or cannot be built."""
    if settings.format not in contestant.formats:
        raise BackendUnavailableError(f"It reads {', '.join(contestant.formats)} only.")
    if contestant.name == "pillow-simd" and (settings.decoders is not None or settings.pillow_simd):
        if not pillow_simd_folder().is_dir():
            say("Building Pillow-SIMD, which takes a minute or two.")
        build_pillow_simd()


def _tasks(
    mode: str,
    images: Images,
    readings: Sequence[str],
    threads: Sequence[int],
    settings: DecodeSettings,
) -> Iterator[Task]:
    """From memory with every number of threads; from files, in the first mode, with the largest."""
    places = places_of(mode, images)
    for reading in readings:
        if reading == "memory" or mode == settings.modes[0]:
            for count in threads if reading == "memory" else [max(threads)]:
                yield Task(images, places, count, reading)


def _with_failures(row: Measurement, more: Mapping[str, str]) -> Measurement:
    everything = dict(more) | {failure.name: failure.message for failure in row.failures}
    return msgspec.structs.replace(
        row, failures=tuple(Failure(*item) for item in sorted(everything.items()))
    )


def _about(images: ImageSet) -> list[str]:
    notes = []
    if images.listed > len(images.good) + len(images.damaged) + len(images.left_out):
        files = counted(images.listed, f"{images.good.format.upper()} file")
        notes.append(f"An even sample of the {files} in the folder.")
    if images.damaged:
        files = counted(len(images.damaged), "damaged file")
        notes.append(f"Not timed: {files}; what each decoder said is listed below.")
    return notes + [f"Left out: {path}: {reason}" for path, reason in images.left_out.items()]


# -- Correctness: how far pixels are from the reference, whether damage is noticed --

_MOST_IMAGES, _MOST_PIXELS = 32, 64_000_000
"""Compared at most, which bounds time and memory; pixels of the source images."""


def reference(images: Images, places: Sequence[Place | None]) -> tuple[Task, list[Pixels]]:
    """An even sample of the images, and what should come out of them: Pillow's pixels; where there
    is a resampling, torchvision's (transforms v2, antialiased bilinear) of those."""
    count = min(
        _MOST_IMAGES, len(images), max(1, _MOST_PIXELS * len(images) // max(images.pixels, 1))
    )
    chosen = [index * len(images) // count for index in range(count)]
    kept = ((images.paths[i], images.data[i], images.sizes[i], places[i]) for i in chosen)
    paths, data, sizes, placed = zip(*kept, strict=True)
    expected = [_expected(encoded, place) for encoded, place in zip(data, placed, strict=True)]
    return Task(Images(paths, data, sizes, images.format), placed), expected


def _expected(data: bytes, place: Place | None) -> Pixels:
    with Image.open(io.BytesIO(data)) as file:
        pixels: Pixels = np.array(file.convert("RGB"))
    if place is None:
        return pixels
    planes = functional.resized_crop(
        torch.from_numpy(pixels).permute(2, 0, 1), *place[0], size=list(place[1]), antialias=True
    )
    return np.asarray(torch.as_tensor(planes).permute(1, 2, 0))


def try_out(
    contestant: PixelRunner, task: Task, expected: Sequence[Pixels], damaged: Mapping[str, bytes]
) -> tuple[dict[str, float | None], dict[str, str]]:
    """Metrics and failures (file: what is wrong) of the reference images and of the damaged ones,
    not timed: `pixel_difference_max` and `_mean` (0 to 255), `psnr_db` (null when equal),
    `damaged_accepted`."""
    failures: dict[str, str] = {}
    largest, absolute, squared, count = 0, 0, 0, 0
    images = task.images
    for path, data, size, place, wanted in zip(
        images.paths, images.data, images.sizes, task.places, expected, strict=True
    ):
        try:
            pixels = contestant.pixels(data, size, place)
        except (ValueError, OSError) as error:
            failures[path] = str(error)
            continue
        if pixels.shape != wanted.shape:
            failures[path] = (
                f"gave pixels of shape {pixels.shape} where {wanted.shape} was asked for"
            )
            continue
        difference = np.abs(pixels.astype(np.int16) - wanted)
        largest = max(largest, int(difference.max()))
        absolute += int(difference.sum(dtype=np.int64))
        squared += int(np.square(difference, dtype=np.int64).sum())
        count += difference.size
    metrics: dict[str, float | None] = {}
    if count:
        metrics["pixel_difference_max"] = largest
        metrics["pixel_difference_mean"] = absolute / count
        metrics["psnr_db"] = 10 * math.log10(255**2 * count / squared) if squared else None
    if damaged:
        said = {
            path: _complaint(contestant, data, task.places[0] is not None)
            for path, data in damaged.items()
        }
        failures |= {
            path: message or "damaged, and decoded without an error"
            for path, message in said.items()
        }
        metrics["damaged_accepted"] = sum(not message for message in said.values())
    return metrics, failures


def _complaint(contestant: PixelRunner, data: bytes, placed: bool) -> str:
    """A decoder's error for a damaged file; empty if it accepts the file."""
    try:
        header = read_header(data, "")
        size = (header.height, header.width)
    except DecodeError:
        size = (16, 16)  # there is none to be known
    try:
        # All of it, so that no damage hides outside a box.
        contestant.pixels(data, size, ((0, 0, *size), size) if placed else None)
    except (ValueError, OSError) as error:
        return str(error) or type(error).__name__
    return ""


# -- What libraries do beside decoding -------------------------------------------------------------


@contextmanager
def _one_thread_an_image() -> Iterator[None]:
    """Within the block, libraries do not use thread pools of their own (as in the workers of a
    DataLoader), so that `threads` is the number of threads."""
    pools = [(torch.get_num_threads, torch.set_num_threads)]
    try:
        cv2: Any = import_module("cv2")
        pools.append((cv2.getNumThreads, cv2.setNumThreads))
    except ImportError:
        pass
    before = [get() for get, _ in pools]
    for _, set_to in pools:
        set_to(1)
    try:
        yield
    finally:
        for (_, set_to), count in zip(pools, before, strict=True):
            set_to(count)


_SHOWN = 5
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def held_back_errors(notes: list[str]) -> Iterator[None]:
    """Decoders in C write warnings at each image of each pass: keep what libraries and child
    processes write to file descriptor 2 off the screen, and note the distinct lines. If the block
    raises, all of it is written after all."""
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        raised = True
        try:
            yield
            raised = False
        finally:
            sys.stderr.flush()
            os.dup2(ours, 2)
            os.close(ours)
            file.seek(0)
            written = file.read()
            if raised:
                os.write(2, written)
    lines = [
        line.strip()
        for line in _COLOUR.sub("", written.decode(errors="replace")).splitlines()
        if line.strip()
    ]
    distinct = list(dict.fromkeys(lines))
    notes += [
        f"A library wrote: {line} ({counted(lines.count(line), 'time')})"
        for line in distinct[:_SHOWN]
    ]
    if len(distinct) > _SHOWN:
        notes.append(f"Libraries wrote {len(distinct) - _SHOWN} other lines as well.")
