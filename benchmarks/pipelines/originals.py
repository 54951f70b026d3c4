"""Files of the repositories, run as they are."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module(file: Path, name: str) -> ModuleType:
    """A file, run once as a module of this name: worker processes find it as well."""
    found = sys.modules.get(name)
    if found is not None and getattr(found, "__file__", None) == str(file):
        return found
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.exists():
        raise SystemExit(f"{file} is not there: clone its repository into the folder of originals")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made
