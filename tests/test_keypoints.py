"""Points that change places in mirrored pictures: a left eye is a left eye there, too. Beside what
torchvision's reference for keypoints does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets, tv_tensors
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, SourceError
from fastload.geometry.plan import Composition
from fastload.recipe import GeometryOperation, Recipe
from fastload.sources.keypoints import COCO_PERSON, pairs_of_names
from fastload.sources.kinds import kind_named
from tests.backends import Contestant, contestants
from tests.test_sources_detection import SIZES, coco_document, write_coco

try:
    import albumentations
except ImportError:
    albumentations = None

SIDES = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
NAMES = ["nose", *(f"{side}_{part}" for part in SIDES for side in ("left", "right"))]
"""As COCO's file has them."""


def write_people(root: Path, names: list[str] | None = NAMES, count: int = 17) -> str:
    """Every fox is a person with points in its box, every third of them not labelled."""
    document = coco_document()
    rng = np.random.default_rng(0)
    for category in document["categories"]:
        if category["id"] == 90:
            category |= {"name": "person"} | ({} if names is None else {"keypoints": names})
    for one in document["annotations"]:
        if one["category_id"] == 90:
            left, top, width, height = one["bbox"]
            points = np.zeros((count, 3))
            points[:, 0] = left + rng.uniform(0, width, count).round()
            points[:, 1] = top + rng.uniform(0, height, count).round()
            points[:, 2] = rng.integers(1, 3, count)
            points[2::3] = 0
            one["keypoints"] = points.reshape(-1).tolist()
    path = Path(write_coco(root, document))
    return str(path.rename(path.with_name("person_keypoints_train2017.json")))


def flipped(points: torch.Tensor, width: int) -> torch.Tensor:
    """`_flip_coco_person_keypoints` of torchvision's references, with its `width - x` as the kernel
    of `tv_tensors.KeyPoints` has it."""
    order = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]
    data = points[:, order].clone()
    data[..., 0] = width - 1 - data[..., 0]
    data[data[..., 2] == 0] = 0
    return data


@contestants()
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_mirrored_person_has_its_left_on_the_left(
    contestant: Contestant, p: float, tmp_path: Path
) -> None:
    write_people(tmp_path / "coco")
    source = fastload.open_source(tmp_path / "coco", split="train").source
    stored: Any = source.values["keypoints"]
    assert stored.kind.pairs == COCO_PERSON
    transform = v2.Compose([v2.CenterCrop(32), v2.RandomHorizontalFlip(p)])
    with contestant.create(
        source, tmp_path, batch_size=5, transform=transform, collate_fn="torchvision"
    ) as loader:
        ((_, targets),) = loader
    assert len(targets) == len(SIZES)
    for row, target in enumerate(targets):
        height, width = SIZES[row]
        wanted = torch.tensor(stored.array[row]).reshape(-1, 17, 3)
        wanted[..., 0] -= round((width - 32) / 2)
        wanted[..., 1] -= round((height - 32) / 2)
        wanted[wanted[..., 2] == 0] = 0
        wanted = flipped(wanted, 32) if p else wanted
        assert torch.equal(target["keypoints"].cpu(), wanted)


@pytest.mark.parametrize(
    ("steps", "mirrored"),
    [
        ([v2.RandomVerticalFlip(1.0)], True),
        ([v2.RandomVerticalFlip(1.0), v2.RandomHorizontalFlip(1.0)], False),
        ([v2.RandomHorizontalFlip(1.0), v2.RandomRotation((30, 30))], True),
        ([v2.RandomRotation((170, 170))], False),
        ([v2.RandomPerspective(0.4, p=1.0), v2.RandomVerticalFlip(1.0)], True),
        ([fastload.Letterbox(32), v2.RandomHorizontalFlip(1.0)], True),
        ([fastload.Mosaic(24), v2.RandomHorizontalFlip(1.0)], True),
    ],
)
def test_mirrored_by_both_axes_is_turned(steps: list[Any], mirrored: bool, tmp_path: Path) -> None:
    """The same points under two roles: in mirrored pictures they differ by the pairs."""
    points = np.arange(20.0, 36).reshape(2, 4, 2)
    arrays = {
        "image": np.zeros((2, 48, 56, 3), np.uint8),
        "boxes": fastload.Ragged.of([np.array([[10.0, 10, 40, 40]])] * 2),
        "keypoints": fastload.Ragged.of([points[:1], points[1:]]),
        "labels": fastload.Ragged.of([[1], [1]]),
    }
    found = []
    for pairs in ([(0, 2)], ()):
        opened = fastload.open_source(arrays, keypoint_pairs=pairs)
        with fastload.create_loader(
            opened.source, batch_size=2, transform=v2.Compose(steps), backend="turbojpeg", seed=3
        ) as loader:
            (batch,) = loader
        found.append(batch["keypoints"].values)
    order = [2, 1, 0, 3] if mirrored else [0, 1, 2, 3]
    assert torch.equal(found[0], found[1][:, order])


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (NAMES, COCO_PERSON),
        (["L_Eye", "R_Eye", "Nose"], ((0, 1),)),
        (["tail", "RightEar", "LeftEar"], ((1, 2),)),
        (["nose", "left eye", "right ear"], None),
        (["head", "tail"], None),
        ([], None),
    ],
)
def test_names_say_what_is_left_and_right(names: list[str], pairs: Any) -> None:
    assert pairs_of_names(names) == pairs


@pytest.mark.parametrize(
    ("names", "count", "pairs"),
    [(None, 17, COCO_PERSON), (None, 16, None), (NAMES[:5], 5, ((1, 2), (3, 4))), (NAMES, 5, None)],
)
def test_points_whose_sides_a_file_does_not_say_are_not_mirrored(
    names: Any, count: int, pairs: Any, tmp_path: Path
) -> None:
    path = write_people(tmp_path, names, count)
    source = fastload.open_source(path).source
    kind: Any = source.values["keypoints"].kind
    assert kind.pairs == pairs
    flip = v2.RandomHorizontalFlip()
    fastload.create_loader(source, batch_size=1, transform=v2.CenterCrop(24)).close()
    for transform in (flip, v2.RandomApply([flip])):
        if pairs is None:
            with pytest.raises(
                ConfigurationError, match=r"points of 'keypoints'.*_pairs=.* \[\] and none say"
            ):
                fastload.create_loader(source, batch_size=1, transform=transform)
        else:
            fastload.create_loader(source, batch_size=1, transform=transform).close()
    for given in ((), [], [(0, 1)]):
        paired = fastload.open_source(path, keypoint_pairs=given).source
        assert paired.fingerprint != source.fingerprint
        fastload.create_loader(paired, batch_size=1, transform=flip).close()


def posed(points: Any, **given: Any) -> Any:
    """Two images of 48 x 56, the first with two objects that have these points."""
    arrays = {
        "image": np.zeros((2, 48, 56, 3), np.uint8),
        "boxes": fastload.Ragged.of([np.array([[8.0, 4, 40, 36]] * 2), np.zeros((0, 4))]),
        "keypoints": fastload.Ragged.of([points, points[:0]]),
        "labels": fastload.Ragged.of([[1, 2], []]),
    }
    return fastload.open_source(arrays, **given).source


TWO_POINTS = np.array([[[8.0, 4, 0], [40, 36, 2]], [[10, 5, 1], [20, 30, 2]]])
FLIP = v2.RandomHorizontalFlip(1.0)


@pytest.mark.parametrize(
    ("points", "flipped"),
    [
        (TWO_POINTS[:, :1, :2], [[[47, 4]], [[45, 5]]]),
        (TWO_POINTS[:, 0, :2], [[47, 4], [45, 5]]),
        (TWO_POINTS[:, 0], [[47, 4, 0], [45, 5, 1]]),
    ],
)
def test_a_single_point_of_each_object_needs_no_pairs(points: Any, flipped: Any) -> None:
    source = posed(points)
    with fastload.create_loader(source, batch_size=2, transform=FLIP) as loader:
        (batch,) = loader
    assert batch["keypoints"].values.tolist() == flipped


@pytest.mark.parametrize("other", [FLIP, v2.RandomVerticalFlip(1.0)])
def test_two_mirrorings_that_are_certain_need_no_pairs(other: Any) -> None:
    both = v2.Compose([FLIP, v2.CenterCrop((48, 56)), other])
    with fastload.create_loader(posed(TWO_POINTS), batch_size=2, transform=both) as loader:
        (batch,) = loader
    canvas: Any = {"canvas_size": (48, 56)}
    wanted = both(tv_tensors.KeyPoints(torch.from_numpy(TWO_POINTS[..., :2]), **canvas))
    assert torch.equal(batch["keypoints"].values[..., :2], wanted.as_subclass(torch.Tensor))


def test_without_pairs_points_are_those_of_torchvision() -> None:
    """Those that are not labelled, too."""
    with fastload.create_loader(
        posed(TWO_POINTS, keypoint_pairs=[]), batch_size=2, transform=FLIP
    ) as loader:
        (batch,) = loader
    canvas: Any = {"canvas_size": (48, 56)}
    wanted = FLIP(tv_tensors.KeyPoints(torch.from_numpy(TWO_POINTS[..., :2]), **canvas))
    assert torch.equal(batch["keypoints"].values[..., :2], wanted.as_subclass(torch.Tensor))
    assert np.array_equal(batch["keypoints"].values[..., 2], TWO_POINTS[..., 2])


@dataclass(frozen=True)
class Upside(GeometryOperation):
    """Mirrors without saying so."""

    cuts = False

    def compose(self, composition: Composition, uniforms: Any) -> None:
        composition.flip(np.ones(len(composition.extent), dtype=np.bool_), 0)


def test_whatever_mirrors_is_refused() -> None:
    unknown, none = posed(TWO_POINTS), posed(TWO_POINTS, keypoint_pairs=[])
    some: list[Any] = [
        v2.RandomApply([v2.ColorJitter(0.1), v2.RandomVerticalFlip()]),
        v2.Compose([fastload.Mosaic(24), FLIP]),
        v2.Compose([FLIP, v2.RandomVerticalFlip(1.0), FLIP]),
        v2.Compose([FLIP, v2.RandomHorizontalFlip(0.99)]),
    ]
    if albumentations is not None:
        flip, other = albumentations.HorizontalFlip(p=1.0), albumentations.ToGray(p=1.0)
        some += [
            albumentations.Compose([one], bbox_params=albumentations.BboxParams("pascal_voc"))
            for one in (
                albumentations.OneOf([other, flip]),
                albumentations.SomeOf([other, flip], n=1, replace=False),
                albumentations.Sequential([other, albumentations.OneOf([other, flip])]),
                albumentations.Transpose(),
            )
        ]
    for transform in some:
        fastload.create_loader(none, batch_size=1, transform=transform).close()
        with pytest.raises(ConfigurationError, match=r"points of 'keypoints' are left and right"):
            fastload.create_loader(unknown, batch_size=1, transform=transform)
    views = fastload.Views(v2.CenterCrop(24), v2.Compose([FLIP, v2.CenterCrop(24)]))
    assert any(op.exchanges_sides for op in Recipe.from_transform(views).ops)
    for transform in (v2.RandomHorizontalFlip(0.0), v2.RandomRotation(20), v2.RandomAffine(9)):
        fastload.create_loader(unknown, batch_size=1, transform=transform).close()
    recipe = Recipe((Upside(),))
    with fastload.create_loader(none, batch_size=2, transform=recipe) as loader:
        assert next(iter(loader))["keypoints"].values[0, 0].tolist() == [8, 43, 0]
    with (
        fastload.create_loader(unknown, batch_size=2, transform=recipe) as loader,
        pytest.raises(ConfigurationError, match=r"has mirrored an image.*Give the pairs"),
    ):
        next(iter(loader))


def test_a_dataloader_gives_what_it_gave(tmp_path: Path) -> None:
    """Torchvision moves points and exchanges none, and nothing is asked for."""
    pytest.importorskip("pycocotools")
    write_people(tmp_path, None, 16)
    annotated = datasets.CocoDetection(
        str(tmp_path / "train2017"),
        str(tmp_path / "annotations" / "person_keypoints_train2017.json"),
        transforms=v2.Compose([v2.ToImage(), FLIP]),
    )
    wrapped = datasets.wrap_dataset_for_transforms_v2(annotated, target_keys=["boxes", "labels"])
    for dataset in (wrapped, Posed()):
        theirs: Any = torch.utils.data.DataLoader(dataset, 2, collate_fn=_as_they_are)
        with fastload.from_dataloader(theirs) as ours:
            for batch, wanted in zip(ours, theirs, strict=True):
                for (image, target), (other, its) in zip(batch, wanted, strict=True):
                    assert torch.equal(image, other)
                    assert target.keys() == its.keys()
                    assert all(np.array_equal(target[name], its[name]) for name in its)


class Posed(torch.utils.data.Dataset[Any]):
    """Samples with torchvision's points, mirrored by its transform."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        points: Any = tv_tensors.KeyPoints(TWO_POINTS[..., :2], canvas_size=(48, 56))  # type: ignore[call-overload]
        image = tv_tensors.Image(torch.full((3, 48, 56), index, dtype=torch.uint8))
        return FLIP(image, {"keypoints": points})


def _as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def test_pairs_that_are_none_are_refused(tmp_path: Path) -> None:
    path = write_people(tmp_path)
    for pairs in ([(1, 1)], [(1, 2), (2, 3)], [(1, 2, 3)], [1, 2], [(-1, 2)], [(0.5, 1)]):
        with pytest.raises(ConfigurationError, match="must be pairs of numbers of points"):
            fastload.open_source(path, keypoint_pairs=pairs)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"the pair \(3, 17\) names a point .* has 17, counted"):
        fastload.open_source(path, keypoint_pairs=[(1, 2), (3, 17)])
    with pytest.raises(ConfigurationError, match="has no keypoints"):
        fastload.open_source({"x": np.arange(4)}, keypoint_pairs=[(1, 2)])
    for setting in ("1,2", "2", "1-2,2-3", "1-2,", "", ",", "none,1-2", "1-2-3", "01-2", "1--2"):
        with pytest.raises(SourceError, match=f"role 'keypoints:{setting}'.*[Mm]ust be"):
            kind_named(f"keypoints:{setting}")
    for setting in ("1-2", ""):
        with pytest.raises(SourceError, match="'boxes' have no settings"):
            kind_named(f"boxes:{setting}")
