"""The contract suite on the device, in a process of its own, and then what only photographs and a GPU can tell: pixels
against the reference, resuming, memory, and that no other GPU is touched."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from pathlib import Path

import torch
from msgspec import structs

from benchmarks.gpu.feeds import Variant, every_variant, synchronize, variants
from benchmarks.gpu.setting import ROOT, Found, Setting
from benchmarks.gpu.streams import awaited
from fastload.backends import available_backends
from fastload.backends.base import PixelDifference
from fastload.measure.clock import peak_memory, reset_peak_memory, resident_memory
from fastload.measure.images import training_pixels
from fastload.measure.results import Failure, Measurement, Round

SUITE, PIXELS, RESUME, MEMORY, OTHER_GPUS = "contract suite", "pixels", "resuming", "memory", "contexts on other GPUs"
"""The modes of the rows."""
_SUITE_SHARE = 0.7
"""Of the part's time."""
_PROCESSES = 6
"""Each has a context on the GPU, which takes half a gigabyte."""
_BATCHES = 8
"""Whose pixels are compared."""


def run(setting: Setting, found: Found) -> None:
    risky = [v.name.replace(", ", "-") for v in every_variant(setting) if v.may_die]
    for chosen in [name.replace(", ", "-") for name in setting.only] or [" and ".join(f"not {name}" for name in risky)]:
        name = f"pytest, {chosen}" if setting.only else "pytest"
        try:
            found.save(_suite(setting, name, chosen, found.left * _SUITE_SHARE))
        except Exception as error:  # the checks do not depend on it
            found.failed(name, SUITE, error)
    checks: dict[str, Callable[[Setting, Variant], dict[str, float | None]]]
    checks = {MEMORY: _memory, PIXELS: _pixels, RESUME: _resume}  # memory before anything is held of it
    for variant in variants(setting):
        for mode, check in checks.items():
            if found.left < 2:
                found.note(f"no time was left for {mode} of {variant.name}")
                continue
            try:
                found.add(variant.name, mode, check(setting, variant))
            except Exception as error:  # the other checks are still to be made
                found.failed(variant.name, mode, error)
    found.save(_contexts_elsewhere(setting.where()))


def _suite(setting: Setting, name: str, chosen: str, seconds: float) -> Measurement:
    """Those of its tests that `chosen` chooses, as pytest's -k."""
    if find_spec("pytest") is None:
        remedy = "pytest is not installed: pip install pytest pytest-timeout"
        return Measurement(name, SUITE, status="unavailable", note=remedy)
    report = Path(setting.out) / "contract.xml"
    report.unlink(missing_ok=True)
    # The project's own settings make errors of warnings, which here may be those of another version of torch.
    command = [sys.executable, "-m", "pytest", "tests/test_contract.py", "-q", "-W", "default", "--tb=short"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}"]
    if find_spec("pytest_timeout") is None:
        command += ["-c", os.devnull, f"--rootdir={ROOT}"]
    if find_spec("xdist") is not None:
        command += ["-n", str(_PROCESSES if setting.where().type == "cuda" else 0)]
    if expression := " and ".join(f"({part})" for part in (setting.contract, chosen) if part):
        command += ["-k", expression]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "FASTLOAD_TEST_DEVICE": setting.device, "PYTHONPATH": path}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    note = ""
    try:
        process.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        note = f"interrupted after {seconds:.0f} s"
        process.send_signal(signal.SIGINT)  # pytest then writes its report of what it has done
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()  # its workers end with this part
            process.wait()
    if not report.exists():
        note = note or f"pytest ended with {process.returncode} and left no report"
        return Measurement(name, SUITE, status="failed", note=note)
    found = read_junit(report, note)
    report.unlink()
    return structs.replace(found, contestant=name)


def read_junit(report: Path, note: str = "") -> Measurement:
    """Counts, what failed, and why tests were skipped."""
    counts: Counter[str] = Counter()
    failures = []
    skipped: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = "passed"
        for child in case:
            message = (child.get("message") or "").strip()
            if child.tag in ("failure", "error"):
                outcome = "failed"
                failures.append(Failure(case.get("name") or "", (message.splitlines() or [""])[0]))
            elif child.tag == "skipped":
                outcome = "skipped"
                skipped[message] += 1
        counts[outcome] += 1
    reasons = [f"{count} skipped: {reason}" for reason, count in skipped.items()]
    # That nothing failed where nothing ran must not be read as right.
    nothing = "" if counts["passed"] or counts["failed"] else "no test was run to its end"
    metrics: dict[str, float | None] = {name: float(counts[name]) for name in ("passed", "failed", "skipped")}
    return Measurement(
        "pytest",
        SUITE,
        status="failed" if nothing else "measured",
        note="; ".join(filter(None, [note, nothing, *reasons])),
        rounds=(Round(0, 0.0, 0.0, metrics),),
        failures=tuple(failures),
    )


def _pixels(setting: Setting, variant: Variant) -> dict[str, float | None]:
    """The same samples as those of torchvision's own code, or of the same cache, made on the CPU."""
    traits = {row.name: row.traits for row in available_backends()}
    ours = traits[variant.backend]
    reference = next(
        v
        for v in every_variant(setting)
        if (v.backend == variant.backend if ours.prepares else traits[v.backend].runs_opaque)
    )
    got = _images(setting, variant, setting.where())
    difference = PixelDifference.between(got, _reference(setting, reference))
    return {
        "wrong": float(not ours.tolerance.allows(difference, on_gpu=variant.on_device)),
        "images": len(got),
        "largest_difference": difference.largest,
        "mean_difference": difference.mean,
        "psnr_db": difference.psnr if isfinite(difference.psnr) else None,
    }


@cache
def _reference(setting: Setting, variant: Variant) -> torch.Tensor:
    """Made once: its workers take longer to start than to work."""
    return _images(setting, variant, torch.device("cpu"))


def _images(setting: Setting, variant: Variant, device: torch.device) -> torch.Tensor:
    with variant.create(setting, transform=training_pixels(setting.size), device=device) as loader:
        return torch.cat([images.cpu() for images, _ in islice(loader, _BATCHES)])


def _resume(setting: Setting, variant: Variant) -> dict[str, float | None]:
    """From some places of an epoch, the same batches as without interruption, to the last bit."""
    with variant.create(setting, transform=training_pixels(setting.size)) as loader:
        length = min(len(loader), 12)
        places = sorted({1, length // 2, length - 1})
        states, wanted = {}, []
        for step, batch in enumerate(islice(loader, length), 1):
            wanted += awaited(iter([batch]))
            if step in places:
                states[step] = loader.state_dict()
    wrong = 0
    for step, state in states.items():
        with variant.create(setting, transform=training_pixels(setting.size)) as resumed:
            resumed.load_state_dict(state)
            got = awaited(islice(iter(resumed), length - step))
        wrong += sum(a != b for a, b in zip(got, wanted[step:], strict=True))
    return {"wrong": wrong, "places": len(places)}


def _memory(setting: Setting, variant: Variant) -> dict[str, float | None]:
    """What it takes at the batch size of training: on the host, and on the device by torch and by the driver."""
    device = setting.where()
    gpu = device.type == "cuda"
    gc.collect()
    reset_peak_memory()
    host = resident_memory()
    free = 0
    if gpu:
        synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        free = torch.cuda.mem_get_info(device)[0]
    allocated = torch.cuda.memory_allocated(device) if gpu else 0
    with variant.create(setting, batch_size=setting.batch_size, transform=training_pixels(setting.size)) as loader:
        for _ in range(2):
            for _ in islice(loader, 12):
                pass
        row: dict[str, float | None] = {"host_bytes": peak_memory() - host}
        if gpu:
            synchronize(device)
            row["torch_peak_bytes"] = torch.cuda.max_memory_allocated(device) - allocated
            row["device_bytes"] = free - torch.cuda.mem_get_info(device)[0]
    return row


def _contexts_elsewhere(device: torch.device) -> Measurement:
    """Whether this process has a context on a GPU that it was not told to use."""
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        note = "there is one GPU" if device.type == "cuda" else "the batches go to the CPU"
        return Measurement("this process", OTHER_GPUS, status="not run", note=note)
    others = [index for index in range(torch.cuda.device_count()) if index != device.index]
    wrong = {index for index in others if torch.cuda.memory_reserved(index)}
    note = ""
    try:
        import pynvml

        pynvml.nvmlInit()
        for index in others:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
            if os.getpid() in {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}:
                wrong.add(index)
    except Exception as error:  # not installed, no driver, a container: each has its own
        note = f"only torch's memory was looked at, the driver does not tell ({error})"
    return Measurement("this process", OTHER_GPUS, note=note, rounds=(Round(0, 0.0, 0.0, {"wrong": len(wrong)}),))
