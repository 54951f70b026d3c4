"""Two classes of texts that every installation of the trainer has: whose documentation is a paragraph from?

`python -m benchmarks.texts FOLDER` takes paragraphs of prose from the docstrings of torch (label 0) and transformers
(label 1), reading their files without importing them, and writes train.tsv (10,000) and dev.tsv (1,000), half of each
class. The same versions of the two packages give the same files.
"""

from __future__ import annotations

import argparse
import ast
import csv
import random
import re
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path

PACKAGES = ("torch", "transformers")
_SIZES = {"train": 10_000, "dev": 1_000}
_NAMES = re.compile("|".join(PACKAGES), re.IGNORECASE)
"""What would give the answer away."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    found = [sorted(set(paragraphs(Path(str(resources.files(package)))))) for package in PACKAGES]
    both = set(found[0]) & set(found[1])
    rng = random.Random(0)
    chosen = []
    for label, texts in enumerate(found):
        own = [text for text in texts if text not in both]
        chosen += [(text, label) for text in rng.sample(own, sum(_SIZES.values()) // len(PACKAGES))]
    rng.shuffle(chosen)
    for name, size in _SIZES.items():
        part, chosen = chosen[:size], chosen[size:]
        with open(folder / f"{name}.tsv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
            writer.writerows([("text", "label"), *part])
    print(", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES), "->", folder)


def paragraphs(package: Path) -> Iterator[str]:
    """Those of at least eight words in all docstrings, on one line each, without the packages' own names."""
    for path in sorted(package.rglob("*.py")):
        try:
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for block in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    text = _NAMES.sub("it", " ".join(block.split()))
                    if len(text.split()) >= 8 and not text.startswith((">>>", "```")):
                        yield text


if __name__ == "__main__":
    main()
