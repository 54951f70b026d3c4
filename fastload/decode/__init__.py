"""Compressed images to pixels: several decoders behind one contract, and one place for all that is not decoding."""

from __future__ import annotations

from fastload.decode.base import Decoder, DecodeSettings, ImageHeader
from fastload.decode.header import read_header
from fastload.decode.image import decode_image
from fastload.decode.registry import (
    DecoderInfo,
    available_decoders,
    decoder_names,
    get_decoder,
    register_decoder,
)

__all__ = [
    "DecodeSettings",
    "Decoder",
    "DecoderInfo",
    "ImageHeader",
    "available_decoders",
    "decode_image",
    "decoder_names",
    "get_decoder",
    "read_header",
    "register_decoder",
]
