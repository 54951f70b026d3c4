"""Decoders that take whole batches: DALI on the CPU and on the GPU, torchvision on the GPU (nvJPEG)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fastload.bench.decode.passes import PassTotals, Pixels, run_passes
from fastload.bench.decode.task import Place, Task
from fastload.errors import BackendUnavailableError
from fastload.measure.rounds import Work

__all__ = ["BATCH", "BatchRunner", "CudaTorchvision", "DaliBatches"]

BATCH = 32
"""Images in one call."""


class Batches(Protocol):
    """Decodes a batch and waits for it."""

    def decode(self, encoded: Sequence[bytes], places: Sequence[Place | None]) -> Any:
        """Something for `first`. Raises ValueError: one of the images cannot be decoded."""
        ...

    def first(self, decoded: Any) -> Pixels:
        """(H, W, 3) uint8 of the first image, on the host."""
        ...

    def close(self) -> None: ...


class BatchRunner:
    """A `Runner` around batches: each pass in batches of `BATCH` images, latencies of batches."""

    def __init__(self, task: Task, batches: Batches, *, known: Mapping[str, float | None] | None = None) -> None:
        self._task, self._batches, self._known = task, batches, known

    def run(self, seconds: float) -> Work:
        return run_passes(self._task, self._one_pass, seconds, latency_of=f"batch of {BATCH}", known=self._known)

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """What becomes of one image. Raises ValueError."""
        return self._batches.first(self._batches.decode([data], [place]))

    def close(self) -> None:
        self._batches.close()

    def _one_pass(self, totals: PassTotals) -> None:
        task, images = self._task, self._task.images
        for start in range(0, len(images), BATCH):
            rows = range(start, min(start + BATCH, len(images)))
            begun = time.perf_counter()
            try:
                self._batches.decode([task.encoded(row) for row in rows], [task.places[row] for row in rows])
            except (ValueError, OSError) as error:  # which of them it was, the library does not say
                totals.failures.update({images.paths[row]: f"in a batch that failed: {error}" for row in rows})
                continue
            totals.latencies.append(time.perf_counter() - begun)
            totals.samples += len(rows)
            totals.pixels += sum(images.sizes[row][0] * images.sizes[row][1] for row in rows)


class DaliBatches:
    """A DALI graph: decode the box, resize it with the triangle filter."""

    def __init__(self, task: Task, *, mixed: bool) -> None:
        from fastload.backends.dali.pipeline import import_dali

        self._dali = import_dali()
        if mixed:
            _need_cuda("DALI mixed")
        self._mixed, self._threads = mixed, task.threads
        self._places = any(place is not None for place in task.places)
        self._pipe = self._build()

    def decode(self, encoded: Sequence[bytes], places: Sequence[Place | None]) -> Any:
        self._pipe.feed_input("encoded", [np.frombuffer(data, dtype=np.uint8) for data in encoded])
        if self._places:
            boxes = np.array([place[0] if place else (0, 0, 1, 1) for place in places], dtype=np.int32)
            sizes = np.array([place[1] if place else (1, 1) for place in places], dtype=np.float32)
            for name, values in (("start", boxes[:, :2]), ("shape", boxes[:, 2:]), ("size", sizes)):
                self._pipe.feed_input(name, np.ascontiguousarray(values))
        try:
            (decoded,) = self._pipe.run()
        except RuntimeError as error:
            self._pipe = self._build()  # after an error DALI's pipeline cannot go on
            raise ValueError(_last_words(error)) from error
        if self._mixed:
            import torch

            torch.cuda.synchronize()
        return decoded

    def first(self, decoded: Any) -> Pixels:
        return np.array((decoded.as_cpu() if self._mixed else decoded)[0])

    def close(self) -> None:
        self._pipe = None

    def _build(self) -> Any:
        fn, types = self._dali.fn, self._dali.types
        pipe = self._dali.Pipeline(
            batch_size=BATCH,
            num_threads=self._threads,
            device_id=0 if self._mixed else None,
            prefetch_queue_depth=1,
            exec_dynamic=True,
        )
        # As torchvision decodes; DALI's defaults are plainer chroma and an EXIF rotation.
        exact = {"jpeg_fancy_upsampling": True, "use_fast_idct": False, "adjust_orientation": False}
        with pipe:

            def given(name: str, dtype: Any) -> Any:
                return fn.external_source(name=name, device="cpu", ndim=1, dtype=dtype)

            encoded = given("encoded", types.UINT8)
            common = {"device": "mixed" if self._mixed else "cpu", "output_type": types.RGB, **exact}
            if self._places:
                start, shape = given("start", types.INT32), given("shape", types.INT32)
                pixels = fn.resize(
                    fn.decoders.image_slice(encoded, start, shape, axes=[0, 1], **common),
                    size=given("size", types.FLOAT),
                    interp_type=types.INTERP_LINEAR,
                    antialias=True,
                    subpixel_scale=False,
                )
            else:
                pixels = fn.decoders.image(encoded, **common)
            pipe.set_outputs(pixels)
        pipe.build()
        return pipe


class CudaTorchvision:
    """nvJPEG through torchvision, and torchvision's transforms on the device."""

    def __init__(self) -> None:
        _need_cuda("torchvision on CUDA")
        import torch
        from torchvision.transforms.v2 import functional

        try:
            # The operator beneath torchvision.io.decode_jpeg(..., device="cuda"), which newer versions deprecate.
            self._decode: Any = torch.ops.image.decode_jpegs_cuda
        except (AttributeError, RuntimeError) as error:
            raise BackendUnavailableError(
                f"This torchvision cannot decode on CUDA ({error}). Install one built for it: pytorch.org, Get Started."
            ) from error
        self._torch, self._functional = torch, functional
        self._device = torch.device("cuda", torch.cuda.current_device())

    def decode(self, encoded: Sequence[bytes], places: Sequence[Place | None]) -> Any:
        torch = self._torch
        try:
            images = self._decode(
                [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in encoded], 3, self._device
            )
        except RuntimeError as error:
            raise ValueError(_last_words(error)) from error
        placed = [
            image if place is None else self._functional.resized_crop(image, *place[0], size=list(place[1]))
            for image, place in zip(images, places, strict=True)
        ]
        torch.cuda.synchronize(self._device)
        return placed

    def first(self, decoded: Any) -> Pixels:
        pixels: Pixels = decoded[0].permute(1, 2, 0).cpu().numpy()
        return pixels

    def close(self) -> None:
        """Nothing is held."""


def _need_cuda(name: str) -> None:
    import torch

    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"{name} needs an NVIDIA GPU that this torch can use, and there is none (fastload doctor says why)."
        )


def _last_words(error: RuntimeError) -> str:
    """The line of a C++ message that says something; DALI's comes after a traceback."""
    message = str(error).rpartition("encountered:")[2]
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
