"""Decoders that take whole batches: DALI on the CPU and on the GPU, torchvision on the GPU (nvJPEG)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastload.bench.decode.inputs import Pixels, Place, Task
from fastload.bench.decode.passes import BATCH, BatchContestant
from fastload.decode import get_decoder
from fastload.errors import BackendUnavailableError
from fastload.machine import dali_version


class DaliCpu(BatchContestant):
    """A DALI graph: decode the box, resize it with the triangle filter."""

    name = "dali-cpu"
    resampler = "DALI's resize"

    def __init__(self, task: Task) -> None:
        from fastload.backends.dali.pipeline import decode_regions, import_dali

        self._dali, self._decode_regions = import_dali(), decode_regions
        if self.gpu:
            _need_cuda("DALI mixed")
        self._threads = task.threads
        self._places = any(place is not None for place in task.places)
        self._pipe = self._build()

    @classmethod
    def version(cls) -> str:
        return (dali_version() or "").rpartition(" ")[2]

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
        if self.gpu:
            import torch

            torch.cuda.synchronize()
        return decoded

    def first(self, decoded: Any) -> Pixels:
        return np.array((decoded.as_cpu() if self.gpu else decoded)[0])

    def close(self) -> None:
        self._pipe = None

    def _build(self) -> Any:
        fn, types = self._dali.fn, self._dali.types
        pipe = self._dali.Pipeline(
            batch_size=BATCH,
            num_threads=self._threads,
            device_id=0 if self.gpu else None,
            prefetch_queue_depth=1,
            exec_dynamic=True,
        )
        with pipe:

            def given(name: str, dtype: Any) -> Any:
                return fn.external_source(name=name, device="cpu", ndim=1, dtype=dtype)

            encoded = given("encoded", types.UINT8)
            if self._places:
                start, shape = given("start", types.INT32), given("shape", types.INT32)
                pixels = fn.resize(
                    self._decode_regions(self._dali, encoded, start, shape, mixed=self.gpu),
                    size=given("size", types.FLOAT),
                    interp_type=types.INTERP_LINEAR,
                    antialias=True,
                    subpixel_scale=False,
                )
            else:
                # As torchvision decodes; DALI's defaults are plainer chroma and an EXIF rotation.
                pixels = fn.decoders.image(
                    encoded,
                    device="mixed" if self.gpu else "cpu",
                    output_type=types.RGB,
                    jpeg_fancy_upsampling=True,
                    use_fast_idct=False,
                    adjust_orientation=False,
                )
            pipe.set_outputs(pixels)
        pipe.build()
        return pipe


class DaliMixed(DaliCpu):
    """The same, decoded on the GPU."""

    name = "dali-mixed"
    gpu = True


class TorchvisionCuda(BatchContestant):
    """nvJPEG through torchvision, and torchvision's transforms on the device."""

    name = "torchvision-cuda"
    resampler = "transforms v2 on the GPU"
    gpu = True

    def __init__(self, task: Task) -> None:
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

    @classmethod
    def version(cls) -> str:
        return get_decoder("torchvision").version

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
