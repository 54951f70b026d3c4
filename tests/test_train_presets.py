"""Every preset trains: a few steps on data of its kind made here, through `train`, to a network
that can be loaded."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from fastload.cli.app import app
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.train import Summary, TrainConfig, preset, train
from fastload.train.models import Shape, create_model
from fastload.train.settings import find_preset, preset_files
from tests.cases import whole_but
from tests.images import labels, photo, write_photo_folder
from tests.test_sources_cifar import cifar10, packed
from tests.test_train_data import write_idx
from tests.test_train_detection import write_objects
from tests.test_train_tasks import voc


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Small networks on few cores are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cifar(root: Path) -> Path:
    return packed(cifar10(root))


def fashion_mnist(root: Path) -> Path:
    write_idx(root, "train", 24)
    write_idx(root, "t10k", 7)
    return root


def cracks(root: Path) -> Path:
    """Photographs, and masks of 0 and 255 with a smaller bright part."""
    for split, count in (("train", 4), ("val", 3)):
        for part in ("images", "masks"):
            (root / split / part).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(photo(48, 64, seed=number)).save(
                root / split / "images" / f"{number}.jpg"
            )
            mask = np.where(labels(48, 64, seed=number) == 3, 255, 0).astype(np.uint8)
            Image.fromarray(mask).save(root / split / "masks" / f"{number}.png")
    return root


def one_folder(root: Path) -> Path:
    """Without a part to validate on."""
    return cracks(root) / "train"


def pascal(root: Path) -> Path:
    return voc(root)


def coco(root: Path) -> Path:
    write_objects(root, "train2017", 5)
    write_objects(root, "val2017", 2, seed=1)
    return root


def imagenet(root: Path) -> Path:
    for split in ("train", "val"):
        write_photo_folder(root / split, classes=2, per_class=4)
    return root


def text(root: Path) -> Path:
    rng = np.random.default_rng(0)
    for split, count in (("train", 64), ("val", 5)):
        np.save(root / f"{split}.npy", rng.integers(4, 99, (count, 16)).astype(np.uint16))
    return root


MANUAL = Path(__file__).parents[1] / "docs/trainer.md"


def sentences(root: Path) -> Path:
    for split in ("train", "dev"):
        (root / f"{split}.tsv").write_text("text\tlabel\n" + "a good film\t1\na bad film\t0\n" * 3)
    return root


SMALL: dict[str, tuple[Callable[[Path], Path], dict[str, Any], set[str]]] = {
    "cifar10-pyramidnet": (cifar, {"batch_size": 10}, {"loss", "top1", "top5"}),
    "cifar10-vgg19": (cifar, {"batch_size": 10}, {"loss", "top1", "top5"}),
    "fashion-mnist-mlp": (fashion_mnist, {"batch_size": 8}, {"loss", "top1", "top5"}),
    "cracks-unet-vgg16": (
        cracks,
        {"image_size": (64, 64), "batch_size": 2},
        {"loss", "iou", "dice"},
    ),
    "cracks-unet-resnet34": (
        cracks,
        {"image_size": (64, 64), "batch_size": 2},
        {"loss", "iou", "dice"},
    ),
    "coco-fasterrcnn": (
        coco,
        {
            "model": "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn",
            "model_option": ["rpn_post_nms_top_n_train=20", "box_batch_size_per_image=16"],
            "image_size": (64, 96),
        },
        {"map", "map50", "map75", "map_small", "map_medium"},
    ),
    "voc-deeplab": (
        pascal,
        {
            "model": "torchvision:deeplabv3_mobilenet_v3_large",
            "image_size": (64, 64),
            "batch_size": 2,
        },
        {"loss", "mean_iou", "accuracy"},
    ),
    "imagenet-resnet50": (imagenet, {"image_size": (64, 64), "batch_size": 4}, {"loss", "top1"}),
    "cifar10-pyramidnet-dp": (
        cifar,
        {"batch_size": 10, "parallel": "none", "model": "fastload:pyramidnet-8-15"},
        {"loss", "top1", "top5"},
    ),
    "cifar10-vgg19-sweep": (
        cifar,
        {"batch_size": 10, "model": "fastload:vgg19"},
        {"loss", "top1", "top5"},
    ),
    "fashion-mnist-mlp-dp": (
        fashion_mnist,
        {"batch_size": 8, "parallel": "none"},
        {"loss", "top1", "top5"},
    ),
    "cracks-unet16": (
        one_folder,
        {"image_size": (64, 64), "batch_size": 2},
        {"loss", "iou", "dice"},
    ),
    "cracks-unet-resnet34-sgd": (
        one_folder,
        {"image_size": (64, 64), "batch_size": 2},
        {"loss", "iou", "dice"},
    ),
    "cracks-unet-resnet101": (
        one_folder,
        {"image_size": (64, 64), "batch_size": 2, "model": "smp:Unet/resnet18"},
        {"loss", "iou", "dice"},
    ),
    "text-roberta": (
        text,
        {"model": "transformers:roberta-tiny", "num_classes": 100, "batch_size": 2},
        {"loss", "top1"},
    ),
    "text-classification-roberta": (
        sentences,
        {"model": "transformers:roberta-tiny", "batch_size": 2},
        {"loss", "top1"},
    ),
}
"""By preset: data, what is made small, and what the validation reports.

Every normalisation sees 8 values a channel or more: with two, weights explode, and only a
processor's rounding decides whether the loss is a number."""


def small(name: str, root: Path, **changes: Any) -> TrainConfig:
    """The preset on small data, which are made if they are not there, for one epoch."""
    make, settings, _ = SMALL[name]
    if not (root / "data").exists():
        (root / "data").mkdir()
        made = make(root / "data")
    else:
        made = root / "data"
    given = {
        "data": made,
        "out": root / "out",
        "device": "cpu",
        "num_workers": 1,
        "warmup_epochs": 0,
        "epochs": 1,
    }
    return preset(name, **{**given, **settings, **changes})


def quietly(config: TrainConfig) -> Summary:
    """Skips the test where the library of the network is not installed."""
    try:
        return train(config, console=Console(quiet=True))
    except BackendUnavailableError as missing:
        pytest.skip(str(missing))


def test_every_preset_is_tried_here() -> None:
    assert set(preset_files()) == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    whole_but(["fashion-mnist-mlp"], SMALL),
)
def test_a_preset_trains(name: str, tmp_path: Path) -> None:
    config = small(name, tmp_path)
    summary = quietly(config)
    assert summary.steps >= 2
    assert not summary.interrupted
    (epoch,) = summary.epochs
    assert epoch.val is not None
    assert set(epoch.val) == SMALL[name][2]
    assert all(math.isfinite(value) for value in (*epoch.train.values(), *epoch.val.values()))
    assert epoch.lr < summary.lr or config.schedule.schedule in ("step", "constant")

    kept = torch.load(tmp_path / "out" / "best.pt", weights_only=True)["model"]
    tokens = [
        value.shape[0] for key, value in kept.items() if key.endswith("word_embeddings.weight")
    ]
    with torch.device("meta"):  # without drawing weights
        shape = Shape(
            task=config.task,
            num_classes=config.model.num_classes
            or {"coco": 2, "cracks": 1, "imagenet": 2, "text": 2}.get(name.partition("-")[0], 10),
            in_channels=len(config.data.mean),
            image_size=config.data.image_size,
            vocabulary=next(iter(tokens), None),
        )
        model = create_model(config.model, shape)
    model.load_state_dict(kept, assign=True)  # a plain network takes them
    for file in (tmp_path / "out").glob("*.pt"):
        file.unlink()  # hundreds of MB


@pytest.mark.whole
def test_cracks_are_resumed_and_the_best_model_is_the_one_of_the_highest_iou(
    tmp_path: Path,
) -> None:
    settings = {"epochs": 3, "model": "smp:Unet/resnet18"}
    started = quietly(small("cracks-unet-resnet34", tmp_path, max_steps=3, **settings))
    assert (started.steps, len(started.epochs)) == (3, 1)
    ended = quietly(small("cracks-unet-resnet34", tmp_path, **settings))
    assert (ended.steps, len(ended.epochs)) == (6, 3)
    assert ended.epochs[0] == started.epochs[0]
    ious = [epoch.val["iou"] for epoch in ended.epochs if epoch.val is not None]
    assert ended.best == max(ious)
    state = torch.load(tmp_path / "out" / "best.pt", weights_only=True)
    assert state["epoch"] == 1 + ious.index(max(ious))
    counted = [
        np.asarray(Image.open(file)) > 127
        for file in (tmp_path / "data" / "train" / "masks").iterdir()
    ]
    share = np.mean(counted)
    assert state["task"]["positive_weight"] == pytest.approx((1 - share) / share)


@pytest.mark.whole
def test_gradients_of_one_batch_and_of_many_small_ones_train_the_same_roberta(
    tmp_path: Path,
) -> None:
    losses = []
    for accumulate in (1, 2, 8):
        folder = tmp_path / str(accumulate)
        folder.mkdir()
        changes = {"batch_size": 16 // accumulate, "accumulate": accumulate}
        summary = quietly(small("text-roberta", folder, **changes, amp="none"))
        assert (summary.steps, summary.global_batch) == (4, 16)
        assert summary.epochs[0].val is not None
        losses.append(summary.epochs[0].val["loss"])
    assert losses == pytest.approx([losses[0]] * 3, rel=2e-3)


def documented() -> list[str]:
    """The commands of the presets, and of the manual's table of them."""
    rows = re.findall(r"^\| `.*\| `(.*)` \|$", MANUAL.read_text(), re.MULTILINE)
    listed = [row for row in rows if "fastload.train " in row or "fastload train " in row]
    return [*(find_preset(name).command for name in preset_files()), *listed]


def test_the_manual_lists_every_preset() -> None:
    assert [name for name in preset_files() if f"`{name}`" not in MANUAL.read_text()] == []
    assert len(documented()) > len(preset_files())


@pytest.mark.parametrize("command", documented())
def test_a_documented_command_is_one(command: str) -> None:
    words = shlex.split(command)
    start = words.index("fastload.train" if "fastload.train" in words else "train") + 1
    assert words[:start] in (
        ["fastload", "train"],
        ["torchrun", "--nproc-per-node", words[2], "-m", "fastload.train"],
    )
    assert words[start] in preset_files()
    assert "--data" in words
    done = CliRunner().invoke(app, ["train", *words[start:], "--dry-run"])
    assert done.exit_code == 0, done.stderr


def test_presets_have_only_settings_of_their_own_source() -> None:
    """The search for unused parameters is of an interface's example, clipping at 20 of a list of
    settings."""
    assert not preset("cracks-unet16").run.find_unused_parameters
    assert preset("text-classification-roberta").optimizer.clip_norm is None
    assert "never wraps its model" in find_preset("cracks-unet-resnet101").reported
    assert "10,000 outputs" not in find_preset("cifar10-pyramidnet-dp").reported
    assert "docs/trainer.md" in find_preset("text-roberta").data


def test_a_preset_that_is_none_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean cifar10-vgg19"):
        find_preset("cifar-vgg19")


@pytest.mark.slow
def test_a_preset_of_ones_own_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path, and by name through an entry point of another package."""
    package = tmp_path / "jobs_of_others"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "mine.toml").write_text("[preset]\nabout = 'Mine.'\n[optimizer]\nlr = 0.25\n")
    assert find_preset(str(package / "mine.toml")).settings == {"lr": 0.25}
    with pytest.raises(ConfigurationError, match="preset 'mine': not known"):
        find_preset("mine")
    info = tmp_path / "jobs_of_others-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: jobs-of-others\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fastload.presets]\nothers = jobs_of_others\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert preset("mine").optimizer.lr == 0.25
    assert find_preset("mine").about == "Mine."
    done = CliRunner().invoke(app, ["train", "mine", "--lr", "0.5", "--dry-run"])
    assert "lr = 0.5" in done.stdout
    assert "Mine." in CliRunner().invoke(app, ["train", "--presets"]).stdout


@pytest.mark.parametrize(
    "text", ["[preset]\nabout = 3", "[preset]\nname = 'x'\nwho = 'me'", "preset = 4"]
)
def test_a_preset_that_says_something_else_is_refused_by_its_file(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(
        ConfigurationError, match=r"mine\.toml: \[preset\] has about, data, command"
    ):
        find_preset(str(tmp_path / "mine.toml"))


def test_a_preset_may_be_like_another_but_not_like_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        "[preset]\nlike = 'cracks-unet-resnet101'\n[optimizer]\nlr = 0.5\n"
    )
    found, like = find_preset(str(tmp_path / "mine.toml")), find_preset("cracks-unet16")
    assert found.settings == {
        **like.settings,
        "model": "smp:Unet/resnet101",
        "out": "runs/cracks-unet-resnet101",
        "lr": 0.5,
    }
    assert found.reported == like.reported
    (tmp_path / "mine.toml").write_text("[preset]\nlike = 'mine'\n")
    with pytest.raises(ConfigurationError, match="like 'mine': no such preset"):
        find_preset(str(tmp_path / "mine.toml"))
