"""torchvision's data sets of annotated images, served natively, beside a plain DataLoader of the
same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError
from fastload.sources import Ragged
from tests.test_sources_detection import (
    CATEGORY_IDS,
    coco_document,
    write_coco,
    write_voc,
)

RESIZE = v2.Resize((20, 30))
VOC_NAMES = {"cat": "cat", "dog": "dog", "fox": "horse"}


def coco(root: Path, **arguments: Any) -> Any:
    pytest.importorskip("pycocotools")
    document = coco_document()
    for one in document["annotations"]:
        one["bbox"] = [float(number) for number in one["bbox"]]  # torchvision rounds whole numbers
    document["annotations"][1]["iscrowd"] = 1
    path = write_coco(root, document)
    return datasets.CocoDetection(str(root / "train2017"), path, **arguments)


def voc(root: Path, **arguments: Any) -> Any:
    folder = root / "VOCdevkit" / "VOC2012"
    write_voc(folder)
    (folder / "ImageSets" / "Main" / "train.txt").write_text("4\n0\n3\n2\n")
    for path in (folder / "Annotations").iterdir():
        text = path.read_text().replace("8.25", "8").replace("10.5", "10").replace("2.5", "2")
        path.write_text(text.replace("<name>fox<", "<name>horse<"))
    return datasets.VOCDetection(str(root), image_set="train", **arguments)


def wrapped(dataset: Any, **arguments: Any) -> Any:
    return datasets.wrap_dataset_for_transforms_v2(dataset, **arguments)


MAKERS: dict[str, Any] = {"coco": coco, "voc": voc}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("whole", [True, False])
def test_wrapped_as_a_dataloader_serves_it(name: str, whole: bool, tmp_path: Path) -> None:
    dataset = wrapped(MAKERS[name](tmp_path, transforms=v2.Compose([RESIZE])))
    dataset = dataset if whole else Subset(dataset, [2, 0])
    theirs = [row for batch in DataLoader(dataset, 2, collate_fn=list) for row in batch]
    with fastload.create_loader(dataset, batch_size=2, collate_fn="torchvision") as loader:
        ours = [pair for batch in loader for pair in zip(*batch, strict=True)]
        assert f"torchvision {'CocoDetection' if name == 'coco' else 'VOCDetection'}" in str(
            loader.explain()
        )
    assert len(ours) == len(theirs) == len(dataset)
    for (image, target), (wanted, wanted_target) in zip(ours, theirs, strict=True):
        pixels = v2.functional.pil_to_tensor(wanted)
        assert (image.float() - pixels.float()).abs().max() <= 2
        boxes = torch.as_tensor(wanted_target.get("boxes", torch.zeros((0, 4)))).reshape(-1, 4)
        # PASCAL's are whole numbers, which torchvision rounds down when it moves them.
        tolerance = 1e-4 if name == "coco" else 1
        assert torch.allclose(target["boxes"], boxes.float(), rtol=0, atol=tolerance)
        labels = wanted_target.get("labels", torch.zeros(0, dtype=torch.int64))
        assert target["labels"].tolist() == labels.tolist()
        if name == "coco":
            assert target["image_id"] == wanted_target["image_id"]


def test_coco_as_it_is(tmp_path: Path) -> None:
    dataset = coco(tmp_path)
    dataset.ids = [48, 50, 48, 49]  # as scripts filter them, or repeat them
    with fastload.create_loader(dataset, batch_size=1) as loader:
        for batch, (image, objects) in zip(loader, dataset, strict=True):
            assert isinstance(batch["boxes"], Ragged)
            assert torch.equal(batch["image"][0], v2.functional.pil_to_tensor(image))
            assert batch["ids"][0].tolist() == [one["id"] for one in objects]
            assert batch["iscrowd"][0].tolist() == [one["iscrowd"] for one in objects]
            labels = [one["category_id"] for one in objects]
            assert batch["labels"][0].tolist() == labels
            assert set(labels) <= set(CATEGORY_IDS)
            boxes = torch.tensor([one["bbox"] for one in objects]).reshape(-1, 4)
            boxes[:, 2:] += boxes[:, :2]
            assert torch.equal(batch["boxes"][0], boxes)


def test_voc_as_it_is(tmp_path: Path) -> None:
    dataset = voc(tmp_path)
    source = fastload.open_source(dataset).source
    boxes: Any = source.values["boxes"]
    difficult: Any = source.values["difficult"]
    for row, (_, target) in enumerate(dataset):
        objects = target["annotation"]["object"]
        assert difficult.array[row].tolist() == [int(one["difficult"]) for one in objects]
        wanted = [
            [float(one["bndbox"][key]) for key in ("xmin", "ymin", "xmax", "ymax")]
            for one in objects
        ]
        assert boxes.array[row].tolist() == wanted


def test_several_data_sets_joined(tmp_path: Path) -> None:
    parts = [coco(tmp_path / name) for name in ("a", "b")]
    opened = fastload.open_source(ConcatDataset(parts))
    assert "item" in opened.source.columns  # said, and not guessed
    assert any("store 'boxes' in different ways" in note for note in opened.notes)


class _Own(datasets.CocoDetection):
    def _load_target(self, id: int) -> list[Any]:
        return super()._load_target(id)[:1]


def test_what_is_not_known_runs_as_it_is_written(tmp_path: Path) -> None:
    plain = coco(tmp_path / "a")
    path = str(tmp_path / "a" / "annotations" / "instances_train2017.json")
    images = str(tmp_path / "a" / "train2017")
    changed = datasets.CocoDetection(images, path)
    changed._load_target = lambda id: []
    odd = datasets.CocoDetection(images, path)
    odd.coco.imgToAnns[50][0]["bbox"] = [5.0, 5.0, 0.0, 5.0]
    cases = {
        "not a class of torchvision's own": _Own(images, path),
        "its code was changed": changed,
        "without area": odd,
        "its transform works on images": datasets.CocoDetection(images, path, transform=RESIZE),
        "its transforms works on images": datasets.CocoDetection(
            images, path, transforms=v2.Compose([RESIZE])
        ),
        r"some are no columns": wrapped(plain, target_keys=("boxes", "masks")),
    }
    for reason, dataset in cases.items():
        opened = fastload.open_source(dataset)
        assert list(opened.source.columns) == ["item"]
        assert any(reason in note for note in opened.notes), (reason, opened.notes)
        with pytest.raises(
            ConfigurationError, match="Python code makes; give a function of samples"
        ):
            fastload.create_loader(dataset, collate_fn="torchvision")


def test_an_adopted_dataloader_gives_what_it_gave(tmp_path: Path) -> None:
    dataset = coco(tmp_path, transform=v2.Compose([v2.CenterCrop(8), v2.ToImage()]))
    for made in (dataset, Subset(coco(tmp_path), [0])):
        theirs = DataLoader(made, 1, collate_fn=list)
        with fastload.from_dataloader(theirs) as loader:
            for ours, wanted in zip(loader, theirs, strict=True):
                assert type(ours) is type(wanted)
                assert ours[0][1] == wanted[0][1]
    plain = DataLoader(Subset(wrapped(coco(tmp_path, transforms=v2.ToImage())), [0]), 1)
    with fastload.from_dataloader(plain) as loader:
        (ours,), (wanted,) = loader, plain
    assert len(ours) == len(wanted) == 2
    assert torch.equal(ours[1]["labels"], wanted[1]["labels"])


# -- Adopted, with the collate function of torchvision's script ------------------------------------


def zipped(batch: Any) -> Any:
    return tuple(zip(*batch))  # noqa: B905  # as torchvision has it


def listed(batch: Any) -> Any:
    return [*zip(*batch, strict=True)]


FLOATS = (v2.ToDtype(torch.float32, scale=True),)
STEPS: dict[str, tuple[list[Any], bool]] = {
    "the manual": ([v2.ToImage(), RESIZE, v2.SanitizeBoundingBoxes(), *FLOATS], True),
    "sizes that differ": ([v2.ToImage(), v2.Resize(20), v2.ClampBoundingBoxes(), *FLOATS], True),
    "pure tensors": ([v2.PILToTensor(), *FLOATS, v2.ToPureTensor()], True),
    "a tensor of an image": ([v2.ToImage(), v2.ToPureTensor()], True),
    "images of Pillow": ([RESIZE], False),
    "boxes of another type": (
        [
            v2.ToImage(),
            v2.ToDtype({tv_tensors.BoundingBoxes: torch.float16, "others": None}),
        ],
        False,
    ),
    "a function": ([v2.ToImage(), v2.Lambda(lambda part: part)], False),
}


def with_objects(root: Path, **arguments: Any) -> Any:
    """Without the image in which there is nothing, as torchvision's script leaves it out."""
    dataset = coco(root, **arguments)
    rows = [row for row, image in enumerate(dataset.ids) if dataset.coco.imgToAnns[image]]
    return Subset(wrapped(dataset), rows)


def assert_alike(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for mine, its in zip(found, wanted, strict=True):
            assert_alike(mine, its)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_alike(found[key], value)
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        for name in ("format", "canvas_size"):
            assert getattr(found, name, None) == getattr(wanted, name, None)
        pixels = 1 if wanted.ndim == 2 else 255 if wanted.is_floating_point() else 1
        mine, its = (one.as_subclass(torch.Tensor).double() * pixels for one in (found, wanted))
        atol = 2.01 if wanted.ndim == 3 else 1e-4
        torch.testing.assert_close(mine, its, rtol=0, atol=atol)
    elif isinstance(wanted, int):
        assert found == wanted


@pytest.mark.parametrize("name", STEPS)
def test_adopted_batches_of_objects_are_those_of_the_dataloader(name: str, tmp_path: Path) -> None:
    steps, known = STEPS[name]
    dataset = with_objects(tmp_path, transforms=v2.Compose(steps))
    existing = DataLoader(dataset, 3, collate_fn=zipped)
    with fastload.from_dataloader(existing) as loader:
        assert ("done without it" in loader.explain()) == known
        for found, theirs in zip(loader, existing, strict=True):
            assert_alike(found, theirs)


def test_adopted_batches_of_objects_that_run_as_written(tmp_path: Path) -> None:
    """Images without objects have no boxes; whole numbers are rounded; another form; no boxes
    asked for."""
    transforms = v2.Compose([v2.ToImage(), RESIZE])
    whole = with_objects(tmp_path / "whole", transforms=transforms)
    of_image = whole.dataset._dataset.coco.imgToAnns
    for one in of_image[whole.dataset._dataset.ids[whole.indices[0]]]:
        one["bbox"] = [int(number) for number in one["bbox"]]
    some = with_objects(tmp_path / "some", transforms=transforms)
    inner = coco(tmp_path / "labels", transforms=transforms)
    labels = Subset(wrapped(inner, target_keys=("image_id", "labels")), some.indices)
    cases = ((some.dataset, zipped), (whole, zipped), (some, listed), (labels, zipped))
    for dataset, function in cases:
        existing = DataLoader(dataset, 3, collate_fn=function)
        with fastload.from_dataloader(existing) as loader:
            assert "done without it" not in loader.explain()
            for found, theirs in zip(loader, existing, strict=True):
                assert_alike(tuple(found), tuple(theirs))
