"""Samples of several images against mosaics and blends that are put together here, from the same
drawn numbers: images, masks, boxes and points, on the backends."""

from __future__ import annotations

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
from fastload.draws import Draws, StagedDraws
from fastload.errors import ConfigurationError, DecodeError
from fastload.sources import EncodedFiles, Ragged, RaggedArray, Source, ValueArray, shapes_of
from fastload.sources.buffers import PathTable
from tests.backends import Contestant, contestants
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
        "keypoints": RaggedArray(Ragged.of([b.reshape(-1, 2, 2) for b in BOXES]), role="keypoints"),
        "labels": RaggedArray(Ragged.of(LABELS), role="instances"),
        "index": ValueArray(np.arange(SAMPLES)),
    }
    return {name: one for name, one in both.items() if masks or name != "mask"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(columns_of(tmp_path_factory.mktemp("joined")), "joined", "joined", "dict")


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


@pytest.mark.parametrize("by", [by_torchvision, by_opencv])
def test_a_mosaic_is_the_published_one(source: Source, by: Resize) -> None:
    transform = fastload.Mosaic(SIDE, mask_fill=7, antialias=by is by_torchvision)
    with fastload.create_loader(
        source, transform=v2.Compose([v2.ToImage(), transform]), shuffle=True, seed=4
    ) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    for number, batch in enumerate(batches):
        index = int(batch["index"][0])
        u = Draws(4, number // SAMPLES, np.array([index])).uniform(0, 6)[0]
        wanted, placed = mosaic(index, u, photo_of, by, 114)
        found = batch["image"][0].permute(1, 2, 0).numpy()
        assert np.abs(found.astype(int) - wanted).max() <= 2
        mask, _ = mosaic(index, u, mask_of, nearest, 7)
        assert np.array_equal(batch["mask"][0].numpy(), mask[:, :, 0])
        boxes, points, names = objects_of(placed)
        assert close(batch["boxes"][0], boxes)
        assert close(batch["keypoints"][0], points)
        assert batch["labels"][0].tolist() == names.tolist()
        assert batch["boxes"].offsets.tolist() == [0, len(names)]


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
    for name in ("boxes", "keypoints", "labels"):
        assert torch.equal(found[name].values.cpu(), wanted[name].values)
        assert torch.equal(found[name].offsets.cpu(), wanted[name].offsets)
    if "mask" in wanted:
        assert torch.equal(found["mask"].cpu(), wanted["mask"])
    assert (found["image"].cpu().int() - wanted["image"].int()).abs().max() <= 2


@contestants()
@pytest.mark.parametrize("mixed", [False, True], ids=["mosaic", "mixup"])
def test_all_backends_and_resumed_epochs_have_the_same_samples(
    contestant: Contestant, source: Source, unmasked: Source, mixed: bool, tmp_path: Path
) -> None:
    chain = [*CHAIN[:3], fastload.MixUp(p=0.5), *CHAIN[3:]] if mixed else CHAIN
    given = unmasked if mixed else source
    arguments: dict[str, Any] = {"transform": v2.Compose(chain), "shuffle": True, "seed": 8}
    if contestant.backend == "dali":
        with pytest.raises(ConfigurationError, match="several images .* backend 'dali' does not"):
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


def test_staged_draws() -> None:
    own, early = (Draws(seed, 1, np.arange(5), np.arange(5)) for seed in (3, 4))
    staged = StagedDraws(3, 1, own.indices, own.repeats, early=early, until=2)
    for draws in (staged, staged.take(slice(1, 3))):
        rows = slice(None) if draws is staged else slice(1, 3)
        for stream, wanted in ((1, early), (2, own)):
            assert np.array_equal(draws.uniform(stream, 3), wanted.uniform(stream, 3)[rows])
            assert np.array_equal(draws.integers(stream), wanted.integers(stream)[rows])
            inner = wanted.within(stream).uniform(0, 2)[rows]
            assert np.array_equal(draws.within(stream).uniform(0, 2), inner)
