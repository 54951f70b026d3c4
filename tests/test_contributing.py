"""The table of CONTRIBUTING.md is right: what it says one has to touch to add something is enough.

Each thing is added to one copy of the package, in the files that its row names and no others; then
the copy's own contract suite and `tests/additions/check.py` run there.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastload import native

ROOT = Path(__file__).parents[1]
ADDITIONS = ROOT / "tests" / "additions"


def code(name: str) -> str:
    return (ADDITIONS / name).read_text()


PRESET = """\
[preset]
like = "cifar10-vgg19"
about = "SGD, by hand"
command = "fastload train by-hand --data cifar-10-python.tar.gz --out runs/by-hand"
"""

Edit = Callable[[str], str]
"""Of a file's text."""


def at_end(addition: str) -> Edit:
    """Also for a new file."""
    return lambda text: f"{text}\n\n{addition}" if text else addition


def after(line: str, addition: str) -> Edit:
    return lambda text: replaced(text, line, f"{line}\n{addition}")


def before(line: str, addition: str) -> Edit:
    return lambda text: replaced(text, line, f"{addition}\n\n{line}")


def replaced(text: str, line: str, by: str) -> str:
    assert text.count(f"\n{line}\n") == 1, f"there is not one line {line!r}"
    return text.replace(f"\n{line}\n", f"\n{by}\n")


ADDED: dict[str, list[tuple[str, Edit]]] = {
    "decoder": [
        (
            "fastload/decode/libraries.py",
            before("_DECODERS: dict[str, Callable[[], Decoder]] = {", code("decoder.py")),
        ),
        (
            "fastload/decode/libraries.py",
            after('    "pillow": PillowDecoder,', '    "by-hand": ByHandDecoder,'),
        ),
    ],
    "source": [("fastload/sources/formats/listing.py", at_end(code("listing.py")))],
    "column that goes with the images": [
        ("fastload/sources/lines.py", at_end(code("lines.py"))),
        (
            "fastload/sources/kinds.py",
            after("_ELSEWHERE = {", '    "lines": "fastload.sources.lines",'),
        ),
    ],
    "colour operation": [("fastload/recipe/inverted.py", at_end(code("colour.py")))],
    "geometry operation": [("fastload/recipe/crops.py", at_end(code("crop.py")))],
    "backend": [
        ("fastload/backends/by_hand.py", at_end(code("backend.py"))),
        (
            "fastload/backends/base.py",
            after("_BUILT_IN = {", '    "by-hand": "fastload.backends.by_hand:ByHandBackend",'),
        ),
    ],
    "preset": [("fastload/train/presets/by-hand.toml", at_end(PRESET))],
}
"""What is added for each row of the table: files, and what is done to them."""


def rows_of_the_table() -> dict[str, str]:
    """What to add, and what to touch for it."""
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Which files to touch")[1]
    rows = re.findall(r"^\| ([\w ]+) \| (.+?) \|", table, re.MULTILINE)
    return {name: touched for name, touched in rows if "..." not in name}


def test_everything_in_the_table_is_added_here() -> None:
    assert set(rows_of_the_table()) == set(ADDED)


@pytest.mark.parametrize("what", ADDED)
def test_no_file_is_touched_that_the_table_does_not_name(what: str) -> None:
    said = rows_of_the_table()[what]
    places = re.findall(r"`(fastload/[\w/.]+)`", said)
    modules = re.findall(r"`(\w+)\.(?:py|[A-Z]+)`", said)
    for file, _ in ADDED[what]:
        folder, name = os.path.split(file)
        named = file in places or Path(name).stem in modules
        assert named or f"{folder}/" in places, f"{file} is not in: {said}"
        assert folder in {os.path.dirname(place) for place in places}


SITE = """\
import sys

sys.meta_path[:] = [hook for hook in sys.meta_path if "ScikitBuild" not in type(hook).__name__]
"""
"""An editable install finds modules by a hook, which goes before every path."""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package and its tests with everything added."""
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns("__pycache__", "*.cpp", "*.hpp", ".hypothesis")
    for name in ("fastload", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", copy)
    if native.available():
        core = native.load().__file__
        assert core is not None
        shutil.copy(core, copy / "fastload" / "native")
    (copy / "sitecustomize.py").write_text(SITE)
    for file, edit in itertools.chain.from_iterable(ADDED.values()):
        path = copy / file
        path.write_text(edit(path.read_text() if path.exists() else ""))
    return copy


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_what_is_added_as_the_table_says_passes_the_contract(package: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(package / "xdg")}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=package,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        return done.stdout

    where = "import fastload; print(fastload.__file__)"
    assert run("-c", where).strip() == str(package / "fastload" / "__init__.py")
    options = ["-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
    chosen = ["tests/test_contract.py", "tests/test_decode.py", "tests/additions/check.py"]
    checks = "by-hand or (additions and not dali) or check"
    said = run(*options, "-k", checks, *chosen)
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) > 60, said
