"""The backends as the contract suite sees them: everything registered here is tested by all of
it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fastload
from fastload.backends import available_backends
from fastload.decode.libraries import available_decoders
from tests import warm

DEVICE = torch.device(os.environ.get("FASTLOAD_TEST_DEVICE", "cpu"))
"""Where the batches of the contract suite are delivered."""


@dataclass(frozen=True)
class Contestant:
    """A backend under one set of options."""

    name: str
    backend: str
    arguments: dict[str, Any] = field(default_factory=dict)
    options: Callable[[Path], Any] | None = None
    """Makes the options, given a fresh directory."""
    psnr: float | None = None
    """Published bound [dB] where the backend has a resampler of its own; None: maximum 2, mean 0.2
    of 255."""
    decoder: str | None = None
    """The decoder that its options name."""
    opaque: bool = False
    """Whether it runs transforms that fastload cannot look into."""
    served: bool = False
    """Whether its worker processes are forks of the tests' fork server, as those that read a store
    cannot be forks of this process."""

    def create(self, source: Any, directory: Path, **arguments: Any) -> fastload.Loader:
        """create_loader on this backend; `directory` is where it may keep files."""
        if self.options is not None:
            arguments.setdefault("options", self.options(directory))
        if self.served:
            arguments.setdefault("multiprocessing_context", warm.START_METHOD)
            arguments.setdefault("worker_init_fn", Variables(dict(os.environ)))
        arguments.setdefault("device", DEVICE)
        return fastload.create_loader(
            source, backend=self.backend, **{**self.arguments, **arguments}
        )

    @property
    def absent(self) -> str:
        """What it lacks here and how to get it; empty if nothing."""
        backend = next(row for row in available_backends() if row.name == self.backend)
        if not backend.available:
            return f"{self.backend} is not installed: {backend.remedy}"
        decoder = next((row for row in available_decoders() if row.name == self.decoder), None)
        return (
            ""
            if decoder is None or decoder.available
            else f"{decoder.name} is not installed: {decoder.hint}"
        )


@dataclass(frozen=True)
class Variables:
    """Sets those of a process of the fork server, which has those of the test that started it."""

    values: dict[str, str]

    def __call__(self, worker: int) -> None:
        os.environ.clear()
        os.environ.update(self.values)


def _cache(storage: str) -> Callable[[Path], Any]:
    def options(directory: Path) -> Any:
        from fastload.backends.cache import CacheOptions

        return CacheOptions(
            directory=directory / f"cache-{storage}", storage=storage, progress=False
        )

    return options


def _python_threads(directory: Path) -> Any:
    from fastload.backends.turbojpeg import TurboJpegOptions

    return TurboJpegOptions(decoder="simplejpeg")


def _dali_mixed(directory: Path) -> Any:
    from fastload.backends.dali import DaliOptions

    return DaliOptions(device="mixed")


CONTESTANTS = [
    Contestant("torch-0", "torch", {"num_workers": 0}, opaque=True),
    Contestant("torch-2", "torch", {"num_workers": 2}, opaque=True),
    Contestant("turbojpeg", "turbojpeg", {"num_workers": 2}),
    Contestant(
        "turbojpeg-threads",
        "turbojpeg",
        {"num_workers": 2},
        options=_python_threads,
        decoder="simplejpeg",
    ),
    Contestant("cache-disk", "cache", options=_cache("disk")),
    Contestant("cache-ram", "cache", options=_cache("ram")),
    Contestant("cache-device", "cache", options=_cache("device")),
    Contestant("dali", "dali", {"num_workers": 2}, psnr=45.0),
]
"""Under the names of tests. A backend that is not listed takes part with its own options."""
CONTESTANTS += [
    Contestant(row.name, row.name)
    for row in available_backends()
    if row.name not in {contestant.backend for contestant in CONTESTANTS}
]
if DEVICE.type != "cpu":
    CONTESTANTS.append(
        Contestant("dali-mixed", "dali", {"num_workers": 2}, options=_dali_mixed, psnr=40.0)
    )


def once_in_workers(contestant: Contestant, case: str, chosen: str) -> None:
    """Worker processes run the code of `torch-0`: of a test's cases they have the chosen one, as
    each takes them a quarter of a second of processor time and more. Skips the others."""
    if contestant.opaque and contestant.name != "torch-0" and case != chosen:
        pytest.skip("the same code as torch-0, in other processes")


def contestants(*names: str, remote: bool = False) -> Any:
    """A parametrisation over all backends, or over those named; one that is not installed skips
    with the command. `remote`: of a store, for which worker processes come from a fork server, as
    that takes 9 s of processor time to start; `make test` has one backend of each kind of those."""
    chosen = [c for c in CONTESTANTS if not names or c.name in names or c.backend in names]
    params = []
    for contestant in chosen:
        marks = [pytest.mark.skip(reason=contestant.absent)] if contestant.absent else []
        if remote and contestant.name not in ("torch-0", "turbojpeg", "cache-disk"):
            marks.append(pytest.mark.whole)
        if remote and contestant.backend == "torch" and contestant.arguments.get("num_workers"):
            contestant = replace(contestant, served=True)
        params.append(pytest.param(contestant, id=contestant.name, marks=marks))
    return pytest.mark.parametrize("contestant", params)
