"""YOLO's training of detectors, of segments and of poses, as Ultralytics has it (YOLOv8, YOLO11).

Follows the hyper-parameters in the manual, docs.ultralytics.com/usage/cfg ("Augmentation
Settings"), and what the package ultralytics 8.4.190 was seen to do when it was run with its random
numbers recorded. Its code (AGPL-3.0) was not read.
"""

from __future__ import annotations

from torchvision.transforms import v2

from fastload.arguments import integer, require
from fastload.pipelines.normalised import checked_probability
from fastload.recipe.boxes_of_masks import BoxesOfMasks
from fastload.recipe.hide_keypoints import HideKeypoints
from fastload.recipe.transforms import HSV, CanvasAffine, DropObjects, Mosaic

ORIGINALS = {"ultralytics.data.dataset.YOLODataset": "yolo"}


TASKS = ("detect", "segment", "pose")


def yolo(
    imgsz: int = 640,
    *,
    task: str = "detect",
    hsv_h: float = 0.015,
    hsv_s: float = 0.7,
    hsv_v: float = 0.4,
    degrees: float = 0.0,
    translate: float = 0.1,
    scale: float = 0.5,
    shear: float = 0.0,
    flipud: float = 0.0,
    fliplr: float = 0.5,
    mosaic: float = 1.0,
) -> v2.Compose:
    """A transform of RGB images and boxes into uint8 (3, `imgsz`, `imgsz`), for training. Give
    `collate_fn="ultralytics"` for the dict that its trainer takes, or "yolo". For the last epochs
    (`close_mosaic`) make another Loader, with `mosaic=0.0`.

    Args:
        imgsz: the side of the image [pixels].
        task: "detect"; "segment", for objects with polygons: boxes are around what is shown of
            these; or "pose", for objects with keypoints, which are no longer labelled once they
            have left the picture.
        hsv_h: the hue is turned by up to so much of a whole turn, to either side.
        hsv_s: the gain of the saturation is from 1 minus to 1 plus this number.
        hsv_v: likewise, of the value.
        degrees: the angle is from minus to plus this number.
        translate: how far the middle may move, in parts of the width and height.
        scale: the factor is from 1 minus to 1 plus this number.
        shear: both angles are from minus to plus this number [degrees].
        flipud: probability of mirroring, top and bottom.
        fliplr: likewise, left and right.
        mosaic: probability that four images are put together.

    Raises:
        ConfigurationError: a probability is not from 0 to 1, a size below 1, a number too large, or
            there is no such task.
    """
    integer("imgsz", imgsz, 1)
    require("task", task in TASKS, "'detect', 'segment' or 'pose'", task)
    for name, p in (("flipud", flipud), ("fliplr", fliplr), ("mosaic", mosaic)):
        checked_probability(name, p)
    return v2.Compose(
        [
            Mosaic(imgsz, p=mosaic, rounding="up", antialias=False),
            v2.ClampBoundingBoxes(),
            DropObjects(min_size=0, min_area=0, visibility_from_here=True),
            CanvasAffine(imgsz, degrees=degrees, translate=translate, scale=scale, shear=shear),
            _dropping(task),
            HSV(hsv_h, hsv_s, hsv_v, turns=True),
            v2.RandomVerticalFlip(flipud),
            v2.RandomHorizontalFlip(fliplr),
            v2.ToImage(),
            *([HideKeypoints()] if task == "pose" else []),
        ]
    )


def _dropping(task: str) -> BoxesOfMasks | DropObjects:
    if task == "segment":
        return BoxesOfMasks(2, min_visibility=0.01, max_ratio=100)
    return DropObjects(min_size=2, min_area=0, min_visibility=0.1, max_ratio=100)
