"""A sweep for people: a row for each cell and the advice at a terminal, the page for a browser, the
picture; and two sweeps side by side, the own machine beside a cloud's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fastload.errors import ConfigurationError, counted
from fastload.terminal import duration
from fastload.tools.bench.compare import conditions
from fastload.tools.measure.page import table, write_page
from fastload.tools.measure.results import Measurement, Results, read_json
from fastload.tools.measure.statistics import Summary, summarise
from fastload.tools.measure.table import (
    each,
    gigabytes,
    number,
    per_cent,
    percentage,
    print_fitting,
    print_report,
)
from fastload.tools.sweep.grid import SHARES, Cell, Row, Share

if TYPE_CHECKING:
    from fastload.tools.measure.charts import Chart

# Columns that a narrow terminal does without, in this order; --csv has them all.
_DROPPABLE = (
    "update",
    "launch",
    "copy",
    "memory",
    "whole run",
    "whole job",
    "foreign",
    "CPU",
    "epoch",
)
# Columns of what was tried, beside the mode and the batch.
_SETTINGS = (
    "device",
    "backend",
    "workers",
    "prefetch",
    "amp",
    "cudnn benchmark",
    "compile",
    "accumulated",
)
_LEGEND = (
    "spread: half the range between the quartiles of the rounds. CPU: seconds of all processes for "
    "1,000 samples. foreign: cores that everything else on the machine took. whole job: training "
    "in all its epochs, extrapolated. batch: samples of a batch on each process; in all: of a "
    "step. memory: the peak of every GPU in turn, or, on the CPU, of every process. GPU: the "
    "utilisation of each that the driver tells. busy: compute and update. The other shares are of "
    "the time in which the device had nothing to do: wait, no batch was there; copy, it was on its "
    "way; launch, the host had queued no work; exchange, gradients were under way."
)


def print_sweep(results: Results, console: Console) -> None:
    """Machine, rows, advice, what went wrong."""
    rows = _rows(results)
    best = max(row.speed for row in rows)
    lines: list[dict[str, str | Text]] = [
        {
            name: Text(cell, "bold" if row.rate and row.speed == best else "")
            for name, cell in line.items()
        }
        for line, row in zip(_lines(results), rows, strict=True)
    ]
    about = _what_was_done(results)
    print_report(
        results, console, "sweep", about, {"": lines}, _LEGEND, droppable=_DROPPABLE, title=_title
    )


def _rows(results: Results) -> list[Row]:
    return [Row.of(row) for row in results.measurements]


def _what_was_done(results: Results) -> str:
    settings: Mapping[str, Any] = results.settings
    samples = settings.get("samples")
    epoch = f", {counted(samples, 'sample')} an epoch" if isinstance(samples, int) else ""
    what = (
        f"{settings['preset']}: {settings['model']} on {settings['data']}{epoch}, on "
        f"{settings['device']}; each row "
    )
    turns = settings.get("rounds") or 1
    what += f"{counted(turns, 'round')} in turn with all others, of " if turns > 1 else ""
    if settings.get("epochs"):
        return (
            f"{what}a whole run of {counted(settings['epochs'], 'epoch')} in processes of its own. "
            "epoch: training in one of them, measured, without its first "
            f"{counted(settings['warmup'], 'step')}."
        )
    return (
        f"{what}{counted(settings['steps'], 'step')} in processes of its own, after "
        f"{settings['warmup']} to warm up. epoch: extrapolated from the rate, training only."
    )


def _lines(results: Results) -> list[dict[str, str]]:
    """Heading: cell, for each row."""
    lines = [_line(row, str(results.settings["unit"])) for row in _rows(results)]
    headings = max(lines, key=len)  # only what was validated has a score
    return [{name: line.get(name, "") for name in headings} for line in lines]


def _line(row: Row, unit: str) -> dict[str, str]:
    cell, possible = row.cell, row.status != "unavailable"
    score = {row.score[0]: f"{row.score[1]:.4f}"} if row.validation else {}
    return {
        "parallel": cell.parallel,
        "device": cell.device or "",
        "backend": cell.backend or "",
        "workers": "" if cell.num_workers is None else str(cell.num_workers),
        "prefetch": "" if cell.prefetch_factor is None else str(cell.prefetch_factor),
        "amp": cell.amp or "",
        "cudnn benchmark": _yes(cell.cudnn_benchmark),
        "compile": _yes(cell.compile),
        "accumulated": str(cell.accumulate) if cell.accumulate > 1 else "",
        "batch": str(cell.batch) if possible else "",
        "in all": str(cell.global_batch) if possible else "",
        f"{unit}/s": "" if row.rate is None else number(row.rate),
        "spread": "" if row.spread is None or row.spread.count < 2 else _half_range(row.spread),
        "CPU": ""
        if row.cores is None or not row.rate
        else f"{number(1000 * row.cores / row.rate)} s",
        "foreign": "" if row.foreign is None else f"{row.foreign:.1f}",
        "epoch": "" if row.epoch_seconds is None else duration(row.epoch_seconds),
        "whole run": "" if row.run_seconds is None else duration(row.run_seconds),
        "whole job": "" if row.job_seconds is None else duration(row.job_seconds),
        **({f"train {row.score[0]}": _train_score(row)} if row.validation else {}),
        **score,
        **({"best": "" if row.best is None else f"{row.best:.4f}"} if row.validation else {}),
        "memory": each(row.memory, gigabytes),
        "GPU": each(row.utilisation, percentage),
        "busy": percentage(row.busy) if row.shares else "",
        **{
            str(share): percentage(row.shares[share]) if share in row.shares else ""
            for share in SHARES
        },
        "": "" if row.status == "measured" else row.status,
    }


def _yes(wanted: bool | None) -> str:
    return "" if wanted is None else "yes" if wanted else "no"


def _half_range(spread: Summary) -> str:
    """Between the quartiles, relative to the median: "± 3%"."""
    return f"± {per_cent((spread.high - spread.low) / 2, spread.median) or '0%'}"


def _train_score(row: Row) -> str:
    value = row.train.get(row.score[0])
    return "" if value is None else f"{value:.4f}"


def _title(row: Measurement) -> str:
    return (
        row.contestant
        if row.status == "unavailable"
        else f"{row.contestant}, {row.parameters['batch']}"
    )


# -- Page and picture ------------------------------------------------------------------------------

_BATCH = "samples of a batch on each process"
# Of the shares, by number; first what is work.
_COLOURS: dict[Share, int] = {
    "compute": 2,
    "update": 5,
    "exchange": 0,
    "wait": 1,
    "copy": 3,
    "launch": 8,
}


def write_html(results: Results, path: str | os.PathLike[str]) -> None:
    """Write the page, all of it or nothing. Raises OSError."""
    charts = "".join(chart.html for chart in _charts(results))
    lines, same = _apart(_lines(results))
    figures = table(lines, text_columns=("parallel", "device", "backend"))
    sections = {
        "What was measured": f"<p>{escape(_what_was_done(results))}</p>\n{charts}",
        "All figures": f'{same}{figures}<p class="muted">{escape(_LEGEND)}</p>\n',
    }
    title = f"Batch sizes and parallel modes: {results.settings['preset']}"
    write_page(results, path, title=title, sections=sections, row_title=_title)


def _apart(lines: Sequence[dict[str, str]]) -> tuple[list[dict[str, str]], str]:
    """The rows without the settings that all have alike, and a paragraph of those."""
    same = {
        name: lines[0][name]
        for name in _SETTINGS
        if len(lines) > 1 and lines[0].get(name) and len({line[name] for line in lines}) == 1
    }
    words = ", ".join(f"{name} {text}" for name, text in same.items())
    said = f"<p>In all rows: {escape(words)}.</p>\n" if same else ""
    return [{k: text for k, text in line.items() if k not in same} for line in lines], said


def write_png(results: Results, path: str | os.PathLike[str]) -> None:
    """Both charts as one picture; of a sweep that measured something. Raises OSError."""
    from fastload.tools.measure import charts

    charts.write_png(_charts(results), path)


def _charts(results: Results) -> list[Chart]:
    """Two; none of a sweep that measured nothing."""
    from fastload.tools.measure.charts import SERIES, Line, Stack, colours, curves, stacks

    rows = [row for row in _rows(results) if row.rate]
    if not rows:
        return []
    colour = colours([row.cell.name for row in _rows(results)])
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in rows:
        spread = row.spread
        if spread is not None:
            points.setdefault(row.cell.name, []).append(
                (row.cell.batch, spread.median, spread.low, spread.high)
            )
    lines = [Line(name, curve, colour[name]) for name, curve in points.items()]
    bars = [
        Stack(f"{row.cell.name}, {row.cell.batch}", {str(k): v for k, v in row.shares.items()})
        for row in rows
    ]
    parts = {str(name): SERIES[number] for name, number in _COLOURS.items()}
    return [
        curves("Throughput", _BATCH, f"{results.settings['unit']}/s", lines),
        stacks("Where the time goes", "% of the time", bars, parts),
    ]


# -- Two sweeps ------------------------------------------------------------------------------------


def read_sweep(path: Path) -> Results:
    """A file that `fastload sweep --json` wrote. Raises ConfigurationError if it is none,
    OSError."""
    results = read_json(path)
    if results.benchmark != "sweep":
        raise ConfigurationError(
            f"{path}: is of `bench {results.benchmark}`; give two files of `fastload sweep --json`."
        )
    return results


def print_comparison(first: Results, second: Results, console: Console) -> None:
    """What differs between the two, a row for each run that both have, and what it comes to."""
    for line in conditions(first, second):
        console.print(Text(line, "yellow"), soft_wrap=True)
    by_cell = [{row.cell: row for row in _rows(sweep) if row.rate} for sweep in (first, second)]
    pairs = [(row, by_cell[1][cell]) for cell, row in by_cell[0].items() if cell in by_cell[1]]
    if pairs:
        console.print()
        print_fitting(
            console, [_pair(a, b) for a, b in pairs], droppable=("busy", "memory", "epoch")
        )
        console.print()
    for which, rows in zip(("first", "second"), by_cell, strict=True):
        only = [_name(cell) for cell in rows if cell not in {a.cell for a, _ in pairs}]
        if only:
            console.print(f"Only in the {which}: {'; '.join(only)}", soft_wrap=True)
    console.print(_verdict(pairs, by_cell), soft_wrap=True)


def _name(cell: Cell) -> str:
    return f"{cell.name}, batch {cell.batch}"


def _pair(a: Row, b: Row) -> dict[str, str | Text]:
    """Heading: cell, the second beside the first."""
    shown = {
        "samples/s": [number(row.speed) for row in (a, b)],
        "times": [f"{b.speed / a.speed:.2f}"],
        "epoch": [duration(row.epoch_seconds) if row.epoch_seconds else "" for row in (a, b)],
        "score": [f"{row.score[1]:.4f}" if row.validation else "" for row in (a, b)],
        "memory": [each(row.memory, gigabytes) for row in (a, b)],
        "busy": [percentage(row.busy) for row in (a, b)],
    }
    return {
        "": _name(a.cell),
        **{name: " | ".join(cells) if any(cells) else "" for name, cells in shown.items()},
    }


def _verdict(pairs: Sequence[tuple[Row, Row]], by_cell: Sequence[dict[Cell, Row]]) -> str:
    if not all(by_cell):
        return "One of the two has measured nothing: there is nothing to compare."
    best = [max(rows.values(), key=lambda row: row.speed) for rows in by_cell]
    words = [f"{_name(row.cell)} ({number(row.speed)} samples/s)" for row in best]
    times = best[1].speed / best[0].speed
    fastest = f"Fastest in the first: {words[0]}; in the second: {words[1]}, {times:.2f} times it."
    if not pairs:
        return f"The two have no run in common. {fastest}"
    ratios = summarise([b.speed / a.speed for a, b in pairs])
    return (
        f"Over the {counted(len(pairs), 'run')} that both have, the second is {ratios.median:.2f} "
        f"times as fast as the first (quartiles {ratios.low:.2f} to {ratios.high:.2f}). {fastest} "
        "What lies within the spread of the rounds is no difference."
    )
