"""fastload beside its peers: the same files, the same output, the same number of threads, in turns, in one run.

    make bench-peers                  # from a checkout; DATA=folder for your own photographs
    python -m benchmarks.peers --help

Reading order: `contestants.py` (each peer as its good users write it), `serve.py` (the measuring, within the process of
a contestant), `comparison.py` (what is measured, in order), `report.py` (what must be reached, and the tables).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

from rich.console import Console

from benchmarks.inputs import ROOT
from benchmarks.peers.comparison import Comparison, Wanted, prepare
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.report import judge, other_pixels, print_rates, print_singles
from fastload.errors import FastloadError
from fastload.measure.results import Parameter, new_results, to_json, write_text
from fastload.measure.rounds import Progress


def main() -> int:
    arguments = _arguments()
    wanted = Wanted(**{field.name: getattr(arguments, field.name) for field in fields(Wanted)})
    wanted = replace(wanted, work=wanted.work.absolute(), data=wanted.data and wanted.data.expanduser().absolute())
    rows = [row for row in CONTESTANTS if not arguments.only or any(part in row.contestant for part in arguments.only)]
    try:
        comparison = prepare(wanted, rows, _say)
    except FastloadError as error:
        _say(str(error))
        return 1
    _say(_introduction(comparison, comparison.minutes(rates_only=arguments.rates_only)))
    start = time.monotonic()
    measured = comparison.rates(_progress)
    measurements = list(measured.measurements)
    if measured.complete and not arguments.rates_only:
        measurements += comparison.singles()
    verdicts, warnings = judge(measurements), other_pixels(measurements)
    console = Console(highlight=False, markup=False)
    print_rates(rows, measurements, console)
    print_singles(measurements, console)
    print("", *verdicts, *warnings, f"\n{(time.monotonic() - start) / 60:.1f} minutes", sep="\n")
    if arguments.json is not None:
        results = new_results(
            "peers",
            _settings(comparison),
            measurements,
            complete=measured.complete,
            notes=warnings,
            verdicts=verdicts,
        )
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_text(arguments.json, to_json(results))
        print(arguments.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").split("\n\n")[0])
    default = Wanted(data=None, work=ROOT / "build" / "peers")
    add = parser.add_argument
    add("--data", type=Path, help="class folders of JPEGs (default: the photographs of fastload demo)")
    add("--least", type=int, default=default.least, help="repeat the files up to so many (default: %(default)s)")
    add("--small", type=int, default=default.small, help="number of 32x32 images (default: %(default)s)")
    add("--batch-size", type=int, default=default.batch_size, help="of photographs (default: %(default)s)")
    add("--small-batch-size", type=int, default=default.small_batch_size, help="(default: %(default)s)")
    add("--threads", type=int, default=default.threads, help="or workers, of each (default: %(default)s)")
    add("--rounds", type=int, default=default.rounds, help="default: %(default)s")
    add("--seconds", type=float, default=default.seconds, help="of a contestant a round (default: %(default)s)")
    add("--only", nargs="*", default=[], help="contestants whose name contains one of these words")
    add("--rates-only", action="store_true", help="leave out first batch, epoch ends, memory and Python")
    add("--work", type=Path, default=default.work, help="files and environments are kept here")
    add("--peers-python", default=default.peers_python, help="interpreter for the environments of FFCV and SPDL")
    add("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def _introduction(comparison: Comparison, minutes: float) -> str:
    wanted = comparison.wanted
    return (
        f"{comparison.photographs}, {wanted.small:,} small images; {wanted.threads} threads; {wanted.rounds} rounds of "
        f"{wanted.seconds:g} s for each of {len(comparison.rows)} contestants: about {minutes:.0f} minutes from here"
    )


def _settings(comparison: Comparison) -> dict[str, Parameter | list[Parameter] | None]:
    wanted, photographs = comparison.wanted, comparison.photographs
    return {
        "batch_size": wanted.batch_size,
        "batch_size_of_small_images": wanted.small_batch_size,
        "photographs": photographs.distinct,
        "photographs_an_epoch": photographs.files,
        "bytes_a_photograph": round(photographs.mean_bytes),
        "small_images": wanted.small,
        "rounds": wanted.rounds,
        "seconds": wanted.seconds,
        "threads": wanted.threads,
    }


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
