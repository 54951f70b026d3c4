"""Who takes part: each as its good users write it, uint8 in host memory. A new peer is a function
and a line here.

Functions import their packages themselves: some of these live in environments that have little
else, fastload's other dependencies included.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

CROP = 224
"""Photographs: RandomResizedCrop to this many pixels, then a random horizontal flip."""
PNG, TINY = 480, 64
"""Photographs as PNG, pixels on their longer side; small JPEGs, pixels on each side:
RandomResizedCrop as well."""
SIDE, PADDING = 32, 4
"""Small images: a random crop of as many pixels, after padding by four on each side; then a random
horizontal flip."""
_AREA, _ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
"""Of the crops, as in torchvision, where a peer must be given them."""


@dataclass(frozen=True)
class Setting:
    """What all are given."""

    photographs: str  # a folder of class folders of image files
    small: str  # a folder with images.npy (N, 32, 32, 3) uint8 and labels.npy (N,) int64
    files: str  # the folder of FFCV's files and fastload's cache of these photographs
    batch_size: int
    threads: int  # threads or worker processes that decode
    crop: int = CROP  # RandomResizedCrop to this many pixels
    cores: int | None = None  # the process may use only so many. None: all
    epochs: int = 0  # over how many their ends, and memory, are measured


@dataclass(frozen=True)
class Batches:
    """A loader at work. Made by a function of a `Setting`; what that takes is not measured."""

    version: str
    epoch: Callable[[], Iterator[Any]]
    """The image batches of one epoch, (B, H, W, C) or (B, C, H, W). Called repeatedly."""


# -- torch.utils.data.DataLoader, as its documentation advises: workers that persist over epochs ---


def pillow(setting: Setting) -> Batches:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose(
        [v2.RandomResizedCrop(setting.crop), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )
    return _dataloader(ImageFolder(setting.photographs, transform), setting)


def torchvision_decoder(setting: Setting) -> Batches:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()])
    return _dataloader(ImageFolder(setting.photographs, transform, loader=_decode), setting)


def _decode(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def pillow_small(setting: Setting) -> Batches:
    return _dataloader(_SmallImages(Path(setting.small)), setting)


class _SmallImages:
    """As torchvision's CIFAR10 does it: an array, of which each sample becomes a Pillow image."""

    def __init__(self, folder: Path) -> None:
        import numpy as np
        from torchvision.transforms import v2

        self._images = np.load(folder / "images.npy")
        self._labels = np.load(folder / "labels.npy").tolist()
        self._transform = v2.Compose(
            [v2.RandomCrop(SIDE, padding=PADDING), v2.RandomHorizontalFlip(), v2.PILToTensor()]
        )

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return self._transform(Image.fromarray(self._images[index])), self._labels[index]


def _dataloader(dataset: Any, setting: Setting) -> Batches:
    import torch
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        dataset,
        setting.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=setting.threads,
        persistent_workers=True,
    )
    return Batches(str(torch.__version__), lambda: (images for images, _ in loader))


# -- NVIDIA DALI on the CPU: the pipeline of its ImageNet example, without the normalisation -------


def dali(setting: Setting) -> Batches:
    """Decodes the crop only; its decoder's fancy upsampling is off by default (a little faster) and
    stays off."""
    import nvidia.dali
    from nvidia.dali import fn
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    types: Any = nvidia.dali.types
    pipeline = nvidia.dali.Pipeline(
        batch_size=setting.batch_size, num_threads=setting.threads, device_id=None
    )
    with pipeline:
        encoded, labels = fn.readers.file(
            file_root=setting.photographs, random_shuffle=True, name="files"
        )
        images: Any = fn.decoders.image_random_crop(
            encoded,
            device="cpu",
            output_type=types.RGB,
            random_aspect_ratio=list(_ASPECT),
            random_area=list(_AREA),
        )
        images = fn.resize(images, size=[CROP, CROP], interp_type=types.INTERP_TRIANGULAR)
        pipeline.set_outputs(fn.flip(images, horizontal=fn.random.coin_flip()), labels)
    loader: Any = DALIClassificationIterator(
        pipeline, reader_name="files", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    return Batches(nvidia.dali.__version__, lambda: (batch["data"] for (batch,) in loader))


# -- SPDL: a pipeline of threads around FFmpeg's decoder and scaler; in an environment of its own --


def spdl(setting: Setting) -> Batches:
    from importlib import metadata

    import spdl.io
    from spdl.pipeline import PipelineBuilder

    files = [str(path) for path in Path(setting.photographs).glob("*/*")]
    draw = random.Random(0)

    def load(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        left, top, width, height = _crop(draw, packets.codec.width, packets.codec.height)
        flip = ",hflip" if draw.random() < 0.5 else ""
        description = (
            f"crop={width}:{height}:{left}:{top}:exact=1,"
            f"scale={CROP}:{CROP}:flags=bilinear{flip},format=pix_fmts=rgb24"
        )
        return spdl.io.decode_packets(packets, filter_desc=description)

    def collate(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    def epoch() -> Iterator[Any]:
        shuffled = draw.sample(files, len(files))
        builder = PipelineBuilder().add_source(shuffled).pipe(load, concurrency=setting.threads)
        pipeline = builder.aggregate(setting.batch_size, drop_last=True).pipe(collate).add_sink(3)
        built = pipeline.build(num_threads=setting.threads)
        with built.auto_stop():
            yield from built

    return Batches(metadata.version("spdl"), epoch)


def _crop(draw: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """left, top, width, height as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area = width * height * draw.uniform(*_AREA)
        aspect = math.exp(draw.uniform(*map(math.log, _ASPECT)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    w, h = min(width, round(height * _ASPECT[1])), min(height, round(width / _ASPECT[0]))
    return (width - w) // 2, (height - h) // 2, w, h


# -- FFCV, with the pipelines of its ImageNet and CIFAR-10 examples up to the tensor; in an environm


def ffcv(setting: Setting, kind: str) -> Batches:
    """One of its files; the system keeps it in memory, and the order is quite random, as the
    others' is."""
    from importlib import metadata

    from ffcv.fields import decoders
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, RandomTranslate, Squeeze, ToTensor

    if kind == "small":
        image = [
            decoders.SimpleRGBImageDecoder(),
            RandomHorizontalFlip(),
            RandomTranslate(padding=PADDING),
        ]
    else:
        image = [decoders.RandomResizedCropRGBImageDecoder((CROP, CROP)), RandomHorizontalFlip()]
    loader: Any = Loader(
        str(_beton(setting, kind)),
        batch_size=setting.batch_size,
        num_workers=setting.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={
            "image": [*image, ToTensor()],
            "label": [decoders.IntDecoder(), ToTensor(), Squeeze()],
        },
    )
    return Batches(metadata.version("ffcv"), lambda: (images for images, _ in loader))


def _beton(setting: Setting, kind: str) -> Path:
    return Path(setting.small if kind == "small" else setting.files, "ffcv-files", f"{kind}.beton")


def write_ffcv(setting: Setting, kind: str) -> None:
    """Write one of its files, unless it is there: at full size as JPEG, or with raw pixels,
    reduced."""
    import ffcv.fields
    import ffcv.writer
    import numpy as np
    from PIL import Image

    target = _beton(setting, kind)
    if target.exists():
        return

    class Samples:
        """(image, label) by index, from class folders or from images.npy and labels.npy."""

        def __init__(self) -> None:
            if kind == "small":
                images = np.load(Path(setting.small, "images.npy"), mmap_mode="r")
                self._samples = list(
                    zip(images, np.load(Path(setting.small, "labels.npy")).tolist(), strict=True)
                )
            else:
                classes = enumerate(sorted(Path(setting.photographs).iterdir()))
                self._samples = [
                    (path, label) for label, name in classes for path in sorted(name.iterdir())
                ]

        def __len__(self) -> int:
            return len(self._samples)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            image, label = self._samples[index]
            if kind == "small":
                return np.ascontiguousarray(image), label
            image = Image.open(image).convert("RGB")
            if kind == "raw_short" and min(image.size) > 256:
                width, height = (round(side * 256 / min(image.size)) for side in image.size)
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            return image, label

    # The pixels that fastload's cache holds; and FFCV's own option, which is by the longer side, so
    # fewer pixels.
    modes: dict[str, dict[str, Any]] = {
        "jpeg": {"write_mode": "jpg", "jpeg_quality": 90},
        "raw_short": {"write_mode": "raw"},
        "raw_long": {"write_mode": "raw", "max_resolution": 256},
        "small": {"write_mode": "raw"},
    }
    target.parent.mkdir(exist_ok=True)
    part = target.with_suffix(".part")
    columns = {"image": ffcv.fields.RGBImageField(**modes[kind]), "label": ffcv.fields.IntField()}
    writer = ffcv.writer.DatasetWriter(str(part), columns, num_workers=setting.threads)
    writer.from_indexed_dataset(Samples(), chunksize=32)
    os.replace(part, target)


# -- fastload, through the public API --------------------------------------------------------------


def fastload(
    setting: Setting, backend: str, *, small: bool = False, indexed: bool = False
) -> Batches:
    """`indexed`: by a complete seek index; without it, no point is noted or used."""
    import numpy as np
    from torchvision.transforms import v2

    from fastload import __version__, create_loader
    from fastload.backends.cache import CacheOptions
    from fastload.backends.turbojpeg import TurboJpegOptions

    options: dict[str, Any] = {
        "turbojpeg": TurboJpegOptions(seek_index=seek_index(setting) if indexed else False)
    }
    if not small:
        options["cache"] = CacheOptions(
            directory=Path(setting.files, "cache"), short_side=256, progress=False
        )
    arrays = [Path(setting.small, f"{name}.npy") for name in ("images", "labels")]
    crop = v2.RandomCrop(SIDE, padding=PADDING) if small else v2.RandomResizedCrop(setting.crop)
    loader = create_loader(
        tuple(map(np.load, arrays)) if small else setting.photographs,
        setting.batch_size,
        shuffle=True,
        drop_last=True,
        transform=v2.Compose([crop, v2.RandomHorizontalFlip()]),
        backend=backend,
        num_workers=setting.threads,
        options=options.get(backend),
    )
    return Batches(__version__, lambda: (images for images, _ in loader))


def seek_index(setting: Setting) -> Path:
    """Where the points of these photographs are; made before anything is measured."""
    return Path(setting.files, "photographs.seek")


# -- the table -------------------------------------------------------------------------------------

ENVIRONMENTS = {
    "ffcv": (  # builds from source, needs torch
        *(["ffcv==1.0.2", "pillow", "psutil"], "import ffcv, PIL, psutil"),
        "g++ pkg-config libopencv-dev libturbojpeg0-dev python3-dev",
    ),
    "spdl": (
        ["spdl", "psutil"],
        "import psutil, spdl.io.lib; spdl.io.lib._import_libspdl()",
        "ffmpeg",
    ),
}
"""Of peers that bring their own versions of what others need: packages, a test of them, what the
system must have."""


@dataclass(frozen=True)
class Row:
    """One contestant in one task; a row of the table."""

    contestant: str
    task: Literal["photographs", "PNG photographs", "small JPEGs", "small images"]
    open: Callable[[Setting], Batches] | None  # None: not Python, the program of `limit`
    environment: str = ""  # that it has for itself. Empty: fastload's
    written: str = ""  # the kind of FFCV's file that it reads
    first_batch: bool = False  # whether the time to the first batch is measured
    epochs: int = 0  # over how many epochs their ends, and memory, are measured
    beside_python: bool = False  # whether the speed of Python beside it is measured
    compared: bool = (
        False  # whether it is one of ours that all others of the task are compared with
    )

    @property
    def side(self) -> int:
        """Of the square images that it delivers [pixels]."""
        return {"small JPEGs": TINY, "small images": SIDE}.get(self.task, CROP)


PILLOW = Row("DataLoader, Pillow", "photographs", pillow, first_batch=True, epochs=3)
TORCHVISION = Row("DataLoader, torchvision decoder", "photographs", torchvision_decoder)
DALI = Row("DALI, CPU", "photographs", dali, first_batch=True, epochs=3)
SPDL = Row("SPDL", "photographs", spdl, "spdl")
FFCV_JPEG = Row(
    "FFCV, JPEG q90", "photographs", partial(ffcv, kind="jpeg"), "ffcv", "jpeg", epochs=3
)
FFCV_RAW = Row(
    "FFCV, raw, short side 256", "photographs", partial(ffcv, kind="raw_short"), "ffcv", "raw_short"
)
FFCV_RAW_LONG = Row(
    "FFCV, raw, long side 256", "photographs", partial(ffcv, kind="raw_long"), "ffcv", "raw_long"
)
FASTLOAD_TORCH = Row("fastload torch", "photographs", partial(fastload, backend="torch"))
FASTLOAD_TURBOJPEG = Row(
    *("fastload turbojpeg", "photographs", partial(fastload, backend="turbojpeg")),
    first_batch=True,
    epochs=20,
    beside_python=True,
    compared=True,
)
FASTLOAD_INDEXED = Row(
    "fastload turbojpeg, seek index",
    "photographs",
    partial(fastload, backend="turbojpeg", indexed=True),
    first_batch=True,
    compared=True,
)
FASTLOAD_CACHE = Row(
    *("fastload cache, short side 256", "photographs", partial(fastload, backend="cache")),
    epochs=20,
    compared=True,
)
LIMIT = Row("limit: region decode alone", "photographs", None)

PILLOW_PNG = Row("DataLoader, Pillow", "PNG photographs", pillow)
FASTLOAD_PNG = Row(
    "fastload turbojpeg", "PNG photographs", partial(fastload, backend="turbojpeg"), compared=True
)
PILLOW_TINY = Row("DataLoader, Pillow", "small JPEGs", pillow)
FASTLOAD_TINY = Row(
    "fastload turbojpeg", "small JPEGs", partial(fastload, backend="turbojpeg"), compared=True
)

PILLOW_SMALL = Row("DataLoader, Pillow", "small images", pillow_small)
FFCV_SMALL = Row("FFCV", "small images", partial(ffcv, kind="small"), "ffcv", "small")
FASTLOAD_CACHE_SMALL = Row(
    *("fastload cache", "small images", partial(fastload, backend="cache", small=True)),
    compared=True,
)

CONTESTANTS: tuple[Row, ...] = (
    *(PILLOW, TORCHVISION, DALI, SPDL, FFCV_JPEG, FFCV_RAW, FFCV_RAW_LONG),
    *(FASTLOAD_TORCH, FASTLOAD_TURBOJPEG, FASTLOAD_INDEXED, FASTLOAD_CACHE, LIMIT),
    *(PILLOW_PNG, FASTLOAD_PNG, PILLOW_TINY, FASTLOAD_TINY),
    *(PILLOW_SMALL, FFCV_SMALL, FASTLOAD_CACHE_SMALL),
)
