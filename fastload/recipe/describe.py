"""Names of transforms for people, messages and fingerprints."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastload.recipe.ops import Op, Opaque

__all__ = ["describe", "qualified_name"]


def describe(op: Op) -> str:
    """The operation as one would write it: its first field, and what differs from the defaults."""
    if isinstance(op, Opaque):
        return qualified_name(op.transform)
    shown = []
    for position, field in enumerate(dataclasses.fields(op)):
        value = getattr(op, field.name)
        if value != field.default or (position == 0 and value is not None):
            shown.append(f"{field.name}={value!r}")
    return f"{type(op).__name__}({', '.join(shown)})"


def qualified_name(transform: Any) -> str:
    """Module and name of a function, or of the class of an object: the same in every process."""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"
