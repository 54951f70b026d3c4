"""Two runs of one benchmark: what became faster or slower, by more than the rounds scatter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from fastload.errors import ConfigurationError, counted
from fastload.tools.measure import statistics
from fastload.tools.measure.results import Measurement, Results
from fastload.tools.measure.statistics import Summary
from fastload.tools.measure.table import number, per_cent, print_fitting

_STYLE: dict[statistics.Change, str] = {
    "faster": "green",
    "slower": "bold red",
    "within noise": "",
    "cannot tell": "dim",
}


@dataclass(frozen=True)
class Change:
    """One row that both runs measured."""

    row: Measurement  # as the second run has it
    before: Summary  # samples per second
    after: Summary
    remarks: tuple[str, ...]  # what else is different: versions, failures, pixels

    @property
    def verdict(self) -> statistics.Change:
        return statistics.change(self.before, self.after)

    @property
    def ratio(self) -> float:
        """After / before; infinite where before is nothing."""
        return self.after.median / self.before.median if self.before.median else float("inf")


@dataclass(frozen=True)
class Comparison:
    changes: tuple[Change, ...]
    only_before: tuple[str, ...]  # rows that were measured in one of them only
    only_after: tuple[str, ...]
    conditions: tuple[str, ...]


def compare_results(before: Results, after: Results) -> Comparison:
    """Match the rows by contestant, mode and parameters. Raises ConfigurationError: of different
    benchmarks."""
    if before.benchmark != after.benchmark:
        raise ConfigurationError(
            f"One file is of `bench {before.benchmark}`, the other of `bench {after.benchmark}`; "
            "give two of one kind."
        )
    old = {row.key: (row, rate) for row in before.measurements if (rate := row.rate)}
    new = {row.key: (row, rate) for row in after.measurements if (rate := row.rate)}
    return Comparison(
        changes=tuple(
            Change(row, old[key][1], rate, tuple(_remarks(old[key][0], row)))
            for key, (row, rate) in new.items()
            if key in old
        ),
        only_before=tuple(_title(row) for key, (row, _) in old.items() if key not in new),
        only_after=tuple(_title(row) for key, (row, _) in new.items() if key not in old),
        conditions=tuple(conditions(before, after)),
    )


def _remarks(old: Measurement, new: Measurement) -> list[str]:
    remarks = []
    if old.version != new.version:
        remarks.append(f"version {old.version or 'unknown'} -> {new.version or 'unknown'}")
    if len(old.failures) != len(new.failures):
        remarks.append(f"failures {len(old.failures)} -> {len(new.failures)}")
    pixels = [row.metric("pixel_difference_max") for row in (old, new)]
    if pixels[0] is not None and pixels[1] is not None and pixels[0].median != pixels[1].median:
        remarks.append(f"largest pixel difference {pixels[0].median:.0f} -> {pixels[1].median:.0f}")
    return remarks


def conditions(before: Results, after: Results) -> list[str]:
    """What differs about the runs themselves, so that a change may not come from the software."""
    changes = []
    if str(before.machine) != str(after.machine):
        changes.append(f"Other machine: {before.machine} -> {after.machine}")
    libraries = (before.machine.libraries, after.machine.libraries)
    for name in sorted({*libraries[0], *libraries[1]}):
        versions = [side.get(name, "absent") for side in libraries]
        if versions[0] != versions[1]:
            changes.append(f"{name}: {versions[0]} -> {versions[1]}")
    if before.fastload != after.fastload:
        changes.append(f"fastload: {before.fastload} -> {after.fastload}")
    for name in sorted({*before.settings, *after.settings}):
        values = (before.settings.get(name), after.settings.get(name))
        if values[0] != values[1]:
            changes.append(f"Other {name}: {values[0]} -> {values[1]}")
    for which, results in (("first", before), ("second", after)):
        if not results.complete:
            changes.append(f"The {which} run was stopped before its end.")
    return changes


def _title(row: Measurement) -> str:
    """Contestant, mode and parameters; without those that are always the same for it."""
    shown = (f"{name} {value}" for name, value in row.parameters.items() if name != "resampling")
    return ", ".join([row.contestant, row.mode, *shown])


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The changes, the largest gain first, and a verdict in words."""
    for line in comparison.conditions:
        console.print(Text(line, "yellow"), soft_wrap=True)
    if comparison.conditions:
        console.print()
    if comparison.changes:
        changes = sorted(comparison.changes, key=lambda change: change.ratio, reverse=True)
        print_fitting(
            console, [_cells(change) for change in changes], droppable=("before", "after")
        )
        console.print()
    lines = [f"Only in the first: {name}" for name in comparison.only_before]
    lines += [f"Only in the second: {name}" for name in comparison.only_after]
    for line in (*lines, *_verdict(comparison)):
        console.print(line, soft_wrap=True)


def _verdict(comparison: Comparison) -> list[str]:
    if not comparison.changes:
        return ["The two runs have no row in common: nothing to compare."]
    count = Counter(change.verdict for change in comparison.changes)
    few = count["cannot tell"]
    words = [
        f"Of {counted(len(comparison.changes), 'row')} that both have: {count['faster']} faster, "
        f"{count['slower']} slower, {count['within noise']} within noise.",
        f"{counted(few, 'row')} with fewer than three rounds on a side, too few to tell."
        if few
        else "",
        "Rates are samples per second. A change counts when the quartiles of the rounds do not "
        "overlap and the medians are more than two standard deviations apart. Two runs at "
        "different times can differ by more than the rounds of each: repeat what matters.",
    ]
    return list(filter(None, words))


def _cells(change: Change) -> dict[str, str | Text]:
    """Heading: cell."""
    rates = [
        f"{number(rate.median)} ± {per_cent((rate.high - rate.low) / 2, rate.median)}"
        for rate in (change.before, change.after)
    ]
    return {
        "": _title(change.row),
        "before": rates[0],
        "after": rates[1],
        "change": f"{100 * (change.ratio - 1):+.1f}%",
        "verdict": Text("; ".join((change.verdict, *change.remarks)), _STYLE[change.verdict]),
    }
