"""The backends, by name; `base` has what one is, and which there are."""

from fastload.backends.base import (
    ENTRY_POINT_GROUP,
    BackendOptions,
    BackendStatus,
    available_backends,
    backend_by_rule,
    backend_class,
)

__all__ = [
    "ENTRY_POINT_GROUP",
    "BackendOptions",
    "BackendStatus",
    "available_backends",
    "backend_by_rule",
    "backend_class",
]
