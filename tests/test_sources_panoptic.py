"""Panoptic COCO: classes of pixels, boxes and masks of segments, beside the PNG files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, DecodeError, SourceError
from tests.backends import Contestant, contestants
from tests.images import jpeg, photo
from tests.test_sources_detection import SIZES, coco_document, rows, write_coco

CATEGORIES = [{"id": 92, "name": "grass", "isthing": 0}, {"id": 3, "name": "cat", "isthing": 1}]
CATEGORIES += [{"id": 90, "name": "fox", "isthing": 1}]


def segments_of(number: int) -> np.ndarray[Any, Any]:
    """(H, W): ids of segments, 0 for none. Ids take all three bytes."""
    pixels = np.zeros(SIZES[number], np.int64)
    pixels[4:] = 65536 * 7 + number  # grass
    pixels[6:20, 5:25] = 256 * 9 + number  # a cat
    pixels[10:30, 15:35] = 200 + number  # a fox before it
    return pixels


CLASSES = {65536 * 7: 92, 256 * 9: 3, 200: 90}


def document() -> dict[str, Any]:
    found: dict[str, Any] = {"images": [], "annotations": [], "categories": CATEGORIES}
    for n, (height, width) in enumerate(SIZES):
        own = {"id": 50 - n, "file_name": f"{n}.jpg", "height": height, "width": width}
        found["images"].append(own)
        info = []
        for base, category in CLASSES.items():
            at = np.argwhere(segments_of(n) == base + n)
            top, left = (int(value) for value in at.min(0))
            bottom, right = (int(value) + 1 for value in at.max(0))
            info.append(
                {
                    "id": base + n,
                    "category_id": category,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": len(at),
                    "iscrowd": int(n == 2 and base == 200),
                }
            )
        annotation = {"image_id": 50 - n, "file_name": f"{n}.png", "segments_info": info}
        found["annotations"].insert(0, annotation)  # in another order than the images
    return found


def write(root: Path, made: dict[str, Any] | None = None) -> Path:
    pngs = root / "annotations" / "panoptic_val2017"
    for folder in (root / "val2017", pngs):
        folder.mkdir(parents=True, exist_ok=True)
    for n, size in enumerate(SIZES):
        (root / "val2017" / f"{n}.jpg").write_bytes(jpeg(photo(*size, seed=n)))
        ids = segments_of(n)
        parts = [ids % 256, ids // 256 % 256, ids // 65536]
        Image.fromarray(np.stack(parts, axis=-1).astype(np.uint8)).save(pngs / f"{n}.png")
    path = pngs.with_suffix(".json")
    path.write_text(json.dumps(document() if made is None else made))
    return path


def classes_of(number: int) -> np.ndarray[Any, Any]:
    """Labels by pixel: in the order of the category ids."""
    ids, found = segments_of(number), np.full(SIZES[number], 255, np.uint8)
    for base, category in CLASSES.items():
        found[ids == base + number] = [3, 90, 92].index(category)
    return found


@pytest.mark.parametrize("given", ["file", "folder"])
def test_what_is_in_it(given: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    source = fastload.open_source(path if given == "file" else tmp_path).source
    assert source.format == "panoptic COCO annotations"
    assert source.classes == ("cat", "fox", "grass")
    assert source.details["category_ids"] == (3, 90, 92)
    assert list(source.columns)[:3] == ["image", "boxes", "labels"]
    assert rows(source, "labels") == [[2, 0, 1]] * 5
    assert rows(source, "is_thing") == [[0, 1, 1]] * 5
    assert rows(source, "ids")[1] == [65536 * 7 + 1, 256 * 9 + 1, 201]
    assert rows(source, "iscrowd")[2] == [0, 0, 1]
    assert rows(source, "boxes")[0][1:] == [[5, 6, 25, 20], [15, 10, 35, 30]]
    ids: Any = source.values["image_id"]
    assert ids.array.tolist() == [50, 49, 48, 47, 46]


@contestants()
def test_the_class_of_each_pixel(contestant: Contestant, tmp_path: Path) -> None:
    write(tmp_path / "data")
    with contestant.create(
        str(tmp_path / "data"), tmp_path, batch_size=5, transform=v2.CenterCrop(32)
    ) as loader:
        (batch,) = loader
    for n, (height, width) in enumerate(SIZES):
        top, left = round((height - 32) / 2), round((width - 32) / 2)
        wanted = classes_of(n)[top : top + 32, left : left + 32]
        assert np.array_equal(batch["mask"][n].cpu().numpy(), wanted)


@contestants("torch-0", "turbojpeg", "cache")
def test_a_mask_of_each_segment(contestant: Contestant, tmp_path: Path) -> None:
    """Of what a transform drops there is none: here the cat, hidden except for some rows."""
    write(tmp_path / "data")
    transform = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.SanitizeBoundingBoxes(min_area=300)])
    with contestant.create(
        fastload.open_source(str(tmp_path / "data"), masks=True),
        tmp_path,
        batch_size=1,
        transform=transform,
        collate_fn="torchvision",
    ) as loader:
        batches = list(loader)
    for n, (images, targets) in enumerate(batches):
        target = targets[0]
        assert target["labels"].tolist() == [3, 2]  # from 1, without the cat of 280 pixels
        ids = segments_of(n)[:, ::-1]
        assert "mask" not in target
        assert target["masks"].shape[1:] == images[0].shape[1:]
        for mask, own in zip(target["masks"], target["ids"].tolist(), strict=True):
            assert np.array_equal(mask.cpu().numpy(), ids == own)


def test_labels_are_those_of_the_training_split(tmp_path: Path) -> None:
    write(tmp_path)
    made = document()
    made["categories"] = [{"id": 1, "name": "ant", "isthing": 1}, *CATEGORIES]
    (tmp_path / "annotations" / "panoptic_train2017.json").write_text(json.dumps(made))
    source = fastload.open_source(tmp_path, format="panoptic", split="val").source
    assert source.classes == ("ant", "cat", "fox", "grass")
    assert rows(source, "labels") == [[3, 1, 2]] * 5
    assert rows(source, "is_thing") == [[0, 1, 1]] * 5
    png: Any = source.columns["mask"]
    alone = classes_of(0)
    pixels = np.array(Image.open(io.BytesIO(png.read(0))))
    assert np.array_equal(pixels, np.where(alone == 255, 255, alone + 1))


def test_boxes_of_instances_come_first_in_a_folder_of_both(tmp_path: Path) -> None:
    write(tmp_path)
    write_coco(tmp_path, coco_document(), "val2017")
    opened = fastload.open_source(tmp_path)
    assert opened.source.format == "COCO annotations"
    assert any("format='panoptic' serves those" in note for note in opened.notes)
    panoptic = fastload.open_source(tmp_path, format="panoptic", split="val").source
    assert panoptic.format == "panoptic COCO annotations"
    with pytest.raises(ConfigurationError, match="has annotations of val2017; say which"):
        fastload.open_source(tmp_path, format="panoptic", split="train")


def segment(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made["annotations"][1]["segments_info"][1].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (segment("bbox", [100, 0, 5, 5]), "segment 2307 of 3.jpg: .* lies outside"),
        (segment("bbox", [9, 9, -5, 5]), "segment 2307 of 3.jpg: .* reversed"),
        (segment("category_id", 4), "segment 2307 of 3.jpg: there is no category 4"),
        (segment("id", 0), "segment 0 of 3.jpg: ids count from 1"),
        (
            lambda made: made["annotations"][1].update(file_name="0.png"),
            "lists the image 0.png twice",
        ),
        (segment("id", 203), r"the segment \(of 3.png\) id 203 is there twice"),
        (lambda made: made["annotations"].pop(), "0.jpg has no annotation"),
        (lambda made: made["annotations"][0].update(image_id=7), "of image 7, which is not in"),
        (lambda made: made["annotations"][0].update(image_id=50), "image 50 has two annotations"),
        (
            lambda made: made["annotations"][0].update(file_name="x.png"),
            "x.png is missing in",
        ),
        (
            lambda made: made["images"][0].update(file_name="x.jpg"),
            "'x.jpg' that it lists is in",
        ),
        (lambda made: made["categories"].append(CATEGORIES[0]), "category id 92 is there twice"),
        (lambda made: made.pop("images"), "is not what COCO's panoptic format has"),
        (segment("area", float("inf")), "segment 2307 of 3.jpg: its area is not finite; correct"),
    ],
)
def test_files_that_are_not_as_they_should_be(change: Any, message: str, tmp_path: Path) -> None:
    made = json.loads(json.dumps(document()))
    change(made)
    path = write(tmp_path, made)
    with pytest.raises(SourceError, match=message):
        fastload.open_source(path)


@pytest.mark.parametrize("masks", [False, True])
def test_pixels_of_unknown_segments_are_an_error(masks: bool, tmp_path: Path) -> None:
    path = write(tmp_path)
    png = tmp_path / "annotations" / "panoptic_val2017" / "0.png"
    with Image.open(png) as image:
        pixels = np.array(image)
    if masks:
        pixels[pixels[..., 0] == 200] = 0  # the fox has no pixel
    else:
        pixels[0, 0] = 5
    Image.fromarray(pixels).save(png)
    message = "segment 200 has no pixel" if masks else "pixels of the segment 328965, which"
    with fastload.create_loader(
        fastload.open_source(path, masks=masks),
        batch_size=1,
        transform=v2.CenterCrop(32),
        backend="turbojpeg",
    ) as loader:
        with pytest.raises(DecodeError, match=message):
            next(iter(loader))


def test_images_of_several_sizes_have_masks_of_their_own(tmp_path: Path) -> None:
    """In order, without a transform: what a panoptic model is validated on."""
    path = write(tmp_path)
    with fastload.create_loader(
        fastload.open_source(path, masks=True), batch_size=1, collate_fn="detr"
    ) as loader:
        for n, (images, _, targets) in enumerate(loader):
            assert tuple(images.shape[2:]) == SIZES[n]
            union = targets[0]["masks"].sum(0)
            assert torch.equal(union > 0, torch.from_numpy(segments_of(n) > 0))
            assert union.max() == 1
