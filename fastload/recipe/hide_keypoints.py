"""Keypoints that have left the picture are no longer labelled, as Ultralytics has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastload.draws import Draws
from fastload.geometry.points import PointMap
from fastload.recipe.columns import ColumnOperation
from fastload.recipe.operation import ImageState, register
from fastload.recipe.transforms import ForLoaders


class HideKeypoints(ForLoaders):
    """Gives visibility 0, and the place (0, 0), to keypoints that are not in the picture, or were
    not in it at some place of the transform: a canvas that is cut hides what lies beyond it.
    Keypoints without visibility, (n, K, 2), become (n, K, 3) with 1 where they are seen.

    They are counted from the upper left corner of the picture, as boxes are, in place of the centre
    of the first pixel: mirroring takes x to width - x. It comes after all that moves images. Called
    by itself it raises.
    """

    works_on = "works on the keypoints of a loader's source"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@register
@dataclass(frozen=True)
class KeypointsHidden(ColumnOperation):
    """See `HideKeypoints`."""

    transforms = (HideKeypoints,)
    hides_points = True

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> KeypointsHidden:
        return cls()

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        return points.by_corners()
