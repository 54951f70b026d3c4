"""Settings of a run: from Python, from presets, from TOML, from the command line; and the command
itself."""

from __future__ import annotations

import dataclasses
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import fastload.train
from fastload.cli.app import app
from fastload.errors import ConfigurationError
from fastload.train import (
    CheckpointConfig,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
    preset,
)
from fastload.train.settings import (
    all_fields,
    changed,
    find_preset,
    merged,
    preset_files,
    read_toml,
    tables,
    to_toml,
)
from tests.waiting import LIMIT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TYPED: dict[str, tuple[str, Any]] = {
    "task": ("segmentation", "segmentation"),
    "data": ("some/folder", "some/folder"),
    "val_data": ("other", "other"),
    "split": ("trainval", "trainval"),
    "train_share": ("0.8", 0.8),
    "tf32": ("--tf32", True),
    "val": ("--no-val", False),
    "shuffle": ("--no-shuffle", False),
    "drop_last": ("--no-drop-last", False),
    "augment": ("crop-flip", "crop-flip"),
    "pipeline": ("torchvision_segmentation", "torchvision_segmentation"),
    "pipeline_option": ("crop_size=64", ("crop_size=64",)),
    "val_pipeline": ("torchvision_segmentation_eval", "torchvision_segmentation_eval"),
    "val_pipeline_option": ("base_size=64", ("base_size=64",)),
    "image_size": ("320,480", (320, 480)),
    "mean": ("0.5", (0.5,)),
    "std": ("1", (1.0,)),
    "tokenizer": ("roberta-base", "roberta-base"),
    "text_length": ("128", 128),
    "backend": ("auto", "auto"),
    "backend_option": ("a=1", ("a=1",)),
    "tune": ("--tune", True),
    "num_workers": ("0", 0),
    "prefetch_factor": ("3", 3),
    "on_error": ("substitute", "substitute"),
    "model": ("smp:Unet/resnet18", "smp:Unet/resnet18"),
    "model_option": ("zero_init_residual=true", ("zero_init_residual=true",)),
    "num_classes": ("2", 2),
    "weights": ("imagenet", "imagenet"),
    "sync_batchnorm": ("--sync-batchnorm", True),
    "channels_last": ("--no-channels-last", False),
    "compile": ("--compile", True),
    "ema": ("0.999", 0.999),
    "batch_size": ("8", 8),
    "accumulate": ("4", 4),
    "optimizer": ("adamw", "adamw"),
    "lr": ("1e-3", 0.001),
    "reference_batch": ("0", None),
    "momentum": ("0", 0.0),
    "nesterov": ("--no-nesterov", False),
    "weight_decay": ("0.05", 0.05),
    "decay_all": ("--decay-all", True),
    "clip_norm": ("1", 1.0),
    "label_smoothing": ("0.1", 0.1),
    "positive_weight": ("none", "none"),
    "mixup": ("0.2", 0.2),
    "cutmix": ("1.0", 1.0),
    "amp": ("bf16", "bf16"),
    "epochs": ("7", 7),
    "max_steps": ("100", 100),
    "schedule": ("step", "step"),
    "warmup_epochs": ("0.5", 0.5),
    "milestones": ("3,5.5", (3.0, 5.5)),
    "step_epochs": ("2.5", 2.5),
    "gamma": ("0.2", 0.2),
    "out": ("runs/a b", "runs/a b"),
    "resume": ("never", "never"),
    "best_by": ("loss", "loss"),
    "save_epochs": ("5", 5),
    "save_steps": ("50", 50),
    "progress": ("--no-progress", False),
    "tensorboard": ("--tensorboard", True),
    "log_steps": ("1", 1),
    "step_lines": ("--step-lines", True),
    "trace": ("trace.json", "trace.json"),
    "profile_steps": ("4", 4),
    "device": ("cpu", "cpu"),
    "devices": ("0,3", (0, 3)),
    "parallel": ("ddp", "ddp"),
    "find_unused_parameters": ("--find-unused-parameters", True),
    "cudnn_benchmark": ("--no-cudnn-benchmark", False),
    "seed": ("3", 3),
    "deterministic": ("--deterministic", True),
}
"""What may be typed for each option, and what it is then; none of them the default (but `backend`:
with `tune`, there is no choice)."""


def train_command(*arguments: str) -> SimpleNamespace:
    """`fastload train` in this process: (exit code, output, error output)."""
    result = CliRunner().invoke(app, ["train", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """By field name."""
    groups = dataclasses.asdict(config)
    flat = {"task": groups.pop("task")}
    for group in groups.values():
        flat |= group
    return flat


# -- The fields ------------------------------------------------------------------------------------


def test_every_field_is_known_once_with_its_text() -> None:
    assert list(all_fields()) == list(settings_of(TrainConfig()))
    assert [field.name for field in all_fields().values() if not field.doc.endswith(".")] == []
    assert all_fields()["lr"].doc == "Learning rate at the reference batch, after warm-up."
    assert all_fields()["augment"].doc.endswith("the image size, and mirror)."), (
        "texts of two lines are whole"
    )
    assert list(tables()) == ["data", "model", "optimizer", "schedule", "checkpoint", "log", "run"]


@pytest.mark.parametrize(
    ("group", "settings", "message"),
    [
        (OptimizerConfig, {"amp": "fp8"}, "amp: must be none, bf16 or fp16, got 'fp8'"),
        (
            TrainConfig,
            {"task": "tracking"},
            "task: must be classification, segmentation, detection, masked-lm or "
            "text-classification, got 'tracking'",
        ),
        (RunConfig, {"parallel": "fsdp"}, "parallel: must be auto, none, dp or ddp, got 'fsdp'"),
        (DataConfig, {"mean": (0.5,)}, "mean: must be as many numbers as std, 3"),
        (CheckpointConfig, {"save_steps": 0}, "save_steps: must be at least 1, got 0"),
        (
            ScheduleConfig,
            {"milestones": (3.0,)},
            "milestones: must be left out, or given with the step schedule (--schedule step), "
            "got (3.0,)",
        ),
        (ScheduleConfig, {"step_epochs": 30.0}, "step_epochs: must be left out, or given with"),
        (ScheduleConfig, {"gamma": 0.5}, "gamma: must be left out, or given with"),
        (
            ScheduleConfig,
            {"schedule": "step", "milestones": (3.0,), "step_epochs": 2.0},
            "milestones: must be left out where there is step_epochs, got (3.0,)",
        ),
    ],
)
def test_a_group_refuses_what_it_cannot_have(
    group: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        group(**settings)


def test_dataparallel_and_compile_are_refused_together() -> None:
    with pytest.raises(
        ConfigurationError, match="compile: DataParallel makes new copies of the network"
    ):
        TrainConfig(run=RunConfig(parallel="dp"), model=ModelConfig(compile=True))
    TrainConfig(run=RunConfig(parallel="ddp"), model=ModelConfig(compile=True))


def test_a_reference_batch_of_0_is_none() -> None:
    assert OptimizerConfig(reference_batch=0).reference_batch is None


# -- Merging ---------------------------------------------------------------------------------------


def test_the_command_line_goes_before_the_file_and_the_file_before_the_preset(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.toml"
    steps = "[schedule]\nschedule = 'step'\nmilestones = [1, 2]\n"
    file.write_text(f"[optimizer]\nlr = 2\nbatch_size = 16\n{steps}")
    preset = {"lr": 1.0, "batch_size": 8, "accumulate": 4}
    config = merged(preset, file, {"lr": "3"})
    assert (config.optimizer.lr, config.optimizer.batch_size, config.optimizer.accumulate) == (
        3.0,
        16,
        4,
    )
    assert config.schedule.milestones == (1.0, 2.0)
    assert isinstance(config.schedule.milestones[0], float)
    assert config.run == RunConfig()


def test_another_schedule_takes_the_steps_of_the_preset_away() -> None:
    steps = {"schedule": "step", "milestones": (30, 60), "gamma": 0.5}
    assert merged(steps, given={"schedule": "cosine"}).schedule == ScheduleConfig()
    assert changed(merged(steps), schedule="poly").schedule == ScheduleConfig(schedule="poly")
    every = merged(steps, given={"step_epochs": "10"}).schedule
    assert every == ScheduleConfig(schedule="step", step_epochs=10.0, gamma=0.5)
    at = merged(steps | {"milestones": (), "step_epochs": 9}, given={"milestones": "4"}).schedule
    assert at == ScheduleConfig(schedule="step", milestones=(4.0,), gamma=0.5)
    kept = merged(steps, given={"step_epochs": "none", "lr": 1}).schedule
    assert kept == ScheduleConfig(schedule="step", milestones=(30.0, 60.0), gamma=0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr = 0.1", "run.toml: lrr: no such setting. Did you mean lr"),
        (
            "[optimizer]\nlrr = 0.1",
            r"run.toml: \[optimizer\] lrr: no such setting. Did you mean lr",
        ),
        ("[optimiser]\nlr = 0.1", r"no table \[optimiser\] is known. Did you mean optimizer"),
        ("[run]\nlr = 0.1", r"lr is under \[run\]; put it under \[optimizer\]"),
        ("lr = 0.1", r"lr is under \[no table\]; put it under \[optimizer\]"),
        ("[run]\ntask = 'segmentation'", "task is under .run.; put it above the first table"),
        ("[optimizer]\nlr = 'fast'", "lr: must be a number, got 'fast'"),
        ("[optimizer]\nbatch_size = 1.5", "batch_size: must be a whole number, got 1.5"),
        ("[optimizer]\nbatch_size = true", "batch_size: must be a whole number, got True"),
        ("[model]\ncompile = 1", "compile: must be true or false, got 1"),
        ("[model]\nmodel = 3", "model: must be a string, got 3"),
        ("[model]\nema = 2.0", "ema: must be a decay between 0 and 1"),
        (
            "[data]\nimage_size = [1, 2, 3]",
            "image_size: must be a whole number, or two as 224,224, got",
        ),
        ("[data]\nmean = {}", "mean: must be numbers separated by commas"),
        ("[optimizer\n", "run.toml: is not TOML: "),
    ],
)
def test_a_file_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        merged({}, file)


def test_another_backend_has_not_the_options_of_the_first(tmp_path: Path) -> None:
    assert merged(preset_settings("cifar10-vgg19")).data.backend_option == ("storage=auto",)
    for given, backend in (
        ({"backend": "torch"}, "torch"),
        ({"tune": True}, "auto"),
        ({"backend": "cache"}, "cache"),
    ):
        data = merged(preset_settings("cifar10-vgg19"), given=given).data
        assert (data.backend, data.backend_option) == (
            backend,
            ("storage=auto",) if backend == "cache" else (),
        )
    config = merged(preset_settings("cifar10-vgg19"))
    assert changed(config, backend="torch").data.backend_option == ()
    assert changed(config, backend="cache", lr=0.5).data.backend_option == ("storage=auto",)
    (tmp_path / "a.toml").write_text(
        '[data]\nbackend = "dali"\nbackend_option = ["device=mixed"]\n'
    )
    assert merged(preset_settings("cifar10-vgg19"), tmp_path / "a.toml").data.backend_option == (
        "device=mixed",
    )


def test_one_number_is_a_square() -> None:
    assert merged({}, given={"image_size": "32"}).data.image_size == (32, 32)
    assert merged({}, given={"image_size": 48}).data.image_size == (48, 48)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="gone.toml: cannot be read"):
        merged({}, "gone.toml")


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(),
        TrainConfig(
            task="segmentation",
            data=DataConfig(data='C:\\a "b"\tü€𝄞', image_size=(1, 2), mean=(), std=()),
            optimizer=OptimizerConfig(lr=1e-5, reference_batch=None, clip_norm=0.25),
            run=RunConfig(deterministic=True),
        ),
        *map(preset, preset_files()),
    ],
)
def test_toml_written_is_toml_read(config: TrainConfig, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert merged({}, file) == config
    # Also over a preset, all of whose settings it takes back.
    assert merged(preset_settings("cracks-unet-vgg16"), file) == config


def preset_settings(name: str) -> Any:
    return find_preset(name).settings


# -- The command -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_setting_is_an_option() -> None:
    assert set(TYPED) == set(all_fields())
    shown: dict[str, Any] = {}
    for absent in ("milestones", "step_epochs"):  # one of the two
        arguments: list[str] = []
        for name in set(TYPED) - {absent}:
            typed, _ = TYPED[name]
            option = f"--{name.replace('_', '-')}"
            arguments += [typed] if typed.startswith("--") else [option, typed]
        done = train_command(*arguments, "--dry-run")
        assert done.code == 0, done.err
        tables = tomllib.loads(done.out)
        assert tables.pop("task") == "segmentation"
        for table in tables.values():
            shown |= {name: value for name, value in table.items() if name != absent}
    for name, (_, value) in TYPED.items():
        default = TrainConfig().task if name == "task" else settings_of(TrainConfig())[name]
        assert value != default or name == "backend", (
            f"{name}: this test would not see that it is lost"
        )
        if name != "task":
            assert shown[name] == (
                "none" if value is None else list(value) if isinstance(value, tuple) else value
            )


def test_none_takes_back_what_a_preset_sets() -> None:
    assert preset("cracks-unet-vgg16").optimizer.clip_norm == 1.0
    done = train_command("cracks-unet-vgg16", "--clip-norm", "none", "--amp", "none", "--dry-run")
    tables = tomllib.loads(done.out)
    assert tables["optimizer"]["clip_norm"] == "none"
    assert tables["optimizer"]["amp"] == "none"
    assert tables["task"] == "segmentation"


def test_a_file_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[optimizer]\nlr = 2.0\n[run]\nseed = 9\n")
    done = train_command("cifar10-vgg19", "--config", str(file), "--lr", "3", "--dry-run")
    again = tmp_path / "again.toml"
    again.write_text(done.out)
    assert merged({}, again) == preset("cifar10-vgg19", lr=3.0, seed=9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar10-vgg"], "preset 'cifar10-vgg': not known. Did you mean cifar10-vgg19"),
        (["cat"], "preset 'cat': not known. There are cifar10-pyramidnet, cifar10-pyramidnet-dp"),
        (["--lr", "fast"], "lr: must be a number, got 'fast'"),
        (["--lr", "none"], "lr: must have a value, got 'none'"),
        (["--amp", "fp8"], "amp: must be none, bf16 or fp16, got 'fp8'"),
        (["--config", "gone.toml"], "gone.toml: cannot be read"),
    ],
)
def test_a_wrong_argument_is_one_message_and_exit_code_1(
    arguments: list[str], message: str
) -> None:
    done = train_command(*arguments, "--dry-run")
    assert done.code == 1
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_an_unknown_option_is_a_usage_error() -> None:
    assert train_command("--lrr", "1").code == 2


def test_help_lists_every_option_under_its_table_with_its_text() -> None:
    lines = train_command("--help").out
    for table in tables():
        start = lines.index(f"\n[{table}]:\n")
        section = lines[start + 1 :].split("\n\n")[0]
        words = "".join(section.split())  # lines may break at hyphens
        for field in all_fields().values():
            if field.table == table:
                assert field.option in words
                assert "".join(field.doc.split()) in words, field.name
    assert "bf16|fp16" in lines


@pytest.mark.slow
def test_presets_are_listed_with_their_commands() -> None:
    done = train_command("--presets")
    assert done.code == 0
    for name in preset_files():
        assert name in done.out
        assert find_preset(name).command in done.out


@pytest.mark.slow
def test_settings_are_looked_at_without_torch() -> None:
    code = "import runpy, sys; sys.argv = ['x', 'cifar10-vgg19', '--lr', '0.5', '--dry-run']\n"
    code += "import fastload.train\n"
    code += "try:\n runpy.run_module('fastload.train', run_name='__main__')\n"
    code += (
        "except SystemExit as end: print('# torch' if 'torch' in sys.modules else '# light', "
        "end.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.splitlines()[-1] == "# light 0"
    assert tomllib.loads(done.stdout)["optimizer"]["lr"] == 0.5


# -- The package -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", fastload.train.__all__)
def test_every_public_name_is_there(name: str) -> None:
    module = importlib.import_module(getattr(fastload.train, name).__module__)
    assert getattr(fastload.train, name) is getattr(module, name)
    assert name in dir(fastload.train)


def test_a_preset_in_python_takes_values_and_refuses_names_that_are_none() -> None:
    config = preset("cifar10-vgg19", data="cifar", schedule="step", milestones=(1, 2))
    assert (config.data.data, config.schedule.milestones, config.model.model) == (
        "cifar",
        (1.0, 2.0),
        "fastload:vgg19",
    )
    with pytest.raises(
        ConfigurationError, match="epoch: no such setting of a run. Did you mean epochs"
    ):
        preset("cifar10-vgg19", epoch=3)


def test_reading_gives_only_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("task = 'masked-lm'\n[log]\nprogress = false\n")
    assert read_toml(tmp_path / "a.toml") == ({"task": "masked-lm", "progress": False}, {})


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (64, 4)])
def test_a_preset_starts_no_more_workers_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, workers: int
) -> None:
    """The preset says 4. What a user says on the command line, in a file or in code is taken as it
    is."""
    monkeypatch.setattr("fastload.train.settings.usable_cores", lambda: cores)
    assert preset("cracks-unet16").data.num_workers == workers
    assert preset("cracks-unet16", num_workers=7).data.num_workers == 7
    like = tmp_path / "like.toml"
    like.write_text('[preset]\nlike = "cracks-unet16"\n')
    assert preset(str(like)).data.num_workers == workers
    own = tmp_path / "own.toml"
    own.write_text('[preset]\nlike = "cracks-unet16"\n\n[data]\nnum_workers = 5\n')
    assert preset(str(own)).data.num_workers == 5
    assert merged(find_preset("cracks-unet16").settings, own).data.num_workers == 5
    assert (
        merged(find_preset("cracks-unet16").settings, given={"num_workers": "6"}).data.num_workers
        == 6
    )
