"""Random data sets, transforms and changes between epochs, beside a DataLoader and between the
backends.

What is drawn is a function of the number of the case: `pytest -k "[17]"` makes one again.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import functional as F1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2

import fastload
from fastload.backends.cache import CacheOptions
from tests.images import photo

SAMPLES = 9
SIZES = [(20, 31), (47, 33), (33, 33), (61, 24)]
CASES = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("differential")
    for n in range(SAMPLES):
        (root / f"{n % 3}").mkdir(exist_ok=True)
        picture = Image.fromarray(photo(*SIZES[n % 4], seed=n))
        picture.save(root / f"{n % 3}" / f"{n}.{('png', 'jpg', 'webp')[n % 3]}")
    return str(root)


# -- Transforms whose result is no matter of chance


def as_it_is(image: Any) -> Any:
    return image


class Calls:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        return self.transform(image)


class Module(nn.Module):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.inner = transform

    def forward(self, image: Any) -> Any:
        return self.inner(image)


class Upside(v1.RandomHorizontalFlip):
    """Overrides what its base does."""

    def forward(self, image: Any) -> Any:
        return F1.vflip(image)


def of_pictures(draw: random.Random) -> Any:
    """For PIL images and tensors of bytes."""
    m, p = draw.choice([v1, v2]), float(draw.randint(0, 1))
    side = draw.randint(8, 40), draw.randint(8, 40)
    factor = (round(draw.uniform(0.4, 1.6), 2),) * 2
    fill = draw.choice([0, 77, (9, 90, 200)])
    return draw.choice(
        [
            lambda: m.Resize(side),
            lambda: m.Resize(side[0]),
            lambda: m.CenterCrop(side),
            lambda: m.Pad(draw.choice([2, (1, 3), (3, 0, 1, 2)]), fill=fill),
            lambda: m.RandomHorizontalFlip(p),
            lambda: m.RandomVerticalFlip(p),
            lambda: m.RandomInvert(p),
            lambda: m.RandomSolarize(120, p),
            lambda: m.RandomPosterize(5, p),
            lambda: m.ColorJitter(brightness=factor),
            lambda: m.ColorJitter(saturation=factor),
            lambda: m.RandomGrayscale(p),
            lambda: m.RandomApply([m.ColorJitter(brightness=factor)], p),
            lambda: m.RandomApply([m.RandomApply([m.RandomInvert(1.0)], 1.0)], p),
        ]
    )()


def of_the_user(draw: random.Random) -> Any:
    return draw.choice(
        [
            as_it_is,
            lambda image: image,
            v1.Lambda(as_it_is),
            functools.partial(F2.horizontal_flip),
            Upside(1.0),
        ]
    )


def nested(draw: random.Random, transforms: list[Any]) -> Any:
    made: Any = draw.choice([v1, v2]).Compose(transforms)
    for _ in range(draw.randint(0, 3)):
        kinds: list[Callable[[Any], Any]] = [
            Calls,
            Module,
            lambda inner: draw.choice([v1, v2]).Compose([inner]),
        ]
        made = draw.choice(kinds)(made)
    return made


def chain(draw: random.Random, *, code: bool) -> list[Any]:
    made = [of_pictures(draw) for _ in range(draw.randint(1, 4))]
    made.append(draw.choice([v1, v2]).Resize((16, 12)))
    if code:
        made.insert(draw.randint(0, len(made)), of_the_user(draw))
    return [*made, v2.ToImage()]


def require_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """As near as the resamplers of PIL images, tensors and fastload are, one after another."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    difference = (found.to(torch.int16) - wanted.to(torch.int16)).abs()
    assert difference.float().mean() < 2
    assert (difference > 16).float().mean() < 0.05


def batches(loader: Any) -> list[tuple[torch.Tensor, list[int]]]:
    return [(images.as_subclass(torch.Tensor), labels.tolist()) for images, labels in loader]


@pytest.mark.parametrize("case", range(CASES))
def test_chains(case: int, folder: str, tmp_path: Path) -> None:
    draw = random.Random(case)
    transform = nested(draw, chain(draw, code=draw.random() < 0.3))
    wanted = batches(DataLoader(datasets.ImageFolder(folder, transform), 4))
    made = {}
    for backend in ("torch", "turbojpeg", "cache"):
        options = CacheOptions(directory=tmp_path, progress=False) if backend == "cache" else None
        arguments: dict[str, Any] = {"backend": backend, "options": options}
        try:
            with fastload.create_loader(
                folder, 4, transform=transform, num_workers=int(backend != "torch"), **arguments
            ) as loader:
                made[backend] = batches(loader)
        except fastload.errors.UnsupportedTransformError:
            assert backend != "torch"
    for found in made.values():
        for (images, labels), (others, other_labels), (first, _) in zip(
            found, wanted, made["torch"], strict=True
        ):
            assert labels == other_labels
            require_near(images, others)
            assert torch.equal(images, first)


# -- Data sets that are changed between epochs


class Around(Dataset[Any]):
    def __init__(self, data: Any, transform: Any = None) -> None:
        self.data, self.transform = data, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        if self.transform is not None:
            x = self.transform(x)
        return x, y


class Changed:
    """A data set, and what can be changed in it."""

    def __init__(self, draw: random.Random, folder: str) -> None:
        self.table, table = {0: 4, 1: 5, 2: 6}, {0: 4, 1: 5, 2: 6}
        self.table = table
        self.transforms = chain(draw, code=draw.random() < 0.3)
        composed = v1.Compose(self.transforms)  # which keeps the list
        transform = nested(draw, [composed])
        inside = draw.random() < 0.5
        self.folder = datasets.ImageFolder(
            folder, transform if inside else None, lambda label: table[label]
        )
        self.rows = draw.sample(range(SAMPLES), 6)
        rows: Any = draw.choice([list, np.array, torch.tensor])(self.rows)
        self.rows, made = rows, Subset(self.folder, rows)
        for _ in range(draw.randint(0, 4)):
            made = draw.choice(
                [Around, lambda data: ConcatDataset([data]), lambda data: Subset(data, range(6))]
            )(made)
        self.data = made if inside else Around(made, transform)

    def change(self, draw: random.Random) -> None:
        draw.choice(
            [
                lambda: self.transforms.__setitem__(-2, v2.Resize((9, 7))),
                lambda: self.transforms.insert(0, v1.RandomInvert(1.0)),
                lambda: setattr(self.transforms[-2], "size", (11, 8)),
                lambda: self.table.update({draw.randint(0, 2): draw.randint(7, 9)}),
                lambda: self.rows.__setitem__(0, draw.randrange(SAMPLES)),
                lambda: self.folder.samples.reverse(),
                lambda: None,
            ]
        )()


@pytest.mark.parametrize("case", range(CASES))
def test_changes_between_epochs(case: int, folder: str) -> None:
    epochs = []
    for adopt in (False, True):
        draw = random.Random(case)
        given = Changed(draw, folder)
        existing = DataLoader(given.data, 4)
        loader = fastload.from_dataloader(existing) if adopt else existing
        made = []
        for _ in range(3):
            made.append(batches(loader))
            given.change(draw)
        epochs.append(made)
    for wanted, found in zip(*epochs, strict=True):
        for (images, labels), (others, other_labels) in zip(found, wanted, strict=True):
            assert labels == other_labels
            require_near(images, others)
