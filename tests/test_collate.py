"""`create_loader(collate_fn=...)`: batches as trainers of detectors take them, beside a plain
DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, ops
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError
from fastload.loader import collate
from fastload.sources import Source
from tests.backends import DEVICE, Contestant, contestants
from tests.test_sources_detection import (
    CATEGORY_IDS,
    coco_document,
    write_coco,
    write_images,
)

TRANSFORM = v2.Compose([v2.Resize((20, 30)), v2.RandomHorizontalFlip(1.0)])


@pytest.fixture
def source(tmp_path: Path) -> Source:
    document = coco_document()
    for one in document["annotations"]:
        one["bbox"] = [float(number) for number in one["bbox"]]  # torchvision rounds whole numbers
    write_coco(tmp_path / "data", document)
    return fastload.open_source(tmp_path / "data").source


class _Reference(Dataset[Any]):
    """torchvision's own reading and transforms of the same samples."""

    def __init__(self, root: Path) -> None:
        path = root / "annotations" / "instances_train2017.json"
        found = datasets.CocoDetection(str(root / "train2017"), str(path), transforms=TRANSFORM)
        keys = ("boxes", "labels", "image_id")
        self.data = datasets.wrap_dataset_for_transforms_v2(found, target_keys=keys)
        self.order = np.argsort([-int(one) for one in found.ids])  # as in the file: 50, 49, ...

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        image, target = self.data[int(self.order[index])]
        boxes = target.get("boxes", torch.zeros((0, 4)))
        labels = target.get("labels", torch.zeros(0, dtype=torch.int64))
        image = v2.functional.pil_to_tensor(image)
        return image, {
            "boxes": torch.as_tensor(boxes).reshape(-1, 4),
            "labels": torch.tensor([CATEGORY_IDS.index(int(one)) for one in labels]),
            "image_id": target["image_id"],
        }


def reference(root: Path, batch_size: int) -> Iterator[Any]:
    pytest.importorskip("pycocotools")
    yield from DataLoader(_Reference(root), batch_size, collate_fn=lambda rows: list(zip(*rows)))  # noqa: B905


def equal_boxes(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found.cpu().double(), wanted.double(), rtol=0, atol=1e-4)


@contestants()
def test_torchvision(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    with contestant.create(
        source, tmp_path, batch_size=2, transform=TRANSFORM, collate_fn="torchvision"
    ) as loader:
        batches = list(loader)
        assert loader.stats().samples == 5
    theirs = list(reference(tmp_path / "data", 2))
    assert len(batches) == len(theirs) == 3
    for (images, targets), (wanted, wanted_targets) in zip(batches, theirs, strict=True):
        assert len(images) == len(targets) == len(wanted)
        assert len({image.untyped_storage().data_ptr() for image in images}) == 1
        # Of objects the boxes of all images are one tensor, too.
        assert len({one["boxes"].untyped_storage().data_ptr() for one in targets}) == 1
        for image, one, target, wanted_target in zip(
            images, wanted, targets, wanted_targets, strict=True
        ):
            assert image.shape == one.shape
            assert image.device.type == DEVICE.type
            assert equal_boxes(target["boxes"], wanted_target["boxes"])
            # 0 is the background.
            assert target["labels"].tolist() == (wanted_target["labels"] + 1).tolist()
            assert target["image_id"] == wanted_target["image_id"]
            assert len(target["iscrowd"]) == len(target["area"]) == len(target["labels"])
            if contestant.psnr is None:
                assert (image.cpu().float() - one.float()).abs().max() <= 2


@contestants()
def test_detr(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    with contestant.create(
        source, tmp_path, batch_size=5, transform=TRANSFORM, collate_fn="detr"
    ) as loader:
        ((images, mask, targets),) = loader
    assert images.shape == (5, 3, 20, 30)
    assert mask.shape == (5, 20, 30)
    assert mask.dtype == torch.bool
    assert not mask.any()
    ((_, wanted),) = reference(tmp_path / "data", 5)
    for target, one in zip(targets, wanted, strict=True):
        centred = ops.box_convert(one["boxes"], "xyxy", "cxcywh")
        assert equal_boxes(target["boxes"], centred / torch.tensor([30, 20, 30, 20]))
        assert target["labels"].tolist() == one["labels"].tolist()
        assert target["size"].tolist() == [20, 30]


@contestants()
def test_yolo(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    with contestant.create(
        source, tmp_path, batch_size=5, transform=TRANSFORM, collate_fn="yolo"
    ) as loader:
        ((images, found),) = loader
    ((_, wanted),) = reference(tmp_path / "data", 5)
    rows = []
    for number, one in enumerate(wanted):
        boxes = ops.box_convert(one["boxes"], "xyxy", "cxcywh") / torch.tensor([30, 20, 30, 20])
        labels = one["labels"].reshape(-1, 1)
        rows.append(torch.cat([torch.full(labels.shape, number), labels, boxes], dim=1))
    assert images.shape == (5, 3, 20, 30)
    assert found.shape == (7, 6)
    assert found.dtype == torch.float32
    assert equal_boxes(found, torch.cat(rows))


def test_yolo_leaves_crowds_out() -> None:
    ones = np.tile([[2.0, 2.0, 8.0, 8.0]], (2, 1))
    arrays = {
        "image": np.zeros((2, 16, 16, 3), np.uint8),
        "boxes": fastload.Ragged.of([ones, ones]),
        "labels": fastload.Ragged.of([np.array([3, 4]), np.array([5, 6])]),
        "iscrowd": fastload.Ragged.of([np.array([0, 1]), np.array([0, 0])]),
    }
    with fastload.create_loader(arrays, 2, collate_fn="yolo") as loader:
        ((_, targets),) = loader
    assert targets[:, :2].tolist() == [[0, 3], [1, 5], [1, 6]]


@pytest.mark.parametrize("form", ["torchvision", "detr", "yolo"])
def test_a_batch_without_objects(form: Any) -> None:
    arrays = {
        "image": np.zeros((2, 8, 8, 3), np.uint8),
        "boxes": fastload.Ragged(np.zeros((0, 4), np.float32), np.zeros(3, np.int64)),
        "labels": fastload.Ragged(np.zeros(0, np.int64), np.zeros(3, np.int64)),
    }
    with fastload.create_loader(arrays, batch_size=2, collate_fn=form) as loader:
        (batch,) = loader
    if form == "yolo":
        assert batch[1].shape == (0, 6)
    else:
        assert [len(one["boxes"]) for one in batch[-1]] == [0, 0]


@pytest.mark.parametrize(
    ("form", "several"),
    [
        ("torchvision", False),
        ("detr", False),
        ("yolo", False),
        ("torchvision", True),
        ("detr", True),
    ],
    ids=lambda value: {False: "one size", True: "several sizes"}.get(value, value),
)
def test_what_a_trainer_writes_is_in_no_other_batch(form: Any, several: bool) -> None:
    """Memory is used again only where nobody has it any more."""
    rows = [np.tile([[9.0 * n, 4.0, 9.0 * n + 5, 20.0]], (n % 3, 1)) for n in range(20)]
    arrays = {
        "image": np.full((20, 520, 512, 3), 7, np.uint8),
        "boxes": fastload.Ragged.of(rows),
        "labels": fastload.Ragged.of([np.arange(len(one)) for one in rows]),
        "number": np.arange(20),
    }
    transform = v2.Compose([v2.RandomShortestSize([512, 600])]) if several else None
    settings: Any = {"batch_size": 4, "collate_fn": form, "transform": transform, "num_workers": 0}
    with fastload.create_loader(arrays, **settings) as loader:
        wanted = [[one.clone() for one in tree_flatten(batch)[0]] for batch in loader]
    with fastload.create_loader(arrays, **settings) as loader:
        kept: list[Any] = []
        for number, (batch, clean) in enumerate(zip(loader, wanted, strict=True)):
            found = tree_flatten(batch)[0]
            assert all(map(torch.equal, found, clean))
            for one in found:
                one.fill_(number + 1)
            kept += [(number + 1, found)] * (number % 2)
        for value, found in kept:
            assert all((one == torch.full_like(one, value)).all() for one in found)


def test_labels_of_arrays_stay_as_they_are() -> None:
    arrays = {
        "image": np.zeros((1, 8, 8, 3), np.uint8),
        "boxes": fastload.Ragged.of([np.array([[1, 2, 5, 6]])]),
        "labels": fastload.Ragged.of([[4]]),
    }
    with fastload.create_loader(arrays, collate_fn="torchvision") as loader:
        ((_, (target,)),) = loader
    assert target["labels"].tolist() == [4]
    assert target["boxes"].tolist() == [[1, 2, 5, 6]]
    with fastload.create_loader(arrays, collate_fn="detr") as loader:
        ((_, _, (target,)),) = loader
    assert target["boxes"].tolist() == [[3 / 8, 4 / 8, 4 / 8, 4 / 8]]


def _number_of_objects(columns: dict[str, Any]) -> Any:
    return columns["image"], len(columns["boxes"].values)


@contestants("torch-0", "turbojpeg", "cache-ram")
def test_a_function_of_the_columns(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    with contestant.create(
        source,
        tmp_path,
        batch_size=5,
        transform=TRANSFORM,
        collate_fn=fastload.CollateColumns(_number_of_objects),
    ) as loader:
        ((images, count),) = loader
        assert loader.stats().samples == 5
        assert "collate_fn=" in str(loader.explain())
    assert images.shape == (5, 3, 20, 30)
    assert count == 7


def test_columns_of_a_tuple_have_names(tmp_path: Path) -> None:
    write_images(tmp_path / "a")
    write_images(tmp_path / "b")
    seen: list[Any] = []

    def collate(columns: dict[str, Any]) -> Any:
        seen.append(list(columns))
        return columns["label"]

    crop = v2.CenterCrop(8)
    for transform in (crop, v2.Compose([lambda image: image, crop, v2.ToImage()])):
        with fastload.create_loader(
            tmp_path,
            10,
            transform=transform,
            collate_fn=fastload.CollateColumns(collate),
            num_workers=0,
        ) as loader:
            (labels,) = loader
        assert labels.tolist() == [0] * 5 + [1] * 5
    assert len(seen) >= 2
    assert all(names == ["image", "label"] for names in seen)


@pytest.mark.whole
@contestants("torch-2", "turbojpeg")
def test_resume(contestant: Contestant, source: Source, tmp_path: Path) -> None:
    settings: Any = {
        "batch_size": 2,
        "shuffle": True,
        "seed": 3,
        "transform": v2.RandomResizedCrop(16),
        "collate_fn": "yolo",
    }
    with contestant.create(source, tmp_path, **settings) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        wanted = list(batches)
    with contestant.create(source, tmp_path, **settings) as loader:
        loader.load_state_dict(state)
        for ours, theirs in zip(loader, wanted, strict=True):
            assert all(map(torch.equal, ours, theirs))


def test_wrong_use_is_refused_when_the_loader_is_made(source: Source, tmp_path: Path) -> None:
    images = np.zeros((2, 8, 8, 3), np.uint8)
    boxes = fastload.Ragged.of([np.zeros((1, 4)), np.zeros((0, 4))])
    objects = [(torch.zeros(3, 8, 8), 1)] * 2
    *first, last = map(repr, collate._FORMS)
    forms = f"no such form; give {', '.join(first)} or {last}, or"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (source, {"collate_fn": "coco"}, forms),
        (source, {"collate_fn": 5}, "collate_fn: must be"),
        ((images, np.zeros(2)), {"collate_fn": "yolo"}, "one column of boxes .* has none"),
        ({"image": images, "boxes": np.zeros((2, 4))}, {"collate_fn": "yolo"}, "has none .*Ragged"),
        ({"image": images, "boxes": boxes}, {"collate_fn": "detr"}, "has no labels"),
        (objects, {"collate_fn": "torchvision"}, "Python code makes; give a function of samples"),
        (
            source,
            {"collate_fn": "detr", "transform": fastload.Views([v2.CenterCrop(8)] * 2)},
            "several views",
        ),
    ]
    for given, arguments, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            fastload.create_loader(given, batch_size=2, **arguments)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("images", [1, 3])
def test_arrays_on_the_host_and_tensors_elsewhere(
    monkeypatch: pytest.MonkeyPatch, padded: bool, dtype: torch.dtype, images: int
) -> None:
    """On the host the native core computes, then numpy: the same. In the last round torch does, as
    on a GPU."""
    offsets = torch.tensor([0, 3, 3, 8] if images == 3 else [0, 8])
    columns = {
        "image": torch.full((images, 3, 32, 40), 7, dtype=torch.uint8),
        "boxes": fastload.Ragged((torch.rand(8, 4) * 30).sort()[0].to(dtype), offsets),
        "labels": fastload.Ragged(torch.arange(8), offsets),
    }
    if padded:
        columns[collate.SIZES] = torch.tensor([[20, 30], [17, 12], [32, 40]][:images])
    rounds = []
    each = torch.tensor([0, 0, 0, 2, 2, 2, 2, 2] if images == 3 else [0] * 8)
    for by in ("core", "numpy", "torch"):
        if by == "numpy":
            monkeypatch.setattr(collate, "native_core", lambda: None)
        if by == "torch":
            monkeypatch.setattr(collate, "_numbers", lambda tensor: tensor)
            monkeypatch.setattr(collate, "_image_of_each", lambda rows: each)
        forms = (collate.DetrForm, collate.YoloForm, collate.TorchvisionForm)
        made = [form("image", "boxes", from_zero=True)(dict(columns)) for form in forms]
        rounds.append(tree_flatten(made)[0])
    for one, other in zip(*rounds[:2], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    tolerance = 0.01 if dtype == torch.bfloat16 else 1e-6
    for one, other in zip(*rounds[1:], strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def test_an_image_of_a_list_is_a_view_that_is_saved_whole_unless_it_is_cloned() -> None:
    """As the manual says (docs/guarantees.md)."""
    pixels = np.zeros((4, 16, 16, 3), np.uint8)
    boxes = fastload.Ragged.of([[[0.0, 0, 8, 8]]] * 4)
    arrays = {"image": pixels, "boxes": boxes, "labels": fastload.Ragged.of([[0]] * 4)}
    with fastload.create_loader(arrays, 4, collate_fn="torchvision") as loader:
        images, _ = next(iter(loader))
    assert images[0].untyped_storage().nbytes() == pixels.nbytes
    assert images[0].clone().untyped_storage().nbytes() == pixels.nbytes // 4
