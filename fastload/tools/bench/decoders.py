"""How each decoder turns a JPEG into pixels, and how those are resampled: as its users would do it.

Each decoder of `fastload.decode` is a contestant by itself, also one that was made known with
`register_decoder`. One whose users resample in another way, and what is no such decoder, is a class
here and a place in `_CLASSES`. No decoder is imported before it is needed.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

import fastload
from fastload.decode import decoder_names, get_decoder
from fastload.decode.image import Scratch
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.geometry import Geometry
from fastload.machine import dali_version
from fastload.native import NativePool
from fastload.render.host import render_into
from fastload.tools.bench.passes import FORMATS, Contestant, Pixels, Place, Task
from fastload.tools.bench.pillow import Pillow, PillowSimd


class _Buffers(threading.local):
    """Buffers of each thread."""

    def __init__(self) -> None:
        self.decoded, self.placed = Scratch(), Scratch()

    def resample(self, pixels: Pixels, place: Place | None) -> Pixels:
        """Resample as the loader does: with torch's uint8 kernel, one thread an image."""
        if place is None:
            return pixels
        box, size = place
        out = self.placed.take((*size, 3))
        render_into(pixels, box=box, size=size, out=out)
        return out


class _LoadersResampling(Contestant):
    """Contestants that leave the resampling to the loader."""

    resampler = "torch's uint8 kernel"

    def __init__(self, task: Task) -> None:
        self._local = _Buffers()


class FastloadDecoder(_LoadersResampling):
    """A decoder of `fastload.decode`: a class derived from this one has its name."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._decoder = get_decoder(self.name)

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return self._local.resample(
            self._decoder.decode(data, out=self._local.decoded.take((*size, 3))), place
        )


class Torchvision(Contestant):
    """torchvision's decoder and its transforms v2, on tensors of planes as they are used."""

    name = "torchvision"
    resampler = "transforms v2"
    formats = tuple(FORMATS)

    def __init__(self, task: Task) -> None:
        get_decoder("torchvision")  # says what is missing
        import torch
        from torchvision.transforms.v2 import functional

        self._torch, self._functional = torch, functional
        # Faster, where it is known, than its function for any format.
        self._decode = getattr(torch.ops.image, f"decode_{task.images.format}")

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        torch = self._torch
        try:
            image = self._decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3)
        except RuntimeError as error:
            # torch begins with the place in its source, which is another one in each version.
            raise ValueError(re.sub(r"^\w+, \S+:\d+, ", "", str(error).splitlines()[0])) from error
        if place is not None:
            image = self._functional.resized_crop(
                image, *place[0], size=list(place[1]), antialias=True
            )
        pixels: Pixels = image.permute(1, 2, 0).numpy()
        return pixels


class OpenCv(Contestant):
    """OpenCV's decoder with its area resampling, which is how its users shrink images; linear to
    enlarge."""

    name = "opencv"
    resampler = "INTER_AREA"
    formats = tuple(FORMATS)

    def __init__(self, task: Task) -> None:
        self._decoder = get_decoder("opencv")
        self._cv2: Any = import_module("cv2")

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        pixels = self._decoder.decode(data)
        if place is None:
            return pixels
        (top, left, height, width), (out_height, out_width) = place
        shrinks = height >= out_height and width >= out_width
        how = self._cv2.INTER_AREA if shrinks else self._cv2.INTER_LINEAR
        box = pixels[top : top + height, left : left + width]
        return np.asarray(
            self._cv2.resize(box, (out_width, out_height), interpolation=how), dtype=np.uint8
        )


class Accimage(_LoadersResampling):
    """accimage (Intel IPP), whose own resampling has no antialiasing."""

    name = "accimage"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        try:
            self._open: Any = import_module("accimage").Image
        except ImportError as error:
            raise BackendUnavailableError(
                f"The decoder accimage is not available ({error}). Install it: conda install -c "
                "conda-forge accimage"
            ) from error

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


class Native(_LoadersResampling):
    """The native core decodes the whole image, by the thread that asks for it, as
    `fastload.decode_jpeg` does."""

    name = "native"
    formats = tuple(FORMATS)

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._pool = NativePool(task.threads)

    @classmethod
    def version(cls) -> str:
        return fastload.__version__

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        pixels: Pixels = self._local.decoded.take((*size, 3))
        for failure in self._pool.decode_whole(data, pixels):
            raise ValueError(failure.message)
        return self._local.resample(pixels, place)

    def close(self) -> None:
        self._pool.close()

    def _decode(self, data: bytes, place: Place) -> Pixels:
        box, size = place
        geometry = Geometry(
            box=np.array([box], dtype=np.int32),
            size=np.array([size], dtype=np.int32),
            window=np.array([(0, 0, *size)], dtype=np.int32),
            flip=np.zeros((1, 2), dtype=np.bool_),
        )
        out = self._local.decoded.take((1, *size, 3))
        for failure in self._pool.decode_batch(
            [data], geometry=geometry, out=out, here=True
        ).wait():
            raise ValueError(failure.message)
        pixels: Pixels = out[0]
        return pixels


class NativeRegion(Native):
    """The native core decodes and resamples only the box, as the `turbojpeg` backend does: the
    difference from `Native` is what that saves."""

    name = "native-region"
    resampler = "its own"
    # Where the whole image is wanted as it is, there is no region to save.
    modes = (
        "resize256",
        "crop224",
    )

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return self._decode(data, place or ((0, 0, *size), size))


# -- Whole batches: DALI on the CPU and on the GPU, torchvision on the GPU (nvJPEG) ----------------


class DaliCpu(Contestant):
    """A DALI graph: decode the box, resize it with the triangle filter."""

    name = "dali-cpu"
    resampler = "DALI's resize"
    batch = 32

    def __init__(self, task: Task) -> None:
        from fastload.backends.dali_graph import decode_regions, import_dali

        self._dali, self._decode_regions = import_dali(), decode_regions
        if self.gpu:
            _need_cuda("DALI mixed")
        self._threads = task.threads
        self._places = any(place is not None for place in task.places)
        self._pipe = self._build()

    @classmethod
    def version(cls) -> str:
        return (dali_version() or "").rpartition(" ")[2]

    def decode(
        self,
        encoded: Sequence[bytes],
        sizes: Sequence[tuple[int, int]],
        places: Sequence[Place | None],
    ) -> Any:
        self._pipe.feed_input("encoded", [np.frombuffer(data, dtype=np.uint8) for data in encoded])
        if self._places:
            boxes = np.array(
                [place[0] if place else (0, 0, 1, 1) for place in places], dtype=np.int32
            )
            placed = np.array([place[1] if place else (1, 1) for place in places], dtype=np.float32)
            for name, values in (
                ("start", boxes[:, :2]),
                ("shape", boxes[:, 2:]),
                ("size", placed),
            ):
                self._pipe.feed_input(name, np.ascontiguousarray(values))
        try:
            (decoded,) = self._pipe.run()
        except RuntimeError as error:
            self._pipe = self._build()  # after an error DALI's pipeline cannot go on
            raise ValueError(_last_lines(error)) from error
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
            batch_size=self.batch,
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
                    # The hardware engine is reported not to keep to the order of the stream.
                    **({"hw_decoder_load": 0.0} if self.gpu else {}),
                    output_type=types.RGB,
                    jpeg_fancy_upsampling=True,
                    use_fast_idct=False,
                    adjust_orientation=False,
                )
            pipe.set_outputs(pixels)
        pipe.build()
        return pipe


class DaliMixed(DaliCpu):
    """A DALI graph as that of `DaliCpu`, decoded on the GPU."""

    name = "dali-mixed"
    gpu = True


class TorchvisionCuda(Contestant):
    """nvJPEG through torchvision, and torchvision's transforms on the device."""

    name = "torchvision-cuda"
    resampler = "transforms v2 on the GPU"
    batch = 32
    gpu = True

    def __init__(self, task: Task) -> None:
        _need_cuda(self.name)
        import torch
        from torchvision.transforms.v2 import functional

        self._decode = self._decoder()
        self._torch, self._functional = torch, functional
        self._device = torch.device("cuda", torch.cuda.current_device())

    def _decoder(self) -> Callable[[list[Any], int, Any], list[Any]]:
        """From encoded tensors, 3 for RGB and a device to images."""
        import torch

        try:
            # The operator beneath torchvision.io.decode_jpeg(..., device="cuda"), which newer
            # versions deprecate.
            decode: Any = torch.ops.image.decode_jpegs_cuda
        except (AttributeError, RuntimeError) as error:
            raise BackendUnavailableError(
                f"This torchvision cannot decode on CUDA ({error}). Install one built for it: "
                "pytorch.org, Get Started."
            ) from error
        return decode  # type: ignore[no-any-return]

    @classmethod
    def version(cls) -> str:
        return Torchvision.version()

    def decode(
        self,
        encoded: Sequence[bytes],
        sizes: Sequence[tuple[int, int]],
        places: Sequence[Place | None],
    ) -> Any:
        torch = self._torch
        try:
            images = self._decode(
                [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in encoded],
                3,
                self._device,
            )
        except RuntimeError as error:
            raise ValueError(_last_lines(error)) from error
        placed = [
            image
            if place is None
            else self._functional.resized_crop(image, *place[0], size=list(place[1]))
            for image, place in zip(images, places, strict=True)
        ]
        torch.cuda.synchronize(self._device)
        return placed

    def first(self, decoded: Any) -> Pixels:
        pixels: Pixels = decoded[0].permute(1, 2, 0).cpu().numpy()
        return pixels


class TorchcodecCuda(TorchvisionCuda):
    """nvJPEG through torchcodec, and torchvision's transforms on the device."""

    name = "torchcodec-cuda"

    def _decoder(self) -> Callable[[list[Any], int, Any], list[Any]]:
        get_decoder("torchcodec")  # says what is missing
        decode_jpeg = import_module("torchcodec.decoders").decode_jpeg

        def decode(encoded: list[Any], _: int, device: Any) -> list[Any]:
            images: list[Any] = decode_jpeg(encoded, mode="RGB", device=device)
            return images

        return decode

    @classmethod
    def version(cls) -> str:
        return version("torchcodec")


def _need_cuda(name: str) -> None:
    import torch

    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"{name} needs an NVIDIA GPU that this torch can use, and there is none (fastload "
            "doctor says why)."
        )


def _last_lines(error: RuntimeError) -> str:
    """The informative line of a C++ message; DALI's comes after a traceback."""
    message = str(error).rpartition("encountered:")[2]
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")


# -- All of them -----------------------------------------------------------------------------------

_CLASSES: tuple[type[Contestant], ...] = (
    Pillow,
    PillowSimd,
    Torchvision,
    OpenCv,
    Accimage,
    Native,
    NativeRegion,
    DaliCpu,
    TorchvisionCuda,
    TorchcodecCuda,
    DaliMixed,
)


def contestants() -> dict[str, type[Contestant]]:
    """All of them by name."""
    special = {contestant.name: contestant for contestant in _CLASSES}
    own_decoders = {
        name: type(name, (FastloadDecoder,), {"name": name})
        for name in decoder_names()
        if name not in special
    }
    return own_decoders | special


def chosen_contestants(names: Sequence[str] | None) -> list[type[Contestant]]:
    """Contestants by name; without names all of them. Raises ConfigurationError: there is none of
    that name."""
    known = contestants()
    for name in names or ():
        if name not in known:
            raise ConfigurationError(
                f"--decoders: {name!r} is not known; choose from {', '.join(known)} (with commas "
                "between)."
            )
    return [known[name] for name in dict.fromkeys(names or known)]
