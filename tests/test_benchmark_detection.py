"""`python -m benchmarks.detection`: both contestants give batches of the same objects."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastload
from benchmarks import detection
from tests.images import write_photo_folder


def test_the_folder_that_is_made(tmp_path: Path) -> None:
    photographs = write_photo_folder(tmp_path / "photos", classes=2, per_class=3)
    folder = detection.annotated(photographs, tmp_path / "coco", 4)
    source = fastload.open_source(folder, split="train").source
    boxes = source.values["boxes"]
    assert len(source) == 6
    assert boxes.array.lengths.tolist() == [4] * 6  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_short_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycocotools")
    monkeypatch.setattr(detection, "BATCH", 2)
    monkeypatch.setattr(detection, "usable_cores", lambda: 1)
    photographs = write_photo_folder(tmp_path / "photos", classes=2, per_class=3)
    short = ["--rounds", "1", "--seconds", "0.1", "--presets", "fixed"]
    detection.main(["--data", str(photographs), *short])
    said = capsys.readouterr().out
    assert "DataLoader" in said
    assert "fastload, torchvision" in said
    assert "handed over share" in said
