"""How each decoder turns one JPEG into pixels, and how those are resampled: with what its users would use."""

from __future__ import annotations

import io
import os
import re
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from fastload.bench.decode.passes import Pixels
from fastload.bench.decode.task import Place
from fastload.errors import BackendUnavailableError

if TYPE_CHECKING:
    from fastload.decode import Decoder

__all__ = ["AccimageStep", "DecoderStep", "NativeStep", "OpenCvStep", "PillowStep", "TorchvisionStep"]

_TORCH_PLACE = re.compile(r"^\w+, \S+:\d+, ")


class PillowStep:
    """Pillow and its own resampling; also Pillow-SIMD, where that is what `import PIL` finds."""

    def __init__(self) -> None:
        from PIL import Image, UnidentifiedImageError

        self._open = Image.open
        self._unidentified = UnidentifiedImageError
        self._bilinear = Image.Resampling.BILINEAR

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


class DecoderStep:
    """A decoder of `fastload.decode` and the resampling of the loader (torch's uint8 kernel, one thread an image)."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._local = _Buffers()

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        pixels = self._decoder.decode(data, out=self._local.decoded.take((*size, 3)))
        return pixels if place is None else _resample(pixels, place, self._local.placed.take((*place[1], 3)))


class _Buffers(threading.local):
    def __init__(self) -> None:
        from fastload.decode.image import Scratch

        self.decoded, self.placed = Scratch(), Scratch()


def _resample(pixels: Pixels, place: Place, out: Pixels) -> Pixels:
    from fastload.render import render_into

    box, size = place
    render_into(pixels, box=box, size=size, out=out)
    return out


class TorchvisionStep:
    """torchvision's decoder and its transforms v2, on tensors of planes as they are used."""

    def __init__(self) -> None:
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


class OpenCvStep:
    """OpenCV's decoder with its area resampling, which is how its users shrink images; linear to enlarge."""

    def __init__(self) -> None:
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


class AccimageStep:
    """accimage (Intel IPP), whose resampling has no antialiasing: so ours follows it."""

    def __init__(self) -> None:
        try:
            accimage: Any = import_module("accimage")
        except ImportError as error:
            raise BackendUnavailableError(
                f"The decoder accimage is not available ({error}). Install it: conda install -c conda-forge accimage"
            ) from error
        self._open = accimage.Image
        self._local = _Buffers()

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
        pixels: Pixels = planes.transpose(1, 2, 0)
        return pixels if place is None else _resample(pixels, place, self._local.placed.take((*place[1], 3)))


class NativeStep:
    """The native core, one image a call.

    With `region`, it decodes and resamples only the box, as the `turbojpeg` backend does. Without, it decodes the whole
    image, and the resampling of the loader follows: the difference is what the region saves. The loader hands it whole
    batches; a call per image, as here for a latency of each, costs some 5% more.
    """

    def __init__(self, threads: int, *, region: bool) -> None:
        from fastload.native import NativePool

        self._pool = NativePool(threads)
        self._region = region
        self._local = _Buffers()

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        whole: Place = ((0, 0, *size), size)
        if place is None or self._region:
            return self._decode(data, place or whole)
        return _resample(self._decode(data, whole), place, self._local.placed.take((*place[1], 3)))

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
