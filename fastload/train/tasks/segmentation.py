"""One class of pixels, such as cracks: binary cross entropy with a positive weight, IoU and Dice."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from fastload.cache.samples import samples_of
from fastload.decode.base import DecodeSettings
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, SourceError, StateMismatchError
from fastload.machine import usable_cores
from fastload.sources.base import Source
from fastload.train.tasks.base import Inputs, mean_of

__all__ = ["Segmentation"]

_COUNTED_MASKS = 2_000
"""Masks that the positive weight is counted on, at most: enough for it, and seconds of decoding."""


class Segmentation:
    """Output (B, 1, H, W) logits; target (B, H, W) float32, 1 where the mask says so.

    A pixel is positive where its mask is above half of the largest value that the training masks have. So masks of 0
    and 1 and of 0 and 255 are both understood, and the noise that JPEG leaves around 0 and 255 is no crack. The
    positive weight of the loss is negative pixels / positive pixels of the training masks, before any cropping. IoU and
    Dice are those of all pixels of the set together, not means over images; 1 where nothing was there or found.
    """

    unit = "images"
    counted: tuple[str, ...] = ("samples", "loss", "intersection", "predicted", "true")
    best: tuple[str, Literal["min", "max"]] = ("iou", "max")

    def __init__(self) -> None:
        self._threshold = 0
        self._positive_weight = 0.0
        """0 until `study` or `load_state_dict`."""

    def study(self, source: Source) -> str:
        """Count the training masks: at most 2,000 of them, evenly spread.

        Raises:
            SourceError: masks of one value only.
            ConfigurationError: masks that look like class numbers.
            DecodeError: none of the masks can be read.
        """
        masks = {name: column for name, column in source.images.items() if column.role == "mask"}
        pixels, counted = _histogram(Source(masks, source.fingerprint, source.name))
        largest = int(np.flatnonzero(pixels)[-1])
        if 1 < largest < 128:
            raise ConfigurationError(
                f"task: the masks of {source.name} have values up to {largest}, which look like class numbers; "
                "segmentation is of one class here: give masks of 0 and 1, or of 0 and 255."
            )
        threshold = largest // 2
        positive, negative = int(pixels[threshold + 1 :].sum()), int(pixels[: threshold + 1].sum())
        if not positive or not negative:
            raise SourceError(
                f"{source.name}: every pixel of {counted:,} masks is {largest}; segmentation needs pixels of both "
                "kinds. Are these the masks?"
            )
        self._threshold, self._positive_weight = threshold, negative / positive
        of_all = f"{counted:,} masks" if counted == len(source) else f"{counted:,} of {len(source):,} masks"
        return (
            f"positive weight {self._positive_weight:.4g}: {negative:,} negative pixels to {positive:,} positive ones "
            f"(mask above {threshold}) in {of_all}"
        )

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        assert self._positive_weight, "study() or load_state_dict() comes first"
        images, masks = batch
        return Inputs(model_input=images, target=(masks > self._threshold).float(), count=len(masks))

    def losses(self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True) -> torch.Tensor:
        logits = _one_channel(output, target).float()
        weight = torch.full((), self._positive_weight, device=logits.device)
        losses = F.binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none")
        return losses.mean((1, 2))

    def metrics(self, output: torch.Tensor, target: torch.Tensor, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted, true = _one_channel(output, target) > 0, target > 0
        return {
            "samples": torch.full((), len(target), dtype=torch.float64, device=output.device),
            "loss": losses.sum(dtype=torch.float64),
            "intersection": (predicted & true).sum(),
            "predicted": predicted.sum(),
            "true": true.sum(),
        }

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        """loss [nats a pixel, positive ones weighted], iou and dice [0 to 1]."""
        both, either = sums["intersection"], sums["predicted"] + sums["true"]
        return {
            "loss": mean_of(sums, "loss"),
            "iou": both / (either - both) if either else 1.0,
            "dice": 2 * both / either if either else 1.0,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self._threshold, "positive_weight": self._positive_weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"threshold", "positive_weight"}:
            raise StateMismatchError(
                "state: segmentation keeps threshold and positive_weight, got "
                f"{', '.join(map(str, state)) or 'nothing'}; the checkpoint is of another task."
            )
        self._threshold, self._positive_weight = int(state["threshold"]), float(state["positive_weight"])


def _histogram(masks: Source) -> tuple[npt.NDArray[np.int64], int]:
    """(256,) pixels of each value over evenly spread masks, and how many masks these were. Unreadable ones: without."""
    samples = samples_of(masks, DecodeSettings())
    chosen = np.linspace(0, len(masks) - 1, min(len(masks), _COUNTED_MASKS)).round().astype(np.int64)

    def count(index: int) -> npt.NDArray[np.int64] | DecodeError:
        (pixels,) = samples.read(index).pixels
        return pixels if isinstance(pixels, DecodeError) else np.bincount(pixels.ravel(), minlength=256)

    total, counted, error = np.zeros(256, dtype=np.int64), 0, None
    with ThreadPoolExecutor(usable_cores()) as pool:
        for one in pool.map(count, chosen.tolist()):
            if isinstance(one, DecodeError):
                error = error or one
                continue
            total += one
            counted += 1
    if error is not None and not counted:
        raise error
    return total, counted


def _one_channel(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.ndim != 4 or output.shape[1] != 1 or output.shape[2:] != target.shape[1:]:
        raise ConfigurationError(
            f"model: segmentation needs one logit a pixel, (B, 1, {', '.join(map(str, target.shape[1:]))}), got an "
            f"output {tuple(output.shape)}; choose a segmentation network (smp:Unet/resnet34) with num_classes 1."
        )
    return output[:, 0]
