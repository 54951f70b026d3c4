"""What a Loader serves: the data set, opened by fastload or as its own code makes it; the recipe,
split for it; and the order, ours or that of a sampler. No backend is chosen yet."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fastload import native
from fastload.backends.base import DEFAULT_PREFETCH
from fastload.compat.dataloader import is_over_a_loaders
from fastload.errors import BackendUnavailableError, ConfigurationError, counted
from fastload.files import DecodeSettings
from fastload.known_code import only_seeds
from fastload.loader import rules
from fastload.loader.changes import Changes
from fastload.loader.config import LoaderConfig
from fastload.recipe import Recipe, SplitRecipe
from fastload.recipe.operation import qualified_name
from fastload.sampler import (
    EpochOrder,
    FeedbackOrder,
    ForeignOrder,
    Int64Array,
    Order,
    Shard,
    UncountedOrder,
    has_length,
    is_seeded_here,
    never_looks,
    size_said_by,
)
from fastload.sampler.blocks import ROW_GROUP
from fastload.sources import Opened, open_indexed, open_source
from fastload.sources.base import Source, TransformsBySource
from fastload.sources.columns import DatasetItems, Values
from fastload.sources.given import is_dataset, is_huggingface
from fastload.sources.ragged import Ragged

if TYPE_CHECKING:
    from fastload.loader.known_functions import KnownFunctions

    Sizes = Callable[[], Int64Array]

logger = logging.getLogger("fastload")
_AT_ONCE = 1 << 16
"""Rows of variable length that are read to be counted."""


@dataclass(frozen=True)
class Reading:
    """How samples are read, and what is done to them."""

    config: LoaderConfig
    """Without a collate function of the user's that fastload replaces."""
    opened: Opened
    recipe: Recipe
    split: SplitRecipe
    """The recipe, split for the source."""
    known: KnownFunctions | None = None
    """Functions of the user's whose work is done without them."""

    @property
    def runs_python(self) -> bool:
        """Whether code of the user's takes single samples."""
        return self.config.collate_fn is not None or self.split.opaque is not None

    @property
    def lacks_one_operation(self) -> bool:
        """Whether one operation that is not known keeps images from being made here."""
        known = any(not op.is_opaque for op in self.recipe.ops)
        images = self.config.collate_fn is None and bool(self.opened.source.encoded)
        return images and known and len(self.split.reasons) == 1


@dataclass(frozen=True)
class Served(Reading):
    """What is served, before a backend is chosen for it."""

    order: Order = field(kw_only=True)
    pipeline: str | None = None
    """What to write in place of code of the user's that a pipeline of fastload's stands for."""

    def changes(self, *, in_place: bool) -> Changes:
        """For telling later whether the user has changed the data set or its transforms.
        `in_place`: see `LoaderParts`."""
        given, opened = self.config.source, self.opened
        a_path = isinstance(given, str | os.PathLike)
        if not self.config.adopted and (a_path or not _has_code(given)):
            given = None
        transform = _both(opened.transform, self.config.transform)
        return Changes(given, opened, transform, in_place=in_place, known=self.known)


def served_for(config: LoaderConfig) -> Served:
    """The data set and its recipe; opened again if Python code needs samples of its own."""
    given = config.collate_fn is not None or not isinstance(config.source, str)
    reading = _without_known_functions(config) if given else None
    reading = reading or _read(config, _opened_for(config))
    if reading.config.collate_fn is not None:
        reading = _without_fast_collate(reading)
    runs_python = reading.runs_python or reading.opened.source.objects
    pipeline = _warned_of_python(reading) if runs_python else None
    if reading.runs_python and not reading.opened.source.objects and _has_code(config.source):
        reading = _read(reading.config, _opened_by_its_own_code(reading))
    return _ordered(reading, pipeline)


def _warned_of_python(reading: Reading) -> str | None:
    """What stands for code of the user's that makes or takes single samples, if that is known.
    Raises ConfigurationError: a transform that loaders alone can do is in it."""
    from fastload.originals import pipeline_for
    from fastload.recipe.loaders_alone import refuse_in_python

    config, opened = reading.config, reading.opened
    refuse_in_python(reading.split.opaque, reading.split.reasons)
    if reading.recipe.is_opaque or opened.source.objects:
        pipeline = pipeline_for([config.transform, opened.transform, config.source])
        if pipeline is not None:
            _warn_of_python(f". {pipeline}")
            return pipeline
    if reading.runs_python and reading.lacks_one_operation:
        _warn_of_python(f", because of a single operation: {reading.split.reasons[0]}")
    return None


def _read(config: LoaderConfig, opened: Opened) -> Reading:
    """What is done to the samples of a data set, checked."""
    recipe = Recipe.from_transform(_both(opened.transform, config.transform))
    if not (opened.source.images or opened.source.objects):
        rules.check_without_images(opened.source, recipe, config.dtype)
    if opened.source.encoded:
        _warn_without_native_core()
    split = _split(recipe, config.collate_fn, opened.source)
    if any(op.adds_columns for op in split.ops):
        opened = _with_placements(opened, split)
    rules.check_split(opened.source, split, config.source, config.own_sampler)
    rules.check_dtype(config.dtype, split)
    return Reading(config, opened, recipe, split)


def _with_placements(opened: Opened, split: SplitRecipe) -> Opened:
    """With the columns that operations add."""
    from fastload.sources.placements import with_placements

    columns = dict.fromkeys(column for op in split.ops for column in op.adds_columns)
    views = range(len(split.geometries))
    warped = any("warp" in split.steps(view) for view in views) and split.opaque is None
    warps = next((op.describe() for op in split.ops if getattr(op, "warps", False)), "it")
    asks = next(op.asks for op in split.ops if op.adds_columns)
    source = with_placements(opened.source, tuple(columns), asks, warps if warped else "")
    return replace(opened, source=source)


def _without_known_functions(config: LoaderConfig) -> Reading | None:
    """A data set whose transform or collate function is known, read without that; None of any
    other."""
    from fastload.loader.known_functions import known_functions

    known = known_functions(config, _opened_for)
    if known is None:
        return None
    reading = _read(known.config, known.opened)
    # A collate function of the user's takes tensors, and not tuples of views.
    several = reading.split.several_views and config.collate_fn is not None
    return None if reading.runs_python or several else replace(reading, known=known)


def _without_fast_collate(reading: Reading) -> Reading:
    """What timm's function does to bytes, done without it where that gives the same."""
    from fastload.compat.timm import is_fast_collate, stacks_alike

    if not is_fast_collate(reading.config.collate_fn):
        return reading
    plain, opened = replace(reading.config, collate_fn=None), reading.opened
    split = _split(reading.recipe, None, opened.source)
    if not stacks_alike(opened.source, split):
        return reading
    note = "what timm's fast_collate does to bytes is done without it"
    return _read(plain, replace(opened, notes=(*opened.notes, note)))


def _ordered(reading: Reading, pipeline: str | None) -> Served:
    config, opened = reading.config, reading.opened
    if config.unbatched:
        opened = replace(opened, source=_one_by_one(opened.source))
    here = config.shard_here()
    if here.note:
        opened = replace(opened, notes=(*opened.notes, here.note))
    order = _order_of(reading, opened.source, here.shard)
    split = _for_order(reading, order) if order.shapes or order.packing else reading.split
    if opened.source.deep:
        rules.check_pixels(opened.source, split, config.dtype, config.batch_transform)
    return Served(config, opened, reading.recipe, split, reading.known, pipeline, order=order)


def _one_by_one(source: Source) -> Source:
    """The source whose data set makes each sample by itself, as under a DataLoader with
    batch_size=None."""
    columns = {
        name: replace(column, one_by_one=True) if isinstance(column, DatasetItems) else column
        for name, column in source.columns.items()
    }
    return replace(source, columns=columns)


# -- The data set ----------------------------------------------------------------------------------


def _opened_for(config: LoaderConfig) -> Opened:
    """The data set of a configuration. Raises ConfigurationError, SourceError: it cannot be served
    as asked."""
    init = config.workers.init
    seeds_only = init is None or only_seeds(init)
    if config.assume_plain and not seeds_only:
        raise ConfigurationError(
            f"assume_plain: the worker_init_fn {qualified_name(init)} may change the data set, "
            "and would not be called; leave one of the two out."
        )
    if config.assume_plain and config.adopted:
        return open_source(config.source, assume_plain=True)
    if not config.adopted:
        opened = _opened_as_asked(config)
        return _noting_assume_plain(opened, config.source) if opened.source.objects else opened
    if seeds_only:
        opened = open_indexed(config.source)
        if opened.source.instances:
            opened = open_indexed(
                config.source,
                reason="a DataLoader gives them one by one, images with objects; "
                "create_loader(dataset, collate=...) reads columns of them",
            )
        return _noting_assume_plain(opened, config.source)
    from fastload.sources.datasets import COST

    return open_indexed(
        config.source,
        reason=f"the worker_init_fn {qualified_name(init)} may change it. {COST} Leave it out, "
        "if it only sets seeds: "
        "fastload's own random numbers need none",
    )


def _opened_as_asked(config: LoaderConfig) -> Opened:
    """By the arguments of `open_source`. What has code of its own may have changed since."""
    opened = config.opened
    if opened is None or config.split is not None:
        return open_source(config.source if opened is None else opened, split=config.split)
    return open_source(config.source, **config.opening) if _has_code(config.source) else opened


def _has_code(source: Any) -> bool:
    """Whether it is a data set whose own code can make the samples."""
    return is_dataset(source) or is_huggingface(source)


def _noting_assume_plain(opened: Opened, dataset: Any) -> Opened:
    """With a note about `assume_plain`, where the data set may be one for it."""
    if not opened.source.objects or not is_dataset(dataset):
        return opened
    from fastload.sources.plain import may_be_plain

    if not may_be_plain(dataset):
        return opened
    note = (
        "assume_plain=True skips its code, if all that this does to images is to read them; labels "
        "still come from it where they can"
    )
    return replace(opened, notes=(*opened.notes, note))


def _opened_by_its_own_code(reading: Reading) -> Opened:
    """The same data set, whose own code now makes the samples, though fastload can read its files.
    So Python code of the user, which runs on single samples, gets the objects that it
    is written for: PIL images with all their attributes, and labels of Python's types.

    Raises ConfigurationError: something was asked for that only fastload's own reading gives.
    """
    from fastload.sources.datasets import COST, open_dataset

    config, native, split = reading.config, reading.opened, reading.split
    rules.check_own_code(native, split, config.collate_fn, config.opening)
    if config.collate_fn is not None:
        reason = (
            f"the collate_fn {qualified_name(config.collate_fn)} takes them; leave it out, or give "
            "from_dataloader a function of whole batches, batch_transform, in its place"
        )
        dataset, transform = None, None
    else:
        reason, dataset, transform = (
            f"{'; '.join(split.reasons)} takes them",
            native.bare,
            native.transform,
        )
    if dataset is None:
        dataset, transform = config.source, None
    bare = None if dataset is config.source else dataset
    by_code = open_dataset(dataset, reason=f"{reason}. {COST}")
    source = replace(
        by_code.source, fingerprint=native.source.fingerprint, classes=native.source.classes
    )
    return Opened(source, transform, (*native.notes, *by_code.notes), bare)


# -- The recipe ------------------------------------------------------------------------------------


def _split(recipe: Recipe, collate_fn: Callable[..., Any] | None, source: Source) -> SplitRecipe:
    """The transform, split for this source."""
    if collate_fn is not None:
        return recipe.as_opaque(
            f"the collate_fn {qualified_name(collate_fn)} takes finished samples; leave it "
            "out, or give from_dataloader a function of whole batches, batch_transform, in its "
            "place"
        )
    primary = next(iter(source.images.values()), None)
    return recipe.split(None if primary is None else primary.fixed_size)


def _for_order(reading: Reading, order: Order) -> SplitRecipe:
    """The recipe for what the order asks of batches, checked."""
    if order.packing:
        _check_packing(reading, order)
    return _sized(reading, order) if order.shapes else reading.split


def _check_packing(reading: Reading, order: Order) -> None:
    """Raises ConfigurationError: something is asked for that needs a row a sample."""
    config = reading.config
    if config.collate_fn is not None or isinstance(config.collate, str):
        raise ConfigurationError(
            "collate_fn: order=Packed(...) makes whole batches of columns; leave it out, or give a "
            "fastload.CollateColumns of a function of the packed columns."
        )
    if config.on_error == "substitute":
        raise ConfigurationError(
            "on_error: what replaces a sample need not fit into its row of order=Packed(...); "
            "leave on_error out."
        )
    if "patches" in order.packing:
        from fastload.loader.patches import check

        check(config.batch_transform, reading.opened.source, reading.split)


def _sized(reading: Reading, order: Order) -> SplitRecipe:
    """The recipe for batches of the sizes that the order gives them."""
    from fastload.recipe.sized import sized

    if reading.config.collate_fn is not None:
        raise ConfigurationError(
            "collate_fn: it takes single samples, and beside an order with sizes fastload makes "
            "whole batches; leave it out, or give fastload.CollateColumns(function)."
        )
    source = reading.opened.source
    primary = next(iter(source.images.values()), None)
    if primary is None:
        raise ConfigurationError(
            f"order: it gives batches sizes of images, and {source.name} has no images that "
            "fastload reads; leave it out."
        )
    return sized(reading.recipe, order.shapes, primary.fixed_size)


def _both(own: Any, given: Any) -> Any:
    """The dataset's transform, or those of a mix, then the one given."""
    if isinstance(own, TransformsBySource):
        from fastload.recipe.by_source import RecipeBySource

        return RecipeBySource.of(own, given)
    if own is None or given is None:
        return given if own is None else own
    if isinstance(given, Recipe):
        raise ConfigurationError(
            "transform: the dataset has a transform of its own and a Recipe was given as well; "
            "drop one of them."
        )
    from torchvision.transforms import Compose

    return Compose([own, given])


@functools.cache  # once a process
def _warn_without_native_core() -> None:
    try:
        native.load()
    except BackendUnavailableError as error:
        logger.warning("Images are decoded more slowly than they could be: %s", error)


@functools.cache  # once a process and reason
def _warn_of_python(reason: str) -> None:
    logger.warning(
        "The transform runs as it is written, in Python and one sample at a time%s. Where fastload "
        "knows all operations, batches are made some 5 times as fast, and 8 times with ten views; "
        "explain() says where each of them runs.",
        reason,
    )


# -- The order -------------------------------------------------------------------------------------


def _order_of(reading: Reading, source: Source, shard: Shard) -> Order:
    """Which samples come when, on this rank. Raises ConfigurationError: there would be none."""
    config, given = reading.config, reading.config.own_sampler
    order: Order
    if given is not None:
        rules.refuse_beside_weights("sampler", source)
        order = _order_given(given, config, source, shard)
    else:
        order = EpochOrder(
            len(source),
            config.batch_size,
            shard,
            drop_last=config.drop_last,
            seed=config.seed,
            tail=config.tail or "filled",
            interleaved=config.interleaved,
        )
        if source.mixture is not None:
            order = source.mixture.order(order)
        if config.order is not None:
            sizes = functools.cache(functools.partial(_image_sizes, config, source))
            values = functools.partial(_values_of, reading, source, sizes)
            order = config.order.knowing(sizes, values).applied_to(order)
    if not order.samples or order.steps == 0:
        why = _why_empty(config, order, given)
        if not config.adopted and not is_over_a_loaders(given):
            raise ConfigurationError(why)
        logger.warning("This loader has no batches, as its DataLoader has none: %s", why)
    return order


def _image_sizes(config: LoaderConfig, source: Source) -> Int64Array:
    from fastload.decode.sizes import image_sizes

    settings = DecodeSettings() if config.options is None else config.options.decode_settings
    upright = settings.exif_orientation or source.upright
    return image_sizes(source, replace(settings, exif_orientation=upright))


def _values_of(reading: Reading, source: Source, sizes: Sizes, name: str) -> Int64Array:
    """(samples,) the numbers in a column, or the lengths of its rows; the number of patches of each
    image; the first sample of each row group. Raises ConfigurationError: there are none."""
    if name == "patches" and name not in source.columns:
        from fastload.recipe.patches import resize_of

        return np.asarray(resize_of(reading.recipe, reading.split).grids(sizes()).prod(axis=1))
    if name == ROW_GROUP and name not in source.columns:
        from fastload.loader.row_groups import first_samples

        return first_samples(source)
    column = source.columns.get(name)
    if isinstance(column, Values) and column.ragged:
        if (known := getattr(column, "lengths", None)) is not None:
            return np.asarray(known)
        parts = range(0, len(source), _AT_ONCE)
        ends = [np.arange(first, min(first + _AT_ONCE, len(source))) for first in parts]
        return np.concatenate([cast("Ragged", column.at(rows)).lengths for rows in ends])
    if isinstance(column, Values):
        values = np.asarray(column.at(np.arange(len(source))))
        if values.ndim == 1:
            return values
    there = ", ".join(one for one, kept in source.columns.items() if isinstance(kept, Values))
    raise ConfigurationError(
        f"order: {source.name} has no column {name!r} of one number a sample, or of rows of "
        f"variable length; columns of values: {there or 'none'}. Name one, or give an array."
    )


def _order_given(given: Any, config: LoaderConfig, source: Source, shard: Shard) -> Order:
    """That of a sampler, or batch sampler, of the user's."""
    keyed = config.adopted and bool(source.objects)
    # Where Python makes each sample when it is asked for, nothing is gained by reading ahead.
    in_step = keyed and not config.num_workers and config.on_error == "raise"
    in_step = in_step and not is_seeded_here(given)
    counts, whole = has_length(given), config.batch_sampler is not None
    if config.on_error != "raise" and not counts:
        raise ConfigurationError(
            f"on_error: {type(given).__name__} has no __len__, so it is not known which other "
            "samples its epoch has, to replace one that cannot be read. Give it one, or leave "
            "on_error out."
        )
    at_once = counts and never_looks(given) and not in_step
    # As DataLoader's defaults: no workers, and two batches for each worker.
    read_ahead = (config.num_workers or 0) * (config.prefetch_factor or DEFAULT_PREFETCH)
    step_by_step = FeedbackOrder if counts else UncountedOrder
    from fastload.compat.torchdata import is_torchdatas

    # torchdata's batch sampler begins at once.
    direct = whole or config.unbatched
    direct = direct or is_torchdatas(getattr(config.existing, "batch_sampler", None))
    kind: Callable[..., Order] = (
        ForeignOrder if at_once else functools.partial(step_by_step, read_ahead=read_ahead)
    )
    return kind(
        given,
        size_said_by(given) if whole else config.batch_size,
        len(source),
        config.drop_last,
        config.seed,
        shard,
        in_batches=whole,
        direct=direct,
        keyed=keyed,
        announces=not config.adopted,
    )


def _why_empty(config: LoaderConfig, order: Order, given: Any) -> str:
    """Why an order has no batches, and what to do."""
    world = counted(order.shard.world_size, "rank")
    if order.samples:
        return (
            f"drop_last: {counted(order.samples, 'sample')} cannot fill one global batch of "
            f"{order.global_batch_size} (batch_size {order.batch_size} x {world}), so no batch is "
            "left. Use drop_last=False or a smaller batch_size."
        )
    if given is not None:
        argument = "sampler" if config.batch_sampler is None else "batch_sampler"
        return f"{argument}: {type(given).__name__} is empty; leave it out to serve all samples."
    if not order.length:
        return "dataset: it is empty."
    return (
        f"sampler: a DistributedSampler of {world} with drop_last=True drops all of "
        f"{counted(order.length, 'sample')}; give it drop_last=False."
    )
