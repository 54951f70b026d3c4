"""How well objects were found: COCO's average precision, computed by pycocotools."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.train.models import import_library

_STATISTICS = ("map", "map50", "map75", "map_small", "map_medium", "map_large")
"""What `COCOeval.summarize` puts first, in its order."""


class Objects(NamedTuple):
    """Objects in images: true ones, or those that a network has found."""

    images: npt.NDArray[np.int64]
    """(n,): which image each is in."""
    boxes: npt.NDArray[np.float64]
    """(n, 4) left, top, right, bottom [pixels]."""
    labels: npt.NDArray[np.int64]
    """(n,)."""
    scores: npt.NDArray[np.float64]
    """(n,): of found ones, how sure the network is; of true ones, the area [square pixels] that
    decides on which size they count as."""
    crowds: npt.NDArray[np.bool_]
    """(n,): true ones that need not be found, and are no error where they are."""


def average_precision(
    true: Objects, predicted: Objects, images: npt.NDArray[np.int64]
) -> dict[str, float]:
    """COCO's mean average precision [0 to 1]: `map` over overlaps from 0.5 to 0.95, `map50` and
    `map75` at one overlap, and `map_small`, `map_medium`, `map_large` of objects below 32 x 32, up
    to 96 x 96 and above [pixels], as far as there are any. Of an image the 100 surest are counted.

    Args:
        true, predicted: of all images together.
        images: (m,) their numbers, each once; also of images without objects.

    Raises BackendUnavailableError: pycocotools is not installed.
    """
    evaluation = import_library("pycocotools.cocoeval", extra="detection")
    api = import_library("pycocotools.coco", extra="detection")
    # It prints its progress, and there is no setting for it.
    with contextlib.redirect_stdout(io.StringIO()):
        sides = [api.COCO(), api.COCO()]
        for side, objects in zip(sides, (true, predicted), strict=True):
            side.dataset = {
                "images": [{"id": number} for number in images.tolist()],
                "categories": [{"id": label} for label in np.unique(true.labels).tolist()],
                "annotations": _annotations(objects, is_true=objects is true),
            }
            side.createIndex()
        judged = evaluation.COCOeval(*sides, "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    # -1 stands for "there are no such objects".
    statistics = zip(_STATISTICS, judged.stats.tolist(), strict=False)
    return {name: value for name, value in statistics if value >= 0}


def _annotations(objects: Objects, *, is_true: bool) -> list[dict[str, object]]:
    """As COCO's JSON has them. Ids count from 1, because its code takes 0 for "not matched"."""
    sides = objects.boxes[:, 2:] - objects.boxes[:, :2]
    bbox = np.concatenate([objects.boxes[:, :2], sides], axis=1)
    areas = objects.scores if is_true else sides.prod(axis=1)
    rows = zip(
        objects.images.tolist(),
        objects.labels.tolist(),
        bbox.tolist(),
        areas.tolist(),
        objects.crowds.astype(int).tolist(),
        objects.scores.tolist(),
        strict=True,
    )
    return [
        {
            "id": number,
            "image_id": image,
            "category_id": label,
            "bbox": box,
            "area": area,
            "iscrowd": crowd,
            "score": score,
        }
        for number, (image, label, box, area, crowd, score) in enumerate(rows, 1)
    ]
