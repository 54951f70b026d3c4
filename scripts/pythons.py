"""Prints the versions of Python that pyproject.toml names in its classifiers, as a JSON list: the
matrix of `.github/workflows/tests.yml`."""

from __future__ import annotations

import json
import re
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def pythons() -> list[str]:
    """From the oldest to the newest."""
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT.read_text())


if __name__ == "__main__":
    print(json.dumps(pythons()))
