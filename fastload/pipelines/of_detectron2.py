"""detectron2's transforms: large-scale jittering, as its new baselines train with, and the default.

Follows `configs/new_baselines/mask_rcnn_R_50_FPN_100ep_LSJ.py`, `configs/common/data/coco.py`,
`DatasetMapper` and `detectron2/data/transforms/augmentation_impl.py` of
github.com/facebookresearch/detectron2 (Apache 2.0) at 02b5c4e. Ghiasi et al., 2021, "Simple
Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation", have the jittering.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchvision.transforms import v2

from fastload.arguments import flag, integer, require
from fastload.pipelines.normalised import are_numbers, checked_sizes
from fastload.recipe.boxes_of_masks import BoxesOfMasks
from fastload.recipe.transforms import (
    BGR,
    DropObjects,
    FixedSizeCrop,
    ResizeScale,
    ResizeShortestEdge,
)

SIZES = (640, 672, 704, 736, 768, 800)
IGNORED = 255
"""What masks of classes are padded with (`seg_pad_value`)."""


def detectron2(
    short_edge_length: Sequence[int] = SIZES,
    max_size: int = 1333,
    *,
    sample_style: str = "choice",
    random_flip: str = "horizontal",
    image_format: str = "BGR",
) -> v2.Compose:
    """A transform of RGB images and boxes, for training: the shorter side becomes one of several
    lengths. uint8, in several sizes: give `collate_fn="torchvision"`. Models of detectron2
    normalise.

    Args:
        short_edge_length: lengths of the shorter side [pixels].
        max_size: most pixels of the longer side; the shorter becomes less for it.
        sample_style: "choice": one of the lengths; "range": any from the first to the second.
        random_flip: "horizontal", "vertical" or "none": half of the images are mirrored.
        image_format: "BGR" or "RGB", of the images that are delivered.

    Raises:
        ConfigurationError: an argument is none of these, or a size below 1 pixel.
    """
    return v2.Compose(
        [
            _shortest_edge(short_edge_length, max_size, sample_style),
            *flips(random_flip),
            v2.ClampBoundingBoxes(),
            DropObjects(min_size=_THRESHOLD, min_area=0),
            *channels(image_format),
        ]
    )


def detectron2_eval(
    short_edge_length: int = 800, max_size: int = 1333, *, image_format: str = "BGR"
) -> v2.Compose:
    """A transform for evaluation: the shorter side becomes `short_edge_length`, the longer
    `max_size` at most.

    Args:
        short_edge_length: of the shorter side [pixels].
        max_size: most pixels of the longer side; the shorter becomes less for it.
        image_format: "BGR" or "RGB".

    Raises:
        ConfigurationError: a size is below 1 pixel, or there is no such format.
    """
    lengths = (integer("short_edge_length", short_edge_length, 1),)
    return v2.Compose([_shortest_edge(lengths, max_size, "choice"), *channels(image_format)])


def detectron2_lsj(
    image_size: int = 1024,
    *,
    min_scale: float = 0.1,
    max_scale: float = 2.0,
    recompute_boxes: bool = True,
    image_format: str = "BGR",
) -> v2.Compose:
    """A transform of RGB images, boxes and polygons, uint8 (3, `image_size`, `image_size`), for
    training with large-scale jittering: resized to fit into `image_size` times a factor, cut
    anywhere where larger, padded right and below with 128 where smaller, and half mirrored. Give
    `collate_fn="torchvision"`.

    Args:
        image_size: of the square [pixels].
        min_scale: the least factor.
        max_scale: the largest.
        recompute_boxes: put boxes around what is left of polygons or masks; without these give
            False, and they are cut off.
        image_format: "BGR" or "RGB", of the images that are delivered.

    Raises:
        ConfigurationError: the size is below 1 pixel, the factors are not above 0 in order, or
            there is no such format.
    """
    around = flag("recompute_boxes", recompute_boxes)
    return v2.Compose(
        [
            *jittered(image_size, min_scale, max_scale),
            *flips("horizontal"),
            BoxesOfMasks(_THRESHOLD) if around else DropObjects(min_size=_THRESHOLD, min_area=0),
            *channels(image_format),
        ]
    )


_THRESHOLD = 1e-5
"""Objects whose box has a shorter side are left out (`filter_empty_instances`) [pixels]."""


def jittered(image_size: int, min_scale: float, max_scale: float) -> list[Any]:
    """`ResizeScale` and `FixedSizeCrop`. Raises ConfigurationError: a number that they do not
    take."""
    integer("image_size", image_size, 1)
    good = are_numbers((min_scale, max_scale), 2) and 0 < min_scale <= max_scale
    require("max_scale", good, f"a number of at least min_scale={min_scale}, above 0", max_scale)
    return [
        ResizeScale(image_size, scale=(min_scale, max_scale)),
        FixedSizeCrop(image_size, fill=128, mask_fill=IGNORED, rounding="nearest"),
    ]


def flips(random_flip: str) -> list[Any]:
    """`RandomFlip`, as INPUT.RANDOM_FLIP has it. Raises ConfigurationError: it is none."""
    known = {
        "horizontal": [v2.RandomHorizontalFlip()],
        "vertical": [v2.RandomVerticalFlip()],
        "none": [],
    }
    require("random_flip", random_flip in known, "'horizontal', 'vertical' or 'none'", random_flip)
    return known[random_flip]


def channels(image_format: str, name: str = "image_format") -> list[Any]:
    """The last steps. Raises ConfigurationError: there is no such format."""
    require(name, image_format in ("BGR", "RGB"), "'BGR' or 'RGB'", image_format)
    return [v2.ToImage(), BGR()] if image_format == "BGR" else [v2.ToImage()]


def _shortest_edge(lengths: Sequence[int], max_size: int, style: str) -> ResizeShortestEdge:
    sizes, most = checked_sizes("short_edge_length", lengths), integer("max_size", max_size, 1)
    require("sample_style", style in ("choice", "range"), "'choice' or 'range'", style)
    if style == "range":
        good = len(sizes) == 2 and sizes[0] <= sizes[1]
        require("short_edge_length", good, "the least and the largest length", lengths)
        sizes = tuple(range(sizes[0], sizes[1] + 1))
    return ResizeShortestEdge(sizes, most)
