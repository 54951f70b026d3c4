"""fastload beside its peers: the same files, the same output, the same number of threads, in turns, in one run.

    make bench-peers                  # from a checkout; DATA=folder for your own photographs
    python -m benchmarks.peers --help

Reading order: `contestants.py` (each peer as its good users write it), `serve.py` (the measuring, within the process of
a contestant), `comparison.py` (what is measured, in order), `report.py` (what must be reached, and the tables).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.inputs import ROOT
from benchmarks.peers.comparison import BATCH, SMALL, SMALL_BATCH, Comparison
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.report import bars, other_pixels, print_results
from fastload.errors import FastloadError
from fastload.measure.results import new_results, to_json, write_text
from fastload.measure.rounds import Progress


def main() -> int:
    given = _arguments()
    rows = [row for row in CONTESTANTS if not given.only or any(part in row.contestant for part in given.only)]
    try:
        comparison = Comparison(given, rows, _say)
    except FastloadError as error:
        _say(str(error))
        return 1
    _say(f"{comparison.photographs}, {SMALL:,} small images; {given.threads} threads; {len(rows)} contestants")
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--data", type=lambda text: Path(text).expanduser().absolute(), help="class folders of JPEGs (default: made)")
    add("--threads", type=int, default=2, help="or workers, of each (default: %(default)s)")
    add("--rounds", type=int, default=7, help="default: %(default)s")
    add("--seconds", type=float, default=2.0, help="of a contestant a round (default: %(default)s)")
    add("--only", nargs="*", default=[], help="contestants whose name contains one of these words")
    add("--rates-only", action="store_true", help="leave out first batch, epoch ends, memory and Python")
    work = ROOT / "build" / "peers"
    add("--work", type=lambda text: Path(text).absolute(), default=work, help="files and environments are kept here")
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
