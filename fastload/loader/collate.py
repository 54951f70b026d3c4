"""Batches in the form that trainers of detectors take: `create_loader(collate_fn=...)`.

A batch is made as one piece: the images in one tensor, and each column of objects as the elements
of all images with offsets. What is made of it here is views of these, and a few numbers for all
objects at once: nothing is copied object by object, and no more tensors travel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fastload.draws import native_core
from fastload.errors import ConfigurationError
from fastload.host_memory import BufferPool, Zeros
from fastload.loader.config import FORMS
from fastload.recipe.outputs import SIZES, Outputs
from fastload.recipe.separate import SeparateProgram
from fastload.recipe.split import BatchProgram, SplitRecipe
from fastload.sources.base import Source
from fastload.sources.keypoints import is_points
from fastload.sources.kinds import kind_named
from fastload.sources.ragged import Ragged

Collate = Callable[[dict[str, Any]], Any]
"""From the columns of a batch, by name: tensors of B rows, and `Ragged` of tensors with B rows."""


def collate_of(
    given: str | Collate, source: Source, outputs: Outputs, recipe: SplitRecipe
) -> Collate:
    """The function that `collate_fn=` means.

    Raises ConfigurationError: there is no form of that name; or the source has not the columns that
    it needs.
    """
    if callable(given):
        if source.objects:
            raise _refused(source, "whose samples Python code makes; give a function of samples")
        return given
    if given not in _FORMS:
        raise ConfigurationError(
            f"collate_fn={given!r}: there is no such form; give {FORMS}, or a function."
        )
    if source.objects:
        raise _refused(source, "whose samples Python code makes; give a function of samples")
    if outputs.as_views:
        raise ConfigurationError(
            f"collate_fn={given!r}: a sample here is several views (transform has Views). Give a "
            "CollateColumns of a function."
        )
    images = [name for name, column in source.images.items() if column.kind.coloured]
    boxes = [
        name for name, column in source.instances.items() if column.kind is kind_named("boxes")
    ]
    for what, names in (("column of images", images), ("column of boxes", boxes)):
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise _refused(
                source,
                f"which must have one {what} for collate_fn={given!r} and has {there} (columns: "
                f"{', '.join(source.columns)}). Give boxes as a fastload.Ragged",
            )
    if "labels" not in source.instances:
        raise _refused(
            source,
            f"which has no labels of the objects, and collate_fn={given!r} needs them: a Ragged "
            "column called 'labels'",
        )
    form: type[_Form] = _FORMS[given]
    own = form(
        images[0], boxes[0], from_zero=source.classes is not None, crowds=_has_crowds(source)
    )
    return _for_task(own, source, recipe) if isinstance(own, UltralyticsForm) else own


def _for_task(form: UltralyticsForm, source: Source, recipe: SplitRecipe) -> UltralyticsForm:
    """The form for the task that the recipe is for."""
    polygons = [n for n, c in source.instances.items() if c.kind is kind_named("polygons")]
    around = recipe.around_masks(0) is not None
    if around and (source.drawn or recipe.geometry.out_size is None):
        lacks = "masks=True is for other forms; open it without" if source.drawn else ""
        lacks = lacks or "masks are of one size; add a crop or Letterbox to a (height, width)"
        raise _refused(source, f"and collate_fn='ultralytics' draws masks of its own: {lacks}")
    size = recipe.geometry.out_size
    if around and size is not None and any(side % 4 for side in size):
        raise ConfigurationError(
            "collate_fn='ultralytics': masks have a quarter of the sides of the images, and the "
            f"transform makes images of {size}. Give it sides that are multiples of 4."
        )
    points = [name for name, column in source.instances.items() if is_points(column)]
    return replace(
        form,
        polygons=polygons[0] if around else "",
        points=points[0] if recipe.hides_points else "",
    )


def _has_crowds(source: Source) -> bool:
    column = source.instances.get("iscrowd")
    return column is not None and bool(column.at(np.arange(len(source))).values.any())


def _refused(source: Source, why: str) -> ConfigurationError:
    return ConfigurationError(f"collate_fn: it is for {source.name}, {why}.")


@dataclass(frozen=True)
class _Form(ABC):
    """Puts the columns of a batch together."""

    images: str
    boxes: str
    """Names of the columns."""
    from_zero: bool
    """Whether labels count the classes of the source from 0."""

    crowds: bool = False
    """Whether `iscrowd` of the source marks any object."""

    @abstractmethod
    def __call__(self, columns: dict[str, Any]) -> Any:
        """The batch, of its columns by name."""

    def targets(self, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
        """For each image a dict of what is in it: views of all columns but the images."""
        targets: list[dict[str, Any]] = [{} for _ in range(len(columns[self.images]))]
        lengths: dict[bytes, list[int]] = {}
        for name, column in columns.items():
            if name not in (self.images, SIZES):
                for target, row in zip(targets, _rows(column, lengths), strict=True):
                    target[name] = row
        return targets


class TorchvisionForm(_Form):
    """(images, targets): a list of B images (C, H, W), each of its own size where a transform makes
    several (on a GPU views of one padded tensor, elsewhere each in memory of its own); and a
    list of B dicts with boxes (n, 4), left, top,
    right, bottom in pixels, labels (n,) int64, and all other columns.

    Labels that count classes from 0 are served from 1, those that LVIS says of whole images too,
    because torchvision's detectors take 0 for the background. Others are served as they are.
    """

    def separated(self, programs: Sequence[BatchProgram]) -> list[SeparateProgram]:
        """What makes the list, in place of programs that make batches."""
        return [SeparateProgram(one.ops) for one in programs]

    def __call__(self, columns: dict[str, Any]) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
        if self.from_zero:
            columns = columns | {
                name: _from_one(columns[name])
                for name in _CLASSES
                if isinstance(columns.get(name), Ragged)
            }
        images = columns[self.images]
        if isinstance(images, list):  # each has its size
            return images, self.targets(columns)
        images = list(images.unbind(0))
        if SIZES in columns:
            # On a GPU this thread, which is ahead of the trainer, waits for a few bytes.
            sizes = columns[SIZES].tolist()
            images = [one[:, :h, :w] for one, (h, w) in zip(images, sizes, strict=True)]
        return images, self.targets(columns)


@dataclass(frozen=True)
class DetrForm(_Form):
    """(images, mask, targets): images (B, C, H, W); mask (B, H, W) bool, True where a pixel is no
    part of the image; a list of B dicts with boxes (n, 4), centre, width and height in fractions of
    the image, labels (n,), size (2,) int64 height and width, and all other columns.

    Images of several sizes lie in the upper left corner, and around them are zeros, after all
    operations. What a transform pads is part of the image.
    """

    zeros: Zeros = field(default_factory=Zeros)
    """Memory of masks on the host where all images have one size."""
    masks: BufferPool = field(default_factory=BufferPool)
    """Where they have several."""

    def __call__(
        self, columns: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor, list[dict[str, Any]]]:
        images, boxes = columns[self.images], columns[self.boxes]
        count, _, height, width = images.shape
        size = columns.get(SIZES)
        if size is None:
            centred, mask = _centred(boxes, height, width), self._none(images)
            size = _empty((count, 2), torch.int64, images.device)
            written = _numbers(size)
            written[:, 0], written[:, 1] = height, width
        else:
            sides = _numbers(size)
            centred, mask = (
                _centred(boxes, sides[:, 0], sides[:, 1]),
                _padded(images, size, self.masks),
            )
        moved = {self.boxes: Ragged(centred, boxes.offsets, boxes.on_host), "size": size}
        return images, mask, self.targets(columns | moved)

    def _none(self, images: torch.Tensor) -> torch.Tensor:
        """(B, H, W) bool, False everywhere."""
        count, _, height, width = images.shape
        if images.device.type == "cpu":
            return torch.from_numpy(self.zeros.allocate((count, height, width)))
        return torch.zeros((count, height, width), dtype=torch.bool, device=images.device)


class YoloForm(_Form):
    """(images, targets): images (B, C, H, W), and (T, 6) float32 for all T objects of the batch:
    the number of the image in the batch, class, centre x and y, width, height in fractions of the
    image. Other columns are left out, and so are crowds (`iscrowd`), of which nothing here would
    say that they are."""

    def __call__(self, columns: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        images, boxes, labels = columns[self.images], columns[self.boxes], columns["labels"]
        height, width = images.shape[-2:]
        targets = _centred(boxes, height, width, labels)
        return images, targets[columns["iscrowd"].values == 0] if self.crowds else targets


@dataclass(frozen=True)
class UltralyticsForm(_Form):
    """The dict that the trainer of Ultralytics takes, for the task that the transform is for
    (`fastload.pipelines.yolo`): `img` (B, C, H, W); of all T objects of the batch `batch_idx` (T,)
    float32, the number of the image, `cls` (T, 1) float32, and `bboxes` (T, 4) float32, centre x
    and y, width, height in fractions of the image.

    Where boxes are put around polygons (`BoxesOfMasks`), `masks` (B, H / 4, W / 4) uint8, or int32
    where an image has more than 255 objects: the number of the object that each fourth pixel shows,
    from 1 in the order of those of the image, 0 for none; the objects of an image are in order of
    the area of their masks, the largest first, and smaller ones lie above. Where keypoints are
    hidden (`HideKeypoints`), `keypoints` (T, K, 3) float32, x and y in fractions of the image, and
    visibility. Crowds (`iscrowd`) are left out.
    """

    polygons: str = ""
    points: str = ""
    """Names of the columns; empty: not of this task."""

    def __call__(self, columns: dict[str, Any]) -> dict[str, torch.Tensor]:
        images, boxes = columns[self.images], columns[self.boxes]
        height, width = images.shape[-2:]
        targets, rows = _centred(boxes, height, width, columns["labels"]), boxes.rows_of_values
        chosen = np.arange(len(rows))
        if self.crowds:
            chosen = np.flatnonzero(np.asarray(columns["iscrowd"].values.cpu()) == 0)
        batch = {"img": images}
        if self.polygons:
            from fastload.loader.overlaps import overlaps

            polygons = columns[self.polygons].map(lambda part: part.cpu().numpy())
            order, masks = overlaps(polygons, chosen, (height, width))
            chosen, batch["masks"] = order, torch.from_numpy(masks).to(images.device)
        moved = len(chosen) < len(rows) or bool(self.polygons)
        which = torch.from_numpy(chosen).to(targets.device)
        targets = targets[which] if moved else targets
        batch |= {"batch_idx": targets[:, 0], "cls": targets[:, 1:2], "bboxes": targets[:, 2:]}
        if self.points:
            values = columns[self.points].values
            points = (values[which] if moved else values).to(torch.float32, copy=True)
            points[..., 0] /= width
            points[..., 1] /= height
            batch["keypoints"] = points
        return batch


_CLASSES = ("labels", "neg_labels", "not_exhaustive_labels")
"""Columns of numbers of classes."""


_FORMS: dict[str, type[_Form]] = {
    "torchvision": TorchvisionForm,
    "detr": DetrForm,
    "yolo": YoloForm,
    "ultralytics": UltralyticsForm,
}


def _from_one(labels: Ragged) -> Ragged:
    """Labels that counted from 0, counted from 1."""
    return Ragged(_tensor(_numbers(labels.values) + 1), labels.offsets, labels.on_host)


def _numbers(tensor: torch.Tensor) -> Any:
    """On the host, a numpy array over the same memory: with few numbers most of the time is that of
    the calls, and numpy's take a third of the time of torch's."""
    if tensor.device.type != "cpu":
        return tensor
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised. On the host of numpy's memory: torch's `empty` takes 30 us where none of its
    code is in caches, as after a batch was decoded."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, {torch.float32: "f4", torch.int64: "i8"}[dtype]))


def _tensor(numbers: Any) -> torch.Tensor:
    """Over the same memory."""
    return torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else numbers


def _centred(boxes: Ragged, height: Any, width: Any, labels: Ragged | None = None) -> torch.Tensor:
    """(T, 4) centre x and y, width, height in fractions of an image, of boxes (left, top, right,
    bottom) in pixels; floating point. With labels (T, 6) float32: the number of the image, label,
    and these.

    Height and width: of all images, or (B,) of each. The native core, where it is built, does in
    one call what the rest of this does in many.
    """
    values, core = boxes.values, native_core()
    columns = [values] if labels is None else [values, labels.values]
    known = [torch.float32, torch.int64][: len(columns)]
    host = all(one.device.type == "cpu" and one.is_contiguous() for one in columns)
    if core is not None and host and [one.dtype for one in columns] == known:
        out = _empty((len(values), 4 if labels is None else 6), torch.float32, values.device)
        sizes = np.array([height, width], dtype=np.int64).reshape(2, -1)
        numbers = None if labels is None else labels.values.numpy()
        one_size = isinstance(height, int)
        core.centre_boxes(values.numpy(), boxes.bounds, sizes, one_size, numbers, out.numpy())
        return out
    image_of_each = _image_of_each(boxes)
    if not isinstance(height, int):
        height, width = height[image_of_each], width[image_of_each]
    centred = _tensor(_centred_by_numpy(_numbers(values), height, width))
    if labels is None:
        return centred
    targets = _empty((len(values), 6), torch.float32, values.device)
    written = _numbers(targets)
    written[:, 0], written[:, 1] = image_of_each, _numbers(labels.values)
    written[:, 2:] = _numbers(centred)
    return targets


def _centred_by_numpy(boxes: Any, height: Any, width: Any) -> Any:
    """(T, 4) of (T, 4) boxes, by numpy, or by torch on a GPU; height and width: of all, or (T,) of
    the image of each."""
    if isinstance(boxes, np.ndarray):
        boxes = boxes if boxes.dtype.kind == "f" else boxes.astype(np.float32)
    else:
        boxes = boxes if boxes.is_floating_point() else boxes.to(torch.float32)
    first, last = boxes[:, :2], boxes[:, 2:]
    module: Any = np if isinstance(boxes, np.ndarray) else torch
    centred = module.concatenate([first + last, last - first], 1)
    for column, share in enumerate((0.5 / width, 0.5 / height, 1 / width, 1 / height)):
        centred[:, column] *= share
    return centred


def _image_of_each(rows: Ragged) -> Any:
    """(T,) int64: which row each element belongs to, where `_numbers` has the elements, without
    waiting for a device."""
    offsets = rows.offsets
    if offsets.device.type == "cpu":
        return rows.rows_of_values
    numbers = torch.arange(len(rows), device=offsets.device)
    return torch.repeat_interleave(numbers, offsets.diff(), output_size=len(rows.values))


def _padded(images: torch.Tensor, size: torch.Tensor, masks: BufferPool) -> torch.Tensor:
    """(B, H, W) bool, True beside images of these sizes, (B, 2) height and width, where the images
    (B, C, H, W) become 0. `masks`: memory on the host."""
    count, _, height, width = images.shape
    if images.device.type == "cpu":  # writes only beside them
        outside = masks.allocate((count, height, width)).view(np.bool_)
        pixels: Any = images if images.dtype == torch.bfloat16 else images.numpy()
        for image, row, (h, w) in zip(pixels, outside, size.tolist(), strict=True):
            row[:h, :w], row[:h, w:], row[h:] = False, True, True
            image[:, :h, w:], image[:, h:] = 0, 0
        return torch.from_numpy(outside)
    rows, across = (torch.arange(n, device=images.device) for n in (height, width))
    mask = (rows[:, None] >= size[:, :1, None]) | (across >= size[:, 1:, None])
    images.masked_fill_(mask[:, None], 0)
    return mask


def _rows(column: Any, lengths: dict[bytes, list[int]]) -> Any:
    """The rows of a column, each a view. Of numbers and flat rows in one call each. `lengths`: of
    the rows, by the bytes of offsets, which most columns of a batch have in common."""
    if isinstance(column, Ragged) and isinstance(column.values, torch.Tensor):
        key = column.bounds.tobytes()
        if key not in lengths:
            ends = column.bounds.tolist()  # numpy's call takes longer for so few
            lengths[key] = [end - start for start, end in pairwise(ends)]
        # Views as those of `split`, which takes twice as long for what autograd would need of them.
        return torch.unsafe_split_with_sizes(column.values, lengths[key])
    return column.unbind(0) if isinstance(column, torch.Tensor) else column
