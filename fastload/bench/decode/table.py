"""The results of the decode benchmark for people: one table for each mode and source of bytes."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastload.bench.decode.modes import MODES
from fastload.bench.results import Measurement, Results
from fastload.bench.words import heading, per_cent, problems

__all__ = ["print_decode"]


def print_decode(results: Results, console: Console) -> None:
    """Everything that was measured, and what was not and why."""
    heading(results, console)
    settings = results.settings
    console.print(
        f"{settings['images']} JPEGs, {settings['megapixels']:.1f} megapixels, of {settings['folder']}; "
        f"{settings['rounds']} interleaved rounds. ± is half the range between the quartiles.",
        soft_wrap=True,
    )
    rows = [row for row in results.measurements if row.rounds]
    for (mode, source), members in groupby(rows, lambda row: (row.mode, str(row.parameters["from"]))):
        _table(console, mode, source, list(members))
    marked = sorted({row.latency.of for row in rows if row.latency is not None and row.latency.of != "sample"})
    console.print()
    if marked:
        console.print(f"* of a {', '.join(marked)}.", style="dim")
    console.print(
        "p50, p99: milliseconds an image takes. memory: what a decoder adds to the process. max, mean, PSNR: distance "
        "of its pixels (0 to 255) from Pillow's, resampled by torchvision where there is a resampling.",
        style="dim",
        soft_wrap=True,
    )
    problems(results, console)


def _table(console: Console, mode: str, source: str, rows: list[Measurement]) -> None:
    console.print()
    title = MODES[mode].title if mode in MODES else mode
    console.print(Text(f"{title[0].upper()}{title[1:]}, from {source}", "bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("decoder", no_wrap=True)
    for column in ("threads", "img/s", "±", "MP/s", "CPU s/1,000", "p50", "p99", "memory", "failed"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("max", "mean", "PSNR"):
        table.add_column(column, justify="right", no_wrap=True)
    best = max((row.rate.median for row in rows if row.rate is not None), default=0.0)
    # By decoder, the fastest first; within it by threads.
    speed: dict[str, float] = {}
    for row in rows:
        speed[row.contestant] = max(speed.get(row.contestant, 0.0), row.rate.median if row.rate else 0.0)
    for row in sorted(rows, key=lambda row: (-speed[row.contestant], row.contestant, row.parameters["threads"])):
        table.add_row(*_cells(row, best))
    console.print(table)


def _cells(row: Measurement, best: float) -> list[str | Text]:
    rate, pixels = row.rate, row.metric("pixels_per_second")
    assert rate is not None
    cpu, failed = row.cpu_seconds_per_1000, len(row.failures)
    batch = row.latency is not None and row.latency.of != "sample"
    times = ["", ""] if row.latency is None else [f"{1000 * t:.1f}" for t in (row.latency.p50, row.latency.p99)]
    return [
        row.contestant,
        str(row.parameters["threads"]),
        Text(f"{rate.median:,.0f}", "bold" if rate.median == best else ""),
        per_cent((rate.high - rate.low) / 2, rate.median),
        "" if pixels is None else f"{pixels.median / 1e6:,.0f}",
        "" if cpu is None else f"{cpu:.2f}",
        *(f"{t}*" if batch and t else t for t in times),
        "" if row.memory_growth is None else f"{row.memory_growth / 1e6:.0f} MB",
        Text(str(failed), "bold red" if failed else ""),
        *_differences(row),
    ]


def _differences(row: Measurement) -> list[str | Text]:
    largest, mean = row.metric("pixel_difference_max"), row.metric("pixel_difference_mean")
    if largest is None or mean is None:
        return ["", "", ""]
    psnr = row.metric("psnr_db")
    return [
        Text(f"{largest.median:.0f}", "yellow" if largest.median > 2 else ""),
        f"{mean.median:.3f}",
        "equal" if psnr is None else f"{psnr.median:.1f} dB",
    ]
