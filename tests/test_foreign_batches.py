"""Batches that a dataset's own code or a collate function makes: what a loader is asked for holds,
or is refused."""

from __future__ import annotations

import collections
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate
from torchvision.transforms import v2

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError, WorkerError
from fastload.recipe.mix import MixUp
from tests.images import photo, write_photo_folder

CROP = v2.Compose([v2.RandomCrop(6), v2.ToImage()])


class Items(Dataset[Any]):
    """A dataset from a function of the index."""

    def __init__(self, make: Callable[[int], Any], length: int = 8) -> None:
        self._make = make
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


def first_batch(dataset: Any, **arguments: Any) -> Any:
    with fastload.create_loader(dataset, 4, **{"num_workers": 0, **arguments}) as loader:
        return next(iter(loader))


def noise(index: int) -> torch.Tensor:
    return torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(index))


class Named(NamedTuple):
    picture: torch.Tensor
    kind: int


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda i: (noise(i), i % 3), lambda batch: batch),
        (lambda i: Named(noise(i), i % 3), lambda batch: (batch.picture, batch.kind)),
        (
            lambda i: {"id": str(i), "label": i % 3, "image": noise(i)},
            lambda batch: (batch["image"], batch["label"]),
        ),
    ],
    ids=["tuple", "namedtuple", "dict"],
)
def test_mixup_reaches_batches_of_tensors(
    make: Callable[[int], Any], parts: Callable[[Any], Any]
) -> None:
    mixed = first_batch(Items(make), batch_transform=v2.MixUp(num_classes=3), dtype=torch.float64)
    images, labels = parts(mixed)
    expected = MixUp(num_classes=3).apply(
        torch.stack([noise(i) for i in range(4)]),
        torch.tensor([0, 1, 2, 0]),
        Draws(0, 0, np.array([0])),
    )
    assert images.dtype is torch.float64
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, expected[0].double())
    assert torch.equal(labels, expected[1])


class Pictures(NamedTuple):
    """Its image is the first."""

    picture: Any
    kind: int


def of_picture(index: int) -> Pictures:
    return Pictures(Image.fromarray(photo(9, 9, seed=index)), index)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("opaque", [False, True])
def test_named_tuples_stay_named_with_a_transform(opaque: bool, workers: int) -> None:
    class Whole(v2.Compose):
        """One that cannot be looked into."""

    steps = [v2.CenterCrop(4), v2.ToImage()]
    transform = Whole(steps) if opaque else v2.Compose(steps)
    seen = list[Any]()

    def collate(items: list[Any]) -> Any:
        seen.extend(items)
        return default_collate(items)

    for given in ({}, {} if workers else {"collate_fn": collate}):
        batch = first_batch(
            Items(of_picture), transform=transform, num_workers=workers, dtype=torch.uint8, **given
        )
        assert type(batch) is Pictures
        assert batch.kind.tolist() == [0, 1, 2, 3]
        theirs = [transform(of_picture(index).picture) for index in range(4)]
        assert torch.equal(batch.picture, torch.stack(theirs))
    assert all(type(item) is Pictures for item in seen)


def test_a_collate_functions_layout_is_left_alone_and_its_images_mixed() -> None:
    def collate(items: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([image for image, _ in items]), torch.tensor(
            [label for _, label in items]
        )

    plain = first_batch(Items(lambda i: (noise(i), i)), collate_fn=collate)
    assert plain[0].is_contiguous()
    mixed = first_batch(
        Items(lambda i: (noise(i), i)), collate_fn=collate, batch_transform=v2.CutMix(num_classes=8)
    )
    assert mixed[0].is_contiguous()
    assert mixed[1].shape == (4, 8)


@pytest.mark.parametrize(
    ("dataset", "arguments", "words"),
    [
        (
            Items(lambda i: {"x": noise(i), "y": i}),
            {"batch_transform": v2.MixUp(num_classes=8)},
            "batch_transform",
        ),
        (
            Items(lambda i: (noise(i), i, i)),
            {"batch_transform": v2.MixUp(num_classes=8)},
            "MixUp needs batches",
        ),
        (
            Items(lambda i: noise(i)),
            {"batch_transform": v2.MixUp(num_classes=8)},
            "MixUp needs batches",
        ),
        *(
            (Items(make), {"batch_transform": v2.MixUp(num_classes=8)}, "MixUp needs batches")
            for make in (lambda i: (i, noise(i)), lambda i: (noise(i), str(i)))
        ),
        (Items(lambda i: (i, noise(i))), {"dtype": torch.float16}, "dtype"),
        (TensorDataset(torch.arange(8)), {"dtype": torch.float16}, "dtype"),
        (
            TensorDataset(torch.arange(8)),
            {"batch_transform": v2.MixUp(num_classes=8)},
            "batch_transform",
        ),
        (
            np.zeros((8, 5, 5, 3), np.uint8),
            {"batch_transform": v2.MixUp(num_classes=8)},
            "batch_transform",
        ),
    ],
)
def test_what_cannot_be_done_to_a_batch_is_refused(
    dataset: Any, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        first_batch(dataset, **arguments)


def test_a_function_of_the_batch_gets_its_parts() -> None:
    images, labels = first_batch(
        Items(lambda i: (noise(i), i)), batch_transform=lambda x, y: (2 * x, y)
    )
    assert torch.equal(images, 2 * torch.stack([noise(i) for i in range(4)]))
    assert labels.tolist() == [0, 1, 2, 3]


class Encoding(collections.UserDict[str, Any]):
    """As the tokenizers of transformers give: a mapping with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]


def test_what_a_collate_function_makes_keeps_its_type() -> None:
    batch = first_batch(
        Items(lambda i: i), collate_fn=lambda items: Encoding(ids=torch.tensor(items))
    )
    assert type(batch) is Encoding
    assert batch.ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "collate",
    [
        lambda rows: np.array([row[1] for row in rows]),
        lambda rows: (torch.stack([row[0] for row in rows]), np.array([row[1] for row in rows])),
        lambda rows: {
            "image": rows[0][0].numpy(),
            "name": np.array([f"n{row[1]}" for row in rows]),
        },
        lambda rows: [np.array([row[1], None], dtype=object) for row in rows],
    ],
    ids=["one", "tuple", "words", "objects"],
)
def test_arrays_that_a_collate_function_makes_stay_arrays(collate: Any) -> None:
    """They were made tensors, and those of words and objects were an error of torch's."""
    rows = Items(lambda index: (noise(index), index))
    (theirs, *_) = DataLoader(rows, 4, collate_fn=collate)
    for batch in (
        first_batch(rows, collate_fn=collate),
        next(iter(fastload.from_dataloader(DataLoader(rows, 4, collate_fn=collate)))),
    ):
        assert type(batch) is type(theirs)
        parts = [list(x.values()) if isinstance(x, dict) else x for x in (batch, theirs)]
        for ours, wanted in zip(*parts, strict=True):
            assert type(ours) is type(wanted)
            assert str(ours) == str(wanted)


def test_samples_of_different_fields_are_refused_and_not_cut() -> None:
    def make(index: int) -> Any:
        return (Image.new("RGB", (8, 8)), *[index] * (1 + index % 2))

    with pytest.raises(ConfigurationError, match="different fields.*Items\\[1\\]"):
        first_batch(Items(make), transform=CROP)


def test_fields_that_are_no_arrays_can_be_substituted() -> None:
    def make(index: int) -> Any:
        if index == 2:
            raise OSError("gone")
        return {
            "image": Image.new("RGB", (8, 8), (index, 0, 0)),
            "path": f"p{index}",
            "pair": (index, float(index)),
        }

    batch = first_batch(Items(make), transform=CROP, on_error="substitute")
    numbers = batch["image"][:, 0, 0, 0].tolist()
    assert numbers[:2] + numbers[3:] == [0, 1, 3]
    assert numbers[2] != 2
    assert batch["path"] == [f"p{n}" for n in numbers]
    assert batch["pair"][0].tolist() == numbers


def test_a_replacement_leaves_the_draws_of_samples_that_come_twice_alone() -> None:
    """The second time of an epoch a sample has other draws than the first, also in a batch made
    again."""

    def crops(broken: bool) -> list[torch.Tensor]:
        def make(index: int) -> Any:
            if broken and index == 2:
                raise OSError("gone")
            ramp = np.arange(64 * 64, dtype=np.uint32).reshape(64, 64, 1)
            pixels = np.concatenate(
                [ramp // 64, ramp % 64, np.full_like(ramp, index)], axis=2
            ).astype(np.uint8)
            return {"image": Image.fromarray(pixels), "path": str(index)}

        batch = first_batch(
            Items(make), transform=CROP, on_error="substitute", sampler=[1, 1, 1, 2]
        )
        return list(batch["image"])

    sound, repaired = crops(False), crops(True)
    assert not torch.equal(sound[0], sound[1])
    for row in range(3):
        assert torch.equal(sound[row], repaired[row])


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_images_of_more_than_eight_bits_are_refused_and_not_clipped(mode: str) -> None:
    dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    with pytest.raises(ConfigurationError, match=mode):
        first_batch(
            Items(lambda i: (Image.fromarray(np.full((8, 8), 30_000, dtype)), i)), transform=CROP
        )


class Whereabouts(Dataset[Any]):
    """Random items that say in which process they were made; two of them are broken."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        if index in (4, 11):
            raise OSError("gone")
        return {"number": index, "noise": torch.rand(2), "process": os.getpid()}


@pytest.mark.whole
def test_replacements_are_made_in_the_workers() -> None:
    """In this process they would draw from the random state that the trainer is using."""

    def run(workers: int) -> list[Any]:
        with fastload.create_loader(
            Whereabouts(), 4, shuffle=True, num_workers=workers, on_error="substitute"
        ) as loader:
            batches = [batch for _ in range(3) for batch in loader]
            next(iter(loader))  # abandoned, perhaps with batches received early
            batches += list(loader)
            assert loader.stats().substituted >= 8
        return batches

    here, there = run(0), run(2)
    assert len(here) == len(there) == 24
    for ours, theirs in zip(here, there, strict=True):
        assert torch.equal(ours["number"], theirs["number"])
        assert torch.equal(ours["noise"], theirs["noise"])
        assert (ours["process"] == os.getpid()).all()
        assert (theirs["process"] != os.getpid()).all()


@pytest.mark.whole
def test_a_loader_whose_workers_are_all_dead_says_so_every_time_and_can_go_on() -> None:
    with fastload.create_loader(list(range(64)), 2, num_workers=2) as loader:
        for _ in range(2):
            batches = iter(loader)
            next(batches)
            workers = multiprocessing.active_children()
            assert len(workers) == 2
            for worker in workers:
                worker.kill()
            with pytest.raises(WorkerError, match="memory"):
                list(batches)
        assert torch.cat(list(loader)).tolist() == list(range(64))


# -- the user's own code


def of_no_image(image: Any) -> Any:
    return image.no_such_attribute


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", "substitute"])
def test_a_wrong_transform_raises_its_own_error(
    tmp_path: Path, on_error: Any, workers: int
) -> None:
    folder = write_photo_folder(tmp_path, per_class=2)
    with (
        fastload.create_loader(
            folder, 2, transform=of_no_image, num_workers=workers, on_error=on_error
        ) as loader,
        pytest.raises(AttributeError, match="no_such_attribute") as caught,
    ):
        list(loader)
    message = "".join(traceback.format_exception(caught.value))
    assert "in of_no_image" in message
    assert "return image.no_such_attribute" in message
    assert ".jpg" in str(caught.value.__cause__), "the sample is named"
    if sys.version_info >= (3, 11):
        (note,) = caught.value.__notes__
        assert ".jpg" in note


class SometimesBroken(Dataset[Any]):
    """Files that cannot be read are the samples' fault, and others take their place."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 3:
            raise OSError("truncated file")
        return torch.zeros(3, 4, 4), index


@pytest.mark.slow
def test_a_sample_that_its_dataset_cannot_read_is_replaced_or_reported() -> None:
    with fastload.create_loader(SometimesBroken(), 4, on_error="substitute") as loader:
        assert sum(len(labels) for _, labels in loader) == 8
        assert loader.stats().substituted == 1
    with (
        fastload.create_loader(SometimesBroken(), 4) as loader,
        pytest.raises(OSError, match="truncated file"),
    ):
        list(loader)


# -- what DataLoader has besides


def named(worker: int) -> None:
    print("worker", worker, flush=True)


@pytest.mark.whole
def test_dataloaders_other_arguments_mean_what_they_mean_there(
    capfd: pytest.CaptureFixture[str],
) -> None:
    generator = torch.Generator().manual_seed(5)
    with (
        fastload.create_loader(Items(lambda i: i), 4, shuffle=True, generator=generator) as ours,
        fastload.create_loader(Items(lambda i: i), 4, shuffle=True, seed=5) as theirs,
    ):
        assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]
    with fastload.create_loader(Items(lambda i: i), batch_sampler=[[3, 1], [2]]) as loader:
        assert [batch.tolist() for batch in loader] == [[3, 1], [2]]
    given: dict[str, Any] = {
        "multiprocessing_context": "fork",
        "timeout": 100,
        "persistent_workers": True,
    }
    with fastload.create_loader(
        Items(int), 4, num_workers=1, worker_init_fn=named, in_order=True, **given
    ) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(8))
    assert "worker 0" in capfd.readouterr().out
    pixels = torch.zeros(4, 3, 2, 2, dtype=torch.uint8)
    with fastload.create_loader((pixels, torch.arange(4)), 2, worker_init_fn=named) as loader:
        assert "worker_init_fn" in str(loader.explain()), "threads have no workers to begin"


@pytest.mark.parametrize(
    "given",
    [
        {"generator": torch.Generator(), "seed": 3},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"persistent_workers": False},
        {"in_order": False},
        {"pin_memory_device": "cuda"},
        {"timeout": -1},
        {"timeout": "soon"},
        {"worker_init_fn": 3},
        {"multiprocessing_context": "thread"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_dataloaders_arguments_cannot_mean_is_answered(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(given))):
        fastload.create_loader(Items(int), **given)


class Pair(NamedTuple):
    image: Any
    label: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda n: (torch.zeros(3, 4, 4), n),
        lambda n: {"image": torch.zeros(3, 4, 4), "more": {"label": n}},
        lambda n: Pair(torch.zeros(3, 4, 4), n),
        lambda n: (Image.new("RGB", (9, 7)), n),
    ],
    ids=["tuple", "dict", "named", "picture"],
)
def test_a_rank_without_samples_gets_a_batch_of_the_same_form(make: Any) -> None:
    """In evaluation: the others of its step have some."""
    picture = isinstance(make(0)[0] if isinstance(make(0), tuple) else 0, Image.Image)
    transform = v2.Compose([v2.Resize((4, 4)), v2.ToImage()]) if picture else None
    arguments = {"num_workers": 0, "batch_size": 2, "transform": transform}
    empty, full = (
        next(iter(fastload.create_loader(Items(make, 3), shard=fastload.Shard(n, 8), **arguments)))
        for n in (0, 2)
    )
    assert type(empty) is type(full)
    for one, other in zip(leaves(empty), leaves(full), strict=True):
        assert one.shape == (0, *other.shape[1:])
        assert (len(other), one.dtype) == (1, other.dtype)


class Batches:
    """A batch sampler of a class that is not known."""

    def __init__(self, given: list[list[int]]) -> None:
        self.given = given

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


@pytest.mark.parametrize("collate", [len, list, None])
@pytest.mark.parametrize("kind", [list, Batches])
def test_a_batch_sampler_that_gives_no_samples_has_the_batch_that_a_dataloader_makes(
    kind: Any, collate: Any
) -> None:
    def played(adopt: Any) -> list[Any]:
        given = kind([[0, 1], [], [2]])
        items = Items(lambda n: n, 3)
        batches = iter(adopt(DataLoader(items, batch_sampler=given, collate_fn=collate)))
        found: list[Any] = []
        for _ in range(3):
            try:
                found.append(repr(next(batches)))
            except IndexError as error:  # of default_collate
                found.append(str(error))
        return [*found, *batches]

    assert played(fastload.from_dataloader) == played(lambda loader: loader)


def leaves(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch
    return [leaf for part in parts for leaf in leaves(part)]
