"""The docstrings of public names say what the reference shows: every parameter, and the errors."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

MODULES = (
    "fastload",
    "fastload.pipelines",
    "fastload.train",
    "fastload.monitor",
    "fastload.integrations",
)
OTHERS = {
    "fastload.loader": ("Stats",),
    "fastload.backends.turbojpeg": ("TurboJpegOptions",),
    "fastload.backends.torch_workers": ("TorchOptions",),
    "fastload.backends.cache": ("CacheOptions",),
    "fastload.backends.dali": ("DaliOptions",),
}
MADE_ELSEWHERE = {"Loader", "StepClock", "Ragged", "Stats"}
"""Their parameters are nothing that a user gives, but for `Ragged`, which says what they are."""
RAISES_NOTHING = {
    "Shuffle",
    "available_backends",
    "mark_exchange",
    "phase_range",
    "profile_steps",
    "rank_path",
    "torchvision_detection_eval",
    "trainer_callback",
    *("Stats", "Summary"),  # what is received
    *("DeviceProfile", "Gap", "GpuReading", "IdleSummary", "Segment", "Step"),
}


def public_names() -> Iterator[tuple[str, str]]:
    """(module, name) of what a user calls, or receives an object of."""
    for module in MODULES:
        for name in import_module(module).__all__:
            thing = getattr(import_module(module), name)
            if inspect.isroutine(thing) or inspect.isclass(thing):
                yield module, name
    for module, names in OTHERS.items():
        yield from ((module, name) for name in names)


def described(thing: Any) -> list[str]:
    """The parameters that its docstring, or those of its fields, are about."""
    texts = [inspect.getdoc(thing)]
    found: list[str] = []
    if inspect.isclass(thing):
        texts.append(inspect.getdoc(thing.__init__))
        for cls in thing.__mro__:
            if cls.__module__.startswith("fastload"):
                found += _fields(cls)
    for text in texts:
        section = re.search(r"(?m)^Args:\n((?: {4}.*\n?|\n)*)", text or "")
        if section:
            found += re.findall(r"(?m)^ {4}(\*{0,2}\w[^:\n]*): ", section[1])
    return found


def _fields(cls: type) -> Iterator[str]:
    body = _classes(inspect.getsourcefile(cls))[cls.__name__].body
    for node, following in pairwise(body):
        says = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if says and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(Path(file).read_text())
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


NAMES = list(public_names())


def test_every_parameter_of_a_public_name_is_described() -> None:
    wrong = []
    for module, name in NAMES:
        thing = getattr(import_module(module), name)
        if name in MADE_ELSEWHERE or (inspect.isclass(thing) and issubclass(thing, Exception)):
            continue
        there = [
            "*" * (parameter.kind == parameter.VAR_POSITIONAL)
            + "**" * (parameter.kind == parameter.VAR_KEYWORD)
            + parameter.name
            for parameter in inspect.signature(thing).parameters.values()
            if not parameter.name.startswith("_")
        ]
        known = described(thing)
        wrong += [f"{module}.{name}: {one} is not described" for one in there if one not in known]
        if not inspect.isclass(thing):
            wrong += [f"{module}.{name}: has no {one}" for one in known if one not in there]
    assert wrong == []


def test_errors_of_public_names_are_described() -> None:
    silent = set()
    for module, name in NAMES:
        thing = getattr(import_module(module), name)
        if inspect.isclass(thing) and issubclass(thing, Exception):
            continue
        members = [thing]
        if inspect.isclass(thing):
            members += [thing.__init__, *vars(thing).values()]
        if not any(re.search(r"(?m)^ *Raises:$", inspect.getdoc(one) or "") for one in members):
            silent.add(name)
    assert silent == RAISES_NOTHING


def test_parameters_are_described_one_by_one() -> None:
    def thing() -> None:
        """Of several.

        Args:
            size, fill: of it.
            shape: of it: (H, W),
                and so on: of all.
        """

    assert described(thing) == ["size, fill", "shape"]
