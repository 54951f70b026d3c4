"""The benchmark for GPUs, on the CPU with the smallest sizes: every part runs, and says what it
should. Not speed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from benchmarks.gpu import (
    checks,
    cifar,
    decode,
    idle,
    pairs,
    run,
    soak,
    streams,
    threads,
    trainer,
    training,
)
from benchmarks.gpu import goals as page
from benchmarks.gpu.feeds import Variant, every_variant, synthetic, variants
from benchmarks.gpu.goals import goals, summary
from benchmarks.gpu.pairs import OF_SYNTHETIC, resolution
from benchmarks.gpu.setting import DRY, FULL, Found, Setting
from benchmarks.gpu.training import small_resnet
from benchmarks.inputs import ROOT
from fastload.backends.base import HostBatch
from fastload.device import DeviceStage
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError
from fastload.recipe import Recipe
from fastload.recipe.outputs import Outputs
from fastload.render.jpegs_on_device import ON_HOST
from fastload.tools.measure.child import report
from fastload.tools.measure.images import training_pixels
from fastload.tools.measure.results import Measurement, Round, new_results, read_json, to_json
from fastload.tools.measure.statistics import summarise
from tests.images import write_photo_folder
from tests.simulated_gpu import GPU, LazyGpu
from tests.waiting import LIMIT, has_ended, wait_until

SETTING = replace(
    DRY,
    images=8,
    batch_size=2,
    check_batch_size=2,
    dataloader_workers=(0,),
    threads=(1,),
    rate_seconds=0.02,
    turn_seconds=0.05,
    profile_seconds=0.02,
    small_batch_sizes=(64,),
    small_images=128,
)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    root = tmp_path_factory.mktemp("gpu")
    photos = write_photo_folder(root / "photos", classes=2, per_class=4, size=(60, 70))
    (root / "out").mkdir()
    return replace(SETTING, photos=str(photos), kept=str(root), out=str(root / "out"))


def row(contestant: str, mode: str, **metrics: float) -> Measurement:
    return Measurement(contestant, mode, rounds=(Round(0, 0.0, 0.0, metrics),))


def by_name(found: Found, mode: str) -> dict[str, Measurement]:
    return {row.contestant: row for row in found.rows.values() if row.mode == mode}


def value(row: Measurement, name: str) -> float:
    (only,) = row.metrics(name)
    return only


def only(monkeypatch: pytest.MonkeyPatch, module: Any, *names: str) -> None:
    """Let a part see these variants only: the others are served by the same lines."""
    monkeypatch.setattr(
        module, "variants", lambda setting: [v for v in variants(setting) if v.name in names]
    )


# -- correctness


@pytest.mark.whole
def test_streams_finds_nothing_wrong_with_loaders_that_are_right(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, streams, "turbojpeg", "cache, device")
    found = Found(600)
    streams.run(setting, found)
    rows = by_name(found, streams.STREAMS)
    assert {name: value(row, "wrong") for name, row in rows.items()} == {
        "turbojpeg": 0,
        "cache, device": 0,
    }
    assert all(value(row, "distinct") > 1 for row in rows.values())
    assert all(row.metrics("read_before_ready") == [0] for row in rows.values())


class Reusing:
    """A loader that writes each batch to the memory of the one before."""

    batches_in_flight = 0

    def __enter__(self) -> Reusing:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def close(self) -> None: ...

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        stage = DeviceStage.__new__(DeviceStage)
        for number in range(8):
            images.fill_(number)
            if DeviceStage.run is not ORIGINAL:
                with pytest.raises(AttributeError):  # nothing of a stage is there
                    stage.run(None, None, number)  # type: ignore[arg-type]
            yield images, torch.zeros(2, dtype=torch.int64)


ORIGINAL = DeviceStage.run


def test_streams_finds_a_loader_that_writes_to_batches_which_are_kept(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Variant, "create", lambda self, setting, **arguments: Reusing())
    only(monkeypatch, streams, "turbojpeg")
    found = Found(600)
    streams.run(setting, found)
    row = by_name(found, streams.STREAMS)["turbojpeg"]
    assert value(row, "used_at_once") == 0
    # Each but those that happen to be read when their own number is in the memory again.
    assert value(row, "kept") > value(row, "batches") / 2
    verdict = next(
        v
        for v in goals(list(found.rows.values()), gpu=False)
        if v.what == "backends whose batches change"
    )
    assert verdict.reached is False


def test_the_loaders_own_stream_is_held_up_or_the_check_fails(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streams.stage_held_up(torch.device("cpu")) as delayed:
        with Variant("turbojpeg", "turbojpeg").create(
            setting, transform=training_pixels(32)
        ) as loader:
            began = time.perf_counter()
            batches = sum(1 for _ in loader)
            assert time.perf_counter() - began >= 0.001 * batches
    assert delayed[:batches] == list(range(batches))
    assert DeviceStage.run is ORIGINAL

    def without_a_stage(self: Variant, setting: Setting, **arguments: Any) -> Any:
        return Unstaged()

    class Unstaged(Reusing):
        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for number in range(8):
                yield (
                    torch.full((2, 3, 4, 4), number, dtype=torch.uint8),
                    torch.zeros(2, dtype=torch.int64),
                )

    monkeypatch.setattr(Variant, "create", without_a_stage)
    only(monkeypatch, streams, "turbojpeg")
    found = Found(600)
    streams.run(setting, found)
    (row,) = by_name(found, streams.STREAMS).values()
    assert (row.status, "not held up" in row.note) == ("failed", True)


def test_on_a_gpu_it_is_the_stages_own_stream_that_is_held_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one would hold up nothing of a backend that delivers memory of the host."""
    gpu = LazyGpu(monkeypatch)
    program = Recipe.from_transform(None).split().batch
    stage = DeviceStage(device=GPU, programs=[program], outputs=Outputs(()))
    with streams.stage_held_up(GPU) as delayed:
        for number in range(3):
            stage.run(HostBatch({"a": np.zeros(4)}), Draws(0, 0, np.arange(4)), number)
    assert delayed == [0, 1, 2]
    assert gpu.sleeps == [stage.stream] * 3
    assert gpu.current is gpu.trainer


def test_one_pixel_that_is_wrong_or_elsewhere_changes_the_checksum() -> None:
    images = torch.arange(2 * 3 * 5 * 5, dtype=torch.uint8).view(2, 3, 5, 5)
    changed, moved = images.clone(), images.clone()
    changed[1, 2, 3, 4] += 1
    moved[0, 0, 0, 0], moved[0, 0, 0, 1] = images[0, 0, 0, 1], images[0, 0, 0, 0]
    assert len({int(streams.checksum(batch)) for batch in (images, changed, moved)}) == 3
    last = images.contiguous(memory_format=torch.channels_last)
    assert int(streams.checksum(last)) == int(streams.checksum(images))
    batches = [(batch, torch.zeros(2)) for batch in (images, changed, images)]
    wanted = streams.awaited(iter([(images, torch.zeros(2))] * 3))
    assert streams.differing(streams.used(iter(batches)), wanted) == 1
    assert streams.differing(streams.used(iter(batches), keep=2, late=False), wanted) == 1
    assert streams.differing(wanted[:1], wanted) == 2


@pytest.mark.whole
def test_checks_tell_right_from_wrong_pixels(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, checks, "turbojpeg", "cache, disk", "cache, device")
    found = Found(600)
    monkeypatch.setattr(
        checks, "_suite", lambda *given: row("pytest", checks.SUITE, passed=1, failed=0)
    )
    checks.run(setting, found)
    pixels, resumed = by_name(found, checks.PIXELS), by_name(found, checks.RESUME)
    assert [value(row, "wrong") for row in (*pixels.values(), *resumed.values())] == [0] * 6
    assert value(pixels["turbojpeg"], "largest_difference") <= 2
    assert value(pixels["cache, device"], "psnr_db") > 45
    assert all(row.metrics("host_bytes") for row in by_name(found, checks.MEMORY).values())
    assert next(iter(by_name(found, checks.OTHER_GPUS).values())).status == "unavailable"

    made = checks._images
    darker = Variant("dark", "turbojpeg")
    monkeypatch.setattr(
        checks,
        "_images",
        lambda given, v, *more: made(given, v, *more) // (3 if v == darker else 1),
    )
    assert checks._pixels(setting, darker)["wrong"] == 1


def test_resuming_elsewhere_is_noticed(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    import fastload

    monkeypatch.setattr(fastload.Loader, "load_state_dict", lambda self, state: None)
    assert checks._resume(setting, Variant("turbojpeg", "turbojpeg"))["wrong"]


@pytest.mark.parametrize(
    ("device", "only", "wanted"),
    [
        ("cpu", (), ""),
        ("cuda", (), "not dali-mixed"),
        ("cuda", ("dali, mixed",), "dali-mixed"),
    ],
)
def test_the_contract_tests_of_what_may_die_have_a_process_of_their_own(
    monkeypatch: pytest.MonkeyPatch, device: str, only: tuple[str, ...], wanted: str
) -> None:
    asked: list[str] = []

    def suite(setting: Setting, chosen: str, seconds: float) -> Measurement:
        asked.append(chosen)
        return row("pytest", checks.SUITE, passed=1, failed=0)

    monkeypatch.setattr(checks, "_suite", suite)
    monkeypatch.setattr(checks, "_contexts_elsewhere", lambda device: {})
    checks.run(Setting(device=device, only=only), Found(1.0))
    assert asked == [wanted]


def test_the_contract_suite_is_counted() -> None:
    reports = [
        ("test_a[turbojpeg-threads]", "passed", ""),
        ("test_a[turbojpeg]", "passed", ""),
        ("test_b[cache-disk-rrc-flip]", "failed", "assert 1 == 2\nmore"),
        ("test_c[2-dali]", "skipped", "Skipped: dali is not installed"),
    ]
    found = checks.tally("pytest", reports, "interrupted after 3 s")
    assert [value(found, name) for name in ("passed", "failed", "skipped")] == [2, 1, 1]
    assert [(f.name, f.message) for f in found.failures] == [
        ("test_b[cache-disk-rrc-flip]", "assert 1 == 2")
    ]
    assert found.note == "interrupted after 3 s; 1 skipped: dali is not installed"
    verdict = goals([checks.tally("pytest", [("a", "skipped", "no")])], gpu=False)[0]
    assert (verdict.what, verdict.reached) == ("contract tests that fail on the device", False)


@pytest.mark.whole
def test_the_contract_suite_reports_each_test(setting: Setting) -> None:
    found = checks._suite(replace(setting, contract="agree_on_every_random"), "turbojpeg", 1200)
    assert (found.status, found.failures) == ("measured", ())
    assert value(found, "passed") > 0


# -- speed


@pytest.mark.whole
def test_what_cannot_be_compiled_is_measured_uncompiled_and_said(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(network: Any) -> Any:
        def fail(images: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(
                "Failed to find C compiler.\nPlease specify via CC environment variable."
            )

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    found = Found(600)
    networks = (*setting.networks, training.SMALL)
    given = replace(setting, compile=True, networks=networks, small_training_batch_size=2)
    training.run(given, found)
    rows = by_name(found, training.COMPILED)
    assert set(rows) == {*setting.networks, training.SMALL}
    assert {row.note for row in rows.values()} == {
        "not compiled: RuntimeError: Failed to find C compiler."
    }
    assert all(value(row, "seconds") > 0 for row in rows.values())


@pytest.mark.whole
def test_what_can_be_compiled_is() -> None:
    compiled = []
    trainer = small_resnet(torch.device("cpu"))
    batch = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda network: compiled.append(network) or network)
        trainer.warm_up(batch, compiled=True)
        trainer.warm_up(batch, compiled=False)
    assert len(compiled) == 1
    assert trainer.note == ""


@pytest.mark.whole
def test_every_contestant_has_a_rate_and_the_synthetic_one_is_all_of_itself(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason='needs matplotlib: pip install ".[report]"')
    every = idle.contestants
    names = ("synthetic", "DataLoader, 0 workers", "fastload turbojpeg")
    monkeypatch.setattr(
        idle, "contestants", lambda setting: {name: every(setting)[name] for name in names}
    )
    found = Found(100)
    idle.run(setting, found)
    rows = by_name(found, idle.mode(setting.networks[0]))
    assert tuple(rows) == names
    for name, row in rows.items():
        assert row.status == "measured"
        assert row.speed > 0
        assert 0 < value(row, "busy_share") <= 1
        assert value(row, "host_cpu_share") > 0
        profiled = by_name(found, f"profiler, {row.mode}")[name]
        assert value(profiled, "steps") >= 2
        assert 0 < value(profiled, "busy_share") <= 1
    assert value(rows["synthetic"], OF_SYNTHETIC) == 1
    assert value(rows["synthetic"], "wait_share") < value(
        rows["DataLoader, 0 workers"], "wait_share"
    )
    assert (Path(setting.out) / f"timeline-{setting.networks[0]}.png").stat().st_size > 1000


@pytest.mark.whole
def test_a_contestant_that_fails_does_not_end_the_others(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        raise RuntimeError("it broke")

    monkeypatch.setattr(
        idle,
        "contestants",
        lambda setting: {"broken": broken, idle.SYNTHETIC: lambda: synthetic(setting)},
    )
    found = Found(600)
    idle.run(setting, found)
    rows = by_name(found, idle.mode(setting.networks[0]))
    assert (rows["broken"].status, rows["broken"].note) == ("failed", "RuntimeError: it broke")
    assert value(rows["synthetic"], OF_SYNTHETIC) == 1
    assert [row.contestant for row in found.rows.values() if row.mode.startswith("profiler")] == [
        idle.SYNTHETIC
    ]


def test_whatever_comes_of_a_contestant_is_its_row() -> None:
    def missing() -> Round:
        raise BackendUnavailableError("pip install it")

    def broken() -> Round:
        raise KeyError("x")

    found = Found(600)
    found.attempt("right", "m", lambda: {"wrong": 0.0})
    found.attempt("missing", "m", missing)
    found.attempt("broken", "m", broken)
    found.attempt("late", "m", dict, least=1000)
    assert {row.contestant: (row.status, row.note) for row in found.rows.values()} == {
        "right": ("measured", ""),
        "missing": ("unavailable", "pip install it"),
        "broken": ("failed", "KeyError: 'x'"),
        "late": ("not run", "no time was left"),
    }


@pytest.mark.slow
def test_decoders_have_rates(setting: Setting) -> None:
    pytest.importorskip("nvidia.dali", reason='needs DALI: pip install ".[dali]"')
    every = tuple(decoder.name for decoder in decode.decoders(setting))
    found = Found(600)
    decode.run(replace(setting, only=every), found)
    assert {row.contestant for row in found.rows.values()} == set(every)
    for row in found.rows.values():
        assert row.status == "measured" or (row.status, "pip install" in row.note) == (
            "unavailable",
            True,
        )
        compared = row.mode == decode.SAME
        assert row.status == "unavailable" or (row.speed > 0) != compared
    assert {row.contestant for row in found.rows.values() if row.status == "measured"} > {
        "torchvision, CPU",
        "DALI graph, region decoded",
        "DALI graph, whole decoded, then cut",
        "fastload turbojpeg",
    }


def test_dali_decodes_whole_photographs_without_its_hardware_engine(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is reported not to keep to the order of the stream."""
    dali = MagicMock()
    dali.readers.file.return_value = dali.random_crop_generator.return_value = 1, 2
    monkeypatch.setattr(decode, "_package", lambda module: dali)
    monkeypatch.setattr(decode, "rate_of", lambda *sizes, **given: None)
    decode._dali_graph(replace(setting, device="cuda"), False, 1)
    given = dali.decoders.image.call_args.kwargs
    assert (given["device"], given["hw_decoder_load"]) == ("mixed", 0.0)


def test_two_loaders_are_emptied_side_by_side(setting: Setting) -> None:
    first, second = (v for v in every_variant(setting) if v.name in ("turbojpeg", "cache, disk"))
    assert decode._crops(setting, (first, second), 2).samples > 0


@pytest.mark.whole
def test_cifar_gives_the_rate_alone_and_the_share_of_a_training(setting: Setting) -> None:
    found = Found(600)
    cifar.run(setting, found)
    assert set(by_name(found, cifar.ALONE)) == {"batches of 64, uint8", "batches of 64, normalised"}
    (row,) = by_name(found, cifar.SHARE).values()
    assert len(row.rounds) == setting.small_training_turns
    assert "resolution of the loader's share" in row.note
    for r in row.rounds:
        assert r.samples == setting.small_training_steps * setting.small_training_batch_size
        assert r.seconds == pytest.approx(
            setting.small_training_steps * (r.metrics["step_seconds"] or 0)
        )


def test_a_share_is_reported_with_its_resolution() -> None:
    coarse = [row("net", cifar.SHARE, loader_share=share) for share in (-0.02, 0.0, 0.02)]
    shares = [value(r, "loader_share") for r in coarse]
    assert resolution(summarise(shares)) == pytest.approx(1.57 * 0.02 / 3**0.5)
    said = {verdict.what: verdict for verdict in goals(coarse, gpu=True)}
    assert said["CIFAR-10 training, the loader's share of a step"].reached
    assert (
        said["CIFAR-10 training, the loader's share of a step, resolution of that"].reached is False
    )


@pytest.mark.whole
def test_threads_measures_beside_and_apart(setting: Setting) -> None:
    found = Found(600)
    threads.run(setting, found)
    rows = by_name(found, threads.STEPS)
    assert set(rows) == {threads.ALONE, threads.BESIDE, threads.APART, threads.FED}
    assert all(value(row, "median_step_seconds") > 0 for row in rows.values())
    assert any("Shortest step" in note for note in found.notes)


@pytest.mark.parametrize(
    ("beside", "apart", "advice"),
    [
        (1.01, 1.0, "threads beside the trainer"),
        (1.2, 1.01, "a process of their own"),
        (1.2, 1.19, "threads beside"),
    ],
)
def test_the_advice_follows_from_the_difference(beside: float, apart: float, advice: str) -> None:
    def rows(count: int) -> Iterator[Measurement]:
        lengths = {
            threads.ALONE: 1.0,
            threads.BESIDE: beside,
            threads.APART: apart,
            threads.FED: 1.0 + count / 100,
        }
        for way, length in lengths.items():
            done = (Round(0, 0.0, 0.0, {"median_step_seconds": length}),)
            yield Measurement(way, threads.STEPS, {"threads": count}, rounds=done)

    said = threads.recommend([*rows(4), *rows(8)])
    assert said.startswith(advice)
    assert said.endswith("with 4 threads.")


# -- the command


@pytest.mark.slow
def test_goals_are_judged_from_the_rows() -> None:
    large, small = idle.mode("resnet50"), idle.mode("resnet18")
    rows = [
        row("pytest", checks.SUITE, passed=9, failed=0),
        row("a", checks.PIXELS, wrong=0),
        row("a", checks.RESUME, wrong=3),
        row("a", streams.STREAMS, wrong=0, against_the_cpu=0, normalised_against_the_cpu=2),
        row("a", streams.PAGE_LOCKED, wrong=0),
        row("bf16", trainer.TRAINER, wrong=0),
        Measurement("EMA", trainer.TRAINER, status="failed"),
        row("a", soak.SOAK, longest_gap_seconds=0.75, median_step_seconds=0.5),
        row("a", soak.KERNELS_OF_AN_END, longest_gap_seconds=0.01, median_step_seconds=0.1),
        Measurement("b", streams.STREAMS, status="unavailable"),
        row("synthetic", large, of_synthetic_share=1.0),
        row("fastload a", large, of_synthetic_share=0.97),
        row("fastload a", pairs.mode_of(large), of_synthetic_share=0.996),
        row("fastload b", large, of_synthetic_share=0.49),
        row("fastload torch", large, of_synthetic_share=0.3),
        row("DataLoader, 16 workers", small, of_synthetic_share=0.99),
        row("fastload a", small, of_synthetic_share=0.96),
        Measurement("batches of 512", cifar.ALONE, rounds=(Round(1_000_000, 1.0, 0.0),)),
        Measurement("batches of 2048", cifar.ALONE, rounds=(Round(25_000_000, 1.0, 0.0),)),
        row("net", cifar.SHARE, loader_share=0.02),
    ]
    said = {verdict.what: verdict for verdict in goals(rows, gpu=True)}
    assert said["contract tests that fail on the device"].reached
    assert said["checks on photographs that are not right"].reached is False
    assert said["backends whose batches change"].reached
    assert said["batches that differ from the CPU's, by checksum"].value == 2
    assert said["ResNet-50, fastload a, of the synthetic rate"].reached
    assert str(said["ResNet-50, fastload b, of the synthetic rate"]).startswith("MISSED by 50.0%")
    assert said["ResNet-50, the best backend (fastload a), of the synthetic rate"].reached
    assert "ResNet-50, fastload torch, of the synthetic rate" not in said
    assert said["ResNet-18, fastload a, of the synthetic rate"].reached
    best = said["ResNet-18, the best backend (fastload a), of the synthetic rate"]
    assert (best.bound, best.reached) == (0.98, False)
    gaps = said["longest time without a batch, epoch ends included, in steps"]
    assert (gaps.value, gaps.reached) == (1.5, False)
    assert said["longest gap between kernels at an epoch's end, in steps"].reached
    assert said["ways of the trainer that are not right"].value == 1
    locked = "backends that copy from ordinary memory, or page-lock in every epoch"
    assert said[locked].reached
    assert said["CIFAR-10 resident on the device, the loader alone"].reached
    assert str(said["CIFAR-10 training, the loader's share of a step"]).startswith(
        "MISSED by 100.0%"
    )
    assert {verdict.reached for verdict in goals([], gpu=True)} == {None}
    results = new_results("gpu", {"device": "cuda:0"}, rows, verdicts=goals(rows, gpu=True))
    assert summary(results).splitlines()[-1].startswith("not measured")
    assert not any(
        "CIFAR" in verdict.what or "ResNet" in verdict.what for verdict in goals(rows, gpu=False)
    )


def test_the_page_of_several_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, name in zip(paths, "ab", strict=True):
        rows = [row(name, checks.PIXELS, wrong=1)]
        path.write_text(to_json(new_results("gpu", {"device": "cpu"}, rows)))
    assert page.main([str(path) for path in paths]) == 0
    said = capsys.readouterr().out.splitlines()
    (line,) = [line for line in said if "checks on photographs" in line]
    assert line.startswith("MISSED"), line
    assert line.endswith("<= 0: 2"), line
    with pytest.raises(SystemExit) as ended:
        page.main(["--help"])
    assert ended.value.code == 0
    assert "results.json of a call" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        page.main([str(tmp_path / "no.json")])
    assert ended.value.code == 2
    assert "no.json: cannot be read" in capsys.readouterr().err


def test_a_table_by_cores_has_a_column_of_each_and_says_whose_a_note_is() -> None:
    share = {"of_synthetic_share": 0.5}
    rows = [
        Measurement("mine", "by", {"cores": n}, note="known", rounds=(Round(1, 1.0, 0.0, share),))
        for n in (1, 2)
    ]
    lines = summary(new_results("gpu", {"device": "cpu"}, rows)).splitlines()
    (heading,) = (number for number, line in enumerate(lines) if line.startswith("by "))
    assert lines[heading].split() == ["by", "1", "core", "2", "cores"]
    assert lines[heading + 1].split() == ["mine", "50.0%", "50.0%"]
    assert lines[heading + 2 : heading + 4] == ["  mine, cores 1: known", "  mine, cores 2: known"]


def test_what_many_rows_say_is_said_once() -> None:
    rows = [
        Measurement("DALI", decode.CROPS, {"threads": n}, status="failed", note="it broke")
        for n in (1, 2)
    ]
    assert summary(new_results("gpu", {"device": "cpu"}, rows)).count("it broke") == 1


@pytest.mark.whole
def test_the_command_writes_results_and_prints_the_goals_last(
    tmp_path: Path,
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run, "DRY", SETTING)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "out"
    assert (
        run.main(
            [
                "--device",
                "cpu",
                "--dry-run",
                "--out",
                str(out),
                "--photos",
                setting.photos,
                "--parts",
                "cifar",
                "--set",
                "small_batch_sizes=16,32",
                "--set",
                "small_training_turns=2",
                "--minutes",  # for a machine with other work; less than WHOLE of conftest.py
                "20",
            ]
        )
        == 0
    )
    results = read_json(out / "results.json")
    assert {row.mode for row in results.measurements} == {
        training.COMPILED,
        cifar.SHARE,
        cifar.ALONE,
    }
    assert {row.status for row in results.measurements} == {"measured"}
    assert [results.settings[name] for name in ("small_batch_sizes", "small_training_turns")] == [
        [16, 32],
        2,
    ]
    assert not any("photographs" in note for note in results.notes)  # this part needs none
    assert any("DRY RUN" in note for note in results.notes)
    assert any(note.startswith("cifar: complete") for note in results.notes)
    assert {v.reached for v in results.verdicts} == {None}
    printed = capsys.readouterr().out
    assert printed.strip() == summary(results)
    assert printed.splitlines()[-1].startswith("not judged")
    assert {path.name for path in out.iterdir()} == {"results.json", "summary.txt", "log.txt"}


def hangs(name: str, setting: Setting, seconds: float) -> None:
    """A part that starts a process in a session of its own, says so, and does not come back."""
    import subprocess

    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True
    )
    report(row("hung", "a part", child=child.pid))
    time.sleep(100)


def dies(name: str, setting: Setting, seconds: float) -> None:
    """A contestant that ends its process; those without it live."""
    import os

    report(row(setting.only[0] if setting.only else "safe", "a part", wrong=0))
    if setting.only:
        os.abort()


def parts_in(
    tmp_path: Path, function: str, apart: list[str], monkeypatch: pytest.MonkeyPatch, seconds: float
) -> run.Run:
    """A run of the part "cifar", which is this function instead."""
    real = run.process.run
    given = {"environment": None, "cwd": ROOT}
    monkeypatch.setattr(
        run.process,
        "run",
        lambda _, *arguments, **options: real(
            f"tests.test_benchmark_gpu:{function}", *arguments, **(options | given)
        ),
    )
    monkeypatch.setitem(run.PARTS, "cifar", run.Part("test", "cifar:run", 1, lambda setting: apart))
    setting = replace(SETTING, kept=str(tmp_path), out=str(tmp_path))
    found = run.Run(setting, time.monotonic() + seconds, dry=True)
    found.part("cifar", [])
    return found


@pytest.mark.slow
@pytest.mark.reliability
def test_a_part_that_hangs_is_ended_with_all_it_started_and_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 60 s left for it, of which a busy machine needs 20 to start Python.
    monkeypatch.setattr(run, "_GRACE", -20.0)
    found = parts_in(tmp_path, "hangs", [], monkeypatch, 80)
    (row,) = found.results.measurements
    assert row.contestant == "hung"
    assert any(note.startswith("cifar: ended: its time was over") for note in found.results.notes)
    child = int(value(row, "child"))
    wait_until(lambda: has_ended(child))
    assert read_json(tmp_path / "results.json").measurements == (row,)


@pytest.mark.reliability
def test_a_contestant_that_ends_its_process_takes_no_rows_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parts_in(tmp_path, "dies", ["reckless", "also"], monkeypatch, 600)
    assert [row.contestant for row in found.results.measurements] == ["safe", "reckless", "also"]
    assert any(
        "cifar: reckless: failed" in note and "SIGABRT" in note for note in found.results.notes
    )
    assert any(note.startswith("cifar: complete") for note in found.results.notes)


def test_a_gpu_that_is_not_there_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.main(["--out", str(tmp_path)]) == 1
    assert "--device cpu --dry-run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["--out", str(tmp_path), "--parts", "idle,nonsense"])
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"), [("nonsense=1", "no field 'nonsense'"), ("pairs=many", "pairs=many: Exp")]
)
def test_what_no_setting_has_is_refused(
    given: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run.main(["--out", str(tmp_path), "--set", given])
    assert words in capsys.readouterr().err


def test_values_have_commas_without_spaces_between_them() -> None:
    assert run._chosen("core_counts=1,2,8") == ("core_counts", (1, 2, 8))
    assert run._chosen("only=dali, cpu,torch") == ("only", ("dali, cpu", "torch"))
    assert run._chosen("kept_steps=40") == ("kept_steps", 40)


def test_what_may_end_its_process_is_measured_apart_on_a_gpu() -> None:
    gpu = replace(SETTING, device="cuda")
    assert "dali, mixed" in run._backends(gpu)
    assert "dali, mixed" not in [v.name for v in variants(gpu)]
    assert [v.name for v in variants(replace(gpu, only=("dali, mixed",)))] == ["dali, mixed"]
    decoders = run._decoders(gpu)
    assert {
        "DALI graph, region decoded",
        "DALI graph, whole decoded, then cut",
        "fastload dali, mixed",
    } <= {*decoders}
    assert {"torchvision, device", "torchcodec, device"} <= {*decoders}
    assert {f"{name}, device, cut by fastload" for name in ("torchvision", "torchcodec")} <= {
        *decoders
    }
    assert "fastload turbojpeg" not in decoders
    assert {"turbojpeg, device", "turbojpeg, auto", "cache, compressed"} <= {*run._backends(gpu)}
    assert "fastload turbojpeg, device" in decoders
    (planned,) = variants(replace(gpu, only=("turbojpeg, device",)))
    assert (planned.plans, planned.on_device) == (True, False)  # its pixels are the host's


@pytest.mark.whole
@pytest.mark.parametrize("name", ["turbojpeg, device", "cache, compressed"])
def test_what_is_decoded_on_the_device_is_compared_with_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """To the last bit; without a GPU the kernels run on the host."""
    monkeypatch.setenv(ON_HOST, "1")
    photos = write_photo_folder(tmp_path / "photos", per_class=4, size=(150, 200))
    setting = replace(SETTING, photos=str(photos), kept=str(tmp_path), out=str(tmp_path))
    (variant,) = (v for v in every_variant(setting) if v.name == name)
    row = checks._pixels(setting, variant)
    assert row["wrong"] == 0
    assert (row["on_device"] or 0) > 0
    assert checks._resume(setting, variant)["wrong"] == 0
    if name == "cache, compressed":
        whole = row["resident_bytes"] or 0
        row = checks._divided(setting, variant, limit=LIMIT)
        assert row["wrong"] == 0
        assert (row["on_device"] or 0) > 0
        assert row["resident_bytes"] == whole + 2 * 16


def test_what_has_a_process_of_its_own_has_the_time_to_import_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """45 s, where there are so many: opening a GPU takes up to 20."""
    given: dict[str, float] = {}
    monkeypatch.setattr(
        run.Run, "_process", lambda self, name, title, setting, left: given.update({title: left})
    )
    part = run.Part("", "", 1.0, apart=lambda setting: ["one", "two"])
    monkeypatch.setitem(run.PARTS, "decode", part)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    for left, least in ((70, 45), (30, 30)):
        found = run.Run(replace(SETTING, out=str(tmp_path)), 1000.0 + left, dry=True)
        found.part("decode", [])
        assert given["decode: one"] >= least
        assert given["decode: two"] >= least
        assert max(given.values()) <= left


def test_twelve_pairs_distinguish_99_5_per_cent_from_99() -> None:
    assert FULL.pairs >= 12


def test_every_part_is_a_module_and_documented() -> None:
    readme = (ROOT / "benchmarks" / "gpu" / "README.md").read_text()
    for name, part in run.PARTS.items():
        module, _, function = part.function.partition(":")
        assert callable(getattr(import_module(f"benchmarks.gpu.{module}"), function))
        assert f"| `{name}` |" in readme
