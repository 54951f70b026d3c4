"""torchvision's own decoder: always there, as torchvision is a dependency. It does not report libjpeg's warnings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import BackendUnavailableError

__all__ = ["TorchvisionDecoder"]


class TorchvisionDecoder:
    name = "torchvision"
    strict = False

    def __init__(self) -> None:
        try:
            import torchvision
            from torchvision.io import ImageReadMode, decode_jpeg

            # Builds without image support import well and fail at the first call.
            torch.ops.image.decode_jpeg  # noqa: B018
        except (ImportError, AttributeError, RuntimeError) as error:
            raise BackendUnavailableError(
                f"The decoder torchvision is not available ({error}). Install it: pip install torchvision"
            ) from error
        self.version = str(torchvision.__version__)
        self._decode = decode_jpeg
        self._rgb = ImageReadMode.RGB

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        # The copy into a bytearray is for torch, which warns about read-only memory.
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            planes = self._decode(encoded, mode=self._rgb)
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        pixels: npt.NDArray[np.uint8] = planes.permute(1, 2, 0).numpy()
        return pixels
