"""The user's code runs, each sample, each epoch, where it is not known: however rarely it does
something of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload import known_code
from fastload.errors import ConfigurationError
from fastload.known_code import depends_on_argument_alone, opens_as_rgb
from tests.images import write_exif_folder

RESIZE = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
SAMPLES = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_exif_folder(tmp_path_factory.mktemp("exif"), SAMPLES)


def upright(path: str) -> Any:
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


class CropsSome(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = self.loader(path)
        if index % 20 == 13:
            image = image.crop((0, 0, 5, 5))
        return RESIZE(image), label


class RelabelsSome(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, 7 if index in (11, 23, 44) else label


class OddLoader(datasets.ImageFolder):
    """Overrides what `__getitem__` reads, and not `__getitem__`."""

    @property
    def loader(self) -> Any:
        return upright

    @loader.setter
    def loader(self, value: Any) -> None: ...


class WrapsAndCrops(Dataset[Any]):
    def __init__(self, folder: str) -> None:
        self.data, self.transform = datasets.ImageFolder(folder), RESIZE

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[index]
        if index == 31:
            image = image.transpose(Image.Transpose.ROTATE_90)
        return self.transform(image), label


class TurnedResize(v2.Resize):
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)


def hooked(folder: str) -> Any:
    resize = v2.Resize((8, 8))
    resize.register_forward_hook(lambda module, given, made: ImageOps.mirror(made))
    return datasets.ImageFolder(folder, v2.Compose([resize, v1.ToTensor()]))


def replaced(folder: str) -> Any:
    resize = v1.Resize((8, 8))
    resize.forward = lambda image: ImageOps.flip(image.resize((8, 8)))
    return datasets.ImageFolder(folder, v1.Compose([resize, v1.ToTensor()]))


class Backwards(list[Any]):
    def __iter__(self) -> Any:
        return reversed([*super().__iter__()])


def backwards(folder: str) -> Any:
    transform = v1.Compose(Backwards([v1.ToTensor(), ImageOps.mirror, v1.Resize((8, 8))]))
    return datasets.ImageFolder(folder, transform)


USERS: dict[str, Callable[[str], Any]] = {
    "loader": lambda f: datasets.ImageFolder(f, RESIZE, loader=upright),
    "a transform that looks at EXIF": lambda f: datasets.ImageFolder(
        f, v1.Compose([v1.Lambda(ImageOps.exif_transpose), RESIZE])
    ),
    "a subclass that crops some": CropsSome,
    "a subclass that relabels some": lambda f: RelabelsSome(f, RESIZE),
    "a subclass with a loader": lambda f: OddLoader(f, RESIZE),
    "a wrapper that turns one": WrapsAndCrops,
    "a hook": hooked,
    "a replaced method": replaced,
    "a list that is none": backwards,
    "a label by the name of a file": lambda f: RelabelsSome(f, RESIZE, target_transform=str),
}


@pytest.mark.parametrize("name", USERS)
def test_batches_are_the_dataloaders_own(folder: str, name: str) -> None:
    dataset = USERS[name](folder)
    existing = DataLoader(dataset, 16)
    with fastload.from_dataloader(existing) as loader:
        for (images, labels), (others, other_labels) in zip(loader, existing, strict=True):
            assert (images - others).abs().max() < 2.1 / 255, (
                "steps after the user's may run on batches"
            )
            if isinstance(labels, torch.Tensor):
                assert torch.equal(labels, other_labels)
            else:
                assert list(labels) == list(other_labels)
        explained = " ".join(str(loader.explain()).split())
    assert "as fast as under a DataLoader" in explained, "what it costs"


def mirrored_sample(dataset: Any, index: int) -> Any:
    path, label = dataset.samples[index]
    return dataset.transform(ImageOps.mirror(dataset.loader(path))), label


def mirrored_resize(resize: Any, image: Any) -> Any:
    return ImageOps.mirror(image.resize((8, 8)))


@pytest.mark.parametrize(
    ("kind", "name", "function"),
    [
        (datasets.DatasetFolder, "__getitem__", mirrored_sample),
        (v1.Resize, "forward", mirrored_resize),
    ],
)
def test_what_was_replaced_in_a_class_runs(
    folder: str, kind: Any, name: str, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a function of the script's own, so that its file is that of its module."""
    monkeypatch.setattr(kind, name, function)
    transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    existing = DataLoader(datasets.ImageFolder(folder, transform), 16)
    with fastload.from_dataloader(existing) as loader:
        assert loader.backend == "torch"
        for (images, _), (others, _) in zip(loader, existing, strict=True):
            assert (images - others).abs().max() < 2.1 / 255


def test_a_hook_of_all_modules_runs(folder: str) -> None:
    def flip(module: Any, given: Any, made: Any) -> Any:
        return ImageOps.flip(made) if isinstance(module, v1.Resize) else None

    hook = nn.modules.module.register_module_forward_hook(flip)
    try:
        transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
        existing = DataLoader(datasets.ImageFolder(folder, transform), 16)
        with fastload.from_dataloader(existing) as loader:
            assert "on all modules" in " ".join(str(loader.explain()).split())
            for (images, _), (others, _) in zip(loader, existing, strict=True):
                assert (images - others).abs().max() < 2.1 / 255
    finally:
        hook.remove()


@pytest.mark.slow
def test_create_loader_of_a_data_set_runs_its_code_too(folder: str) -> None:
    dataset = datasets.ImageFolder(folder, RESIZE, loader=upright)
    with fastload.create_loader(dataset, 16, memory_format=torch.contiguous_format) as loader:
        for (images, _), (others, _) in zip(loader, DataLoader(dataset, 16), strict=True):
            assert torch.equal(images, others)


@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
@pytest.mark.parametrize("views", [False, True])
def test_batches_are_lists_as_default_collate_makes_them(
    folder: str, backend: str, views: bool
) -> None:
    existing = DataLoader(
        datasets.ImageFolder(folder, fastload.Views(RESIZE, RESIZE) if views else RESIZE), 16
    )
    with (
        fastload.from_dataloader(existing, backend=backend) as loader,
        fastload.create_loader(
            folder, 16, transform=existing.dataset.transform, backend=backend
        ) as created,
    ):
        for batch in (next(iter(loader)), next(iter(created))):
            assert type(batch) is type(next(iter(existing))) is list
            assert type(batch[0]) is (list if views else torch.Tensor)
            batch[0] = None


def labels_of(loader: Any) -> list[Any]:
    return torch.cat([labels for _, labels in loader]).tolist()


def set_sample(dataset: Any, labels: dict[int, int], index: int) -> None:
    dataset.samples[index] = (dataset.samples[index][0], 1 - dataset.samples[index][1])


def set_table(dataset: Any, labels: dict[int, int], index: int) -> None:
    labels[0] = index


@pytest.mark.parametrize("change", [set_sample, set_table])
@pytest.mark.parametrize(
    "wrap", [fastload.from_dataloader, lambda e: fastload.create_loader(e.dataset, 16)]
)
def test_labels_that_are_set_between_epochs_arrive(folder: str, change: Any, wrap: Any) -> None:
    table = {0: 0, 1: 1}
    dataset = datasets.ImageFolder(folder, RESIZE, target_transform=lambda label: table[label])
    existing = DataLoader(dataset, 16)
    with wrap(existing) as loader:
        assert "turbojpeg" in str(loader.explain()).splitlines()[0]
        for index in (40, 3):
            assert labels_of(loader) == labels_of(existing)
            change(dataset, table, index)
        assert labels_of(loader) == labels_of(existing)


def test_a_transform_that_is_set_between_epochs_arrives(folder: str) -> None:
    dataset = datasets.ImageFolder(folder, v1.Compose([ImageOps.mirror, RESIZE]))
    with fastload.from_dataloader(DataLoader(dataset, 16)) as loader:
        next(iter(loader))
        dataset.transform = v1.Compose([ImageOps.flip, RESIZE])
        dataset.target_transform = str
        images, labels = next(iter(loader))
    others, other_labels = next(iter(DataLoader(dataset, 16)))
    assert (images - others).abs().max() < 2.1 / 255
    assert labels == other_labels


def test_pseudo_labels_of_a_wrapper_arrive(folder: str) -> None:
    class Pseudo(WrapsAndCrops):
        labels: list[int]

        def __getitem__(self, index: int) -> Any:
            image, _ = super().__getitem__(index)
            return image, self.labels[index]

    dataset = Pseudo(folder)
    with fastload.from_dataloader(DataLoader(dataset, 16)) as loader:
        for epoch in range(3):
            dataset.labels = [epoch * n for n in range(SAMPLES)]
            assert labels_of(loader) == dataset.labels


def test_noise_in_labels_occurs_and_differs_from_epoch_to_epoch(folder: str) -> None:
    def noisy(label: int) -> int:
        return 1 - label if random.random() < 0.2 else label

    dataset = datasets.ImageFolder(folder, RESIZE, target_transform=noisy)
    clean = [label for _, label in dataset.samples]
    with fastload.from_dataloader(DataLoader(dataset, 16), seed=0) as loader:
        wrong = [
            sum(a != b for a, b in zip(labels_of(loader), clean, strict=True)) for _ in range(4)
        ]
    assert all(2 < count < 30 for count in wrong)
    assert len(set(wrong)) > 1


# -- what is known, and what is not


def to_rgb(path: Any) -> Any:
    """Has a docstring, and names of its own."""
    picture_of_mine = path
    return Image.open(picture_of_mine).convert("RGB")


def test_functions_that_open_images_are_known_by_their_code() -> None:
    assert opens_as_rgb(datasets.folder.default_loader)
    assert opens_as_rgb(datasets.folder.pil_loader)
    assert opens_as_rgb(lambda name: Image.open(name).convert("RGB"))
    for other in (
        upright,
        to_rgb,
        str,
        lambda path: Image.open(path).convert("L"),
        lambda path: Image.open(path),
    ):
        assert not opens_as_rgb(other)
    names = {"Image": ImageOps}
    exec("def fake(path):\n    return Image.open(path).convert('RGB')", names)
    assert not opens_as_rgb(names["fake"])


TABLE, COUNTER = {1: 2}, [0]


def counting(label: int) -> int:
    COUNTER[0] += 1
    return label


def growing(label: int) -> Any:
    seen = COUNTER
    seen += [label]
    return label


def paired(label: int) -> Any:
    """Python 3.13 and newer have single instructions for two names at once."""
    low, high = label % 4, label // 4
    both = low
    return both, high


@pytest.mark.parametrize(
    ("function", "known"),
    [
        (lambda y: y + 5, True),
        (lambda y: (y, y), True),
        (paired, True),
        (lambda y: TABLE[y], True),
        (lambda y: 1 if y > 3 else 0, True),
        (lambda y: 0 if y is None else y, True),
        (lambda y: torch.tensor(y, dtype=torch.float32), True),
        (int, True),
        (lambda y: random.random(), False),
        (lambda y: torch.rand(()), False),
        (lambda y: y.item(), False),
        (lambda y, by=TABLE: by[y], False),
        (lambda y: labels_of(y), False),
        (counting, False),
        (growing, False),
        (str, False),
    ],
)
def test_functions_of_a_label_are_known_where_they_only_compute(function: Any, known: bool) -> None:
    assert depends_on_argument_alone(function) is known


def array(image: Any) -> Any:
    return np.array(image.resize((9, 8)))


@pytest.mark.parametrize(
    "last",
    [
        torch.flatten,
        lambda image: image[0],
        lambda image: torch.stack([image, 1 - image]),
        lambda image: image.mean(),
        lambda image: float(image.mean()),
        lambda image: image.permute(1, 2, 0).numpy(),
        lambda image: image.numpy(),
        lambda image: {"pixel_values": image},
        lambda image: image.shape[1],
    ],
    ids=["flat", "plane", "views", "scalar", "float", "hwc", "chw", "dict", "number"],
)
def test_what_a_function_makes_of_an_image_is_batched_as_it_is(folder: str, last: Any) -> None:
    data = datasets.ImageFolder(folder, v1.Compose([RESIZE, v1.Lambda(last)]))
    assert_batches_equal(data)


def test_an_array_that_a_transform_makes_keeps_its_axes(folder: str) -> None:
    assert_batches_equal(datasets.ImageFolder(folder, array))
    assert_batches_equal(datasets.ImageFolder(folder, v1.Compose([array, v1.ToTensor()])))


def small(image: Any) -> Any:
    return image.resize((9, 8))


@pytest.mark.parametrize(
    "made",
    [
        array,
        lambda image: torch.from_numpy(array(image))[:, :, 0],
        lambda image: torch.from_numpy(array(image)).flatten(),
        lambda image: torch.from_numpy(array(image))[None],
        lambda image: tv_tensors.Mask(torch.from_numpy(array(image))),
        lambda image: {"a": v2.functional.pil_to_tensor(small(image))},
        lambda image: v2.functional.five_crop(v2.functional.pil_to_tensor(image), [5, 5]),
    ],
    ids=["array", "plane", "flat", "4D", "mask", "dict", "five crops"],
)
def test_what_is_no_image_goes_through_the_rest_as_written(folder: str, made: Any) -> None:
    """torchvision's v2 leaves arrays alone, and takes tensors of any shape and collections."""
    assert_batches_equal(
        datasets.ImageFolder(folder, v2.Compose([made, v2.ToDtype(torch.float64, scale=True)]))
    )


@pytest.mark.parametrize(
    "mode", ["RGBA", "CMYK", "P", "1", "HSV", "YCbCr", "LAB", "I", "F", "L", "RGB"]
)
def test_a_mode_that_a_function_converts_to_stays(folder: str, mode: str) -> None:
    """The operations on batches are for RGB and grey; images of other modes were made RGB."""

    def convert(image: Any) -> Any:
        return image.convert(mode)

    rest = [
        v2.Resize((8, 9), v2.InterpolationMode.NEAREST),
        v2.ToImage(),
        v2.ToDtype(torch.float64),
    ]
    assert_batches_equal(datasets.ImageFolder(folder, v2.Compose([convert, *rest])))
    data = datasets.ImageFolder(folder, v2.Compose([v2.Resize((8, 9)), convert]))
    with fastload.from_dataloader(DataLoader(data, batch_size=4)) as loader:
        if mode in ("L", "RGB"):
            assert next(iter(loader))[0].shape[1] == len(mode)
            return
        with pytest.raises(ConfigurationError, match="default_collate"):
            next(iter(loader))


def test_a_function_that_makes_images_of_some_is_refused(folder: str) -> None:
    turns = iter([False, True, False, True])

    def some(image: Any) -> Any:
        return array(image) if next(turns) else small(image)

    data = datasets.ImageFolder(folder, v2.Compose([some, v2.ToDtype(torch.float64)]))
    with fastload.from_dataloader(DataLoader(data, batch_size=4)) as ours:
        with pytest.raises(
            ConfigurationError, match=r"of .*\[0\], and something else of .*\[1\]. Make"
        ):
            next(iter(ours))


class Captioned(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return {"picture": torch.zeros(3, 9, 9, dtype=torch.uint8), "label": index}


def test_a_transform_finds_no_image_in_a_dict_without_one() -> None:
    """One that runs on batches was left out without a word."""
    with fastload.create_loader(Captioned(), 2, transform=v2.Resize((8, 8))) as loader:
        with pytest.raises(ConfigurationError, match="dicts without an 'image' .keys: picture, la"):
            next(iter(loader))


def assert_batches_equal(data: Any) -> None:
    theirs = next(iter(DataLoader(data, batch_size=4)))
    with fastload.from_dataloader(DataLoader(data, batch_size=4)) as loader:
        torch.testing.assert_close(next(iter(loader)), theirs, rtol=0, atol=0)


# -- Collate functions that mix images -------------------------------------------------------------

HALVES = v2.MixUp(alpha=1e9, num_classes=3)
"""Its share is 1/2, but for some 1e-5, so that batches are those of the DataLoader."""
FLOATS = v2.Compose([v2.Resize((16, 16)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def mixed(batch: Any) -> Any:
    return HALVES(*default_collate(batch))


def of_a_script(mix: Any) -> Any:
    """As in torchvision's train.py, where all is within `main`."""

    def collate_fn(batch: Any) -> Any:
        return mix(*default_collate(batch))

    return collate_fn


def unmixed_labels(batch: Any) -> Any:
    images, labels = default_collate(batch)
    return HALVES(images, labels)[0], labels


def one_half(images: torch.Tensor, labels: torch.Tensor) -> Any:
    return images / 2, labels


def hooked_mix() -> Any:
    mix = v2.MixUp(alpha=1e9, num_classes=3)
    mix.register_forward_hook(lambda module, given, made: (made[0] + 1, made[1]))
    return v2.RandomChoice([mix])


MIXING = {
    "a function": (lambda: mixed, True),
    "a script": (lambda: of_a_script(HALVES), True),
    "a lambda": (lambda: lambda batch: HALVES(*default_collate(batch)), True),
    "one of one": (lambda: of_a_script(v2.RandomChoice([HALVES])), True),
    "labels left": (lambda: unmixed_labels, False),
    "no mixing": (lambda: of_a_script(one_half), False),
    "a hook": (lambda: of_a_script(hooked_mix()), False),
}


@pytest.mark.parametrize("name", MIXING)
def test_batches_that_a_collate_function_mixes(folder: str, name: str) -> None:
    make, known = MIXING[name]
    existing = DataLoader(datasets.ImageFolder(folder, FLOATS), 5, collate_fn=make())
    with fastload.from_dataloader(existing) as loader:
        assert ("done without it" in loader.explain()) == known
        for found, wanted in zip(loader, existing, strict=True):
            assert type(found) is type(wanted) is tuple
            for mine, its in zip(found, wanted, strict=True):
                assert (type(mine), mine.dtype) == (type(its), its.dtype)
                torch.testing.assert_close(mine, its, rtol=0, atol=2.1 / 255)


def test_another_mixing_counts_from_the_next_epoch(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = DataLoader(datasets.ImageFolder(folder, FLOATS), 5, collate_fn=mixed)
    with fastload.from_dataloader(existing) as loader:
        assert next(iter(loader))[1].shape[1] == 3
        monkeypatch.setitem(globals(), "HALVES", v2.CutMix(num_classes=7))
        assert next(iter(loader))[1].shape[1] == 7
        monkeypatch.setitem(globals(), "HALVES", one_half)
        assert next(iter(loader))[1].ndim == 1


def test_another_function_called_default_collate_is_called(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inverted(batch: Any) -> Any:
        images, labels = default_collate(batch)
        return 1 - images, labels

    monkeypatch.setattr(torch.utils.data, "default_collate", inverted)
    function: Any = FunctionType(mixed.__code__, {"HALVES": HALVES, "default_collate": inverted})
    known_code._batch_functions.cache_clear()
    existing = DataLoader(datasets.ImageFolder(folder, FLOATS), 5, collate_fn=function)
    with fastload.from_dataloader(existing) as loader:
        for found, wanted in zip(loader, existing, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=2.1 / 255)
