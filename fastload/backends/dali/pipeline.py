"""The DALI graph: compressed bytes and regions in, batches of uint8 pixels out. The only file that touches DALI."""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.dali.regions import Regions, filter_of
from fastload.errors import BackendUnavailableError
from fastload.geometry import GeometryPlan

__all__ = ["DaliPipeline", "Encoded", "import_dali"]

Encoded = npt.NDArray[np.uint8]

_OLDEST = (2, 4)
"""The version that all of this was tried with. Older ones cannot pad by anything but a constant."""

_OUT_OF_BOUNDS = {"constant": "constant", "edge": "edge", "reflect": "reflect_101", "symmetric": "reflect"}
"""torchvision's padding modes in the words of `fn.slice`."""


def import_dali() -> Any:
    """The module `nvidia.dali`, with `fn` and `types`.

    Raises:
        BackendUnavailableError: it is not installed, is too old, or does not load on this machine.
    """
    try:
        dali = import_module("nvidia.dali")
        import_module("nvidia.dali.fn")
        import_module("nvidia.dali.types")
    except (ImportError, OSError) as error:
        raise BackendUnavailableError(
            f"backend 'dali' needs NVIDIA DALI, which cannot be imported ({error}); install it with: "
            'pip install "fastload[dali]"'
        ) from error
    if tuple(int(part) for part in dali.__version__.split(".")[:2]) < _OLDEST:
        raise BackendUnavailableError(
            f"backend 'dali' needs DALI {_OLDEST[0]}.{_OLDEST[1]} or newer, found {dali.__version__}; upgrade it with: "
            'pip install --upgrade "fastload[dali]"'
        )
    return dali


class DaliPipeline:
    """One graph, built for one plan. Batches come out in the order in which they were fed.

    All calls come from one thread: DALI's queue of pending outputs has no lock.
    """

    def __init__(self, plan: GeometryPlan, *, batch_size: int, num_threads: int, device_id: int | None) -> None:
        dali = import_dali()
        fn, types = dali.fn, dali.types
        chosen = filter_of(plan)
        # What can make a window that is not the whole grid; without it, one operator less.
        self._cuts = not plan.shows_whole_grids
        self._stream = None if device_id is None else torch.cuda.Stream(device_id)
        # A depth of one only says that nothing is fed in advance: the dynamic executor queues as many runs as are
        # scheduled, and does not start by waiting for several inputs.
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
            pixels = fn.decoders.image_slice(
                given("encoded", types.UINT8, no_copy=True),
                given("start", types.INT32),
                given("shape", types.INT32),
                axes=[0, 1],
                device="cpu" if device_id is None else "mixed",
                output_type=types.RGB,
                # As torchvision decodes: DALI's defaults are plainer chroma and an EXIF rotation.
                jpeg_fancy_upsampling=True,
                use_fast_idct=False,
                adjust_orientation=False,
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
                constant = {"fill_values": list(plan.fill)} if plan.padding_mode == "constant" else {}
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

    def feed(self, encoded: list[Encoded], regions: Regions) -> None:
        """Schedule a batch; does not wait. `encoded` must stay alive and unchanged until it is collected."""
        self._pipe.feed_input("encoded", encoded)
        for name in ("start", "shape", "size", "roi_start", "roi_end") + (("anchor", "extent") if self._cuts else ()):
            self._pipe.feed_input(name, getattr(regions, name))
        self._pipe.schedule_run()

    def collect(self) -> npt.NDArray[np.uint8] | torch.Tensor:
        """(B, H, W, 3) uint8 of the oldest batch; waits for it. On a device it is complete when this returns.

        Raises:
            RuntimeError: DALI failed, in its own words. The pipeline must not be used any more.
        """
        (batch,) = self._pipe.outputs()
        if self._stream is None:
            pixels: npt.NDArray[np.uint8] = np.asarray(batch.as_tensor())
            return pixels
        # A copy, so that no tensor of the trainer's lies in memory that DALI reuses on streams of its own.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            tensor = torch.empty(batch.as_tensor().shape(), dtype=torch.uint8, device=self._stream.device)
            batch.copy_to_external(
                ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(self._stream.cuda_stream), non_blocking=True
            )
        self._stream.synchronize()
        return tensor

    def close(self) -> None:
        """Wait for what is running and free threads and memory. DALI does it when the object goes."""
        self._pipe = None
