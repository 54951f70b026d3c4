"""Whether the user has changed the data set or the transforms since they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload.recipe import Recipe
from fastload.recipe.lower import Origin
from fastload.recipe.operation import CopiedTransform, Operation

if TYPE_CHECKING:
    from fastload.loader.known_functions import KnownFunctions
    from fastload.sources import Opened
    from fastload.sources.inspection import Snapshot


class Changes:
    """What the data set and the transforms look like now, for telling later whether they were
    changed.

    Where the data set's own code makes the samples, only its length is looked at: that code sees
    all other changes itself. Not so if the samples come from a copy without its transform. Of the
    transforms the operations are compared that they are lowered to: a transform that runs as it was
    written sees changes of itself.
    """

    def __init__(
        self,
        given: Any,
        opened: Opened,
        transform: Any,
        *,
        in_place: bool,
        known: KnownFunctions | None,
    ) -> None:
        """
        Args:
            given: the data set, of which `opened` was made; None: one that nobody changes.
            transform: all that is done to an image, the data set's own part included.
            in_place: see `LoaderParts`.
            known: functions of the user's whose work is done without them.
        """
        self._snapshot: Snapshot | None = None
        if given is not None:
            from fastload.sources.inspection import Snapshot

            only_length = bool(opened.source.objects) and opened.bare is None
            read = opened.source.pixels | opened.source.values if in_place else {}
            # Of labels more is known than their values: how many classes there are.
            stored = [column.in_array() for name, column in read.items() if name != "label"]
            arrays = [column.array for column in stored if column is not None]
            self._snapshot = Snapshot(given, only_length=only_length, in_place=arrays)
        self._transform, self._known = transform, known
        self._seen = _operations_of(Recipe.from_transform(transform))

    @property
    def of_dataset(self) -> bool:
        """Whether the data set is one that the user may change: no path, no arrays."""
        return self._snapshot is not None

    def changed(self, *, thoroughly: bool = True) -> bool:
        """`thoroughly`: look at more than the length; it takes some 50 ms for a million samples."""
        if self._snapshot is not None and self._snapshot.changed(thoroughly=thoroughly):
            return True
        if not thoroughly:
            return False
        if self._known is not None and self._known.changed():
            return True
        try:
            now = _operations_of(Recipe.from_transform(self._transform))
        except Exception:  # making the Loader's parts again raises it
            return True
        return len(now) != len(self._seen) or not all(map(_is_equal, self._seen, now))


def _operations_of(recipe: Recipe) -> list[Any]:
    """The operations in order; in place of one that runs as it was written the transform itself, or
    what a copy of it was made of."""
    if not recipe.origins:
        return [recipe]
    return [part for origin in recipe.origins for part in _compared_of(origin)]


def _compared_of(origin: Origin) -> tuple[Any, ...]:
    if not any(op.is_opaque for op in origin.ops):
        return origin.ops
    from fastload.sources.inspection import seen_in

    run = origin.transform
    return (seen_in(run.given),) if isinstance(run, CopiedTransform) else (run,)


def _is_equal(mine: Any, its: Any) -> bool:
    if isinstance(mine, list) and isinstance(its, list):
        from fastload.sources.inspection import are_unchanged

        return are_unchanged(mine, its)
    known = isinstance(mine, Operation | Recipe) and type(mine) is type(its)
    return mine is its or bool(known and mine == its)
