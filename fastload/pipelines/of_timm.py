"""timm's transforms of images, for training and for evaluation.

Follows `create_transform` of timm 1.0.31 (github.com/huggingface/pytorch-image-models, Apache 2.0),
which makes the transform: timm must be installed. What of it fastload does not have is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torchvision.transforms import v2

from fastload.arguments import flag, integer, require
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.pipelines.normalised import MEAN, STD, Floats, checked_probability, to_floats
from fastload.recipe import Recipe

_POLICIES = ("original", "originalr", "v0", "v0r", "3a")
_SETS = ("weights", "3a", "3aw")
_SECTIONS: dict[str, dict[str, tuple[Callable[[str], float], float, float]]] = {
    "rand": {
        "m": (int, 0, 100),
        "n": (int, 1, 100),
        "p": (float, 0, 1),
        "mstd": (float, 0, float("inf")),
        "mmax": (int, 1, 100),
        "inc": (int, 0, 1),
    },
    "augmix": {
        "m": (int, 0, 100),
        "w": (int, 1, 100),
        "d": (int, 1, 100),
        "a": (float, 1e-3, 1e3),
        "b": (int, 0, 0),
        "mstd": (float, 0, float("inf")),
    },
    **{policy: {"mstd": (float, 0, float("inf"))} for policy in _POLICIES},
}
"""Of each kind of string, its sections: the type of the number, and its bounds."""


def timm(
    input_size: int | tuple[int, int] = 224,
    is_training: bool = False,
    no_aug: bool = False,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    hflip: float = 0.5,
    vflip: float = 0.0,
    color_jitter: float | tuple[float, ...] | None = 0.4,
    color_jitter_prob: float | None = None,
    grayscale_prob: float = 0.0,
    gaussian_blur_prob: float = 0.0,
    auto_augment: str | None = None,
    interpolation: str = "bilinear",
    mean: Floats = MEAN,
    std: Floats = STD,
    re_prob: float = 0.0,
    re_mode: str = "const",
    re_count: int = 1,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
) -> v2.Compose:
    """timm's transform of RGB images into float32 (3, height, width), normalised.

    Its `train.py` has `interpolation="random"`, and `re_mode="pixel"`.

    Args:
        input_size: the side, or (height, width).
        is_training: a random resized crop, mirroring and changes of colour. Else the arguments
            from `crop_pct` on say what is cut out of the middle.
        no_aug: for training, only a resize and a crop in the middle.
        scale: least and largest share of the image's area that a crop has; None: timm's, 0.08 to 1.
        ratio: least and largest aspect ratio of a crop; None: timm's, 3/4 to 4/3.
        hflip: probability of mirroring, left and right.
        vflip: likewise, top and bottom.
        color_jitter: of brightness, contrast and saturation, and hue as a fourth; with
            `auto_augment` there is none, unless "3a" is in it.
        color_jitter_prob: probability of it; None: always.
        grayscale_prob: probability of a grey image.
        gaussian_blur_prob: probability of blurring.
        auto_augment: "rand-m9-mstd0.5-inc1", "original", "v0", "3a", "augmix-m5-w4-d2" and the
            like.
        interpolation: "bilinear", "bicubic", or, for training, "random" of these two.
        mean: that is taken away from each channel, of 0..1.
        std: that each channel is divided by, then.
        re_prob: probability of random erasing.
        re_mode: what the boxes are filled with: "const", 0; "rand", one colour; "pixel", noise.
        re_count: the most boxes.
        crop_pct: the part of the resized image that is left.
        crop_mode: "center", "squash" or "border".

    Raises:
        BackendUnavailableError: timm is not installed.
        ConfigurationError: an argument, or a section of `auto_augment`, that timm does not have; or
            this version of timm does something that fastload does not follow.
    """
    try:
        import timm as package
        from timm.data import create_transform
    except ImportError as error:
        raise BackendUnavailableError(
            f"pipelines.timm asks timm for the transform ({error}): pip install timm"
        ) from error
    size = (input_size, input_size) if isinstance(input_size, int) else tuple(input_size)
    require("input_size", len(size) == 2, "one side, or (height, width)", input_size)
    for side in size:
        integer("input_size", side, 1)
    training = flag("is_training", is_training)
    augments = training and not flag("no_aug", no_aug)
    for name, p in (
        ("hflip", hflip),
        ("vflip", vflip),
        ("color_jitter_prob", color_jitter_prob or 0.0),
        ("grayscale_prob", grayscale_prob),
        ("gaussian_blur_prob", gaussian_blur_prob),
        ("re_prob", re_prob),
    ):
        checked_probability(name, p)
    filters = ("bilinear", "bicubic", *(("random",) if training else ()))
    for name, value, words in (
        ("interpolation", interpolation, filters),
        ("re_mode", re_mode, ("const", "rand", "pixel")),
        ("crop_mode", crop_mode, (None, "center", "squash", "border")),
    ):
        require(name, value in words, f"one of {', '.join(map(repr, words))}", value)
    integer("re_count", re_count, 1)
    require("crop_pct", crop_pct is None or 0 < crop_pct <= 1, "above 0, 1 at most", crop_pct)
    to_floats(mean, std)
    if auto_augment:
        _check_string(auto_augment)
    of_timm = create_transform(
        input_size=input_size,
        is_training=training,
        no_aug=no_aug,
        scale=scale,
        ratio=ratio,
        hflip=hflip,
        vflip=vflip,
        color_jitter=color_jitter,
        color_jitter_prob=color_jitter_prob,
        grayscale_prob=grayscale_prob,
        gaussian_blur_prob=gaussian_blur_prob,
        auto_augment=auto_augment if augments else None,
        interpolation=interpolation,
        mean=mean,
        std=std,
        re_prob=re_prob,
        re_mode=re_mode,
        re_count=re_count,
        crop_pct=crop_pct,
        crop_mode=crop_mode,
    )
    transform = v2.Compose(of_timm.transforms)
    _check_known(transform, package.__version__)
    return transform


def _check_string(text: str) -> None:
    """Raise ConfigurationError: timm does not have it, or would pass over a part of it."""
    kind, *sections = text.split("-")
    if kind not in _SECTIONS:
        raise ConfigurationError(
            f"auto_augment={text!r}: it begins with one of {', '.join(_SECTIONS)}, such as "
            '"rand-m9-mstd0.5-inc1".'
        )
    known = _SECTIONS[kind]
    for section in sections:
        if kind == "rand" and section.startswith("t"):
            good = section[1:] in _SETS
        else:
            good = _is_known(section, known)
        if not good:
            shown = [
                f"{name} ({low:g} to {high:g})" if high > low else f"{name}{low:g}"
                for name, (_, low, high) in known.items()
            ]
            if kind == "rand":
                shown.append(f"t ({', '.join(_SETS)})")
            raise ConfigurationError(
                f"auto_augment={text!r}: {section!r} is none of the sections of {kind!r}, each "
                f"with its number: {', '.join(shown)}."
            )


def _is_known(section: str, known: dict[str, tuple[Callable[[str], float], float, float]]) -> bool:
    match = re.fullmatch(r"([a-z]+)(\d[\d.]*)", section)
    if match is None or match[1] not in known:
        return False
    number, low, high = known[match[1]]
    try:
        return low <= number(match[2]) <= high
    except ValueError:
        return False


def _check_known(transform: Any, version: str) -> None:
    for op in Recipe.from_transform(transform).ops:
        if op.is_opaque:
            raise ConfigurationError(
                f"timm {version} makes a transform that fastload does not have: "
                f"{op.reason_not_placed(None)}. fastload.pipelines.timm follows timm 1.0.31; "
                "install that, or give create_loader the transform of timm's create_transform, "
                "which then runs as it is written."
            )
