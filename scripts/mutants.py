"""Mutation testing: `make mutants`. One small fault at a time is put into a module, and its tests
must fail.

    python scripts/mutants.py                  all targets
    python scripts/mutants.py cursor order     some of them
    python scripts/mutants.py cursor --list    the faults, without running anything
    python scripts/mutants.py device --sample 30   thirty of them, the same ones each time
    python scripts/mutants.py --mirror         the main function of each module taken away
    python scripts/mutants.py --mirror loader.states draws    of some modules

A fault that no test finds "survives". Those that change nothing that anybody could notice are in
`scripts/mutants.toml`, each with the reason; any other ends the run with exit status 1.

No file is written: the module is compiled from the changed syntax tree, and each fault gets a
forked process. Faults in functions are tried first in forks of a process that has collected the
tests (`found_when_collected`). All others, and what was not found so, are tried in forks of this
process, which has imported torch and the like, but nothing of fastload. (cosmic-ray starts a new
Python process for every fault, which takes eight seconds with torch, and none of its faults leaves
a statement out; mutmut works in a copy of the package, and the import hook of an editable install
by scikit-build-core goes before that copy.)
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import gc
import importlib.abc
import importlib.util
import inspect
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import msgspec

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "scripts" / "mutants.toml"
LONGEST = 8.0
"""A fault under which tests take this many times as long as without one counts as found."""
OPTIONS = [
    *("-x", "-q", "-n", "0", "--no-header", "--tb=line", "-p", "no:cacheprovider"),
    "--timeout=60",  # under some faults a test does not end; the longest one takes 3 s
]


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault that changes nothing that can be noticed."""

    where: str
    """Name of the function, with its class."""
    change: str
    reason: str
    line: str = ""
    """What the line begins with, where the same change is possible in others of the function."""

    def is_about(self, mutant: Mutant) -> bool:
        same = (self.where, self.change) == (mutant.where, mutant.change)
        return same and mutant.text.startswith(self.line)


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: list[str]
    tests: list[str]
    """Arguments of pytest; the quick tests first, as the first failure ends the run."""
    within: list[str] = []
    """The classes and functions that get faults, "" for what is in none; all, if none is named."""
    equivalent: list[Equivalent] = []

    def mutants(self) -> list[Mutant]:
        found = [mutant for file in self.files for mutant in mutants_of(file)]
        return [one for one in found if not self.within or one.where.split(".")[0] in self.within]


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    where: str
    text: str
    """Of the line."""
    change: str
    """What was there, and what is there now."""
    code: Any
    """The compiled module."""


# -- Faults ----------------------------------------------------------------------------------------

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
}  # fmt: skip


def faults(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return  # a docstring
        case (
            ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() | ast.Continue()
        ):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Tuple(elts=parts), *_]):
            if all(isinstance(part, ast.Attribute | ast.Subscript) for part in parts):
                yield ast.Pass()
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Compare):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.comprehension(ifs=[_, *_]):
            yield _changed(node, ifs=node.ifs[1:])
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            yield _changed(node, ops=[_COMPARISONS[type(op)]()])
            if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                yield ast.UnaryOp(ast.Not(), node)
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                if type(op) in _COMPARISONS:
                    yield _changed(node, ops=[*ops[:at], _COMPARISONS[type(op)](), *ops[at + 1 :]])
        case ast.BoolOp():
            for at in range(len(node.values)):
                rest = [*node.values[:at], *node.values[at + 1 :]]
                yield rest[0] if len(rest) == 1 else _changed(node, values=rest)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield _changed(node, op=_ARITHMETIC[type(node.op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield ast.Constant(number + 1)


def _changed(node: Any, **fields: Any) -> Any:
    found = copy.copy(node)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


_NOT_LOOKED_INTO = (ast.JoinedStr, ast.Import, ast.ImportFrom)
_FIELDS_LEFT_OUT = {"annotation", "returns", "decorator_list", "type_params", "type_comment"}


def places(node: ast.AST, where: str = "") -> Iterator[tuple[ast.AST, str, Any, str]]:
    """(parent, field, index or None, name of the function) of every node that a fault may be in."""
    for field, value in ast.iter_fields(node):
        if field in _FIELDS_LEFT_OUT:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, _NOT_LOOKED_INTO):
                continue
            yield node, field, index, where
            if isinstance(child, ast.Raise):
                continue  # its message
            inside = where
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{where}.{child.name}".lstrip(".")
            yield from places(child, inside)


def mutants_of(file: str) -> Iterator[Mutant]:
    """All of one file, in the order of its lines."""
    source = (ROOT / file).read_text()
    tree, lines = ast.parse(source, filename=str(ROOT / file)), source.splitlines()
    for parent, field, index, where in list(places(tree)):
        value = getattr(parent, field)
        before = value if index is None else value[index]
        for after in faults(before):
            after = copy.copy(after)  # it may be a part of what was there, which keeps its place
            ast.copy_location(after, before) if hasattr(before, "lineno") else None
            try:
                _put(parent, field, index, after)
                ast.fix_missing_locations(tree)
                code = compile(tree, str(ROOT / file), "exec", dont_inherit=True)
            except SyntaxError:
                continue
            finally:
                _put(parent, field, index, before)
            line = getattr(before, "lineno", getattr(parent, "lineno", 0))
            change = " -> ".join(" ".join(ast.unparse(n).split())[:90] for n in (before, after))
            yield Mutant(file, line, where, lines[line - 1].strip(), change, code)


def without_its_main_function(file: str) -> Mutant:
    """The longest public function or method raises an error at once; where none is public, the
    longest."""
    source = (ROOT / file).read_text()
    tree = ast.parse(source, filename=str(ROOT / file))
    functions: list[tuple[bool, int, str, ast.FunctionDef]] = []

    def collect(node: ast.AST, where: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                name = f"{where}.{child.name}".lstrip(".")
                public = not any(part.startswith("_") for part in name.split("."))
                functions.append((public, sum(1 for _ in ast.walk(child)), name, child))
            elif isinstance(child, ast.ClassDef):
                collect(child, f"{where}.{child.name}".lstrip("."))
            else:
                collect(child, where)

    collect(tree, "")
    _, _, name, function = max(functions, key=lambda found: found[:2])
    function.body = ast.parse("raise RuntimeError('taken away')").body
    ast.fix_missing_locations(ast.copy_location(function.body[0], function))
    code = compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec", dont_inherit=True)
    return Mutant(file, function.lineno, name, "", "taken away", code)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


# -- Running ---------------------------------------------------------------------------------------


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from given code, before anybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = mutant.file.removesuffix(".py").replace("/", ".")

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(
            fullname, str(ROOT / self._mutant.file), loader=self
        )

    def exec_module(self, module: Any) -> None:
        exec(self._mutant.code, module.__dict__)


def failed(tests: Sequence[str], mutant: Mutant | None, seconds: float) -> tuple[bool, str]:
    """Whether tests fail under a fault, and the last line that pytest wrote."""

    def run(output: int) -> int:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if mutant is not None:
            sys.meta_path.insert(0, _Changed(mutant))
        import pytest

        return int(pytest.main([*OPTIONS, *tests]))

    return _in_child(run, seconds)


def found_when_collected(tests: Sequence[str], mutants: Sequence[Mutant]) -> set[Mutant]:
    """Those of the faults that tests fail under if the code of a function is changed after the
    tests were collected: once for all faults, as it takes longer than most of the tests.

    Not among them are faults in what is done at import, and those that only show there.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        import pytest

        status = 1
        try:
            status = pytest.main([*OPTIONS, *tests], plugins=[_Collected(mutants, writing)])
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as lines:
        found = {mutants[int(line)] for line in lines}
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the tests, run where they were collected, fail without any fault.")
    return found


class _Collected:
    """A plugin of pytest: in place of running the tests, runs them under each fault."""

    def __init__(self, mutants: Sequence[Mutant], output: int) -> None:
        """`output`: gets the numbers of those that are found, a line each."""
        self._mutants, self._output = mutants, output
        self._longest = 1200.0
        """Seconds that the tests may take."""
        self._took: Any = None
        """By the number of a test, the seconds that it takes without a fault; children write it."""
        self._numbers: dict[str, int] = {}
        """Of the tests, by name."""
        self._failed: int | None = None
        """In a child: gets the name of the test that failed."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._took[self._numbers[report.nodeid]] += report.duration
        if report.failed and self._failed is not None:
            os.write(self._failed, f"{report.nodeid}\n".encode())

    def pytest_runtestloop(self, session: Any) -> bool | None:
        import pytest

        if self._failed is not None:
            return None  # in a child, whose tests run as ever
        gc.unfreeze()  # tests/conftest.py froze what there is
        functions = [found for found in gc.get_objects() if type(found) is FunctionType]
        gc.freeze()
        self._numbers = {item.nodeid: number for number, item in enumerate(session.items)}
        self._took = multiprocessing.RawArray("d", len(session.items))
        session.testsfailed += self._under(session, [])[0]
        self._longest = 20 + LONGEST * sum(self._took)
        for item, seconds in zip(session.items, list(self._took), strict=True):
            # Under some faults a test does not end.
            item.add_marker(pytest.mark.timeout(10 + LONGEST * seconds), append=False)
        for number, mutant in enumerate(self._mutants):
            before, after = outermost_changed(mutant)
            there = [(function, after) for function in functions if function.__code__ == before]
            if there and before.co_freevars == after.co_freevars:
                found, by = self._under(session, there)
                if found:
                    os.write(self._output, f"{number}\n".encode())
                    # The next fault is most often found by the same test.
                    session.items.sort(key=lambda item, by=by: item.nodeid != by)
        session.testsfailed += self._under(session, [])[0]  # in the order that came about
        return True

    def _under(
        self, session: Any, functions: Sequence[tuple[FunctionType, CodeType]]
    ) -> tuple[bool, str]:
        """Whether tests fail when these functions have this code, and the first that did."""

        def run(output: int) -> int:
            self._failed = output
            for function, code in functions:
                function.__code__ = code
            with contextlib.suppress(session.Failed):
                session.config.hook.pytest_runtestloop(session=session)
            return int(session.testsfailed)

        return _in_child(run, self._longest)


def outermost_changed(mutant: Mutant) -> tuple[CodeType, CodeType]:
    """The code of the function that a fault is in, before and with it: of the outermost one, where
    it is in another. That of the module, where it is in no function."""
    source = (ROOT / mutant.file).read_text()
    before = compile(source, str(ROOT / mutant.file), "exec", dont_inherit=True)
    after = mutant.code
    while not before.co_flags & inspect.CO_OPTIMIZED:  # a module's, or a class's
        inside = [
            pair
            for pair in zip(before.co_consts, after.co_consts, strict=False)
            if pair[0] != pair[1]
        ]
        same = before.replace(co_consts=()) == after.replace(co_consts=())
        if not same or len(inside) != 1 or not all(isinstance(c, CodeType) for c in inside[0]):
            break
        before, after = inside[0]
    return before, after


def _in_child(run: Callable[[int], int], seconds: float) -> tuple[bool, str]:
    """Whether a function ends with another status than 0 in a forked process, and the last line
    that it wrote to the file it is given."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()  # so that worker processes of a test are ended with it
        status = 1
        try:
            status = run(writing)
        except BaseException as error:
            os.write(writing, f"pytest ended with {type(error).__name__}: {error}\n".encode())
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writing)
    try:
        return _ended(child, reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _ended(child: int, output: int, deadline: float) -> tuple[bool, str]:
    import select

    text = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True, "took too long"
        if select.select([output], [], [], min(left, 0.2))[0]:
            text = (text + os.read(output, 65536))[-65536:]
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            lines = text.decode(errors="replace").strip().splitlines()
            return os.waitstatus_to_exitcode(status) != 0, lines[-1] if lines else ""


def sampled(mutants: list[Mutant], count: int | None) -> list[Mutant]:
    """This many, drawn with a fixed seed, in the order of their lines; None: all."""
    if count is None or count >= len(mutants):
        return mutants
    chosen = random.Random(0).sample(range(len(mutants)), count)
    return [mutants[index] for index in sorted(chosen)]


def run_target(name: str, target: Target, sample: int | None) -> int:
    """Print the survivors; how many of them nobody explains."""
    started = time.monotonic()
    wrong, said = failed(target.tests, None, 1200)
    if wrong:
        raise SystemExit(f"{name}: the tests fail without any fault: {said}")
    seconds = time.monotonic() - started
    mutants = target.mutants()
    tried = sampled(mutants, sample)
    print(f"{name}: {len(tried)} of {len(mutants)} faults, tests of {seconds:.1f} s", flush=True)
    judged = [one for one in tried if not any(said.is_about(one) for said in target.equivalent)]
    at_once = found_when_collected(target.tests, judged)
    count = Counter(explained=len(tried) - len(judged))
    for mutant in judged:
        found = mutant in at_once or failed(target.tests, mutant, 20 + LONGEST * seconds)[0]
        count["found" if found else "survived"] += 1
        if not found:
            print(f"  {mutant.file}:{mutant.line} in {mutant.where}: {mutant.change}", flush=True)
    stale = [one for one in target.equivalent if not any(map(one.is_about, mutants))]
    for one in stale:
        print(f"  {SETTINGS.name}: no such fault in {one.where} any more: {one.change}")
    minutes = (time.monotonic() - started) / 60
    parts = ", ".join(f"{number} {what}" for what, number in count.items())
    print(f"{name}: {parts}; {minutes:.1f} min", flush=True)
    return count["survived"] + len(stale)


def run_mirror(modules: Sequence[str]) -> int:
    """Print the modules whose test file passes without their main function; how many."""
    from tests.mirror import TESTS

    rows = [(module, file) for file, named in TESTS.items() for module in named.split()]
    survived = 0
    for module, file in rows:
        if modules and module not in modules:
            continue
        path = f"fastload/{module.replace('.', '/')}"
        path = f"{path}.py" if (ROOT / f"{path}.py").exists() else f"{path}/__init__.py"
        mutant = without_its_main_function(path)
        found, said = failed([f"tests/{file}.py"], mutant, 600)
        survived += not found
        print(f"{'found' if found else 'SURVIVED':8} {mutant.where} of {path}: {said}", flush=True)
    return survived


def main() -> int:
    targets = msgspec.toml.decode(SETTINGS.read_bytes(), type=dict[str, Target])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(targets)}; all by default")
    parser.add_argument("--mirror", action="store_true", help="see above; then targets are modules")
    parser.add_argument("--list", action="store_true", help="only list the faults")
    parser.add_argument("--sample", type=int, help="so many of each target, always the same ones")
    chosen = parser.parse_args()
    for name in () if chosen.mirror else chosen.targets:
        if name not in targets:
            parser.error(f"{name!r} is no target; choose from {', '.join(targets)}")
    names = chosen.targets or list(targets)
    if chosen.list:
        for name in names:
            for mutant in targets[name].mutants():
                print(f"{mutant.file}:{mutant.line} in {mutant.where}: {mutant.change}")
        return 0
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for module in ("numpy", "PIL.Image", "torch", "torchvision.transforms.v2"):
        importlib.import_module(module)
    if chosen.mirror:
        return 1 if run_mirror(chosen.targets) else 0
    return 1 if sum(run_target(name, targets[name], chosen.sample) for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
