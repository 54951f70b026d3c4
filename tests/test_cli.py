"""The command line, as a person types it: `fastload demo`, `doctor`, `cache`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import fastload
from fastload import native
from fastload.backends import BackendStatus
from fastload.cli import doctor
from fastload.cli.app import app
from fastload.cli.environment import Finding, shared_memory
from fastload.errors import BackendUnavailableError, SourceError
from fastload.loader.served import _warn_without_native_core
from fastload.native import extension
from fastload.tools.demo import DemoSettings
from fastload.tools.demo.tour import run_demo, torchvision_samples
from fastload.tools.measure.images import image_folders
from fastload.tools.measure.loaders import Batch
from fastload.tools.measure.photographs import SCENES, write_photographs
from tests.images import photo, png
from tests.waiting import LIMIT


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photographs(tmp_path_factory.mktemp("photographs"), 32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of these tests goes into the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg"


def fastload_command(*arguments: str) -> SimpleNamespace:
    """Run in this process: (exit code, output, error output)."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def fastload_process(*arguments: str, **variables: str) -> SimpleNamespace:
    """Run in a process of its own, as a shell does: (exit code, output, error output)."""
    done = subprocess.run(
        [sys.executable, "-c", "from fastload.cli import main; main()", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)


# -- The command itself ----------------------------------------------------------------------------


def test_help_names_every_command() -> None:
    done = fastload_command("--help")
    assert done.code == 0
    for command in ("demo", "doctor", "cache"):
        assert re.search(rf"^\s+{command}\s", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    "command", ["", "demo", "doctor", "train", "sweep", "bench decode", "cache build"]
)
def test_short_help_is_help(command: str) -> None:
    short, long = (fastload_command(*command.split(), option) for option in ("-h", "--help"))
    assert short.code == long.code == 0
    assert short.out == long.out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("do", {"doctor"}),
        ("train --optimize", {"--optimizer"}),
        ("train --optimizer ad", {"adam", "adamw"}),
        ("train cifar10-vgg19-s", {"cifar10-vgg19-sweep"}),
    ],
)
def test_the_shell_completes(
    typed: str,
    offered: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_FASTLOAD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fastload {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit):
        app(prog_name="fastload")
    assert offered == {*capsys.readouterr().out.split()}


def test_what_is_misspelt_gets_the_nearest_name(tmp_path: Path) -> None:
    assert "Did you mean 'train'" in fastload_command("tran").err
    assert "--lr" in fastload_command("train", "--lrr", "0.1").err
    (tmp_path / "job.toml").write_text("[optimizer]\nlrr = 0.1\n")
    done = fastload_command("train", "--config", str(tmp_path / "job.toml"))
    assert (done.code, "[optimizer] lrr: no such setting. Did you mean lr" in done.err) == (1, True)


def _commands(group: Any, *before: str) -> Iterator[tuple[str, Any]]:
    """All commands and groups of commands, by what is typed."""
    yield " ".join(before), group
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, *before, name)


@pytest.mark.whole
def test_help_is_not_cut_on_a_narrow_terminal() -> None:
    for typed, command in _commands(typer.main.get_command(app)):
        shown = CliRunner().invoke(app, [*typed.split(), "--help"], terminal_width=80)
        words = " ".join(shown.output.split())
        for below in getattr(command, "commands", {}).values():
            first, _, _ = " ".join((below.help or "").split()).partition(". ")
            assert first in words, f"{typed}: {below.name}"


def test_an_option_means_the_same_in_every_command() -> None:
    means: dict[str, set[str]] = {}
    for _, command in _commands(typer.main.get_command(app)):
        for option in command.params:
            if "--split" in option.opts:
                means.setdefault((option.help or "").partition(" of ")[0], set()).add(command.name)
    assert [*means] == ["Which part"], means


def test_version() -> None:
    assert fastload_command("--version").out.strip() == fastload.__version__


@pytest.mark.slow
def test_the_light_commands_do_not_import_torch() -> None:
    code = "import sys; sys.argv = ['fastload', '--version']\n"
    code += (
        "try:\n from fastload.cli import main; main()\nexcept SystemExit as e: "
        "print('torch' in sys.modules, e.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.split() == [fastload.__version__, "False", "0"]


# -- demo ------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_demo_runs_every_backend_compares_them_and_trains(photographs: Path) -> None:
    done = fastload_command(
        "demo", str(photographs), "--seconds", "0.1", "--batch-size", "8", "--device", "cpu"
    )
    assert done.code == 0, done.out + done.err
    for backend in fastload.available_backends():
        if backend.available:
            assert re.search(
                rf"^{backend.name}\s+[\d,]+\s+\d+\.\d+ s\s+\d+% of its time", done.out, re.MULTILINE
            )
            assert re.search(
                rf"^{backend.name}\s+torchvision\s+equal\s.*\syes", done.out, re.MULTILINE
            )
        else:
            assert f"{backend.name}: not installed. {backend.remedy}" in done.out
    assert "DIFFERENT" not in done.out
    assert re.search(
        r"^epoch 2\s+loss \d\.\d+\s+\d+% of the validation images right", done.out, re.MULTILINE
    )
    assert "from_dataloader" in done.out
    assert "\x1b" not in done.out, "no colours or bars in a log"


@pytest.mark.whole
def test_demo_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    kept = tmp_path / "kept"
    options = "--images 16 --seconds 0.1 --epochs 0 --batch-size 4 --device cpu --keep"
    # The name of `tmp_path` is too long for sockets.
    with tempfile.TemporaryDirectory() as folder:
        done = fastload_process("demo", *options.split(), str(kept), TMPDIR=folder)
        left = set(os.listdir(folder))
    assert done.code == 0, done.out + done.err
    assert {path.name for path in (kept / "train").iterdir()} == set(SCENES)
    # torch makes a folder for compiled kernels when torchvision is imported.
    assert not {name for name in left if not name.startswith("torchinductor_")}
    assert not own_cache.exists() or not list(own_cache.rglob("*.npy"))
    assert "epoch 1" not in done.out


@pytest.mark.whole
def test_demo_shows_the_install_command_of_an_absent_backend(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        BackendStatus("torch", True),
        BackendStatus("dali", False, 'pip install ".[dali]"'),
    ]
    monkeypatch.setattr(fastload, "available_backends", lambda: rows)
    settings = DemoSettings(folder=photographs, batch_size=8, seconds=0.1, epochs=0)
    assert run_demo(settings, Console(markup=False, width=100))
    out = capsys.readouterr().out
    assert re.search(r"^dali\s+not run", out, re.MULTILINE)
    assert 'dali: not installed. pip install ".[dali]"' in out


@pytest.mark.whole
def test_demo_trains_for_four_steps(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of four steps a quarter, in which the rate rises, would end where it begins."""
    monkeypatch.setattr(fastload, "available_backends", lambda: [BackendStatus("turbojpeg", True)])
    settings = DemoSettings(folder=photographs, seconds=0.1, epochs=4, device="cpu")
    assert run_demo(settings, Console(markup=False, width=100))
    assert "epoch 4" in capsys.readouterr().out


@pytest.mark.whole
@pytest.mark.parametrize("what", ["pixels", "labels"])
def test_demo_fails_when_a_backend_delivers_other_samples(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def elsewhere(*arguments: Any) -> Batch:
        images, labels = torchvision_samples(*arguments)
        return (images, labels.flip(0)) if what == "labels" else (images // 2, labels)

    monkeypatch.setattr(fastload, "available_backends", lambda: [BackendStatus("turbojpeg", True)])
    monkeypatch.setattr("fastload.tools.demo.tour.torchvision_samples", elsewhere)
    done = fastload_command(
        "demo", str(photographs), "--seconds", "0.1", "--epochs", "0", "--device", "cpu"
    )
    assert done.code == 1
    expected = (
        r"^turbojpeg\s+torchvision\s+equal\s.*\sNO\s*$"
        if what == "pixels"
        else r"torchvision\s+DIFFERENT\s"
    )
    assert re.search(expected, done.out, re.MULTILINE)


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_demo_on_a_bad_folder_is_one_message(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "data"
    if what == "empty":
        folder.mkdir()
    elif what == "file":
        folder.write_text("x")
    done = fastload_command("demo", str(folder), "--device", "cpu")
    assert done.code == 1
    assert done.err.startswith("fastload: ")
    assert str(folder) in done.err
    assert "Traceback" not in done.err


@pytest.mark.whole
@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99"])
def test_demo_on_no_device_is_one_message(photographs: Path, device: str) -> None:
    done = fastload_command("demo", str(photographs), "--device", device)
    assert done.code == 1
    assert done.err.startswith(f"fastload: device: '{device}' ")
    assert not done.out, "nothing was run"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("a/1.txt", "b/2.txt"), "no valid file for the classes a, b"),
        (("cats/1.mp4", "dogs/2.mp4"), "no valid file for the classes cats, dogs"),
        (("1.png", "2.png"), "images (1.png...) but no class folders"),
        (
            ("images/1.jpg", "masks/1.png"),
            "is image and mask pairs; here fastload is compared with torchvision's",
        ),
        (
            ("set/train/a/1.jpg", "set/test/a/2.jpg"),
            "only one class (set), so that all labels would be 0",
        ),
    ],
)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("command", [("demo",), ("bench", "loader")])
def test_a_folder_of_other_things_is_one_message(
    tmp_path: Path, files: tuple[str, ...], words: str, many: bool, command: tuple[str, ...]
) -> None:
    """Also where there are so many that only some would be taken."""
    for name in files:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for copy in range(17 if many else 1):
            path.with_name(path.name if copy == 0 else f"{copy}0{path.name}").touch()
    done = fastload_command(*command, str(tmp_path / "data"), "--device", "cpu", "--images", "16")
    assert done.code == 1
    assert done.err.startswith(f"fastload: {tmp_path / 'data'}: ")
    assert words in done.err
    assert str(tmp_path / "data") in done.err, "the user's folder, not one of ours"


@pytest.mark.whole
def test_the_demo_takes_folders_of_png_and_ends_with_what_to_type(tmp_path: Path) -> None:
    for index in range(6):
        path = tmp_path / "data" / "training" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(photo(260, 280, seed=index)))
        (path.parent / "notes.txt").touch()
    folder = str(tmp_path / "data")
    done = fastload_process(
        "demo", folder, "--seconds", "0.1", "--epochs", "0", "--device", "cpu", "--images", "16"
    )
    assert done.code == 0, done.out + done.err
    for name in ("torch", "turbojpeg", "cache"):
        assert re.search(rf"^{name}\s+torchvision\s+equal\s.*\syes\s*$", done.out, re.MULTILINE), (
            done.out
        )
    assert "6 files in" in done.out
    assert f'create_loader("{folder}/training"' in done.out
    assert 'device="cpu"' in done.out


@pytest.mark.reliability
def test_ctrl_c_ends_the_demo_without_a_traceback(tmp_path: Path) -> None:
    environment = os.environ | {
        "TMPDIR": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    code = "from fastload.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "demo",
        "--images",
        "16",
        "--seconds",
        "60",
        "--device",
        "cpu",
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
            if line.startswith("2. "):
                break
        # As a terminal does: to the workers as well. Again, if nothing happens: Python drops a
        # signal that arrives in a callback of os.fork().
        presses = 0
        while process.poll() is None and presses < 5:
            os.killpg(process.pid, signal.SIGINT)
            presses += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=50)
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        err = process.communicate()[1]
    assert process.returncode == 130, err
    assert err.strip().endswith("fastload: stopped.")
    assert presses > 1 or "Traceback" not in err
    assert not list(tmp_path.glob("fastload-demo-*"))


@pytest.mark.whole
def test_a_large_folder_is_sampled_not_copied(photographs: Path, tmp_path: Path) -> None:
    folders = image_folders(photographs, 8, tmp_path)
    assert folders.sampled_from == photographs
    for part, source in (
        (folders.train, photographs / "train"),
        (folders.val, photographs / "val"),
    ):
        assert {entry.name for entry in part.iterdir()} == set(SCENES)
        links = list(part.glob("*/*"))
        assert all(link.is_symlink() and link.resolve().is_relative_to(source) for link in links)
    assert len(list(folders.train.glob("*/*"))) == 8
    whole = image_folders(photographs, 32, tmp_path)
    assert (whole.train, whole.val, whole.sampled_from) == (
        photographs / "train",
        photographs / "val",
        None,
    )
    only = image_folders(photographs / "train", 32, tmp_path)
    assert only.train == only.val == photographs / "train"
    with pytest.raises(SourceError, match="no such folder"):
        image_folders(tmp_path / "none", 8, tmp_path)


# -- doctor ----------------------------------------------------------------------------------------


@pytest.mark.whole
def test_doctor_lists_decoders_backends_and_limits() -> None:
    done = fastload_command("doctor")
    assert done.code == 0, done.out
    for expected in (
        "torchvision",
        "simplejpeg",
        "pillow",
        "native core",
        "usable cores",
        "/dev/shm",
        "torch.cuda",
    ):
        assert expected in done.out
    for backend in fastload.available_backends():
        assert re.search(rf"^\s+\w+\s+{backend.name}\s", done.out, re.MULTILINE)


@pytest.mark.whole
def test_doctor_json_has_the_same_findings() -> None:
    findings = json.loads(fastload_command("doctor", "--json").out)
    assert {"group", "name", "value", "status", "advice"} == set(findings[0])
    assert {finding["status"] for finding in findings} <= {"ok", "note", "warning", "broken"}
    assert all(finding["advice"] for finding in findings if finding["status"] != "ok")
    versions = {
        finding["name"]: finding["value"] for finding in findings if finding["group"] == "versions"
    }
    assert versions["torch"] == torch.__version__


@pytest.mark.whole
def test_doctor_does_not_say_that_all_is_well_under_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "pillow_is_simd", lambda: False)
    monkeypatch.setattr(doctor, "libjpeg_turbo_of_pillow", lambda: "3.1")
    done = fastload_command("doctor")
    assert "bench decode --pillow-simd" in done.out
    assert "Nothing to change" not in done.out
    assert re.search(r"note(s)? say", done.out) or "to look at" in done.out


def test_doctor_tells_a_missing_library_from_a_missing_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(words: str) -> Finding:
        def load(name: str) -> None:
            raise ImportError(words)

        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "fastload.native._core", raising=False)
            patch.setattr(extension.importlib, "import_module", load)
            return doctor.native_core()

    missing = fails("libjpeg.so.62: cannot open shared object file: No such file or directory")
    assert "apt-get install libjpeg62-turbo" in missing.advice
    assert "compiler" not in missing.advice
    assert "compiler" in fails("No module named 'fastload.native._core'").advice


@pytest.mark.slow
def test_without_the_core_a_loader_says_so_once(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent() -> None:
        raise BackendUnavailableError("it was not built")

    monkeypatch.setattr(native, "load", absent)
    _warn_without_native_core.cache_clear()
    for _ in range(2):
        fastload.create_loader(photographs / "val", 1, backend="torch", num_workers=0).close()
    _warn_without_native_core.cache_clear()
    said = [
        record.getMessage() for record in caplog.records if "more slowly" in record.getMessage()
    ]
    assert len(said) == 1
    assert "it was not built" in said[0]


@pytest.mark.whole
def test_doctor_fails_when_something_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torchvision.ops.nms", lambda *_: (_ for _ in ()).throw(RuntimeError("no operator"))
    )
    done = fastload_command("doctor")
    assert done.code == 1
    assert "does not work with this torch: no operator" in done.out
    assert "pip install --force-reinstall torch torchvision" in done.out


def test_doctor_warns_of_what_costs_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = SimpleNamespace(f_blocks=16384, f_frsize=4096, f_bavail=16384)
    monkeypatch.setattr(os, "statvfs", lambda path: tiny)
    (shared,) = shared_memory()
    assert (shared.status, "--shm-size" in shared.advice) == ("warning", True)
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 65536))
    files = doctor.descriptors()
    assert (files.status, files.advice.endswith("ulimit -n 65536")) == ("note", True)
    monkeypatch.setattr("fastload.cli.doctor.usable_cores", lambda: 1)
    assert "usable cores" in [
        finding.name for finding in doctor.processor() if finding.status == "warning"
    ]


def test_doctor_says_when_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def fails() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu, cuda = doctor.gpus()
    assert (gpu.status, gpu.value.startswith("none")) == ("note", True)
    assert (cuda.status, cuda.value.startswith("not usable")) == ("ok", True)


def test_doctor_sees_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    for name, value in {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlSystemGetDriverVersion": "550.1",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetName": "NVIDIA A100",
    }.items():
        monkeypatch.setattr(pynvml, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu, cuda = doctor.gpus()
    assert gpu.value == "NVIDIA A100, 80 GiB, driver 550.1"
    assert cuda.status == "warning"


def test_doctor_tells_pillow_simd_from_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    import PIL

    monkeypatch.setattr(doctor, "libjpeg_turbo_of_pillow", lambda: "3.1")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")

    found = {}
    for version in ("13.0.0", "9.5.0.post2", "12.1.1.post0"):
        monkeypatch.setattr(PIL, "__version__", version)
        installed = {"pillow": version} | ({"pillow-simd": version} if "post" in version else {})
        monkeypatch.setattr(doctor, "_version", installed.get)
        finding = doctor.pillow()
        assert finding.value.startswith(version)
        found[version] = (finding.name, finding.status, finding.advice)
    assert found["12.1.1.post0"] == ("Pillow-SIMD", "ok", "")
    name, status, advice = found["9.5.0.post2"]
    assert (name, status) == ("Pillow-SIMD", "note")
    assert "security" in advice, "an old one is warned of"
    name, status, advice = found["13.0.0"]
    assert (name, status) == ("Pillow", "note")
    for command in ("pip leaves it there: fastload pillow-simd.", "bench decode --pillow-simd"):
        assert command in advice

    monkeypatch.setattr(doctor, "_version", {"pillow": "13.0.0", "pillow-simd": "12.1.1.post0"}.get)
    monkeypatch.setattr(PIL, "__version__", "13.0.0")
    assert "Pillow was installed over Pillow-SIMD" in doctor.pillow().advice
    monkeypatch.setattr(PIL, "__version__", "12.1.1.post0")
    monkeypatch.setattr(doctor, "_version", {"pillow-simd": "12.1.1.post0"}.get)
    assert "The next pip install of a package that needs Pillow" in doctor.pillow().advice


# -- cache -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_cache_build_then_info(photographs: Path, tmp_path: Path) -> None:
    target = tmp_path / "cache"
    built = fastload_command(
        "cache",
        "build",
        str(photographs / "train"),
        "--directory",
        str(target),
        "--short-side",
        "64",
    )
    assert built.code == 0, built.err
    info = fastload_command("cache", "info", str(target))
    assert info.code == 0, info.err
    for out in (built.out, info.out):
        assert re.search(r"^samples\s+24$", out, re.MULTILINE)
        assert re.search(r"^resolution\s+short side 64$", out, re.MULTILINE)
        assert ", ".join(sorted(SCENES)) in out
        assert re.search(r"^rate +[\d,]+ crops .*\(24 images tried\)$", out, re.MULTILINE)
        assert re.search(r"^as JPEG +of quality 90 .* \d+% of the bytes", out, re.MULTILINE)
    verified = fastload_command("cache", "verify", str(target))
    assert verified.code == 0, verified.err
    assert "6 files, all as written" in verified.out
    with fastload.create_loader(str(target), batch_size=1, backend="cache") as loader:
        images, _ = next(iter(loader))
    assert min(images.shape[2:]) == 64


@pytest.mark.slow
def test_cache_build_goes_where_loaders_look(photographs: Path, own_cache: Path) -> None:
    done = fastload_command("cache", "build", str(photographs / "val"))
    assert done.code == 0, done.err
    directory = Path(done.out.splitlines()[0].strip())
    assert directory.is_relative_to(own_cache / "fastload")
    assert "there already" not in done.out

    again = fastload_command("cache", "build", str(photographs / "val"))
    assert "there already" in again.out

    listed = fastload_command("cache", "list")
    assert re.search(rf"MB  {directory}  [\d,]+ samples of .*val", listed.out)
    assert "1 cache in" in listed.out
    (own_cache / "fastload" / "mine").mkdir()
    assert "1 cache removed" in fastload_command("cache", "clear", "--yes").out
    assert [path.name for path in (own_cache / "fastload").iterdir()] == ["mine"], (
        "what is no cache stays"
    )
    assert "0 caches in" in fastload_command("cache", "list").out
    assert "Nothing was removed" in fastload_command("cache", "clear", "--yes").out


def test_cache_info_of_something_else_is_one_message(tmp_path: Path) -> None:
    done = fastload_command("cache", "info", str(tmp_path))
    assert done.code == 1
    assert done.err.startswith(f"fastload: {tmp_path}: no fastload cache here")


@pytest.mark.whole
def test_cache_info_of_a_data_set_finds_its_caches(
    photographs: Path, own_cache: Path, tmp_path: Path
) -> None:
    done = fastload_command("cache", "info", str(photographs), "--split", "val")
    assert done.code == 1
    assert f"fastload cache build {photographs} --split val" in done.err, "what to type"
    done = fastload_command("cache", "info", str(photographs))
    assert "no fastload cache here" in done.err
    assert "--split train" in done.err
    for short_side in ("32", "48"):
        fastload_command("cache", "build", str(photographs / "val"), "--short-side", short_side)
    fastload_command("cache", "build", str(photographs / "train"), "--short-side", "40")
    found = fastload_command("cache", "info", str(photographs), "--split", "val")
    assert found.code == 0, found.err
    assert sorted(re.findall(r"^resolution  short side (\d+)$", found.out, re.MULTILINE)) == [
        "32",
        "48",
    ]


@pytest.mark.whole
def test_cache_build_of_a_damaged_sample(photographs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "a"
    folder.mkdir(parents=True)
    whole = next(photographs.rglob("*.jpg")).read_bytes()
    (folder / "1.jpg").write_bytes(whole)
    (folder / "2.jpg").write_bytes(whole[: len(whole) // 2])
    (folder.parent / "b").mkdir()
    (folder.parent / "b" / "3.jpg").write_bytes(whole)
    done = fastload_command(
        "cache", "build", str(folder.parent), "--directory", str(tmp_path / "cache")
    )
    assert done.code == 1
    assert "2.jpg" in done.err
    done = fastload_command(
        "cache", "build", str(folder.parent), "--directory", str(tmp_path / "cache"), "--skip-bad"
    )
    assert done.code == 0, done.err
    assert re.search(r"^damaged\s+1 sample,", done.out, re.MULTILINE)
