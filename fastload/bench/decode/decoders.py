"""How each decoder turns one JPEG into pixels, and how those are resampled: with what its users would use.

Nothing is imported before it is needed: Pillow-SIMD's process has to be as light as its contestant.
"""

from __future__ import annotations

import io
import os
import re
import threading
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

import fastload
from fastload.bench.decode.inputs import MODES, Pixels, Place, Task
from fastload.bench.decode.passes import DecodeRunner, Known, PassRunner
from fastload.errors import BackendUnavailableError

__all__ = ["Accimage", "Contestant", "FastloadDecoder", "Native", "NativeRegion", "OpenCv", "Pillow", "Torchvision"]

_TORCH_PLACE = re.compile(r"^\w+, \S+:\d+, ")


class Contestant:
    """One name in the table. An instance decodes one image a call (`passes.Decoder`)."""

    name: ClassVar[str]
    resampler: ClassVar[str]
    """What it resamples with, in words."""
    modes: ClassVar[tuple[str, ...]] = tuple(MODES)
    gpu: ClassVar[bool] = False
    """Runs on a GPU; not tried where there is none, unless asked for."""
    asked: ClassVar[bool] = False
    """Only runs when asked for."""

    def __init__(self, task: Task) -> None:
        """Raises BackendUnavailableError with what to install."""

    @classmethod
    def open(cls, task: Task, known: Known) -> DecodeRunner:
        """What measures it."""
        return PassRunner(task, cls(task), known)

    @classmethod
    def version(cls) -> str:
        """Asked after it could be opened."""
        from fastload.decode import get_decoder

        return get_decoder(cls.name).version

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        """See `passes.Decoder`."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


class Pillow(Contestant):
    """Pillow and its own resampling; also Pillow-SIMD, where that is what `import PIL` finds."""

    name = "pillow"
    resampler = "its own"

    def __init__(self, task: Task) -> None:
        from PIL import Image, UnidentifiedImageError

        self._open, self._bilinear = Image.open, Image.Resampling.BILINEAR
        self._unidentified = UnidentifiedImageError

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        try:
            with self._open(io.BytesIO(data)) as file:
                image = file.convert("RGB")
        except SyntaxError as error:  # Pillow's word for a broken header
            raise ValueError(str(error)) from error
        except self._unidentified as error:
            raise ValueError("not an image that Pillow knows") from error
        if place is not None:
            (top, left, height, width), (out_height, out_width) = place
            image = image.crop((left, top, left + width, top + height)).resize((out_width, out_height), self._bilinear)
        return np.asarray(image)


class FastloadDecoder(Contestant):
    """A decoder of `fastload.decode` and the resampling of the loader (torch's uint8 kernel, one thread an image)."""

    resampler = "torch's uint8 kernel"

    def __init__(self, task: Task) -> None:
        from fastload.decode import get_decoder

        self._decoder = get_decoder(self.name)
        self._local = _Buffers()

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return self._local.resample(self._decoder.decode(data, out=self._local.decoded.take((*size, 3))), place)


class _Buffers(threading.local):
    """Of each thread."""

    def __init__(self) -> None:
        from fastload.decode.image import Scratch

        self.decoded, self.placed = Scratch(), Scratch()

    def resample(self, pixels: Pixels, place: Place | None) -> Pixels:
        """As the loader does it."""
        if place is None:
            return pixels
        from fastload.render import render_into

        box, size = place
        out = self.placed.take((*size, 3))
        render_into(pixels, box=box, size=size, out=out)
        return out


class Torchvision(Contestant):
    """torchvision's decoder and its transforms v2, on tensors of planes as they are used."""

    name = "torchvision"
    resampler = "transforms v2"

    def __init__(self, task: Task) -> None:
        from fastload.decode import get_decoder

        get_decoder("torchvision")  # says what is missing
        import torch
        from torchvision.transforms.v2 import functional

        self._torch, self._functional = torch, functional

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        torch = self._torch
        try:
            image = torch.ops.image.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3, False)
        except RuntimeError as error:
            # torch begins with the place in its source, which is another one in each version.
            raise ValueError(_TORCH_PLACE.sub("", str(error).splitlines()[0])) from error
        if place is not None:
            image = self._functional.resized_crop(image, *place[0], size=list(place[1]), antialias=True)
        pixels: Pixels = image.permute(1, 2, 0).numpy()
        return pixels


class OpenCv(Contestant):
    """OpenCV's decoder with its area resampling, which is how its users shrink images; linear to enlarge."""

    name = "opencv"
    resampler = "INTER_AREA"

    def __init__(self, task: Task) -> None:
        from fastload.decode import get_decoder

        self._decoder = get_decoder("opencv")
        import cv2

        self._cv2 = cv2

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        pixels = self._decoder.decode(data)
        if place is None:
            return pixels
        (top, left, height, width), (out_height, out_width) = place
        shrinks = height >= out_height and width >= out_width
        how = self._cv2.INTER_AREA if shrinks else self._cv2.INTER_LINEAR
        box = pixels[top : top + height, left : left + width]
        return np.asarray(self._cv2.resize(box, (out_width, out_height), interpolation=how), dtype=np.uint8)


class Accimage(Contestant):
    """accimage (Intel IPP), whose resampling has no antialiasing: so ours follows it."""

    name = "accimage"
    resampler = "torch's uint8 kernel"

    def __init__(self, task: Task) -> None:
        try:
            accimage: Any = import_module("accimage")
        except ImportError as error:
            raise BackendUnavailableError(
                f"The decoder accimage is not available ({error}). Install it: conda install -c conda-forge accimage"
            ) from error
        self._open = accimage.Image
        self._local = _Buffers()

    @classmethod
    def version(cls) -> str:
        return str(getattr(import_module("accimage"), "__version__", ""))

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        # It opens files by name only, in most of its versions.
        descriptor = os.memfd_create("fastload-bench")
        try:
            os.write(descriptor, data)
            image = self._open(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        planes = np.empty((image.channels, image.height, image.width), dtype=np.uint8)
        image.copyto(planes)
        return self._local.resample(planes.transpose(1, 2, 0), place)


class Native(Contestant):
    """The native core decodes the whole image, one a call, and the resampling of the loader follows.

    The loader hands it whole batches; a call per image, as here for a latency of each, costs some 5% more.
    """

    name = "native"
    resampler = "torch's uint8 kernel"

    def __init__(self, task: Task) -> None:
        from fastload.native import NativePool

        self._pool = NativePool(task.threads)
        self._local = _Buffers()

    @classmethod
    def version(cls) -> str:
        return fastload.__version__

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return self._local.resample(self._decode(data, ((0, 0, *size), size)), place)

    def close(self) -> None:
        self._pool.close()

    def _decode(self, data: bytes, place: Place) -> Pixels:
        from fastload.geometry import Geometry

        box, size = place
        geometry = Geometry(
            box=np.array([box], dtype=np.int32),
            size=np.array([size], dtype=np.int32),
            window=np.array([(0, 0, *size)], dtype=np.int32),
            flip=np.zeros((1, 2), dtype=np.bool_),
        )
        out = self._local.decoded.take((1, *size, 3))
        for failure in self._pool.decode_batch([data], geometry=geometry, out=out).wait():
            raise ValueError(failure.message)
        pixels: Pixels = out[0]
        return pixels


class NativeRegion(Native):
    """It decodes and resamples only the box, as the `turbojpeg` backend does: the difference is what that saves."""

    name = "native-region"
    resampler = "its own"
    modes = ("resize256", "crop224")
    """Where the whole image is wanted as it is, there is no region to save."""

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return self._decode(data, place or ((0, 0, *size), size))
