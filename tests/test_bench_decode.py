"""`fastload bench decode`: tiny runs, wrong and missing decoders, damaged files, Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from typer.testing import CliRunner

from fastload import native
from fastload.backends.dali_graph import decode_regions
from fastload.cli.app import app
from fastload.decode.libraries import core_formats
from fastload.errors import BackendUnavailableError, ConfigurationError, SourceError, WorkerError
from fastload.tools.bench import DecodeSettings, decoders
from fastload.tools.bench import decode as bench
from fastload.tools.bench.decode import (
    default_threads,
    held_back_errors,
    reference,
    run_decode_benchmark,
    try_out,
)
from fastload.tools.bench.decoders import contestants
from fastload.tools.bench.passes import (
    MODES,
    Contestant,
    PassRunner,
    Pixels,
    Place,
    Task,
    can_evict,
    is_cached,
    places_of,
    read_images,
)
from fastload.tools.bench.pillow import Pillow, RemotePillow, build_pillow_simd, pillow_simd_folder
from fastload.tools.measure.photographs import write_photographs
from fastload.tools.measure.results import Measurement, Results, read_json
from tests.waiting import LIMIT, has_ended, wait_until


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photographs(tmp_path_factory.mktemp("photographs"), 12)


@pytest.fixture
def damaged(photographs: Path, tmp_path: Path) -> Path:
    """Good files, one cut short, one that is no image, one in CMYK."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    files = sorted(photographs.rglob("*.jpg"))[:4]
    for number, file in enumerate(files):
        (folder / f"{number}.jpg").write_bytes(file.read_bytes())
    (folder / "cut.jpg").write_bytes(files[0].read_bytes()[:9000])
    (folder / "page.jpg").write_bytes(b"<html>not found</html>")
    Image.new("CMYK", (20, 20)).save(folder / "cmyk.jpeg")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def bench_decode(*arguments: object) -> SimpleNamespace:
    result = CliRunner().invoke(app, ["bench", "decode", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def small(folder: Path, **more: Any) -> DecodeSettings:
    settings: dict[str, Any] = {
        "modes": ("full",),
        "readings": ("memory",),
        "threads": (1,),
        "seconds": 0.0,
        "rounds": 1,
    }
    return DecodeSettings(folder, **(settings | more))


def measured(results: Results) -> list[Measurement]:
    return [row for row in results.measurements if row.rounds]


@pytest.mark.whole
@pytest.mark.parametrize("format", ["png", "webp"])
def test_other_formats(format: str, photographs: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(photographs.rglob("*.jpg"))[:3]):
        with Image.open(path) as image:
            image.resize((60, 40)).save(tmp_path / f"{number}.{format}", lossless=True)
    some = ("pillow", "torchvision", "native", "native-region", "simplejpeg")
    results = run_decode_benchmark(
        small(tmp_path, format=format, decoders=some, modes=("full", "crop224"))
    )
    found = {row.contestant for row in measured(results)}
    core = {"native", "native-region"} if format.upper() in core_formats() else set()
    assert {"pillow", "torchvision"} | core <= found
    for row in measured(results):
        worst = row.metric("pixel_difference_max")
        assert worst is not None
        assert row.mode == "crop224" or worst.median == 0, row
    (other,) = [row for row in results.measurements if row.contestant == "simplejpeg"]
    assert other.note == "It reads jpeg only."
    with pytest.raises(ConfigurationError, match="--format: 'gif' is not known"):
        run_decode_benchmark(small(tmp_path, format="gif"))


# -- The command -----------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_command_prints_tables_and_writes_files(photographs: Path, tmp_path: Path) -> None:
    files = ["--json", tmp_path / "r.json", "--csv", tmp_path / "r.csv"]
    some = "pillow,simplejpeg,native,native-region"
    done = bench_decode(
        photographs, "--time", 0, "--rounds", 2, "--threads", "1,2", "--decoders", some, *files
    )
    assert done.code == 0, done.out + done.err
    for title in MODES.values():
        assert done.out.count(f"{title[0].upper()}{title[1:]}, from memory") == 1
    assert done.out.count("Full decode, files in the page cache") == 1
    assert re.search(
        r"^decoder\s+threads\s+img/s\s+±\s+MP/s\s+CPU s/1,000\s+p50\s+p99\s+memory",
        done.out,
        re.MULTILINE,
    )
    assert re.search(r"^simplejpeg\s+1\s+[\d,]+ ", done.out, re.MULTILINE)
    assert "\x1b" not in done.out
    results = read_json(tmp_path / "r.json")
    assert results.complete
    expected = {"pillow", "simplejpeg"}
    expected |= {"native", "native-region"} if native.available() else set()
    assert expected <= {row.contestant for row in measured(results)}
    for row in measured(results):
        assert len(row.rounds) == 2
        assert all(r.samples == 12 for r in row.rounds), "each round is one whole pass"
        assert row.latency is not None
        assert 0 < row.latency.p50 <= row.latency.p99
        assert row.failures == ()
        pixels = row.metric("pixels_per_second")
        assert pixels is not None
        passed = sum(r.seconds * (r.metrics["pixels_per_second"] or 0) for r in row.rounds)
        assert passed == pytest.approx(2e6 * results.settings["megapixels"])  # type: ignore[operator]
    modes = {(row.contestant, row.mode) for row in measured(results)}
    assert ("native-region", "full") not in modes
    # Files in the first mode only, with the largest number of threads.
    read = {
        (row.mode, row.parameters["threads"])
        for row in measured(results)
        if row.parameters["from"] == "page cache"
    }
    assert read == {("full", 2)}
    assert len((tmp_path / "r.csv").read_text().splitlines()) == len(results.measurements) + 1


@pytest.mark.whole
def test_without_a_folder_it_makes_images_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    options = [
        "--images",
        8,
        "--time",
        0,
        "--rounds",
        1,
        "--modes",
        "full",
        "--from",
        "memory",
        "--threads",
        1,
    ]
    done = bench_decode(*options, "--decoders", "pillow")
    assert done.code == 0, done.err
    assert "8 JPEGs" in done.out
    assert not list(folder.iterdir())


@pytest.mark.whole
def test_all_decoders_are_rows_measured_or_with_what_to_install(photographs: Path) -> None:
    results = run_decode_benchmark(small(photographs, images=8, threads=(1,)))
    seen = {row.contestant for row in results.measurements}
    gpu = {name for name, contestant in contestants().items() if contestant.gpu}
    assert seen >= set(contestants()) - gpu - {"native-region"}
    for row in results.measurements:
        assert row.status in ("measured", "unavailable")
        if row.status == "unavailable":
            assert re.search(r"install|--pillow-simd", row.note), row.note
    simd = next(row for row in results.measurements if row.contestant == "pillow-simd")
    assert (simd.status, "--pillow-simd" in simd.note) == ("unavailable", True), (
        "never built without being asked"
    )


@pytest.mark.whole
def test_a_decoder_asked_for_by_name_and_absent_is_a_row(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "accimage", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ["--time", 0, "--rounds", 1, "--modes", "full", "--from", "memory", "--decoders"]
    done = bench_decode(photographs, *options, "accimage,pillow,torchvision-cuda")
    assert done.code == 0, done.err
    assert "conda install -c conda-forge accimage" in done.out
    assert re.search(
        r"^torchvision-cuda: unavailable: .*needs an NVIDIA GPU", done.out, re.MULTILINE
    )
    assert re.search(r"^pillow\s+1\s", done.out, re.MULTILINE)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--decoders", "quick"], "--decoders: 'quick' is not known; choose from simplejpeg"),
        (["--modes", "half"], "--modes: 'half' is not known; choose from full"),
        (["--from", "tape"], "--from: 'tape' is not known; choose from memory"),
        (["--threads", "two"], "--threads: 'two' must be whole numbers"),
        (["--threads", "0"], "must be numbers of at least 1"),
        (["--json", "/nowhere/at/all/x.json"], "there is no folder /nowhere/at/all"),
    ],
)
def test_wrong_options_are_one_message_before_anything_runs(
    photographs: Path, options: list[str], message: str
) -> None:
    done = bench_decode(photographs, *options)
    assert done.code == 1
    assert done.err.startswith("fastload: ")
    assert message in done.err
    assert "Warm-up" not in done.out


def test_folders_without_images_are_one_message(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"no image")
    for folder, message in (
        (tmp_path / "none", "no such folder"),
        (tmp_path, "none of the 1 JPEG files"),
    ):
        done = bench_decode(folder)
        assert done.code == 1
        assert message in done.err
    with pytest.raises(SourceError, match="has no JPEG files"):
        (tmp_path / "empty").mkdir()
        read_images(tmp_path / "empty", 8)


@pytest.mark.reliability
def test_ctrl_c_prints_and_saves_what_was_measured(photographs: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}
    code = "from fastload.cli import main; main()"
    target = tmp_path / "r.json"
    command = [
        sys.executable,
        "-c",
        code,
        "bench",
        "decode",
        str(photographs),
        "--time",
        "0",
        "--rounds",
        "5000",
    ]
    command += [
        "--from",
        "memory",
        "--decoders",
        "pillow,simplejpeg",
        "--modes",
        "full,crop224",
        "--threads",
        "2",
        "--json",
        str(target),
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Round 3."):
                break
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, err
    assert err.strip() == ""
    assert "Stopped before the end" in out
    assert re.search(r"^simplejpeg\s+2\s+[\d,]+ ", out, re.MULTILINE)
    results = read_json(target)
    assert not results.complete
    assert all(2 <= len(row.rounds) < 5000 for row in measured(results))


# -- Pixels, damage --------------------------------------------------------------------------------


class Brighter(Pillow):
    """A fast wrong decoder."""

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        pixels = super().__call__(data, size, place).astype(np.int16)
        return np.clip(pixels + 4, 0, 255).astype(np.uint8)


def with_contestant(monkeypatch: pytest.MonkeyPatch, contestant: type[Contestant]) -> None:
    ours = type("Ours", (contestant,), {"name": "ours", "version": classmethod(lambda cls: "1")})
    monkeypatch.setattr(decoders, "_CLASSES", (*decoders._CLASSES, ours))


@pytest.mark.whole
def test_a_wrong_decoder_shows(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_contestant(monkeypatch, Brighter)
    results = run_decode_benchmark(small(photographs, images=8, decoders=("ours", "simplejpeg")))
    wrong, right = measured(results)
    found = {
        name: wrong.metric(name)
        for name in ("pixel_difference_max", "pixel_difference_mean", "psnr_db")
    }
    assert all(found.values())
    assert found["pixel_difference_max"].median == 4  # type: ignore[union-attr]
    assert 3.5 < found["pixel_difference_mean"].median <= 4.0  # type: ignore[union-attr]
    assert 35.5 < found["psnr_db"].median < 37.0  # type: ignore[union-attr]  # 20 log10(255 / 4) = 36.1
    largest = right.metric("pixel_difference_max")
    assert largest is not None
    assert largest.median <= 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["resize256", "crop224"])
def test_the_reference_is_torchvisions_and_ours_agree(photographs: Path, mode: str) -> None:
    images = read_images(photographs, 8).good
    places = places_of(mode, images)
    assert places == places_of(mode, images), "the same boxes for all"
    task, wanted = reference(images, places)
    decoded = v2.functional.pil_to_tensor(Image.open(images.paths[0]).convert("RGB"))
    assert places[0] is not None
    box, size = places[0]
    expected = v2.functional.resized_crop(decoded, *box, size=list(size)).permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(wanted[0], expected)
    if mode == "resize256":
        assert min(size) == 256
        plain = v2.Resize(256)(decoded).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(expected, plain)
    else:
        assert size == (224, 224)
        assert len(set(places)) > 1
    bounds = {"opencv": 255, "dali-cpu": 16, "accimage": 16}
    for contestant in contestants().values():
        try:
            runner = contestant.open(task, {})
        except BackendUnavailableError:
            continue
        try:
            metrics, failures = try_out(runner, task, wanted, {})
        finally:
            runner.close()
        assert not failures, contestant.name
        largest = metrics["pixel_difference_max"]
        assert largest is not None
        assert largest <= bounds.get(contestant.name, 2), contestant.name


class Careless(Pillow):
    """Decodes anything."""

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        return np.zeros((*size, 3), dtype=np.uint8)


@pytest.mark.slow
def test_damaged_files_are_named_and_not_timed(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_contestant(monkeypatch, Careless)
    results = run_decode_benchmark(small(damaged, decoders=("ours", "simplejpeg", "pillow")))
    rows = {row.contestant: row for row in measured(results)}
    names = {str(damaged / "cut.jpg"), str(damaged / "page.jpg")}
    for row in rows.values():
        assert row.rounds[0].samples == 4
        assert {failure.name for failure in row.failures} == names
    for name, unnoticed in (("ours", 2), ("simplejpeg", 0), ("pillow", 0)):
        found = rows[name].metric("damaged_accepted")
        assert found is not None
        assert found.median == unnoticed
    assert {failure.message for failure in rows["ours"].failures} == {
        "damaged, and decoded without an error"
    }
    assert any("cmyk.jpeg" in note and "JPEG of 4 components" in note for note in results.notes)


@pytest.mark.slow
def test_damaged_files_in_the_output(damaged: Path) -> None:
    options = ["--time", 0, "--rounds", 1, "--modes", "crop224", "--from", "memory", "--threads", 1]
    done = bench_decode(damaged, *options, "--decoders", "simplejpeg,pillow")
    assert done.code == 0, done.err
    assert "Not timed: 2 damaged files;" in done.out
    assert re.search(
        rf"^{re.escape(str(damaged))}/cut\.jpg: .*\(simplejpeg\)", done.out, re.MULTILINE
    )


@pytest.mark.slow
def test_an_image_that_fails_only_in_the_rounds_is_a_failure(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Moody(Pillow):
        calls = 0

        def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
            Moody.calls += 1
            if Moody.calls == 8 + 8 + 3:  # after the trial and the warm-up
                raise ValueError("not today")
            return super().__call__(data, size, place)

    with_contestant(monkeypatch, Moody)
    (row,) = measured(run_decode_benchmark(small(photographs, images=8, decoders=("ours",))))
    assert [failure.message for failure in row.failures] == ["not today"]
    assert row.rounds[0].samples == 7


@pytest.mark.slow
def test_a_contestant_whose_library_breaks_is_a_row(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Pillow):
        def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
            raise RuntimeError("internal")

    with_contestant(monkeypatch, Broken)
    broken, good = sorted(
        run_decode_benchmark(
            small(photographs, images=8, decoders=("ours", "pillow"))
        ).measurements,
        key=lambda row: row.status,
    )
    assert (broken.contestant, broken.status, broken.note) == (
        "ours",
        "failed",
        "RuntimeError: internal",
    )
    assert (good.contestant, good.status) == ("pillow", "measured")


# -- Pillow-SIMD in a process of its own -----------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder whose PIL is the one that is installed: what a built Pillow-SIMD looks like from
    outside."""
    folder = tmp_path / "simd"
    folder.mkdir()
    here = Path(PIL.__file__).parent
    (folder / "PIL").symlink_to(here)
    for libraries in here.parent.glob("[pP]illow.libs"):
        (folder / libraries.name).symlink_to(libraries)
    return folder


@pytest.mark.slow
def test_another_process_gives_the_same_pixels_and_says_what_it_took(
    photographs: Path, stand_in: Path
) -> None:
    images = read_images(photographs, 8).good
    places = places_of("crop224", images)
    task = Task(images, places, threads=2)
    remote, local = RemotePillow(task, stand_in, {"psnr_db": 40.0}), Pillow(task)
    try:
        found = remote.pixels(images.data[0], images.sizes[0], places[0])
        np.testing.assert_array_equal(found, local(images.data[0], images.sizes[0], places[0]))
        with pytest.raises(ValueError, match="not an image"):
            remote.pixels(b"no image", (1, 1), None)
        work = remote.run(0.0)
    finally:
        remote.close()
    assert (work.samples, len(work.latencies), work.failures) == (8, 8, {})
    assert work.cpu_seconds is not None
    assert work.seconds is not None
    assert work.peak_memory is not None
    assert work.memory_growth is not None
    assert 0 < work.memory_growth < work.peak_memory
    assert work.metrics["psnr_db"] == 40.0


@pytest.mark.slow
def test_a_process_that_dies_is_an_error_with_a_remedy(photographs: Path, tmp_path: Path) -> None:
    broken = tmp_path / "PIL"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit(3)")
    images = read_images(photographs, 8).good
    with pytest.raises(WorkerError, match="leave it out of --decoders"):
        RemotePillow(Task(images, (None,) * 8), tmp_path, {})


@pytest.mark.whole
def test_it_is_measured_once_it_is_built(
    photographs: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")

    def pip(folder: Path, command: list[str], env: dict[str, str]) -> tuple[int, str]:
        assert env["CC"] == "cc -mavx2"
        target = Path(command[command.index("--target") + 1])
        assert target.is_relative_to(tmp_path / "xdg"), "not into this environment"
        (target / "PIL").symlink_to(stand_in / "PIL")
        for libraries in stand_in.glob("[pP]illow.libs"):
            (target / libraries.name).symlink_to(libraries)
        return 0, ""

    monkeypatch.setattr("fastload.tools.bench.pillow._run", pip)
    results = run_decode_benchmark(small(photographs, images=8, decoders=("pillow", "pillow-simd")))
    assert {row.contestant for row in measured(results)} == {"pillow", "pillow-simd"}
    assert build_pillow_simd() == pillow_simd_folder()
    assert [path.name for path in pillow_simd_folder().parent.iterdir()] == [
        pillow_simd_folder().name
    ]


@pytest.mark.slow
def test_where_it_cannot_be_built_the_row_says_why(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    failed = (1, "...\n  The headers or library files could not be found: required zlib")
    monkeypatch.setattr(
        "fastload.tools.bench.pillow._run", lambda folder, command, environment: failed
    )
    results = run_decode_benchmark(small(photographs, images=8, decoders=("pillow", "pillow-simd")))
    (row,) = [row for row in results.measurements if row.contestant == "pillow-simd"]
    assert row.status == "unavailable"
    assert "required zlib" in row.note
    assert "zlib1g-dev" in row.note
    assert not list(pillow_simd_folder().parent.iterdir())
    assert [row.contestant for row in measured(results)] == ["pillow"]


# -- Reading, threads ------------------------------------------------------------------------------


@pytest.mark.whole
def test_cold_reads_come_from_disk_or_are_left_out(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(photographs, images=8, decoders=("pillow",), readings=("page cache", "cold"))
    monkeypatch.setattr(bench, "can_evict", lambda paths: False)
    results = run_decode_benchmark(settings)
    assert [row.parameters["from"] for row in measured(results)] == ["page cache"]
    assert any("Cold reads were left out" in note for note in results.notes)
    images = read_images(photographs, 8).good
    for reading, forgotten in (("page cache", []), ("cold", [images.paths])):
        asked: list[object] = []
        task = Task(images, (None,) * 8, reading=reading)
        monkeypatch.setattr("fastload.tools.bench.passes.evict", asked.append)
        with closing(PassRunner(task, Pillow(task), {})) as runner:
            runner.run(0.0)
        assert asked == forgotten
    monkeypatch.undo()
    # Whether the system forgets a file at the first time of asking depends on what else it does.
    monkeypatch.setattr(bench, "can_evict", lambda paths: True)
    results = run_decode_benchmark(settings)
    assert [row.parameters["from"] for row in measured(results)] == ["page cache", "cold"]


@pytest.mark.whole
def test_files_are_let_out_of_the_page_cache(photographs: Path) -> None:
    path = str(next(photographs.rglob("*.jpg")))

    def forgotten() -> bool:
        return can_evict([path]) and not is_cached(path)

    def descriptors() -> bool:
        return bool(Path(path).read_bytes()) and is_cached(path)

    if not any(forgotten() for _ in range(20)):
        pytest.skip("this file system does not let files out of the page cache")
    assert any(descriptors() for _ in range(20))


def test_default_threads_go_up_to_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))):
        monkeypatch.setattr(bench, "usable_cores", lambda cores=cores: cores)
        assert default_threads() == expected


@pytest.mark.slow
def test_thread_counts_of_libraries_are_restored(photographs: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_decode_benchmark(small(photographs, images=8, decoders=("pillow",)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="--threads"):
        run_decode_benchmark(DecodeSettings(Path(), threads=()))


def test_warnings_of_libraries_are_counted_instead_of_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    notes: list[str] = []
    with held_back_errors(notes):
        for _ in range(3):
            os.write(2, b"\x1b[31mCorrupt JPEG data\x1b[0m\n")
    assert notes == ["A library wrote: Corrupt JPEG data (3 times)"]
    assert capfd.readouterr().err == ""
    with pytest.raises(RuntimeError, match="stop"), held_back_errors(notes):
        os.write(2, b"the reason\n")
        raise RuntimeError("stop")
    assert capfd.readouterr().err == "the reason\n"


@pytest.mark.slow
def test_a_build_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "building-x"
    folder.mkdir()
    (folder / "half").touch()
    pid = str(tmp_path / "pid")
    work = (
        f"import os, time; print(os.getpid(), file=open({pid!r}, 'w'), flush=True); time.sleep(300)"
    )
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom fastload.tools.bench.pillow import _run\n"
        f"_run(Path({str(folder)!r}), [sys.executable, '-c', {work!r}], dict(os.environ))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[1])
    try:
        wait_until(
            lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip() != ""
        )
    finally:
        process.kill()  # nothing of its own can run any more
        process.wait()
    wait_until(lambda: not folder.exists())
    assert has_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("places", [True, False])
def test_dali_decodes_on_a_gpu_without_its_hardware_engine(places: bool) -> None:
    """Which is reported not to keep to the order of the stream."""
    made: Any = decoders.DaliMixed.__new__(decoders.DaliMixed)
    made._dali, made._threads, made._places = MagicMock(), 1, places
    made._decode_regions = decode_regions
    made._build()
    given = made._dali.fn.decoders.image.call_args.kwargs
    assert (given["device"], given["hw_decoder_load"]) == ("mixed", 0.0)
