"""Whether the user has changed what was given to a Loader: the data set, or a transform, however
deep in others it is."""

from __future__ import annotations

import os
from typing import Any

from fastload.loader.config import LoaderConfig
from fastload.recipe import Recipe
from fastload.recipe.lower import Origin
from fastload.recipe.operation import CopiedTransform, Operation
from fastload.sources import Opened
from fastload.sources.datasets import is_dataset
from fastload.sources.huggingface import is_huggingface
from fastload.sources.inspection import Snapshot, are_unchanged, seen_in


class Changes:
    """What the data set and the transforms look like now, for telling later whether they were
    changed.

    Where the data set's own code makes the samples, only its length is looked at: that code sees
    all other changes itself. Not so if the samples come from a copy without its transform. Of the
    transforms the operations are compared that they are lowered to: a transform that runs as it was
    written sees changes of itself.
    """

    def __init__(self, config: LoaderConfig, opened: Opened, transform: Any) -> None:
        """`transform`: all that is done to an image, the data set's own part included."""
        self._snapshot: Snapshot | None = None
        a_path = isinstance(config.source, str | os.PathLike)
        if config.adopted or (not a_path and has_code(config.source)):
            only_length = bool(opened.source.objects) and opened.bare is None
            self._snapshot = Snapshot(config.source, only_length=only_length)
        self._transform = transform
        self._seen = _seen_of(Recipe.from_transform(transform))

    def changed(self, *, thoroughly: bool = True) -> bool:
        """`thoroughly`: look at more than the length; it takes some 20 ms for a million samples."""
        if self._snapshot is not None and self._snapshot.changed(thoroughly=thoroughly):
            return True
        if not thoroughly:
            return False
        try:
            now = _seen_of(Recipe.from_transform(self._transform))
        except Exception:  # making the Loader's parts again raises it
            return True
        return len(now) != len(self._seen) or not all(map(_equal, self._seen, now))


def has_code(source: Any) -> bool:
    """Whether it is a data set whose own code can make the samples."""
    return is_dataset(source) or is_huggingface(source)


def _seen_of(recipe: Recipe) -> list[Any]:
    """The operations in order; in place of one that runs as it was written the transform itself, or
    what a copy of it was made of."""
    if not recipe.origins:
        return [recipe]
    return [part for origin in recipe.origins for part in _parts(origin)]


def _parts(origin: Origin) -> tuple[Any, ...]:
    if not any(op.is_opaque for op in origin.ops):
        return origin.ops
    run = origin.transform
    return (seen_in(run.given),) if isinstance(run, CopiedTransform) else (run,)


def _equal(mine: Any, its: Any) -> bool:
    if isinstance(mine, list) and isinstance(its, list):
        return are_unchanged(mine, its)
    known = isinstance(mine, Operation | Recipe) and type(mine) is type(its)
    return mine is its or bool(known and mine == its)
