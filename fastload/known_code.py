"""Code of others that fastload knows. This is the one file that looks at byte code, and it runs
none.

A function is known if its instructions are those of a pattern in this file: the same operations on
the same constants in the same order. Names of local variables do not matter. A global name must
stand for the very object that it stands for in the pattern. An attribute must have the name that it
has in the pattern, unless that starts with `any_`: such a one stands for an attribute of the object
itself, and its name is returned. So do global names, names of a closure, and strings that start
with it. Patterns are compiled by the Python that runs. Whatever differs from all of them is
unknown, and runs as its author wrote it.

`depends_on_argument_alone` reads a function in another way: each of its instructions must be one
that only computes, and each name in it must stand for a constant, or for a function that only
computes.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import itertools
import math
import operator
import os
import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import default_collate

# In place of an attribute or a name that is not there.
MISSING = object()


# -- Patterns --------------------------------------------------------------------------------------


def attributes_by_pattern(function: Any, pattern: FunctionType) -> dict[str, str] | None:
    """Whether a function's code is that of the pattern: the names of the attributes that stand for
    `any_...`, by those, or None if it is not.

    `def f(self, x): return self.steps(x)` against `lambda self, image: self.any_transform(image)`
    gives `{"any_transform": "steps"}`.
    """
    if not isinstance(function, FunctionType) or function.__defaults__ or function.__kwdefaults__:
        return None
    if function.__closure__:
        return None
    stands_for: dict[str, str] = {}
    if not _same(
        function.__code__, pattern.__code__, function.__globals__, pattern.__globals__, stands_for
    ):
        return None
    return stands_for if len(set(stands_for.values())) == len(stands_for) else None


def _same(
    code: CodeType,
    wanted: CodeType,
    names: Mapping[str, Any],
    wanted_names: Mapping[str, Any],
    stands_for: dict[str, str],
) -> bool:
    """Whether two pieces of code are the same, with global names looked up in these two
    mappings."""
    if _signature(code) != _signature(wanted) or len(code.co_freevars) != len(wanted.co_freevars):
        return False
    for mine, its in itertools.zip_longest(_instructions(code), _instructions(wanted)):
        if mine is None or its is None or mine.opcode != its.opcode:
            return False
        if mine.opcode in dis.hasconst:
            if isinstance(its.argval, CodeType) and isinstance(mine.argval, CodeType):
                if not _same(mine.argval, its.argval, names, wanted_names, stands_for):
                    return False
            elif not _equal_constants(mine.argval, its.argval, stands_for):
                return False
        elif mine.opcode not in dis.hasname and not _is_placeholder(its.argval):
            if mine.arg != its.arg:
                return False
        elif "GLOBAL" in mine.opname and not _is_placeholder(its.argval):
            if _global(mine.argval, names) is not _global(its.argval, wanted_names):
                return False
        elif _is_placeholder(its.argval):
            if stands_for.setdefault(its.argval, mine.argval) != mine.argval:
                return False
        elif mine.argval != its.argval:
            return False
    return True


def _is_placeholder(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("any_")


def _signature(code: CodeType) -> tuple[Any, ...]:
    """Numbers of arguments, flags, and where exceptions are caught. Left out of the flags: those of
    `from __future__`, whether the code stands in a function (0x10), and of Python 3.14 whether it
    has a docstring (0x4000000) or stands in a class (0x8000000)."""
    flags = code.co_flags & ~(0x1FF0000 | 0x10 | 0x4000000 | 0x8000000)
    table = getattr(code, "co_exceptiontable", b"")
    return code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags, table


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    return (
        step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP", "RESUME")
    )


def _equal_constants(a: Any, b: Any, stands_for: dict[str, str]) -> bool:
    """`b`: of the pattern. A qualified name of a nested function may differ."""
    if type(a) is not type(b):
        return False
    if isinstance(b, tuple):
        return len(a) == len(b) and all(
            _equal_constants(mine, its, stands_for) for mine, its in zip(a, b, strict=True)
        )
    if _is_placeholder(b):
        return bool(stands_for.setdefault(b, a) == a)
    return bool(a == b) or (isinstance(a, str) and a.endswith(">") and b.endswith(">"))


def _global(name: str, names: Mapping[str, Any]) -> Any:
    return names.get(name, getattr(builtins, name, MISSING))


def own_attribute(thing: Any, name: str) -> Any:
    """What `thing.name` is, if that is stored in the object itself and no code makes it; else
    `MISSING`."""
    cls: Any = type(thing)
    by_code = cls.__getattribute__ is not object.__getattribute__
    if by_code or hasattr(inspect.getattr_static(cls, name, None), "__get__"):
        return MISSING
    own = getattr(thing, "__dict__", {})
    if (
        name not in own
        and isinstance(thing, nn.Module)
        and cls.__getattr__ is nn.Module.__getattr__
    ):
        own = own["_modules"]
    return own.get(name, MISSING)


def code_in(code: CodeType) -> Iterator[str]:
    """The instructions of a function and of those in it, the constants and the names: the same in
    any process of one version of Python."""
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_in(constant)
        else:
            sets = isinstance(constant, frozenset)
            yield repr(sorted(map(repr, constant)) if sets else constant)


# -- Transforms that hand the image on -------------------------------------------------------------


def _delegation(self: Any, image: Any) -> Any:
    return self.any_transform(image)


def delegate_of(transform: Any) -> Any:
    """The transform that one hands its image to and whose result it returns, doing nothing else, as
    torchvision's reference presets do; or None. That no hook is set on it is for the caller to
    see."""
    cls = type(transform)
    call: Any = cls.__call__
    if isinstance(transform, nn.Module) and call is nn.Module.__call__:
        call = cls.forward
    names = attributes_by_pattern(call, _delegation)  # type: ignore[arg-type]
    inner = MISSING if names is None else own_attribute(transform, names["any_transform"])
    return inner if callable(inner) else None


_PACKAGES = ("torch", "torchvision", "timm", "pycocotools")


def is_as_defined(function: Any) -> bool:
    """Whether a function of one of these packages is the one that its module defines, and not one
    put in its place, by a module of the user's or under the same name."""
    name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(name) if name.partition(".")[0] in _PACKAGES else None
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == getattr(module, "__file__", None)


def methods_are_as_defined(cls: type) -> bool:
    """Whether no function of a class of torchvision's, or of those that it derives from there, was
    replaced in the class. Of another class nothing is known: true."""
    own = [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "torchvision"]
    functions = [value for base in own for value in vars(base).copy().values()]
    return all(map(is_as_defined, (f for f in functions if isinstance(f, FunctionType))))


# -- Functions that open images --------------------------------------------------------------------


def _open_and_convert(path: Any) -> Any:
    return Image.open(path).convert("RGB")


def _open_file_and_convert(path: Any) -> Any:
    with open(path, "rb") as f:
        image = Image.open(f)
        return image.convert("RGB")


_LOADERS: tuple[Any, ...] = (_open_and_convert, _open_file_and_convert)


def opens_as_rgb(loader: Any) -> bool:
    """Whether a function gives the image of a file as Pillow opens it, in RGB, as torchvision's
    `pil_loader` does.

    `default_loader` is that function where the image backend is PIL, which the caller asks for.
    """
    folder = sys.modules.get("torchvision.datasets.folder")
    if folder is not None and loader is folder.default_loader and is_as_defined(loader):
        loader = folder.pil_loader
    return any(attributes_by_pattern(loader, pattern) is not None for pattern in _LOADERS)


# -- Data sets around another one ------------------------------------------------------------------


def _length_of_data(self: Any) -> Any:
    return len(self.any_data)


def _length_of_rows(self: Any) -> Any:
    return len(self.any_rows)


def _one_by_one(self: Any, indices: Any) -> Any:
    return [self[index] for index in indices]


def _one_by_one_called(self: Any, indices: Any) -> Any:
    return [self.__getitem__(index) for index in indices]


@functools.cache
def _wrappers() -> tuple[FunctionType, ...]:
    """`__getitem__` of data sets that apply a transform, and one of labels, to another data set's
    samples.

    Put together of parts: where the sample comes from; what is done to the image and to the label,
    always, if it is there, or if it is not None; and what is returned.
    """
    samples = ("self.any_data[index]", "self.any_data[self.any_rows[index]]")
    steps = []
    for part, name in (("x", "self.any_transform"), ("y", "self.any_target_transform")):
        call = f"{part} = {name}({part})"
        steps.append(
            ("", f"    {call}", f"    if {name}: {call}", f"    if {name} is not None: {call}")
        )
    bodies = [
        [f"    x, y = {sample}", of_image, of_label, "    return x, y"]
        for sample, of_image, of_label in itertools.product(samples, *steps)
    ]
    bodies += [
        [f"    x, y = {sample}", "    return self.any_transform(x), y"] for sample in samples
    ]
    bodies += [[f"    return {sample}"] for sample in samples]
    patterns = []
    for body in bodies:
        names: dict[str, Any] = {}
        exec("\n".join(["def pattern(self, index):", *filter(None, body)]), names)
        patterns.append(names["pattern"])
    return tuple(patterns)


def wrapped_by(dataset: Any) -> dict[str, Any] | None:
    """What a data set around another one holds, if its code is known: `data`, `rows` (None: all, in
    order), `transform`, `target_transform`; else None."""
    cls = type(dataset)
    matches = (attributes_by_pattern(cls.__getitem__, pattern) for pattern in _wrappers())
    stands_for = next((names for names in matches if names is not None), None)
    if stands_for is None or not _counts_and_batches_as_known(dataset, stands_for):
        return None
    values = {role: own_attribute(dataset, name) for role, name in stands_for.items()}
    if any(value is MISSING for value in values.values()):  # `in` would compare arrays
        return None
    roles = ("data", "rows", "transform", "target_transform")
    return {role: values.get(f"any_{role}") for role in roles}


def _counts_and_batches_as_known(dataset: Any, stands_for: Mapping[str, str]) -> bool:
    """Whether `__len__` is that of what is wrapped, and `__getitems__`, where there is one, is of
    single samples."""
    cls = type(dataset)
    wanted, pattern = (
        ("any_rows", _length_of_rows) if "any_rows" in stands_for else ("any_data", _length_of_data)
    )
    counted = attributes_by_pattern(cls.__len__, pattern)  # type: ignore[arg-type]
    if counted is None or counted[wanted] != stands_for[wanted] or "__getitems__" in vars(dataset):
        return False
    together = getattr(cls, "__getitems__", None)
    known: tuple[Any, ...] = (_one_by_one, _one_by_one_called)
    return together is None or any(
        attributes_by_pattern(together, pattern) is not None for pattern in known
    )


# -- Functions of batches --------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageMapping:
    """What a function given to `with_transform` does: a transform of each RGB image of a batch."""

    image: str
    """The key of the images."""
    made: str
    """The key of what is made of them."""
    transform: Any
    leaves: Literal["all", "others", "none"]
    """Which of the columns the batch has beside: all, all but the images, none."""


@dataclass(frozen=True)
class Stacked:
    """A tensor of a batch that a collate function makes."""

    made: str
    """Its key in the batch."""
    key: str
    """That of the samples."""
    of_tensors: bool
    """Whether it is `torch.stack` of the samples' tensors, and not `torch.tensor` of numbers."""


_Leaves = Literal["all", "others", "none"]

_KEYS = ("{key!r}", "{key}", "any_args.{key}")
"""How a key is written: as a string, by a name that stands for one, as an attribute of settings."""


@functools.cache
def _mappings() -> tuple[tuple[FunctionType, _Leaves], ...]:
    """The patterns of functions that `maps_images` knows, and what of the batch each leaves."""
    bodies: list[tuple[list[str], _Leaves]] = []
    for key in (form.format(key="any_image") for form in _KEYS):
        apart = f"xs = [x.convert('RGB') for x in a[{key}]]"
        whole = f"[any_transform(x.convert('RGB')) for x in a[{key}]]"
        popped = f"[any_transform(x.convert('RGB')) for x in a.pop({key})]"
        bodies.append(([f"a['any_made'] = {whole}", "return a"], "all"))
        bodies.append(([f"a['any_made'] = {popped}", "return a"], "others"))
        bodies.append(([f"a['any_made'] = {whole}", f"del a[{key}]", "return a"], "others"))
        bodies.append(
            ([apart, "a['any_made'] = [any_transform(x) for x in xs]", "return a"], "all")
        )
        bodies.append(([f"return {{'any_made': {whole}}}"], "none"))
        bodies.append(([f"xs = {whole}", "return {'any_made': xs}"], "none"))
    return tuple((pattern, leaves) for body, leaves in bodies for pattern in _patterns(body))


def maps_images(function: Any) -> ImageMapping | None:
    """What a function given to `with_transform` does to a batch of images, where that is known; no
    image is touched."""
    for pattern, leaves in _mappings():
        values = _values_by(function, pattern)
        if values is not None and all(type(values[key]) is str for key in ("image", "made")):
            lost = leaves == "others" and values["image"] == values["made"]
            mapping = ImageMapping(values["image"], values["made"], values["transform"], leaves)
            return None if lost else mapping
    return None


@functools.cache
def _stackings() -> tuple[FunctionType, ...]:
    bodies = []
    for key in (form.format(key="any_number") for form in _KEYS):
        stack = "torch.stack([x['any_tensor'] for x in a])"
        number = f"torch.tensor([x[{key}] for x in a])"
        both = "{'any_tensors': xs, 'any_numbers': ys}"
        bodies += [
            [f"xs = {stack}", f"ys = {number}", f"return {both}"],
            [f"ys = {number}", f"xs = {stack}", f"return {both}"],
            [f"return {{'any_tensors': {stack}, 'any_numbers': {number}}}"],
        ]
    return tuple(pattern for body in bodies for pattern in _patterns(body))


def stacks(function: Any) -> tuple[Stacked, ...] | None:
    """The tensors that a collate function makes of samples that are dicts, one of images and one of
    numbers, where that is known."""
    for pattern in _stackings():
        values = _values_by(function, pattern)
        if values is not None and all(type(value) is str for value in values.values()):
            return (
                Stacked(values["tensors"], values["tensor"], of_tensors=True),
                Stacked(values["numbers"], values["number"], of_tensors=False),
            )
    return None


@functools.cache
def _batch_functions() -> tuple[FunctionType, ...]:
    return tuple(_patterns(["return any_function(*default_collate(a))"]))


def applied_to_batches(function: Any) -> Any:
    """What a collate function gives the parts of torch's `default_collate` to, and whose result it
    returns, doing nothing else; None of any other."""
    if not is_as_defined(default_collate):
        return None
    for pattern in _batch_functions():
        values = _values_by(function, pattern)
        if values is not None:
            return values["function"]
    return None


def _zip(batch: Any) -> Any:
    return tuple(zip(*batch))  # noqa: B905  # as it is written there


def zips_samples(function: Any) -> bool:
    """Whether a collate function gives a tuple of all first parts of samples, of all second ones,
    and so on."""
    pattern: Any = _zip
    return attributes_by_pattern(function, pattern) is not None


def _patterns(body: list[str]) -> Iterator[FunctionType]:
    """A function of one argument, `a`, with each choice of its names in a closure."""
    names = sorted(set(re.findall(r"(?<!['.])\bany_\w+", "\n".join(body))))
    for count in range(len(names) + 1):
        for closed in itertools.combinations(names, count):
            # Python compiles calls of functions of an imported module in another way.
            lines = [
                "import torch",
                f"def outer({', '.join(closed)}):",
                "  def pattern(a):",
            ]
            lines += [*(f"    {line}" for line in body), "  return pattern"]
            space: dict[str, Any] = {"default_collate": default_collate}
            exec("\n".join(lines), space)
            yield space["outer"](*closed)


def _values_by(function: Any, pattern: FunctionType) -> dict[str, Any] | None:
    """What the placeholders of a pattern stand for in a function, without `any_`, if its code is
    that of the pattern; `any_args` is left out."""
    if not isinstance(function, FunctionType) or function.__defaults__ or function.__kwdefaults__:
        return None
    stands_for: dict[str, str] = {}
    if not _same(
        function.__code__, pattern.__code__, function.__globals__, pattern.__globals__, stands_for
    ):
        return None
    names = {*pattern.__code__.co_freevars, *_global_names(pattern.__code__)}
    free = _free(function)

    def named(placeholder: str) -> Any:
        name = stands_for[placeholder]
        return free[name] if name in free else _global(name, function.__globals__)

    values = {}
    for placeholder, name in stands_for.items():
        value: Any = name
        if placeholder in names:
            value = named(placeholder)
        elif placeholder in _attribute_names(pattern.__code__):
            value = own_attribute(named("any_args"), name)
        values[placeholder.removeprefix("any_")] = value
    values.pop("args", None)
    return None if any(value is MISSING for value in values.values()) else values


def _steps_within(code: CodeType) -> Iterator[dis.Instruction]:
    for step in dis.get_instructions(code):
        yield step
        if isinstance(step.argval, CodeType):
            yield from _steps_within(step.argval)


def _global_names(code: CodeType) -> set[str]:
    return {step.argval for step in _steps_within(code) if "GLOBAL" in step.opname}


def _attribute_names(code: CodeType) -> set[str]:
    return {step.argval for step in _steps_within(code) if step.opname == "LOAD_ATTR"}


# -- Functions that set seeds ----------------------------------------------------------------------


# `worker_init_fn` of frameworks that set seeds, and nothing else: module and name.
_SEEDING_FUNCTIONS = (
    ("timm.data.loader", "_worker_init"),
    ("transformers.trainer_utils", "seed_worker"),
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
)
_SEEDING_MODULES = (random, np, torch, os)
# What it may look up in these modules and in what it has from them: that which sets, reads or makes
# seeds, or says how much of the machine a worker takes.
_SEEDING_ATTRIBUTES = frozenset(
    {
        "SeedSequence",
        "bit_length",
        "cpu_count",
        "cuda",
        "default_rng",
        "encode",
        "environ",
        "generate_state",
        "get",
        "get_rng_state",
        "get_state",
        "getenv",
        "getpid",
        "getrandbits",
        "getstate",
        "iinfo",
        "initial_seed",
        "int32",
        "int64",
        "integers",
        "item",
        "manual_seed",
        "manual_seed_all",
        "max",
        "nice",
        "randint",
        "random",
        "sched_setaffinity",
        "seed",
        "set_num_interop_threads",
        "set_num_threads",
        "set_rng_state",
        "set_state",
        "setstate",
        "spawn",
        "uint32",
        "uint64",
        "urandom",
        "use_deterministic_algorithms",
    }
)


def only_seeds(init: Any) -> bool:
    """Whether a `worker_init_fn` sets the seeds of Python's, numpy's or torch's random numbers, and
    does nothing else that a data set could notice: it reads no other globals than these modules,
    numbers and built-in functions, calls nothing of theirs but `_SEEDING_ATTRIBUTES`, and writes to
    nothing."""
    if isinstance(init, functools.partial):
        return _is_seeding_function(init.func) and not any(
            map(callable, (*init.args, *init.keywords.values()))
        )
    if _is_seeding_function(init):
        return True
    if not isinstance(init, FunctionType):
        return False
    if {"get_worker_info", "dataset", "__import__", "exec", "eval", "setattr"} & set(
        init.__code__.co_names
    ):
        return False
    for step in _instructions(init.__code__):
        if step.opname.startswith(
            ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "IMPORT", "MAKE_FUNCTION", "DELETE")
        ):
            return False
        looks_up = step.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if looks_up and step.argval not in _SEEDING_ATTRIBUTES:
            return False
        if "DEREF" in step.opname and not _is_data(_free(init).get(step.argval, MISSING)):
            return False
        if step.opname == "LOAD_GLOBAL":
            value = _global(step.argval, init.__globals__)
            of_python = value is getattr(builtins, step.argval, MISSING)
            if not (
                of_python or _is_data(value) or any(value is module for module in _SEEDING_MODULES)
            ):
                return False
    return True


def _is_seeding_function(function: Any) -> bool:
    known = (getattr(sys.modules.get(module), name, None) for module, name in _SEEDING_FUNCTIONS)
    return function is not None and any(function is one for one in known)


def _free(function: FunctionType) -> dict[str, Any]:
    """The variables of enclosing functions that a function reads, those that have no value yet left
    out."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: getattr(cell, "cell_contents", MISSING) for name, cell in cells}


# -- Functions of one number -----------------------------------------------------------------------


# Instructions that take values and give values; none of them changes an object. (BINARY_OP has
# forms that do: those of `+=`, whose sign ends with "=".)
_COMPUTES = frozenset(
    {
        "BINARY_ADD",
        "BINARY_AND",
        "BINARY_FLOOR_DIVIDE",
        "BINARY_LSHIFT",
        "BINARY_MODULO",
        "BINARY_MULTIPLY",
        "BINARY_OP",
        "BINARY_OR",
        "BINARY_POWER",
        "BINARY_RSHIFT",
        "BINARY_SLICE",
        "BINARY_SUBSCR",
        "BINARY_SUBTRACT",
        "BINARY_TRUE_DIVIDE",
        "BINARY_XOR",
        "BUILD_LIST",
        "BUILD_TUPLE",
        "CALL",
        "CALL_FUNCTION",
        "CALL_FUNCTION_KW",
        "CALL_KW",
        "CALL_METHOD",
        "COMPARE_OP",
        "CONTAINS_OP",
        "COPY",
        "COPY_FREE_VARS",
        "DUP_TOP",
        "IS_OP",
        "JUMP_FORWARD",
        "KW_NAMES",
        "LOAD_CONST",
        "LOAD_FAST",
        "LOAD_FAST_BORROW",
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
        "LOAD_FAST_LOAD_FAST",
        "LOAD_SMALL_INT",
        "NOT_TAKEN",
        "POP_JUMP_FORWARD_IF_FALSE",
        "POP_JUMP_FORWARD_IF_NONE",
        "POP_JUMP_FORWARD_IF_NOT_NONE",
        "POP_JUMP_FORWARD_IF_TRUE",
        "POP_JUMP_IF_FALSE",
        "POP_JUMP_IF_NONE",
        "POP_JUMP_IF_NOT_NONE",
        "POP_JUMP_IF_TRUE",
        "POP_TOP",
        "PRECALL",
        "PUSH_NULL",
        "RETURN_CONST",
        "RETURN_VALUE",
        "ROT_THREE",
        "ROT_TWO",
        "STORE_FAST",
        "STORE_FAST_LOAD_FAST",
        "STORE_FAST_STORE_FAST",
        "SWAP",
        "TO_BOOL",
        "UNARY_INVERT",
        "UNARY_NEGATIVE",
        "UNARY_NOT",
        "UNARY_POSITIVE",
    }
)

# What only computes, whatever it is given.
_FUNCTIONS: tuple[Any, ...] = (
    int,
    float,
    bool,
    abs,
    min,
    max,
    round,
    len,
    torch.tensor,
    torch.as_tensor,
    np.asarray,
    np.array,
    np.int64,
    np.int32,
    np.float32,
    np.float64,
    math.floor,
    math.ceil,
    math.log,
    math.sqrt,
    operator.index,
)


def depends_on_argument_alone(function: Any) -> bool:
    """Whether the result of a function of one argument follows from that argument, and from
    numbers, words and tables of them that the function reads; and whether calling it changes
    nothing."""
    if any(function is known for known in _FUNCTIONS):
        return True
    if not isinstance(function, FunctionType) or function.__defaults__ or function.__kwdefaults__:
        return False
    code = function.__code__
    # 0x2AC: *args, **kwargs, generators and coroutines.
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & 0x2AC:
        return False
    return _only_computes(list(_instructions(code)), function.__globals__, _free(function))


def _only_computes(
    steps: list[dis.Instruction], names: Mapping[str, Any], free: Mapping[str, Any]
) -> bool:
    module: ModuleType | None = None
    for step in steps:
        before, module = module, None
        if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            value = (
                _global(step.argval, names)
                if step.opname == "LOAD_GLOBAL"
                else free.get(step.argval, MISSING)
            )
            if isinstance(value, ModuleType):
                module = value
            elif not _is_harmless(value):
                return False
        elif step.opname == "LOAD_COMMON_CONSTANT":
            # In 3.14 functions and errors, given as a number; from 3.15 on None and such, too.
            if sys.version_info < (3, 15) or not _is_harmless(step.argval):
                return False
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if before is None or not _is_harmless(getattr(before, step.argval, MISSING)):
                return False
        else:
            changes = step.opname not in _COMPUTES or (
                step.opname == "BINARY_OP" and step.argrepr.endswith("=")
            )
            if changes or (before is not None and step.opname != "PUSH_NULL"):
                return False
    return True


def _is_harmless(value: Any) -> bool:
    return any(value is known for known in _FUNCTIONS) or _is_data(value)


def _is_data(value: Any) -> bool:
    """Numbers, words, and tables of them, of the very types that Python, numpy and torch have for
    these."""
    if value is None or type(value) in (
        int,
        float,
        bool,
        str,
        bytes,
        torch.dtype,
        range,
        torch.Tensor,
    ):
        return True
    if type(value) is np.ndarray:
        return bool(value.dtype != object)
    if type(value) is dict:
        return all(map(_is_data, value.values())) and all(map(_is_data, value))
    return type(value) in (tuple, list) and all(map(_is_data, value))
