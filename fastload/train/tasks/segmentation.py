"""A class for each pixel of an image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from fastload.draws import Draws
from fastload.errors import ConfigurationError, SourceError, StateMismatchError, counted
from fastload.sources import Source
from fastload.train.masks import NO_CLASS, mask_values
from fastload.train.tasks.base import Inputs, Task

# Of the loss of torchvision's second classifier, as its reference trains with it.
_AUXILIARY_SHARE = 0.5


class PixelTask(Task):
    """Output (B, K, H, W) scores; or, as torchvision's networks give it, a dict of these: "out",
    and "aux" of a second classifier, whose loss counts by half while training."""

    def losses(self, output: Any, target: torch.Tensor, *, training: bool = True) -> torch.Tensor:
        losses = self._losses(_scores(output), target, training=training)
        if training and isinstance(output, Mapping) and "aux" in output:
            auxiliary = self._losses(output["aux"], target, training=training)
            losses = losses + _AUXILIARY_SHARE * auxiliary
        return losses

    def _counts(self, output: Any, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return self._pixels(_scores(output), target)

    @abstractmethod
    def _losses(
        self, scores: torch.Tensor, target: torch.Tensor, *, training: bool
    ) -> torch.Tensor:
        """(B,) float32: the loss of each sample."""

    @abstractmethod
    def _pixels(self, scores: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        """Exact counts of pixels."""


def _scores(output: Any) -> torch.Tensor:
    scores: torch.Tensor = output["out"] if isinstance(output, Mapping) else output
    return scores


class Segmentation(PixelTask):
    """One class of pixels: binary cross entropy [nats a pixel] with a positive weight, IoU and Dice
    [0 to 1].

    Output (B, 1, H, W) logits; target (B, H, W) float32, 1 where the mask says so.

    A pixel is positive where its mask is above half of the largest value that the training masks
    have. So masks of 0 and 1 and of 0 and 255 are both understood, and the noise that JPEG leaves
    around 0 and 255 is no crack. The positive weight of the loss, unless there is to be none, is
    negative pixels / positive pixels of the training masks, before any cropping. IoU and Dice are
    those of all pixels of the set together, not means over images; 1 where nothing was there or
    found.
    """

    counted = ("samples", "loss", "intersection", "predicted", "true")
    results = ("loss", "iou", "dice")
    best: tuple[str, Literal["min", "max"]] = ("iou", "max")

    def __init__(self, *, weighted: bool) -> None:
        self._weighted = weighted
        self._threshold = 0
        self._positive_weight = 0.0
        """0 until `study` or `load_state_dict`."""

    def study(self, source: Source) -> str:
        """Count the training masks: at most 2,000 of them, evenly spread. Raises DecodeError if
        none can be read."""
        pixels, seen = mask_values(source)
        largest = int(np.flatnonzero(pixels)[-1])
        if 1 < largest < 128:
            raise ConfigurationError(
                f"num_classes: the masks of {source.name} have values up to {largest}, which look "
                f"like class numbers, got 1; say --num-classes {largest + 1}, or give masks of 0 "
                "and 1, or of 0 and 255."
            )
        threshold = largest // 2
        positive, negative = int(pixels[threshold + 1 :].sum()), int(pixels[: threshold + 1].sum())
        if not positive or not negative:
            raise SourceError(
                f"{source.name}: every pixel of {counted(seen, 'mask')} is {largest}; segmentation "
                "needs pixels of both kinds. Are these the masks?"
            )
        self._threshold, self._positive_weight = threshold, negative / positive
        of_all = ("" if seen == len(source) else f"{seen:,} of ") + counted(len(source), "mask")
        weight = (
            f"positive weight {self._positive_weight:.4g}"
            if self._weighted
            else "no positive weight"
        )
        return (
            f"{weight}: {negative:,} negative pixels to {positive:,} positive ones (mask "
            f"above {threshold}) in {of_all}"
        )

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        assert self._positive_weight, "study() or load_state_dict() comes first"
        images, masks = batch
        return Inputs(images, (masks > self._threshold).float())

    def _losses(
        self, scores: torch.Tensor, target: torch.Tensor, *, training: bool
    ) -> torch.Tensor:
        logits = _one_channel(scores, target).float()
        weight = (
            torch.full((), self._positive_weight, device=logits.device) if self._weighted else None
        )
        losses = F.binary_cross_entropy_with_logits(
            logits, target, pos_weight=weight, reduction="none"
        )
        return losses.mean((1, 2))

    def _pixels(self, scores: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted, true = _one_channel(scores, target) > 0, target > 0
        return {
            "intersection": (predicted & true).sum(),
            "predicted": predicted.sum(),
            "true": true.sum(),
        }

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        both, either = sums["intersection"], sums["predicted"] + sums["true"]
        return {
            "loss": sums["loss"] / sums["samples"],
            "iou": both / (either - both) if either else 1.0,
            "dice": 2 * both / either if either else 1.0,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self._threshold, "positive_weight": self._positive_weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._threshold, self._positive_weight = (
            int(state["threshold"]),
            float(state["positive_weight"]),
        )


class MultiClassSegmentation(PixelTask):
    """A class for each pixel: cross entropy [nats a pixel], mean IoU and accuracy [0 to 1].

    Output (B, K, H, W) scores; target (B, H, W) int64 class numbers, 255 where a pixel has no class
    (PASCAL VOC's borders), which counts nowhere.

    The loss of a sample is the mean over its pixels that have a class; all classes have the same
    weight. The IoU of a class is that of all pixels of the set together: pixels that are both of it
    and found / pixels that are either. The mean is over the classes that occur or were found; the
    accuracy is the share of the pixels that were found right.
    """

    results = ("loss", "mean_iou", "accuracy")
    best: tuple[str, Literal["min", "max"]] = ("mean_iou", "max")

    def __init__(self, num_classes: int, label_smoothing: float) -> None:
        if num_classes > NO_CLASS:
            raise ConfigurationError(
                "num_classes: masks have one byte a pixel, of which 255 is no class: 255 at "
                f"most, got {num_classes}."
            )
        self._classes = num_classes
        self._label_smoothing = label_smoothing
        self._names = [
            f"{name}_{k}"
            for name in ("intersection", "predicted", "true")
            for k in range(num_classes)
        ]
        self.counted = ("samples", "loss", "unknown", *self._names)

    def study(self, source: Source) -> str:
        """Check the training masks: at most 2,000 of them, evenly spread."""
        pixels, seen = mask_values(source)
        values = np.flatnonzero(pixels[:NO_CLASS])
        if len(values) and values[-1] >= self._classes:
            raise ConfigurationError(
                f"num_classes: the masks of {source.name} have values up to {values[-1]}, got "
                f"{counted(self._classes, 'class')}; say --num-classes {values[-1] + 1}. 255 "
                "is a pixel without class."
            )
        of_all = ("" if seen == len(source) else f"{seen:,} of ") + counted(len(source), "mask")
        without = (
            f", {pixels[NO_CLASS] / pixels.sum():.1%} of the pixels without"
            if pixels[NO_CLASS]
            else ""
        )
        return (
            f"{counted(self._classes, 'class')} of pixels, of which {len(values)} "
            f"occur{without}, in {of_all}"
        )

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        images, masks = batch
        return Inputs(images, masks.long())

    def _losses(
        self, scores: torch.Tensor, target: torch.Tensor, *, training: bool
    ) -> torch.Tensor:
        size = ", ".join(map(str, target.shape[1:]))
        if (
            scores.ndim != 4
            or scores.shape[1] != self._classes
            or scores.shape[2:] != target.shape[1:]
        ):
            raise ConfigurationError(
                f"model: segmentation of {counted(self._classes, 'class')} needs scores (B, "
                f"{self._classes}, {size}), got an output {tuple(scores.shape)}; choose a "
                "segmentation network (smp:Unet/resnet34)."
            )
        known = target < self._classes
        # Flat, because over (B, K, H, W) the device has no deterministic algorithm.
        losses = F.cross_entropy(
            scores.float().movedim(1, -1).flatten(0, 2),
            torch.where(known, target, NO_CLASS).flatten(),
            ignore_index=NO_CLASS,
            reduction="none",
            label_smoothing=self._label_smoothing if training else 0.0,
        )
        return losses.view_as(target).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)

    def _pixels(self, scores: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        known = target < self._classes
        predicted = scores.argmax(1)
        # The last place takes the pixels that do not count.
        counts = torch.zeros(3, self._classes + 1, dtype=torch.int64, device=scores.device)
        chosen = (
            torch.where(known & (predicted == target), target, self._classes),
            torch.where(known, predicted, self._classes),
            torch.where(known, target, self._classes),
        )
        for row, classes in zip(counts, chosen, strict=True):
            row.scatter_add_(0, classes.flatten(), torch.ones_like(classes).flatten())
        sums = dict(zip(self._names, counts[:, :-1].flatten().unbind(), strict=True))
        return {"unknown": (~known & (target != NO_CLASS)).sum(), **sums}

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        if sums["unknown"]:
            raise SourceError(
                f"masks: {counted(int(sums['unknown']), 'pixel')} of this epoch have "
                f"{self._classes} or more, which is no class of this network and not 255; correct "
                "the masks, or say --num-classes."
            )
        both, predicted, true = np.array([sums[name] for name in self._names]).reshape(
            3, self._classes
        )
        union = predicted + true - both
        return {
            "loss": sums["loss"] / sums["samples"],
            "mean_iou": float((both[union > 0] / union[union > 0]).mean()) if union.any() else 1.0,
            "accuracy": float(both.sum() / true.sum()) if true.any() else 1.0,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"classes": self._classes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if state["classes"] != self._classes:
            raise StateMismatchError(
                f"state: it is of {counted(state['classes'], 'class')}, the network has "
                f"{self._classes}; resume with --num-classes {state['classes']}."
            )


def _one_channel(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if scores.ndim != 4 or scores.shape[1] != 1 or scores.shape[2:] != target.shape[1:]:
        raise ConfigurationError(
            "model: segmentation needs one logit a pixel, (B, 1, "
            f"{', '.join(map(str, target.shape[1:]))}), got an output {tuple(scores.shape)}; "
            "choose a segmentation network (smp:Unet/resnet34) with num_classes 1."
        )
    return scores[:, 0]
