"""Columns that geometry moves: boxes, on all backends, under all geometry, wherever it runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.draws import Draws
from fastload.errors import ConfigurationError, SourceError
from fastload.recipe import Recipe
from fastload.recipe.operation import GeometryOperation
from fastload.sources import EncodedFiles, Kind, Source, ValueArray, register_kind
from fastload.sources.buffers import PathTable
from fastload.sources.kinds import kind_named
from tests.backends import Contestant, contestants, once_in_workers
from tests.images import jpeg, photo, png

SAMPLES, SIZE = 11, 24
RNG = np.random.default_rng(3)
SIZES = [(40 + 3 * n % 17, 45 + 5 * n % 23) for n in range(SAMPLES)]
JITTER = v2.ColorJitter(brightness=0.4)

CHAINS = {
    "resized-crop": [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()],
    "padded-crop": [v2.Resize(40), v2.RandomCrop(SIZE, padding=9), v2.RandomVerticalFlip()],
    "pad-and-centre": [v2.RandomHorizontalFlip(), v2.Pad((1, 2, 3, 4)), v2.CenterCrop(80)],
    "crop-after-colour": [
        v2.Resize((50, 60)),
        JITTER,
        v2.RandomCrop(SIZE),
        v2.RandomHorizontalFlip(),
    ],
    "two-resizes": [
        v2.RandomResizedCrop(40),
        JITTER,
        v2.Resize(30),
        v2.RandomCrop(SIZE, padding=4),
    ],
    "after-normalise": [
        v2.Resize((50, 60)),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
        v2.RandomResizedCrop(SIZE, antialias=True),
    ],
    "some-only": [
        v2.Resize((30, 30)),
        v2.RandomApply([v2.RandomHorizontalFlip(0.7), v2.RandomVerticalFlip(0.7)]),
    ],
}
"""Transforms that make images of one size, whatever they are given."""


def boxes_in(sizes: list[tuple[int, int]], count: int = 2) -> np.ndarray[Any, Any]:
    """(N, count, 4) float64 boxes inside images of these sizes."""
    ends = RNG.random((len(sizes), count, 2, 2)) * np.array(sizes)[:, None, None, ::-1]
    return np.concatenate([ends.min(axis=2), ends.max(axis=2)], axis=2)


BOXES = boxes_in(SIZES)
POINTS = np.concatenate(
    [BOXES.reshape(SAMPLES, 4, 2), np.arange(SAMPLES * 4).reshape(SAMPLES, 4, 1)], axis=2
)
"""x, y and a number that goes along."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Images of many sizes, some of which the native core gives back to Python (CMYK), with two
    boxes each."""
    root = tmp_path_factory.mktemp("boxes")
    paths = []
    for n, (height, width) in enumerate(SIZES):
        pixels = photo(height, width, seed=n)
        paths.append(str(root / f"{n}.{'png' if n == 4 else 'jpg'}"))
        if n == 6:
            Image.fromarray(pixels).convert("CMYK").save(paths[-1])
        else:
            Path(paths[-1]).write_bytes(png(pixels) if n == 4 else jpeg(pixels))
    return _source(paths, boxes=BOXES, keypoints=POINTS)


def _source(paths: list[str], **columns: np.ndarray[Any, Any]) -> Source:
    roles = {"keypoints": "keypoints:none"}
    boxes = {n: ValueArray(array, role=roles.get(n, n)) for n, array in columns.items()}
    labels = ValueArray(np.arange(len(paths)))
    return Source(
        {"image": EncodedFiles(PathTable.of(paths)), **boxes, "label": labels},
        "boxes",
        "boxes",
        "dict",
    )


def boxes_of(index: int) -> Any:
    return tv_tensors.BoundingBoxes(
        torch.from_numpy(BOXES[index]), format="XYXY", canvas_size=SIZES[index]
    )  # type: ignore[call-overload]


def keypoints_of(index: int) -> Any:
    return tv_tensors.KeyPoints(torch.from_numpy(POINTS[index, :, :2]), canvas_size=SIZES[index])  # type: ignore[call-overload]


def by_torchvision(
    transform: Any, found: Any, index: int, *, seed: int, epoch: int
) -> torch.Tensor:
    """The boxes or points of a sample, by torchvision's kernels, one after the other for each
    operation."""
    draws = Draws(seed, epoch, np.array([index]))

    def through(ops: Any, draws: Draws, found: Any) -> Any:
        for stream, op in ops:
            if isinstance(op, GeometryOperation):
                one = op._plan(stream).resolve(draws, np.array([found.canvas_size]))
                assert not one.errors
                found = F.crop(found, *one.box[0].tolist())
                found = F.resize(found, one.size[0].tolist())
                found = F.crop(found, *one.window[0].tolist())
                found = F.horizontal_flip(found) if one.flip[0, 0] else found
                found = F.vertical_flip(found) if one.flip[0, 1] else found
            elif hasattr(op, "rows") and len(op.rows(draws, stream)):
                found = through(enumerate(op.ops), draws.within(stream), found)
        return found

    return through(enumerate(Recipe.from_transform(transform).ops), draws, found).as_subclass(
        torch.Tensor
    )


@functools.cache
def moved(chain: str, index: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes and points of a sample by torchvision: once for all backends."""
    transform = v2.Compose(CHAINS[chain])
    boxes, points = (
        by_torchvision(transform, given(index), index, seed=9, epoch=epoch)
        for given in (boxes_of, keypoints_of)
    )
    return boxes, points


@contestants()
@pytest.mark.parametrize("chain", CHAINS)
def test_boxes_are_moved_as_torchvision_moves_them(
    contestant: Contestant, source: Source, chain: str, tmp_path: Path
) -> None:
    once_in_workers(contestant, chain, "two-resizes")
    transform = v2.Compose(CHAINS[chain])
    with contestant.create(
        source, tmp_path, batch_size=4, transform=transform, shuffle=True, seed=9
    ) as loader:
        for epoch in range(2):
            for batch in loader:
                assert list(batch) == ["image", "boxes", "keypoints", "label"]
                assert (batch["boxes"].dtype, batch["keypoints"].dtype) == (
                    torch.float64,
                    torch.float64,
                )
                for row, index in enumerate(batch["label"].tolist()):
                    boxes, points = moved(chain, index, epoch)
                    assert torch.allclose(batch["boxes"][row].cpu(), boxes, rtol=0, atol=1e-4)
                    assert torch.allclose(
                        batch["keypoints"][row, :, :2].cpu(), points, rtol=0, atol=1e-4
                    )
                    assert batch["keypoints"][row, :, 2].tolist() == POINTS[index, :, 2].tolist()


@contestants()
@pytest.mark.parametrize("later", [False, True])
def test_boxes_stay_around_what_they_were_around(
    contestant: Contestant, later: bool, tmp_path: Path
) -> None:
    """A white rectangle on black, cropped and mirrored where images are decoded, or later on the
    device."""
    boxes = np.floor(boxes_in([(48, 56)] * 8, 1))[:, 0]
    boxes[:, 2:] = np.minimum(boxes[:, 2:] + 3, (56, 48))
    paths = []
    for n, (left, top, right, bottom) in enumerate(boxes.astype(int).tolist()):
        pixels = np.zeros((48, 56, 3), np.uint8)
        pixels[top:bottom, left:right] = 255
        paths.append(str(tmp_path / f"{n}.png"))
        Path(paths[-1]).write_bytes(png(pixels))
    chain = [v2.RandomCrop(40, padding=3), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
    transform = v2.Compose([v2.CenterCrop(48), JITTER, *chain] if later else chain)
    source = _source(paths, boxes=boxes.astype(np.float32))
    with contestant.create(source, tmp_path, batch_size=3, transform=transform, seed=2) as loader:
        for batch in loader:
            assert batch["boxes"].dtype == torch.float32
            for image, box in zip(batch["image"].cpu(), batch["boxes"].tolist(), strict=True):
                down, across = (image.amax(dim=(0, axis)) > 60 for axis in (2, 1))
                if down.any():
                    ys, xs = (torch.nonzero(line)[:, 0].tolist() for line in (down, across))
                    assert box == [xs[0], ys[0], xs[-1] + 1, ys[-1] + 1]
                else:
                    assert box[0] == box[2] or box[1] == box[3], "nothing of it is shown"


@contestants("torch-0", "turbojpeg", "turbojpeg-threads", "cache-device")
def test_each_view_has_its_boxes(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    first, second = (v2.Compose(CHAINS[name]) for name in ("resized-crop", "padded-crop"))
    views = fastload.Views(first, second)
    with contestant.create(source, tmp_path, batch_size=4, transform=views, seed=9) as loader:
        batch = next(iter(loader))
    boxes, other = batch["boxes"]
    assert boxes.shape == other.shape == (4, 2, 4)
    assert torch.allclose(
        boxes[1].cpu(), by_torchvision(first, boxes_of(1), 1, seed=9, epoch=0), rtol=0, atol=1e-4
    )


@contestants("torch-0", "turbojpeg", "turbojpeg-threads", "cache-disk", "cache-device")
def test_arrays_with_boxes(contestant: Contestant, tmp_path: Path) -> None:
    images = RNG.integers(0, 255, (5, 20, 30, 3), dtype=np.uint8)
    boxes = np.array([[2, 3, 11, 17]] * 5)
    arrays = {"image": images, "boxes": boxes, "label": np.arange(5)}
    flip = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((40, 30))])
    for transform, wanted in ((None, [2, 3, 11, 17]), (flip, [19, 6, 28, 34])):
        with contestant.create(arrays, tmp_path, batch_size=5, transform=transform) as loader:
            (batch,) = loader
        assert batch["boxes"].dtype == torch.float32
        assert batch["boxes"].tolist() == [wanted] * 5


@contestants("turbojpeg", "turbojpeg-threads", "torch-0", "cache-disk")
def test_a_sample_that_cannot_be_read_has_boxes_of_its_replacement(
    contestant: Contestant, tmp_path: Path
) -> None:
    paths = [str(tmp_path / f"{n}.jpg") for n in range(6)]
    for n, path in enumerate(paths):
        Path(path).write_bytes(b"no image" if n == 2 else jpeg(photo(40, 40, seed=n)))
    source = _source(paths, boxes=np.arange(24).reshape(6, 4) / 1.0 + (0, 0, 4, 4))
    transform = v2.Compose([v2.Resize((40, 40)), JITTER, v2.RandomCrop(40)])
    arguments: dict[str, Any] = {"batch_size": 6, "transform": transform, "on_error": "substitute"}
    with contestant.create(source, tmp_path, **arguments) as loader:
        (batch,) = loader
        assert loader.stats().substituted >= 1  # batches made ahead count too
    assert batch["label"][2] != 2
    for label, boxes in zip(batch["label"].tolist(), batch["boxes"].tolist(), strict=True):
        assert boxes == [4 * label, 4 * label + 1, 4 * label + 6, 4 * label + 7]


def test_a_reduced_cache_has_reduced_boxes(source: Source, tmp_path: Path) -> None:
    cached = fastload.sources.open_source(
        str(fastload.build_cache(source, tmp_path / "c", short_side=20))
    ).source
    rows = cached.values["boxes"].at(np.arange(SAMPLES))
    for index, (height, width) in enumerate(SIZES):
        ratio = np.array(cached.pixels["image"].size(index))[::-1] / (width, height)
        assert np.allclose(rows[index], BOXES[index] * np.tile(ratio, 2))
    assert cached.columns["boxes"].role == "boxes"


BROKEN: dict[str, tuple[Any, str]] = {
    "four numbers": (np.zeros((4, 5)), r"boxes must be numbers \(N, 4\).*another name"),
    "reversed": (
        np.array([[0, 0, 4, 4], [3, 0, 2, 4]]),
        r"row 1 holds \[3, 0, 2, 4\].*left <= right",
    ),
    "NaN": (np.array([[0, 0, 4, np.nan]]), "row 0 holds"),
    "text": (np.array([["a"] * 4]), "dtype"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_are_no_boxes_is_refused(case: str) -> None:
    boxes, said = BROKEN[case]
    images = np.zeros((len(boxes), 8, 8, 3), np.uint8)
    with pytest.raises(SourceError, match=said):
        fastload.create_loader(
            {"image": images, "boxes": boxes}, transform=v2.RandomHorizontalFlip()
        )


@pytest.mark.parametrize("backend", ["auto", "torch", "turbojpeg", "cache"])
def test_boxes_are_not_left_behind_in_silence(backend: str) -> None:
    arrays = {"image": np.zeros((4, 8, 8, 3), np.uint8), "boxes": np.zeros((4, 4), np.float32)}
    reflected = v2.RandomCrop(8, padding=2, padding_mode="reflect")
    for transform in (
        v2.RandAugment(),
        lambda image: image,
        reflected,
        v2.Compose([v2.RandAugment(), reflected]),
    ):
        with pytest.raises(ConfigurationError, match="'boxes' .* goes with the images"):
            fastload.create_loader(arrays, 2, transform=transform, backend=backend)


class _WithBoxes(torch.utils.data.Dataset[Any]):
    """Samples (image, {"boxes": ...}), as torchvision wraps COCO; or with masks in their place."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        places = {
            "boxes": tv_tensors.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(8, 8)),  # type: ignore[call-overload]
            "mask": tv_tensors.Mask(torch.zeros(1, 8, 8, dtype=torch.uint8)),
            "bbox": [[0, 0, 4, 4]],  # as Hugging Face's data sets have it
        }
        return torch.zeros(3, 8, 8, dtype=torch.uint8), {self.name: places[self.name]}


@pytest.mark.parametrize("name", ["boxes", "mask", "bbox"])
@pytest.mark.parametrize("collate_fn", [None, list])
def test_boxes_of_a_dataset_are_not_left_behind_in_silence(name: str, collate_fn: Any) -> None:
    dataset, whole = _WithBoxes(name), v2.Lambda(lambda image: image)
    for transform in (
        v2.RandomResizedCrop(4),
        v2.Compose([v2.ColorJitter(0.5), v2.RandomCrop(4)]),
        v2.Compose([whole, v2.RandomHorizontalFlip(1.0)]),
    ):
        with (
            fastload.create_loader(
                dataset, 2, transform=transform, num_workers=0, collate_fn=collate_fn
            ) as loader,
            pytest.raises(ConfigurationError, match="holds boxes, points or masks, by its type"),
        ):
            next(iter(loader))
    jitter = v2.ColorJitter(0.5)
    with fastload.create_loader(
        dataset, 2, transform=jitter, num_workers=0, collate_fn=collate_fn
    ) as loader:
        assert len(next(iter(loader))) == 2


# -- kinds from outside


class Centres(Kind):
    """(N, 2): x, y of something in the image; NaN where it is not shown."""

    name = "centre"
    keys = ("centre",)
    moves = True

    def transform(self, rows: Any, points: Any) -> Any:
        inside, free = points.points(rows), points.points(rows, clip=False)
        return np.where((inside == free).all(axis=-1, keepdims=True), free, np.nan)


@pytest.fixture
def centres() -> Iterator[None]:
    register_kind(Centres())
    yield
    from fastload.sources import kinds

    kinds._kinds.pop("centre")


@pytest.mark.usefixtures("centres")
@contestants("torch-0", "turbojpeg", "cache-disk")
def test_a_kind_of_your_own(contestant: Contestant, tmp_path: Path) -> None:
    arrays = {
        "image": np.zeros((2, 8, 8, 3), np.uint8),
        "centre": np.array([[1.0, 2.0], [4.0, 4.0]]),
    }
    with contestant.create(arrays, tmp_path, batch_size=2, transform=v2.CenterCrop(4)) as loader:
        (batch,) = loader
    assert batch["centre"][0].isnan().all()
    assert batch["centre"][1].tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("centres")
def test_a_kind_has_a_name_and_keys_of_its_own() -> None:
    class Other(Kind):
        name = "other"
        keys = ("centre",)

    with pytest.raises(
        ConfigurationError, match="Centres has the name 'centre' and the keys centre already"
    ):
        register_kind(Other())


def test_an_unknown_kind_is_refused() -> None:
    column = ValueArray(np.zeros((3, 4)), role="picture")
    with pytest.raises(
        SourceError,
        match=r"column 'x': 'picture'.*boxes, crop_corner, image, image_list.*register_kind",
    ):
        Source({"x": column}, "", "s")
    with pytest.raises(SourceError, match="'boxes' is no kind of pixels"):
        Source({"x": EncodedFiles(PathTable.of(["a"]), role="boxes")}, "", "s")
    assert kind_named("boxes").moves
