"""NVIDIA DALI on the CPU: the pipeline of its ImageNet example, without the normalisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nvidia.dali
import torch
from nvidia.dali import fn
from nvidia.dali.pipeline import pipeline_def
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator

from benchmarks.peers.setting import CROP, Setting

__all__ = ["photographs"]


_types: Any = nvidia.dali.types


class Pipeline:
    """Decodes the crop only; its decoder's fancy upsampling is off by default (a little faster) and stays off."""

    version = nvidia.dali.__version__
    side = CROP

    def __init__(self, setting: Setting) -> None:
        pipeline = _pipeline(
            setting.photographs, batch_size=setting.batch_size, num_threads=setting.threads, device_id=None
        )
        self._batches = DALIClassificationIterator(
            pipeline, reader_name="files", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
        )

    def epoch(self) -> Iterator[torch.Tensor]:
        for (batch,) in self._batches:
            yield batch["data"]


@pipeline_def
def _pipeline(folder: str) -> Any:
    encoded, labels = fn.readers.file(file_root=folder, random_shuffle=True, name="files")
    images: Any = fn.decoders.image_random_crop(
        encoded, device="cpu", output_type=_types.RGB, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0]
    )
    images = fn.resize(images, size=[CROP, CROP], interp_type=_types.INTERP_TRIANGULAR)
    return fn.flip(images, horizontal=fn.random.coin_flip()), labels


def photographs(setting: Setting) -> Pipeline:
    return Pipeline(setting)
