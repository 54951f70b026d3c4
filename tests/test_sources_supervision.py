"""supervision's DetectionDataset, beside the samples that it gives itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import SourceError
from tests.test_sources_detection import coco_document, write_coco

logging.getLogger("matplotlib").setLevel(logging.WARNING)
sv: Any = pytest.importorskip("supervision", reason="pip install supervision")


def dataset(root: Path, *, masks: bool = False) -> Any:
    """As supervision reads COCO's format; the second image has no objects."""
    path = write_coco(root, coco_document())
    return sv.DetectionDataset.from_coco(str(root / "train2017"), path, force_masks=masks)


def test_samples_are_those_that_it_gives(tmp_path: Path) -> None:
    theirs = dataset(tmp_path)
    with fastload.create_loader(theirs, batch_size=1, collate_fn="torchvision") as loader:
        assert "supervision's DetectionDataset" in str(loader.explain())
        ours = [(images[0], targets[0]) for images, targets in loader]
    assert len(ours) == len(theirs)
    for (image, target), (_, pixels, found) in zip(ours, theirs, strict=True):
        wanted = torch.from_numpy(pixels[:, :, ::-1].copy()).permute(2, 0, 1)  # from BGR
        assert (image.float() - wanted.float()).abs().max() <= 3  # another JPEG decoder
        boxes = torch.from_numpy(found.xyxy).float().reshape(-1, 4)
        assert torch.allclose(target["boxes"], boxes, rtol=0, atol=1e-4)
        classes = [] if found.class_id is None else (found.class_id + 1).tolist()
        assert target["labels"].tolist() == classes
    source = fastload.open_source(theirs).source
    assert source.classes == tuple(theirs.classes)


def test_none_of_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = dataset(tmp_path)

    def refuse(*_: Any) -> Any:
        raise AssertionError("its own code")

    monkeypatch.setattr("cv2.imread", refuse)
    with fastload.create_loader(theirs, batch_size=1, transform=v2.Resize((24, 24))) as loader:
        assert sum(len(batch["boxes"].values) for batch in loader) == 7


def test_masks_and_numbers_of_the_objects(tmp_path: Path) -> None:
    theirs = dataset(tmp_path, masks=True)
    for one in theirs.annotations.values():
        one.confidence = np.linspace(0.5, 1, len(one.xyxy))
        one.data["area"] = np.arange(1.0, 1 + len(one.xyxy))
        one.data["other"] = np.array(["x"] * len(one.xyxy))
    opened = fastload.open_source(theirs)
    assert any("left out: masks of " in note for note in opened.notes)
    with fastload.create_loader(
        fastload.open_source(theirs, masks=True),
        batch_size=1,
        collate_fn="torchvision",
        transform=v2.Resize((40, 60)),
    ) as loader:
        images, targets = next(iter(loader))
    _, pixels, found = theirs[0]
    assert pixels.shape[:2] == images[0].shape[1:] == (40, 60)
    assert torch.equal(targets[0]["masks"], torch.from_numpy(np.asarray(found.mask)).byte())
    assert targets[0]["confidence"].tolist() == found.confidence.tolist()
    assert targets[0]["area"].tolist() == [1, 2]
    assert "other" not in targets[0]


def test_what_it_should_not_be_is_refused(tmp_path: Path) -> None:
    def broken(change: Any) -> Any:
        made = dataset(tmp_path)
        change(made.annotations[made.image_paths[0]])
        return made

    def box(one: Any, values: list[float]) -> None:
        one.xyxy = np.array([values, *one.xyxy[1:].tolist()])

    for change, message in (
        (lambda one: box(one, [9, 9, 5, 12]), r"0\.jpg: object 0: .* is reversed"),
        (lambda one: box(one, [np.nan, 9, 12, 12]), r"0\.jpg: object 0: .* not finite"),
        (lambda one: setattr(one, "class_id", None), r"0\.jpg: its annotation has no class_id"),
        (lambda one: setattr(one, "class_id", np.array([0, 7])), "object 1: class 7, .* 3 names"),
        (lambda one: setattr(one, "class_id", np.array([0])), "2 boxes and 1 in 'class_id'"),
    ):
        with pytest.raises(SourceError, match=message):
            fastload.open_source(broken(change))
    empty = fastload.open_source(broken(lambda one: box(one, [9, 9, 9, 12])))
    assert "left out: 1 box without area" in empty.notes

    class Mine(sv.DetectionDataset):  # type: ignore[misc]
        pass

    whole = dataset(tmp_path)
    with pytest.raises(SourceError, match="Mine: it is derived from supervision's"):
        fastload.open_source(Mine(whole.classes, whole.image_paths, whole.annotations))
    whole.__dict__["_images_in_memory"] = {"a": np.zeros((4, 4, 3))}
    with pytest.raises(SourceError, match="arrays in memory"):
        fastload.open_source(whole)
    lost = dataset(tmp_path)
    (tmp_path / "train2017" / "0.jpg").unlink()
    with pytest.raises(SourceError, match=r"0\.jpg is missing; add it"):
        fastload.open_source(lost)
