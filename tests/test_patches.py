"""Images at their own aspect ratio, as patches in rows: against timm's functions on single
images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.geometry.patches import patch_grids
from fastload.sampler import Shard, Shuffle
from fastload.sampler.packed import Packed
from tests import images

naflex = pytest.importorskip("timm.data.naflex_transforms")
dataset = pytest.importorskip("timm.data.naflex_dataset")
SIDE, MOST, LENGTH = 8, 20, 48
RESIZE = fastload.ResizeToPatches(SIDE, MOST)
TRANSFORM = v2.Compose([RESIZE, v2.RandomHorizontalFlip(), v2.ToImage()])
ORDER = Packed(Shuffle(), length=LENGTH, tokens="patches")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    root: Path = tmp_path_factory.mktemp("patches")
    sides = np.random.default_rng(0).integers(5, 90, (20, 2))
    for number, (height, width) in enumerate([*sides.tolist(), (3, 4), (2, 150), (150, 7)]):
        of_class = root / f"class_{number % 2}"
        of_class.mkdir(exist_ok=True)
        data = images.jpeg(images.photo(height, width, seed=number))
        (of_class / f"{number:02}.jpg").write_bytes(data)
    return root


def loader(folder: Any, size: int = 2, order: Any = ORDER, **more: Any) -> Any:
    options = {"transform": TRANSFORM, "seed": 4, "num_workers": 1, **more}
    return fastload.create_loader(folder, size, order=order, **options)


def alone(folder: Path, transform: Any = TRANSFORM) -> list[tuple[Any, int]]:
    """Image and label of each sample in epoch 0, by batches of one."""
    with fastload.create_loader(folder, 1, transform=transform, seed=4) as singles:
        return [(image[0], int(label)) for image, label in singles]


@pytest.mark.whole
def test_sides_are_those_of_timm_and_of_siglip2() -> None:
    siglip = pytest.importorskip("transformers.models.siglip2.image_processing_siglip2")
    rng = np.random.default_rng(1)
    sizes = np.exp(rng.uniform(0, np.log(20_000), (40, 2))).astype(np.int64)
    sizes = np.concatenate([sizes, [[1, 1], [1, 65_000], [65_000, 1], [512, 512], [16, 16]]])
    for patch, most, ratio in ((16, 256, None), (14, 1, None), (7, 1000, 1.0), (16, 729, 0.3)):
        grids = patch_grids(sizes, patch, most, ratio)
        assert (grids.prod(axis=1) <= most).all()
        for (height, width), grid in zip(sizes.tolist(), grids.tolist(), strict=True):
            sides = naflex.get_image_size_for_seq((height, width), patch, most, max_ratio=ratio)[1]
            assert [side * patch for side in grid] == list(sides)
            if ratio is None:
                assert siglip.get_image_size_for_max_num_patches(
                    height, width, patch, most
                ) == tuple(sides)


def test_the_transform_by_itself_is_timms() -> None:
    image = Image.fromarray(images.photo(61, 140))
    cubic = fastload.ResizeToPatches(16, 40, interpolation=InterpolationMode.BICUBIC)
    assert np.array_equal(cubic(image), naflex.ResizeToSequence(16, 40)(image))


@pytest.mark.parametrize(
    ("backend", "workers", "layout"),
    [
        ("turbojpeg", 1, torch.channels_last),
        ("turbojpeg", 1, torch.contiguous_format),
        ("torch", 0, torch.channels_last),
        ("cache", 1, torch.channels_last),
    ],
    ids=str,
)
def test_a_row_has_the_patches_of_each_image(
    folder: Path, backend: str, workers: int, layout: torch.memory_format
) -> None:
    singles, seen = alone(folder), list[int]()
    with loader(folder, backend=backend, num_workers=workers, memory_format=layout) as packed:
        assert "23 images in" in packed.explain()
        indices = list(packed.batch_sampler)
        for numbers, batch in zip(indices, packed, strict=True):
            rows, left = batch["patches"].shape[0], list(numbers)
            assert batch["patches"].shape == (rows, LENGTH, SIDE * SIDE * 3)
            assert batch["patches"].dtype == torch.uint8
            assert batch["position_ids"].shape == (rows, LENGTH, 2)
            assert batch["label"].tolist() == [singles[index][1] for index in numbers]
            bounds = []
            for row in range(rows):
                place = 0
                for document in range(int(batch["document_ids"][row].max()) + 1):
                    image = singles[left.pop(0)][0]
                    patches, coord, _ = naflex.patchify_image(image, (SIDE, SIDE))
                    here = slice(place, place + len(patches))
                    assert torch.equal(batch["patches"][row, here], patches)
                    assert torch.equal(batch["position_ids"][row, here], coord)
                    assert (batch["document_ids"][row, here] == document).all()
                    bounds.append(row * LENGTH + place)
                    place = here.stop
                assert (batch["document_ids"][row, place:] == -1).all()
                assert not batch["patches"][row, place:].any()
                assert not batch["position_ids"][row, place:].any()
                bounds += [row * LENGTH + place] if place < LENGTH else []
            assert not left
            assert batch["cu_seqlens"].tolist() == [*bounds, rows * LENGTH]
            assert batch["max_seqlen"] == max(np.diff([*bounds, rows * LENGTH]))
            seen += numbers
    assert sorted(seen) == list(range(23))


def test_an_image_a_row_is_the_batch_of_timms_collator(folder: Path) -> None:
    scaled = v2.Compose([TRANSFORM, v2.ToDtype(torch.float32, scale=True)])
    singles, collate = alone(folder, scaled), dataset.NaFlexCollator(max_seq_len=LENGTH)
    order = Packed(Shuffle(), length=LENGTH, tokens="patches", alone=True)
    with loader(folder, 5, order, transform=scaled) as rows:
        assert len(rows) == 5
        for numbers, batch in zip(list(rows.batch_sampler), rows, strict=True):
            of_each = [(naflex.Patchify(SIDE)(singles[n][0]), singles[n][1]) for n in numbers]
            wanted, labels = collate(of_each)
            assert torch.equal(batch["patches"], wanted["patches"])
            assert torch.equal(batch["position_ids"], wanted["patch_coord"])
            assert torch.equal(batch["document_ids"] >= 0, wanted["patch_valid"])
            assert torch.equal(batch["label"], labels)


def test_ranks_share_the_rows_and_a_state_goes_on(folder: Path) -> None:
    with loader(folder, 4) as whole:
        states, batches = [], []
        for batch in whole:
            batches.append(batch)
            states.append(json.loads(json.dumps(whole.state_dict())))
    ranks = [loader(folder, 2, shard=Shard(rank, 2)) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(states[0])
    for parts, batch in zip(zip(*ranks, strict=True), batches[1:], strict=True):
        for name in ("patches", "position_ids", "document_ids", "label"):
            joined = torch.cat([part[name] for part in parts])
            if len(batch["patches"]) >= 2:  # one row is divided
                assert torch.equal(joined, batch[name])
        weights = [len(part["label"]) * 2 / len(batch["label"]) for part in parts]
        assert [rank.loss_weight for rank in ranks] == pytest.approx(weights)  # images count
    for rank in ranks:
        rank.close()
    other = TRANSFORM.transforms[1:]
    with loader(
        folder, 4, transform=v2.Compose([fastload.ResizeToPatches(SIDE, 12), *other])
    ) as changed:
        with pytest.raises(StateMismatchError):
            changed.load_state_dict(states[0])


def test_a_rank_without_an_image(folder: Path) -> None:
    few = Subset(ImageFolder(folder), [0, 1])
    order = Packed(length=LENGTH, tokens="patches")
    ranks = [
        loader(few, 2, order, transform=v2.Compose([RESIZE, v2.ToImage()]), shard=Shard(rank, 3))
        for rank in range(3)
    ]
    shapes = sorted(tuple(batch["patches"].shape) for rank in ranks for batch in rank)
    assert shapes == [(0, LENGTH, 192), (1, LENGTH, 192), (1, LENGTH, 192)]
    for rank in ranks:
        rank.close()


def test_images_with_more_patches_than_a_row(folder: Path, caplog: Any) -> None:
    with pytest.raises(ConfigurationError, match="cost more than the 15 of Packed"):
        loader(folder, order=Packed(length=15, tokens="patches"))
    short = Packed(length=15, tokens="patches", long="leave_out")
    with loader(folder, order=short) as left:
        assert "left out, as they are longer" in left.explain()
        assert all((batch["document_ids"] >= 0).sum(1).max() <= 15 for batch in left)
    with pytest.raises(ConfigurationError, match="long of Packed must be 'error' or 'leave_out'"):
        Packed(length=15, tokens="patches", long="cut")


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([v2.Resize((32, 32))], "must be one fastload.ResizeToPatches, and here are 0"),
        ([RESIZE, RESIZE], "here are 2"),
        ([v2.RandomResizedCrop(32), RESIZE], r"RandomResizedCrop\(.*has a say in the size, too"),
        ([RESIZE, v2.CenterCrop(8)], "CenterCrop.*does not follow from the size of the file"),
        ([RESIZE, v2.Pad(8)], "Pad.*has a say"),
        ([RESIZE, v2.RandomRotation(20)], "RandomRotation.*has a say"),
        ([RESIZE, lambda image: image], "runs in Python"),
        ([RESIZE, v2.ToImage(), v2.RandomErasing(p=1)], "would take padding for a picture"),
        ([fastload.Views(RESIZE, RESIZE)], "several views"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_transforms_that_patches_cannot_be_of(folder: Path, steps: list[Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        loader(folder, transform=v2.Compose(steps))


def test_what_there_cannot_be_beside_patches(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="MixUp mixes images of one size"):
        loader(folder, batch_transform=v2.MixUp(num_classes=2))
    with pytest.raises(ConfigurationError, match="those of images, or names of columns"):
        Packed(length=9, tokens=("patches", "tokens"))
    for words, given in (
        (r"patch=0\) must be an int", (0, 4)),
        (r"most=2.5\) must be an int", (16, 2.5)),
        ("a side of 160,000 pixels", (16, 10_000)),
    ):
        with pytest.raises(ConfigurationError, match=words):
            fastload.ResizeToPatches(*given)
    with pytest.raises(ConfigurationError, match="max_ratio=0"):
        fastload.ResizeToPatches(max_ratio=0)
    texts = {"patches": fastload.Ragged.of([np.arange(3)] * 4)}
    with pytest.raises(ConfigurationError, match="no images"):
        loader(texts, transform=None)
