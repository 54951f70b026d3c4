"""The `dali` backend: threads read and prepare batches; DALI makes the pixels when a batch is
waited for."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastload import native
from fastload.backends.base import (
    BackendOptions,
    BufferAllocator,
    Context,
    Dependency,
    Failure,
    Fit,
    HostBatch,
    Tolerance,
    Traits,
    Work,
)
from fastload.backends.dali_graph import (
    DaliPipeline,
    Encoded,
    Regions,
    filter_of,
    import_dali,
    regions_of,
)
from fastload.backends.rows import RowReader
from fastload.decode.image import check_data
from fastload.decode.libraries import core_pool
from fastload.distribution import install_command
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, WorkerError, counted
from fastload.geometry import GeometryPlan, View
from fastload.machine import usable_cores
from fastload.render.host import EncodedRow, PythonRenderer
from fastload.stores.reads import ReaderPool


@dataclass(frozen=True)
class DaliOptions(BackendOptions):
    """Options of the `dali` backend.

    Raises:
        ConfigurationError: a value out of range.
    """

    device: Literal["auto", "cpu", "mixed"] = "auto"
    """Where images are decoded and resized: "mixed" begins on the CPU and ends on the GPU the
    batches are delivered on. "auto" is "cpu": decoding on the GPU has been reported to end the
    process on some GPUs (nvImageCodec 0.9)."""
    num_threads: int | None = None
    """DALI's CPU threads. None: the loader's num_workers, or one for each usable core."""
    queue_depth: int = 2
    """Batches inside DALI at once: one being decoded while the next one waits for it."""
    decoder: str = "auto"
    """Which JPEG decoder takes what DALI cannot decode; see `fastload doctor`."""
    check: bool = True
    """Whether the native core reads the headers of JPEGs first: those that are not as a sound
    encoder writes them are decoded without DALI, and get the verdict that they get from other
    backends. Damage within the data of the pixels is not looked for. Without the native core
    nothing is checked."""

    @property
    def risk(self) -> str:
        return (
            "decoding on the GPU has been reported to end the process"
            if self.device == "mixed"
            else ""
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device not in ("auto", "cpu", "mixed"):
            raise ConfigurationError(
                f"DaliOptions(device={self.device!r}) must be 'auto', 'cpu' or 'mixed'."
            )
        for name in ("num_threads", "queue_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"DaliOptions({name}={value!r}) must be at least 1.")


logger = logging.getLogger("fastload")

_PNG_BIT_DEPTH = 24
"""Offset in the file of the IHDR field (W3C PNG specification, section 11.2.1)."""


DevicePixels = npt.NDArray[np.uint8] | torch.Tensor


@dataclass(eq=False)
class _Rows:
    """Rows of a batch whose pixels DALI makes."""

    samples: list[EncodedRow]
    encoded: list[Encoded]
    regions: list[Regions]
    """One for each view."""
    views: Sequence[View]


@dataclass
class _Renderer:
    """Collects the rows that DALI is to render. Rendered here are masks, images that DALI decodes
    differently from the other backends, and images whose colours change before their geometry."""

    plans: Sequence[GeometryPlan]
    python: PythonRenderer
    check: bool
    collected: list[_Rows] = field(default_factory=list)

    def render(self, rows: Sequence[EncodedRow], views: Sequence[View]) -> dict[int, DecodeError]:
        """See `EncodedRenderer`."""
        wanted = [view.resampling for view in views]
        if any(one.as_stored or one.later or one.coloured for one in wanted):
            return self.python.render(rows, views)
        damaged: dict[int, DecodeError] = {}
        direct: list[EncodedRow] = []
        others: list[EncodedRow] = []
        for sample in rows:
            try:
                # DALI fails the whole batch for one bad file, so the verdict comes first.
                check_data(sample.data, sample.header, sample.name, self.python.settings)
            except DecodeError as error:
                damaged[sample.row] = error
            else:
                (direct if self._decoded_alike(sample) else others).append(sample)
        if self.check and (odd := self._odd(direct)):
            others += [sample for sample in direct if sample.row in odd]
            direct = [sample for sample in direct if sample.row not in odd]
        if direct:
            numbers = np.array([sample.row for sample in direct], dtype=np.intp)
            regions = [
                regions_of(v.geometry, numbers, plan)
                for plan, v in zip(self.plans, views, strict=True)
            ]
            encoded = [np.frombuffer(sample.data, dtype=np.uint8) for sample in direct]
            self.collected.append(_Rows(direct, encoded, regions, views))
        return damaged | self.python.render(others, views)

    def _odd(self, samples: list[EncodedRow]) -> set[int]:
        """The rows of JPEGs whose headers are not as a sound encoder writes them."""
        jpegs = [sample for sample in samples if sample.header.format == "JPEG"]
        if not jpegs or not native.available():
            return set()
        settings = self.python.settings
        headers, failures = core_pool().read_headers(
            [one.data for one in jpegs], settings=settings, here=True
        )
        refused = {failure.row for failure in failures}
        return {one.row for n, one in enumerate(jpegs) if n in refused or headers[n, 5]}

    def _decoded_alike(self, sample: EncodedRow) -> bool:
        """Whether DALI gives the very pixels that the decoders of `fastload.decode` give.

        Not so: JPEGs of four components (CMYK, off by one), 16-bit PNGs (another scale), animated
        PNGs (another frame), images to be turned upright; and GIFs and other formats, which it may
        not read at all.
        """
        header = sample.header
        if self.python.settings.exif_orientation and header.orientation != 1:
            return False
        if header.format == "JPEG":
            return header.components in (1, 3)
        if header.format != "PNG" or sample.data[_PNG_BIT_DEPTH] > 8:
            return False
        # Animated PNGs have an acTL chunk before the pixels.
        return sample.data.find(b"acTL", 0, max(sample.data.find(b"IDAT"), 0)) < 0


Prepared: TypeAlias = Future[tuple[HostBatch, list[_Rows]]]
"""A batch except for what DALI makes, and the rows that it is to make."""

_READ_AHEAD = 2
"""Batches being read and prepared beside those inside DALI, unless prefetch_factor says
otherwise."""


class DaliBackend:
    """Real DALI, fed with our order and our boxes; on the CPU, or with pixels made and left on the
    GPU.

    Compressed images go through DALI; everything else (masks, pixels, values, rare formats) through
    the code that the other host backends use.
    """

    name = "dali"
    Options = DaliOptions
    background = True
    traits = Traits(
        views=True,
        moves_columns=True,
        draws_masks=True,
        owns_batches=True,
        resamples_again=True,
        colours_images=True,
        summary="an NVIDIA DALI pipeline fed with fastload's order and boxes, on the CPU or on "
        "a GPU",
        tolerance=Tolerance(psnr_cpu=45.0, psnr_gpu=40.0),
        requires=Dependency("nvidia.dali", install_command("dali"), "nvidia-dali"),
        fits={
            "encoded": Fit(0.35, "DALI can do it too"),
            "arrays": Fit(0.1, "DALI can do it too"),
        },
    )

    def __init__(self, context: Context, options: DaliOptions) -> None:
        self._plans = context.recipe.geometries
        self._filters = list(dict.fromkeys(filter_of(plan).interp_type for plan in self._plans))
        self._device_id = _device_id(options.device, context.device)
        self._version: str = import_dali().__version__
        self._context = context
        self._options = options
        self._threads = options.num_threads or context.num_workers or usable_cores()
        self.depth = options.queue_depth + (context.prefetch_factor or _READ_AHEAD)
        self._python = PythonRenderer(options.decoder, options.decode_settings)
        # A batch that stays on the GPU needs no page-locked buffer, only the addresses of one.
        self._allocate = context.allocate if self._device_id is None else None
        self._started: deque[weakref.ref[_Started]] = deque()
        """The batches that are waited for in this order; those that are done or cancelled go when
        the next one is fed."""
        self._readers: ReaderPool | None = None
        self._lock = Lock()
        """Around all that DALI is asked for."""
        self._pipes: list[DaliPipeline] = []
        """One for each view, once they are needed."""
        self._inside: deque[_Rows] = deque()
        """The rows that they were fed and have not returned, cancelled ones included."""
        self._rebuilt = 0
        """How often they were replaced because one had failed."""
        weakref.finalize(self, self._pipes.clear)  # at the latest when the interpreter exits

    def start(self, draws: Draws) -> Work:
        if self._readers is None:
            self._readers = ReaderPool(self.depth, "fastload-dali")
        prepared = self._readers.submit(
            _prepared,
            draws,
            self._context,
            self._plans,
            self._python,
            self._allocate,
            self._options.check,
        )
        work = _Started(self, prepared)
        self._started.append(weakref.ref(work))
        return work

    def finished(self, prepared: Prepared) -> HostBatch:
        """The batch, when DALI has made its pixels."""
        try:
            host, rows = prepared.result()
        except CancelledError:
            raise WorkerError(
                "backend 'dali': it was closed while batches were outstanding."
            ) from None
        while rows:
            with self._lock:
                pixels, failure = self._made(rows)
            self._fill(host, rows.pop(0), pixels, failure)
        return host

    def close(self) -> None:
        self._started.clear()
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.give_up()
        with self._lock:
            self._discard()

    def explain(self) -> Mapping[str, str]:
        where = (
            "on the CPU" if self._device_id is None else f"mixed, ending on cuda:{self._device_id}"
        )
        inside = counted(self._options.queue_depth, "batch")
        rows = {
            "dali": f"DALI {self._version} {where}, {counted(self._threads, 'thread')}, "
            f"{inside} inside it, "
            f"{self.depth} in flight",
            "dali pixels": "JPEGs and PNGs of 8 bits, resized with "
            f"{' and '.join(self._filters)}; masks, CMYK and "
            "other formats without DALI. Damaged data within a complete file is not noticed",
        }
        if len(self._plans) > 1:
            rows["dali views"] = (
                f"{len(self._plans)} of each image, a pipeline each: DALI decodes the image "
                "for each"
            )
        if self._rebuilt:
            rows["dali failures"] = f"{self._rebuilt}, each of which cost a batch decoded twice"
        return rows

    def _made(self, rows: list[_Rows]) -> tuple[list[DevicePixels], str]:
        """The pixels of the first of these, one (n, H, W, 3) uint8 for each view; or why DALI could
        not decode them.

        Raises WorkerError: DALI failed, and it is not a file's fault.
        """
        while True:
            oldest, said = None, ""
            try:
                self._feed(rows)
                oldest = self._inside[0]
                pixels = [pipe.collect() for pipe in self._pipes]
            except Exception as error:  # DALI has no exceptions of its own
                said = str(error) or type(error).__name__
            if not said:
                if self._inside.popleft() is rows[0]:
                    return pixels, ""
                continue
            # Start over with new pipelines, as DALI demands after an error; what else was inside is
            # fed again in its turn. Only now: the caught error's traceback would keep the old ones
            # alive.
            self._discard()
            self._rebuilt += 1
            if oldest is None:
                raise WorkerError(f"backend 'dali': DALI could not be started or fed: {said}")
            if oldest is rows[0]:
                if "decoders" not in said:  # DALI names the operator that failed
                    raise WorkerError(f"backend 'dali': DALI failed: {said}")
                return [], said

    def _feed(self, rows: list[_Rows]) -> None:
        """Feed these, and of what comes next what is ready: DALI must not run dry while we wait for
        its output."""
        if not self._pipes:
            size, device = self._context.batch_size, self._device_id
            for plan in self._plans:
                pipe = DaliPipeline(
                    plan, batch_size=size, num_threads=self._threads, device_id=device
                )
                self._pipes.append(pipe)
        for one in chain(rows, self._ready()):
            if one not in self._inside:
                if one is not rows[0] and len(self._inside) >= self._options.queue_depth:
                    return
                for pipe, regions in zip(self._pipes, one.regions, strict=True):
                    pipe.feed(one.encoded, regions)
                self._inside.append(one)

    def _ready(self) -> Iterator[_Rows]:
        works = [work for one in self._started if (work := one()) and not work.over]
        self._started = deque(map(weakref.ref, works))
        for work in works:
            done = work.prepared
            if not done.done() or done.cancelled() or done.exception() is not None:
                return
            yield from done.result()[1]

    def _discard(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
        self._inside.clear()

    def _fill(self, host: HostBatch, rows: _Rows, pixels: list[DevicePixels], failure: str) -> None:
        """Put the pixels into their rows of the batch; where there are none, one sample at a time
        without DALI."""
        numbers = [sample.row for sample in rows.samples]
        for view, rendered in zip(rows.views, pixels, strict=False):
            if isinstance(rendered, torch.Tensor):
                name = next(name for name, column in host.columns.items() if column is view.out)
                host.columns[name] = self._joined(
                    view.out, numbers, rendered, [f.row for f in host.failures]
                )
            elif len(numbers) == len(view.out):
                np.copyto(view.out, rendered)
            else:
                view.out[numbers] = rendered
        if not failure:
            return
        errors = self._python.render(rows.samples, rows.views)
        if not errors:
            logger.warning(
                "DALI could not decode one of %s ... %s, but %s can; this batch was decoded "
                "without DALI. %s",
                *(
                    rows.samples[0].name,
                    rows.samples[-1].name,
                    self._python.decoder,
                    failure.strip(),
                ),
            )
        for name, column in host.columns.items():
            if errors and name not in self._context.source.values:
                column[list(errors)] = 0
        host.failures = sorted(
            [*host.failures, *(Failure(*one) for one in errors.items())], key=lambda f: f.row
        )

    def _joined(
        self, out: Encoded, numbers: list[int], pixels: torch.Tensor, bad: list[int]
    ) -> torch.Tensor:
        """(B, H, W, 3) uint8 on the device: the rows made there, those made on the host, and zeros
        for bad ones."""
        if len(numbers) == len(out) and not bad:
            return pixels
        # Beside the default stream, where work would wait for all that the trainer has
        # queued.
        with torch.cuda.device(pixels.device), torch.cuda.stream(self._pipes[0].stream):
            joined = torch.as_tensor(out).to(pixels.device)
            joined[torch.as_tensor(numbers, device=pixels.device)] = pixels
            joined[bad] = 0
            torch.cuda.current_stream().synchronize()
        return joined


@dataclass(eq=False)
class _Started:
    """A batch of DaliBackend."""

    backend: DaliBackend
    prepared: Prepared
    over: bool = False
    """Whether it was waited for or cancelled."""

    def result(self) -> HostBatch:
        self.over = True
        return self.backend.finished(self.prepared)

    def cancel(self) -> None:
        self.over = True
        self.prepared.cancel()


def _prepared(
    draws: Draws,
    context: Context,
    plans: Sequence[GeometryPlan],
    python: PythonRenderer,
    allocate: BufferAllocator | None,
    check: bool,
) -> tuple[HostBatch, list[_Rows]]:
    """A batch except for what DALI makes, in a reader's thread. No method of the backend, which it
    would keep alive."""
    renderer = _Renderer(plans, python, check)
    reader = RowReader(context.source, context.recipe, settings=python.settings, renderer=renderer)
    return reader.batch(draws, allocate), renderer.collected


def _device_id(asked: str, target: torch.device) -> int | None:
    """The GPU that DALI works on, or None for the CPU."""
    if asked != "mixed":
        return None
    if target.type != "cuda":
        raise ConfigurationError(
            f"DaliOptions(device={asked!r}) leaves the images on a GPU, but the batches are to be "
            f"delivered on {target}; use device='cuda' for the loader, or "
            "DaliOptions(device='cpu')."
        )
    return torch.cuda.current_device() if target.index is None else target.index
