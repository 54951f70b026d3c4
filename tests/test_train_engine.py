"""The trainer in one process: exact gradients, precision, limits, what it says and writes, where
time goes."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset

import fastload
from fastload.errors import ConfigurationError, FastloadError
from fastload.train import TrainConfig, components, train, trainer
from fastload.train.data import TrainingData, open_data
from fastload.train.distributed import open_world
from fastload.train.models import Shape
from fastload.train.results import Summary
from fastload.train.tasks import MetricSums, PendingSums
from tests.backends import DEVICE
from tests.cases import whole_but
from tests.images import write_photo_folder
from tests.train_job import SIDE, Network, config, write_arrays


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    return {
        "data": write_arrays(folder, "train", 40),
        "val_data": write_arrays(folder, "val", 9, seed=1),
    }


def use_network(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module] | None = None
) -> None:
    """A small network without dropout and batch normalisation, or the one given."""
    make = make or (lambda: Network(dropout=0.0, normalise=False))
    monkeypatch.setattr(components, "create_model", lambda *args, **kwargs: make())


def quiet() -> Console:
    return Console(file=io.StringIO(), width=300)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def weights(out: Path) -> torch.Tensor:
    state = torch.load(out / "last.pt", weights_only=True)
    return torch.cat([tensor.flatten() for tensor in state["model"].values()])


# -- Gradients -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.3])
def test_windows_are_plain_steps_on_the_mean_of_their_samples(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: float | None
) -> None:
    """10 batches of 4 in windows of 3: the last window of an epoch has one. Against a loop of plain
    PyTorch."""
    use_network(monkeypatch)
    settings = config(
        **data,
        out=tmp_path,
        accumulate=3,
        epochs=2,
        schedule="constant",
        weight_decay=0.0,
        momentum=0.9,
        clip_norm=clip,
    )
    summary = train(settings, console=quiet())

    torch.manual_seed(0)
    network = Network(dropout=0.0, normalise=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    losses = []
    with open_data(settings, shard=fastload.Shard(), device=torch.device("cpu")).train as loader:
        for _ in range(2):
            batches = list(loader)
            for first in range(0, len(batches), 3):
                images, labels = map(torch.cat, zip(*batches[first : first + 3], strict=True))
                each = nn.functional.cross_entropy(network(images), labels, reduction="none")
                losses += each.tolist()
                optimizer.zero_grad()
                each.mean().backward()
                nn.utils.clip_grad_norm_(network.parameters(), clip or float("inf"))
                optimizer.step()
    assert torch.allclose(
        weights(tmp_path),
        torch.cat([p.detach().flatten() for p in network.parameters()]),
        atol=1e-6,
    )
    assert summary.steps == 8
    assert summary.epochs[1].train["loss"] == pytest.approx(np.mean(losses[40:]), rel=1e-5)


@pytest.mark.whole
def test_accumulated_batches_are_one_large_batch(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_network(monkeypatch)
    found = {}
    for batch, accumulate in [(8, 1), (4, 2), (2, 4)]:
        out = tmp_path / str(batch)
        summary = train(
            config(
                **data,
                out=out,
                batch_size=batch,
                accumulate=accumulate,
                clip_norm=0.5,
                optimizer="adamw",
            ),
            console=quiet(),
        )
        assert summary.global_batch == 8
        found[batch] = summary, weights(out)
    whole, wanted = found.pop(8)
    for summary, mine in found.values():
        assert torch.allclose(mine, wanted, atol=1e-5)
        for one, other in zip(summary.epochs, whole.epochs, strict=True):
            assert one.train == pytest.approx(other.train, rel=1e-4)
            assert one.val == pytest.approx(other.val, rel=1e-4)


def test_fewer_samples_than_a_batch_are_one_smaller_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_network(monkeypatch)
    summary = train(
        config(write_arrays(tmp_path, "few", 3), tmp_path / "out", batch_size=8), console=quiet()
    )
    assert [(record.samples, record.step) for record in summary.epochs] == [(3, 1), (3, 2), (3, 3)]
    assert summary.final["loss"] < summary.epochs[0].train["loss"]


@pytest.mark.whole
@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_learns_nearly_the_same(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amp: str
) -> None:
    """Clipping sees unscaled gradients: with a scale of 65536 everything would be clipped, and
    little learnt."""
    kinds = set()

    class Watched(Network):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            output = super().forward(images)
            kinds.add(output.dtype)
            return output

    use_network(monkeypatch, lambda: Watched(dropout=0.0, normalise=False))
    common: dict[str, Any] = {
        "clip_norm": 1.0,
        "epochs": 6,
        "schedule": "constant",
        "momentum": 0.0,
    }
    exact = train(config(**data, out=tmp_path / "none", **common), console=quiet())
    mixed = train(config(**data, out=tmp_path / amp, amp=amp, **common), console=quiet())
    assert kinds == {torch.float32, {"bf16": torch.bfloat16, "fp16": torch.float16}[amp]}
    assert exact.final["loss"] < 0.5 * exact.epochs[0].train["loss"]
    assert mixed.final["loss"] == pytest.approx(exact.final["loss"], abs=0.05)
    scaler = torch.load(tmp_path / amp / "last.pt", weights_only=True)["scaler"]
    assert bool(scaler) == (amp == "fp16")


def test_a_scaler_that_skips_the_first_step_is_no_warning(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Steep(Network):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) * 100

    use_network(monkeypatch, lambda: Steep(dropout=0.0, normalise=False))
    train(config(**data, out=tmp_path, amp="fp16", max_steps=2, lr=1e-4), console=quiet())
    assert torch.load(tmp_path / "last.pt", weights_only=True)["scaler"]["scale"] < 65536


@pytest.mark.slow
def test_the_average_of_the_weights_is_what_is_validated(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_network(monkeypatch)
    plain = train(config(**data, out=tmp_path / "plain", epochs=1), console=quiet())
    averaged = train(config(**data, out=tmp_path / "average", epochs=1, ema=0.99), console=quiet())
    assert averaged.epochs[0].train == plain.epochs[0].train
    assert averaged.epochs[0].val != plain.epochs[0].val
    state = torch.load(tmp_path / "average" / "last.pt", weights_only=True)
    network = Network(dropout=0.0, normalise=False)
    network.load_state_dict(state["ema"])
    loader = open_data(
        config(**data, out=tmp_path), shard=fastload.Shard(), device=torch.device("cpu")
    ).val
    assert loader is not None
    with loader, torch.no_grad():
        losses = [
            nn.functional.cross_entropy(network(x), y, reduction="sum").item() for x, y in loader
        ]
    assert averaged.epochs[0].val is not None
    assert averaged.epochs[0].val["loss"] == pytest.approx(sum(losses) / 9, rel=1e-5)


@pytest.mark.whole
def test_a_compiled_network_learns_the_same_and_is_saved_as_the_plain_one(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's own tracing, with its eager backend: the default one would take half a minute of
    C++ compiler."""
    use_network(monkeypatch)
    compiled = []
    original = nn.Module.compile

    def compile_eagerly(module: nn.Module) -> None:
        compiled.append(module)
        original(module, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", compile_eagerly)
    train(config(**data, out=tmp_path / "plain", epochs=1), console=quiet())
    assert not compiled
    train(config(**data, out=tmp_path / "compiled", epochs=1, compile=True), console=quiet())
    assert len(compiled) == 1
    torch.testing.assert_close(weights(tmp_path / "compiled"), weights(tmp_path / "plain"))
    state = torch.load(tmp_path / "compiled" / "last.pt", weights_only=True)
    Network(dropout=0.0, normalise=False).load_state_dict(state["model"])


# -- Length, files, words --------------------------------------------------------------------------


@pytest.mark.whole
def test_max_steps_ends_a_run_that_can_go_on(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_network(monkeypatch)
    whole = train(config(**data, out=tmp_path / "whole"), console=quiet())
    first = train(config(**data, out=tmp_path / "parts", max_steps=14), console=quiet())
    assert (first.steps, len(first.epochs), first.interrupted) == (14, 1, False)
    console = quiet()
    rest = train(config(**data, out=tmp_path / "parts"), console=console)
    assert "resumed at epoch 1, batch 4, step 14" in printed(console)
    assert rest.steps == whole.steps == 30
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert [record.train for record in rest.epochs] == [record.train for record in whole.epochs]
    console = quiet()
    again = train(config(**data, out=tmp_path / "parts", save_epochs=2), console=console)
    assert "parts is finished: nothing is left of its 3 epochs" in printed(console)
    assert (
        "changed since the checkpoint, without effect on a finished run: --save-epochs 2 (was None)"
        in printed(console)
    )
    assert (again.steps, again.measured_steps, again.idle) == (30, 0, None)


@pytest.mark.slow
def test_a_run_tells_its_batch_its_rate_and_its_epochs(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_network(monkeypatch)
    console = quiet()
    trace = tmp_path / "traces" / "trace.json"
    given: dict[str, Any] = {
        "save_epochs": 2,
        "trace": str(trace),
        "profile_steps": 2,
        "step_lines": True,
        "log_steps": 2,
    }
    summary = train(
        config(**data, out=tmp_path, accumulate=2, reference_batch=16, **given), console=console
    )
    text = printed(console)
    assert "batch 4 x 1 process x 2 accumulated = 8 images; 5 steps an epoch" in text
    assert "lr 0.05 for a batch of 16, times 8/16 = 0.025" in text
    assert summary.lr == 0.025
    assert "profile: 2 steps in" in text
    assert re.findall(
        r"^step (\d)/5: loss \d\.\d{4}, top1 \d\.\d{4}; \d+\.\d{3} s a step$", text, re.MULTILINE
    ) == [*("2", "4", "5", "1", "3", "5", "2", "4", "5")]
    (use,) = summary.devices
    assert (use.device, use.rank, use.utilisation) == ("cpu", 0, None)
    assert use.peak_memory > 50e6
    assert (summary.best_by, summary.val_samples) == ("top1", 9)
    lines = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert lines[2]["val"] == dict(summary.final)
    best = [record.val["top1"] for record in summary.epochs if record.val]
    assert summary.best == max(best)
    state = torch.load(tmp_path / "best.pt", weights_only=True)
    assert state["epoch"] == 1 + best.index(max(best))
    assert sorted(path.name for path in tmp_path.glob("epoch-*.pt")) == ["epoch-0002.pt"]
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert [name for name in names if name.startswith("step")] == [
        f"step {number}" for number in range(15)
    ]
    assert "compute" in names
    assert json.loads(summary.to_json())["final"] == dict(summary.final)
    assert summary.measured_steps == 14


def test_a_loss_that_is_not_finite_ends_the_run(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_network(monkeypatch)
    with pytest.raises(
        FastloadError, match=r"step \d+: the loss is (nan|inf)\. The learning rate 1e\+30 .*--lr"
    ):
        train(config(**data, out=tmp_path, lr=1e30, log_steps=2), console=quiet())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
def test_a_corrupt_sample_under_substitute_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    folder = write_photo_folder(tmp_path / "photos", classes=3, per_class=4)
    broken = sorted(folder.rglob("*.jpg"))[5]
    broken.write_bytes(broken.read_bytes()[:300])
    use_network(monkeypatch)
    settings = config(
        str(folder), tmp_path / "out", backend=backend, augment="rrc-flip", on_error="substitute"
    )
    summary = train(settings, console=quiet())
    assert summary.steps == 9
    assert [record.samples for record in summary.epochs] == [12, 12, 12]
    assert summary.substituted >= 3


# -- Where it runs ---------------------------------------------------------------------------------


def test_what_cannot_be_had_here_is_said(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**given: Any) -> Summary:
        return train(config(**{**data, "out": tmp_path, **given}), console=quiet())

    with pytest.raises(
        ConfigurationError, match=r"parallel: ddp needs several processes; start them with torchrun"
    ):
        run(parallel="ddp")
    with pytest.raises(
        ConfigurationError, match=r"device: must be auto, cpu, cuda or cuda:1, got 'gpu'"
    ):
        run(device="gpu")
    with pytest.raises(ConfigurationError, match=r"amp: DataParallel .* fp16"):
        run(parallel="dp", amp="bf16")
    with pytest.raises(ConfigurationError, match=r"sync_batchnorm: DataParallel .* --parallel ddp"):
        run(parallel="dp", sync_batchnorm=True)
    if not torch.cuda.is_available():
        with pytest.raises(
            ConfigurationError,
            match=r"device: 'cuda', but torch finds no GPU here; take --device cpu",
        ):
            run(device="cuda")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigurationError, match=r"has WORLD_SIZE but not .*MASTER_PORT; start with torchrun"
    ):
        run()
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(
        ConfigurationError,
        match=r"parallel: none.*torchrun.*--parallel ddp",
    ):
        run(parallel="none")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigurationError, match=r"must be whole numbers .*'first'"):
        run()


def test_training_leaves_the_process_as_it_was(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signal handlers and torch's switches; threads end with the loaders."""
    import signal
    import threading

    use_network(monkeypatch)

    def handlers() -> list[Any]:
        return [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]

    before, threads = handlers(), {*threading.enumerate()}
    train(config(**data, out=tmp_path, epochs=1), console=quiet())
    assert handlers() == before
    # Threads of tests before this one may end meanwhile.
    assert {*threading.enumerate()} - threads == set()
    assert signal.set_wakeup_fd(-1) == -1
    assert not torch.are_deterministic_algorithms_enabled()
    with open_world(config(**data, out=tmp_path).run) as world:
        assert (world.rank, world.world_size, world.device.type) == (0, 1, "cpu")


# -- Where the time goes ---------------------------------------------------------------------------


class Slow(Dataset[tuple[torch.Tensor, int]]):
    """A source that takes its time, and writes down how long it took, in worker processes too: not
    what it was asked to sleep, on a busy machine."""

    def __init__(self, seconds: float, notes: Path) -> None:
        self.seconds = seconds
        self.notes = notes

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        began = time.perf_counter()
        time.sleep(self.seconds)
        with self.notes.open("a") as notes:
            notes.write(f"{time.perf_counter() - began}\n")
        return torch.full((3, SIDE, SIDE), float(index)), index % 3

    @property
    def took(self) -> list[float]:
        """Each sample, in the order in which they were done [seconds]."""
        return [float(line) for line in self.notes.read_text().split()]


class Laborious(Network):
    """A network whose step takes a given time, and which knows how long it took."""

    seconds = 0.0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.took: list[float] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        time.sleep(self.seconds)
        self.took.append(time.perf_counter() - began)
        return super().forward(images)


def slow_run(
    monkeypatch: pytest.MonkeyPatch,
    settings: TrainConfig,
    source: Slow,
    compute: float,
    workers: int,
) -> tuple[Summary, Laborious]:
    network = Laborious(dropout=0.0, normalise=False)
    network.seconds = compute

    def opened(config: TrainConfig, *, shard: fastload.Shard, device: torch.device) -> TrainingData:
        loader = fastload.create_loader(
            source,
            4,
            shuffle=True,
            drop_last=True,
            shard=shard,
            num_workers=workers,
            backend="torch",
        )
        shape = Shape(task="classification", num_classes=3, in_channels=3, image_size=(SIDE, SIDE))
        return TrainingData(train=loader, val=None, source=loader._parts.source, shape=shape)

    use_network(monkeypatch, lambda: network)
    monkeypatch.setattr(components, "open_data", opened)
    return train(settings, console=quiet()), network


@pytest.mark.whole
def test_a_slow_source_is_seen_as_waiting_for_data(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7 measured steps of 4 x 40 ms of reading, 40 ms of computing. On a busy machine the trainer
    gets its turn late at any moment, so what was measured has bounds, not a value: reading is
    waiting, and the time in the network is none."""
    source = Slow(0.040, tmp_path / "took")
    settings = config(**data, out=tmp_path / "out", epochs=1)
    summary, network = slow_run(monkeypatch, settings, source, 0.040, workers=0)
    read, computed = sum(source.took[4:]), sum(network.took[1:])  # the first step is start-up
    assert summary.idle is not None
    assert summary.measured_steps == 7
    assert len(source.took) == 32
    assert len(network.took) == 8
    assert read <= summary.idle.wait_seconds <= summary.idle.seconds - computed
    assert computed <= summary.idle.compute_seconds <= summary.idle.seconds - read
    assert summary.idle.wait_share == summary.idle.wait_seconds / summary.idle.seconds
    assert summary.epochs[0].wait_share == pytest.approx(summary.idle.wait_share)


@pytest.mark.whole
def test_the_same_source_with_prefetch_costs_no_waiting(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers read two batches in 160 ms, while the network takes 160 ms for one: of the
    reading, nothing is seen but the handing over of what is there. The same lateness of a busy
    machine that lengthens the one lengthens the other."""
    source = Slow(0.040, tmp_path / "took")
    settings = config(**data, out=tmp_path / "out", epochs=2)
    summary, network = slow_run(monkeypatch, settings, source, 0.160, workers=2)
    assert summary.idle is not None
    assert summary.measured_steps == 15
    # Without reading ahead it would wait for all of the reading. More is read than two epochs have:
    # the beginning of a third.
    assert summary.idle.wait_seconds < 0.75 * 15 * 4 * fmean(source.took)
    assert summary.idle.compute_seconds >= sum(network.took[1:])


def test_a_run_says_how_many_gpus_it_leaves_idle(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "3 GPUs of this machine are idle: --processes all trains on all."
    monkeypatch.setattr(trainer, "idle_gpus", lambda world: words)
    use_network(monkeypatch)
    console = quiet()
    train(config(**data, out=tmp_path, epochs=1, max_steps=1), console=console)
    assert words in printed(console)


# -- What never waits for the GPU ------------------------------------------------------------------

_READS = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::is_nonzero",
    "aten::equal",
    "aten::masked_select",
}
"""Operators whose result the host needs before it can go on."""


class _Waits(TorchDispatchMode):
    """Notes what would make the host wait, if the tensors were a GPU's: reading one, or copying one
    to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function._schema.name
        device = (kwargs or {}).get("device")
        moved = name == "aten::_to_copy" and device is not None and device != args[0].device
        if name in _READS or moved:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


class _Calls(TorchFunctionMode):
    """The same, by the methods that are called: on a CPU they need no operator."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Not the device of another tensor.
        to_cpu = function is torch.Tensor.to and args[1:2] == ("cpu",)
        if to_cpu or function in (
            torch.Tensor.cpu,
            torch.Tensor.tolist,
            torch.Tensor.numpy,
            torch.Tensor.item,
        ):
            self.found.append(function.__name__)
        return function(*args, **(kwargs or {}))


STEP_PATHS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"amp": "bf16"},
    "fp16": {"amp": "fp16"},
    "average": {"ema": 0.9},
    "accumulation": {"accumulate": 2},
    "clipping": {"clip_norm": 0.5},
    "adamw": {"optimizer": "adamw"},
    "all": {"amp": "fp16", "ema": 0.9, "accumulate": 2, "clip_norm": 0.5, "optimizer": "adamw"},
    "compile": {"compile": True, "ema": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("path", whole_but(["fp32", "all"], STEP_PATHS))
def test_no_step_waits_for_the_device(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """On a GPU torch itself raises where something waits (FASTLOAD_TEST_DEVICE=cuda); elsewhere the
    operators tell."""
    gpu = DEVICE.type == "cuda"
    use_network(monkeypatch, lambda: Network(dropout=0.1, normalise=True))
    step, waits, calls = trainer._Run._step, _Waits(), _Calls()
    make, compile_it = components.create_optimizer, nn.Module.compile
    # As on a GPU: the kernels that look at a gradient scaler's verdict themselves.
    monkeypatch.setattr(
        components,
        "create_optimizer",
        lambda *given, **named: make(*given, **named | {"fused": True}),
    )
    if not gpu:
        monkeypatch.setattr(
            nn.Module, "compile", lambda module: compile_it(module, backend="eager")
        )
    number = [0]

    def watched(run: Any, batches: Any) -> int:
        number[0] += 1
        if number[0] <= 2:  # the first ones compile and choose algorithms
            return step(run, batches)
        if gpu:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return step(run, batches)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        with waits, nullcontext() if path == "compile" else calls:  # which dynamo would trace
            return step(run, batches)

    monkeypatch.setattr(trainer._Run, "_step", watched)
    train(
        config(**data, out=tmp_path, epochs=1, device=DEVICE.type, **STEP_PATHS[path]),
        console=quiet(),
    )
    assert number[0] >= 5
    assert waits.found == calls.found == []


def test_a_step_that_waits_for_the_device_is_found() -> None:
    tensor = torch.ones(3)
    operators: list[Callable[[], Any]] = [
        tensor.nonzero,
        lambda: tensor.to("meta"),
        lambda: bool(tensor[0]),
    ]
    for wait in operators:
        with _Waits() as waits:
            wait()
        assert waits.found
    methods: list[Callable[[], Any]] = [
        tensor.cpu,
        tensor.tolist,
        tensor[0].item,
        lambda: tensor.to("cpu"),
    ]
    for wait in methods:
        with _Calls() as calls:
            wait()
        assert calls.found


@pytest.mark.slow
def test_losses_are_reported_when_they_have_come_from_the_device(
    data: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that is behind: at the next report, the last one at the end of the epoch."""
    events: list[str] = []

    class Late(PendingSums):
        ready = False  # type: ignore[assignment]

        def values(self) -> dict[str, float]:
            events.append("read")
            return super().values()

    later = MetricSums.total_later

    def total_later(sums: MetricSums) -> PendingSums:
        events.append("asked")
        found = later(sums)
        return Late(found._names, found._host)

    use_network(monkeypatch)
    on_time, late = quiet(), quiet()
    given: dict[str, Any] = {"epochs": 1, "log_steps": 3, "step_lines": True}
    train(config(**data, out=tmp_path / "a", **given), console=on_time)
    monkeypatch.setattr(MetricSums, "total_later", total_later)
    train(config(**data, out=tmp_path / "b", **given), console=late)
    # The epoch begins with a reading; then steps 3, 6, 9, 10; then the record of the epoch, and its
    # validation.
    assert events[:2] == ["asked", "read"]
    assert events[2:10] == ["asked", "asked", "read", "asked", "read", "asked", "read", "read"]
    lines = [
        re.findall(r"^(step .*); [\d.]+ s a step$", printed(console), re.MULTILINE)
        for console in (on_time, late)
    ]
    assert len(lines[0]) == 4
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("amp", "dtype"), [("none", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_images_come_in_the_dtype_that_autocast_computes_in(
    data: dict[str, str], tmp_path: Path, amp: str, dtype: torch.dtype
) -> None:
    """The same bits as those of autocast's own conversion, which then has nothing to do."""
    where: dict[str, Any] = {"shard": fastload.Shard(), "device": torch.device("cpu")}
    plain, narrow = (open_data(config(**data, out=tmp_path, amp=a), **where) for a in ("none", amp))
    with plain.train, narrow.train:
        state = plain.train.state_dict()
        narrow.train.load_state_dict(state)  # a run may go on in another precision
        for (images, labels), (narrow_images, narrow_labels) in zip(
            plain.train, narrow.train, strict=True
        ):
            assert narrow_images.dtype == dtype
            assert torch.equal(narrow_images, images.to(dtype))
            assert torch.equal(labels, narrow_labels)
