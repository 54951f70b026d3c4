"""Builds the parts of a Loader from a `LoaderConfig`. What "auto" means is decided by rule
(`backend_by_rule`, `colour_place`), or by measured speed in `tune`."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastload import native
from fastload.backends import available_backends, backend_by_rule, backend_class
from fastload.backends.base import (
    DEFAULT_PREFETCH,
    Backend,
    BackendOptions,
    Context,
    WorkerSettings,
    Workload,
    traits_of,
)
from fastload.backends.objects import StreamBackend
from fastload.compat.timm import is_fast_collate, stacks_alike
from fastload.device import DeviceStage
from fastload.errors import BackendUnavailableError, ConfigurationError, counted
from fastload.fingerprint import fingerprint_of
from fastload.host_memory import BufferPool
from fastload.known_code import only_seeds
from fastload.loader import deep, streams
from fastload.loader.colour_place import ColourPlace, place_by_rule
from fastload.loader.config import LoaderConfig
from fastload.loader.feed import Feed
from fastload.loader.plain import PlainBackend
from fastload.loader.tune import backend_measured, place_measured, samples_per_second
from fastload.loader.worker_seeds import ScriptSeeds, WorkerSeeds
from fastload.recipe import Recipe, SplitRecipe
from fastload.recipe.mix import Mix
from fastload.recipe.operation import qualified_name
from fastload.sampler import (
    BatchOrder,
    EpochOrder,
    ForeignOrder,
    InStepOrder,
    NodePlacement,
    Order,
    Shard,
    StreamOrder,
    UncountedOrder,
    has_length,
    never_looks,
    size_said_by,
)
from fastload.sources import Opened, open_indexed, open_source
from fastload.sources.base import Source
from fastload.sources.columns import StreamItems
from fastload.sources.datasets import COST, is_dataset, open_dataset
from fastload.sources.huggingface import is_huggingface
from fastload.sources.inspection import Snapshot
from fastload.sources.kinds import IMAGE, MASK
from fastload.sources.plain import may_be_plain, open_plain_dataset

logger = logging.getLogger("fastload")

_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class LoaderParts:
    """What was chosen and built for a configuration. The Loader uses it."""

    source: Source
    order: Order
    backend: Backend
    stage: DeviceStage
    recipe_fingerprints: tuple[str, ...]
    """The first is saved in states; the others are accepted, too."""
    batch_transform: Callable[..., Any] | None = None
    """The user's function of batches, where it is not MixUp or CutMix. Runs on each finished batch,
    in the trainer's thread."""
    explain: Callable[[], Mapping[str, str]] = dict
    """What was chosen and why, for a person; asked for when somebody does."""
    renewed: bool = False
    """Whether worker processes are started again with each epoch, so that they get a data set that
    the user has changed."""
    changed: Callable[..., bool] | None = None
    """Whether the data set of an adopted DataLoader has changed; None where it cannot."""

    stream: streams.StreamPlace | None = None
    """Where a data set is that can only be iterated; None for others."""

    def feed(self, config: LoaderConfig) -> Feed:
        """A Feed of their batches; nothing is started yet."""
        plain = self.backend if isinstance(self.backend, PlainBackend) else None
        ahead = not self.renewed and plain is None
        return Feed(self.backend, self.stage, self.order, config.on_error, ahead=ahead, plain=plain)


def assemble(config: LoaderConfig) -> LoaderParts:
    """Open the source, choose the backend, and build the parts of a Loader."""
    if config.streamed:
        return _streaming(config)
    opened = _opened(config)
    source = opened.source
    if config.dtype is not None and not source.images and not source.objects:
        raise ConfigurationError(
            f"dtype: it is for images, and {source.name} has none (columns: "
            f"{', '.join(source.columns)}); leave it out and convert the data, or use "
            "batch_transform."
        )
    recipe = Recipe.from_transform(_both(opened.transform, config.transform))
    if source.encoded:
        _warn_without_native_core()
    split = _split(recipe, config, source)
    _check_dtype(config.dtype, split)
    if config.collate_fn is not None and is_fast_collate(config.collate_fn):
        plain = replace(config, collate_fn=None)
        if stacks_alike(source, without := _split(recipe, plain, source)):
            config, split = plain, without
            opened = replace(
                opened,
                notes=(*opened.notes, "what timm's fast_collate does to bytes is done without it"),
            )
    if (
        (config.collate_fn is not None or split.opaque is not None)
        and not source.objects
        and (is_dataset(config.source) or is_huggingface(config.source))
    ):
        if opened.assumed is not None:
            why = (
                config.collate_fn is not None
                and f"the collate_fn {qualified_name(config.collate_fn)}"
            )
            raise ConfigurationError(
                f"assume_plain: {why or '; '.join(split.reasons)} runs in Python on each sample, "
                "so that nothing is gained by skipping the code of the data set; leave one out."
            )
        opened = _run_its_own_code(config, opened, split)
        recipe = Recipe.from_transform(_both(opened.transform, config.transform))
        source = opened.source
        split = _split(recipe, config, source)
    order = order_of(config, source, config.shard_here())
    if source.deep:
        deep.check(config, source, split)

    colour = ColourPlace(split)
    if config.place != "auto" or split.begins_with_colour:
        colour = place_by_rule(config.place, split, source, config.device)

    on_backend = functools.partial(
        _on_backend, config=config, opened=opened, recipe=recipe, order=order
    )

    def on(backend: str, reason: str, colour: ColourPlace = colour) -> LoaderParts:
        made = on_backend(backend, reason, split=colour.split)
        if not colour.why:
            return made
        return replace(made, explain=lambda: {**made.explain(), "colour": colour.why})

    workload = Workload(source, split, config.collate_fn, config.device, config.options)

    def measure(backend: str, colour: ColourPlace = colour) -> float:
        parts = on(backend, "", colour)
        return samples_per_second(parts.order, parts.stage, parts.feed(config))

    if config.backend != "auto":
        chosen = config.backend, "as asked"
    elif not config.tune:
        chosen = backend_by_rule(workload)
    else:
        chosen = backend_measured(workload, measure)
    if config.tune:
        colour = place_measured(colour, lambda split: measure(chosen[0], ColourPlace(split)))
    return on(*chosen, colour)


def _opened(config: LoaderConfig) -> Opened:
    init = config.workers.init
    seeds_only = init is None or only_seeds(init)
    if config.assume_plain:
        if config.masks or config.mode != "RGB":
            left = "mode" if config.mode != "RGB" else "masks"
            raise ConfigurationError(f"assume_plain: RGB images and labels; leave {left} out.")
        if not seeds_only:
            raise ConfigurationError(
                f"assume_plain: the worker_init_fn {qualified_name(init)} may change the data set, "
                "and would not be called; leave one of the two out."
            )
        return open_plain_dataset(config.source)
    if not config.adopted:
        opened = open_source(
            config.source,
            split=config.split,
            strict=config.strict,
            masks=config.masks,
            format=config.format,
            mode=config.mode,
        )
        return _with_the_option(opened, config.source)
    if seeds_only:
        opened = open_indexed(config.source)
        if opened.source.instances:
            opened = open_indexed(
                config.source,
                reason="a DataLoader gives them one by one, images with objects; "
                "create_loader(dataset, collate=...) reads columns of them",
            )
        return _with_the_option(opened, config.source)
    return open_indexed(
        config.source,
        reason=f"the worker_init_fn {qualified_name(init)} may change it. {COST} Leave it out, "
        "if it only sets seeds: "
        "fastload's own random numbers need none",
    )


def _with_the_option(opened: Opened, dataset: Any) -> Opened:
    """With a note of the option that skips the code of a data set, where it might."""
    if not opened.source.objects or not is_dataset(dataset) or not may_be_plain(dataset):
        return opened
    note = (
        "assume_plain=True skips its code, if all that this does to images is to read them; labels "
        "still come from it where they can"
    )
    return replace(opened, notes=(*opened.notes, note))


def _run_its_own_code(config: LoaderConfig, native: Opened, split: SplitRecipe) -> Opened:
    """Open a data set so that its own code makes the samples, though fastload could read its files.
    Then Python code of the user gets the same objects as before: PIL images with all their
    attributes, and labels of Python's types."""
    deep.refuse_own_code(config)
    if config.masks:
        raise ConfigurationError(
            "masks: they are drawn for whole batches, and here Python runs on single samples "
            "(collate_fn, or a transform of your own); leave one of the two out."
        )
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
    made = open_dataset(dataset, reason=f"{reason}. {COST}")
    source = replace(
        made.source, fingerprint=native.source.fingerprint, classes=native.source.classes
    )
    return Opened(source, transform, (*native.notes, *made.notes), bare)


@functools.cache  # once a process
def _warn_without_native_core() -> None:
    try:
        native.load()
    except BackendUnavailableError as error:
        logger.warning("Images are decoded more slowly than they could be: %s", error)


def _opaque_backends() -> list[str]:
    return [row.name for row in available_backends() if row.available and row.traits.runs_opaque]


def _on_backend(
    backend: str,
    reason: str,
    *,
    config: LoaderConfig,
    opened: Opened,
    recipe: Recipe,
    split: SplitRecipe,
    order: Order,
) -> LoaderParts:
    cls = backend_class(backend)
    source, device, traits = opened.source, config.device, traits_of(cls)
    notes = [*opened.notes, *config.notes]
    if config.adopted and not traits.processes:
        notes.append(f"changed: {config.num_workers} worker processes -> the backend's own threads")
        if config.workers.init is not None:
            notes.append(
                "changed: worker_init_fn is not called: there are no workers, and no global "
                "random state"
            )
        config = replace(config, num_workers=None, prefetch_factor=None)
    elif config.workers != WorkerSettings() and not traits.processes:
        notes.append(
            "worker_init_fn, multiprocessing_context, timeout: of no use, the backend works in "
            "threads"
        )
    if order.read_ahead is not None and config.num_workers is None and traits.processes:
        config = replace(config, num_workers=0)  # more would have nothing to do
    runs_theirs = bool(source.objects) or split.opaque is not None
    renewed = config.renewed and traits.processes and runs_theirs
    if renewed and config.num_workers:
        notes.append(
            "workers start again with each epoch, as persistent_workers=False asks; with True "
            "they go on"
        )
    options = _options_for(backend, cls, config)
    if source.upright:
        options = replace(options, exif_orientation=True)
    collate, padded = None, False
    if source.instances or source.moved or config.collate is not None:
        from fastload.loader import objects

        objects.check(config, source, turned=options.exif_orientation)
        objects.check_backend(split, source, traits, backend)
        collate = objects.collate_of(config, source, several_views=split.several_views)
        padded = traits.pads_images and objects.pads(config, source, split)
        objects.check_pairs(recipe, source)
    built = cls(
        Context(
            source=source,
            recipe=split,
            batch_size=order.batch_size,
            num_workers=config.num_workers,
            prefetch_factor=config.prefetch_factor,
            device=device,
            # Delivered on the CPU, a batch leaves our hands before the trainer's copies out of it
            # are done.
            allocate=BufferPool(
                pinned_for=device if config.pinned and device.type == "cuda" else None
            ).allocate,
            collate_fn=config.collate_fn,
            workers=replace(
                config.workers,
                seeds=ScriptSeeds(config.shown.get("generator"))
                if config.script_seeds
                else WorkerSeeds(config.seed, order.shard.rank),
            ),
            opaque_backends=_opaque_backends,
            takes_pending=all(program.is_identity for program in split.hosted),
            padded=padded,
        ),
        options,
    )
    if opened.assumed is not None:
        built = PlainBackend(
            built,
            source,
            opened.assumed,
            options.decode_settings,
            seed=config.seed,
            kind=type(config.source).__name__,
        )
    if split.several_views and not traits.views:
        raise ConfigurationError(
            f"transform: backend {backend!r} makes one view of an image, Views asks for "
            f"{len(split.geometries)}; use another backend."
        )
    traits.check_renders(split, backend)
    if not traits.deep:
        deep.check_backend(source, backend)
    if split.several_views and isinstance(config.batch_transform, Mix):
        raise ConfigurationError(
            f"batch_transform: {type(config.batch_transform).__name__} mixes one image with its "
            "label, and a sample here is several views (transform has Views). Leave it out, or "
            "give a function of the batch."
        )

    def explain() -> dict[str, str]:
        return {
            "backend": f"{backend}: {reason}",
            "source": "\n".join([f"{source.name}: {source.summary}", *notes]),
            "transforms": "\n".join(f"{row.transform} -> {row.where}" for row in split.placement)
            or "none",
            **({} if split.joint is None else {"samples": split.joint.describe(len(source))}),
            **({"in Python because of": "\n".join(split.reasons)} if split.reasons else {}),
            "delivered": f"on {device}, {config.memory_format}".replace("torch.", "")
            + ("" if config.collate is None else f", collate={config.shown_collate}")
            + (", images padded to the largest of a batch" if padded else ""),
        }

    return _parts(
        config,
        split,
        source=source,
        order=order,
        collate=collate,
        owned=traits.owns_batches,
        backend=built,
        fingerprinted=(recipe.fingerprint,),
        explain=explain,
        renewed=renewed,
        changed=_changes(config, opened),
    )


def _changes(config: LoaderConfig, opened: Opened) -> Callable[..., bool] | None:
    """Whether a data set of the user's is another one than it is now; None for other sources. One
    that makes its samples itself, and not by a copy without its transform, changes as it will."""
    a_path = isinstance(config.source, str | os.PathLike)
    if config.adopted or (not a_path and is_dataset(config.source)):
        return Snapshot(
            config.source, only_length=bool(opened.source.objects) and opened.bare is None
        ).changed
    return None


def _streaming(config: LoaderConfig) -> LoaderParts:
    """For an IterableDataset: a DataLoader of torch, and the device stage after it."""
    streams.refuse_of_streams(config)
    shard, dataset, kind = config.shard_here(), config.source, type(config.source).__name__
    loader = streams.dataloader_of(config, shard)
    place = streams.StreamPlace(config, loader)
    return _parts(
        config,
        Recipe.from_transform(None).split(None),
        source=Source({"item": StreamItems(dataset)}, streams.fingerprint(dataset), kind),
        order=StreamOrder(dataset, loader, config.batch_size, config.drop_last, config.seed, shard),
        backend=StreamBackend(loader, place),
        stream=place,
        explain=lambda: {
            "backend": "torch: an IterableDataset, whose batches torch's own DataLoader makes",
            "source": "\n".join([*streams.notes_of(config, shard), *config.notes]),
            "delivered": f"on {config.device}",
        },
    )


def _parts(
    config: LoaderConfig,
    split: SplitRecipe,
    *,
    source: Source,
    order: Order,
    fingerprinted: tuple[str, ...] = (),
    collate: Callable[[dict[str, Any]], Any] | None = None,
    owned: bool = False,
    **parts: Any,
) -> LoaderParts:
    """With the device stage, and what runs on whole batches. `owned`: see `Traits`."""
    mix = config.batch_transform if isinstance(config.batch_transform, Mix) else None
    stage = DeviceStage(
        device=config.device,
        programs=split.programs,
        hosted=split.hosted,
        owned=owned,
        # Object samples get these names.
        roles={k.name: k.name for k in (IMAGE, MASK)}
        if source.objects
        else {n: c.role for n, c in source.columns.items()},
        layout=source.layout,
        dtype=config.dtype,
        memory_format=config.memory_format,
        mix=mix,
        pinned=config.pinned,
        several_views=split.several_views,
        collate=collate,
    )
    return LoaderParts(
        source=source,
        order=order,
        stage=stage,
        recipe_fingerprints=_recipe_fingerprints(config.dtype, split, (*fingerprinted, repr(mix))),
        batch_transform=None if mix is not None else config.batch_transform,
        **parts,
    )


def _recipe_fingerprints(
    dtype: torch.dtype | None, split: SplitRecipe, fingerprinted: tuple[str, ...]
) -> tuple[str, ...]:
    """Of the recipe with the dtype to deliver: the one that states get, and others that are
    accepted.

    Where the recipe gives floating-point numbers, a dtype of such only rounds them, and a run may
    go on in another precision. Older states count such a dtype.
    """
    rounded = all(program.output_dtype().is_floating_point for program in split.programs)
    if not rounded or (dtype is not None and not dtype.is_floating_point):
        return (fingerprint_of(*fingerprinted, str(dtype)),)
    return tuple(fingerprint_of(*fingerprinted, str(given)) for given in (None, *_PRECISIONS))


def _split(recipe: Recipe, config: LoaderConfig, source: Source) -> SplitRecipe:
    """The transform, split for this source."""
    if recipe.ops and not source.images and not source.objects:
        raise ConfigurationError(
            f"transform: {source.name} has no images (columns: {', '.join(source.columns)}); leave "
            "it out, or use batch_transform."
        )
    primary = next(iter(source.images.values()), None)
    if config.collate_fn is not None:
        split = recipe.as_opaque(
            f"the collate_fn {qualified_name(config.collate_fn)} takes finished samples; leave it "
            "out, or give from_dataloader a function of whole batches, batch_transform, in its "
            "place"
        )
    else:
        split = recipe.split(None if primary is None else primary.fixed_size)
    sieves = any(split.sieves(view) for view in range(len(split.paths)))
    if sieves or source.moved or split.needs_objects or split.joint is not None:
        from fastload.loader import objects

        objects.check_split(split, source, config, sieves=sieves)
    return split


def _check_dtype(wanted: torch.dtype | None, split: SplitRecipe) -> None:
    """Raise ConfigurationError if images would lose their values in this dtype."""
    if (
        wanted is None or wanted.is_floating_point or split.opaque is not None
    ):  # an opaque one is seen when it has run
        return
    for program in split.programs:
        made = program.output_dtype()
        if (
            made.is_floating_point
            or torch.iinfo(wanted if wanted != torch.bool else torch.int8).max < 255
        ):
            raise ConfigurationError(
                f"dtype: the transform makes images of {made}, whose values {wanted} cannot hold. "
                "Give a floating point dtype, or leave dtype out."
            )


def order_of(config: LoaderConfig, source: Source, shard: Shard) -> Order:
    """Which samples come when, on this rank. Raises ConfigurationError: there would be none."""
    order: Order
    keyed = config.adopted and bool(source.objects)
    given = config.sampler if config.batch_sampler is None else config.batch_sampler
    if given is not None and not (has_length(given) and never_looks(given)):
        counts = has_length(given)
        if config.on_error != "raise" and not counts:
            raise ConfigurationError(
                f"on_error: {type(given).__name__} has no __len__, so it is not known which other "
                "samples its epoch has, to replace one that cannot be read. Give it one, or leave "
                "on_error out."
            )
        # As DataLoader's defaults: no workers, and two batches for each worker.
        read_ahead = (config.num_workers or 0) * (config.prefetch_factor or DEFAULT_PREFETCH)
        order = (InStepOrder if counts else UncountedOrder)(
            given,
            config.batch_size if config.batch_sampler is None else size_said_by(given),
            len(source),
            config.drop_last,
            config.seed,
            shard,
            in_batches=config.batch_sampler is not None,
            read_ahead=read_ahead,
            keyed=keyed,
        )
    elif config.batch_sampler is not None:
        order = BatchOrder(config.batch_sampler, len(source), config.seed, shard, keyed=keyed)
    elif config.sampler is not None:
        order = ForeignOrder(
            config.sampler,
            config.batch_size,
            len(source),
            config.drop_last,
            config.seed,
            shard,
            keyed=keyed,
        )
    else:
        order = EpochOrder(
            len(source),
            config.batch_size,
            shard,
            shuffle=config.shuffle,
            drop_last=config.drop_last,
            seed=config.seed,
            tail=config.tail or "filled",
            interleaved=config.interleaved,
        )
        if isinstance(config.placement, NodePlacement):
            order = config.placement.placed(order)
    if not order.samples:
        raise ConfigurationError(
            f"sampler: {type(config.sampler).__name__} is empty; leave it out to serve all samples."
        )
    if order.steps == 0:
        raise ConfigurationError(
            f"drop_last: {counted(len(source), 'sample')} cannot fill one global batch of "
            f"{order.global_batch_size} (batch_size {order.batch_size} x "
            f"{counted(shard.world_size, 'rank')}), so no batch is left. Use drop_last=False or a "
            "smaller batch_size."
        )
    return order


def _both(own: Any, given: Any) -> Any:
    """The dataset's transform, then the one given."""
    if own is None or given is None:
        return given if own is None else own
    if isinstance(given, Recipe):
        raise ConfigurationError(
            "transform: the dataset has a transform of its own and a Recipe was given as well; "
            "drop one of them."
        )
    from torchvision.transforms import Compose

    return Compose([own, given])


def _options_for(backend: str, cls: Any, config: LoaderConfig) -> BackendOptions:
    wanted: type[BackendOptions] = cls.Options
    options = config.options
    if options is None or isinstance(options, wanted):
        return options or wanted()
    declined = config.backend == "auto" and getattr(options, "may_be_declined", False)
    if declined or type(options) is BackendOptions:
        return wanted(exif_orientation=options.exif_orientation, max_pixels=options.max_pixels)
    raise ConfigurationError(
        f"options: backend {backend!r} takes {wanted.__name__}, got {type(options).__name__}; give "
        f"{wanted.__module__}.{wanted.__name__}(...)."
    )
