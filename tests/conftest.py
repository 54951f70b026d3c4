"""Set-up that every test shares.

The contract suite runs on another device with FASTLOAD_TEST_DEVICE=cuda. Nothing here is imported
before it is used: the process that hands out tests to others (`-n 2`) runs none, and needs no torch
(7 s of processor time).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.objectserver import ObjectServer

# Triton looks when it is first imported. Nothing runs in its interpreter unless
# FASTLOAD_FUSED=triton asks for it.
DEVICE = os.environ.get("FASTLOAD_TEST_DEVICE", "cpu")
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")


SLOW_WHERE_ALL_BACKENDS_ARE_TRIED = re.compile(
    r"test_breaking_off_fifty_times_leaks_nothing|\[(.*-)?"
    r"(torch-[1-9]|turbojpeg-threads|cache-disk|cache-ram|cache-device|dali)(-.*)?\]$"
)
"""Marked here, since the file of the contract stays as it is: of tests that try all backends, `make
test-fast` has those of torch without worker processes, which runs transforms as they are, and of
turbojpeg, which runs our own; what breaks for one of the others alone, `make test` finds."""

WHOLE_WHERE_ALL_BACKENDS_ARE_TRIED = re.compile(
    r"\[(.*-)?(torch-[1-9]|turbojpeg-threads|cache-ram)(-.*)?\]$"
)
"""That these do what the other ways of their backend do is tested by the contract; elsewhere `make
test` has those that run in this process, with the core, from disk and on the device."""

WHOLE_IN_THE_CONTRACT = re.compile(
    r"test_(resume_twice_in_a_row|opaque_transforms_run|resume_at_another_world_size|evaluation_"
    r"counts|ranks_share_the_same|two_loaders_at_once|samples_of_several_images|length_is_stable|"
    r"a_collate_function_runs|batches_come_in_the_dtype).*\[(.*-)?torch-[1-9]\]$"
)
"""Of worker processes, what takes half a second and more."""

WHOLE = 1500
"""How long a whole run of a tool, or a test of faults, may take [seconds]. On one core with 12
others that want it, the command of the GPU benchmark took more than the five minutes that a test
has."""


def pytest_configure() -> None:
    # A shell without job control starts what it puts in the background with Ctrl-C ignored, and so
    # would be all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What packages and test files define is not looked through by the garbage collector: a full
    collection, as tests of leaks ask for, takes some 10 ms instead of 200."""
    gc.disable()
    several = hasattr(session.config, "workerinput") or session.config.getoption("forks", 0)
    if several:  # all tests are run
        # Where Trio is installed, importing it looks through all objects that there are, twice: 2 s
        # of processor time once torch is imported.
        with contextlib.suppress(ImportError):
            import hypothesis  # noqa: F401
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        # What the interpreter ends with is released; else nanobind calls it a leak. Not before:
        # pytest collects five times at its end.
        atexit.register(gc.unfreeze)
        gc.enable()


SYNC = os.fsync


def pytest_runtest_setup(item: pytest.Item) -> None:
    # No test cuts the power: nothing is gained by waiting until files are on the disk.
    faults = item.get_closest_marker("reliability") is not None
    os.fsync = SYNC if faults else _not_waited_for


def _not_waited_for(descriptor: int) -> None:
    os.fstat(descriptor)  # fails as `fsync` does on a file that is closed


def pytest_report_header() -> str:
    return f"contract suite on: {DEVICE}"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    # The data of tests are small, and other tests run beside them: torch's threads would wait for
    # each other in a loop that takes a core each (10 times the processor time on 2 cores).
    torch.set_num_threads(1)
    for item in items:
        if SLOW_WHERE_ALL_BACKENDS_ARE_TRIED.search(item.name):
            item.add_marker(pytest.mark.slow)
        contract = item.path.name == "test_contract.py"
        if (WHOLE_IN_THE_CONTRACT if contract else WHOLE_WHERE_ALL_BACKENDS_ARE_TRIED).search(
            item.name
        ):
            item.add_marker(pytest.mark.whole)
        long = item.get_closest_marker("whole") or item.get_closest_marker("reliability")
        if long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(WHOLE))
    # Fast ones first; else as they were.
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; torch sees none here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of fastload's caches and indexes, empty, for this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    return tmp_path / "cache-home" / "fastload"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Iterator[ObjectServer]:
    """An S3 and web server on loopback; `s3://` URLs are read from there."""
    pytest.importorskip("obstore", reason="obstore, of the extra `remote`, is not installed")
    from fastload import stores
    from fastload.stores import base
    from tests.objectserver import object_server

    monkeypatch.setattr(base, "_FIRST_WAIT", 0.001)
    with object_server() as started:
        monkeypatch.setenv("AWS_ENDPOINT_URL", started.url)
        for name, value in {
            "ALLOW_HTTP": "true",
            "SKIP_SIGNATURE": "true",
            "REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        stores.forget()
        yield started
        stores.forget()
