"""Segmentation networks of segmentation-models-pytorch: `smp:Unet/resnet34`, architecture and encoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from fastload.errors import ConfigurationError
from fastload.train.models.request import ModelRequest, import_library, unknown

__all__ = ["TASKS", "build"]

TASKS = ("segmentation",)


def build(request: ModelRequest) -> nn.Module:
    """A network from images (B, C, H, W) to logits (B, K, H, W). `weights` are those of the encoder: "imagenet"."""
    smp: Any = import_library("segmentation_models_pytorch", "segmentation-models-pytorch")
    architecture, _, encoder = request.name.partition("/")
    architectures = {name: kind.__name__ for name, kind in smp.MODEL_ARCHITECTURES_MAPPING.items()}
    what = f"model 'smp:{request.name}'"
    if architecture.lower() not in architectures:
        raise unknown(what, architecture, architectures.values())
    if not encoder:
        raise ConfigurationError(f"{what}: needs an encoder as well, such as smp:{architecture}/resnet34.")
    # Those of timm, "tu-", are too many to list, and smp's own error names them.
    if not encoder.startswith("tu-") and encoder not in smp.encoders.get_encoder_names():
        raise unknown(what, encoder, smp.encoders.get_encoder_names())
    try:
        model: Any = smp.create_model(
            architecture.lower(),
            encoder_name=encoder,
            encoder_weights=request.weights,
            in_channels=request.in_channels,
            classes=request.num_classes,
        )
    except (KeyError, ValueError) as error:
        raise ConfigurationError(f"{what}: {error}") from error
    stride = model.encoder.output_stride if model.requires_divisible_input_shape else 1
    if any(side % stride for side in request.image_size):
        height, width = request.image_size
        raise ConfigurationError(
            f"image_size: {what[6:]} needs sides that are multiples of {stride}, got {height}x{width}; take "
            f"{_multiple(height, stride)},{_multiple(width, stride)}."
        )
    network: nn.Module = model
    return network


def _multiple(side: int, of: int) -> int:
    return max(round(side / of), 1) * of
