"""Pixels to pixels: crop, resize, cut, pad, flip."""

from __future__ import annotations

from fastload.render.image import render_into

__all__ = ["render_into"]
