"""What a run tells and keeps: on a terminal, on a pipe, in files, and over a resume."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.train import CheckpointConfig, LogConfig, ScheduleConfig, TrainConfig
from fastload.train.log import EPOCHS_FILE, RunLog
from fastload.train.results import EpochRecord
from tests.waiting import wait_until


def pipe() -> Console:
    return Console(file=io.StringIO(), width=40)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def record(epoch: int, **more: Any) -> EpochRecord:
    usual: dict[str, Any] = {
        "train": {"loss": 2.0 / (epoch + 1), "top1": 0.125},
        "val": {"loss": 2.5 / (epoch + 1)},
        "images_per_second": 1234.4,
        "wait_share": 0.031,
        "seconds": 12.25,
    }
    kept = {"epoch": epoch, "step": epoch * 5 + 5, "samples": 20, "lr": 0.1, "val_seconds": 0.5}
    return EpochRecord(**{**kept, **usual, **more})


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line, parse_constant=pytest.fail)
        for line in (folder / EPOCHS_FILE).read_text().splitlines()
    ]


def open_log(
    folder: Path, config: LogConfig | None = None, unit: str = "images", **given: Any
) -> RunLog:
    out, schedule = CheckpointConfig(out=str(folder)), ScheduleConfig(epochs=9)
    whole = TrainConfig(checkpoint=out, schedule=schedule, log=config or LogConfig())
    return RunLog(whole, unit, **{"rank": 0, "records": [], "step": 0, **given})


def write(folder: Path, epochs: range, config: LogConfig | None = None, **more: Any) -> Console:
    """Log these epochs of five steps each, as a run that begins or goes on with the first of
    them."""
    console, first = pipe(), epochs[0]
    records = [record(epoch) for epoch in range(first)]
    with open_log(folder, config, records=records, step=first * 5, console=console) as log:
        for epoch in epochs:
            log.begin_epoch(epoch, steps=5)
            log.progress(3, rate=1234.4, wait=0.031, loss=2.0)
            log.scalars(epoch * 5 + 3, {"train/loss": float(epoch)})
            log.end_epoch(record(epoch, **more))
    return console


def test_on_a_pipe_there_is_one_line_an_epoch(tmp_path: Path) -> None:
    lines = text_of(write(tmp_path, range(2))).splitlines()
    assert lines == [
        "epoch 1/9: train loss 2.0000, top1 0.1250; val loss 2.5000; 1,234 images/s, wait 3.1%, "
        "12.2 s",
        "epoch 2/9: train loss 1.0000, top1 0.1250; val loss 1.2500; 1,234 images/s, wait 3.1%, "
        "12.2 s",
    ]


def test_without_validation_the_line_does_without(tmp_path: Path) -> None:
    text = text_of(write(tmp_path, range(1), val=None))
    assert text == "epoch 1/9: train loss 2.0000, top1 0.1250; 1,234 images/s, wait 3.1%, 12.2 s\n"
    assert records_in(tmp_path)[0]["val"] is None


def test_lines_are_printed_as_they_are(tmp_path: Path) -> None:
    console = pipe()
    line = 'pip install ".[train]": lr 0.1 for a batch of 256, times 512/256 = 0.2'
    with open_log(tmp_path, console=console) as log:
        log.say(line)
    assert text_of(console) == line + "\n"


def test_a_terminal_gets_a_bar_and_the_lines(tmp_path: Path) -> None:
    def shown(config: LogConfig) -> str:
        console = Console(
            file=io.StringIO(), width=120, force_terminal=True, force_interactive=True
        )
        with open_log(tmp_path, config, "sequences", console=console) as log:
            log.begin_epoch(3, steps=500, done=20)
            log.progress(21, rate=43210.9, wait=0.253, loss=0.51239)
            log.progress(22, rate=43210.9, wait=0.253, loss=0.51239)
            if config.progress:
                # Drawn by a thread, a few times a second.
                wait_until(lambda: "22/500" in text_of(console))
            log.say("above the bar")
            log.end_epoch(record(3))
        return text_of(console)

    text = shown(LogConfig())
    for part in (
        "epoch 4/9",
        "22/500",
        "43,211 sequences/s",
        "loss 0.5124",
        "wait 25.3%",
        "above the bar",
    ):
        assert part in text
    assert "epoch 4/9: train loss 0.5000" in text
    without = shown(LogConfig(progress=False))
    assert "22/500" not in without
    assert "epoch 4/9: train loss 0.5000" in without


def test_ranks_other_than_0_tell_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_log(tmp_path / "run", LogConfig(tensorboard=True), rank=1) as log:
        log.say("nothing")
        log.begin_epoch(0, steps=5)
        log.progress(1, rate=1.0, wait=0.0, loss=1.0)
        log.scalars(1, {"train/loss": 1.0})
        log.end_epoch(record(0))
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr() == ("", "")


# -- epochs.jsonl ----------------------------------------------------------------------------------


def test_every_epoch_is_an_object_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "new", range(3), lr=0.2)
    assert records_in(tmp_path / "runs" / "new") == [
        asdict(record(epoch, lr=0.2)) for epoch in range(3)
    ]


def test_a_resumed_run_leaves_no_epoch_twice(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    # Stopped after writing epoch 2 and before its checkpoint, and half way through writing another
    # line.
    with open(tmp_path / EPOCHS_FILE, "a", encoding="utf-8") as file:
        file.write('{"epoch": 3, "tr')
    write(tmp_path, range(2, 5), lr=0.2)
    found = records_in(tmp_path)
    assert [one["epoch"] for one in found] == [0, 1, 2, 3, 4]
    assert [one["lr"] for one in found] == [0.1, 0.1, 0.2, 0.2, 0.2]


def test_a_new_run_in_the_same_folder_starts_again(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    write(tmp_path, range(1))
    assert [one["epoch"] for one in records_in(tmp_path)] == [0]


def test_a_loss_that_is_no_number_is_null(tmp_path: Path) -> None:
    write(tmp_path, range(1), train={"loss": math.nan, "top1": 0.5}, lr=math.inf)
    (found,) = records_in(tmp_path)
    assert found["train"] == {"loss": None, "top1": 0.5}
    assert found["lr"] is None


# -- TensorBoard -----------------------------------------------------------------------------------


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(e.step, pytest.approx(e.value)) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.slow
def test_tensorboard_reads_the_curves_of_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = LogConfig(tensorboard=True)
    write(tmp_path, range(3), config, val={"loss": 9.0})
    write(tmp_path, range(2, 4), config)
    found = curves(tmp_path)
    assert found["train/loss"] == [(3, 0.0), (8, 1.0), (13, 2.0), (18, 3.0)]
    assert found["epoch/val/loss"] == [(5, 9.0), (10, 9.0), (15, 2.5 / 3), (20, 2.5 / 4)]
    assert found["epoch/seconds"][0] == (5, 12.25)
    assert set(found) == {
        "train/loss",
        *(f"epoch/{name}" for name in ("train/loss", "train/top1", "val/loss")),
        *(f"epoch/{name}" for name in ("images_per_second", "wait_share", "seconds")),
        *(f"epoch/{name}" for name in ("step", "samples", "lr", "val_seconds")),
    }


def test_a_missing_tensorboard_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BackendUnavailableError, match=re.escape(install_command("train"))):
        write(tmp_path / "run", range(1), LogConfig(tensorboard=True))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_folder_that_cannot_be_made_is_an_error_of_the_option(
    tmp_path: Path, tensorboard: bool
) -> None:
    if tensorboard:
        pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"out: .*file/run .*choose another folder"):
        write(tmp_path / "file" / "run", range(1), LogConfig(tensorboard=tensorboard))


def test_without_tensorboard_its_files_are_not_there(tmp_path: Path) -> None:
    write(tmp_path, range(1))
    assert [path.name for path in tmp_path.iterdir()] == [EPOCHS_FILE]


def test_a_rate_below_one_is_not_shown_as_zero(tmp_path: Path) -> None:
    console = pipe()
    config = TrainConfig(
        checkpoint=CheckpointConfig(out=str(tmp_path)), schedule=ScheduleConfig(epochs=1)
    )
    with RunLog(config, "images", rank=0, records=[], step=0, console=console) as log:
        log.end_epoch(record(0, images_per_second=0.042))
    assert "0.042 images/s" in text_of(console)
