"""Batches of images of several sizes: padded for DETR, views for torchvision's detectors; beside
the same samples one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends import backend_class
from fastload.backends.base import traits_of
from fastload.errors import ConfigurationError
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source, ValueArray
from fastload.sources.buffers import PathTable
from fastload.sources.masks import shapes_of
from tests.backends import Contestant, contestants
from tests.images import photo, png

SAMPLES = 8
SIZES = [(40 + 11 * n % 23, 50 + 7 * n % 19) for n in range(SAMPLES)]
COUNTS = [3, 0, 1, 5, 2, 4, 3, 0]
MEAN, STD = [0.3, 0.4, 0.5], [0.2, 0.3, 0.25]
MULTISCALE = v2.Compose(
    [
        v2.RandomShortestSize([20, 31, 44], max_size=60),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
)
# Of black pixels these make black ones.
COLOUR = v2.Compose([v2.RandomShortestSize([20, 30]), v2.ColorJitter(0.5, 0, 0.5, 0.1)])
SSD = v2.Compose([v2.RandomZoomOut(side_range=(1.0, 1.5)), v2.RandomIoUCrop(), v2.ToImage()])


def a_source(root: Path, **more: Any) -> Source:
    rng = np.random.default_rng(3)
    files, boxes = [], []
    for n, size in enumerate(SIZES):
        files.append(str(root / f"{n}.png"))
        Path(files[-1]).write_bytes(png(photo(*size, seed=n)))
        ends = np.sort(rng.random((COUNTS[n], 2, 2)), axis=1) * size[::-1]
        boxes.append(ends.reshape(-1, 4))
    columns = {
        "image": EncodedFiles(PathTable.of(files)),
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
        "labels": RaggedArray(Ragged.of([np.arange(n) for n in COUNTS]), role="instances"),
        "index": ValueArray(np.arange(SAMPLES)),
        **more,
    }
    return Source(columns, "sizes", "sizes", "dict")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return a_source(tmp_path_factory.mktemp("sizes"))


def one_by_one(source: Source, **arguments: Any) -> dict[int, Any]:
    """The samples of an epoch, by index."""
    with fastload.create_loader(source, backend="torch", num_workers=0, **arguments) as loader:
        return {int(batch["index"][0]): batch for batch in loader}


def pads(contestant: Contestant) -> bool:
    return traits_of(backend_class(contestant.backend)).pads_images


def check_detr(batch: Any, alone: dict[int, Any]) -> None:
    images, mask, targets = batch
    largest = np.zeros(2, int)
    for image, outside, target in zip(images.cpu(), mask.cpu(), targets, strict=True):
        wanted = alone[int(target["index"])]
        (single,) = wanted["image"]
        height, width = single.shape[-2:]
        assert target["size"].tolist() == [height, width]
        assert target.keys() == {"boxes", "labels", "index", "size"}
        assert (image[:, :height, :width] - single).abs().max() <= 2 / 255 / min(STD) + 1e-5
        inside = torch.zeros_like(outside)
        inside[:height, :width] = True
        assert torch.equal(~outside, inside)
        assert not image[:, outside].any()
        left, top, right, bottom = wanted["boxes"].values.unbind(1)
        centred = [(left + right) / 2 / width, (top + bottom) / 2 / height]
        centred += [(right - left) / width, (bottom - top) / height]
        assert torch.allclose(target["boxes"].cpu(), torch.stack(centred, 1), rtol=0, atol=1e-6)
        assert target["labels"].tolist() == wanted["labels"].values.tolist()
        largest = np.maximum(largest, single.shape[-2:])
    assert images.shape[-2:] == tuple(largest)


@contestants()
def test_detr(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"transform": MULTISCALE, "shuffle": True, "seed": 5}
    alone = one_by_one(source, **arguments)
    arguments |= {"batch_size": 3, "collate_fn": "detr"}
    if not pads(contestant):
        with pytest.raises(ConfigurationError, match=r"transform: .*cannot pad images"):
            contestant.create(source, tmp_path, **arguments)
        return
    with contestant.create(source, tmp_path, **arguments) as loader:
        iterator = iter(loader)
        batches, state = [next(iterator)], loader.state_dict()
        loader.load_state_dict(state)
        batches += list(loader)
        assert "padded to the largest" in loader.explain()
    for batch in batches:
        check_detr(batch, alone)
    assert {tuple(images.shape[-2:]) for images, _, _ in batches} != {
        tuple(batches[0][0].shape[-2:])
    }
    assert sum(len(targets) for _, _, targets in batches) == SAMPLES


@contestants()
@pytest.mark.parametrize(
    "transform", [MULTISCALE, SSD, COLOUR, None], ids=["multiscale", "ssd", "colour", "none"]
)
def test_torchvision(
    contestant: Contestant, source: Source, transform: Any, tmp_path: Path
) -> None:
    if not pads(contestant):
        pytest.skip("this backend pads no images; test_detr looks at its error")
    alone = one_by_one(source, transform=transform, seed=2)
    with contestant.create(
        source, tmp_path, batch_size=4, transform=transform, seed=2, collate_fn="torchvision"
    ) as loader:
        for images, targets in loader:
            if images[0].device.type == "cpu":  # no memory is for padding
                assert all(image.untyped_storage().nbytes() == image.nbytes for image in images)
                assert all(image.stride(0) == 1 for image in images), "channels_last"
            else:
                assert len({image.untyped_storage().data_ptr() for image in images}) == 1
            for image, target in zip(images, targets, strict=True):
                wanted = alone[int(target["index"])]
                assert image.shape == wanted["image"][0].shape
                away = (image.cpu().double() - wanted["image"][0].double()).abs().max()
                assert away <= (2 / 255 / min(STD) + 1e-5 if image.is_floating_point() else 2)
                assert torch.equal(target["boxes"].cpu(), wanted["boxes"].values)
                assert target.keys() == {"boxes", "labels", "index"}


@contestants("torch-0", "turbojpeg", "cache-disk")
def test_a_sample_in_the_place_of_another_may_be_larger(
    contestant: Contestant, tmp_path: Path
) -> None:
    source = a_source(tmp_path)
    sizes = np.array(SIZES)
    areas = sizes.prod(axis=1)
    good = {int(n): SIZES[n] for n in (areas.argmin(), areas.argmax())}
    for n in set(range(SAMPLES)) - good.keys():
        (tmp_path / f"{n}.png").write_bytes(b"no image")
    with contestant.create(
        source,
        tmp_path,
        batch_size=2,
        on_error="substitute",
        collate_fn="detr",
        transform=v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    ) as loader:
        batches = list(loader)
        # Of the next epoch some may have been made already, ahead of it.
        assert loader.stats().substituted >= SAMPLES - 2
    seen = set()
    for images, mask, targets in batches:
        for image, outside, target in zip(images, mask, targets, strict=True):
            index = int(target["index"])
            height, width = good[index]
            seen.add((index, images.shape[-2:]))
            assert target["size"].tolist() == [height, width]
            assert int((~outside).sum()) == height * width
            wanted = torch.from_numpy(photo(height, width, seed=index)).permute(2, 0, 1) / 255
            assert torch.allclose(image[:, :height, :width].cpu(), wanted)
            assert len(target["boxes"]) == COUNTS[index]
    assert len(seen) >= 2


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        (
            v2.Compose([v2.RandomShortestSize([20, 30]), v2.ColorJitter(contrast=0.5)]),
            "ColorJitter.*padding",
        ),
        (
            v2.Compose([v2.ColorJitter(contrast=0.5), v2.RandomHorizontalFlip()]),
            "padding for a picture",
        ),
    ],
)
def test_what_would_take_padding_for_a_picture(source: Source, transform: Any, match: str) -> None:
    for place in ("device", "host"):
        with pytest.raises(ConfigurationError, match=match):
            fastload.create_loader(
                source,
                batch_size=2,
                transform=transform,
                collate_fn="detr",
                options=fastload.BackendOptions(place=place),
            )
    # One image at a time has no padding.
    with fastload.create_loader(source, transform=transform, collate_fn="detr") as loader:
        _, mask, _ = next(iter(loader))
    assert not mask.any()


def test_masks_have_one_size(tmp_path: Path) -> None:
    files = PathTable.of([str(tmp_path / f"{n}.png") for n in range(SAMPLES)])
    triangles = shapes_of([[[[2.0, 2, 9, 2, 9, 9]]] * n for n in COUNTS])
    for more, match in (
        ({"mask": EncodedFiles(files, role="mask")}, "further images for each sample"),
        ({"masks": RaggedArray(triangles, role="instance_masks")}, "'masks'.*in one size"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            fastload.create_loader(
                a_source(tmp_path, **more), batch_size=2, collate_fn="torchvision"
            )
