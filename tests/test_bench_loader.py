"""`fastload bench loader`: tiny runs, sweeps, damaged files, Ctrl-C, and the arithmetic of its
figures."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from typer.testing import CliRunner

import fastload
from fastload.backends import BackendStatus
from fastload.cli.app import app
from fastload.distribution import install_command
from fastload.errors import ConfigurationError, FastloadError, SourceError
from fastload.sources import open_source
from fastload.tools.bench import LoaderSettings
from fastload.tools.bench.loader import (
    cache_bytes,
    contestant_names,
    read_loader_images,
    run_loader_benchmark,
)
from fastload.tools.bench.loader_report import curves, verdict
from fastload.tools.measure import loaders
from fastload.tools.measure.images import training
from fastload.tools.measure.loaders import (
    Batch,
    LoaderRunner,
    NetworkTrainer,
    PlainLoader,
    RateTrainer,
    busy_series,
    gaps,
)
from fastload.tools.measure.results import Measurement, Results, Round, from_json, to_json
from fastload.tools.measure.rounds import Work
from fastload.tools.measure.table import number

from .images import truncated, write_photo_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo_folder(tmp_path_factory.mktemp("images"), per_class=6)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_photo_folder(tmp_path_factory.mktemp("damaged"), per_class=6)
    cut = root / "class_0/1.jpg"
    cut.write_bytes(truncated(cut.read_bytes()))
    (root / "class_1/2.jpg").write_bytes(b"<html>not found</html>")
    return root


def _settings(folder: Path, **changes: Any) -> LoaderSettings:
    given = {
        "batch_size": 4,
        "consume": 4000.0,
        "device": "cpu",
        "seconds": 0.04,
        "rounds": 2,
    } | changes
    return LoaderSettings(folder, **given)


def _row(results: Results, contestant: str, **parameters: object) -> Measurement:
    (found,) = (
        row
        for row in results.measurements
        if row.contestant == contestant
        and all(row.parameters[name] == value for name, value in parameters.items())
    )
    return found


@pytest.fixture(scope="module")
def trained(folder: Path) -> Results:
    """Every backend that is there, and a network."""
    return run_loader_benchmark(_settings(folder, consume=None, network="small"))


@pytest.mark.whole
def test_every_backend_and_both_dataloaders_feed_the_network(trained: Results) -> None:
    assert trained.complete
    assert _row(trained, "trainer alone").rounds
    for workers in (0, 4):
        assert len(_row(trained, "DataLoader", workers=workers).rounds) == 2
    for status in fastload.available_backends():
        row = _row(trained, status.name)
        assert row.status == ("measured" if status.available else "unavailable")
        if not status.available:
            assert status.remedy in row.note


@pytest.mark.whole
def test_each_row_has_its_figures(trained: Results) -> None:
    for row in trained.measurements:
        if row.status != "measured":
            continue
        for name in ("first_batch_seconds", "host_cpu_share", "step_seconds"):
            found = row.metric(name)
            assert found is not None
            assert found.median > 0, name
        wait = row.metric("wait_share")
        assert wait is not None
        assert 0 <= wait.median <= 1
        assert row.metric("gpu_busy_share") is None, (
            "batches on the CPU: nothing to say about a GPU"
        )
        assert row.peak_memory
        shares = [share for _, share in row.series["trainer_busy"]]
        assert 0 <= min(shares) <= max(shares) <= 1


@pytest.mark.whole
def test_results_are_as_the_schema_says_and_come_back(trained: Results) -> None:
    text = to_json(trained)
    assert from_json(text, "text") == trained


@pytest.mark.whole
def test_verdict_takes_its_numbers_from_the_rows(trained: Results) -> None:
    alone = _row(trained, "trainer alone").rate
    assert alone is not None
    assert trained.notes[0].startswith(
        f"Your trainer takes {number(alone.median)} img/s; the DataLoader ("
    )
    assert any("not measured, the batches go to the CPU" in note for note in trained.notes)


@pytest.mark.whole
def test_damaged_files_are_counted_and_named_and_stop_nothing(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each round goes on to the end of an epoch, however slow this machine is.
    monkeypatch.setattr(loaders, "_PATIENCE", math.inf)
    results = run_loader_benchmark(
        _settings(damaged, backends=("DataLoader", "torch", "turbojpeg", "cache"))
    )
    names = {str(damaged / "class_0/1.jpg"), str(damaged / "class_1/2.jpg")}
    for backend in ("torch", "turbojpeg", "cache"):
        row = _row(results, backend)
        assert {failure.name for failure in row.failures} == names
        assert not any(failure.name in failure.message for failure in row.failures), (
            "said once is enough"
        )
        replaced = row.metric("substituted")
        assert replaced is not None
        assert replaced.median >= 2
    assert not _row(results, "DataLoader", workers=4).failures
    assert any("2 damaged files among 12" in note for note in results.notes)


def test_plain_dataloader_gives_what_torch_gives(folder: Path) -> None:
    feed = PlainLoader(folder, training(), 4, "cpu", workers=0)
    labels = torch.cat([labels for _, labels in feed])
    images, _ = next(iter(feed))
    feed.close()
    expected = torch.cat([labels for _, labels in DataLoader(ImageFolder(str(folder), _zeros), 4)])
    assert torch.equal(labels.sort().values, expected.sort().values)
    assert images.shape == (4, 3, 224, 224)
    assert images.dtype == torch.float32


def _zeros(image: object) -> torch.Tensor:
    return torch.zeros(1)


@pytest.mark.whole
def test_sweeps_have_a_row_for_each_value(folder: Path) -> None:
    names = ("DataLoader", "turbojpeg")
    results = run_loader_benchmark(
        _settings(folder, backends=names, workers=(0, 1, 2), prefetch=(1, 3), rounds=1)
    )
    assert {
        row.parameters["workers"] for row in results.measurements if row.contestant == "DataLoader"
    } == {0, 1, 2, 4}
    parameters = [
        tuple(row.parameters.values())
        for row in results.measurements
        if row.contestant == "turbojpeg"
    ]
    # No worker processes, so 0 of them would be 1 thread.
    assert parameters == [
        ("default", "default"),
        (1, "default"),
        (2, "default"),
        ("default", 1),
        ("default", 3),
    ]
    assert [note.split(":")[0] for note in results.notes if "turbojpeg" in note][-2:] == [
        "Workers",
        "Batches of prefetch",
    ]


@pytest.mark.whole
def test_a_missing_backend_says_once_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload.backends import base

    monkeypatch.setattr(base, "_importable", lambda package: False)
    results = run_loader_benchmark(
        _settings(folder, backends=("dali", "turbojpeg"), workers=(1, 2), rounds=1)
    )
    row = _row(results, "dali")
    assert row.status == "unavailable"
    assert install_command("dali") in row.note
    assert _row(results, "turbojpeg", workers=1).rounds


@pytest.mark.whole
def test_ctrl_c_prints_and_saves_what_was_measured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, run = itertools.count(), LoaderRunner.run

    def interrupted(self: LoaderRunner, seconds: float) -> Work:
        if next(runs) == 7:  # three rows warm up, and then come two rounds of each
            raise KeyboardInterrupt
        return run(self, seconds)

    monkeypatch.setattr(LoaderRunner, "run", interrupted)
    kept = tmp_path / "kept.json"
    command = [
        "bench",
        "loader",
        str(folder),
        "--backends",
        "turbojpeg,DataLoader",
        "--consume",
        "2000",
    ]
    command += [
        "--time",
        "0.05",
        "--rounds",
        "9",
        "--batch-size",
        "4",
        "--device",
        "cpu",
        "--json",
        str(kept),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 130, done.output
    assert "Stopped before the end" in done.output
    results = from_json(kept.read_text(), "kept")
    assert not results.complete
    assert 1 <= len(_row(results, "turbojpeg").rounds) < 9


@pytest.mark.slow
def test_command_prints_a_table_and_writes_the_files(folder: Path, tmp_path: Path) -> None:
    command = [
        "bench",
        "loader",
        str(folder),
        "--backends",
        "turbojpeg",
        "--consume",
        "2000",
        "--time",
        "0.02",
    ]
    command += [
        "--rounds",
        "1",
        "--batch-size",
        "4",
        "--device",
        "cpu",
        "--csv",
        str(tmp_path / "rows.csv"),
    ]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "The simulated trainer takes 2,000 img/s; `turbojpeg` gives" in done.output
    header, line = (tmp_path / "rows.csv").read_text().splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["contestant"] == "turbojpeg"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"backends": ("turbo",)}, "--backends: 'turbo' is not known"),
        ({"workers": (-1,)}, "--workers"),
        ({"prefetch": (0,)}, "--prefetch"),
        ({"consume": 0.0}, "--consume"),
        ({"device": "gpu"}, "--device gpu"),
    ],
)
def test_bad_settings_are_refused(folder: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        run_loader_benchmark(_settings(folder, **changes))


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such folder"):
        run_loader_benchmark(_settings(tmp_path / "absent"))
    (tmp_path / "class").mkdir()
    (tmp_path / "class/0.jpg").write_bytes(b"nothing")
    with pytest.raises(FastloadError, match=r"none of 1 image can be decoded"):
        run_loader_benchmark(_settings(tmp_path))
    with pytest.raises(ConfigurationError, match="--network nonsense"):
        NetworkTrainer("nonsense", 2, torch.device("cpu"))


def test_cache_size_is_that_of_the_cache(folder: Path, tmp_path: Path) -> None:
    built = fastload.build_cache(str(folder), tmp_path / "cache", progress=False)
    real = sum(file.stat().st_size for file in built.iterdir())
    assert cache_bytes(open_source(str(folder)).source) == pytest.approx(real, rel=0.05)


def test_large_folders_are_sampled_but_the_cache_is_of_all(folder: Path, tmp_path: Path) -> None:
    whole, part = (read_loader_images(folder, most, tmp_path / str(most)) for most in (12, 4))
    assert (len(part.source), part.total, part.cache_bytes) == (4, 12, whole.cache_bytes)
    assert part.original(part.source.describe(0)).startswith(str(folder))


def test_simulated_trainer_is_not_slowed_by_what_happens_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds + 0.001  # wakes late

    monkeypatch.setattr(time, "sleep", sleep)
    trainer, batch = RateTrainer(rate=100.0), (torch.zeros(10), torch.zeros(10))
    trainer.step(*batch)
    now[0] += 0.05  # the next batch comes while it works
    trainer.step(*batch)
    now[0] += 0.5  # and the next one too late: 0.5 after the second began, 0.4 after it ended
    trainer.step(*batch)
    first, second, third = trainer.steps()
    assert second[0] == first[1] == pytest.approx(0.1, abs=0.002)
    assert third[0] - second[1] == pytest.approx(0.4, abs=0.003)


def test_gaps_and_busy_share_of_a_known_timeline() -> None:
    steps = [(1.0, 2.0), (2.0, 3.0), (3.5, 4.0)]
    assert gaps(steps) == [1.0, 0.0, 0.5]
    assert busy_series(steps, bins=4) == ((0.0, 0.0), (1.0, 1.0), (2.0, 1.0), (3.0, 0.5))
    assert busy_series([], bins=4) == ()


@pytest.mark.slow
def test_network_trainer_knows_when_it_was_busy() -> None:
    trainer = NetworkTrainer("small", 2, torch.device("cpu"))
    trainer.restart()
    started = time.perf_counter()
    time.sleep(0.05)
    for _ in range(2):
        trainer.step(torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64))
    elapsed = time.perf_counter() - started
    steps = trainer.steps()
    flat = [at for step in steps for at in step]
    assert flat == sorted(flat)
    assert 0.05 <= flat[0] < flat[-1] <= elapsed + 0.01
    assert len(gaps(steps)) == len(steps) == 2
    assert gaps(steps)[0] >= 0.05
    trainer.restart()
    assert trainer.steps() == []


class _Epochs:
    """Three batches an epoch."""

    substituted = 0

    def __init__(self) -> None:
        self.epochs = 0
        self.closed = False

    def __iter__(self) -> Iterator[Batch]:
        self.epochs += 1
        for _ in range(3):
            yield torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64)

    def close(self) -> None:
        self.closed = True


class _Clock:
    """Time passes while somebody sleeps, and at no other time [seconds]."""

    def __init__(self) -> None:
        self._now = 0.0

    def perf_counter(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def test_a_round_goes_on_to_the_end_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "time", _Clock())
    feed = _Epochs()
    runner = LoaderRunner(lambda: feed, RateTrainer(20.0))
    work = runner.run(0.15)  # two batches would do
    assert feed.epochs == 2
    assert work.samples == 2 * 4
    assert work.metrics["epoch_gap_seconds"] == 0.0
    assert work.seconds == pytest.approx(0.4), "8 images at 20 a second"
    runner.close()
    assert feed.closed


@pytest.mark.gpu
def test_on_a_gpu_its_own_timeline_and_the_driver_are_asked(folder: Path) -> None:
    results = run_loader_benchmark(
        _settings(folder, consume=None, device="cuda", seconds=0.5, backends=("turbojpeg",))
    )
    row = _row(results, "turbojpeg")
    for name in ("wait_share", "gpu_busy_share", "gpu_idle_windows", "peak_gpu_memory_bytes"):
        assert row.metric(name) is not None
    assert row.series["gpu_utilisation"]


def _measured(
    contestant: str, rates: list[float], wait: float = 0.0, **parameters: int | str
) -> Measurement:
    settings = (
        {"workers": "default", "prefetch": "default"} | parameters
        if contestant != "trainer alone"
        else {}
    )
    made = tuple(
        Round(int(rate), 1.0, 1.0, {"wait_share": wait, "step_seconds": 0.01}) for rate in rates
    )
    return Measurement(contestant, "training", settings, rounds=made)


_SITUATION: dict[str, Any] = {
    "consume": None,
    "cache_bytes": 4_100_000_000,
    "memory": 64_000_000_000,
    "caches": {"cache"},
}


def test_verdict_in_words() -> None:
    found = verdict(
        [
            _measured("trainer alone", [1900, 1901, 1899]),
            _measured("DataLoader", [400, 401, 402], 0.8, workers=0),
            _measured("DataLoader", [680, 679, 681], 0.64, workers=4),
            _measured("turbojpeg", [1850, 1851, 1849], 0.03),
            _measured("dali", [900, 901, 899], 0.5),
            _measured("cache", [1900, 1899, 1898], 0.0),
        ],
        **_SITUATION,
    )
    assert found == [
        "Your trainer takes 1,900 img/s; the DataLoader (4 workers) gives 680; `turbojpeg` gives "
        "1,850: 3% waiting left; build a cache (4.1 GB) for 1,899: 0% waiting left.",
        "`turbojpeg` is 2.7 times as fast as the DataLoader.",
    ]


def test_verdict_says_when_there_is_nothing_to_gain() -> None:
    found = verdict(
        [
            _measured("DataLoader", [1000, 1010, 990], 0.0, workers=4),
            _measured("turbojpeg", [1001, 1011, 991], 0.0),
            _measured("cache", [1001, 1009, 992], 0.0),
        ],
        **_SITUATION | {"consume": 1000.0, "cache_bytes": 40_000_000, "memory": 10_000_000},
    )
    assert found[0].startswith("The simulated trainer takes 1,000 img/s;")
    assert found[0].endswith("a cache (40 MB) gives 1,001: 0% waiting left, no real gain.")
    assert "differ by no more than the rounds scatter" in found[1]
    assert "larger than this machine's memory (10 MB)" in found[2]


@pytest.mark.parametrize(
    ("rates", "wait", "words"),
    [
        ([700, 701, 702], 0.02, "a cache (4.1 GB) gives 701: 2% waiting left, no real gain."),
        ([900, 1000, 800], 0.02, "build a cache (4.1 GB) for 900: 2% waiting left."),
        ([900, 1000, 800], 0.2, "a cache (4.1 GB) gives 900: 20% waiting left, no real gain."),
        (
            [1200, 1201],
            0.02,
            "a cache (4.1 GB) gives 1,200: 2% waiting left, and 2 rounds cannot tell whether that "
            "is a gain (three can).",
        ),
        ([700], 0.02, "and 1 round cannot tell whether that is a gain (three can)."),
    ],
)
def test_a_cache_is_advised_by_its_own_figures(rates: list[float], wait: float, words: str) -> None:
    """Not because its trainer waits less while its steps are slower, nor by too few rounds."""
    found = verdict(
        [_measured("turbojpeg", [900, 901, 899], 0.2), _measured("cache", rates, wait)],
        **_SITUATION,
    )
    assert found[0].endswith(words)


def test_verdict_of_one_round_claims_no_difference() -> None:
    found = verdict(
        [_measured("DataLoader", [1000], workers=4), _measured("turbojpeg", [900])], **_SITUATION
    )
    assert found[1:] == [
        "Fewer than three rounds of some: too few to tell a difference from scatter."
    ]


def test_verdict_of_nothing_is_nothing() -> None:
    assert verdict([Measurement("turbojpeg", "training", status="not run")], **_SITUATION) == []


@pytest.mark.parametrize(
    ("rates", "turn", "words"),
    [
        ([100, 200, 199, 150], 2, "turbojpeg 200 img/s with 2, only 150 with 8"),
        ([100, 200, 201, 202], 2, "turbojpeg 200 img/s with 2, no more with more"),
        ([100, 200, 300, 400], 8, "turbojpeg 400 img/s with 8 and still rising"),
    ],
)
def test_where_a_sweep_turns(rates: list[float], turn: int, words: str) -> None:
    swept = [
        _measured("turbojpeg", [r, r + 0.1, r - 0.1], workers=n)
        for n, r in zip((1, 2, 4, 8), rates, strict=True)
    ]
    (curve,) = curves(
        [*swept, _measured("turbojpeg", [999]), _measured("turbojpeg", [9], prefetch=2)], "workers"
    )
    assert curve.turn == turn
    assert curve.words() == words


def test_a_sweep_within_the_scatter_says_so() -> None:
    swept = [
        _measured("dali", [100, 300, 200], workers=1),
        _measured("dali", [110, 310, 190], workers=2),
    ]
    (curve,) = curves(swept, "workers")
    assert curve.words().endswith("(all within the scatter)")


def test_names_are_the_backends_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastload, "available_backends", lambda: [BackendStatus("mine", True)])
    assert contestant_names() == ("DataLoader", "mine")
