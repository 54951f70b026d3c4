"""torchvision's own decoder, where this build of torchvision has it. It does not report libjpeg's warnings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import BackendUnavailableError

__all__ = ["TorchvisionDecoder"]

_RGB = 3
"""torchvision.io.ImageReadMode.RGB"""


class TorchvisionDecoder:
    name = "torchvision"
    strict = False

    def __init__(self) -> None:
        try:
            import torchvision

            # The operator beneath torchvision.io.decode_jpeg, which torchvision 0.29 deprecates with a warning at each
            # call. Builds without image support, and some day newer ones, do not have it.
            self._decode = torch.ops.image.decode_jpeg
        except (ImportError, AttributeError, RuntimeError) as error:
            raise BackendUnavailableError(
                f"The decoder torchvision is not available: this torchvision cannot read images ({error}). "
                "Use another one: pip install simplejpeg"
            ) from error
        self.version = str(torchvision.__version__)

    def decode(self, data: bytes, *, out: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint8]:
        # The copy into a bytearray is for torch, which warns about read-only memory.
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            planes = self._decode(encoded, _RGB, False)
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        pixels: npt.NDArray[np.uint8] = planes.permute(1, 2, 0).numpy()
        return pixels
