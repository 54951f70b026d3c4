"""The contract suite on the device, in a process of its own, and then what only photographs and a GPU can tell: pixels
against the reference, resuming, memory, and that no other GPU is touched."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from pathlib import Path
from xml.etree import ElementTree

import torch

from benchmarks.gpu.feeds import Variant, every_variant, synchronize, variants
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.streams import awaited
from benchmarks.inputs import ROOT
from fastload.backends.base import PixelDifference
from fastload.errors import BackendUnavailableError
from fastload.measure.clock import peak_memory, reset_peak_memory, resident_memory
from fastload.measure.images import training_pixels
from fastload.measure.results import Failure, Measurement, Round
from fastload.measure.rounds import status_of

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
            status, note = status_of(error)
            found.save(Measurement(name, SUITE, status=status, note=note))
    for variant in variants(setting):
        # Memory before anything is held of it.
        for mode, check in {MEMORY: _memory, PIXELS: _pixels, RESUME: _resume}.items():
            found.attempt(variant.name, mode, partial(check, setting, variant))
    found.attempt("this process", OTHER_GPUS, partial(_contexts_elsewhere, setting.where()), least=0)


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
        command += ["-n", str(_PROCESSES if setting.gpu else 0)]
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
    found = read_junit(report, name, note)
    report.unlink()
    return found


def read_junit(report: Path, name: str, note: str = "") -> Measurement:
    """Counts, what failed, and why tests were skipped."""
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    failures, skipped = [], Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        said = {child.tag: (child.get("message") or "").strip() for child in case}
        if broken := said.keys() & {"failure", "error"}:
            counts["failed"] += 1
            failures.append(Failure(case.get("name") or "", said[min(broken)].partition("\n")[0]))
        elif "skipped" in said:
            counts["skipped"] += 1
            skipped[said["skipped"]] += 1
        else:
            counts["passed"] += 1
    reasons = [f"{count} skipped: {reason}" for reason, count in skipped.items()]
    # That nothing failed where nothing ran must not be read as right.
    nothing = "" if counts["passed"] or counts["failed"] else "no test was run to its end"
    return Measurement(
        name,
        SUITE,
        status="failed" if nothing else "measured",
        note="; ".join(filter(None, [note, nothing, *reasons])),
        rounds=(Round(0, 0.0, 0.0, counts),),
        failures=tuple(failures),
    )


def _pixels(setting: Setting, variant: Variant) -> dict[str, float | None]:
    """The same samples as those of torchvision's own code, or of the same cache, made on the CPU."""
    every = every_variant(setting)
    same = [v for v in every if (v.backend == variant.backend if variant.traits.prepares else v.traits.runs_opaque)]
    got = _images(setting, variant, setting.where())
    difference = PixelDifference.between(got, _reference(setting, same[0]))
    return {
        "wrong": float(not variant.traits.tolerance.allows(difference, on_gpu=variant.on_device)),
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
        places = {1, length // 2, length - 1}
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
    gc.collect()
    reset_peak_memory()
    host, free, allocated = resident_memory(), 0, 0
    if setting.gpu:
        synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        free, allocated = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_allocated(device)
    with variant.create(setting, batch_size=setting.batch_size, transform=training_pixels(setting.size)) as loader:
        for _ in range(2):
            for _ in islice(loader, 12):
                pass
        row: dict[str, float | None] = {"host_bytes": peak_memory() - host}
        if setting.gpu:
            synchronize(device)
            row["torch_peak_bytes"] = torch.cuda.max_memory_allocated(device) - allocated
            row["device_bytes"] = free - torch.cuda.mem_get_info(device)[0]
    return row


def _contexts_elsewhere(device: torch.device) -> dict[str, float | None]:
    """Whether this process has a context on a GPU that it was not told to use.

    Raises:
        BackendUnavailableError: there is no other GPU, or the driver cannot be asked.
    """
    others = {index for index in range(torch.cuda.device_count()) if index != device.index}
    if device.type != "cuda" or not others:
        raise BackendUnavailableError("there is no other GPU")
    try:
        import pynvml

        pynvml.nvmlInit()
        wrong = 0
        for index in others:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
            wrong += os.getpid() in {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except Exception as error:  # not installed, no driver, a container: each has its own
        raise BackendUnavailableError(f"the driver does not tell: {error}") from error
    return {"wrong": wrong}
