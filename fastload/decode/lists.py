"""Lists of images of any sizes, decoded: the kind of columns such as `sources.image_lists` has."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastload import native
from fastload.decode.image import decode_image
from fastload.decode.libraries import CoreDecoder, Decoder, get_decoder
from fastload.errors import DecodeError, SourceError
from fastload.files import DecodeSettings
from fastload.machine import usable_cores
from fastload.sources.image_lists import IMAGE_LIST
from fastload.sources.kinds import Kind, register_kind
from fastload.sources.ragged import Ragged, offsets_of

_SIZE = 8
"""Bytes before the pixels of an image: height and width, int32."""


class ImageList(Kind):
    """Any number of images for each sample: a list of tensors (3, H, W) uint8, RGB, in a batch.

    Rows are of compressed images, each after its name and a zero; once they are decoded, of pixels
    after their size.
    """

    name = IMAGE_LIST
    python_objects = True
    decodes = True

    def __init__(self, *, upright: bool = False) -> None:
        """`upright`: whether images are turned by their EXIF orientation."""
        self._settings = DecodeSettings(exif_orientation=upright)

    def of(self, setting: str) -> Kind:
        if setting != "upright":
            raise SourceError(
                f"role '{IMAGE_LIST}:{setting}': the only setting is 'upright', which turns images "
                "by their EXIF orientation."
            )
        return _UPRIGHT

    def decoded(self, rows: Ragged) -> tuple[Ragged, dict[int, DecodeError]]:
        images = rows.values
        bounds, data = images.bounds.tolist(), np.ascontiguousarray(images.values)
        parts = [data[start:end].tobytes() for start, end in itertools.pairwise(bounds)]
        made = _mapped(self._one, parts)
        errors: dict[int, DecodeError] = {}
        for image, pixels in enumerate(made):
            if isinstance(pixels, DecodeError):
                errors.setdefault(int(np.searchsorted(rows.bounds, image, "right")) - 1, pixels)
        good = [_EMPTY if isinstance(one, DecodeError) else one for one in made]
        flat = np.concatenate([*good, _EMPTY])
        return Ragged(Ragged(flat, offsets_of([len(one) for one in good])), rows.offsets), errors

    def objects(self, rows: Ragged) -> list[Any]:
        pixels = rows.values
        bounds, data = pixels.bounds.tolist(), np.ascontiguousarray(pixels.values)
        images = [_tensor(data[start:end]) for start, end in itertools.pairwise(bounds)]
        return [images[start:end] for start, end in itertools.pairwise(rows.bounds.tolist())]

    def for_code(self, value: Any) -> Any:
        return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in value]

    def _one(self, data: bytes) -> npt.NDArray[np.uint8] | DecodeError:
        """Size and pixels of an image."""
        name, _, file = data.partition(b"\0")
        try:
            pixels = decode_image(
                file,
                name=name.decode(errors="replace"),
                decoder=_decoder(),
                settings=self._settings,
            )
        except DecodeError as error:
            return error
        size = np.array(pixels.shape[:2], dtype=np.int32).view(np.uint8)
        return np.concatenate([size, pixels.reshape(-1)])


_EMPTY = np.empty(0, dtype=np.uint8)
_UPRIGHT = ImageList(upright=True)
register_kind(ImageList())


def _tensor(data: npt.NDArray[np.uint8]) -> torch.Tensor:
    """(3, H, W), in memory of its own; of an image that could not be decoded (3, 0, 0)."""
    if not len(data):
        return torch.empty((3, 0, 0), dtype=torch.uint8)
    height, width = data[:_SIZE].copy().view(np.int32).tolist()
    pixels = torch.from_numpy(data[_SIZE:].reshape(height, width, 3).copy())
    return pixels.permute(2, 0, 1)


def _decoder() -> Decoder:
    return CoreDecoder() if native.available() else get_decoder()


def _mapped(function: Any, parts: Sequence[bytes]) -> list[Any]:
    """The function of each, by the threads of this process; few by the thread that asks."""
    if len(parts) < 2 or usable_cores() < 2:
        return [function(part) for part in parts]
    return list(_threads(os.getpid()).map(function, parts))


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Those of a process: after a fork there are none of its parent's."""
    return ThreadPoolExecutor(usable_cores(), "fastload-lists")
