"""The first step of the device stage, for a backend that hands on JPEGs which are planned for a
device: they are decoded and judged there, before samples that cannot be read are replaced."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fastload.backends.base import Backend, Failure, HostBatch, StartedWork, Work
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError
from fastload.render.jpegs_on_device import DeviceDecoder
from fastload.render.pending_jpegs import PendingJpegs

logger = logging.getLogger("fastload")


class DecodingBackend:
    """A backend whose planned images are made on a device as soon as a batch of it is waited
    for."""

    def __init__(self, backend: Backend, device: torch.device) -> None:
        self._backend, self._device = backend, device
        self._decoder: DeviceDecoder | None = None
        """None until the first images that are planned."""

    def start(self, draws: Draws) -> Work:
        work = self._backend.start(draws)
        return StartedWork(partial(self.finished, work), work.cancel)

    def finished(self, work: Work) -> HostBatch:
        """The batch, with its images on the device if one of them was planned."""
        host = work.result()
        views = {n: one for n, one in host.columns.items() if isinstance(one, PendingJpegs)}
        for name, one in views.items():
            host.columns[name], errors = self._made(one)
            known = {failure.row: failure for failure in host.failures}
            known |= {row: Failure(row, error) for row, error in errors.items()}
            host.failures = [known[row] for row in sorted(known)]
        if views:
            first = next(iter(views.values()))
            took = sum(one.took for one in views.values())
            first.share.measured(host=first.waited, device=took, between=first.between)
        return host

    def _made(self, images: PendingJpegs) -> tuple[Any, Mapping[int, Exception]]:
        share, planned = images.share, images.planned
        # Where all is to be decoded there, what is wrong is said at the first batch.
        if self._decoder is None and not share.stopped and (planned or share.is_fixed):
            try:
                self._decoder = DeviceDecoder(self._device)
            except BackendUnavailableError as error:
                if share.is_fixed:
                    raise
                share.stop(str(error))
                logger.warning("decode_on='auto': %s The host decodes all.", error)
        if self._decoder is None or not planned:
            return images.make_on_host()  # the device stage copies them as those of any backend
        return images.make(self._decoder)

    def close(self) -> None:
        self._backend.close()
        self._decoder = None

    def explain(self) -> Mapping[str, str]:
        return self._backend.explain()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the backend's: its name, `depth`, `decoded`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._backend, name)
