"""All parts in one command: `python -m benchmarks.gpu.run --photos FOLDER --out DIR`; see
benchmarks/README.md.

Every part is a process of its own, because an error on a GPU can break the process that it happens
in, and whatever may end its process has one more of its own. What a part has found is kept whatever
becomes of it.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import structs
from rich.console import Console

from benchmarks.gpu import checks, cifar, idle
from benchmarks.gpu.decode import decoders
from benchmarks.gpu.feeds import every_variant
from benchmarks.gpu.kernels import KERNELS
from benchmarks.gpu.setting import DRY, FULL, Found, Setting
from benchmarks.gpu.training import COMPILED
from benchmarks.inputs import ROOT, photographs, sample_set
from fastload.cache import build_cache
from fastload.errors import FastloadError
from fastload.tools.measure import process
from fastload.tools.measure.results import Measurement, Results, new_results, to_json, write_text
from fastload.tools.measure.statistics import Verdict, judge, summarise
from fastload.tools.measure.table import (
    metric,
    metric_rows,
    milliseconds,
    print_fitting,
    print_heading,
    print_problems,
)

_GRACE = 10.0
"""Seconds that a part may take beyond its time before it is ended."""
_LEAST = 5.0
"""A part that would have less time than this is not started [seconds]."""
_APART = 0.15
"""Of the time of a part: of each contestant that has a process of its own."""
_MADE = 192
"""Photographs that are made where no folder is given."""


@dataclass(frozen=True)
class Part:
    """One of the questions."""

    title: str
    # "module:function" of this package: (setting, found); it leaves out what it has no time for
    function: str
    weight: float  # its share of the time, relative to the others
    # Contestants that may end their process.
    apart: Callable[[Setting], list[str]] = lambda setting: []


def _backends(setting: Setting) -> list[str]:
    return [variant.name for variant in every_variant(setting) if variant.may_die]


def _decoders(setting: Setting) -> list[str]:
    return [decoder.name for decoder in decoders(setting) if decoder.may_die]


PARTS: dict[
    str, Part
] = {  # in order of worth: what comes first is found even if the machine is taken away
    "native": Part("the native core, and what the machine has", "native:run", 6),
    "contract": Part(
        "the contract suite and the checks on photographs", "checks:run", 16, _backends
    ),
    "tests": Part(
        "tests that need a GPU, the kernels, the trainer's steps", "checks:run_marked", 12
    ),
    "streams": Part("batches, used at once and kept", "checks:run_streams", 10, _backends),
    "kernels": Part("kernels against the operations of torch", "kernels:run", 4),
    "compile": Part("the compiler's cache, filled before anything is timed", "training:run", 10),
    "idle": Part("idle time of the GPU while networks are trained", "idle:run", 45, _backends),
    "cifar": Part("CIFAR-10 resident on the GPU", "cifar:run", 10),
    "decode": Part("decoding on the GPU, on the CPU, on both", "decode:run", 8, _decoders),
    "threads": Part("the loader's threads and the trainer's steps", "threads:run", 11),
}
LEASES: dict[str, tuple[str, ...]] = {
    "1": ("contract", "tests", "streams", "kernels", "idle"),
    "2": ("cifar", "decode", "threads"),
}
"""What is done in each of two leases of a machine; `native` and `compile` come by themselves."""
_LEASE_MINUTES = 22.0
"""Of each lease: together 45 minutes with what it takes to start."""
_LEAST_APART = 45.0
"""Seconds that a contestant with a process of its own has at least, if there are so many: importing
torch and opening a GPU takes up to 20."""
_COMPILE_FIRST = ("idle", "cifar", "threads")


def work(name: str, setting: Setting, seconds: float) -> None:
    """A part, in its process."""
    module, _, function = PARTS[name].function.partition(":")
    getattr(import_module(f"benchmarks.gpu.{module}"), function)(setting, Found(seconds))


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    setting = replace(
        DRY if given.dry_run else FULL, out=str(given.out), jpeg_headers=given.jpeg_headers
    )
    setting = replace(setting, device=given.device or setting.device)
    import torch

    if setting.gpu and not torch.cuda.is_available():
        _say(
            "--device: torch sees no CUDA device here. To try the code without one: python -m "
            "benchmarks.gpu.run --device cpu --dry-run --out DIR"
        )
        return 1
    with tempfile.TemporaryDirectory(prefix="fastload-gpu-") as temporary:
        kept = given.work or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        run = Run(
            replace(setting, kept=str(kept)),
            time.monotonic() + 60 * given.minutes,
            dry=given.dry_run,
        )
        run.part("native", [])  # before the cache is built with it
        try:
            run.prepare(given.photos)
        except FastloadError as error:
            _say(str(error))
            return 1
        for number, name in enumerate(given.parts):
            run.part(name, given.parts[number + 1 :])
            # After each part: a machine that is taken away leaves what was found.
            write_text(given.out / "summary.txt", summary(run.results) + "\n")
    print(f"\n{summary(run.results)}")
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.run", description=__doc__)
    every = [name for name in PARTS if name not in ("native", "compile")]
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the results: JSON, text, pictures, log")
    add(
        "--photos",
        type=Path,
        help="class folders of JPEG files (default: photographs that are made)",
    )
    add("--parts", default=",".join(every), help="some only, in this order: %(default)s")
    add(
        "--lease",
        choices=[*LEASES],
        help="the parts of the first or the second of two leases of a machine",
    )
    add(
        "--minutes",
        type=float,
        help=f"for all parts together (default: 8.5; a lease: {_LEASE_MINUTES:g})",
    )
    add("--device", help="cuda, cuda:1, cpu (default: cuda; cpu for a dry run)")
    add(
        "--dry-run",
        action="store_true",
        help="all of the code with the smallest sizes; the figures mean nothing",
    )
    add(
        "--jpeg-headers",
        default="",
        help="folder with unpacked packages, for building the native core",
    )
    add("--work", type=Path, help="keep input and build here (default: a temporary folder)")
    given = parser.parse_args(arguments)
    if given.minutes is None:
        given.minutes = _LEASE_MINUTES if given.lease else 8.5
    given.parts = ",".join(LEASES[given.lease]) if given.lease else given.parts
    given.parts = [name.strip() for name in given.parts.split(",") if name.strip()]
    unknown = [name for name in given.parts if name not in every]
    if unknown or not given.parts:
        parser.error(
            f"--parts: {', '.join(unknown) or 'none given'}; choose from {', '.join(every)}"
        )
    if given.minutes <= 0:
        parser.error(f"--minutes: must be above 0, got {given.minutes:g}")
    compiled = next(
        (number for number, name in enumerate(given.parts) if name in _COMPILE_FIRST), None
    )
    if compiled is not None:
        given.parts.insert(compiled, "compile")
    given.out, given.work = given.out.absolute(), given.work and given.work.absolute()
    return given


class Run:
    """The results, on disk at every moment, and the parts that make them."""

    def __init__(self, setting: Setting, deadline: float, *, dry: bool) -> None:
        self.setting = setting
        self._out, self._deadline = Path(setting.out), deadline
        self._rows: dict[object, Measurement] = {}
        self._notes = (
            ["A DRY RUN: it shows that the code runs; the figures mean nothing."] if dry else []
        )
        shown = {
            name: value
            for name, value in asdict(setting).items()
            if name not in ("kept", "out", "only")
        }
        self._results = new_results("gpu", shown | {"dry_run": dry}, ())

    @property
    def results(self) -> Results:
        rows, notes = tuple(self._rows.values()), tuple(self._notes)
        verdicts = tuple(goals(rows, gpu=self.setting.gpu))
        return structs.replace(self._results, measurements=rows, notes=notes, verdicts=verdicts)

    def prepare(self, photos: Path | None) -> None:
        """The photographs under many names, and the cache of them. Raises SourceError: there are no
        JPEG files."""
        setting, kept = self.setting, Path(self.setting.kept)
        found = photographs(
            photos or sample_set(kept, min(_MADE, setting.images), _say), kept, setting.images
        )
        _say("building the cache")
        build_cache(
            str(found.folder), kept / "cache", short_side=setting.short_side, progress=False
        )
        self._keep(
            f"{found}: read from memory, whatever the disk. Cache: short side {setting.short_side} "
            "pixels."
        )
        self.setting = replace(setting, photos=str(found.folder))

    def part(self, name: str, later: Sequence[str]) -> None:
        """One part, and then each of its contestants that may die; `later` are the parts that need
        time, too."""
        part = PARTS[name]
        apart = part.apart(self.setting)
        weights = [part.weight, *[_APART * part.weight] * len(apart)]
        for number, only in enumerate([(), *((contestant,) for contestant in apart)]):
            rest = sum(weights[number:]) + sum(PARTS[other].weight for other in later)
            left = self._deadline - time.monotonic()
            seconds = left * weights[number] / rest
            if only:
                seconds = min(max(seconds, _LEAST_APART), left)
            self._process(name, replace(self.setting, only=only), seconds)
        broken = [row.note for row in self._rows.values() if row.mode == COMPILED and row.note]
        if broken:  # nobody need try again
            self.setting = replace(self.setting, compile=False)

    def _process(self, name: str, setting: Setting, seconds: float) -> None:
        title = ": ".join([name, *setting.only])
        if seconds < _LEAST:
            self._keep(f"{title}: not run, no time was left")
            return
        _say(f"{title}: {PARTS[name].title} ({seconds:.0f} s at most)")
        before, started = set(self._rows), time.monotonic()

        def keep(found: Any) -> None:
            if isinstance(found, str):
                self._keep(f"{title}: {found}")
            elif not (setting.only and found.key in before):  # synthetic rows, which all have
                self._keep(found)

        log = self._out / "log.txt"
        with log.open("a") as file:
            print(f"\n==== {title}", file=file)
        done = process.run(
            "benchmarks.gpu.run:work",
            *(name, setting, seconds),
            limit=seconds + _GRACE,
            environment={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(Path(setting.kept) / "compiled"),
            },
            cwd=ROOT,
            output=log,
            on_report=keep,
        )
        status = "complete" if done.code == 0 else f"failed: {done.words} (log.txt)"
        if done.code is None:
            status = "ended: its time was over"
        self._keep(f"{title}: {status}, {time.monotonic() - started:.0f} s")
        _say(f"{title}: {status}")

    def _keep(self, found: Measurement | str) -> None:
        if isinstance(found, str):
            self._notes.append(found)
        else:
            self._rows[found.key] = found
        write_text(self._out / "results.json", to_json(self.results))


# -- what was found: the goals, and a page of text, what a person reads first ----------------------

Rows = Sequence[Measurement]


def goals(rows: Rows, *, gpu: bool) -> list[Verdict]:
    """Every goal, from the rows of all parts. On a CPU speed is not judged."""
    return [*_right(rows), *(_fast(rows) if gpu else ())]


def _right(rows: Rows) -> Iterator[Verdict]:
    suite = [
        row for row in rows if row.mode == checks.SUITE and row.status in ("measured", "failed")
    ]
    failed = [
        1.0 if row.status == "failed" else value
        for row in suite
        for value in row.metrics("failed") or [1.0]
    ]
    yield judge("contract tests that fail on the device", failed, 0, at_least=False)
    marked = [
        row for row in rows if row.mode == checks.MARKED and row.status in ("measured", "failed")
    ]
    failed = [
        1.0 if row.status == "failed" else value
        for row in marked
        for value in row.metrics("failed")
    ]
    yield judge("tests for a GPU that fail", failed, 0, at_least=False)
    yield judge(
        "kernels whose bits are not those of torch's operations",
        _wrong(rows, (KERNELS,)),
        0,
        at_least=False,
    )
    wrong = _wrong(rows, (checks.PIXELS, checks.RESUME, checks.OTHER_GPUS))
    yield judge("checks on photographs that are not right", wrong, 0, at_least=False)
    yield judge("backends whose batches change", _wrong(rows, (checks.STREAMS,)), 0, at_least=False)
    yield judge(
        "batches that differ from the CPU's", _sum(rows, checks.AGAINST_CPU), 0, at_least=False
    )


def _fast(rows: Rows) -> Iterator[Verdict]:
    large, small = (
        [
            row
            for row in rows
            if row.mode == idle.mode(name) and row.contestant.startswith(idle.FASTLOAD)
        ]
        for name in ("resnet50", "resnet18")
    )
    shares = {row.contestant: row.metrics(idle.OF_SYNTHETIC) for row in large if row.rounds}
    for name, found in (shares or {"every backend": []}).items():
        yield judge(f"ResNet-50, {name}, of the synthetic rate (aim 99.5%)", found, 0.98, unit="%")
    windows = "ResNet-50, windows at 0% after the first batch, ends of epochs included"
    yield judge(windows, _sum(large, "gpu_idle_windows"), 0, at_least=False)
    best = max(small, key=lambda row: row.speed, default=None)
    name = "the best backend" if best is None else f"the best backend ({best.contestant})"
    found = [] if best is None else best.metrics(idle.OF_SYNTHETIC)
    yield judge(f"ResNet-18, {name}, of the synthetic rate (aim 98%)", found, 0.95, unit="%")
    alone = [row.speed for row in rows if row.mode == cifar.ALONE and row.rounds]
    fastest = [max(alone)] if alone else []
    yield judge("CIFAR-10 resident on the device, the loader alone", fastest, 20e6, unit="img/s")
    loader = [
        share for row in rows if row.mode == cifar.SHARE for share in row.metrics("loader_share")
    ]
    known = [cifar.resolution(summarise(loader))] if len(loader) > 2 else []
    what = "CIFAR-10 training, the loader's share of a step"
    yield judge(what, loader, 0.01, at_least=False, unit="%")
    yield judge(f"{what}, resolution of that", known, 0.005, at_least=False, unit="%")


def _wrong(rows: Rows, modes: Sequence[str]) -> list[float]:
    """Of all that was checked, how much is wrong or failed; nothing if nothing was checked."""
    checked = [row for row in rows if row.mode in modes and row.status in ("measured", "failed")]
    return (
        [float(sum(row.status == "failed" or any(row.metrics("wrong")) for row in checked))]
        if checked
        else []
    )


def _sum(rows: Rows, name: str) -> list[float]:
    found = [value for row in rows for value in row.metrics(name)]
    return [sum(found)] if found else []


def summary(results: Results) -> str:
    """All rows that there are, the goals last."""
    page = io.StringIO()
    console = Console(file=page, width=150, highlight=False, markup=False)
    print_heading(results, "on a GPU", console)
    for note in results.notes:
        console.print(note, soft_wrap=True)
    for mode in dict.fromkeys(row.mode for row in results.measurements):
        rows = [row for row in results.measurements if row.mode == mode and row.rounds]
        if rows:
            table = _by_threads if "threads" in rows[0].parameters else metric_rows
            console.print()
            print_fitting(console, table(mode, rows))
        for row in rows:
            if row.note and row.status == "measured":
                console.print(f"  {row.contestant}: {row.note}", soft_wrap=True)
    console.print()
    print_problems(results, console, lambda row: f"{row.contestant} ({row.mode})")
    console.print("\nGOALS")
    for verdict in results.verdicts:
        console.print(str(verdict), soft_wrap=True)
    if not str(results.settings["device"]).startswith("cuda"):
        console.print("not judged    the goals of speed: this was a CPU")
    return page.getvalue().rstrip()


def _by_threads(mode: str, rows: Rows) -> list[dict[str, str]]:
    """One contestant a row, one number of threads a column: the rate, or the length of a step."""
    counts = sorted({int(row.parameters["threads"]) for row in rows})
    cells = {
        row.contestant: {mode: row.contestant} | {f"{n} threads": "" for n in counts}
        for row in rows
    }
    for row in rows:
        step = metric(row, "median_step_seconds", milliseconds)
        cells[row.contestant][f"{row.parameters['threads']} threads"] = step or f"{row.speed:,.0f}"
    return list(cells.values())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    # So that the part under way is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
