"""What a part has found so far, on disk at every moment: a part that is killed leaves what it had."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["Found"]


class Found:
    """A dictionary of plain values that is written with every change."""

    def __init__(self, path: Path | None, seconds: float) -> None:
        """
        Args:
            path: the JSON file. None: nothing is written.
            seconds: that the part may take.
        """
        self.values: dict[str, Any] = {}
        self._path = path
        self._deadline = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Time that the part has left [seconds]."""
        return self._deadline - time.monotonic()

    def save(self, name: str, value: Any) -> None:
        """Add or replace one value."""
        self.values[name] = value
        if self._path is not None:
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(self.values))
            os.replace(part, self._path)

    def append(self, name: str, value: Any) -> None:
        """Add one value to a list."""
        self.save(name, [*self.values.get(name, []), value])

    def note(self, text: str) -> None:
        """What a reader must know about the figures."""
        self.append("notes", text)
