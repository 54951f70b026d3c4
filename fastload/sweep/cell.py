"""How one cell is run: processes of its own, and whatever comes of them is a row.

A run that takes all memory, crashes or hangs must not take the sweep with it, and what it leaves behind (a CUDA
context, compiled kernels, a warm allocator) must not flatter the next one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fastload.bench.resources import birth, descendants
from fastload.machine import usable_cores
from fastload.sweep.grid import Cell
from fastload.sweep.job import FAILURE, JOB, MEASURED, Job, Measured
from fastload.sweep.results import Row
from fastload.train.config import TrainConfig

__all__ = ["cell_config", "command", "environment", "run_cell", "run_command"]

_GRACE = 5.0
"""How long processes have to end by themselves [seconds]."""
_LONGEST = 300
"""Characters of last words that are kept."""
_NO_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|out of memory|MemoryError|Cannot allocate memory|can't allocate memory"
    r"|CU(?:BLAS|DNN|FFT)_STATUS_ALLOC_FAILED"
)


def run_cell(cell: Cell, config: TrainConfig, *, steps: int, warmup: int, timeout: float) -> Row:
    """Train for some steps in processes of its own.

    Args:
        config: of the whole sweep; batch, mode and length are replaced.
        steps: that are measured.
        warmup: steps before them that are not.
        timeout: after which it is given up [seconds].

    Raises:
        KeyboardInterrupt: as anywhere; the processes are ended first.
    """
    with tempfile.TemporaryDirectory(prefix="fastload-sweep-") as name:
        folder = Path(name)
        run = cell_config(cell, config, steps=warmup + steps, out=str(folder / "run"))
        (folder / JOB).write_text(Job.of(run, warmup=warmup).to_json(), encoding="utf-8")
        return run_command(cell, command(cell, folder), folder, environment(cell), timeout)


def cell_config(cell: Cell, config: TrainConfig, *, steps: int, out: str) -> TrainConfig:
    """The run of one cell: nothing in it but training steps."""
    return replace(
        config,
        optimizer=replace(config.optimizer, batch_size=cell.batch_size),
        # An epoch has at least one step: so many epochs are enough for all steps, however small the data.
        schedule=replace(config.schedule, max_steps=steps, epochs=max(config.schedule.epochs, steps)),
        checkpoint=replace(config.checkpoint, out=out, resume="never", save_epochs=None, save_steps=None),
        log=replace(config.log, progress=False, tensorboard=False, trace=None, profile_steps=0),
        run=replace(config.run, parallel=cell.mode),
    )


def command(cell: Cell, folder: Path) -> list[str]:
    """Of the process to start: the run itself, or what starts its ranks."""
    worker = ["-m", "fastload.sweep.worker", str(folder)]
    if cell.mode != "ddp":
        return [sys.executable, *worker]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cell.processes)]
    return [sys.executable, *launcher, *worker]


def environment(cell: Cell, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of the process to start: the machine's cores and GPUs divided as a person would, unless they said otherwise."""
    found = dict(given)
    if cell.mode == "ddp":
        # torchrun would give each rank one thread, however many cores there are.
        found.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // cell.processes)))
    if cell.mode == "dp":  # takes all GPUs that it sees
        seen = given.get("CUDA_VISIBLE_DEVICES")
        names = [str(number) for number in range(cell.processes)] if seen is None else seen.split(",")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(names[: cell.processes])
    return found


def run_command(
    cell: Cell, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
) -> Row:
    """Run what leaves its measurement in the folder; any other end of it is told in the row.

    Raises:
        KeyboardInterrupt: as anywhere; the processes are ended first.
    """
    said = folder / "output.txt"
    with said.open("wb") as output:
        # A session of its own: Ctrl-C at the terminal is for the sweep, which ends its processes itself.
        process = subprocess.Popen(
            arguments, stdout=output, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Row(cell, "timed out", f"gave no result within {timeout:g} s.")
        finally:
            _end(process)
    if code == 0 and (folder / MEASURED).is_file():
        return Measured.from_json((folder / MEASURED).read_text(encoding="utf-8")).row(cell)
    words = _last_words(folder, said.read_text(encoding="utf-8", errors="replace"), code)
    return Row(cell, "out of memory" if _NO_MEMORY.search(words) else "failed", words)


def _last_words(folder: Path, output: str, code: int) -> str:
    """What a rank that failed wrote down; else the most telling line of the output; else how the process ended."""
    failures = sorted(folder.glob(f"{FAILURE}*"), key=lambda path: path.stat().st_mtime_ns)
    told = [json.loads(path.read_text(encoding="utf-8")) for path in failures]
    # The first to fail has the cause: the others fail because it is gone. But nobody runs out of memory for that.
    for words in [*filter(_NO_MEMORY.search, told), *told]:
        return _short(words)
    if killed := re.search(r"Signal (\d+) \(\w+\) received by PID", output):
        return _killed(int(killed[1]))
    if code < 0:
        return _killed(-code)
    lines = [line.strip() for line in output.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception|Interrupt)\b", line)]
    return _short((errors or lines or [f"ended with exit code {code} and said nothing"])[-1])


def _killed(number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    hint = ": the system does that when memory runs out; try a smaller batch" if number == signal.SIGKILL else ""
    return f"killed by signal {number} ({name}){hint}."


def _short(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started. torchrun puts its ranks into sessions of their own, out of reach of a
    signal to a group: hence by their ids. A second Ctrl-C shortens the grace."""
    if process.poll() is not None:
        return
    started = {pid: birth(pid) for pid in descendants(process.pid)}
    process.terminate()
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(_GRACE)
    started |= {pid: birth(pid) for pid in descendants(process.pid)}
    process.kill()
    process.wait()
    for pid, born in started.items():
        if born is not None and birth(pid) == born:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
