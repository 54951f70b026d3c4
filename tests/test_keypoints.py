"""Points that change places in mirrored pictures: a left eye is a left eye there, too. Beside what
torchvision's reference for keypoints does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, SourceError
from fastload.sources.keypoints import COCO_PERSON, pairs_of_names
from fastload.sources.kinds import kind_named
from tests.backends import Contestant, contestants
from tests.test_sources_detection import SIZES, coco_document, write_coco

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
        source, tmp_path, batch_size=5, transform=transform, collate="torchvision"
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
def test_what_a_file_does_not_say_is_said_to_be_unknown(
    names: Any, count: int, pairs: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_people(tmp_path, names, count)
    source = fastload.open_source(path).source
    kind: Any = source.values["keypoints"].kind
    assert kind.pairs == pairs
    said = "'keypoints': the points of an object keep their order in mirrored pictures"
    for transform in (v2.RandomHorizontalFlip(), v2.CenterCrop(24)):
        caplog.clear()
        with fastload.create_loader(source, batch_size=1, transform=transform) as loader:
            explained = str(loader.explain())
        mirrors = isinstance(transform, v2.RandomHorizontalFlip)
        assert (said in explained) == (said in caplog.text) == (pairs is None and mirrors)
        assert ("keypoint_pairs=[(1, 2)" in explained) == (pairs is None and mirrors)
    for given in ((), [(0, 1)]):
        caplog.clear()
        paired = fastload.open_source(path, keypoint_pairs=given).source
        assert paired.fingerprint != source.fingerprint
        with (
            caplog.at_level(logging.WARNING),
            fastload.create_loader(paired, batch_size=1, transform=v2.RandomHorizontalFlip()),
        ):
            assert said not in caplog.text


def test_pairs_that_are_none_are_refused(tmp_path: Path) -> None:
    path = write_people(tmp_path)
    for pairs in ([(1, 1)], [(1, 2), (2, 3)], [(1, 2, 3)], [1, 2], [(-1, 2)], [(0.5, 1)]):
        with pytest.raises(ConfigurationError, match="must be pairs of numbers of points"):
            fastload.open_source(path, keypoint_pairs=pairs)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"the pair \(3, 17\) names a point .* has 17, counted"):
        fastload.open_source(path, keypoint_pairs=[(1, 2), (3, 17)])
    with pytest.raises(ConfigurationError, match="has no keypoints"):
        fastload.open_source({"x": np.arange(4)}, keypoint_pairs=[(1, 2)])
    for role in ("keypoints:1,2", "keypoints:2", "keypoints:1-2,2-3", "keypoints:1-2,"):
        with pytest.raises((SourceError, ConfigurationError)):
            kind_named(role)
    with pytest.raises(SourceError, match="'boxes' have no settings"):
        kind_named("boxes:1-2")
