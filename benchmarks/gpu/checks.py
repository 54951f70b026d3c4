"""Whether it is right: the contract suite on the device, in a process of its own, and what only
photographs and a GPU can tell: pixels against the reference, resuming, memory, no other GPU
touched."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from msgspec import structs

from benchmarks.gpu.feeds import Variant, every_variant, synchronize, variants
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.streams import awaited
from benchmarks.inputs import ROOT
from fastload.backends.tolerance import PixelDifference
from fastload.errors import BackendUnavailableError
from fastload.tools.measure import process
from fastload.tools.measure.child import report as tell
from fastload.tools.measure.clock import peak_memory, reset_peak_memory, resident_memory
from fastload.tools.measure.images import training_pixels
from fastload.tools.measure.results import Failure, Measurement, Round

SUITE, PIXELS, RESUME, MEMORY, OTHER_GPUS, DIVIDED = (
    "contract suite",
    "pixels",
    "resuming",
    "memory",
    "contexts on other GPUs",
    "files divided among two ranks",
)
"""The modes of the rows."""
_SUITE_SHARE = 0.7
"""Of the part's time."""
_PROCESSES = 6
"""Each has a context on the GPU, which takes half a gigabyte."""
_BATCHES = 8
"""Whose pixels are compared."""


def run(setting: Setting, found: Found) -> None:
    every = every_variant(setting)
    planned = [v.name for v in every if v.plans]  # no contestants of the suite
    risky = [v.name for v in every if v.may_die and not v.plans]
    for name in setting.only or (" and ".join(f"not {name}" for name in risky),):
        if name in planned:
            continue
        found.save(_suite(setting, name.replace(", ", "-"), found.left * _SUITE_SHARE))
    for variant in variants(setting):
        # Memory before anything is held of it.
        checks = {MEMORY: _memory, PIXELS: _pixels, RESUME: _resume}
        if dict(variant.settings).get("compressed"):
            checks[DIVIDED] = partial(_divided, limit=found.left / 2)
        for mode, check in checks.items():
            found.attempt(variant.name, mode, partial(check, setting, variant))
    found.attempt(
        "this process", OTHER_GPUS, partial(_contexts_elsewhere, setting.where()), least=0
    )


def _suite(setting: Setting, chosen: str, seconds: float) -> Measurement:
    """The contract tests that `chosen` chooses, as pytest's -k."""
    name = f"pytest, {chosen}" if setting.only else "pytest"
    if find_spec("pytest") is None:
        remedy = "pytest is not installed: pip install pytest pytest-timeout"
        return Measurement(name, SUITE, status="unavailable", note=remedy)
    reports: list[tuple[str, str, str]] = []
    done = process.run(
        "benchmarks.gpu.checks:suite",
        " and ".join(f"({part})" for part in (setting.contract, chosen) if part),
        _PROCESSES if setting.gpu else 0,
        limit=seconds,
        environment={**os.environ, "FASTLOAD_TEST_DEVICE": setting.device},
        cwd=ROOT,
        output=Path(setting.out) / "log.txt",
        on_report=reports.append,
    )
    ended = f"interrupted after {seconds:.0f} s" if done.code is None else ""
    return tally(name, reports, done.words if done.code else ended)


def _files_marked() -> list[str]:
    """The files with tests that need a GPU: to import all others would take half a minute."""
    files = sorted((ROOT / "tests").glob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "pytest.mark.gpu" in file.read_text()]


MARKED = "tests for a GPU"
"""The mode of the rows of `run_marked`."""
_MARKED: dict[str, tuple[tuple[str, ...], int]] = {
    "pytest -m gpu": (("-m", "gpu", *_files_marked()), 1),
    "the fused kernels, bit for bit": (
        (
            "tests/test_render_fused.py",
            "tests/test_render_drawn.py",
            "tests/test_render_by_nvrtc.py",
        ),
        6,
    ),
    "steps that never wait": (("tests/test_train_engine.py", "-k", "no_step_waits"), 1),
}
"""Name: the tests, and the processes that share them on a GPU, where a kernel of each test is
compiled. They need no pytest-xdist."""


def run_marked(setting: Setting, found: Found) -> None:
    """All tests that need a GPU, those of the kernels and those of the trainer's steps, side by
    side. On a CPU the first are skipped, and the kernels run in Triton's interpreter, one process
    after the other."""
    if find_spec("pytest") is None:
        for name in _MARKED:
            note = "pytest is not installed"
            found.save(Measurement(name, MARKED, status="not run", note=note))
        return
    processes = [
        (name, options, (number, count if setting.gpu else 1))
        for name, (options, count) in _MARKED.items()
        for number in range(count if setting.gpu else 1)
    ]
    reports: dict[str, list[tuple[str, str, str]]] = {name: [] for name in _MARKED}
    notes: dict[str, list[str]] = {name: [] for name in _MARKED}
    with ThreadPoolExecutor(len(processes) if setting.gpu else 1) as pool:
        running = {
            pool.submit(_share_of, setting, found, options, share, reports[name]): name
            for name, options, share in processes
        }
        for done in as_completed(running):
            name = running[done]
            notes[name] += filter(None, [done.result()])
            row = tally(name, reports[name], "; ".join(notes[name]))
            if row.status == "failed" and not setting.gpu and reports[name] and "-m" in name:
                row = structs.replace(row, status="measured")  # all are skipped without a GPU
            found.save(structs.replace(row, mode=MARKED))


def _share_of(
    setting: Setting,
    found: Found,
    options: Sequence[str],
    share: tuple[int, int],
    reports: list[tuple[str, str, str]],
) -> str:
    """Run a share of these tests; what kept it from its end."""
    seconds = found.left
    if seconds < 1:
        return "no time was left"
    done = process.run(
        "benchmarks.gpu.checks:pytest_reports",
        *(options, share),
        limit=seconds,
        environment={**os.environ, "FASTLOAD_TEST_DEVICE": setting.device},
        cwd=ROOT,
        output=Path(setting.out) / "log.txt",
        on_report=reports.append,
    )
    if done.code is None:
        return f"interrupted after {seconds:.0f} s"
    return done.words if done.code else ""


def suite(expression: str, processes: int) -> None:
    """The contract suite, in a process of its own."""
    options = ["tests/test_contract.py", "-k", expression]
    if find_spec("xdist") is not None:
        options += ["-n", str(processes)]
    pytest_reports(options)


def pytest_reports(options: Sequence[str], share: tuple[int, int] = (0, 1)) -> None:
    """Run tests, and report each: its name, what came of it, and what it said. Of `share` (number,
    count): every count-th one, from that number on."""
    import pytest

    class Reporter:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            first, count = share
            items[:] = items[first::count]

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or not report.passed:
                where = report.longrepr
                said = (
                    where[2]
                    if isinstance(where, tuple)
                    else getattr(where, "reprcrash", where) or ""
                )
                tell(
                    (
                        report.nodeid.rpartition("::")[2],
                        report.outcome,
                        str(getattr(said, "message", said)),
                    )
                )

    # The project's own settings make errors of warnings, which here may be those of another version
    # of torch.
    options = [*options, "-q", "-W", "default", "--tb=short", "-p", "no:cacheprovider"]
    # A file of tests may import what was not brought; the others are to run.
    options.append("--continue-on-collection-errors")
    if find_spec("pytest_timeout") is None:
        options += ["-c", os.devnull, f"--rootdir={ROOT}"]
    pytest.main(options, plugins=[Reporter()])


def tally(name: str, reports: Iterable[tuple[str, str, str]], note: str = "") -> Measurement:
    """Counts, what failed, and why tests were skipped."""
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    failures, skipped = [], Counter[str]()
    for test, outcome, said in reports:
        counts[outcome] += 1
        if outcome == "failed":
            failures.append(Failure(test, said.partition("\n")[0]))
        elif outcome == "skipped":
            skipped[said.removeprefix("Skipped: ")] += 1
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
    """The same samples as those of torchvision's own code, or of the same cache, made on the
    CPU."""
    every = every_variant(setting)
    kept = variant.traits.prepares and not variant.plans
    same = [v for v in every if (v.backend == variant.backend if kept else v.traits.runs_opaque)]
    counts: dict[str, float | None] = {}
    got = _images(setting, variant, setting.where(), counts)
    difference = PixelDifference.between(got, _reference(setting, same[0]))
    wrong = not variant.traits.tolerance.allows(difference, on_gpu=variant.on_device)
    if variant.plans:  # those of the host, to the last bit
        host = next(v for v in every if v.backend == "turbojpeg" and not v.plans)
        wrong = wrong or not torch.equal(got, _reference(setting, host))
    return {
        "wrong": float(wrong),
        "images": len(got),
        "largest_difference": difference.largest,
        "mean_difference": difference.mean,
        "psnr_db": difference.psnr if isfinite(difference.psnr) else None,
        **counts,
    }


@cache
def _reference(setting: Setting, variant: Variant) -> torch.Tensor:
    """Made once: its workers take longer to start than to work."""
    return _images(setting, variant, torch.device("cpu"))


def _images(
    setting: Setting,
    variant: Variant,
    device: torch.device,
    counts: dict[str, float | None] | None = None,
) -> torch.Tensor:
    """The first batches of the first epoch. `counts`: gets what was decoded on the device."""
    with variant.create(setting, transform=training_pixels(setting.size), device=device) as loader:
        if variant.plans:
            for _ in loader:  # notes the points
                pass
            loader.set_epoch(0)
        found = torch.cat([images.cpu() for images, _ in islice(loader, _BATCHES)])
        on_device = loader.stats().on_device
        if counts is not None and on_device is not None:
            counts |= {"on_device": on_device.images, "refused": on_device.refused}
            counts |= {"parts": on_device.parts, "resident_bytes": on_device.resident}
        return found


def _divided(setting: Setting, variant: Variant, *, limit: float) -> dict[str, float | None]:
    """Two ranks that hold a part of the files each, on two GPUs where there are two, deliver the
    pixels of the host, to the last bit.

    Raises:
        RuntimeError: a rank has failed.
    """
    done = process.run(
        "benchmarks.gpu.checks:rank_with_a_part",
        *(setting, variant),
        launcher=(
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2"),
        ),
        limit=limit,
        cwd=ROOT,
        output=Path(setting.out) / "log.txt",
    )
    if len(done.answers) != 2:
        raise RuntimeError(done.words or f"interrupted after {limit:.0f} s")
    names = ("wrong", "images", "on_device", "refused", "resident_bytes")
    return {name: sum(rank[name] for rank in done.answers.values()) for name in names}


def rank_with_a_part(setting: Setting, variant: Variant) -> dict[str, float | None]:
    """In each of two processes."""
    from fastload.cache import resident_files
    from fastload.render.jpegs_on_device import MEMORY as OF_DECODING

    device = setting.where()
    if setting.gpu:
        rank = int(os.environ["LOCAL_RANK"])
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # As if three quarters of the files were what it can take; of a few files both ranks have some.
    files = sum(file.stat().st_size for file in Path(setting.photos).rglob("*.*"))
    module: Any = resident_files
    module._SLICE = 2
    module._free_on = lambda device: 2 * OF_DECODING + files * 3 // 4
    counts = dict[str, float | None]()
    got = _images(setting, variant, device, counts)
    host = next(v for v in every_variant(setting) if v.backend == "turbojpeg" and not v.plans)
    same = torch.equal(got, _reference(setting, host))
    return {"wrong": float(not same or counts["parts"] != 2), "images": len(got), **counts}


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
    """What it takes at the batch size of training: on the host, and on the device by torch and by
    the driver."""
    device = setting.where()
    gc.collect()
    reset_peak_memory()
    host, free, allocated = resident_memory(), 0, 0
    if setting.gpu:
        synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        free, allocated = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_allocated(device)
    with variant.create(
        setting, batch_size=setting.batch_size, transform=training_pixels(setting.size)
    ) as loader:
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
    """Whether this process has a context on a GPU that it was not asked to use.

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
            handle = pynvml.nvmlDeviceGetHandleByUUID(
                f"GPU-{torch.cuda.get_device_properties(index).uuid}"
            )
            wrong += os.getpid() in {
                process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            }
    except Exception as error:  # not installed, no driver, a container: each has its own
        raise BackendUnavailableError(f"the driver does not tell: {error}") from error
    return {"wrong": wrong}
