"""The layout of the code is that of `docs/architecture.md`: its table is read here and compared
with the imports."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastload

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fastload"
PAGE = ROOT / "docs" / "architecture.md"
FACADE = "fastload/__init__.py"

TYPE_TESTS = 10
"""`isinstance` on operations or columns, in all."""


def packages_on_the_page() -> list[str]:
    """Names in the first column of the first table, lowest layer first."""
    table = PAGE.read_text().split("## Packages, lowest layer first")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w/]+)` \|", table, re.MULTILINE)


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def imports_in(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Those within functions and for types too. Without the rest of the tree: the collector would
    look through a million nodes in each test that runs later."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def nodes_where(path: Path, pattern: str) -> Iterator[ast.AST]:
    """All of a file, if something in its text matches the pattern."""
    text = path.read_text()
    return iter(ast.walk(ast.parse(text)) if re.search(pattern, text) else ())


def package_of(path: Path) -> str:
    """Of a file: the folder or file of the package that it is in; of `tools`, the folder there."""
    return package_of_parts(path.relative_to(PACKAGE).parts)


def package_of_parts(parts: tuple[str, ...]) -> str:
    if parts[0] == "tools" and len(parts) > 1:
        return f"tools/{parts[1].removesuffix('.py')}"
    return parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of the package itself, those inside functions and for
    types included."""
    for node in imports_in(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif node.module is not None:
            if node.module == "fastload":
                yield from ((node.lineno, f"fastload.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module


def arrows() -> Iterator[tuple[str, str, str]]:
    """(place, package that imports, package that is imported)."""
    packages = set(packages_on_the_page())
    for path in python_files():
        if path.name in ("__init__.py", "__main__.py") and path.parent in (
            PACKAGE,
            PACKAGE / "tools",
        ):
            continue
        for line, name in imports_of(path):
            parts = name.split(".")
            imported = (
                package_of_parts(tuple(parts[1:]))
                if parts[0] == "fastload" and len(parts) > 1
                else ""
            )
            if imported in packages:
                yield f"{path.relative_to(ROOT)}:{line}", package_of(path), imported


def test_every_package_is_on_the_page_and_every_package_on_the_page_is_there() -> None:
    found = {package_of(path) for path in python_files()} - {
        "__init__",
        "__main__",
        "tools/__init__",
    }
    assert found == set(packages_on_the_page())


@pytest.mark.slow
def test_packages_import_only_those_above_them_in_the_table() -> None:
    position = {package: number for number, package in enumerate(packages_on_the_page())}
    wrong = [
        f"{place}: {importer} imports {package}"
        for place, importer, package in arrows()
        if position[package] > position[importer]
    ]
    assert not wrong, "\n".join(wrong)


def used_by_tools() -> Iterator[tuple[str, str, str]]:
    """(place, module of the loader's packages, name) of what tools import from there."""
    packages = packages_on_the_page()
    users = {*packages[packages.index("tools/monitor") :]}
    for path in python_files():
        for node in imports_in(path) if package_of(path) in users else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fastload"):
                parts = str(node.module).split(".")[1:]
                if parts and package_of_parts(tuple(parts)) in users:
                    continue
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield from ((where, ".".join(parts), alias.name) for alias in node.names)


def documented_for_tools() -> set[str]:
    """The modules in the table of the page, as "sources.folders"."""
    found, package = set(), ""
    for line in PAGE.read_text().split("## What tools use")[1].split("\n## ")[0].splitlines():
        if line.startswith("| ") and "---" not in line and "`" in line:
            first, modules = line.split("|")[1:3]
            package = first.strip(" `") or package
            found |= {f"{package}.{module}" for module in re.findall(r"`(\w+)`", modules)}
    return found


@pytest.mark.slow
def test_tools_use_documented_names_only() -> None:
    public = {*fastload.__all__}
    wrong, used = [], set()
    for place, module, name in used_by_tools():
        package = module.split(".")[0]
        is_folder = (PACKAGE / package).is_dir()
        exported = getattr(importlib.import_module(f"fastload.{module}".rstrip(".")), "__all__", ())
        if module and package != "errors" and name in public:
            wrong.append(f"{place}: {name} is public, import it from fastload")
        inside = module if "." in module else f"{module}.{name}"
        if not module or not is_folder or ("." not in module and name in exported):
            continue
        used.add(inside)
        if inside not in documented_for_tools():
            wrong.append(f"{place}: {inside} is not documented for tools (docs/architecture.md)")
    assert not wrong, "\n".join(wrong)
    assert documented_for_tools() - used == set(), "no tool uses these any more: take them out"


def imported_files() -> dict[str, set[str]]:
    """The modules that each module imports by name, be it within a function or for types."""
    modules = {}
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in imports_in(path):
            if isinstance(node, ast.Import):
                found[name].update(alias.name for alias in node.names)
            elif node.module is not None:
                below = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name].update(one if one in modules else node.module for one in below)
    return {name: (imported & modules.keys()) - {name} for name, imported in found.items()}


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Files that import each other, directly or by way of others: one of each circle's paths."""
    state, path, found = dict[str, str](), list[str](), list[list[str]]()

    def visit(name: str) -> None:
        state[name] = "open"
        path.append(name)
        for imported in sorted(imports[name]):
            if state.get(imported) == "open":
                found.append([*path[path.index(imported) :], imported])
            elif imported not in state:
                visit(imported)
        path.pop()
        state[name] = "done"

    for name in sorted(imports):
        if name not in state:
            visit(name)
    return found


def test_no_files_import_each_other() -> None:
    found = circles(imported_files())
    assert not found, "\n".join(" -> ".join(circle) for circle in found)


def test_circles() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c", "a"]]


CARRIERS = {"LoaderConfig", "Served", "Workload", "Context", "LoaderParts"}
"""What the arguments of `create_loader` travel in, to the parts and back."""


def names_in(path: Path) -> set[str]:
    """Those that it uses, and its classes."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return used | {node.name for node in nodes if isinstance(node, ast.ClassDef)}


def test_the_arguments_pass_through_few_files() -> None:
    """The parts get the few values that they need. A package's list of names does not count."""
    core = [path for path in python_files() if package_of(path) in ("backends", "loader")]
    names = {path: names_in(path) for path in core if path.name != "__init__.py"}
    carry = [path for path in names if names[path] & CARRIERS]
    assert len(carry) <= 20, carry
    configured = {path.stem for path in carry if "LoaderConfig" in names[path]}
    served = {"build", "known_functions", "loader", "samples", "served", "streams"}
    assert configured == {"adoption", "config", *served}


def test_a_backend_imports_no_other_backend() -> None:
    own = (
        "around",
        "base",
        "first_alone",
        "forked",
        "gathered",
        "composites",
        "images",
        "looked",
        "maker",
        "masks",
        "moved",
        "needs",
        "pasted",
        "pixels",
        "rows",
        "tolerance",
        "objects",
        "own_numbers",
        "streamed",
        "submitted",
    )  # what they share
    wrong = []
    for path in sorted((PACKAGE / "backends").rglob("*.py")):
        name = path.relative_to(PACKAGE / "backends").parts[0].removesuffix(".py")
        if name == "__init__":
            continue
        for line, module in imports_of(path):
            parts = module.split(".")
            # A backend of two files, dali and dali_graph, is one.
            if (
                parts[:2] == ["fastload", "backends"]
                and len(parts) > 2
                and not parts[2].startswith((*own, name))
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_nobody_asks_for_a_backend_by_name() -> None:
    names = {"torch", "turbojpeg", "cache", "dali"}
    wrong = []
    for path in python_files():
        if path.is_relative_to(PACKAGE / "backends"):
            continue
        for node in nodes_where(path, r"[\"'](torch|turbojpeg|cache|dali)[\"']"):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            about = " ".join(
                ast.unparse(side) for side in sides if not isinstance(side, ast.Constant)
            )
            literals = {
                value.value
                for side in sides
                for value in ast.walk(side)
                if isinstance(value, ast.Constant)
            }
            if "backend" in about and literals & names:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_the_core_includes_no_python_outside_its_bindings() -> None:
    wrong = [
        path.name
        for path in sorted((PACKAGE / "native").rglob("*.[ch]pp"))
        if not path.name.startswith("bindings")
        and re.search(r"#include\s*[<\"](Python\.h|nanobind|pybind11)", path.read_text())
    ]
    assert not wrong


def test_loops_of_several_instruction_sets_call_no_shared_functions() -> None:
    """The linker keeps one copy of a function template for the whole program. If it is one that
    was compiled for AVX-512, a processor without ends the process with SIGILL."""
    folder = PACKAGE / "native"
    paths = [*folder.rglob("*.inl.hpp"), *folder.rglob("*_target.cpp")]
    assert len(paths) > 10
    shared = re.compile(
        r"std::(vector|string|function|unique_ptr|shared_ptr)\b|resize\(|\bgrow\(|"
        r"\b(philox|words_of|uniform|draw_\w+)\("
    )
    wrong = [
        f"{path.name}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if shared.search(line.split("//")[0])
    ]
    assert not wrong, "\n".join(wrong)


_THINGS = (
    "batches|caches|cells|channels|classes|columns|cores|devices|epochs|files|gaps|GPUs|images|indices|items|labels|"
    "masks|parameters|points|processes|ranks|rounds|rows|samples|shards|steps|threads|tokens|values|views|workers"
)
_NO_NUMBERS = {
    "named",
    "images.dtype",
    "machine.quota_cores",
    "', '.join(layout.counts)",
    "_format(results.settings)",
}
"""What stands before such a word and is no count."""


def test_things_are_counted_in_one_way() -> None:
    wrong = []
    for path in python_files():
        for node in nodes_where(path, rf"\}}[\s\"'f]*({_THINGS})\b"):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            for value, text in itertools.pairwise(parts):
                if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                    continue
                shown = ast.unparse(value.value)
                if shown not in _NO_NUMBERS and re.match(
                    rf" ({_THINGS})\b(?!/s| a second)", text.value
                ):
                    wrong.append(
                        f"{path.relative_to(ROOT)}:{value.lineno}: {{{shown}}}{text.value[:12]}"
                    )
    assert not wrong, "counted(1, 'sample') is '1 sample': " + "\n".join(wrong)


def test_counted() -> None:
    from fastload.errors import counted

    assert [counted(n, "sample") for n in (0, 1, 1200)] == [
        "0 samples",
        "1 sample",
        "1,200 samples",
    ]
    assert [counted(2, thing) for thing in ("class", "batch", "epoch", "process", "branch")] == [
        "2 classes",
        "2 batches",
        "2 epochs",
        "2 processes",
        "2 branches",
    ]
