"""What pages of the manual show as printed is what their code prints."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import warm
from tests.manual_data import write_data

ROOT = Path(__file__).parents[1]
FILE = ROOT / "scripts" / "page_outputs.py"
SCRIPT: Any = SimpleNamespace(**runpy.run_path(str(FILE)))
PAGES: list[Path] = SCRIPT.pages()
BY_THEMSELVES = ("extending.md", "pipelines.md")
"""The blocks of the first leave traces in the process that runs them; those of the second take a
twentieth of a second each."""
QUICK = [
    (page, example)
    for page in PAGES
    if SCRIPT.by_itself(page) and page.name not in BY_THEMSELVES
    for example in SCRIPT.examples(page.read_text())
    if example.runs and "slow" not in example.how
]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize(
    ("page", "example"), QUICK, ids=[f"{page.stem}:{example.line}" for page, example in QUICK]
)
@pytest.mark.usefixtures("own_cache")
def test_an_example_of_the_reference_prints_what_is_shown(
    page: Path, example: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in data.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    said = SCRIPT.run(example, {"__name__": "__main__"}, page.name)
    assert example.shown is not None, "a block without its output"
    assert example.same(said), f"python scripts/page_outputs.py {page}\n{said}"


@pytest.mark.whole
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = warm.run(
        str(FILE), "--check", str(page), directory=tmp_path, environment=os.environ | own
    )
    assert done.returncode == 0, done.stdout + done.stderr


TEXT = """
```python
print("one", 1)
```

<!-- output{how} -->
```text
{shown}```

```python
x = 2
```
"""


@pytest.mark.parametrize(
    ("how", "shown", "same"),
    [
        ("", "one 1\n", True),
        ("", "one 2\n", False),
        (": numbers vary", "one 2\n", True),
        (": numbers vary", "two 2\n", False),
        (": numbers vary", "", False),
    ],
)
def test_an_output_is_compared_as_it_says(how: str, shown: str, same: bool) -> None:
    text = TEXT.format(how=how, shown=shown)
    first, second = SCRIPT.examples(text)
    assert (first.line, second.shown) == (2, None)
    said = SCRIPT.run(first, {}, "a page")
    assert first.same(said) is same
    filled = SCRIPT.filled(text, {first.line: said})
    assert filled == (text if same else text.replace(f"```text\n{shown}", "```text\none 1\n"))


def test_only_the_first_lines_are_shown() -> None:
    (example, _) = SCRIPT.examples(TEXT.format(how=": first 2 lines", shown="1\n2\n...\n"))
    assert example.part("1\n2\n3\n") == "1\n2\n...\n"
    assert example.part("1 \n2\n\n") == "1\n2\n"
    assert example.same("1\n2\n4\n")
    assert not example.same("2\n2\n4\n")


def test_what_a_page_needs_is_looked_for() -> None:
    text = TEXT.format(how="", shown="")
    for package, runs in (("torch", True), ("torch, no_such_package", False)):
        given = text.replace("```python\nprint", f"<!-- needs: {package} -->\n```python\nprint")
        first = SCRIPT.examples(given)[0]
        assert (first.needs, first.runs, first.line) == (package, runs, 3)
