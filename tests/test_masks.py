"""Masks of objects, drawn from polygons and run lengths: beside pycocotools, and beside a mask for
each pixel that goes through the same geometry."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.base import BackendOptions
from fastload.backends.masks import MaskDrawer
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.geometry.points import PointMap
from fastload.recipe import Recipe
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source, ValueArray
from fastload.sources.buffers import PathTable
from fastload.sources.masks import shapes_of
from tests.backends import DEVICE, Contestant, contestants
from tests.images import jpeg, photo, png
from tests.test_sources_detection import coco_document, write_coco, write_yolo

# What numpy 2 says of pycocotools' arrays.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZES = [(40 + 11 * n % 23, 50 + 7 * n % 19) for n in range(6)]
COUNTS = [2, 0, 1, 4, 3, 2]
"""Objects in each image."""


def a_blob(size: tuple[int, int], rng: Any) -> Any:
    """(H, W) uint8 of 0 and 1."""
    rough = rng.random((6, 6)) < 0.5
    rows, columns = (np.arange(side) * 6 // side for side in size)
    return rough[rows][:, columns].astype(np.uint8)


def runs_of(mask: Any) -> dict[str, Any]:
    """A mask as COCO's uncompressed run lengths."""
    flat = np.concatenate([[0], mask.T.reshape(-1), [2]])
    places = np.flatnonzero(np.diff(flat))
    counts = np.diff(np.concatenate([[0], places]))
    return {"size": list(mask.shape), "counts": counts.tolist()}


RNG = np.random.default_rng(11)
BLOBS = [[a_blob(size, RNG) for _ in range(n)] for size, n in zip(SIZES, COUNTS, strict=True)]


def test_run_lengths_of_the_tests() -> None:
    mask = np.array([[1, 1, 0], [1, 0, 0]], np.uint8)
    assert runs_of(mask)["counts"] == [0, 3, 3]
    assert runs_of(1 - mask)["counts"] == [3, 3]


def boxes_of(blobs: list[Any]) -> Any:
    found = []
    for blob in blobs:
        rows, columns = np.nonzero(blob)
        found.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    return np.array(found, np.float32).reshape(-1, 4)


def write_files(root: Path) -> tuple[list[str], list[str]]:
    """A photograph of each size; and a mask for each pixel, of the first object."""
    images, masks = [], []
    for n, size in enumerate(SIZES):
        images.append(str(root / f"{n}.jpg"))
        Path(images[-1]).write_bytes(jpeg(photo(*size, seed=n)))
        masks.append(str(root / f"{n}.png"))
        blob = BLOBS[n][0] if BLOBS[n] else np.zeros(size, np.uint8)
        Path(masks[-1]).write_bytes(png(blob))
    return images, masks


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    return write_files(tmp_path_factory.mktemp("masks"))


def source_of(files: tuple[list[str], list[str]], shapes: Any, *, pixels: bool) -> Source:
    """`pixels`: with a mask for each pixel, too."""
    images, masks = files
    columns: dict[str, Any] = {
        "image": EncodedFiles(PathTable.of(images)),
        "boxes": RaggedArray(Ragged.of([boxes_of(blobs) for blobs in BLOBS]), role="boxes"),
        "labels": RaggedArray(Ragged.of([np.arange(n) for n in COUNTS]), role="instances"),
        "masks": RaggedArray(shapes, role="instance_masks"),
        "index": ValueArray(np.arange(len(SIZES))),
    }
    if pixels:
        columns["mask"] = EncodedFiles(PathTable.of(masks), role="mask")
    return Source(columns, "masks", "masks", "dict")


BLOB_SHAPES = shapes_of([[runs_of(blob) for blob in blobs] for blobs in BLOBS])
BILINEAR = v2.InterpolationMode.BILINEAR
JITTER = v2.ColorJitter(brightness=0.3)
CHAINS: dict[str, list[Any]] = {
    "crop": [v2.RandomResizedCrop((24, 31)), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()],
    "enlarged": [v2.RandomResizedCrop((90, 111), scale=(0.2, 1.0))],
    "padded": [v2.Resize((40, 44)), v2.RandomCrop(32, padding=9), v2.RandomHorizontalFlip()],
    "two-resizes": [v2.RandomResizedCrop((40, 50)), v2.Resize((27, 33)), v2.RandomCrop(24)],
    "device": [
        v2.RandomResizedCrop((40, 50)),
        JITTER,
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(40, padding=4),
        v2.RandomApply([v2.RandomVerticalFlip(0.7), v2.RandomHorizontalFlip(0.5)]),
    ],
    "affine": [v2.RandomAffine(40, translate=(0.2, 0.1), scale=(0.6, 1.4)), v2.Resize((30, 34))],
    "perspective": [v2.RandomPerspective(0.5, p=0.8), v2.CenterCrop(36)],
    "zoom-out": [v2.RandomZoomOut(side_range=(1.0, 2.0), p=0.6), v2.Resize((48, 40))],
    "iou-crop": [v2.RandomIoUCrop(), v2.Resize((30, 30))],
    "letterbox": [fastload.Letterbox((40, 64)), v2.RandomHorizontalFlip()],
    "jitter": [v2.ScaleJitter((50, 60), (0.5, 1.5)), fastload.FixedSizeCrop((44, 52))],
    "long": [
        v2.RandomResizedCrop((37, 45)),
        v2.RandomAffine(25, scale=(0.8, 1.2), interpolation=BILINEAR),
        v2.RandomVerticalFlip(),
        v2.RandomPerspective(0.3, p=1.0),
        v2.RandomCrop(30, padding=3),
        v2.RandomRotation(15, interpolation=BILINEAR),
    ],
}


@pytest.mark.parametrize("chain", CHAINS)
@contestants("torch-0", "turbojpeg", "cache-device")
def test_run_lengths_go_through_geometry_as_pixels_do(
    contestant: Contestant, chain: str, files: Any, tmp_path: Path
) -> None:
    source = source_of(files, BLOB_SHAPES, pixels=True)
    transform, seen = v2.Compose(CHAINS[chain]), 0
    with contestant.create(
        source, tmp_path, batch_size=4, transform=transform, shuffle=True, seed=3
    ) as loader:
        for _ in range(3):
            for batch in loader:
                assert batch["masks"].values.shape[1:] == batch["mask"].shape[1:]
                assert batch["masks"].values.dtype == torch.uint8
                for row, index in enumerate(batch["index"].tolist()):
                    masks = batch["masks"][row]
                    assert len(masks) == COUNTS[index]
                    if len(masks):
                        assert torch.equal(masks[0], batch["mask"][row])
                        seen += int(masks.any())
    assert seen > 8


@contestants()
def test_all_backends_draw_the_same(contestant: Contestant, files: Any, tmp_path: Path) -> None:
    source = source_of(files, BLOB_SHAPES, pixels=False)
    settings: Any = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 9,
        "transform": v2.Compose([*CHAINS["device"], v2.SanitizeBoundingBoxes(min_size=39)]),
    }
    with fastload.create_loader(source, backend="torch", num_workers=0, **settings) as loader:
        wanted = [batch for _ in range(2) for batch in loader]
    with contestant.create(source, tmp_path, **settings) as loader:
        found = [batch for _ in range(2) for batch in loader]
    dropped = 0
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["masks"].values.device.type == DEVICE.type
        assert ours["masks"].lengths.tolist() == ours["boxes"].lengths.tolist()
        assert torch.equal(ours["masks"].values.cpu(), theirs["masks"].values)
        assert ours["labels"].values.tolist() == theirs["labels"].values.tolist()
        dropped += sum(COUNTS[index] for index in ours["index"]) - len(ours["masks"].values)
    assert dropped > 0  # with their boxes


def triangles(rng: Any, size: tuple[int, int], count: int, reach: float) -> list[list[float]]:
    """Polygons of 3 to 9 corners, of two decimals, some of which reach out of the picture."""
    extent = np.array(size)[::-1]
    made = []
    for _ in range(count):
        corners = (rng.random((rng.integers(3, 10), 2)) * (1 + 2 * reach) - reach) * extent
        made.append(np.round(corners, rng.integers(0, 3)).reshape(-1).tolist())
    return made


def coco_masks(segmentations: list[Any], size: tuple[int, int]) -> Any:
    coco = pytest.importorskip("pycocotools.mask", reason="pip install pycocotools")
    made = []
    for one in segmentations:
        found = coco.frPyObjects(one, *size)
        made.append(coco.decode(coco.merge(found) if isinstance(found, list) else found))
    return np.stack(made) if made else np.zeros((0, *size), np.uint8)


def drawn(shapes: Ragged, points: PointMap) -> Any:
    made, failures = MaskDrawer().draw(shapes, points)
    assert not failures
    return made.values


@pytest.mark.whole
@pytest.mark.parametrize("reach", [0.0, 0.4, 30.0])
def test_polygons_are_drawn_as_pycocotools_draws_them(reach: float) -> None:
    rng = np.random.default_rng(int(reach * 10))
    sizes = [(1, 1), (1, 9), (7, 1), (33, 48), (480, 640), (61, 300)]
    for size in sizes:
        objects: list[Any] = [triangles(rng, size, rng.integers(1, 4), reach) for _ in range(60)]
        found = drawn(shapes_of([objects]), PointMap.identity(np.array([size]), traced=True))
        assert np.array_equal(found, coco_masks(objects, size))
        objects = [found_runs(one) for one in found]
        again = drawn(shapes_of([objects]), PointMap.identity(np.array([size]), traced=True))
        assert np.array_equal(found, again)


def found_runs(mask: Any) -> Any:
    """In COCO's own compressed string, or in numbers, in turn."""
    coco = pytest.importorskip("pycocotools.mask", reason="pip install pycocotools")
    made = coco.encode(np.asfortranarray(mask))
    return made if mask.sum() % 2 else runs_of(mask)


@pytest.mark.parametrize("chain", ["crop", "two-resizes", "affine", "perspective", "zoom-out"])
def test_polygons_are_moved_and_then_drawn(chain: str) -> None:
    rng = np.random.default_rng(6)
    objects = [triangles(rng, SIZES[0], 2, 0.2) for _ in range(40)]
    split = Recipe.from_transform(v2.Compose(CHAINS[chain])).split(SIZES[0])
    everywhere = [0, 0, SIZES[0][1], 0, *SIZES[0][::-1], 0, SIZES[0][0]]
    for index in range(8):
        draws = Draws(1, 0, np.array([index]))
        members = split.composite.members(draws, 1)
        points = split.points(0, np.array([SIZES[0]]), members, traced=True)
        plain = split.points(0, np.array([SIZES[0]]), members)
        moved = []
        for one in objects:
            corners = [np.array(part, np.float64).reshape(1, -1, 2) for part in one]
            moved.append([plain.points(p, clip=False).reshape(-1).tolist() for p in corners])
        found = drawn(shapes_of([objects]), points)
        size = found.shape[1:]
        whole = drawn(shapes_of([[runs_of(np.ones(SIZES[0], np.uint8))]]), points)
        assert np.array_equal(found, coco_masks(moved, size) * whole)
        # One pixel at most from what the picture itself shows.
        shown = drawn(shapes_of([[[everywhere]]]), points)
        assert np.array_equal(shown & whole, shown)
        assert np.array_equal(grown(shown) & whole, whole)


def grown(masks: Any) -> Any:
    padded = np.pad(masks, ((0, 0), (1, 1), (1, 1)))
    height, width = masks.shape[1:]
    return np.maximum.reduce(
        [padded[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    )


def from_border(pixels: Any, polygon: Any) -> Any:
    """(n,) distances of the centres of pixels (row, column) from the sides of a polygon (m, 2)."""
    centres = pixels[:, None, ::-1] + 0.5
    sides = np.roll(polygon, -1, axis=0) - polygon
    along = ((centres - polygon) * sides).sum(-1) / np.maximum((sides**2).sum(-1), 1e-9)
    nearest = polygon + np.clip(along, 0, 1)[..., None] * sides
    return np.linalg.norm(centres - nearest, axis=-1).min(axis=1)


@pytest.mark.slow
def test_polygons_are_within_a_pixel_of_their_masks() -> None:
    """Where they differ from what pycocotools draws of the source, resampled by the nearest pixel,
    it is at the border: by a pixel along x and along y."""
    rng = np.random.default_rng(2)
    size = (60, 80)
    objects: list[Any] = [triangles(rng, size, 1, 0.1) for _ in range(60)]
    there = coco_masks(objects, size)
    for chain in (CHAINS["crop"], [v2.Resize((43, 57))], CHAINS["zoom-out"]):
        split = Recipe.from_transform(v2.Compose(chain)).split(size)
        for index in range(6):
            members = split.composite.members(Draws(4, 0, np.array([index])), 1)
            points = split.points(0, np.array([size]), members, traced=True)
            corner = points.points(np.array([[[0.0, 0], [1, 1]]]), clip=False)
            scale = max(1.0, np.ptp(corner, axis=1).max())  # pixels here of one there
            masks = drawn(shapes_of([objects]), points)
            nearest = drawn(shapes_of([[runs_of(mask) for mask in there]]), points)
            for one, other, (polygon,) in zip(masks, nearest, objects, strict=True):
                corners = points.points(np.reshape(polygon, (1, -1, 2)), clip=False)[0]
                if (one != other).any():
                    away = from_border(np.argwhere(one != other), corners)
                    assert away.max() <= scale * 2**0.5
    assert masks.any()


# Sources


def with_runs(document: dict[str, Any]) -> None:
    """Some objects of each kind."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in document["images"]}
    for number, one in enumerate(document["annotations"]):
        if number % 3:
            left, top, width, height = map(int, one["bbox"])
            mask = np.zeros(sizes[one["image_id"]], np.uint8)
            mask[top : top + height, left : left + width] = 1
            one["segmentation"] = runs_of(mask)
            one["iscrowd"] = number % 2


def test_masks_of_coco(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO

    document = coco_document()
    with_runs(document)
    path = write_coco(tmp_path, document)
    api = COCO(path)
    opened = fastload.open_source(path, masks=True)
    assert "polygons" not in opened.source.columns
    assert not any("RLE" in note for note in opened.notes)
    assert opened.source.fingerprint != fastload.open_source(path).source.fingerprint
    assert pickle.loads(pickle.dumps(opened.source)).fingerprint == opened.source.fingerprint
    with fastload.create_loader(
        fastload.open_source(path, masks=True), collate_fn="torchvision"
    ) as loader:
        for images, (target,) in loader:
            found = [api.annToMask(api.anns[own]) for own in target["ids"].tolist()]
            wanted = np.stack(found) if found else np.zeros((0, *images[0].shape[1:]), np.uint8)
            assert np.array_equal(target["masks"].numpy(), wanted)
            assert target["masks"].shape == (len(target["boxes"]), *images[0].shape[1:])


def test_masks_of_a_batch_are_one_tensor(tmp_path: Path) -> None:
    write_coco(tmp_path)
    with fastload.create_loader(
        fastload.open_source(tmp_path, masks=True),
        5,
        transform=v2.Resize((20, 30)),
        collate_fn="torchvision",
    ) as loader:
        ((_, targets),) = loader
    assert [one["masks"].shape[0] for one in targets] == [2, 0, 1, 3, 1]
    assert len({one["masks"].untyped_storage().data_ptr() for one in targets}) == 1
    with fastload.create_loader(
        fastload.open_source(tmp_path, masks=True), 5, transform=v2.Resize((20, 30))
    ) as loader:
        (batch,) = loader
    assert batch["masks"].values.shape == (7, 20, 30)
    assert batch["masks"].rows_of_values.tolist() == [0, 0, 2, 3, 3, 3, 4]


def test_masks_of_polygons_of_any_source(tmp_path: Path) -> None:
    images = np.zeros((2, 8, 9, 3), np.uint8)
    square = np.array([[1.0, 2], [5, 2], [5, 6], [1, 6]])
    corners = Ragged.of([square, square + 2, square[:3]])
    polygons = Ragged(Ragged(corners, np.array([0, 2, 3])), np.array([0, 1, 2]))
    arrays = {
        "image": images,
        "boxes": Ragged.of([np.array([[1.0, 2, 7, 8]]), np.array([[1.0, 2, 5, 6]])]),
        "polygons": polygons,
    }
    with fastload.create_loader(fastload.open_source(arrays, masks=True), 2) as loader:
        (batch,) = loader
    wanted = np.zeros((2, 8, 9), np.uint8)
    wanted[0, 2:6, 1:5] = wanted[0, 4:8, 3:7] = 1
    assert batch["masks"].values[0].tolist() == wanted[0].tolist()
    assert batch["masks"].values[1].sum() in (6, 10)  # half of 16, less or more its diagonal
    assert list(batch) == ["image", "boxes", "masks"]


BAD: dict[str, tuple[Any, str]] = {
    "two points": ([[1, 1, 9, 9]], "at least three corners"),
    "odd": ([[1, 1, 9, 9, 5, 5, 5]], "at least three corners"),
    "words": (["abcdef"], "at least three corners"),
    "not finite": ([[1, 1, 9, 9, float("nan"), 5]], "at least three corners"),
    "no list": (5, "segmentation is a int; give polygons"),
    "no size": ({"counts": [4]}, "size .* must be height and width"),
    "other size": ({"counts": [6], "size": [2, 3]}, "of an image of 3 x 2.*image is 48 x 48"),
    "too few": ({"counts": [9, 9], "size": [48, 48]}, "add up to 18.*2304 pixels; correct"),
    "negative": ({"counts": [2400, -96], "size": [48, 48]}, "negative or too long"),
    "fractions": ({"counts": [1.5], "size": [48, 48]}, "whole numbers or a compressed"),
    "nothing": ({"counts": None, "size": [48, 48]}, "whole numbers or a compressed"),
    "no string": ({"counts": "0~", "size": [48, 48]}, "no compressed string"),
    "cut off": ({"counts": "PPYo", "size": [48, 48]}, "no compressed string"),
    "endless": ({"counts": "o" * 99 + "0", "size": [48, 48]}, "no compressed string"),
    "empty": ({"counts": "", "size": [48, 48]}, "add up to 0"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_segmentations(bad: str, tmp_path: Path) -> None:
    document = coco_document()
    document["annotations"][2]["segmentation"], message = BAD[bad]
    path = write_coco(tmp_path, document)
    with pytest.raises(SourceError, match=f"annotation 898 of 3.jpg: .*{message}") as caught:
        fastload.open_source(path, masks=True)
    assert path in str(caught.value)


def test_objects_without_segmentation(tmp_path: Path) -> None:
    document = coco_document()
    document["annotations"][2]["segmentation"] = []
    del document["annotations"][1]["segmentation"]
    path = write_coco(tmp_path, document)
    opened = fastload.open_source(path, masks=True)
    assert "2 objects without segmentation: their masks are empty" in opened.notes
    with fastload.create_loader(opened, 1) as loader:
        masks = list(loader)[3]["masks"].values
    assert masks.any(dim=(1, 2)).tolist() == [True, False, False]
    with pytest.raises(SourceError, match="2 objects without segmentation"):
        fastload.open_source(path, masks=True, strict=True)


@contestants("torch-0", "turbojpeg", "cache-ram")
def test_a_picture_of_another_size(contestant: Contestant, tmp_path: Path) -> None:
    """The file says 48 x 48, and so do the run lengths; the picture is another."""
    document = coco_document()
    with_runs(document)
    write_coco(tmp_path / "data", document)
    picture = tmp_path / "data" / "train2017" / "3.jpg"
    picture.write_bytes(jpeg(photo(50, 48)))
    settings: Any = {"batch_size": 5, "transform": v2.Resize((20, 30))}
    data = fastload.open_source(str(tmp_path / "data"), masks=True)
    with contestant.create(data, tmp_path, **settings) as loader:
        with pytest.raises(DecodeError, match=r"3\.jpg: no masks .* another size than 50x48"):
            list(loader)
    settings["on_error"] = "substitute"
    with contestant.create(data, tmp_path, **settings) as loader:
        (batch,) = loader
        assert loader.stats().substituted == 1
    assert batch["masks"].lengths.tolist() == batch["boxes"].lengths.tolist()
    assert 47 not in batch["image_id"].tolist()


@pytest.mark.slow
def test_a_failed_image_has_no_masks(tmp_path: Path) -> None:
    write_coco(tmp_path)
    (tmp_path / "train2017" / "3.jpg").write_bytes(b"damaged")
    for backend in ("torch", "turbojpeg"):
        with fastload.create_loader(
            fastload.open_source(tmp_path, masks=True),
            5,
            backend=backend,
            num_workers=1,
            transform=v2.Resize((20, 30)),
            on_error="substitute",
        ) as loader:
            (batch,) = loader
        assert batch["masks"].lengths.tolist() == batch["boxes"].lengths.tolist()
        assert batch["masks"].values.any(dim=(1, 2)).all()


@pytest.mark.whole
@contestants("torch-2", "turbojpeg", "cache-disk")
def test_resume(contestant: Contestant, files: Any, tmp_path: Path) -> None:
    source = source_of(files, BLOB_SHAPES, pixels=False)
    settings: Any = {
        "batch_size": 2,
        "shuffle": True,
        "seed": 3,
        "transform": v2.RandomResizedCrop(16),
    }
    with contestant.create(source, tmp_path, **settings) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        wanted = [batch["masks"].values for batch in batches]
    with contestant.create(source, tmp_path, **settings) as loader:
        loader.load_state_dict(state)
        for batch, theirs in zip(loader, wanted, strict=True):
            assert torch.equal(batch["masks"].values, theirs)


def test_views(files: Any) -> None:
    source = source_of(files, BLOB_SHAPES, pixels=False)
    views = fastload.Views([v2.Resize((20, 20)), v2.RandomResizedCrop((12, 14))])
    with fastload.create_loader(source, 6, transform=views) as loader:
        (batch,) = loader
    assert [one.values.shape[1:] for one in batch["masks"]] == [(20, 20), (12, 14)]


def _yolo_without_outlines(root: Path) -> Any:
    write_yolo(root)
    return root


REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "no polygons": (
        lambda _: {"image": np.zeros((1, 8, 8, 3), np.uint8)},
        {"masks": True},
        "masks: they are drawn from polygons.*has none",
    ),
    "boxes only": (_yolo_without_outlines, {"masks": True, "split": "train"}, "has none"),
    "no flag": (lambda _: np.zeros((1, 8, 8, 3), np.uint8), {"masks": "yes"}, "True or False"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_use_is_refused_when_the_source_is_opened(case: str, tmp_path: Path) -> None:
    make, arguments, message = REFUSED[case]
    with pytest.raises(ConfigurationError, match=message):
        fastload.open_source(make(tmp_path), **arguments)


def test_more_wrong_use(files: Any, tmp_path: Path) -> None:
    source = source_of(files, BLOB_SHAPES, pixels=False)
    for arguments, message in (
        ({"collate_fn": list}, "collate_fn takes single samples"),
        ({"transform": lambda image: image}, "of masks .* goes with the images"),
        ({"options": BackendOptions(exif_orientation=True)}, "exif_orientation"),
        ({"batch_transform": v2.MixUp(num_classes=3)}, "'masks', which it would not mix"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            fastload.create_loader(source, 2, **arguments)
    with pytest.raises(ConfigurationError, match="short_side: 'masks' of masks are masks"):
        fastload.build_cache(source, tmp_path / "cache", short_side=16, progress=False)
    columns = {name: source.columns[name] for name in ("boxes", "masks")}
    with pytest.raises(ConfigurationError, match="and no images"):
        fastload.create_loader(Source(columns, "", "bare", "dict"))
    write_coco(tmp_path / "data")
    document = json.loads((tmp_path / "data/annotations/instances_train2017.json").read_text())
    with_runs(document)
    found = fastload.open_source(write_coco(tmp_path / "data", document)).source
    with pytest.raises(SourceError, match="4 objects without polygons.*masks=True is given where"):
        fastload.create_loader(fastload.open_source(found, masks=True))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([2.0, 1, 1, 2, 2], "neither polygons nor run lengths"),
        ([4.0, 1, 1, 2, 2, 3, 3], "neither"),
        ([3.5, 1, 1, 2, 2, 3, 3], "neither"),
        ([float("nan")], "neither"),
        ([-1.0, 6.0], "neither"),
        ([-0.0, 6.0, 7.0], "neither"),
        ([-1.0, 6.0, 7.0, 41.0], "do not add up"),
        ([-2.0, 6.0, 7.0, 43.0, -1.0], "do not add up"),
        ([-2.0, 6.0, 7.0, 41.5, 0.5], "do not add up"),
        ([-1.0, 7.0, 6.0, 42.0], "another size than 6x7"),
    ],
)
def test_damaged_shapes_are_failures(numbers: list[float], message: str) -> None:
    """As of a cache that was changed."""
    good = shapes_of([[runs_of(np.ones((6, 7), np.uint8))]]).values.values
    parts = [good, np.array(numbers), good]
    shapes = Ragged(Ragged.of(parts), np.array([0, 2, 3]))
    points = PointMap.identity(np.array([[6, 7], [6, 7]]), traced=True)
    made, failures = MaskDrawer().draw(shapes, points)
    assert list(failures) == [0]
    assert "object 1: " in failures[0]
    assert message in failures[0]
    assert made.values.any(axis=(1, 2)).tolist() == [False, False, True]


def test_corners_far_away_are_drawn() -> None:
    """A perspective may move corners to infinity, and drawing takes no longer."""
    objects: list[Any] = [[[-1e300, -1e300, 1e300, -1e300, 1e300, 1e300, -1e300, 1e300]]]
    found = drawn(shapes_of([objects]), PointMap.identity(np.array([[9, 9]]), traced=True))
    assert found.all()
