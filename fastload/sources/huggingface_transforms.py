"""Transforms of Hugging Face's data sets, `with_transform` and `set_transform`, where they are
known: a function that gives each image to a torchvision transform, as scripts and manuals have it.

    def transforms(examples):
        examples["pixel_values"] = [augment(x.convert("RGB")) for x in examples["image"]]
        return examples

With what makes batches of such samples: torch's `default_collate`, `DefaultDataCollator` of
transformers, or a function that stacks the images and makes a tensor of the labels. All are known
by their code (`known_code`), or by exact class.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import default_collate

from fastload.known_code import ImageMapping, maps_images, stacks
from fastload.sources.base import Opened
from fastload.sources.given import is_huggingface
from fastload.sources.kinds import IMAGE, role_of_images
from fastload.sources.opening import open_source


@dataclass(frozen=True)
class Mapped:
    """What the batches of a data set with such a transform are."""

    dataset: Any
    collate_fn: Any
    transform: Any
    """Of each image."""
    columns: tuple[tuple[str, str], ...]
    """The keys of a batch, in order, and the column of the data set that each is of."""

    @property
    def changed(self) -> bool:
        """Whether the user has set something else since."""
        now = mapped(self.dataset, self.collate_fn)
        return now is None or now.transform is not self.transform or now.columns != self.columns

    def opened(self) -> Opened:
        """The columns, and the transform. Raises SourceError: fastload does not read a column
        itself."""
        plain = self.dataset.with_format(None)
        fields = tuple(dict.fromkeys(column for _, column in self.columns))
        opened = open_source(plain, fields=fields)
        stored = opened.source.columns
        columns = {key: stored[column] for key, column in self.columns}
        return replace(
            opened, source=replace(opened.source, columns=columns), transform=self.transform
        )


def mapped(dataset: Any, collate_fn: Any) -> Mapped | None:
    """What a DataLoader of these gives; None where that is not known. No sample is made."""
    if not is_huggingface(dataset) or dataset.format["type"] != "custom":
        return None
    settings = dataset.format
    given = settings["format_kwargs"]
    if settings["output_all_columns"] or set(given) != {"transform"}:
        return None
    mapping = maps_images(given["transform"])
    names = [name for name in dataset.column_names if name in settings["columns"]]
    if mapping is None or mapping.image not in names or not _is_image(dataset, mapping.image):
        return None
    columns = _batched(dataset, _sample(mapping, names), mapping, collate_fn)
    if columns is None:
        return None
    return Mapped(dataset, collate_fn, mapping.transform, tuple(columns.items()))


def _sample(mapping: ImageMapping, names: list[str]) -> dict[str, str]:
    """The keys of a sample, in order, and the column that each is of."""
    sample = {} if mapping.leaves == "none" else {name: name for name in names}
    if mapping.leaves == "others":
        del sample[mapping.image]
    return sample | {mapping.made: mapping.image}


def _batched(
    dataset: Any, sample: Mapping[str, str], mapping: ImageMapping, collate_fn: Any
) -> dict[str, str] | None:
    """The keys of a batch, and the column that each is of."""
    if (made := stacks(collate_fn)) is not None:
        images, numbers = (one.key for one in made)
        if images != mapping.made or not _is_whole(dataset, sample.get(numbers), numbers, mapping):
            return None
        return {one.made: sample[one.key] for one in made}
    others = {key: column for key, column in sample.items() if key != mapping.made}
    pictures = sys.modules["datasets"].Image
    if any(type(dataset.features[column]) is pictures for column in others.values()):
        return None  # PIL images, of which neither makes a batch
    if collate_fn is None or collate_fn is default_collate:
        return dict(sample)
    if not _is_default_collator(collate_fn) or "label_ids" in sample or "labels" in sample:
        return None
    words = {key for key in {*others} - {"label"} if _is_text(dataset, others[key])}
    if not all(_is_whole(dataset, others[key], key, mapping) for key in {*others} - words):
        return None
    label = {"labels": others["label"]} if "label" in others else {}
    return label | {key: sample[key] for key in sample if key not in words | {"label"}}


def _is_image(dataset: Any, column: str) -> bool:
    kind = sys.modules["datasets"].Image
    return type(dataset.features[column]) is kind and role_of_images(column) == IMAGE.name


def _is_text(dataset: Any, column: str) -> bool:
    feature = dataset.features[column]
    return type(feature) is sys.modules["datasets"].Value and "string" in feature.dtype


def _is_whole(dataset: Any, column: str | None, key: str, mapping: ImageMapping) -> bool:
    """Whether a key is of whole numbers, of which `torch.tensor` makes int64: of others it makes
    another type than `default_collate`."""
    if column is None or key == mapping.made:
        return False
    feature, known = dataset.features[column], sys.modules["datasets"]
    whole = type(feature) is known.Value and feature.dtype.lstrip("u").startswith("int")
    return whole or type(feature) is known.ClassLabel


def _is_default_collator(function: Any) -> bool:
    """Whether it is that of transformers, for torch. transformers is not imported."""
    module = sys.modules.get("transformers.data.data_collator")
    if module is None:
        return False
    if function is module.default_data_collator:
        return True
    kind: Any = module.DefaultDataCollator
    return type(function) is kind and bool(function.return_tensors == "pt")
