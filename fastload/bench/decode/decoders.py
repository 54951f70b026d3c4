"""How each decoder turns one JPEG into pixels, and how those are resampled: with what its users would use.

A new contestant is a class and a place in `CONTESTANTS`. No decoder is imported before it is needed.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

import fastload
from fastload.bench.decode.batches import DaliCpu, DaliMixed, TorchvisionCuda
from fastload.bench.decode.inputs import FORMATS, Pixels, Place, Task
from fastload.bench.decode.passes import Contestant
from fastload.bench.decode.pillow import Pillow, PillowSimd
from fastload.errors import BackendUnavailableError, ConfigurationError

_TORCH_PLACE = re.compile(r"^\w+, \S+:\d+, ")


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
    formats = tuple(FORMATS)

    def __init__(self, task: Task) -> None:
        from fastload.decode import get_decoder

        get_decoder("torchvision")  # says what is missing
        import torch
        from torchvision.transforms.v2 import functional

        self._torch, self._functional = torch, functional
        # Faster, where it is known, than its function for any format.
        self._decode = getattr(torch.ops.image, f"decode_{task.format}")

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        torch = self._torch
        try:
            image = self._decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3)
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
    formats = tuple(FORMATS)

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

    Each by the thread that asks for it, as `fastload.decode_jpeg` does.
    """

    name = "native"
    resampler = "torch's uint8 kernel"
    formats = tuple(FORMATS)

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
        for failure in self._pool.decode_batch([data], geometry=geometry, out=out, here=True).wait():
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


class _PyTurboJpeg(FastloadDecoder):
    name = "pyturbojpeg"


class _SimpleJpeg(FastloadDecoder):
    name = "simplejpeg"


_CLASSES: tuple[type[Contestant], ...] = (
    *(Pillow, PillowSimd, _PyTurboJpeg, _SimpleJpeg, Torchvision, OpenCv, Accimage, Native, NativeRegion),
    *(DaliCpu, TorchvisionCuda, DaliMixed),
)

CONTESTANTS: dict[str, type[Contestant]] = {contestant.name: contestant for contestant in _CLASSES}


def chosen_contestants(names: Sequence[str] | None) -> list[type[Contestant]]:
    """By name; without names all of them.

    Raises:
        ConfigurationError: there is none of that name.
    """
    for name in names or ():
        if name not in CONTESTANTS:
            raise ConfigurationError(
                f"--decoders: {name!r} is not known; choose from {', '.join(CONTESTANTS)} (with commas between)."
            )
    return [CONTESTANTS[name] for name in dict.fromkeys(names or CONTESTANTS)]
