"""What is not throughput: the first batch, the end of an epoch, memory over epochs, the speed of Python meanwhile.

Each in fresh processes, one after the other, while nothing else is at work. A contestant that cannot be measured gives
no row: the table of the rounds says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.peers.contestants import Row
from benchmarks.peers.process import ContestantProcess, Interpreters
from benchmarks.peers.setting import Setting
from fastload.errors import FastloadError
from fastload.measure.results import Latency, Measurement, Round
from fastload.measure.statistics import quantile

__all__ = ["END", "FIRST", "INTERPRETER", "MEMORY", "epoch_ends", "first_batches", "interpreter_speed"]

FIRST = "first batch"
END = "end of an epoch"
MEMORY = "memory over epochs"
INTERPRETER = "Python beside the loader"

_WARM = 1.0
"""[seconds]"""

Say = Callable[[str], None]


def first_batches(
    rows: tuple[Row, ...], setting: Setting, interpreters: Interpreters, say: Say, times: int
) -> list[Measurement]:
    """Time from `iter()` to the first batch, of a loader just made in a process just started, in turns.

    Making the loader is told apart, as DALI works out its first batches then.
    """
    rounds: dict[Row, list[Round]] = {row: [] for row in rows}
    for _ in range(times):
        for row in rows:
            say(f"{FIRST}: {row.contestant}")
            process = ContestantProcess(row, setting, interpreters)
            try:
                answer = process.ask("open")
                seconds = answer["first_batch_seconds"]
                metrics = {"first_batch_seconds": seconds, "made_seconds": answer["made_seconds"]}
                rounds[row].append(Round(setting.batch_size, seconds, 0.0, metrics))
            except FastloadError as error:
                say(str(error))
            finally:
                process.close()
    return [Measurement(row.contestant, FIRST, rounds=tuple(found)) for row, found in rounds.items() if found]


def epoch_ends(row: Row, setting: Setting, interpreters: Interpreters, say: Say, count: int) -> list[Measurement]:
    """Intervals between batches across the ends of `count` epochs, beside ordinary ones; memory after each epoch."""
    say(f"{END}: {row.contestant}")
    process = ContestantProcess(row, setting, interpreters)
    try:
        process.ask("open")
        answer = process.ask("epochs", count=count)
    except FastloadError as error:
        say(str(error))
        return []
    finally:
        process.close()
    within, across, memory = answer["within"], answer["across"], answer["memory"]
    ordinary = quantile(within, 0.5)
    ends = Measurement(
        row.contestant,
        END,
        rounds=tuple(
            Round(setting.batch_size, seconds, 0.0, {"gap_in_ordinary_intervals": seconds / ordinary - 1})
            for seconds in across
        ),
        latency=Latency(ordinary, quantile(within, 0.99), len(within), "batch"),
    )
    grown = Measurement(
        row.contestant,
        MEMORY,
        parameters={"epochs": count},
        rounds=(Round(0, 0.0, 0.0, {"growth_after_first_epoch": max(memory[1:], default=memory[0]) / memory[0] - 1}),),
        peak_memory=int(max(memory)),
        series={"bytes_after_epoch": tuple((float(number), size) for number, size in enumerate(memory, 1))},
    )
    return [ends, grown]


def interpreter_speed(
    row: Row, setting: Setting, interpreters: Interpreters, say: Say, times: int, seconds: float
) -> list[Measurement]:
    """A pure-Python loop in the main thread of a process on two cores, whose loader has one thread."""
    say(f"{INTERPRETER}: {row.contestant}")
    process = ContestantProcess(row, replace(setting, threads=1, cores=2), interpreters)
    rounds = []
    try:
        process.ask("open")
        process.ask("stream", seconds=_WARM, drain=0.0)
        for _ in range(times):
            answer = process.ask("interpreter", seconds=seconds)
            alone = answer["loops_per_second_alone"]
            rounds.append(
                Round(
                    samples=0,
                    seconds=answer["clock_seconds"],
                    cpu_seconds=answer["cpu_seconds"],
                    metrics={
                        "share_of_speed_alone": answer["loops_per_second"] / alone,
                        "share_beside_a_process": answer["loops_per_second_beside_a_process"] / alone,
                        "cores_of_the_loader": answer["cores_of_the_loader"],
                    },
                )
            )
    except FastloadError as error:
        say(str(error))
        return []
    finally:
        process.close()
    return [Measurement(row.contestant, INTERPRETER, parameters={"threads": 1, "cores": 2}, rounds=tuple(rounds))]
