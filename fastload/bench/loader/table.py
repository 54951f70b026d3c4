"""The results of the loader benchmark for people: the rows, and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fastload.bench.loader.rows import ALONE, DEFAULT
from fastload.bench.loader.verdict import gigabytes
from fastload.bench.results import Measurement, Results
from fastload.bench.words import heading, per_cent, print_fitting, problems

__all__ = ["cells", "describe_run", "print_loader"]


def print_loader(results: Results, console: Console) -> None:
    """Everything that was measured, and what was not and why."""
    heading(results, console)
    console.print(describe_run(results), soft_wrap=True)
    rows = [row for row in results.measurements if row.rounds]
    console.print()
    if rows:
        best = max((row.rate.median for row in rows if row.rate and row.contestant != ALONE), default=0.0)
        lines = [cells(row, best) for row in rows]
        used = [name for name in lines[0] if any(str(line[name]) for line in lines)]
        print_fitting(
            console,
            [{name: line[name] for name in used} for line in lines],
            droppable=[name for name in _DROPPABLE if name in used],
        )
        console.print()
        console.print(
            "waited: share of its time in which the trainer had no batch. epoch gap: that wait at the first batch of "
            "an epoch. CPU: share of the usable cores, trainer included. memory: of all processes, shared pages once.",
            style="dim",
            soft_wrap=True,
        )
    problems(results, console)


def describe_run(results: Results) -> str:
    """What was done, in a sentence or two."""
    settings = results.settings
    if settings["consume"] is not None:
        trainer = f"a trainer simulated at {settings['consume']:,.0f} img/s"
    else:
        trainer = f"the network '{settings['network']}' in training"
    return (
        f"{settings['images']:,} images of {settings['folder']}, RandomResizedCrop(224) and flip, normalised float32, "
        f"batches of {settings['batch_size']} on {settings['device']}, into {trainer}; {settings['rounds']} "
        "interleaved rounds. ± is half the range between the quartiles."
    )


def cells(row: Measurement, best: float = 0.0) -> dict[str, str | Text]:
    """Heading: cell."""
    rate = row.rate
    assert rate is not None
    found: dict[str, str | Text] = {
        "loader": row.contestant,
        "workers": _setting(row, "workers"),
        "prefetch": _setting(row, "prefetch"),
        "img/s": Text(f"{rate.median:,.0f}", "bold" if rate.median == best and row.contestant != ALONE else ""),
        "±": per_cent((rate.high - rate.low) / 2, rate.median),
        "waited": _share(row, "wait_share"),
        "first batch": _seconds(row, "first_batch_seconds"),
        "epoch gap": _seconds(row, "epoch_gap_seconds"),
        "GPU busy": _share(row, "gpu_busy_share"),
        "at 0%": _idle(row),
        "CPU": _share(row, "host_cpu_share"),
        "memory": "" if row.peak_memory is None else gigabytes(row.peak_memory),
        "GPU memory": _bytes(row, "peak_gpu_memory_bytes"),
        "replaced": _count(row, "substituted"),
    }
    if row.contestant == ALONE:
        found |= {"first batch": "", "epoch gap": "", "replaced": ""}
    return found


def _setting(row: Measurement, name: str) -> str:
    value = row.parameters.get(name, "")
    return "" if value == DEFAULT else str(value)


def _share(row: Measurement, name: str) -> str:
    found = row.metric(name)
    return "" if found is None else f"{found.median:.0%}"


def _seconds(row: Measurement, name: str) -> str:
    found = row.metric(name)
    if found is None:
        return ""
    return f"{found.median:.2f} s" if found.median >= 1 else f"{1000 * found.median:.0f} ms"


def _bytes(row: Measurement, name: str) -> str:
    found = row.metric(name)
    return "" if found is None else gigabytes(found.median)


def _count(row: Measurement, name: str) -> Text:
    found = row.metric(name)
    return Text("") if found is None or not found.median else Text(f"{found.median:.0f}", "yellow")


def _idle(row: Measurement) -> str:
    """ "3x, 0.4 s": how often the GPU fell to 0%, and how long in all."""
    windows, seconds = row.metric("gpu_idle_windows"), row.metric("gpu_idle_seconds")
    return "" if windows is None or seconds is None else f"{windows.median:.0f}x, {seconds.median:.1f} s"


_DROPPABLE = ("GPU memory", "at 0%", "replaced", "memory", "±", "CPU", "epoch gap")
"""Columns that a narrow terminal does without, in this order; --csv has them all."""
