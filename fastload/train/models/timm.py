"""Classifiers of timm: `timm:convnext_tiny`."""

from __future__ import annotations

from typing import Any

from torch import nn

from fastload.errors import ConfigurationError
from fastload.train.models.request import ModelRequest, import_library, unknown

__all__ = ["TASKS", "build"]

TASKS = ("classification",)


def build(request: ModelRequest) -> nn.Module:
    """A network with as many outputs and input channels as asked.

    The name may have a tag, `resnet50.a1_in1k`; with any `weights` those of the tag are downloaded, and "DEFAULT" are
    those of the name as it is.
    """
    timm: Any = import_library("timm", "timm")
    name, _, tag = request.name.partition(".")
    if not timm.is_model(name):
        raise unknown(f"model 'timm:{request.name}'", name, timm.list_models())
    if request.weights not in (None, "DEFAULT"):
        tag = request.weights
    tags = timm.list_pretrained(name) if request.weights is not None or tag else []
    full = f"{name}.{tag}" if tag else name
    if tag and full not in tags:
        raise unknown(f"weights of timm:{name}: {tag!r}", full, tags)
    if request.weights is not None and not tags:
        raise ConfigurationError(f"weights: timm has none for {name}; leave them out.")
    options: dict[str, Any] = {}
    settings = timm.get_pretrained_cfg(full, allow_unregistered=True)
    if settings is not None and settings.fixed_input_size:
        options["img_size"] = request.image_size  # of its position embeddings
    model: nn.Module = timm.create_model(
        full,
        pretrained=request.weights is not None,
        num_classes=request.num_classes,
        in_chans=request.in_channels,
        **options,
    )
    return model
