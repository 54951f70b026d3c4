"""What the doctor finds: one fact, whether it is in order, and what to do if it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "Status"]

Status = Literal["ok", "note", "warning", "broken"]
"""`note`: something is absent that one can do without. `warning`: it costs speed or will fail later. `broken`: fastload
does not work like this."""


@dataclass(frozen=True)
class Finding:
    """One line of `fastload doctor`."""

    group: str
    """Heading under which it is listed."""
    name: str
    value: str
    status: Status = "ok"
    advice: str = ""
    """What to do; empty when all is well."""
