"""Sizes that grow with the epochs: EfficientNetV2's stages, and FFCV's ramp.

`efficientnetv2_sizes` follows `efficientnetv2/main_tf2.py` of github.com/google/automl (Apache 2.0)
at 6a54c87: Tan and Le, 2021, "EfficientNetV2: Smaller Models and Faster Training". `ffcv_sizes`
follows `get_resolution` of `train_imagenet.py` and `rn50_configs/rn50_88_epochs.yaml` of
github.com/libffcv/ffcv-imagenet (Apache 2.0) at 4dd291a: Leclerc et al., 2023, "FFCV: Accelerating
Training by Removing Data Bottlenecks".
"""

from __future__ import annotations

from typing import Any

from fastload.arguments import integer, require
from fastload.sampler import Shuffle
from fastload.sampler.scales import Progressive

_STEP = 32
"""Sizes on FFCV's ramp are multiples of this [pixels]."""


def efficientnetv2_sizes(
    isize: int = 300,
    *,
    epochs: int = 350,
    stages: int = 4,
    ibase: int | None = 128,
    order: Any = None,
) -> Progressive:
    """The `order` of a loader whose images grow in stages of equally many epochs. The one operation
    of the transform that makes all images one size makes that of the stage.

    Args:
        isize: side of the images of the last stage [pixels]: 300 of EfficientNetV2-S, 384 of M, L
            and XL.
        epochs: of the whole training.
        stages: how many sizes.
        ibase: the first stage is of a side of this and a part of 1 / `stages` of what is missing to
            `isize`; None: half of `isize`.
        order: in which samples come, such as `fastload.Shuffle()`, which None is.

    Raises:
        ConfigurationError: a number is below 1; there are more stages than epochs; `ibase` is above
            `isize`.
    """
    last, count = integer("isize", isize, 1), integer("stages", stages, 1)
    whole = integer("epochs", epochs, 1)
    require("stages", count <= whole, f"at most {whole}, the number of epochs", stages)
    base = last / 2 if ibase is None else integer("ibase", ibase, 1)
    require("ibase", base <= last, f"at most {last}, which isize is", ibase)
    firsts = (int(stage / count * whole) for stage in range(count))
    sides = (int(base + (last - base) * ((stage + 1) / count)) for stage in range(count))
    return _growing(dict(zip(firsts, sides, strict=True)), order)


def ffcv_sizes(
    min_res: int = 160,
    max_res: int = 192,
    *,
    start_ramp: int = 65,
    end_ramp: int = 76,
    order: Any = None,
) -> Progressive:
    """The `order` of a loader whose images grow from one size to another, in multiples of 32 pixels
    between. The one operation of the transform that makes all images one size makes that of the
    epoch.

    Args:
        min_res: side of the images up to the epoch `start_ramp` [pixels].
        max_res: side of the images from the epoch `end_ramp` on [pixels].
        start_ramp: the last epoch of the smallest images; 65 is that of 88 epochs.
        end_ramp: the first epoch of the largest images.
        order: in which samples come, such as `fastload.Shuffle()`, which None is.

    Raises:
        ConfigurationError: a size is below 1, or an epoch below 0; `min_res` is above `max_res`, or
            `start_ramp` above `end_ramp`.
    """
    low, high = integer("min_res", min_res, 1), integer("max_res", max_res, 1)
    first, last = integer("start_ramp", start_ramp, 0), integer("end_ramp", end_ramp, 0)
    require("min_res", low <= high, f"at most {high}, which max_res is", min_res)
    require("start_ramp", first <= last, f"at most {last}, which end_ramp is", start_ramp)
    sides = {0: low}
    for epoch in range(first + 1, last):
        between = low + (high - low) * (epoch - first) / (last - first)
        sides[epoch] = round(between / _STEP) * _STEP  # half to even, as numpy's
        require("min_res", sides[epoch] > 0, f"above {_STEP // 2}, half of {_STEP}", min_res)
    sides[max(last, first + 1)] = high
    return _growing(sides, order)


def _growing(sides: dict[int, int], order: Any) -> Progressive:
    """`sides`: by epochs, ascending from 0; equal ones that follow each other are said once."""
    sizes: dict[int, int] = {}
    for epoch, side in sides.items():
        if not sizes or list(sizes.values())[-1] != side:
            sizes[epoch] = side
    return Progressive(Shuffle() if order is None else order, sizes=sizes)
