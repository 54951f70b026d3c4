"""The measuring core: contestants take turns, in one run, on one machine, until each has the same number of rounds.

The contract:

    entries = [Entry("simplejpeg", "full", {"threads": 2}, open=lambda: SimpleJpegRunner(...)), ...]
    measured = measure(entries, rounds=5, seconds=0.5, warmup_seconds=0.2, on_progress=...)
    measured.measurements   # one `results.Measurement` per entry, in the order of the entries
    measured.complete       # False after Ctrl-C: what was measured until then is there

An `Entry` is one row: who, in which mode, with which parameters, and `open()`, which makes a `Runner`. `open` may raise
`BackendUnavailableError`: the row says what to install. Any other exception, from `open` or from `run`, ends this
contestant and not the benchmark: the row says what failed.

A `Runner` has `run(seconds) -> Work` and `close()`. `run` works for about `seconds` (at least one whole unit: a pass
over the images, an epoch, a few batches) and says what it did. The clock, CPU seconds (worker processes included) and
memory are taken around the call, except where `Work` says them itself, because the work happened elsewhere or only a
part of the call counts. Each round takes all entries in turn, every second round backwards, so that whatever changes
on the machine meanwhile meets all alike.

`keep_open=True` opens and warms up all entries once and leaves them open: for what costs little while it is idle.
`keep_open=False` opens, warms up, runs and closes the entry within its round: for loaders, whose workers and prefetched
batches would disturb the others.

`Work.metrics` are the further numbers of a round (`Measurement.metric(name)` gives median and spread); names carry
their unit. `Work.series` are timelines of the round, of which the last round's are kept. Of the warm-up run only the
failures and the memory are kept; with `keep_open=True` no other run's memory is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType

from fastload.bench.recording import Record, Runner, Work
from fastload.bench.results import Measurement, Parameter
from fastload.errors import BackendUnavailableError, FastloadError

__all__ = ["Entry", "Measured", "Progress", "Runner", "Work", "measure"]


@dataclass(frozen=True)
class Entry:
    """One row to be measured."""

    contestant: str
    mode: str
    parameters: Mapping[str, Parameter]
    open: Callable[[], Runner]
    version: str = ""


@dataclass(frozen=True)
class Progress:
    """Where the run is, for a progress bar."""

    entry: Entry
    round: int
    """0 is the warm-up."""
    share: float
    """Done of the whole, 0 to 1."""


@dataclass(frozen=True)
class Measured:
    measurements: tuple[Measurement, ...]
    complete: bool


def measure(
    entries: Sequence[Entry],
    *,
    rounds: int = 5,
    seconds: float = 0.5,
    warmup_seconds: float = 0.2,
    keep_open: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
) -> Measured:
    """Measure all entries in interleaved rounds.

    Args:
        rounds: that each entry runs, at least 1; 5 or more give a spread worth reading.
        seconds: of one round of one entry.
        warmup_seconds: of the run before the first round (before every round, unless `keep_open`).
        on_progress: called before each run, from this thread.

    Returns:
        What was measured; also after KeyboardInterrupt, which ends the run and is not raised again.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: at least 1")
    records = [Record(entry.contestant, entry.mode, entry.parameters, entry.version) for entry in entries]
    report = on_progress or (lambda progress: None)
    total = (rounds + keep_open) * max(len(entries), 1)
    done = 0
    complete = True
    with _Open() as opened:
        try:
            for number in range(0 if keep_open else 1, rounds + 1):
                turn = list(zip(entries, records, strict=True))
                for entry, record in reversed(turn) if number > 0 and number % 2 == 0 else turn:
                    report(Progress(entry, number, done / total))
                    done += 1
                    if record.ended:
                        continue
                    try:
                        _take_turn(entry, record, opened, number, seconds, warmup_seconds, keep_open)
                    except BackendUnavailableError as error:
                        record.end("unavailable", str(error))
                    except FastloadError as error:
                        record.end("failed", str(error))
                    except Exception as error:  # of a library: minutes of the others' rounds must not go with it
                        record.end("failed", f"{type(error).__name__}: {error}")
        except KeyboardInterrupt:
            complete = False
    return Measured(tuple(record.measurement() for record in records), complete)


def _take_turn(
    entry: Entry, record: Record, opened: _Open, number: int, seconds: float, warmup_seconds: float, keep_open: bool
) -> None:
    if not keep_open:
        with _Open() as alone:
            runner = record.warm_up(lambda: alone.open(entry), warmup_seconds)
            record.round(runner, seconds, alone=True)
    elif number == 0:
        record.warm_up(lambda: opened.open(entry), warmup_seconds)
    else:
        record.round(opened[entry], seconds, alone=False)


class _Open(AbstractContextManager["_Open"]):
    """The runners that are open; closed at the end, the last one first."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._runners: dict[int, Runner] = {}

    def open(self, entry: Entry) -> Runner:
        runner = entry.open()
        self._stack.callback(runner.close)
        self._runners[id(entry)] = runner
        return runner

    def __getitem__(self, entry: Entry) -> Runner:
        return self._runners[id(entry)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
