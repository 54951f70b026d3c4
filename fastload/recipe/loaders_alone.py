"""Refuses transforms that only a loader can do where a transform runs on single samples."""

from __future__ import annotations

from typing import Any

from torch import nn

from fastload.errors import ConfigurationError
from fastload.recipe.transforms import ForLoaders


def refuse_in_python(transform: Any, reasons: tuple[str, ...]) -> None:
    """Refuse those within a transform that runs as it is written, on single samples.

    Args:
        reasons: why it does.

    Raises:
        ConfigurationError: there is one.
    """
    parts, seen = [transform], set[int]()
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, ForLoaders):
            raise ConfigurationError(
                f"transform: {type(part).__name__} {part.works_on}, but the transform runs as it "
                f"is written, in Python and one sample at a time: {'; '.join(reasons)}. Leave out "
                "one of the two."
            )
        inner = getattr(part, "transforms", ())
        inner = [*inner.values()] if isinstance(inner, dict | nn.ModuleDict) else inner
        parts += inner if isinstance(inner, list | tuple | nn.ModuleList) else ()
