"""A `DetectionDataset` of the package supervision: its paths and annotations, read without its
code.

    supervision.DetectionDataset(classes=[...], images=[...], annotations={...})

Gives `image`, `boxes`, `labels`, and `confidence`, `tracker_id`, `area` and `iscrowd` where all
objects have them; with `masks=True` a mask of each object.

Supervision reads images by OpenCV, as BGR; here they are RGB, as everywhere in fastload.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError, and_more, counted
from fastload.sources.annotations import Annotations, checked_box
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.masks import Shapes, runs_of

_MODULE = "supervision.dataset.core"
_NUMBERS = {"area": "f", "iscrowd": "biu"}
"""The entries of its field `data` that are served, and the kinds of numbers that they may be."""


def is_supervision(spec: object) -> bool:
    """A DetectionDataset, or a class derived from it. The package is not imported for it."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(spec, module.DetectionDataset)


def open_supervision(dataset: Any, options: OpenOptions) -> Opened:
    """Open its images in its order: columns `image`, `boxes`, `labels`, `confidence` and
    `tracker_id` where all images have them, and `area` and `iscrowd` of its `data`. With `masks`,
    these are its masks.

    Raises:
        SourceError: its class or code is another one, or its images are in memory; an annotation
            without classes, with a class beyond its names or numbers of other lengths; a box that
            is reversed or not finite; a missing image. The message names the image and the object.
    """
    cls = type(dataset)
    if cls is not sys.modules[_MODULE].DetectionDataset or "__getitem__" in vars(dataset):
        raise SourceError(
            f"{cls.__name__}: it is derived from supervision's DetectionDataset, and may give "
            "other samples than its image_paths and annotations say. Give a DetectionDataset of "
            "these."
        )
    if getattr(dataset, "_images_in_memory", None):
        raise SourceError(
            "DetectionDataset: its images are arrays in memory; give it the paths of files, or "
            "fastload a dict of arrays (image, boxes, labels)."
        )
    paths = [os.path.abspath(path) for path in dataset.image_paths]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise SourceError(
            f"DetectionDataset: the image {missing[0]} is missing{and_more(missing)}; add it, or "
            "remove it from the data set."
        )
    every = [dataset.annotations[path] for path in dataset.image_paths]
    classes = [str(name) for name in dataset.classes]
    annotations = Annotations(shapes=Shapes() if options.masks else None)
    columns = _columns_of(every)
    annotations.numbers = {name: [] for name in columns}
    for path, one in zip(paths, every, strict=True):
        kept = _kept(one, path, len(classes), annotations)
        for name in columns:
            # An image without objects need not have them.
            annotations.numbers[name] += np.asarray(_numbers(one).get(name, ()))[kept].tolist()
        annotations.counts.append(len(kept))
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else "/"
    masked = sum(one.mask is not None for one in every)
    notes = (f"left out: masks of {counted(masked, 'image')}; masks=True serves them",)
    return annotations.source(
        [os.path.relpath(path, root) for path in paths],
        root,
        name=f"DetectionDataset of {root}",
        format="supervision's DetectionDataset",
        classes=classes,
        notes=notes if masked and not options.masks else (),
        strict=options.strict,
    )


def _numbers(one: Any) -> dict[str, Any]:
    """What the objects of an image have beside boxes and classes."""
    data = one.data if isinstance(one.data, Mapping) else {}
    numbers = {"confidence": one.confidence, "tracker_id": one.tracker_id}
    for name, codes in _NUMBERS.items():
        values = data.get(name)
        if isinstance(values, np.ndarray) and values.dtype.kind in codes:
            numbers[name] = values
    return {name: values for name, values in numbers.items() if values is not None}


def _columns_of(every: list[Any]) -> list[str]:
    """Those that the objects of all images have."""
    names = [set(_numbers(one)) for one in every if len(one.xyxy)]
    common = set.intersection(*names) if names else set()
    return [name for name in ("area", "iscrowd", "confidence", "tracker_id") if name in common]


def _kept(one: Any, path: str, classes: int, annotations: Annotations) -> npt.NDArray[np.int64]:
    """Add the boxes and classes of an image; which objects these are of."""
    boxes = np.asarray(one.xyxy, dtype=np.float64).reshape(-1, 4)
    labels = one.class_id if len(boxes) else np.zeros(0, np.int64)
    if labels is None:
        raise SourceError(f"{path}: its annotation has no class_id; give each object a class.")
    lengths = {name: len(values) for name, values in _numbers(one).items()} if len(boxes) else {}
    wrong = {name: n for name, n in {**lengths, "class_id": len(labels)}.items() if n != len(boxes)}
    if wrong:
        name, length = next(iter(wrong.items()))
        raise SourceError(
            f"{path}: its annotation has {counted(len(boxes), 'box')} and {length} in {name!r}; "
            "each object must have one in both."
        )
    kept = []
    for number, (box, label) in enumerate(zip(boxes.tolist(), labels.tolist(), strict=True)):
        where = f"{path}: object {number}"
        if not 0 <= label < classes:
            raise SourceError(
                f"{where}: class {label}, and there are {counted(classes, 'name')}, from 0; add "
                "the name or correct the annotation."
            )
        checked = checked_box((box[0], box[1], box[2], box[3]), None, where)
        if checked is None:
            annotations.empty += 1
            continue
        kept.append(number)
        annotations.boxes.append(checked)
        annotations.labels.append(label)
        if annotations.shapes is not None:
            runs = None if one.mask is None else runs_of(np.asarray(one.mask[number]))
            annotations.shapes.add(runs, None, where)
    return np.array(kept, dtype=np.int64)


FORMAT = Format(
    name="supervision",
    title="a DetectionDataset of supervision",
    recognise=is_supervision,
    open=open_supervision,
    signs=(),
    files=(),
    packages=("supervision",),
)
