"""Decoding on the GPU, on the CPU, and on both: images a second, with no network to feed.

Two tasks that must not be mixed up: whole photographs to pixels of their own size, which is all that torchvision's
decoder does, and batches of random crops of one size on the device, which a trainer needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from benchmarks.gpu.checks import psnr
from benchmarks.gpu.found import Found
from benchmarks.gpu.rates import Source, rate_of, rates_together
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.streams import endless
from benchmarks.gpu.variants import Variant, pixels, variants
from fastload.errors import BackendUnavailableError

__all__ = ["run"]

_FILES = 512
"""Photographs held in memory for whole decoding."""
_CALL = 64
"""Photographs a call."""
_GPU_SHARE = 0.25
"""Of the threads: what feeds the GPU when it decodes beside the CPU."""


def run(setting: Setting, found: Found) -> None:
    warnings.filterwarnings("ignore", message=".*decod.*", module="torchvision")  # newer ones: use another package
    device = setting.where()
    files = sorted(Path(setting.photos).glob("*/*"))[:_FILES]
    encoded = [read_file(str(path)) for path in files]
    call = min(_CALL, len(encoded))

    def measured(task: str, name: str, threads: int, work: Callable[[], dict[str, Any]]) -> None:
        row: dict[str, Any] = {"task": task, "name": name, "threads": threads}
        if found.left < 2 * setting.rate_seconds:
            row.update(status="not run", note="no time was left")
        else:
            try:
                row.update(work(), status="measured")
            except BackendUnavailableError as error:
                row.update(status="unavailable", note=str(error))
            except Exception as error:  # of one decoder: the others are still to be measured
                row.update(status="failed", note=f"{type(error).__name__}: {error}")
        found.append("rows", row)

    if device.type == "cuda":
        found.save("torchvision_pixels", _compare(encoded[:call], device))
    else:
        found.note("torchvision decodes on the CPU here: there is no GPU")
    for threads in setting.threads:
        measured("whole", "torchvision, CPU", threads, lambda t=threads: _on_cpu(setting, encoded, call, t))
        measured("whole", "torchvision, device", threads, lambda t=threads: _on_device(setting, encoded, call, t))
    for variant in _decoders(setting):
        for threads in setting.threads:
            measured("crops", variant.name, threads, lambda v=variant, t=threads: _crops(setting, v, t))
    most = setting.threads[-1]
    measured("crops", "turbojpeg and dali together", most, lambda: _both(setting, most))


def _decoders(setting: Setting) -> list[Variant]:
    return [v for v in variants(setting) if v.name in ("turbojpeg", "dali", "dali, cpu")]


def _decode(batch: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    found: list[torch.Tensor] = decode_jpeg(batch, mode=ImageReadMode.RGB, device=str(device))
    return found


def _on_cpu(setting: Setting, encoded: list[torch.Tensor], call: int, threads: int) -> dict[str, Any]:
    """One photograph a task: torch's operators let go of the GIL."""
    cpu = torch.device("cpu")
    with ThreadPoolExecutor(threads) as pool:

        def work() -> Source:
            for batch in _calls(encoded, call):
                yield len(list(pool.map(lambda image: _decode([image], cpu), batch)))

        return rate_of(work(), setting.rate_seconds, cpu)


def _on_device(setting: Setting, encoded: list[torch.Tensor], call: int, threads: int) -> dict[str, Any]:
    """One call for many photographs in each thread: part of the work is the CPU's, also here."""
    device = setting.where()
    with ThreadPoolExecutor(threads) as pool:

        def decode(batch: list[torch.Tensor]) -> int:
            return len(_decode(batch, device))

        def work() -> Source:
            calls = _calls(encoded, call)
            running = [pool.submit(decode, next(calls)) for _ in range(threads)]
            while True:
                running.append(pool.submit(decode, next(calls)))
                yield running.pop(0).result()

        return rate_of(work(), setting.rate_seconds, device, ahead=threads)


def _calls(encoded: list[torch.Tensor], call: int) -> Iterator[list[torch.Tensor]]:
    return cycle([encoded[start : start + call] for start in range(0, len(encoded) - call + 1, call)])


def _compare(encoded: list[torch.Tensor], device: torch.device) -> dict[str, Any]:
    """The pixels of torchvision's CUDA decoder beside those of its CPU decoder."""
    try:
        pairs = zip(_decode(encoded, device), _decode(encoded, torch.device("cpu")), strict=True)
        values = [psnr(on_device.cpu(), on_cpu) for on_device, on_cpu in pairs]
    except Exception as error:  # built without nvJPEG
        return {"status": "failed", "note": f"{type(error).__name__}: {error}"}
    finite = [value for value in values if value != float("inf")]
    return {
        "status": "compared",
        "images": len(values),
        "equal": len(values) - len(finite),
        "worst_psnr_db": min(finite, default=None),
    }


def _crops(setting: Setting, variant: Variant, threads: int) -> dict[str, Any]:
    with variant.create(
        setting, batch_size=setting.batch_size, transform=pixels(setting), num_workers=threads
    ) as loader:
        sizes = (len(labels) for _, labels in endless(loader))
        return rate_of(sizes, setting.rate_seconds, setting.where(), ahead=loader.batches_in_flight)


def _both(setting: Setting, threads: int) -> dict[str, Any]:
    """The native core and DALI side by side, each with a part of the threads, as two loaders of one trainer."""
    ours, dali = (next(v for v in variants(setting) if v.name == name) for name in ("turbojpeg", "dali"))
    for_gpu = max(1, round(threads * _GPU_SHARE))
    given = {"batch_size": setting.batch_size, "transform": pixels(setting)}
    with (
        replace(ours, num_workers=max(1, threads - for_gpu)).create(setting, **given) as first,
        replace(dali, num_workers=for_gpu).create(setting, **given) as second,
    ):
        sources = {
            "turbojpeg": lambda: (len(labels) for _, labels in endless(first)),
            "dali": lambda: (len(labels) for _, labels in endless(second)),
        }
        return rates_together(sources, setting.rate_seconds, setting.where())
