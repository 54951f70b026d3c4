"""Runs what pages of the manual show, and writes below it what it printed.

    python scripts/page_outputs.py               all pages that show outputs
    python scripts/page_outputs.py docs/tutorial.md
    python scripts/page_outputs.py --check       only say what differs; exit code 1

In a page, a comment and a block of text after a block of Python are its output:

    <!-- output -->
    ```text
    what was printed
    ```

`<!-- output: numbers vary -->` is of times and of what depends on the machine: it is compared
without its numbers. `<!-- output: first 9 lines -->` shows only these. `slow` has the block left
out of the quick tests. A block of commands is run where such a comment follows.

The blocks of a page run one after the other in one process, in a folder of their own, with the data
of the manual's tests in it (tests/manual_data.py). In docs/reference/ each begins from nothing, as
who copies one of them does. A picture that a page shows and that its code has written is copied
beside the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MARK = "<!-- output"

_BLOCK = re.compile(
    r"(?:<!-- (?P<remark>needs|only compiled): (?P<words>[^>]+?) -->\n)?"
    r"^```(?P<language>python|console|sh)\n(?P<code>.*?)^```\n"
    r"(?:\n<!-- output(?P<how>[^>]*)-->\n```text\n(?P<output>.*?)```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Example:
    """A block of a page, and what the page says it prints."""

    line: int
    language: str
    code: str
    needs: str
    """Packages, separated by commas, without which it does not run."""
    only_compiled: bool
    shown: str | None
    """None: nothing."""
    how: str
    end: int
    """Where its text ends in the page."""

    @property
    def runs(self) -> bool:
        there = all(find_spec(name.strip()) for name in self.needs.split(",") if name)
        wanted = self.language == "python" or self.shown is not None
        return there and wanted and not self.only_compiled

    def same(self, printed: str) -> bool:
        """Whether the page shows this, as far as it is the same everywhere."""
        if self.shown is None:
            return True
        printed = self.part(printed)
        if "numbers vary" not in self.how:
            return printed == self.shown
        return _without_numbers(printed) == _without_numbers(self.shown)

    def part(self, printed: str) -> str:
        """What the page shows of it."""
        first = re.search(r"first (\d+) lines", self.how)
        lines = [line.rstrip() for line in printed.rstrip().splitlines()]
        if first and len(lines) > int(first[1]):
            lines = [*lines[: int(first[1])], "..."]
        return "".join(f"{line}\n" for line in lines)


def _without_numbers(text: str) -> list[str]:
    return re.sub(r"\d[\d,.:]*", "#", text).split()


def pages() -> list[Path]:
    """Those that show an output; what is Chinese has that of the English page."""
    found = [page for page in sorted(DOCS.rglob("*.md")) if MARK in page.read_text()]
    return [page for page in found if not page.name.endswith(".zh-CN.md")]


def by_itself(page: Path) -> bool:
    """Whether each block of the page begins from nothing."""
    return page.parent.name == "reference"


def examples(text: str) -> list[Example]:
    return [
        Example(
            line=text[: found.start()].count("\n") + 1 + found[0].count("-->\n```python"),
            language=found["language"],
            code=found["code"],
            needs=found["words"] if found["remark"] == "needs" else "",
            only_compiled=found["remark"] == "only compiled",
            shown=found["output"],
            how=found["how"] or "",
            end=found.end(),
        )
        for found in _BLOCK.finditer(text)
    ]


def run(example: Example, names: dict[str, Any], page: str) -> str:
    """What it prints, in the current folder, whose name is left out; what it defines is in `names`
    then."""
    if example.language != "python":
        printed = "".join(map(_command, example.code.replace("\\\n", " ").splitlines()))
        return printed.replace(f"{Path.cwd()}/", "")
    said = io.StringIO()
    # With empty lines before it, a traceback names the line of the page.
    code = compile("\n" * example.line + example.code, page, "exec")
    with contextlib.redirect_stdout(said):
        exec(code, names)
    return said.getvalue().replace(f"{Path.cwd()}/", "")


def _command(line: str) -> str:
    words = shlex.split(line.removeprefix("$ "))
    if words[:1] != ["fastload"]:
        raise SystemExit(f"{line}: only commands of fastload are run for a page.")
    command = [sys.executable, "-m", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "90"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def outputs(page: Path) -> Iterator[tuple[Example, str]]:
    """Each block that runs, and what it prints, in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for example in examples(page.read_text()):
        if example.runs:
            names = {"__name__": "__main__"} if by_itself(page) else names
            yield example, run(example, names, page.name)


def filled(text: str, printed: dict[int, str]) -> str:
    """The page, with these outputs; by the lines of their blocks."""
    parts, done = [], 0
    for example in examples(text):
        parts.append(text[done : example.end])
        done = example.end
        said = printed.get(example.line)
        if said is not None and example.shown is not None and not example.same(said):
            before = parts[-1].removesuffix(f"{example.shown}```\n")
            parts[-1] = f"{before}{example.part(said)}```\n"
    return "".join([*parts, text[done:]])


def main(arguments: list[str]) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.manual_data import write_data

    check = "--check" in arguments
    wrong = 0
    for page in [Path(name).resolve() for name in arguments if name != "--check"] or pages():
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(write_data(Path(folder)))
            try:
                printed = dict(outputs(page))
            except Exception:
                traceback.print_exc()
                raise SystemExit(f"{page.name} does not run.") from None
            for example, said in printed.items():
                if not example.same(said):
                    wrong += 1
                    print(f"{page.name}:{example.line} printed:\n{said}")
            if not check:
                _write(page, {example.line: said for example, said in printed.items()})
        print(page.name, len(printed), "blocks")
    if check and wrong:
        raise SystemExit(f"{wrong} outputs differ: python scripts/page_outputs.py")


def _write(page: Path, printed: dict[int, str]) -> None:
    text = page.read_text()
    page.write_text(filled(text, printed))
    for picture in re.findall(r"!\[[^\]]*\]\(([\w-]+\.(?:png|jpg|svg))\)", text):
        if Path(picture).exists():
            shutil.copy(picture, page.parent / picture)


if __name__ == "__main__":
    main(sys.argv[1:])
