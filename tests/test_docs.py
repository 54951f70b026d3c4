"""Every block of code in the README and the manual runs, and every command in them is one that `fastload` takes.

A page's Python blocks run one behind the other in one process, in a folder with small data under the names
that the pages use. A comment before a block says what it needs that may not be here:

    <!-- needs: lightning -->        run where the package is installed, only compiled elsewhere
    <!-- only compiled: a GPU -->    with the reason
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import fastload
from fastload.cli.app import app
from tests import warm
from tests.images import jpeg, photo, png

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PAGES = [page for page in PAGES if page.exists()]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_REMARK = re.compile(r"<!-- (needs|only compiled): ([^>]+?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    code: str
    needs: str = ""
    """Packages, separated by commas, that must be importable for it to run."""
    only_compiled: str = ""
    """Why it does not run here."""

    @property
    def runs(self) -> bool:
        return not self.only_compiled and all(find_spec(name.strip()) for name in self.needs.split(",") if name)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for fence in _FENCE.finditer(text):
        remark = _REMARK.search(text[: fence.start()])
        kind, words = remark.groups() if remark else ("", "")
        code = re.sub(rf"^{fence['indent']}", "", fence["code"], flags=re.MULTILINE)
        found.append(
            Block(
                line=text[: fence.start()].count("\n") + 1,
                language=fence["language"],
                code=code,
                needs=words if kind == "needs" else "",
                only_compiled=words if kind == "only compiled" else "",
            )
        )
    return found


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data/train`, `data/val` (three classes), `cracks/{images,masks}`."""
    root = tmp_path_factory.mktemp("manual")
    for part, count in (("train", 24), ("val", 9)):
        for index in range(count):
            path = root / "data" / part / ("cat", "dog", "fox")[index % 3] / f"{index:03d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(photo(260, 280, seed=index)))
    for index in range(8):
        for part, suffix in (("images", "jpg"), ("masks", "png")):
            (root / "cracks" / part).mkdir(parents=True, exist_ok=True)
            pixels = photo(64, 96, seed=index)
            data = jpeg(pixels) if part == "images" else png((pixels[:, :, :1] > 128).astype(np.uint8))
            (root / "cracks" / part / f"{index}.{suffix}").write_bytes(data)
    return root


def script_of(page: Path) -> str:
    """The page's Python as a program whose lines have the numbers that they have on the page."""
    lines: list[str] = []
    for block in blocks_of(page):
        if block.language == "python" and block.runs:
            lines += [""] * (block.line - len(lines))
            lines += block.code.splitlines()
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, data: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            compile(block.code, f"{page.name}:{block.line}", "exec")
    script = script_of(page)
    if not script.strip():
        return
    for name in ("data", "cracks"):
        (tmp_path / name).symlink_to(data / name)
    program = tmp_path / "page.py"
    program.write_text(script)
    done = warm.run(program.name, directory=tmp_path)
    assert done.returncode == 0, f"{page.name}:\n{done.stdout}\n{done.stderr}"


def commands_of(page: Path) -> list[tuple[int, list[str]]]:
    """(line, words) of each `fastload` command in the page's unlabelled, `console`, `sh` and `bash` blocks."""
    found = []
    for block in blocks_of(page):
        if block.language not in ("", "console", "sh", "bash"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            match = re.match(r"^(?:\$ )?(?:\w+=\S+ )*fastload (.*)", line.strip())
            if match:
                words = re.split(r"\s(?:#|>|\|)\s", match[1] + " ")[0]
                found.append((block.line, shlex.split(words.replace("|", " "))))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_commands(page: Path) -> None:
    root: Any = typer.main.get_command(app)
    for line, words in commands_of(page):
        if any(word.startswith(("...", "[")) or word.endswith("...") for word in words):
            words = [word for word in words if not word.startswith(("...", "["))]
        command, names = root, []
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words[0]]
            names.append(words.pop(0))
        assert names, f"{page.name}:{line}: fastload has no command {words[:1]}"
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in known, f"{page.name}:{line}: fastload {' '.join(names)} has no {word}"


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken


def test_the_tests_that_hold_a_guarantee_are_there() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(test_\w+\*?\.py)(?:::(\w+\*?))?`", page)
    assert named
    for file, name in named:
        files = sorted((ROOT / "tests").rglob(file))
        assert files, f"guarantees.md names {file}"
        pattern = "^def " + name.replace("*", r"\w*") + r"\(" if name else ""
        assert any(re.search(pattern, path.read_text(), re.MULTILINE) for path in files), f"{file} has no {name}"


def test_the_page_of_the_api_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    named = re.findall(r"^::: (\S+)", page, re.MULTILINE)
    errors = {name for name in fastload.__all__ if fastload._HOMES.get(name) == "fastload.errors"}
    assert "fastload.errors" in named
    missing = [name for name in fastload.__all__ if f"fastload.{name}" not in named and name not in errors]
    assert missing == ["__version__"]
    options = [
        ".".join([*path.relative_to(ROOT).with_suffix("").parts, found])
        for path in sorted((ROOT / "fastload" / "backends").rglob("*.py"))
        for found in re.findall(r"^class (\w+)\(BackendOptions\)", path.read_text(), re.MULTILINE)
    ]
    assert len(options) >= 4
    assert not {*options} - {*named}
    for name in named:
        module, _, last = name.rpartition(".")
        thing = import_module(name) if name == "fastload.errors" else getattr(import_module(module), last)
        assert thing.__doc__, f"{name} has no docstring"


@pytest.mark.slow
@pytest.mark.skipif(
    not find_spec("mkdocs") or not find_spec("mkdocstrings"), reason="needs pip install torch-fastload[docs]"
)
def test_the_manual_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "api" / "index.html").read_text()
    for name in ("create_loader", "from_dataloader", "CacheOptions", "StateMismatchError"):
        assert re.search(rf'id="fastload[\w.]*\.{name}"', page), f"{name} is documented"


@pytest.mark.parametrize(
    ("page", "topics"),
    [
        ("moving.md", ["torch.utils.data.DataLoader", "FFCV", "DALI", "timm", "WebDataset"]),
        ("multi-node.md", ["torchrun", "SLURM"]),
        ("troubleshooting.md", ["GPU is at 0%", "Bus error", "Too many open files", "Two libjpegs",
                                "Pillow or Pillow-SIMD", "Network disks", "DataParallel fills the first GPU"]),
    ],
)  # fmt: skip
def test_what_people_look_for_has_a_heading(page: str, topics: list[str]) -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert [topic for topic in topics if not any(topic in heading for heading in headings)] == []


def test_every_page_of_the_manual_is_in_its_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text().split("nav:")[1]
    assert set(re.findall(r": (\S+\.md)$", contents, re.MULTILINE)) == {p.name for p in (ROOT / "docs").glob("*.md")}


def test_the_chinese_readme_is_in_step() -> None:
    english, chinese = (ROOT / name for name in ("README.md", "README.zh-CN.md"))

    def code(page: Path) -> list[str]:
        return [re.sub(r" *#.*", "", block.code) for block in blocks_of(page) if block.language == "python"]

    def figures(page: Path) -> list[list[str]]:
        """Of the tables of measured ratios: the numbers of each row."""
        rows = re.findall(r"^\|[* ]*[ABC]\b.*$", page.read_text(), re.MULTILINE)
        return [re.findall(r"\d+\.\d+|\b\d+\b", row) for row in rows]

    assert code(english) == code(chinese)
    assert commands_of(english)
    assert [w for _, w in commands_of(english)] == [w for _, w in commands_of(chinese)]
    assert len(figures(english)) == 6
    assert figures(english) == figures(chinese)
    backends = re.compile(r'^\| `"(\w+)"` \|', re.MULTILINE)
    assert backends.findall(english.read_text()) == backends.findall(chinese.read_text())


def test_the_versions_of_python_are_named() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r"Programming Language :: Python :: 3\.(\d+)", text)
    least = re.search(r'requires-python = ">=3\.(\d+)"', text)
    assert least is not None
    assert named[0] == least[1]
    assert list(map(int, named)) == list(range(int(named[0]), int(named[-1]) + 1))
    assert "3.10 to 3.13" in (ROOT / "Makefile").read_text(), "those that wheels are made for"
    assert named[-1] == "13"
