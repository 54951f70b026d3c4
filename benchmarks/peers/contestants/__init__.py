"""Who takes part: one row a contestant. A new peer is one file beside this one and one row here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CONTESTANTS",
    "DALI",
    "FASTLOAD_CACHE",
    "FASTLOAD_CACHE_SMALL",
    "FASTLOAD_TORCH",
    "FASTLOAD_TURBOJPEG",
    "FFCV_JPEG",
    "FFCV_RAW",
    "FFCV_RAW_LONG",
    "FFCV_SMALL",
    "LIMIT",
    "LIMIT_FILES",
    "PILLOW",
    "PILLOW_SMALL",
    "TORCHVISION",
    "Row",
]

Task = Literal["photographs", "small images"]


@dataclass(frozen=True)
class Row:
    """One contestant in one task; a row of the table."""

    contestant: str
    task: Task
    opener: str
    """`module:function` in this package, which takes a Setting. Empty: not Python, see `limit.py`."""
    environment: Literal["fastload", "ffcv"] = "fastload"


PILLOW = Row("DataLoader, Pillow", "photographs", "dataloader:pillow")
TORCHVISION = Row("DataLoader, torchvision decoder", "photographs", "dataloader:torchvision_decoder")
DALI = Row("DALI, CPU", "photographs", "dali:photographs")
FFCV_JPEG = Row("FFCV, JPEG q90", "photographs", "ffcv:jpeg", "ffcv")
FFCV_RAW = Row("FFCV, raw, short side 256", "photographs", "ffcv:raw_short", "ffcv")
FFCV_RAW_LONG = Row("FFCV, raw, long side 256", "photographs", "ffcv:raw_long", "ffcv")
FASTLOAD_TORCH = Row("fastload torch", "photographs", "ours:torch_workers")
FASTLOAD_TURBOJPEG = Row("fastload turbojpeg", "photographs", "ours:turbojpeg")
FASTLOAD_CACHE = Row("fastload cache, short side 256", "photographs", "ours:cache")
LIMIT = Row("limit: region decode alone", "photographs", "")
LIMIT_FILES = Row("limit: reading and region decode", "photographs", "")

PILLOW_SMALL = Row("DataLoader, Pillow", "small images", "dataloader:pillow_small")
FFCV_SMALL = Row("FFCV", "small images", "ffcv:small", "ffcv")
FASTLOAD_CACHE_SMALL = Row("fastload cache", "small images", "ours:cache_small")

CONTESTANTS: tuple[Row, ...] = (
    *(PILLOW, TORCHVISION, DALI, FFCV_JPEG, FFCV_RAW, FFCV_RAW_LONG),
    *(FASTLOAD_TORCH, FASTLOAD_TURBOJPEG, FASTLOAD_CACHE, LIMIT, LIMIT_FILES),
    *(PILLOW_SMALL, FFCV_SMALL, FASTLOAD_CACHE_SMALL),
)
