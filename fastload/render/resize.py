"""Resampling of uint8 images, by the fastest correct code that is installed.

On x86 that is torch's uint8 kernel (AVX2), which works on one core, as wanted: it is called from several threads
at once. Where torch has no such kernel it would share each image between the threads of its own pool, which gets in
the way of ours, so there Pillow does the common case, antialiased bilinear. The two agree to 1 of 255.
"""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastload.decode.scratch import Scratch
from fastload.geometry import Interpolation

__all__ = ["resize_into"]

Pixels = npt.NDArray[np.uint8]


class _Local(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_local = _Local()


def resize_into(source: Pixels, *, interpolation: Interpolation, antialias: bool, out: Pixels) -> None:
    """Resample all of `source` to the size of `out`.

    Args:
        source: (H, W, C) uint8, a view with any strides.
        interpolation: "bilinear" or "bicubic".
        antialias: widen the filter when shrinking.
        out: C-contiguous (h, w, C) uint8 to write to.
    """
    assert interpolation in ("bilinear", "bicubic")
    assert out.flags.c_contiguous
    if antialias and interpolation == "bilinear" and not _torch_has_simd():
        _with_pillow(source, out)
        return
    # A strided tensor would be copied by torch with its thread pool, so copy it here.
    packed = _local.scratch.take(source.shape)
    np.copyto(packed, source)
    _resample(_tensor(packed), interpolation, antialias, _tensor(out))


@cache
def _torch_has_simd() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _tensor(array: Pixels) -> torch.Tensor:
    """(1, C, H, W) in channels_last memory: the batch axis first, so that torch sees the layout for what it is."""
    return torch.from_numpy(array)[None].permute(0, 3, 1, 2)


def _resample(source: torch.Tensor, interpolation: Interpolation, antialias: bool, out: torch.Tensor) -> None:
    # The operators behind torch.nn.functional.interpolate, called as such for their `out` argument.
    size = out.shape[2:]
    if interpolation == "bilinear":
        operator = torch.ops.aten._upsample_bilinear2d_aa if antialias else torch.ops.aten.upsample_bilinear2d
    else:
        operator = torch.ops.aten._upsample_bicubic2d_aa if antialias else torch.ops.aten.upsample_bicubic2d
    operator.out(source, size, False, None, None, out=out)


def _with_pillow(source: Pixels, out: Pixels) -> None:
    height, width, channels = out.shape
    planes = [(source, out)] if channels == 3 else [(source[..., c], out[..., c]) for c in range(channels)]
    for plane, target in planes:
        image = Image.fromarray(np.ascontiguousarray(plane)).resize((width, height), Image.Resampling.BILINEAR)
        np.copyto(target, np.asarray(image))
