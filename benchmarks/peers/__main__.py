"""fastload beside its peers: the same files, the same output, the same number of threads, in turns,
in one run.

    make bench-peers                  # from a checkout; DATA=folder for your own photographs
    python -m benchmarks.peers --help

Reading order: `setting.py` (what all are given), `dataloaders.py`, `pipelines.py` and `stored.py`
(each peer as its good users write it), `contestants.py` (fastload, and the list of all), `serve.py`
(the measuring, within the process of a contestant), `comparison.py` (what is measured, in order),
this file (what must be reached, and the tables).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.inputs import ROOT
from benchmarks.peers import contestants as who
from benchmarks.peers.comparison import (
    BATCH,
    EPOCHS,
    FIRST,
    INTERPRETER,
    SMALL,
    SMALL_BATCH,
    Comparison,
)
from benchmarks.peers.contestants import CONTESTANTS, Row
from fastload.errors import FastloadError
from fastload.tools.measure.results import (
    Measurement,
    Results,
    Round,
    new_results,
    ratios,
    to_json,
    write_text,
)
from fastload.tools.measure.rounds import Progress
from fastload.tools.measure.statistics import Verdict, judge, quantile, summarise
from fastload.tools.measure.table import metric_rows, print_fitting, print_problems

Found = Mapping[tuple[str, str], Measurement]
"""By contestant and mode."""

_FASTER = (
    (who.FASTLOAD_TURBOJPEG, who.PILLOW, 4.0),
    (who.FASTLOAD_TURBOJPEG, who.DALI, 3.0),
    (who.FASTLOAD_TURBOJPEG, who.SPDL, 1.0),
    (who.FASTLOAD_TURBOJPEG, who.FFCV_JPEG, 2.1),
    (who.FASTLOAD_TURBOJPEG, who.LIMIT, 1.25),
    (who.FASTLOAD_INDEXED, who.PILLOW, 7.0),
    (who.FASTLOAD_INDEXED, who.DALI, 5.5),
    (who.FASTLOAD_INDEXED, who.FFCV_JPEG, 4.3),
    (who.FASTLOAD_INDEXED, who.FFCV_RESNET50, 3.2),
    (who.FASTLOAD_INDEXED, who.LIMIT, 2.4),
    (who.FASTLOAD_CACHE, who.FFCV_RAW, 2.5),
    (who.FASTLOAD_CACHE, who.FFCV_RAW_LONG, 2.5),
    (who.FASTLOAD_CACHE_SMALL, who.FFCV_SMALL, 5.0),
    (who.FASTLOAD_CACHE_SMALL, who.PILLOW_SMALL, 80.0),
)
"""Rate of the first over that of the second, at least."""
_CHEAPER = (
    (who.FASTLOAD_TURBOJPEG, who.PILLOW, 4.0),
    (who.FASTLOAD_INDEXED, who.PILLOW, 1 / 0.15),
    (who.FASTLOAD_TINY, who.PILLOW_TINY, 8.0),
    (who.FASTLOAD_PNG, who.PILLOW_PNG, 2.0),
)
"""Processor time of the second over that of the first, at least."""
_SAME = 0.05
"""The mean pixel of eight batches of random crops differs by some 2% from run to run."""


def _rate(r: Round) -> float:
    return r.rate


def _images_per_cpu_second(r: Round) -> float:
    return r.samples / (r.cpu_seconds or math.nan)


def bars(measurements: Sequence[Measurement]) -> Iterator[Verdict]:
    """Every bar against what was measured."""
    found = {(row.contestant, row.mode): row for row in measurements}

    def metric(row: Row, mode: str, name: str) -> list[float]:
        return found[row.contestant, mode].metrics(name) if (row.contestant, mode) in found else []

    for pairs, quantity, what in (
        (_FASTER, _rate, ""),
        (_CHEAPER, _images_per_cpu_second, ", by processor time"),
    ):
        for ours, theirs, bound in pairs:
            name = f"{ours.contestant} / {theirs.contestant} ({ours.task}){what}"
            yield judge(name, _ratios(ours, theirs, quantity, found), bound)
    core = who.FASTLOAD_TURBOJPEG
    first = metric(core, FIRST, "first_batch_seconds")
    yield judge(
        f"{core.contestant}: first batch after iter()", first, 0.3, at_least=False, unit="s"
    )
    for row in (core, who.FASTLOAD_CACHE):
        gap = metric(row, EPOCHS, "longest_gap_in_ordinary_intervals")
        what = f"{row.contestant}: extra wait at an epoch's end"
        yield judge(what, gap, 1.0, at_least=False, unit="ordinary intervals")
        growth = metric(row, EPOCHS, "memory_growth_share")
        what = f"{row.contestant}: growth of memory after the first of 20 epochs"
        yield judge(what, growth, 0.02, at_least=False, unit="%")
    speed = metric(core, INTERPRETER, "speed_alone_share")
    yield judge(
        f"speed of Python while {core.contestant} works, one thread on two cores",
        speed,
        0.9,
        unit="%",
    )


def _ratios(
    ours: Row, theirs: Row, quantity: Callable[[Round], float], found: Found
) -> list[float]:
    of, to = (found.get((row.contestant, row.task)) for row in (ours, theirs))
    return ratios(of, to, quantity)


def print_results(results: Results, console: Console) -> None:
    """Rates and costs, and how much faster fastload's ways are, with quartiles over the rounds, the
    fastest first; then medians of what is not throughput: the bars have the spread, the JSON all of
    it."""
    rows = [row for row in results.measurements if row.rounds]
    found = {(row.contestant, row.mode): row for row in rows}
    for mode in dict.fromkeys(row.mode for row in rows):
        in_order = sorted((row for row in rows if row.mode == mode), key=lambda row: -row.speed)
        cells = metric_rows(mode, in_order)
        ours = [row for row in who.CONTESTANTS if row.task == mode and row.compared]
        for shown in cells if ours else ():
            row = found[shown[mode], mode]
            shown["CPU s/1000"] = f"{row.cpu_seconds_per_1000 or 0:.3f}"
            for us in ours:
                values = ratios(found.get((us.contestant, mode)), row)
                s = summarise(values) if values else None
                shown[f"{us.contestant} / this"] = (
                    f"{s.median:.2f} ({s.low:.2f} to {s.high:.2f})" if s else ""
                )
        console.print()
        print_fitting(console, cells)
    console.print()
    print_problems(results, console)
    for verdict in results.verdicts:
        console.print(str(verdict), soft_wrap=True)
    for note in results.notes:
        console.print(note, soft_wrap=True)


def other_pixels(measurements: Sequence[Measurement]) -> list[str]:
    """A warning for each contestant whose images are not, on average, as bright as the others'."""
    warnings = []
    for task in dict.fromkeys(m.mode for m in measurements):
        means = {
            m.contestant: s.median
            for m in measurements
            if m.mode == task and (s := m.metric("mean_pixel"))
        }
        middle = quantile(list(means.values()), 0.5) if means else 0.0
        warnings += [
            f"WARNING: {contestant}: its mean pixel is {mean:.1f}, that of the others "
            f"{middle:.1f}: not the same images"
            for contestant, mean in means.items()
            if abs(mean - middle) > _SAME * middle
        ]
    return warnings


# -- the command -----------------------------------------------------------------------------------


def main() -> int:
    given = _arguments()
    rows = [
        row
        for row in CONTESTANTS
        if not given.only or any(part in row.contestant for part in given.only)
    ]
    try:
        comparison = Comparison(given, rows, _say)
    except FastloadError as error:
        _say(str(error))
        return 1
    _say(
        f"{comparison.photographs}, {SMALL:,} small images; {given.threads} threads; {len(rows)} "
        "contestants"
    )
    measured = comparison.rates(_progress)
    measurements = list(measured.measurements)
    if measured.complete and not given.rates_only:
        measurements += comparison.singles()
    results = new_results(
        "peers",
        {
            "batch_size": BATCH,
            "batch_size_of_small_images": SMALL_BATCH,
            "photographs": comparison.photographs.distinct,
            "photographs_an_epoch": comparison.photographs.files,
            "bytes_a_photograph": round(comparison.photographs.mean_bytes),
            "small_images": SMALL,
            "rounds": given.rounds,
            "seconds": given.seconds,
            "threads": given.threads,
        },
        measurements,
        complete=measured.complete,
        notes=other_pixels(measurements),
        verdicts=list(bars(measurements)),
    )
    print_results(results, Console(highlight=False, markup=False))
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        write_text(given.json, to_json(results))
        print(given.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=(__doc__ or "").split("\n\n")[0]
    )
    add = parser.add_argument
    add(
        "--data",
        type=lambda text: Path(text).expanduser().absolute(),
        help="class folders of JPEGs (default: made)",
    )
    add("--threads", type=int, default=2, help="or workers, of each (default: %(default)s)")
    add("--rounds", type=int, default=7, help="default: %(default)s")
    add("--seconds", type=float, default=2.0, help="of a contestant a round (default: %(default)s)")
    add("--only", nargs="*", default=[], help="contestants whose name contains one of these words")
    add(
        "--rates-only",
        action="store_true",
        help="leave out first batch, epoch ends, memory and Python",
    )
    work = ROOT / "build" / "peers"
    add(
        "--work",
        type=lambda text: Path(text).absolute(),
        default=work,
        help="files and environments are kept here",
    )
    add("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def _progress(progress: Progress) -> None:
    turn = f"round {progress.round}" if progress.round else "opening"
    line = f"{progress.share:4.0%}  {turn}: {progress.entry.contestant}"
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif not progress.round:
        _say(line)


def _say(line: str) -> None:
    over = "\r\033[K" if sys.stderr.isatty() else ""
    print(f"{over}{line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
