"""Runs a suite of others with fastload in the place of its DataLoader (see foreign_suites.sh)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

KINDS = {
    "DataLoader": "torch.utils.data",
    "StatefulDataLoader": "torchdata.stateful_dataloader",
    "DataLoaderShard": "accelerate.data_loader",
    "DataLoaderDispatcher": "accelerate.data_loader",
    "SkipDataLoader": "accelerate.data_loader",
}
"""Classes of loaders, and where they are."""

FACE = f"""
import importlib
import fastload

KINDS = {KINDS}

def __getattr__(name):
    if name not in KINDS:
        raise AttributeError(name)
    kind = getattr(importlib.import_module(KINDS[name]), name)
    return lambda *arguments, **named: fastload.from_dataloader(kind(*arguments, **named))
"""
"""What the tests call in the place of the classes."""

WHY = {
    r"test_partial_workers|test_proper_exit": "private: looks at the iterator's own list of "
    "workers",
    r"test_get_worker_info": "private: compares with the iterator's own list of workers",
    r"test_shuffler_iterdatapipe": "private: ends the workers through loader._iterator",
    r"test_error_in_init": "worker_init_fn: tensors are served without workers, so that it is "
    "not called",
    r"test_worker_init_fn|test_worker_seed": "random numbers are of (seed, epoch, sample), and "
    "not of the worker",
    r"test_iterable_style_dataset.*Should not warn": "workers start with the first next(), so that "
    "torch warns there of more workers than cores, and not in iter()",
    r"test_out_of_order_index_ds": "in_order=False allows another order, and fastload keeps "
    "the order",
    r"test_multi_epochs_reproducibility|test_reproducib": "another random order, of the same "
    "distribution",
    r"KeyError: '(_snapshot|dataset_state)": "private: reads the inside of a "
    "StatefulDataLoader's state",
    r"test_sampler_next_yielded.*_EPOCH": "private: the inside of a sampler of another version "
    "of torchdata",
    r"(Iterable|FastStateDict|MultiEpochState|SnapshotZero|SnapshotEnd).*(not "
    r"equal|mismatch|StopIteration)": (
        "data sets that keep a state or random numbers of their own: fastload reads up to the "
        "place again"
    ),
    r"test_init_error": "an error of a data set's own load_state_dict, which is not called",
    r"test_num_workers_mismatch": "a state is good for any number of workers, where torchdata "
    "refuses",
    r"test_has_len|test_warning_on_zero_len": "the warning names the class, which is Loader",
    r"test_combined_loader_can_be_pickled": "an iterator cannot be pickled, by another error",
    r"test_auto_add_worker_init_fn:|test_combined_dataset_no_length": "no data set: a Mock, or an "
    "object without samples, is refused when the loader is made",
    r"test_warning_with_few_workers_multi_loader": "one loader several times at once, and a Loader "
    "has one iterator at a time",
    r"Trying to inject custom `Sampler`": "private: a function inside Lightning, whose caller gets "
    "the plain DataLoader",
    r"differs in seed": "a state names the seed of its order, and a loader of another one "
    "refuses it",
}
"""Tests that are known not to pass, by a pattern of their name and what they said, and the
reason."""


def prepared(source: Path, target: Path) -> None:
    """A copy of a suite in which loaders are made by the face, in its scripts for other processes
    as well; the names still mean the classes."""
    names = "|".join(KINDS)
    made = rf"(?<![\w.])(?:torch\.utils\.data\.)?({names})\((?!\))"
    target.write_text(re.sub(made, r'__import__("face").\1(', source.read_text()))


def main(suite: str, folder: str, keywords: str) -> int:
    with tempfile.TemporaryDirectory() as around:
        work = os.path.join(around, "tests")  # Lightning's look for files left beside their folder
        os.mkdir(work)
        Path(work, "face.py").write_text(FACE)
        for source in sorted(Path(folder).glob("test_*.py")):
            prepared(source, Path(work, source.name))
        for source in Path(folder).glob("conftest.py"):
            Path(work, source.name).write_text(source.read_text())
        report = Path(work, "report.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n0",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:warnings",
        ]
        command += ["--timeout=300", "--tb=line", f"--junitxml={report}", "--rootdir", work, work]
        paths = [work, folder, os.environ.get("PYTHONPATH", "")]  # helpers of the suite's own
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
        }
        with open(Path(folder, "log.txt"), "w") as log:
            subprocess.run(
                command + (["-k", keywords] if keywords else []),
                cwd=work,
                env=environment,
                stdout=log,
                stderr=log,
            )
        cases = list(ElementTree.parse(report).iter("testcase"))
    counts = {"passed": 0, "failed, known why": 0, "failed": 0, "skipped": 0}
    rows = []
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        failure = next(
            (case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None
        )
        if case.find("skipped") is not None:
            counts["skipped"] += 1
        elif failure is None or "Unexpected success" in (failure.get("message") or ""):
            counts["passed"] += 1
        else:
            said = f"{name}: {(failure.get('message') or '').partition(chr(10))[0]}"
            reason = next((text for pattern, text in WHY.items() if re.search(pattern, said)), None)
            counts["failed" if reason is None else "failed, known why"] += 1
            rows.append((name, reason or f"NOT KNOWN: {said[len(name) + 2 :][:100]}"))
    print(
        f"{suite}: {', '.join(f'{count} {what}' for what, count in counts.items())} (all that "
        "was printed: log.txt)"
    )
    for name, reason in sorted(rows, key=lambda row: row[1]):
        print(f"    {name}: {reason}")
    return counts["failed"]


if __name__ == "__main__":
    sys.exit(min(1, main(*sys.argv[1:])))
