"""Calls of public functions with an argument that they do not have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fastload.errors import UnknownArgumentError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def checks_names(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose calls with an argument that it does not have name the nearest one."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*positional: P.args, **named: P.kwargs) -> R:
        for name in named:
            if name not in known:
                rest = did_you_mean(name, known, most=1) or f" There are {', '.join(known)}."
                raise UnknownArgumentError(
                    f"{function.__name__}: there is no argument {name!r}.{rest}"
                )
        return function(*positional, **named)

    return checked
