"""Samples of several images against mosaics and blends that are put together here, from the same
drawn numbers: images, masks, boxes and points, on the backends."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import SubsetRandomSampler
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.backends.cache import CacheOptions
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.recipe import Recipe
from fastload.recipe.composite import Mosaic
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source, ValueArray
from fastload.sources.buffers import PathTable
from fastload.sources.masks import shapes_of
from tests.backends import Contestant, contestants, once_in_workers
from tests.cases import whole_but
from tests.images import jpeg, photo, png
from tests.images import labels as label_map
from tests.test_masks import runs_of
from tests.test_recipe_detection import params

SAMPLES, SIDE = 9, (32, 40)
"""Height and width that are trained at."""
CANVAS = (2 * SIDE[0], 2 * SIDE[1])
RNG = np.random.default_rng(17)
SIZES = [(40 + 11 * n % 23, 30 + 17 * n % 41) for n in range(SAMPLES)]
COUNTS = [3, 0, 1, 5, 2, 4, 3, 0, 1]
BILINEAR = v2.InterpolationMode.BILINEAR
AFFINE = v2.RandomAffine(
    10, translate=(0.1, 0.1), scale=(0.7, 1.3), interpolation=BILINEAR, fill=114
)
Resize = Callable[[Any, tuple[int, int]], Any]


def a_box(size: tuple[int, int]) -> Any:
    ends = RNG.random((2, 2)) * np.array(size)[::-1]
    return np.concatenate([ends.min(axis=0), ends.max(axis=0)])


BOXES = [
    np.array([a_box(size) for _ in range(count)]).reshape(-1, 4)
    for size, count in zip(SIZES, COUNTS, strict=True)
]
LABELS = [100 * n + np.arange(count) for n, count in enumerate(COUNTS)]


def columns_of(root: Path, *, masks: bool = True) -> dict[str, Any]:
    paths: dict[str, list[str]] = {"image": [], "mask": []}
    for n, size in enumerate(SIZES):
        files = {"image": png(photo(*size, seed=n)), "mask": png(label_map(*size, seed=n))}
        for name, data in files.items():
            paths[name].append(str(root / f"{name}{n}.png"))
            Path(paths[name][-1]).write_bytes(data)
    both = {
        "image": EncodedFiles(PathTable.of(paths["image"])),
        "mask": EncodedFiles(PathTable.of(paths["mask"]), role="mask"),
        "boxes": RaggedArray(Ragged.of(BOXES), role="boxes"),
        "keypoints": RaggedArray(
            Ragged.of([b.reshape(-1, 2, 2) for b in BOXES]), role="keypoints:none"
        ),
        "labels": RaggedArray(Ragged.of(LABELS), role="instances"),
        "index": ValueArray(np.arange(SAMPLES)),
    }
    return {name: one for name, one in both.items() if masks or name != "mask"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(columns_of(tmp_path_factory.mktemp("several")), "several", "several", "dict")


@pytest.fixture(scope="module")
def unmasked(tmp_path_factory: pytest.TempPathFactory) -> Source:
    columns = columns_of(tmp_path_factory.mktemp("unmasked"), masks=False)
    return Source(columns, "unmasked", "unmasked", "dict")


# -- The definition, as YOLOv5's and YOLOX's readers have it


def by_torchvision(pixels: Any, size: tuple[int, int]) -> Any:
    return F.resize(torch.from_numpy(pixels).permute(2, 0, 1), list(size)).permute(1, 2, 0).numpy()


def by_opencv(pixels: Any, size: tuple[int, int]) -> Any:
    cv2 = pytest.importorskip("cv2")
    return cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_LINEAR)


def nearest(pixels: Any, size: tuple[int, int]) -> Any:
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    made = F.resize(tensor, list(size), interpolation=v2.InterpolationMode.NEAREST)
    return made.permute(1, 2, 0).numpy()


def mosaic(
    index: int, u: Any, read: Callable[[int], Any], resize: Resize, fill: int
) -> tuple[Any, list[tuple[int, float, float, float, float]]]:
    """The canvas, and of each image: which, its scales along x and y, and its shifts."""
    height, width = SIDE
    yc, xc = int(height / 2 + u[1] * height), int(width / 2 + u[2] * width)
    members = [index, *(int(number * SAMPLES) for number in u[3:])]
    placed = []
    canvas: Any = None
    for tile, member in enumerate(members):
        image = read(member)
        h0, w0 = image.shape[:2]
        r = min(height / h0, width / w0)
        h, w = round(h0 * r), round(w0 * r)
        small = resize(image, (h, w)).reshape(h, w, -1)
        if canvas is None:
            canvas = np.full((2 * height, 2 * width, small.shape[2]), fill, np.uint8)
        if tile == 0:
            x1, y1, x2, y2 = max(xc - w, 0), max(yc - h, 0), xc, yc
            sx, sy = w - (x2 - x1), h - (y2 - y1)
        elif tile == 1:
            x1, y1, x2, y2 = xc, max(yc - h, 0), min(xc + w, 2 * width), yc
            sx, sy = 0, h - (y2 - y1)
        elif tile == 2:
            x1, y1, x2, y2 = max(xc - w, 0), yc, xc, min(yc + h, 2 * height)
            sx, sy = w - (x2 - x1), 0
        else:
            x1, y1, x2, y2 = xc, yc, min(xc + w, 2 * width), min(yc + h, 2 * height)
            sx, sy = 0, 0
        canvas[y1:y2, x1:x2] = small[sy : sy + y2 - y1, sx : sx + x2 - x1]
        placed.append((member, w / w0, h / h0, x1 - sx, y1 - sy))
    return canvas, placed


def mosaic_of_nine(
    index: int, u: Any, read: Callable[[int], Any], resize: Resize, fill: int
) -> tuple[Any, list[tuple[int, float, float, float, float]]]:
    """As `mosaic`, in the words of YOLOv5's `load_mosaic9`."""
    sh, sw = SIDE
    members = [index, *(int(number * SAMPLES) for number in u[3:])]
    canvas: Any = None
    placed = []
    h0 = w0 = hp = wp = -1
    for i, member in enumerate(members):
        image = read(member)
        r = min(sh / image.shape[0], sw / image.shape[1])
        h, w = round(image.shape[0] * r), round(image.shape[1] * r)
        small = resize(image, (h, w)).reshape(h, w, -1)
        if i == 0:
            canvas = np.full((3 * sh, 3 * sw, small.shape[2]), fill, np.uint8)
            h0, w0 = h, w
            c = sw, sh, sw + w, sh + h
        elif i == 1:
            c = sw, sh - h, sw + w, sh
        elif i == 2:
            c = sw + wp, sh - h, sw + wp + w, sh
        elif i == 3:
            c = sw + w0, sh, sw + w0 + w, sh + h
        elif i == 4:
            c = sw + w0, sh + hp, sw + w0 + w, sh + hp + h
        elif i == 5:
            c = sw + w0 - w, sh + h0, sw + w0, sh + h0 + h
        elif i == 6:
            c = sw + w0 - wp - w, sh + h0, sw + w0 - wp, sh + h0 + h
        elif i == 7:
            c = sw - w, sh + h0 - h, sw, sh + h0
        else:
            c = sw - w, sh + h0 - hp - h, sw, sh + h0 - hp
        left, top = c[:2]
        x1, y1, x2, y2 = (max(x, 0) for x in c)
        part = canvas[y1:y2, x1:x2]
        part[:] = small[y1 - top :, x1 - left :][: part.shape[0], : part.shape[1]]
        hp, wp = h, w
        placed.append((member, w / image.shape[1], h / image.shape[0], left, top))
    yc, xc = int(u[1] * sh), int(u[2] * sw)
    moved = [(member, a, d, left - xc, top - yc) for member, a, d, left, top in placed]
    return canvas[yc : yc + 2 * sh, xc : xc + 2 * sw], moved


def objects_of(placed: Any) -> tuple[Any, Any, Any]:
    """Boxes, points and labels of a mosaic."""
    boxes, points, names = [], [], []
    for member, across, down, left, top in placed:
        moved = BOXES[member].reshape(-1, 2, 2) * (across, down) + (left, top)
        boxes.append(np.clip(moved, 0, CANVAS[::-1]).reshape(-1, 4))
        points.append(moved)
        names.append(LABELS[member])
    return np.concatenate(boxes), np.concatenate(points), np.concatenate(names)


def photo_of(index: int) -> Any:
    return photo(*SIZES[index], seed=index)


def mask_of(index: int) -> Any:
    return label_map(*SIZES[index], seed=index).reshape(*SIZES[index], 1)


def close(found: Any, wanted: Any, atol: float = 1e-4) -> bool:
    return np.allclose(found.cpu().numpy(), wanted, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("images", whole_but([4], [4, 9]))
@pytest.mark.parametrize("by", [by_torchvision, by_opencv])
def test_a_mosaic_is_the_published_one(source: Source, by: Resize, images: int) -> None:
    make, count = (mosaic, 6) if images == 4 else (mosaic_of_nine, 11)
    transform = fastload.Mosaic(SIDE, images=images, mask_fill=7, antialias=by is by_torchvision)
    with fastload.create_loader(
        source, transform=v2.Compose([v2.ToImage(), transform]), shuffle=True, seed=4
    ) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    for number, batch in enumerate(batches):
        index = int(batch["index"][0])
        u = Draws(4, number // SAMPLES, np.array([index])).uniform(0, count)[0]
        wanted, placed = make(index, u, photo_of, by, 114)
        found = batch["image"][0].permute(1, 2, 0).numpy()
        assert np.abs(found.astype(int) - wanted).max() <= 2
        mask, _ = make(index, u, mask_of, nearest, 7)
        assert np.array_equal(batch["mask"][0].numpy(), mask[:, :, 0])
        boxes, points, names = objects_of(placed)
        assert close(batch["boxes"][0], boxes)
        assert close(batch["keypoints"][0], points)
        assert batch["labels"][0].tolist() == names.tolist()
        assert batch["boxes"].offsets.tolist() == [0, len(names)]


def test_mosaics_of_four_and_of_nine_are_mixed(source: Source) -> None:
    """Each is the published one, and the last number drawn says which."""
    transform = fastload.Mosaic(SIDE, p_nine=0.4, antialias=False)
    nine = []
    with fastload.create_loader(
        source, transform=v2.Compose([v2.ToImage(), transform]), seed=4
    ) as loader:
        for index, batch in enumerate(loader):
            u = Draws(4, 0, np.array([index])).uniform(0, 12)[0]
            nine.append(bool(u[11] < 0.4))
            make, count = (mosaic_of_nine, 11) if nine[-1] else (mosaic, 6)
            wanted, placed = make(index, u[:count], photo_of, by_opencv, 114)
            found = batch["image"][0].permute(1, 2, 0).numpy()
            assert np.abs(found.astype(int) - wanted).max() <= 2
            boxes, _, names = objects_of(placed)
            assert close(batch["boxes"][0], boxes)
            assert batch["labels"][0].tolist() == names.tolist()
    assert 0 < sum(nine) < SAMPLES


def after(canvas: Any, placed: Any, draws: Draws, stream: int) -> tuple[Any, Any, Any]:
    """A mosaic after AFFINE of this stream and a central crop, by torchvision: image, boxes,
    labels."""
    found = params(AFFINE, draws.uniform(stream, 6)[0], CANVAS, None)
    assert found is not None
    boxes, _, names = objects_of(placed)
    moved: Any = tv_tensors.BoundingBoxes(
        torch.from_numpy(boxes), format="XYXY", canvas_size=CANVAS
    )  # type: ignore[call-overload]
    image = tv_tensors.Image(torch.from_numpy(canvas).permute(2, 0, 1))
    for transform, chosen in ((AFFINE, found), (v2.CenterCrop(SIDE), {})):
        image, moved = (transform.transform(one, chosen) for one in (image, moved))
    return image.numpy(), moved.numpy(), names


def flipped(image: Any, boxes: Any) -> tuple[Any, Any]:
    return image[:, :, ::-1], np.stack(
        [SIDE[1] - boxes[:, 2], boxes[:, 1], SIDE[1] - boxes[:, 0], boxes[:, 3]], axis=1
    )


@pytest.mark.slow
def test_what_follows_goes_on_with_the_mosaic(unmasked: Source) -> None:
    """The whole of it: a mosaic, the affine map, a crop, a blend with another such, a flip."""
    transforms = [
        v2.ToImage(),
        fastload.Mosaic(SIDE),
        AFFINE,
        v2.CenterCrop(SIDE),
        fastload.MixUp(p=0.6, alpha=1.5),
        v2.RandomHorizontalFlip(),
        fastload.DropObjects(min_size=2, min_visibility=0.2),
    ]
    seen = {False: 0, True: 0}
    with fastload.create_loader(
        unmasked, transform=v2.Compose(transforms), shuffle=True, seed=6
    ) as loader:
        for epoch in range(2):
            for batch in loader:
                index = int(batch["index"][0])
                draws = Draws(6, epoch, np.array([index]))
                canvas, placed = mosaic(
                    index, draws.uniform(0, 6)[0], photo_of, by_torchvision, 114
                )
                image, boxes, names = after(canvas, placed, draws, 1)
                areas = unclipped_areas(placed, draws, 1)
                u = draws.uniform(3, 2)[0]
                mixed = bool(u[0] < 0.6)
                seen[mixed] += 1
                if mixed:
                    inner, partner = draws.within(3), int(u[1] * SAMPLES)
                    canvas, placed = mosaic(
                        partner, inner.uniform(0, 6)[0], photo_of, by_torchvision, 114
                    )
                    other, more, others = after(canvas, placed, inner, 1)
                    bits = int(inner.integers(3)[0])
                    state = np.random.RandomState([bits >> 32, bits & 0xFFFFFFFF])
                    r = state.beta(1.5, 1.5)
                    image = image * r + other * (1 - r)
                    boxes, names = np.concatenate([boxes, more]), np.concatenate([names, others])
                    areas = np.concatenate([areas, unclipped_areas(placed, inner, 1)])
                if draws.uniform(4, 1)[0, 0] < 0.5:
                    image, boxes = flipped(image, boxes)
                sides = boxes[:, 2:] - boxes[:, :2]
                kept = (sides >= 2).all(axis=1) & (sides.prod(axis=1) >= 0.2 * areas)
                assert batch["labels"][0].tolist() == names[kept].tolist()
                assert close(batch["boxes"][0], boxes[kept], atol=2e-3)
                away = np.abs(batch["image"][0].numpy().astype(float) - image)
                assert (away > 2.5).mean() <= 0.001
                assert away.mean() < 0.5
    assert min(seen.values()) > 3


def unclipped_areas(placed: Any, draws: Draws, stream: int) -> Any:
    """Of the boxes after AFFINE, if nothing were cut off."""
    found: Any = params(AFFINE, draws.uniform(stream, 6)[0], CANVAS, None)
    _, points, _ = objects_of(placed)
    low, high = points[:, 0], points[:, 1]
    corners = np.stack(
        [
            low,
            [high[:, 0], low[:, 1]] @ np.eye(2)[[0, 1]]
            if 0
            else np.stack([high[:, 0], low[:, 1]], 1),
            high,
            np.stack([low[:, 0], high[:, 1]], 1),
        ],
        axis=1,
    )
    angle = np.radians(found["angle"])
    turn = found["scale"] * np.array(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    )
    ends = corners @ turn.T
    return (ends.max(axis=1) - ends.min(axis=1)).prod(axis=1)


@pytest.mark.slow
def test_without_a_mosaic_it_is_a_letterbox(source: Source) -> None:
    """And `p` is the part of the samples that are mosaics."""
    alone = v2.Compose([fastload.Mosaic(SIDE, p=0.0, mask_fill=3), v2.CenterCrop(SIDE)])
    with (
        fastload.create_loader(source, batch_size=4, transform=alone) as loader,
        fastload.create_loader(
            source, batch_size=4, transform=fastload.Letterbox(SIDE, mask_fill=3)
        ) as other,
    ):
        for batch, wanted in zip(loader, other, strict=True):
            assert (batch["image"].int() - wanted["image"].int()).abs().max() <= 1
            assert torch.equal(batch["mask"], wanted["mask"])
            assert torch.allclose(batch["boxes"].values, wanted["boxes"].values)
            assert torch.equal(batch["labels"].offsets, wanted["labels"].offsets)
    half = fastload.Mosaic(SIDE, p=0.5)
    with fastload.create_loader(source, transform=half, seed=3) as loader:
        found = [len(batch["labels"].values) for _ in range(3) for batch in loader]
    for number, count in enumerate(found):
        epoch, index = divmod(number, SAMPLES)
        u = Draws(3, epoch, np.array([index])).uniform(0, 6)[0]
        members = [index, *(int(v * SAMPLES) for v in u[3:])] if u[0] < 0.5 else [index]
        assert count == sum(COUNTS[member] for member in members)


def test_a_blend_needs_no_mosaic(unmasked: Source) -> None:
    transform = v2.Compose([fastload.Letterbox(SIDE), fastload.MixUp()])
    letterbox = fastload.Letterbox(SIDE)
    with (
        fastload.create_loader(unmasked, batch_size=SAMPLES, transform=transform, seed=5) as mixed,
        fastload.create_loader(unmasked, batch_size=SAMPLES, transform=letterbox) as plain,
    ):
        batch, alone = next(iter(mixed)), next(iter(plain))
    draws = Draws(5, 0, np.arange(SAMPLES))
    partners = (draws.uniform(1, 2)[:, 1] * SAMPLES).astype(int)
    for index, (partner, bits) in enumerate(
        zip(partners, draws.within(1).integers(1).tolist(), strict=True)
    ):
        r = np.random.RandomState([bits >> 32, bits & 0xFFFFFFFF]).beta(32.0, 32.0)
        wanted = alone["image"][index].double() * r + alone["image"][partner].double() * (1 - r)
        assert (batch["image"][index] - wanted).abs().max() <= 0.51
        both = torch.cat([alone["boxes"][index], alone["boxes"][partner]])
        assert torch.equal(batch["boxes"][index], both)
        assert batch["labels"][index].tolist() == [*LABELS[index], *LABELS[partner]]


# -- One picture over another


@pytest.fixture(scope="module")
def outlined(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Images with ellipses as run lengths, some of them crowds, and boxes around them."""
    return outlined_in(tmp_path_factory.mktemp("outlined"))


def outlined_in(root: Path) -> Source:
    # A copy, so that the objects are the same whichever tests have run before.
    columns, rng = columns_of(root), copy.deepcopy(RNG)
    masks, boxes, crowds = [], [], []
    for n, (height, width) in enumerate(SIZES):
        y, x = np.mgrid[:height, :width] + 0.5
        own = []
        for _ in range(1 + n % 4):
            at = rng.random(4)
            far = ((y / height - at[0]) / (0.1 + 0.3 * at[2])) ** 2
            far += ((x / width - at[1]) / (0.1 + 0.3 * at[3])) ** 2
            own.append((far < 1).astype(np.uint8))
        masks.append([runs_of(one) for one in own])
        boxes.append(np.array([box_of(one) for one in own], np.float64))
        crowds.append([int(number == 2) for number in range(len(own))])
    names = [100 * n + np.arange(len(own)) for n, own in enumerate(boxes)]
    columns |= {
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
        "labels": RaggedArray(Ragged.of(names), role="instances"),
        "iscrowd": RaggedArray(Ragged.of(crowds), role="instances"),
        "masks": RaggedArray(shapes_of(masks), role="instance_masks"),
    }
    del columns["keypoints"]
    return Source(columns, "outlined", "outlined", "dict")


def box_of(mask: Any) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


JITTER = [v2.ScaleJitter((40, 48), (0.6, 1.5)), fastload.FixedSizeCrop(SIDE, fill=30)]


def alone(source: Source, seed: int, rows: Any) -> Any:
    """Samples after JITTER by these draws."""
    with fastload.create_loader(
        source, batch_size=SAMPLES, transform=v2.Compose(JITTER), seed=seed, shuffle=False
    ) as loader:
        loader.set_epoch(0)
        batch = next(iter(loader))
    return [{name: column[row] for name, column in batch.items()} for row in rows]


def partner_of(source: Source, stream: int, index: int, u: Any, monkeypatch: Any) -> Any:
    """The partner's picture and objects: what a loader makes of it with the numbers that are drawn
    within the stream, for the sample's own index."""
    inner, plain = Draws(6, 0, np.array([index])).within(stream), Draws.uniform
    arguments: dict[str, Any] = {"sampler": [int(u[1] * SAMPLES)], "num_workers": 0}
    with monkeypatch.context() as patched:
        patched.setattr(Draws, "uniform", lambda self, s, n: plain(inner, s, n))
        with fastload.create_loader(
            source, transform=v2.Compose(JITTER), backend="torch", **arguments
        ) as loader:
            batch = next(iter(loader))
    return {name: column[0] for name, column in batch.items()}


def hidden_box(box: Any, window: Any) -> Any:
    """Of a box on whole pixels what is around its pixels that a window does not hide, and how many
    those are."""
    pixels = np.zeros(SIDE, np.uint8)
    left, top, right, bottom = np.round(box).astype(int)
    pixels[top:bottom, left:right] = 1
    before = pixels.sum()
    pixels[window[1] : window[3], window[0] : window[2]] = 0
    return box_of(pixels), pixels.sum() / max(before, 1)


def test_a_rectangle_of_the_partner_is_put_over_the_picture(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CutMix, its objects, and a mirroring of all that. Images and boxes on whole pixels, without a
    resize, so that pixels of a mask say what is seen of a box."""
    rng = np.random.default_rng(8)
    count = 40
    pixels = rng.integers(0, 256, (count, *SIDE, 3), dtype=np.uint8)
    ends = rng.integers(0, [SIDE[1] - 4, SIDE[0] - 4], (count, 6, 2))
    spans = rng.integers(2, 18, (count, 6, 2))
    boxes = np.concatenate([ends, np.minimum(ends + spans, SIDE[::-1])], axis=2).astype(float)
    names = np.arange(count * 6).reshape(count, 6)
    arrays = {
        "image": pixels,
        "mask": pixels[..., 0],
        "boxes": Ragged.of(list(boxes)),
        "labels": Ragged.of(list(names)),
    }
    cut_mix = fastload.CutMix(p=0.8, alpha=2.0, min_visibility=0.3)
    transform = v2.Compose([cut_mix, v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3)])
    with fastload.create_loader(arrays, batch_size=count, transform=transform, seed=5) as loader:
        batch = next(iter(loader))
    draws = Draws(5, 0, np.arange(count))
    u = draws.uniform(0, 4)
    flips = np.stack([draws.uniform(1, 1)[:, 0] < 0.5, draws.uniform(2, 1)[:, 0] < 0.3], axis=1)
    dropped = changed = 0
    for row, bits in enumerate(draws.within(0).integers(0).tolist()):
        image, kept = pixels[row].copy(), []
        state = np.random.RandomState([bits >> 32, bits & 0xFFFFFFFF])
        r = 0.5 * np.sqrt(1.0 - state.beta(2.0, 2.0))
        x, y = int(u[row, 2] * SIDE[1]), int(u[row, 3] * SIDE[0])
        w, h = int(r * SIDE[1]), int(r * SIDE[0])
        window = max(x - w, 0), max(y - h, 0), min(x + w, SIDE[1]), min(y + h, SIDE[0])
        mixed = u[row, 0] < 0.8
        for box, name in zip(boxes[row], names[row], strict=True):
            found, left = hidden_box(box, window) if mixed else (box, 1.0)
            kept += [(found, name)] if left >= 0.3 else []
            dropped += left < 0.3
            changed += tuple(found) != tuple(box)
        partner = int(u[row, 1] * count)
        if mixed:
            x1, y1, x2, y2 = window
            image[y1:y2, x1:x2] = pixels[partner, y1:y2, x1:x2]
            for box, name in zip(boxes[partner], names[partner], strict=True):
                low, high = np.maximum(box[:2], window[:2]), np.minimum(box[2:], window[2:])
                part = np.maximum(high - low, 0).prod() / (box[2:] - box[:2]).prod()
                kept += [((*low, *high), name)] if part >= 0.3 else []
        across, down = flips[row]
        image = image[:: -1 if down else 1, :: -1 if across else 1]
        wanted = np.array([box for box, _ in kept], float).reshape(-1, 4)
        if across:
            wanted[:, [0, 2]] = SIDE[1] - wanted[:, [2, 0]]
        if down:
            wanted[:, [1, 3]] = SIDE[0] - wanted[:, [3, 1]]
        assert np.array_equal(batch["image"][row].permute(1, 2, 0).numpy(), image)
        assert np.array_equal(batch["mask"][row].numpy(), image[..., 0])
        assert batch["labels"][row].tolist() == [name for _, name in kept]
        assert close(batch["boxes"][row], wanted)
    assert dropped > 10
    assert changed > 10


@pytest.mark.slow
def test_objects_of_the_partner_are_pasted_by_their_masks(
    outlined: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchvision's references do it (`copy_paste.py`), with what is left of boxes and masks."""
    paste = fastload.CopyPaste(p=0.8, p_object=0.7, min_visibility=0.25)
    transform = v2.Compose([*JITTER, paste])
    with fastload.create_loader(
        outlined, batch_size=SAMPLES, transform=transform, seed=6
    ) as loader:
        batch = next(iter(loader))
    own = alone(outlined, 6, range(SAMPLES))
    hidden = pasted = 0
    for index in range(SAMPLES):
        draws = Draws(6, 0, np.array([index]))
        u = draws.uniform(2, 2 + 20)[0]
        sample = own[index]
        image, mask = sample["image"].clone(), sample["mask"].clone()
        masks, boxes = sample["masks"].clone(), sample["boxes"].numpy().copy()
        names, kept = sample["labels"].tolist(), list(range(len(masks)))
        if u[0] < 0.8:
            other = partner_of(outlined, 2, index, u, monkeypatch)
            chosen = (u[2 : 2 + len(other["masks"])] < 0.7) & (other["iscrowd"].numpy() == 0)
            over = other["masks"][torch.from_numpy(chosen)]
            seen = over.sum(dim=0) > 0
            image = torch.where(seen, other["image"], image)
            mask = torch.where(seen, other["mask"], mask)
            before = masks.sum(dim=(1, 2))
            masks = masks * ~seen
            after = masks.sum(dim=(1, 2))
            kept = [n for n in kept if after[n] == before[n] or after[n] >= 0.25 * before[n] > 0]
            hidden += len(names) - len(kept)
            for n in kept:
                if after[n] < before[n]:
                    boxes[n] = box_of(masks[n].numpy())
            pasted += int(chosen.sum())
            masks = torch.cat([masks[kept], over])
            boxes = np.concatenate([boxes[kept], other["boxes"].numpy()[chosen]])
            names = [names[n] for n in kept] + other["labels"].numpy()[chosen].tolist()
        assert batch["labels"][index].tolist() == names
        assert torch.equal(batch["masks"][index], masks)
        assert close(batch["boxes"][index], boxes)
        assert torch.equal(batch["mask"][index], mask)
        assert (batch["image"][index].int() - image.int()).abs().max() <= 1
    assert hidden > 0
    assert pasted > 4


# -- All backends, resume, ranks


CHAIN = [
    fastload.Mosaic(SIDE, p=0.8),
    AFFINE,
    v2.CenterCrop(SIDE),
    v2.RandomHorizontalFlip(),
    fastload.DropObjects(min_size=2),
]


def same(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    assert torch.equal(found["index"].cpu(), wanted["index"])
    for name in {"boxes", "keypoints", "labels", "masks"} & wanted.keys():
        assert torch.equal(found[name].values.cpu(), wanted[name].values)
        assert torch.equal(found[name].offsets.cpu(), wanted[name].offsets)
    if "mask" in wanted:
        assert torch.equal(found["mask"].cpu(), wanted["mask"])
    assert (found["image"].cpu().int() - wanted["image"].int()).abs().max() <= 2


CHAINS = {
    "mosaic": CHAIN,
    "mixup": [*CHAIN[:3], fastload.MixUp(p=0.5), *CHAIN[3:]],
    "cutmix": [*CHAIN[:3], fastload.CutMix(p=0.7), *CHAIN[3:]],
    "cutmix of images alone": [*CHAIN[:3], fastload.CutMix(p=0.7), *CHAIN[3:]],
    "copy-paste": [
        fastload.Mosaic(SIDE, images=9, p=0.5),
        *CHAIN[1:3],
        fastload.CopyPaste(p=0.7),
        *CHAIN[3:],
    ],
}


@pytest.mark.whole
@contestants()
@pytest.mark.parametrize("name", CHAINS)
def test_all_backends_and_resumed_epochs_have_the_same_samples(
    contestant: Contestant,
    source: Source,
    unmasked: Source,
    outlined: Source,
    name: str,
    tmp_path: Path,
) -> None:
    once_in_workers(contestant, name, "copy-paste")
    chain = CHAINS[name]
    given = outlined if "paste" in name else source
    if name in ("mixup", "cutmix of images alone"):
        given = unmasked  # which is what the native core makes a batch a call
    arguments: dict[str, Any] = {"transform": v2.Compose(chain), "shuffle": True, "seed": 8}
    if contestant.backend == "dali":
        with pytest.raises(ConfigurationError, match="'dali' cannot make a sample of up to"):
            contestant.create(given, tmp_path, **arguments)
        return
    with fastload.create_loader(
        given, batch_size=4, backend="torch", num_workers=0, **arguments
    ) as loader:
        wanted = list(loader)
    with contestant.create(given, tmp_path, batch_size=4, **arguments) as loader:
        iterator = iter(loader)
        found, state = [next(iterator)], loader.state_dict()
    with contestant.create(given, tmp_path, batch_size=4, **arguments) as loader:
        loader.load_state_dict(state)
        found += list(loader)
        assert "made of up to" in loader.explain()
    assert len(found) == len(wanted)
    for own, other in zip(found, wanted, strict=True):
        same(own, other)
    ranks = [
        contestant.create(given, tmp_path, batch_size=2, shard=fastload.Shard(rank, 2), **arguments)
        for rank in range(2)
    ]
    for loader in ranks:
        loader.load_state_dict(state)
    parts = [next(iter(loader)) for loader in ranks]
    assert torch.equal(torch.cat([b["index"] for b in parts]).cpu(), wanted[1]["index"])
    values = torch.cat([batch["boxes"].values for batch in parts]).cpu()
    assert torch.equal(values, wanted[1]["boxes"].values)
    got = torch.cat([batch["image"] for batch in parts]).cpu().int()
    assert (got - wanted[1]["image"].int()).abs().max() <= 2
    for loader in ranks:
        loader.close()


@contestants("torch-2", "turbojpeg", "cache-disk")
def test_masks_of_objects_follow(contestant: Contestant, tmp_path: Path) -> None:
    """Rectangles of run lengths beside an image that has their numbers: the nearest pixel of
    both."""
    rng = np.random.default_rng(2)
    numbers, shapes, boxes = [], [], []
    number = 0
    for height, width in SIZES:
        pixels, own, where = np.zeros((height, width, 1), np.uint8), [], []
        for left in (2, width // 2):
            number += 1
            bottom, right = int(rng.integers(12, height)), left + width // 2 - 4
            pixels[8:bottom, left:right] = number
            own.append(runs_of((pixels[:, :, 0] == number).astype(np.uint8)))
            where.append([left, 8, right, bottom])
        numbers.append(pixels), shapes.append(own), boxes.append(np.array(where, np.float64))
    files = []
    for n, pixels in enumerate(numbers):
        files.append(str(tmp_path / f"{n}.png"))
        Path(files[-1]).write_bytes(png(pixels))
    images = [str(tmp_path / f"{n}.jpg") for n in range(SAMPLES)]
    for n, name in enumerate(images):
        Path(name).write_bytes(jpeg(photo(*SIZES[n], seed=n)))
    columns = {
        "image": EncodedFiles(PathTable.of(images)),
        "mask": EncodedFiles(PathTable.of(files), role="mask"),
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
        "ids": RaggedArray(
            Ragged.of([[2 * n + 1, 2 * n + 2] for n in range(SAMPLES)]), role="instances"
        ),
        "masks": RaggedArray(shapes_of(shapes), role="instance_masks"),
    }
    source = Source(columns, "drawn", "drawn", "dict")
    chain = [fastload.Mosaic(SIDE), v2.RandomAffine(20, scale=(0.5, 1.2)), v2.CenterCrop(SIDE)]
    transform = v2.Compose([*chain, v2.RandomHorizontalFlip(), fastload.DropObjects()])
    with contestant.create(
        source, tmp_path, batch_size=4, transform=transform, shuffle=True
    ) as loader:
        for batch in loader:
            masks, ids = batch["masks"], batch["ids"]
            assert torch.equal(masks.offsets, ids.offsets)
            assert masks.values.shape[1:] == SIDE
            for row in range(len(ids)):
                for mask, one in zip(masks[row], ids[row].tolist(), strict=True):
                    # The same image may be there twice; then the other shows its number, too.
                    other = batch["mask"][row] == one
                    assert not (mask.bool() & ~other).any()
                    if ids[row].tolist().count(one) == 1:
                        assert torch.equal(mask.bool(), other)


# -- What cannot be read, and what is refused


@pytest.mark.slow
@contestants("torch-0", "turbojpeg", "cache-disk")
def test_a_part_that_cannot_be_read(contestant: Contestant, tmp_path: Path) -> None:
    columns = columns_of(tmp_path)
    (tmp_path / "image4.png").write_bytes(b"no image")
    source = Source(columns, "spoilt", "spoilt", "dict")
    arguments: dict[str, Any] = {"transform": v2.Compose(CHAIN), "batch_size": 3, "seed": 2}
    spoilt = [
        index
        for index in range(SAMPLES)
        if 4 in members_of(Draws(2, 0, np.array([index])).uniform(0, 6)[0], index)
    ]
    assert spoilt[0] != 4
    with (
        contestant.create(source, tmp_path / "a", **arguments) as loader,
        pytest.raises(DecodeError, match=r"image4\.png.*part of the sample.*image"),
    ):
        list(loader)
    with contestant.create(source, tmp_path / "b", on_error="substitute", **arguments) as loader:
        batches = list(loader)
        assert loader.stats().substituted == len(spoilt)
    found = torch.cat([batch["index"] for batch in batches]).tolist()
    assert [index for index in range(SAMPLES) if found[index] != index] == spoilt
    with fastload.create_loader(
        source, backend="torch", num_workers=0, on_error="substitute", **arguments
    ) as loader:
        for own, other in zip(batches, loader, strict=True):
            same(own, other)


@pytest.mark.slow
@contestants("torch-0", "turbojpeg", "cache-disk")
def test_a_partner_that_cannot_be_read(contestant: Contestant, tmp_path: Path) -> None:
    """Nothing of the sample is left, its masks included; then another takes its place."""
    source = outlined_in(tmp_path)
    (tmp_path / "image4.png").write_bytes(b"no image")
    transform = v2.Compose([*JITTER, fastload.CopyPaste(), v2.RandomHorizontalFlip()])
    arguments: dict[str, Any] = {"transform": transform, "batch_size": 3, "seed": 2}
    partners = (Draws(2, 0, np.arange(SAMPLES)).uniform(2, 2)[:, 1] * SAMPLES).astype(int)
    spoilt = [n for n, partner in enumerate(partners) if 4 in (n, partner)]
    assert len(spoilt) > 1
    with contestant.create(source, tmp_path / "b", on_error="substitute", **arguments) as loader:
        batches = list(loader)
    found = torch.cat([batch["index"] for batch in batches]).tolist()
    assert [index for index in range(SAMPLES) if found[index] != index] == spoilt
    for batch in batches:
        assert torch.equal(batch["masks"].offsets, batch["boxes"].offsets)
    with fastload.create_loader(
        source, backend="torch", num_workers=0, on_error="substitute", **arguments
    ) as loader:
        for own, other in zip(batches, loader, strict=True):
            same(own, other)


def members_of(u: Any, index: int) -> list[int]:
    return [index, *(int(v * SAMPLES) for v in u[3:])] if u[0] < 0.8 else [index]


def arrays(**more: Any) -> dict[str, Any]:
    return {"image": np.zeros((4, 20, 20, 3), np.uint8), **more}


@pytest.mark.parametrize(
    ("transforms", "more", "match"),
    [
        ([v2.RandomCrop(8), fastload.Mosaic(8)], {}, "must be the first"),
        ([fastload.Mosaic(8), fastload.Mosaic(8)], {}, "more than once"),
        ([fastload.Mosaic(8), lambda x: x], {}, "which runs in Python"),
        ([fastload.Mosaic(8), v2.RandomShortestSize([8, 9])], {}, "several sizes"),
        ([fastload.Mosaic(8), v2.RandomIoUCrop(), v2.Resize(8)], {}, "depends on the boxes"),
        ([fastload.Views(fastload.Mosaic(8), v2.Resize(8))], {}, "Views"),
        ([v2.ColorJitter(0.5), fastload.MixUp()], {}, "must be geometry"),
        ([fastload.Mosaic(8)], {"source": arrays(label=np.zeros(4, int))}, "'label' of each"),
        ([fastload.Mosaic(8)], {"source": arrays(boxes=np.zeros((4, 4)))}, "fastload.Ragged"),
        ([fastload.MixUp(), fastload.CutMix()], {}, "MixUp beside CutMix"),
        ([fastload.CutMix(), fastload.CutMix()], {}, "CutMix more than once"),
        ([fastload.CutMix(), v2.RandomCrop(8)], {}, "CutMix before RandomCrop.* than to mirror"),
        ([fastload.CutMix()], {}, "CutMix hides parts .* no boxes"),
        ([fastload.CopyPaste()], {}, "by their masks, .* Give open_source.*masks=True"),
        ([fastload.MixUp()], {"source": arrays(mask=np.zeros((4, 20, 20), np.uint8))}, "'mask'"),
        ([fastload.Mosaic(8)], {"sampler": SubsetRandomSampler([0, 1])}, "Subset"),
        ([fastload.Mosaic(8)], {"batch_sampler": [[0, 1]]}, "Subset"),
        ([fastload.Mosaic(8)], {"collate_fn": list}, "takes finished samples"),
        (
            [fastload.Mosaic(8)],
            {"backend": "cache", "options": CacheOptions(short_side=8, progress=False)},
            "full resolution",
        ),
    ],
)
def test_what_is_refused(transforms: list[Any], more: dict[str, Any], match: str) -> None:
    arguments = {"source": arrays(), **more}
    with pytest.raises(ConfigurationError, match=match):
        fastload.create_loader(transform=v2.Compose(transforms), **arguments)


def test_images_of_several_sizes_are_not_blended(unmasked: Source) -> None:
    with pytest.raises(ConfigurationError, match="several sizes: put a Mosaic"):
        fastload.create_loader(
            unmasked, transform=v2.Compose([fastload.MixUp(), v2.Resize((8, 8))])
        )


def test_transforms_by_themselves() -> None:
    with pytest.raises(ConfigurationError, match=r"create_loader\(source, transform"):
        fastload.Mosaic(8)(torch.zeros(3, 8, 8))
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        fastload.Mosaic(8, p=1.5)
    with pytest.raises(ConfigurationError, match="above 0"):
        fastload.MixUp(alpha=0)
    with pytest.raises(ConfigurationError, match="4 or 9"):
        fastload.Mosaic(8, images=5)
    with pytest.raises(ConfigurationError, match="leave out one of the two"):
        fastload.Mosaic(8, images=9, p_nine=0.2)
    with pytest.raises(ConfigurationError, match=r"CutMix\(alpha=-1\) must be a number above 0"):
        fastload.CutMix(alpha=-1)
    with pytest.raises(ConfigurationError, match=r"p_object=2\) must be from 0 to 1"):
        fastload.CopyPaste(p_object=2)


@pytest.mark.parametrize(("rounding", "height"), [("nearest", 47), ("up", 48), ("down", 47)])
def test_sides_in_a_mosaic_are_rounded_as_asked(rounding: str, height: int) -> None:
    """45 by 61 to fit into 64 by 64: 47.2 by 64."""
    (op,) = Recipe.from_transform(fastload.Mosaic(64, rounding=rounding)).ops
    assert isinstance(op, Mosaic)
    sizes = np.array([[45, 61], [50, 50]])
    placed = op.place(sizes, np.array([-1, -1]), np.zeros((2, 2), np.int64))
    assert placed.size.tolist() == [[height, 64], [64, 64]]
    with pytest.raises(ConfigurationError, match="'nearest', 'up' or 'down'"):
        fastload.Mosaic(64, rounding="half")
