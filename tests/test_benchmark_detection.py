"""`python -m benchmarks.detection`: both contestants give batches of the same objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fastload
from benchmarks import detection
from benchmarks import detection_yolo as yolo
from benchmarks.detection_ultralytics import as_yolo
from fastload.tools.measure.results import read_json
from tests.images import write_photo_folder


def test_the_folder_that_is_made(tmp_path: Path) -> None:
    photographs = write_photo_folder(tmp_path / "photos", classes=2, per_class=3)
    folder = detection.annotated(photographs, tmp_path / "coco", 4)
    source = fastload.open_source(folder, split="train").source
    boxes = source.values["boxes"]
    assert len(source) == 6
    assert boxes.array.lengths.tolist() == [4] * 6  # type: ignore[attr-defined]


@pytest.mark.whole
def test_a_short_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycocotools")
    monkeypatch.setattr(detection, "BATCH", 2)
    monkeypatch.setattr(detection, "LEAST", 8)
    monkeypatch.setattr(detection, "usable_cores", lambda: 1)
    photographs = write_photo_folder(tmp_path / "photos", classes=2, per_class=3)
    kept = tmp_path / "results.json"
    short = ["--rounds", "1", "--seconds", "0.1", "--json", str(kept)]
    detection.main(["--data", str(photographs), *short, "--presets", "fixed", "segmentation"])
    said = capsys.readouterr().out
    assert "DataLoader" in said
    assert "fastload, torchvision" in said
    assert "handed over share" in said
    rows = read_json(kept).measurements
    assert [row.mode for row in rows] == ["fixed", "fixed", "segmentation", "segmentation"]
    assert all(row.rounds for row in rows)


def test_the_folder_of_yolo_has_the_boxes_of_that_of_coco(tmp_path: Path) -> None:
    photographs = write_photo_folder(tmp_path / "photos", classes=2, per_class=2)
    coco = detection.annotated(photographs, tmp_path / "coco", 3)
    made = as_yolo(coco, tmp_path / "yolo")
    sources = [fastload.open_source(folder, split="train").source for folder in (coco, made)]
    for name, most in (("boxes", 1e-2), ("labels", 0)):
        wanted, found = (source.values[name].array.values for source in sources)  # type: ignore[attr-defined]
        np.testing.assert_allclose(found, wanted, atol=most)


@pytest.mark.slow
def test_the_pipeline_of_yolo_in_both_forms(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    photographs = write_photo_folder(tmp_path / "photos", classes=2, per_class=3)
    folder = detection.annotated(photographs, tmp_path / "coco", 4)
    image, target = yolo.WithOpenCV(folder)[3]
    assert image.shape == (3, 640, 640)
    images, targets = yolo.stacked([(image, target), (image, target)])
    assert images.dtype == torch.uint8
    assert targets.shape == (2 * len(target), 6)
    assert targets[:, 0].tolist() == [0.0] * len(target) + [1.0] * len(target)
    with fastload.create_loader(
        folder, batch_size=2, split="train", transform=yolo.ours(), collate_fn="yolo"
    ) as loader:
        ours, found = next(iter(loader))
    assert ours.shape == images.shape
    assert found.shape[1] == 6
    for rows in (targets, found):
        assert ((rows[:, 2:] >= 0) & (rows[:, 2:] <= 1)).all()
