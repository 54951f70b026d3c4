"""Streaming data sets of Hugging Face: the batches of the plain DataLoader, each rank's part, the
epochs, states."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from tests import images
from tests.cases import whole_but

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
distributed = pytest.importorskip("datasets.distributed")

Batches = list[list[int]]
PHOTOS = [images.jpeg(images.photo(24, 24, seed=row)) for row in range(11)]


def stream(shards: int = 4, *, rows: int = 26, shuffled: bool = False) -> Any:
    made = datasets.Dataset.from_dict({"a": list(range(rows))}).to_iterable_dataset(shards)
    return made.shuffle(seed=1, buffer_size=4) if shuffled else made


def photos() -> Any:
    columns = {"image": [{"bytes": photo, "path": None} for photo in PHOTOS], "label": range(11)}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    made = datasets.Dataset.from_dict({**columns, "label": list(range(11))}, features=features)
    return made.to_iterable_dataset(2)


def numbers(batches: Any) -> Batches:
    return [batch["a"].tolist() for batch in batches]


def by_a_dataloader(data: Any, epoch: int = 0, **arguments: Any) -> Batches:
    data.set_epoch(epoch)
    return numbers(DataLoader(data, 4, **arguments))


@pytest.mark.whole
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_epochs_are_those_of_a_dataloader_that_sets_them(workers: int, shuffled: bool) -> None:
    theirs = [
        by_a_dataloader(stream(shuffled=shuffled), epoch, num_workers=workers) for epoch in range(3)
    ]
    assert (theirs[0] != theirs[1]) or not shuffled
    before = torch.random.get_rng_state()
    with fastload.create_loader(stream(shuffled=shuffled), 4, num_workers=workers) as loader:
        assert [numbers(loader) for _ in range(2)] == theirs[:2]
        loader.set_epoch(1)
        assert numbers(loader) == theirs[1]
        loader.dataset.set_epoch(2)
        assert numbers(loader) == theirs[2], "set on the data set, as under a DataLoader"
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_adopted_one_is_in_the_epoch_that_the_script_sets() -> None:
    first, third = (by_a_dataloader(stream(shuffled=True), epoch) for epoch in (0, 2))
    data = stream(shuffled=True)
    with fastload.from_dataloader(DataLoader(data, 4)) as loader:
        assert [numbers(loader) for _ in range(2)] == [first, first], "as nobody sets one"
        data.set_epoch(2)
        assert numbers(loader) == third
        loader.set_epoch(0)
        assert numbers(loader) == first


@pytest.mark.parametrize("world", [2, 3])  # whole files; every third sample
@pytest.mark.parametrize("adopted", [False, True])
def test_a_rank_gets_what_split_dataset_by_node_gives_it(world: int, adopted: bool) -> None:
    seen: list[int] = []
    for rank in range(world):
        split = distributed.split_dataset_by_node(stream(shuffled=True), rank, world)
        shard = fastload.Shard(rank, world)
        if adopted:
            made = fastload.from_dataloader(DataLoader(stream(shuffled=True), 4), shard=shard)
        else:
            made = fastload.create_loader(stream(shuffled=True), 4, shard=shard)
        with made as loader:
            loader.set_epoch(1)
            found = numbers(loader)
            assert found == by_a_dataloader(split, 1)
            assert "split_dataset_by_node" in loader.explain()
            seen += [number for batch in found for number in batch]
    assert sorted(seen) == list(range(26))


def test_the_rank_is_found_as_for_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with fastload.create_loader(stream(), 4) as loader:
        assert numbers(loader) == by_a_dataloader(distributed.split_dataset_by_node(stream(), 1, 2))


def test_what_is_split_already_is_not_split_again() -> None:
    split = distributed.split_dataset_by_node(stream(), 1, 2)
    with fastload.create_loader(split, 4, shard=fastload.Shard(1, 2)) as loader:
        assert numbers(loader) == by_a_dataloader(split)
    with pytest.raises(ConfigurationError, match=r"rank 1 of 2.*rank 0 of 2.*Shard\(0, 1\)"):
        fastload.create_loader(split, 4, shard=fastload.Shard(0, 2))


VARIANTS: dict[str, Callable[[], Any]] = {
    "plain": stream,
    "mapped": lambda: stream().map(lambda row: {"a": row["a"] + 1}),
    "split": lambda: distributed.split_dataset_by_node(stream(), 1, 3),
    "shuffled": lambda: stream(shuffled=True),
}


@pytest.mark.parametrize("name", whole_but(["mapped"], VARIANTS))
@pytest.mark.parametrize("adopted", [False, True])
def test_a_state_goes_on_at_every_batch_in_the_epoch_of_the_data_set(
    name: str, adopted: bool
) -> None:
    def made(data: Any) -> fastload.Loader:
        if adopted:
            return fastload.from_dataloader(DataLoader(data, 4))
        return fastload.create_loader(data, 4)

    with made(VARIANTS[name]()) as loader:
        loader.set_epoch(2)
        iterator, states = iter(loader), []
        theirs: Batches = []
        for batch in iterator:
            theirs.append(batch["a"].tolist())
            states.append(json.loads(json.dumps(loader.state_dict())))
        following = numbers(loader)
    assert len(states) > 2
    assert all(("position" in state["dataset"]) == (name != "shuffled") for state in states[:-1])
    for step, state in enumerate(states):
        with made(VARIANTS[name]()) as other:
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert numbers(other) == theirs[step + 1 :]
            assert numbers(other) == following


def test_where_it_can_a_state_is_found_without_reading_up_to_it() -> None:
    read: list[int] = []

    def samples(shards: list[int]) -> Any:
        for shard in shards:
            read.append(shard)
            yield from ({"a": 10 * shard + row} for row in range(4))

    def made() -> Any:
        return datasets.IterableDataset.from_generator(samples, gen_kwargs={"shards": [0, 1, 2]})

    with fastload.create_loader(made(), 4) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        state = loader.state_dict()
    read.clear()
    with fastload.create_loader(made(), 4) as other:
        other.load_state_dict(state)
        assert numbers(other) == [[20, 21, 22, 23]]
        assert 0 not in read


def test_a_state_of_another_data_set_is_refused() -> None:
    with fastload.create_loader(stream(), 4) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for other in (stream(2), stream().skip(2)):
        with (
            fastload.create_loader(other, 4) as loader,
            pytest.raises(StateMismatchError, match="source: state|place in the data set"),
        ):
            loader.load_state_dict(state)


def test_boxes_are_not_left_behind_in_silence() -> None:
    def samples() -> Any:
        for _ in range(3):
            yield {
                "image": Image.new("RGB", (32, 24)),
                "objects": {"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [1]},
            }

    crop, jitter = v2.RandomCrop(16), v2.ColorJitter(0.5)
    for transform, refused in (
        (crop, True),
        (jitter, False),
        (fastload.Views(jitter, crop), True),
        (fastload.Views(lambda image: image, crop), True),  # one of the views is not known
        (fastload.Views(jitter, jitter), False),
    ):
        dataset = datasets.IterableDataset.from_generator(samples)
        with fastload.create_loader(dataset, 2, transform=transform, collate_fn=list) as loader:
            if not refused:
                assert len(next(iter(loader))) == 2
                continue
            with pytest.raises(ConfigurationError, match="'objects' of its samples is or holds"):
                next(iter(loader))


def test_a_transform_is_of_the_image_and_its_numbers_follow_from_the_seed() -> None:
    crop = v2.Compose([v2.RandomCrop(16), v2.PILToTensor()])
    made: list[list[dict[str, torch.Tensor]]] = []
    for seed in (0, 0, 1):
        before = torch.random.get_rng_state()
        with fastload.create_loader(photos(), 4, transform=crop, seed=seed) as loader:
            iterator = iter(loader)
            made.append([next(iterator)])
            state = loader.state_dict()
        with fastload.create_loader(photos(), 4, transform=crop, seed=seed) as other:
            other.load_state_dict(state)
            made[-1] += list(other)
        assert torch.equal(before, torch.random.get_rng_state())
    assert [batch["label"].tolist() for batch in made[0]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]
    assert made[0][0]["image"].shape == (4, 3, 16, 16)
    same = [torch.equal(a["image"], b["image"]) for a, b in zip(made[0], made[1], strict=True)]
    other = [torch.equal(a["image"], b["image"]) for a, b in zip(made[0], made[2], strict=True)]
    assert all(same)
    assert not any(other)
    picture = np.asarray(next(iter(photos()))["image"]).transpose(2, 0, 1)
    found = made[0][0]["image"][0].numpy()
    places = [(y, x) for y in range(9) for x in range(9)]
    assert any(np.array_equal(found, picture[:, y : y + 16, x : x + 16]) for y, x in places)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shuffle": True}, r"shuffle.*dataset\.shuffle\(seed="),
        ({"backend": "cache"}, "backend: 'cache'"),
        ({"on_error": "substitute"}, "on_error"),
        ({"sampler": [0, 1]}, "sampler"),
        ({"split": "train"}, "split"),
        ({"dtype": torch.float16}, "dtype"),
        ({"prefetch_factor": 2}, "num_workers"),
        ({"transform": fastload.Recipe.from_transform(None)}, "Recipe"),
    ],
)
def test_what_needs_samples_by_index_is_refused(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        fastload.create_loader(stream(), 4, **arguments)
