"""Checks on photographs: pixels against the CPU, resuming, memory, and that no other GPU is touched."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from benchmarks.gpu.found import Found
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.streams import awaited
from benchmarks.gpu.variants import Variant, pixels, variants
from fastload.errors import BackendUnavailableError
from fastload.measure.clock import peak_memory, reset_peak_memory, resident_memory

__all__ = ["contexts_elsewhere", "psnr", "run"]

_BATCHES = 8
"""Whose pixels are compared."""
_PSNR = {"dali": 40.0, "dali, cpu": 45.0}
"""Published bounds of what has a resampler of its own [dB]; of all others the largest difference is 2, the mean 0.2."""


def run(setting: Setting, found: Found) -> None:
    for variant in variants(setting):
        row: dict[str, Any] = {"name": variant.name}
        checks: dict[str, Callable[[Setting, Variant], dict[str, Any]]]
        checks = {"memory": _memory, "pixels": _pixels, "resume": _resume}  # memory before anything is held of it
        for name, check in checks.items():
            if found.left < 2:
                found.note(f"no time was left for {name} of {variant.name}")
                continue
            try:
                row[name] = check(setting, variant)
            except BackendUnavailableError as error:
                row["status"], row["note"] = "unavailable", str(error)
                break
            except Exception as error:  # the other checks are still to be made
                row[name] = {"status": "failed", "note": f"{type(error).__name__}: {error}"}
        found.append("rows", row)
    found.save("other_gpus", contexts_elsewhere(setting.where()))


def psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of uint8 pixels [dB]."""
    mse = (a.double() - b.double()).square().mean().item()
    return math.inf if mse == 0 else 10 * math.log10(255**2 / mse)


def _pixels(setting: Setting, variant: Variant) -> dict[str, Any]:
    """The same samples as those made on the CPU: by the native core from files, or from the same cache."""
    name = "cache, disk" if variant.backend == "cache" else "turbojpeg"
    reference = next(v for v in variants(setting) if v.name == name)
    got = _images(setting, variant, setting.where())
    wanted = _images(setting, reference, torch.device("cpu"))
    difference = (got.short() - wanted.short()).abs()
    largest, mean = int(difference.max()), float(difference.float().mean())
    least = min(psnr(a, b) for a, b in zip(got, wanted, strict=True))
    bound = _PSNR.get(variant.name)
    whole = psnr(got, wanted)
    good = (largest <= 2 and mean <= 0.2) if bound is None else whole >= bound
    return {
        "status": "right" if good else "WRONG",
        "bound_db": bound,
        "psnr_db": _finite(whole),
        "psnr_of_the_worst_image_db": _finite(least),
        "largest_difference": largest,
        "mean_difference": mean,
        "images": len(got),
    }


def _images(setting: Setting, variant: Variant, device: torch.device) -> torch.Tensor:
    with variant.create(setting, transform=pixels(setting), device=device) as loader:
        return torch.cat([images.cpu() for images, _ in islice(loader, _BATCHES)])


def _resume(setting: Setting, variant: Variant) -> dict[str, Any]:
    """From some places of an epoch, the same batches as without interruption, to the last bit."""
    with variant.create(setting, transform=pixels(setting)) as loader:
        length = min(len(loader), 12)
        places = sorted({1, length // 2, length - 1})
        states, wanted = {}, []
        for step, batch in enumerate(islice(loader, length), 1):
            wanted += awaited(iter([batch]))
            if step in places:
                states[step] = loader.state_dict()
    wrong = 0
    for step, state in states.items():
        with variant.create(setting, transform=pixels(setting)) as resumed:
            resumed.load_state_dict(state)
            got = awaited(islice(iter(resumed), length - step))
        wrong += sum(a != b for a, b in zip(got, wanted[step:], strict=True))
    return {"status": "right" if not wrong else "WRONG", "places": places, "wrong_batches": wrong}


def _memory(setting: Setting, variant: Variant) -> dict[str, Any]:
    """What it takes at the batch size of training: on the host, and on the device by torch and by the driver."""
    device = setting.where()
    gpu = device.type == "cuda"
    gc.collect()
    reset_peak_memory()
    host = resident_memory()
    free = 0
    if gpu:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        free = torch.cuda.mem_get_info(device)[0]
    allocated = torch.cuda.memory_allocated(device) if gpu else 0
    epochs = []
    with variant.create(setting, batch_size=setting.batch_size, transform=pixels(setting)) as loader:
        for _ in range(2):
            for _ in islice(loader, 12):
                pass
            epochs.append(resident_memory() - host)
        row = {"host_bytes": peak_memory() - host, "host_bytes_after_epochs": epochs}
        if gpu:
            torch.cuda.synchronize(device)
            row["torch_peak_bytes"] = torch.cuda.max_memory_allocated(device) - allocated
            row["device_bytes"] = free - torch.cuda.mem_get_info(device)[0]
    return row


def contexts_elsewhere(device: torch.device) -> dict[str, Any]:
    """Whether this process has a context on a GPU that it was not told to use."""
    if device.type != "cuda":
        return {"status": "not checkable", "note": "the batches go to the CPU"}
    if torch.cuda.device_count() < 2:
        return {"status": "not checkable", "note": "there is one GPU"}
    others = [index for index in range(torch.cuda.device_count()) if index != device.index]
    by_torch = [index for index in others if torch.cuda.memory_reserved(index)]
    note = ""
    found: list[int] = []
    try:
        import pynvml

        pynvml.nvmlInit()
        for index in others:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
            pids = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            if os.getpid() in pids:
                found.append(index)
    except ImportError:
        note = "nvidia-ml-py is not installed: only torch's memory was looked at"
    except pynvml.NVMLError as error:
        note = f"the driver does not tell ({error}): only torch's memory was looked at"
    wrong = sorted({*by_torch, *found})
    return {"status": "WRONG" if wrong else "right", "gpus": wrong, "note": note}


def _finite(value: float) -> float | None:
    """None for equal pixels: JSON has no infinity."""
    return value if math.isfinite(value) else None
