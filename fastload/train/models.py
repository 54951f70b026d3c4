"""Networks by name, LIBRARY:NAME. A library is imported when a name asks for it, and downloads nothing unless told to.

A new library is a function from a `ModelRequest` to a module, and a line in `LIBRARIES`.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from fastload.errors import BackendUnavailableError, ConfigurationError, counted
from fastload.train.config import ModelConfig
from fastload.train.settings import did_you_mean

logger = logging.getLogger("fastload")


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One network."""

    name: str
    """Without the library."""
    weights: str | None
    """Pretrained weights to download; None: none."""
    options: Mapping[str, Any]
    """What else the library's function takes."""
    task: str
    num_classes: int
    in_channels: int
    image_size: tuple[int, int]
    """(height, width) [pixels]."""
    vocabulary: int | None
    """Token ids that there are; None for images."""


def create_model(
    config: ModelConfig,
    *,
    task: str,
    num_classes: int,
    in_channels: int,
    image_size: tuple[int, int],
    vocabulary: int | None = None,
) -> nn.Module:
    """A network, on the CPU, in float32, drawn from torch's global generator (or with the weights asked for).

    Args:
        config: `model` names it, `weights` its weights; the rest is the trainer's.
        task: "classification", "segmentation", "masked-lm" or "text-classification".
        num_classes: outputs; of a masked language model, the size of its vocabulary.
        in_channels: of the images.
        image_size: (height, width) [pixels]; for networks whose layers depend on it.
        vocabulary: token ids that there are, for text classification.

    Returns:
        A module from images (B, C, H, W) to logits (B, K); for segmentation (B, K, H, W); from token ids (B, L) to
        logits (B, L, K) for a masked language model, (B, K) for text classification.

    Raises:
        ConfigurationError: no such library, network or weights, or it is not one for this task or size.
        BackendUnavailableError: the library is not installed.
    """
    library, _, name = config.model.partition(":")
    what = f"model {config.model!r}"
    if library not in LIBRARIES:
        raise ConfigurationError(
            f"{what}: no library {library!r} is known{did_you_mean(library, LIBRARIES)}; there are "
            f"{', '.join(LIBRARIES)}."
        )
    tasks, build = LIBRARIES[library]
    if task not in tasks:
        fitting = ", ".join(f"{other}:" for other, (fits, _) in LIBRARIES.items() if task in fits)
        raise ConfigurationError(f"{what}: is for {', '.join(tasks)}, not for {task}; take one of {fitting}")
    request = ModelRequest(
        name=name,
        weights=config.weights,
        options=_options(config.model_option),
        task=task,
        num_classes=num_classes,
        in_channels=in_channels,
        image_size=image_size,
        vocabulary=vocabulary,
    )
    try:
        return build(request)
    except TypeError as error:
        if not request.options:
            raise
        raise ConfigurationError(
            f"model_option {', '.join(config.model_option)}: {config.model} does not take them: {error}."
        ) from error


def _options(texts: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE, the value as in JSON (true, 0.1, null) or else a word."""
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value:
            raise ConfigurationError(f"model_option {text!r}: must be NAME=VALUE, such as zero_init_residual=true.")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
    return found


def _import(module: str, package: str) -> ModuleType:
    """An optional package. Raises BackendUnavailableError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != module:
            raise  # it is there, and something that it needs is not
        raise BackendUnavailableError(
            f'{package} is not installed, which has this network: pip install "fastload[train]" (or {package}).'
        ) from None


def _unknown(what: str, name: str, names: Iterable[str]) -> ConfigurationError:
    """The error of a name that a library does not have."""
    names = list(names)
    few = f"; there are {', '.join(names)}" if len(names) <= 12 else ""
    return ConfigurationError(f"{what}: no such name{did_you_mean(name, names) or few}.")


# -- torchvision -------------------------------------------------------------------------------------------------------

_AUXILIARY = ("googlenet", "inception_v3")
"""They return two more outputs while training, for losses of their own."""


def _torchvision(request: ModelRequest) -> nn.Module:
    """A network with as many outputs and input channels as asked. Weights of another shape are left as drawn."""
    names = torchvision.models.list_models(module=torchvision.models)
    if request.name not in names:
        raise _unknown(f"model 'torchvision:{request.name}'", request.name, names)
    options = dict(request.options)
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
        _load_torchvision(model, request)
    return model


def _take_channels(model: nn.Module, channels: int) -> None:
    """A first convolution for images of other than three channels."""
    name, first = next((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d))
    shape: dict[str, Any] = {key: getattr(first, key) for key in ("out_channels", "kernel_size", "stride", "padding")}
    replacement = nn.Conv2d(channels, **shape, bias=first.bias is not None)
    nn.init.kaiming_normal_(replacement.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule(name, replacement)


def _load_torchvision(model: nn.Module, request: ModelRequest) -> None:
    """Download weights, and take all that fit: a head for other classes begins afresh, which is said."""
    assert request.weights is not None
    versions = torchvision.models.get_model_weights(request.name)
    known = [version.name for version in versions] + ["DEFAULT"]
    if request.weights not in known:
        raise _unknown(f"weights of torchvision:{request.name}: {request.weights!r}", request.weights, known)
    state: dict[str, torch.Tensor] = versions[request.weights].get_state_dict(progress=False, check_hash=True)
    own = model.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    model.load_state_dict(fitting, strict=False)
    fresh = sorted(own.keys() - fitting.keys())
    if fresh:
        logger.warning("torchvision:%s: these begin untrained, having another shape: %s", request.name, fresh)


# -- timm --------------------------------------------------------------------------------------------------------------


def _timm(request: ModelRequest) -> nn.Module:
    """A network with as many outputs and input channels as asked.

    `weights` are a tag of timm's, such as "a1_in1k" for resnet50, or "DEFAULT" for the first one that it lists.
    """
    timm: Any = _import("timm", "timm")
    name = request.name
    if not timm.is_model(name):
        raise _unknown(f"model 'timm:{name}'", name, timm.list_models())
    if request.weights is not None:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(name)]
        if not tags:
            raise ConfigurationError(f"weights: timm has none for {name}; leave them out.")
        if request.weights != "DEFAULT":
            if request.weights not in tags:
                raise _unknown(f"weights of timm:{name}: {request.weights!r}", request.weights, tags)
            name = f"{name}.{request.weights}"
    options = dict(request.options)
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


# -- segmentation-models-pytorch ---------------------------------------------------------------------------------------


def _smp(request: ModelRequest) -> nn.Module:
    """A network from images (B, C, H, W) to logits (B, K, H, W). `weights` are those of the encoder: "imagenet"."""
    smp: Any = _import("segmentation_models_pytorch", "segmentation-models-pytorch")
    architecture, _, encoder = request.name.partition("/")
    architectures = {name: kind.__name__ for name, kind in smp.MODEL_ARCHITECTURES_MAPPING.items()}
    what = f"model 'smp:{request.name}'"
    if architecture.lower() not in architectures:
        raise _unknown(what, architecture, architectures.values())
    if not encoder:
        raise ConfigurationError(f"{what}: needs an encoder as well, such as smp:{architecture}/resnet34.")
    # Those of timm, "tu-", are too many to list, and smp's own error names them.
    if not encoder.startswith("tu-") and encoder not in smp.encoders.get_encoder_names():
        raise _unknown(what, encoder, smp.encoders.get_encoder_names())
    try:
        model: Any = smp.create_model(
            architecture.lower(),
            encoder_name=encoder,
            encoder_weights=request.weights,
            in_channels=request.in_channels,
            classes=request.num_classes,
            **request.options,
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


# -- transformers ------------------------------------------------------------------------------------------------------

_ROBERTA_SIZES = {
    # Of Liu et al. (2019), RoBERTa; the small ones of Turc et al. (2019), "Well-read students learn better".
    "roberta": (12, 768),
    "roberta-large": (24, 1024),
    "roberta-small": (4, 512),
    "roberta-tiny": (2, 128),
}
"""Layers, and width; a head has 64 of it, an intermediate layer four times as many."""

_ROBERTA_LENGTH = 512
"""Tokens in a sequence. The position embeddings have two rows more: RoBERTa counts from its padding id, 1."""


def _transformers(request: ModelRequest) -> nn.Module:
    """A RoBERTa: for masked-lm with a vocabulary of `num_classes`, for text-classification with so many labels.

    `weights` is a name on the Hugging Face hub, or a folder. Options are those of its RobertaConfig.
    """
    transformers: Any = _import("transformers", "transformers")
    if request.name not in _ROBERTA_SIZES:
        raise _unknown(f"model 'transformers:{request.name}'", request.name, _ROBERTA_SIZES)
    classifies = request.task == "text-classification"
    kind = transformers.RobertaForSequenceClassification if classifies else transformers.RobertaForMaskedLM
    vocabulary = request.vocabulary if classifies else request.num_classes
    labels = {"num_labels": request.num_classes} if classifies else {}
    if request.weights is not None:
        try:
            model = kind.from_pretrained(request.weights, **labels)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"weights {request.weights!r}: {error}") from error
        if model.config.vocab_size != vocabulary:
            setting = "tokenizer" if classifies else "num_classes"
            raise ConfigurationError(
                f"{setting}: {request.weights} has a vocabulary of {model.config.vocab_size}, got {vocabulary}."
            )
        return _TokenLogits(model)
    layers, width = _ROBERTA_SIZES[request.name]
    config = transformers.RobertaConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=_ROBERTA_LENGTH + 2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        **labels,
        **request.options,
    )
    return _TokenLogits(kind(config))


class _TokenLogits(nn.Module):
    """From token ids (B, L) to logits, (B, L, K) or (B, K); padding, id 1, is not attended to."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > _ROBERTA_LENGTH:
            raise ConfigurationError(
                f"data: sequences of {counted(input_ids.shape[1], 'token')}, but RoBERTa takes {_ROBERTA_LENGTH}; cut "
                "the rows."
            )
        padding = self.network.config.pad_token_id
        logits: torch.Tensor = self.network(input_ids=input_ids, attention_mask=input_ids.ne(padding)).logits
        return logits


# -- fastload: networks for small images that the libraries do not have ------------------------------------------------


def _own(request: ModelRequest) -> nn.Module:
    """One of mlp, small, vgg19 and pyramidnet-DEPTH-ALPHA."""
    if request.weights is not None:
        raise ConfigurationError(f"weights: there are none for fastload:{request.name}; leave them out.")
    if request.options:
        raise TypeError("networks of fastload have no options")
    channels, classes = request.in_channels, request.num_classes
    pyramid = re.fullmatch(r"pyramidnet-(\d+)-(\d+)", request.name)
    if pyramid:
        return PyramidNet(int(pyramid[1]), int(pyramid[2]), num_classes=classes, in_channels=channels)
    match request.name:
        case "mlp":
            return mlp(channels, classes, request.image_size)
        case "small":
            return convolutional(channels, classes, (32, 2), (64, 2), (128, 2))
        case "vgg19":
            return convolutional(channels, classes, (64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
    names = ("mlp", "small", "vgg19", "pyramidnet-110-48")
    raise _unknown(f"model 'fastload:{request.name}'", request.name, names)


def mlp(in_channels: int, num_classes: int, image_size: tuple[int, int]) -> nn.Module:
    """Two hidden layers of 512, as in PyTorch's quickstart tutorial."""
    pixels = in_channels * math.prod(image_size)
    hidden = [nn.Linear(pixels, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, num_classes))


def convolutional(in_channels: int, num_classes: int, *stages: tuple[int, int]) -> nn.Module:
    """Stages of (channels, number of convolutions), each halving the image, and a linear layer on the mean.

    Those of `vgg19` are VGG-19's (Simonyan and Zisserman, 2015, column E), with batch normalisation, and one linear
    layer in place of its three. `small` has 0.3 million weights, for trying things out on 32x32 pixels.
    """
    layers: list[nn.Module] = []
    before = in_channels
    for channels, number in stages:
        for _ in range(number):
            convolution = nn.Conv2d(before, channels, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))


class PyramidNet(nn.Module):
    """A residual network that widens a little at every block, for images of about 32x32 pixels.

    Han, Kim and Kim, "Deep pyramidal residual networks" (CVPR 2017, arXiv:1610.02915): the additive form with basic
    blocks (figure 6d: normalisation first and last, one ReLU) and shortcuts padded with zeros.

    Args:
        depth: layers with weights; 6n + 2.
        alpha: channels added from the first block to the last, evenly.
        num_classes: outputs.
        in_channels: of the images.

    Raises:
        ConfigurationError: a depth that no number of blocks makes up.
    """

    def __init__(self, depth: int, alpha: int, *, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)  # of each of three stages
        if blocks < 1 or rest:
            raise ConfigurationError(f"depth of a PyramidNet: must be 6n + 2, such as 110, got {depth}.")
        self.stem = nn.Sequential(nn.Conv2d(in_channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        total = 3 * blocks
        # Exact thirds and the like are rounded block by block, so that their sum is alpha.
        widths = [16 + math.floor(alpha * k / total + 0.5) for k in range(total + 1)]
        self.blocks = nn.Sequential(
            *(_Block(widths[k], widths[k + 1], stride=2 if k and k % blocks == 0 else 1) for k in range(total))
        )
        self.head = nn.Sequential(
            nn.BatchNorm2d(widths[-1]),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(widths[-1], num_classes),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.stem(images)))
        return logits


class _Block(nn.Module):
    def __init__(self, before: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.AvgPool2d(stride, ceil_mode=True) if stride > 1 else nn.Identity()
        self.added = channels - before

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        residual: torch.Tensor = self.residual(images)
        return residual + F.pad(self.shortcut(images), (0, 0, 0, 0, 0, self.added))


LIBRARIES: Mapping[str, tuple[tuple[str, ...], Callable[[ModelRequest], nn.Module]]] = {
    "torchvision": (("classification",), _torchvision),
    "timm": (("classification",), _timm),
    "smp": (("segmentation",), _smp),
    "transformers": (("masked-lm", "text-classification"), _transformers),
    "fastload": (("classification",), _own),
}
"""By library, the tasks that its networks can be trained for, and what makes them."""
