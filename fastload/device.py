"""From a host batch to what the trainer gets: one copy, the batch part of the recipe, on the target
device.

On CUDA all of it runs on a stream of its own, ahead of the trainer. Events order the two streams.
The host waits for the device in one case only: the trainer has been given so many batches that it
has not worked through yet that their memory would grow without a bound
(`DeviceStage._limit_delivered`).
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from fastload import native
from fastload.backends.base import Absent, HostBatch
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.host_memory import WORTH_KEEPING, BufferPool
from fastload.recipe.mix import Mix, Mixing, label_among
from fastload.recipe.outputs import SIZES, Outputs
from fastload.recipe.split import BatchProgram
from fastload.render import fused
from fastload.render.drawn import PendingImages
from fastload.sources.kinds import IMAGE, VALUE
from fastload.sources.ragged import Packed, Ragged
from fastload.spans import SpanLog

if TYPE_CHECKING:
    from fastload.render.host_colour import HostColour

_FEWEST_DELIVERED = 4
"""Batches that may always be delivered and not worked through yet, whatever their size."""
_MOST_DELIVERED_BYTES = 512 << 20
"""Bytes of batches that the trainer has been given and has not worked through. Small batches may be
many: at CIFAR's 6 MB some 80, so that a pause of the host of some ten milliseconds does not stop
the GPU."""


@dataclass
class Staged:
    """A batch on its device, perhaps not finished yet: `DeviceStage.deliver` has the trainer's
    stream wait for it."""

    batch: Any
    """The structure the trainer sees: a list, a dict, or what the user's collate function made."""
    ready: torch.cuda.Event | None
    samples: int | None = None
    """How many samples it has, where its structure does not say so."""
    substituted: int = 0
    """Samples in the batch that took the place of ones that could not be read."""
    sharing: int = 1
    """Batches that have their memory together."""
    weight: float = 1.0
    """`Draws.weight`."""

    def taken_apart(self, sizes: Sequence[int]) -> list[Staged]:
        """Of several batches that were made as one: each, of so many samples."""
        return [
            Staged(
                _map_tensors(self.batch, partial(_rows, first=end - size, end=end)),
                self.ready,
                sharing=len(sizes),
                weight=self.weight,
            )
            for end, size in zip(accumulate(sizes), sizes, strict=True)
        ]


class DeviceStage:
    """Copies host batches to a device and runs the batch part of a recipe there."""

    def __init__(
        self,
        *,
        device: torch.device,
        programs: Sequence[BatchProgram],
        outputs: Outputs,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.channels_last,
        mix: Mix | None = None,
        host_programs: Sequence[BatchProgram] = (),
        owned: bool = False,
        pinned: bool = False,
        collate: Callable[[dict[Any, Any]], Any] | None = None,
        packs: Callable[[dict[str, Any], Draws], Any] | None = None,
    ) -> None:
        """
        Args:
            programs: one for each view of the samples.
            outputs: the columns of batches.
            host_programs: what is done before `programs`, on batches in host memory.
            owned: whether the batches themselves may be written to (`Traits.owns_batches`).
            collate: makes what the trainer sees from the finished columns by name.
            packs: the same, by the draws as well.
        """
        self.device = device
        self._programs = programs
        self._host_programs, self._owned = host_programs, owned
        self._colour: HostColour | None = None
        floats = any(op.has_float_steps for each in programs for _, op in each.ops)
        # What has its place on the host needs the core; operations on floats torch does, too.
        if host_programs or (floats and native.available()):
            from fastload.recipe.by_core import by_core

            self._colour, self._programs = by_core(programs, device)
        self._columns, self._pixels = outputs, outputs.pixels
        if any(not kind.coloured for kind in self._pixels.values()):
            for program in (*programs, *host_programs):
                program.require_masks_follow()
        self._views = [outputs.pixels_in(view) for view in range(len(programs))]
        self._dtype = dtype
        self._memory_format = memory_format
        self._mix = mix
        self._pinned = pinned
        of_columns = None if collate is None else lambda columns, _: collate(columns)
        self._collate: Callable[[dict[str, Any], Draws], Any] | None = packs or of_columns
        # Not of page-locked memory: the trainer may have queued a copy out of a batch that it has
        # let go of. torch's own allocator, which `pin_memory` takes from for its copy of a batch,
        # waits for such copies before it reuses the memory.
        self._outputs = BufferPool()
        self._stream: torch.cuda.Stream | None = None
        self._home: int | None = None
        """The trainer's GPU, where host memory is to be page-locked."""
        self._copying: deque[tuple[torch.cuda.Event, list[torch.Tensor]]] = deque()
        """Host tensors that are copied from, until the event after the copy has happened."""
        self._ring = BufferPool(pinned_for=device) if device.type == "cuda" else None
        """Page-locked memory for what comes in ordinary memory (batches of worker processes)."""
        self._delivered: deque[tuple[torch.cuda.Event, int]] = deque()
        """Of each batch that was delivered: an event after the trainer's work on the batches before
        it, and its bytes on the device."""
        self._spans: SpanLog | None = None

    @property
    def light(self) -> bool:
        """Whether it only converts numbers in ordinary memory, which takes less time than to hand a
        small batch from thread to thread."""
        programs = (*self._programs, *self._host_programs)
        converts = all(op.light for program in programs for _, op in program.ops)
        return self.device.type == "cpu" and not self._pinned and self._mix is None and converts

    @property
    def takes_apart(self) -> bool:
        """Whether several batches may come as one: nothing is done with a batch as a whole."""
        return self._mix is None and self._collate is None

    def prepare(self) -> None:
        """Note what only the trainer's thread knows: its current GPU. Called there, before another
        thread uses the stage."""
        if self._pinned:
            self._home = torch.cuda.current_device()

    @property
    def stream(self) -> torch.cuda.Stream:
        """All that the stage does on a GPU is queued here."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        return self._stream

    def claim_thread(self) -> None:
        """Let all that the calling thread does on the device, the backend's work included, go to
        the stage's stream.

        Threads begin on the default stream, which the trainer uses: its queue is long, every batch
        made on the GPU would wait for the end of it, and every blocking copy would make the thread
        wait as well. They also begin on GPU 0, where page-locking would open a context.
        """
        if self.device.type == "cuda":
            torch.cuda.set_stream(self.stream)
        elif self._home is not None:
            torch.cuda.set_device(self._home)

    def run(self, host: HostBatch, draws: Draws, batch_number: int) -> Staged:
        """Start the work for one batch; on CUDA it is queued on the stage's stream and not waited
        for. `batch_number`: global batch of the epoch, 0-based, that mixup and cutmix draw from."""
        if self.device.type != "cuda":
            batch = self._assemble(host, draws, batch_number, keep=None)
            if self._pinned:
                batch = _map_tensors(batch, torch.Tensor.pin_memory)
            return self._collated(batch, draws, None)
        own, spans = self.stream, self._spans
        self._limit_delivered()
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        keep: list[torch.Tensor] = []
        if any(tensor.is_cuda for tensor in _tensors([*host.columns.values(), host.collated])):
            # Whatever made device tensors in the backend (GPU decoding, resident caches) did so on
            # its current stream. All others need not wait: in the trainer's thread (no workers)
            # that would be for all that it has queued.
            own.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.device(self.device), torch.cuda.stream(own):
            begin, ready = (
                torch.cuda.Event(enable_timing=spans is not None, blocking=True) for _ in range(2)
            )
            if spans is not None:
                spans.anchor(self.device)
                begin.record(own)
            batch = self._assemble(host, draws, batch_number, keep)
            staged = self._collated(batch, draws, ready)
            ready.record(own)
        if spans is not None:
            place = {"epoch": draws.epoch, "step": batch_number}
            spans.device_span("copy and batch transforms", begin, ready, args=place)
        # The pinned buffers must not be refilled before the copy out of them is done.
        self._copying.append((ready, keep))
        return staged

    def _collated(self, batch: Any, draws: Draws, ready: torch.cuda.Event | None) -> Staged:
        if self._collate is None:
            return Staged(batch, ready)
        columns = dict(zip(self._columns.columns, batch.values(), strict=True))
        samples = len(next(iter(columns.values())))
        return Staged(self._collate(columns, draws), ready, samples)

    def deliver(self, staged: Staged) -> Any:
        """The batch, safe to use on the caller's current stream and to keep as long as it likes."""
        if staged.ready is not None:
            stream = torch.cuda.current_stream(self.device)
            before = torch.cuda.Event(blocking=True)
            before.record(stream)
            stream.wait_event(staged.ready)
            nbytes, seen = 0, set()
            for tensor in _tensors(staged.batch):
                if not tensor.is_cuda:
                    continue
                if tensor.layout != torch.strided:  # jagged: no views, and no `nbytes`
                    tensor.record_stream(stream)
                    continue
                memory = tensor.untyped_storage()
                if memory.data_ptr() not in seen:  # of views once
                    seen.add(memory.data_ptr())
                    # Memory that the trainer frees is not written again before its stream has
                    # passed this point.
                    tensor.record_stream(stream)
                    nbytes += memory.nbytes() // staged.sharing
            self._delivered.append((before, nbytes))
        return staged.batch

    def record(self, spans: SpanLog | None) -> None:
        """Write to a log when a GPU works on each batch, on its own timeline; None: no longer."""
        self._spans = spans

    def close(self) -> None:
        """Wait for copies under way and let go of the host buffers."""
        while self._copying:
            self._copying.popleft()[0].synchronize()
        self._delivered.clear()
        if self._colour is not None:
            self._colour.close()

    def _limit_delivered(self) -> None:
        """Wait, without spinning, until the trainer is not too many batches behind.

        The memory of a batch that the trainer has freed can be used again when the trainer's stream
        has passed the work on it. A host that runs far ahead (it needs next to no time to launch
        CUDA graphs) would take new memory for each batch.
        """
        delivered = list(self._delivered)  # a copy: the trainer's thread appends
        total = sum(nbytes for _, nbytes in delivered)
        while self._delivered:
            event, nbytes = self._delivered[0]
            if not event.query():
                if len(self._delivered) <= _FEWEST_DELIVERED or total <= _MOST_DELIVERED_BYTES:
                    return
                event.synchronize()
            self._delivered.popleft()
            total -= nbytes

    def _assemble(
        self, host: HostBatch, draws: Draws, batch_number: int, keep: list[torch.Tensor] | None
    ) -> Any:
        parts = self._parts_of(host)
        if not parts.finished:
            parts = replace(parts, columns=self._with_objects(parts.columns))
            if self._host_programs and self._colour is not None:
                parts = replace(parts, columns=self._recoloured(parts.columns, draws, self._colour))
        # An array in a batch that the user's code has made is what the trainer wants.
        ours = not parts.finished
        columns = {
            name: _map_tensors(
                torch.from_numpy(value) if ours and isinstance(value, np.ndarray) else value,
                lambda tensor: self._to_device(tensor, keep),
            )
            for name, value in self._as_tensors(parts.columns, keep).items()
        }
        # Of the global batch of the epoch, so that every rank mixes alike.
        whole = Draws(draws.seed, draws.epoch, np.array([batch_number], dtype=np.int64))
        mixing = self._mixing_of(parts, columns, whole)
        if not parts.finished:
            for name in self._pixels.keys() & columns.keys():
                if not isinstance(columns[name], PendingImages):  # Those come as (B, C, H, W).
                    columns[name] = columns[name].permute(0, 3, 1, 2)
            for program, kinds in zip(self._programs, self._views, strict=True):
                pixels = {name: columns[name] for name in (*kinds, SIZES) if name in columns}
                # What mixing still works on stays in the recipe's dtype.
                dtype = self._dtype if self._mix is None or mixing is not None else None
                transformed = program(
                    pixels, kinds, draws, empty=self._recycled, mixing=mixing, dtype=dtype
                )
                columns.update(transformed)
        if self._mix is not None:
            if parts.targets is None:
                raise ConfigurationError(
                    f"batch_transform: {type(self._mix).__name__} needs batches (images, labels) "
                    "with images (B, C, H, W), or dicts with 'image' and 'label', and "
                    f"{parts.described} are no such. Leave it out, or give a function of the batch."
                )
            if parts.finished:
                _refuse_beside(self._mix, parts, columns)
            images, targets = columns[parts.images], columns[parts.targets]
            if mixing is not None:
                targets = self._mix.mixed_labels(images, targets, whole)
            else:
                images, targets = self._mix.apply(images, targets, whole)
            columns[parts.images], columns[parts.targets] = images, targets
        if self._dtype is not None and parts.finished and parts.images is None:
            raise ConfigurationError(
                f"dtype: it is for images (B, C, H, W), and {parts.described} are not known as "
                "such: first in a batch, or named 'image'. Leave it out, or give a function of the "
                "batch as batch_transform."
            )
        memory_format = None if parts.foreign else self._memory_format
        # A list is as it is to be: of objects, or of images that each have their own size.
        for name in [name for name in columns if not isinstance(columns[name], list)]:
            kind = self._columns.kind_of(name)
            if parts.finished:
                kind = IMAGE if name == parts.images else VALUE
            columns[name] = kind.delivered(columns[name], self._dtype, memory_format)
        return self._joined(columns) if self._collate is not None else parts.rebuild(columns)

    def _with_objects(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The columns; a list of Python objects for those that have no tensor
        (`Kind.python_objects`)."""
        kinds = {name: self._columns.kind_of(name) for name in columns}
        return {
            # A list: Python has made them sample by sample.
            name: kinds[name].objects(value)
            if kinds[name].python_objects and not isinstance(value, list)
            else value
            for name, value in columns.items()
        }

    def _mixing_of(self, parts: _Parts, columns: Mapping[Any, Any], whole: Draws) -> Mixing | None:
        """What mixes the images in the pass that normalises them; None where that is a step of its
        own."""
        if self._mix is None or not self._mix.in_pairs or parts.finished or parts.targets is None:
            return None
        coloured = [n for n, kind in self._pixels.items() if kind.coloured and n in columns]
        program, images = self._programs[0], columns[parts.images]
        good = coloured == [parts.images] and program.output_dtype().is_floating_point
        return Mixing(self._mix, whole) if good and fused.active(images) else None

    def _recoloured(
        self, columns: Mapping[Any, Any], draws: Draws, colour: HostColour
    ) -> dict[Any, Any]:
        """The columns after the operations that have their place on the host: in the memory of the
        batch where nobody else sees it (`Traits.owns_batches`)."""
        recoloured, work = dict(columns), []
        for program, names in zip(self._host_programs, self._views, strict=True):
            for name in names:
                if name not in columns or not self._pixels[name].coloured:
                    continue
                images = columns[name]
                if isinstance(images, torch.Tensor):
                    if images.device.type != "cpu":
                        raise ConfigurationError(
                            f"place: the backend makes images on {images.device}, and 'host' asks "
                            "for colour before they are there; leave it out, or use a backend or "
                            "a storage on the host."
                        )
                    images = images.numpy()
                fits = images.shape[3] in (1, 3) or all(op.of_any_channels for _, op in program.ops)
                if images.dtype != np.uint8 or not fits:
                    raise ConfigurationError(
                        f"place: 'host' takes uint8 images of 1 or 3 channels, column {name!r} has "
                        f"{images.dtype} of shape {images.shape[1:]}; leave it out."
                    )
                images = np.require(images, None, ["C", "W"]) if self._owned else images.copy("C")
                recoloured[name] = images
                height, width, channels = images.shape[1:]
                shape = (channels, height, width)
                steps = [op.colour_steps(draws, stream, shape) for stream, op in program.ops]
                work.append((images, list(chain.from_iterable(steps))))
        colour.run_together(work)
        return recoloured

    def _as_tensors(
        self, columns: Mapping[Any, Any], keep: list[torch.Tensor] | None
    ) -> dict[Any, Any]:
        """The columns, with rows of variable length as tensors. All of these travel to a GPU in one
        copy, whatever their number."""
        ragged = {
            name: value
            for name, value in columns.items()
            if isinstance(value, Ragged) and isinstance(value.offsets, np.ndarray)
        }
        if not ragged:
            return dict(columns)
        if self.device.type == "cpu":
            tensors = {name: value.map(torch.from_numpy) for name, value in ragged.items()}
        else:
            packed = Packed.of(ragged, self._host_bytes, bounds=True)
            sent = self._to_device(torch.from_numpy(packed.buffer), keep)
            tensors = replace(packed, buffer=sent).tensors()
        return {name: tensors.get(name, value) for name, value in columns.items()}

    def _host_bytes(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        return np.empty(shape, np.uint8) if self._ring is None else self._ring.allocate(shape)

    def _parts_of(self, host: HostBatch) -> _Parts:
        """The parts of a batch, whether a backend made columns or Python code a finished batch."""
        if host.collated is not Absent.COLLATED:
            return _taken_apart(host.collated, foreign=host.layout is None)
        names, rebuild = list(host.columns), _REBUILD[host.layout or self._columns.layout]
        if host.named is not None:
            rebuild = partial(_as_named, host.named)
        images = next(
            (name for name, kind in self._pixels.items() if kind.coloured and name in host.columns),
            None,
        )
        targets = None
        if images is not None and self._mix is not None:  # Only mixing needs the label.
            others = [name for name in names if name != images]
            targets = label_among(others, host.layout or self._columns.layout)
        return _Parts(
            host.columns,
            images=images,
            targets=targets,
            rebuild=lambda columns: rebuild(self._joined(columns)),
            described=f"the columns here ({', '.join(map(str, names))})",
        )

    def _joined(self, columns: dict[Any, Any]) -> dict[Any, Any]:
        """With a list of the views in place of the images, if the trainer gets one."""
        together = self._columns.together
        others = {name for views in together.values() for name in views[1:]}
        return {
            name: [columns[view] for view in together[name]] if name in together else value
            for name, value in columns.items()
            if name not in others
        }

    def _recycled(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """(B, C, H, W) in the memory format to deliver, in memory of a batch that the trainer has
        let go of."""
        batch, channels, height, width = shape
        memory = self._outputs.allocate((math.prod(shape) * dtype.itemsize,))
        flat = torch.from_numpy(memory).view(dtype)
        if self._memory_format == torch.channels_last:
            return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return flat.view(shape)

    def _to_device(self, tensor: torch.Tensor, keep: list[torch.Tensor] | None) -> torch.Tensor:
        if tensor.is_meta:  # of which only the shape is wanted
            return tensor
        if tensor.device == self.device:
            if self._stream is not None:
                # made on the backend's stream, about to be used on ours
                tensor.record_stream(self._stream)
            return tensor
        if keep is not None and tensor.device.type == "cpu":
            if not tensor.is_pinned():
                tensor = self._page_lock(tensor)
            keep.append(tensor)
        # Without `keep` nobody keeps the memory until a copy to such a device (MPS, XPU) is done.
        return tensor.to(self.device, non_blocking=keep is not None)

    def _page_lock(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in page-locked memory, with the same strides where the tensor fills its memory; of
        the same class where it is one of `tv_tensors`."""
        assert self._ring is not None
        if tensor.layout != torch.strided or tensor.nbytes < WORTH_KEEPING:
            locked = tensor.pin_memory()
        else:
            like = torch.empty_like(tensor, device="meta")  # of dense strides
            flat = torch.from_numpy(self._ring.allocate((like.nbytes,))).view(tensor.dtype)
            locked = flat.as_strided(like.shape, like.stride()).copy_(tensor)
        named = isinstance(tensor, tv_tensors.TVTensor)
        return tv_tensors.wrap(locked, like=tensor) if named else locked


@dataclass(frozen=True)
class _Parts:
    """A batch by its parts."""

    columns: Mapping[Any, Any]
    """By name, or by position."""
    images: Any
    """Key of the images; None if there are none that are known as such."""
    targets: Any
    """Key of what mixing mixes with them; None likewise."""
    rebuild: Callable[[dict[Any, Any]], Any]
    """What the trainer sees, from the columns."""
    described: str
    finished: bool = False
    """Whether the images are (B, C, H, W) already, with nothing of the recipe left to do."""
    foreign: bool = False
    """Whether a collate function of the user's has made it."""


_REBUILD: Mapping[str, Callable[[dict[Any, Any]], Any]] = {
    "single": lambda columns: next(iter(columns.values())),
    "dict": lambda columns: columns,
    "tuple": lambda columns: list(columns.values()),  # as torch's default_collate makes of tuples
}


def _as_named(named: Any, columns: dict[Any, Any]) -> Any:
    """A batch of named tuples; a list where each has several views of its image."""
    values = list(columns.values())
    return named(*values) if len(values) == len(named._fields) else values


def _taken_apart(batch: Any, *, foreign: bool) -> _Parts:
    """The parts of what a collate function has made: anything; images are known by their place and
    shape."""
    columns: dict[Any, Any]
    keys: list[Any]
    rebuild: Callable[[dict[Any, Any]], Any]
    if isinstance(batch, Mapping):
        columns, rebuild = dict(batch), lambda columns: _rebuilt_mapping(batch, columns)
        keys = [key for key in ("image", "label") if key in columns]
    elif isinstance(batch, list | tuple):
        columns, rebuild = (
            dict(enumerate(batch)),
            lambda columns: _rebuilt_sequence(batch, list(columns.values())),
        )
        keys = list(columns)
    else:
        columns, rebuild = {0: batch}, lambda columns: columns[0]
        keys = [0]
    first = columns[keys[0]] if keys else None
    known = isinstance(first, torch.Tensor) and first.ndim == 4
    paired = known and len(keys) == 2 and isinstance(columns[keys[1]], torch.Tensor)
    return _Parts(
        columns,
        images=keys[0] if known else None,
        targets=keys[1] if paired else None,
        rebuild=rebuild,
        described=f"the parts of the {type(batch).__name__} that the dataset or the collate_fn "
        "makes",
        finished=True,
        foreign=foreign,
    )


def _refuse_beside(mix: Mix, parts: _Parts, columns: Mapping[Any, Any]) -> None:
    """Raise ConfigurationError if there is a mask, a second image or a box that belongs to it in a
    batch of the user's, known by its type, or by its size, which is that of the images."""
    images = columns[parts.images]
    for name, value in columns.items():
        if name in (parts.images, parts.targets) or not isinstance(value, torch.Tensor):
            continue
        sides = images.shape[2:]
        of_size = value.ndim > 2 and (len(value), *value.shape[-2:]) == (len(images), *sides)
        if of_size or isinstance(value, tv_tensors.TVTensor):
            raise ConfigurationError(
                f"batch_transform: {type(mix).__name__} mixes images and one label of each, and a "
                f"batch has {name!r} {tuple(value.shape)}, which it would not mix. Leave it out, "
                "or give a function of the batch."
            )


def _rows(tensor: torch.Tensor, first: int, end: int) -> torch.Tensor:
    """A slice with a version of its own (`data`): else what is done to one slice in place would end
    the backward pass of another."""
    return tensor[first:end].data


def _map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Ragged):
        return value.map(function)
    if isinstance(value, Mapping):
        return _rebuilt_mapping(
            value, {key: _map_tensors(item, function) for key, item in value.items()}
        )
    if isinstance(value, list | tuple):
        return _rebuilt_sequence(value, [_map_tensors(item, function) for item in value])
    return value


def _rebuilt_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type with these items; the very same one if nothing changed."""
    if all(items[key] is item for key, item in value.items()):
        return value
    if not isinstance(value, MutableMapping):
        return items
    rebuilt = copy.copy(value)
    rebuilt.update(items)
    return rebuilt


def _rebuilt_sequence(value: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """A list or tuple of the same type with these items; the very same one if nothing changed."""
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _tensors(value: Any, seen: frozenset[int] = frozenset()) -> Iterator[torch.Tensor]:
    """All that there are, those in objects that a collate function has made too: the memory of each
    is to be kept. `seen`: the objects that this one is in."""
    if isinstance(value, torch.Tensor):
        yield from _SPARSE[value.layout](value) if value.layout in _SPARSE else (value,)
    elif isinstance(value, Ragged | PendingImages):
        yield from _tensors(list(value.arrays()))  # a Ragged may hold numpy's
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            if not isinstance(item, str | bytes | int | float):
                yield from _tensors(item, seen)
    elif id(value) not in seen:
        for item in _attributes(value):
            yield from _tensors(item, seen | {id(value)})


def _attributes(value: Any) -> Iterator[Any]:
    """Of an object; none of a number, a string, an array, a function or a class."""
    if isinstance(value, type) or type(value).__module__ in ("builtins", "numpy"):
        return
    yield from getattr(value, "__dict__", {}).values()
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, slot, None)


_SPARSE: Mapping[torch.layout, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    torch.sparse_coo: lambda one: (one._indices(), one._values()),
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_bsr),
        lambda one: (one.crow_indices(), one.col_indices(), one.values()),
    ),
    **dict.fromkeys(
        (torch.sparse_csc, torch.sparse_bsc),
        lambda one: (one.ccol_indices(), one.row_indices(), one.values()),
    ),
}
"""The tensors that one is made of; of itself no stream can take note."""
