"""Random numbers of torch that belong to the thread that draws them.

Python's `random`, numpy's and torch's global generators are of the whole process: of two threads
that make samples at the same time, each would get some of the numbers that follow from the seed of
the other's sample. torch has a way out, which is of the thread that takes it (a
`TorchFunctionMode`): there each function is looked at before it runs, and those that draw are given
a generator. For Python's and numpy's there is none: their functions are bound to one object when
they are imported.
"""

from __future__ import annotations

import dis
import functools
import random
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from fastload.errors import ConfigurationError

WITH_GENERATOR = frozenset(
    [
        "bernoulli",
        "bernoulli_",
        "binomial",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "randint",
        "randn",
        "random_",
        "randperm",
        "uniform_",
        "_sample_dirichlet",
        "_standard_gamma",
    ]
)
"""Functions and methods that take a `generator`."""
_LIKE = {"rand_like": "uniform_", "randn_like": "normal_", "randint_like": "random_"}
"""Those that take none, and the method that they call on a new tensor (aten's TensorFactories)."""
WITHOUT = frozenset(
    [
        "alpha_dropout",
        "alpha_dropout_",
        "dropout",
        "dropout_",
        "feature_alpha_dropout",
        "feature_alpha_dropout_",
        "feature_dropout",
        "feature_dropout_",
        "gru",
        "lstm",
        "native_dropout",
        "rnn_relu",
        "rnn_tanh",
        "rrelu",
        "rrelu_",
        "rrelu_with_noise",
        "rrelu_with_noise_",
        "scaled_dot_product_attention",
    ]
)
"""Those that draw and can be given none."""
_SEEDING = frozenset(
    [
        "manual_seed",
        "fork_rng",
        "default_generator",
        "set_rng_state",
        "get_rng_state",
        "initial_seed",
    ]
)
"""Names by which code uses torch's global generator as such."""

_OWN_OF_NUMPY = frozenset({"default_rng", "Generator", "RandomState", "SeedSequence"})
"""Of `numpy.random`: what makes a generator of one's own."""


class OwnNumbers(TorchFunctionMode):
    """Within it, what draws numbers with torch's functions in this thread draws them from
    `generator`: the same numbers as from torch's global generator after the same seed.

    Functions that draw and cannot be given a generator, such as dropout, raise ConfigurationError.
    Other threads are not affected.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.refused: ConfigurationError | None = None
        """What was raised last, which the code that draws may have caught."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in WITH_GENERATOR:
            if kwargs.get("generator") is None:
                kwargs = {**kwargs, "generator": self.generator}
        elif name in _LIKE:
            return self._like(name, *args, **kwargs)
        elif name in WITHOUT or (isinstance(func, FunctionType) and _draws(func)):
            self.refused = ConfigurationError(
                f"threads: torch's {name} draws random numbers from a generator of the whole "
                "process, which threads cannot share and have the same samples each time. Use "
                "torch.rand, randn, randint, randperm, multinomial or methods such as uniform_ "
                "and normal_, or say threads=False."
            )
            raise self.refused
        return func(*args, **kwargs)

    def _like(self, name: str, like: torch.Tensor, *numbers: int, **options: Any) -> Any:
        """Of one of `_LIKE`. `numbers`: for randint_like (high,) or (low, high)."""
        given = options.pop("generator", None)
        named = [options.pop(bound) for bound in ("low", "high") if bound in options]
        made = torch.empty_like(like, **options)
        low = [0] if name == "randint_like" and len(numbers) + len(named) == 1 else []
        bounds = [*low, *numbers, *named]
        fill = getattr(made, _LIKE[name])
        return fill(*bounds, generator=self.generator if given is None else given)


@functools.cache
def _draws(function: FunctionType) -> bool:
    """Whether a function of Python within torch, which runs outside of the mode, names what
    draws."""
    return any(
        name in WITH_GENERATOR or name in WITHOUT or name in _LIKE
        for code in _code_of(function, set())
        for name in code.co_names
    )


def _code_of(function: FunctionType, seen: set[Any]) -> Iterator[CodeType]:
    """The code of a function, of those within it, and of those of the same package that it
    names."""
    package = function.__module__.partition(".")[0] if function.__module__ else ""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in code.co_names:
            value = function.__globals__.get(name)
            value = getattr(value, "__wrapped__", value)
            if isinstance(value, FunctionType) and value not in seen:
                seen.add(value)
                if value.__module__ and value.__module__.partition(".")[0] == package:
                    yield from _code_of(value, seen)


def global_numbers_in(things: list[Any]) -> str:
    """What in the code of these functions and objects uses a global generator: "random in
    Jitter.forward". Empty where nothing is seen, which proves nothing.

    Looked at: functions, methods of the classes of objects, and what both hold (attributes, parts
    of lists), as far as that is Python code outside of torch, torchvision and numpy.
    """
    seen: set[int] = set()
    waiting = list(things)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, list | tuple | dict):
            waiting += list(thing.values() if isinstance(thing, dict) else thing)
            continue
        if isinstance(thing, functools.partial):
            waiting += [thing.func, *thing.args, *thing.keywords.values()]
            continue
        if isinstance(bound := getattr(thing, "__self__", None), random.Random):
            return f"random.{thing.__name__}"
        if isinstance(bound, np.random.RandomState):
            return f"numpy.random.{thing.__name__}"
        for function in _functions_of(thing):
            if words := _global_numbers_of(function):
                return words
            waiting += [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
        if not isinstance(thing, type | ModuleType | np.ndarray | torch.Tensor):
            waiting += list(getattr(thing, "__dict__", {}).values())
    return ""


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _functions_of(thing: Any) -> Iterator[FunctionType]:
    """Functions of the user's that an object runs: itself, or the methods of its class."""
    thing = getattr(thing, "__func__", thing)
    if isinstance(thing, FunctionType):
        yield thing
        return
    for base in (thing if isinstance(thing, type) else type(thing)).__mro__:
        if base.__module__.partition(".")[0] in ("builtins", "torch", "torchvision", "numpy"):
            continue
        # Of a copy: other threads may write to the class, as `copy.copy` does (`__slotnames__`).
        yield from (
            value for value in vars(base).copy().values() if isinstance(value, FunctionType)
        )


def _global_numbers_of(function: FunctionType) -> str:
    seen: set[Any] = {function}
    where = f"in {function.__qualname__}"
    steps = [step for code in _code_of(function, seen) for step in dis.get_instructions(code)]
    attributes = {step.argval for step in steps if step.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for other in seen:
        for name in names:
            value = other.__globals__.get(name)
            bound = getattr(value, "__self__", None)
            if value is random or isinstance(bound, random.Random):
                return f"{name} {where}"
            of_numpy = value is np.random or (value is np and "random" in attributes)
            if isinstance(bound, np.random.RandomState):
                return f"{name} {where}"
            if of_numpy and not attributes & _OWN_OF_NUMPY:
                return f"{'np.random' if value is np else name} {where}"
            if value is torch and (seeding := sorted(attributes & _SEEDING)):
                return f"torch.{seeding[0]} {where}"
    return ""
