"""All parts in one command: `python -m benchmarks.gpu.run --photos FOLDER --out DIR`; see README.md beside this.

Every part is a process of its own, because an error on a GPU can spoil the process that it happens in. What a part has
found is kept whatever becomes of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

import fastload
from benchmarks.gpu.data import prepare
from benchmarks.gpu.goals import judge
from benchmarks.gpu.native import ROOT, ensure_native
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.setting import DRY, FULL, Setting
from benchmarks.gpu.summary import summary
from fastload.errors import FastloadError
from fastload.measure.machine import describe_machine

__all__ = ["main"]

_GRACE = 10.0
"""Seconds that a part may take beyond its time before it is ended."""
_LEAST = 5.0
"""A part that would have less time than this is not begun [seconds]."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    deadline = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    setting = replace(DRY if given.dry_run else FULL, out=str(given.out.absolute()))
    setting = replace(setting, device=given.device or setting.device)
    reason = _unusable(setting)
    if reason:
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="fastload-gpu-") as room:
        work = given.work or Path(room)
        work.mkdir(parents=True, exist_ok=True)
        _say("the native core")
        core = ensure_native(given.jpeg_headers, work)
        _say(core)
        try:
            found = prepare(setting, given.photos, work, _say)
        except FastloadError as error:
            print(error, file=sys.stderr)
            return 1
        setting = replace(setting, photos=str(found.photos), cache=str(found.cache))
        results: dict[str, Any] = {
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "fastload": fastload.__version__,
            "machine": msgspec.to_builtins(describe_machine()),
            "native": core,
            "input": found.note,
            "dry_run": given.dry_run,
            "setting": {k: v for k, v in asdict(setting).items() if k not in ("photos", "cache", "out")},
            "parts": {},
        }
        _write(given.out, results)
        for number, name in enumerate(given.parts):
            weights = [PARTS[other].weight for other in given.parts[number:]]
            seconds = (deadline - time.monotonic()) * weights[0] / sum(weights)
            results["parts"][name] = _run_part(name, setting, work, seconds, deadline)
            _write(given.out, results)
    text = summary(results)
    (given.out / "summary.txt").write_text(text + "\n")
    print(f"\n{text}")
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.run", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the results: JSON, text, pictures, log")
    add("--photos", type=Path, help="class folders of JPEG files (default: photographs that are made)")
    add("--parts", default=",".join(PARTS), help="some only, in this order: %(default)s")
    add("--minutes", type=float, default=8.5, help="for everything, shared out among the parts (default: %(default)s)")
    add("--device", help="cuda, cuda:1, cpu (default: cuda; cpu for a dry run)")
    add("--dry-run", action="store_true", help="all of the code with the smallest sizes; the figures mean nothing")
    add("--jpeg-headers", type=Path, help="folder with unpacked packages, for building the native core")
    add("--work", type=Path, help="keep input and build here (default: a temporary folder)")
    given = parser.parse_args(arguments)
    given.parts = [name.strip() for name in given.parts.split(",") if name.strip()]
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown or not given.parts:
        parser.error(f"--parts: {', '.join(unknown) or 'none given'}; choose from {', '.join(PARTS)}")
    if given.minutes <= 0:
        parser.error(f"--minutes: must be above 0, got {given.minutes:g}")
    given.out, given.work = given.out.absolute(), given.work and given.work.absolute()
    return given


def _unusable(setting: Setting) -> str:
    """Why the device cannot be used; empty if it can."""
    import torch

    if setting.where().type == "cuda" and not torch.cuda.is_available():
        return (
            "--device: torch sees no CUDA device here. To try the code without one: "
            "python -m benchmarks.gpu.run --device cpu --dry-run --out DIR"
        )
    return ""


def _run_part(name: str, setting: Setting, work: Path, seconds: float, deadline: float) -> dict[str, Any]:
    """One part in a process of its own, ended when its time is over."""
    begun = time.monotonic()
    answer, given = work / f"{name}.json", work / "setting.json"
    answer.unlink(missing_ok=True)
    given.write_text(setting.to_json())
    if seconds < _LEAST:
        return {"status": "not run: no time was left", "seconds": 0.0}
    _say(f"{name}: {PARTS[name].title} ({seconds:.0f} s at most)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with (Path(setting.out) / "log.txt").open("a") as log:
        print(f"\n==== {name}", file=log, flush=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.parts", name, str(given), str(answer), str(seconds)],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,  # its workers end with it
        )
        try:
            code: int | None = process.wait(min(seconds + _GRACE, max(deadline - time.monotonic(), 1) + _GRACE))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    status = {0: "complete", None: "ended: its time was over"}.get(code, f"failed: exit status {code}, see log.txt")
    values = json.loads(answer.read_text()) if answer.exists() else {}
    _say(f"{name}: {status}")
    return {"status": status, "seconds": time.monotonic() - begun, **values}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and whatever it started; also what is left of one that has ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _write(out: Path, results: dict[str, Any]) -> None:
    """With the verdicts as far as they are known."""
    verdicts = [{**asdict(v), "reached": v.reached, "text": str(v)} for v in judge(results["parts"])]
    part = out / "results.json.part"
    part.write_text(json.dumps({**results, "goals": verdicts}, indent=1) + "\n")
    os.replace(part, out / "results.json")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the part under way is ended, too
    sys.exit(main())
