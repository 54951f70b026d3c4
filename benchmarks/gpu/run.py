"""All parts in one command: `python -m benchmarks.gpu.run --photos FOLDER --out DIR`; see
benchmarks/README.md.

Every part is a process of its own, because an error on a GPU can break the process that it happens
in, and whatever may end its process has one more of its own. What a part has found is kept whatever
becomes of it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import msgspec
from msgspec import structs

from benchmarks.gpu.cores import cores_here, keep_to_cores
from benchmarks.gpu.decode import decoders
from benchmarks.gpu.feeds import every_variant
from benchmarks.gpu.goals import goals, line, summary
from benchmarks.gpu.setting import DRY, FULL, Found, Setting
from benchmarks.gpu.trainer import CHECKS
from benchmarks.gpu.training import COMPILED, SMALL
from benchmarks.gpu.ways import WAYS
from benchmarks.inputs import ROOT, photographs, sample_set
from fastload.cache import build_cache
from fastload.errors import FastloadError
from fastload.render.jpegs_on_device import ON_HOST
from fastload.tools.measure import process
from fastload.tools.measure.results import Measurement, Results, new_results, to_json, write_text

_GRACE = 10.0
"""Seconds that a part may take beyond its time before it is ended."""
_LEAST = 5.0
"""A part that would have less time than this is not started [seconds]."""
_APART = 0.15
"""Of the time of a part: of each contestant that has a process of its own."""
_MADE = 192
"""Photographs that are made where no folder is given."""


@dataclass(frozen=True)
class Part:
    """One of the questions."""

    title: str
    # "module:function" of this package: (setting, found); it leaves out what it has no time for
    function: str
    weight: float  # its share of the time, relative to the others
    # Contestants that may end their process.
    apart: Callable[[Setting], list[str]] = lambda setting: []
    # Processes that share the time: the name of each, and what its setting has that is its own. An
    # error on a GPU that the process cannot recover from costs one of them.
    several: Callable[[Setting], dict[str, dict[str, Any]]] = lambda setting: {"": {}}
    # Whether kernels run in Triton's interpreter where there is no GPU.
    interpreted: bool = False
    photographs: bool = True  # whether it needs them
    # What `only` may name; nothing where it has no effect.
    chosen: Callable[[Setting], Sequence[str]] = lambda setting: ()


def _compiled(setting: Setting) -> dict[str, dict[str, Any]]:
    return {network: {"networks": (network,)} for network in (*setting.networks, SMALL)}


def _networks(setting: Setting) -> dict[str, dict[str, Any]]:
    return {network: {"networks": (network,)} for network in setting.networks}


def _checks(setting: Setting) -> dict[str, dict[str, Any]]:
    return {name: {"only": (name,)} for name in setting.only or CHECKS}


def _ways(setting: Setting) -> dict[str, dict[str, Any]]:
    return {name: {"way": name} for name in WAYS}


def _cores(setting: Setting) -> dict[str, dict[str, Any]]:
    return {f"{count} cores": {"cores": count} for count in cores_here(setting.core_counts)}


def _every_backend(setting: Setting) -> list[str]:
    return [variant.name for variant in every_variant(setting)]


def _every_decoder(setting: Setting) -> list[str]:
    return [decoder.name for decoder in decoders(setting)]


def _backends(setting: Setting) -> list[str]:
    return [variant.name for variant in every_variant(setting) if variant.may_die]


def _decoders(setting: Setting) -> list[str]:
    return [decoder.name for decoder in decoders(setting) if decoder.may_die]


PARTS: dict[
    str, Part
] = {  # in order of worth: what comes first is found even if the machine is taken away
    "native": Part("the native core, and what the machine has", "native:run", 6, photographs=False),
    "contract": Part(
        "the contract suite and the checks on photographs",
        "checks:run",
        16,
        _backends,
        chosen=_every_backend,
    ),
    "tests": Part(
        "tests that need a GPU, the kernels, the trainer's steps",
        "checks:run_marked",
        12,
        interpreted=True,
        photographs=False,
    ),
    "streams": Part(
        "batches, used at once and kept", "streams:run", 10, _backends, chosen=_every_backend
    ),
    "compile": Part(
        "the compiler's cache, filled before anything is timed",
        "training:run",
        40,
        several=_compiled,
        photographs=False,
    ),
    "idle": Part(
        "idle time of the GPU while networks are trained",
        "idle:run",
        60,
        _backends,
        _networks,
        chosen=_every_backend,
    ),
    "ways": Part("trainings that are fed in other ways", "ways:run", 40, several=_ways),
    "loaders": Part("one loader, and several that share the cores", "loaders:run", 10),
    "cifar": Part("CIFAR-10's arrays resident on the GPU", "cifar:run", 10, photographs=False),
    "decode": Part(
        "decoding on the GPU, on the CPU, on both",
        "decode:run",
        10,
        _decoders,
        chosen=_every_decoder,
    ),
    "threads": Part("the loader's threads and the trainer's steps", "threads:run", 12),
    "trainer": Part(
        "the reference trainer, each of its ways",
        "trainer:run",
        24,
        several=_checks,
        chosen=lambda setting: list(CHECKS),
    ),
    "kernels": Part(
        "kernels against the operations of torch",
        "kernels:run",
        6,
        interpreted=True,
        photographs=False,
    ),
    "soak": Part("a training over many ends of epochs", "soak:run", 16),
    "cores": Part(
        "fewer cores, and other loaders on as many",
        "cores:run",
        60,
        several=_cores,
        chosen=_every_backend,
    ),
}


@dataclass(frozen=True)
class Call:
    """One command on a machine that may be used for a short time."""

    parts: tuple[str, ...]
    minutes: float


CALLS: dict[str, Call] = {
    "1.1": Call(("contract", "tests", "streams"), 8.5),
    "1.2": Call(("idle",), 9.0),
    "1.3": Call(("cifar", "decode", "threads"), 5.0),
    "2.1": Call(("trainer", "kernels"), 6.5),
    "2.2": Call(("soak",), 5.0),
    "2.3": Call(("cores",), 9.0),
    "3.1": Call(("ways", "loaders"), 7.0),
    "3.2": Call(("tests",), 2.5),
}
"""What is done in each of three leases of a machine, in calls of less than ten minutes: a machine
that is lost takes one call with it. `native` and `compile` come by themselves."""
LEASES: dict[str, Call] = {
    lease: Call(
        tuple(part for name in names for part in CALLS[name].parts),
        sum(CALLS[name].minutes for name in names),
    )
    for lease in ("1", "2", "3")
    for names in [[name for name in CALLS if name.startswith(lease)]]
}
"""All calls of a lease as one."""
_LEAST_APART = 45.0
"""Seconds that a contestant with a process of its own has at least, if there are so many: importing
torch and opening a GPU takes up to 20."""
_COMPILE_FIRST = ("idle", "ways", "cifar", "threads", "soak", "cores")


def work(name: str, setting: Setting, seconds: float) -> None:
    """A part, in its process."""
    module, _, function = PARTS[name].function.partition(":")
    getattr(import_module(f"benchmarks.gpu.{module}"), function)(setting, Found(seconds))


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    setting = replace(
        DRY if given.dry_run else FULL, out=str(given.out), jpeg_headers=given.jpeg_headers
    )
    setting = replace(setting, device=given.device or setting.device, **given.set)
    if given.dry_run and not setting.gpu:
        os.environ[ON_HOST] = "1"  # for the processes of the parts, too
    import torch

    if setting.gpu and not torch.cuda.is_available():
        _say(
            "--device: torch sees no CUDA device here. To try the code without one: python -m "
            "benchmarks.gpu.run --device cpu --dry-run --out DIR"
        )
        return 1
    refused = _only_refused(setting, given.parts)
    if refused:
        _say(refused)
        return 2
    with tempfile.TemporaryDirectory(prefix="fastload-gpu-") as temporary:
        kept = given.work or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        run = Run(
            replace(setting, kept=str(kept)),
            time.monotonic() + 60 * given.minutes,
            dry=given.dry_run,
        )
        with (kept / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # others may keep their input in the same folder
            run.part("native", [])  # before the cache is built with it
            try:
                if any(PARTS[name].photographs for name in given.parts):
                    run.prepare(given.photos)
            except FastloadError as error:
                _say(str(error))
                return 1
        for number, name in enumerate(given.parts):
            run.part(name, given.parts[number + 1 :])
            # After each part: a machine that is taken away leaves what was found.
            write_text(given.out / "summary.txt", summary(run.results) + "\n")
            if given.archive:
                pack(given.out, given.archive)
    print(f"\n{summary(run.results)}")
    return 0


def _only_refused(setting: Setting, parts: Sequence[str]) -> str:
    """Why `only` cannot be what was meant: it chooses nothing of a part, or names what there is
    not; empty where it can."""
    if not setting.only:
        return ""
    parts = [name for name in parts if name not in ("native", "compile")]
    without = [name for name in parts if not PARTS[name].chosen(setting)]
    if without:
        return f"--set only=...: it chooses nothing of the part {without[0]!r}; leave one out"
    there = {name for part in parts for name in PARTS[part].chosen(setting)}
    unknown = [name for name in setting.only if name not in there]
    if unknown:
        return f"--set only=...: {unknown[0]!r} is none of {', '.join(sorted(there))}"
    return ""


def pack(folder: Path, archive: Path) -> None:
    """All that a folder has, as one file, whole at every moment."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.part")
    with tarfile.open(part, "w:gz") as file:
        file.add(folder, archive.name.removesuffix(".tar.gz"))
    part.replace(archive)


def _chosen(text: str) -> tuple[str, Any]:
    """A field of a Setting and its value; several values have commas between them, without spaces:
    "dali, cpu" is one. Raises ArgumentTypeError: there is no such field, or it has no such
    values."""
    name, _, value = text.partition("=")
    kind = get_type_hints(Setting).get(name)
    if kind is None:
        raise argparse.ArgumentTypeError(f"Setting has no field {name!r}")
    several = get_origin(kind) is tuple
    try:
        return name, msgspec.convert(
            re.split(",(?! )", value) if several else value, kind, strict=False
        )
    except msgspec.ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.run", description=__doc__)
    every = [name for name in PARTS if name not in ("native", "compile")]
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the results: JSON, text, pictures, log")
    add(
        "--photos",
        type=Path,
        help="class folders of JPEG files (default: photographs that are made)",
    )
    add("--parts", help=f"some only, in this order: {','.join(every)}")
    add(
        "--lease",
        choices=[*LEASES],
        help="the parts of one of three leases of a machine",
    )
    add("--call", choices=[*CALLS], help="the parts of one call of a lease")
    add(
        "--minutes",
        type=float,
        help="for all parts together (default: 52.5; of --parts 8.5; of a call or lease its own)",
    )
    add("--device", help="cuda, cuda:1, cpu (default: cuda; cpu for a dry run)")
    add(
        "--dry-run",
        action="store_true",
        help="all of the code with the smallest sizes; the figures mean nothing",
    )
    add(
        "--jpeg-headers",
        default="",
        help="folder with unpacked packages, for building the native core",
    )
    add(
        "--set",
        type=_chosen,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of benchmarks.gpu.setting.Setting: --set networks=resnet50 --set pairs=9",
    )
    add("--archive", type=Path, help="keep what --out has as one .tar.gz, too")
    add("--work", type=Path, help="keep input and build here (default: a temporary folder)")
    given = parser.parse_args(arguments)
    planned = CALLS[given.call] if given.call else LEASES[given.lease] if given.lease else None
    if given.minutes is None:
        every_call = sum(call.minutes for call in CALLS.values())
        given.minutes = planned.minutes if planned else every_call if not given.parts else 8.5
    given.parts = ",".join(planned.parts if planned else every) if not given.parts else given.parts
    given.parts = [name.strip() for name in given.parts.split(",") if name.strip()]
    unknown = [name for name in given.parts if name not in every]
    if unknown or not given.parts:
        parser.error(
            f"--parts: {', '.join(unknown) or 'none given'}; choose from {', '.join(every)}"
        )
    if given.minutes <= 0:
        parser.error(f"--minutes: must be above 0, got {given.minutes:g}")
    compiled = next(
        (number for number, name in enumerate(given.parts) if name in _COMPILE_FIRST), None
    )
    if compiled is not None:
        given.parts.insert(compiled, "compile")
    given.set = dict(given.set)
    given.out, given.work = given.out.absolute(), given.work and given.work.absolute()
    given.archive = given.archive and given.archive.absolute()
    return given


class Run:
    """The results, on disk at every moment, and the parts that make them."""

    def __init__(self, setting: Setting, deadline: float, *, dry: bool) -> None:
        self.setting = setting
        self._out, self._deadline = Path(setting.out), deadline
        self._rows: dict[object, Measurement] = {}
        self._notes = (
            ["A DRY RUN: it shows that the code runs; the figures mean nothing."] if dry else []
        )
        shown = {
            name: value
            for name, value in asdict(setting).items()
            if name not in ("kept", "out", "only", "way")
        }
        self._results = new_results("gpu", shown | {"dry_run": dry}, ())

    @property
    def results(self) -> Results:
        rows, notes = tuple(self._rows.values()), tuple(self._notes)
        verdicts = tuple(goals(rows, gpu=self.setting.gpu))
        return structs.replace(self._results, measurements=rows, notes=notes, verdicts=verdicts)

    def prepare(self, photos: Path | None) -> None:
        """The photographs under many names, and the cache of them. Raises SourceError: there are no
        JPEG files."""
        setting, kept = self.setting, Path(self.setting.kept)
        found = photographs(
            photos or sample_set(kept, min(_MADE, setting.images), _say), kept, setting.images
        )
        _say("building the cache")
        build_cache(
            str(found.folder), kept / "cache", short_side=setting.short_side, progress=False
        )
        self._keep(
            f"{found}: read from memory, whatever the disk. Cache: short side {setting.short_side} "
            "pixels."
        )
        self.setting = replace(setting, photos=str(found.folder))

    def part(self, name: str, later: Sequence[str]) -> None:
        """One part, and then each of its contestants that may die; `later` are the parts that need
        time, too."""
        part = PARTS[name]
        processes = list[tuple[str, Setting, float]]()
        for title, own in part.several(self.setting).items():
            setting = replace(self.setting, **own)
            risky = part.apart(setting)
            safe = tuple(name for name in setting.only if name not in risky)
            if safe or not setting.only:
                processes.append((title, replace(setting, only=safe), 1.0))
            for contestant in risky:
                if not setting.only or contestant in setting.only:
                    alone = ": ".join(filter(None, (title, contestant)))
                    processes.append((alone, replace(setting, only=(contestant,)), _APART))
        whole = sum(share for _, _, share in processes)
        for number, (title, setting, share) in enumerate(processes):
            rest = part.weight * sum(share for _, _, share in processes[number:]) / whole
            rest += sum(PARTS[other].weight for other in later)
            left = self._deadline - time.monotonic()
            seconds = left * part.weight * share / whole / rest
            if share == _APART:
                seconds = min(max(seconds, _LEAST_APART), left)
            self._process(name, ": ".join(filter(None, (name, title))), setting, seconds)
        broken = [row.note for row in self._rows.values() if row.mode == COMPILED and row.note]
        if broken:  # nobody need try again
            self.setting = replace(self.setting, compile=False)

    def _process(self, name: str, title: str, setting: Setting, seconds: float) -> None:
        if seconds < _LEAST:
            self._keep(f"{title}: not run, no time was left")
            return
        _say(f"{title}: {PARTS[name].title} ({seconds:.0f} s at most)")
        before, started = set(self._rows), time.monotonic()

        def keep(found: Any) -> None:
            if isinstance(found, str):
                self._keep(f"{title}: {found}")
            elif not (setting.only and found.key in before):  # synthetic rows, which all have
                self._keep(found)

        interpreted = PARTS[name].interpreted and not setting.gpu
        log = self._out / "log.txt"
        with log.open("a") as file:
            print(f"\n==== {title}", file=file)
        done = process.run(
            "benchmarks.gpu.run:work",
            *(name, setting, seconds),
            limit=seconds + _GRACE,
            launcher=[sys.executable, *keep_to_cores(setting.cores)],
            environment={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(Path(setting.kept) / "compiled"),
                # Threads that wait for each other by spinning would take a dry run's time.
                **({} if setting.gpu else {"OMP_NUM_THREADS": "1"}),
                # Triton looks when it is imported, which some versions of torch do at once.
                **({"TRITON_INTERPRET": "1"} if interpreted else {}),
            },
            cwd=ROOT,
            output=log,
            on_report=keep,
        )
        status = "complete" if done.code == 0 else f"failed: {done.words} (log.txt)"
        if done.code is None:
            status = "ended: its time was over"
        self._keep(f"{title}: {status}, {time.monotonic() - started:.0f} s")
        _say(f"{title}: {status}")

    def _keep(self, found: Measurement | str) -> None:
        if isinstance(found, str):
            self._notes.append(found)
        elif found != self._rows.get(found.key):
            self._rows[found.key] = found
            if found.rounds or found.note:  # not of those that only wait for their turn
                _say(f"  {line(found)}")
        write_text(self._out / "results.json", to_json(self.results))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    # So that the part under way is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
