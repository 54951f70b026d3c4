"""Compressed images to pixels: several decoders with one contract, and one place for all that is
not decoding."""

from __future__ import annotations

from fastload.decode.libraries import (
    Decoder,
    DecoderInfo,
    available_decoders,
    decoder_names,
    get_decoder,
    register_decoder,
)
from fastload.files import DecodeSettings

__all__ = [
    "DecodeSettings",
    "Decoder",
    "DecoderInfo",
    "available_decoders",
    "decoder_names",
    "get_decoder",
    "register_decoder",
]
