"""The benchmark for GPUs: pairs of turns, processes, the trainer's ways, the long training, fewer
cores, other loaders, and the pages of a lease. Not speed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.gpu import (
    checks,
    cores,
    decode,
    idle,
    interpreter,
    kernels,
    loaders,
    pairs,
    peers,
    points,
    run,
    soak,
    streams,
    trainer,
    training,
    ways,
)
from benchmarks.gpu.feeds import Feed
from benchmarks.gpu.goals import cores_needed, joined, line, summary
from benchmarks.gpu.setting import DRY, Found, Setting
from benchmarks.inputs import ROOT
from fastload import native
from fastload.backends.base import HostBatch
from fastload.device import DeviceStage
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError
from fastload.geometry import View
from fastload.recipe import Recipe
from fastload.recipe.outputs import Outputs
from fastload.render.host import render_row
from fastload.tools.measure.images import training_pixels
from fastload.tools.measure.results import Measurement, Round, new_results
from fastload.tools.measure.rounds import Work
from fastload.tools.monitor import Segment, Step
from tests.images import write_photo_folder
from tests.simulated_gpu import GPU, LazyGpu
from tests.waiting import wait_until

SETTING = replace(DRY, images=8, batch_size=2, check_batch_size=2, trainer_steps=2)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    root = tmp_path_factory.mktemp("gpu")
    photos = write_photo_folder(root / "photos", classes=2, per_class=4, size=(60, 70))
    (root / "out").mkdir()
    return replace(SETTING, photos=str(photos), kept=str(root), out=str(root / "out"))


def row(contestant: str, mode: str, parameters: Any = (), **metrics: float) -> Measurement:
    rounds = (Round(0, 0.0, 0.0, metrics),)
    return Measurement(contestant, mode, dict(parameters), rounds=rounds)


# -- kernels


@pytest.mark.whole
def test_kernels_are_compared_with_what_they_take_the_place_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="needs Triton, which comes with torch for CUDA")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET is set to 0")
    found = Found(600)
    kernels.run(replace(SETTING, rate_seconds=0.0), found)
    assert len(found.rows) == 7
    for row in found.rows.values():
        assert (row.status, row.note) == ("measured", ""), row.contestant
        assert row.metrics("wrong") == [0]
        assert len(row.metrics("images_per_second_of_triton")) == native.available()


def test_a_fused_multiply_add_rounds_once() -> None:
    """Beside fractions, which do not round; products and sums that cancel are among them."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-(2**24), 2**24, 4000).astype(np.float32) for _ in range(2))
    z = (-x * y + rng.integers(-3, 4, 4000)).astype(np.float32) * np.float32(0.75)
    z[::2] *= np.float32(2.0**-30)
    for a, b, c, found in zip(x, y, z, interpreter.fma(x, y, z), strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = (found, *(np.nextafter(found, np.float32(side)) for side in (np.inf, -np.inf)))
        errors = [abs(Fraction(float(number)) - exact) for number in near]
        assert errors[0] <= min(errors)
        if errors[0] in errors[1:]:  # a half, to the even one
            assert not found.view(np.int32) & 1
    assert (interpreter.fma(x, y, z) != x * y + z).any()


# -- crops decoded by points


def test_crops_by_points_are_those_of_the_cpu_and_have_a_rate(tmp_path: Path) -> None:
    photos = write_photo_folder(tmp_path / "photos", classes=1, per_class=3, size=(200, 280))
    write_photo_folder(tmp_path / "photos", classes=2, per_class=1, size=(40, 50))  # no points
    setting = replace(SETTING, photos=str(photos), kept=str(tmp_path), batch_size=5)
    found = points.compare(setting)
    assert found["images"] == found["equal"]
    assert found["images"]
    assert found["refused"] == 0
    assert {"decode_segments_ms", "make_samples_ms", "make_pixels_ms"} <= found.keys()
    made = points.rate(setting, 1)
    assert made.samples >= 5
    assert 0 < made.metrics["left_to_cpu"] < 1  # type: ignore[operator]
    assert points.host_cost(setting, 2).keys() == {"plan", "copy", "core"}


def test_batches_by_points_are_those_of_the_core(tmp_path: Path) -> None:
    """Resized by the kernel, to the last bit."""
    photos = write_photo_folder(tmp_path / "photos", classes=1, per_class=3, size=(200, 280))
    setting = replace(SETTING, photos=str(photos), kept=str(tmp_path))
    launch = points.launch_on(torch.device("cpu"))
    with closing(points.PointCrops(setting, 1, launch)) as crops:
        batch = crops.plan(6)
        out = np.empty((6, setting.size, setting.size, 3), np.uint8)
        crops.pool.decode_batch(
            batch.files,
            geometry=crops.fused(Draws(0, 0, np.arange(6))),
            out=out,
            sampling=crops._geometry.resampling,
        ).wait()
        made = crops.make(batch).numpy()
    np.testing.assert_array_equal(made, out)


def test_whole_photographs_are_cut_where_they_are(tmp_path: Path) -> None:
    """Those of several sizes, into crops of one; the next call draws others."""
    rng = np.random.default_rng(0)
    whole = [
        torch.from_numpy(rng.integers(0, 255, (3, height, 60), np.uint8)) for height in (40, 50)
    ]
    plan = Recipe.from_transform(training_pixels(16)).split(None).geometry
    made = decode.cut(whole, plan, 16, 3)
    geometry = plan.resolve(Draws(0, 3, np.arange(2)), np.array([[40, 60], [50, 60]]))
    for row, image in enumerate(whole):
        out = np.empty((2, 16, 16, 3), np.uint8)
        render_row(image.permute(1, 2, 0).numpy(), row, View(geometry, plan.resampling, out))
        assert np.abs(made[row].numpy().astype(int) - out[row]).max() <= 2
    assert not torch.equal(made, decode.cut(whole, plan, 16, 4))


def test_how_busy_the_engine_for_jpegs_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the GPU that torch uses, by its UUID; nothing is said of one that has none."""
    looked = list[Any]()

    def busy(handle: str) -> tuple[int, int]:
        looked.append(handle)
        return (37, 1000)

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetJpgUtilization=busy,
        NVMLError=RuntimeError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    with decode.JpegEngine(torch.device("cuda", 1)) as engine:
        wait_until(lambda: bool(looked))
    assert engine.metrics() == {"jpeg_engine_busy": 0.37}
    assert looked[0] == "GPU-1234"
    monkeypatch.setattr(nvml, "nvmlDeviceGetJpgUtilization", None)
    with decode.JpegEngine(torch.device("cpu")) as engine:
        pass
    assert engine.metrics() == {}


# -- turns in pairs


class Taking:
    """A contestant of so many samples a second."""

    def __init__(self, name: str, rate: float, order: list[str], *, fails: int = -1) -> None:
        self._name, self._rate, self._order, self._fails = name, rate, order, fails

    def run(self, seconds: float) -> Work:
        self._order.append(self._name)
        if self._order.count(self._name) - 1 == self._fails:
            raise RuntimeError("it broke")
        return Work(int(self._rate * seconds), seconds)


def test_pairs_go_both_ways_and_give_shares_with_their_resolution() -> None:
    order: list[str] = []
    found = Found(600)
    turns = {name: Taking(name, rate, order) for name, rate in (("a", 990.0), ("b", 500.0))}
    there = Taking("there", 1000.0, order)
    pairs.run_pairs(found, "m", there, turns, pairs=12, seconds=1.0, least=0.0)
    assert order[:6] == ["there", "a", "b", "b", "a", "there"]
    rows = {row.contestant: row for row in found.rows.values()}
    assert {row.mode for row in rows.values()} == {"m, in paired turns"}
    assert rows["a"].metrics(pairs.OF_SYNTHETIC) == [0.99] * 12
    assert rows["b"].metrics(pairs.OF_SYNTHETIC) == [0.5] * 12
    assert rows["a"].note == "resolution of the share: 0.00% (12 pairs)"


def test_a_contestant_that_breaks_in_a_pair_keeps_its_rounds_and_leaves_the_others() -> None:
    order: list[str] = []
    found = Found(600)
    turns = {"a": Taking("a", 1.0, order, fails=1), "b": Taking("b", 2.0, order)}
    pairs.run_pairs(found, "m", Taking("there", 4.0, order), turns, pairs=3, seconds=1.0, least=0.0)
    rows = {row.contestant: row for row in found.rows.values()}
    assert (rows["a"].status, len(rows["a"].rounds)) == ("failed", 1)
    assert (rows["a"].note, len(rows["b"].rounds)) == ("RuntimeError: it broke", 3)


def test_pairs_stop_before_the_time_of_the_part_is_over() -> None:
    order: list[str] = []
    found = Found(100)
    turns = {"a": Taking("a", 1.0, order)}
    pairs.run_pairs(
        found, "m", Taking("there", 1.0, order), turns, pairs=3, seconds=1.0, least=99.0
    )
    assert order == []


# -- processes


class Started:
    """In place of `process.run`: what was started; those named in `dying` die."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *dying: str) -> None:
        self.settings: list[Setting] = []
        self.seconds: list[float] = []
        self.launchers: list[list[str]] = []
        self._dying = dying
        monkeypatch.setattr(run.process, "run", self)

    def __call__(
        self, function: str, name: str, setting: Setting, seconds: float, **given: Any
    ) -> Any:
        self.settings.append(setting)
        self.seconds.append(seconds)
        self.launchers.append(given["launcher"])
        who = (*setting.networks, *setting.only)
        given["on_report"](row(", ".join(who), f"training {setting.networks[0]}", done=1))
        died = any(name in self._dying for name in who)
        return SimpleNamespace(code=-6 if died else 0, words="killed by signal 6")


def test_a_network_whose_process_dies_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(monkeypatch, "large")
    part = replace(run.PARTS["idle"], apart=lambda setting: ["reckless"])
    monkeypatch.setitem(run.PARTS, "idle", part)
    setting = replace(SETTING, networks=("large", "small"), kept=str(tmp_path), out=str(tmp_path))
    found = run.Run(setting, time.monotonic() + 1000, dry=True)
    found.part("idle", ["cifar"])
    assert [(s.networks, s.only) for s in started.settings] == [
        (("large",), ()),
        (("large",), ("reckless",)),
        (("small",), ()),
        (("small",), ("reckless",)),
    ]
    notes = [note for note in found.results.notes if note.startswith("idle")]
    assert [note.partition(",")[0] for note in notes] == [
        "idle: large: failed: killed by signal 6 (log.txt)",
        "idle: large: reckless: failed: killed by signal 6 (log.txt)",
        "idle: small: complete",
        "idle: small: reckless: complete",
    ]
    assert len(found.results.measurements) == 4
    # All of the part's time, except for what later parts need, is for what is still to come.
    assert started.seconds[0] == pytest.approx(1000 * 60 / 70 / 2.3, rel=0.01)
    assert "  training large: large: done 1\n" in capsys.readouterr().err


def test_a_network_that_cannot_be_warmed_up_leaves_those_after_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def network(name: str, device: torch.device) -> Any:
        if name == "large":
            raise RuntimeError("CUDA out of memory")
        return SimpleNamespace(warm_up=lambda *given, **named: None, note="")

    monkeypatch.setattr(idle, "of_torchvision", network)
    monkeypatch.setattr(idle, "_measure", lambda what, *given: measured.append(what.network))
    found = Found(60)
    every = {idle.SYNTHETIC: lambda: iter([None])}
    idle.compare(replace(setting, networks=("large", "small")), found, every)
    (row,) = found.rows.values()
    assert (row.mode, row.status) == (idle.mode("large"), "failed")
    assert row.note == "warming up: RuntimeError: CUDA out of memory"
    assert measured == ["small"]


def test_rows_are_printed_and_written_when_they_are_made_and_only_if_they_are_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run.Run(replace(SETTING, out=str(tmp_path)), time.monotonic(), dry=True)
    for share in (0.5, 0.5, 0.75):
        found._keep(row("a", "m", of_synthetic_share=share))
        assert f'"of_synthetic_share": {share}' in (tmp_path / "results.json").read_text()
    said = capsys.readouterr().err.splitlines()
    assert said == ["  m: a: of synthetic share 50.0%", "  m: a: of synthetic share 75.0%"]


def test_a_row_on_one_line() -> None:
    measured = Measurement("a", "m", {"threads": 2}, rounds=(Round(1000, 1.0, 0.0),) * 2, note="so")
    assert line(measured) == "m: a, threads 2 (2 rounds): 1,000 a second; so"
    assert line(Measurement("a", "m", status="failed", note="it broke")) == (
        "m: a: failed; it broke"
    )


def test_each_number_of_cores_is_a_process_that_is_kept_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: {4, 5, 6})
    assert cores.cores_here((1, 2, 4)) == [1, 2]
    assert cores.cores_here((8,)) == [1]
    started = Started(monkeypatch)
    setting = replace(SETTING, core_counts=(1, 2, 8), kept=str(tmp_path), out=str(tmp_path))
    run.Run(setting, time.monotonic() + 1000, dry=True).part("cores", [])
    assert [setting.cores for setting in started.settings] == [1, 2]
    assert [
        "{4, 5}" in " ".join(launcher) or "[4, 5]" in " ".join(launcher)
        for launcher in started.launchers
    ] == [False, True]
    assert cores.keep_to_cores(0) == []


def test_a_process_on_one_core_sees_one() -> None:
    code = "import os; print(len(os.sched_getaffinity(0)))"
    command = [sys.executable, *cores.keep_to_cores(1), "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"


def test_cores_needed_are_the_fewest_on_which_the_gpu_does_not_wait() -> None:
    mode = cores.row_mode("resnet50")
    rows = [
        *(row("DataLoader", mode, {"cores": n}, of_synthetic_share=n / 10) for n in (1, 2, 4, 8)),
        row("synthetic", mode, {"cores": 4}, of_synthetic_share=1.0),
        *(
            row("fastload a", mode, {"cores": n}, of_synthetic_share=share)
            for n, share in ((1, 0.4), (2, 0.997), (4, 0.999))
        ),
        # Pairs tell more than rounds.
        row("fastload a", pairs.mode_of(mode), {"cores": 2}, of_synthetic_share=0.98),
    ]
    assert cores_needed(rows) == {"DataLoader": None, "fastload a": 4}
    page = summary(new_results("gpu", {"device": "cpu"}, rows))
    assert "fastload a: 4\n" in page
    assert "DataLoader: more than those\n" in page
    table = next(text for text in page.splitlines() if text.startswith("fastload a "))
    assert table.split()[2:] == ["40.0%", "99.7%", "99.9%"]


# -- what is copied


@pytest.mark.parametrize("locked", [True, False])
def test_copies_from_ordinary_memory_and_new_buffers_are_counted(
    monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    LazyGpu(monkeypatch)
    program = Recipe.from_transform(None).split().batch
    stage = DeviceStage(device=GPU, programs=[program], outputs=Outputs(()))
    batch = HostBatch({"a": np.zeros(1 << 18), "b": np.zeros(3)})
    # Ordinary memory is copied to the ring, which `is_pinned` must then say of it.
    answers = iter([False, locked] * 2)
    monkeypatch.setattr(
        torch.Tensor, "is_pinned", lambda tensor: tensor.nbytes < 100 or next(answers)
    )
    with streams.copies_watched() as seen:
        for number in range(2):
            stage.run(batch, Draws(0, 0, np.arange(4)), number)
    assert (seen.copies, seen.not_locked) == (2, 0 if locked else 2)
    assert seen.buffers == 2  # both are still under way
    assert DeviceStage._to_device.__name__ == "_to_device"


# -- the long training


def step(number: int, begin: float, waited: float, worked: float) -> Step:
    middle = begin + waited
    pieces = Segment("wait", begin, middle), Segment("compute", middle, middle + worked)
    return Step(number, pieces)


class Batches:
    """Epochs of ten batches."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def close(self) -> None: ...


@pytest.mark.whole
def test_the_longest_gap_of_a_long_training_is_found_with_its_epoch_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = iter([[0.001, 0.002, 0.001], [0.0, 0.3, 0.0]])

    def train(
        feed: Feed, training: Any, seconds: float = 0.0, *, steps: int = 2, keep: bool = False
    ) -> Any:
        for _ in range(5 if keep else steps):
            next(feed)
        if not keep:
            return None
        made = [step(n, float(n), wait, 0.1) for n, wait in enumerate(next(waits))]
        idle = SimpleNamespace(steps=3, seconds=0.4, wait_share=0.1, busy_share=0.9)
        return SimpleNamespace(summary=lambda wait: idle, steps=lambda wait: made)

    monkeypatch.setattr(soak, "train", train)
    monkeypatch.setattr(soak, "_SLICES", 2)
    found = Found(600)
    training = SimpleNamespace(device=torch.device("cpu"))
    soak._soak(SETTING, found, "a", Feed(Batches()), training)  # type: ignore[arg-type]
    (kept,) = found.rows.values()
    assert kept.metrics(soak.GAP) == pytest.approx([0.002, 0.3])
    assert kept.metrics(soak.STEP) == pytest.approx([0.101, 0.1])
    assert kept.metrics("at_step") == [1, 1]
    assert kept.metrics("epoch_ends") == [0, 1]


def test_the_profiled_window_holds_the_end_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Feed(Batches())
    taken: list[tuple[int, int]] = []

    def train(feed: Feed, training: Any, *, steps: int, keep: bool = False) -> Any:
        begin = feed.epochs, feed.taken
        for _ in range(steps):
            next(feed)
        if keep:
            taken.append(begin)
        return SimpleNamespace(steps=lambda wait: [step(0, 0.0, 0.0, 0.1)])

    @contextmanager
    def profiled(device: torch.device) -> Iterator[Any]:
        idle = SimpleNamespace(busy_share=1.0)
        segments = [Segment("compute", 0.0, 1.0), Segment("wait", 1.0, 1.25)]
        yield SimpleNamespace(result=SimpleNamespace(idle=idle, segments=segments))

    monkeypatch.setattr(soak, "train", train)
    monkeypatch.setattr(soak, "profile_steps", profiled)
    next(feed)
    metrics = soak._kernels(feed, SimpleNamespace(device=torch.device("cpu")))  # type: ignore[arg-type]
    assert taken == [(2, 10 - soak._AROUND)]
    assert metrics["epoch_ends"] == 1
    assert metrics[soak.GAP] == 0.25


# -- the trainer's ways


class Given:
    """In place of the trainer: what each run has come to, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *losses: float, **states: Any) -> None:
        self.settings: list[dict[str, Any]] = []
        made = iter(losses)

        def train(runs: Any, out: str, **given: Any) -> trainer.Trained:
            self.settings.append({"out": out} | given)
            loss = next(made)
            state = {
                "model": {"weight": torch.full((2,), loss), "other": torch.ones(1)},
                "ranks": [{"sums": {"loss": 3 * loss, "samples": 3.0}}],
            }
            return trainer.Trained(state, SimpleNamespace(steps=2, images_per_second=1.0))  # type: ignore[arg-type]

        monkeypatch.setattr(trainer._Runs, "train", train)


@pytest.mark.parametrize(
    ("way", "losses", "wrong"),
    [
        ("bf16", (1.0, 1.04), 0),
        ("bf16", (1.0, 1.06), 1),
        ("fp16", (1.0, float("nan")), 1),
        ("compile", (1.0, 0.99), 0),
        ("deterministic", (1.0, 1.0), 0),
        ("deterministic", (1.0, 1.0000001), 1),
        ("resume with random numbers", (1.0, 5.0, 1.0), 0),
        ("resume with random numbers", (1.0, 5.0, 2.0), 1),
    ],
)
def test_ways_of_the_trainer_are_held_against_a_run_that_they_must_agree_with(
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    losses: tuple[float, ...],
    wrong: int,
) -> None:
    given = Given(monkeypatch, *losses)
    found = Found(600)
    trainer.run(replace(setting, only=(way,)), found)
    (kept,) = found.rows.values()
    assert (kept.contestant, kept.metrics("wrong")) == (way, [wrong])
    asked = [{**settings} for settings in given.settings]
    if way in ("bf16", "fp16"):
        assert [settings.get("amp") for settings in asked] == [None, way]
    if way.startswith("resume"):
        assert [settings.get("max_steps") for settings in asked] == [None, 1, None]
        assert [settings.get("resumes") for settings in asked] == [None, None, True]


@pytest.mark.whole
def test_the_trainers_average_and_a_run_cut_in_two_are_right_here(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_NETWORK", "fastload:mlp")
    ways = ("EMA", "resume with random numbers")
    found = Found(600)
    trainer.run(replace(setting, only=ways), found)
    rows = {row.contestant: row for row in found.rows.values()}
    assert {name: (row.note, row.metrics("wrong")) for name, row in rows.items()} == dict.fromkeys(
        ways, ("", [0])
    )
    approach = trainer.MovingAverage._approach
    monkeypatch.setattr(
        trainer.MovingAverage,
        "_approach",
        lambda self, kept, found: (approach(self, kept, found), approach(self, kept, found)),
    )
    found = Found(600)
    trainer.run(replace(setting, only=("EMA",)), found)
    assert [row.metrics("wrong") for row in found.rows.values()] == [[1]]


def test_graphs_are_captured_beside_the_loader_in_a_mode_that_allows_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU the graph runs its code again, on what lies in the batch that it was made
    of."""
    with pytest.raises(BackendUnavailableError, match="need a GPU"):
        trainer._graph(setting, Found(600))
    modes, stale = [], [False]
    called: list[Any] = []

    @contextmanager
    def graph(made: Any, capture_error_mode: str) -> Iterator[None]:
        modes.append(capture_error_mode)
        called.clear()
        yield
        made.result, made.network, made.batch = called[0]

    class Graph:
        def replay(self) -> None:
            if not stale[0]:
                self.result.copy_(self.network.layers(self.batch))  # type: ignore[attr-defined]

    class Network(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layers(images)
            called.append((result, self, images))
            return result

    monkeypatch.setattr(Setting, "gpu", property(lambda self: True))
    monkeypatch.setattr(Setting, "where", lambda self: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(trainer, "nn", SimpleNamespace(**(vars(nn) | {"Sequential": Network})))
    done = trainer._graph(setting, Found(600))
    assert done["wrong"] == 0
    assert modes == ["thread_local"] * trainer._CAPTURES
    stale[0] = True
    assert trainer._graph(setting, Found(600))["wrong"]


# -- other loaders


def test_timms_loader_gives_normalised_batches_epoch_after_epoch(setting: Setting) -> None:
    pytest.importorskip("timm", reason="needs timm: pip install timm")
    feed = peers.timm_prefetch(setting, 0)
    try:
        batches = [next(feed) for _ in range(6)]  # four an epoch
    finally:
        feed.close()
    assert feed.epochs == 2
    images = torch.stack([images for images, _ in batches])
    assert images.shape[1:] == (2, 3, setting.size, setting.size)
    assert images.dtype == torch.float32
    assert batches[0][0].is_contiguous(memory_format=torch.channels_last)
    assert -2.2 < float(images.min()) < float(images.max()) < 2.7  # of black and white
    assert {int(label) for _, labels in batches for label in labels} == {0, 1}


def test_a_loader_that_is_not_installed_is_said_with_the_remedy(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match="pip install timm"):
        peers.timm_prefetch(setting, 1)
    with pytest.raises(BackendUnavailableError, match="pip install spdl-core"):
        peers.spdl(setting, 1, ffmpeg=True)


def test_all_loaders_get_as_many_threads_or_processes_as_there_are_cores(setting: Setting) -> None:
    every = cores.contestants(setting, 3)
    assert next(iter(every)) == idle.SYNTHETIC
    assert {"DataLoader", "timm's PrefetchLoader", "fastload turbojpeg"} <= {*every}
    assert every["fastload turbojpeg"].args[1].num_workers == 3  # type: ignore[attr-defined]
    assert every["DataLoader"].args == (setting, 3)  # type: ignore[attr-defined]


# -- leases


def test_the_page_has_every_call_with_its_parts_and_minutes() -> None:
    page = (ROOT / "benchmarks" / "gpu" / "README.md").read_text()
    stated = re.findall(r"call\.sh (\d\.\d) brought \$OUT +# (.*)", page)
    assert [name for name, _ in stated] == [*run.CALLS]
    for name, said in stated:
        call = run.CALLS[name]
        assert f"{', '.join(call.parts)}; {call.minutes:g} min" in said
        assert call.minutes < 9.5  # of ten, with what it takes to begin and to end
    for lease, planned in run.LEASES.items():
        assert f"**Lease {lease}**, {planned.minutes:g} minutes of work" in page
    every = [part for call in run.CALLS.values() for part in call.parts]
    assert {*every, "native", "compile"} == {*run.PARTS}


def test_a_call_has_its_parts_and_its_minutes(tmp_path: Path) -> None:
    given = run._arguments(["--out", str(tmp_path), "--call", "1.2"])
    assert (given.parts, given.minutes) == (["compile", "idle"], 9.0)
    given = run._arguments(["--out", str(tmp_path), "--call", "1.1", "--minutes", "3"])
    assert (given.parts, given.minutes) == (["contract", "tests", "streams"], 3.0)
    given = run._arguments(["--out", str(tmp_path), "--parts", "soak"])
    assert (given.parts, given.minutes) == (["compile", "soak"], 8.5)
    assert {*run._arguments(["--out", str(tmp_path)]).parts} == {*run.PARTS} - {"native"}


def test_what_is_carried_in_several_calls_is_kept(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    for piece in ("a", "b"):
        brought = tmp_path / f"brought-{piece}" / f"dali.{piece}"
        brought.mkdir(parents=True)
        (brought / f"piece.{piece}").write_text(piece)
        subprocess.run(
            ["bash", "benchmarks/gpu/call.sh", "keep", str(brought.parent), str(tmp_path)],
            check=True,
            cwd=ROOT,
            env={"PATH": "/usr/bin:/bin", "KEEP": str(keep)},
            capture_output=True,
        )
    assert [path.read_text() for path in sorted(keep.glob("brought/dali.*/piece.*"))] == ["a", "b"]


_STUB = """#!/bin/bash
case "$*" in
    *"pip install"*)
        mkdir "$KEEP/installing" || exit 1
        sleep 0.1
        rmdir "$KEEP/installing"
        echo "$1" >>"$KEEP/installs"
        ;;
    *benchmarks.gpu.run*) echo "$*" >>"$KEEP/runs" ;;
esac
"""


def test_of_calls_side_by_side_one_installs_and_each_has_an_archive(tmp_path: Path) -> None:
    keep, programs = tmp_path / "keep", tmp_path / "programs"
    for name in ("python", "dpkg"):
        programs.mkdir(exist_ok=True)
        (programs / name).write_text(_STUB)
        (programs / name).chmod(0o755)
    (tmp_path / "brought" / "base" / "wheels").mkdir(parents=True)
    command = ["bash", "benchmarks/gpu/call.sh", "1.1", f"{tmp_path}/brought", f"{tmp_path}/out"]
    path = f"{programs}:/usr/bin:/bin"
    environment = {"PATH": path, "KEEP": str(keep), "PYTHON": str(programs / "python")}
    calls = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE)
        for _ in range(5)
    ]
    said = [call.communicate()[1] for call in calls]
    assert [call.returncode for call in calls] == [0] * 5, said
    assert len((keep / "installs").read_text().splitlines()) == 1
    runs = (keep / "runs").read_text().split()
    archives = [runs[n + 1] for n, word in enumerate(runs) if word == "--archive"]
    names = ["1.1", "1.1.2", "1.1.3", "1.1.4", "1.1.5"]
    assert sorted(archives) == sorted(f"{tmp_path}/out/{name}.tar.gz" for name in names)


def test_an_archive_has_all_of_a_folder_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "results.json").write_text("1")
    for _ in range(2):
        run.pack(tmp_path / "found", tmp_path / "out" / "1.1.tar.gz")
    (archive,) = (tmp_path / "out").iterdir()
    with tarfile.open(archive) as file:
        assert sorted(file.getnames()) == ["1.1", "1.1/results.json"]


@pytest.mark.parametrize(
    ("only", "parts", "words"),
    [
        (("compile",), ("trainer",), ""),
        (("dali, cpu",), ("idle", "streams"), ""),
        (("compile",), ("trainer", "kernels"), "it chooses nothing of the part 'kernels'"),
        (("compile",), ("idle",), "'compile' is none of cache, device, cache, disk"),
        ((), ("kernels",), ""),
    ],
)
def test_a_choice_that_chooses_nothing_is_refused(
    only: tuple[str, ...], parts: tuple[str, ...], words: str
) -> None:
    said = run._only_refused(replace(SETTING, only=only), ["native", "compile", *parts])
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.whole
def test_the_choice_holds_for_each_process_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(
        run.Run,
        "_process",
        lambda self, name, title, setting, left: given.append((title, setting.only)),
    )
    setting = replace(SETTING, out=str(tmp_path), networks=("a",), only=("compile", "bf16"))
    run.Run(setting, time.monotonic() + 100, dry=True).part("trainer", [])
    assert given == [("trainer: compile", ("compile",)), ("trainer: bf16", ("bf16",))]
    given.clear()
    setting = replace(setting, device="cuda", only=("dali, mixed", "torch"))
    run.Run(setting, time.monotonic() + 100, dry=True).part("idle", [])
    assert given == [("idle: a", ("torch",)), ("idle: a: dali, mixed", ("dali, mixed",))]
    given.clear()
    setting = replace(setting, only=("dali, mixed",))
    run.Run(setting, time.monotonic() + 100, dry=True).part("idle", [])
    assert given == [("idle: a: dali, mixed", ("dali, mixed",))]


def test_tests_are_shared_by_processes_and_each_is_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []
    for number in range(3):
        items = [*range(8)]

        def chosen(options: Any, plugins: Any, items: list[int] = items) -> None:
            plugins[0].pytest_collection_modifyitems(items)

        monkeypatch.setattr(pytest, "main", chosen)
        checks.pytest_reports([], (number, 3))
        taken.append(items)
    assert taken == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.slow
def test_results_of_several_calls_make_one_page() -> None:
    settings = {"device": "cuda:0"}
    first = new_results("gpu", settings, [row("bf16", trainer.TRAINER, wrong=1)], notes=["1"])
    second = new_results(
        "gpu",
        settings,
        [row("bf16", trainer.TRAINER, wrong=0), row("a", streams.STREAMS, wrong=0)],
        notes=["2"],
    )
    both = joined([first, second])
    assert both.notes == ("1", "2")
    assert len(both.measurements) == 2
    said = {verdict.what: verdict.reached for verdict in both.verdicts}
    assert said["ways of the trainer that are not right"] is True
    assert said["backends whose batches change"] is True
    assert said["CIFAR-10 resident on the device, the loader alone"] is None


# -- other ways of feeding, and loaders that share the cores


def test_crops_of_one_size_go_through_the_network_together() -> None:
    seen: list[tuple[int, ...]] = []

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 5))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(images.shape))
            return images.mean(dim=(2, 3)) @ self.weight

    trainer = training.Training(Network(), torch.device("cpu"))
    images = [torch.rand(2, 3, side, side) for side in (8, 8, 4, 4, 4)]
    trainer.step((images, torch.tensor([1, 4])))
    assert seen == [(4, 3, 8, 8), (6, 3, 4, 4)]
    trainer.step((images[0], torch.tensor([1, 4])))
    assert seen[2:] == [(2, 3, 8, 8)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
def test_every_way_of_feeding_gives_batches(tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "photos", per_class=4)
    setting = replace(SETTING, photos=str(tmp_path / "photos"), kept=str(tmp_path), batch_size=4)
    names = []
    for way, contestants in ways.WAYS.items():
        for name, opened in contestants(setting).items():
            feed = opened()
            images, labels = next(feed)
            feed.close()
            sizes = [tuple(view.shape) for view in images] if way == "several crops" else []
            shape = sizes[0] if sizes else tuple(images.shape)
            assert shape == (4, 3, setting.size, setting.size), name
            assert len(labels) == 4
            assert len(sizes) == (8 if way == "several crops" else 0)
            names.append(name)
    assert len(set(names)) == 6


@pytest.mark.whole
def test_loaders_side_by_side_have_a_rate_together(tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "photos", per_class=4)
    setting = replace(
        SETTING, photos=str(tmp_path / "photos"), kept=str(tmp_path), batch_size=4, loaders=(2,)
    )
    found = Found(600)
    loaders.run(setting, found)
    (row,) = found.rows.values()
    assert (row.status, row.note) == ("measured", "")
    assert row.speed > row.metrics("slowest_rate")[0] > 0
