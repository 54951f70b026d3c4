"""Which samples go to which shard.

A plan follows from the samples (how many, how large they are) and the options alone. So two runs
write the same bytes under the same names. How large samples are is found once, by some of them, and
kept at the target: a run that goes on with what another one left has the same plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fastload.draws import Int64Array
from fastload.errors import ConfigurationError, counted
from fastload.sampler import EpochOrder
from fastload.sources.names import SPLITS

ShardFormat = Literal["tar", "parquet"]
ENDINGS: dict[ShardFormat, str] = {"tar": ".tar", "parquet": ".parquet"}
DEFAULT_QUALITY = 90
_LONGEST_SIDE = 65_535
"""That a JPEG can have [pixels]."""


@dataclass(frozen=True)
class PackOptions:
    """What a data set is packed to.

    Raises:
        ConfigurationError: a value that has no meaning.
    """

    format: ShardFormat = "tar"
    size: int = 1_000_000_000
    """Of a shard, about [bytes]."""
    short_side: int | None = None
    """Images are reduced to this many pixels on the shorter side, and written as JPEG; smaller ones
    are copied as they are. None: all are copied."""
    quality: int | None = None
    """Of the JPEGs that are written, 1 to 100, with `short_side` only. None: `DEFAULT_QUALITY`."""
    shuffle: int | None = None
    """The seed of the order of the samples. None: they keep theirs."""
    shares: tuple[float, ...] = ()
    """Shares of the samples that become `train`, `val` and, of three, `test`, drawn at random.
    Empty: they are not split."""

    def __post_init__(self) -> None:
        if self.format not in get_args(ShardFormat):
            raise ConfigurationError(f"format: must be 'tar' or 'parquet', got {self.format!r}.")
        if self.size < 1:
            raise ConfigurationError(f"size: must be at least 1 byte, got {self.size!r}.")
        if self.short_side is not None and not 1 <= self.short_side <= _LONGEST_SIDE:
            raise ConfigurationError(
                f"short_side: must be 1 to {_LONGEST_SIDE:,} pixels, got {self.short_side!r}."
            )
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ConfigurationError(f"quality: must be 1 to 100, got {self.quality!r}.")
        if self.quality is not None and self.short_side is None:
            raise ConfigurationError(
                f"quality: {self.quality} is of JPEGs that are reduced, and without short_side "
                "every file is copied, byte for byte. Leave it out, or give short_side."
            )
        if self.shares and (
            len(self.shares) not in (2, 3)
            or min(self.shares) <= 0
            or abs(sum(self.shares) - 1.0) > 1e-6
        ):
            shares = ",".join(f"{share:g}" for share in self.shares)
            raise ConfigurationError(
                f"shares: must be two or three shares above 0 that sum to 1, as 0.9,0.1 (train, "
                f"val); got {shares}."
            )

    @property
    def jpeg_quality(self) -> int:
        return DEFAULT_QUALITY if self.quality is None else self.quality


@dataclass(frozen=True)
class ShardJob:
    """One shard to be written."""

    name: str
    """Of the file, below the target: `shard-000000.tar`, `train/shard-000000.tar`."""
    first: int
    """The number, in its part, of its first sample: the name of a sample is its number."""
    rows: Int64Array
    """(N,) int64: the samples, as indices into the source."""


Part = tuple[str, Int64Array]
"""The name of a folder below the target, empty where there is one part only; and the samples in
their order, as indices into the source."""


def plan_shards(parts: Sequence[Part], typical: int, options: PackOptions) -> tuple[ShardJob, ...]:
    """All shards, in order.

    Args:
        parts: by `parts_of`.
        typical: mean size of a sample as it is written [bytes].
    """
    per_shard = max(1, options.size // max(1, typical))
    jobs = list[ShardJob]()
    for part, rows in parts:
        count = -(-len(rows) // per_shard)
        # Equal shards, not a short one at the end: 10 samples by 4 are 4, 3 and 3.
        for number, some in enumerate(np.array_split(rows, count)):
            file = f"shard-{number:06}{ENDINGS[options.format]}"
            first = 0 if number == 0 else jobs[-1].first + len(jobs[-1].rows)
            jobs.append(ShardJob(f"{part}/{file}" if part else file, first, some))
    return tuple(jobs)


def parts_of(samples: int, options: PackOptions) -> list[Part]:
    """The parts of a source of so many samples. Raises ConfigurationError: one would be empty."""
    everything = np.arange(samples, dtype=np.int64)
    if options.shuffle is None and not options.shares:
        return [("", everything)]
    # That of the first epoch of a loader with this seed.
    order = EpochOrder(samples, batch_size=1, shuffle=True, seed=options.shuffle or 0)
    mixed = np.asarray(order.epoch(0))
    if not options.shares:
        return [("", mixed)]
    bounds = np.rint(np.cumsum((0.0, *options.shares)) * samples).astype(np.int64)
    parts = [mixed[start:end] for start, end in itertools.pairwise(bounds)]
    names = [*SPLITS][: len(parts)]
    empty = [name for name, rows in zip(names, parts, strict=True) if not len(rows)]
    if empty:
        raise ConfigurationError(
            f"split: {empty[0]} would have nothing of {counted(samples, 'sample')}; give it a "
            "larger share."
        )
    if options.shuffle is None:
        parts = [np.sort(rows) for rows in parts]
    return list(zip(names, parts, strict=True))


def evenly_spaced(samples: int, count: int) -> list[int]:
    """At most `count` of the samples, from the first to the last."""
    places = np.linspace(0, samples - 1, min(samples, count)).astype(np.int64)
    return [int(index) for index in np.unique(places)]
