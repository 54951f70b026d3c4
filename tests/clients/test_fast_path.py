"""What people put into a DataLoader runs natively, with the samples of the torch backend, or
explain() says why not."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    get_worker_info,
    random_split,
)
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import _presets as presets
from torchvision.transforms import v2

import fastload
from fastload.recipe import Recipe
from fastload.sampler import ForeignOrder, Shard
from tests.images import write_photo_folder

BICUBIC = v1.InterpolationMode.BICUBIC
EVALUATION = v1.Compose([v1.Resize(20, interpolation=BICUBIC), v1.CenterCrop(16), v1.ToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_photo_folder(tmp_path_factory.mktemp("fast")))


class TrainPreset:
    """In the shape of torchvision's references."""

    def __init__(self) -> None:
        crop = v1.RandomResizedCrop(16, interpolation=BICUBIC)
        convert = [
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize([0.5] * 3, [0.2] * 3),
        ]
        self.transforms = v1.Compose(
            [crop, v1.RandomHorizontalFlip(), *convert, v1.RandomErasing(0.5)]
        )

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class ModulePreset(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = v2.Compose(
            [v2.RandomResizedCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        )

    def forward(self, img: Any) -> Any:
        return self.steps(img)


class OwnCompose(v1.Compose):
    def __init__(self) -> None:
        super().__init__([v1.RandomResizedCrop(16), v1.ToTensor()])


class OwnFolder(datasets.ImageFolder):
    """Changes nothing but how it is made."""

    def __init__(self, root: str) -> None:
        super().__init__(root, TrainPreset())


class IndexedFolder(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), index)


class Transformed(Dataset[Any]):
    """The wrapper that everybody writes around random_split."""

    def __init__(self, subset: Any, transform: Any, target_transform: Any = None) -> None:
        self.subset, self.transform, self.target_transform = subset, transform, target_transform

    def __len__(self) -> int:
        return len(self.subset)

    def __getitem__(self, index: int) -> Any:
        image, label = self.subset[index]
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


class Shifted(Transformed):
    """Does something that none of its attributes does."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image + 1, label


class TransformedSubset(Subset[Any]):
    def __init__(self, dataset: Any, indices: list[int], transform: Any) -> None:
        super().__init__(dataset, indices)
        self.transform = transform

    def __getitem__(self, index: Any) -> Any:
        image, label = self.dataset[self.indices[index]]
        return self.transform(image), label

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def images(folder: str, transform: Any = EVALUATION, **options: Any) -> Any:
    return datasets.ImageFolder(folder, transform, **options)


def halves(folder: str) -> Any:
    return random_split(images(folder, None), [4, 2], torch.Generator().manual_seed(0))[0]


NATIVE: dict[str, tuple[Callable[[str], Any], str]] = {
    "a preset": (lambda f: images(f, TrainPreset()), ""),
    "a preset that is a module": (lambda f: images(f, ModulePreset()), ""),
    "a Compose of their own": (lambda f: images(f, OwnCompose()), ""),
    "the transforms of weights": (
        lambda f: images(f, presets.ImageClassification(crop_size=16, resize_size=20)),
        "",
    ),
    "a folder of their own": (OwnFolder, ""),
    "random_split": (lambda f: random_split(images(f), [4, 2])[0], ""),
    "ConcatDataset": (lambda f: ConcatDataset([images(f), Subset(images(f), [1, 0])]), ""),
    "a wrapper": (lambda f: Transformed(halves(f), TrainPreset()), ""),
    "a wrapper with labels": (
        lambda f: Transformed(halves(f), EVALUATION, lambda y: y + 5),
        "lambda",
    ),
    "a Subset of their own": (lambda f: TransformedSubset(images(f, None), [3, 1], EVALUATION), ""),
    "a loader written out": (
        lambda f: images(f, loader=lambda path: Image.open(path).convert("RGB")),
        "",
    ),
    "target_transform": (
        lambda f: images(f, target_transform=lambda y: float(y) / 2),
        "asked for 2 labels",
    ),
}


def batches(existing: Any, backend: str) -> list[Any]:
    with fastload.from_dataloader(existing, seed=3, backend=backend) as loader:
        return list(loader)


@pytest.mark.parametrize("name", NATIVE)
def test_it_runs_natively_as_in_the_torch_backend(folder: str, name: str) -> None:
    make, said = NATIVE[name]
    dataset = make(folder)
    existing = DataLoader(dataset, 3, shuffle=True)
    with fastload.from_dataloader(existing, seed=3) as loader:
        explained = str(loader.explain())
        ours = list(loader)
    assert "turbojpeg" in explained.splitlines()[0], explained
    assert said in explained
    for (views, labels), (others, other_labels) in zip(
        ours, batches(existing, "torch"), strict=True
    ):
        assert torch.equal(views, others)
        assert torch.equal(labels, other_labels)
        assert labels.dtype == other_labels.dtype
    # Labels, in order, are what the dataset itself gives.
    plain = torch.cat([labels for _, labels in DataLoader(dataset, 3)])
    served = torch.cat([labels for _, labels in batches(DataLoader(dataset, 3), "auto")])
    assert torch.equal(plain, served)
    assert plain.dtype == served.dtype


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda f: IndexedFolder(f, EVALUATION),
            "by code of its own, not by that of ImageFolder. So each is",
        ),
        (
            lambda f: Shifted(images(f, None), EVALUATION),
            "give that one the transform and the target_transform",
        ),
        (
            lambda f: images(f, target_transform=lambda y: random.random()),
            "may depend on more than the label",
        ),
        (
            lambda f: ConcatDataset([images(f), images(f, TrainPreset())]),
            "different transforms; give all of them one",
        ),
        (
            lambda f: images(f, target_transform=lambda y: torch.tensor(y, dtype=torch.bfloat16)),
            "bfloat16 has no counterpart in numpy",
        ),
        (
            lambda f: ConcatDataset(
                [images(f), images(f, target_transform=lambda y: torch.tensor([y, y]))]
            ),
            "'label' of different dtypes or shapes",
        ),
        (
            lambda f: images(f, lambda image: EVALUATION(image)),
            "not a torchvision transform; leave it out, or register",
        ),
    ],
)
def test_what_stops_it_is_said_with_the_edit_that_frees_it(
    folder: str, make: Any, reason: str
) -> None:
    dataset = make(folder)
    existing = DataLoader(dataset, 3)
    with fastload.from_dataloader(existing) as loader:
        explained = " ".join(str(loader.explain()).split())
        assert explained.startswith("backend torch")
        assert reason in explained
        assert len(list(loader)) == len(existing)


# -- views by a class of one's own

CROP = v1.Compose([v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()])
SMALL = v1.Compose([v1.RandomResizedCrop(8, scale=(0.05, 0.4)), v1.ToTensor()])


class TwoCrops:
    """In the shape of SimCLR and MoCo."""

    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, image: Any) -> Any:
        return [self.base_transform(image) for _ in range(2)]


class TwoDifferent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        both = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        self.first = v2.Compose([v2.RandomResizedCrop(16), v2.RandomGrayscale(0.1), *both])
        self.second = v2.Compose([v2.RandomResizedCrop(16), v2.RandomGrayscale(0.2), *both])

    def forward(self, image: Any) -> Any:
        return self.first(image), self.second(image)


class MultiCrop:
    """In the shape of DINO."""

    def __init__(self) -> None:
        self.wide = [CROP, v1.Compose([*CROP.transforms, v1.Normalize([0.5] * 3, [0.5] * 3)])]
        self.narrow, self.count = SMALL, 3

    def __call__(self, image: Any) -> Any:
        return [wide(image) for wide in self.wide] + [self.narrow(image) for _ in range(self.count)]


class Brightened(TwoCrops):
    """Does something of its own to the views."""

    def __call__(self, image: Any) -> Any:
        return [view + 1 for view in super().__call__(image)]


@pytest.mark.parametrize(
    ("transform", "edit"),
    [
        (TwoCrops(CROP), "fastload.Views(x.base_transform, x.base_transform)"),
        (TwoDifferent(), "fastload.Views(x.first, x.second)"),
        (MultiCrop(), "fastload.Views(x.wide[0], x.wide[1], x.narrow)"),
    ],
)
def test_views_by_a_class_of_their_own_are_freed_by_the_edit_that_is_named(
    folder: str, transform: Any, edit: str
) -> None:
    with fastload.from_dataloader(DataLoader(images(folder, transform), 3)) as loader:
        explained = " ".join(str(loader.explain()).split())
        assert explained.startswith("backend torch:")
        shapes = [view.shape for view in next(iter(loader))[0]]
    assert (
        f"if it makes views of an image by them, write {edit} in its place, one for each view"
        in explained
    )
    edited = eval(
        edit.replace("x.narrow)", "*[x.narrow] * 3)"), {"fastload": fastload, "x": transform}
    )
    with fastload.from_dataloader(DataLoader(images(folder, edited), 3)) as loader:
        assert str(loader.explain()).split()[1] == "turbojpeg:", loader.explain()
        assert [view.shape for view in next(iter(loader))[0]] == shapes


def test_transforms_are_not_called_to_find_out_what_they_do(folder: str) -> None:
    calls = []

    def called(image: Any) -> Any:
        calls.append(image)
        return CROP(image)

    for transform in (called, TwoCrops(called), Brightened(v1.Compose([called]))):
        with fastload.from_dataloader(DataLoader(images(folder, transform), 3)) as loader:
            assert str(loader.explain()).split()[1] == "torch:"
    assert not calls


def set_seeds(worker: int) -> None:
    """As in torch's notes on reproducibility."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def change_dataset(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.transform = v1.Compose([v1.Resize((4, 4)), v1.ToTensor()])


SHIFTS = {"by": 1}


def change_a_table(worker: int) -> None:
    SHIFTS.update(by=5)


def change_the_dtype(worker: int) -> None:
    torch.set_default_dtype(torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("init", [change_a_table, change_the_dtype])
def test_a_worker_init_fn_that_changes_what_samples_are_made_by_is_called(
    folder: str, init: Any
) -> None:
    existing = DataLoader(
        images(folder, target_transform=lambda y: y + SHIFTS["by"]),
        3,
        num_workers=1,
        worker_init_fn=init,
    )
    theirs = list(existing)
    with fastload.from_dataloader(existing) as loader:
        for (pixels, labels), (others, other_labels) in zip(loader, theirs, strict=True):
            assert pixels.dtype == others.dtype
            assert torch.equal(labels, other_labels)


@pytest.mark.parametrize(
    ("init", "backend"), [(set_seeds, "turbojpeg:"), (change_dataset, "torch:")]
)
def test_a_worker_init_fn_that_may_change_the_dataset_is_called(
    folder: str, init: Any, backend: str
) -> None:
    existing = DataLoader(images(folder), 6, worker_init_fn=init, num_workers=1)
    with fastload.from_dataloader(existing) as loader:
        assert str(loader.explain()).split()[1] == backend
        assert next(iter(loader))[0].shape == next(iter(existing))[0].shape


def test_random_generators_are_left_alone(folder: str) -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    with fastload.from_dataloader(DataLoader(Transformed(halves(folder), TrainPreset()), 2)):
        after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    assert states[:2] == after[:2]
    assert torch.equal(states[2], after[2])


# -- timm

TIMM: dict[str, dict[str, Any]] = {
    "train": {"is_training": True, "interpolation": "random", "re_prob": 0.5, "re_mode": "pixel"},
    "train, bicubic": {"is_training": True, "interpolation": "bicubic", "color_jitter": 0.4},
    "train without augmentation": {"is_training": True, "no_aug": True},
    "for the prefetcher": {"is_training": True, "use_prefetcher": True},
    "evaluation": {"interpolation": "bicubic"},
    "evaluation with borders": {
        "interpolation": "bicubic",
        "crop_mode": "border",
        "input_size": (3, 16, 24),
    },
    "evaluation, wide": {"input_size": (3, 16, 24)},
}


# timm leaves the files that it opens to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("name", TIMM)
def test_timm_runs_natively(folder: str, name: str) -> None:
    data = pytest.importorskip("timm.data", reason="pip install .[integrations]")
    dataset = data.ImageDataset(
        folder, transform=data.create_transform(**{"input_size": (3, 16, 16), **TIMM[name]})
    )
    existing = DataLoader(dataset, 3, shuffle=True)
    with fastload.from_dataloader(existing, seed=3) as loader:
        assert "turbojpeg" in str(loader.explain()).splitlines()[0], loader.explain()
        ours = list(loader)
    for (pixels, labels), (others, other_labels) in zip(
        ours, batches(existing, "torch"), strict=True
    ):
        assert torch.equal(pixels, others)
        assert torch.equal(labels, other_labels)
    if "is_training" not in TIMM[name]:
        existing = DataLoader(dataset, 3)
        for (pixels, _), (theirs, _) in zip(batches(existing, "auto"), existing, strict=True):
            assert (pixels - theirs).abs().mean() < 0.02, "the pixels that timm itself makes"


def test_timms_random_filter_is_drawn_for_each_sample(folder: str, tmp_path: Path) -> None:
    """Half of the samples as with bilinear, half as with bicubic; the same ones in every
    backend."""
    timm = pytest.importorskip("timm.data.transforms", reason="pip install .[integrations]")
    made = {}
    for filtering in ("random", "bilinear", "bicubic"):
        crop = timm.RandomResizedCropAndInterpolation(16, interpolation=filtering)
        for backend in ("torch", "turbojpeg", "cache"):
            options: Any = {}
            if backend == "cache":
                options["options"] = fastload.backends.cache.CacheOptions(
                    directory=tmp_path / "c", progress=False
                )
            with fastload.create_loader(
                folder, 6, transform=crop, backend=backend, num_workers=0, **options
            ) as loader:
                rows = [next(iter(loader))[0] for _ in range(3)]
            made[filtering, backend] = torch.cat(rows)
    mixed = made["random", "turbojpeg"]
    kinds = [
        [torch.equal(row, made[name, "turbojpeg"][n]) for name in ("bilinear", "bicubic")]
        for n, row in enumerate(mixed)
    ]
    assert all(any(kind) for kind in kinds)
    assert {tuple(kind) for kind in kinds} == {(True, False), (False, True)}
    assert torch.equal(mixed, made["random", "torch"])
    assert torch.equal(mixed, made["random", "cache"])
    with pytest.raises(fastload.UnsupportedTransformError, match="one filter"):
        pytest.importorskip("nvidia.dali")
        crop = timm.RandomResizedCropAndInterpolation(16, interpolation="random")
        fastload.create_loader(folder, transform=crop, backend="dali")


class RepeatedAugmentation:
    """As RASampler of torchvision's references deals copies out."""

    def __init__(self, length: int, rank: int, num_replicas: int, repetitions: int) -> None:
        self.length, self.rank, self.num_replicas, self.repetitions = (
            length,
            rank,
            num_replicas,
            repetitions,
        )

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Any:
        copies = [index for index in range(self.length) for _ in range(self.repetitions)]
        return iter(copies[self.rank :: self.num_replicas])


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_copies_of_a_sample_differ_on_all_ranks(world: int) -> None:
    seen = []
    for rank in range(world):
        order = ForeignOrder(
            RepeatedAugmentation(10, rank, world, 3), 2, 10, False, 0, Shard(rank, world)
        )
        indices = order.epoch(0)
        repeats = order.repeats(indices)
        assert repeats is not None
        seen += list(zip(indices.tolist(), repeats.tolist(), strict=True))
    assert sorted(seen) == [(index, copy) for index in range(10) for copy in range(3)]


def test_repeated_augmentation_runs_natively(folder: str) -> None:
    sampler = RepeatedAugmentation(6, 0, 1, 2)
    with fastload.from_dataloader(
        DataLoader(images(folder, TrainPreset()), 2, sampler=sampler)
    ) as loader:
        assert "turbojpeg" in str(loader.explain()).splitlines()[0]
        for pixels, labels in loader:
            assert labels[0] == labels[1]
            assert not torch.equal(pixels[0], pixels[1])


def test_delegation_is_proved_by_code_and_by_nothing_less() -> None:
    class Changed(TrainPreset):
        def __call__(self, img: Any) -> Any:
            return self.transforms(img.rotate(90))

    class Hooked(ModulePreset):
        def __init__(self) -> None:
            super().__init__()
            self.register_forward_hook(lambda module, given, made: made + 1)

    assert not Recipe.from_transform(TrainPreset()).is_opaque
    assert not Recipe.from_transform(ModulePreset()).is_opaque
    assert Recipe.from_transform(Changed()).is_opaque
    assert Recipe.from_transform(Hooked()).is_opaque
