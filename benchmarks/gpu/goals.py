"""What was found: the goals, and a page of text, what a person reads first.

`python -m benchmarks.gpu.goals RESULTS.json ...` makes one page of the results of several calls.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from msgspec import structs
from rich.console import Console

from benchmarks.gpu import checks, cifar, cores, idle, pairs, soak, streams, trainer
from benchmarks.gpu.kernels import KERNELS
from fastload.errors import FastloadError, counted
from fastload.tools.measure.results import Measurement, Results, read_json
from fastload.tools.measure.statistics import Verdict, judge, summarise
from fastload.tools.measure.table import (
    metric,
    metric_rows,
    milliseconds,
    print_fitting,
    print_heading,
    print_problems,
)

Rows = Sequence[Measurement]
_ENOUGH = 0.995
"""Of the rate of batches that are there already: the GPU does not wait."""
_NOT_SUITED = f"{idle.FASTLOAD}torch"
"""Runs the user's own code in worker processes, as the DataLoader does: nothing is promised of
it."""


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
    yield judge(
        "contract tests that fail on the device", [sum(failed)] if failed else [], 0, at_least=False
    )
    marked = [
        row for row in rows if row.mode == checks.MARKED and row.status in ("measured", "failed")
    ]
    failed = [
        1.0 if row.status == "failed" else value
        for row in marked
        for value in row.metrics("failed")
    ]
    yield judge("tests for a GPU that fail", [sum(failed)] if failed else [], 0, at_least=False)
    yield judge(
        "kernels whose bits are not those of the CPU",
        _wrong(rows, (KERNELS,)),
        0,
        at_least=False,
    )
    wrong = _wrong(rows, (checks.PIXELS, checks.RESUME, checks.DIVIDED, checks.OTHER_GPUS))
    yield judge("checks on photographs that are not right", wrong, 0, at_least=False)
    changed = _wrong(rows, (streams.STREAMS,))
    yield judge("backends whose batches change", changed, 0, at_least=False)
    unlike = [*_sum(rows, streams.AGAINST_CPU), *_sum(rows, streams.NORMALISED)]
    unlike = [sum(unlike)] if unlike else []
    yield judge("batches that differ from the CPU's, by checksum", unlike, 0, at_least=False)
    locked = _wrong(rows, (streams.PAGE_LOCKED,))
    what = "backends that copy from ordinary memory, or page-lock in every epoch"
    yield judge(what, locked, 0, at_least=False)
    ways = _wrong(rows, (trainer.TRAINER,))
    yield judge("ways of the trainer that are not right", ways, 0, at_least=False)


def _fast(rows: Rows) -> Iterator[Verdict]:
    for network, title, least, aim in (
        ("resnet50", "ResNet-50", 0.98, _ENOUGH),
        ("resnet18", "ResNet-18", 0.95, 0.98),
    ):
        mode = idle.mode(network)
        # Pairs where there are any: they tell more.
        shares = {
            row.contestant: row.metrics(pairs.OF_SYNTHETIC)
            for wanted in (mode, pairs.mode_of(mode))
            for row in rows
            if row.mode == wanted and row.rounds and row.contestant.startswith(idle.FASTLOAD)
        }
        shares.pop(_NOT_SUITED, None)
        for name, found in (shares or {"every suitable backend": []}).items():
            yield judge(f"{title}, {name}, of the synthetic rate", found, least, unit="%")
        best = max(shares, key=lambda name: median(shares[name] or [0.0]), default="")
        name = f"the best backend ({best})" if best else "the best backend"
        yield judge(f"{title}, {name}, of the synthetic rate", shares.get(best, []), aim, unit="%")
        known = [pairs.resolution(summarise(shares[best]))] if len(shares.get(best, [])) > 2 else []
        what = f"{title}, the best backend, resolution of that"
        yield judge(what, known, 0.005, at_least=False, unit="%")
    for mode, what in (
        (soak.SOAK, "longest time without a batch, epoch ends included, in steps"),
        (soak.KERNELS_OF_AN_END, "longest gap between kernels at an epoch's end, in steps"),
    ):
        gaps = [
            gap / step
            for row in rows
            if row.mode == mode
            for gap, step in zip(row.metrics(soak.GAP), row.metrics(soak.STEP), strict=True)
        ]
        yield judge(what, gaps, 1.0, at_least=False, worst=True)
    alone = [row.speed for row in rows if row.mode == cifar.ALONE and row.rounds]
    fastest = [max(alone)] if alone else []
    yield judge("CIFAR-10 resident on the device, the loader alone", fastest, 20e6, unit="img/s")
    loader = [
        share for row in rows if row.mode == cifar.SHARE for share in row.metrics("loader_share")
    ]
    known = [pairs.resolution(summarise(loader))] if len(loader) > 2 else []
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


def cores_needed(rows: Rows) -> dict[str, int | None]:
    """Of each loader the fewest cores that were tried on which the GPU does not wait; None where
    all of them are too few."""
    mode = cores.row_mode("resnet50")
    shares: dict[str, dict[int, float]] = {}
    for wanted in (mode, pairs.mode_of(mode)):
        for row in rows:
            share = row.metric(pairs.OF_SYNTHETIC)
            if row.mode == wanted and share is not None and row.contestant != idle.SYNTHETIC:
                count = int(row.parameters[cores.CORES])
                shares.setdefault(row.contestant, {})[count] = share.median
    return {
        name: min((count for count, share in found.items() if share >= _ENOUGH), default=None)
        for name, found in shares.items()
    }


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
            console.print()
            print_fitting(console, _table(mode, rows))
        for row in rows:
            if row.note and row.status == "measured":
                console.print(f"  {_named(row)}: {row.note}", soft_wrap=True)
    console.print()
    print_problems(results, console, lambda row: f"{row.contestant} ({row.mode})")
    if needed := cores_needed(results.measurements):
        console.print(f"\nCORES NEEDED FOR {_ENOUGH:.1%} of the synthetic rate, of those tried")
        for name, count in needed.items():
            console.print(f"  {name}: {count or 'more than those'}")
    console.print("\nGOALS")
    for verdict in results.verdicts:
        console.print(str(verdict), soft_wrap=True)
    if not str(results.settings["device"]).startswith("cuda"):
        console.print("not judged    the goals of speed: this was a CPU")
    return page.getvalue().rstrip()


def _table(mode: str, rows: Rows) -> list[dict[str, str]]:
    for parameter in ("threads", cores.CORES):
        if parameter in rows[0].parameters:
            return _by_number(mode, rows, parameter)
    return metric_rows(mode, rows)


def _by_number(mode: str, rows: Rows, parameter: str) -> list[dict[str, str]]:
    """One contestant a row, one number of threads or cores a column: the share of the synthetic
    rate, the length of a step, or the rate."""
    counts = sorted({int(row.parameters[parameter]) for row in rows})
    columns = {n: counted(n, parameter.removesuffix("s")) for n in counts}
    cells = {
        row.contestant: {mode: row.contestant} | dict.fromkeys(columns.values(), "") for row in rows
    }
    for row in rows:
        shown = metric(row, pairs.OF_SYNTHETIC, "{:.1%}".format)
        shown = shown or metric(row, "median_step_seconds", milliseconds) or f"{row.speed:,.0f}"
        cells[row.contestant][columns[int(row.parameters[parameter])]] = shown
    return list(cells.values())


def line(row: Measurement) -> str:
    """A row as it is made, for the log of a run."""
    found: list[str] = [row.status] if row.status != "measured" else []
    found += [f"{row.speed:,.0f} a second"] if row.speed else []
    names = dict.fromkeys(name for r in row.rounds for name in r.metrics)
    shown = metric_rows("", [row])[0] if row.rounds else {}
    found += [
        f"{name.removesuffix('_seconds').replace('_', ' ')} {value}"
        for name in names
        if (value := shown.get(name.removesuffix("_seconds").replace("_", " ")))
    ]
    rounds = f" ({len(row.rounds)} rounds)" if len(row.rounds) > 1 else ""
    note = f"; {row.note}" if row.note else ""
    return f"{row.mode}: {_named(row)}{rounds}: {', '.join(found)}{note}"


def _named(row: Measurement) -> str:
    """The contestant and the parameters of a row."""
    return ", ".join([row.contestant, *(f"{name} {v}" for name, v in row.parameters.items())])


def joined(several: Sequence[Results]) -> Results:
    """The rows of several calls as those of one; of rows of the same name the last."""
    rows = {row.key: row for results in several for row in results.measurements}
    gpu = str(several[0].settings["device"]).startswith("cuda")
    return structs.replace(
        several[0],
        measurements=tuple(rows.values()),
        notes=tuple(note for results in several for note in results.notes),
        verdicts=tuple(goals(tuple(rows.values()), gpu=gpu)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The page of the files that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.goals", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("results", type=Path, nargs="+", help="results.json of a call, or several")
    paths = parser.parse_args(arguments).results
    try:
        found = [read_json(path) for path in paths]
    except FastloadError as error:
        parser.error(str(error))
    print(summary(joined(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
