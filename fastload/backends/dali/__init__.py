"""The `dali` backend: an NVIDIA DALI pipeline, on the CPU or with decoding on the GPU, fed with our order and boxes."""

from __future__ import annotations

from fastload.backends.dali.backend import DaliBackend, DaliOptions

__all__ = ["DaliBackend", "DaliOptions"]
