"""Which of our pipelines does what a class of somebody's does: by the name of the class.

A file of `fastload.pipelines` says so in its `ORIGINALS`: the module and the name of a class, as a
checkout of its repository has them, and the function that stands for it. It is read in the text.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from fastload.modules import constant, modules_in

_PACKAGE = "fastload.pipelines"
_OBJECTS, _ITEMS = 1000, 16
"""At how many objects is looked, and at how many of a list: 2 ms at most."""
_NOT_LOOKED_INTO = (type, ModuleType, FunctionType, str, bytes, int, float, type(None))


def pipeline_for(thing: Any) -> str | None:
    """What to write in the place of a transform, or of one that a data set has, in words; None
    where no pipeline is known. Only names are compared: nothing of it is run, and the class may
    have been changed."""
    for one in _objects_in(thing):
        cls = type(one)
        if (pipeline := _function_for(f"{cls.__module__}.{cls.__qualname__}")) is not None:
            return (
                f"{cls.__qualname__} has the name of a class of the repository that "
                f"{_PACKAGE}.{pipeline}(...) follows; if your {cls.__module__} is unchanged, give "
                "create_loader that as transform"
            )
    return None


def _function_for(name: str) -> str | None:
    """By the module and name of a class. A repository may lie in a package of another one."""
    parts = name.split(".")
    tails = (".".join(parts[first:]) for first in range(len(parts) - 1))
    return next((known[tail] for tail in tails if tail in (known := _originals())), None)


@functools.cache
def _originals() -> dict[str, str]:
    """By the module and name of a class: the function in `fastload.pipelines`."""
    folder = str(Path(__file__).with_name("pipelines"))
    tables = (constant(module, "ORIGINALS") for module in modules_in(_PACKAGE, [folder]))
    return {name: function for table in tables for name, function in (table or {}).items()}


def _objects_in(thing: Any) -> Iterator[Any]:
    """An object and those in its attributes, lists and dicts, the nearest first."""
    ahead, met = deque([thing]), set[int]()
    while ahead and len(met) < _OBJECTS:
        value = ahead.popleft()
        if id(value) in met or isinstance(value, _NOT_LOOKED_INTO):
            continue
        met.add(id(value))
        if isinstance(value, list | tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            ahead.extend(itertools.islice(items, _ITEMS))
        elif (own := getattr(value, "__dict__", None)) is not None:
            yield value
            ahead.extend([*own.values(), *own.get("_modules", {}).values()])
