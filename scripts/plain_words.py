"""Finds words that this project does not use, in code, comments, messages and the manual.

    python scripts/plain_words.py          # all files that git tracks
    python scripts/plain_words.py FILE...  # paths from the root; not of what NOT_CHECKED leaves out

Prints `file:line: "word": use ...` for each, and ends with 1 if there is one. A word is also found
inside a name: `told` in `_told_at` and in `ToldBatch`.

`WORDS` holds the words and what to write instead. `ALLOWED` holds the places where a word is right:
a pattern of the file's path, and a pattern that the line must contain.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

CHECKED = ("*.py", "*.pyi", "*.cpp", "*.hpp", "*.md", "*.toml", "*.sh", "Makefile")
NOT_CHECKED = ("licenses/*", "scripts/plain_words.py", "tests/test_plain_words.py", "*zh-CN*")

WORDS = {
    "amiss": "wrong",
    "anew": "again",
    "beforehand": "before",
    "begun": "started",
    "behind": "after",
    "betwixt": "between",
    "crew": "thread group",
    "errand": "task",
    "heed": "follow, read",
    "hence": "so, therefore",
    "hither": "here",
    "house": "project, package",
    "inmate": "member",
    "kin": "the like",
    "lent": "delivered, in use",
    "lest": "so that ... not",
    "naught": "nothing",
    "nought": "nothing",
    "obey": "apply, follow",
    "obeys": "applies, follows",
    "peek": "read the first",
    "thence": "from there",
    "thereof": "of it",
    "thrice": "three times",
    "told": "reported, given, known",
    "uprighter": "upright",
    "whence": "from where",
    "whoever": "who, which",
    "whilst": "while",
    "whither": "where to",
    "wherein": "in which",
    "yonder": "there",
}

NAMES = {
    "Held": "what it holds",
    "Needs": "Dependency",
    "OnlyHere": "what it guards",
    "Rests": "what remains",
    "differ": "bit_xor, is_different",
    "either": "bit_or",
    "held": "what it holds",
    "prints": "fingerprints",
    "room": "folder, space, package",
    "rooms": "packages",
}
"""Words that say too little as the whole name of a class, function or variable."""

ALLOWED = (
    # To leave something behind, and to be late: "after" does not mean that.
    ("*", r"(leav\w*|left|is|be|are|batches|works|hidden|late)[ _]([\w/]+[ _]){0,2}behind"),
    ("fastload/sources/opening.py", r"^ *behind \("),
    ("benchmarks/README.md", r"[Bb]ehind a"),  # a trainer that is late
    # Names in saved states, in files of results, and in other libraries.
    ("fastload/sampler/order.py", r'"lent"'),
    ("tests/test_sampler.py", r'"lent"'),
    ("fastload/tools/watch/report.py", r'"begun"'),
    ("benchmarks/gpu/decode.py", r"peek_image_shape"),
    ("*", r"\bwhence: int|\[whence\]"),  # io.RawIOBase.seek
    ("*", r"WongKinYiu"),  # a person on GitHub
    # Texts that a test trains on.
    ("tests/test_train_texts.py", r"story told well|badly told"),
)
"""(pattern of the path, pattern in the line that contains the word)."""

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DEFINITION = re.compile(
    r"\b(?:class|struct|def|as|for|auto|V) (_?[A-Za-z]\w*)\b|^\s*(_?[A-Za-z]\w*)(?= = |: \w+.* = )"
)


class Finding(NamedTuple):
    line: int
    word: str
    use: str


def is_allowed(path: str, line: str, word: str) -> bool:
    """Whether an exception covers the word in this line."""
    for pattern, text in ALLOWED:
        found = re.search(text, line) if fnmatch(path, pattern) else None
        if found and word in found.group().lower():
            return True
    return False


def findings(path: str, text: str) -> Iterator[Finding]:
    """Of one file."""
    for number, line in enumerate(text.splitlines(), 1):
        words = {part.lower() for part in _PARTS.findall(line)}
        for word in sorted(words & WORDS.keys()):
            if not is_allowed(path, line, word):
                yield Finding(number, word, WORDS[word])
        if not path.endswith((".md", ".toml", ".sh")):
            for match in _DEFINITION.finditer(line):
                name = (match[1] or match[2]).strip("_")
                if name in NAMES and not is_allowed(path, line, name.lower()):
                    yield Finding(number, name, NAMES[name])


def is_checked(path: str) -> bool:
    """Whether words of this file are looked at; the path is relative to the root of the project."""
    return any(fnmatch(Path(path).name, pattern) for pattern in CHECKED) and not any(
        fnmatch(path, pattern) for pattern in NOT_CHECKED
    )


def checked_files() -> list[str]:
    """Paths of the files that git tracks, relative to the root of the project."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [path for path in listed if is_checked(path) and (ROOT / path).is_file()]


def text_of(path: str) -> str:
    """The text of a file; of the changelog, what is not released yet."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return text.split("\n## 0.")[0] if path == "CHANGELOG.md" else text


def main(paths: list[str]) -> int:
    count = 0
    for path in filter(is_checked, paths) if paths else checked_files():
        for found in findings(path, text_of(path)):
            print(f'{path}:{found.line}: "{found.word}": use {found.use}')
            count += 1
    if count:
        print(f"{count} words to replace; scripts/plain_words.py has the list and the exceptions.")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
