"""Contrast-limited adaptive histogram equalisation, by the native core or by OpenCV. Grey images
have the same pixels; see fastload/native/clahe.hpp for others."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from fastload import native
from fastload.decode.libraries import core_pool
from fastload.render.steps import ClaheSteps


def equalized(images: torch.Tensor, steps: ClaheSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images, C = 1 or 3, in host memory or brought there, and back."""
    pixels = np.array(images.permute(0, 2, 3, 1).cpu().numpy(), order="C")
    if pixels.size and native.available():
        if failures := core_pool().clahe(pixels, steps.limits, steps.tiles, here=True).wait():
            raise MemoryError(f"CLAHE on the host: {failures[0].message}")
    elif pixels.size:
        for image, limit in zip(pixels, steps.limits.tolist(), strict=True):
            if limit:
                image[...] = _by_opencv(image, limit, steps.tiles)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(images.device)


def _by_opencv(image: Any, limit: float, tiles: tuple[int, int]) -> Any:
    cv2 = importlib.import_module("cv2")  # there wherever albumentations is
    method = cv2.createCLAHE(clipLimit=limit, tileGridSize=tiles[::-1])
    if image.shape[2] == 1:
        return method.apply(image[..., 0])[..., None]
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
    lab[..., 0] = method.apply(lab[..., 0])
    return cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)
