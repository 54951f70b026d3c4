"""What can be trained: what a batch becomes, what is minimised, and what is counted.

Everything that is counted is a sum over samples, so that neither batches nor ranks change a result.
Nothing here waits for the device: sums stay there until the epoch's end. A new task is a class
here, a line in `create_task`, and its name in `TrainConfig.task`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, SourceError, StateMismatchError, counted
from fastload.loader import Loader
from fastload.render.transfer import on_device
from fastload.sources.base import Source
from fastload.train.config import TrainConfig
from fastload.train.masks import NO_CLASS, mask_values
from fastload.train.texts import PADDING, TOKENS

_HIDDEN_SHARE = 0.15
_MASK_SHARE, _RANDOM_SHARE = 0.8, 0.1
"""Of the hidden tokens: replaced by the mask token, by a random one; the rest are left as they
are."""


def create_task(config: TrainConfig, *, num_classes: int) -> Task:
    """The task that the configuration names, for a network of so many outputs."""
    match config.task:
        case "classification":
            return Classification(num_classes, config.optimizer.label_smoothing)
        case "segmentation" if num_classes == 1:
            return Segmentation(weighted=config.optimizer.positive_weight == "masks")
        case "segmentation":
            return MultiClassSegmentation(num_classes, config.optimizer.label_smoothing)
        case "masked-lm":
            return MaskedLanguage(num_classes)
        case "text-classification":
            return TextClassification(num_classes, config.optimizer.label_smoothing)


def draws_of(loader: Loader, *, epoch: int, step: int) -> Draws:
    """The random numbers of the samples of batch `step` of an epoch, both 0-based, for
    `Task.prepare`.

    Of the seed, the epoch and the sample's place in its order, which is global: neither ranks nor
    batch size nor the step that a run was resumed at can change them.
    """
    order = loader.sampler.order
    return Draws(order.seed, epoch, order.batch(step))


class Inputs(NamedTuple):
    """One batch as the network and the loss take it; it may have no samples."""

    model_input: torch.Tensor
    target: Any
    """What the output is compared with."""


class MetricSums:
    """Named sums in float64 on the device: exact counts up to 2**53, and losses whose order does
    not show.

    The names are given at the start, so that a rank that never had a sample takes part in `total`
    like the others.
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._names = tuple(names)
        self._sums = torch.zeros(len(self._names), dtype=torch.float64, device=device)

    def add(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Add a scalar tensor to each sum, without waiting for the device; all names must be
        there."""
        self._sums += torch.stack([sums[name].detach().to(torch.float64) for name in self._names])

    def read(self) -> dict[str, float]:
        """The sums of this rank; waits for the device."""
        return dict(zip(self._names, self._sums.tolist(), strict=True))

    def total(self) -> dict[str, float]:
        """The sums over all ranks, on every rank. A collective; without a process group, those of
        this process."""
        return self.total_later().values()

    def total_later(self) -> PendingSums:
        """The same as of now, without waiting for the device. A collective."""
        sums = self._sums.clone()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        return PendingSums(self._names, sums)

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from what `read` gave."""
        values = [state[name] for name in self._names]
        self._sums = torch.tensor(values, dtype=torch.float64, device=self._sums.device)


class PendingSums:
    """Sums on their way from a device to the host."""

    def __init__(self, names: Sequence[str], sums: torch.Tensor) -> None:
        """`sums`: (names,) on any device."""
        self._names = names
        self._host = sums
        self._copied: torch.cuda.Event | None = None
        if sums.is_cuda:
            self._host = torch.empty_like(sums, device="cpu", pin_memory=True)
            self._host.copy_(sums, non_blocking=True)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record()

    @property
    def ready(self) -> bool:
        """Whether they have arrived."""
        return self._copied is None or self._copied.query()

    def values(self) -> dict[str, float]:
        """By name; waits for them."""
        if self._copied is not None:
            self._copied.synchronize()
        return dict(zip(self._names, self._host.tolist(), strict=True))


class Task(ABC):
    """One kind of training. It holds no counts: those are the caller's `MetricSums`."""

    unit = "images"
    """What samples are called in the log."""
    counted: tuple[str, ...]
    """The keys that `metrics` returns, always all of them."""
    results: tuple[str, ...]
    """The names that `result` returns."""
    best: tuple[str, Literal["min", "max"]]
    """Which result of the validation makes a checkpoint the best one, and whether low or high is
    good."""

    def study(self, source: Source) -> str | None:
        """Find what must be known about the training data before the first step: a line for the
        log, if anything.

        Every rank does it, and all find the same. Not called where a state was loaded.
        """
        return None

    @abstractmethod
    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        """What the loader yields, as inputs; the draws are those of the batch's samples."""

    @abstractmethod
    def losses(self, output: torch.Tensor, target: Any, *, training: bool = True) -> torch.Tensor:
        """(B,) float32: the loss of each sample, itself a mean over the sample's pixels or tokens.

        `training=False` leaves out what only regularises (label smoothing).
        """

    @abstractmethod
    def _counts(self, output: torch.Tensor, target: Any) -> dict[str, torch.Tensor]:
        """What is counted besides samples and loss; exact."""

    def metrics(
        self, output: torch.Tensor, target: Any, losses: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """A scalar tensor for each of `counted`: the sum over the samples of this batch."""
        samples = torch.full((), len(losses), dtype=torch.float64, device=output.device)
        return {
            "samples": samples,
            "loss": losses.sum(dtype=torch.float64),
            **self._counts(output, target),
        }

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        """What a person reads ("loss", "top1"...) from sums over at least one sample."""
        return {name: sums[name] / sums["samples"] for name in self.results}

    def state_dict(self) -> dict[str, Any]:
        """What `study` found, as plain values; belongs in the checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """In place of `study`, when a run is resumed. Raises StateMismatchError for the state of
        another task."""
        if set(state) != set(self.state_dict()):
            keeps, got = (
                ", ".join(map(str, names)) or "none" for names in (self.state_dict(), state)
            )
            raise StateMismatchError(
                f"state: {type(self).__name__} keeps {keeps}, got {got}; the checkpoint is of "
                "another task. Resume "
                "with the task it was made with."
            )


# -- Images ----------------------------------------------------------------------------------------


class Classification(Task):
    """One label an image: cross entropy [nats a sample], top-1 and top-5 [shares, 0 to 1].

    Output (B, K) scores; target (B,) int64 class numbers, or (B, K) probabilities as MixUp and
    CutMix make them.

    A mixed sample counts as right where the output's largest score is at the class with the larger
    share. Label smoothing is part of the training loss only: the validation loss is the plain cross
    entropy.
    """

    best: tuple[str, Literal["min", "max"]] = ("top1", "max")

    def __init__(self, num_classes: int, label_smoothing: float) -> None:
        self._label_smoothing = label_smoothing
        # With five classes or fewer, top-5 is always 1.
        self._top5 = num_classes > 5
        self.results = ("loss", "top1", "top5") if self._top5 else ("loss", "top1")
        self.counted = ("samples", *self.results)

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        return Inputs(*batch)

    def losses(
        self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True
    ) -> torch.Tensor:
        smoothing = self._label_smoothing if training else 0.0
        if target.is_floating_point():
            target = target.float()
        return F.cross_entropy(output.float(), target, reduction="none", label_smoothing=smoothing)

    def _counts(self, output: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        labels = target.argmax(1) if target.is_floating_point() else target
        right = output.topk(5 if self._top5 else 1, dim=1).indices == labels[:, None]
        top1 = {"top1": right[:, 0].sum()}
        return top1 | {"top5": right.sum()} if self._top5 else top1


class Segmentation(Task):
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
                f"num_classes: the masks of {source.name} have values up to {largest}, which "
                "look like class numbers, "
                f"got 1; say --num-classes {largest + 1}, or give masks of 0 and 1, or of 0 "
                "and 255."
            )
        threshold = largest // 2
        positive, negative = int(pixels[threshold + 1 :].sum()), int(pixels[: threshold + 1].sum())
        if not positive or not negative:
            raise SourceError(
                f"{source.name}: every pixel of {counted(seen, 'mask')} is {largest}; "
                "segmentation needs pixels of "
                "both kinds. Are these the masks?"
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

    def losses(
        self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True
    ) -> torch.Tensor:
        logits = _one_channel(output, target).float()
        weight = (
            torch.full((), self._positive_weight, device=logits.device) if self._weighted else None
        )
        losses = F.binary_cross_entropy_with_logits(
            logits, target, pos_weight=weight, reduction="none"
        )
        return losses.mean((1, 2))

    def _counts(self, output: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted, true = _one_channel(output, target) > 0, target > 0
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


class MultiClassSegmentation(Task):
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
            f"{kind}_{k}"
            for kind in ("intersection", "predicted", "true")
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

    def losses(
        self, output: torch.Tensor, target: torch.Tensor, *, training: bool = True
    ) -> torch.Tensor:
        size = ", ".join(map(str, target.shape[1:]))
        if (
            output.ndim != 4
            or output.shape[1] != self._classes
            or output.shape[2:] != target.shape[1:]
        ):
            raise ConfigurationError(
                f"model: segmentation of {counted(self._classes, 'class')} needs scores (B, "
                f"{self._classes}, {size}), "
                f"got an output {tuple(output.shape)}; choose a segmentation network "
                "(smp:Unet/resnet34)."
            )
        known = target < self._classes
        # Flat, because over (B, K, H, W) the device has no deterministic algorithm.
        losses = F.cross_entropy(
            output.float().movedim(1, -1).flatten(0, 2),
            torch.where(known, target, NO_CLASS).flatten(),
            ignore_index=NO_CLASS,
            reduction="none",
            label_smoothing=self._label_smoothing if training else 0.0,
        )
        return losses.view_as(target).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)

    def _counts(self, output: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        known = target < self._classes
        predicted = output.argmax(1)
        # The last place takes the pixels that do not count.
        counts = torch.zeros(3, self._classes + 1, dtype=torch.int64, device=output.device)
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
                f"{self._classes} or more, which is "
                "no class of this network and not 255; correct the masks, or say --num-classes."
            )
        both, found, true = np.array([sums[name] for name in self._names]).reshape(3, self._classes)
        union = found + true - both
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
                f"{self._classes}; resume with "
                f"--num-classes {state['classes']}."
            )


def _one_channel(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.ndim != 4 or output.shape[1] != 1 or output.shape[2:] != target.shape[1:]:
        raise ConfigurationError(
            "model: segmentation needs one logit a pixel, (B, 1, "
            f"{', '.join(map(str, target.shape[1:]))}), got an "
            f"output {tuple(output.shape)}; choose a segmentation network (smp:Unet/resnet34) "
            "with num_classes 1."
        )
    return output[:, 0]


# -- Token ids -------------------------------------------------------------------------------------


class MaskedTokens(NamedTuple):
    """What is to be guessed: places in the sequences, rising, and what stood there, each (B, M)
    int64."""

    positions: torch.Tensor
    tokens: torch.Tensor


class MaskedLanguage(Task):
    """Masked language modelling as in BERT (Devlin et al., 2019): cross entropy [nats a hidden
    token], and top-1, the share of the hidden tokens that were guessed.

    Batches are {"input_ids": (B, L) integers}; output (B, L, V) scores, the last of the V tokens
    being the mask token.

    Every sequence has the same number of hidden positions, round(0.15 L) and at least one, so that
    a batch has a fixed shape and each sequence the same weight. Which ones, and what stands in
    their place, is a function of the draws
    alone: other ones each epoch, the same ones in every validation.
    """

    unit = "sequences"
    counted = ("samples", "loss", "tokens", "top1")
    results = ("loss", "top1")
    best: tuple[str, Literal["min", "max"]] = ("loss", "min")

    def __init__(self, num_classes: int) -> None:
        self._mask_token = num_classes - 1

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        tokens = batch[TOKENS].long()
        length = tokens.shape[1]
        hidden = max(1, round(_HIDDEN_SHARE * length))
        # One stream: a key for each position, then two numbers for each hidden one.
        numbers = draws.uniform(Stream.MASKED_TOKENS, length + 2 * hidden)
        chosen = np.sort(np.argsort(numbers[:, :length], axis=1, kind="stable")[:, :hidden], axis=1)
        fates, words = numbers[:, length : length + hidden], numbers[:, length + hidden :]
        # -1: leave the token as it is. Random tokens are any but the mask token.
        replaced = np.where(
            fates < _MASK_SHARE + _RANDOM_SHARE, (words * self._mask_token).astype(np.int64), -1
        )
        replacement = np.where(fates < _MASK_SHARE, self._mask_token, replaced)
        positions, replacements = (
            on_device(chosen, tokens.device),
            on_device(replacement, tokens.device),
        )
        originals = tokens.gather(1, positions)
        shown = torch.where(replacements < 0, originals, replacements)
        return Inputs(tokens.scatter(1, positions, shown), MaskedTokens(positions, originals))

    def losses(
        self, output: torch.Tensor, target: MaskedTokens, *, training: bool = True
    ) -> torch.Tensor:
        # Flat, because over (B, V, M) the device has no deterministic algorithm.
        scores = _at(output, target.positions).flatten(0, 1)
        losses = F.cross_entropy(scores, target.tokens.flatten(), reduction="none")
        return losses.view_as(target.tokens).mean(1)

    def _counts(self, output: torch.Tensor, target: MaskedTokens) -> dict[str, torch.Tensor]:
        right = _at(output, target.positions).argmax(2) == target.tokens
        tokens = torch.full((), right.numel(), dtype=torch.float64, device=output.device)
        return {"tokens": tokens, "top1": right.sum()}

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["samples"], "top1": sums["top1"] / sums["tokens"]}


def _at(output: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(B, M, V) float32: the scores at the hidden positions."""
    rows = torch.arange(len(positions), device=positions.device)[:, None]
    return output[rows, positions].float()


class TextClassification(Classification):
    """One label a text, counted as one label an image.

    Batches are {"input_ids": (B, L) integers, "label": (B,) integers}. A batch is cut to its
    longest text, whose length must be known to the host: on a GPU each step waits for its batch to
    arrive.
    """

    unit = "texts"

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        tokens = batch[TOKENS].long()
        longest = int((tokens != PADDING).sum(1).max()) if len(tokens) else tokens.shape[1]
        return Inputs(tokens[:, :longest], batch["label"].long())
