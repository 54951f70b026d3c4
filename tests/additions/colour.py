"""A colour operation in a file of its own, and the transform that it does the work of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastload.draws import Draws
from fastload.recipe.operation import ImageState, PixelOperation, register


class Inverted(torch.nn.Module):
    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return 255 - image if torch.rand(()) < self.p else image


@register
@dataclass(frozen=True)
class InvertedOperation(PixelOperation):
    transforms = (Inverted,)
    pointwise = True

    p: float = 0.5

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> InvertedOperation:
        return cls(float(transform.p))

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        chosen = torch.from_numpy(draws.uniform(stream, 1)[:, 0] < self.p).to(images.device)
        whole = 1 if images.is_floating_point() else 255
        return torch.where(chosen[:, None, None, None], whole - images, images)
