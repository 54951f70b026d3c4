"""Decoding on the GPU, on the CPU, and on both: images a second, with no network to feed.

Two tasks that must not be mixed up: whole photographs to pixels of their own size, which is all that torchvision's and
torchcodec's decoders do, and batches of random crops of one size on the device, which a trainer needs. Whatever decodes
on the GPU is measured in a process of its own, which may die.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

import fastload
from benchmarks.gpu.feeds import Variant, every_variant, of_loader, rate_of
from benchmarks.gpu.setting import Found, Setting
from fastload.backends import available_backends
from fastload.backends.base import PixelDifference
from fastload.errors import BackendUnavailableError
from fastload.measure.images import training_pixels
from fastload.measure.results import Measurement, Round

WHOLE, CROPS, SAME = "decoding whole photographs", "decoding random crops", "decoded pixels against the CPU's"
"""The modes of the rows."""
_FILES = 512
"""Photographs held in memory for whole decoding."""
_CALL = 64
"""Photographs a call."""
_GPU_SHARE = 0.25
"""Of the threads."""

Decode = Callable[[list[torch.Tensor], torch.device], list[torch.Tensor]]


@dataclass(frozen=True)
class Decoder:
    """One contestant."""

    name: str
    mode: str
    rate: Callable[..., Round]
    """With so many `threads`. Raises BackendUnavailableError where its package is missing."""
    may_die: bool = False
    whole: Decode | None = None
    """What decodes whole photographs, if its pixels are to be compared with the CPU's."""


def decoders(setting: Setting) -> list[Decoder]:
    """All that there are, those that may die too."""
    gpu = setting.where().type == "cuda"
    found = []
    for package, decode in (("torchvision", _torchvision), ("torchcodec", _torchcodec)):
        found.append(Decoder(f"{package}, CPU", WHOLE, partial(_one_by_one, setting, decode)))
        found.append(Decoder(f"{package}, device", WHOLE, partial(_by_calls, setting, decode), gpu, decode))
    for name, region in (("DALI graph, region decoded", True), ("DALI graph, whole decoded, then cut", False)):
        found.append(Decoder(name, CROPS, partial(_dali_graph, setting, region=region), True))
    traits = {row.name: row.traits for row in available_backends()}
    # What decodes once and keeps the pixels does not belong here, nor one process for each thread.
    ours = [v for v in every_variant(setting) if not (traits[v.backend].prepares or traits[v.backend].processes)]
    beside = [(next(v for v in ours if not v.on_device), v) for v in ours if v.on_device]
    for some in (*((v,) for v in ours), *beside):
        name = f"fastload {' and '.join(v.name for v in some)}"
        found.append(Decoder(name, CROPS, partial(_crops, setting, *some), any(v.may_die for v in some)))
    return found


def run(setting: Setting, found: Found) -> None:
    warnings.filterwarnings("ignore", message=".*decod.*", module="torchvision")  # newer ones: use torchcodec
    for decoder in decoders(setting):
        if decoder.name not in setting.only if setting.only else decoder.may_die:
            continue
        for threads in setting.threads:
            row = Measurement(decoder.name, decoder.mode, {"threads": threads})
            if found.left < 2 * setting.rate_seconds:
                found.save(replace(row, status="not run", note="no time was left"))
                continue
            try:
                found.save(replace(row, rounds=(decoder.rate(threads=threads),)))
            except BackendUnavailableError as error:
                found.save(replace(row, status="unavailable", note=str(error)))
                break
            except Exception as error:  # of one decoder: the others are still to be measured
                found.save(replace(row, status="failed", note=f"{type(error).__name__}: {error}"))
        else:
            if decoder.whole is not None and setting.where().type == "cuda":
                found.add(decoder.name, SAME, _compare(setting, decoder.whole))


def _torchvision(batch: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    found: list[torch.Tensor] = decode_jpeg(batch, mode=ImageReadMode.RGB, device=str(device))
    return found


def _torchcodec(batch: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    found: list[torch.Tensor] = _package("torchcodec.decoders").decode_jpeg(batch, mode="RGB", device=str(device))
    return found


def _package(module: str) -> Any:
    name = module.split(".")[0]
    if find_spec(name) is None:
        raise BackendUnavailableError(f"{name} is not installed: pip install {name}")
    return import_module(module)


def _encoded(setting: Setting) -> tuple[list[torch.Tensor], int]:
    """Files in memory, and how many a call."""
    files = sorted(Path(setting.photos).glob("*/*"))[:_FILES]
    return [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in files], min(_CALL, len(files))


def _calls(encoded: list[torch.Tensor], call: int) -> Iterator[list[torch.Tensor]]:
    return cycle([encoded[start : start + call] for start in range(0, len(encoded) - call + 1, call)])


def _one_by_one(setting: Setting, decode: Decode, threads: int) -> Round:
    """One photograph a task: torch's operators let go of the GIL."""
    cpu = torch.device("cpu")
    with ThreadPoolExecutor(threads) as pool:
        calls = _calls(*_encoded(setting))
        sizes = (len(list(pool.map(lambda image: decode([image], cpu), batch))) for batch in calls)
        return rate_of(sizes, setting.rate_seconds, cpu)


def _by_calls(setting: Setting, decode: Decode, threads: int) -> Round:
    """One call for many photographs in each thread: part of the work is the CPU's, also here."""
    device = setting.where()
    calls = _calls(*_encoded(setting))
    with ThreadPoolExecutor(threads) as pool:

        def sizes() -> Iterator[int]:
            running = [pool.submit(decode, next(calls), device) for _ in range(threads)]
            while True:
                running.append(pool.submit(decode, next(calls), device))
                yield len(running.pop(0).result())

        return rate_of(sizes(), setting.rate_seconds, device, ahead=threads)


def _compare(setting: Setting, decode: Decode) -> dict[str, float | None]:
    encoded, call = _encoded(setting)
    pairs = zip(decode(encoded[:call], setting.where()), decode(encoded[:call], torch.device("cpu")), strict=True)
    found = [PixelDifference.between(on_device, on_cpu) for on_device, on_cpu in pairs]
    worst = min(difference.psnr for difference in found)
    return {
        "images": len(found),
        "equal": sum(not d.largest for d in found),
        "worst_psnr_db": worst if isfinite(worst) else None,
    }


def _dali_graph(setting: Setting, threads: int, *, region: bool) -> Round:
    """A graph of DALI alone, by either way to a crop: decode the region, or all of it, and cut on the device."""
    dali, fn = _package("nvidia.dali"), _package("nvidia.dali.fn")
    device = setting.where()
    gpu = device.type == "cuda"
    where = "mixed" if gpu else "cpu"
    graph = dali.Pipeline(setting.batch_size, threads, device.index if gpu else None)
    with graph:
        encoded, _ = fn.readers.file(file_root=setting.photos, random_shuffle=True)
        start, shape = fn.random_crop_generator(
            fn.peek_image_shape(encoded), random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0]
        )
        if region:
            images = fn.decoders.image_slice(encoded, start=start, shape=shape, axes=[0, 1], device=where)
        else:
            # The hardware engine is reported not to keep to the order of the stream.
            images = fn.decoders.image(encoded, device=where, **({"hw_decoder_load": 0.0} if gpu else {}))
            images = fn.slice(images, start=start, shape=shape, axes=[0, 1])
        graph.set_outputs(fn.resize(images, size=[setting.size] * 2, interp_type=dali.types.INTERP_TRIANGULAR))
    graph.build()
    return rate_of((len(graph.run()[0]) for _ in cycle([None])), setting.rate_seconds, device, ahead=2)


def _crops(setting: Setting, *variants: Variant, threads: int) -> Round:
    """The loaders of one trainer, each with a part of the threads; several are emptied side by side."""
    # What feeds the GPU needs fewer threads when it decodes beside the CPU.
    few = max(1, round(threads * _GPU_SHARE))
    shares = [threads] if len(variants) == 1 else [max(1, threads - few), few]
    given = {"batch_size": setting.batch_size, "transform": training_pixels(setting.size)}
    ready: queue.Queue[int | BaseException] = queue.Queue(2)
    stop = threading.Event()

    def empty(loader: fastload.Loader) -> None:
        try:
            for _, labels in of_loader(loader):
                ready.put(len(labels))
                if stop.is_set():
                    return
        except BaseException as error:
            ready.put(error)

    def sizes() -> Iterator[int]:
        while True:
            found = ready.get()
            if isinstance(found, BaseException):
                raise found
            yield found

    with ExitStack() as stack:
        loaders = [
            stack.enter_context(variant.create(setting, num_workers=share, **given))
            for variant, share in zip(variants, shares, strict=True)
        ]
        for loader in loaders:
            threading.Thread(target=empty, args=(loader,), daemon=True).start()
        ahead = sum(loader.batches_in_flight for loader in loaders)
        try:
            return rate_of(sizes(), setting.rate_seconds, setting.where(), ahead=ahead)
        finally:
            stop.set()
            with suppress(queue.Empty):
                while True:
                    ready.get(timeout=0.5)  # free the threads that wait to put
