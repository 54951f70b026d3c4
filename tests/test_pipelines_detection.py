"""Pipelines for detectors and for segmentation: batches of each, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

import fastload
from fastload import pipelines
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import Recipe
from fastload.recipe.boxes_of_masks import BoxesOfMasks
from fastload.recipe.transforms import (
    FixedSizeCrop,
    Letterbox,
    RandomRescale,
    ResizeScale,
    ResizeShortestEdge,
)
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import PixelArray
from tests.images import labels, photo, png, write_photos_with_masks
from tests.test_pipelines import TO_FLOATS, described

SIZES = [(40, 60), (90, 50), (64, 64), (30, 100)]
BOXES = [
    np.array([[2.0, 3, 30, 38], [20, 5, 58, 25]]),
    np.array([[-4.0, 10, 20, 95]]),
    np.zeros((0, 4)),
    np.array([[5.0, 5, 25, 25], [60, 1, 99, 29], [10, 10, 90, 20]]),
]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Images of several sizes with boxes, one of which reaches out."""
    folder = tmp_path_factory.mktemp("objects")
    for number, size in enumerate(SIZES):
        (folder / f"{number}.png").write_bytes(png(photo(*size, seed=number)))
    files = [str(folder / f"{number}.png") for number in range(len(SIZES))]
    columns = {
        "image": EncodedFiles(PathTable.of(files)),
        "boxes": RaggedArray(Ragged.of(BOXES), role="boxes"),
        "labels": RaggedArray(
            Ragged.of([np.arange(len(boxes)) for boxes in BOXES]), role="instances"
        ),
    }
    return Source(columns, "objects", "objects", "dict")


def write_masks(folder: Path) -> list[Any]:
    """Images of several sizes with masks of classes, which are returned."""
    masks = [labels(*size, seed=n).reshape(size) for n, size in enumerate(SIZES)]
    write_photos_with_masks(folder, masks)
    return masks


def test_segmentation_takes_the_pixels_of_masks_that_pillow_does(tmp_path: Path) -> None:
    """The mask of torchvision's script: resized by Pillow, padded right and below with 255."""
    masks = write_masks(tmp_path)
    transform = pipelines.torchvision_segmentation(base_size=44, crop_size=56)
    with fastload.create_loader(tmp_path, batch_size=4, transform=transform, seed=5) as loader:
        ((images, found),) = loader
    assert images.dtype == torch.float32
    assert images.shape == (4, 3, 56, 56)
    draws = Draws(5, 0, np.arange(4))
    sides, flips, places = (
        draws.uniform(stream, count) for stream, count in ((0, 1), (1, 1), (2, 2))
    )
    for number, (mask, (height, width)) in enumerate(zip(masks, SIZES, strict=True)):
        shorter = 22 + int(sides[number, 0] * (88 - 22 + 1))
        long = int(shorter * max(height, width) / min(height, width))
        across, down = (long, shorter) if width > height else (shorter, long)
        wanted = np.asarray(Image.fromarray(mask).resize((across, down), Image.Resampling.NEAREST))
        wanted = wanted[:, ::-1] if flips[number, 0] < 0.5 else wanted
        spare = [max(56 - side, 0) for side in wanted.shape]
        wanted = np.pad(wanted, [(0, spare[0]), (0, spare[1])], constant_values=255)
        top, left = (
            int(place * (side - 56 + 1))
            for place, side in zip(places[number], wanted.shape, strict=True)
        )
        away = found[number].numpy() != wanted[top : top + 56, left : left + 56]
        assert away.mean() <= 0.03  # ties; 0.2 and more with torchvision's nearest pixels


def test_segmentation_of_camvid_as_smp_has_it(tmp_path: Path) -> None:
    """Its example for albumentations, known as a whole: images stay bytes, masks classes."""
    pytest.importorskip("albumentations", reason="pip install .[albumentations]")
    names = [shown.split("(")[0] for shown in described(pipelines.smp_camvid(48))]
    moves = ["RandomHorizontalFlip", "AffineMap", "PadTo", "RandomCrop"]
    assert names == [*moves, "RandomApply", "Perspective", *["OneOf"] * 3]
    assert described(pipelines.smp_camvid_eval()) == ["PadTo(least=(384, 480))"]
    classes = {int(value) for mask in write_masks(tmp_path) for value in np.unique(mask)}
    with fastload.create_loader(tmp_path, 4, transform=pipelines.smp_camvid(48)) as loader:
        assert "worker" not in str(loader.explain()).split("transforms")[1].split("\n\n")[0]
        images, masks = next(iter(loader))
    assert (images.shape, images.dtype) == ((4, 3, 48, 48), torch.uint8)
    assert masks.shape == (4, 48, 48)
    assert set(masks.unique().tolist()) <= {0, *classes}
    assert masks.unique().numel() > 1


def test_segmentation_for_evaluation(tmp_path: Path) -> None:
    transform = pipelines.torchvision_segmentation_eval(base_size=24)
    arrays = {"image": np.zeros((2, 30, 45, 3), np.uint8), "mask": np.zeros((2, 30, 45), np.uint8)}
    with fastload.create_loader(arrays, batch_size=1, transform=transform) as loader:
        assert [tuple(batch["mask"].shape) for batch in loader] == [(1, 24, 36)] * 2
    without = described(pipelines.torchvision_segmentation(hflip_prob=0))
    assert "RandomHorizontalFlip" not in str(without)


@pytest.mark.parametrize("scales", [(24, 48), (64,)])
def test_batches_of_detr(objects: Source, scales: tuple[int, ...]) -> None:
    """Sizes by DETR's own rule; a box that reaches out is clipped, as its data set does."""
    transform = pipelines.detr(scales, max_size=100)
    transform.transforms[2].first, transform.transforms[2].crop = (40, 50), (20, 45)
    with fastload.create_loader(objects, 4, transform=transform, collate_fn="detr") as loader:
        ((images, mask, targets),) = loader
    assert images.shape[2:] == mask.shape[1:]
    for target in targets:
        height, width = target["size"].tolist()
        assert max(height, width) <= 101
        assert min(height, width) in scales or max(height, width) >= 99
        boxes = target["boxes"]
        edges = torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2])
        assert ((edges >= -1e-6) & (edges <= 1 + 1e-6)).all()
    assert len(targets[2]["boxes"]) == 0


def test_detr_for_evaluation(objects: Source) -> None:
    transform = pipelines.detr_eval(48, max_size=100)
    with fastload.create_loader(objects, 4, transform=transform, collate_fn="detr") as loader:
        ((_, _, targets),) = loader
    # 30 by 100: the shorter side is 30, for the longer one to be 100, and nothing is resized.
    sizes = [target["size"].tolist() for target in targets]
    assert sizes == [[48, 72], [86, 48], [48, 48], [30, 100]]
    assert len(described(transform)) == 5


def test_batches_of_rtdetrv2(objects: Source) -> None:
    """All in the threads of the loader, though what clips boxes comes before colour."""
    batches = pipelines.rtdetrv2_batches((16, 48))
    batches = pickle.loads(pickle.dumps(batches))
    sizes = set()
    with fastload.create_loader(
        objects,
        2,
        transform=pipelines.rtdetrv2(32),
        collate_fn="detr",
        batch_transform=batches,
        shuffle=True,
    ) as loader:
        for _ in range(6):
            for images, targets in loader:
                sizes.add(tuple(images.shape))
                assert 0 <= float(images.min()) <= float(images.max()) <= 1
                assert len(targets) == 2
    assert sizes == {(2, 3, 16, 16), (2, 3, 48, 48)}


def test_rfdetr_makes_squares_and_batches_of_their_sizes(objects: Source) -> None:
    small = {"patch_size": 2, "num_windows": 2}
    sizes = {8, 12, 16, 20, 24, 28}  # from 16 in steps of 4, 3 below to 4 above, from 8 on
    batches = pickle.loads(
        pickle.dumps(pipelines.rfdetr_batches(16, expanded_scales=False, **small))
    )
    found = set()
    arguments: dict[str, Any] = {
        "collate_fn": "detr",
        "transform": pipelines.rfdetr(16, expanded_scales=False, **small),
    }
    with fastload.create_loader(objects, 2, batch_transform=batches, **arguments) as loader:
        for _ in range(12):
            for images, mask, targets in loader:
                found.add(images.shape[-1])
                assert images.shape[2:] == mask.shape[1:] == (images.shape[-1],) * 2
                assert not mask.any()
                assert all(target["size"].tolist() == [32, 32] for target in targets)
    assert found <= {*sizes, 32}
    assert len(found) >= 4
    assert batches.scales == (*sorted(sizes), 32)
    with fastload.create_loader(objects, 4, **arguments) as loader:
        ((images, mask, targets),) = loader
    made, outside, _ = pipelines.rfdetr_batches(16, multi_scale=False)(images, mask, targets)
    assert made is images
    assert outside is mask
    each = {"do_random_resize_via_padding": True, **small}
    with fastload.create_loader(
        objects, 4, collate_fn="detr", transform=pipelines.rfdetr(16, **each)
    ) as loader:
        sides = {
            tuple(target["size"].tolist()) for _ in range(6) for *_, b in loader for target in b
        }
    assert all(height == width and height in (*sizes, 32, 36) for height, width in sides)
    assert len(sides) > 3
    assert pipelines.rfdetr_batches(16, **each).scales == ()


def test_rfdetr_has_the_sizes_of_its_models() -> None:
    assert pipelines.rfdetr_batches().scales == tuple(range(280, 841, 56))
    large = pipelines.rfdetr_batches(704, patch_size=16, num_windows=2)
    assert large.scales == tuple(range(544, 865, 32))
    few = pipelines.rfdetr_batches(384, expanded_scales=False, patch_size=16, num_windows=2)
    assert few.scales == tuple(range(288, 513, 32))
    names = ["ClampBoundingBoxes", "RandomHorizontalFlip", "ResizeOrCrop", "CropBetween"]
    shown = [one.split("(")[0] for one in described(pipelines.rfdetr())]
    assert shown[:5] == [*names, "ResizeCropped"]
    assert "Resize(size=(560, 560))" in described(pipelines.rfdetr_eval())


def test_rtdetrv2_after_its_stop_epoch() -> None:
    clamp, sieve = "ClampBoundingBoxes()", "SanitizeBoundingBoxes(min_size=1.0)"
    late = ["RandomHorizontalFlip(p=0.5)", "Resize(size=(640, 640))", sieve]
    assert described(pipelines.rtdetrv2(ops=False)) == [clamp, sieve, *late, TO_FLOATS[0]]
    early = described(pipelines.rtdetrv2())
    assert early[3] == "RandomIoUCrop(min_scale=0.3, p=0.8)"
    (first, _, *rest) = described(pipelines.rtdetrv2_eval())
    assert [first, *rest] == [clamp, "Resize(size=(640, 640))", TO_FLOATS[0]]


@pytest.mark.parametrize(
    "transform",
    [pipelines.detr_eval(48), pipelines.rfdetr_eval(48), pipelines.rtdetrv2_eval(48)],
)
def test_for_evaluation_boxes_outside_of_their_image_are_dropped(transform: Any) -> None:
    """As the data sets of both do; what is partly inside is clipped."""
    boxes = [np.array([[60, 5, 80, 30], [40, 10, 60, 30]], np.float32)]  # of 50 pixels width
    columns = {
        "image": PixelArray(np.zeros((1, 40, 50, 3), np.uint8)),
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
        "labels": RaggedArray(Ragged.of([np.arange(2)]), role="instances"),
    }
    source = Source(columns, "objects", "objects", "dict")
    with fastload.create_loader(source, 1, transform=transform, collate_fn="detr") as loader:
        (target,) = next(iter(loader))[-1]
    assert target["labels"].tolist() == [1]
    torch.testing.assert_close(target["boxes"], torch.tensor([[0.9, 0.5, 0.2, 0.5]]))


def test_batches_of_yolo(objects: Source) -> None:
    """Where there is no mosaic, nor anything else, images are those of a letterbox."""
    with fastload.create_loader(
        objects, 4, transform=pipelines.yolo(64), collate_fn="yolo", shuffle=True
    ) as loader:
        ((images, targets),) = loader
    assert images.shape == (4, 3, 64, 64)
    assert images.dtype == torch.uint8
    assert ((targets[:, 2:] >= 0) & (targets[:, 2:] <= 1)).all()
    nothing = {"hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0, "translate": 0.0, "scale": 0.0}
    late = pipelines.yolo(64, mosaic=0.0, fliplr=0.0, **nothing)
    with fastload.create_loader(objects, 4, transform=late, collate_fn="yolo") as loader:
        ((images, targets),) = loader
    # 40 by 60, to 43 by 64: 42.67 is rounded up. 10 rows are above it.
    assert (images[0, :, :10] == 114).all()
    assert (images[0, :, 53:] == 114).all()
    assert (images[0, :, 10:53] != 114).float().mean() > 0.9
    first = targets[0, 2:].numpy() * 64
    across, down = 64 / 60, 43 / 40
    np.testing.assert_allclose(
        first,
        [16 * across, 10 + 20.5 * down, 28 * across, 35 * down],
        atol=1e-3,
    )


def test_batches_of_yolov7(objects: Source) -> None:
    """Factors are from 1 - scale to 1.1 + scale; without anything else images are those of a
    letterbox, sides rounded down."""
    with fastload.create_loader(
        objects, 4, transform=pipelines.yolov7(64), collate_fn="yolo", shuffle=True
    ) as loader:
        ((images, targets),) = loader
        assert "up to 18 images" in loader.explain()
    assert images.shape == (4, 3, 64, 64)
    assert images.dtype == torch.uint8
    assert ((targets[:, 2:] >= 0) & (targets[:, 2:] <= 1)).all()
    nothing = {"hsv_h": 0.0, "hsv_s": 0.0, "hsv_v": 0.0, "translate": 0.0}
    alone = pipelines.yolov7(64, mosaic=0.0, fliplr=0.0, scale=0.0, **nothing)
    with fastload.create_loader(objects, 4, transform=alone, collate_fn="yolo", seed=7) as loader:
        ((_, targets),) = loader
    # 40 by 60, to 42 by 64: 42.67 is rounded down. 11 rows are above it; then it is enlarged, up to
    # 1.1 times, by the sample's own draw.
    factor = 1 + 0.1 * Draws(7, 0, np.array([0])).uniform(3, 6)[0, 1]
    across, down = factor * 64 / 60, factor * 42 / 40
    np.testing.assert_allclose(
        targets[0, 2:].numpy() * 64,
        [32 + (16 - 30) * across, 32 + (20.5 - 20) * down, 28 * across, 35 * down],
        atol=1e-3,
    )
    made = [op.identity for op in Recipe.from_transform(pipelines.yolov7(64)).ops]
    for number, said in ((0, "p_nine=0.2"), (4, "max_ratio=20.0"), (5, "p=0.15, alpha=8.0")):
        assert said in made[number]
    names = [text.split("(")[0] for text in described(pipelines.yolov7(paste_in=0.0))]
    assert "PasteIn" not in names
    assert "MixUp(p=0.0" in str(described(pipelines.yolov7(mosaic=0.0)))


def test_yolov7_pastes_no_polygons(objects: Source) -> None:
    """Of labels that are boxes the original pastes nothing; of others a loader refuses it."""
    polygons = replace(
        objects,
        columns={**objects.columns, "polygons": RaggedArray(outlined(BOXES), role="polygons")},
    )
    with pytest.raises(ConfigurationError, match=r"have 'polygons'.*paste_in=0 of pipelines"):
        fastload.create_loader(polygons, 4, transform=pipelines.yolov7(64))
    fastload.create_loader(polygons, 4, transform=pipelines.yolov7(64, paste_in=0.0)).close()


def test_batches_of_yolox(objects: Source) -> None:
    arguments: dict[str, Any] = {
        "collate_fn": "yolo",
        "batch_transform": pickle.loads(pickle.dumps(pipelines.yolox_batches(9))),
    }
    with fastload.create_loader(
        objects, 4, transform=pipelines.yolox((64, 96)), shuffle=True, **arguments
    ) as loader:
        ((images, targets),) = loader
        assert "up to 5 images" in loader.explain()
    assert images.shape == (4, 3, 64, 96)
    assert images.dtype == torch.float32
    assert images.amax() > 1
    assert targets.shape == (4, 9, 5)
    there = targets[..., 3] > 0
    assert there.any()
    assert (targets[~there] == 0).all()
    assert (targets[there][:, 3:] > 1).all()


def test_yolox_in_its_last_epochs(objects: Source) -> None:
    """The picture in the upper left corner, blue first; boxes in pixels, those of an image from its
    first row on."""
    for late in (
        pipelines.yolox((64, 64), no_aug=True, hsv_prob=0.0, flip_prob=0.0),
        pipelines.yolox((64, 64), mosaic_prob=0, hsv_prob=0.0, flip_prob=0.0),
    ):
        with fastload.create_loader(
            objects,
            4,
            transform=late,
            collate_fn="yolo",
            batch_transform=pipelines.yolox_batches(2),
        ) as loader:
            ((images, targets),) = loader
        # 40 by 60, to 42 by 64: 42.67 is rounded down.
        assert (images[0, :, 42:] == 114).all()
        assert (images[0, :, :42] != 114).float().mean() > 0.9
        square = torch.from_numpy(photo(64, 64, seed=2)).permute(2, 0, 1)
        assert torch.equal(images[2], square.flip(0).float())
        across, down = 64 / 60, 42 / 40
        wanted = [0, 16 * across, 20.5 * down, 28 * across, 35 * down]
        np.testing.assert_allclose(targets[0, 0].numpy(), wanted, atol=1e-3)
        assert targets[:, :, 0].tolist() == [[0, 1], [0, 0], [0, 0], [0, 1]]
        assert (targets[2] == 0).all()


@pytest.mark.parametrize("kind", ["hflip", "lsj", "multiscale", "ssd", "ssdlite"])
def test_batches_of_torchvisions_detectors(objects: Source, kind: str) -> None:
    transform = pipelines.torchvision_detection(kind)
    with fastload.create_loader(
        objects, 4, transform=transform, collate_fn="torchvision", seed=1
    ) as loader:
        ((images, targets),) = loader
    assert all(image.dtype == torch.float32 and image.min() >= 0 for image in images)
    assert all(image.max() <= 1 for image in images)
    sizes = [tuple(image.shape[1:]) for image in images]
    if kind == "hflip":
        assert sizes == SIZES
        assert [len(target["boxes"]) for target in targets] == [2, 1, 0, 3]
    elif kind == "lsj":
        assert sizes == [(1024, 1024)] * 4
    elif kind == "multiscale":
        # Of 30 by 100 the longer side becomes 1333.
        assert sizes[3] == (399, 1333)
        assert {min(size) for size in sizes[:3]} <= {480 + 32 * n for n in range(11)}
    else:
        for target, (height, width) in zip(targets, sizes, strict=True):
            left, top, right, bottom = target["boxes"].T
            assert (left < right).all()
            assert (top < bottom).all()
            assert (right <= width).all()
            assert (bottom <= height).all()


def test_torchvisions_detectors_for_evaluation(objects: Source) -> None:
    with fastload.create_loader(
        objects, 1, transform=pipelines.torchvision_detection_eval(), collate_fn="torchvision"
    ) as loader:
        found = [images[0] for images, _ in loader]
    for number, (image, size) in enumerate(zip(found, SIZES, strict=True)):
        wanted = torch.from_numpy(photo(*size, seed=number)).permute(2, 0, 1) / 255
        torch.testing.assert_close(image, wanted)


def outlined(boxes: list[Any]) -> Ragged:
    """A triangle for each box: its lower left half."""
    corners = [
        np.array([[left, top], [right, bottom], [left, bottom]])
        for one in boxes
        for left, top, right, bottom in one
    ]
    polygons = Ragged.of(corners)
    objects = Ragged(polygons, np.arange(len(corners) + 1))
    return Ragged(objects, np.append(0, np.cumsum([len(one) for one in boxes])))


@pytest.fixture(scope="module")
def outlines(objects: Source) -> Source:
    """The same with polygons."""
    polygons = RaggedArray(outlined(BOXES), role="polygons")
    return replace(objects, columns={**objects.columns, "polygons": polygons})


def test_batches_of_detectron2(outlines: Source) -> None:
    """Sizes of its own rule, blue first."""
    transform = pipelines.detectron2((48, 96), max_size=100, random_flip="none")
    arguments: dict[str, Any] = {"collate_fn": "torchvision", "seed": 1}
    with fastload.create_loader(outlines, 4, transform=transform, **arguments) as loader:
        ((images, targets),) = loader
    shorter = [(48, 96)[int(u * 2)] for u in Draws(1, 0, np.arange(4)).uniform(0, 1)[:, 0]]
    for image, target, (height, width), short, boxes in zip(
        images, targets, SIZES, shorter, BOXES, strict=True
    ):
        ratio = short / min(height, width)
        ratio *= min(1, 100 / (ratio * max(height, width)))
        wanted = [int(side * ratio + 0.5) for side in (height, width)]
        assert list(image.shape[1:]) == wanted
        assert image.dtype == torch.uint8
        scale = np.array([wanted[1] / width, wanted[0] / height] * 2)
        clipped = np.clip(boxes * scale, 0, [wanted[1], wanted[0]] * 2)
        np.testing.assert_allclose(target["boxes"].numpy(), clipped, atol=1e-4)
    same = pipelines.detectron2_eval(64, max_size=64)
    with fastload.create_loader(outlines, 4, transform=same, **arguments) as loader:
        square = torch.from_numpy(photo(64, 64, seed=2)).permute(2, 0, 1)
        assert torch.equal(next(iter(loader))[0][2], square.flip(0))
    ranged = described(pipelines.detectron2((60, 62), sample_style="range"))
    assert "lengths=(60, 61, 62)" in ranged[0]


@pytest.mark.parametrize(
    "transform",
    [
        pipelines.detectron2_lsj(64, max_scale=5.0),
        pipelines.mask2former_instance(64, max_scale=5.0),
    ],
)
def test_large_scale_jittering(outlines: Source, transform: Any) -> None:
    """Of a triangle the box is around what is left; padding is 128."""
    dropped = cut = 0
    with fastload.create_loader(
        outlines, 4, transform=transform, collate_fn="torchvision", seed=1
    ) as loader:
        for _ in range(10):
            ((images, targets),) = loader
            assert all(one.shape == (3, 64, 64) and one.dtype == torch.uint8 for one in images)
            dropped += 6 - sum(len(target["boxes"]) for target in targets)
            for image, target in zip(images, targets, strict=True):
                boxes = target["boxes"]
                assert ((boxes >= 0) & (boxes <= 64)).all()
                assert (boxes[:, 2:] - boxes[:, :2] > 1e-5).all()
                padding = (image == 128).all(dim=0)
                if "padding_mask" in target:
                    assert padding[target["padding_mask"]].all()
                    assert padding[~target["padding_mask"]].float().mean() < 0.05
                cut += int((boxes == 64).any())
    assert dropped > 0
    assert cut > 0


def test_panoptic_segments_stay(outlines: Source) -> None:
    transform = pipelines.mask2former_panoptic(64, min_scale=1.9)
    with fastload.create_loader(
        outlines, 4, transform=transform, collate_fn="torchvision", seed=1
    ) as loader:
        for _ in range(4):
            ((_, targets),) = loader
            assert [len(target["boxes"]) for target in targets] == [2, 1, 0, 3]
            assert "padding_mask" not in targets[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.torchvision_detection("mosaic"), "data_augmentation: must be one of"),
        (lambda: pipelines.torchvision_detection(hflip_prob=2), "hflip_prob: must be"),
        (lambda: pipelines.torchvision_detection("ssd", mean=(0.5, 0.5, 0.5)), "mean: must be"),
        (lambda: pipelines.yolox(640), "input_size: must be"),
        (lambda: pipelines.yolox((640,)), r"input_size: must be \(height, width\)"),
        (lambda: pipelines.yolox(mosaic_prob=0.5), "mosaic_prob: must be 1, or 0"),
        (lambda: pipelines.yolox(mixup_prob=2), "mixup_prob: must be a probability"),
        (lambda: pipelines.yolox(mosaic_scale=(2.0, 0.1)), "0 < low <= high"),
        (lambda: pipelines.yolox(max_labels=5), "no argument 'max_labels'"),
        (lambda: pipelines.yolox_batches(0), "max_labels: must be"),
        (lambda: pipelines.yolov7(mosaic=0.5), "mosaic: must be 1 or 0 with mixup=0.15"),
        (lambda: pipelines.yolov7(scale=1.0), "scale: must be from 0 to 1, and below"),
        (lambda: pipelines.yolov7(paste_in=2), "paste_in: must be a probability"),
        (lambda: pipelines.yolov7(perspective=0.001), "no argument 'perspective'"),
        (lambda: pipelines.torchvision_segmentation(base_size=1), "base_size: must be"),
        (lambda: pipelines.torchvision_segmentation(crop_size=0), "crop_size: must be"),
        (lambda: pipelines.torchvision_segmentation(hflip_prob=2), "from 0 to 1"),
        (lambda: pipelines.torchvision_segmentation_eval(base_size=0), "base_size: must be"),
        (lambda: pipelines.smp_camvid(0), "size: must be an int of at least 1"),
        (lambda: pipelines.smp_camvid_eval(min_width=0), "min_width: must be an int of at least"),
        (lambda: pipelines.detectron2(()), "short_edge_length: must be"),
        (lambda: pipelines.detectron2(sample_style="any"), "sample_style: must be"),
        (lambda: pipelines.detectron2((8, 9, 10), sample_style="range"), "the least and the"),
        (lambda: pipelines.detectron2(random_flip="both"), "random_flip: must be"),
        (lambda: pipelines.detectron2(image_format="L"), "image_format: must be 'BGR' or 'RGB'"),
        (lambda: pipelines.detectron2_eval(0), "short_edge_length: must be"),
        (lambda: pipelines.detectron2_lsj(0), "image_size: must be"),
        (lambda: pipelines.detectron2_lsj(min_scale=3), "max_scale: must be a number of at least"),
        (lambda: pipelines.detectron2_lsj(target_height=8), "no argument 'target_height'"),
        (lambda: pipelines.mask2former_instance(random_flip="all"), "random_flip: must be"),
        (lambda: pipelines.mask2former_panoptic(format="YUV"), "format: must be 'BGR' or 'RGB'"),
        (lambda: pipelines.rfdetr(0), "resolution: must be an int of at least 1"),
        (lambda: pipelines.rfdetr_eval(0), "resolution: must be"),
        (lambda: pipelines.rfdetr_batches(patch_size=0), "patch_size: must be"),
        (lambda: pipelines.detr(()), "scales: must be one size or several"),
        (lambda: pipelines.detr((480, 0)), "scales: must be an int of at least 1"),
        (lambda: pipelines.detr(max_size=0), "max_size: must be"),
        (lambda: pipelines.detr_eval(80.5), "size: must be an int"),
        (lambda: pipelines.rtdetrv2(0), "size: must be"),
        (lambda: pipelines.rtdetrv2_eval(0), "size: must be"),
        (lambda: pipelines.rtdetrv2_batches(()), "scales: must be"),
        (lambda: pipelines.yolo((640, 640)), "imgsz: must be an int"),
        (lambda: pipelines.yolo(mosaic=1.5), "mosaic: must be a probability"),
        (lambda: pipelines.yolo(scale=1.0), "scale=1.0"),
        (lambda: pipelines.yolo(hsv_s=2.0), "saturation=2.0"),
        (lambda: pipelines.yolo(mixup=0.1), "no argument 'mixup'"),
    ],
)
def test_sizes_that_are_none_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_resizes_of_single_samples() -> None:
    """By themselves, as in a DataLoader: the sizes of detectron2 and mmcv, masks by their own
    filter."""
    image = tv_tensors.Image(torch.zeros(3, 30, 45, dtype=torch.uint8))
    mask = tv_tensors.Mask((torch.arange(30 * 45).reshape(1, 30, 45) % 2).to(torch.uint8))
    cases: list[tuple[Any, Any]] = [
        (ResizeScale((20, 40), scale=(0.5, 0.5)), {(10, 15)}),
        (RandomRescale((40, 20), ratio=(0.5, 0.5)), {(10, 15)}),
        (ResizeShortestEdge((20, 24), max_size=33), {(20, 30), (22, 33)}),
    ]
    for transform, wanted in cases:
        made = [transform(image, mask) for _ in range(40)]
        assert {tuple(picture.shape[1:]) for picture, _ in made} == wanted
        assert all(own.shape[1:] == picture.shape[1:] for picture, own in made)
        assert set(made[0][1].unique().tolist()) <= {0, 1}
    drawn = ResizeScale(40, scale=(0.5, 1.0))
    sides = [drawn(image).shape[2] for _ in range(60)]
    assert 20 <= min(sides) < 25
    assert 35 < max(sides) <= 40


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ResizeScale(9.5), r"ResizeScale\(size=9.5\) must be a whole number"),
        (lambda: FixedSizeCrop((9, 8.5)), r"FixedSizeCrop\(size=\(9, 8.5\)\) must be"),
        (lambda: Letterbox(True), r"Letterbox\(size=True\) must be"),
        (lambda: Letterbox(0), r"Letterbox\(size=0\) must be"),
        (lambda: RandomRescale((40, 0)), r"RandomRescale\(scale=\(40, 0\)\) must be"),
        (lambda: RandomRescale((40, 20), ratio=(2, 1)), r"ratio=\(2, 1\)\) must be"),
        (lambda: ResizeShortestEdge((320.5,)), "lengths: must be an int of at least 1"),
        (lambda: ResizeShortestEdge(()), "lengths: must be one length or several"),
        (lambda: ResizeShortestEdge((320,), max_size=0), "max_size: must be an int"),
        (lambda: BoxesOfMasks(keep_empty="no"), "keep_empty: must be True or False"),
    ],
)
def test_sizes_of_transforms_are_not_cut_to_whole_numbers(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_images_without_polygons_have_a_remedy(objects: Source) -> None:
    def served(transform: Any) -> Any:
        with fastload.create_loader(
            objects, 4, transform=transform, collate_fn="torchvision"
        ) as loader:
            return next(iter(loader))

    with pytest.raises(ConfigurationError, match="recompute_boxes=False of pipelines.detectron2"):
        served(pipelines.detectron2_lsj(32))
    images, _ = served(pipelines.detectron2_lsj(32, recompute_boxes=False))
    assert {tuple(image.shape) for image in images} == {(3, 32, 32)}


def test_images_without_boxes_are_refused() -> None:
    arrays = {"image": np.zeros((2, 40, 50, 3), np.uint8)}
    for transform in (
        pipelines.detr(),
        pipelines.rtdetrv2(),
        pipelines.detectron2(),
        pipelines.detectron2_lsj(),
        pipelines.mask2former_instance(),
    ):
        with pytest.raises(ConfigurationError, match="boxes"):
            fastload.create_loader(arrays, 1, transform=transform, collate_fn="detr")
