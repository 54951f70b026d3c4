"""RF-DETR's transforms of COCO, and its sizes of batches.

Follows `make_coco_transforms_square_div_64` of `rfdetr/datasets/coco.py`, `train_one_epoch` of
`rfdetr/engine.py` and the defaults of `rfdetr/config.py` in github.com/roboflow/rf-detr (Apache
2.0) at 35ac6ab. Robinson et al., 2025, "RF-DETR: Neural Architecture Search for Real-Time Detection
Transformers".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import interpolate
from torchvision.transforms import v2

from fastload.arguments import flag, integer
from fastload.pipelines.normalised import to_floats
from fastload.recipe.transforms import DropObjects, ResizeOrCrop

ORIGINALS = {"rfdetr.datasets.transforms.SquareResize": "rfdetr"}

Batch = tuple[torch.Tensor, torch.Tensor, list[dict[str, Any]]]


def rfdetr(
    resolution: int = 560,
    *,
    multi_scale: bool = True,
    expanded_scales: bool = True,
    do_random_resize_via_padding: bool = False,
    patch_size: int = 14,
    num_windows: int = 4,
) -> v2.Compose:
    """A transform of RGB images and boxes into squares, float32, normalised by ImageNet's mean and
    deviation, for training; half of the images are resized and cut before. Give
    `collate_fn="detr"`, and `rfdetr_batches(...)` with the same arguments as the `batch_transform`.

    Args:
        resolution: of the model [pixels]: 384 of Nano, 512 of Small, 576 of Medium, 704 of Large,
            which have `patch_size=16, num_windows=2`; 560 of Base.
        multi_scale: whether batches are made in several sizes; all images then come in the largest.
        expanded_scales: whether these are 11 sizes around `resolution`, not 8.
        do_random_resize_via_padding: whether a size is drawn for each image, and images of a batch
            are padded, in place of a size for each batch.
        patch_size: of the model [pixels].
        num_windows: along a side, in which the model attends. Sizes are multiples of both.

    Raises:
        ConfigurationError: a number is below 1.
    """
    scales = _scales(resolution, multi_scale, expanded_scales, patch_size, num_windows)
    if not flag("do_random_resize_via_padding", do_random_resize_via_padding):
        scales = scales[-1:]
    return v2.Compose(
        [
            v2.ClampBoundingBoxes(),
            v2.RandomHorizontalFlip(),
            ResizeOrCrop(scales, first=(400, 500, 600), crop=(384, 600), square=True),
            _drop_empty(),
            *to_floats(),
        ]
    )


def rfdetr_eval(resolution: int = 560) -> v2.Compose:
    """A transform for evaluation, into normalised float32 (3, `resolution`, `resolution`).

    Args:
        resolution: of the image [pixels].

    Raises:
        ConfigurationError: `resolution` is below 1.
    """
    size = integer("resolution", resolution, 1)
    return v2.Compose(
        [v2.ClampBoundingBoxes(), _drop_empty(), v2.Resize((size, size)), *to_floats()]
    )


def rfdetr_batches(
    resolution: int = 560,
    *,
    multi_scale: bool = True,
    expanded_scales: bool = True,
    do_random_resize_via_padding: bool = False,
    patch_size: int = 14,
    num_windows: int = 4,
) -> Callable[[torch.Tensor, torch.Tensor, list[dict[str, Any]]], Batch]:
    """The `batch_transform` for batches of `collate_fn="detr"`: (images, mask, targets), of one of
    the sizes, which is drawn for each batch; as they are without `multi_scale`, or with
    `do_random_resize_via_padding`.

    Args:
        resolution: as of `rfdetr`, and so are the others.
        multi_scale: whether batches are made in several sizes.
        expanded_scales: whether these are 11 sizes, not 8.
        do_random_resize_via_padding: whether a size is drawn for each image.
        patch_size: of the model [pixels].
        num_windows: along a side.

    Raises:
        ConfigurationError: a number is below 1.
    """
    scales = _scales(resolution, multi_scale, expanded_scales, patch_size, num_windows)
    as_they_are = flag("do_random_resize_via_padding", do_random_resize_via_padding)
    return _Scaled(() if as_they_are or not multi_scale else scales)


class _Scaled:
    """A class, so that it can be pickled."""

    def __init__(self, scales: tuple[int, ...]) -> None:
        self.scales = scales

    def __call__(
        self, images: torch.Tensor, mask: torch.Tensor, targets: list[dict[str, Any]]
    ) -> Batch:
        if self.scales:
            size = self.scales[int(torch.randint(len(self.scales), (), device="cpu"))]
            images = interpolate(images, size=size, mode="bilinear", align_corners=False)
            mask = interpolate(mask[:, None].float(), size=size, mode="nearest")[:, 0].bool()
        return images, mask, targets


def _scales(
    resolution: int, multi_scale: bool, expanded_scales: bool, patch_size: int, num_windows: int
) -> tuple[int, ...]:
    """As `compute_multi_scale_scales` has them: sizes in steps of a window of patches, of which
    there are at least two. One alone without `multi_scale`."""
    integer("resolution", resolution, 1)
    step = integer("patch_size", patch_size, 1) * integer("num_windows", num_windows, 1)
    offsets = range(-5, 6) if flag("expanded_scales", expanded_scales) else range(-3, 5)
    if not flag("multi_scale", multi_scale):
        return (resolution,)
    scales = ((resolution // step + offset) * step for offset in offsets)
    return tuple(scale for scale in scales if scale >= 2 * step)


def _drop_empty() -> DropObjects:
    """Of boxes that lie outside of their image nothing is left."""
    return DropObjects(min_size=0, min_area=0)
