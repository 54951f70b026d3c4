"""Other loaders that feed a GPU, each as its documentation has it: normalised float32 batches on
the device, random resized crops and flips of the same photographs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.gpu.feeds import Feed
from benchmarks.gpu.setting import Setting
from fastload.errors import BackendUnavailableError
from fastload.tools.measure.loaders import Batch

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_READY = 3
"""Batches that SPDL keeps ready."""


class _Epochs:
    """Batches of epoch after epoch."""

    def __init__(self, epoch: Callable[[], Iterator[Batch]], close: Callable[[], None]) -> None:
        self._epoch, self.close = epoch, close

    def __iter__(self) -> Iterator[Batch]:
        return self._epoch()


def timm_prefetch(setting: Setting, workers: int) -> Feed:
    """`timm.data.create_loader` with `use_prefetcher`: a DataLoader of uint8 images, normalised on
    the device by a stream of its own.

    Raises:
        BackendUnavailableError: timm is not installed.
    """
    _require("timm", "timm")
    timm = import_module("timm.data.loader")
    device = setting.where()
    dataset = ImageFolder(
        setting.photos,
        v2.Compose([v2.RandomResizedCrop(setting.size), v2.RandomHorizontalFlip(), _to_numpy]),
    )
    batches: DataLoader[Any] = DataLoader(
        dataset,
        setting.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=setting.gpu,
        collate_fn=timm.fast_collate,
    )
    loader = timm.PrefetchLoader(batches, mean=_MEAN, std=_STD, device=device)

    def epoch() -> Iterator[Batch]:
        for images, labels in loader:
            yield images.contiguous(memory_format=torch.channels_last), labels

    return Feed(_Epochs(epoch, lambda: _shut_down(batches)), 2 * workers + 1)


def _to_numpy(image: Any) -> Any:
    """(3, H, W) uint8, as timm's own transform of this name gives."""
    return v2.functional.pil_to_tensor(image).numpy()


def _shut_down(batches: DataLoader[Any]) -> None:
    shutdown = getattr(batches._iterator, "_shutdown_workers", None)
    if shutdown is not None:
        shutdown()


def spdl(setting: Setting, threads: int, *, ffmpeg: bool) -> Feed:
    """A pipeline of threads; batches are page-locked there, and normalised on the device.

    Args:
        setting: whose photographs.
        threads: that decode.
        ffmpeg: SPDL's own decoder, or torchvision's and its transforms.

    Raises:
        BackendUnavailableError: its packages, or FFmpeg's libraries, are not there.
    """
    _require("spdl.pipeline", "spdl-core")
    if ffmpeg:
        _require("spdl.io", "spdl-io")
    builder = import_module("spdl.pipeline").PipelineBuilder
    load = _by_ffmpeg(setting.size) if ffmpeg else _by_torchvision(setting.size)
    folders = sorted(path for path in Path(setting.photos).iterdir() if path.is_dir())
    samples = [
        (str(path), label)
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
    ]
    device, draw = setting.where(), random.Random(0)
    mean, std = (
        torch.tensor(values, device=device).view(1, 3, 1, 1) * 255 for values in (_MEAN, _STD)
    )

    def read(sample: tuple[str, int]) -> tuple[torch.Tensor, int]:
        return load(sample[0]), sample[1]

    def collate(batch: list[tuple[torch.Tensor, int]]) -> Batch:
        images = torch.stack([image for image, _ in batch])
        labels = torch.tensor([label for _, label in batch])
        return (images.pin_memory(), labels.pin_memory()) if setting.gpu else (images, labels)

    def epoch() -> Iterator[Batch]:
        pipeline = (
            builder()
            .add_source(draw.sample(samples, len(samples)))
            .pipe(read, concurrency=threads)
            .aggregate(setting.batch_size, drop_last=True)
            .pipe(collate)
            .add_sink(_READY)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            for images, labels in pipeline:
                pixels = images.to(device, non_blocking=True).float()
                normalised = pixels.sub_(mean).div_(std)
                yield (
                    normalised.contiguous(memory_format=torch.channels_last),
                    labels.to(device, non_blocking=True),
                )

    return Feed(_Epochs(epoch, lambda: None), _READY)


def _by_torchvision(size: int) -> Callable[[str], torch.Tensor]:
    crop = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])

    def load(path: str) -> torch.Tensor:
        image: torch.Tensor = crop(decode_jpeg(read_file(path), mode=ImageReadMode.RGB))
        return image

    return load


def _by_ffmpeg(size: int) -> Callable[[str], torch.Tensor]:
    io = import_module("spdl.io")
    try:
        import_module("spdl.io.lib")._import_libspdl()
    except (ImportError, RuntimeError, OSError) as error:  # FFmpeg's libraries are the system's
        raise BackendUnavailableError(
            f"SPDL finds no libraries of FFmpeg: install ffmpeg ({error})"
        ) from error

    def load(path: str) -> torch.Tensor:
        packets = io.demux_image(path)
        sizes = torch.empty(3, packets.codec.height, packets.codec.width, device="meta")
        crop = v2.RandomResizedCrop(size).make_params([sizes])
        flip = ",hflip" if torch.rand(()) < 0.5 else ""
        frames = io.decode_packets(
            packets,
            filter_desc=f"crop={crop['width']}:{crop['height']}:{crop['left']}:{crop['top']}:exact=1,"
            f"scale={size}:{size}:flags=bilinear{flip},format=pix_fmts=rgb24",
        )
        pixels = torch.from_numpy(io.to_numpy(io.convert_frames(frames)))
        return pixels.permute(2, 0, 1)

    return load


def _require(module: str, package: str) -> None:
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # of the package that the module is in
        found = None
    if found is None:
        raise BackendUnavailableError(f"{package} is not installed: pip install {package}")
