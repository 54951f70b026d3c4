"""Memory and time that a class folder of millions of files takes, in the main process and in its workers.

    python benchmarks/source_memory.py                    # makes 1,300,000 empty files, and removes them
    python benchmarks/source_memory.py --files 100000
    python benchmarks/source_memory.py --folder data/train

Prints, for fastload and for torchvision's ImageFolder, each in a fresh process: the growth of resident memory (now, and
at its peak while opening), the seconds it took, and how much more memory of its own (USS: pages shared with no other
process) a worker holds after going through all samples than a worker that was given a folder of one file.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def resident(field: str = "VmRSS") -> int:
    """VmRSS (now) or VmHWM (peak) of this process [bytes]."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(field))


def unshared() -> int:
    """Pages that only this process holds [bytes]."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
        return sum(int(line.split()[1]) << 10 for line in rollup if line.startswith("Private_"))


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
    results.send(unshared())
    results.close()


def worker_memory(name: str, data: Any, method: str) -> float:
    """USS of the largest of two workers [bytes], both alive while they are measured."""
    context: Any = multiprocessing.get_context(method)
    running = []
    for _ in range(WORKERS):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(name, data, theirs))
        process.start()
        theirs.close()
        running.append((process, ours))
    found = [ours.recv() for _, ours in running]
    for process, _ in running:
        process.join()
    return float(max(found))


def measure(name: str, folder: str, tiny: str) -> dict[str, float]:
    """All figures of one contestant; run in a fresh process."""
    small = CONTESTANTS[name][0](tiny)  # imports, and everything else that happens once
    gc.collect()
    before = resident()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from here
    start = time.perf_counter()
    data = CONTESTANTS[name][0](folder)
    seconds = time.perf_counter() - start
    figures = {
        "samples": float(len(data)),
        "seconds": seconds,
        "growth": (resident() - before) / MB,
        "peak": (resident("VmHWM") - before) / MB,
    }
    for method in ("fork", "spawn"):
        extra = worker_memory(name, data, method) - worker_memory(name, small, method)
        figures[method] = extra / MB
    return figures


def measured_apart(name: str, folder: Path, tiny: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", name, str(folder), str(tiny)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--files", type=int, default=1_300_000, help="empty files to make (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="measure this folder of classes instead")
    parser.add_argument("--where", type=Path, help="where to make the files (default: the system's temporary folder)")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    scratch = Path(tempfile.mkdtemp(prefix="fastload-source-memory-", dir=arguments.where))
    try:
        make_folder(scratch / "tiny", 1)
        folder = arguments.folder
        if folder is None:
            folder = scratch / "files"
            print(f"made {arguments.files:,} files in {make_folder(folder, arguments.files):.0f} s")
        print(f"{'':12}{'samples':>10}{'open':>9}{'growth':>10}{'at peak':>10}{'fork':>12}{'spawn':>12}")
        for name in CONTESTANTS:
            figures = measured_apart(name, folder, scratch / "tiny")
            print(
                f"{name:12}{figures['samples']:>10,.0f}{figures['seconds']:>7.1f} s{figures['growth']:>7.0f} MB"
                f"{figures['peak']:>7.0f} MB{figures['fork']:>+9.1f} MB{figures['spawn']:>+9.1f} MB"
            )
        print("fork, spawn: memory of its own that each worker holds for the data set")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
