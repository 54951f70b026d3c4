"""Arguments of public functions: names that there are not, and values of the wrong kind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, ParamSpec, TypeVar

import numpy as np

from fastload.errors import ConfigurationError, UnknownArgumentError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")


def checks_names(
    moved: Mapping[str, str] | None = None,
    *,
    beside: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function: its calls with an argument that it does not have name the nearest one.
    `moved`: arguments of the version before, and what to write now. `beside`: a last sentence."""
    gone = moved or {}

    def of(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*positional: P.args, **named: P.kwargs) -> R:
            for name in named:
                if name not in known:
                    raise UnknownArgumentError(f"{function.__name__}: {refusal(name)}{beside}")
            return function(*positional, **named)

        def refusal(name: str) -> str:
            if name in gone:
                return f"{name}= has moved. Write {gone[name]}."
            rest = did_you_mean(name, known, most=1) or f" There are {', '.join(known)}."
            return f"there is no argument {name!r}.{rest}"

        return checked

    return of


def require(name: str, good: bool, what: str, value: Any) -> None:
    """Raise ConfigurationError unless the value of an argument is `good`; `what` would be."""
    if not good:
        raise ConfigurationError(f"{name}: must be {what}, got {value!r}.")


def integer(name: str, value: Any, least: int | None) -> int:
    """An int, of Python's type or numpy's."""
    number = not isinstance(value, bool) and isinstance(value, Integral)
    good = number and (least is None or int(value) >= least)
    require(name, good, "an int" if least is None else f"an int of at least {least}", value)
    return int(value)


def flag(name: str, value: Any) -> bool:
    """A bool, of Python's type or numpy's; DataLoader takes None for False."""
    require(name, value is None or isinstance(value, bool | np.bool_), "True or False", value)
    return bool(value)
