"""Pipelines for keypoints of persons: a sample for each object of an image, the affine map about
its box, and heat maps."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import pipelines
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.draws import Draws
from fastload.errors import ConfigurationError, SourceError
from fastload.pipelines.normalised import MEAN, STD
from fastload.recipe.transforms import TopDownAffine
from tests.images import photo, png
from tests.samples import assert_resumes_equal, by_label

SIZES = [(60, 80), (90, 50), (64, 64)]
"""Height, width."""
PAIRS = [(1, 2), (3, 4)]
NAMES = ["nose", "left_eye", "right_eye", "left_knee", "right_knee"]
PERSONS = [
    # image, left, top, width, height, points, crowd
    (0, (10.0, 5, 30, 40), [(12, 8, 2), (20, 10, 1), (25, 12, 2), (30, 40, 2), (15, 44, 2)], 0),
    (0, (50.0, 20, 60, 90), [(60, 30, 2), (0, 0, 0), (70, 35, 2), (0, 0, 0), (0, 0, 0)], 0),
    (1, (5.0, 5, 20, 20), [(0, 0, 0)] * 5, 0),
    (1, (-4.0, 30, 40, 50), [(2, 40, 1), (30, 42, 2), (20, 70, 2), (10, 75, 2), (28, 60, 2)], 0),
    (2, (0.0, 0, 64, 64), [(5, 5, 2)] * 5, 1),
]
POSES = [0, 1, 3]
"""Those that are no crowd and have a labelled point."""


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    (folder / "train2017").mkdir()
    for number, size in enumerate(SIZES):
        (folder / "train2017" / f"{number}.png").write_bytes(png(photo(*size, seed=number)))
    images = [
        {"id": number, "file_name": f"{number}.png", "height": height, "width": width}
        for number, (height, width) in enumerate(SIZES)
    ]
    persons = [
        {
            "id": 100 + number,
            "image_id": image,
            "category_id": 1,
            "bbox": list(box),
            "area": box[2] * box[3],
            "iscrowd": crowd,
            "segmentation": [[box[0], box[1], box[0] + box[2], box[1], box[0], box[1] + box[3]]],
            "keypoints": [value for point in points for value in point],
        }
        for number, (image, box, points, crowd) in enumerate(PERSONS)
    ]
    kinds = [{"id": 1, "name": "person", "keypoints": NAMES}]
    (folder / "annotations").mkdir()
    (folder / "annotations" / "person_keypoints_train2017.json").write_text(
        json.dumps({"images": images, "annotations": persons, "categories": kinds})
    )
    return folder


def poses(coco: Path) -> fastload.sources.Opened:
    return fastload.open_source(coco, split="train", samples="poses")


# -- A sample for each object ---------------------------------------------------------------------


def test_a_sample_for_each_object(coco: Path) -> None:
    opened = fastload.open_source(coco, split="train", samples="objects", masks=True)
    assert len(opened.source) == len(PERSONS)
    assert "a sample is one of 5 objects of 3 images" in opened.notes
    transform = v2.Compose([v2.Resize((30, 40)), v2.ToImage()])
    with fastload.create_loader(opened, 5, transform=transform) as loader:
        (batch,) = loader
    assert batch["ids"].tolist() == [100, 101, 102, 103, 104]
    assert batch["image_id"].tolist() == [0, 0, 1, 1, 2]
    assert batch["keypoints"].shape == (5, 5, 3)
    assert batch["labels"].tolist() == [0] * 5
    assert batch["masks"].lengths.tolist() == [1] * 5
    for row, (image, (left, top, w, h), _, _) in enumerate(PERSONS):
        height, width = SIZES[image]
        wanted = np.array([left, top, left + w, top + h]) * np.tile([40 / width, 30 / height], 2)
        assert np.allclose(batch["boxes"][row], wanted, atol=1e-4)
        same = [other for other, one in enumerate(PERSONS) if one[0] == image]
        assert all(torch.equal(batch["image"][row], batch["image"][other]) for other in same)


def test_poses_are_no_crowds_and_have_a_labelled_point(coco: Path) -> None:
    opened = poses(coco)
    assert opened.source.values["ids"].at(np.arange(3)).tolist() == [100 + n for n in POSES]
    assert any("left out: 1 crowd" in note for note in opened.notes)
    assert any("1 object without a labelled keypoint" in note for note in opened.notes)
    objects = fastload.open_source(coco, split="train", samples="objects").source
    assert len({opened.source.fingerprint, objects.fingerprint}) == 2


def test_poses_have_an_area() -> None:
    data = {
        "image": np.zeros((1, 8, 8, 3), np.uint8),
        "boxes": fastload.Ragged.of([[[0.0, 0, 4, 4], [1.0, 1, 4, 4]]]),
        "area": fastload.Ragged.of([[0.0, 9.0]]),
        "keypoints": fastload.Ragged.of([np.ones((2, 1, 3))]),
    }
    opened = fastload.open_source(data, samples="poses")
    assert any("1 object without area" in note for note in opened.notes)
    with fastload.create_loader(opened, 1, transform=v2.ToImage()) as loader:
        assert [batch["boxes"].tolist() for batch in loader] == [[[1, 1, 4, 4]]]


def test_samples_of_objects_resume(coco: Path) -> None:
    def create() -> Any:
        return fastload.create_loader(
            poses(coco),
            2,
            transform=pipelines.hrnet((24, 32), upper_body_ids=(0, 1, 2)),
            shuffle=True,
            seed=4,
            collate_fn=fastload.CollateColumns(
                lambda columns: {"image": columns["image"], "label": columns["ids"]}
            ),
        )

    with create() as loader:
        everything = by_label(loader)
    assert sorted(everything) == [100 + number for number in POSES]
    assert_resumes_equal(create, everything)


def test_ranks_and_mixes_have_the_same_samples(coco: Path) -> None:
    transform = pipelines.hrnet((24, 32), upper_body_ids=(0, 1, 2))

    def served(data: Any, **given: Any) -> dict[int, Any]:
        with fastload.create_loader(data, 2, transform=transform, seed=4, **given) as loader:
            return {
                int(name): (points, image)
                for batch in loader
                for name, points, image in zip(
                    batch["ids"], batch["keypoints"], batch["image"], strict=True
                )
            }

    whole = served(poses(coco))
    ranks = [served(poses(coco), shuffle=True, shard=fastload.Shard(n, 2)) for n in range(2)]
    assert ranks[0].keys() | ranks[1].keys() == whole.keys()
    for found in (*ranks, served(fastload.mix({"first": poses(coco)}))):
        for name, parts in found.items():
            assert all(torch.equal(a, b) for a, b in zip(parts, whole[name], strict=True))
    both = fastload.mix({"one": poses(coco), "other": poses(coco)})
    assert served(both).keys() == whole.keys()


def test_images_without_objects_are_no_samples() -> None:
    boxes: list[list[list[float]]]
    boxes = [[], [[1.0, 1, 5, 6], [2.0, 2, 9, 9]], [], [[3.0, 3, 9, 9]]]
    points = [np.full((len(one), 2, 3), 2.0) for one in boxes]
    points[1][0, :, 2] = 0  # no pose
    data: dict[str, Any] = {
        "image": np.stack([photo(20, 30, seed=number) for number in range(4)]),
        "boxes": fastload.Ragged.of([np.array(one).reshape(-1, 4) for one in boxes]),
        "keypoints": fastload.Ragged.of(points),
        "tag": np.arange(4),
    }
    every = [one for image in boxes for one in image]
    cases: list[Any] = [("objects", [1, 1, 3], every), ("poses", [1, 3], every[1:])]
    for samples, images, wanted in cases:
        opened = fastload.open_source(data, samples=samples)
        with fastload.create_loader(opened, 3, transform=v2.ToImage()) as loader:
            (batch,) = loader
        assert batch["tag"].tolist() == images
        assert batch["boxes"].tolist() == wanted
        pixels = torch.from_numpy(data["image"][images]).permute(0, 3, 1, 2)
        assert torch.equal(batch["image"], pixels)


def test_objects_of_images_that_are_turned_are_refused(coco: Path) -> None:
    """It is not known whether boxes are of the picture before or after that."""
    options = TurboJpegOptions(exif_orientation=True)
    with pytest.raises(ConfigurationError, match="'boxes', 'keypoints'.* before or after that"):
        fastload.create_loader(
            poses(coco),
            2,
            transform=pipelines.hrnet_eval(),
            backend="turbojpeg",
            options=options,
        )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"image": np.zeros((2, 8, 8, 3), np.uint8)}, "has no objects in rows of variable length"),
        (
            {
                "image": np.zeros((1, 8, 8, 3), np.uint8),
                "boxes": fastload.Ragged.of([[[0.0, 0, 4, 4]]]),
            },
            r"has no keypoints \(N, K, 3\) of objects",
        ),
    ],
)
def test_data_without_objects_or_points_are_refused(given: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        fastload.open_source(given, samples="poses")


def test_several_columns_of_boxes_or_keypoints_are_ambiguous() -> None:
    boxes = fastload.Ragged.of([[[0.0, 0, 4, 4], [1.0, 1, 4, 4]]])
    points = fastload.Ragged.of([np.ones((2, 1, 3))])
    data = {
        "image": np.zeros((1, 8, 8, 3), np.uint8),
        "boxes": boxes,
        "visible": boxes,
        "keypoints": points,
        "others": points,
    }
    roles = {"visible": "boxes", "others": "keypoints"}
    with pytest.raises(ConfigurationError, match=r"keypoints .*\(keypoints, others\).*'unmoved'"):
        fastload.open_source(data, roles=roles, samples="poses")
    objects = fastload.open_source(data, roles=roles, samples="objects")  # here none of them counts
    transform = v2.Compose([TopDownAffine((8, 8)), v2.ToImage()])
    with pytest.raises(ConfigurationError, match=r"boxes of .*\(boxes, visible\).*'unmoved'"):
        fastload.create_loader(objects, 1, transform=transform)
    roles["visible"] = "unmoved"
    objects = fastload.open_source(data, roles=roles, samples="objects")
    with pytest.raises(ConfigurationError, match=r"keypoints of .*\(keypoints, others\)"):
        fastload.create_loader(objects, 1, transform=transform)
    roles["others"] = "unmoved"  # the remedy
    poses = fastload.open_source(data, roles=roles, samples="poses")
    with fastload.create_loader(poses, 2, transform=transform) as loader:
        (batch,) = loader
    assert batch["boxes"].shape == (2, 4)


def test_other_samples_are_refused(coco: Path) -> None:
    with pytest.raises(ConfigurationError, match="samples='people': must be 'images'"):
        fastload.open_source(coco, split="train", samples="people")  # type: ignore[arg-type]
    crowds = {
        "image": np.zeros((1, 8, 8, 3), np.uint8),
        "boxes": fastload.Ragged.of([[[0.0, 0, 4, 4]]]),
        "keypoints": fastload.Ragged.of([[[[1.0, 1, 0]]]]),
    }
    with pytest.raises(SourceError, match="it has none .*1 object without a labelled keypoint"):
        fastload.open_source(crowds, samples="poses")


# -- The affine map -------------------------------------------------------------------------------


def matrix_of(
    person: int, numbers: np.ndarray, size: tuple[int, int], *, train: bool, vitpose: bool
) -> tuple[np.ndarray, bool]:
    """(2, 3): HRNet's or mmpose's matrix, between centres of pixels, of one sample by their
    formulas, and whether it is mirrored. `size`: width, height."""
    normal = NormalDist().inv_cdf
    image, (left, top, w, h), points, _ = PERSONS[person]
    height, width = SIZES[image]
    x1, y1 = max(left, 0), max(top, 0)
    x2, y2 = min(width - 1, x1 + max(0, w - 1)), min(height - 1, y1 + max(0, h - 1))
    w, h, ratio, factor = x2 - x1, y2 - y1, size[0] / size[1], 1.25
    cx, cy = x1 + w / 2, y1 + h / 2
    if train and vitpose and numbers[6] < 0.3:
        cx, cy = cx + 0.4 * (numbers[7] - 0.5) * w, cy + 0.4 * (numbers[8] - 0.5) * h
    seen = [(number, point) for number, point in enumerate(points) if point[2] > 0]
    if train and len(seen) > 2 and numbers[0] < 0.3:
        upper = [point for number, point in seen if number < 3]
        lower = [point for number, point in seen if number >= 3]
        if normal(numbers[1]) < 0.5 and len(upper) > 2:
            chosen = upper
        else:
            chosen = lower if len(lower) > 2 else upper
        if len(chosen) >= 2:
            xs, ys = [point[0] for point in chosen], [point[1] for point in chosen]
            cx, cy = sum(xs) / len(xs), sum(ys) / len(ys)
            w, h, factor = max(xs) - min(xs), max(ys) - min(ys), 1.5
    w, h = max(w, h * ratio) * factor, max(h, w / ratio) * factor
    angle, mirrored = 0.0, False
    if train:
        spread, degrees = (0.5, 40) if vitpose else (0.35, 45)
        further = min(max(normal(numbers[2]) * spread + 1, 1 - spread), 1 + spread)
        w, h = w * further, h * further
        if numbers[3] <= 0.6:
            angle = min(max(normal(numbers[4]) * degrees, -2 * degrees), 2 * degrees)
        mirrored = bool(numbers[5] < 0.5)
    if mirrored:
        cx = width - 1 - cx
    sin, cos = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    if vitpose:
        sx, sy = (size[0] - 1) / w, (size[1] - 1) / h
        turn = np.array([[cos * sx, -sin * sx], [sin * sy, cos * sy]])
        middle = np.array([size[0] - 1, size[1] - 1]) / 2
    else:
        turn = np.array([[cos, sin], [-sin, cos]]) * size[0] / w
        middle = np.array(size) / 2
    made = np.column_stack([turn, middle - turn @ [cx, cy]])
    if mirrored:
        made = made @ np.array([[-1, 0, width - 1], [0, 1, 0], [0, 0, 1]])
    return made, mirrored


def shown_by(matrix: np.ndarray, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(height, width, 3): interpolated between four pixels, 0 outside."""
    whole = np.vstack([matrix, [0, 0, 1]])
    xs, ys = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    places = np.linalg.inv(whole) @ np.stack([xs, ys, np.ones_like(xs)]).reshape(3, -1)
    padded = np.pad(pixels.astype(float), ((1, 1), (1, 1), (0, 0)))
    result = np.zeros((places.shape[1], 3))
    low = np.floor(places[:2]).astype(int)
    part = places[:2] - low
    for right in (0, 1):
        for down in (0, 1):
            x = np.clip(low[0] + right + 1, 0, padded.shape[1] - 1)
            y = np.clip(low[1] + down + 1, 0, padded.shape[0] - 1)
            weight = (part[0] if right else 1 - part[0]) * (part[1] if down else 1 - part[1])
            result += padded[y, x] * weight[:, None]
    return result.reshape(size[1], size[0], 3)


SIZE = 36, 48


def transform_of(*, train: bool, vitpose: bool) -> Any:
    """With half bodies of these five points."""
    if not train:
        return (pipelines.vitpose_eval if vitpose else pipelines.hrnet_eval)(SIZE)
    make = pipelines.vitpose if vitpose else pipelines.hrnet
    return make(SIZE, num_joints_half_body=2, upper_body_ids=(0, 1, 2))


@pytest.mark.parametrize("vitpose", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_images_and_points_are_where_the_formulas_put_them(
    coco: Path, train: bool, vitpose: bool
) -> None:
    transform, met = transform_of(train=train, vitpose=vitpose), set[Any]()
    with fastload.create_loader(poses(coco), 3, transform=transform, seed=7) as loader:
        for epoch in range(40 if train else 1):
            (batch,) = loader
            numbers = Draws(7, epoch, np.arange(3)).uniform(0, 9)
            mean, std = (torch.tensor(one)[:, None, None] for one in (MEAN, STD))
            for row, person in enumerate(POSES):
                matrix, mirrored = matrix_of(
                    person, numbers[row], SIZE, train=train, vitpose=vitpose
                )
                image, _, points, _ = PERSONS[person]
                wanted = np.array(points, dtype=float)
                wanted[:, :2] = wanted[:, :2] @ matrix[:, :2].T + matrix[:, 2]
                if mirrored:
                    wanted = wanted[[0, 2, 1, 4, 3]]
                seen = wanted[:, 2] > 0
                found = batch["keypoints"][row].numpy()
                assert np.array_equal(found[:, 2], wanted[:, 2])
                assert np.abs(found - wanted)[seen].max() < 1e-3
                pixels = shown_by(matrix, photo(*SIZES[image], seed=image), SIZE)
                away = (batch["image"][row] * std + mean).permute(1, 2, 0).numpy() * 255 - pixels
                assert np.abs(away).mean() < 1
                assert np.abs(away).max() < 4
                met.add((mirrored, numbers[row, 0] < 0.3, numbers[row, 3] <= 0.6))
    assert len(met) == (8 if train else 1 + (len(met) > 1))


def test_boxes_follow(coco: Path) -> None:
    """Of the first person, whose 30 by 40 pixels are counted from centre to centre."""
    transform = v2.Compose([TopDownAffine((48, 36), padding=2.0), v2.ToImage()])
    with fastload.create_loader(poses(coco), 1, transform=transform) as loader:
        box = next(iter(loader))["boxes"][0].numpy()
    scale = 48 / (39 * 2.0)
    start = np.array([10.0, 5]) + 0.5  # from the corner to the centre of the first pixel
    middle = start + np.array([14.5, 19.5])
    wanted = [(np.array(c) - middle) * scale + [18.5, 24.5] for c in ((10, 5), (40, 45))]
    assert np.allclose(box, np.concatenate(wanted), atol=1e-3)


def test_masks_follow(coco: Path) -> None:
    """The first is a triangle that reaches to three corners of its box."""
    opened = fastload.open_source(coco, split="train", samples="poses", masks=True)
    with fastload.create_loader(opened, 3, transform=pipelines.hrnet_eval(SIZE)) as loader:
        (batch,) = loader
    assert batch["masks"].lengths.tolist() == [1, 1, 1]
    mask, box = batch["masks"].values[0].numpy(), batch["boxes"][0].numpy()
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    around = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    np.testing.assert_allclose(around, box, atol=1.5)


@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
def test_backends_make_the_same(coco: Path, backend: str) -> None:
    made = []
    for one in (backend, "auto"):
        with fastload.create_loader(
            poses(coco), 3, transform=transform_of(train=True, vitpose=False), seed=1, backend=one
        ) as loader:
            (batch,) = loader
        made.append(batch)
    assert torch.equal(made[0]["keypoints"], made[1]["keypoints"])
    assert (made[0]["image"] - made[1]["image"]).abs().mean() < 0.02


def test_a_degenerate_box_is_shown(coco: Path) -> None:
    data = {
        "image": np.full((1, 20, 20, 3), 9, np.uint8),
        "boxes": np.array([[4.0, 4, 4.5, 4.5]]),
        "keypoints": np.zeros((1, 5, 3)),
    }
    with fastload.create_loader(data, 1, transform=pipelines.hrnet_eval((12, 16))) as loader:
        batch = next(iter(loader))
    assert batch["image"].isfinite().all()


def test_what_it_is_not_for_is_refused(coco: Path) -> None:
    images = fastload.open_source(coco, split="train")
    with pytest.raises(ConfigurationError, match=r"one object each.*samples=\"objects\""):
        fastload.create_loader(images, 2, transform=pipelines.hrnet())
    arrays = {"image": np.zeros((2, 8, 8, 3), np.uint8), "label": np.zeros(2, np.int64)}
    with pytest.raises(ConfigurationError, match=r"one object each, with its box"):
        fastload.create_loader(arrays, 2, transform=pipelines.vitpose_eval())
    with pytest.raises(
        ConfigurationError, match="half bodies of COCO's 17 keypoints.* 5 keypoints"
    ):
        fastload.create_loader(poses(coco), 2, transform=pipelines.hrnet())
    beyond = pipelines.hrnet(upper_body_ids=(0, 5))
    with pytest.raises(ConfigurationError, match=r"half bodies by the keypoints \(0, 5\)"):
        fastload.create_loader(poses(coco), 2, transform=beyond)
    unknown = {
        "image": np.zeros((1, 8, 8, 3), np.uint8),
        "boxes": np.array([[0.0, 0, 4, 4]]),
        "keypoints": np.ones((1, 5, 3)),
    }
    transform = pipelines.hrnet(prob_half_body=0)
    with pytest.raises(ConfigurationError, match="which points of 'keypoints' are left and right"):
        fastload.create_loader(unknown, 1, transform=transform)
    with pytest.raises(ConfigurationError, match="works on the boxes of a loader's source"):
        transform(torch.zeros(3, 8, 8))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pipelines.hrnet((192,)), r"image_size: must be \(width, height\)"),
        (lambda: pipelines.hrnet(scale_factor=1.0), r"scale=1.0\) must be from 0 to"),
        (lambda: pipelines.hrnet(prob_half_body=2), "prob_half_body: must be a probability"),
        (lambda: pipelines.hrnet(num_joints_half_body=-1), "num_joints_half_body: must be"),
        (lambda: pipelines.hrnet(rotation=3), "rotation"),
        (lambda: pipelines.vitpose(flip_prob=-1), "flip_prob: must be a probability"),
        (lambda: pipelines.vitpose((1, 256)), "two pixels or more"),
        (lambda: pipelines.hrnet_batches(sigma=0), "sigma: must be an int of at least 1"),
        (lambda: pipelines.vitpose_batches(heatmap_size=(1, 64)), "heatmap_size: must be"),
    ],
)
def test_bad_parameters_are_refused(make: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make()


# -- Heat maps ------------------------------------------------------------------------------------


def map_of(
    point: tuple[float, float], image: tuple[int, int], size: tuple[int, int], sigma: int, udp: bool
) -> tuple[np.ndarray, bool]:
    """The map of one point by the formulas, pixel by pixel, and whether it is near enough."""
    less = 1 if udp else 0
    places = [p * (s - less) / (i - less) for p, s, i in zip(point, size, image, strict=True)]
    nearest = [int(place + 0.5) for place in places]
    made, reach = np.zeros(size[::-1]), 3 * sigma
    for near, extent in zip(nearest, size, strict=True):
        if near - reach >= extent or near + reach + 1 < 0:
            return made, False
    about = places if udp else nearest
    for y in range(size[1]):
        for x in range(size[0]):
            if abs(x - nearest[0]) <= reach and abs(y - nearest[1]) <= reach:
                away = (x - about[0]) ** 2 + (y - about[1]) ** 2
                made[y, x] = math.exp(-away / (2 * sigma**2))
    return made, True


@pytest.mark.parametrize("udp", [False, True])
@pytest.mark.parametrize("sigma", [1, 2])
def test_heat_maps_are_those_of_the_formulas(udp: bool, sigma: int) -> None:
    image, size = (96, 128), (24, 32)
    random = np.random.default_rng(2)
    points = np.concatenate(
        [random.uniform(-40, 170, (6, 17, 2)), random.integers(0, 3, (6, 17, 1))], axis=2
    )
    points[0, 0], points[0, 1] = (50.0, 60, 2), (-30.0, 10, 2)
    make = pipelines.vitpose_batches if udp else pipelines.hrnet_batches
    batch = {
        "image": torch.zeros(6, 3, 8, 8),
        "keypoints": torch.tensor(points, dtype=torch.float32),
        "ids": torch.arange(6),
    }
    made: Any = pickle.loads(pickle.dumps(make(image, size, sigma=sigma)))(batch)
    target, weight = (made["target"], made["target_weight"]) if udp else made[1:3]
    rest = made["img_metas"] if udp else made[3]
    assert sorted(rest) == ["ids", "keypoints"]
    assert target.dtype == weight.dtype == torch.float32
    assert target.shape == (6, 17, 32, 24)
    assert weight.shape == (6, 17, 1)
    for row in range(6):
        for number in range(17):
            x, y, seen = points[row, number]
            wanted, near = map_of((x, y), image, size, sigma, udp)
            assert weight[row, number, 0] == float(seen > 0 and near)
            wanted = wanted if seen > 0 and near else np.zeros_like(wanted)
            assert np.abs(target[row, number].numpy() - wanted).max() < 1e-5


def test_weights_of_joints() -> None:
    batch = {"image": torch.zeros(1, 3, 8, 8), "keypoints": torch.full((1, 17, 3), 20.0)}
    _, _, weight, _ = pipelines.hrnet_batches(use_different_joints_weight=True)(batch)
    assert weight[0, :, 0].tolist() == pytest.approx(
        [1, 1, 1, 1, 1, 1, 1, 1.2, 1.2, 1.5, 1.5, 1, 1, 1.2, 1.2, 1.5, 1.5]
    )
    few = {**batch, "keypoints": torch.ones(1, 5, 3)}
    with pytest.raises(ConfigurationError, match="17 weights, and an object 5 keypoints"):
        pipelines.vitpose_batches(use_different_joint_weights=True)(few)
    with pytest.raises(ConfigurationError, match=r"columns 'image' and 'keypoints'.*poses"):
        pipelines.hrnet_batches()([torch.zeros(1, 3, 8, 8)])


def test_a_whole_loader(coco: Path) -> None:
    transform = transform_of(train=True, vitpose=False)
    batches = pipelines.hrnet_batches(SIZE, (9, 12), sigma=1)
    with fastload.create_loader(
        poses(coco), 2, transform=transform, batch_transform=batches, shuffle=True, drop_last=True
    ) as loader:
        images, target, weight, meta = next(iter(loader))
        assert "worker" not in str(loader.explain()).split("transforms")[1].split("\n\n")[0]
    assert images.shape == (2, 3, 48, 36)
    assert target.shape == (2, 5, 12, 9)
    assert ((target.amax((2, 3)) > 0) <= (weight[..., 0] > 0)).all()
    assert {"boxes", "keypoints", "ids", "image_id"} <= set(meta)
