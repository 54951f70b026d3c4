"""Peers that read files of their own format, and their writers: FFCV, LitData, webdataset."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.setting import PADDING, Batches, Setting

_SHARD = 16 << 20
"""Bytes of a chunk of LitData and of a shard of webdataset: each worker has several."""


def stored_at(setting: Setting, kind: str) -> Path:
    """A file of FFCV, or a folder."""
    if kind in ("litdata", "tar"):
        return Path(setting.files, kind)
    return beton(setting, kind)


def write(setting: Setting, kind: str) -> None:
    """The photographs in one of the formats, unless they are there."""
    target = stored_at(setting, kind)
    if target.exists():
        return
    target.parent.mkdir(exist_ok=True)
    if kind not in ("litdata", "tar"):
        write_ffcv(setting, kind)
        return
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    (write_litdata if kind == "litdata" else write_tar)(setting, part)
    os.replace(part, target)


# -- FFCV, with the pipelines of its ImageNet and CIFAR-10 examples up to the tensor; in an
# -- environment of its own ------------------------------------------------------------------------


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
        image = [
            decoders.RandomResizedCropRGBImageDecoder((setting.crop, setting.crop)),
            RandomHorizontalFlip(),
        ]
    loader: Any = Loader(
        str(beton(setting, kind)),
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


def beton(setting: Setting, kind: str) -> Path:
    return Path(setting.small if kind == "small" else setting.files, "ffcv-files", f"{kind}.beton")


def write_ffcv(setting: Setting, kind: str) -> None:
    """Write one of its files: at full size as JPEG; with raw pixels, reduced; or as its authors
    write them for their ResNets, some of the images as JPEG and the others with raw pixels."""
    import ffcv.fields
    import ffcv.writer
    import numpy as np
    from PIL import Image

    class Samples:
        """(image, label) by index, from class folders or from images.npy and labels.npy."""

        def __init__(self) -> None:
            if kind == "small":
                images = np.load(Path(setting.small, "images.npy"), mmap_mode="r")
                self._samples = list(
                    zip(images, np.load(Path(setting.small, "labels.npy")).tolist(), strict=True)
                )
            else:
                self._samples = setting.samples()

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

    modes: dict[str, dict[str, Any]] = {
        "jpeg": {"write_mode": "jpg", "jpeg_quality": 90},
        # Reduced in `Samples`, to the pixels that fastload's cache holds.
        "raw_short": {"write_mode": "raw"},
        # By FFCV's own option, which is by the longer side, so fewer pixels.
        "raw_long": {"write_mode": "raw", "max_resolution": 256},
        # `write_imagenet.sh 500 0.50 90` and 400 0.10 90 of libffcv/ffcv-imagenet.
        "resnet50": {
            "write_mode": "proportion",
            "max_resolution": 500,
            "compress_probability": 0.5,
            "jpeg_quality": 90,
        },
        "resnet18": {
            "write_mode": "proportion",
            "max_resolution": 400,
            "compress_probability": 0.1,
            "jpeg_quality": 90,
        },
        "small": {"write_mode": "raw"},
    }
    target = beton(setting, kind)
    part = target.with_suffix(".part")
    columns = {"image": ffcv.fields.RGBImageField(**modes[kind]), "label": ffcv.fields.IntField()}
    writer = ffcv.writer.DatasetWriter(str(part), columns, num_workers=setting.threads)
    writer.from_indexed_dataset(Samples(), chunksize=32)
    os.replace(part, target)


# -- LitData, on a local folder --------------------------------------------------------------------


def litdata(setting: Setting) -> Batches:
    """It stores JPEGs as they are, and decodes them by torchvision."""
    import litdata as package
    from torchvision.transforms import v2

    transform = v2.Compose(
        [v2.RandomResizedCrop(setting.crop, antialias=True), v2.RandomHorizontalFlip()]
    )

    class Images(package.StreamingDataset):  # type: ignore[misc]  # mypy does not read it
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            return transform(found["image"]), found["label"]

    source = Images(str(stored_at(setting, "litdata")), shuffle=True, drop_last=True)
    loader: Any = package.StreamingDataLoader(
        source,
        batch_size=setting.batch_size,
        drop_last=True,
        num_workers=setting.threads,
        persistent_workers=True,
    )
    return Batches(package.__version__, lambda: (images for images, _ in loader))


def write_litdata(setting: Setting, target: Path) -> None:
    import litdata as package

    package.optimize(
        fn=jpeg_of,
        inputs=setting.samples(),
        output_dir=str(target),
        chunk_bytes=_SHARD,
        num_workers=1,
    )


def jpeg_of(item: tuple[str, int]) -> dict[str, Any]:
    """A JPEG that LitData stores as it is."""
    from PIL import Image

    return {"image": Image.open(item[0]), "label": item[1]}


# -- webdataset, on local shards -------------------------------------------------------------------


def webdataset(setting: Setting) -> Batches:
    """Its shards come in a new order each epoch, and pass through a shuffled buffer of 1,000
    samples. Decoded by Pillow."""
    import webdataset as package
    from torchvision.transforms import v2

    urls = sorted(str(path) for path in stored_at(setting, "tar").iterdir())
    transform = v2.Compose(
        [v2.RandomResizedCrop(setting.crop), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )
    found = package.WebDataset(urls, shardshuffle=len(urls)).shuffle(1000).decode("pil")
    made = found.to_tuple("jpg", "cls").map_tuple(transform, lambda label: label)
    loader: Any = package.WebLoader(
        made.batched(setting.batch_size, partial=False),
        batch_size=None,
        num_workers=setting.threads,
        persistent_workers=True,
    )

    def epoch() -> Iterator[Any]:
        for images, _ in loader:
            yield images

    return Batches(package.__version__, epoch)


def write_tar(setting: Setting, target: Path) -> None:
    import webdataset as package

    target.mkdir()
    with package.ShardWriter(str(target / "%06d.tar"), maxsize=_SHARD, verbose=0) as writer:
        for number, (path, label) in enumerate(setting.samples()):
            writer.write({"__key__": f"{number:06}", "jpg": Path(path).read_bytes(), "cls": label})
