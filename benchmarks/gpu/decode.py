"""Decoding on the GPU, on the CPU, and on both: images a second, with no network to feed.

Two tasks that must not be mixed up: whole photographs to pixels of their own size, which is all
that torchvision's and torchcodec's decoders do, and batches of random crops of one size on the
device, which a trainer needs: of these decoders whole photographs, cut by fastload's kernels.
Whatever decodes on the GPU is measured in a process of its own, which may die. Whether nvJPEG works
on the SMs or in an engine of its own is its own choice: the driver says how busy that engine was.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from math import isfinite
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from msgspec import structs

from benchmarks.gpu import points
from benchmarks.gpu.feeds import Variant, decoding, of_loader, rate_of
from benchmarks.gpu.setting import Found, Setting
from fastload.backends.tolerance import PixelDifference
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError
from fastload.geometry import GeometryPlan
from fastload.recipe import Recipe
from fastload.render.device import render_on_device
from fastload.tools.measure.images import training_pixels
from fastload.tools.measure.results import Round

WHOLE, CROPS, SAME = (
    "decoding whole photographs",
    "decoding random crops",
    "decoded pixels against the CPU's",
)
"""The modes of the rows."""
_FILES = 512
"""Photographs held in memory for whole decoding."""
_CALL = 64
"""Photographs a call."""
_GPU_SHARE = 0.25
"""Of the threads: what feeds the GPU needs fewer when it decodes beside the CPU."""

Decode = Callable[[list[torch.Tensor], torch.device], list[torch.Tensor]]


@dataclass(frozen=True)
class Decoder:
    """One contestant."""

    name: str
    mode: str
    # With so many threads. Raises BackendUnavailableError where its package is missing.
    rate: Callable[[int], Round]
    may_die: bool = False
    same: Callable[[], dict[str, float | None]] | None = None  # compares the pixels with the CPU's


def decoders(setting: Setting) -> list[Decoder]:
    """All that there are, those that may die too."""
    found = []
    for package, decode in (("torchvision", decode_by_torchvision), ("torchcodec", _torchcodec)):
        here, there = torch.device("cpu"), setting.where()
        same = partial(_compare, setting, decode) if setting.gpu else None
        found.append(Decoder(f"{package}, CPU", WHOLE, partial(_whole, setting, decode, here)))
        found.append(
            Decoder(
                f"{package}, device",
                WHOLE,
                partial(_whole, setting, decode, there),
                setting.gpu,
                same,
            )
        )
        cut = partial(_whole_then_cut, setting, decode)
        found.append(Decoder(f"{package}, device, cut by fastload", CROPS, cut, setting.gpu))
    for name, region in (
        ("DALI graph, region decoded", True),
        ("DALI graph, whole decoded, then cut", False),
    ):
        found.append(Decoder(name, CROPS, partial(_dali_graph, setting, region), True))
    same = partial(points.compare, setting)
    found.append(Decoder(points.NAME, CROPS, partial(points.rate, setting), True, same))
    ours = decoding(setting)
    beside = [(next(v for v in ours if not v.on_device), v) for v in ours if v.on_device]
    for some in (*((v,) for v in ours), *beside):
        name = f"fastload {' and '.join(v.name for v in some)}"
        found.append(
            Decoder(name, CROPS, partial(_crops, setting, some), any(v.may_die for v in some))
        )
    return found


def run(setting: Setting, found: Found) -> None:
    # Newer ones: use torchcodec.
    warnings.filterwarnings("ignore", message=".*decod.*", module="torchvision")
    for decoder in decoders(setting):
        if decoder.name not in setting.only if setting.only else decoder.may_die:
            continue
        for threads in setting.threads:
            work, least = partial(decoder.rate, threads), 2 * setting.rate_seconds
            found.attempt(decoder.name, decoder.mode, work, {"threads": threads}, least=least)
        if decoder.same is not None:
            found.attempt(decoder.name, SAME, decoder.same)


def decode_by_torchvision(batch: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    from torchvision.io import ImageReadMode, decode_jpeg

    found: list[torch.Tensor] = decode_jpeg(batch, mode=ImageReadMode.RGB, device=str(device))
    return found


def _torchcodec(batch: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    found: list[torch.Tensor] = _package("torchcodec.decoders").decode_jpeg(
        batch, mode="RGB", device=str(device)
    )
    return found


def _package(module: str) -> Any:
    name = module.split(".")[0]
    if find_spec(name) is None:
        raise BackendUnavailableError(f"{name} is not installed: pip install {name}")
    return import_module(module)


def _calls(setting: Setting) -> list[list[torch.Tensor]]:
    """Files in memory, by calls."""
    files = sorted(Path(setting.photos).glob("*/*"))[:_FILES]
    encoded = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in files]
    call = min(_CALL, len(encoded))
    return [encoded[start : start + call] for start in range(0, len(encoded) - call + 1, call)]


def _whole(setting: Setting, decode: Decode, device: torch.device, threads: int) -> Round:
    """One call for many photographs in each thread: torch's operators let go of the GIL, and part
    of the work is the CPU's, also on a GPU."""
    calls = cycle(_calls(setting))
    with ThreadPoolExecutor(threads) as pool:

        def sizes() -> Iterator[int]:
            running = [pool.submit(decode, next(calls), device) for _ in range(threads)]
            while True:
                running.append(pool.submit(decode, next(calls), device))
                yield len(running.pop(0).result())

        with JpegEngine(device) as engine:
            found = rate_of(sizes(), seconds=setting.rate_seconds, device=device, ahead=threads)
        return structs.replace(found, metrics=engine.metrics())


def _whole_then_cut(setting: Setting, decode: Decode, threads: int) -> Round:
    """As `_whole`, and each photograph is then cut and resized where it is."""
    calls, device = cycle(_calls(setting)), setting.where()
    plan = Recipe.from_transform(training_pixels(setting.size)).split(None).geometry
    number = iter(range(1 << 40))
    with ThreadPoolExecutor(threads) as pool, JpegEngine(device) as engine:

        def sizes() -> Iterator[int]:
            running = [pool.submit(decode, next(calls), device) for _ in range(threads)]
            while True:
                running.append(pool.submit(decode, next(calls), device))
                images = running.pop(0).result()
                yield len(cut(images, plan, setting.size, next(number)))

        found = rate_of(sizes(), seconds=setting.rate_seconds, device=device, ahead=threads)
    return structs.replace(found, metrics=engine.metrics())


def cut(images: list[torch.Tensor], plan: GeometryPlan, size: int, number: int) -> torch.Tensor:
    """(B, size, size, 3): random crops of (3, H, W) images, on their device."""
    sizes = np.array([image.shape[1:] for image in images], dtype=np.int64)
    counts = sizes.prod(axis=1)
    flat = torch.cat([image.permute(1, 2, 0).reshape(-1, 3) for image in images])
    return render_on_device(
        flat,
        start=np.cumsum(counts) - counts,
        width=sizes[:, 1],
        geometry=plan.resolve(Draws(0, number, np.arange(len(images))), sizes),
        resampling=plan.resampling,
        out_size=(size, size),
    )


class JpegEngine:
    """How busy the engine that decodes JPEGs is while this is open, by NVML: more than nothing
    where nvJPEG uses it, and not the SMs."""

    def __init__(self, device: torch.device) -> None:
        self._handle: Any = None
        self._busy = list[int]()
        self._ended = Event()
        self._thread = Thread(target=self._look, daemon=True)
        if device.type == "cuda":
            nvml = import_module("pynvml")
            nvml.nvmlInit()
            uuid = torch.cuda.get_device_properties(device).uuid
            self._nvml, self._handle = nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def __enter__(self) -> JpegEngine:
        if self._handle is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._handle is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            try:
                self._busy.append(self._nvml.nvmlDeviceGetJpgUtilization(self._handle)[0])
            except self._nvml.NVMLError:  # it has none
                return

    def metrics(self) -> dict[str, float | None]:
        """The share of the time in which it worked, at most; nothing where nobody can say."""
        return {"jpeg_engine_busy": max(self._busy) / 100} if self._busy else {}


def _compare(setting: Setting, decode: Decode) -> dict[str, float | None]:
    some = _calls(setting)[0]
    pairs = zip(decode(some, setting.where()), decode(some, torch.device("cpu")), strict=True)
    found = [PixelDifference.between(on_device, on_cpu) for on_device, on_cpu in pairs]
    worst = min(difference.psnr for difference in found)
    return {
        "images": len(found),
        "equal": sum(not d.largest for d in found),
        "worst_psnr_db": worst if isfinite(worst) else None,
    }


def _dali_graph(setting: Setting, region: bool, threads: int) -> Round:
    """A graph of DALI alone, by either way to a crop: decode the region, or all of it, and cut on
    the device."""
    dali, fn = _package("nvidia.dali"), _package("nvidia.dali.fn")
    where = "mixed" if setting.gpu else "cpu"
    graph = dali.Pipeline(setting.batch_size, threads, setting.where().index)
    with graph:
        encoded, _ = fn.readers.file(file_root=setting.photos, random_shuffle=True)
        start, shape = fn.random_crop_generator(
            fn.peek_image_shape(encoded),
            random_aspect_ratio=[3 / 4, 4 / 3],
            random_area=[0.08, 1.0],
        )
        if region:
            images = fn.decoders.image_slice(
                encoded, start=start, shape=shape, axes=[0, 1], device=where
            )
        else:
            # The hardware engine is reported not to keep to the order of the stream.
            images = fn.decoders.image(
                encoded, device=where, **({"hw_decoder_load": 0.0} if setting.gpu else {})
            )
            images = fn.slice(images, start=start, shape=shape, axes=[0, 1])
        graph.set_outputs(
            fn.resize(images, size=[setting.size] * 2, interp_type=dali.types.INTERP_TRIANGULAR)
        )
    graph.build()
    sizes = (len(graph.run()[0]) for _ in cycle([None]))
    return rate_of(sizes, seconds=setting.rate_seconds, device=setting.where(), ahead=2)


def _crops(setting: Setting, variants: tuple[Variant, ...], threads: int) -> Round:
    """The loaders of one trainer, each with a part of the threads, emptied side by side."""
    few = max(1, round(threads * _GPU_SHARE))
    shares = [threads] if len(variants) == 1 else [max(1, threads - few), few]
    given = {"batch_size": setting.batch_size, "transform": training_pixels(setting.size)}
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(variant.create(setting, num_workers=share, **given))
            for variant, share in zip(variants, shares, strict=True)
        ]
        sizes = [(len(labels) for _, labels in of_loader(loader)) for loader in loaders]
        ahead = max(loader.batches_in_flight for loader in loaders)
        return rate_of(*sizes, seconds=setting.rate_seconds, device=setting.where(), ahead=ahead)
