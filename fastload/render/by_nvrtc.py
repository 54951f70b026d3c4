"""Launches of the kernels in CUDA C that make batches of decoded images and change their colours
(`fastload/native/cuda/`). `fastload.render.by_triton` has the same functions."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.render.driver import kernels_of
from fastload.render.nvrtc import COLOUR, IMAGES
from fastload.render.steps import KINDS
from fastload.render.transfer import on_device

if TYPE_CHECKING:
    from fastload.render.steps import ColourSteps, Filtering

_THREADS = 256
"""Of a block (`kRenderThreads`, `kConvertThreads`, `kColourThreads`, `kBlurThreads`)."""
_VALUES = 1024
"""Values that a block converts or adds: four a thread."""
_FEWEST_PIXELS, _MOST_PIXELS = 512, 4096
"""Pixels of a block that recolours: as few as keep the GPU busy, as many as make it worth while to
put together what a block has counted (770 words)."""
_BUSY = 2048
"""Blocks that keep a GPU busy: those of recolour that an H100 holds at a time are some 1,000."""
_BY_LEVELS = [KINDS.index(name) for name in ("autocontrast", "equalize")]
_BY_SUM = [KINDS.index("contrast")]
"""Steps that need to know the counts of the levels of all pixels, or their sum."""
_BY_OTHERS = [
    KINDS.index(name)
    for name in ("sharpness", "affine", "move_bilinear", "move_bicubic", "move_nearest")
]
"""Steps that make a pixel of others."""
_TYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""As `Type` in numbers.cuh."""
_KINDS = ("nearest", "nearest", "nearest", "antialiased", "interpolated")
"""Which kernel renders, by `Filtering.how`."""


def _structure(addresses: str, **others: Any) -> Any:
    """Names and types of the arguments of a kernel: addresses first."""
    fields = [(name, ctypes.c_uint64) for name in addresses.split()]
    for kind, names in others.items():
        fields += [(name, getattr(ctypes, kind.rstrip("_"))) for name in names.split()]
    return type("Arguments", (ctypes.Structure,), {"_fields_": fields})


_Trial = _structure("out")
_Render = _structure(
    "pixels table firsts weights fill out",
    c_int32="rows height width most channels how cubic",
    c_float="a",
    c_int32_="pads mode",
)
_Normalise = _structure(
    "images scale offset out values",
    c_int32="rows plane width channels is_planar type mixing",
    c_float="weight of_other",
    c_int32_="left top right bottom",
)
_Drawn = _structure(
    "pixels order rows steps fill scale offset out first",
    c_int32="height width out_height out_width channels step_count "
    "ABOVE LEFT COUNT_DOWN COUNT_ACROSS PADS mode converts type",
)
_Recolour = _structure(
    "images kinds numbers begins counts fill out scratch statistics "
    "stride_row stride_channel stride_pixel",
    c_int32="rows chains height width channels steps passes pass_ words block_pixels bilinear "
    "fills",
)
_Blur = _structure(
    "images weights out",
    c_int32="rows planes length step plane stride_line line_length taps",
)
_Add = _structure("images parts weights out size", c_int32="part_count")


def launch(
    tensor: torch.Tensor, name: str, blocks: int, arguments: Any, group: str = IMAGES
) -> None:
    """Queue a kernel on the current stream of the GPU of a tensor."""
    threads = 1 if name == "trial" else _THREADS
    kernels_of(tensor.device, group).launch(f"fastload_{name}", blocks, threads, arguments)


def trial(out: torch.Tensor) -> None:
    """Launch the smallest kernel there is, which writes 1 to (1,) int32."""
    launch(out, "trial", 1, _Trial(out.data_ptr()))


def render(
    pixels: torch.Tensor,
    table: torch.Tensor,
    weighed: tuple[torch.Tensor, torch.Tensor] | None,
    fill: torch.Tensor,
    out: torch.Tensor,
    most: int,
    filtering: Filtering,
) -> None:
    """As `RenderArguments` of render.cuh says; `weighed`: `firsts` and `weights`, which are made
    first, of an antialiased resize."""
    rows, height, width, channels = out.shape
    how, cubic, a, pads, mode = filtering
    arguments = _Render(
        *(pixels.data_ptr(), table.data_ptr()),
        *(part.data_ptr() for part in weighed or (out, out)),
        *(fill.data_ptr(), out.data_ptr(), rows, height, width, most, channels),
        *(how, cubic, a, pads, mode),
    )
    if weighed is not None:
        launch(out, "weigh", rows * -(-(height + width) // _THREADS), arguments)
    together = 3 if channels == 3 else 1
    blocks = rows * -(-height * width // _THREADS) * (channels // together)
    launch(out, f"render_{_KINDS[how]}_{together}", blocks, arguments)


def normalise(
    images: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    out: torch.Tensor,
    weight: float | None,
    box: tuple[int, int, int, int] | None,
) -> None:
    """As `fastload.render.fused.normalise`."""
    rows, channels, height, width = out.shape
    values = channels * height * width
    mixing = 0 if weight is None else 1 if box is None else 2
    arguments = _Normalise(
        *(images.data_ptr(), scale.data_ptr(), offset.data_ptr(), out.data_ptr(), values),
        *(rows, height * width, width, channels, images.is_contiguous()),
        *(_TYPES.index(out.dtype), mixing, weight or 0.0, 1.0 - (weight or 0.0)),
        *(box or (0, 0, 0, 0)),
    )
    launch(out, "normalise", rows * -(-values // _VALUES), arguments)


def drawn(
    pixels: torch.Tensor,
    order: torch.Tensor,
    rows: torch.Tensor,
    steps: torch.Tensor,
    numbers: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    first: int,
    step_count: int,
    size: tuple[int, int],
    mode: int,
    constants: dict[str, int],
    *,
    converts: bool,
) -> None:
    """As `DrawnArguments` of convert.cuh says; `numbers`: fill, scale, offset."""
    count, height, width, channels = out.shape
    arguments = _Drawn(
        *(tensor.data_ptr() for tensor in (pixels, order, rows, steps, *numbers, out)),
        *(first, *size, height, width, channels, step_count),
        **constants,
        mode=mode,
        converts=converts,
        type=_TYPES.index(out.dtype),
    )
    launch(out, "drawn", count * -(-height * width * channels // _VALUES), arguments)


def recolour(
    images: torch.Tensor,
    steps: ColourSteps,
    kinds: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.float32],
    fill: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """As `fastload.render.fused.recolour`, of `steps.in_front()`: one launch for each pass that the
    sample of most passes takes, and one more where the first step of a sample has to know all
    pixels."""
    (batch, channels, height, width), device = out.shape, out.device
    begins, counts = passes_of(kinds)
    passes = begins.shape[1] - 1
    words = 0
    if np.isin(kinds, _BY_LEVELS).any():
        words = 2 + 256 * channels
    elif np.isin(kinds, _BY_SUM).any():
        words = 2
    # 64 bits a sum: torch's memory begins at multiples of more, and `words` is even.
    statistics = torch.zeros(batch, passes, words, dtype=torch.int32, device=device)
    scratch = torch.empty_like(out) if passes > 1 else out
    # One small copy for all of the numbers.
    parts = [kinds.ravel(), numbers.view(np.int32).ravel(), begins.ravel(), counts]
    sent = on_device(np.concatenate(parts), device)
    ends = np.cumsum([part.size for part in parts]) * sent.element_size()
    at = (sent.data_ptr() + ends - [part.nbytes for part in parts]).tolist()
    plane = height * width
    pixels = min(_MOST_PIXELS, max(_FEWEST_PIXELS, batch * plane // _BUSY // _THREADS * _THREADS))
    arguments = _Recolour(
        *(images.data_ptr(), *at, fill.data_ptr(), out.data_ptr(), scratch.data_ptr()),
        *(statistics.data_ptr(), images.stride(0), images.stride(1), images.stride(3)),
        *(batch, batch // len(images), height, width, channels, kinds.shape[1], passes, 0),
        *(words, pixels, steps.bilinear, steps.fill is not None),
    )
    by_all = np.isin(kinds[:, 0], _BY_LEVELS + _BY_SUM).any()
    for number in range(-1 if by_all else 0, passes):
        arguments.pass_ = number
        blocks = batch * -(-plane // pixels)
        launch(out, f"recolour_{channels}", blocks, arguments, COLOUR)


def passes_of(
    kinds: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(B, P + 1) and (B,) int32 of (B, S) kinds, those of a sample first: the first step of each of
    its passes, and their end; how many they are, at least 1. A pass begins where a step has to know
    other pixels than the one that it makes."""
    starts = np.isin(kinds, _BY_LEVELS + _BY_SUM + _BY_OTHERS)
    starts[:, 0] = kinds[:, 0] >= 0
    ends = (kinds >= 0).sum(axis=1, dtype=np.int32)
    counts = np.maximum(starts.sum(axis=1, dtype=np.int32), 1)
    begins = np.repeat(ends[:, None], counts.max() + 1, axis=1)
    begins[:, 0] = 0
    rows, steps = np.nonzero(starts)
    begins[rows, (np.cumsum(starts, axis=1) - 1)[rows, steps]] = steps
    return begins, counts


def add_weighted(
    images: torch.Tensor, parts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> None:
    """As `AddArguments` of blur.cuh says."""
    size = out[0].numel()
    addresses = (tensor.data_ptr() for tensor in (images, parts, weights, out))
    arguments = _Add(*addresses, size, weights.shape[1] - 1)
    launch(out, "add_weighted", len(images) * -(-size // _VALUES), arguments, COLOUR)


def blur(
    images: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    shape: tuple[int, int, int, int],
    *,
    down: bool,
) -> None:
    """As `BlurArguments` of blur.cuh says, along one axis of planar images."""
    batch, channels, height, width = shape
    plane = height * width
    along = (height, width, plane, 1, width) if down else (width, 1, plane, width, height)
    addresses = (tensor.data_ptr() for tensor in (images, weights, out))
    arguments = _Blur(*addresses, batch, channels, *along, len(weights))
    blocks = batch * channels * -(-plane // _THREADS)
    launch(out, f"blur_{'down' if down else 'across'}", blocks, arguments, COLOUR)
