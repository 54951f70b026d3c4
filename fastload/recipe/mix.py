"""MixUp and CutMix, as torchvision defines them, with numbers that are the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import one_hot
from torchvision.transforms import v2

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, counted
from fastload.recipe.operation import PixelOperation


@dataclass(frozen=True)
class Pairing:
    """How each image of a batch is mixed with the one before it, the first with the last."""

    weight: float
    """Of the image itself."""
    box: tuple[int, int, int, int] | None = None
    """(left, top, right, bottom) of what is taken from the other; None: all pixels are blended."""

    def mix(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W)."""
        if self.box is None:
            return _blend(images, self.weight)
        left, top, right, bottom = self.box
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
        return mixed


class Mix:
    """What is done to a whole batch and its labels, with numbers that depend on seed, epoch and
    batch alone, so that every rank mixes its part of a global batch in the same proportion."""

    in_pairs: ClassVar[bool] = False
    """Whether `pairing` and `mixed_labels` are defined, so that the images may be mixed in the pass
    that normalises them."""

    def pairing(self, draws: Draws, *, height: int, width: int) -> Pairing:
        """How each image of this size is mixed with the one before it in the batch."""
        raise NotImplementedError

    def mixed_labels(
        self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
    ) -> torch.Tensor:
        """The labels of `apply`; `images` may be mixed already."""
        raise NotImplementedError

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images of the same dtype, and (B, K) floating-point labels.

        Args:
            images: (B, C, H, W), floating point; for CutMix of any dtype.
            labels: (B,) integer class numbers, or (B, K) probabilities.
            draws: of one index: the global batch of the epoch, 0-based.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class _Blending(Mix):
    in_pairs = True

    alpha: float = 1.0
    num_classes: int | None = None
    """Needed for labels that are class numbers."""

    def targets(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """(B, K) floating-point labels."""
        name = type(self).__name__
        if labels.ndim not in (1, 2) or images.ndim != 4 or len(labels) != len(images):
            raise ConfigurationError(
                f"{name} needs images (B, C, H, W) and labels (B,) or (B, K), got shapes "
                f"{tuple(images.shape)} and {tuple(labels.shape)}; mix before anything that "
                "changes them."
            )
        if labels.ndim == 1:
            if labels.is_floating_point():
                raise ConfigurationError(
                    f"{name} needs labels that are class numbers, or probabilities (B, K); got "
                    f"{labels.dtype} of shape {tuple(labels.shape)}. Make them integers."
                )
            if self.num_classes is None:
                raise ConfigurationError(
                    f"{name} needs num_classes for labels that are class numbers; pass "
                    f"{name}(num_classes=...)."
                )
            labels = one_hot(labels.to(torch.int64), self.num_classes)
        elif self.num_classes is not None and labels.shape[1] != self.num_classes:
            raise ConfigurationError(
                f"{name}(num_classes={self.num_classes}) got labels of "
                f"{counted(labels.shape[1], 'class')}; make the two equal, or leave num_classes "
                "out."
            )
        return labels if labels.is_floating_point() else labels.to(torch.float32)

    def mixed_labels(
        self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
    ) -> torch.Tensor:
        height, width = images.shape[-2:]
        targets = self.targets(images, labels)
        return _blend(targets, self.pairing(draws, height=height, width=width).weight)

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
    ) -> tuple[torch.Tensor, torch.Tensor]:
        labels = self.mixed_labels(images, labels, draws)
        height, width = images.shape[-2:]
        return self.pairing(draws, height=height, width=width).mix(images), labels


@dataclass(frozen=True)
class MixUp(_Blending):
    """Each sample blended with the one before it in the batch (Zhang et al., 2018, "mixup")."""

    def weight(self, draws: Draws) -> float:
        """lam ~ Beta(alpha, alpha): the weight of the sample itself."""
        return float(_random_state(draws).beta(self.alpha, self.alpha))

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not images.is_floating_point():
            raise ConfigurationError(
                f"MixUp needs floating-point images, got {images.dtype}; add "
                "ToDtype(torch.float32, scale=True) to the transform, or use CutMix."
            )
        return super().apply(images, labels, draws)

    def pairing(self, draws: Draws, *, height: int, width: int) -> Pairing:
        return Pairing(self.weight(draws))


@dataclass(frozen=True)
class CutMix(_Blending):
    """A box of each sample replaced by that of the one before it in the batch (Yun et al., 2019,
    "CutMix")."""

    def box(
        self, draws: Draws, *, height: int, width: int
    ) -> tuple[tuple[int, int, int, int], float]:
        """The box (left, top, right, bottom), and the share of the image that is left of the sample
        itself.

        A centre anywhere in the image, sides sqrt(1 - lam) of the image's with lam ~ Beta(alpha,
        alpha), clipped.
        """
        state = _random_state(draws)
        half = 0.5 * math.sqrt(1.0 - state.beta(self.alpha, self.alpha))
        x, y = int(state.randint(width)), int(state.randint(height))
        half_width, half_height = int(half * width), int(half * height)
        left, right = max(x - half_width, 0), min(x + half_width, width)
        top, bottom = max(y - half_height, 0), min(y + half_height, height)
        return (left, top, right, bottom), 1.0 - (right - left) * (bottom - top) / (width * height)

    def pairing(self, draws: Draws, *, height: int, width: int) -> Pairing:
        box, left = self.box(draws, height=height, width=width)
        return Pairing(left, box)


@dataclass(frozen=True)
class MixChoice(Mix):
    """One of several for each batch, as torchvision's RandomChoice."""

    choices: tuple[Mix, ...]
    weights: tuple[float, ...]
    """Probabilities, one each, with sum 1."""

    def choose(self, draws: Draws) -> Mix:
        uniform = draws.uniform(Stream.MIX_CHOICE, 1)[0, 0]
        index = int(np.searchsorted(np.cumsum(self.weights), uniform, side="right"))
        return self.choices[min(index, len(self.choices) - 1)]

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.choose(draws).apply(images, labels, draws)

    @property
    def in_pairs(self) -> bool:  # type: ignore[override]
        return all(choice.in_pairs for choice in self.choices)

    def pairing(self, draws: Draws, *, height: int, width: int) -> Pairing:
        return self.choose(draws).pairing(draws, height=height, width=width)

    def mixed_labels(
        self, images: torch.Tensor, labels: torch.Tensor, draws: Draws
    ) -> torch.Tensor:
        return self.choose(draws).mixed_labels(images, labels, draws)


@dataclass(frozen=True)
class Mixing(PixelOperation):
    """The images of one batch mixed, as the last operation of its program."""

    mix: Mix
    draws: Draws
    """Of the batch."""

    def pairing(self, images: torch.Tensor) -> Pairing:
        height, width = images.shape[-2:]
        return self.mix.pairing(self.draws, height=height, width=width)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self.pairing(images).mix(images)


def lower_batch_transform(transform: Any) -> Mix | Callable[..., Any] | None:
    """torchvision's v2.MixUp, v2.CutMix, or RandomChoice of them, as data; any other callable, or
    None, as it is.

    Only the very classes count, not their subclasses, and only with the default `labels_getter`.

    Raises:
        ConfigurationError: not callable.
    """
    if type(transform) is v2.RandomChoice:
        choices = [lower_batch_transform(choice) for choice in transform.transforms]
        # A choice within a choice is not known.
        known = tuple(choice for choice in choices if isinstance(choice, _Blending))
        if len(known) == len(choices):
            return MixChoice(known, tuple(float(p) for p in transform.p))
    kind = {v2.MixUp: MixUp, v2.CutMix: CutMix}.get(type(transform))
    if (
        kind is not None
        and transform._labels_getter is type(transform)(num_classes=1)._labels_getter
    ):
        return kind(transform.alpha, transform.num_classes)
    if transform is not None and not callable(transform) and not isinstance(transform, Mix):
        raise ConfigurationError(
            f"batch_transform={transform!r} is not callable; give v2.MixUp, v2.CutMix, or a "
            "function of (images, labels) that returns both."
        )
    result: Mix | Callable[..., Any] | None = transform
    return result


def label_among(names: Sequence[Any], layout: str) -> Any:
    """Which of the columns beside the images has the labels that are mixed with them, as
    torchvision finds it: the only one; of a tuple the first; of a dict the one called "labels", or
    else the only one whose name has "label" in it. None: no column, or nobody knows. In a dict of
    the user's a column may have a number for its name."""
    if len(names) == 1 or layout != "dict":
        return names[0] if names else None
    named = [name for name in names if isinstance(name, str) and "label" in name.lower()]
    exact = [name for name in named if name.lower() == "labels"]
    return next(iter(exact or named)) if len(exact or named) == 1 else None


def _blend(values: torch.Tensor, lam: float) -> torch.Tensor:
    """lam * values + (1 - lam) * (values of the sample before), in torchvision's order of
    operations."""
    return values.roll(1, 0).mul_(1.0 - lam).add_(values.mul(lam))


def _random_state(draws: Draws) -> np.random.RandomState:
    """A generator for one batch. NumPy has frozen RandomState: it gives these numbers in every
    version."""
    bits = int(draws.integers(Stream.MIX)[0])
    return np.random.RandomState([bits >> 32, bits & 0xFFFFFFFF])
