"""Random numbers of torch that belong to the thread that draws them.

Python's `random`, numpy's and torch's global generators are of the whole process: of two threads
that make samples at the same time, each would get some of the numbers that follow from the seed of
the other's sample. For Python's and numpy's there is no way out: their functions are bound to one
object when they are imported. torch calls each of its operators by way of a table of kernels, one
for each dispatch key, and which keys hold is of the thread. So the operators that draw get a kernel
under a key that holds only within `OwnNumbers`; it adds the thread's generator and calls what comes
after it. All other operators have none under this key, and cost what they did.
"""

from __future__ import annotations

import dis
import functools
import random
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

_KEY = "AutocastIPU"
"""The dispatch key: of automatic casts on a device that host code does not use and torch itself has
no kernels for. It must hold no other ones: some casting kernels take their key out while they call
what draws (`scaled_dot_product_attention`)."""

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


_ONE_AT_A_TIME = threading.Lock()
_HERE = threading.local()
"""`generator`: of the thread, within `OwnNumbers`; else None or not there."""


def can_own_numbers() -> bool:
    """Whether threads can have torch's random numbers for themselves with this torch."""
    with _ONE_AT_A_TIME:
        return bool(_kernels())


@functools.cache
def _kernels() -> list[torch.library.Library]:
    """What registers the kernels, which are there as long as this is. Empty: other code has kernels
    under the key, or torch is too old (`Library.fallback`)."""
    used = any(
        torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", _KEY)
        for name in ("add.Tensor", "uniform_")
    )
    if used or not hasattr(torch.library.Library, "fallback"):
        return []
    all_else, drawing = (torch.library.Library(name, "IMPL", _KEY) for name in ("_", "aten"))
    all_else.fallback(torch.library.fallthrough_kernel)
    key = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_KEY))
    for op in operators_that_draw():
        drawing.impl(op, _with_own(op, key))
    return [all_else, drawing]


def operators_that_draw() -> list[Any]:
    """torch's operators that may be given a generator or go without (`Generator? generator`). What
    else draws, such as dropout or `rand` without a generator, calls one of them."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = space == "aten" and getattr(
            getattr(torch.ops.aten, packet, None), overload or "default", None
        )
        if op and any(
            one.name == "generator" and isinstance(one.type, torch.OptionalType)
            for one in op._schema.arguments
        ):
            found.append(op)
    return found


def _with_own(op: Any, key: torch._C.DispatchKeySet) -> Callable[..., Any]:
    """A kernel that calls `op` without `key`, with the thread's generator if it comes without."""
    named = [one.name for one in op._schema.arguments if not one.kwarg_only]
    place = named.index("generator") if "generator" in named else len(named)
    # A method of tensors is called in a third of the time.
    name = op._schema.name.removeprefix("aten::")
    call = getattr(torch._C.TensorBase, name, op) if name.endswith("_") else op

    def kernel(*given: Any, generator: torch.Generator | None = None, **options: Any) -> Any:
        if len(given) > place:
            given, generator = given[:place], given[place]
        if generator is None:
            generator = getattr(_HERE, "generator", None)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return call(*given, generator=generator, **options)

    return kernel


class OwnNumbers:
    """Within it, what draws numbers of torch in this thread, by functions, methods, modules or
    operators, draws them from `generator`: the same numbers as from torch's global generator after
    the same seed. A generator that the code gives is used as it is. Other threads are not affected.
    Only where `can_own_numbers()`.
    """

    def __init__(self) -> None:
        assert can_own_numbers()
        self.generator = torch.Generator()

    def __enter__(self) -> OwnNumbers:
        _HERE.generator = self.generator
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
        return self

    def __exit__(self, *error: object) -> None:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, True)
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, False)
        _HERE.generator = None


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
