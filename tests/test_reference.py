"""The reference has every public name, with an example; docstrings say what it shows: every
parameter, and the errors."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastload

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


# -- The pages of the reference --------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
SCRIPT: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "reference_pages.py")))
PAGES: list[Path] = [SCRIPT.REFERENCE / f"{stem}.md" for stem in SCRIPT.PAGES]


def test_the_reference_has_every_public_name_once() -> None:
    found = Counter(name for page in PAGES for name in SCRIPT.documented(page))
    assert [name for name, count in found.items() if count > 1] == []
    wanted = {f"{module}.{name}" for module in MODULES for name in import_module(module).__all__}
    wanted |= {f"{module}.{name}" for module, names in OTHERS.items() for name in names}
    errors = {name for name, one in vars(fastload.errors).items() if _is_error(one)}
    wanted |= {f"fastload.errors.{name}" for name in errors}
    # Four errors are in `fastload`, too.
    wanted -= {"fastload.__version__", *(f"fastload.{name}" for name in errors)}
    assert wanted - {*found} == set()
    assert sorted(path.stem for path in SCRIPT.REFERENCE.glob("*.md")) == sorted(
        [*SCRIPT.PAGES, SCRIPT.COMMANDS.stem]
    )
    assert [name for name in found if not SCRIPT.summary(name)] == []


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, fastload.errors.FastloadError)


def test_options_of_all_backends_are_in_the_reference() -> None:
    package = Path(fastload.__file__).parent  # of a wheel, where the tests run on one
    classes = [
        ".".join([*path.relative_to(package.parent).with_suffix("").parts, found])
        for path in sorted((package / "backends").rglob("*.py"))
        for found in re.findall(r"^class (\w+)\(BackendOptions\)", path.read_text(), re.MULTILINE)
    ]
    assert len(classes) >= 4
    assert {*classes} <= {f"{module}.{name}" for module, names in OTHERS.items() for name in names}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_of_the_reference_has_an_example_on_its_page(page: Path) -> None:
    code = [
        block["code"]
        for block in re.finditer(
            r"(?ms)^```python\n(?P<code>.*?)^```\n\n<!-- output", page.read_text()
        )
    ]
    names = [name.rpartition(".")[2] for name in SCRIPT.documented(page)]
    lacking = [name for name in names if not re.search(rf"\b{name}\b", "\n".join(code))]
    assert lacking == (NOT_BY_A_USER if page.stem == "extending" else [])


NOT_BY_A_USER = ["GeometryOperation", "Backend", "Context", "Work", "HostBatch"]
"""Classes for those who write a backend or a warp: tests/test_third_party_backend.py and
tests/test_recipe_register.py have them."""


def test_the_list_of_names_is_what_the_script_makes() -> None:
    text = SCRIPT.API.read_text()
    assert SCRIPT.api(text) == text, "run python scripts/reference_pages.py"


def test_the_commands_are_what_the_script_makes() -> None:
    text = SCRIPT.COMMANDS.read_text()
    assert SCRIPT.commands() == text, "run python scripts/reference_pages.py"
    commands = re.findall(r"(?m)^## (fastload .+)$", text)
    assert len(commands) >= 15
    examples = SCRIPT.shown_examples()
    for command in commands:
        assert f"\n{command}" in examples.get(command, ""), f"an example of {command}"
