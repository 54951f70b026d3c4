"""The targets of models of keypoints: a map for each, of a bell curve about its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fastload.arguments import integer, require
from fastload.errors import ConfigurationError
from fastload.pipelines.normalised import checked_pair

COCO_WEIGHTS = (1.0,) * 7 + (1.2, 1.2, 1.5, 1.5, 1.0, 1.0, 1.2, 1.2, 1.5, 1.5)
"""Of the keypoints of COCO's person, as HRNet and mmpose weigh them where that is asked for."""
_REACH = 3
"""Deviations from the place to the edge of the square that is drawn."""


class HeatMaps:
    """Makes them of the keypoints of a batch, on their device. A class, so that it can be
    pickled."""

    def __init__(
        self,
        image_size: Sequence[int],
        heatmap_size: Sequence[int],
        sigma: int,
        *,
        unbiased: bool,
        weights: Sequence[float] | None = None,
    ) -> None:
        """
        Args:
            image_size: width, height of the images [pixels].
            heatmap_size: width, height of the maps [pixels].
            sigma: deviation of the bell curve [pixels of a map].
            unbiased: whether sizes are counted from centre to centre of the outermost pixels, and
                the curve is about the very place, in place of the nearest pixel.
            weights: of the keypoints; None: all 1.

        Raises:
            ConfigurationError: a size is no two numbers of at least 1 (`unbiased`: 2), `sigma` is
                below 1.
        """
        self.image_size = checked_pair("image_size", image_size, "(width, height)")
        self.size = checked_pair("heatmap_size", heatmap_size, "(width, height)")
        self.sigma, self.unbiased = integer("sigma", sigma, 1), unbiased
        self.weights = None if weights is None else tuple(weights)
        less = 1 if unbiased else 0
        sides = (*self.image_size, *self.size)
        require("heatmap_size", min(sides) > less, f"sizes above {less}", heatmap_size)
        self._stride = [
            (image - less) / (own - less)
            for image, own in zip(self.image_size, self.size, strict=True)
        ]

    def __call__(self, keypoints: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The maps and their weights.

        Args:
            keypoints: (B, K, 3): x, y [pixels of the image, (0, 0) the centre of the first], and
                above 0 where it is labelled.

        Returns:
            float32 (B, K, height, width), 1 at the place of each labelled keypoint that is in the
            map or near it, and 0 beyond 3 deviations; float32 (B, K, 1), 0 where it is not.
        """
        places = keypoints[..., :2].double() / keypoints.new_tensor(
            self._stride, dtype=torch.float64
        )
        nearest = (places + 0.5).trunc()  # as int() has it
        reach = _REACH * self.sigma
        size = nearest.new_tensor(self.size)
        shown = ((nearest - reach < size) & (nearest + reach + 1 >= 0)).all(dim=-1)
        weight = keypoints[..., 2].clamp(0, 1) * shown
        about, curves = places if self.unbiased else nearest, []
        for axis in (1, 0):
            pixels = torch.arange(self.size[axis], device=places.device, dtype=places.dtype)
            away = pixels - about[..., axis, None]
            curve = torch.exp(-(away**2) / (2 * self.sigma**2))
            curves.append(curve * ((pixels - nearest[..., axis, None]).abs() <= reach))
        rows, columns = (curve.float() for curve in curves)
        target = (rows * (weight > 0.5)[..., None])[..., :, None] * columns[..., None, :]
        weight = weight.float()
        if self.weights is not None:
            weight = weight * weight.new_tensor(self.weights)
        return target, weight[..., None]


class Targets:
    """The `batch_transform` that puts them beside the images. Define `__call__`."""

    def __init__(self, maps: HeatMaps, name: str) -> None:
        """`name`: of the function of `fastload.pipelines`, for messages."""
        self.maps, self.name = maps, name

    def parts(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Images, maps, weights, and all other columns."""
        columns = batch if isinstance(batch, dict) else {}
        points = columns.get("keypoints")
        if not isinstance(points, torch.Tensor) or points.ndim != 3 or "image" not in columns:
            there = ", ".join(columns) or type(batch).__name__
            raise ConfigurationError(
                f"batch_transform: pipelines.{self.name} takes batches with columns 'image' and "
                f"'keypoints' (B, K, 3), got {there}. Give open_source(..., samples=\"poses\")."
            )
        count = points.shape[1]
        if self.maps.weights is not None and len(self.maps.weights) != count:
            raise ConfigurationError(
                f"batch_transform: pipelines.{self.name} has {len(self.maps.weights)} weights, and "
                f"an object {count} keypoints. Leave them out."
            )
        target, weight = self.maps(points)
        rest = {name: column for name, column in columns.items() if name != "image"}
        return columns["image"], target, weight, rest
