"""What a sweep's numbers mean, in words: what to choose, why a bigger batch is no faster, why N
processes are not N times as fast. Every number in them is one that was measured, or a ratio of
such."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fastload.errors import counted
from fastload.terminal import duration
from fastload.tools.measure.statistics import difference_is_real
from fastload.tools.measure.table import each, gigabytes, number, percentage
from fastload.tools.sweep.grid import Row, Share

_SAME = 0.05  # shares of the time and scores' costs below this are not named
_FOREIGN = 0.25  # of the cores, taken by others: from here on the reader is warned
_BUSY = 0.85  # share of the time from which on computing is the limit
_MAIN = 0.2  # share of the time from which on a single cause of idleness is the limit
_NEAR = 0.9  # of the ideal speed-up, from which on nothing is worth explaining
_NOTABLE = 0.1  # share of the time lost from which on a cause is named

ROUNDS = 3
"""Fewer rounds cannot distinguish a difference from noise (`statistics.difference_is_real`)."""

_CAUSES: dict[Share, str] = {
    "wait": "data wait",
    "copy": "copying batches to the device",
    "launch": "the host, which queues work too slowly",
    "exchange": "gradient exchange that no computing hides",
    "compute": "computing",
    "update": "the optimizer's update",
}


@dataclass(frozen=True)
class SweepContext:
    """What the rows do not say."""

    device: Literal["cpu", "cuda"]
    cores: int  # that the machine gives to the sweep
    unit: str = "img"  # what a sample is called


def advice(rows: Sequence[Row], situation: SweepContext) -> tuple[str, ...]:
    """Some sentences, the recommendation first; fewer, the less was measured."""
    measured = [row for row in rows if row.status == "measured" and row.rate]
    if not measured:
        return ("Nothing was measured, so there is nothing to recommend: see why at each row.",)
    refusals = {
        row.cell: reason for row in measured if (reason := refused(row, measured, situation))
    }
    trusted = [row for row in measured if row.cell not in refusals]
    said = [
        _recommendation(trusted, situation),
        *_disturbed(measured, situation),
        *refusals.values(),
    ]
    names = list(dict.fromkeys(row.cell.name for row in rows))
    for name in names:
        of_name = [row for row in rows if row.cell.name == name and row.cell not in refusals]
        said += _bigger_batch(of_name, situation) if of_name else ()
    for name in names:
        said += _more_processes(
            trusted, [row for row in trusted if row.cell.name == name], situation
        )
    said += _dp_against_ddp(trusted)
    said += _first_gpu(measured)
    said += _accumulation(trusted, situation)
    return tuple(said)


def refused(row: Row, rows: Sequence[Row], situation: SweepContext) -> str | None:
    """Why a speed-up over one process cannot be true; None if it can be.

    N processes on N GPUs can be N times as fast. On a processor it is the cores that allow it: N
    times at most, no more than there are cores, and no more than the cores over those that one
    process took already.
    """
    cell = row.cell
    if cell.processes == 1:
        return None
    ones = [
        one
        for one in rows
        if one.cell.mode == "none" and one.cell.like(cell, "mode", "processes", "batch")
    ]
    same = [
        one
        for one in ones
        if cell.batch == one.cell.batch or cell.global_batch == one.cell.global_batch
    ]
    for one in same:
        gain = row.speed / one.speed
        allowed = float(cell.processes)
        why = counted(cell.processes, "process")
        if (cell.device or situation.device).startswith("cpu"):
            allowed, why = min(allowed, situation.cores), f"{counted(situation.cores, 'core')}"
            if one.cores and situation.cores / one.cores < allowed:
                allowed = max(1.0, situation.cores / one.cores)
                why = (
                    f"{counted(situation.cores, 'core')}, of which one process took {one.cores:.1f}"
                )
        if gain > allowed / _NEAR:
            return (
                f"Refused: {cell.name} with batch {cell.batch} came to {gain:.2f} times one "
                f"process with batch {one.cell.batch}, more than the {allowed:.3g} that {why} "
                "allow: something has disturbed one of the two, so measure again on a quiet "
                "machine."
            )
    return None


def _disturbed(rows: Sequence[Row], situation: SweepContext) -> Iterator[str]:
    """That others worked on the machine."""
    most = max((row.foreign for row in rows if row.foreign is not None), default=0.0)
    if most >= _FOREIGN * situation.cores:
        yield (
            f"Other work took up to {most:.1f} of the {counted(situation.cores, 'core')} "
            "meanwhile: rates are too low, and by how much differs from row to row. Measure again "
            "on a quiet machine."
        )


def _as_fast(row: Row, best: Row) -> bool:
    """Whether the rounds do not show it to be slower."""
    ours, theirs = row.spread, best.spread
    return (
        ours is not None
        and theirs is not None
        and not (difference_is_real(ours, theirs) and row.speed < best.speed)
    )


def _enough_rounds(*rows: Row) -> bool:
    """Whether they have rounds enough to say that one is faster than another."""
    return all(len(row.rates) >= ROUNDS for row in rows)


def _recommendation(rows: Sequence[Row], situation: SweepContext) -> str:
    if not rows:
        return "No recommendation: what was measured cannot be true."
    if len(rows) == 1:
        return _one_row(rows[0], situation)
    learning = [row for row in rows if not _learns_less(row, rows)]
    best = max(learning, key=lambda row: row.speed)
    if not _enough_rounds(*rows):
        return (
            "No recommendation: how much rates scatter does not show in "
            f"{counted(min(len(row.rates) for row in rows), 'round')} of a row; give --rounds "
            f"{ROUNDS} or more. The highest rate was {number(best.speed)} {situation.unit}/s, "
            f"{best.cell.name} with batch {best.cell.batch}."
        )
    good = [row for row in learning if _as_fast(row, best)]
    if len(good) == len(rows):
        return (
            f"No recommendation: the rates of all {counted(len(rows), 'row')} lie within the "
            f"spread of their rounds ({number(min(row.speed for row in good))} to "
            f"{number(best.speed)} {situation.unit}/s). Choose by memory or accuracy, or measure "
            f"more rounds.{_loss_of_learning(best)}"
        )
    chosen = min(good, key=lambda row: (row.cell.processes, row.cell.global_batch))
    text = f"Recommended: {_in_figures(chosen, situation)}"
    if best is not chosen:
        text += (
            f" The fastest, {best.cell.name} with batch {best.cell.batch}, gives "
            f"{number(best.speed)}: within the "
        )
        text += "spread of the rounds."
    fastest = max(rows, key=lambda row: row.speed)
    if fastest.speed > best.speed:
        name, score = fastest.score
        text += (
            f" {_capital(fastest.cell.name)} with batch {fastest.cell.batch} is faster, "
            f"{number(fastest.speed)}, but learns less: its {name} is {score:.4g} instead of "
            f"{chosen.score[1]:.4g}."
        )
    return text + _loss_of_learning(chosen)


def _one_row(row: Row, situation: SweepContext) -> str:
    """The only row that counts: there is nothing to choose from."""
    return (
        "No recommendation: only one row has a usable rate, and there is nothing to compare it "
        f"with; give more batch sizes or modes. {_capital(_in_figures(row, situation))}"
        f"{_loss_of_learning(row)}"
    )


def _in_figures(row: Row, situation: SweepContext) -> str:
    """Its cell, rate, seconds of an epoch, memory and how busy the device was."""
    cell = row.cell
    parts = [f"{number(row.speed)} {situation.unit}/s"]
    if row.epoch_seconds is not None:
        parts.append(f"{duration(row.epoch_seconds)} an epoch")
    if row.memory:
        parts.append(each(row.memory, gigabytes))
    batch = f"batch {cell.batch}" + (
        f" a process ({cell.global_batch} in all)" if cell.processes > 1 else ""
    )
    return f"{cell.name}, {batch}: {', '.join(parts)}, the device busy {row.busy:.0%} of the time."


def _loss_of_learning(row: Row) -> str:
    """What the device waited for most, if it waited."""
    if row.busy >= _BUSY:
        return ""
    loss = _largest_loss(row)
    return f" Most of what is lost is {_CAUSES[loss]}, {row.shares.get(loss, 0.0):.0%} of the time."


def _learns_less(row: Row, rows: Sequence[Row]) -> bool:
    """Whether its share of right answers is lower than the best row's by more than such shares
    scatter."""
    scores = [other.score[1] for other in rows if other.validation and other.score[0] == "top1"]
    if not row.validation or row.score[0] != "top1":
        return False
    return max(scores) - row.score[1] > _scatter(max(scores), row.score[1], row.val_samples)


def _scatter(before: float, after: float, samples: float) -> float:
    """Of the difference of two shares of so many samples, each with its own scatter."""
    return 2 * math.sqrt((before * (1 - before) + after * (1 - after)) / samples)


def _bigger_batch(rows: Sequence[Row], situation: SweepContext) -> Iterator[str]:
    """Of one mode: whether a bigger batch pays, and if not, why."""
    cell = rows[0].cell
    name = f"{'In' if cell.mode == 'none' else 'With'} {cell.name}"
    too_large = [row.cell.batch for row in rows if row.status == "out of memory"]
    fitting = sorted(
        (row for row in rows if row.status == "measured" and row.rate),
        key=lambda row: row.cell.batch,
    )
    if len(fitting) > 1:
        *_, before, largest = fitting
        best = max(fitting, key=lambda row: row.speed)
        enough = next(row for row in fitting if _as_fast(row, best))
        if not _enough_rounds(*fitting):
            pass  # It is not known which one is faster.
        elif enough is not largest:
            yield f"{name} {_no_faster(enough, largest, situation)}"
        else:
            gain, less = largest.speed / before.speed, _less_of(before, largest)
            more = "" if too_large else "; try a larger one"
            sizes = f"from {before.cell.batch} to {largest.cell.batch}"
            yield f"{name} a bigger batch is still faster, {gain:.2f} times {sizes}{less}{more}."
    if too_large:
        yield f"{name} a batch of {min(too_large)} does not fit in memory."


def _less_of(before: Row, after: Row) -> str:
    """What else takes a smaller part of the time; nothing if nothing does."""
    shrunk = [
        f"{_CAUSES[share]} ({before.shares[share]:.0%} of the time, then "
        f"{after.shares.get(share, 0.0):.0%})"
        for share in _CAUSES
        if before.shares.get(share, 0.0) - after.shares.get(share, 0.0) >= _NOTABLE / 2
    ]
    return f", as it takes less of {', '.join(shrunk)}" if shrunk else ""


def _no_faster(enough: Row, largest: Row, situation: SweepContext) -> str:
    """The largest batch against the smallest that is as fast as any."""
    slower = not _as_fast(largest, enough)
    a, b = enough.cell.batch, largest.cell.batch
    what = f"{'slower' if slower else 'no faster'} than {a}"
    rates = f"{number(enough.speed)} and {number(largest.speed)} {situation.unit}/s"
    text = f"a batch of {b} is {what} ({rates})"
    if largest.busy >= _BUSY:
        text += (
            f", because computing is the limit: the device is busy {enough.busy:.0%} of the time "
            f"at {a} and {largest.busy:.0%} at {b}, where a step of {b / a:.3g} times the samples "
            f"takes {largest.step_seconds / enough.step_seconds:.2g} times as long."
        )
        if slower:
            each = [1e3 * row.busy / row.speed * row.cell.processes for row in (enough, largest)]
            text += (
                f" A sample takes {each[1]:.3g} ms of it at {b}, {each[0]:.3g} ms at {a}: "
                "computing itself gets slower."
            )
        return text
    limit = _largest_loss(largest)
    share = largest.shares.get(limit, 0.0)
    if share < _MAIN:
        parts = [
            f"{_CAUSES[name]} {of_time:.0%}"
            for name, of_time in largest.shares.items()
            if of_time >= _SAME
        ]
        return f"{text}, and no single thing is the limit: at {b}, {', '.join(parts)} of the time."
    seconds = f"{_ms(enough.seconds(limit))} of a step at {a}, {_ms(largest.seconds(limit))} at {b}"
    if limit == "wait":
        free = largest.speed / (1 - share)
        return text + (
            f", because the data is the limit: the loader gives about {number(largest.speed)} "
            f"{situation.unit}/s {f'at {b}' if slower else 'whatever the batch'}, so a bigger one "
            f"only waits longer, {seconds} ({share:.0%} of the time). Without waiting it would be "
            f"about {number(free)}: more workers or cores for the loader, smaller images or a "
            "cache would help, a bigger batch would not."
        )
    return text + f", because of {_CAUSES[limit]}: {seconds}, {share:.0%} of the time."


def _more_processes(
    rows: Sequence[Row], spread: Sequence[Row], situation: SweepContext
) -> Iterator[str]:
    """A mode against one process: with the same batch on each rank, and with the same global
    batch."""
    if not spread or spread[0].cell.mode == "none":
        return
    spread = [row for row in spread if _enough_rounds(row)]
    one = [
        row
        for row in rows
        for many in spread[:1]
        if row.cell.mode == "none"
        and row.cell.like(many.cell, "mode", "processes", "batch")
        and _enough_rounds(row)
    ]
    pairs = sorted(((a, b) for a in one for b in spread), key=lambda pair: -pair[1].cell.batch)
    for a, b in [pair for pair in pairs if pair[0].cell.batch == pair[1].cell.batch][:1]:
        yield _scaling(a, b, f"with the same batch of {b.cell.batch} on each rank", 1.0, situation)
    for a, b in [pair for pair in pairs if pair[0].cell.global_batch == pair[1].cell.global_batch][
        :1
    ]:
        if b.cell.processes == 1:
            return  # said already
        how = f"with the same global batch of {b.cell.global_batch}, {b.cell.batch} on each rank"
        yield _scaling(a, b, how, 1 / b.cell.processes, situation)


def _scaling(one: Row, many: Row, how: str, ideal: float, situation: SweepContext) -> str:
    """Why it is not N times as fast; `part` of the one process' step is what a step would ideally
    take."""
    count, gain = many.cell.processes, many.speed / one.speed
    text = (
        f"Against one process {many.cell.name} is {gain:.2f} times as fast {how} "
        f"({number(one.speed)} and {number(many.speed)} {situation.unit}/s)"
    )
    if count == 1:
        return f"{text}: on one device DataParallel passes each batch on to the network as it is."
    if gain >= _NEAR * count:
        return f"{text}, close to the ideal {count}."
    lost = many.step_seconds - ideal * one.step_seconds
    causes = {share: many.seconds(share) - ideal * one.seconds(share) for share in _CAUSES}
    named = sorted(
        (share for share in causes if abs(causes[share]) >= _NOTABLE * lost),
        key=lambda s: -causes[s],
    )
    reasons = "; ".join(
        f"+{_ms(causes[share])} {_why(share, many, ideal, situation)}"
        if causes[share] > 0
        else f"and -{_ms(-causes[share])} {_CAUSES[share]}"
        for share in named
    )
    text += (
        f", not {count}. A step takes {_ms(many.step_seconds)} where "
        f"{_ms(ideal * one.step_seconds)} would be ideal: {reasons}."
    )
    if gain < 1 - _SAME and named and named[0] in ("exchange", "launch", "copy", "update"):
        text += (
            f" So {many.cell.parallel} is slower than one: in {_ms(one.busy * one.step_seconds)} "
            "of computing a step there is too little to share; larger batches or a larger network "
            "would share better."
        )
    return text


def _why(share: Share, many: Row, ideal: float, situation: SweepContext) -> str:
    processes = counted(many.cell.processes, "process")
    shared = f"the {counted(situation.cores, 'core')} of this machine are shared by {processes}"
    compute = "computing: each rank computes more slowly than one alone"
    if (many.cell.device or situation.device) == "cpu":
        compute = f"computing, as {shared}: each computes more slowly beside the others"
    elif ideal < 1:
        compute = "computing, as a sample takes longer in the smaller batch of a rank"
    return {
        "compute": compute,
        "wait": f"data wait, as {shared}, and by their loaders",
        "exchange": "gradient exchange that no computing hides, waiting for the slowest rank "
        "included",
        "update": "update, which each rank does for all weights",
        "copy": "copying batches to the devices",
        "launch": "the host, which queues the work of each device too slowly",
    }[share]


def _dp_against_ddp(rows: Sequence[Row]) -> Iterator[str]:
    pairs = [
        (dp, ddp)
        for dp in rows
        for ddp in rows
        if (dp.cell.mode, ddp.cell.mode) == ("dp", "ddp")
        and dp.cell.like(ddp.cell, "mode")
        and _enough_rounds(dp, ddp)
    ]
    if pairs:
        dp, ddp = max(pairs, key=lambda pair: pair[0].cell.global_batch)
        yield (
            f"DataParallel runs at {dp.speed / ddp.speed:.2f} times the speed of ddp with the same "
            f"global batch, {dp.cell.global_batch}: in every step one process copies the network "
            "to all GPUs and queues their work."
        )


def _first_gpu(rows: Sequence[Row]) -> Iterator[str]:
    """That DataParallel does not load its GPUs alike."""
    uneven = [
        row
        for row in rows
        if row.cell.mode == "dp" and row.memory and row.memory[0] > 1.1 * min(row.memory)
    ]
    if uneven:
        row = max(uneven, key=lambda row: row.cell.global_batch)
        busy = f" (busy {each(row.utilisation, percentage)})" if row.utilisation else ""
        yield (
            f"With {row.cell.name} and batch {row.cell.batch} the GPUs hold "
            f"{each(row.memory, gigabytes)}{busy}: DataParallel gathers all outputs on the first, "
            "which computes the loss, sums the gradients and keeps the optimizer's state. It is "
            "the first that limits the batch; ddp loads all alike."
        )


def _accumulation(rows: Sequence[Row], situation: SweepContext) -> Iterator[str]:
    """What the largest number of accumulated batches does to speed and score, for the largest batch
    of each kind."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(replace(row.cell, accumulate=1, batch=1).name, []).append(row)
    for name, of_kind in by_name.items():
        batch = max(row.cell.batch for row in of_kind)
        same = sorted(
            (row for row in of_kind if row.cell.batch == batch), key=lambda row: row.cell.accumulate
        )
        few, many = same[0], same[-1]
        if few is many:
            continue
        ratio = many.speed / few.speed
        text = (
            f"{_capital(name)} with batch {batch}: {many.cell.accumulate} accumulated batches a "
            f"step instead of {few.cell.accumulate} are {ratio:.2f} times as fast "
            f"({number(few.speed)} and {number(many.speed)} {situation.unit}/s)"
        )
        if not _enough_rounds(few, many):
            text += ", each measured once: whether that is more than they scatter is not known"
        elif _as_fast(few, many) and _as_fast(many, few):
            text += ", no more than their rounds scatter"
        else:
            text += _less_of(few, many)
        # As if computing a sample took as long as before.
        possible = many.shares.get("compute", 0.0) / max(few.shares.get("compute", 0.0), 1e-9)
        if max(ratio, 1 / ratio) > max(possible, 1) / _NEAR:
            text += (
                f"; by these shares it could be {possible:.2f} times, so something has disturbed "
                "one of the two: measure again"
            )
        yield f"{text}.{_cost(few, many)}"


def _cost(few: Row, many: Row) -> str:
    """What the score of fewer, larger steps is, if it was measured."""
    if not few.validation or not many.validation:
        return ""
    name, before = few.score
    after = many.score[1]
    updates = " and ".join(f"{row.samples / row.cell.global_batch:,.3g}" for row in (few, many))
    text = (
        f" The last validation's {name} is {before:.4g} and {after:.4g}, with {updates} updates an "
        "epoch"
    )
    if name != "top1":
        return f"{text}."
    scatter = _scatter(before, after, few.val_samples)
    if abs(after - before) <= scatter:
        return (
            f"{text}: no further apart than {counted(few.val_samples, 'sample')} scatter "
            f"({scatter:.2g})."
        )
    costs = "costs accuracy; more epochs or a higher rate may win it back"
    verdict = costs if after < before else "does not cost accuracy"
    return (
        f"{text}: more than {counted(few.val_samples, 'sample')} scatter ({scatter:.2g}), so it "
        f"{verdict}."
    )


def _largest_loss(row: Row) -> Share:
    """What most of its idleness is."""
    idle: tuple[Share, ...] = ("wait", "copy", "launch", "exchange")
    return max(idle, key=lambda share: row.shares.get(share, 0.0))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]
