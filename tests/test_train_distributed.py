"""Several processes over gloo: they learn what one learns, wait for nobody who is gone, and start
under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fastload.cli.app import app
from fastload.errors import ConfigurationError, FastloadError
from fastload.train.distributed import (
    World,
    idle_gpus,
    launch_command,
    require_own_gpus,
    wait_for_all,
)
from fastload.train.settings import to_toml
from tests import warm
from tests.images import write_photo_folder
from tests.train_job import (
    Fault,
    Job,
    config,
    finish,
    run,
    said,
    settings,
    start,
    to_json,
    write_arrays,
)
from tests.waiting import LIMIT

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """5 batches of 8, and 4 samples left over; a last validation batch of 3, for four ranks."""
    folder = tmp_path_factory.mktemp("data")
    return {
        "data": write_arrays(folder, "train", 44),
        "val_data": write_arrays(folder, "val", 11, seed=1),
    }


def assert_same_curve(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert len(found["epochs"]) == len(wanted["epochs"]) > 0
    for mine, theirs in zip(found["epochs"], wanted["epochs"], strict=True):
        assert (mine["step"], mine["samples"]) == (theirs["step"], theirs["samples"])
        for part in ("train", "val"):
            assert mine[part] == pytest.approx(theirs[part], rel=1e-5), part


# -- The same as one process -----------------------------------------------------------------------


@pytest.mark.whole
def test_two_and_four_ranks_have_the_curve_of_one(data: dict[str, str], tmp_path: Path) -> None:
    """Windows of 2, 2 and 1 batches; gradients are clipped. Validation ends with batches of 1, 1, 1
    and 0 samples."""
    trace = str(tmp_path / "trace.json")
    common: dict[str, Any] = {
        "accumulate": 2,
        "clip_norm": 0.5,
        "weight_decay": 0.01,
        "trace": trace,
    }
    found = {
        ranks: run(
            Job(settings(**data, out=tmp_path / f"out{ranks}", batch_size=8 // ranks, **common)),
            tmp_path / str(ranks),
            ranks=ranks,
        )
        for ranks in (1, 2, 4)
    }
    for ranks in (2, 4):
        assert found[ranks]["global_batch"] == 16
        assert found[ranks]["world_size"] == ranks
        assert_same_curve(found[ranks], found[1])
        assert f"batch {8 // ranks} x {ranks} processes x 2 accumulated = 16 images" in said(
            tmp_path / str(ranks)
        )
        assert said(tmp_path / str(ranks), 1) == "", "only rank 0 tells"
        assert found[ranks]["idle"]["exchange_share"] > 0
    assert found[1]["idle"]["exchange_share"] == 0
    for rank in range(4):
        events = json.loads((tmp_path / f"trace.rank{rank}.json").read_text())["traceEvents"]
        exchanges = [event for event in events if event["name"] == "exchange"]
        assert len(exchanges) == 9, "one a step, not one a batch"


@pytest.mark.whole
def test_fewer_samples_than_ranks_count_once(tmp_path: Path) -> None:
    """Three samples on four ranks: one rank trains on a sample that another one has too, which must
    not count."""
    data = {"data": write_arrays(tmp_path, "few", 3), "val_data": write_arrays(tmp_path, "one", 1)}
    one = run(Job(settings(**data, out=tmp_path / "out1", batch_size=8)), tmp_path / "1")
    four = run(Job(settings(**data, out=tmp_path / "out4", batch_size=2)), tmp_path / "4", ranks=4)
    assert four["epochs"][0]["samples"] == 3
    assert_same_curve(four, one)


def test_statistics_of_batch_normalisation_are_rank_0s(
    data: dict[str, str], tmp_path: Path
) -> None:
    """In the checkpoint and in the validation alike: validating the checkpoint in one process gives
    the same."""
    summary = run(
        Job(settings(**data, out=tmp_path / "out", batch_size=4), normalise=True),
        tmp_path / "ranks",
        ranks=2,
    )
    from torch import nn

    import fastload
    from fastload.train.data import open_data
    from tests.train_job import Network

    network = Network(dropout=0.0, normalise=True).eval()
    network.load_state_dict(torch.load(tmp_path / "out" / "last.pt", weights_only=True)["model"])
    settings_ = config(**data, out=tmp_path)
    loader = open_data(settings_, shard=fastload.Shard(), device=torch.device("cpu")).val
    assert loader is not None
    with loader, torch.no_grad():
        losses = [
            nn.functional.cross_entropy(network(x), y, reduction="sum").item() for x, y in loader
        ]
    assert summary["final"]["loss"] == pytest.approx(sum(losses) / 11, rel=1e-5)


# -- Ranks that die --------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(("act", "validation"), [("exit", False), ("raise", True)])
def test_a_rank_that_dies_takes_the_others_along(
    data: dict[str, str], tmp_path: Path, act: str, validation: bool
) -> None:
    """At once, without torchrun's help; the one that fails says why, the others that they lost
    it."""
    job = Job(
        settings(**data, out=tmp_path / "out", epochs=500),
        fault=asdict(Fault(act, 1, 1, validation)),
    )
    processes = start(job, tmp_path, ranks=3)
    codes = finish(processes)  # long before the half hour that gloo waits
    assert codes[1] == (3 if act == "exit" else 1)
    assert all(code not in (0, None) for code in codes)
    if act == "raise":
        assert "ValueError: the network has had enough" in said(tmp_path, 1)
    assert "rank 0 lost the connection to another rank, which has died or failed" in said(tmp_path)


def test_processes_do_not_find_those_of_an_attempt_before() -> None:
    """A store that outlives them, as torchrun's: the dead have left their words and addresses in
    it."""
    store = torch.distributed.HashStore()
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            parts = list(
                pool.map(lambda rank: wait_for_all(store, rank, 3, timeout=LIMIT), [0, 1, 2])
            )
        assert not parts[0].check(["address"])
        parts[1].set("address", "here")
        assert parts[0].get("address") == parts[2].get("address") == b"here"
    with pytest.raises(FastloadError, match=r"rank 0: ranks 1, 2 have not come"):
        wait_for_all(store, 0, 3, timeout=0.1)
    with pytest.raises(FastloadError, match=r"rank 1: no answer from rank 0 within 0\.1 s"):
        wait_for_all(store, 1, 3, timeout=0.1)


def test_ranks_on_one_gpu_are_an_error_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees one GPU, number 0; what torch calls it tells whether that is the same one."""
    store = torch.distributed.HashStore()
    for attempt, gpus in enumerate((["a", "b", "a"], ["a", "b", "c"], [None, None, None])):
        names = threading.local()

        def properties(device: torch.device, names: Any = names) -> Any:
            return SimpleNamespace(uuid=names.own) if names.own else SimpleNamespace()

        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

        def rank_of(rank: int, attempt: int = attempt, gpus: Any = gpus, names: Any = names) -> str:
            names.own = gpus[rank]
            part = torch.distributed.PrefixStore(str(attempt), store)
            try:
                require_own_gpus(part, rank, 3, torch.device("cuda", 0))
            except ConfigurationError as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(rank_of, [0, 1, 2]))
        if gpus[0] == gpus[2] == "a":
            assert all("device: ranks 0, 2 share a GPU" in text for text in found)
        else:
            assert found == ["", "", ""]


# -- torchrun --------------------------------------------------------------------------------------


def torchrun(arguments: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
        )


def wait_for(*processes: subprocess.Popen[bytes]) -> list[int]:
    deadline = time.monotonic() + LIMIT
    try:
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(40)


@pytest.mark.reliability
def test_torchrun_shows_the_error_of_the_rank_that_failed(tmp_path: Path) -> None:
    """The real command, and a file that one rank cannot read: the other one is not left waiting."""
    folder = write_photo_folder(tmp_path / "photos", classes=2, per_class=4)
    broken = sorted(folder.rglob("*.jpg"))[3]
    broken.write_bytes(broken.read_bytes()[:200])
    (tmp_path / "run.toml").write_text(
        to_toml(config(str(folder), tmp_path / "out", augment="rrc-flip", batch_size=1, epochs=50))
    )
    output = tmp_path / "output.txt"
    arguments = [
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "fastload.train",
        "--config",
        str(tmp_path / "run.toml"),
    ]
    assert wait_for(torchrun(arguments, output)) != [0]
    assert "Root Cause" in output.read_text()
    cause = output.read_text().partition("Root Cause")[2]
    assert broken.name in output.read_text()
    assert "lost the connection" not in cause


@pytest.mark.reliability
def test_torchrun_restarts_and_the_run_goes_on(data: dict[str, str], tmp_path: Path) -> None:
    """A rank is killed in the second epoch; the second attempt resumes and ends as a run that
    nothing happened to."""
    job = Job(
        settings(**data, out=tmp_path / "out", accumulate=2, save_steps=1),
        dropout=0.3,
        normalise=True,
    )
    faulty = replace(job, fault=asdict(Fault("SIGKILL", 5 + 3, rank=1)))
    (tmp_path / "job.json").write_text(to_json(faulty))
    output = tmp_path / "output.txt"
    arguments = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    restarted = torchrun([*arguments, "-m", "tests.train_job", str(tmp_path / "job.json")], output)
    run(
        replace(job, settings={**job.settings, "out": str(tmp_path / "whole")}),
        tmp_path / "whole",
        ranks=2,
    )
    assert wait_for(restarted) == [0], output.read_text()
    assert "resumed at epoch 1, batch 2, step 4" in output.read_text()
    found, wanted = (
        torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("out", "whole")
    )
    for name, tensor in wanted["model"].items():
        assert torch.equal(found["model"][name], tensor), name
    assert [record["train"] for record in found["records"]] == [
        record["train"] for record in wanted["records"]
    ]
    lines = (tmp_path / "out" / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]


@pytest.mark.whole
def test_two_machines_on_loopback(data: dict[str, str], tmp_path: Path) -> None:
    """Two torchruns with a process each meet; only the first has the folder of the run."""
    endpoint = f"127.0.0.1:{warm.reserved_port()}"
    nodes = []
    for node in range(2):
        given = config(**data, out=tmp_path / f"out{node}", batch_size=4, model="fastload:mlp")
        (tmp_path / f"{node}.toml").write_text(to_toml(given))
        arguments = [
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--node-rank",
            str(node),
            "--rdzv-id",
            "two",
        ]
        arguments += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
        command = [*arguments, "-m", "fastload.train", "--config", str(tmp_path / f"{node}.toml")]
        nodes.append(torchrun(command, tmp_path / f"{node}.txt"))
    codes = wait_for(*nodes)
    said_by = [(tmp_path / f"{node}.txt").read_text() for node in range(2)]
    assert codes == [0, 0], "".join(said_by)
    assert any("2 processes" in text and "epoch 3/3" in text for text in said_by)
    written = [sorted(path.name for path in tmp_path.glob(f"out{node}/*")) for node in range(2)]
    assert sorted(written) == [[], ["best.pt", "epochs.jsonl", "last.pt", "watch.json"]]


# -- One machine with several GPUs -----------------------------------------------------------------


def test_gpus_that_a_run_leaves_idle_are_named_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    gpu = torch.device("cuda", 0)
    assert (
        idle_gpus(World(device=gpu))
        == "3 GPUs of this machine are idle: --processes all trains on all."
    )
    assert idle_gpus(World(device=gpu, parallel="dp", devices=(0, 1, 2))) == (
        "1 GPU of this machine is idle: --processes all trains on all."
    )
    assert idle_gpus(World(device=gpu, parallel="ddp", world_size=4)) is None
    assert idle_gpus(World(device=torch.device("cpu"))) is None
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert idle_gpus(World(device=gpu)) is None


def test_ranks_are_started_by_the_command_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(
        "os.execv", lambda path, arguments: started.append(arguments) or sys.exit(0)
    )
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    for typed, count in ((["--processes", "all"], "4"), (["--processes=2"], "2")):
        monkeypatch.setattr(
            sys, "argv", ["fastload", "train", "--data", "photos", *typed, "--epochs", "3"]
        )
        CliRunner().invoke(app, sys.argv[1:])
        wanted = [*launcher, count, "-m", "fastload.train", "--data", "photos", "--epochs", "3"]
        assert started.pop() == wanted
    with pytest.raises(
        ConfigurationError, match="processes: must be all, or a number of 1 or more, got '0'"
    ):
        launch_command("0", [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="a rank already"):
        launch_command("2", [])
