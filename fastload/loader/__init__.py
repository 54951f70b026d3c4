"""The Loader: what it is to be (config), how it is put together (build), where it stands (cursor),
how it runs."""

from __future__ import annotations

from fastload.loader.build import LoaderParts
from fastload.loader.config import CollateColumns, LoaderConfig
from fastload.loader.iterator import Stats
from fastload.loader.loader import Loader, create_loader

__all__ = ["CollateColumns", "Loader", "LoaderConfig", "LoaderParts", "Stats", "create_loader"]
