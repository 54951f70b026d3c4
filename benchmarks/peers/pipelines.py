"""Loaders that decode in threads: NVIDIA DALI and SPDL."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.peers.dataloaders import read_by_simplejpeg
from benchmarks.peers.setting import AREA, ASPECT, Batches, Setting, random_crop

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
            random_aspect_ratio=list(ASPECT),
            random_area=list(AREA),
        )
        images = fn.resize(
            images, size=[setting.crop, setting.crop], interp_type=types.INTERP_TRIANGULAR
        )
        pipeline.set_outputs(fn.flip(images, horizontal=fn.random.coin_flip()), labels)
    loader: Any = DALIClassificationIterator(
        pipeline, reader_name="files", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    return Batches(nvidia.dali.__version__, lambda: (batch["data"] for (batch,) in loader))


# -- SPDL: a pipeline of threads; in an environment of its own -------------------------------------


def spdl(setting: Setting) -> Batches:
    """With FFmpeg's decoder and scaler, which are SPDL's own."""
    import spdl.io

    draw = random.Random(0)
    side = setting.crop

    def load(path: str) -> Any:
        packets = spdl.io.demux_image(path)
        left, top, width, height = random_crop(draw, packets.codec.width, packets.codec.height)
        flip = ",hflip" if draw.random() < 0.5 else ""
        description = (
            f"crop={width}:{height}:{left}:{top}:exact=1,"
            f"scale={side}:{side}:flags=bilinear{flip},format=pix_fmts=rgb24"
        )
        return spdl.io.decode_packets(packets, filter_desc=description)

    def collate(frames: list[Any]) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    return _spdl_pipeline(setting, load, collate)


def spdl_torchvision(setting: Setting) -> Batches:
    """With torchvision's decoder and transforms in its threads."""
    import torch
    from torchvision.transforms import v2

    from benchmarks.peers.dataloaders import read_by_torchvision

    transform = v2.Compose(
        [v2.RandomResizedCrop(setting.crop, antialias=True), v2.RandomHorizontalFlip()]
    )
    return _spdl_pipeline(setting, lambda path: transform(read_by_torchvision(path)), torch.stack)


def spdl_simplejpeg(setting: Setting) -> Batches:
    """With simplejpeg and OpenCV's resize with antialiasing (INTER_AREA) in its threads."""
    import cv2
    import numpy as np

    cv2.setNumThreads(0)
    load = partial(read_by_simplejpeg, random.Random(0), setting.crop)
    return _spdl_pipeline(setting, load, np.stack)


def _spdl_pipeline(
    setting: Setting, load: Callable[[str], Any], collate: Callable[[list[Any]], Any]
) -> Batches:
    from importlib import metadata

    from spdl.pipeline import PipelineBuilder

    files = [path for path, _ in setting.samples()]
    draw = random.Random(0)

    def epoch() -> Iterator[Any]:
        shuffled = draw.sample(files, len(files))
        builder = PipelineBuilder().add_source(shuffled).pipe(load, concurrency=setting.threads)
        pipeline = builder.aggregate(setting.batch_size, drop_last=True).pipe(collate).add_sink(3)
        built = pipeline.build(num_threads=setting.threads)
        with built.auto_stop():
            yield from built

    return Batches(metadata.version("spdl"), epoch)
