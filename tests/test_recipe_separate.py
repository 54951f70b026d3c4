"""Images of several sizes, each made without its padding: beside the same images one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastload.draws import Draws
from fastload.recipe import Operation
from fastload.recipe.colour import ColorJitter
from fastload.recipe.convert import Normalize, ToDtype
from fastload.recipe.outputs import SIZES
from fastload.recipe.separate import SeparateProgram
from fastload.recipe.split import BatchProgram
from fastload.sources.kinds import IMAGE
from tests.images import photo


def images_of(count: int, channels: int) -> torch.Tensor:
    """(B, C, 37, 45) uint8, channels_last, as a backend hands them over."""
    array = np.stack([photo(37, 45, seed=row, channels=channels) for row in range(count)])
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def draws_of(count: int) -> Draws:
    return Draws(7, 2, np.arange(1000, 1000 + count))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    ("ops", "dtype"),
    [
        ((), None),
        ((ToDtype(torch.float32),), None),
        ((ToDtype(torch.float32),), torch.bfloat16),
        ((ColorJitter((0.5, 1.5)), ToDtype(torch.float16), Normalize((0.4,), (0.2,))), None),
        ((ToDtype(torch.float32), Normalize((0.4,), (0.2,))), None),
        ((ToDtype(torch.float64, scale=False),), None),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_several_sizes_are_made_without_their_padding(
    ops: tuple[Operation, ...],
    dtype: torch.dtype | None,
    channels: int,
    memory_format: torch.memory_format,
) -> None:
    padded, sizes = images_of(4, channels), [(37, 20), (1, 45), (12, 1), (30, 31)]
    before, program = padded.clone(), BatchProgram(tuple(enumerate(ops)))

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, 77, dtype=dtype).contiguous(memory_format=memory_format)

    separate, kinds = SeparateProgram(program.ops), {"image": IMAGE}
    columns = {"image": padded, SIZES: torch.tensor(sizes)}
    found = separate(columns, kinds, draws_of(4), empty=empty, dtype=dtype)["image"]
    assert torch.equal(padded, before)
    for row, (image, (height, width)) in enumerate(zip(found, sizes, strict=True)):
        alone = padded[row : row + 1, :, :height, :width].contiguous()
        draws = draws_of(4).take(slice(row, row + 1))
        (wanted,) = program({"image": alone}, {"image": IMAGE}, draws, dtype=dtype)["image"]
        assert image.dtype == wanted.dtype
        # One rounding of a multiply-add, or two, by the memory format.
        close = {"rtol": 0, "atol": 1e-6 if image.dtype == torch.float32 else 2e-3}
        torch.testing.assert_close(image, wanted, **close)
        assert image[None].is_contiguous(memory_format=memory_format)
        assert image.untyped_storage().nbytes() == image.nbytes
    nothing = {"image": padded[:0], SIZES: torch.zeros((0, 2), dtype=torch.int64)}
    assert separate(nothing, kinds, draws_of(0), empty=empty)["image"] == []
    alike = separate({"image": padded}, kinds, draws_of(4), empty=empty)["image"]
    assert torch.equal(alike, program({"image": padded}, kinds, draws_of(4))["image"])
