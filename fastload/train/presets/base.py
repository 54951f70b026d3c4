"""What a preset says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Preset"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A job: its settings, and how to run it on the real data."""

    name: str
    about: str
    """What is trained on what, and whose recipe it is."""
    data: str
    """Where the data come from, and in which form they are to lie on the disk."""
    command: str
    """The whole job, as one would type it."""
    settings: Mapping[str, Any]
    """By field name; what is not here is as `TrainConfig` has it."""
