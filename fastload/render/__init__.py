"""Pixels to pixels: crop, resize, cut, pad, flip."""

from __future__ import annotations

from fastload.render.host import render_into
from fastload.render.jpeg import decode_jpeg

__all__ = ["decode_jpeg", "render_into"]
