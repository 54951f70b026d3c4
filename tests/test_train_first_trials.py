"""First trials of the trainer: a few steps or one epoch of whatever there is, and plain words for
what is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastload.cli.app import app
from fastload.train.config import ScheduleConfig
from tests.images import write_photo_folder
from tests.train_job import SIDE, write_arrays
from tests.waiting import LIMIT


class Run:
    """`fastload train` in this process, with a network of no size."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, out: Path, *options: str) -> str:
        """What it prints, after its exit code."""
        common = [
            "--model",
            "fastload:mlp",
            "--image-size",
            str(SIDE),
            "--batch-size",
            "4",
            "--num-workers",
            "1",
        ]
        common += ["--device", "cpu", "--no-progress", "--augment", "flip", "--out", str(out)]
        with pytest.raises(SystemExit) as ended:
            app(["train", *common, *options])
        out_text, errors = self._capfd.readouterr()
        return f"{ended.value.code}\n{out_text}{errors}"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return Run(capfd)


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    for number, split in enumerate(("train", "val", "test")):
        write_photo_folder(
            tmp_path / "data" / split, classes=2, per_class=6 - 2 * number, size=(SIDE, SIDE)
        )
    return tmp_path / "data"


@pytest.mark.slow
def test_one_epoch_of_a_preset_that_warms_up_for_five(
    run: Run, splits: Path, tmp_path: Path
) -> None:
    assert ScheduleConfig(epochs=6, warmup_epochs=5).warmup == 5
    said = run(tmp_path / "out", "--data", str(splits), "--epochs", "1", "--warmup-epochs", "5")
    assert said.startswith("0\n"), said
    assert "warm-up: half of this run, 0.5 of 1 epoch, in place of the 5 of a longer one" in said
    assert "epoch 1/1: train loss" in said


def test_max_steps_says_what_they_came_to(run: Run, splits: Path, tmp_path: Path) -> None:
    said = run(tmp_path / "out", "--data", str(splits), "--epochs", "5", "--max-steps", "2")
    [line] = [line for line in said.splitlines() if "stopped at step 2" in line]
    assert "epoch 1/5: train loss" in line
    assert "val loss" in line
    assert "images/s" in line
    assert not (tmp_path / "out" / "epochs.jsonl").exists(), "a part of an epoch is no record"


@pytest.mark.whole
def test_evaluation_alone_validates_a_checkpoint_and_writes_nothing(
    run: Run, splits: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(out, "--data", str(splits), "--epochs", "2", "--ema", "0.5")
    kept = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    validated = json.loads((out / "epochs.jsonl").read_text().splitlines()[-1])["val"]
    shown = ", ".join(f"{name} {value:.4f}" for name, value in validated.items())
    # Another batch size and rate: what counts are the weights.
    said = run(out, "--data", str(splits), "--evaluate", "--lr", "9", "--batch-size", "3")
    assert said.startswith("0\n"), said
    assert "last.pt (epoch 2, step 6, averaged weights), on 8 samples: " + shown in said
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == kept
    new = tmp_path / "new"
    named = ("--evaluate", "--resume", str(out / "last.pt"))
    assert shown in run(new, "--data", str(splits), *named)
    said = run(new, "--data", str(splits), "--evaluate", "--seed", "7")
    assert "fastload:mlp, the weights drawn from the seed, on 8 samples: loss" in said
    assert not new.exists()
    said = run(new, "--data", str(splits), *named, "--num-classes", "3")
    assert said.startswith("1\n")
    assert "is of a network that differs in num_classes: checkpoint None, now 3" in said
    said = run(new, "--data", str(splits / "train"), "--evaluate")
    assert "evaluate: nothing is validated: no validation data" in said


@pytest.mark.slow
def test_without_validation(run: Run, splits: Path, tmp_path: Path) -> None:
    alone = ["--data", str(splits / "train"), "--epochs", "1", "--best-by", "loss"]
    said = run(tmp_path / "alone", *alone)
    assert said.startswith("0\n"), said
    assert "nothing is validated: no validation data" in said
    assert "--val-data; --train-share 0.9" in said
    assert "best_by has no effect" in said
    said = run(tmp_path / "off", "--data", str(splits), "--epochs", "1", "--no-val")
    assert "nothing is validated, as --no-val says" in said
    assert "val loss" not in said


def test_a_test_split_without_labels_is_no_validation(
    run: Run, splits: Path, tmp_path: Path
) -> None:
    (splits / "val").rename(tmp_path / "elsewhere")
    for number, path in enumerate(sorted((splits / "test").rglob("*.jpg"))):
        path.rename(splits / "test" / f"{number}.jpg")
    for folder in (splits / "test").iterdir():
        if folder.is_dir():
            folder.rmdir()
    said = run(tmp_path / "out", "--data", str(splits), "--epochs", "1")
    assert said.startswith("0\n"), said
    assert "nothing is validated: " in said
    assert "no table of their labels" in said


def test_the_header_names_the_classes_and_a_split_may_be_named(
    run: Run, splits: Path, tmp_path: Path
) -> None:
    said = run(tmp_path / "out", "--data", str(splits), "--split", "test", "--epochs", "1")
    assert "class folder, 4 samples, 2 classes (class_0, class_1)" in said
    assert "val loss" in said


@pytest.mark.slow
def test_an_epoch_that_was_over_when_resumed_has_no_rate(
    run: Run, splits: Path, tmp_path: Path
) -> None:
    common = ["--data", str(splits), "--epochs", "1"]
    steps = len(list((splits / "train").rglob("*.jpg"))) // 4
    run(tmp_path / "out", *common, "--max-steps", str(steps))
    said = run(tmp_path / "out", *common)
    assert " 0 images/s" not in said


@pytest.mark.slow
def test_a_resume_that_cannot_be_names_what_to_type(run: Run, splits: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", "--data", str(splits), "--epochs", "2", "--max-steps", "1")
    write_photo_folder(splits / "train", classes=2, per_class=8, size=(SIDE, SIDE))
    said = run(tmp_path / "out", "--data", str(splits), "--epochs", "2")
    assert said.startswith("1\n"), said
    assert "--out" in said
    assert "--resume never" in said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--data", "nowhere"], "no such file or folder"),
        (["--model", "torchvision:resnet5000"], "resnet5000"),
        (["--backend-option", "x=1"], "x=1"),
    ],
)
def test_a_sweep_checks_its_arguments_before_its_first_run(
    wrong: list[str], words: str, splits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fastload.tools.sweep.run.run_cell", lambda *a, **k: pytest.fail("a cell was run")
    )
    given = [
        "--data",
        str(splits),
        "--image-size",
        str(SIDE),
        "--model",
        "fastload:mlp",
        "--device",
        "cpu",
        *wrong,
    ]
    result = CliRunner().invoke(app, ["sweep", *given])
    assert result.exit_code == 1, result.output
    assert words in result.output


@pytest.mark.reliability
def test_ctrl_c_exits_130(tmp_path: Path) -> None:
    data = write_arrays(tmp_path, "train", 400)
    code = "from fastload.cli import main; main()"
    given = [
        "train",
        "--data",
        data,
        "--model",
        "fastload:mlp",
        "--image-size",
        str(SIDE),
        "--epochs",
        "100000",
    ]
    given += [
        "--batch-size",
        "4",
        "--num-workers",
        "1",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "out"),
        "--no-val",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", code, *given],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 130, rest
    assert "the same command goes on from there" in rest
    assert json.loads((tmp_path / "out" / "epochs.jsonl").read_text().splitlines()[0])["epoch"] == 0
