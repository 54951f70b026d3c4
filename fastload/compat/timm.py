"""timm: its collate function for bytes."""

from __future__ import annotations

import sys
from typing import Any


def is_fast_collate(function: Any) -> bool:
    """Whether it is timm's `fast_collate`, which makes uint8 batches for its PrefetchLoader. timm
    is not imported."""
    known = getattr(sys.modules.get("timm.data.loader"), "fast_collate", None)
    return known is not None and function is known
