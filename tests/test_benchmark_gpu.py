"""The benchmark for GPUs, on the CPU with the smallest sizes: every part runs, and says what it should. Not speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import checks, contract, decode, goals, idle, run, streams, threads, timeline
from benchmarks.gpu.data import small_images
from benchmarks.gpu.found import Found
from benchmarks.gpu.native import ROOT
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.setting import DRY, FULL, Setting
from benchmarks.gpu.summary import summary
from benchmarks.gpu.variants import Variant, checksum, variants
from fastload.monitor import Segment, Step
from tests.images import write_photo_folder

SETTING = replace(
    DRY, images=8, batch_size=2, check_batch_size=2, dataloader_workers=(0,), threads=(1,), rate_seconds=0.02,
    turn_seconds=0.05, profile_seconds=0.02, small_batch_sizes=(64,), small_images=128,
)  # fmt: skip


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    root = tmp_path_factory.mktemp("gpu")
    photos = write_photo_folder(root / "photos", classes=2, per_class=4, size=(60, 70))
    (root / "out").mkdir()
    return replace(SETTING, photos=str(photos), cache=str(root / "cache"), out=str(root / "out"))


def only(monkeypatch: pytest.MonkeyPatch, module: Any, *names: str) -> None:
    """Let a part see these variants only: the others are served by the same lines."""
    monkeypatch.setattr(module, "variants", lambda setting: [v for v in variants(setting) if v.name in names])


# -- correctness


def test_streams_finds_nothing_wrong_with_loaders_that_are_right(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, streams, "turbojpeg", "cache, device")
    found = Found(None, 60)
    streams.run(setting, found)
    rows = found.values["rows"]
    assert [(row["name"], row["status"]) for row in rows] == [("turbojpeg", "right"), ("cache, device", "right")]
    assert all(row["used_at_once"] == row["kept"] == 0 and row["distinct"] > 1 for row in rows)


class Reusing:
    """A loader that writes each batch to the memory of the one before."""

    def __enter__(self) -> Reusing:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        for number in range(8):
            images.fill_(number)
            yield images, torch.zeros(2, dtype=torch.int64)


def test_streams_finds_a_loader_that_writes_to_batches_which_are_kept(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Variant, "create", lambda self, setting, **arguments: Reusing())
    only(monkeypatch, streams, "turbojpeg")
    found = Found(None, 60)
    streams.run(setting, found)
    (row,) = found.values["rows"]
    assert row["status"] == "WRONG"
    assert row["used_at_once"] == 0
    # Each but those that happen to be read when their own number is in the memory again.
    assert row["kept"] > row["batches"] / 2
    assert goals.judge({"streams": found.values})[2].reached is False


def test_one_pixel_that_is_wrong_or_elsewhere_changes_the_checksum() -> None:
    images = torch.arange(2 * 3 * 5 * 5, dtype=torch.uint8).view(2, 3, 5, 5)
    changed, moved = images.clone(), images.clone()
    changed[1, 2, 3, 4] += 1
    moved[0, 0, 0, 0], moved[0, 0, 0, 1] = images[0, 0, 0, 1], images[0, 0, 0, 0]
    assert len({int(checksum(batch)) for batch in (images, changed, moved)}) == 3
    assert int(checksum(images.contiguous(memory_format=torch.channels_last))) == int(checksum(images))
    batches = [(batch, torch.zeros(2)) for batch in (images, changed, images)]
    wanted = streams.awaited(iter([(images, torch.zeros(2))] * 3))
    assert streams.differing(streams.used_at_once(iter(batches), lambda images: None), wanted) == 1
    assert streams.differing(wanted[:1], wanted) == 2


def test_checks_tell_right_from_wrong_pixels(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, checks, "turbojpeg", "cache, disk", "cache, device")
    found = Found(None, 60)
    checks.run(setting, found)
    rows = {row["name"]: row for row in found.values["rows"]}
    assert {row[name]["status"] for row in rows.values() for name in ("pixels", "resume")} == {"right"}
    assert rows["turbojpeg"]["pixels"]["largest_difference"] == 0
    assert rows["cache, device"]["pixels"]["psnr_db"] > 45
    assert all(row["memory"]["host_bytes_after_epochs"] for row in rows.values())
    assert found.values["other_gpus"]["status"] == "not checkable"

    made = checks._images
    monkeypatch.setattr(
        checks, "_images", lambda setting, v, device: made(setting, v, device) // (3 if v.name == "turbojpeg" else 1)
    )
    darker = Variant("dark", "turbojpeg")
    assert checks._pixels(setting, darker)["status"] == "WRONG"


def test_resuming_elsewhere_is_noticed(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    import fastload

    monkeypatch.setattr(fastload.Loader, "load_state_dict", lambda self, state: None)
    row = checks._resume(setting, Variant("turbojpeg", "turbojpeg"))
    assert row["status"] == "WRONG"
    assert row["wrong_batches"]


def test_psnr_is_that_of_the_formula() -> None:
    a = torch.zeros(4, dtype=torch.uint8)
    assert checks.psnr(a, a) == float("inf")
    assert checks.psnr(a, torch.full((4,), 255, dtype=torch.uint8)) == pytest.approx(0)
    assert checks.psnr(a, torch.tensor([0, 0, 0, 2], dtype=torch.uint8)) == pytest.approx(48.1308, abs=1e-3)


def test_the_report_of_the_contract_suite_is_read(tmp_path: Path) -> None:
    report = tmp_path / "contract.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="test_a[turbojpeg-threads]"/><testcase name="test_a[turbojpeg]"/>'
        '<testcase name="test_b[cache-disk-rrc-flip]"><failure message="assert 1 == 2&#10;more"/></testcase>'
        '<testcase name="test_c[2-dali]"><skipped message="dali is not installed"/></testcase></testsuite></testsuites>'
    )
    found = contract.read_junit(report)
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 1, 1)
    assert found["failures"] == [{"test": "test_b[cache-disk-rrc-flip]", "message": "assert 1 == 2"}]
    assert found["reasons"] == {"dali is not installed": 1}
    assert found["contestants"] == {
        "cache-disk": {"failed": 1},
        "dali": {"skipped": 1},
        "turbojpeg": {"passed": 1},
        "turbojpeg-threads": {"passed": 1},
    }


# -- speed


def test_every_contestant_has_a_rate_and_the_synthetic_one_is_all_of_itself(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = idle.rows
    names = ("synthetic", "DataLoader, 0 workers", "fastload turbojpeg")
    monkeypatch.setattr(idle, "rows", lambda setting: [row for row in every(setting) if row.name in names])
    found = Found(Path(setting.out) / "idle.json", 100)
    idle.run(setting, found)
    rows = {row["name"]: row for row in found.values["networks"][setting.networks[0]]["rows"]}
    assert tuple(rows) == names
    for row in rows.values():
        assert row["status"] == "measured"
        assert row["images_per_second"] > 0
        assert 0 < row["busy_share"] <= 1
        assert row["host_cpu_share"] > 0
        assert row["profile"]["steps"] >= 2
        assert 0 < row["profile"]["busy_share"] <= 1
    assert rows["synthetic"]["of_synthetic"] == 1
    assert rows["synthetic"]["turns"][0]["wait_share"] < rows["DataLoader, 0 workers"]["turns"][0]["wait_share"]
    assert (Path(setting.out) / f"timeline-{setting.networks[0]}.png").stat().st_size > 1000
    assert json.loads((Path(setting.out) / "idle.json").read_text()) == json.loads(json.dumps(found.values))


def test_a_contestant_that_fails_does_not_end_the_others(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("it broke")

    every = idle.rows(setting)
    monkeypatch.setattr(idle, "rows", lambda setting: [idle.Row("broken", broken), every[0]])
    found = Found(None, 60)
    idle.run(replace(setting, profile_seconds=1000), found)  # no time for the profiler
    broke, synthetic = found.values["networks"][setting.networks[0]]["rows"]
    assert (broke["status"], broke["note"]) == ("failed", "RuntimeError: it broke")
    assert synthetic["of_synthetic"] == 1
    assert any("no time was left for the profiler" in note for note in found.values["notes"])


def test_decoders_have_rates_alone_and_together(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvidia.dali")
    found = Found(None, 60)
    decode.run(setting, found)
    rows = found.values["rows"]
    assert {row["status"] for row in rows} == {"measured"}
    assert all(row["images_per_second"] > 0 for row in rows)
    together = next(row for row in rows if "together" in row["name"])
    assert sum(together["each"].values()) == pytest.approx(together["images_per_second"])


def test_cifar_gives_the_rate_alone_and_the_share_of_a_training(setting: Setting) -> None:
    images, labels = small_images(setting)
    assert images.shape == (128, 32, 32, 3)
    assert labels.max() == 9
    found = Found(None, 60)
    PARTS["cifar"].runner("cifar")(setting, found)
    assert {row["output"] for row in found.values["alone"]} == {"crop and flip, uint8", "normalised"}
    training = found.values["training"]
    assert training["loader_share"] == pytest.approx(1 - training["step_seconds_synthetic"] / training["step_seconds"])


def test_threads_measures_beside_and_apart(setting: Setting) -> None:
    found = Found(None, 60)
    threads.run(setting, found)
    (row,) = found.values["rows"]
    assert row["threads"] == 1
    assert all(row[name]["median_seconds"] > 0 for name in ("alone", "beside", "apart", "fed"))
    assert "Shortest step" in found.values["advice"]


@pytest.mark.parametrize(
    ("beside", "apart", "advice"),
    [(1.01, 1.0, "threads beside the trainer"), (1.2, 1.01, "a process of their own"), (1.2, 1.19, "threads beside")],
)
def test_the_advice_follows_from_the_difference(beside: float, apart: float, advice: str) -> None:
    def row(threads: int) -> dict[str, Any]:
        lengths = {"alone": 1.0, "beside": beside, "apart": apart, "fed": 1.0 + threads / 100}
        return {"threads": threads, **{name: {"median_seconds": value} for name, value in lengths.items()}}

    said = threads.recommend([row(4), row(8)])
    assert said.startswith(advice)
    assert said.endswith("with 4 threads.")


def test_timelines_come_back_as_they_were() -> None:
    steps = [
        Step(number, (Segment("wait", 10 + number, 10.25 + number), Segment("compute", 10.25 + number, 11 + number)))
        for number in range(5)
    ]
    back = timeline.steps_of(json.loads(json.dumps(timeline.shown(steps))))
    assert [step.number for step in back] == [3, 4]
    assert [(p.activity, p.begin, p.end) for p in back[1].segments] == [("wait", 1.0, 1.25), ("compute", 1.25, 2.0)]


# -- the command


def test_goals_are_judged_from_the_parts() -> None:
    def row(name: str, share: float, windows: int | None = 0) -> dict[str, Any]:
        return {"name": name, "fastload": name.startswith("fastload"), "of_synthetic": share, "windows_at_0": windows}

    parts = {
        "contract": {"suite": {"failed": 0}, "rows": [{"pixels": {"status": "right"}, "resume": {"status": "WRONG"}}]},
        "streams": {"rows": [{"status": "right"}, {"status": "unavailable"}]},
        "idle": {
            "networks": {
                "resnet50": {"rows": [row("synthetic", 1.0), row("fastload a", 0.99), row("fastload b", 0.49, 2)]},
                "resnet18": {"rows": [row("DataLoader, 16 workers", 0.99), row("fastload a", 0.96)]},
            }
        },
        "cifar": {
            "alone": [{"images_per_second": 1e6}, {"images_per_second": 25e6}],
            "training": {"loader_share": 0.02},
        },
    }
    said = {verdict.goal: (verdict.reached, str(verdict)) for verdict in goals.judge(parts)}
    assert said["contract tests that fail on the device"][0]
    assert said["checks on photographs that are not right"][0] is False
    assert said["backends whose batches change under the trainer"][0]
    assert said["ResNet-50, fastload a, of the synthetic rate"][0]
    assert said["ResNet-50, fastload b, of the synthetic rate"][1].startswith("MISSED by 50.0%")
    assert said["ResNet-50, all backends, windows at 0% after the first batch"][0] is False
    assert said["ResNet-18, the best backend (fastload a), of the synthetic rate"][0]
    assert said["CIFAR-10 resident on the device, the loader alone"][0]
    assert said["CIFAR-10 training, the loader's share of a step"][1].startswith("MISSED by 100.0%")
    assert {verdict.reached for verdict in goals.judge({})} == {None}


def test_the_command_writes_results_and_prints_the_goals_last(
    tmp_path: Path, setting: Setting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "DRY", SETTING)
    out = tmp_path / "out"
    assert (
        run.main(["--device", "cpu", "--dry-run", "--out", str(out), "--photos", setting.photos, "--parts", "cifar"])
        == 0
    )
    results = json.loads((out / "results.json").read_text())
    assert results["parts"]["cifar"]["status"] == "complete"
    assert results["parts"]["cifar"]["alone"]
    assert results["input"].startswith("8 file names an epoch, 8 different photographs")
    assert results["dry_run"] is True
    assert {goal["reached"] for goal in results["goals"] if "CIFAR" not in goal["goal"]} == {None}
    printed = capsys.readouterr().out
    assert printed.strip() == summary(results)
    assert "CIFAR-10" in printed.splitlines()[-1]
    assert {path.name for path in out.iterdir()} == {"results.json", "summary.txt", "log.txt"}


def test_a_part_that_hangs_is_ended_and_keeps_what_it_found(
    tmp_path: Path, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def popen(command: list[str], **arguments: Any) -> Any:
        answer = command[5]
        code = f"import time; open({answer!r}, 'w').write('{{\"found\": 1}}'); time.sleep(100)"
        return started([command[0], "-c", code], **arguments)

    started = run.subprocess.Popen
    monkeypatch.setattr(run.subprocess, "Popen", popen)
    monkeypatch.setattr(run, "_GRACE", -4.0)
    part = run._run_part("cifar", replace(setting, out=str(tmp_path)), tmp_path, 6.0, run.time.monotonic() + 60)
    assert part["status"].startswith("ended")
    assert part["found"] == 1
    assert part["seconds"] < 30


def test_a_gpu_that_is_not_there_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.main(["--out", str(tmp_path)]) == 1
    assert "--device cpu --dry-run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["--out", str(tmp_path), "--parts", "idle,nonsense"])
    assert "nonsense" in capsys.readouterr().err


def test_every_part_is_a_file_and_documented() -> None:
    readme = (ROOT / "benchmarks" / "gpu" / "README.md").read_text()
    for name, part in PARTS.items():
        assert callable(part.runner(name))
        assert f"| `{name}` |" in readme


def test_settings_travel_as_json(tmp_path: Path) -> None:
    path = tmp_path / "setting.json"
    path.write_text(FULL.to_json())
    assert Setting.read(path) == FULL
