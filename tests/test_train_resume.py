"""Runs that are really killed, and go on as if nothing had happened: the same bits at the end."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload.errors import CheckpointError, ConfigurationError, StateMismatchError
from fastload.train import checkpoint
from tests.train_job import (
    Fault,
    Job,
    Network,
    config,
    finish,
    run,
    said,
    settings,
    start,
    write_arrays,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SAMPLES, BATCHES = 46, 11
"""11 batches of 4, in windows of 3: 3, 3, 3 and 2 batches; 4 steps an epoch."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    return {
        "data": write_arrays(folder, "train", SAMPLES),
        "val_data": write_arrays(folder, "val", 9, seed=1),
    }


def job(data: dict[str, str], out: Path, *, ranks: int = 1, **given: Any) -> Job:
    """Dropout, batch normalisation, momentum, a moving average and a schedule: all that has a
    state."""
    common = {
        "accumulate": 3,
        "ema": 0.9,
        "schedule": "cosine",
        "warmup_epochs": 0.5,
        "save_steps": 1,
    }
    return Job(
        settings(**data, out=out, **{**common, "batch_size": 4 // ranks, **given}),
        dropout=0.4,
        normalise=True,
    )


def with_fault(job: Job, act: str, call: int, **where: Any) -> Job:
    return replace(job, fault=asdict(Fault(act, call, **where)))


def die(job: Job, folder: Path, act: str, call: int, **where: Any) -> None:
    codes = finish(start(with_fault(job, act, call, **where), folder))
    assert codes == [-signal.SIGKILL], said(folder)


@pytest.fixture(scope="module")
def uninterrupted(data: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(job(data, folder / "out"), folder)
    return loaded(folder / "out")


def loaded(out: Path, name: str = "last.pt") -> dict[str, Any]:
    return torch.load(out / name, weights_only=True)


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Weights, averages, optimizer, generators and results, to the last bit; times and folders may
    differ."""
    for state in (found, wanted):
        for record in state["records"]:
            for name in ("images_per_second", "wait_share", "seconds", "val_seconds"):
                record.pop(name, None)
    for name in wanted:
        if name != "config":
            assert plain(found[name]) == plain(wanted[name]), name


def plain(value: Any) -> Any:
    """Tensors as lists of numbers: equal if every bit is."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.whole
def test_killed_again_and_again_and_resumed_is_as_if_uninterrupted(
    data: dict[str, str], uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    """Before the first checkpoint, in the middle of a window, in an epoch's last batch, in a
    validation, an epoch later, in the last epoch. (Calls count from where the process began:
    batches 0, 0, 3, 9, 9 and 6 of an epoch.)"""
    whole = job(data, tmp_path / "out")
    kills = [(1, False), (4, False), (7, False), (1, True), (2 + BATCHES + 7, False), (2, False)]
    for number, (call, validation) in enumerate(kills):
        die(whole, tmp_path / str(number), "SIGKILL", call, validation=validation)
    before = loaded(tmp_path / "out")
    assert (before["epoch"], before["batch"]) == (2, 6)
    run(whole, tmp_path / "end")
    assert "resumed at epoch 2, batch 6, step 10" in said(tmp_path / "end")
    assert_same(loaded(tmp_path / "out"), uninterrupted)


@pytest.mark.whole
@pytest.mark.parametrize("save_steps", [None, 3])
def test_killed_at_an_epochs_end(
    data: dict[str, str], uninterrupted: dict[str, Any], tmp_path: Path, save_steps: int | None
) -> None:
    """After the last step, before the validation is over; and with the first batch of the next
    epoch."""
    whole = job(data, tmp_path / "out", save_steps=save_steps)
    die(whole, tmp_path / "a", "SIGKILL", 2, validation=True)
    die(whole, tmp_path / "b", "SIGKILL", BATCHES if save_steps is None else 2)
    assert (tmp_path / "out" / "last.pt").exists() == (
        (tmp_path / "out" / "best.pt").exists() or save_steps == 3
    )
    run(whole, tmp_path / "end")
    assert_same(loaded(tmp_path / "out"), uninterrupted)


@pytest.mark.reliability
@pytest.mark.parametrize(
    ("act", "call", "validation", "place"),
    [
        ("SIGTERM", 4, False, (0, 6)),
        ("SIGINT", BATCHES + 10, False, (1, 11)),
        ("SIGTERM", 4, True, (1, 11)),
        ("group-SIGTERM", 4, False, (0, 6)),
    ],
)
def test_asked_to_stop_it_saves_and_goes_on_later(
    data: dict[str, str],
    uninterrupted: dict[str, Any],
    tmp_path: Path,
    act: str,
    call: int,
    validation: bool,
    place: tuple[int, int],
) -> None:
    """In the middle of a window, which is finished; in an epoch's last step; in a validation, which
    is started again; with worker processes that are in its process group, and would still be needed
    for the rest of the window."""
    backend = {"backend": "torch", "prefetch_factor": 1} if act.startswith("group-") else {}
    whole = job(data, tmp_path / "out", save_steps=None, **backend)
    summary = run(with_fault(whole, act, call, validation=validation), tmp_path / "first")
    assert summary["interrupted"] is True
    assert "the same command goes on from there" in said(tmp_path / "first")
    state = loaded(tmp_path / "out")
    assert (state["epoch"], state["batch"]) == place
    run(whole, tmp_path / "second")
    assert_same(loaded(tmp_path / "out"), uninterrupted)
    epochs = (tmp_path / "out" / "epochs.jsonl").read_text().splitlines()
    assert len(epochs) == 3


@pytest.mark.whole
def test_a_second_ctrl_c_ends_at_once(data: dict[str, str], tmp_path: Path) -> None:
    [process] = start(with_fault(job(data, tmp_path / "out"), "sleep", 1), tmp_path)
    wait_until(lambda: (tmp_path / "rank0.txt").exists() and "sleeping" in said(tmp_path))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGINT)  # as torchrun passes it on: the same press
    time.sleep(1.3)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    assert finish([process]) != [0]  # of itself it would sleep on
    assert "KeyboardInterrupt" in said(tmp_path)


@pytest.mark.reliability
def test_two_ranks_one_of_them_killed_or_asked_to_stop(
    data: dict[str, str], tmp_path: Path
) -> None:
    run(job(data, tmp_path / "whole", ranks=2), tmp_path / "a", ranks=2)
    wanted = loaded(tmp_path / "whole")
    whole = job(data, tmp_path / "out", ranks=2)

    killed = start(with_fault(whole, "SIGKILL", 5, rank=1), tmp_path / "b", ranks=2)
    codes = finish(killed)  # long before the half hour that gloo waits
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, -signal.SIGKILL)
    assert "rank 0 lost the connection to another rank" in said(tmp_path / "b")

    # Only one rank is asked.
    summary = run(with_fault(whole, "SIGTERM", 7, rank=1), tmp_path / "c", ranks=2)
    assert summary["interrupted"]
    state = loaded(tmp_path / "out")
    assert len(state["ranks"]) == 2
    assert (
        state["ranks"][0]["generators"]["torch"].tolist()
        != state["ranks"][1]["generators"]["torch"].tolist()
    )

    run(whole, tmp_path / "d", ranks=2)
    assert_same(loaded(tmp_path / "out"), wanted)


@pytest.mark.whole
def test_another_number_of_ranks_goes_on_with_the_same_samples(
    data: dict[str, str], tmp_path: Path
) -> None:
    """Without dropout and batch normalisation, which depend on ranks, the curve is the same within
    rounding."""
    common: dict[str, Any] = {"accumulate": 3, "save_steps": 1}
    alone = run(Job(settings(**data, out=tmp_path / "alone", **common)), tmp_path / "a")
    two = Job(settings(**data, out=tmp_path / "out", **common, batch_size=2))
    run(with_fault(two, "SIGTERM", BATCHES + 4, rank=0), tmp_path / "b", ranks=2)
    one = Job(settings(**data, out=tmp_path / "out", **common, batch_size=4))
    found = run(one, tmp_path / "c")
    assert "saved by 2 processes and resumed by 1" in said(tmp_path / "c")
    for mine, theirs in zip(found["epochs"], alone["epochs"], strict=True):
        assert mine["samples"] == theirs["samples"] == 44
        for part in ("train", "val"):
            assert mine[part] == pytest.approx(theirs[part], rel=1e-5)


def test_checkpoints_load_into_the_plain_network(
    data: dict[str, str], uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    """Strictly, averaged weights too, from one rank or two; and nothing in them is code."""
    run(job(data, tmp_path / "out", ranks=2, save_epochs=2), tmp_path, ranks=2)
    network = Network(dropout=0.0, normalise=True)
    files = ["last.pt", "best.pt", "epoch-0002.pt"]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.pt")) == sorted(files)
    for state in (uninterrupted, *(loaded(tmp_path / "out", name) for name in files)):
        network.load_state_dict(state["model"], strict=True)
        network.load_state_dict(state["ema"], strict=True)
    assert loaded(tmp_path / "out", "epoch-0002.pt")["epoch"] == 2
    assert not list((tmp_path / "out").glob(".*")), "nothing half-written is left"


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path / "last.pt", {"step": 1})

    def full(state: Any, file: Any) -> None:
        file.write(b"half of it")
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"last\.pt: .*No space left on device.*--out"):
        checkpoint.save(tmp_path / "last.pt", {"step": 2})
    assert checkpoint.load(tmp_path / "last.pt")["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_checkpoints_that_cannot_be_resumed_are_refused(
    data: dict[str, str], uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def resumed(**given: Any) -> Any:
        common = {"out": out, "accumulate": 3, "ema": 0.9}
        return checkpoint.state_to_resume(config(**{**data, **common, **given}))

    assert resumed() is None
    checkpoint.save(
        out / "last.pt", {name: value for name, value in uninterrupted.items() if name != "version"}
    )
    assert resumed()["step"] == 12
    assert resumed(resume="never") is None
    assert resumed(out=tmp_path, resume=str(out / "last.pt"))["step"] == 12
    with pytest.raises(
        StateMismatchError,
        match=r"accumulate: checkpoint 3, now 2; seed: checkpoint 0, now 4\. .*--out",
    ):
        resumed(accumulate=2, seed=4)
    for changed in ({"decay_all": True}, {"model_option": ("width=2",)}):
        with pytest.raises(StateMismatchError, match=rf"differs in {next(iter(changed))}: "):
            resumed(**changed)
    with pytest.raises(ConfigurationError, match=r"resume: nowhere\.pt is not there"):
        resumed(resume="nowhere.pt")
    (out / "last.pt").write_bytes((out / "last.pt").read_bytes()[:5000])
    with pytest.raises(ConfigurationError, match=r"last\.pt cannot be read as a checkpoint"):
        resumed()
    torch.save({"weights": 1}, out / "last.pt")
    with pytest.raises(StateMismatchError, match="version None"):
        resumed()
