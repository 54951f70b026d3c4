"""For frameworks in which one changed line is not enough; the others need nothing from here (see
docs/clients.md)."""

from __future__ import annotations

from fastload.compat.torchdata import stateful_dataloader_state
from fastload.compat.transformers import trainer_callback

__all__ = ["stateful_dataloader_state", "trainer_callback"]
