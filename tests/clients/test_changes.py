"""What the user changes between two epochs counts in the next one, as under a DataLoader, however
deep it is in what the Loader was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Subset as Part
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload.sampler.users import _settings_of
from fastload.sources.inspection import are_unchanged, seen_in
from tests.cases import whole_but

SAMPLES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("changes")
    for n in range(SAMPLES):
        (root / f"{n % 3}").mkdir(exist_ok=True)
        Image.new("RGB", (20, 16), (10 * n, 7, 90)).save(root / f"{n % 3}" / f"{n:02}.png")
    return str(root)


class Preset:
    def __init__(self, transform: Any) -> None:
        self.steps = transform

    def __call__(self, image: Any) -> Any:
        return self.steps(image)


class Rows(Dataset[Any]):
    def __init__(self, data: Any, rows: Any, transform: Any) -> None:
        self.data, self.rows, self.transform = data, rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[self.rows[index]]
        return self.transform(image), label


class Whole(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


def size(env: dict[str, Any]) -> None:
    env["resize"].size = (6, 9)


def colour(env: dict[str, Any]) -> None:
    env["colour"].brightness = (0.5, 0.5)


def more(env: dict[str, Any]) -> None:
    env["inner"].transforms.append(v2.RandomInvert(1.0))


def label(env: dict[str, Any]) -> None:
    env["folder"].samples[0] = (env["folder"].samples[0][0], 2)


def another(env: dict[str, Any]) -> None:
    env["folder"].transform = v2.Compose([v2.Resize((4, 4)), v2.ToImage()])


def rows(env: dict[str, Any]) -> None:
    env["rows"][:2] = env["rows"][1], env["rows"][0]


def own_code(image: Any) -> Any:
    return image


CHANGES: list[Callable[[dict[str, Any]], None]] = [size, colour, more, label, another, rows]


def deep(folder: str, env: dict[str, Any], *, code: bool = False) -> Any:
    env["resize"], env["colour"] = v1.Resize((8, 8)), v1.ColorJitter((1.5, 1.5))
    applied = v1.RandomApply([v1.RandomApply([env["colour"]], p=1.0)], p=1.0)
    first: list[Any] = [own_code] if code else []
    env["inner"] = v1.Compose([*first, env["resize"], applied, v2.ToImage()])
    transform = Preset(v2.Compose([Preset(v1.Compose([env["inner"]]))]))
    env["folder"] = datasets.ImageFolder(folder, transform)
    env["rows"] = np.arange(SAMPLES)[::-1].copy()
    return Whole(Whole(Part(ConcatDataset([Part(env["folder"], env["rows"])]), range(SAMPLES))))


def batches(loader: Any) -> list[Any]:
    return [(images.as_subclass(torch.Tensor), labels.tolist()) for images, labels in loader]


def require_same(found: list[Any], wanted: list[Any]) -> None:
    for (images, labels), (others, other_labels) in zip(found, wanted, strict=True):
        assert labels == other_labels
        assert images.shape == others.shape
        assert (images.int() - others.int()).abs().max() <= 2


@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_deep_in_a_data_set_arrives(folder: str, change: Any, code: bool) -> None:
    env: dict[str, Any] = {}
    dataset = deep(folder, env, code=code)
    with fastload.from_dataloader(DataLoader(dataset, 5)) as loader:
        assert ("turbojpeg" in loader.explain()) is not code
        require_same(batches(loader), batches(DataLoader(dataset, 5)))
        change(env)
        wanted = batches(DataLoader(dataset, 5))
        require_same(batches(loader), wanted)


@pytest.mark.parametrize("backend", ["torch", "turbojpeg"])
@pytest.mark.parametrize("source", [str, datasets.ImageFolder])
def test_a_change_of_the_transform_given_to_a_loader_arrives(
    folder: str, source: Any, backend: str
) -> None:
    resize = v2.Resize((8, 8))
    transform = v2.Compose([v2.Compose([resize]), v2.ToImage()])
    with fastload.create_loader(
        source(folder), 5, transform=transform, backend=backend, num_workers=0
    ) as loader:
        assert next(iter(loader))[0].shape[2:] == (8, 8)
        resize.size = [6, 9]
        assert next(iter(loader))[0].shape[2:] == (6, 9)


@pytest.mark.whole
def test_a_change_in_a_transform_that_runs_as_a_copy_arrives(folder: str) -> None:
    sepia = albumentations.ToSepia(p=1.0)
    resize = albumentations.Resize(8, 8)
    transform = albumentations.Compose([sepia, resize])
    with fastload.create_loader(folder, 5, transform=transform) as loader:
        assert next(iter(loader))[0].shape[2:] == (8, 8)
        resize.height = 6
        assert next(iter(loader))[0].shape[2:] == (6, 8)


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor])
def test_rows_of_a_wrapper_may_be_an_array(folder: str, convert: Any) -> None:
    dataset = Rows(datasets.ImageFolder(folder), convert([5, 1, 3]), v1.ToTensor())
    with fastload.from_dataloader(DataLoader(dataset, 2)) as loader:
        assert "turbojpeg" in loader.explain()
        assert [labels for _, labels in batches(loader)] == [
            labels for _, labels in batches(DataLoader(dataset, 2))
        ]


def by_torch(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.add_(1)


def by_data(tensor: torch.Tensor) -> None:
    tensor.data.add_(1)


def by_numpy(tensor: torch.Tensor) -> None:
    tensor.numpy()[...] += 1


def by_dlpack(tensor: torch.Tensor) -> None:
    torch.from_dlpack(tensor).add_(1)


def by_other_memory(tensor: torch.Tensor) -> None:
    tensor.data = tensor + 1


WRITES = [by_torch, by_data, by_numpy, by_dlpack, by_other_memory]


@pytest.mark.parametrize(
    "wide", [1, pytest.param((17 << 20) // (4 * SAMPLES), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_to_a_tensor_arrives_in_the_next_epoch(write: Any, wide: int) -> None:
    """Of any size, and by ways that torch does not count, be the last batch the one before it."""

    def played(adopt: Callable[[Any], Any]) -> list[float]:
        rows = torch.arange(SAMPLES, dtype=torch.float32)[:, None].expand(-1, wide).clone()
        loader = adopt(DataLoader(TensorDataset(rows), batch_size=5))
        found = []
        for _ in range(3):
            for count, (batch,) in enumerate(loader, 1):
                found += batch[:, -1].tolist()
                if count == len(loader):
                    write(rows)
        return found

    assert played(fastload.from_dataloader) == played(lambda loader: loader)


def test_digits_that_are_written_to_arrive_in_the_next_epoch() -> None:
    digits = object.__new__(datasets.MNIST)
    digits.data = torch.zeros(SAMPLES, 4, 4, dtype=torch.uint8)
    digits.targets = torch.zeros(SAMPLES, dtype=torch.int64)
    digits.transform, digits.target_transform = v2.ToImage(), None
    with fastload.from_dataloader(DataLoader(digits, batch_size=5)) as loader:
        assert loader.backend == "cache"
        for epoch in range(3):
            for images, labels in loader:
                assert images.unique().tolist() == labels.unique().tolist() == [epoch]
            digits.data.numpy()[...] += 1
            digits.targets.numpy()[...] += 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_data_set_may_hold_a_nested_tensor() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)])
    seen = seen_in(nested)
    assert are_unchanged(seen, seen_in(nested))
    nested.add_(1)
    assert not are_unchanged(seen, seen_in(nested))


def test_a_tensor_of_inference_mode_is_served() -> None:
    with torch.inference_mode():
        rows = torch.arange(SAMPLES)
    with fastload.from_dataloader(DataLoader(TensorDataset(rows), batch_size=SAMPLES)) as loader:
        assert [next(iter(loader))[0].tolist() for _ in range(2)] == [[*range(SAMPLES)]] * 2


@pytest.mark.parametrize("what", [float, torch.bfloat16, np.float16, bool])
def test_other_arrays_of_a_data_set_are_compared_by_their_bytes(what: Any) -> None:
    is_torch = isinstance(what, torch.dtype)
    array: Any = torch.zeros(7, dtype=what) if is_torch else np.zeros((7, 3), what)[:, ::2]
    values = [array]
    seen = seen_in(values)
    assert are_unchanged(seen, seen_in(values))
    array[6] = 1
    assert not are_unchanged(seen, seen_in(values))


def test_pixels_that_cifar_keeps_in_another_layout_may_be_written_to() -> None:
    dataset = datasets.CIFAR10.__new__(datasets.CIFAR10)
    pixels = np.zeros((6000, 3, 32, 32), np.uint8)  # 18 MB
    values = {"data": pixels.transpose(0, 2, 3, 1), "targets": [0] * 6000, "classes": ["a"]}
    vars(dataset).update(values, transform=v2.ToImage(), target_transform=None)
    with fastload.from_dataloader(DataLoader(dataset, 2000)) as loader:
        assert "cache" in loader.explain()
        for number in (0, 1, 2):
            dataset.data[5999] = number
            last = [images for images, _ in loader][-1]
            assert int(last[-1].min()) == int(last[-1].max()) == number


def test_what_was_not_changed_is_not_made_again(folder: str) -> None:
    dataset = deep(folder, {})
    with fastload.from_dataloader(DataLoader(dataset, 5)) as loader:
        next(iter(loader))
        parts = loader._parts
        next(iter(loader))
        assert loader._parts is parts


def test_an_order_that_cannot_change_is_not_copied() -> None:
    many = range(10**12)
    assert _settings_of(many) == [many]


@pytest.mark.parametrize("workers", whole_but([0], [0, 2]))
@pytest.mark.parametrize("how", ["weights", "new weights", "indices", "list"])
def test_a_sampler_that_is_changed_between_epochs_gives_what_it_says_then(
    how: str, workers: int
) -> None:
    data = list(range(SAMPLES))
    sampler: Any = WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)
    if how == "indices":
        sampler = SubsetRandomSampler([1, 2, 3])
    elif how == "list":
        sampler = [1, 2, 3]
    existing = DataLoader(
        data, 2, sampler=sampler, num_workers=workers, persistent_workers=workers > 0
    )
    with fastload.from_dataloader(existing) as loader:
        for wanted in (4, 9, 11):
            list(loader)
            if how == "weights":
                sampler.weights[:] = 0
                sampler.weights[wanted] = 1
            elif how == "new weights":
                sampler.weights = torch.eye(SAMPLES, dtype=torch.float64)[wanted]
            elif how == "indices":
                sampler.indices[:] = [wanted] * 3
            else:
                sampler[:] = [wanted] * 3
            assert {int(index) for batch in loader for index in batch} == {wanted}


@pytest.mark.parametrize("backend", ["turbojpeg", "cache"])
def test_backends_with_threads_give_what_a_changed_sampler_says(
    folder: str, backend: str, tmp_path: Path
) -> None:
    from fastload.backends.cache import CacheOptions

    options = (
        CacheOptions(directory=tmp_path / "cache", progress=False) if backend == "cache" else None
    )
    order = [0, 1, 2, 3]
    with fastload.create_loader(
        folder, 2, sampler=order, transform=v2.Resize((8, 8)), backend=backend, options=options
    ) as loader:
        for _ in range(3):
            order.reverse()
            assert [int(red) for images, _ in loader for red in images[:, 0, 0, 0]] == [
                30 * n for n in order
            ]
