"""YOLOv7's training of detectors from scratch.

Follows `data/hyp.scratch.p5.yaml` of github.com/WongKinYiu/yolov7 (GPL-3.0) at a207844, and what
its data set was seen to do when it was run with its random numbers recorded. Its code was not read.
Wang et al., 2022, "YOLOv7: Trainable bag-of-freebies sets new state-of-the-art for real-time object
detectors", arXiv 2207.02696.
"""

from __future__ import annotations

from torchvision.transforms import v2

from fastload.arguments import integer, require
from fastload.pipelines.normalised import checked_probability
from fastload.recipe.transforms import HSV, CanvasAffine, DropObjects, MixUp, Mosaic, PasteIn

PARTS_OF_NINE = 0.2
"""Of the mosaics: 1 of 5 has nine images."""
MORE = 0.1
"""The largest factor is so much above 1 plus `scale`."""


def yolov7(
    img_size: int = 640,
    *,
    hsv_h: float = 0.015,
    hsv_s: float = 0.7,
    hsv_v: float = 0.4,
    degrees: float = 0.0,
    translate: float = 0.2,
    scale: float = 0.9,
    shear: float = 0.0,
    flipud: float = 0.0,
    fliplr: float = 0.5,
    mosaic: float = 1.0,
    mixup: float = 0.15,
    paste_in: float = 0.15,
) -> v2.Compose:
    """A transform of RGB images and boxes into uint8 (3, `img_size`, `img_size`), for training.
    Give `collate_fn="yolo"`.

    Args:
        img_size: the side of the image [pixels].
        hsv_h: the gain of the hue is from 1 minus to 1 plus this number.
        hsv_s: likewise, of the saturation.
        hsv_v: likewise, of the value.
        degrees: the angle is from minus to plus this number.
        translate: how far the middle may move, in parts of the width and height.
        scale: the factor is from 1 minus this number to 1.1 plus this number; from 0 to 1, and
            below.
        shear: both angles are from minus to plus this number [degrees].
        flipud: probability of mirroring, top and bottom.
        fliplr: likewise, left and right.
        mosaic: probability that four images are put together, or, one time of five, nine.
        mixup: probability that a mosaic is blended with another. Without mosaics there is none.
        paste_in: probability that objects of other images are pasted in, by their polygons. Of
            objects without polygons nothing is pasted, here as there; of a source that has any, a
            Loader refuses a number above 0.

    Raises:
        ConfigurationError: a probability is not from 0 to 1; a size is below 1, or a number too
            large; `mixup` with mosaics of which some are left out.
    """
    integer("img_size", img_size, 1)
    probabilities = {"flipud": flipud, "fliplr": fliplr, "mosaic": mosaic, "mixup": mixup}
    for name, p in (probabilities | {"paste_in": paste_in}).items():
        checked_probability(name, p)
    whole = f"1 or 0 with mixup={mixup}: of mosaics alone the original blends some. Give mixup=0"
    require("mosaic", mosaic in (0, 1) or mixup == 0, whole, mosaic)
    require("scale", 0 <= scale < 1, "from 0 to 1, and below", scale)
    return v2.Compose(
        [
            Mosaic(img_size, p=mosaic, p_nine=PARTS_OF_NINE, rounding="down", antialias=False),
            v2.ClampBoundingBoxes(),
            DropObjects(min_size=0, min_area=0, visibility_from_here=True),
            CanvasAffine(
                img_size,
                degrees=degrees,
                translate=translate,
                scale=(1 - scale, 1 + MORE + scale),
                shear=shear,
            ),
            DropObjects(min_size=2, min_area=0, min_visibility=0.1, max_ratio=20),
            MixUp(p=mixup if mosaic else 0.0, alpha=8.0),
            PasteIn(p=paste_in),
            HSV(hsv_h, hsv_s, hsv_v),
            v2.RandomVerticalFlip(flipud),
            v2.RandomHorizontalFlip(fliplr),
            v2.ToImage(),
        ]
    )
