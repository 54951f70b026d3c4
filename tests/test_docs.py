"""Every block of code in the README and the manual runs, and every command in them is one that `fastload` takes.

A page's Python blocks run one behind the other in one process, in a folder with small data under the names
that the pages use. A comment before a block says what it needs that may not be here:

    <!-- needs: lightning -->        run where the package is installed, only compiled elsewhere
    <!-- only compiled: a GPU -->    with the reason
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

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
