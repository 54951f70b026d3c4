"""A Loader's samples without its epochs, made from compressed images that the caller hands in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fastload import stores
from fastload.backends.base import BackendOptions, made_now
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.draws import Draws
from fastload.errors import ConfigurationError, UnsupportedTransformError
from fastload.fingerprint import fingerprint_of
from fastload.loader.build import assemble
from fastload.loader.config import LoaderConfig
from fastload.loader.states import checked_epoch
from fastload.recipe import Recipe
from fastload.sampler import Shard
from fastload.sources.base import Source
from fastload.sources.buffers import Int64Array
from fastload.sources.columns import EncodedImages

_AT_ONCE = 64
"""Images that are divided among the threads; more are made in several such portions."""


class SampleMaker:
    """Makes the images that a Loader with this transform and seed gives on the CPU, from their
    compressed bytes, and from the index and the epoch that they have there.

    Used by one thread at a time. Not picklable: make one in each process.
    """

    def __init__(
        self,
        transform: Callable[..., Any] | Recipe | None,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        options: BackendOptions | None = None,
        num_workers: int | None = None,
    ) -> None:
        """The arguments are those of `create_loader` with `backend="turbojpeg"`; a seek index is
        not used.

        Raises:
            ConfigurationError: an argument is wrong.
            UnsupportedTransformError: the transform runs Python on single samples.
        """
        split = Recipe.from_transform(transform).split(None)
        if split.opaque is not None:
            raise UnsupportedTransformError(
                f"transform: {'; '.join(split.reasons)}. Python on single samples draws numbers "
                "that no index brings back, so these would not be a Loader's samples."
            )
        if split.composite.most > 1:
            raise ConfigurationError(
                "transform: Mosaic and the like make a sample of several images of a data set, and "
                "here only the images that are handed in are known; leave them out."
            )
        if options is None or type(options) is BackendOptions:
            given = options or BackendOptions()
            options = TurboJpegOptions(given.exif_orientation, given.max_pixels)
        if isinstance(options, TurboJpegOptions):
            options = dataclasses.replace(options, seek_index=False)
        self._images = _HandedIn()
        config = LoaderConfig(
            source=Source(
                {"image": self._images}, fingerprint_of("images handed in"), "images", "dict"
            ),
            batch_size=_AT_ONCE,
            transform=transform,
            backend="turbojpeg",
            num_workers=num_workers,
            seed=seed,
            dtype=dtype,
            memory_format=torch.contiguous_format,
            options=options,
            shard=Shard(),
        )
        parts = assemble(config)
        self._backend, self._stage, self._seed = parts.backend, parts.stage, parts.order.seed

    def make(
        self, images: Sequence[bytes | str], indices: Sequence[int], epoch: int
    ) -> tuple[torch.Tensor | tuple[torch.Tensor, ...], dict[int, Exception]]:
        """
        Args:
            images: the bytes of B compressed images, or the paths or URLs to read them from.
            indices: the index that each has in the Loader's source; equal ones are one image.
            epoch: of the Loader, 0-based.

        Returns:
            The images (B, C, H, W), C-contiguous; a tuple of such where the transform has Views.
            And the rows that could not be read, with the reason: they hold a black image.

        Raises:
            ConfigurationError: an index is negative, above 2^40 - 1, or that of two images; the
                images come out in several sizes.
        """
        rows = np.asarray(indices, dtype=np.int64)
        self._images.hold(images, rows.tolist())
        try:
            draws = Draws(self._seed, checked_epoch(epoch), rows)
            host = made_now(self._backend, draws)
        finally:
            self._images.release()
        failures = {failure.row: failure.error for failure in host.failures}
        host = dataclasses.replace(host, failures=[])
        staged = self._stage.run(host, draws, 0)
        return self._stage.deliver(staged)["image"], failures

    def close(self) -> None:
        """Join its threads. May be called twice."""
        self._backend.close()


class _HandedIn(EncodedImages):
    """The images of the batch that is being made, by their index in the Loader's source."""

    def __init__(self) -> None:
        self._images: Mapping[int, bytes | str] = {}

    def hold(self, images: Sequence[bytes | str], indices: Sequence[int]) -> None:
        images_by_index: dict[int, bytes | str] = {}
        for image, index in zip(images, indices, strict=True):
            if not 0 <= index < 1 << 40:
                raise ConfigurationError(
                    f"indices: {index} is no index of a sample: they go from 0 to 2^40 - 1."
                )
            if images_by_index.setdefault(index, image) != image:
                raise ConfigurationError(
                    f"indices: {index} is that of two different images, and would give both the "
                    "same random numbers. Number the images from 0, each once."
                )
        self._images = images_by_index

    def release(self) -> None:
        self._images = {}

    def __len__(self) -> int:
        return 1  # any number: nobody asks for an order of them

    def describe(self, index: int) -> str:
        image = self._images.get(index)
        return image if isinstance(image, str) else f"image {index}"

    def read(self, index: int) -> bytes:
        image = self._images[index]
        return stores.read(image) if isinstance(image, str) else image

    def read_many(self, indices: Int64Array) -> list[bytes]:
        images = [self._images[index] for index in indices.tolist()]
        named = [image for image in images if isinstance(image, str)]
        read = iter(stores.read_many([stores.Range(name) for name in named]))
        return [next(read) if isinstance(image, str) else image for image in images]
