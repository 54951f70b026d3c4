"""Prints the versions of Python that pyproject.toml names in its classifiers, and those without the
GIL that wheels are built for, as a JSON list: the matrix of `.github/workflows/tests.yml`."""

from __future__ import annotations

import json
import re
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def pythons() -> list[str]:
    """From the oldest to the newest, then those without the GIL ("3.14t")."""
    text = PYPROJECT.read_text()
    without_gil = [f"3.{minor}t" for minor in re.findall(r'"cp3(\d+)t-\*"', text)]
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text) + without_gil


if __name__ == "__main__":
    print(json.dumps(pythons()))
