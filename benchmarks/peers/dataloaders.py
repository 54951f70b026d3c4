"""torch.utils.data.DataLoader, as its documentation advises, with workers that persist over epochs;
and with what people put into it."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.setting import (
    AREA,
    ASPECT,
    DEVIATION,
    MEAN,
    PADDING,
    SIDE,
    Batches,
    Setting,
    random_crop,
)


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

    transform = v2.Compose(
        [v2.RandomResizedCrop(setting.crop, antialias=True), v2.RandomHorizontalFlip()]
    )
    return _dataloader(
        ImageFolder(setting.photographs, transform, loader=read_by_torchvision), setting
    )


def read_by_torchvision(path: str) -> Any:
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


class _ByFunction:
    """Photographs by a function of a path, which draws by the `random` of its worker."""

    def __init__(self, setting: Setting, load: Any) -> None:
        self._samples, self._load = setting.samples(), load

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._samples[index]
        return self._load(path), label


def opencv_albumentations(setting: Setting) -> Batches:
    """`cv2.imread` and albumentations with its defaults: its resize (INTER_LINEAR) has no
    antialiasing, and so is less work than that of the others."""
    import albumentations as A
    import cv2

    crop = A.RandomResizedCrop((setting.crop, setting.crop), scale=AREA, ratio=ASPECT)
    transform = A.Compose([crop, A.HorizontalFlip(p=0.5), A.ToTensorV2()])

    def load(path: str) -> Any:
        return transform(image=cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))["image"]

    return _dataloader(_ByFunction(setting, load), setting, worker_init_fn=_one_thread)


def simplejpeg_opencv(setting: Setting) -> Batches:
    """simplejpeg, and OpenCV's resize with antialiasing (INTER_AREA)."""
    load = partial(read_by_simplejpeg, random, setting.crop)
    return _dataloader(_ByFunction(setting, load), setting, worker_init_fn=_one_thread)


def read_by_simplejpeg(draw: Any, side: int, path: str) -> Any:
    """(side, side, 3) uint8."""
    import cv2
    import numpy as np
    from simplejpeg import decode_jpeg

    image = decode_jpeg(Path(path).read_bytes())
    left, top, width, height = random_crop(draw, image.shape[1], image.shape[0])
    shrinks = width >= side and height >= side
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    box = image[top : top + height, left : left + width]
    made = cv2.resize(box, (side, side), interpolation=how)
    return np.ascontiguousarray(made[:, ::-1]) if draw.random() < 0.5 else made


def _one_thread(number: int) -> None:
    """For OpenCV in each worker; other draws in each."""
    import cv2
    import torch

    cv2.setNumThreads(0)
    random.seed(torch.initial_seed())


def timm_prefetch(setting: Setting) -> Batches:
    """`timm.data.create_loader` with its prefetcher, without colour jitter: float32 batches,
    normalised on the device, here the CPU."""
    import timm
    import torch
    from timm.data import create_dataset, create_loader

    loader: Any = create_loader(
        create_dataset("", root=setting.photographs),
        (3, setting.crop, setting.crop),
        setting.batch_size,
        is_training=True,
        color_jitter=0.0,
        interpolation="bilinear",
        mean=MEAN,
        std=DEVIATION,
        num_workers=setting.threads,
        device=torch.device("cpu"),
    )
    return Batches(timm.__version__, lambda: (images for images, _ in loader))


def _dataloader(dataset: Any, setting: Setting, **options: Any) -> Batches:
    import torch
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        dataset,
        setting.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=setting.threads,
        persistent_workers=True,
        **options,
    )
    return Batches(str(torch.__version__), lambda: (images for images, _ in loader))
