"""The decode benchmark from settings to results: images, trial of the pixels, interleaved rounds."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import msgspec
import torch

from fastload.bench import DecodeSettings
from fastload.bench.decode.decoders import chosen_contestants
from fastload.bench.decode.differences import Reference, Trial, try_out
from fastload.bench.decode.inputs import (
    FORMATS,
    MODES,
    READINGS,
    ImageSet,
    Place,
    Task,
    can_evict,
    places_of,
    read_images,
)
from fastload.bench.decode.passes import Contestant
from fastload.bench.decode.pillow import build_pillow_simd
from fastload.errors import BackendUnavailableError, ConfigurationError, FastloadError, counted
from fastload.machine import usable_cores
from fastload.measure.results import Failure, Measurement, Results, new_results
from fastload.measure.rounds import Entry, Progress, measure


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
    """Measure. KeyboardInterrupt during the rounds gives what there is, marked as incomplete.

    Args:
        say: told what takes its time before the rounds begin.

    Raises:
        SourceError: the folder has no usable images.
        ConfigurationError: an unknown name.
    """
    threads = _checked(settings)
    say("Reading the images and checking them.")
    assert settings.folder is not None
    images = read_images(settings.folder, settings.images, settings.format)
    notes = _about(images, settings.format)
    readings = list(settings.readings)
    if "cold" in readings and not can_evict(images.good.paths):
        readings.remove("cold")
        notes.append("Cold reads were left out: the system does not let these files out of its page cache.")
    absent: list[Measurement] = []
    contestants = _present(settings, absent, say)
    entries: list[Entry] = []
    failures: dict[tuple[str, str], Mapping[str, str]] = {}
    with _one_thread_an_image(), held_back_errors(notes):
        for mode in settings.modes:
            places = places_of(mode, images.good)
            reference = Reference.of(images.good, places)
            say(f"Comparing pixels: {MODES[mode]}.")
            for contestant in contestants:
                gone = any(row.contestant == contestant.name and row.status == "unavailable" for row in absent)
                if gone or mode not in contestant.modes:
                    continue
                trial = _trial(contestant, mode, reference, images, absent)
                if trial is not None:
                    failures[contestant.name, mode] = trial.failures
                    entries += _entries(contestant, mode, images, places, trial, readings, threads, settings)
        measured = measure(
            entries,
            rounds=settings.rounds,
            seconds=settings.seconds / settings.rounds,
            warmup_seconds=0.0,  # one pass: all kinds of images, once
            on_progress=on_progress,
        )
    rows = [_with_failures(row, failures.get((row.contestant, row.mode), {})) for row in measured.measurements]
    return new_results(
        "decode",
        {
            "format": settings.format,
            "folder": "sample set" if settings.made else str(settings.folder),
            "images": len(images.good),
            "megapixels": images.good.pixels / 1e6,
            "bytes": sum(map(len, images.good.data)),
            "modes": list(settings.modes),
            "from": list(readings),
            "threads": list(threads),
            "seconds": settings.seconds,
            "rounds": settings.rounds,
        },
        (*rows, *absent),
        complete=measured.complete,
        notes=notes,
    )


def _checked(settings: DecodeSettings) -> tuple[int, ...]:
    """The numbers of threads. Raises ConfigurationError: an unknown name, or no number of threads."""
    for option, values, known in (("--modes", settings.modes, tuple(MODES)), ("--from", settings.readings, READINGS)):
        for value in values:
            if value not in known:
                raise ConfigurationError(f"{option}: {value!r} is not known; choose from {', '.join(known)}.")
    if settings.format not in FORMATS:
        raise ConfigurationError(f"--format: {settings.format!r} is not known; choose from {', '.join(FORMATS)}.")
    threads = default_threads() if settings.threads is None else settings.threads
    if not threads or min(threads) < 1:
        raise ConfigurationError(f"--threads: {threads} must be numbers of at least 1.")
    chosen_contestants(settings.decoders)
    return threads


def _present(settings: DecodeSettings, absent: list[Measurement], say: Callable[[str], None]) -> list[type[Contestant]]:
    """Those to try; the ones that there is no need to try become rows of `absent`."""
    present = []
    for contestant in chosen_contestants(settings.decoders):
        wanted = settings.decoders is not None or (contestant.asked and settings.pillow_simd)
        if settings.format not in contestant.formats:
            if settings.decoders is not None:
                note = f"It reads {', '.join(contestant.formats)} only."
                absent.append(Measurement(contestant.name, "any", status="unavailable", note=note))
            continue
        if contestant.gpu and not wanted and not torch.cuda.is_available():
            continue
        if contestant.name == "pillow-simd" and wanted:
            say("Looking for Pillow-SIMD; if it is not there it is built, which takes a minute or two.")
            try:
                build_pillow_simd()
            except BackendUnavailableError as error:
                absent.append(_absent(contestant, error))
                continue
        present.append(contestant)
    return present


def _trial(
    contestant: type[Contestant], mode: str, reference: Reference, images: ImageSet, absent: list[Measurement]
) -> Trial | None:
    """What it makes of the images, or None and a row in `absent`."""
    try:
        runner = contestant.open(Task(reference.images, reference.places, format=images.format), {})
        try:
            return try_out(runner, reference, images.damaged)
        finally:
            runner.close()
    except BackendUnavailableError as error:
        absent.append(_absent(contestant, error))
    except FastloadError as error:
        absent.append(Measurement(contestant.name, mode, status="failed", note=str(error)))
    except Exception as error:  # of its library; the others go on
        note = f"{type(error).__name__}: {error}"
        absent.append(Measurement(contestant.name, mode, status="failed", note=note))
    return None


def _absent(contestant: type[Contestant], error: BackendUnavailableError) -> Measurement:
    return Measurement(contestant.name, "any", status="unavailable", note=str(error))


def _entries(
    contestant: type[Contestant],
    mode: str,
    images: ImageSet,
    places: tuple[Place | None, ...],
    trial: Trial,
    readings: Sequence[str],
    threads: Sequence[int],
    settings: DecodeSettings,
) -> Iterator[Entry]:
    """From memory with every number of threads; from files, in the first mode, with the largest."""
    version = contestant.version()
    for reading in readings:
        from_memory = reading == "memory"
        if not from_memory and mode != settings.modes[0]:
            continue
        for count in threads if from_memory else [max(threads)]:
            task = Task(images.good, places, count, reading, images.format)
            yield Entry(
                contestant.name,
                mode,
                {"from": reading, "threads": count, "resampling": contestant.resampler if places[0] else "none"},
                lambda task=task: contestant.open(task, trial.metrics),  # type: ignore[misc]
                version,
            )


def _with_failures(row: Measurement, more: Mapping[str, str]) -> Measurement:
    everything = dict(more) | {failure.name: failure.message for failure in row.failures}
    return msgspec.structs.replace(
        row, failures=tuple(Failure(name, message) for name, message in sorted(everything.items()))
    )


def _about(images: ImageSet, format: str) -> list[str]:
    notes = []
    if images.found > len(images.good.paths) + len(images.damaged) + len(images.left_out):
        notes.append(f"An even sample of the {counted(images.found, format.upper() + ' file')} in the folder.")
    if images.damaged:
        notes.append(
            f"Not timed: {counted(len(images.damaged), 'damaged file')}; what each decoder said is listed below."
        )
    for path, reason in images.left_out.items():
        notes.append(f"Left out: {path}: {reason}")
    return notes


@contextmanager
def _one_thread_an_image() -> Iterator[None]:
    """Libraries with thread pools of their own use them no more, so that `threads` is the number of threads.

    As in the workers of a DataLoader. Restored afterwards.
    """
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cv2: Any = import_module("cv2")
    except ImportError:
        opencv_threads = cv2 = None
    else:
        opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        if cv2 is not None:
            cv2.setNumThreads(opencv_threads)


# -- Decoders in C write warnings straight to the error output, at each image of each pass -----------------------------

_SHOWN = 5
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def held_back_errors(notes: list[str]) -> Iterator[None]:
    """Keep what libraries and child processes write to file descriptor 2 off the screen, and note the distinct lines.

    If the block raises, all of it is written after all: it may say why.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            _restore(ours)
            file.seek(0)
            os.write(2, file.read())
            raise
        _restore(ours)
        file.seek(0)
        text = _COLOUR.sub("", file.read().decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    distinct = list(dict.fromkeys(lines))
    notes += [f"A library wrote: {line} ({counted(lines.count(line), 'time')})" for line in distinct[:_SHOWN]]
    if len(distinct) > _SHOWN:
        notes.append(f"Libraries wrote {len(distinct) - _SHOWN} other lines as well.")


def _restore(descriptor: int) -> None:
    sys.stderr.flush()
    os.dup2(descriptor, 2)
    os.close(descriptor)
