"""Networks by name: what they return, what they refuse, and that nothing is downloaded or imported
without need."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.train.config import ModelConfig
from fastload.train.models import PyramidNet, Shape, create_model

TASK_OF = {"smp": "segmentation", "transformers": "masked-lm"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("something is being downloaded")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def create(name: str, **changes: Any) -> nn.Module:
    """Skips the test where the library of the network is not installed."""
    try:
        return created(name, **changes)
    except BackendUnavailableError as missing:
        pytest.skip(str(missing))


def created(
    name: str, *, weights: str | None = None, task: str | None = None, **changes: Any
) -> nn.Module:
    torch.manual_seed(0)
    task = task or TASK_OF.get(name.partition(":")[0], "classification")
    shape = {"task": task, "num_classes": 7, "in_channels": 3, "image_size": (64, 64), **changes}
    return create_model(ModelConfig(model=name, weights=weights), Shape(**shape))


def without_gradient(model: nn.Module, output: torch.Tensor) -> list[str]:
    """Weights that the output does not depend on: processes that share gradients would wait for
    theirs."""
    output.sum().backward()
    return [name for name, weight in model.named_parameters() if weight.grad is None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        ("fastload:mlp", 1, (28, 28)),
        ("fastload:small", 3, (32, 32)),
        ("fastload:vgg19", 1, (32, 32)),
        ("fastload:pyramidnet-20-12", 3, (32, 32)),
        ("torchvision:resnet18", 1, (64, 64)),
        ("torchvision:squeezenet1_1", 3, (64, 64)),
        ("torchvision:googlenet", 3, (64, 64)),  # with two more outputs while training, unless set
        ("timm:resnet10t", 1, (64, 64)),
        ("timm:vit_tiny_patch16_224", 3, (32, 48)),  # of a fixed size, unless set
    ],
)
def test_classifiers_take_the_channels_and_size_of_the_data(
    name: str, channels: int, size: tuple[int, int]
) -> None:
    model = create(name, in_channels=channels, image_size=size).train()
    logits = model(torch.randn(2, channels, *size))
    assert logits.shape == (2, 7)
    assert without_gradient(model, logits) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smp:Unet/resnet18", "smp:fpn/mobilenet_v2"])
def test_segmentation_networks_answer_for_every_pixel(name: str) -> None:
    model = create(name, num_classes=1)
    scores = model(torch.randn(2, 3, 64, 96))
    assert scores.shape == (2, 1, 64, 96)
    assert without_gradient(model, scores) == []


def test_vgg19_has_the_convolutions_of_vgg19() -> None:
    ours = [
        layer.weight.shape for layer in create("fastload:vgg19") if isinstance(layer, nn.Conv2d)
    ]  # type: ignore[attr-defined]
    with torch.device("meta"):
        theirs = [
            layer
            for layer in torchvision.models.vgg19_bn().features
            if isinstance(layer, nn.Conv2d)
        ]
    assert ours == [layer.weight.shape for layer in theirs]


@pytest.mark.whole
def test_unet_vgg16_has_the_convolutions_of_vgg16() -> None:
    model: Any = create("smp:Unet/vgg16_bn", num_classes=1)
    convolutions = [layer for layer in model.encoder.modules() if isinstance(layer, nn.Conv2d)]
    with torch.device("meta"):
        theirs = [
            layer
            for layer in torchvision.models.vgg16_bn().features
            if isinstance(layer, nn.Conv2d)
        ]
    assert [layer.weight.shape for layer in convolutions] == [
        layer.weight.shape for layer in theirs
    ]


@pytest.mark.whole
def test_a_token_is_answered_with_scores_for_the_vocabulary_whatever_the_padding() -> None:
    model = create("transformers:roberta-tiny", num_classes=100).eval()
    tokens = torch.randint(4, 100, (2, 12))
    padded = torch.cat([tokens, torch.ones(2, 5, dtype=torch.int64)], dim=1)
    with torch.inference_mode():
        scores, padded_scores = model(tokens), model(padded)
    assert scores.shape == (2, 12, 100)
    torch.testing.assert_close(padded_scores[:, :12], scores, rtol=1e-4, atol=1e-5)
    assert without_gradient(model, model(tokens)) == []
    with pytest.raises(ConfigurationError, match="513 tokens, but RoBERTa takes 512"):
        model(torch.ones(1, 513, dtype=torch.int64))


@pytest.mark.slow
def test_pyramidnet_is_that_of_the_paper() -> None:
    model = PyramidNet(110, 48, num_classes=10)
    # "1.7M", cut off, in table 4.
    assert round(sum(weight.numel() for weight in model.parameters()) / 1e6, 1) == 1.8
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(layers) == 110
    assert layers[-1].in_features == 16 + 48  # type: ignore[union-attr]
    widths = [layer.out_channels for layer in layers[1:-1:2] if isinstance(layer, nn.Conv2d)]
    steps = [after - before for before, after in zip([16, *widths], widths, strict=False)]
    assert set(steps) <= {0, 1}, "evenly: less than one channel a block"
    strides = [layer.stride for layer in layers[1:-1:2] if isinstance(layer, nn.Conv2d)]
    assert [k for k, stride in enumerate(strides) if stride == (2, 2)] == [18, 36]
    with pytest.raises(ConfigurationError, match="must be 6n \\+ 2, such as 110, got 100"):
        create("fastload:pyramidnet-100-48")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("torchvison:resnet50", {}, "no library 'torchvison' is known.*Did you mean torchvision"),
        ("torchvision:resnet51", {}, "no such name. Did you mean resnet"),
        ("torchvision:fcn_resnet50", {}, "no such name. Did you mean "),
        ("torchvision:resnet50", {"task": "segmentation"}, "no such name. Did you mean fcn_resnet"),
        (
            "torchvision:maskrcnn_resnet50_fpn",
            {"task": "detection"},
            "no such name. Did you mean fasterrcnn_resnet50_fpn",
        ),
        (
            "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn",
            {"task": "detection", "image_size": (1333, 800)},
            "such as 800,1333; got 1333,800",
        ),
        (
            "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn",
            {"task": "detection", "in_channels": 1},
            "3 channels, got 1",
        ),
        ("timm:convnext_tinny", {}, "Did you mean .*convnext_tiny"),
        ("smp:Unnet/resnet34", {}, "Did you mean Unet"),
        ("smp:Unet/resnet35", {}, "Did you mean .*resnet34"),
        ("smp:Unet", {}, "needs an encoder as well, such as smp:Unet/resnet34"),
        (
            "smp:Linknet/resnet18",
            {"image_size": (100, 470)},
            "multiples of 32, got 100x470; take 96,480",
        ),
        ("transformers:bert", {}, "Did you mean roberta|There are roberta"),
        ("fastload:vgg16", {}, "Did you mean vgg19"),
        ("fastload:mlp", {"weights": "DEFAULT"}, "there are none for fastload:mlp"),
        ("torchvision:resnet18", {"weights": "IMAGENET1K_V3"}, "Did you mean IMAGENET1K_V1"),
        ("timm:resnet50", {"weights": "a9_in1k"}, "Did you mean .*a3_in1k"),
        ("torchvision:vit_b_16", {"image_size": (32, 48)}, "takes squares, got 32x48"),
        (
            "timm:resnet18",
            {"task": "segmentation"},
            "for classification, not for segmentation; take one of torchvision:, smp:",
        ),
        ("smp:Unet/resnet18", {"task": "masked-lm"}, "take one of transformers:"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        create(name, **changes)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("timm:resnet18", "timm"),
        ("smp:Unet/resnet18", "segmentation_models_pytorch"),
        ("transformers:roberta", "transformers"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_command(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        BackendUnavailableError, match=r"is not installed.*" + re.escape(install_command("train"))
    ):
        created(name)


@pytest.mark.slow
def test_weights_are_taken_over_but_for_what_has_another_shape(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    published = torchvision.models.resnet18().state_dict()
    versions = torchvision.models.ResNet18_Weights
    monkeypatch.setattr(versions, "get_state_dict", lambda *_, **__: published)
    loaded = create("torchvision:resnet18", weights="DEFAULT").state_dict()
    assert all(
        torch.equal(loaded[name], published[name])
        for name in published
        if not name.startswith("fc.")
    )
    assert "fc.bias" in caplog.text
    assert "conv1" not in caplog.text


@pytest.mark.slow
def test_a_detector_is_torchvisions_with_an_output_for_the_background() -> None:
    """For images that are normalised already, resized as the settings say."""
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    sizes = {"task": "detection", "image_size": (64, 96)}
    model: Any = create(f"torchvision:{name}", **sizes)
    with torch.device("meta"):
        theirs = torchvision.models.get_model(
            name, weights=None, weights_backbone=None, num_classes=8
        )
    shapes = {key: value.shape for key, value in theirs.state_dict().items()}
    assert {key: value.shape for key, value in model.state_dict().items()} == shapes
    plain = [torch.full((3, 48, 80), 0.25)]
    images, _ = model.eval().transform(plain)
    assert images.image_sizes == [(57, 96)]  # 64 would make the longer side 106
    assert float(images.tensors.max()) == pytest.approx(0.25)
    assert tuple(model.train().transform(plain)[0].image_sizes[0]) == (57, 96)
    resized: Any = create(f"torchvision:{name}", **sizes, resized=True).train()
    assert tuple(resized.transform(plain)[0].image_sizes[0]) == (48, 80)
    plainly: Any = create(f"torchvision:{name}", **sizes, normalised=False).eval()
    images, _ = plainly.transform(plain)
    blue = images.tensors[0, 2, :57]  # below are zeros, up to a multiple of 32
    for shade in (blue.min(), blue.max()):
        assert float(shade) == pytest.approx((0.25 - 0.406) / 0.225)


@pytest.mark.slow
def test_a_detector_of_one_size_resizes_to_it(tmp_path: Path) -> None:
    name, task = "torchvision:ssdlite320_mobilenet_v3_large", {"task": "detection"}
    with pytest.raises(ConfigurationError, match=r"resizes images to 320 x 320; .*got 64,64"):
        create(name, **task)
    model: Any = create(name, **task, image_size=(320, 320), resized=True)
    plain = [torch.full((3, 48, 80), 0.25)]
    images, _ = model.transform(plain)
    assert images.tensors.shape == (1, 3, 320, 320)
    assert float(images.tensors.max()) == pytest.approx(0.25)
    plainly: Any = create(name, **task, image_size=(320, 320), normalised=False)
    assert float(plainly.transform(plain)[0].tensors.max()) == pytest.approx(-0.5)
    target = {"boxes": torch.tensor([[4.0, 4, 30, 40]]), "labels": torch.tensor([2])}
    losses = model.train()(plain * 2, [target, target])
    assert set(losses) == {"bbox_regression", "classification"}
    torch.save(model.state_dict(), tmp_path / "kept.pth")
    again: Any = create(name, **task, image_size=(320, 320), weights=str(tmp_path / "kept.pth"))
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in again.modules()), "it trains them"


@pytest.mark.whole
def test_weights_of_a_detector_come_from_a_file_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its encoder's batch normalisations are constants then, as torchvision has it."""
    name, sizes = "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn", {"task": "detection"}
    first = create(name, **sizes)
    for layer in first.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean)
    torch.save({"model": first.state_dict()}, tmp_path / "kept.pth")
    model: Any = create(name, weights=str(tmp_path / "kept.pth"), num_classes=5, **sizes)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    kept = first.state_dict()
    for key, value in model.state_dict().items():
        assert torch.equal(value, kept[key]) != ("box_predictor" in key)
    assert "roi_heads.box_predictor.cls_score.weight" in caplog.text
    assert "backbone" not in caplog.text
    torch.save({"model": {"other": torch.zeros(1)}}, tmp_path / "other.pth")
    (tmp_path / "text.pth").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pth")
    for file, message in (
        ("other.pth", "none of them is of torchvision:fasterrcnn"),
        ("text.pth", "cannot be read as a file of weights"),
        ("none.pth", "cannot be read as a file of weights"),
        ("list.pth", "holds no state dict"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            create(name, weights=str(tmp_path / file), **sizes)


@pytest.mark.slow
def test_segmentation_networks_of_torchvision_give_scores_for_every_pixel() -> None:
    name = "torchvision:deeplabv3_mobilenet_v3_large"
    model = create(name, task="segmentation", num_classes=3, in_channels=1)
    scores = model(torch.randn(2, 1, 64, 96))
    assert scores["out"].shape == (2, 3, 64, 96)
    assert without_gradient(model, scores["out"]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "name", "weights", "folder"),
    [
        ("torchvision", "torchvision:resnet18", "DEFAULT", "TORCH_HOME"),
        *(
            pytest.param(*case, marks=pytest.mark.whole)
            for case in (
                ("torchvision", "torchvision:fasterrcnn_resnet50_fpn", "imagenet", "TORCH_HOME"),
                ("timm", "timm:resnet18", "DEFAULT", "HF_HOME"),
                ("segmentation_models_pytorch", "smp:Unet/resnet18", "imagenet", "HF_HOME"),
            )
        ),
    ],
)
def test_weights_without_a_network_are_an_error_of_ours(
    library: str,
    name: str,
    weights: str,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """In the process as it is without a network: nothing in the caches, no name is found."""

    def no_network(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    pytest.importorskip(library)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    if library != "torchvision":
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("time.sleep", lambda _: None)  # between the attempts to download
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    expected = f"weights '{weights}': those of {name} cannot be downloaded here .*{folder}.*leave"
    task = "detection" if "rcnn" in name else None
    with pytest.raises(ConfigurationError, match=expected) as raised:
        create(name, weights=weights, task=task)
    assert raised.value.__cause__ is not None


@pytest.mark.whole
def test_weights_of_a_language_model_come_from_a_folder_too(tmp_path: Path) -> None:
    first: Any = create("transformers:roberta-tiny", num_classes=50)
    first.network.save_pretrained(tmp_path)
    torch.manual_seed(1)
    second = create_model(
        ModelConfig(model="transformers:roberta", weights=str(tmp_path)),
        Shape(task="masked-lm", num_classes=50, in_channels=1, image_size=(1, 1)),
    )
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(first.parameters(), second.parameters(), strict=True)
    )
    with pytest.raises(ConfigurationError, match="a vocabulary of 50, got 51"):
        create("transformers:roberta", weights=str(tmp_path), num_classes=51)
    with pytest.raises(ConfigurationError, match="weights '/no/such/folder'"):
        create("transformers:roberta", weights="/no/such/folder")


@pytest.mark.whole
def test_options_reach_the_library() -> None:
    pytest.importorskip("timm")

    def made(model: str, *options: str) -> nn.Module:
        config = ModelConfig(model=model, model_option=options)
        return create_model(
            config, Shape(task="classification", num_classes=3, in_channels=3, image_size=(32, 32))
        )

    last = made("torchvision:resnet18", "zero_init_residual=true").get_submodule("layer1.0.bn2")
    assert not last.weight.any()
    assert made("timm:resnet18", "drop_rate=0.25").drop_rate == 0.25
    for model in ("torchvision:resnet18", "timm:resnet18", "fastload:mlp"):
        with pytest.raises(
            ConfigurationError, match=f"model_option colour=red: {model} does not take them"
        ):
            made(model, "colour=red")
    with pytest.raises(ConfigurationError, match="model_option 'zero': must be NAME=VALUE"):
        made("torchvision:resnet18", "zero")


def test_the_pyramid_of_the_recipe_widens_by_five_channels_a_block() -> None:
    """github.com/dnddnjs/pytorch-multigpu: 51 blocks, from 16 channels to 271."""
    with torch.device("meta"):
        network = PyramidNet(104, 255, num_classes=10)
    widths = [block.residual[1].out_channels for block in network.blocks]
    assert widths == list(range(21, 272, 5))
    assert network.head[-1].in_features == 271
