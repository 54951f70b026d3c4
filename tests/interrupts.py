"""KeyboardInterrupt at a chosen line of chosen files: every place where Ctrl-C may come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


def interrupted_at(step: int, files: Collection[str], call: Callable[[], Any]) -> bool:
    """Call it, and raise KeyboardInterrupt in this thread at the given line or return of these
    files, counted from 0.

    Whether it was interrupted: if not, the call had fewer steps and has ended. A file is named by
    the end of its path.
    """
    endings = tuple(files)
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.endswith(endings):
            return None
        if event in ("line", "return"):
            count += 1
            if count > step:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
