"""Pixels to pixels: crop, resize, cut, pad, flip."""

from __future__ import annotations

from fastload.render.host import decode_jpeg, render_into

__all__ = ["decode_jpeg", "render_into"]
