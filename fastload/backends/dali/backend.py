"""The backend: threads that read and prepare batches, one that runs DALI, and a queue that keeps them in order."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Event, current_thread, local, main_thread
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.assemble import Assembler
from fastload.backends.base import (
    BackendOptions,
    BufferAllocator,
    Context,
    Fit,
    HostBatch,
    Job,
    Needs,
    Tolerance,
    Traits,
)
from fastload.backends.dali.pipeline import (
    DaliDecodeError,
    DaliPipeline,
    PipelineRunner,
    filter_of,
    import_dali,
    regions_of,
)
from fastload.decode.image import check_data
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, WorkerError, counted
from fastload.files import DecodeSettings
from fastload.geometry import GeometryPlan, View
from fastload.machine import usable_cores
from fastload.render.host import EncodedRow, PythonRenderer


@dataclass(frozen=True)
class DaliOptions(BackendOptions):
    """Options of the `dali` backend.

    Raises:
        ConfigurationError: a value out of range.
    """

    device: Literal["auto", "cpu", "mixed"] = "auto"
    """Where images are decoded and resized: "mixed" begins on the CPU and ends on the GPU the batches are delivered on.
    "auto" is "cpu": decoding on the GPU has been reported to end the process on some GPUs (nvImageCodec 0.9)."""
    num_threads: int | None = None
    """DALI's CPU threads. None: the loader's num_workers, or one for each usable core."""
    queue_depth: int = 2
    """Batches inside DALI at once: one being decoded while the next one waits for it."""
    decoder: str = "auto"
    """Which JPEG decoder takes what DALI cannot decode; see `fastload doctor`."""

    @property
    def risk(self) -> str:
        return "decoding on the GPU has been reported to end the process" if self.device == "mixed" else ""

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "mixed"):
            raise ConfigurationError(f"DaliOptions(device={self.device!r}) must be 'auto', 'cpu' or 'mixed'.")
        for name in ("num_threads", "queue_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"DaliOptions({name}={value!r}) must be at least 1.")


logger = logging.getLogger("fastload")

_PNG_BIT_DEPTH = 24
"""Offset in the file of the IHDR field (W3C PNG specification, section 11.2.1)."""


@dataclass(frozen=True)
class DeviceRows:
    """Pixels that DALI left on the GPU instead of writing them to the batch."""

    out: npt.NDArray[np.uint8]
    """(B, H, W, 3) uint8: where they would have gone; holds the other rows."""
    rows: npt.NDArray[np.intp]
    """(n,): which rows they are."""
    pixels: torch.Tensor
    """(n, H, W, 3) uint8, complete."""


@dataclass
class DaliRenderer:
    """Renders one batch. What DALI decodes otherwise than everybody else, and masks, go to the Python renderer."""

    runners: Sequence[PipelineRunner]
    """One for each view."""
    plans: Sequence[GeometryPlan]
    """What their pipelines are built for."""
    python: PythonRenderer
    cancelled: Callable[[], bool]
    """Asked before DALI is given work that nobody may want any more."""
    on_device: list[DeviceRows] = field(default_factory=list)

    def render(self, rows: Sequence[EncodedRow], views: Sequence[View]) -> dict[int, DecodeError]:
        """See `EncodedRenderer`. Rows that stay on a device are left untouched in the views."""
        if views[0].resampling.role == "mask":
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
        if self.cancelled():
            raise CancelledError
        if not direct:
            return damaged | self.python.render(others, views)
        numbers = np.array([sample.row for sample in direct], dtype=np.intp)
        encoded = [np.frombuffer(sample.data, dtype=np.uint8) for sample in direct]
        pending = [
            runner.submit(encoded, regions_of(view.geometry, numbers, plan))
            for runner, plan, view in zip(self.runners, self.plans, views, strict=True)
        ]
        damaged |= self.python.render(others, views)
        for view, work in zip(views, pending, strict=True):
            try:
                self._take(work.result(), numbers, view.out)
            except DaliDecodeError as error:
                # One sample at a time, to find out which; those that are good after all are decoded here.
                found = self.python.render(direct, [view])
                if not found:
                    logger.warning(
                        "DALI could not decode one of %s ... %s, but %s can; this batch was decoded without DALI. %s",
                        direct[0].name,
                        direct[-1].name,
                        self.python.decoder,
                        str(error).strip(),
                    )
                damaged |= found
        return damaged

    def _take(self, pixels: Any, numbers: npt.NDArray[np.intp], out: npt.NDArray[np.uint8]) -> None:
        if isinstance(pixels, torch.Tensor):
            self.on_device.append(DeviceRows(out, numbers, pixels))
        elif len(numbers) == len(out):
            np.copyto(out, pixels)
        else:
            out[numbers] = pixels

    def _decoded_alike(self, sample: EncodedRow) -> bool:
        """Whether DALI gives the very pixels that the decoders of `fastload.decode` give.

        Not so: JPEGs of four components (CMYK, off by one), 16-bit PNGs (another scale), animated PNGs (another frame),
        images to be turned upright; and GIFs and other formats, which it may not read at all.
        """
        header = sample.header
        if self.python.settings.exif_orientation and header.orientation != 1:
            return False
        if header.format == "JPEG":
            return header.components in (1, 3)
        if header.format != "PNG" or sample.data[_PNG_BIT_DEPTH] > 8:
            return False
        return sample.data.find(b"acTL", 0, max(sample.data.find(b"IDAT"), 0)) < 0  # which comes before the pixels


_READ_AHEAD = 2
"""Batches being read and prepared beside those inside DALI, unless prefetch_factor says otherwise."""


class DaliBackend:
    """Real DALI, fed with our order and our boxes; on the CPU, or with pixels made and left on the GPU.

    Compressed images go through DALI; everything else (masks, pixels, values, rare formats) through the code that the
    other host backends use.
    """

    name = "dali"
    Options = DaliOptions
    background = True
    traits = Traits(
        views=True,
        summary="an NVIDIA DALI pipeline fed with fastload's order and boxes, on the CPU or on a GPU",
        tolerance=Tolerance(psnr_cpu=45.0, psnr_gpu=40.0),
        needs=Needs("nvidia.dali", 'pip install "fastload[dali]"', "nvidia-dali"),
    )

    @classmethod
    def fit(cls, job: Job) -> Fit:
        return Fit(0.35 if job.compressed else 0.1, "DALI can do it too")

    def __init__(self, context: Context, options: DaliOptions) -> None:
        """
        Raises:
            BackendUnavailableError: DALI is not installed or too old.
            UnsupportedTransformError: the recipe has a part that only Python can run, or an interpolation that DALI
                does otherwise than torchvision.
            ConfigurationError: the samples are Python objects, there is a collate function, or there is no GPU where
                one is asked for.
        """
        context.require_whole_batches(self.name)
        for name in context.source.objects:
            raise ConfigurationError(
                f"backend: 'dali' reads compressed images, but column {name!r} of {context.source.name} holds "
                "Python objects; use backend='torch'."
            )
        self._plans = context.recipe.geometries
        self._filters = list(dict.fromkeys(filter_of(plan).interp_type for plan in self._plans))
        self._device_id = _device_id(options.device, context.device)
        self._version: str = import_dali().__version__
        self._context = context
        self._options = options
        self._threads = options.num_threads or context.num_workers or usable_cores()
        self.depth = options.queue_depth + (context.prefetch_factor or _READ_AHEAD)
        self._python = PythonRenderer(options.decoder, options.decode_settings)
        self._plain = Assembler(context.source, self._plans, settings=options.decode_settings, decoder=options.decoder)
        self._pending: deque[Future[HostBatch]] = deque()
        self._cancelled = Event()
        self._engine: _Engine | None = None

    def submit(self, draws: Draws) -> None:
        if self._engine is None:
            self._engine = self._start()
        renderer = DaliRenderer(self._engine.runners, self._plans, self._python, self._cancelled.is_set)
        # A batch that stays on the GPU needs no page-locked buffer, only the addresses of one.
        allocate = self._context.allocate if self._device_id is None else None
        task = partial(_make_batch, draws, self._context, self._options.decode_settings, renderer, allocate)
        self._pending.append(self._engine.readers.submit(task))

    def receive(self) -> HostBatch:
        assert self._pending
        try:
            return self._pending.popleft().result()
        except CancelledError:
            raise WorkerError("backend 'dali': it was closed while batches were outstanding.") from None

    def reread(self, draws: Draws) -> HostBatch:
        return self._plain.batch(draws)

    def cancel(self) -> None:
        self._cancelled.set()
        self._cancelled = Event()
        for future in self._pending:
            future.cancel()
        self._pending.clear()

    def close(self) -> None:
        self.cancel()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.finalizer.detach()
            for runner in engine.runners:
                runner.close()  # first: it frees the readers that wait for it
            engine.readers.shutdown(wait=True, cancel_futures=True)

    def explain(self) -> Mapping[str, str]:
        where = "on the CPU" if self._device_id is None else f"mixed, ending on cuda:{self._device_id}"
        rows = {
            "dali": f"DALI {self._version} {where}, {counted(self._threads, 'thread')}, "
            f"{counted(self._options.queue_depth, 'batch')} "
            f"inside it, {self.depth} in flight",
            "dali pixels": f"JPEGs and PNGs of 8 bits, resized with {' and '.join(self._filters)}; masks, CMYK and "
            "other formats without DALI. Damaged data within a complete file is not noticed",
        }
        if len(self._plans) > 1:
            rows["dali views"] = f"{len(self._plans)} of each image, a pipeline each: DALI decodes the image for each"
        rebuilt = 0 if self._engine is None else sum(runner.rebuilt for runner in self._engine.runners)
        if rebuilt:
            rows["dali failures"] = f"{rebuilt}, each of which cost a batch decoded twice"
        return rows

    def _start(self) -> _Engine:
        runners = [
            PipelineRunner(
                partial(
                    DaliPipeline,
                    plan,
                    batch_size=self._context.batch_size,
                    num_threads=self._threads,
                    device_id=self._device_id,
                ),
                queue_depth=self._options.queue_depth,
            )
            for plan in self._plans
        ]
        readers = ThreadPoolExecutor(self.depth, thread_name_prefix="fastload-dali-reader")
        # Also at the interpreter's exit: a thread that is inside DALI by then would crash the process.
        return _Engine(runners, readers, weakref.finalize(self, _abandon, runners, readers))


@dataclass(frozen=True)
class _Engine:
    """What the first submit starts and close stops."""

    runners: list[PipelineRunner]
    readers: ThreadPoolExecutor
    finalizer: Any


def _abandon(runners: list[PipelineRunner], readers: ThreadPoolExecutor) -> None:
    """What is left to do when the backend was not closed, but collected, or the interpreter exits.

    A garbage collection may happen in any thread, the readers' included, and must not wait for them. At the exit it
    is the main thread, and waiting is a must: a thread inside DALI would crash the process.
    """
    readers.shutdown(wait=False, cancel_futures=True)
    for runner in runners:
        runner.close(wait=current_thread() is main_thread())


def _make_batch(
    draws: Draws,
    context: Context,
    settings: DecodeSettings,
    renderer: DaliRenderer,
    allocate: BufferAllocator | None,
) -> HostBatch:
    """One batch, in a reader's thread. No method of the backend, which it would keep alive."""
    assembler = Assembler(context.source, context.recipe.geometries, settings=settings, renderer=renderer)
    host = assembler.batch(draws, allocate)
    bad = [failure.row for failure in host.failures]
    for placed in renderer.on_device:
        name = next(name for name, column in host.columns.items() if column is placed.out)
        host.columns[name] = _join(placed, bad)
    return host


def _join(placed: DeviceRows, bad: list[int]) -> torch.Tensor:
    """(B, H, W, 3) uint8 on the device: the rows made there, those made on the host, and zeros for bad ones."""
    pixels = placed.pixels
    if len(placed.rows) == len(placed.out) and not bad:
        return pixels
    with torch.cuda.device(pixels.device), torch.cuda.stream(_stream_of_this_thread(pixels.device)):
        joined = torch.as_tensor(placed.out).to(pixels.device)
        joined[torch.as_tensor(placed.rows, device=pixels.device)] = pixels
        joined[bad] = 0
        torch.cuda.current_stream().synchronize()
    return joined


_threads = local()


def _stream_of_this_thread(device: torch.device) -> torch.cuda.Stream:
    """Beside the default one, where work would wait for all that the trainer has queued. One for each thread: torch has
    32 in all, which it then gives out again, the stage's among them."""
    streams: dict[torch.device, torch.cuda.Stream] = _threads.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]


def _device_id(asked: str, target: torch.device) -> int | None:
    """The GPU that DALI works on, or None for the CPU."""
    if asked != "mixed":
        return None
    if target.type != "cuda":
        raise ConfigurationError(
            f"DaliOptions(device={asked!r}) leaves the images on a GPU, but the batches are to be delivered on "
            f"{target}; use device='cuda' for the loader, or DaliOptions(device='cpu')."
        )
    return torch.cuda.current_device() if target.index is None else target.index
