"""Files of the repositories, run as they are."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock


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


@contextmanager
def packages_of(folder: Path, *names: str) -> Iterator[None]:
    """Within it modules of these names are those in `folder`. Several repositories have the same
    names, such as `utils`; what had them before has them again afterwards."""

    def named() -> dict[str, ModuleType]:
        return {name: sys.modules[name] for name in sys.modules if name.split(".")[0] in names}

    before = named()
    for name in before:
        del sys.modules[name]
    try:
        with mock.patch.object(sys, "path", [str(folder), *sys.path]):
            yield
    finally:
        for name in named():
            del sys.modules[name]
        sys.modules.update(before)
