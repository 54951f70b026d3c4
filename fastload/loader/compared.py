"""`assume_plain=True`: labels that the user's code makes without images, and some samples that it
makes as well, to be compared with what is served.

Compared are the first sample of each epoch, before its first batch, and 1 in 200, chosen by (seed,
epoch, index), in a thread. A difference is raised by the next `next()`; an epoch ends when all its
samples were compared.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import default_collate

from fastload.backends.base import Backend, HostBatch, StartedWork, Work
from fastload.backends.tolerance import PixelDifference, Tolerance
from fastload.decode.image import reader_of
from fastload.draws import (
    Draws,
    Int64Array,
    Stream,
)
from fastload.ending import end_thread
from fastload.errors import ConfigurationError, DecodeError, counted
from fastload.files import DecodeSettings
from fastload.generators import preserved_random_state, seed_generators, states_of_generators
from fastload.machine import use_one_thread_here
from fastload.sources.base import Assumed, Source

EVERY = 200
"""One sample in so many is compared."""
_PATIENCE = 10.0
"""Seconds that `close` waits for the sample that is being compared."""

_REMEDY = (
    "So its code does more than to read the images that it lists: put what it does to images into "
    "`transform`, or leave assume_plain out."
)


@dataclass(frozen=True)
class _Chosen:
    """A sample to be compared."""

    epoch: int
    index: int
    label: Any
    """As served; None: it came from the user's code, so there is nothing to compare."""


class ComparedBackend:
    """A backend whose labels come from the user's code, which also makes some of the samples, to be
    compared with what is served."""

    def __init__(
        self,
        backend: Backend,
        source: Source,
        assumed: Assumed,
        settings: DecodeSettings,
        *,
        seed: int,
        class_name: str,
    ) -> None:
        """`class_name`: that of the user's class, for messages."""
        self._backend, self._source, self._assumed, self._class_name = (
            backend,
            source,
            assumed,
            class_name,
        )
        self._settings, self._seed = settings, seed
        self._labels: dict[int, npt.NDArray[Any]] = {}
        """(N, ...) by epoch; rows of samples that the epoch does not have are zeros."""
        self._rolls_dice = False
        """Whether the user's code draws from the global generators, which belong to the trainer's
        thread: then samples are compared there, under seeds of their own."""
        self._lock = threading.Lock()
        self._chosen: deque[_Chosen] = deque()
        self._thread: threading.Thread | None = None
        self._mismatch: str | None = None

    # -- called in the trainer's thread

    def begin_epoch(self, epoch: int, indices: Int64Array, first: int) -> None:
        """Ask for the labels of these samples, and compare the one that comes first. Before any
        batch of the epoch is asked for. Raises ConfigurationError; what the user's code raises."""
        if self._assumed.labels is not None:
            earlier = self._labels.get(epoch - 1)
            labels = self._labels_of(epoch, indices)
            self._labels = {epoch: labels} | ({} if earlier is None else {epoch - 1: earlier})
        before = states_of_generators()
        with preserved_random_state():
            label = self._served_label(epoch, first)
            self._mismatch = self._mismatch or self._difference(_Chosen(epoch, first, label))
            self._rolls_dice |= states_of_generators() != before
        self.raise_difference()

    def raise_difference(self) -> None:
        """Raises ConfigurationError: a sample that was compared differs, now and at every later
        call."""
        while self._rolls_dice and self._mismatch is None and self._chosen:
            chosen = self._chosen.popleft()
            with preserved_random_state():
                self._set_seed(chosen)
                self._mismatch = self._difference(chosen)
        if self._mismatch is not None:
            raise ConfigurationError(self._mismatch)

    def end_epoch(self) -> None:
        """Wait for what is being compared. Raises ConfigurationError: a sample differs."""
        while (thread := self._thread) is not None:
            thread.join()
        self.raise_difference()

    def _labels_of(self, epoch: int, indices: Int64Array) -> npt.NDArray[Any]:
        """(N, ...): of each sample under the seed that its code would have in a worker, if it draws
        random numbers."""
        labels, wanted = self._assumed.labels, np.unique(indices).tolist()
        with preserved_random_state():
            before = states_of_generators()
            answers = [labels[index][1] for index in wanted]
            if states_of_generators() != before:
                self._rolls_dice = True
                seeds = Draws(self._seed, epoch, np.array(wanted)).integers(Stream.OPAQUE)
                for row, (index, seed) in enumerate(zip(wanted, seeds.tolist(), strict=True)):
                    seed_generators(seed >> 1)
                    answers[row] = labels[index][1]
        try:
            stacked = default_collate(answers)
        except (TypeError, RuntimeError, ValueError) as error:
            raise self._no_batch(str(error)) from error
        if not isinstance(stacked, torch.Tensor):
            raise self._no_batch(f"the first is {answers[0]!r:.80}")
        table = np.zeros((len(self._source), *stacked.shape[1:]), dtype=stacked.numpy().dtype)
        table[wanted] = stacked.numpy()
        return table

    def _no_batch(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"assume_plain: the labels of {self._class_name} are not all numbers or arrays of one "
            f"shape ({why}). Leave assume_plain out."
        )

    # -- called by whatever makes the batches

    def start(self, draws: Draws) -> Work:
        work = self._backend.start(draws)
        return StartedWork(partial(self.finished, work, draws), work.cancel)

    def finished(self, work: Work, draws: Draws) -> HostBatch:
        """The batch, with its labels; samples of it may be compared from now on."""
        host = self._labelled(work.result(), draws)
        bits = draws.integers(Stream.COMPARED) >> np.uint64(1)
        failed = {failure.row for failure in host.failures}
        for row in np.flatnonzero(bits % np.uint64(EVERY) == 0).tolist():
            if row not in failed:
                index = int(draws.indices[row])
                self._compare(_Chosen(draws.epoch, index, self._served_label(draws.epoch, index)))
        return host

    def close(self) -> None:
        self._backend.close()
        with self._lock:
            self._chosen.clear()
            thread = self._thread
        end_thread(thread, _PATIENCE)

    def explain(self) -> Mapping[str, str]:
        given = "from its list of samples"
        if self._assumed.labels is not None:
            given = (
                "by its code, which is asked for each sample when an epoch starts, without images"
            )
        compared = (
            f"the first sample of each epoch, and 1 in {EVERY}, are made by its code as well and "
            "compared: a difference is an error"
        )
        return {**self._backend.explain(), "labels": given, "compared": compared}

    def __getattr__(self, name: str) -> Any:
        """Everything else is the backend's: its name, `depth`, `decoded`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._backend, name)

    def _labelled(self, host: HostBatch, draws: Draws) -> HostBatch:
        if self._assumed.labels is not None and "label" in host.columns:
            host.columns["label"] = self._labels[draws.epoch][draws.indices]
        return host

    def _served_label(self, epoch: int, index: int) -> Any:
        if self._assumed.labels is not None:
            return None
        return self._source.values["label"].at(np.array([index]))[0]

    # -- comparing

    def _compare(self, chosen: _Chosen) -> None:
        with self._lock:
            self._chosen.append(chosen)
            if self._thread is None and not self._rolls_dice:
                thread = threading.Thread(target=self._work, name="fastload-compare", daemon=True)
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        use_one_thread_here()
        try:
            while True:
                with self._lock:
                    if not self._chosen or self._mismatch is not None:
                        self._thread = None
                        return
                    chosen = self._chosen.popleft()
                self._mismatch = self._difference(chosen)
        except BaseException:  # SystemExit of `end_thread`
            self._thread = None
            raise

    def _set_seed(self, chosen: _Chosen) -> None:
        draws = Draws(self._seed, chosen.epoch, np.array([chosen.index]))
        seed_generators(int(draws.integers(Stream.OPAQUE)[0]) >> 1)

    def _difference(self, chosen: _Chosen) -> str | None:
        """How the sample that the user's code makes differs, for the message; None: it does not."""
        try:
            return self._compared(chosen)
        except Exception as error:  # the user's objects may raise anything when they are compared
            return (
                f"assume_plain: {self._where(chosen)} could not be compared with what its code "
                f"makes ({type(error).__name__}: {error}). Leave assume_plain out."
            )

    def _compared(self, chosen: _Chosen) -> str | None:
        column = self._source.images["image"]
        served: npt.NDArray[np.uint8] | DecodeError
        sample: Any
        try:
            served = reader_of(column, self._settings).pixels(chosen.index)
        except DecodeError as error:
            served = error
        try:
            sample = self._assumed.compared[chosen.index]
        except Exception as error:  # whatever the user's code may raise
            sample = error
        what = _how_they_differ(served, sample, chosen.label)
        if what is None:
            return None
        return f"assume_plain: {self._where(chosen)}: {what}. {_REMEDY}{self._hint(chosen, sample)}"

    def _where(self, chosen: _Chosen) -> str:
        return f"{self._source.describe(chosen.index)} (sample {chosen.index})"

    def _hint(self, chosen: _Chosen, sample: Any) -> str:
        """The option that turns images upright, if that is what the user's code does; else
        empty."""
        if self._settings.exif_orientation or not _is_pair(sample):
            return ""
        upright = DecodeSettings(True, self._settings.max_pixels)
        column = self._source.images["image"]
        try:
            pixels = reader_of(column, upright).pixels(chosen.index)
        except DecodeError:
            return ""
        if _pixels_differ(pixels, sample[0]) is not None:
            return ""
        return " options=BackendOptions(exif_orientation=True) turns images upright, as it does."


def _is_pair(sample: Any) -> bool:
    return isinstance(sample, tuple | list) and len(sample) == 2


def _how_they_differ(
    served: npt.NDArray[np.uint8] | DecodeError, sample: Any, label: Any
) -> str | None:
    if isinstance(served, DecodeError):
        # The batch has the same error; that of the user's code may have other words.
        return (
            None if isinstance(sample, Exception) else f"its code makes it, and fastload: {served}"
        )
    if isinstance(sample, Exception):
        return f"its code raises {type(sample).__name__}: {sample}, and fastload serves it"
    if not _is_pair(sample):
        return f"its code gives a {type(sample).__name__}, not an image and a label"
    pixels = _pixels_differ(served, sample[0])
    if pixels is not None or label is None:
        return pixels
    if np.array_equal(np.asarray(sample[1]), np.asarray(label)):
        return None
    return f"the label is {sample[1]} by its code, and {label} as listed"


def _pixels_differ(served: npt.NDArray[np.uint8], image: Any) -> str | None:
    if not isinstance(image, Image.Image | np.ndarray):
        shape = tuple(getattr(image, "shape", ()))
        return f"its code gives a {type(image).__name__}{shape} for the image, before `transform`"
    pixels = np.asarray(image)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.shape != served.shape or pixels.dtype != np.uint8:
        sizes = [
            f"{array.shape[1]} x {array.shape[0]} pixels of {counted(array.shape[2], 'channel')}"
            for array in (pixels, served)
        ]
        return f"{sizes[0]} ({pixels.dtype}) by its code, {sizes[1]} as fastload reads it"
    difference = PixelDifference.between(
        torch.from_numpy(pixels.copy()), torch.from_numpy(served.copy())
    )
    if Tolerance().allows(difference):
        return None
    return (
        f"its pixels by its code differ by up to {difference.largest} of 255 (mean "
        f"{difference.mean:.1f}) from those that fastload reads"
    )
