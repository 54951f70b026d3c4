"""HRNet's training of human poses, one person a sample.

Follows `lib/dataset/JointsDataset.py`, `lib/dataset/coco.py` and
`experiments/coco/hrnet/w32_256x192_adam_lr1e-3.yaml` of
github.com/leoxiaobin/deep-high-resolution-net.pytorch (MIT) at 6f69e46. Sun et al., 2019, "Deep
High-Resolution Representation Learning for Human Pose Estimation".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torchvision.transforms import v2

from fastload.arguments import flag
from fastload.pipelines.heat_maps import COCO_WEIGHTS, HeatMaps, Targets
from fastload.pipelines.normalised import checked_pair, checked_probability, to_floats
from fastload.recipe.transforms import TopDownAffine

ORIGINALS = {"dataset.coco.COCODataset": "hrnet"}

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]
_P_ROTATE, _PADDING = 0.6, 1.25


def hrnet(
    image_size: Sequence[int] = (192, 256),
    *,
    scale_factor: float = 0.35,
    rot_factor: float = 45,
    flip: bool = True,
    num_joints_half_body: int = 8,
    prob_half_body: float = 0.3,
    upper_body_ids: Sequence[int] | None = None,
) -> v2.Compose:
    """A transform of RGB images of one person each, with box and keypoints, into float32 (3,
    height, width), normalised by ImageNet's mean and deviation, for training. Open COCO with
    `samples="poses"`, and give `hrnet_batches(...)` as the `batch_transform`.

    Args:
        image_size: width, height [pixels].
        scale_factor: deviation of the factor about 1; it is cut to 1 minus to 1 plus this.
        rot_factor: deviation of the angle [degrees], which is cut at twice this; six images in ten
            are turned.
        flip: whether half of the images are mirrored.
        num_joints_half_body: more labelled keypoints than these have to be there for half a body.
        prob_half_body: probability that the upper or the lower half is shown alone.
        upper_body_ids: the numbers of the keypoints of the upper half, from 0; None: those of
            COCO's 17.

    Raises:
        ConfigurationError: a number is out of its range.
    """
    width, height = checked_pair("image_size", image_size, "(width, height)")
    return v2.Compose(
        [
            TopDownAffine(
                (height, width),
                padding=_PADDING,
                scale=scale_factor,
                degrees=rot_factor,
                p_rotate=_P_ROTATE,
                p_flip=0.5 if flag("flip", flip) else 0.0,
                p_half_body=checked_probability("prob_half_body", prob_half_body),
                num_joints_half_body=num_joints_half_body,
                upper_body=upper_body_ids,
            ),
            *to_floats(),
        ]
    )


def hrnet_eval(image_size: Sequence[int] = (192, 256)) -> v2.Compose:
    """A transform for evaluation by the boxes of the annotations: nothing in it is random.

    Args:
        image_size: width, height [pixels].

    Raises:
        ConfigurationError: they are no two numbers of at least 1.
    """
    width, height = checked_pair("image_size", image_size, "(width, height)")
    return v2.Compose([TopDownAffine((height, width), padding=_PADDING), *to_floats()])


def hrnet_batches(
    image_size: Sequence[int] = (192, 256),
    heatmap_size: Sequence[int] = (48, 64),
    *,
    sigma: int = 2,
    use_different_joints_weight: bool = False,
) -> Callable[[Any], Batch]:
    """The `batch_transform`: (images, target, target_weight, meta). The target is float32 (B, K,
    height, width), a map for each keypoint, made on the device; its weight float32 (B, K, 1), 0 of
    keypoints that are not labelled or far outside; meta a dict of the other columns.

    Args:
        image_size: width, height [pixels], as of `hrnet`.
        heatmap_size: width, height of a map [pixels].
        sigma: deviation of the bell curve about a keypoint [pixels of a map], from 1 on.
        use_different_joints_weight: whether elbows, wrists, knees and ankles of COCO's 17 keypoints
            weigh more.

    Raises:
        ConfigurationError: a size is no two numbers of at least 1, `sigma` is below 1.
    """
    weights = (
        COCO_WEIGHTS if flag("use_different_joints_weight", use_different_joints_weight) else None
    )
    return _Batches(
        HeatMaps(image_size, heatmap_size, sigma, unbiased=False, weights=weights), "hrnet_batches"
    )


class _Batches(Targets):
    def __call__(self, batch: Any) -> Batch:
        return self.parts(batch)
