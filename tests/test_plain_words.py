"""The check of words: what it finds, where it looks away, and that the project passes it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "plain_words.py"


@pytest.fixture(scope="module")
def check() -> Any:
    spec = importlib.util.spec_from_file_location("plain_words", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("# Zeros behind the last row.", "behind"),
        ("self._told_at = 0.0", "told"),
        ("class ToldBatch:", "told"),
        ("started_anew = True", "anew"),
        ("class _Crew:", "crew"),
        ("class Rests(Order):", "Rests"),
        ("    held = open_files()", "held"),
        ("    room: Path = folder", "room"),
        ("for room in rooms:", "room"),
        ("static V either(V a, V b) { return a | b; }", "either"),
    ],
)
def test_a_word_that_is_not_ours_is_found(check: Any, line: str, word: str) -> None:
    (found,) = check.findings("fastload/x.cpp", f"first\n{line}\n")
    assert (found.line, found.word) == (2, word)
    assert found.use


@pytest.mark.parametrize(
    "line",
    [
        "Programs leave files behind.",
        "test_that_nothing_is_left_behind",
        "There is room for another batch.",
        "either of the two",
        "a table of (B, C, H, W) houses",  # only the very word counts
        "print(batch)",
    ],
)
def test_other_words_are_not_found(check: Any, line: str) -> None:
    assert list(check.findings("fastload/x.py", line)) == []


def test_an_exception_holds_in_its_file_alone(check: Any) -> None:
    line = '    return {"lent": 3}'
    assert list(check.findings("fastload/sampler/order.py", line)) == []
    assert [found.word for found in check.findings("fastload/sampler/users.py", line)] == ["lent"]


def test_the_command_names_file_line_word_and_the_word_to_use(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text("x = 1\n# begun\n")
    done = subprocess.run(
        [sys.executable, SCRIPT, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == f'{path}:2: "begun": use started'


def test_files_that_are_left_out_are_so_when_they_are_named(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pre-commit names each file that changes."""
    monkeypatch.setattr(check, "ROOT", tmp_path)
    (tmp_path / "licenses").mkdir()
    for path in ("licenses/some.txt", "docs.zh-CN.md", "new.py"):
        (tmp_path / path).write_text("begun")
    assert check.main(["licenses/some.txt", "docs.zh-CN.md"]) == 0
    assert check.main(["licenses/some.txt", "new.py"]) == 1


def test_the_project_uses_its_own_words(check: Any) -> None:
    assert check.main([]) == 0
