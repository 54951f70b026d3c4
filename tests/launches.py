"""Launches of kernels, noted: of those in CUDA C, which on a CPU the native core runs, and of those
in Triton, which on a CPU its interpreter runs."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

from benchmarks.gpu.interpreter import mend_interpreter
from fastload import native
from fastload.render import by_nvrtc, by_triton, fused
from tests.backends import DEVICE

TRITON = pytest.mark.skipif(
    find_spec("triton") is None
    or (DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs Triton, which comes with torch for CUDA; or TRITON_INTERPRET is set to 0",
)
NATIVE = pytest.mark.skipif(
    DEVICE.type == "cpu" and not native.available(), reason="the native core is not built"
)
WAYS = [
    pytest.param("nvrtc", marks=NATIVE),
    pytest.param("triton", marks=[TRITON, pytest.mark.whole]),
]
"""The parameters of a test of both."""
if DEVICE.type == "cpu" and find_spec("triton") is not None:
    mend_interpreter()


class Launched(list[str]):
    """Names of kernels, as they are in Triton, in order. The passes of `recolour`, of which each is
    a launch in CUDA C, are one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        """From now on; the kernels of this way are switched on."""
        self.way = way
        module: Any = by_nvrtc if way == "nvrtc" else by_triton
        launch = module.launch

        def spy(kernel: Any, *given: Any, **named: Any) -> None:
            if way == "triton":
                self.append(kernel.fn.__name__)
            else:
                self._note(given[0], given[2])
            launch(kernel, *given, **named)

        monkeypatch.setattr(module, "launch", spy)
        monkeypatch.setenv(fused.SWITCH, way)

    def _note(self, name: str, arguments: Any) -> None:
        if name.startswith("recolour"):
            # The first pass is -1 or 0; 0 is the second one after -1.
            goes_on = arguments.pass_ > 0 or (arguments.pass_ == 0 and self._before == -1)
            self._before = arguments.pass_
            if goes_on:
                return
        self.append(name if name == "add_weighted" else name.partition("_")[0])

    _before = 0
