"""`fastload pillow-simd`, with small wheels in place of Pillow and Pillow-SIMD, in an environment
of the test's own: no network, and nothing is installed in the environment of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fastload.cli import pillow_simd as command
from fastload.cli.app import app
from fastload.errors import BackendUnavailableError, ConfigurationError
from tests.waiting import LIMIT

SIMD = "12.1.1.post0"
pytestmark = pytest.mark.slow


def make_wheel(
    folder: Path, name: str, version: str, files: dict[str, str], needs: str = ""
) -> Path:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    files = files | {
        f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(file, text)
    return path


class Place:
    """An environment, and a folder of wheels in place of a registry."""

    def __init__(self, folder: Path) -> None:
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        venv.create(folder / "venv", with_pip=False)
        self.python = str(folder / "venv" / "bin" / "python")
        module = "__version__ = {!r}\n"
        pillow = {"PIL/__init__.py": module.format("13.0.0"), "PIL/only_in_13.py": ""}
        self.pillow = make_wheel(self.wheels, "pillow", "13.0.0", pillow)
        simd = {"PIL/__init__.py": module.format(SIMD), "PIL/_imaging.py": ""}
        self.simd = make_wheel(self.wheels, "pillow_simd", SIMD, simd)
        needs = "pillow!=8.3.*,>=5.3.0"  # as torchvision's
        self.user = make_wheel(self.wheels, "needs_pillow", "1.0", {"user.py": ""}, needs)

    def pip(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, *words],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *words: str) -> None:
        self.pip("install", "--quiet", "--no-index", "--find-links", str(self.wheels), *words)

    def would_install(self, name: str) -> set[str]:
        """What `pip install` of it would bring."""
        words = ["--dry-run", "--quiet", "--no-index", "--find-links", str(self.wheels)]
        report: Any = json.loads(self.pip("install", *words, "--report", "-", name))
        return {one["metadata"]["name"] for one in report["install"]}

    def files(self) -> set[str]:
        code = "import PIL, os; print(*sorted(os.listdir(os.path.dirname(PIL.__file__))))"
        done = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True)
        return {name for name in done.stdout.split() if name.endswith(".py")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.whole
def test_pip_leaves_it_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.install("pillow")
    monkeypatch.setattr(command, "build_wheel", lambda python, folder: place.simd)
    done = CliRunner().invoke(app, ["pillow-simd", "--python", place.python])
    assert done.exit_code == 0, done.output
    assert f"Pillow-SIMD {SIMD} is what `import PIL` finds" in done.output
    assert command.look(place.python) == (SIMD, SIMD, True, SIMD)
    assert place.files() == {"__init__.py", "_imaging.py"}, "nothing of Pillow is left"

    assert place.would_install("needs-pillow") == {"needs-pillow"}
    place.install("needs-pillow")
    assert command.look(place.python).kept
    place.pip("check")

    again = CliRunner().invoke(app, ["pillow-simd", "--python", place.python])
    assert again.output == f"Pillow-SIMD {SIMD} is installed, and pip leaves it there.\n"


@pytest.mark.whole
def test_without_the_stub_pip_puts_pillow_over_it(place: Place) -> None:
    place.install("pillow-simd")
    assert place.would_install("needs-pillow") == {"needs-pillow", "pillow"}
    before = command.look(place.python)
    assert (before.simd_intact, before.kept) == (True, False)
    command.install(place.python, before)  # only the stub: no wheel is built
    assert place.would_install("needs-pillow") == {"needs-pillow"}


@pytest.mark.whole
def test_pillow_that_was_put_over_it_goes(place: Place) -> None:
    place.install("pillow-simd")
    place.install("needs-pillow")
    mixed = command.look(place.python)
    assert (mixed.imported, mixed.simd_intact) == ("13.0.0", False)
    assert place.files() == {"__init__.py", "_imaging.py", "only_in_13.py"}, "files of both"
    assert command.install(place.python, mixed, place.simd).kept
    assert place.files() == {"__init__.py", "_imaging.py"}


@pytest.mark.whole
def test_what_cannot_be_is_said_before_pillow_goes(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.install("pillow")
    before = command.look(place.python)
    with pytest.raises(ConfigurationError, match="--wheel: .* is not a wheel of Pillow-SIMD"):
        command.install(place.python, before, place.pillow)
    with pytest.raises(ConfigurationError, match="--python: .*nowhere does not run"):
        command.look(str(tmp_path / "nowhere"))
    monkeypatch.setattr("fastload.machine.simd_extensions", lambda: ("sse2",))
    with pytest.raises(BackendUnavailableError, match="processors with AVX2"):
        command.install(place.python, before)
    monkeypatch.setattr("fastload.machine.simd_extensions", lambda: ("sse2", "avx2"))
    monkeypatch.setattr(command.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as without a network
    with pytest.raises(BackendUnavailableError, match=r"could not be built.*left as it is"):
        command.install(place.python, before)
    assert command.look(place.python) == before
