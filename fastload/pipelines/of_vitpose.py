"""ViTPose's training of human poses, one person a sample.

Follows `configs/body/2d_kpt_sview_rgb_img/topdown_heatmap/coco/ViTPose_base_coco_256x192.py` and
what that names in `mmpose/datasets` of github.com/ViTAE-Transformer/ViTPose (Apache 2.0) at
c050ed2. Xu et al., 2022, "ViTPose: Simple Vision Transformer Baselines for Human Pose Estimation".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchvision.transforms import v2

from fastload.arguments import flag
from fastload.pipelines.heat_maps import COCO_WEIGHTS, HeatMaps, Targets
from fastload.pipelines.normalised import checked_pair, checked_probability, to_floats
from fastload.recipe.transforms import TopDownAffine

ORIGINALS = {"mmpose.datasets.datasets.top_down.topdown_coco_dataset.TopDownCocoDataset": "vitpose"}

_PADDING = 1.25
_P_SHIFT, _SHIFT = 0.3, 0.2


def vitpose(
    image_size: Sequence[int] = (192, 256),
    *,
    flip_prob: float = 0.5,
    num_joints_half_body: int = 8,
    prob_half_body: float = 0.3,
    upper_body_ids: Sequence[int] | None = None,
    rot_factor: float = 40,
    scale_factor: float = 0.5,
    rot_prob: float = 0.6,
) -> v2.Compose:
    """A transform of RGB images of one person each, with box and keypoints, into float32 (3,
    height, width), normalised by ImageNet's mean and deviation, for training. Open COCO with
    `samples="poses"`, and give `vitpose_batches(...)` as the `batch_transform`.

    Args:
        image_size: width, height [pixels].
        flip_prob: probability of mirroring.
        num_joints_half_body: more labelled keypoints than these have to be there for half a body.
        prob_half_body: probability that the upper or the lower half is shown alone.
        upper_body_ids: the numbers of the keypoints of the upper half, from 0; None: those of
            COCO's 17.
        rot_factor: deviation of the angle [degrees], which is cut at twice this.
        scale_factor: deviation of the factor about 1; it is cut to 1 minus to 1 plus this.
        rot_prob: probability that the image is turned.

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
                p_rotate=checked_probability("rot_prob", rot_prob),
                p_flip=checked_probability("flip_prob", flip_prob),
                p_half_body=checked_probability("prob_half_body", prob_half_body),
                num_joints_half_body=num_joints_half_body,
                upper_body=upper_body_ids,
                shift=_SHIFT,
                p_shift=_P_SHIFT,
                unbiased=True,
            ),
            *to_floats(),
        ]
    )


def vitpose_eval(image_size: Sequence[int] = (192, 256)) -> v2.Compose:
    """A transform for evaluation by the boxes of the annotations: nothing in it is random.

    Args:
        image_size: width, height [pixels].

    Raises:
        ConfigurationError: they are no two numbers of at least 2.
    """
    width, height = checked_pair("image_size", image_size, "(width, height)")
    affine = TopDownAffine((height, width), padding=_PADDING, unbiased=True)
    return v2.Compose([affine, *to_floats()])


def vitpose_batches(
    image_size: Sequence[int] = (192, 256),
    heatmap_size: Sequence[int] = (48, 64),
    *,
    sigma: int = 2,
    use_different_joint_weights: bool = False,
) -> Callable[[Any], dict[str, Any]]:
    """The `batch_transform`: a dict with `img`, `target`, `target_weight` and `img_metas`, as the
    model is called with. The target is float32 (B, K, height, width), a map for each keypoint, made
    on the device; its weight float32 (B, K, 1), 0 of keypoints that are not labelled or far
    outside; `img_metas` a dict of the other columns.

    Args:
        image_size: width, height [pixels], as of `vitpose`.
        heatmap_size: width, height of a map [pixels].
        sigma: deviation of the bell curve about a keypoint [pixels of a map], from 1 on.
        use_different_joint_weights: whether elbows, wrists, knees and ankles of COCO's 17 keypoints
            weigh more.

    Raises:
        ConfigurationError: a size is no two numbers of at least 2, `sigma` is below 1.
    """
    weights = (
        COCO_WEIGHTS if flag("use_different_joint_weights", use_different_joint_weights) else None
    )
    return _Batches(
        HeatMaps(image_size, heatmap_size, sigma, unbiased=True, weights=weights), "vitpose_batches"
    )


class _Batches(Targets):
    def __call__(self, batch: Any) -> dict[str, Any]:
        images, target, weight, rest = self.parts(batch)
        return {"img": images, "target": target, "target_weight": weight, "img_metas": rest}
