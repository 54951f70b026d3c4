"""Boxes and points under names that fastload does not move: refused where a transform would leave
them where they are, whatever they are stored in."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload import Ragged
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import EncodedImages, Source, ValueArray, Values
from fastload.sources.columns import PixelArray
from fastload.sources.places import (
    left_behind,
    place_in,
    place_in_features,
    say_places,
    says_places,
)
from tests.images import jpeg, photo

COUNT, HEIGHT, WIDTH = 4, 20, 30
IMAGES = np.zeros((COUNT, HEIGHT, WIDTH, 3), np.uint8)
BOXES = np.tile(np.array([2, 3, 11, 17], np.float32), (COUNT, 1))
FLIP = v2.RandomHorizontalFlip(1.0)


def batch_of(source: Any, transform: Any = FLIP, **options: Any) -> Any:
    with fastload.create_loader(source, COUNT, transform=transform, **options) as loader:
        return next(iter(loader))


# -- What is one, by name and form -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, True) for name in ("bbox", "gt_bboxes", "BBox", "faceLandmarks", "left.polygons")),
        *((name, True) for name in ("SEGMENTATION", "kpts_2d", "x-mask", "boxes2D")),
        *((name, False) for name in ("boxer", "label", "unmasked", "pointer", "value", "inbox")),
    ],
)
def test_names(name: str, says: bool) -> None:
    assert says_places(name) is says


PLACES: dict[str, tuple[str, Any]] = {
    "boxes": ("bbox", BOXES),
    "several boxes": ("gt_boxes", np.tile(BOXES[:, None], (1, 3, 1))),
    "points": ("landmarks", np.zeros((COUNT, 10), np.int64)),
    "polygons of one length": ("polygons", np.zeros((COUNT, 5, 2), np.float32)),
    "a map of classes": ("mask", np.zeros((COUNT, HEIGHT, WIDTH), np.int64)),
    "a map under another name": ("depth", np.zeros((COUNT, 1, HEIGHT, WIDTH), np.float32)),
    "lists of boxes": ("bboxes", Ragged.of([[[1, 2, 3, 4]]] * 3 + [[]])),
    "lists of lists": (
        "segmentation",
        Ragged.of([Ragged.of([[1, 2, 3, 4]])] * 4),
    ),
    "flat lists": ("keypoints_of_face", Ragged.of([[1, 2], [1, 2, 3, 4], [], [5, 6]])),
}
OTHERS: dict[str, tuple[str, Any]] = {
    "a class": ("box", np.arange(COUNT)),
    "texts": ("box", ["a", "b", "c", "d"]),
    "lists of classes": ("landmarks", Ragged.of([[1, 2, 3], [4], [], [5, 6]])),
    "an embedding": ("embedding", np.zeros((COUNT, 16), np.float32)),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_are_not_left_behind_in_silence(name: str) -> None:
    column, rows = PLACES[name]
    arrays = {"image": IMAGES, column: rows}
    with pytest.raises(ConfigurationError, match=rf"transform: it moves .*column '{column}'"):
        fastload.create_loader(arrays, COUNT, transform=FLIP)
    for transform in (None, v2.ColorJitter(0.5)):
        assert column in batch_of(arrays, transform)
    unmoved = fastload.open_source(arrays, roles={column: "unmoved"})
    served, plain = batch_of(unmoved)[column], batch_of(arrays, None)[column]
    if isinstance(rows, np.ndarray):
        assert torch.equal(served, plain)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_place_passes(name: str) -> None:
    column, rows = OTHERS[name]
    assert column in batch_of({"image": IMAGES, column: rows})


def test_a_map_in_a_tuple() -> None:
    """int64, as losses take it; of uint8 it is a mask, and moved."""
    classes = np.zeros((COUNT, HEIGHT, WIDTH), np.int64)
    with pytest.raises(ConfigurationError, match="'mask' of uint8"):
        fastload.create_loader((IMAGES, classes), COUNT, transform=FLIP)
    classes[:, :, 0] = 1
    _, masks = batch_of((IMAGES, classes.astype(np.uint8)))
    assert masks[:, :, -1].all()
    assert not masks[:, :, 0].any()


def test_what_the_user_says_it_is(tmp_path: Path) -> None:
    arrays = {"image": IMAGES, "bbox": BOXES}
    flipped = [WIDTH - 11, 3, WIDTH - 2, 17]
    boxes = fastload.open_source(arrays, roles={"bbox": "boxes"})
    assert batch_of(boxes)["bbox"].tolist() == [flipped] * COUNT
    assert batch_of(arrays | {"boxes": BOXES}, None)["boxes"].tolist() == BOXES.tolist()
    still = fastload.open_source({"image": IMAGES, "boxes": BOXES}, roles={"boxes": "unmoved"})
    assert batch_of(still)["boxes"].tolist() == BOXES.tolist()
    opened = fastload.open_source(arrays)
    assert len({boxes.source.fingerprint, still.source.fingerprint, opened.source.fingerprint}) == 3
    for name, opened in (("moved", boxes), ("still", still)):  # and a cache keeps it
        cached = fastload.build_cache(opened.source, tmp_path / name)
        column = next(iter(opened.source.values))
        wanted = flipped if name == "moved" else BOXES[0].tolist()
        assert batch_of(cached)[column].tolist() == [wanted] * COUNT


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({"box": "boxes"}, "has no column 'box'; there are image, bbox"),
        ({"bbox": "mask"}, "holds numbers, which cannot be 'mask'"),
        ({"image": "boxes"}, "holds images, which cannot be 'boxes'"),
        ({"bbox": "bbox"}, "'bbox' is no kind of column"),
        ({"bbox": "polygons"}, "rows of one length"),
        ({"bbox": "keypoints"}, "keypoints must be numbers"),
    ],
)
def test_roles_that_do_not_fit(roles: dict[str, str], words: str) -> None:
    with pytest.raises((ConfigurationError, SourceError), match=words):
        fastload.open_source({"image": IMAGES, "bbox": BOXES}, roles=roles)


def test_types_of_torchvision_say_it() -> None:
    """Whatever the array is called; boxes of another format were taken for corners."""
    canvas: Any = {"canvas_size": (HEIGHT, WIDTH)}
    boxes = tv_tensors.BoundingBoxes(torch.tensor(BOXES), format="XYXY", **canvas)
    points = tv_tensors.KeyPoints(torch.tensor(BOXES[:, :2]), **canvas)
    batch = batch_of({"image": IMAGES, "where": boxes, "eye": points})
    assert batch["where"].tolist() == [[WIDTH - 11, 3, WIDTH - 2, 17]] * COUNT
    assert batch["eye"].tolist() == [[WIDTH - 1 - 2, 3]] * COUNT
    assert batch_of((IMAGES, boxes))[1].tolist() == batch["where"].tolist()
    other = tv_tensors.BoundingBoxes(torch.tensor(BOXES), format="XYWH", **canvas)
    for arrays in ({"image": IMAGES, "boxes": other}, (IMAGES, other)):
        with pytest.raises(SourceError, match="its boxes are XYWH.*ConvertBoundingBoxFormat"):
            fastload.open_source(arrays)


# -- Whatever they are stored in -------------------------------------------------------------------


def shards(root: Path) -> Path:
    with tarfile.open(root / "0.tar", "w") as archive:
        for row in range(COUNT):
            buffer = io.BytesIO()
            np.save(buffer, BOXES[row])
            for name, data in (
                ("jpg", jpeg(photo(8, 8, seed=row))),
                ("bbox.npy", buffer.getvalue()),
            ):
                info = tarfile.TarInfo(f"{row}.{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return root / "0.tar"


def table(root: Path, kind: Any, values: list[Any]) -> Any:
    pa = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    pictures = [jpeg(photo(8, 8, seed=row)) for row in range(COUNT)]
    return pa.table({"image": pa.array(pictures), "bbox": pa.array(values, kind(pa))})


def parquet(root: Path) -> Path:
    found = table(root, lambda pa: pa.list_(pa.list_(pa.float32())), [[[1, 2, 3, 4]]] * COUNT)
    pytest.importorskip("pyarrow.parquet").write_table(found, root / "0.parquet")
    return root / "0.parquet"


def parquet_of_one_length(root: Path) -> Path:
    found = table(root, lambda pa: pa.list_(pa.float32(), 4), BOXES.tolist())
    pytest.importorskip("pyarrow.parquet").write_table(found, root / "0.parquet")
    return root / "0.parquet"


def lance(root: Path) -> Path:
    found = table(root, lambda pa: pa.list_(pa.float32(), 4), BOXES.tolist())
    module = pytest.importorskip("lance", reason="Lance is an extra")
    module.write_dataset(found, str(root / "x.lance"))
    return root / "x.lance"


def mds(root: Path) -> Path:
    from tests.test_sources_mds import write_mds

    rows = [{"bbox": box.tobytes(), "image": jpeg(photo(8, 8))} for box in BOXES]
    columns = {"bbox": "ndarray:float32:4", "image": "jpeg"}
    return write_mds(root / "x", [rows], columns, {"bbox": 16, "image": None})


class _Pictures(EncodedImages):
    def __len__(self) -> int:
        return COUNT

    def read(self, index: int) -> bytes:
        return jpeg(photo(8, 8, seed=index))


def of_the_users(root: Path) -> Source:
    return Source({"image": _Pictures(), "bbox": ValueArray(BOXES)}, "mine", "mine")


def cache(root: Path) -> Path:
    return fastload.build_cache(of_the_users(root), root / "cache")


STORED = (shards, parquet, parquet_of_one_length, lance, mds, of_the_users, cache)


@pytest.mark.parametrize("stored", STORED, ids=lambda one: one.__name__)
def test_one_guard_for_every_source(stored: Any, tmp_path: Path) -> None:
    place = stored(tmp_path)
    crop = v2.CenterCrop(4)
    with pytest.raises(ConfigurationError, match="column 'bbox', by its name and form") as error:
        fastload.create_loader(place, COUNT, transform=crop)
    assert "roles={'bbox': 'unmoved'}" in str(error.value)
    fastload.create_loader(place, COUNT).close()
    for role in ("boxes", "unmoved"):  # what the message advises
        opened = fastload.open_source(place, roles={"bbox": role})
        fastload.create_loader(opened, COUNT, transform=crop).close()


class _Drawn(Values):
    """Boxes of a class of the user's; its first images have none."""

    ragged = True

    def __init__(self, filled: int) -> None:
        self.filled = filled

    def __len__(self) -> int:
        return 1000

    def take(self, indices: Any) -> _Drawn:
        return self

    def at(self, indices: Any) -> Ragged:
        return Ragged.of([[[1, 2, 3, 4]] if row >= self.filled else [] for row in indices])


@pytest.mark.parametrize("filled", [0, 900, 999, 1000])
def test_rows_that_are_empty_do_not_speak_for_the_others(filled: int) -> None:
    columns = {"image": PixelArray(np.zeros((1000, 8, 8, 3), np.uint8)), "bbox": _Drawn(filled)}
    assert list(left_behind(Source(columns, "mine", "mine"))) == ["bbox"]


def test_what_else_moves_pixels(tmp_path: Path) -> None:
    source = of_the_users(tmp_path)
    with pytest.raises(ConfigurationError, match="short_side: it resizes the images"):
        fastload.build_cache(source, tmp_path / "cache", short_side=4)
    with pytest.raises(ConfigurationError, match="exif_orientation: it turns the images"):
        fastload.build_cache(source, tmp_path / "cache", exif_orientation=True)
    options = fastload.backends.turbojpeg.TurboJpegOptions(exif_orientation=True)
    with pytest.raises(ConfigurationError, match="exif_orientation: it turns the images"):
        fastload.create_loader(source, COUNT, backend="turbojpeg", options=options)


# -- Samples of Python's objects -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "name"),
    [
        ({"label": 3, "bbox": [1, 2, 3, 4]}, "bbox"),
        ({"objects": {"bbox": [[1, 2, 3, 4]], "category": [1]}}, "objects"),
        ({"x": [{"polygons": []}]}, "x"),
        ({"box": "a large one", "landmark": 5, "mask": np.int64(3)}, None),
        ({"box": torch.tensor(3), "points": None}, None),
        ({"area": [1.0, 2.0]}, None),
    ],
)
def test_samples(sample: Any, name: str | None) -> None:
    assert place_in(sample) == name


def test_features_of_hugging_face_say_it_when_the_loader_is_made(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="of Hugging Face")
    picture = {"bytes": jpeg(photo(8, 8)), "path": None}
    rows = {"image": [picture] * COUNT, "objects": [{"bbox": [[1.0, 2.0, 3.0, 4.0]]}] * COUNT}
    dataset = datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image())
    assert place_in_features(dataset.features) == "objects"
    with pytest.raises(ConfigurationError, match="'objects' of its samples is or holds boxes"):
        fastload.create_loader(dataset, 2, transform=v2.CenterCrop(4))
    fastload.create_loader(dataset.remove_columns(["objects"]), 2, transform=FLIP).close()


# -- Tables of numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("titles", "are"),
    [
        *((titles, True) for titles in ("x,y,w", "xmin,ymin,xmax,ymax", "left_eye_x,left_eye_y")),
        *((titles, True) for titles in ("BoxLeft,BoxTop", "minX,minY", "x1,y1", "cx,cy,radius")),
        *((titles, False) for titles in ("y", "age,weight", "x,z", "sexy,yes", "box")),
    ],
)
def test_titles(titles: str, are: bool) -> None:
    assert say_places(titles.split(",")) is are


def test_places_in_a_table_stay_only_where_pixels_do(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(photo(HEIGHT, WIDTH)))
    (tmp_path / "t.csv").write_text("file,x1,y1,x2,y2\na,1.5,2.5,8.5,9.5\nb,0,0,4,4\n")
    with pytest.raises(ConfigurationError, match=r"column 'target'.*roles=.'target': 'boxes'"):
        batch_of(tmp_path)
    opened = fastload.open_source(tmp_path)
    assert batch_of(opened, v2.Grayscale())[1][0].tolist() == [1.5, 2.5, 8.5, 9.5]
    moved = fastload.open_source(opened, roles={"target": "boxes"})
    with fastload.create_loader(moved, 2, transform=FLIP) as loader:
        assert next(iter(loader))[1][0].tolist() == [WIDTH - 8.5, 2.5, WIDTH - 1.5, 9.5]
