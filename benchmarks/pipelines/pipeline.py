"""What is said about a pipeline, so that it can be judged, measured and drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.inputs import photographs

Numbers = Mapping[str, npt.NDArray[np.float64]]
"""By what they say, such as "mean of red": one number of each sample, or of each object."""
_MOST_APART, _MEAN_APART = 2.0, 0.2
"""Of 255, where nothing is random: docs/guarantees.md. Tiles are rounded, which adds up to 1."""
Tile = npt.NDArray[np.uint8]
"""(H, W, 3): what a sample looks like, all of its views side by side."""


@dataclass(frozen=True)
class Setting:
    """What the loaders of both sides are made for."""

    originals: Path
    """A folder with a clone of each repository, called as there."""
    data: Path
    """What `Pipeline.data` has made."""
    batch_size: int
    workers: int
    """Processes of the original, threads of ours; 0: none."""
    shuffle: bool = True
    """And the last batch is dropped; else the samples come in order, all of them."""
    small: bool = False
    """Crops may be of a quarter of their size, on both sides: many samples in little time."""

    def size(self, pixels: int) -> int:
        return pixels // 4 if self.small else pixels

    def sized(self, transform: Any, *names: str) -> Any:
        """Where a function does not leave its sizes open: a copy of what it has made, in which all
        attributes of these names, of its parts as well, are of `size`."""
        if not self.small:
            return transform
        made = copy.deepcopy(transform)
        for part in _parts(made, set()):
            for name in vars(part).keys() & set(names):
                value = getattr(part, name)
                if isinstance(value, (list, tuple)):
                    setattr(part, name, type(value)(map(self.size, value)))
                elif value is not None:
                    setattr(part, name, self.size(value))
        return made


def _parts(made: Any, seen: set[int]) -> Iterator[Any]:
    """It and the transforms that it holds, each once."""
    if id(made) in seen or not hasattr(made, "__dict__") or isinstance(made, type):
        return
    seen.add(id(made))
    yield made
    for value in vars(made).values():
        several = value.values() if isinstance(value, dict) else value
        for one in several if isinstance(value, (list, tuple, dict)) else [value]:
            if callable(one):
                yield from _parts(one, seen)


@dataclass(frozen=True)
class Side:
    """The original, or ours. Batches may be of any form; what is read of them is the same."""

    loader: Callable[[Setting], Iterable[Any]]
    """Of the original, the DataLoader that its repository makes, over its own data set."""
    numbers: Callable[[Any], Numbers]
    """Of a batch, what must be distributed as on the other side."""
    tiles: Callable[[Any], list[Tile]]
    """Of a batch, one for each sample."""


@dataclass(frozen=True)
class Judgement:
    what: str
    found: float
    bound: float
    at_least: bool

    @property
    def passed(self) -> bool:
        return self.found >= self.bound if self.at_least else self.found <= self.bound


def pixels_near(most: float, mean: float, which: str = "of the worst image") -> list[Judgement]:
    """Where nothing is random: whether the largest difference of a pixel and the mean difference of
    `which` are within what docs/guarantees.md says."""
    largest = "largest difference of a pixel, of 255"
    return [
        Judgement(largest, round(float(most), 3), _MOST_APART, False),
        Judgement(f"mean difference {which}, of 255", mean, _MEAN_APART, False),
    ]


def folder_of_classes(source: Path, work: Path, least: int) -> Path:
    """At least so many photographs in folders of classes, some of them repeatedly."""
    return photographs(source, work, least).folder


@dataclass(frozen=True)
class Pipeline:
    """One row of the table."""

    name: str
    page: str
    """docs/pipelines/PAGE.md."""
    original: Side
    ours: Side
    batch_size: int
    bar: float | None
    """How many times as fast as the original ours has to be; None: it is not measured."""
    operations: Callable[[Path], tuple[Any, Any]] | None = None
    """From the folder of originals, the transforms of the original and ours: their operations must
    be equal. None: the original has other classes, so that there is nothing to compare."""
    exact: bool = False
    """Nothing in it is random: all samples are compared by `same`, or their tiles pixel by pixel,
    in place of distributions."""
    same: Callable[[Setting], list[Judgement]] | None = None
    """With the random numbers of ours, how far samples of the original are from ours, in order."""
    drawn: bool = True
    """Whether its page shows samples."""
    data: Callable[[Path, Path, int], Path] = folder_of_classes
    """From a folder of class folders with photographs, the folder to make files in, and the least
    number of samples: what both sides read."""
