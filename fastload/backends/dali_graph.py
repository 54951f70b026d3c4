"""The DALI graph: compressed bytes and regions in, batches of uint8 pixels out.

Regions are a resolved geometry in the words of DALI's operators: what to decode, what to resize,
where to cut and pad. DALI resizes a region of interest with a filter that also reads pixels outside
it. So only the pixels that the window shows, and those within the filter's reach, are decoded and
resized, and the result is that of resizing all and cutting afterwards. Towards the edges of the box
the region ends, so that the filter stays inside the box.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.forked import forget_in_children
from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError, UnsupportedTransformError
from fastload.geometry import Geometry, GeometryPlan

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class DaliFilter:
    """A filter of `fn.resize`."""

    interp_type: str
    """Name in `nvidia.dali.types`."""
    antialias: bool
    reach: int
    """How far the filter looks [pixels of the coarser of the two grids]."""


def filter_of(plan: GeometryPlan) -> DaliFilter:
    """The filter that agrees with torchvision's for this plan. Raises UnsupportedTransformError:
    DALI has none."""
    if plan.mixes_filters:
        raise UnsupportedTransformError(
            "interpolation='random': DALI resizes all images of a batch with one filter; use "
            "backend='torch', 'turbojpeg' or 'cache', or interpolation 'bilinear' or 'bicubic'."
        )
    if not plan.resamples or plan.interpolation == "nearest-exact":
        return DaliFilter("INTERP_NN", False, 1)
    if plan.interpolation == "bilinear":
        return DaliFilter("INTERP_LINEAR", plan.antialias, 1)
    if plan.interpolation == "bicubic" and plan.antialias:
        return DaliFilter("INTERP_CUBIC", True, 2)
    # DALI's nearest is torchvision's nearest-exact; its cubic has a = -0.5, as torchvision's with
    # antialias only.
    asked = (
        plan.interpolation
        if plan.interpolation in ("nearest", "lanczos")
        else f"{plan.interpolation} with antialias=False"
    )
    raise UnsupportedTransformError(
        f"interpolation={asked}: DALI's resampling differs from torchvision's by more than the "
        "bound; use backend='torch', 'turbojpeg' or 'cache', or interpolation 'bilinear', "
        "'bicubic' with antialias=True or 'nearest-exact'."
    )


@dataclass(frozen=True)
class Regions:
    """The arguments of one batch's operators, one row a sample; pairs are (vertical,
    horizontal)."""

    start: Int32Array
    """(B, 2) int32: top, left of the part of the source image to decode."""
    shape: Int32Array
    """(B, 2) int32: its height, width."""
    roi_start: npt.NDArray[np.float32]
    """(B, 2) float32: where, within that part, the pixels to resample begin; after `roi_end` to
    mirror the axis."""
    roi_end: npt.NDArray[np.float32]
    """(B, 2) float32: where they end."""
    size: npt.NDArray[np.float32]
    """(B, 2) whole float32: height, width that they are resampled to."""
    anchor: Int32Array
    """(B, 2) int32: top, left of the output in the resampled pixels; what reaches outside is
    padding."""
    extent: Int32Array
    """(B, 2) int32: height, width of the output."""


def regions_of(geometry: Geometry, rows: npt.NDArray[np.intp], plan: GeometryPlan) -> Regions:
    """Translate these rows of a geometry that was resolved from this plan."""
    box, window, grid = (
        array[rows].astype(np.int64) for array in (geometry.box, geometry.window, geometry.size)
    )
    box_start, box_size = box[:, :2], box[:, 2:]
    begin, extent = window[:, :2], window[:, 2:]
    end = begin + extent

    low = np.clip(begin, 0, grid - 1)
    high = np.maximum(np.clip(end, 0, grid), low + 1)
    if plan.padding_mode in ("reflect", "symmetric"):
        # Padding then shows pixels that the window itself may not.
        inside = (begin >= 0) & (end <= grid)
        low, high = np.where(inside, low, 0), np.where(inside, high, grid)

    scale = box_size / grid
    reach = filter_of(plan).reach
    # Where nothing is resampled, the filter's outer taps have weight zero and need no pixels.
    margin = np.where(grid == box_size, 0, np.ceil(reach * np.maximum(scale, 1.0)) + 1)
    first = np.clip(np.floor(low * scale) - margin, 0, box_size - 1)
    last = np.clip(np.ceil(high * scale) + margin, first + 1, box_size)

    roi_start, roi_end = low * scale - first, high * scale - first
    size, anchor = high - low, begin - low
    mirror = geometry.flip[rows, ::-1]
    return Regions(
        start=(box_start + first).astype(np.int32),
        shape=(last - first).astype(np.int32),
        roi_start=np.where(mirror, roi_end, roi_start).astype(np.float32),
        roi_end=np.where(mirror, roi_start, roi_end).astype(np.float32),
        size=size.astype(np.float32),
        anchor=np.where(mirror, size - anchor - extent, anchor).astype(np.int32),
        extent=extent.astype(np.int32),
    )


Encoded = npt.NDArray[np.uint8]

# The version that all of this was tried with. Older ones cannot pad by anything but a constant.
_OLDEST = (2, 4)

# torchvision's padding modes in the words of `fn.slice`.
_OUT_OF_BOUNDS = {
    "constant": "constant",
    "edge": "edge",
    "reflect": "reflect_101",
    "symmetric": "reflect",
}


def import_dali() -> Any:
    """`nvidia.dali`, with `fn` and `types`. Raises BackendUnavailableError: it is absent, too old,
    or does not load."""
    try:
        dali = import_module("nvidia.dali")
        import_module("nvidia.dali.fn")
        import_module("nvidia.dali.types")
    except (ImportError, OSError) as error:
        raise BackendUnavailableError(
            f"backend 'dali' needs NVIDIA DALI, which cannot be imported ({error}); install it "
            f"with: {install_command('dali')}"
        ) from error
    if tuple(int(part) for part in dali.__version__.split(".")[:2]) < _OLDEST:
        raise BackendUnavailableError(
            f"backend 'dali' needs DALI {_OLDEST[0]}.{_OLDEST[1]} or newer, found "
            f"{dali.__version__}; upgrade it with: {install_command('dali', upgrade=True)}"
        )
    return dali


def decode_regions(dali: Any, encoded: Any, start: Any, shape: Any, *, mixed: bool) -> Any:
    """The part of a graph that decodes a region of each image, with the pixels that torchvision
    decodes.

    On the GPU whole images are decoded and then cut, without the hardware engine. The decoder of
    DALI 2.4 there, nvImageCodec 0.9, is reported to crash when it decodes regions on H100 and B200
    and to fail at it on A100 (its issue 55), and its hardware engine to ignore the order of streams
    on H100.
    """
    # DALI's defaults are plainer chroma and an EXIF rotation.
    alike = {
        "output_type": dali.types.RGB,
        "jpeg_fancy_upsampling": True,
        "use_fast_idct": False,
        "adjust_orientation": False,
    }
    if not mixed:
        return dali.fn.decoders.image_slice(
            encoded, start, shape, axes=[0, 1], device="cpu", **alike
        )
    whole = dali.fn.decoders.image(encoded, device="mixed", hw_decoder_load=0.0, **alike)
    return dali.fn.slice(whole, start, shape, axes=[0, 1])


class DaliPipeline:
    """One graph, built for one plan. Batches come out in the order in which they were fed.

    One thread at a time: DALI's queue of pending outputs has no lock.
    """

    def __init__(
        self, plan: GeometryPlan, *, batch_size: int, num_threads: int, device_id: int | None
    ) -> None:
        dali = import_dali()
        fn, types = dali.fn, dali.types
        chosen = filter_of(plan)
        # What can make a window that is not the whole grid; without it, one operator less.
        self._cuts = not plan.shows_whole_grids
        self.stream = None if device_id is None else torch.cuda.Stream(device_id)
        # A depth of one only says that nothing is fed in advance: the dynamic executor queues as
        # many runs as are scheduled, and does not start by waiting for several inputs.
        self._pipe: Any = dali.Pipeline(
            batch_size=batch_size,
            num_threads=num_threads,
            device_id=device_id,
            prefetch_queue_depth=1,
            exec_async=True,
            exec_pipelined=True,
            exec_dynamic=True,
        )

        def given(name: str, dtype: Any, **options: Any) -> Any:
            return fn.external_source(name=name, device="cpu", ndim=1, dtype=dtype, **options)

        with self._pipe:
            pixels = decode_regions(
                dali,
                given("encoded", types.UINT8, no_copy=True),
                given("start", types.INT32),
                given("shape", types.INT32),
                mixed=device_id is not None,
            )
            pixels = fn.resize(
                pixels,
                size=given("size", types.FLOAT),
                roi_start=given("roi_start", types.FLOAT),
                roi_end=given("roi_end", types.FLOAT),
                interp_type=getattr(types, chosen.interp_type),
                antialias=chosen.antialias,
                subpixel_scale=False,
            )
            if self._cuts:
                constant = (
                    {"fill_values": list(plan.fill)} if plan.padding_mode == "constant" else {}
                )
                pixels = fn.slice(
                    pixels,
                    given("anchor", types.INT32),
                    given("extent", types.INT32),
                    axes=[0, 1],
                    out_of_bounds_policy=_OUT_OF_BOUNDS[plan.padding_mode],
                    **constant,
                )
            self._pipe.set_outputs(pixels)
        self._pipe.build()
        forget_in_children(self)

    def feed(self, encoded: list[Encoded], regions: Regions) -> None:
        """Schedule a batch; does not wait. `encoded` must stay alive and unchanged until it is
        collected."""
        self._pipe.feed_input("encoded", encoded)
        for name in ("start", "shape", "size", "roi_start", "roi_end") + (
            ("anchor", "extent") if self._cuts else ()
        ):
            self._pipe.feed_input(name, getattr(regions, name))
        self._pipe.schedule_run()

    def collect(self) -> npt.NDArray[np.uint8] | torch.Tensor:
        """(B, H, W, 3) uint8 of the oldest batch; waits for it. On a device it is complete when
        this returns.

        Raises RuntimeError: DALI failed, in its own words. The pipeline must not be used any more.
        """
        (batch,) = self._pipe.outputs()
        if self.stream is None:
            pixels: npt.NDArray[np.uint8] = np.asarray(batch.as_tensor())
            return pixels
        # A copy, so that no tensor of the trainer's lies in memory that DALI reuses on streams of
        # its own.
        with torch.cuda.device(self.stream.device), torch.cuda.stream(self.stream):
            tensor = torch.empty(
                batch.as_tensor().shape(), dtype=torch.uint8, device=self.stream.device
            )
            batch.copy_to_external(
                ctypes.c_void_p(tensor.data_ptr()),
                ctypes.c_void_p(self.stream.cuda_stream),
                non_blocking=True,
            )
        self.stream.synchronize()
        return tensor

    def close(self) -> None:
        """Wait for what is running and free threads and memory. DALI does it when the object
        goes."""
        self._pipe = None

    def forget(self) -> None:
        """In a forked child, which has none of DALI's threads: DALI would wait for them at its
        exit."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None and pipe._pipe is not None:
            # For ever: its destructor would wait, too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipe._pipe))
            pipe._pipe = None
