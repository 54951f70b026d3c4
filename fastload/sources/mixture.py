"""Several data sets as one: `fastload.mix`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from fastload.arguments import checks_names, flag
from fastload.errors import ConfigurationError, SourceError, and_more, counted, did_you_mean
from fastload.fingerprint import fingerprint_of
from fastload.sampler.mixture import Mixture, Until
from fastload.sampler.weights import Weights
from fastload.sources.base import Opened, Source, TransformsBySource
from fastload.sources.buffers import Int64Array, RowSelection
from fastload.sources.columns import Column, Values
from fastload.sources.concatenated import column_of, starts_of
from fastload.sources.kinds import VALUE
from fastload.sources.opening import open_source

Columns = Literal["equal", "common"]
ORIGIN = "origin"
"""The column that says which source a sample is of."""


@dataclass(frozen=True, repr=False)
class Mixed(Opened):
    """What `mix` returns: the samples of several sources, those of the first, then those of the
    next. `create_loader` takes it."""

    names: tuple[str, ...] = ()
    """Of the sources; their number is what the column `origin` has."""
    sizes: tuple[int, ...] = ()
    """Samples of each."""

    def __len__(self) -> int:
        return len(self.source)

    def locate(self, index: int) -> tuple[str, int]:
        """Where a sample comes from: (name of the source, index in it). Raises IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        starts = starts_of(self.sizes)
        number = int(np.searchsorted(starts, index, "right")) - 1
        return self.names[number], int(index - starts[number])


@checks_names()
def mix(
    sources: Mapping[str, Any],
    *,
    weights: Any = None,
    temperature: float = 1.0,
    until: Until | None = None,
    homogeneous: bool = False,
    columns: Columns = "equal",
    origin: bool = False,
    transforms: Mapping[str, Any] | None = None,
    goes_on: bool = False,
) -> Mixed:
    """Several data sets as one, which `create_loader` serves: by weights, or, without any, each
    sample once an epoch.

    With weights, an epoch has of each source its share, to within one sample, whatever the number
    of ranks; at every place in it each is near its share: less than 4 samples, and twice the number
    of sources times its share, away. Each source is gone through again and again, in a new order in
    each pass, and goes on in the next epoch where it was left: none of its samples comes twice
    before all others of it have come once. A sample that comes again in an epoch is augmented in
    another way.

    Args:
        sources: what is to be mixed, by name: anything that `open_source` opens, or has opened.
        weights: shares of the samples that are served: numbers of at least 0 by name, or in the
            order of `sources` (they need not add up to 1); "size", "equal"; a WeightSchedule; or a
            function of the epoch that returns such numbers, which must give the same whenever it is
            called. None: the sources one after the other, as one data set.
        temperature: each weight to the power of 1 / temperature, so that above 1 small sources come
            more often. Of weights that are None it is that of their sizes.
        until: when an epoch ends: "first_exhausted", before a source would begin its second pass;
            "all_exhausted", when the last has been gone through; or after this number of samples.
            None: "first_exhausted"; weights that change need a number.
        homogeneous: whether each global batch is of one source; weights are those of batches then,
            None those of sizes.
        columns: "equal": all sources must have the same columns; "common": those that all have are
            served.
        origin: whether batches have a column `origin`, int64 (B,): the number of the source that
            a sample is of.
        transforms: of images, by the name of the source; those that are not named keep the one that
            they have, if any. The `transform` of `create_loader` follows. What is cropped, resized
            and mirrored may differ; the size in the end, the filter, the padding and what is done
            to whole batches must be the same. Not beside boxes or other places in images.
        goes_on: whether a state of another mix is accepted, with other weights or sources: the next
            epoch begins, in which each source of the same name and content goes on where it was
            left. Otherwise such a state is refused.

    Returns:
        The data set. `mixed.locate(index)` says where a sample comes from.

    Raises:
        ConfigurationError: an argument is wrong, or cannot have an effect.
        SourceError: a source cannot be opened; or they differ in columns, in what these hold, or in
            their classes.
    """
    if not isinstance(sources, Mapping) or not sources:
        raise ConfigurationError(
            f"sources: must be data sets by name, {{'a': ..., 'b': ...}}, got {sources!r:.80}."
        )
    if not all(isinstance(name, str) and name for name in sources):
        raise ConfigurationError(f"sources: names must be strings, got {list(sources)!r:.200}.")
    if columns not in get_args(Columns):
        raise ConfigurationError(f"columns: must be 'equal' or 'common', got {columns!r}.")
    opened = {name: open_source(source) for name, source in sources.items()}
    for name, one in opened.items():
        if one.assumed is not None or one.source.mixture is not None:
            what = "a mix by weights" if one.assumed is None else "opened with assume_plain"
            raise ConfigurationError(
                f"sources: {name!r} is {what}, which cannot be part of a mix; give what is in it."
            )
    parts = {name: one.source for name, one in opened.items()}
    source = _joined(parts, columns, origin=flag("origin", origin))
    mixture = _mixture(
        parts,
        weights,
        temperature,
        until,
        flag("homogeneous", homogeneous),
        flag("goes_on", goes_on),
    )
    transform = _transform(opened, transforms, source)
    notes = [f"{name}: {note}" for name, one in opened.items() for note in one.notes]
    for name, part in parts.items():
        if lost := [column for column in part.columns if column not in source.columns]:
            notes.append(f"{name}: left out, as not all sources have them: {', '.join(lost)}")
    return Mixed(
        replace(source, mixture=mixture),
        transform,
        tuple(notes),
        names=tuple(parts),
        sizes=tuple(len(part) for part in parts.values()),
    )


def _transform(opened: Mapping[str, Opened], given: Any, source: Source) -> Any:
    """That of all sources, or those of each. Raises ConfigurationError: they are of no source, or
    of what has more than images."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(
            f"transforms: must be transforms by the names of sources, got {given!r:.80}."
        )
    for name in given or {}:
        if name not in opened:
            near = did_you_mean(str(name), opened)
            raise ConfigurationError(
                f"transforms: {name!r} is no source of the mix; they are {', '.join(opened)}.{near}"
            )
    each = {name: one.transform for name, one in opened.items()} | dict(given or {})
    first, *others = each.values()
    if all(other is first for other in others):
        return first
    if source.moved or source.objects:
        what = "boxes or the like" if source.moved else "samples that Python makes"
        raise ConfigurationError(
            f"transforms: the sources have {what}, for which transforms by source are not known. "
            "Give all the same one, or none, and create_loader the transform."
        )
    starts = starts_of([len(one.source) for one in opened.values()])
    return TransformsBySource(tuple(each), tuple(starts[:-1].tolist()), tuple(each.values()))


def _mixture(
    parts: Mapping[str, Source],
    weights: Any,
    temperature: float,
    until: Until | None,
    homogeneous: bool,
    goes_on: bool,
) -> Mixture | None:
    """What the weights say; None: they say nothing. Raises ConfigurationError."""
    sizes = [len(part) for part in parts.values()]
    weighted = weights is not None or temperature != 1 or homogeneous
    if not weighted:
        for name, given in (("until", until is not None), ("goes_on", goes_on)):
            if given:
                raise ConfigurationError(f"{name}: it is for mixes with weights; leave it out.")
        return None
    checked = Weights.of("size" if weights is None else weights, list(parts), sizes, temperature)
    whole = isinstance(until, int) and not isinstance(until, bool)
    if not whole and until not in (None, "first_exhausted", "all_exhausted"):
        raise ConfigurationError(
            "until: must be 'first_exhausted', 'all_exhausted' or a number of samples, got "
            f"{until!r}."
        )
    if whole and int(until or 0) < 1:
        raise ConfigurationError(f"until: must be at least 1 sample, got {until}.")
    if checked.constant is None and not whole:
        raise ConfigurationError(
            "until: where weights change, epochs would differ in length; give the number of "
            f"samples of an epoch, such as until={sum(sizes)}, of all sources together."
        )
    for name, size in zip(parts, sizes, strict=True):
        if not size:
            raise ConfigurationError(f"sources: {name!r} is empty; leave it out.")
    return Mixture(
        tuple(parts),
        tuple(sizes),
        checked,
        until or "first_exhausted",
        homogeneous,
        tuple(part.fingerprint for part in parts.values()),
        goes_on,
    )


def _joined(parts: Mapping[str, Source], columns: Columns, *, origin: bool) -> Source:
    """The samples of all, one source after the other. Raises SourceError."""
    names, sources = list(parts), list(parts.values())
    first = sources[0]
    common = [name for name in first.columns if all(name in each.columns for each in sources)]
    for name, each in parts.items():
        if columns == "equal" and set(each.columns) != set(first.columns):
            raise SourceError(
                f"sources: {names[0]!r} has the columns {', '.join(first.columns)}, and {name!r} "
                f"{', '.join(each.columns)}. Open them with the same ones (open_source: fields, "
                "roles), or mix with columns='common', which serves "
                f"{', '.join(common) or 'none: they have none in common'}."
            )
    if not common:
        raise SourceError("sources: they have no column in common, so there is nothing to serve.")
    _check_classes(parts, common)
    if len({each.upright for each in sources}) > 1:
        upright = [name for name, each in parts.items() if each.upright]
        raise SourceError(
            f"sources: the images of {upright[0]!r}{and_more(upright)} are turned upright by their "
            "EXIF data, and those of others are not. Open all by their paths, and give "
            "options=BackendOptions(exif_orientation=True) to create_loader."
        )
    merged: dict[str, Column] = {
        name: column_of(name, [each.columns[name] for each in sources], names) for name in common
    }
    sizes = [len(each) for each in sources]
    if origin:
        if ORIGIN in merged:
            raise ConfigurationError(
                f"origin: there is a column {ORIGIN!r} already; leave origin out, or rename it."
            )
        merged[ORIGIN] = _Origin(starts_of(sizes))
    layouts = {each.layout for each in sources}
    kinds = list(dict.fromkeys(each.format for each in sources))
    return Source(
        merged,
        fingerprint_of("mixed", *names, *(each.fingerprint for each in sources), tuple(merged)),
        " + ".join(names),
        layout="dict" if len(layouts) > 1 else first.layout,
        classes=first.classes if all(each.classes == first.classes for each in sources) else None,
        format=f"mix of {counted(len(sources), 'source')} ({', '.join(kinds)})",
        details={"sources": dict(zip(names, sizes, strict=True))},
        upright=first.upright,
    )


def _check_classes(parts: Mapping[str, Source], served: Sequence[str]) -> None:
    """Raise SourceError if a label would be one class in one source and another in another one."""
    named = {name: each.classes for name, each in parts.items()}
    if len(set(named.values())) == 1 or not _has_labels(parts, served):
        return
    first, *others = named
    other = next(name for name in others if named[name] != named[first])
    mine, its = named[first] or (), named[other] or ()
    said = [
        f"has {counted(len(one), 'class')}" if one else "has no names of classes"
        for one in (mine, its)
    ]
    every = sorted({one for classes in named.values() for one in classes or ()})
    pairs = enumerate(zip(mine, its, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(mine), len(its)))
    where = f", and from label {place} on they differ" if mine and its else ""
    shown = ", ".join(map(repr, every[:4])) + (", ..." if every[4:] else "")
    raise SourceError(
        f"sources: {first!r} {said[0]}, {other!r} {said[1]}{where}, so that one label would be two "
        f"classes. Open each with the same list: open_source(..., classes=[{shown}]), or leave the "
        "labels out (fields)."
    )


def _has_labels(parts: Mapping[str, Source], served: Sequence[str]) -> bool:
    """Whether what is served has columns that classes are the names of."""
    return any(
        name in each.values or name in each.objects or each.columns[name].role == "mask"
        for each in parts.values()
        for name in served
    )


@dataclass(frozen=True)
class _Origin(RowSelection, Values):
    """The number of the source that each sample is of."""

    starts: Int64Array
    """(sources + 1,)"""
    rows: Int64Array | None = None
    role = VALUE.name

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.rows is None else len(self.rows)

    def at(self, indices: Int64Array) -> Int64Array:
        number: Int64Array = np.searchsorted(self.starts, self.rows_of(indices), "right") - 1
        return number

    @property
    def nbytes(self) -> int:
        return 8 * len(self)
