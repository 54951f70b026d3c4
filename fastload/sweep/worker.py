"""What runs inside a cell's processes: `python -m fastload.sweep.worker FOLDER`, on each rank."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fastload.bench.resources import peak_memory
from fastload.sweep.job import FAILURE, JOB, MEASURED, Job, Measured
from fastload.sweep.results import SHARES
from fastload.train import train

__all__: list[str] = []


def run(folder: Path) -> None:
    """This rank's part of the run."""
    rank = os.environ.get("RANK", "0")
    try:
        measured = _train(Job.from_json((folder / JOB).read_text(encoding="utf-8")))
    except Exception as error:
        (folder / f"{FAILURE}{rank}").write_text(json.dumps(f"{type(error).__name__}: {error}"), encoding="utf-8")
        raise
    if rank == "0":
        (folder / MEASURED).write_text(measured.to_json(), encoding="utf-8")


def _train(job: Job) -> Measured:
    summary = train(job.config, warmup=job.warmup)
    if summary.idle is None or summary.images_per_second is None:
        raise RuntimeError("the run ended before its warm-up: no step was measured")
    return Measured(
        samples=summary.samples,
        steps=summary.measured_steps,
        rate=summary.images_per_second,
        peak_memory=peak_memory() if summary.peak_device_memory is None else summary.peak_device_memory,
        shares={share: getattr(summary.idle, f"{share}_share") for share in SHARES},
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]))
