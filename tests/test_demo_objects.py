"""`fastload demo` on a data set with boxes: a page of what the model will see, and the same objects
from every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fastload
from fastload.cli.app import app
from fastload.tools.demo import objects
from fastload.tools.demo.objects import open_objects
from tests.images import write_photo_folder
from tests.test_sources_detection import WRITERS, coco_document, write_coco


@pytest.fixture(autouse=True)
def two_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    every = fastload.available_backends()
    chosen = [status for status in every if status.name in ("torch", "turbojpeg")]
    monkeypatch.setattr(fastload, "available_backends", lambda: chosen)


def demo(folder: Path, page: Path) -> Any:
    arguments = ["demo", str(folder), "--page", str(page), "--device", "cpu"]
    return CliRunner().invoke(app, arguments)


@pytest.mark.whole
def test_a_page_and_a_comparison(tmp_path: Path) -> None:
    write_coco(tmp_path / "coco")
    done = demo(tmp_path / "coco", tmp_path / "seen.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "seen.html").read_text()
    assert page.count("data:image") == 5 * 4, "as stored, and in three epochs"
    assert "RandomHorizontalFlip" in page
    assert "<rect" in page
    assert "fox" in page
    assert "5 samples, 3 classes" in done.output
    assert "1 image without objects, served with empty rows" in done.output
    assert done.output.count("equal") == 2
    assert "DIFFERENT" not in done.output
    assert "fastload train coco-fasterrcnn --data coco" in done.output


@pytest.mark.whole
def test_other_objects_are_said_and_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_coco(tmp_path / "coco")
    found = objects._first_objects

    def moved(run: Any, backend: str) -> Any:
        seen = found(run, backend)
        if backend == "turbojpeg":
            seen.boxes[0] += 0.5
        return seen

    monkeypatch.setattr(objects, "_first_objects", moved)
    done = demo(tmp_path / "coco", tmp_path / "seen.html")
    assert done.exit_code == 1
    assert done.output.count("DIFFERENT") == 1


@pytest.mark.parametrize("format", WRITERS)
def test_data_with_boxes_are_recognised(format: str, tmp_path: Path) -> None:
    WRITERS[format](tmp_path)
    opened = open_objects(tmp_path)
    assert opened is not None
    assert len(opened.source) == (3 if format == "voc" else 5)
    boxes: Any = opened.source.values["boxes"]
    assert torch.from_numpy(boxes.array.values).ndim == 2


def test_class_folders_are_none_and_what_is_wrong_is_said(tmp_path: Path) -> None:
    write_photo_folder(tmp_path / "photos", classes=2, per_class=2)
    assert open_objects(tmp_path / "photos") is None
    assert open_objects(tmp_path / "nothing") is None
    document = coco_document()
    document["annotations"][2]["bbox"] = [10, 10, -5, 5]
    write_coco(tmp_path / "coco", document)
    done = demo(tmp_path / "coco", tmp_path / "seen.html")
    assert done.exit_code == 1
    assert "is reversed" in done.stderr
