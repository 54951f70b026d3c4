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

    `weights` are a tag of timm's, such as "a1_in1k" for resnet50, or "DEFAULT" for the first one that it lists.
    """
    timm: Any = import_library("timm", "timm")
    name = request.name
    if not timm.is_model(name):
        raise unknown(f"model 'timm:{name}'", name, timm.list_models())
    if request.weights is not None:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(name)]
        if not tags:
            raise ConfigurationError(f"weights: timm has none for {name}; leave them out.")
        if request.weights != "DEFAULT":
            if request.weights not in tags:
                raise unknown(f"weights of timm:{name}: {request.weights!r}", request.weights, tags)
            name = f"{name}.{request.weights}"
    options: dict[str, Any] = {}
    if timm.get_pretrained_cfg(name, allow_unregistered=True).fixed_input_size:
        options["img_size"] = request.image_size  # of its position embeddings
    model: nn.Module = timm.create_model(
        name,
        pretrained=request.weights is not None,
        num_classes=request.num_classes,
        in_chans=request.in_channels,
        **options,
    )
    return model
