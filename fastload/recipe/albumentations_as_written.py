"""Transforms of albumentations that have no operation here: they run as they were written."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload.errors import ConfigurationError
from fastload.recipe.operation import CopiedTransform, qualified_name


def _is_kept(mode: str) -> bool:
    """Whether PIL images of this mode are given as they are: those of more than 8 bits (I, I;16, F)
    among them, which `convert` would cut to 255."""
    return mode in ("L", "RGB") or mode.startswith(("I", "F"))


class AsFunction(CopiedTransform):
    """An albumentations transform as a function of an image and its masks. Its random numbers
    follow from Python's generator, which the `torch` backend seeds for each sample; the user's own
    object is left alone."""

    def __init__(self, transform: Any, *, is_last: bool = False) -> None:
        """`is_last`: an array that it makes is an image of the batch, a tensor (C, H, W)."""
        self.given, self._is_last = transform, is_last
        self._transform: Any = None

    def as_last(self) -> AsFunction:
        """This transform, where none follows it."""
        return AsFunction(self.given, is_last=True)

    def __call__(self, image: Any, *masks: Any) -> Any:
        if self._transform is None:
            self._transform = copy.deepcopy(self.given)
        if any(not isinstance(mask, tv_tensors.Mask) for mask in masks):
            raise ConfigurationError(
                f"transform: {qualified_name(self.given)} runs as Python code, on one image "
                "and its masks, and samples have several images."
            )
        if isinstance(image, Image.Image) and not _is_kept(image.mode):
            image = image.convert("RGB")  # What fastload reads is RGB.
        if isinstance(image, torch.Tensor):
            raise ConfigurationError(
                f"transform: {qualified_name(self.given)} is given a tensor (C, H, W), and works "
                "on arrays (H, W, C); put it before what makes tensors, with ToTensorV2 last."
            )
        seed = random.getrandbits(64)
        self._transform.set_random_state(np.random.default_rng(seed), random.Random(seed))
        data: dict[str, Any] = {"image": np.asarray(image)}
        if masks:
            data["masks"] = [mask.numpy().reshape(mask.shape[-2:]) for mask in masks]
        for processor in getattr(self._transform, "processors", {}).values():
            # Sources with such columns are refused, and it insists on them.
            nothing = np.zeros((0, 4 if processor.default_data_name == "bboxes" else 2))
            data[processor.default_data_name] = nothing
            data |= {name: [] for name in processor.params.label_fields or ()}
        transformed = self._transform(**data)
        result = transformed["image"]
        if self._is_last and isinstance(result, np.ndarray):
            result = v2.functional.to_image(result)
        if not masks:
            return result
        done = (torch.as_tensor(np.asarray(mask)) for mask in transformed["masks"])
        return (result, *(tv_tensors.Mask(mask[None]) for mask in done))
