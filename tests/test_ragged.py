"""Columns of rows of variable length: boxes and what belongs to them, on all backends."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.backends.base import BackendOptions
from fastload.draws import Draws
from fastload.errors import CacheError, ConfigurationError, SourceError
from fastload.recipe import Recipe
from fastload.recipe.columns import ClampBoundingBoxes
from fastload.recipe.columns import SanitizeBoundingBoxes as Sanitize
from fastload.recipe.operation import GeometryOperation
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source, ValueArray
from fastload.sources.buffers import PathTable
from fastload.sources.ragged import Packed
from fastload.sources.sharing import share
from tests.backends import Contestant, contestants, once_in_workers
from tests.images import jpeg, photo

SAMPLES, SIZE = 13, 24
RNG = np.random.default_rng(8)
SIZES = [(40 + 3 * n % 17, 45 + 5 * n % 23) for n in range(SAMPLES)]
COUNTS = [0, 3, 1, 7, 0, 2, 5, 1, 0, 4, 2, 6, 3]
"""Objects in each image."""
JITTER = v2.ColorJitter(brightness=0.4)

CHAINS: dict[str, list[Any]] = {
    "resized-crop": [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()],
    "padded-crop": [v2.Resize(40), v2.RandomCrop(SIZE, padding=9), v2.RandomVerticalFlip()],
    "two-resizes": [v2.RandomResizedCrop(40), JITTER, v2.Resize(30), v2.RandomCrop(SIZE)],
    "sanitized": [
        v2.RandomResizedCrop(40, scale=(0.1, 0.4)),
        v2.SanitizeBoundingBoxes(min_size=3, min_area=20),
        v2.RandomHorizontalFlip(),
    ],
    "clamped-and-sanitized-twice": [
        v2.ClampBoundingBoxes(),
        v2.Resize((50, 60)),
        v2.SanitizeBoundingBoxes(min_size=4),
        JITTER,
        v2.RandomCrop(SIZE),
        v2.SanitizeBoundingBoxes(min_size=2, min_area=9),
    ],
}


def a_box(size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Some of them reach out of the picture."""
    ends = (RNG.random((2, 2)) * 1.2 - 0.1) * np.array(size)[::-1]
    return np.concatenate([ends.min(axis=0), ends.max(axis=0)])


BOXES = [
    np.array([a_box(size) for _ in range(count)]).reshape(-1, 4)
    for size, count in zip(SIZES, COUNTS, strict=True)
]
IDS = [np.arange(count) + 100 * n for n, count in enumerate(COUNTS)]
POINTS = [np.concatenate([b.reshape(-1, 2, 2), np.ones((len(b), 2, 1))], axis=2) for b in BOXES]
OUTLINES = [
    [[box[[0, 1, 2, 1, 2, 3]].reshape(3, 2)] * (1 + n % 2) for n, box in enumerate(boxes)]
    for boxes in BOXES
]
"""Of each object one or two triangles."""
TOKENS = [np.arange(n % 5) for n in range(SAMPLES)]


def polygons_of(images: list[Any]) -> Ragged:
    objects = [parts for image in images for parts in image]
    corners = Ragged.of([part for parts in objects for part in parts])
    inner = Ragged(corners, np.cumsum([0, *map(len, objects)]))
    return Ragged(inner, np.cumsum([0, *map(len, images)]))


def columns() -> dict[str, Any]:
    return {
        "boxes": RaggedArray(Ragged.of(BOXES), role="boxes"),
        "labels": RaggedArray(Ragged.of([ids % 7 for ids in IDS]), role="instances"),
        "ids": RaggedArray(Ragged.of(IDS), role="instances"),
        "keypoints": RaggedArray(Ragged.of(POINTS), role="keypoints:none"),
        "polygons": RaggedArray(polygons_of(OUTLINES), role="polygons"),
        "tokens": RaggedArray(Ragged.of(TOKENS)),
        "index": ValueArray(np.arange(SAMPLES)),
    }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("objects")
    found = []
    for n, (height, width) in enumerate(SIZES):
        found.append(str(root / f"{n}.jpg"))
        Path(found[-1]).write_bytes(jpeg(photo(height, width, seed=n)))
    return found


@pytest.fixture
def source(paths: list[str]) -> Source:
    images = EncodedFiles(PathTable.of(paths))
    return Source({"image": images, **columns()}, "objects", "objects", "dict")


def placed(found: Any, box: list[int], size: list[int], window: list[int]) -> Any:
    """Boxes by the kernels of torchvision's transform: a crop, which clips, of the image or of the
    padded image, or a resize, which does not, or a crop and a resize."""
    whole = [0, 0, *found.canvas_size]
    if box[2:] == size:
        crop = [box[0] + window[0], box[1] + window[1], *window[2:]]
        return found if crop == whole else F.crop(found, *crop)
    if box != whole:
        return F.crop(F.resize(F.crop(found, *box), size), *window)
    assert window == [0, 0, *size]
    found = F.resize(found, size)
    edge = torch.tensor(size[::-1] * 2)
    rounded = (found.as_subclass(torch.Tensor) - edge).abs() < 1e-5  # its ratio is of float32
    return tv_tensors.wrap(torch.where(rounded, edge, found), like=found)


def by_torchvision(
    transform: Any, index: int, *, seed: int, epoch: int
) -> tuple[torch.Tensor, list[int]]:
    """Boxes and ids of a sample, by torchvision's kernels one after the other."""
    draws = Draws(seed, epoch, np.array([index]))
    found: Any = tv_tensors.BoundingBoxes(
        torch.from_numpy(BOXES[index]), format="XYXY", canvas_size=SIZES[index]
    )  # type: ignore[call-overload]
    ids = torch.from_numpy(IDS[index])
    for stream, op in enumerate(Recipe.from_transform(transform).ops):
        if isinstance(op, GeometryOperation):
            one = op._plan(stream).resolve(draws, np.array([found.canvas_size]))
            found = placed(found, *(x[0].tolist() for x in (one.box, one.size, one.window)))
            found = F.horizontal_flip(found) if one.flip[0, 0] else found
            found = F.vertical_flip(found) if one.flip[0, 1] else found
        elif isinstance(op, ClampBoundingBoxes):
            found = F.clamp_bounding_boxes(found)
        elif isinstance(op, Sanitize):
            found, kept = F.sanitize_bounding_boxes(
                found, min_size=op.min_size, min_area=op.min_area
            )
            ids = ids[kept]
    return found.as_subclass(torch.Tensor), ids.tolist()


def rows_of(batch: Any) -> list[Any]:
    """Everything of variable length, as plain lists, to be compared."""
    names = ("boxes", "labels", "ids", "keypoints", "tokens")
    flat = [[row.tolist() for row in batch[name]] for name in names]
    corners = [
        [[part.tolist() for part in parts] for parts in image] for image in batch["polygons"]
    ]
    return [*flat, corners]


@functools.cache
def moved(chain: str, index: int, epoch: int) -> tuple[torch.Tensor, list[int]]:
    """Boxes and ids of a sample by torchvision: once for all backends."""
    return by_torchvision(v2.Compose(CHAINS[chain]), index, seed=9, epoch=epoch)


@contestants()
@pytest.mark.parametrize("chain", CHAINS)
def test_objects_are_moved_and_dropped_as_torchvision_does(
    contestant: Contestant, source: Source, chain: str, tmp_path: Path
) -> None:
    once_in_workers(contestant, chain, "clamped-and-sanitized-twice")
    transform = v2.Compose(CHAINS[chain])
    dropped = 0
    with contestant.create(
        source, tmp_path, batch_size=4, transform=transform, shuffle=True, seed=9
    ) as loader:
        for epoch in range(2):
            for batch in loader:
                assert list(batch) == ["image", *columns()]
                assert len(batch["boxes"]) == len(batch["index"])
                for row, index in enumerate(batch["index"].tolist()):
                    boxes, ids = moved(chain, index, epoch)
                    assert batch["ids"][row].tolist() == ids
                    assert torch.allclose(batch["boxes"][row].cpu(), boxes, rtol=0, atol=1e-4)
                    assert batch["tokens"][row].tolist() == TOKENS[index].tolist()
                    whose = [one - 100 * index for one in ids]
                    labels = [int(IDS[index][one] % 7) for one in whose]
                    assert batch["labels"][row].tolist() == labels
                    assert len(batch["keypoints"][row]) == len(ids)
                    assert batch["polygons"][row].lengths.tolist() == [1 + n % 2 for n in whose]
                    dropped += COUNTS[index] - len(ids)
    assert (dropped > 0) == ("sanitized" in chain)


@contestants()
def test_the_corners_of_a_polygon_go_where_those_of_its_box_go(
    contestant: Contestant, source: Source, tmp_path: Path
) -> None:
    transform = v2.Compose([v2.Resize((60, 80)), v2.RandomHorizontalFlip(1.0)])
    with contestant.create(source, tmp_path, batch_size=SAMPLES, transform=transform) as loader:
        (batch,) = loader
    for index, outlines in enumerate(batch["polygons"]):
        ratio = np.array([80, 60]) / SIZES[index][::-1]
        for parts, wanted in zip(outlines, OUTLINES[index], strict=True):
            for corners, given in zip(parts, wanted, strict=True):
                assert np.allclose(corners.cpu(), [80, 0] + given * ratio * [-1, 1])


@pytest.mark.whole
@contestants()
def test_resume_and_ranks(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "transform": v2.Compose(CHAINS["sanitized"]),
        "shuffle": True,
        "seed": 3,
    }
    with contestant.create(source, tmp_path, **arguments) as loader:
        wanted, states = [], []
        for batch in loader:
            wanted.append(rows_of(batch))
            states.append(loader.state_dict())
    for step in (0, 2, 5):
        with contestant.create(source, tmp_path, **arguments) as loader:
            loader.load_state_dict(states[step])
            assert [rows_of(batch) for batch in loader] == wanted[step + 1 :]
    ranks = [
        contestant.create(
            source, tmp_path, **arguments | {"batch_size": 1, "shard": fastload.Shard(rank, 2)}
        )
        for rank in range(2)
    ]
    for whole, *parts in zip(wanted[:-1], *ranks, strict=False):  # the last is filled up
        for both, *halves in zip(whole, *map(rows_of, parts), strict=True):
            assert both == [row for half in halves for row in half]
    for loader in ranks:
        loader.close()


@pytest.mark.whole
@contestants()
def test_samples_without_objects_and_empty_batches(
    contestant: Contestant, paths: list[str], tmp_path: Path
) -> None:
    images = EncodedFiles(PathTable.of(paths[:3]))
    nothing = Ragged(np.zeros((0, 4), np.float32), np.zeros(4, np.int64))
    source = Source(
        {"image": images, "boxes": RaggedArray(nothing, role="boxes")}, "none", "none", "dict"
    )
    for rank, samples in ((0, 0), (4, 1)):
        with contestant.create(
            source,
            tmp_path,
            batch_size=2,
            transform=v2.Resize((8, 8)),
            shard=fastload.Shard(rank, 5),
        ) as loader:
            (batch,) = loader
        assert batch["boxes"].values.shape == (0, 4)
        assert batch["boxes"].values.dtype == torch.float32
        assert len(batch["boxes"]) == len(batch["image"]) == samples


@contestants("turbojpeg", "turbojpeg-threads", "torch-2", "cache-disk", "cache-device", "dali")
def test_a_sample_that_cannot_be_read_has_the_objects_of_its_replacement(
    contestant: Contestant, paths: list[str], tmp_path: Path
) -> None:
    broken = str(tmp_path / "broken.jpg")
    Path(broken).write_bytes(b"no image")
    images = EncodedFiles(PathTable.of([*paths[:3], broken, *paths[4:]]))
    source = Source({"image": images, **columns()}, "broken", "broken", "dict")
    arguments: dict[str, Any] = {
        "batch_size": SAMPLES,
        "transform": v2.Resize((8, 8)),
        "on_error": "substitute",
    }
    with contestant.create(source, tmp_path, **arguments) as loader:
        (batch,) = loader
    assert batch["index"][3] != 3
    for index, ids, tokens in zip(
        batch["index"].tolist(), batch["ids"], batch["tokens"], strict=True
    ):
        assert ids.tolist() == IDS[index].tolist()
        if index != 3:
            assert tokens.tolist() == TOKENS[index].tolist()


@contestants("torch-0", "turbojpeg", "cache-device")
def test_views_have_their_objects(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    views = [v2.Compose(CHAINS[name]) for name in ("sanitized", "resized-crop")]
    with contestant.create(
        source, tmp_path, batch_size=4, transform=fastload.Views(*views), seed=9
    ) as loader:
        batch = next(iter(loader))
    first, _ = batch["ids"]
    boxes, second = batch["boxes"][1], batch["ids"][1]
    assert second[3].tolist() == IDS[3].tolist()
    assert len(first.values) < len(second.values) == len(boxes.values) == sum(COUNTS[:4])


# -- arrays and arrow


@contestants("torch-0", "torch-2", "turbojpeg", "cache-disk", "cache-ram", "cache-device")
def test_arrays_of_variable_length(contestant: Contestant, tmp_path: Path) -> None:
    arrays = {
        "image": RNG.integers(0, 255, (SAMPLES, 20, 30, 3), dtype=np.uint8),
        "boxes": Ragged.of([np.array([[1, 2, 5, 6]] * count).reshape(-1, 4) for count in COUNTS]),
        "labels": Ragged.of(IDS),
        "words": Ragged.of(TOKENS),
    }
    flip = v2.RandomHorizontalFlip(1.0)
    with contestant.create(arrays, tmp_path, batch_size=5, transform=flip) as loader:
        batches = list(loader)
    boxes = [row.tolist() for batch in batches for row in batch["boxes"]]
    assert boxes == [[[25, 2, 29, 6]] * count for count in COUNTS]
    words = [row.tolist() for batch in batches for row in batch["words"]]
    assert words == [row.tolist() for row in TOKENS]


def test_arrow_is_taken_and_given_without_a_copy() -> None:
    pa = pytest.importorskip("pyarrow")
    ragged = Ragged.of(BOXES)
    arrow = ragged.to_arrow()
    assert arrow.type == pa.large_list(pa.list_(pa.float64(), 4))
    back = Ragged.from_arrow(arrow)
    assert np.shares_memory(back.values, ragged.values)
    assert np.shares_memory(back.offsets, ragged.offsets)
    nested = polygons_of(OUTLINES)
    again = Ragged.from_arrow(nested.to_arrow())
    assert [x.tolist() for x in again.arrays()] == [x.tolist() for x in nested.arrays()]
    lists = pa.array([[1, 2], [], [3]])
    part = Ragged.from_arrow(pa.chunked_array([lists.slice(1)]))
    assert [row.tolist() for row in part] == [[], [3]]
    images = np.zeros((3, 8, 8, 3), np.uint8)
    with fastload.create_loader({"image": images, "words": lists}, 3) as loader:
        (batch,) = loader
    assert [row.tolist() for row in batch["words"]] == [[1, 2], [], [3]]
    with pytest.raises(SourceError, match="array 'words': 1 row of 2 null"):
        fastload.create_loader({"words": pa.array([[1], None])})


def test_rows_and_pieces() -> None:
    ragged = polygons_of(OUTLINES)
    taken = ragged.take(np.array([3, 0, 3]))
    for row, index in zip(taken, (3, 0, 3), strict=True):
        wanted = [[part.tolist() for part in parts] for parts in OUTLINES[index]]
        assert [[part.tolist() for part in parts] for parts in row] == wanted
    packed = Packed.of(
        {"a": taken, "b": Ragged.of(IDS)}, lambda shape: np.empty(shape, np.uint8), bounds=False
    )
    received = pickle.loads(pickle.dumps(packed)).arrays()
    assert [x.tolist() for x in received["a"].arrays()] == [x.tolist() for x in taken.arrays()]
    tensors = dataclasses.replace(packed, buffer=torch.from_numpy(packed.buffer)).tensors()
    assert {x.untyped_storage().data_ptr() for one in tensors.values() for x in one.arrays()} == {
        packed.buffer.ctypes.data
    }, "all of them in one tensor"
    with pytest.raises(IndexError):
        ragged[SAMPLES]


def test_subsets_and_shared_memory(source: Source) -> None:
    rows = np.array([3, 3, 0, 11])
    part = share(source.take(rows)).take(np.array([1, 2]))
    for own in (part, pickle.loads(pickle.dumps(part))):
        boxes = own.values["boxes"].at(np.arange(2))
        assert [row.tolist() for row in boxes] == [BOXES[3].tolist(), BOXES[0].tolist()]


# -- caches


def test_a_cache_of_them(source: Source, tmp_path: Path) -> None:
    directory = fastload.build_cache(source, tmp_path / "c", progress=False)
    cached = fastload.open_source(str(directory)).source
    assert cached.fingerprint == source.fingerprint
    for name, column in source.values.items():
        assert cached.columns[name].role == column.role
        everything = np.arange(SAMPLES)
        own, other = column.at(everything), cached.values[name].at(everything)
        if column.ragged:
            assert [x.tolist() for x in own.arrays()] == [x.tolist() for x in other.arrays()]
    small = fastload.build_cache(source, tmp_path / "s", short_side=20, progress=False)
    reduced = fastload.open_source(str(small)).source
    ratio = np.array(reduced.pixels["image"].size(3))[::-1] / SIZES[3][::-1]
    boxes = reduced.values["boxes"].at(np.array([3])).values
    assert np.allclose(boxes, BOXES[3] * np.tile(ratio, 2))  # also what reaches out of the image


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_cache_with_wrong_offsets_is_refused(level: int, source: Source, tmp_path: Path) -> None:
    directory = fastload.build_cache(source, tmp_path / "c", progress=False)
    file = directory / f"polygons.offsets{level}.npy"
    offsets = np.load(file)
    for place, value in ((0, 1), (len(offsets) // 2, 10**6), (-1, -5)):
        changed = offsets.copy()
        changed[place] = value
        np.save(file, changed)
        with pytest.raises(CacheError, match="offsets"):
            fastload.open_source(str(directory))


# -- what is refused


def with_boxes(**arrays: Any) -> dict[str, Any]:
    return {"image": np.zeros((3, 8, 8, 3), np.uint8), **arrays}


TWO = Ragged.of([np.zeros((1, 4)), np.zeros((0, 4)), np.ones((2, 4))])
REFUSED: dict[str, tuple[Any, str]] = {
    "other lengths": (
        with_boxes(boxes=TWO, labels=Ragged.of([[1], [], [2]])),
        r"sample 2 has 2 in 'boxes' and 1 in 'labels'",
    ),
    "reversed": (
        with_boxes(boxes=Ragged.of([np.zeros((1, 4)), [[0, 0, 1, 1], [3, 0, 2, 4]], [[0.0] * 4]])),
        r"array 'boxes', sample 1: row 1 holds \[3.0, 0.0, 2.0, 4.0\].*left <= right",
    ),
    "images": (with_boxes(mask=TWO), "array 'mask': pixels in rows of variable length"),
    "strings": (with_boxes(words=Ragged.of([["a"], ["b"], []])), "no counterpart in torch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    arrays, said = REFUSED[case]
    with pytest.raises(SourceError, match=said):
        fastload.create_loader(arrays)


@pytest.mark.parametrize("offsets", [[1, 5], [2, 1, 3], [-1, 2], [[0, 1]], [0.0, 1.0], []])
def test_wrong_offsets_are_refused(offsets: Any) -> None:
    with pytest.raises(SourceError, match="offsets of a Ragged"):
        Ragged(np.zeros(3), np.array(offsets))


def test_sanitizing_needs_boxes_that_can_be_dropped() -> None:
    fixed = {"image": np.zeros((2, 8, 8, 3), np.uint8), "boxes": np.zeros((2, 3, 4))}
    with pytest.raises(ConfigurationError, match="has none in rows of variable length"):
        fastload.create_loader(fixed, transform=v2.SanitizeBoundingBoxes())
    ragged = with_boxes(boxes=TWO)
    for backend in ("torch", "turbojpeg"):
        with pytest.raises(ConfigurationError, match="labels_getter"):
            fastload.create_loader(
                ragged, transform=v2.SanitizeBoundingBoxes(labels_getter=None), backend=backend
            )
        with pytest.raises(ConfigurationError, match="goes with the images"):
            fastload.create_loader(ragged, transform=lambda image: image, backend=backend)


def test_python_code_on_single_samples_gets_rows() -> None:
    words = {"image": np.zeros((3, 8, 8, 3), np.uint8), "words": Ragged.of([[1, 2], [], [3]])}
    with fastload.create_loader(words, 3, transform=lambda image: image, num_workers=0) as loader:
        (batch,) = loader
    assert [row.tolist() for row in batch["words"]] == [[1, 2], [], [3]]
    with fastload.create_loader(words, 3, collate_fn=list, num_workers=0) as loader:
        (samples,) = loader
    assert [sample["words"].tolist() for sample in samples] == [[1, 2], [], [3]]


@contestants("torch-0", "turbojpeg", "cache-ram")
def test_boxes_are_not_left_behind_when_images_are_turned(
    contestant: Contestant, source: Source, tmp_path: Path
) -> None:
    options: Any = BackendOptions(exif_orientation=True)
    if contestant.options is not None:
        options = dataclasses.replace(contestant.options(tmp_path), exif_orientation=True)
    with pytest.raises(ConfigurationError, match=r"turns images of objects, and 'boxes'.*Save the"):
        contestant.create(source, tmp_path, batch_size=2, options=options)
    assert not list(tmp_path.iterdir())


def test_no_cache_of_turned_images_beside_boxes(source: Source, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="exif_orientation: it turns images"):
        fastload.build_cache(source, tmp_path / "cache", exif_orientation=True)


@pytest.mark.parametrize("mix", [v2.MixUp, v2.CutMix])
def test_objects_are_not_mixed(mix: Any, source: Source) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"Mix(Up)? mixes images and one label of each, and objects has 'boxes'",
    ):
        fastload.create_loader(
            source,
            batch_size=2,
            transform=v2.Compose([v2.Resize((16, 16)), v2.ToDtype(torch.float32, scale=True)]),
            batch_transform=mix(num_classes=7),
        )
