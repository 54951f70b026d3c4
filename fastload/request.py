"""The arguments of `create_loader`, checked and resolved: strings, defaults and "auto" end here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, cast, get_args

import numpy as np
import torch
from torch.utils.data import default_collate

from fastload.backends import backend_class
from fastload.backends.base import BackendOptions, Context, Job
from fastload.device.buffers import BufferPool
from fastload.device.stage import DeviceStage
from fastload.errors import ConfigurationError, OnError
from fastload.loader import Loader, LoaderParts
from fastload.recipe import Recipe, SplitRecipe
from fastload.recipe.mix import CutMix, Mix, MixChoice, MixUp, lower_batch_transform
from fastload.sampler import EpochOrder, ForeignOrder, Order, Shard
from fastload.selection import choose_by_rule, measure
from fastload.sources import open_source
from fastload.sources.base import Role, Source, fingerprint_of

__all__ = ["LoaderRequest", "resolve"]


def resolve(
    source: Any,
    batch_size: int,
    *,
    shuffle: bool,
    drop_last: bool,
    transform: Any,
    batch_transform: Callable[..., Any] | None,
    num_workers: int | None,
    prefetch_factor: int | None,
    pin_memory: bool | None,
    sampler: Iterable[int] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    seed: int,
    shard: Shard | None,
    device: str | torch.device,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format,
    on_error: OnError,
    options: BackendOptions | None,
) -> LoaderRequest:
    """Check the arguments of `create_loader` and open the source."""
    batch_size = _integer("batch_size", batch_size, 1)
    num_workers = None if num_workers is None else _integer("num_workers", num_workers, 0)
    prefetch_factor = None if prefetch_factor is None else _integer("prefetch_factor", prefetch_factor, 1)
    seed = _integer("seed", seed)
    shuffle, drop_last = _flag("shuffle", shuffle), _flag("drop_last", drop_last)
    for name, value, wanted in (
        ("shard", shard, Shard),
        ("dtype", dtype, torch.dtype),
        ("memory_format", memory_format, torch.memory_format),
    ):
        if value is not None and not isinstance(value, wanted):
            raise ConfigurationError(f"{name}: must be a {_qualified(wanted)}, got {value!r}.")
    if memory_format not in (torch.channels_last, torch.contiguous_format):
        raise ConfigurationError(
            f"memory_format: images are delivered in torch.channels_last or torch.contiguous_format, got "
            f"{memory_format}."
        )
    if collate_fn is not None and not callable(collate_fn):
        raise ConfigurationError(f"collate_fn: must be a function of a list of samples, got {collate_fn!r}.")
    if on_error not in get_args(OnError):
        raise ConfigurationError(f"on_error: must be 'raise' or 'substitute', got {on_error!r}.")
    if sampler is not None and shuffle:
        raise ConfigurationError("shuffle: must be False when a sampler is given, which decides the order.")
    opened = open_source(source)
    if dtype is not None and not opened.source.images and not _has_objects(opened.source):
        raise ConfigurationError(
            f"dtype: it is for images, and {opened.source.name} has none (columns: "
            f"{', '.join(opened.source.columns)}); leave it out and convert the data, or use batch_transform."
        )
    return LoaderRequest(
        source=opened.source,
        dataset=source,
        transform=_both(opened.transform, transform),
        order=_order(opened.source, batch_size, shuffle, drop_last, sampler, seed, shard),
        batch_transform=lower_batch_transform(batch_transform),
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        collate_fn=None if collate_fn is default_collate else collate_fn,
        device=_device(device),
        pin_memory=pin_memory,
        dtype=dtype,
        memory_format=memory_format,
        on_error=on_error,
        options=options,
        notes=opened.notes,
    )


@dataclass(frozen=True)
class LoaderRequest:
    """The resolved arguments; makes a Loader for any backend, so that `tune` can try several."""

    source: Source
    dataset: Any
    transform: Any
    order: Order
    batch_transform: Mix | Callable[..., Any] | None
    num_workers: int | None
    prefetch_factor: int | None
    collate_fn: Callable[[list[Any]], Any] | None
    device: torch.device
    pin_memory: bool | None
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    on_error: OnError
    options: BackendOptions | None
    notes: tuple[str, ...] = ()
    """What a person should know about how the source was opened."""
    worker_init_fn: Callable[[int], None] | None = None

    def ruled(self) -> tuple[str, str]:
        """(backend, reason) that "auto" stands for without measuring."""
        return choose_by_rule(self.job)

    @property
    def job(self) -> Job:
        """What the choice of a backend depends on."""
        return Job(self.source, self.recipe, self.collate_fn, self.device)

    def loader(self, backend: str, *, tune: bool = False) -> Loader:
        """Make the Loader, choosing the backend if it is "auto"."""
        if backend != "auto":
            return self._loader_on(backend, f"{backend}: as asked")
        choice, reason = measure(self.job, lambda name: self._loader_on(name, "")) if tune else self.ruled()
        return self._loader_on(choice, f"{choice}: {reason}")

    @property
    def recipe(self) -> SplitRecipe:
        """The transform, split for this source."""
        recipe = Recipe.from_transform(self.transform)
        if recipe.ops and not self.source.images and not _has_objects(self.source):
            raise ConfigurationError(
                f"transform: {self.source.name} has no images (columns: {', '.join(self.source.columns)}); "
                "leave it out, or use batch_transform."
            )
        if self.collate_fn is not None:
            return recipe.as_opaque("the collate_fn takes finished samples")
        primary = next(iter(self.source.images.values()), None)
        return recipe.split(None if primary is None else primary.fixed_size)

    def _loader_on(self, backend: str, choice: str) -> Loader:
        cls = backend_class(backend)
        recipe = self.recipe
        pinned = self.device.type == "cuda" if self.pin_memory is None else self.pin_memory
        pinned = pinned and torch.cuda.is_available()
        built = cls(
            Context(
                source=self.source,
                recipe=recipe,
                batch_size=self.order.batch_size,
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch_factor,
                device=self.device,
                # Delivered on the CPU, a batch leaves our hands before the trainer's copies out of it are done.
                allocate=BufferPool(pinned=pinned and self.device.type == "cuda").allocate,
                collate_fn=self.collate_fn,
                worker_init_fn=self.worker_init_fn,
            ),
            _options_for(backend, cls, self.options),
        )
        mix = self.batch_transform if isinstance(self.batch_transform, MixUp | CutMix | MixChoice) else None
        stage = DeviceStage(
            device=self.device,
            program=recipe.batch,
            roles=_roles(self.source),
            layout=self.source.layout,
            dtype=self.dtype,
            memory_format=self.memory_format,
            mix=mix,
            seed=self.order.seed,
            pinned=pinned,
        )
        return Loader(
            LoaderParts(
                source=self.source,
                order=self.order,
                backend=built,
                stage=stage,
                recipe_fingerprint=fingerprint_of(
                    Recipe.from_transform(self.transform).fingerprint, repr(mix), str(self.dtype)
                ),
                dataset=self.dataset,
                batch_transform=None if mix is not None else cast("Callable[..., Any] | None", self.batch_transform),
                on_error=self.on_error,
                explanation=_explanation(self, recipe, choice),
            )
        )


def _integer(name: str, value: Any, least: int | None = None) -> int:
    """An int, of Python's type or numpy's."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and int(value) < least):
        what = "an int" if least is None else f"an int of at least {least}"
        raise ConfigurationError(f"{name}: must be {what}, got {value!r}.")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    """A bool, of Python's type or numpy's; DataLoader takes None for False."""
    if value is not None and not isinstance(value, bool | np.bool_):
        raise ConfigurationError(f"{name}: must be True or False, got {value!r}.")
    return bool(value)


def _qualified(kind: type[Any]) -> str:
    return f"fastload.{kind.__name__}" if kind is Shard else f"torch.{kind.__name__}"


def _order(
    source: Source,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    sampler: Iterable[int] | None,
    seed: int,
    shard: Shard | None,
) -> Order:
    shard = Shard.detect() if shard is None else shard
    if sampler is not None:
        order: Order = ForeignOrder(sampler, batch_size, len(source), drop_last, seed, shard)
    else:
        order = EpochOrder(len(source), batch_size, shard, shuffle, drop_last, seed)
    if sampler is not None and not len(sampler):  # type: ignore[arg-type]
        raise ConfigurationError(f"sampler: {type(sampler).__name__} is empty; leave it out to serve all samples.")
    if order.steps == 0:
        raise ConfigurationError(
            f"drop_last: {len(source)} samples do not fill one global batch of {order.global_batch_size} "
            f"(batch_size {batch_size} x {shard.world_size} ranks), so no batch is left. Use drop_last=False or a "
            "smaller batch_size."
        )
    return order


def _both(own: Any, given: Any) -> Any:
    """The dataset's transform, then the one given."""
    if own is None or given is None:
        return given if own is None else own
    if isinstance(given, Recipe):
        raise ConfigurationError(
            "transform: the dataset has a transform of its own and a Recipe was given as well; drop one of them."
        )
    from torchvision.transforms import Compose

    return Compose([own, given])


def _device(device: str | torch.device) -> torch.device:
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device: {device!r} is not a device ({error}).") from None
    if resolved.type != "cuda":
        return resolved
    if not torch.cuda.is_available():
        raise ConfigurationError(
            f"device: {str(device)!r} was asked for, but torch sees no CUDA device here. Use device='cpu', or see "
            "`fastload doctor`."
        )
    return torch.device("cuda", torch.cuda.current_device()) if resolved.index is None else resolved


def _options_for(backend: str, cls: Any, options: BackendOptions | None) -> BackendOptions:
    wanted: type[BackendOptions] = cls.Options
    if options is None:
        return wanted()
    if type(options) is BackendOptions:
        return wanted(exif_orientation=options.exif_orientation, max_pixels=options.max_pixels)
    if not isinstance(options, wanted):
        raise ConfigurationError(f"options: backend {backend!r} takes {wanted.__name__}, got {type(options).__name__}.")
    return options


def _has_objects(source: Source) -> bool:
    return bool(source.objects)


def _roles(source: Source) -> dict[str, Role]:
    if _has_objects(source):
        return {"image": "image", "mask": "mask"}  # the names that object samples get
    return {name: column.role for name, column in source.columns.items()}


def _explanation(request: LoaderRequest, recipe: SplitRecipe, choice: str) -> dict[str, str]:
    source, order = request.source, request.order
    kind = "shuffled" if isinstance(order, EpochOrder) and order.shuffle else "in order"
    if isinstance(order, ForeignOrder):
        ahead = "" if order.pure else ", drawn when its epoch starts (no prefetch over the epoch's end)"
        kind = f"by {type(order.sampler).__name__}{ahead}"
    return {
        "backend": choice,
        "source": "\n".join([f"{source.name}: {source.format}, {len(source)} samples", *request.notes]),
        "order": (
            f"{kind}, seed {order.seed}, rank {order.shard.rank} of {order.shard.world_size}, "
            f"{order.steps} batches of {order.batch_size}"
        ),
        "transforms": "\n".join(f"{row.transform} -> {row.where}" for row in recipe.placement) or "none",
        "delivered": f"on {request.device}, {request.memory_format}".replace("torch.", ""),
    }
