"""Who takes part: each as its good users write it, in host memory. A new peer is a function and a
line here.

Functions import their packages themselves: some of these are in environments of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.environments import Environment
from benchmarks.peers.dataloaders import (
    opencv_albumentations,
    pillow,
    pillow_small,
    simplejpeg_opencv,
    timm_prefetch,
    torchvision_decoder,
)
from benchmarks.peers.pipelines import dali, spdl, spdl_simplejpeg, spdl_torchvision
from benchmarks.peers.setting import CROP, DEVIATION, MEAN, PADDING, SIDE, TINY, Batches, Setting
from benchmarks.peers.stored import ffcv, litdata, webdataset

# -- fastload, through the public API --------------------------------------------------------------


def fastload(
    setting: Setting,
    backend: str,
    *,
    small: bool = False,
    indexed: bool = False,
    normalised: bool = False,
) -> Batches:
    """`indexed`: by a complete seek index; without it, no point is noted or used. `normalised`:
    float32 batches."""
    import numpy as np
    import torch
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
    finish: list[Any] = []
    if normalised:
        finish = [
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, DEVIATION),
        ]
    loader = create_loader(
        tuple(map(np.load, arrays)) if small else setting.photographs,
        setting.batch_size,
        shuffle=True,
        drop_last=True,
        transform=v2.Compose([crop, v2.RandomHorizontalFlip(), *finish]),
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
    environment.name: environment
    for environment in (
        Environment(  # builds from source
            *("ffcv", ("ffcv==1.0.2",), "import ffcv"),
            "g++ pkg-config libopencv-dev libturbojpeg0-dev python3-dev",
        ),
        Environment("spdl", ("spdl",), "import spdl.io.lib as l; l._import_libspdl()", "ffmpeg"),
        Environment(  # builds from source
            *("pillow-simd", ("pillow-simd",), "import PIL; assert '.post' in PIL.__version__"),
            system="gcc libjpeg-dev zlib1g-dev python3-dev",
            compiler="cc -mavx2",  # as its authors have it
        ),
        Environment("stores", ("litdata", "webdataset"), "import litdata, webdataset"),
        Environment(
            "libraries",
            ("albumentations>=2.0.8,<2.1", "opencv-python-headless", "simplejpeg", "timm"),
            "import albumentations, cv2, simplejpeg, timm",
        ),
    )
}
"""Of peers that need other packages than fastload, or other versions."""


@dataclass(frozen=True)
class Row:
    """One contestant in one task; a row of the table."""

    contestant: str
    task: Literal[
        "photographs",
        "normalised photographs",
        "PNG photographs",
        "small JPEGs",
        "small images",
    ]
    open: Callable[[Setting], Batches] | None  # None: not Python, the program of `limit`
    environment: str = ""  # that it has for itself. Empty: fastload's
    written: str = ""  # the kind of file that it reads, as `stored.write` knows it
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

    @property
    def is_normalised(self) -> bool:
        return self.task.startswith("normalised")


PILLOW = Row("DataLoader, Pillow", "photographs", pillow, first_batch=True, epochs=3)
TORCHVISION = Row("DataLoader, torchvision decoder", "photographs", torchvision_decoder)
DALI = Row("DALI, CPU", "photographs", dali, first_batch=True, epochs=3)
OPENCV = Row(
    "DataLoader, OpenCV and albumentations", "photographs", opencv_albumentations, "libraries"
)
SIMPLEJPEG = Row("DataLoader, simplejpeg and OpenCV", "photographs", simplejpeg_opencv, "libraries")
PILLOW_SIMD = Row("DataLoader, Pillow-SIMD", "photographs", pillow, "pillow-simd")
LITDATA = Row("LitData", "photographs", litdata, "stores", "litdata")
WEBDATASET = Row("webdataset", "photographs", webdataset, "stores", "tar")
SPDL = Row("SPDL, FFmpeg", "photographs", spdl, "spdl")
SPDL_TORCHVISION = Row("SPDL, torchvision decoder", "photographs", spdl_torchvision, "spdl")
SPDL_SIMPLEJPEG = Row("SPDL, simplejpeg and OpenCV", "photographs", spdl_simplejpeg, "spdl")
FFCV_JPEG = Row(
    "FFCV, JPEG q90", "photographs", partial(ffcv, kind="jpeg"), "ffcv", "jpeg", epochs=3
)
FFCV_RESNET50 = Row(
    *("FFCV, ResNet-50 files", "photographs", partial(ffcv, kind="resnet50")),
    *("ffcv", "resnet50"),
)
FFCV_RESNET18 = Row(
    *("FFCV, ResNet-18 files", "photographs", partial(ffcv, kind="resnet18")),
    *("ffcv", "resnet18"),
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

TIMM = Row("timm, PrefetchLoader", "normalised photographs", timm_prefetch, "libraries")
FASTLOAD_NORMALISED = Row(
    "fastload turbojpeg",
    "normalised photographs",
    partial(fastload, backend="turbojpeg", normalised=True),
    compared=True,
)

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
    *(FFCV_RESNET18, FFCV_RESNET50, FFCV_RAW_LONG, FFCV_RAW, FFCV_JPEG, OPENCV, SIMPLEJPEG),
    *(TORCHVISION, LITDATA, SPDL_SIMPLEJPEG, SPDL_TORCHVISION, DALI, PILLOW_SIMD, PILLOW),
    *(WEBDATASET, SPDL, FASTLOAD_TORCH, FASTLOAD_TURBOJPEG, FASTLOAD_INDEXED, FASTLOAD_CACHE),
    *(LIMIT, TIMM, FASTLOAD_NORMALISED, PILLOW_PNG, FASTLOAD_PNG, PILLOW_TINY, FASTLOAD_TINY),
    *(PILLOW_SMALL, FFCV_SMALL, FASTLOAD_CACHE_SMALL),
)
