"""The augmentation of segmentation_models.pytorch's example of several classes, on CamVid.

Follows `get_training_augmentation` and `get_validation_augmentation` of
`examples/camvid_segmentation_multiclass.ipynb` of github.com/qubvel-org/segmentation_models.pytorch
(MIT) at 5006616.
"""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

from fastload.arguments import integer
from fastload.errors import BackendUnavailableError


def smp_camvid(size: int = 320) -> Any:
    """An `albumentations.Compose` for RGB images and masks of classes, for training: uint8 (3,
    `size`, `size`), and masks of the same size. The example's model normalises.

    Images are mirrored, scaled and shifted with black around them, cut, and changed in colour,
    sharpness and noise.

    Args:
        size: of the crop [pixels].

    Raises:
        BackendUnavailableError: albumentations is not installed.
        ConfigurationError: the size is below 1.
    """
    integer("size", size, 1)
    of = _albumentations()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a ShiftScaleRotate is an Affine
        moved = of.ShiftScaleRotate(
            scale_limit=0.5, rotate_limit=0, shift_limit=0.1, p=1, border_mode=0
        )
    return of.Compose(
        [
            of.HorizontalFlip(p=0.5),
            moved,
            of.PadIfNeeded(min_height=size, min_width=size),
            of.RandomCrop(height=size, width=size),
            of.GaussNoise(p=0.2),
            of.Perspective(p=0.5),
            of.OneOf([of.CLAHE(p=1), of.RandomBrightnessContrast(p=1), of.RandomGamma(p=1)], p=0.9),
            of.OneOf(
                [of.Sharpen(p=1), of.Blur(blur_limit=3, p=1), of.MotionBlur(blur_limit=3, p=1)],
                p=0.9,
            ),
            of.OneOf([of.RandomBrightnessContrast(p=1), of.HueSaturationValue(p=1)], p=0.9),
        ]
    )


def smp_camvid_eval(min_height: int = 384, min_width: int = 480) -> Any:
    """An `albumentations.Compose` for evaluation: images and masks are padded to these sides
    [pixels], which are multiples of 32, as the example's model needs them; larger ones stay.

    Args:
        min_height: of the padded image [pixels].
        min_width: likewise.

    Raises:
        BackendUnavailableError: albumentations is not installed.
        ConfigurationError: a side is below 1.
    """
    integer("min_height", min_height, 1)
    integer("min_width", min_width, 1)
    of = _albumentations()
    return of.Compose([of.PadIfNeeded(min_height, min_width)])


def _albumentations() -> ModuleType:
    try:
        import albumentations
    except ImportError as error:
        raise BackendUnavailableError(
            f"pipelines.smp_camvid is a transform of albumentations ({error}): "
            "pip install albumentations"
        ) from error
    module: ModuleType = albumentations
    return module
