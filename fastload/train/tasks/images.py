"""Tasks on images: one label an image, and one class of pixels such as cracks."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from fastload.cache.samples import samples_of
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, SourceError, StateMismatchError, counted
from fastload.files import DecodeSettings
from fastload.machine import usable_cores
from fastload.sources.base import Source
from fastload.train.tasks.base import Inputs, Stateless, mean_of

_COUNTED_MASKS = 2_000
"""Masks that the positive weight is counted on, at most: enough for it, and seconds of decoding."""


class Classification(Stateless):
    """One label an image: cross entropy, top-1 and top-5.

    Output (B, K) scores; target (B,) int64 class numbers, or (B, K) probabilities as MixUp and CutMix make them.

    A mixed sample counts as right where the output's largest score is at the class with the larger share. Label
    smoothing is part of the training loss only: the validation loss is the plain cross entropy.
    """

    unit = "images"
    best: tuple[str, Literal["min", "max"]] = ("top1", "max")

    def __init__(self, *, num_classes: int, label_smoothing: float = 0.0) -> None:
        self._label_smoothing = label_smoothing
        # With five classes or fewer, top-5 is always 1.
        self._top5 = num_classes > 5
        self.results: tuple[str, ...] = ("loss", "top1", "top5") if self._top5 else ("loss", "top1")
        self.counted: tuple[str, ...] = ("samples", *self.results)

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        images, labels = batch
        return Inputs(model_input=images, target=labels, count=len(labels))

    def losses(self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True) -> torch.Tensor:
        smoothing = self._label_smoothing if training else 0.0
        if target.is_floating_point():
            target = target.float()
        return F.cross_entropy(output.float(), target, reduction="none", label_smoothing=smoothing)

    def metrics(self, output: torch.Tensor, target: torch.Tensor, losses: torch.Tensor) -> dict[str, torch.Tensor]:
        labels = target.argmax(1) if target.is_floating_point() else target
        ranked = output.topk(5 if self._top5 else 1, dim=1).indices
        right = ranked == labels[:, None]
        sums = {
            "samples": torch.full((), len(labels), dtype=torch.float64, device=output.device),
            "loss": losses.sum(dtype=torch.float64),
            "top1": right[:, 0].sum(),
        }
        return sums | {"top5": right.sum()} if self._top5 else sums

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        """loss [nats a sample], top1 and top5 [shares, 0 to 1]."""
        return {name: mean_of(sums, name) for name in self.results}


class Segmentation:
    """One class of pixels: binary cross entropy with a positive weight, IoU and Dice.

    Output (B, 1, H, W) logits; target (B, H, W) float32, 1 where the mask says so.

    A pixel is positive where its mask is above half of the largest value that the training masks have. So masks of 0
    and 1 and of 0 and 255 are both understood, and the noise that JPEG leaves around 0 and 255 is no crack. The
    positive weight of the loss, unless there is to be none, is negative pixels / positive pixels of the training masks,
    before any cropping. IoU and Dice are those of all pixels of the set together, not means over images; 1 where
    nothing was there or found.
    """

    unit = "images"
    counted: tuple[str, ...] = ("samples", "loss", "intersection", "predicted", "true")
    results: tuple[str, ...] = ("loss", "iou", "dice")
    best: tuple[str, Literal["min", "max"]] = ("iou", "max")

    def __init__(self, *, weighted: bool = True) -> None:
        """
        Args:
            weighted: False: every pixel counts the same, positive or not (plain binary cross entropy).
        """
        self._weighted = weighted
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
        pixels, seen = _histogram(Source(masks, source.fingerprint, source.name))
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
                f"{source.name}: every pixel of {counted(seen, 'mask')} is {largest}; segmentation needs pixels of "
                "both kinds. Are these the masks?"
            )
        self._threshold, self._positive_weight = threshold, negative / positive
        of_all = ("" if seen == len(source) else f"{seen:,} of ") + counted(len(source), "mask")
        weight = f"positive weight {self._positive_weight:.4g}" if self._weighted else "no positive weight"
        return (
            f"{weight}: {negative:,} negative pixels to {positive:,} positive ones (mask above {threshold}) in {of_all}"
        )

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        assert self._positive_weight, "study() or load_state_dict() comes first"
        images, masks = batch
        return Inputs(model_input=images, target=(masks > self._threshold).float(), count=len(masks))

    def losses(self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True) -> torch.Tensor:
        logits = _one_channel(output, target).float()
        weight = torch.full((), self._positive_weight, device=logits.device) if self._weighted else None
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

    total, seen, error = np.zeros(256, dtype=np.int64), 0, None
    with ThreadPoolExecutor(usable_cores()) as pool:
        for one in pool.map(count, chosen.tolist()):
            if isinstance(one, DecodeError):
                error = error or one
                continue
            total += one
            seen += 1
    if error is not None and not seen:
        raise error
    return total, seen


def _one_channel(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.ndim != 4 or output.shape[1] != 1 or output.shape[2:] != target.shape[1:]:
        raise ConfigurationError(
            f"model: segmentation needs one logit a pixel, (B, 1, {', '.join(map(str, target.shape[1:]))}), got an "
            f"output {tuple(output.shape)}; choose a segmentation network (smp:Unet/resnet34) with num_classes 1."
        )
    return output[:, 0]
