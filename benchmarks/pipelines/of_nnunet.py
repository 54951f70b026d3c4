"""nnU-Net's training in two dimensions: the packages nnunetv2 and batchgeneratorsv2; its reader of
images, its normalisation, its preprocessed files, its loader and its transforms are run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import fastload
from benchmarks.pipelines.classes import numbers_of, tiles_of
from benchmarks.pipelines.fed import Fed, fed
from benchmarks.pipelines.masked import masked
from benchmarks.pipelines.pipeline import Judgement, Numbers, Pipeline, Setting, Side, Tile
from fastload import pipelines
from fastload.backends.cache import CacheOptions
from fastload.draws import Draws
from fastload.pipelines.of_nnunet import initial_patch_size
from fastload.recipe import intensities
from fastload.render.noise import normals

_SEED, _LONGEST, _FEW = 3, 683, 64
_LEVELS = (60, 110, 190)
"""Between the classes of a pixel: how bright the photograph is around it."""
_LABELS = {"background": 0, "grey": 1, "bright": 2, "white": 3}
_SCALES = [[1.0, 1.0], [0.5, 0.5]]
_CROP, _TURN, _CHANGES, _MIRRORS = 0, 3, 4, (5, 6)
"""Streams of the operations of ours."""
PIXELS, MASKS = 1e-3, 1e-3
"""With one set of random numbers: what a pixel may differ by, of a range of 1, in the mean of an
image, and the part of the pixels of masks that may."""


def raw_of(source: Path, work: Path, least: int) -> Path:
    """Folders `images` and `masks` of PNGs."""
    parts = "images", "masks"
    return masked(
        source, work, least, "nnunet", parts, lambda grey: np.searchsorted(_LEVELS, grey), _LONGEST
    )


def preprocessed(folder: Path) -> Path:
    """The folder as nnU-Net's planner leaves it, of images that are not resampled."""
    from nnunetv2.imageio.natural_image_reader_writer import (
        NaturalImage2DIO,
    )
    from nnunetv2.preprocessing.cropping.cropping import (
        crop_to_nonzero,
    )
    from nnunetv2.preprocessing.normalization.default_normalization_schemes import (
        RGBTo01Normalization,
    )
    from nnunetv2.preprocessing.preprocessors.default_preprocessor import (
        DefaultPreprocessor,
        comp_blosc2_params,
    )
    from nnunetv2.training.dataloading.nnunet_dataset import (
        nnUNetDatasetBlosc2,
    )

    made = folder / "preprocessed"
    if made.exists():
        return made
    made.mkdir()
    reader, normalise = NaturalImage2DIO(), RGBTo01Normalization(False, {})
    for mask in sorted((folder / "masks").iterdir()):
        data, properties = reader.read_images((str(folder / "images" / mask.name),))
        seg, _ = reader.read_seg(str(mask))
        data, seg, _ = crop_to_nonzero(data, seg)
        data = normalise.run(data)
        places = DefaultPreprocessor._sample_foreground_locations(seg, [1, 2, 3])
        blocks = comp_blosc2_params(data.shape, (512, 512), 4)
        blocks = (*blocks, *comp_blosc2_params(seg.shape, (512, 512), 2))
        nnUNetDatasetBlosc2.save_case(
            data,
            seg.astype(np.int16),
            {**properties, "class_locations": places},
            str(made / mask.stem),
            chunks=blocks[1],
            blocks=blocks[0],
            chunks_seg=blocks[3],
            blocks_seg=blocks[2],
        )
    return made


def rotation_of(size: int) -> tuple[float, float]:
    return -180.0 / 360 * 2.0 * np.pi, 180.0 / 360 * 2.0 * np.pi


class Epochs:
    """Its loader, which never ends, as epochs; `probabilistic_oversampling` is ours."""

    def __init__(self, setting: Setting, size: int) -> None:
        os.environ.setdefault("nnUNet_raw", "")
        from nnunetv2.training.data_augmentation.compute_initial_patch_size import (
            get_patch_size,
        )
        from nnunetv2.training.dataloading.data_loader import (
            nnUNetDataLoader,
        )
        from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import (
            nnUNetTrainer,
        )
        from nnunetv2.utilities.label_handling.label_handling import (
            LabelManager,
        )

        patch, rotation = (setting.size(size),) * 2, rotation_of(size)
        self.initial = get_patch_size(patch, *[rotation] * 3, (0.85, 1.25))
        assert tuple(self.initial) == initial_patch_size(patch, rotation)
        self.transforms = nnUNetTrainer.get_training_transforms(
            patch, rotation, _SCALES, (0, 1), False
        )
        self.data = nnUNetDatasetBlosc2(str(preprocessed(setting.data)))
        self.loader = nnUNetDataLoader(
            self.data,
            setting.batch_size,
            self.initial,
            patch,
            LabelManager(_LABELS, None),
            oversample_foreground_percent=0.33,
            probabilistic_oversampling=True,
            transforms=self.transforms,
        )
        self.batches = len(self.data.identifiers) // setting.batch_size
        if not setting.shuffle:  # pictures: the images in order
            batch, every = setting.batch_size, self.data.identifiers
            chosen = cycle(every[at * batch : (at + 1) * batch] for at in range(self.batches))
            self.loader.get_indices = lambda: next(chosen)

    def __iter__(self) -> Iterator[Any]:
        return islice(self.loader, self.batches)


def ours(setting: Setting, size: int) -> fastload.Loader:
    """From a cache, which is its counterpart of preprocessed files."""
    patch = (setting.size(size),) * 2
    return fastload.create_loader(
        setting.data,
        setting.batch_size,
        transform=pipelines.nnunet_2d(patch),
        batch_transform=pipelines.nnunet_2d_batches(deep_supervision_scales=_SCALES),
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=max(1, setting.workers),
        memory_format=torch.contiguous_format,
        backend="cache",
        options=CacheOptions(directory=setting.data.parent / f"cache-{setting.data.name}"),
        seed=_SEED,
    )


def numbers(batch: Any) -> Numbers:
    """Of images as of others; of masks how much each class has, and where."""
    images, target = batch["data"], batch["target"][0][:, 0]
    made = {**numbers_of([images])}
    for kind in range(4):
        there = (target == kind).double()
        made[f"part of class {kind}"] = there.mean((1, 2)).numpy()
        half = target.shape[1] // 2
        lower, upper = there[:, half:], there[:, :half]
        made[f"class {kind}, lower less upper"] = (lower.mean((1, 2)) - upper.mean((1, 2))).numpy()
    middle = target[:, target.shape[1] // 2, target.shape[2] // 2]
    made["class in the middle"] = middle.double().numpy()
    return made


def tiles(batch: Any) -> list[Tile]:
    """Images with the colours of the classes over them."""
    colours = torch.tensor([[n * 53 % 256, n * 97 % 256, n * 193 % 256] for n in range(4)])
    shown = tiles_of([batch["data"]], (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    masks = batch["target"][0][:, 0].long()
    return [
        ((3 * tile.astype(int) + colours[mask].numpy()) // 4).astype(np.uint8)
        for tile, mask in zip(shown, masks, strict=True)
    ]


def drawn(source: Fed, draws: Draws) -> Any:
    """In the order in which the loader and the transforms ask; 0.5 where the answer is the same
    whatever is drawn."""
    crop = draws.uniform(_CROP, 5)[0]
    yield crop[0]
    yield from (crop[1:3] if crop[0] < 0.33 else (0.5, *crop[3:5]))
    turn = draws.uniform(_TURN, 4)[0]
    yield from (turn[0], turn[1], 0.5)
    yield from (0.5, turn[2]) if turn[0] < 0.2 else ()
    yield from (0.5, turn[3]) if turn[1] < 0.2 else ()
    own = draws.within(_CHANGES)
    for kind, p in enumerate(intensities.PROBABILITIES):
        every = own.uniform(kind, 13)[0]
        yield every[0]
        if every[0] < p:
            yield from asked(kind, every[1:].reshape(3, 4))
    yield from (draws.uniform(stream, 1)[0, 0] for stream in _MIRRORS)


def asked(kind: int, of_channels: Any) -> Any:
    if kind in (intensities.BLUR, intensities.LOW_RESOLUTION):
        yield from of_channels[:, 0]
        count = 2 if kind == intensities.BLUR else 1
        for channel in of_channels:
            if channel[0] < intensities.P_CHANNEL:
                yield from channel[1 : 1 + count]
        return
    yield from (0.5,) * (9 if kind in (intensities.GAMMA, intensities.INVERTED_GAMMA) else 3)
    yield from of_channels[0, :1] if kind == intensities.NOISE else of_channels[:, :2].reshape(-1)


def same(setting: Setting, size: int) -> list[Judgement]:
    theirs, apart, most, other = Epochs(setting, size), 0.0, 0.0, 0.0
    with ours(setting, size) as loader:
        found = (
            (image, mask[0])
            for batch in loader
            for image, mask in zip(batch["data"], batch["target"][0], strict=True)
        )
        for index, (image, mask) in enumerate(islice(found, _FEW)):
            draws = Draws(_SEED, 0, np.array([index]))
            wanted, target = sample_of(theirs, index, draws)
            apart = max(apart, float((image - wanted).abs().mean()))
            most = max(most, float((image - wanted).abs().max()))
            other = max(other, float((mask != target).double().mean()))
    return [
        Judgement("mean difference of the worst of 64 images, of 1", apart, PIXELS, False),
        Judgement("largest difference of a pixel, of 1", most, 10 * PIXELS, False),
        Judgement("part of the worst of 64 masks that differs", other, MASKS, False),
    ]


def sample_of(epochs: Epochs, index: int, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """A sample of the original by the numbers of ours, and by all pixels of classes in place of
    10,000 of them."""
    case = epochs.data.identifiers[index]
    data, seg, before, properties = epochs.data.load_case(case)
    whole = np.asarray(seg[:])
    places = {kind: np.argwhere(whole == kind) for kind in (1, 2, 3)}

    def load_case(_: str) -> Any:
        return data, seg, before, {**properties, "class_locations": places}

    def noise(tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
        keys = draws.within(_CHANGES).integers(len(intensities.PROBABILITIES))
        drawn_here = normals(keys, tensor.numel(), torch.device("cpu"))
        return tensor.copy_(drawn_here.view(tensor.shape) * std + mean)

    with (
        mock.patch.object(epochs.data, "load_case", load_case),
        mock.patch.object(epochs.loader, "get_indices", return_value=[case]),
        mock.patch.object(epochs.loader, "batch_size", 1),
        mock.patch.object(torch.Tensor, "normal_", noise),
        fed(lambda source: drawn(source, draws)),
    ):
        batch = epochs.loader.generate_train_batch()
    return batch["data"][0], batch["target"][0][0, 0]


def pipeline_of(name: str, size: int, bar: float) -> Pipeline:
    return Pipeline(
        name,
        "nnunet_2d",
        Side(partial(Epochs, size=size), numbers, tiles),
        Side(partial(ours, size=size), numbers, tiles),
        batch_size=12,
        bar=bar,
        same=partial(same, size=size),
        data=raw_of,
    )


PIPELINES = (pipeline_of("nnunet_2d, 224", 224, 4.0), pipeline_of("nnunet_2d, 512", 512, 2.5))
