"""Modules of fastload that are loaded when something of theirs is called for: a registry reads in
their text what they say of themselves, and imports none of them to know its members."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


def text_of(module: str) -> str | None:
    """The text of a module; None in an installation without sources."""
    package, _, path = module.partition(".")
    try:
        data = pkgutil.get_data(package, f"{path.replace('.', '/')}.py")
    except OSError:
        return None
    return None if data is None else data.decode()


def modules_in(package: str, paths: Iterable[str]) -> list[str]:
    """The names of the modules of a package, whose `__path__` is `paths`."""
    return [f"{package}.{each.name}" for each in pkgutil.iter_modules(paths)]


def class_attribute(text: str, cls: str, name: str) -> str | None:
    """The expression that a class gives to an attribute; None where its body does not."""
    body = re.search(rf"^class {cls}\b.*\n((?:    .*\n|\n|\).*\n)*)", text, re.MULTILINE)
    # Lines that go on are indented further, or close a bracket, as ruff lays them out.
    statement = rf"^    {name}(?:: .+)? = (.*\n(?:     .*\n|    [)\]}}].*\n)*)"
    match = None if body is None else re.search(statement, body[1], re.MULTILINE)
    return None if match is None else match[1]


def constant(module: str, name: str) -> Any:
    """The value of a name at the top of a module, which is written there as a literal; None where
    there is none."""
    text = text_of(module)
    if text is None:
        return getattr(importlib.import_module(module), name, None)
    for line in ast.parse(text).body:
        targets = line.targets if isinstance(line, ast.Assign) else ()
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(line.value)  # type: ignore[attr-defined]  # it is an Assign
    return None


@dataclass(frozen=True)
class Later:
    """A function or class of a module, which is loaded when it is called for."""

    module: str
    name: str

    def loaded(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)

    def __call__(self, *args: Any) -> Any:
        return self.loaded()(*args)
