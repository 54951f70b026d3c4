"""Mask2Former's transforms of COCO, of instances and of panoptic segments: large-scale jittering.

Follows `COCOInstanceNewBaselineDatasetMapper` and `COCOPanopticNewBaselineDatasetMapper` of
`mask2former/data/dataset_mappers` and the defaults of `configs/coco` in
github.com/facebookresearch/Mask2Former (MIT) at 9b0651c, with detectron2 at 02b5c4e. Cheng et al.,
2022, "Masked-attention Mask Transformer for Universal Image Segmentation".
"""

from __future__ import annotations

from torchvision.transforms import v2

from fastload.pipelines.of_detectron2 import channels, flips, jittered
from fastload.recipe.boxes_of_masks import BoxesOfMasks
from fastload.recipe.padding_mask import PaddingMask

ORIGINALS = {
    "mask2former.data.dataset_mappers.coco_instance_new_baseline_dataset_mapper."
    "COCOInstanceNewBaselineDatasetMapper": "mask2former_instance",
    "mask2former.data.dataset_mappers.coco_panoptic_new_baseline_dataset_mapper."
    "COCOPanopticNewBaselineDatasetMapper": "mask2former_panoptic",
}


def mask2former_instance(
    image_size: int = 1024,
    *,
    min_scale: float = 0.1,
    max_scale: float = 2.0,
    random_flip: str = "horizontal",
    format: str = "RGB",
) -> v2.Compose:
    """A transform of RGB images, boxes and masks of objects, uint8 (3, `image_size`,
    `image_size`), for training: half mirrored, resized to fit into `image_size` times a factor, cut
    anywhere where larger, padded right and below with 128 where smaller. Boxes are around what is
    left of masks, and objects of which nothing is are dropped. A column `padding_mask` says which
    pixels are padding. Give `open_source(..., masks=True)` and `collate_fn="torchvision"`. The
    model normalises.

    Args:
        image_size: of the square [pixels]; INPUT.IMAGE_SIZE, and so on.
        min_scale: the least factor.
        max_scale: the largest.
        random_flip: "horizontal", "vertical" or "none".
        format: "RGB" or "BGR", of the images that are delivered.

    Raises:
        ConfigurationError: the size is below 1 pixel, the factors are not above 0 in order, or
            there is no such flip or format.
    """
    moved = [*flips(random_flip), *jittered(image_size, min_scale, max_scale)]
    return v2.Compose([*moved, BoxesOfMasks(), PaddingMask(), *channels(format, "format")])


def mask2former_panoptic(
    image_size: int = 1024,
    *,
    min_scale: float = 0.1,
    max_scale: float = 2.0,
    random_flip: str = "horizontal",
    format: str = "RGB",
) -> v2.Compose:
    """`mask2former_instance` for panoptic segments: those of which nothing is left stay, with boxes
    and masks of zeros, and there is no `padding_mask`, as in the original.

    Args:
        image_size: of the square [pixels].
        min_scale: the least factor.
        max_scale: the largest.
        random_flip: "horizontal", "vertical" or "none".
        format: "RGB" or "BGR", of the images that are delivered.

    Raises:
        ConfigurationError: as of `mask2former_instance`.
    """
    moved = [*flips(random_flip), *jittered(image_size, min_scale, max_scale)]
    return v2.Compose([*moved, BoxesOfMasks(keep_empty=True), *channels(format, "format")])
