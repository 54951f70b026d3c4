"""Memory and time that a class folder of millions of files takes, in the main process and in its workers.

    python -m benchmarks.source_memory                    # makes 1,300,000 empty files, and removes them
    python -m benchmarks.source_memory --files 100000
    python -m benchmarks.source_memory --folder data/train

Prints, for fastload and for torchvision's ImageFolder, each in a fresh process: the seconds and the processor seconds
that opening took, the growth of resident memory (now, and at its peak while opening), and how much more memory of its
own (USS: pages shared with no other process) a worker holds after going through all samples than a worker that was
given a folder of one file.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.inputs import ROOT
from fastload.measure import process
from fastload.measure.clock import peak_memory, reset_peak_memory, resident_memory

MB = 1 << 20
CLASSES = 1000
WORKERS = 2


def make_folder(root: Path, files: int) -> float:
    """Empty files with names as long as ImageNet's, in 1,000 classes. Returns the seconds it took."""
    start = time.perf_counter()
    for label in range(min(CLASSES, files)):
        folder = root / f"n{label:08}"
        folder.mkdir(parents=True)
        directory = os.open(folder, os.O_RDONLY)
        for number in range(label, files, CLASSES):
            os.close(os.open(f"n{label:08}_{number:07}.JPEG", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
        os.close(directory)
    return time.perf_counter() - start


def open_fastload(folder: str) -> Any:
    from fastload.sources import open_source, share

    return share(open_source(folder).source)


def visit_fastload(source: Any) -> int:
    paths, labels = source.columns["image"].paths, source.columns["label"].array
    return sum(len(paths[row]) + int(labels[row]) for row in range(len(source)))


def open_torchvision(folder: str) -> Any:
    from torchvision.datasets import ImageFolder

    return ImageFolder(folder)


def visit_torchvision(dataset: Any) -> int:
    return sum(len(path) + label for path, label in dataset.samples)


CONTESTANTS: dict[str, tuple[Callable[[str], Any], Callable[[Any], int]]] = {
    "fastload": (open_fastload, visit_fastload),
    "torchvision": (open_torchvision, visit_torchvision),
}


def work(name: str, data: Any, results: Any) -> None:
    """A worker: goes through all samples, reports its own memory."""
    CONTESTANTS[name][1](data)
    results.send(psutil.Process().memory_full_info().uss)
    results.recv()  # until the other one has told, too


def worker_memory(name: str, data: Any, method: str) -> float:
    """USS of the largest of two workers [bytes], both alive while they are measured."""
    context: Any = multiprocessing.get_context(method)
    running = []
    for _ in range(WORKERS):
        ours, theirs = context.Pipe()
        worker = context.Process(target=work, args=(name, data, theirs))
        worker.start()
        theirs.close()
        running.append((worker, ours))
    found = [ours.recv() for _, ours in running]
    for worker, ours in running:
        ours.send(None)
        worker.join()
    return float(max(found))


def measure(name: str, folder: str, tiny: str) -> dict[str, float]:
    """All figures of one contestant; run in a fresh process."""
    small = CONTESTANTS[name][0](tiny)  # imports, and everything else that happens once
    gc.collect()
    reset_peak_memory()
    before, start, cpu = resident_memory(), time.perf_counter(), time.process_time()
    data = CONTESTANTS[name][0](folder)
    figures = {
        "samples": float(len(data)),
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
        "growth": (resident_memory() - before) / MB,
        "peak": (peak_memory() - before) / MB,
    }
    for method in ("fork", "spawn"):
        figures[method] = (worker_memory(name, data, method) - worker_memory(name, small, method)) / MB
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--files", type=int, default=1_300_000, help="empty files to make (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="measure this folder of classes instead")
    parser.add_argument("--where", type=Path, help="where to make the files (default: the system's temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fastload-source-memory-", dir=arguments.where) as room:
        scratch = Path(room)
        make_folder(scratch / "tiny", 1)
        folder = arguments.folder
        if folder is None:
            folder = scratch / "files"
            print(f"made {arguments.files:,} files in {make_folder(folder, arguments.files):.0f} s")
        print(f"{'':12}{'samples':>10}{'open':>9}{'CPU':>9}{'growth':>10}{'at peak':>10}{'fork':>12}{'spawn':>12}")
        for name in CONTESTANTS:
            done = process.run("benchmarks.source_memory:measure", name, str(folder), str(scratch / "tiny"), cwd=ROOT)
            if done.answer is None:
                print(f"{name:12}{done.words}")
                continue
            figures = done.answer
            print(
                f"{name:12}{figures['samples']:>10,.0f}{figures['seconds']:>7.2f} s{figures['cpu']:>7.2f} s"
                f"{figures['growth']:>7.0f} MB{figures['peak']:>7.0f} MB"
                f"{figures['fork']:>+9.1f} MB{figures['spawn']:>+9.1f} MB"
            )
    print("fork, spawn: memory of its own that each worker holds for the data set")


if __name__ == "__main__":
    main()
