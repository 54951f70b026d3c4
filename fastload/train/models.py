"""Networks by name, LIBRARY:NAME. A library is imported when a name asks for it, and downloads
nothing unless asked to.

A new library is a function beside `_torchvision`, and a line in `LIBRARIES`.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from fastload.distribution import install_command
from fastload.errors import (
    BackendUnavailableError,
    ConfigurationError,
    FastloadError,
    counted,
    did_you_mean,
)
from fastload.files import check_regular
from fastload.train.config import ModelConfig

logger = logging.getLogger("fastload")

Options = dict[str, Any]
"""Further arguments of the function of a library."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a network takes and gives."""

    task: str
    num_classes: int
    """Outputs; of a masked language model, the size of its vocabulary."""
    in_channels: int
    """Of the images; 1 for text."""
    image_size: tuple[int, int]
    """(height, width) [pixels]; for networks whose layers depend on it. Of detection: shorter side,
    and the most that the longer may be, which the network resizes to; of SSD, which resizes to one
    size, that one."""
    vocabulary: int | None = None
    """Token ids that there are, for text classification."""
    resized: bool = False
    """Of detection: whether training images have the size that they are to have already."""
    normalised: bool = True
    """Of detection: whether images come normalised; else the network does it, as torchvision has
    it."""


def create_model(config: ModelConfig, shape: Shape) -> nn.Module:
    """A network, on the CPU, in float32, drawn from torch's global generator (or with the weights
    asked for).

    It maps images (B, C, H, W) to logits (B, K), for segmentation (B, K, H, W) or, of torchvision,
    a dict of such; token ids (B, L) to logits (B, L, K) for a masked language model, (B, K) for
    text classification. A detector takes lists, as those of torchvision do, of normalised images.
    """
    library, _, name = config.model.partition(":")
    what = f"model {config.model!r}"
    if library not in LIBRARIES:
        near = did_you_mean(library, LIBRARIES)
        raise ConfigurationError(
            f"{what}: no library {library!r} is known; there are {', '.join(LIBRARIES)}.{near}"
        )
    tasks, build = LIBRARIES[library]
    if shape.task not in tasks:
        fitting = ", ".join(
            f"{other}:" for other, (fits, _) in LIBRARIES.items() if shape.task in fits
        )
        raise ConfigurationError(
            f"{what}: is for {', '.join(tasks)}, not for {shape.task}; take one of {fitting}"
        )
    options = _options(config.model_option)
    try:
        network: nn.Module = build(name, config.weights, options, shape)
    except FastloadError:
        raise
    except TypeError as error:
        if not options:
            raise
        raise ConfigurationError(
            f"model_option {', '.join(config.model_option)}: {config.model} does not take them: "
            f"{error}."
        ) from error
    except Exception as error:
        if config.weights is None or not _is_of_the_network(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigurationError(
            f"weights {config.weights!r}: those of {config.model} cannot be downloaded here "
            f"({reason}). Run once where there is a network and copy what was downloaded (the "
            "folders TORCH_HOME, by default ~/.cache/torch, and HF_HOME, by default "
            "~/.cache/huggingface), or leave --weights out."
        ) from error
    return network


def _options(texts: Iterable[str]) -> Options:
    """NAME=VALUE, the value as in JSON (true, 0.1, null) or else a word."""
    options: Options = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value:
            raise ConfigurationError(
                f"model_option {text!r}: must be NAME=VALUE, such as zero_init_residual=true."
            )
        try:
            options[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            options[name] = value
    return options


def import_library(module: str, *, extra: str = "train") -> Any:
    """A module of an optional package, which `extra` brings. Raises BackendUnavailableError with
    the command that installs it."""
    name = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != name:
            raise  # it is there, and something that it needs is not
        package = name.replace("_", "-")
        raise BackendUnavailableError(
            f"{package} is not installed, which this job needs: {install_command(extra)} (or: "
            f"pip install {package})."
        ) from None


def _unknown(what: str, name: str, names: Iterable[str]) -> ConfigurationError:
    """The error of a name that a library does not have."""
    names = list(names)
    few = f" There are {', '.join(names)}." if len(names) <= 12 else ""
    return ConfigurationError(f"{what}: no such name.{did_you_mean(name, names) or few}")


# -- Libraries -------------------------------------------------------------------------------------


def _is_of_the_network(error: BaseException) -> bool:
    """Whether a download failed: an OSError (urllib, requests, Hugging Face's), or httpx's, which
    is none."""
    httpx = sys.modules.get("httpx")
    return isinstance(error, OSError) or (httpx is not None and isinstance(error, httpx.HTTPError))


def _torchvision(name: str, weights: str | None, options: Options, shape: Shape) -> Any:
    names = _names_of_torchvision(shape.task)
    if name not in names:
        raise _unknown(f"model 'torchvision:{name}'", name, names)
    if shape.task != "classification":
        return _with_encoder(name, weights, options, shape)
    # With two more outputs while training, for losses of their own.
    if name in (
        "googlenet",
        "inception_v3",
    ):
        options |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_"):
        height, width = shape.image_size
        if height != width:
            raise ConfigurationError(
                f"image_size: torchvision:{name} takes squares, got {height}x{width}."
            )
        options |= {"image_size": height}
    model: Any = torchvision.models.get_model(name, num_classes=shape.num_classes, **options)
    if shape.in_channels != 3:
        _take_channels(model, shape.in_channels)
    if weights is not None:
        _load_torchvision(model, name, weights)
    return model


def _names_of_torchvision(task: str) -> list[str]:
    """Its networks for a task. Of detectors those that find boxes."""
    models = torchvision.models
    if task == "segmentation":
        return models.list_models(module=models.segmentation)  # type: ignore[no-any-return]
    if task == "detection":
        families = ("fasterrcnn_", "fcos_", "retinanet_", "ssd")
        return [
            name
            for name in models.list_models(module=models.detection)
            if name.startswith(families)
        ]
    return models.list_models(module=models)  # type: ignore[no-any-return]


def _with_encoder(name: str, weights: str | None, options: Options, shape: Shape) -> Any:
    """A network for segmentation, or a detector: `weights` "imagenet" are those of its encoder, as
    torchvision chooses them; others are of the whole.

    Detectors have an output for the background, too. With weights the batch normalisations of their
    encoders are fixed, as torchvision has it; with "imagenet" its first layers, too. SSD's are
    trained.
    """
    detects = shape.task == "detection"
    given: Options = {"num_classes": shape.num_classes}
    if detects:
        given = _of_detector(name, shape)
    if weights != "imagenet":
        given["weights_backbone"] = None  # or else some are downloaded
    model: Any = torchvision.models.get_model(name, weights=None, **{**given, **options})
    if shape.in_channels != 3:
        _take_channels(model, shape.in_channels)
    if weights not in (None, "imagenet"):
        if detects and not name.endswith("_v2") and name not in _OF_ONE_SIZE:
            _fix_batchnorm(model.backbone)
        _load_torchvision(model, name, weights)
    return model


_OF_ONE_SIZE = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}
"""Detectors whose images are squares of this side [pixels]."""


def _of_detector(name: str, shape: Shape) -> Options:
    """What torchvision's function of a detector is given."""
    if shape.in_channels != 3:
        raise ConfigurationError(
            f"model torchvision:{name}: takes images of 3 channels, got {shape.in_channels}."
        )
    given: Options = {"num_classes": shape.num_classes + 1}
    if shape.normalised:
        given |= {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    shorter, longer = shape.image_size
    side = _OF_ONE_SIZE.get(name)
    if side is not None:
        if (shorter, longer) != (side, side):
            raise ConfigurationError(
                f"image_size: torchvision:{name} resizes images to {side} x {side}; give "
                f"--image-size {side},{side}, got {shorter},{longer}."
            )
        return given  # it resizes what is of another size, so that nothing is to be left out
    if longer < shorter:
        raise ConfigurationError(
            f"image_size: of detection it is the shorter side and the most that the longer may "
            f"be, such as 800,1333; got {shorter},{longer}."
        )
    return given | {"min_size": shorter, "max_size": longer, "_skip_resize": shape.resized}


def _fix_batchnorm(model: nn.Module) -> None:
    """Statistics, scales and shifts of batch normalisations become constants, under the same
    names."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.BatchNorm2d):
            fixed = FrozenBatchNorm2d(layer.num_features, eps=layer.eps)
            fixed.load_state_dict(layer.state_dict())
            model.set_submodule(name, fixed)


def _take_channels(model: nn.Module, channels: int) -> None:
    """A first convolution for images of other than three channels."""
    name, first = next(
        (name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)
    )
    shape: dict[str, Any] = {
        key: getattr(first, key) for key in ("out_channels", "kernel_size", "stride", "padding")
    }
    replacement = nn.Conv2d(channels, **shape, bias=first.bias is not None)
    nn.init.kaiming_normal_(replacement.weight, mode="fan_out", nonlinearity="relu")
    model.set_submodule(name, replacement)


def _load_torchvision(model: nn.Module, name: str, weights: str) -> None:
    """Take all weights that fit, from a file or downloaded: a head for other classes begins afresh,
    which is said."""
    state = (
        _weights_in(Path(weights).expanduser())
        if weights.endswith((".pt", ".pth"))
        else _downloaded(name, weights)
    )
    own = model.state_dict()
    fitting = {
        key: value for key, value in state.items() if key in own and own[key].shape == value.shape
    }
    if not fitting:
        raise ConfigurationError(
            f"weights {weights!r}: none of them is of torchvision:{name}; give its own."
        )
    model.load_state_dict(fitting, strict=False)
    fresh = sorted(own.keys() - fitting.keys())
    if fresh:
        logger.warning(
            "torchvision:%s: these begin untrained, having another shape: %s", name, fresh
        )


def _downloaded(name: str, weights: str) -> dict[str, torch.Tensor]:
    versions = torchvision.models.get_model_weights(name)
    known = [version.name for version in versions] + ["DEFAULT"]
    if weights not in known:
        raise _unknown(f"weights of torchvision:{name}: {weights!r}", weights, known)
    state: dict[str, torch.Tensor] = versions[weights].get_state_dict(
        progress=False, check_hash=True
    )
    return state


def _weights_in(path: Path) -> dict[str, torch.Tensor]:
    """The weights in a file: a state dict, or, as torchvision's references and this trainer write
    it, one under "model"."""
    try:
        check_regular(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damage shows in any way
        raise ConfigurationError(
            f"weights: {path} cannot be read as a file of weights ({error}); check the path."
        ) from None
    weights = state.get("model", state) if isinstance(state, dict) else None
    if not isinstance(weights, dict) or not all(map(torch.is_tensor, weights.values())):
        raise ConfigurationError(
            f"weights: {path} holds no state dict, alone or under 'model'; give one."
        )
    return weights


def _timm(name: str, weights: str | None, options: Options, shape: Shape) -> Any:
    """`weights` are a tag of timm's, such as "a1_in1k" for resnet50, or "DEFAULT" for the first one
    that it lists."""
    timm = import_library("timm")
    if not timm.is_model(name):
        raise _unknown(f"model 'timm:{name}'", name, timm.list_models())
    if weights is not None:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(name)]
        if not tags:
            raise ConfigurationError(f"weights: timm has none for {name}; leave them out.")
        if weights != "DEFAULT":
            if weights not in tags:
                raise _unknown(f"weights of timm:{name}: {weights!r}", weights, tags)
            name = f"{name}.{weights}"
    if timm.get_pretrained_cfg(name, allow_unregistered=True).fixed_input_size:
        options["img_size"] = shape.image_size  # of its position embeddings
    sizes = {"num_classes": shape.num_classes, "in_chans": shape.in_channels}
    return timm.create_model(name, pretrained=weights is not None, **sizes, **options)


def _smp(name: str, weights: str | None, options: Options, shape: Shape) -> Any:
    """`weights` are those of the encoder: "imagenet"."""
    smp = import_library("segmentation_models_pytorch")
    architecture, _, encoder = name.partition("/")
    architectures = {name: cls.__name__ for name, cls in smp.MODEL_ARCHITECTURES_MAPPING.items()}
    what = f"model 'smp:{name}'"
    if architecture.lower() not in architectures:
        raise _unknown(what, architecture, architectures.values())
    if not encoder:
        raise ConfigurationError(
            f"{what}: needs an encoder as well, such as smp:{architecture}/resnet34."
        )
    # Those of timm, "tu-", are too many to list, and smp's own error names them.
    if not encoder.startswith("tu-") and encoder not in smp.encoders.get_encoder_names():
        raise _unknown(what, encoder, smp.encoders.get_encoder_names())
    given = {
        "encoder_weights": weights,
        "in_channels": shape.in_channels,
        "classes": shape.num_classes,
    }
    try:
        model = smp.create_model(architecture.lower(), encoder_name=encoder, **given, **options)
    except (KeyError, ValueError) as error:
        raise ConfigurationError(f"{what}: {error}") from error
    stride = model.encoder.output_stride if model.requires_divisible_input_shape else 1
    if any(side % stride for side in shape.image_size):
        near = ",".join(str(max(round(side / stride), 1) * stride) for side in shape.image_size)
        raise ConfigurationError(
            f"image_size: {what[6:]} needs sides that are multiples of {stride}, got "
            f"{'x'.join(map(str, shape.image_size))}; take {near}."
        )
    return model


# Layers, and width; a head has 64 of it, an intermediate layer four times as many.
_ROBERTA_SIZES = {
    # Of Liu et al. (2019), RoBERTa; the small ones of Turc et al. (2019), "Well-read students learn
    # better".
    "roberta": (12, 768),
    "roberta-large": (24, 1024),
    "roberta-small": (4, 512),
    "roberta-tiny": (2, 128),
}

# Tokens in a sequence. The position embeddings have two rows more: RoBERTa counts from its padding
# id, 1.
_ROBERTA_LENGTH = 512


def _transformers(name: str, weights: str | None, options: Options, shape: Shape) -> Any:
    """A RoBERTa: for masked-lm with a vocabulary of `num_classes`, for text-classification with so
    many labels.

    `weights` is a name on the Hugging Face hub, or a folder. Options are those of its
    RobertaConfig.
    """
    transformers = import_library("transformers")
    if name not in _ROBERTA_SIZES:
        raise _unknown(f"model 'transformers:{name}'", name, _ROBERTA_SIZES)
    classifies = shape.task == "text-classification"
    cls = (
        transformers.RobertaForSequenceClassification
        if classifies
        else transformers.RobertaForMaskedLM
    )
    vocabulary = shape.vocabulary if classifies else shape.num_classes
    labels = {"num_labels": shape.num_classes} if classifies else {}
    if weights is not None:
        try:
            model = cls.from_pretrained(weights, **labels)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"weights {weights!r}: {error}") from error
        if model.config.vocab_size != vocabulary:
            setting = "tokenizer" if classifies else "num_classes"
            raise ConfigurationError(
                f"{setting}: {weights} has a vocabulary of {model.config.vocab_size}, got "
                f"{vocabulary}."
            )
        return _TokenLogits(model)
    layers, width = _ROBERTA_SIZES[name]
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
        **options,
    )
    return _TokenLogits(cls(config))


class _TokenLogits(nn.Module):
    """From token ids (B, L) to logits, (B, L, K) or (B, K); padding, id 1, is not attended to."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] > _ROBERTA_LENGTH:
            raise ConfigurationError(
                f"data: sequences of {counted(input_ids.shape[1], 'token')}, but RoBERTa takes "
                f"{_ROBERTA_LENGTH}; cut the rows."
            )
        padding = self.network.config.pad_token_id
        logits: torch.Tensor = self.network(
            input_ids=input_ids, attention_mask=input_ids.ne(padding)
        ).logits
        return logits


# -- fastload: networks for small images that the libraries do not have ----------------------------


def _own(name: str, weights: str | None, options: Options, shape: Shape) -> nn.Module:
    """One of mlp, small, vgg19 and pyramidnet-DEPTH-ALPHA."""
    if weights is not None:
        raise ConfigurationError(f"weights: there are none for fastload:{name}; leave them out.")
    if options:
        raise TypeError("networks of fastload have no options")
    channels, classes = shape.in_channels, shape.num_classes
    pyramid = re.fullmatch(r"pyramidnet-(\d+)-(\d+)", name)
    if pyramid:
        return PyramidNet(
            int(pyramid[1]), int(pyramid[2]), num_classes=classes, in_channels=channels
        )
    match name:
        case "mlp":
            return mlp(channels, classes, shape.image_size)
        case "small":
            return convolutional(channels, classes, (32, 2), (64, 2), (128, 2))
        case "vgg19":
            return convolutional(channels, classes, (64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
    names = ("mlp", "small", "vgg19", "pyramidnet-110-48")
    raise _unknown(f"model 'fastload:{name}'", name, names)


def mlp(in_channels: int, num_classes: int, image_size: tuple[int, int]) -> nn.Module:
    """Two hidden layers of 512, as in PyTorch's quickstart tutorial."""
    pixels = in_channels * math.prod(image_size)
    hidden = [nn.Linear(pixels, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, num_classes))


def convolutional(in_channels: int, num_classes: int, *stages: tuple[int, int]) -> nn.Module:
    """Stages of (channels, number of convolutions), each halving the image, and a linear layer on
    the mean.

    Those of `vgg19` are VGG-19's (Simonyan and Zisserman, 2015, column E), with batch
    normalisation, and one linear layer in place of its three. `small` has 0.3 million weights, for
    trying things out on 32x32 pixels.
    """
    layers: list[nn.Module] = []
    before = in_channels
    for channels, number in stages:
        for _ in range(number):
            convolution = nn.Conv2d(before, channels, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes)
    )


class PyramidNet(nn.Module):
    """A residual network that widens a little at every block, by `alpha` channels in all, for small
    images.

    Han, Kim and Kim, "Deep pyramidal residual networks" (CVPR 2017, arXiv:1610.02915): the additive
    form with basic blocks (figure 6d: normalisation first and last, one ReLU) and shortcuts padded
    with zeros.
    """

    def __init__(self, depth: int, alpha: int, *, num_classes: int, in_channels: int = 3) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 2, 6)  # of each of three stages
        if blocks < 1 or rest:
            raise ConfigurationError(
                f"depth of a PyramidNet: must be 6n + 2, such as 110, got {depth}."
            )
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        )
        total = 3 * blocks
        # Exact thirds and the like are rounded block by block, so that their sum is alpha.
        widths = [16 + math.floor(alpha * k / total + 0.5) for k in range(total + 1)]
        self.blocks = nn.Sequential(
            *(
                _Block(widths[k], widths[k + 1], stride=2 if k and k % blocks == 0 else 1)
                for k in range(total)
            )
        )
        last = [
            nn.BatchNorm2d(widths[-1]),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ]
        self.head = nn.Sequential(*last, nn.Linear(widths[-1], num_classes))
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


# By library, the tasks that its networks can be trained for, and what makes them.
LIBRARIES: Mapping[
    str, tuple[tuple[str, ...], Callable[[str, str | None, Options, Shape], Any]]
] = {
    "torchvision": (("classification", "segmentation", "detection"), _torchvision),
    "timm": (("classification",), _timm),
    "smp": (("segmentation",), _smp),
    "transformers": (("masked-lm", "text-classification"), _transformers),
    "fastload": (("classification",), _own),
}
