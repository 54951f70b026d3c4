"""Settings of the classic recipes, each against plain PyTorch: one step, one order, one loss, one
normalisation."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fastload
from fastload.backends.cache import CacheOptions
from fastload.backends.dali import DaliOptions
from fastload.errors import ConfigurationError
from fastload.sources import open_source
from fastload.train import OptimizerConfig, RunConfig, ScheduleConfig, distributed, train
from fastload.train.components import create_optimizer, create_schedule, synchronise_batchnorm
from fastload.train.data import TrainingData, backend_options, open_data
from fastload.train.distributed import open_world
from fastload.train.settings import merged
from fastload.train.tasks import create_task
from fastload.train.trainer import algorithms
from tests.test_train_log import curves
from tests.train_job import SIDE, Job, config, finish, run, said, settings, start, write_arrays


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """All weights after two steps."""
    for seed in (5, 6):
        inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# -- Optimizers and schedules ----------------------------------------------------------------------

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"nesterov": False}, lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.3)),
        ({"nesterov": True}, lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.3, nesterov=True)),
        ({"momentum": 0.0}, lambda p: SGD(p, 0.1, weight_decay=0.3)),
        ({"optimizer": "adam"}, lambda p: ADAM(p, 0.1, weight_decay=0.3)),
        (
            {"optimizer": "adam", "momentum": 0.8},
            lambda p: ADAM(p, 0.1, betas=(0.8, 0.999), weight_decay=0.3),
        ),
        ({"optimizer": "adamw"}, lambda p: ADAMW(p, 0.1, weight_decay=0.3)),
    ],
)
def test_two_steps_with_decay_on_all_parameters_are_those_of_torch(
    given: dict[str, Any], plain: Callable[[Any], torch.optim.Optimizer]
) -> None:
    model, reference = network(), network()
    optimizer = create_optimizer(
        model, OptimizerConfig(weight_decay=0.3, decay_all=True, **given), lr=0.1
    )
    wanted = stepped(reference, plain(reference.parameters()))
    assert torch.equal(stepped(model, optimizer), wanted)
    exempting = create_optimizer(
        model := network(), OptimizerConfig(weight_decay=0.3, **given), lr=0.1
    )
    assert not torch.allclose(stepped(model, exempting), wanted), (
        "biases and norms decay, or this shows nothing"
    )


def test_a_step_every_n_epochs_is_torchs_step_lr() -> None:
    settings = ScheduleConfig(epochs=10, schedule="step", step_epochs=3, gamma=0.5)
    model = nn.Linear(1, 1)
    optimizer, reference = SGD(model.parameters(), 0.4), SGD(model.parameters(), 0.4)
    schedule = create_schedule(optimizer, settings, steps_per_epoch=4)
    plain = torch.optim.lr_scheduler.StepLR(reference, 3, gamma=0.5)
    for _ in range(10):
        for _ in range(4):
            assert optimizer.param_groups[0]["lr"] == pytest.approx(
                reference.param_groups[0]["lr"], rel=1e-12
            )
            optimizer.step()
            schedule.step()
        reference.step()
        plain.step()


@pytest.mark.parametrize(
    ("task", "num_classes"), [("segmentation", 1), ("detection", 3), ("masked-lm", 100)]
)
def test_smoothing_is_refused_where_the_loss_has_none(task: str, num_classes: int) -> None:
    settings = merged({"task": task, "label_smoothing": 0.1})
    with pytest.raises(ConfigurationError, match="label_smoothing: the loss of .* has none"):
        create_task(settings, num_classes=num_classes)
    create_task(merged({"task": "segmentation", "label_smoothing": 0.1}), num_classes=3)


# -- Losses and what is best -----------------------------------------------------------------------


@pytest.mark.parametrize("positive_weight", ["masks", "none"])
def test_the_loss_of_segmentation_is_torchs_bce(positive_weight: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    masks = np.where(rng.random((6, 8, 8)) < 0.2, 255, 0).astype(np.uint8)
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    for number, mask in enumerate(masks):
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
            tmp_path / "images" / f"{number}.png"
        )
    settings = merged({}, given={"task": "segmentation", "positive_weight": positive_weight})
    task = create_task(settings, num_classes=1)
    said = task.study(open_source(str(tmp_path)).source)
    assert said is not None
    assert ("no positive weight" in said) == (positive_weight == "none")
    logits = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    target = torch.from_numpy(masks > 0).float()
    weight = (target == 0).sum() / target.sum() if positive_weight == "masks" else None
    wanted = F.binary_cross_entropy_with_logits(logits[:, 0], target, pos_weight=weight)
    assert float(task.losses(logits, target).mean()) == pytest.approx(float(wanted), rel=1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    return {
        "data": write_arrays(folder, "train", 44),
        "val_data": write_arrays(folder, "val", 11, seed=1),
    }


def quiet() -> Console:
    return Console(file=io.StringIO(), width=300)


@pytest.mark.slow
def test_the_best_epoch_is_that_of_the_lowest_loss_if_asked(
    data: dict[str, str], tmp_path: Path
) -> None:
    """The validation's labels are others: the more is learned, the higher its loss."""
    images, labels = data["val_data"].split(",")
    np.save(tmp_path / "labels.npy", (np.load(labels) + 1) % 3)
    given = data | {"val_data": f"{images},{tmp_path / 'labels.npy'}"}
    found = train(config(**given, out=tmp_path, epochs=4, best_by="loss"), console=quiet())
    losses = [epoch.val["loss"] for epoch in found.epochs if epoch.val is not None]
    assert found.best == min(losses)
    assert losses.index(min(losses)) < 3, "this would be the last checkpoint as well"
    assert torch.load(tmp_path / "best.pt", weights_only=True)["epoch"] == 1 + losses.index(
        min(losses)
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"best_by": "iou"},
            "best_by: this task has no result 'iou'; its validation gives loss, top1",
        ),
    ],
)
def test_a_best_that_cannot_be_is_refused(
    given: dict[str, Any], message: str, data: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(config(**{**data, "out": tmp_path, **given}), console=quiet())
    assert not list(tmp_path.glob("*.pt"))


# -- Data ------------------------------------------------------------------------------------------


def opened(given: dict[str, Any], **more: Any) -> TrainingData:
    return open_data(
        merged(given | more), shard=more.pop("shard", fastload.Shard()), device=torch.device("cpu")
    )


def labels_of(loader: Any) -> list[int]:
    with loader:
        return [int(label) for _, labels in loader for label in labels]


def numbered(folder: Path, count: int) -> dict[str, Any]:
    """Samples whose label is their number."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", np.zeros((count, 4, 4, 3), np.uint8))
    np.save(folder / "y.npy", np.arange(count))
    data = f"{folder / 'x.npy'},{folder / 'y.npy'}"
    return {"data": data, "augment": "none", "image_size": 4, "batch_size": 4, "num_workers": 1}


def test_a_split_is_a_function_of_the_seed_alone(tmp_path: Path) -> None:
    given = numbered(tmp_path, 40)
    parts = []
    for seed in (0, 0, 1):
        found = opened(given, train_share=0.85, seed=seed, shuffle=False, drop_last=False)
        assert found.val is not None
        parts.append((labels_of(found.train), labels_of(found.val)))
    for trained, validated in parts:
        assert (len(trained), len(validated)) == (34, 6)
        assert sorted(trained + validated) == list(range(40)), "every sample is in one part"
        assert (trained, validated) == (sorted(trained), sorted(validated))
    assert parts[0] == parts[1]
    assert parts[0] != parts[2]
    # Ranks share out the same parts.
    shares: list[list[int]] = [[], []]
    for rank in range(2):
        found = open_data(
            merged(given | {"train_share": 0.85}),
            shard=fastload.Shard(rank, 2),
            device=torch.device("cpu"),
        )
        assert found.val is not None
        shares[0] += labels_of(found.val)
        found.train.close()
    assert sorted(shares[0]) == parts[0][1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_share": 1.0}, "train_share: must be a share between 0 and 1"),
        ({"train_share": 0.01}, "0.01 of the 5 samples of .* leaves none to train on"),
        ({"split": "0.85"}, "split: must be the name of a part.*a share is train_share"),
        (
            {"train_share": 0.99},
            "0.99 of the 5 samples of .* leaves none to validate on",
        ),
    ],
)
def test_a_split_that_leaves_nothing_is_refused(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        opened(numbered(tmp_path, 5), **given)


def test_a_split_of_data_that_have_one_is_refused(data: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match="train_share: 0.5 of .* is validated on .*; give --train-sha",
    ):
        open_data(
            config(**data, out=tmp_path, train_share=0.5),
            shard=fastload.Shard(),
            device=torch.device("cpu"),
        )


@pytest.mark.slow
def test_not_shuffled_and_the_last_batch_kept_is_the_plain_recipe(
    data: dict[str, str], tmp_path: Path
) -> None:
    """SGD without momentum in the order of the file, the last batch of 4 included: a loop of plain
    PyTorch."""
    plain = {
        "shuffle": False,
        "drop_last": False,
        "augment": "none",
        "mean": "0",
        "std": "1",
        "batch_size": 8,
    }
    sgd = {
        "momentum": 0.0,
        "weight_decay": 0.0,
        "schedule": "constant",
        "lr": 0.002,
        "channels_last": False,
    }
    found = train(config(**data, out=tmp_path, **plain, **sgd), console=quiet())
    assert [epoch.samples for epoch in found.epochs] == [44] * 3

    images, labels = (torch.from_numpy(np.load(path)) for path in data["data"].split(","))
    dataset = TensorDataset(images.permute(0, 3, 1, 2) / 255, labels)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * SIDE * SIDE, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 3),
    )
    optimizer = SGD(model.parameters(), 0.002)
    for _ in range(3):
        for batch, target in DataLoader(dataset, batch_size=8):
            optimizer.zero_grad()
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
    kept = torch.load(tmp_path / "last.pt", weights_only=True)["model"]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(kept[name], value, rtol=1e-5, atol=1e-6)


def test_a_last_batch_that_cannot_be_shared_out_is_refused(tmp_path: Path) -> None:
    given = numbered(tmp_path, 25) | {"shuffle": False, "drop_last": False}
    with pytest.raises(
        ConfigurationError, match="drop_last: the last batch of .* has 1 sample for 2 ranks"
    ):
        open_data(merged(given), shard=fastload.Shard(0, 2), device=torch.device("cpu"))


def test_options_of_a_backend_are_those_of_its_class(tmp_path: Path) -> None:
    found = backend_options(
        "cache", ["storage=device", "short_side=256", "progress=false", f"directory={tmp_path}"]
    )
    assert found == CacheOptions(
        storage="device", short_side=256, progress=False, directory=str(tmp_path)
    )
    if any(row.name == "dali" and row.available for row in fastload.available_backends()):
        assert backend_options("dali", ["num_threads=3"]) == DaliOptions(num_threads=3)
    assert backend_options("cache", ["short_side=none"]) == CacheOptions()
    assert backend_options("cache", []) == CacheOptions()
    given = numbered(tmp_path, 8) | {"backend": "cache", "backend_option": ("storage=device",)}
    loader = opened(given).train
    assert "device" in loader.explain()
    assert sorted(labels_of(loader)) == list(range(8))


@pytest.mark.parametrize(
    ("backend", "text", "message"),
    [
        ("cache", "store=device", "backend 'cache' has no such option. Did you mean storage"),
        ("cache", "storage", "backend 'cache' has no such option"),
        ("cache", "storage=tape", "'storage=tape': Invalid enum value 'tape'; take one of auto,"),
        ("cache", "short_side=wide", "backend_option 'short_side=wide': Expected `int | null`"),
        ("auto", "storage=device", "backend 'auto' has no such option. It has exif_orientation"),
        ("no-such", "a=1", "'no-such' is not known"),
    ],
)
def test_an_option_that_a_backend_has_not_is_refused(backend: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        backend_options(backend, [text])


@pytest.mark.slow
def test_tuned_the_backend_is_the_one_measured_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fastload.loader.tune"), "MEASURED_SECONDS", 0.05)
    loader = opened(numbered(tmp_path, 8), tune=True).train
    assert "the fastest measured here" in loader.explain()
    loader.close()
    with pytest.raises(ConfigurationError, match="tune: must be off where a backend is given"):
        merged({"tune": True, "backend": "torch"})


# -- Processes and devices -------------------------------------------------------------------------


def assert_same_curve(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for mine, theirs in zip(found["epochs"], wanted["epochs"], strict=True):
        for part in ("train", "val"):
            assert mine[part] == pytest.approx(theirs[part], rel=1e-4), part


@pytest.mark.whole
def test_synchronised_normalisation_has_the_curve_of_one_process_and_the_other_has_not(
    data: dict[str, str], tmp_path: Path
) -> None:
    """Also the loss that is reported on the way, which is that of all ranks."""
    pytest.importorskip("tensorboard")
    found = {}
    for name, ranks, synchronised in (("one", 1, True), ("two", 2, True), ("each", 2, False)):
        given = settings(
            **data,
            out=tmp_path / name,
            batch_size=8 // ranks,
            sync_batchnorm=synchronised,
            log_steps=1,
            tensorboard=True,
        )
        found[name] = run(Job(given, normalise=True), tmp_path / f"at-{name}", ranks=ranks)
    assert_same_curve(found["two"], found["one"])
    with pytest.raises(AssertionError):
        assert_same_curve(found["each"], found["one"])
    losses = {
        name: [value for _, value in plain_curves(tmp_path / name)["step/loss"]] for name in found
    }
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-4)
    assert losses["each"] != pytest.approx(losses["one"], rel=1e-4)
    weights = [
        torch.load(tmp_path / name / "last.pt", weights_only=True)["model"]
        for name in ("one", "two")
    ]
    assert list(weights[0]) == list(weights[1]), "the names are those of the plain network"
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


def plain_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    return {
        tag: [(step, float(value.expected)) for step, value in points]
        for tag, points in curves(folder).items()
    }


def test_normalisation_of_one_process_is_left_as_it_is() -> None:
    with open_world(RunConfig(device="cpu")) as world:
        model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
        assert synchronise_batchnorm(model, world) is model
        assert type(model[1]) is nn.BatchNorm2d


@pytest.mark.whole
def test_a_network_with_spare_parameters_trains_if_they_are_looked_for(
    data: dict[str, str], tmp_path: Path
) -> None:
    one = run(Job(settings(**data, out=tmp_path / "one", batch_size=8), spare=True), tmp_path / "1")
    given = settings(**data, out=tmp_path / "two", batch_size=4, find_unused_parameters=True)
    assert_same_curve(run(Job(given, spare=True), tmp_path / "2", ranks=2), one)
    given = settings(**data, out=tmp_path / "not", batch_size=4)
    codes = finish(start(Job(given, spare=True), tmp_path / "3", ranks=2))
    assert codes != [0, 0]
    assert "find_unused_parameters" in said(tmp_path / "3") + said(tmp_path / "3", 1)


def test_cudnn_tries_its_algorithms_if_it_may() -> None:
    before = torch.backends.cudnn.benchmark
    for deterministic, benchmark, wanted in [
        (False, True, True),
        (False, False, False),
        (True, True, False),
    ]:
        with algorithms(RunConfig(deterministic=deterministic, cudnn_benchmark=benchmark)):
            assert torch.backends.cudnn.benchmark is wanted
    assert torch.backends.cudnn.benchmark is before


def test_tf32_is_for_the_run_alone() -> None:
    before = torch.get_float32_matmul_precision()
    with algorithms(RunConfig(tf32=True)):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
    with algorithms(RunConfig()):
        assert torch.get_float32_matmul_precision() == before


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return


@pytest.mark.parametrize(
    ("given", "device", "devices"),
    [
        ({"devices": (2,)}, 2, ()),
        ({"devices": (3, 1), "parallel": "dp"}, 3, (3, 1)),
        ({"parallel": "dp"}, 0, (0, 1, 2, 3)),
        ({"device": "cuda:2", "parallel": "dp"}, 2, (2, 0, 1, 3)),
    ],
)
def test_named_gpus_are_taken_in_that_order(
    given: dict[str, Any], device: int, devices: Sequence[int], four_gpus: None
) -> None:
    with open_world(RunConfig(**given)) as world:
        assert (world.device, world.devices) == (torch.device("cuda", device), devices)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": (0, 4), "parallel": "dp"}, "devices: GPU 4 was asked for, and torch sees 4"),
        ({"devices": (0, 3)}, r"devices: \(0, 3\) are several; take --parallel dp"),
        (
            {"devices": (0,), "device": "cpu"},
            r"devices: \(0,\) are GPUs by number, and the device is cpu",
        ),
        ({"devices": (0,), "device": "cuda:1"}, "leave one of the two out"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused(
    given: dict[str, Any], message: str, four_gpus: None
) -> None:
    with pytest.raises(ConfigurationError, match=message), open_world(RunConfig(**given)):
        pass


@pytest.mark.parametrize(("visible", "wanted"), [(1, 0), (4, 3)])
def test_a_task_that_sees_one_gpu_takes_it(
    monkeypatch: pytest.MonkeyPatch, visible: int, wanted: int
) -> None:
    """SLURM's --gpus-per-task=1: local rank 3 sees GPU 0 only."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert distributed._device(RunConfig(), "ddp", 3) == torch.device("cuda", wanted)
    with pytest.raises(ConfigurationError, match=r"GPU 3 was asked for, and there are 2"):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        distributed._device(RunConfig(), "ddp", 3)


def test_gpus_are_numbers_and_different() -> None:
    with pytest.raises(ConfigurationError, match="devices: must be different numbers of GPUs"):
        RunConfig(devices=(1, 1))
    with pytest.raises(ConfigurationError, match="devices: must be whole numbers"):
        merged({}, given={"devices": "zero"})


def test_dataparallel_without_a_gpu_is_one_device_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"parallel: dp .DataParallel. .* one device.*torchrun"):
        with open_world(RunConfig(parallel="dp", device="cpu")) as world:
            assert (world.parallel, world.device.type, world.devices) == ("none", "cpu", ())


def test_a_list_may_have_lists_in_it() -> None:
    given = "local_crops_scale=[0.1,0.3], crop_size=8,a=[1]b,"
    config = merged({}, given={"pipeline": "dinov2", "pipeline_option": given})
    assert config.data.pipeline_option == ("local_crops_scale=[0.1,0.3]", "crop_size=8", "a=[1]b")
