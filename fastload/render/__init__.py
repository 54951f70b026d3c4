"""Pixels to pixels: crop, resize, cut, pad, flip."""
