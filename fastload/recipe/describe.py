"""Names of transforms for people, messages and fingerprints."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastload.recipe.ops import Op, Opaque

__all__ = ["describe", "qualified_name"]


def describe(op: Op) -> str:
    """The operation as one would write it, without what is default."""
    if isinstance(op, Opaque):
        return qualified_name(op.transform)
    changed = (
        f"{field.name}={getattr(op, field.name)!r}"
        for field in dataclasses.fields(op)
        if getattr(op, field.name) != field.default
    )
    return f"{type(op).__name__}({', '.join(changed)})"


def qualified_name(transform: Any) -> str:
    """Module and name of a function, or of the class of an object: the same in every process."""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"
