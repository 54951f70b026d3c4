"""Builds the parts of a Loader from a `LoaderConfig`. What "auto" means is decided by rule
(`backend_by_rule`, `colour_place`), or by measured speed in `tune`."""

from __future__ import annotations

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
    backend_by_rule,
    backend_class,
    check_able,
    traits_of,
)
from fastload.device import DeviceStage
from fastload.draws import Draws
from fastload.errors import ConfigurationError, OnError, counted
from fastload.fingerprint import fingerprint_of
from fastload.host_memory import BufferPool
from fastload.loader import rules
from fastload.loader.colour_place import ColourPlace, place_by_rule
from fastload.loader.config import LoaderConfig
from fastload.loader.feed import Feed
from fastload.loader.served import Served, served_for
from fastload.loader.worker_seeds import WorkerSeeds
from fastload.machine import memory_bytes
from fastload.recipe import Recipe, SplitRecipe
from fastload.recipe.mix import Mix
from fastload.recipe.outputs import Outputs
from fastload.sampler import Order, StreamOrder
from fastload.sources.base import Source
from fastload.sources.columns import EncodedFiles, StreamItems

if TYPE_CHECKING:
    from fastload.loader.compared import ComparedBackend
    from fastload.loader.remote import Remote
    from fastload.loader.streams import StreamPlace
    from fastload.sources.inspection import SeenArchives
    from fastload.sources.parquet_images import ParquetImages

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
    together: Sequence[EncodedFiles | ParquetImages] = ()
    """The columns whose neighbours are read together, where the order lets them."""
    remote: Remote | None = None
    """None where no image lies in a store."""
    last_epoch: int | None = None
    """Of later epochs nothing is made before they begin; None: of every one."""
    broadcast: Any = None
    """The process group whose first rank makes the batches of all; None: each makes its own."""

    def identity(self) -> dict[str, Any]:
        """What must be equal for two Loaders to give the same samples, as a state has it."""
        return self.order.reproducible() | {
            "source": self.source.fingerprint,
            "recipe": self.recipe_fingerprints[0],
        }

    def feed(self, on_error: OnError) -> Feed:
        """A Feed of their batches; nothing is started yet."""
        kind: Callable[..., Feed] = Feed
        together = None
        if self.broadcast is not None:
            from fastload.loader.broadcast import broadcasting

            kind = broadcasting(self.broadcast, self.identity)
        if self.together:
            from fastload.loader.together import ReadTogether

            together = ReadTogether(self.order, self.together)
        return kind(
            self.backend,
            self.stage,
            self.order,
            on_error,
            ahead=not (self.renewed or self.in_place),
            last_epoch=self.last_epoch,
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
        rules.check_mix(config.batch_transform, split, source)
    colour = ColourPlace(split)
    if config.place != "auto" or split.begins_with_colour:
        colour = place_by_rule(config.place, split, source, config.device)
    padded = bool(config.collate or served.order.packing) and _pads(served)
    workload = Workload(source, split, config.collate_fn, config.device, config.options, padded)
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
        alone = replace(parts, broadcast=None)
        return tune.samples_per_second(parts.order, parts.stage, alone.feed(served.config.on_error))

    backend, reason = served.config.backend, "as asked"
    if backend == "auto":
        backend, reason = tune.backend_measured(
            lambda name: measured(name, colour),
            prepared=workload.arrays,
            by_rule=lambda: backend_by_rule(workload),
        )
    colour = tune.place_measured(colour, lambda split: measured(backend, ColourPlace(split)))
    return _on_backend(backend, reason, served, workload, colour)


def _on_backend(
    backend: str, reason: str, served: Served, workload: Workload, colour: ColourPlace
) -> LoaderParts:
    """The parts, with a backend. `reason`: why this one, for a person."""
    config, order = served.config, served.order
    source, split = served.opened.source, colour.split
    traits, read_together = traits_of(cls := backend_class(backend)), ""
    if order.groups_in_use or not all(each.any_order for each in source.encoded.values()):
        source, read_together = _arranged(source, order, traits)
    workload = replace(workload, source=source, recipe=split)
    check_able(backend, traits, workload)
    options = _options_for(backend, cls, config, source)
    workers = _workers_on(traits, served)
    context = _context(config, workload, workers, order)
    collate = _collate(config, served.recipe, context, turned=options.exif_orientation)
    packs = _packing(served, collate) if order.packing else None
    if workers.ahead is not None and not config.adopted:
        _check_ahead(context, workers.ahead, (workers.number or 1) if traits.processes else 1)
    built: Any = cls(context, options)
    if not hasattr(built, "start"):
        from fastload.backends.submitted import SubmittedBackend

        built = SubmittedBackend(built)
    if getattr(options, "decode_on", "host") != "host":
        from fastload.loader.decoding import DecodingBackend

        built = DecodingBackend(built, config.device)
    compared: ComparedBackend | None = None
    if (assumed := served.opened.assumed) is not None:
        from fastload.loader.compared import ComparedBackend

        name, settings = type(config.source).__name__, options.decode_settings
        built = compared = ComparedBackend(
            built, source, assumed, settings, seed=config.seed, class_name=name
        )
    in_processes = traits.processes and built.background
    together: Sequence[Any] = ()
    if order.groups_in_use:
        said, together = _read_together(order, source, in_processes=in_processes)
        read_together = read_together or said
    remote = _remote_of(source, order, split, config.last_epoch)
    in_place = bool(getattr(built, "in_place", False))
    changes = served.changes(in_place=in_place)

    def explain() -> dict[str, str]:
        from fastload.loader.explained import explained

        rows = {
            "backend": f"{backend}: {reason}",
            "source": "\n".join([f"{source.name}: {source.summary}", *workers.notes]),
            **({} if remote is None else {"fetched": remote.explain()}),
            **explained(
                workload,
                memory_format=config.memory_format,
                collate=config.shown_collate,
                read_together=read_together,
            ),
            **({} if served.pipeline is None else {"in its place": served.pipeline}),
        }
        return rows | ({"colour": colour.why} if colour.why else {})

    return _parts(
        config,
        split,
        outputs=context.outputs,
        source=source,
        order=order,
        collate=collate,
        packs=packs,
        owned=traits.owns_batches,
        backend=built,
        compared=compared,
        fingerprinted=(served.recipe.fingerprint,),
        explain=explain,
        renewed=workers.renewed,
        changed=changes.changed,
        in_place=in_place and changes.of_dataset,
        archives=_archives(source),
        together=together,
        remote=remote,
    )


# -- For a backend ---------------------------------------------------------------------------------


def _pads(served: Served) -> bool:
    """See `Context.padded`."""
    from fastload.loader import objects

    config, order = served.config, served.order
    alone = config.batch_sampler is None and order.batch_size == 1
    padded = objects.pads(config.collate, served.opened.source, served.split, alone=alone)
    return padded or "patches" in order.packing


def _options_for(backend: str, cls: Any, config: LoaderConfig, source: Source) -> BackendOptions:
    """The backend's own, from those given. Raises ConfigurationError: they are another's."""
    wanted: type[BackendOptions] = cls.Options
    options = config.options or wanted()
    declined = config.backend == "auto" and getattr(options, "may_be_declined", False)
    if not isinstance(options, wanted):
        if not declined and type(options) is not BackendOptions:
            raise ConfigurationError(
                f"options: backend {backend!r} takes {wanted.__name__}, got "
                f"{type(options).__name__}; give {wanted.__module__}.{wanted.__name__}(...)."
            )
        options = wanted(exif_orientation=options.exif_orientation, max_pixels=options.max_pixels)
    if source.upright:
        options = replace(options, exif_orientation=True)
    if options.exif_orientation and source.encoded and source.grouped:
        from fastload.sources.places import refuse_left_behind

        refuse_left_behind(source, "exif_orientation", "turns")
    return options


@dataclass(frozen=True)
class _Workers:
    """What the settings of worker processes mean on a backend."""

    number: int | None
    """Threads or processes; None: the backend's choice."""
    ahead: int | None
    """Batches that each makes ahead; None: the backend's choice."""
    renewed: bool
    """Whether they start again with each epoch."""
    notes: list[str]
    """All that is to be said of the source and of them, for `explain()`."""


def _workers_on(traits: Traits, served: Served) -> _Workers:
    config = served.config
    number, ahead = config.num_workers, config.prefetch_factor
    notes = [*served.opened.notes, *config.notes]
    if config.adopted and not traits.processes:
        notes.append(f"changed: {number} worker processes -> the backend's own threads")
        if config.workers.init is not None:
            notes.append(
                "changed: worker_init_fn is not called: there are no workers, and no global "
                "random state"
            )
        number = ahead = None
    elif config.workers != WorkerSettings() and not traits.processes:
        notes.append(
            "worker_init_fn, multiprocessing_context, timeout: of no use, the backend works in "
            "threads"
        )
    if served.order.read_ahead is not None and number is None and traits.processes:
        number = 0  # more would have nothing to do
    runs_theirs = bool(served.opened.source.objects) or served.split.opaque is not None
    renewed = config.renewed and traits.processes and runs_theirs
    if renewed and number:
        notes.append(
            "workers start again with each epoch, as persistent_workers=False asks; with True "
            "they go on"
        )
    return _Workers(number, ahead, renewed, notes)


def _context(config: LoaderConfig, workload: Workload, workers: _Workers, order: Order) -> Context:
    """What a backend is built from."""
    # Page-locked only where the copy to the GPU is ours: of a batch delivered on the CPU, nobody
    # says when the trainer's own copies are done.
    ours = config.pinned and config.device.type == "cuda"
    seeds = (
        config.adoption.seeds
        if config.adoption is not None and config.adoption.draws_seeds
        else WorkerSeeds(config.seed, order.shard.rank)
    )
    return Context(
        source=workload.source,
        recipe=workload.recipe,
        batch_size=order.largest_batch,
        num_workers=workers.number,
        prefetch_factor=workers.ahead,
        device=config.device,
        allocate=BufferPool(pinned_for=config.device if ours else None).allocate,
        collate_fn=config.collate_fn,
        as_dataloader=config.adopted,
        memory_format=torch.contiguous_format
        if isinstance(config.batch_transform, Mix)  # which comes before it
        else config.memory_format,
        workers=replace(config.workers, seeds=seeds),
        takes_pending=all(program.is_identity for program in workload.recipe.host_programs),
        padded=workload.padded,
    )


def _check_ahead(context: Context, ahead: int, workers: int) -> None:
    """Raises ConfigurationError: so many batches, which are to be made ahead, are more than this
    machine can hold."""
    batch, memory, batches = context.image_bytes, memory_bytes(), ahead * workers
    if not batch or batches * batch <= memory:
        return
    raise ConfigurationError(
        f"prefetch_factor: {counted(batches, 'batch')} of {batch / 1e6:,.1f} MB made ahead are "
        f"{batches * batch / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB; "
        f"{max(1, memory // (2 * workers * batch)):,} or fewer fit."
    )


# -- Beside it -------------------------------------------------------------------------------------


def _collate(
    config: LoaderConfig, recipe: Recipe, context: Context, *, turned: bool
) -> Callable[[dict[str, Any]], Any] | None:
    """What brings batches to the form that `collate_fn=` names; None where it names none. Raises
    ConfigurationError: boxes and the like would not belong to their images. `turned`: whether
    images are turned by their EXIF tag."""
    source = context.source
    if not (source.instances or source.moved or source.decoded or config.collate is not None):
        return None
    from fastload.loader import objects
    from fastload.loader.collate import collate_of

    objects.check(source, config.collate_fn, turned=turned)
    given = config.collate
    collate = None if given is None else collate_of(given, source, context.outputs, context.recipe)
    objects.check_pairs(recipe, source)
    return collate


def _packing(
    served: Served, then: Callable[[dict[str, Any]], Any] | None
) -> Callable[[dict[str, Any], Draws], Any]:
    """What packs sequences, or patches, into rows, before the user's own function."""
    from fastload.loader import packing

    order, source = served.order, served.opened.source
    if "patches" in order.packing:
        from fastload.loader import patches
        from fastload.recipe.patches import resize_of

        resize = resize_of(served.recipe, served.split)
        return patches.form_of(order, source, resize, then).of_draws
    return packing.form_of(order, source, then).of_draws


def _remote_of(
    source: Source, order: Order, split: SplitRecipe, last_epoch: int | None
) -> Remote | None:
    if not any(column.waits for column in source.encoded.values()):
        return None
    from fastload.loader.remote import Remote

    return Remote(source, order, split.composite, last_epoch)


def _archives(source: Source) -> SeenArchives | None:
    if not source.archives:
        return None
    from fastload.sources.inspection import SeenArchives

    return SeenArchives(source.archives)


def _arranged(source: Source, order: Order, traits: Traits) -> tuple[Source, str]:
    """The source as the order reads it, with columns of its own; and how, for a person, where not
    `_read_together` says it."""
    said = ""
    if not all(column.any_order for column in source.encoded.values()):
        from fastload.loader.row_groups import arranged

        source, said = arranged(source, order, processes=traits.processes)
    if order.groups_in_use:
        from fastload.loader.together import with_own_columns

        source = with_own_columns(source)
    return source, said


def _read_together(
    order: Order, source: Source, *, in_processes: bool
) -> tuple[str, Sequence[EncodedFiles | ParquetImages]]:
    """(for a person, the columns whose neighbours are read together), where the order keeps some
    together."""
    from fastload.loader import together

    columns = together.columns_in(source)
    if not columns:
        return "nothing: the samples are no parts of files in a store", ()
    if in_processes:
        return "nothing: worker processes share no memory; use a backend of threads", ()
    return together.explain(order, columns), columns


def _streaming(config: LoaderConfig) -> LoaderParts:
    """For an IterableDataset: a DataLoader of torch, and the device stage after it."""
    from fastload.backends.streamed import StreamBackend
    from fastload.loader import streams

    streams.refuse_of_streams(config)
    here, dataset, name = config.shard_here(), config.source, type(config.source).__name__
    shard = here.shard
    loader = streams.dataloader_of(config, shard)
    seeds = WorkerSeeds(config.seed, shard.rank)
    place = streams.StreamPlace(dataset, loader, seeds, sets_epochs=config.sets_epochs)
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
            "source": "\n".join(
                filter(None, [*streams.notes_of(config, shard), *config.notes, here.note])
            ),
            "delivered": f"on {config.device}",
        },
    )


def _parts(
    config: LoaderConfig,
    split: SplitRecipe,
    *,
    outputs: Outputs,
    fingerprinted: tuple[str, ...] = (),
    collate: Callable[[dict[str, Any]], Any] | None = None,
    packs: Callable[[dict[str, Any], Draws], Any] | None = None,
    owned: bool = False,
    **parts: Any,
) -> LoaderParts:
    """With the device stage, and what runs on whole batches. `owned`: `Traits.owns_batches`."""
    mix = config.batch_transform if isinstance(config.batch_transform, Mix) else None
    stage = DeviceStage(
        device=config.device,
        programs=getattr(collate, "separated", tuple)(split.programs),
        host_programs=split.host_programs,
        owned=owned,
        outputs=outputs,
        dtype=config.dtype,
        memory_format=config.memory_format,
        mix=mix,
        pinned=config.pinned,
        collate=collate,
        packs=packs,
    )
    return LoaderParts(
        stage=stage,
        recipe_fingerprints=_recipe_fingerprints(config.dtype, split, (*fingerprinted, repr(mix))),
        batch_transform=None if mix is not None else config.batch_transform,
        broadcast=config.broadcast,
        last_epoch=config.last_epoch,
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
