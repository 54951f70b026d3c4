"""How far the pixels of a backend are, and may be, from torchvision's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PixelDifference:
    """How far two sets of uint8 pixels are apart, on the scale of 0 to 255."""

    largest: int
    mean: float
    psnr: float
    """Peak signal-to-noise ratio, 10 log10(255**2 / mean squared difference) [dB]; infinite when
    equal."""

    @classmethod
    def between(cls, got: torch.Tensor, wanted: torch.Tensor) -> PixelDifference:
        """Of two uint8 tensors of one shape, on any device. Raises ValueError: they are not."""
        if got.shape != wanted.shape or got.dtype != torch.uint8 or wanted.dtype != torch.uint8:
            raise ValueError(
                f"pixels: {tuple(got.shape)} {got.dtype} cannot be compared with "
                f"{tuple(wanted.shape)} {wanted.dtype}."
            )
        if not got.numel():
            return cls(0, 0.0, math.inf)
        difference = got.cpu().to(torch.int16).sub_(wanted.cpu()).abs_()
        squared = float(difference.to(torch.float64).square_().mean())
        return cls(
            largest=int(difference.max()),
            mean=float(difference.to(torch.float64).mean()),
            psnr=10 * math.log10(255**2 / squared) if squared else math.inf,
        )


@dataclass(frozen=True)
class Tolerance:
    """How far a backend's pixels may be from torchvision's on the same box; it is published.

    The default is for a backend that resamples as torchvision does. A backend with a resampler of
    its own gives a PSNR instead; then only that counts.
    """

    largest: int = 2
    """Largest difference, of 255."""
    mean: float = 0.2
    """Mean difference, of 255."""
    psnr_cpu: float | None = None
    """Least PSNR where it works on the CPU [dB]."""
    psnr_gpu: float | None = None
    """Least PSNR where it works on a GPU [dB]; None: as on the CPU."""

    def psnr(self, *, on_gpu: bool = False) -> float | None:
        """The least PSNR [dB]; None where the largest and the mean difference count."""
        return self.psnr_gpu if on_gpu and self.psnr_gpu is not None else self.psnr_cpu

    def allows(self, difference: PixelDifference, *, on_gpu: bool = False) -> bool:
        """Whether pixels that differ by so much are within the bound."""
        psnr = self.psnr(on_gpu=on_gpu)
        if psnr is None:
            return difference.largest <= self.largest and difference.mean <= self.mean
        return difference.psnr >= psnr

    def describe(self, *, on_gpu: bool = False) -> str:
        """For a person: "max 2, mean 0.2 of 255", or "PSNR 45 dB"."""
        psnr = self.psnr(on_gpu=on_gpu)
        return (
            f"max {self.largest}, mean {self.mean:g} of 255"
            if psnr is None
            else f"PSNR {psnr:g} dB"
        )
