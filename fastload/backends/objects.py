"""Batches made by Python code that fastload cannot look into: foreign datasets, opaque transforms,
collate functions.

For the `torch` backend each sample runs under random generators seeded from (seed, epoch, index),
so that what comes out does not depend on workers, order or resumes. Batches of an IterableDataset
are made by torch's own DataLoader, and nothing of what it promises is changed.
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torchvision import tv_tensors

from fastload.backends.base import (
    BufferAllocator,
    Failure,
    HostBatch,
)
from fastload.backends.rows import read_values
from fastload.decode.image import reader_of
from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, DecodeError, FastloadError, SampleError
from fastload.files import DecodeSettings
from fastload.generators import preserved_random_state, seed_generators
from fastload.geometry import GeometryPlan, View
from fastload.recipe import SplitRecipe
from fastload.recipe.outputs import Outputs
from fastload.render.host import render_row
from fastload.sampler import Shard
from fastload.sources.base import Source
from fastload.sources.columns import ImageColumn
from fastload.sources.places import place_in, refuse_place
from fastload.sources.ragged import Ragged, concatenated

if TYPE_CHECKING:
    from fastload.backends.gathered import Gathered
    from fastload.backends.own_numbers import OwnNumbers

Layout = Literal["tuple", "dict", "single"]

_OF_CODE = (
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
)
"""Errors that say that the code is wrong. The reason for others (OSError, ValueError, ...) may be
the sample."""


@dataclass(frozen=True)
class _AsWritten:
    """The result of a whole transform, run as it was written, in place of a sample's image."""

    value: Any


class ObjectReader:
    """Turns draws into batches one sample at a time. Picklable, if the dataset and the transforms
    are."""

    def __init__(
        self,
        source: Source,
        recipe: SplitRecipe,
        *,
        settings: DecodeSettings,
        decoder: str = "auto",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        as_dataloader: bool = False,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        """`as_dataloader`, `memory_format`: see `Context`."""
        self._memory_format = memory_format
        self.source = source
        self._recipe = recipe
        self._settings = settings
        self._decoder = decoder
        self._collate_fn = collate_fn
        self._outputs = Outputs.of(source, recipe)
        self._place = _place_of_image(source)
        self._as_dataloader = as_dataloader and bool(source.objects) and not recipe.placement
        self._as_they_are = (
            bool(source.objects)
            and collate_fn is None
            and recipe.opaque is None
            and not recipe.placement
            and not recipe.several_views
        )
        """Whether what a data set gives goes into batches by torch's collation, unchanged."""

    def batch(
        self,
        draws: Draws,
        allocate: BufferAllocator | None = None,
        *,
        numbers: OwnNumbers | None = None,
    ) -> HostBatch:
        """Failed rows hold copies of a good one until they are replaced; if none could be read
        there are no columns. `allocate`: memory for what the samples are, used again later.
        `numbers`: of the calling thread, in place of the generators of the process, which are not
        touched then."""
        if not len(draws):
            return self._without_samples(draws)
        gathered = None
        # In a worker process torch's collation writes to shared memory. A batch in other memory is
        # copied there when it is sent.
        if allocate is not None and self._as_they_are and get_worker_info() is None:
            from fastload.backends.gathered import Gathered

            gathered = Gathered(len(draws), allocate, self._memory_format)
        items, good_rows, failures = self._items(draws, numbers, gathered)
        if not good_rows:
            return HostBatch({}, failures)
        if self._recipe.moves_pixels:
            _refuse_places(items[0], self.source.name)
        if self._collate_fn is not None:
            return HostBatch({}, failures, collated=self._collate_fn(items))
        if self._as_dataloader:
            layout = _fields_of(items[0])[1] if _is_one_each(items, good_rows) else None
            collated = (
                gathered.collate(items, default_collate_fn_map)
                if gathered
                else default_collate(items)
            )
            return HostBatch({}, failures, collated=collated, layout=layout)
        if not _is_one_each(items, good_rows):
            return HostBatch({}, failures, collated=_collate(items))
        items, finished = self._without_marks(items, draws, good_rows)
        fields, layout = self._fields(items[0])
        recipe = self._recipe
        if fields is None and recipe.placement:
            raise _without_image(items[0])
        if fields is None or finished or self._leaves_alone(_image_of(items[0], self._place)):
            collated = self._collated(items) if self.source.values else _collate(items, gathered)
            return HostBatch({}, failures, collated=collated, layout=layout)
        rows = self._rows(items, draws, good_rows)
        columns: dict[str, Any] = {}
        for name in fields:
            values = [row[name] for row in rows]
            kind = self._outputs.pixels.get(name)
            if kind is None:
                columns[name] = self._together(name, values)
                continue
            # An opaque transform has made the views; else each is made here, of the same image.
            has_views = recipe.several_views and recipe.opaque is not None
            views = self._outputs.names[name]
            for number, (view, plan) in enumerate(zip(views, recipe.geometries, strict=True)):
                seen = [value[number] for value in values] if has_views else values
                columns[view] = (
                    self._images(seen, draws.take(good_rows), failures, good_rows, plan)
                    if kind.coloured
                    else _masks(seen)
                )
        if failures:
            arrays = (isinstance(c, np.ndarray | torch.Tensor) for c in columns.values())
            if not all(arrays):
                # Rows of what is no array cannot be replaced: the whole batch is read again.
                return HostBatch({}, failures)
            columns = {
                name: _spread(column, good_rows, len(draws)) for name, column in columns.items()
            }
        named = type(items[0]) if hasattr(items[0], "_fields") else None
        return HostBatch(columns, failures, layout=layout, named=named)

    def _together(self, name: Any, values: list[Any]) -> Any:
        """A column of a batch, of one value for each sample."""
        kept = self._outputs.kind_of(name).python_objects
        return values if kept else _collate(values)

    def _collated(self, items: list[Any]) -> Any:
        """A batch of samples that are put together of columns."""
        if isinstance(items[0], Mapping):
            return {name: self._together(name, [one[name] for one in items]) for name in items[0]}
        named = zip(self.source.columns, zip(*items, strict=True), strict=True)
        return [self._together(name, list(values)) for name, values in named]

    def _fields(self, item: Any) -> tuple[dict[Any, Any] | None, Layout]:
        """As `_fields_of`; a sample that is put together of columns has their names."""
        if self._place is None:
            return _fields_of(item)
        if isinstance(item, Mapping):
            return dict(item), "dict"
        return dict(zip(self.source.columns, item, strict=True)), "tuple"

    def _leaves_alone(self, image: Any) -> bool:
        """Whether such an image is delivered as it is. So is what an opaque transform has made that
        is no image, such as a flat vector or an array (H, W, C), if no operation comes after."""
        recipe, several = self._recipe, self._recipe.several_views
        finished = recipe.opaque is not None and recipe.batch.is_identity
        if finished and not _are_images(image, several=several):
            return True
        return not recipe.placement and not several and not isinstance(image, Image.Image)

    def _without_samples(self, draws: Draws) -> HostBatch:
        """A batch of no samples, in the form of one with the first sample; without columns where a
        collate function makes that, or where it cannot be read. Of a batch sampler of the script's
        what a DataLoader makes of none."""
        if self._as_dataloader and draws.keys is not None:
            return HostBatch({}, collated=(self._collate_fn or default_collate)([]))
        first = Draws(draws.seed, draws.epoch, np.zeros(1, dtype=np.int64))
        batch = HostBatch({}) if self._collate_fn is not None else self.batch(first)
        return HostBatch({}) if batch.failures else batch.emptied()

    def _rows(self, items: list[Any], draws: Draws, good_rows: list[int]) -> list[dict[str, Any]]:
        """The samples by fields. Raises ConfigurationError: they have different ones."""
        rows = [self._fields(item)[0] or {} for item in items]
        fields = rows[0]
        for row, sample in zip(good_rows, rows, strict=True):
            if sample.keys() != fields.keys():
                raise ConfigurationError(
                    "source: the samples of a batch have different fields: "
                    f"{self.source.describe(int(draws.indices[good_rows[0]]))} has {len(fields)} "
                    f"({', '.join(map(str, fields))}), "
                    f"{self.source.describe(int(draws.indices[row]))} has {len(sample)} "
                    f"({', '.join(map(str, sample))}). Give all the same, or pass a collate_fn."
                )
        return rows

    def _items(
        self, draws: Draws, numbers: OwnNumbers | None, gathered: Gathered | None
    ) -> tuple[Any, list[int], list[Failure]]:
        """The samples that could be made, their rows, and the failures of the others.

        Where a data set makes them together, they are what it gives: a list of samples, or whatever
        it and its collate function have agreed on. If it raises, each is made alone, to see which
        sample it is; if it is none, what it raised is raised here.
        """
        items: list[Any] = []
        failures: list[Failure] = []
        good_rows: list[int] = []
        # 63 bits: a data set may put torch.initial_seed() into a tensor of int64.
        seeds = draws.integers(Stream.OPAQUE) >> np.uint64(1)
        together: Exception | None = None
        seeded = seed_generators if numbers is None else numbers.generator.manual_seed
        # With num_workers=0 this is the trainer's own process.
        with preserved_random_state() if numbers is None else numbers:
            for column in (
                self.source.objects.values() if self._recipe.opaque is None and len(draws) else ()
            ):
                seeded(int(seeds[0]))
                try:
                    batch = column.items(draws.indices if draws.keys is None else draws.keys)
                except Exception as error:
                    together = error
                    continue
                rows = list(range(len(draws)))
                # A transform of ours is for single samples.
                if batch is not None and (not self._recipe.placement or _is_one_each(batch, rows)):
                    return batch, rows, []
            for row, index in enumerate(
                draws.indices.tolist() if draws.keys is None else draws.keys
            ):
                seeded(int(seeds[row]))
                try:
                    item = self._item(index)
                    items.append(gathered.kept(item) if gathered else item)
                    good_rows.append(row)
                except FastloadError as error:
                    failures.append(Failure(row, error))
                except Exception as error:  # Whatever the user's code raises.
                    failures.append(Failure(row, self._explained(index, error)))
        if together is not None and not failures:
            raise together
        return items, good_rows, failures

    def _item(self, index: int) -> Any:
        """One sample, transformed: what the dataset gives, or a tuple or dict of the source's
        columns."""
        source, opaque = self.source, self._recipe.opaque
        for column in source.objects.values():
            item = column.item(index)
            return item if opaque is None else _with_image(item, self._made)
        fields: dict[str, Any] = {}
        for name in source.columns:
            if name in source.images:
                fields[name] = self._picture(source.images[name], index)
            else:
                rows, errors = read_values(source.values[name], np.array([index]))
                for error in errors.values():
                    raise error
                kind = source.values[name].kind
                if kind.python_objects:
                    value = kind.objects(rows)[0]
                    fields[name] = value if self._collate_fn is None else kind.for_code(value)
                    continue
                alone = not isinstance(rows, Ragged) or self._collate_fn is not None
                fields[name] = _as_tensors(rows[0]) if alone else rows.map(torch.from_numpy)
        if opaque is not None:
            pictures = [name for name in fields if name in source.images]
            if len(pictures) == 1:
                fields[pictures[0]] = self._made(fields[pictures[0]])
            else:
                results = opaque(*(fields[name] for name in pictures))
                fields.update(zip(pictures, results, strict=True))
        return fields if source.layout == "dict" else tuple(fields.values())

    def _made(self, image: Any) -> Any:
        """The result of the user's part of the transform for an image. Where the operations after
        it do not take that, the rest of the transform runs as it was written too, and its result is
        marked as `_AsWritten`."""
        assert self._recipe.opaque is not None
        transformed, rest = self._recipe.opaque(image), self._recipe.rest
        if rest is None or _are_images(transformed, several=False):
            return transformed
        return _AsWritten(rest(transformed))

    def _without_marks(
        self, items: list[Any], draws: Draws, good_rows: list[int]
    ) -> tuple[list[Any], bool]:
        """The samples without marks, and whether they had any. Raises ConfigurationError: only some
        had, so that a batch would be made in two ways."""
        marked = [isinstance(_image_of(item, self._place), _AsWritten) for item in items]
        if not any(marked):
            return items, False
        if not all(marked):
            indices = draws.indices[good_rows]
            one, other = (int(indices[marked.index(mark)]) for mark in (True, False))
            raise ConfigurationError(
                f"transform: {'; '.join(self._recipe.reasons)} makes an RGB or grey PIL image, or "
                f"a tensor (C, H, W), of {self.source.describe(other)}, and something else of "
                f"{self.source.describe(one)}. Make the same of all."
            )
        place = self._place
        return [_with_image(item, lambda mark: mark.value, place) for item in items], True

    def _picture(self, column: ImageColumn, index: int) -> Any:
        pixels = reader_of(column, self._settings, self._decoder).pixels(index)
        if column.kind.as_stored:
            return tv_tensors.Mask(torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1))
        if pixels.shape[2] == 3 and pixels.dtype != np.uint8:  # PIL has no mode for these.
            return tv_tensors.Image(torch.from_numpy(pixels).permute(2, 0, 1))
        return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)

    def _explained(self, index: int, error: Exception) -> SampleError:
        where = self.source.describe(index)
        explained = SampleError(
            f"{where}: {type(error).__name__}: {error} (raised by the dataset's or the "
            "transform's own code)."
        )
        explained.__cause__ = error
        explained.of_code = isinstance(error, _OF_CODE)
        with contextlib.suppress(Exception):  # whatever its own way of pickling may raise
            pickle.loads(pickle.dumps(error))
            explained.raised = error
            explained.trace = traceback.format_exc()
        return explained

    def _images(
        self,
        images: list[Any],
        draws: Draws,
        failures: list[Failure],
        good_rows: list[int],
        plan: GeometryPlan,
    ) -> npt.NDArray[Any] | torch.Tensor:
        """(B, H, W, C): the geometry applied where there is one; uint8, or what an opaque transform
        made of it."""
        if self._recipe.opaque is not None:
            self._require_images(images, draws)
        if plan.is_identity:
            tensors = [_as_hwc_tensor(image) for image in images]
            self._require_one_size([tuple(tensor.shape) for tensor in tensors], draws)
            return torch.stack(tensors)
        arrays = []
        for row, image in enumerate(images):
            array = _as_hwc_tensor(image).numpy()
            if array.dtype != np.uint8:
                raise ConfigurationError(
                    f"transform: {self.source.describe(int(draws.indices[row]))} is already a "
                    f"{array.dtype} tensor, and crops and resizes work on uint8 pixels. Let the "
                    "dataset apply the transform, or return a PIL image or uint8 array from it."
                )
            arrays.append(array)
        geometry = plan.resolve(
            draws, np.array([array.shape[:2] for array in arrays], dtype=np.int64)
        )
        for row, reason in geometry.errors.items():
            where = self.source.describe(int(draws.indices[row]))
            failures.append(Failure(good_rows[row], DecodeError(f"{where}: {reason}")))
        sizes = [(int(height), int(width)) for height, width in geometry.out_sizes]
        if not geometry.errors:
            self._require_one_size(sizes, draws)
        height, width = plan.out_size or sizes[0]
        out = np.zeros((len(arrays), height, width, arrays[0].shape[2]), dtype=np.uint8)
        for row, array in enumerate(arrays):
            if row not in geometry.errors:
                render_row(array, row, View(geometry, plan.resampling, out))
        return out

    def _require_images(self, images: list[Any], draws: Draws) -> None:
        """Raises ConfigurationError: the user's part of the transform has made something that the
        operations after it do not take."""
        for index, image in zip(draws.indices.tolist(), images, strict=True):
            if not _are_images(image, several=False):
                what = "; ".join(self._recipe.reasons)
                raise ConfigurationError(
                    f"transform: of {self.source.describe(index)} {what} "
                    f"makes {type(image).__name__}{tuple(getattr(image, 'shape', ()))}, and "
                    f"{' + '.join(self._recipe.batch.describe())} after it works on PIL images and "
                    "tensors (C, H, W). Convert it there, by v2.ToImage() for an array, or do the "
                    "rest in the same function."
                )

    def _require_one_size(self, sizes: Sequence[tuple[int, ...]], draws: Draws) -> None:
        for index, size in zip(draws.indices.tolist(), sizes, strict=True):
            if size != sizes[0]:
                raise ConfigurationError(
                    "transform: the samples of a batch differ in size: "
                    f"{self.source.describe(int(draws.indices[0]))} comes out as {sizes[0]}, "
                    f"{self.source.describe(index)} as {size}. Add a Resize or a crop to (height, "
                    "width), or use batch_size=1 or a collate_fn."
                )


def _is_one_each(items: Any, rows: list[int]) -> bool:
    """Whether what a data set has made together is a list of single samples."""
    return isinstance(items, list | tuple) and len(items) == len(rows)


def _fields_of(item: Any) -> tuple[dict[str, Any] | None, Layout]:
    """A sample as named fields and its layout; None if it has no image that is known as one."""
    if isinstance(item, Mapping):
        return (dict(item), "dict") if "image" in item else (None, "dict")
    if isinstance(item, list | tuple) and item:
        names = ["image"] + [f"field{i}" for i in range(1, len(item))]
        if len(item) > 1 and _is_mask(item[1]):
            names[1] = "mask"
        return dict(zip(names, item, strict=True)), "tuple"
    return {"image": item}, "single"


def _are_images(value: Any, *, several: bool) -> bool:
    """Whether what a transform has made is an RGB or grey PIL image, or a tensor (C, H, W) that is
    not said to be something else (a mask); `several`: views."""
    if several:
        return all(_are_images(view, several=False) for view in value)
    if isinstance(value, Image.Image):
        return value.mode in ("L", "RGB")
    if isinstance(value, tv_tensors.TVTensor) and not isinstance(value, tv_tensors.Image):
        return False
    return isinstance(value, torch.Tensor) and value.ndim == 3


def _refuse_places(sample: Any, source: str) -> None:
    """Raises ConfigurationError: the sample has boxes, points or masks, which would stay where they
    are when the pixels of its image are moved."""
    fields = _fields_of(sample)[0] or {}
    refuse_place(
        place_in({name: fields[name] for name in fields if name not in ("image", "mask")}), source
    )


def _is_mask(value: Any) -> bool:
    """A mask, or several views of one."""
    first = value[0] if isinstance(value, tuple) and value else value
    return isinstance(first, tv_tensors.Mask)


def _without_image(item: Mapping[Any, Any]) -> ConfigurationError:
    return ConfigurationError(
        "transform: the dataset's samples are dicts without an 'image' (keys: "
        f"{', '.join(map(str, item))}). Let the dataset apply the transform."
    )


def _place_of_image(source: Source) -> Any:
    """The key or the position of the image in a sample that is put together of columns; None: there
    is none, or a Dataset's own code makes the samples."""
    coloured = [name for name, column in source.images.items() if column.kind.coloured]
    name = next(iter([*coloured, *source.images]), None)
    if name is None or source.layout == "dict":
        return name
    return list(source.columns).index(name)


def _image_of(item: Any, place: Any = None) -> Any:
    """The image of a sample, which `_with_image` transforms. `place`: see `_place_of_image`."""
    if place is not None:
        return item[place]
    if isinstance(item, Mapping):
        return item.get("image")
    return item[0] if isinstance(item, list | tuple) and item else item


def _with_image(item: Any, transform: Callable[[Any], Any], place: Any = None) -> Any:
    """The sample with its image transformed: the first of a tuple, "image" of a dict, or the sample
    itself; that at `place`, where it is known (`_place_of_image`)."""
    if place is not None and not isinstance(item, Mapping):
        return (*item[:place], transform(item[place]), *item[place + 1 :])
    if place is not None:
        return {**item, place: transform(item[place])}
    if isinstance(item, Mapping):
        if "image" not in item:
            raise _without_image(item)
        return {**item, "image": transform(item["image"])}
    if isinstance(item, list | tuple) and item:
        values = (transform(item[0]), *item[1:])
        return type(item)(*values) if hasattr(item, "_fields") else values
    return transform(item)


def _as_hwc_tensor(image: Any) -> torch.Tensor:
    """(H, W, C): from a PIL image, a (H, W), (H, W, C) array, or a (C, H, W) or (H, W) tensor."""
    if isinstance(image, Image.Image):
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):  # convert() would clip them.
            raise ConfigurationError(
                f"transform: the dataset gives a PIL image of mode {image.mode}, more than 8 bits "
                "a pixel, and crops and resizes work on 8. Convert it in the dataset, or let the "
                "dataset apply the transform."
            )
        array = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
        return torch.from_numpy(array.copy()).reshape(*array.shape[:2], -1)
    if isinstance(image, np.ndarray):
        tensor = torch.from_numpy(np.ascontiguousarray(image))
        return tensor[:, :, None] if tensor.ndim == 2 else tensor
    if isinstance(image, torch.Tensor) and image.ndim in (2, 3):
        tensor = image.as_subclass(torch.Tensor)
        return tensor[:, :, None] if tensor.ndim == 2 else tensor.permute(1, 2, 0)
    raise ConfigurationError(
        "transform: an image must be a PIL image, an array (H, W, C) or a tensor (C, H, W), got "
        f"{type(image).__name__}{tuple(getattr(image, 'shape', ()))}. Pass a collate_fn for "
        "batches of anything else."
    )


def _masks(masks: list[Any]) -> torch.Tensor:
    """(B, H, W, 1) from masks (H, W) or (1, H, W)."""
    return torch.stack([mask.as_subclass(torch.Tensor).reshape(mask.shape[-2:]) for mask in masks])[
        ..., None
    ]


def _as_tensors(row: Any) -> Any:
    return row.map(torch.from_numpy) if isinstance(row, Ragged) else torch.as_tensor(row)


def _joined(rows: list[Ragged], **_: Any) -> Ragged:
    """A batch of samples with one ragged row each."""
    arrays = [row.map(lambda tensor: tensor.numpy()) for row in rows]
    return concatenated(arrays).map(torch.from_numpy)


def _collate(values: list[Any], gathered: Gathered | None = None) -> Any:
    kinds = {**default_collate_fn_map, Ragged: _joined}
    try:
        return (
            gathered.collate(values, kinds) if gathered else collate(values, collate_fn_map=kinds)
        )
    except (TypeError, RuntimeError) as error:
        raise ConfigurationError(
            f"collate_fn: the samples do not form a batch by torch's default_collate ({error}). "
            "Pass a transform that makes tensors of equal size, or a collate_fn."
        ) from error


def _spread(column: Any, good_rows: list[int], length: int) -> Any:
    """Put the rows that could be read where they belong; the others get the first of them."""
    where = np.zeros(length, dtype=np.int64)
    where[good_rows] = np.arange(len(good_rows))
    return column[torch.from_numpy(where)] if isinstance(column, torch.Tensor) else column[where]


class SharedStream(IterableDataset[Any]):
    """This rank's part of a data set that every rank iterates over: one of every `world_size`
    batches.

    The last ones are filled up with the first samples, so that ranks are equal, or left out with
    `drop_last`: as Accelerate shares one (`IterableDatasetShard`).
    """

    def __init__(self, dataset: Any, shard: Shard, batch_size: int, drop_last: bool) -> None:
        self.dataset = dataset
        self.shard, self.batch_size, self.drop_last = shard, batch_size, drop_last

    def __len__(self) -> int:
        samples, together = len(self.dataset), self.batch_size * self.shard.world_size
        return (
            samples // together if self.drop_last else -(-samples // together)
        ) * self.batch_size

    def __iter__(self) -> Iterator[Any]:
        together = self.batch_size * self.shard.world_size
        mine = slice(self.shard.rank * self.batch_size, (self.shard.rank + 1) * self.batch_size)
        first: list[Any] = []
        group: list[Any] = []
        for sample in self.dataset:
            group.append(sample)
            if len(group) == together:
                yield from group[mine]
                first, group = first or group, []
        if group and not self.drop_last:
            first = first or list(group)
            while len(group) < together:
                group += first
            yield from group[mine]


class TransformedStream(IterableDataset[Any]):
    """A data set whose images are transformed, each under random generators seeded from (seed,
    epoch, its number)."""

    def __init__(
        self, dataset: Any, transform: Callable[[Any], Any], seed: int, moves_pixels: bool
    ) -> None:
        self.dataset, self.transform, self.seed = dataset, transform, seed
        self.moves_pixels = moves_pixels

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        worker, epoch = get_worker_info(), self.dataset.epoch
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for row, sample in enumerate(self.dataset):
            if self.moves_pixels:
                _refuse_places(sample, type(self.dataset).__name__)
            draws = Draws(self.seed, epoch, np.array([first + row * step], dtype=np.int64))
            with preserved_random_state():
                seed_generators(int(draws.integers(Stream.OPAQUE)[0]) >> 1)
                transformed = _with_image(sample, self.transform)
            yield transformed
