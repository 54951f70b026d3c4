"""RT-DETRv2's transforms of COCO, and its sizes of batches.

Follows `configs/rtdetrv2/include/dataloader.yml` and `src/data` of `rtdetrv2_pytorch` in
github.com/lyuwenyu/RT-DETR (Apache 2.0) at 068dfde. Lv et al., 2024, "RT-DETRv2: Improved Baseline
with Bag-of-Freebies for Real-Time Detection Transformer".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import interpolate
from torchvision.transforms import v2

from fastload.arguments import integer
from fastload.pipelines.normalised import checked_sizes
from fastload.recipe.transforms import DropObjects

ORIGINALS = {"src.data.transforms._transforms.RandomIoUCrop": "rtdetrv2"}

SCALES = (480, 512, 544, 576, 608, 640, 640, 640, 672, 704, 736, 768, 800)

Batch = tuple[torch.Tensor, list[dict[str, Any]]]


def rtdetrv2(size: int = 640, *, ops: bool = True) -> v2.Compose:
    """A transform of RGB images and boxes into float32 (3, `size`, `size`), 0 to 1, for training.
    Give `collate_fn="detr"`, and `rtdetrv2_batches()` as the `batch_transform`.

    Args:
        size: of the image [pixels].
        ops: whether colour, zoom and crop are there, which the original's `policy` leaves out from
            its `stop_epoch` on (71 of 72): make another Loader for those epochs.

    Raises:
        ConfigurationError: `size` is below 1.
    """
    integer("size", size, 1)
    strong = [
        v2.RandomPhotometricDistort(p=0.5),
        v2.RandomZoomOut(fill=0),
        v2.RandomApply([v2.RandomIoUCrop()], p=0.8),
    ]
    return v2.Compose(
        [
            v2.ClampBoundingBoxes(),
            *(strong if ops else ()),
            v2.SanitizeBoundingBoxes(min_size=1),
            v2.RandomHorizontalFlip(),
            v2.Resize((size, size)),
            v2.SanitizeBoundingBoxes(min_size=1),
            *_to_floats(),
        ]
    )


def rtdetrv2_eval(size: int = 640) -> v2.Compose:
    """A transform for evaluation, into float32 (3, `size`, `size`), 0 to 1. Boxes of which nothing
    is within their image are left out.

    Args:
        size: of the image [pixels].

    Raises:
        ConfigurationError: `size` is below 1.
    """
    integer("size", size, 1)
    within = v2.ClampBoundingBoxes(), DropObjects(min_size=0, min_area=0)
    return v2.Compose([*within, v2.Resize((size, size)), *_to_floats()])


def rtdetrv2_batches(
    scales: Sequence[int] | None = SCALES,
) -> Callable[[torch.Tensor, torch.Tensor, list[dict[str, Any]]], Batch]:
    """The `batch_transform` for batches of `collate_fn="detr"`: (images, targets), the images of
    each batch of one of `scales`, the nearest pixels, as the original's collate function makes them
    until its `stop_epoch`.

    Args:
        scales: sides of the images of a batch [pixels], one of which is drawn; None: as they are.

    Raises:
        ConfigurationError: a scale is below 1 pixel, or there is none.
    """
    return _Scaled(None if scales is None else checked_sizes("scales", scales))


class _Scaled:
    """A class, so that it can be pickled."""

    def __init__(self, scales: tuple[int, ...] | None) -> None:
        self.scales = scales

    def __call__(
        self, images: torch.Tensor, mask: torch.Tensor, targets: list[dict[str, Any]]
    ) -> Batch:
        if self.scales is not None:
            size = self.scales[int(torch.randint(len(self.scales), (), device="cpu"))]
            images = interpolate(images, size=size)
        return images, targets


def _to_floats() -> tuple[v2.Transform, ...]:
    return v2.ToImage(), v2.ToDtype(torch.float32, scale=True)
