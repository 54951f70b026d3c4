"""The profile of some steps that was asked for: begun when the first ones are over, told when it is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

from fastload.monitor import profile_steps

__all__ = ["StepProfiler"]


class StepProfiler:
    """Profiles the steps from number `skip` on, `steps` of them; none if `steps` is 0."""

    def __init__(self, device: torch.device, steps: int, *, skip: int, say: Callable[[str], None]) -> None:
        self._device = device
        self._skip = skip
        self._say = say
        self._left = steps
        """Steps of the window that have not ended."""
        self._window: ExitStack | None = None

    def begin_step(self) -> None:
        """A step begins."""
        if self._skip or not self._left or self._window is not None:
            return
        self._window = ExitStack()
        self._profiling = self._window.enter_context(profile_steps(self._device))

    def end_step(self) -> None:
        """A step has ended."""
        if self._skip:
            self._skip -= 1
        elif self._window is not None:
            self._left -= 1
            if not self._left:
                self.close()

    def close(self) -> None:
        """End a window that is open, and tell what was seen."""
        if self._window is not None:
            self._window.close()
            self._window, self._left = None, 0
            self._say(f"profile: {self._profiling.result}")
