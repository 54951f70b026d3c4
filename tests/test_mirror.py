"""Every module with logic has one test file that holds its tests, named in `tests/mirror.py`."""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path

from tests.mirror import ELSEWHERE, TESTS

ROOT = Path(__file__).parents[1]


@functools.cache
def modules() -> dict[str, Path]:
    """Those in which a function is defined."""
    found = {}
    for path in sorted((ROOT / "fastload").rglob("*.py")):
        if re.search(r"^ *(async )?def \w+[\[(]", path.read_text(), re.MULTILINE):
            parts = path.relative_to(ROOT / "fastload").with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_each_module_has_one_test_file() -> None:
    named = Counter(" ".join(TESTS.values()).split())
    named.update(list(ELSEWHERE))
    assert [module for module, times in named.items() if times > 1] == []
    assert modules().keys() - named.keys() == {""}, "tests/mirror.py has no row for these"
    assert named.keys() - modules().keys() == set(), "these are gone"


def test_each_test_file_is_there() -> None:
    assert [file for file in TESTS if not (ROOT / "tests" / f"{file}.py").is_file()] == []


def test_a_test_file_of_a_modules_own_name_is_the_one() -> None:
    for module in modules().keys() - ELSEWHERE.keys():
        own = f"test_{module.replace('.', '_')}"
        if (ROOT / "tests" / f"{own}.py").exists():
            assert module in TESTS.get(own, "").split(), own
