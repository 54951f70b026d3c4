"""Boxes around the objects in an image, and what each is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from fastload.draws import Draws
from fastload.errors import SourceError, counted
from fastload.sources import Source
from fastload.train.average_precision import Objects, average_precision
from fastload.train.models import import_library
from fastload.train.tasks.base import Evaluation, Inputs, Task, no_samples


class Targets(NamedTuple):
    """What is in the images of a batch."""

    objects: list[dict[str, torch.Tensor]]
    """Of each image: boxes (n, 4) left, top, right, bottom [pixels], labels (n,) from 1, and the
    other columns of the source."""
    indices: npt.NDArray[np.int64]
    """(B,): of the images in the data set."""


class Detection(Task):
    """Objects with boxes and classes, for detectors as torchvision has them: the sum of their
    losses, and COCO's average precision [0 to 1].

    Batches are those of `collate_fn="torchvision"`. While training the output is a dict of losses,
    each a mean over the batch, as torchvision computes them: so the loss of a sample is that of its
    batch, and depends a little on which samples share one. Crowds take no part in it. A validation
    gives boxes in the pixels of the images as they are stored, and compares them with the
    annotations as these are: crowds, and what VOC calls difficult, are neither right nor wrong."""

    counted = ("samples", "loss")
    results = ("map", "map50", "map75")
    best: tuple[str, Literal["min", "max"]] = ("map", "max")

    def __init__(self, *, evaluates: bool) -> None:
        """`evaluates`: there is to be a validation, for which pycocotools must be installed."""
        if evaluates:
            import_library("pycocotools.cocoeval", extra="detection")

    def study(self, source: Source) -> str:
        """How many objects there are to learn from. Raises SourceError: none."""
        labels: Any = source.instances["labels"].at(np.arange(len(source)))
        if not len(labels.values):
            raise SourceError(f"{source.name}: there are no objects in it to learn from.")
        seen = counted(len(np.unique(labels.values)), "class")
        return (
            f"{counted(len(labels.values), 'object')} of {seen} in {counted(len(source), 'image')}"
        )

    def prepare(self, batch: Any, draws: Draws) -> Inputs:
        images, objects = batch
        return Inputs(list(images), Targets(objects, draws.indices))

    def output(self, model: nn.Module, inputs: Inputs) -> Any:
        if not model.training:
            return model(inputs.model_input)
        return model(inputs.model_input, [_to_learn(each) for each in inputs.target.objects])

    def evaluation(self, device: torch.device) -> Evaluation:
        return _Detections()

    def losses(
        self, output: Mapping[str, torch.Tensor], target: Targets, *, training: bool = True
    ) -> torch.Tensor:
        total = torch.stack([loss.float() for loss in output.values()]).sum()
        return total.expand(len(target.objects))

    def _counts(self, output: Any, target: Targets) -> dict[str, torch.Tensor]:
        return {}

    def result(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["samples"]}


def _to_learn(objects: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Boxes and labels of an image, without crowds."""
    boxes, labels = objects["boxes"].float(), objects["labels"].long()
    if "iscrowd" not in objects:
        return {"boxes": boxes, "labels": labels}
    single = objects["iscrowd"] == 0
    return {"boxes": boxes[single], "labels": labels[single]}


class _Detections(Evaluation):
    """The true objects and those found, on the host."""

    def __init__(self) -> None:
        self._true: list[Objects] = []
        self._predicted: list[Objects] = []
        self._images: list[npt.NDArray[np.int64]] = []

    def add(self, output: list[dict[str, torch.Tensor]], target: Targets) -> None:
        self._images.append(target.indices)
        self._true.append(_joined(target.objects, target.indices, _area, _is_spared))
        self._predicted.append(_joined(output, target.indices, lambda one: one["scores"], _none))

    def result(self) -> dict[str, float]:
        parts: list[Any] = [(self._images, self._true, self._predicted)]
        if dist.is_available() and dist.is_initialized():
            parts = [None] * dist.get_world_size()
            dist.all_gather_object(parts, (self._images, self._true, self._predicted))
        images, true, predicted = ([one for part in parts for one in part[n]] for n in range(3))
        if not images:
            raise no_samples()
        numbers = np.concatenate(images)
        assert len(np.unique(numbers)) == len(numbers), "no image is on two ranks"
        wanted = _all(true)
        if wanted.crowds.all():
            raise SourceError(
                "val_data: there are no objects in it to be found; give other data, or --no-val."
            )
        return average_precision(wanted, _all(predicted), numbers)


def _joined(
    images: list[dict[str, torch.Tensor]],
    indices: npt.NDArray[np.int64],
    scores: Any,
    crowds: Any,
) -> Objects:
    """The objects of a batch; one copy from the device a column."""
    boxes = torch.cat([one["boxes"] for one in images])
    return Objects(
        np.repeat(indices, [len(one["boxes"]) for one in images]),
        boxes.double().cpu().numpy(),
        torch.cat([one["labels"] for one in images]).long().cpu().numpy(),
        torch.cat([scores(one) for one in images]).double().cpu().numpy(),
        torch.cat([crowds(one) for one in images]).cpu().numpy(),
    )


def _area(one: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if "area" in one:
        return one["area"]
    return (one["boxes"][:, 2:] - one["boxes"][:, :2]).prod(1)


def _is_spared(one: Mapping[str, torch.Tensor]) -> torch.Tensor:
    spared = _none(one)
    for name in ("iscrowd", "difficult"):
        if name in one:
            spared = spared | (one[name] != 0)
    return spared


def _none(one: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.zeros(len(one["boxes"]), dtype=torch.bool, device=one["boxes"].device)


def _all(parts: list[Objects]) -> Objects:
    return Objects(*(np.concatenate(column) for column in zip(*parts, strict=True)))
