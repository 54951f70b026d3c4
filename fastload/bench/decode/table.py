"""The results of the decode benchmark for people: one table for each mode and source of bytes."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fastload.bench.decode.modes import MODES
from fastload.bench.results import Measurement, Results
from fastload.bench.words import heading, per_cent, print_fitting, problems

__all__ = ["cells", "print_decode"]

_SOURCES = {"memory": "from memory", "page cache": "files in the page cache", "cold": "files on disk"}


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
    tables: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        tables.setdefault((row.mode, str(row.parameters["from"])), []).append(row)
    for (mode, source), members in tables.items():
        _table(console, mode, source, members)
    marked = sorted({row.latency.of for row in rows if row.latency is not None and row.latency.of != "sample"})
    console.print()
    versions = {row.contestant: row.version for row in rows if row.version}
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()) + ".", soft_wrap=True)
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
    console.print(Text(f"{title[0].upper()}{title[1:]}, {_SOURCES.get(source, source)}", "bold"))
    best = max((row.rate.median for row in rows if row.rate is not None), default=0.0)
    # By decoder, the fastest first; within it by threads.
    speed: dict[str, float] = {}
    for row in rows:
        speed[row.contestant] = max(speed.get(row.contestant, 0.0), row.rate.median if row.rate else 0.0)
    ordered = sorted(rows, key=lambda row: (-speed[row.contestant], row.contestant, row.parameters["threads"]))
    print_fitting(console, [cells(row, best) for row in ordered], droppable=_DROPPABLE)


def cells(row: Measurement, best: float) -> dict[str, str | Text]:
    """Heading: cell."""
    rate, pixels, cpu = row.rate, row.metric("pixels_per_second"), row.cpu_seconds_per_1000
    assert rate is not None
    largest, mean, psnr = (row.metric(name) for name in ("pixel_difference_max", "pixel_difference_mean", "psnr_db"))
    star = "*" if row.latency is not None and row.latency.of != "sample" else ""
    times = ("", "") if row.latency is None else (row.latency.p50, row.latency.p99)
    p50, p99 = (f"{1000 * t:.1f}{star}" if isinstance(t, float) else "" for t in times)
    return {
        "decoder": row.contestant,
        "threads": str(row.parameters["threads"]),
        "img/s": Text(f"{rate.median:,.0f}", "bold" if rate.median == best else ""),
        "±": per_cent((rate.high - rate.low) / 2, rate.median),
        "MP/s": "" if pixels is None else f"{pixels.median / 1e6:,.0f}",
        "CPU s/1,000": "" if cpu is None else f"{cpu:.2f}",
        "p50": p50,
        "p99": p99,
        "memory": "" if row.memory_growth is None else f"{row.memory_growth / 1e6:.0f} MB",
        "failed": _failed(row),
        "max": "" if largest is None else Text(f"{largest.median:.0f}", "yellow" if largest.median > 2 else ""),
        "mean": "" if mean is None else f"{mean.median:.3f}",
        "PSNR": "" if largest is None else "equal" if psnr is None else f"{psnr.median:.1f} dB",
    }


def _failed(row: Measurement) -> Text:
    silent = row.metric("damaged_accepted")
    if silent is not None and silent.median:
        return Text(f"{len(row.failures)} ({silent.median:.0f} unnoticed)", "bold red")
    return Text(str(len(row.failures)), "yellow" if row.failures else "")


_DROPPABLE = ("mean", "MP/s", "memory", "p50", "max", "p99")
"""Columns that a narrow terminal does without, in this order; --csv has them all."""
