"""Builds the parts of a Loader from a `LoaderConfig`. What "auto" means is decided by rule
(`backend_by_rule`, `colour_place`), or by measured speed in `tune`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fastload.backends.base import (
    Backend,
    BackendOptions,
    Context,
    Traits,
    WorkerSettings,
    Workload,
    available_backends,
    backend_by_rule,
    backend_class,
    check_able,
    traits_of,
)
from fastload.backends.needs import needs_in
from fastload.device import DeviceStage
from fastload.errors import ConfigurationError, counted
from fastload.fingerprint import fingerprint_of
from fastload.host_memory import BufferPool
from fastload.loader.colour_place import ColourPlace, place_by_rule
from fastload.loader.config import LoaderConfig
from fastload.loader.feed import Feed
from fastload.loader.served import Served, served_for
from fastload.loader.worker_seeds import WorkerSeeds
from fastload.machine import memory_bytes
from fastload.recipe import Recipe, SplitRecipe
from fastload.recipe.mix import Mix, label_among
from fastload.recipe.outputs import Outputs
from fastload.render import fused
from fastload.sampler import (
    Order,
    StreamOrder,
)
from fastload.sources.base import Source
from fastload.sources.columns import EncodedFiles, StreamItems

if TYPE_CHECKING:
    from fastload.loader.compared import ComparedBackend
    from fastload.loader.remote import Remote
    from fastload.loader.streams import StreamPlace
    from fastload.sources.inspection import SeenArchives

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
    """Gives what was chosen and why, for a person."""
    renewed: bool = False
    """Whether worker processes are started again with each epoch, so that they get a data set that
    the user has changed."""
    changed: Callable[..., bool] | None = None
    """Says whether the user's data set or transforms have changed since; None where it cannot."""
    in_place: bool = False
    """Whether the user's own arrays are read whenever a batch is made: then none is made before its
    epoch begins, as they may be written to until then."""
    stream: StreamPlace | None = None
    """Where a data set is that can only be iterated; None for others."""
    compared: ComparedBackend | None = None
    """The backend, if it asks the user's code at the start of each epoch."""
    archives: SeenArchives | None = None
    """The archives that samples are parts of, as they were when the source was opened; None where
    there are none."""
    together: Sequence[EncodedFiles] = ()
    """The columns whose neighbours are read together, where the order lets them."""
    remote: Remote | None = None
    """None where no image lies in a store."""

    def feed(self, config: LoaderConfig) -> Feed:
        """A Feed of their batches; nothing is started yet."""
        together = None
        if self.together:
            from fastload.loader.together import ReadTogether

            together = ReadTogether(self.order, self.together)
        return Feed(
            self.backend,
            self.stage,
            self.order,
            config.on_error,
            ahead=not (self.renewed or self.in_place),
            together=together,
            remote=self.remote,
            compared=self.compared,
            survives_fork=all(column.survives_fork for column in self.source.encoded.values()),
        )


def assemble(config: LoaderConfig) -> LoaderParts:
    """Open the source, choose the backend, and build the parts of a Loader."""
    if config.streamed:
        return _streaming(config)
    served = served_for(config)
    config, source, split = served.config, served.opened.source, served.split
    if isinstance(config.batch_transform, Mix):
        _check_mix(config.batch_transform, split, source)
    colour = ColourPlace(split)
    if config.place != "auto" or split.begins_with_colour:
        colour = place_by_rule(config.place, split, source, config.device)

    workload = Workload(
        source,
        split,
        config.collate_fn,
        config.device,
        config.options,
        padded=_pads(config, source, split),
    )
    if config.tune:
        return _fastest(served, workload, colour)
    backend, reason = config.backend, "as asked"
    if backend == "auto":
        backend, reason = backend_by_rule(workload)
    return _on_backend(backend, reason, served, workload, colour)


def _fastest(served: Served, workload: Workload, colour: ColourPlace) -> LoaderParts:
    """The parts that are measured to be the fastest, where there is a choice."""
    from fastload.loader import tune

    def measured(backend: str, place: ColourPlace) -> float:
        parts = _on_backend(backend, "", served, workload, place)
        return tune.samples_per_second(parts.order, parts.stage, parts.feed(served.config))

    backend, reason = served.config.backend, "as asked"
    if backend == "auto":
        backend, reason = tune.backend_measured(workload, lambda name: measured(name, colour))
    colour = tune.place_measured(colour, lambda split: measured(backend, ColourPlace(split)))
    return _on_backend(backend, reason, served, workload, colour)


def _pads(config: LoaderConfig, source: Source, split: SplitRecipe) -> bool:
    """See `Context.padded`."""
    if config.collate is None:
        return False
    from fastload.loader import objects

    return objects.pads(config, source, split)


def _on_backend(
    backend: str, reason: str, served: Served, workload: Workload, colour: ColourPlace
) -> LoaderParts:
    """The parts, with a backend. `reason`: why this one, for a person."""
    opened, recipe, order = served.opened, served.recipe, served.order
    source, split = opened.source, colour.split
    workload = replace(workload, recipe=split)
    if order.groups_in_use:
        from fastload.loader.together import with_own_columns

        source = with_own_columns(source)
    cls = backend_class(backend)
    traits = traits_of(cls)
    check_able(backend, traits, workload)
    config, renewed, notes = _workers_on(traits, served)
    options = _options_for(backend, cls, config)
    if source.upright:
        options = replace(options, exif_orientation=True)
    if options.exif_orientation and source.encoded and source.grouped:
        from fastload.sources.places import refuse_left_behind

        refuse_left_behind(source, "exif_orientation", "turns")
    context = _context(config, source, split, order, padded=workload.padded)
    collate = None
    if source.instances or source.moved or config.collate is not None:
        from fastload.loader import objects

        objects.check(config, source, turned=options.exif_orientation)
        collate = objects.collate_of(config, source, context.outputs)
        objects.check_pairs(recipe, source)
    if context.prefetch_factor is not None and not config.adopted:
        workers = (config.num_workers or 1) if traits.processes else 1
        _check_ahead(context, context.prefetch_factor * workers)
    built = cls(context, options)
    if not hasattr(built, "start"):
        from fastload.backends.submitted import SubmittedBackend

        built = SubmittedBackend(built)
    compared: ComparedBackend | None = None
    if opened.assumed is not None:
        from fastload.loader.compared import ComparedBackend

        built = compared = ComparedBackend(
            built,
            source,
            opened.assumed,
            options.decode_settings,
            seed=config.seed,
            class_name=type(config.source).__name__,
        )
    read_together = ""
    together: Sequence[EncodedFiles] = ()
    if order.groups_in_use:
        in_processes = traits.processes and built.background
        read_together, together = _read_together(order, source, in_processes=in_processes)
    remote = _remote_of(source, order, split)
    in_place = bool(getattr(built, "in_place", False))
    changes = served.changes(in_place=in_place)

    def explain() -> dict[str, str]:
        rows = {
            "backend": f"{backend}: {reason}",
            "source": "\n".join([f"{source.name}: {source.summary}", *notes]),
            **({} if remote is None else {"fetched": remote.explain()}),
            **_explained(config, workload, read_together),
            **({} if served.pipeline is None else {"in its place": served.pipeline}),
        }
        return rows | ({"colour": colour.why} if colour.why else {})

    archives: SeenArchives | None = None
    if source.archives:
        from fastload.sources.inspection import SeenArchives

        archives = SeenArchives(source.archives)
    return _parts(
        config,
        split,
        outputs=context.outputs,
        source=source,
        order=order,
        collate=collate,
        owned=traits.owns_batches,
        backend=built,
        compared=compared,
        fingerprinted=(recipe.fingerprint,),
        explain=explain,
        renewed=renewed,
        changed=changes.changed,
        in_place=in_place and changes.of_dataset,
        archives=archives,
        together=together,
        remote=remote,
    )


def _check_ahead(context: Context, batches: int) -> None:
    """Raises ConfigurationError: so many batches, which are to be made ahead, are more than this
    machine can hold."""
    batch, memory = context.image_bytes, memory_bytes()
    if not batch or batches * batch <= memory:
        return
    workers = batches // (context.prefetch_factor or 1)
    raise ConfigurationError(
        f"prefetch_factor: {counted(batches, 'batch')} of {batch / 1e6:,.1f} MB made ahead are "
        f"{batches * batch / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB; "
        f"{max(1, memory // (2 * workers * batch)):,} or fewer fit."
    )


def _remote_of(source: Source, order: Order, split: SplitRecipe) -> Remote | None:
    if not any(column.waits for column in source.encoded.values()):
        return None
    from fastload.loader.remote import Remote

    return Remote(source, order, split.composite)


def _context(
    config: LoaderConfig, source: Source, split: SplitRecipe, order: Order, *, padded: bool
) -> Context:
    """What a backend is built from."""
    # Page-locked only where the copy to the GPU is ours: of a batch delivered on the CPU, nobody
    # says when the trainer's own copies are done.
    ours = config.pinned and config.device.type == "cuda"
    seeds = (
        config.adoption.seeds
        if config.adoption is not None and config.script_seeds
        else WorkerSeeds(config.seed, order.shard.rank)
    )
    return Context(
        source=source,
        recipe=split,
        batch_size=order.batch_size,
        num_workers=config.num_workers,
        prefetch_factor=config.prefetch_factor,
        device=config.device,
        allocate=BufferPool(pinned_for=config.device if ours else None).allocate,
        collate_fn=config.collate_fn,
        as_dataloader=config.adopted,
        workers=replace(config.workers, seeds=seeds),
        takes_pending=all(program.is_identity for program in split.host_programs),
        padded=padded,
    )


def _explained(config: LoaderConfig, workload: Workload, read_together: str) -> dict[str, str]:
    """What is done to samples, what that needs, and how they are delivered, for a person."""
    split = workload.recipe
    rows = {
        "transforms": "\n".join(f"{row.transform} -> {row.where}" for row in split.placement)
        or "none"
    }
    if read_together:
        rows["read together"] = read_together
    if several := split.composite.describe(len(workload.source)):
        rows["samples"] = several
    if split.reasons:
        rows["in Python because of"] = "\n".join(split.reasons)
    if needs := _needs_of(workload):
        rows["needs"] = "\n".join(needs)
    rows["delivered"] = f"on {config.device}, {config.memory_format}".replace("torch.", "")
    if config.collate is not None:
        rows["delivered"] += f", collate_fn={config.shown_collate}"
    if workload.padded:
        rows["delivered"] += ", images padded to the largest of a batch"
    if config.device.type == "cuda":
        rows["kernels"] = fused.explained(config.device)
    return rows


def _needs_of(workload: Workload) -> list[str]:
    """What a backend must be able to do, and which ones here are not. Why Python runs on single
    samples has a row of its own."""
    rows = [row for row in available_backends() if row.available]
    needs = []
    for need, task in needs_in(workload).items():
        if need.in_python:
            continue
        unable = [row.name for row in rows if not need.is_met(row.traits)]
        cannot = f" ({' and '.join(unable)} cannot)" if unable else ""
        needs.append(f"{need.argument}: to {task}{cannot}")
    return needs


def _read_together(
    order: Order, source: Source, *, in_processes: bool
) -> tuple[str, Sequence[EncodedFiles]]:
    """(for a person, the columns whose neighbours are read together), where the order keeps some
    together."""
    from fastload.loader import together

    columns = together.columns_in(source)
    if not columns:
        return "nothing: the samples are no parts of files in a store", ()
    if in_processes:
        return "nothing: worker processes share no memory; use a backend of threads", ()
    return together.explain(order, columns), columns


def _workers_on(traits: Traits, served: Served) -> tuple[LoaderConfig, bool, list[str]]:
    """What the settings of worker processes mean on a backend: (the configuration with those that
    apply, whether workers start again with each epoch, notes for `explain()`)."""
    config, source = served.config, served.opened.source
    notes = [*served.opened.notes, *config.notes]
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
    if served.order.read_ahead is not None and config.num_workers is None and traits.processes:
        config = replace(config, num_workers=0)  # more would have nothing to do
    runs_theirs = bool(source.objects) or served.split.opaque is not None
    renewed = config.renewed and traits.processes and runs_theirs
    if renewed and config.num_workers:
        notes.append(
            "workers start again with each epoch, as persistent_workers=False asks; with True "
            "they go on"
        )
    return config, renewed, notes


def _check_mix(mix: Mix, split: SplitRecipe, source: Source) -> None:
    """Raise ConfigurationError if samples are more than an image and its label."""
    if split.several_views:
        raise ConfigurationError(
            f"batch_transform: {type(mix).__name__} mixes one image with its "
            "label, and a sample here is several views (transform has Views). Leave it out, or "
            "give a function of the batch."
        )
    mixed = next((name for name, column in source.images.items() if column.kind.coloured), None)
    others = [name for name in source.images if name != mixed]
    others += [name for name, column in source.values.items() if column.ragged]
    others += [name for name in source.moved if name not in others]
    if others:
        raise ConfigurationError(
            f"batch_transform: {type(mix).__name__} mixes images and one label of each, and "
            f"{source.name} has {', '.join(map(repr, others))}, which it would not mix. Leave it "
            "out, or give a function of the batch."
        )
    beside = [name for name in source.columns if name != mixed]
    if mixed is not None and len(beside) > 1 and label_among(beside, source.layout) is None:
        raise ConfigurationError(
            f"batch_transform: {type(mix).__name__} mixes images and one label of each, and which "
            f"of {', '.join(map(repr, beside))} the label is, {source.name} does not say; call it "
            "'labels', or give a function of the batch."
        )


def _streaming(config: LoaderConfig) -> LoaderParts:
    """For an IterableDataset: a DataLoader of torch, and the device stage after it."""
    from fastload.backends.streamed import StreamBackend
    from fastload.loader import streams

    streams.refuse_of_streams(config)
    shard, dataset, name = config.shard_here(), config.source, type(config.source).__name__
    loader = streams.dataloader_of(config, shard)
    place = streams.StreamPlace(config, loader)
    source = Source({"item": StreamItems(dataset)}, streams.fingerprint(dataset), name)
    split = Recipe.from_transform(None).split(None)
    return _parts(
        config,
        split,
        outputs=Outputs.of(source, split),
        source=source,
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
    outputs: Outputs,
    source: Source,
    order: Order,
    fingerprinted: tuple[str, ...] = (),
    collate: Callable[[dict[str, Any]], Any] | None = None,
    owned: bool = False,
    **parts: Any,
) -> LoaderParts:
    """With the device stage, and what runs on whole batches. `owned`: `Traits.owns_batches`."""
    mix = config.batch_transform if isinstance(config.batch_transform, Mix) else None
    stage = DeviceStage(
        device=config.device,
        programs=split.programs,
        host_programs=split.host_programs,
        owned=owned,
        outputs=outputs,
        dtype=config.dtype,
        memory_format=config.memory_format,
        mix=mix,
        pinned=config.pinned,
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
