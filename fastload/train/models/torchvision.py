"""Classifiers of torchvision: `torchvision:resnet50`."""

from __future__ import annotations

import logging

import torch
import torchvision
from torch import nn

from fastload.errors import ConfigurationError
from fastload.train.models.request import ModelRequest, unknown

__all__ = ["TASKS", "build"]

TASKS = ("classification",)

logger = logging.getLogger("fastload")

_AUXILIARY = ("googlenet", "inception_v3")
"""They return two more outputs while training, for losses of their own."""


def build(request: ModelRequest) -> nn.Module:
    """A network with as many outputs and input channels as asked. Weights of another shape are left as drawn."""
    names = torchvision.models.list_models(module=torchvision.models)
    if request.name not in names:
        raise unknown(f"model 'torchvision:{request.name}'", request.name, names)
    options: dict[str, object] = {}
    if request.name in _AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    if request.name.startswith("vit_"):
        height, width = request.image_size
        if height != width:
            raise ConfigurationError(f"image_size: torchvision:{request.name} takes squares, got {height}x{width}.")
        options |= {"image_size": height}
    model: nn.Module = torchvision.models.get_model(request.name, num_classes=request.num_classes, **options)
    if request.in_channels != 3:
        _take_channels(model, request.in_channels)
    if request.weights is not None:
        _load(model, request)
    return model


def _take_channels(model: nn.Module, channels: int) -> None:
    """A first convolution for images of other than three channels."""
    name, first = next((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d))
    parent, _, attribute = name.rpartition(".")
    replacement = nn.Conv2d(
        channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]  # torch keeps them as tuples of any length
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    nn.init.kaiming_normal_(replacement.weight, mode="fan_out", nonlinearity="relu")
    setattr(model.get_submodule(parent), attribute, replacement)


def _load(model: nn.Module, request: ModelRequest) -> None:
    """Download weights, and take all that fit: a head for other classes begins afresh, which is said."""
    assert request.weights is not None
    versions = torchvision.models.get_model_weights(request.name)
    known = [version.name for version in versions] + ["DEFAULT"]
    if request.weights not in known:
        raise unknown(f"weights of torchvision:{request.name}: {request.weights!r}", request.weights, known)
    state: dict[str, torch.Tensor] = versions[request.weights].get_state_dict(progress=False, check_hash=True)
    own = model.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    model.load_state_dict(fitting, strict=False)
    fresh = sorted(own.keys() - fitting.keys())
    if fresh:
        logger.warning("torchvision:%s: these begin untrained, having another shape: %s", request.name, fresh)
