"""`fastload look`: boxes, outlines, points and masks of augmented samples on a page."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fastload
from fastload.cli.app import app
from fastload.tools.look.page import page
from fastload.tools.look.samples import default_transform, shown_rows
from fastload.tools.measure.page import style_sheet
from tests.images import write_photo_folder
from tests.test_sources_detection import (
    BOXES,
    CLASSES,
    NAMES,
    SIZES,
    coco_document,
    write_coco,
    write_images,
)
from tests.test_sources_panoptic import classes_of
from tests.test_sources_panoptic import write as write_panoptic


def figures(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def picture(element: ElementTree.Element) -> Any:
    data = element.attrib["href"].split(",")[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def looked_at(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["look", *arguments])
    assert result.exit_code == 0, result.output
    return Path(arguments[arguments.index("--output") + 1]).read_text(), result.output


@pytest.mark.slow
def test_boxes_and_outlines_of_coco(tmp_path: Path) -> None:
    document = coco_document()
    document["annotations"][0]["iscrowd"] = 1
    for one in document["annotations"]:
        one["keypoints"] = [*one["bbox"][:2], 2, 0, 0, 0]
    write_coco(tmp_path / "data", document)
    target = str(tmp_path / "page.html")
    text, said = looked_at(str(tmp_path / "data"), "--versions", "2", "--output", target)
    assert "5 samples" in said
    assert "http" not in text.replace("http-equiv", "")  # nothing comes from elsewhere
    found = figures(text)
    assert len(found) == 5 * 3
    for row in range(5):
        stored, *made = found[3 * row : 3 * row + 3]
        rects = stored.findall("rect")
        assert len(rects) == len(BOXES[row])
        for rect, (left, top, right, bottom) in zip(rects, BOXES[row], strict=True):
            places = [float(rect.attrib[key]) for key in ("x", "y", "width", "height")]
            assert np.allclose(places, [left, top, right - left, bottom - top], atol=0.01)
        names = [
            (element.text or "").removesuffix(" (crowd)") for element in stored.findall("text")
        ]
        assert names == [NAMES[label] for label in CLASSES[row]]
        assert len(stored.findall("polygon")) == len(stored.findall("circle")) == len(rects)
        assert picture(stored.findall("image")[0]).shape == (*SIZES[row], 3)
        for one in made:
            assert one.attrib["viewBox"] == "0 0 320 320"
            assert len(one.findall("rect")) <= len(rects)
            for rect in one.findall("rect"):
                assert 0 <= float(rect.attrib["x"]) <= 320
    assert text.count('class="crowd"') >= 1


@pytest.mark.whole
def test_keypoints_are_mirrored_where_their_sides_are_known(tmp_path: Path) -> None:
    document = coco_document()
    for one in document["annotations"]:
        one["keypoints"] = [*one["bbox"][:2], 2, 0, 0, 0]
    write_coco(tmp_path / "data", document)
    given = [str(tmp_path / "data"), "--versions", "1", "--output", str(tmp_path / "page.html")]
    flip = "RandomHorizontalFlip"
    text, said = looked_at(*given)
    assert flip not in text
    assert "which points of 'keypoints' are left and right is not known" in said
    for pairs in ("none", "0-1"):
        text, said = looked_at(*given, "--keypoint-pairs", pairs)
        assert flip in text
        assert "not known" not in said
    (tmp_path / "own.py").write_text(
        "from torchvision.transforms import v2\nflip = v2.RandomHorizontalFlip(1.0)\n"
    )
    given += ["--transform", f"{tmp_path / 'own.py'}:flip"]
    for more, wanted in (
        ([], "--keypoint-pairs 1-2,3-4"),
        (["--keypoint-pairs", "1"], "must be numbers of points"),
    ):
        result = CliRunner().invoke(app, ["look", *given, *more])
        assert result.exit_code == 1
        assert wanted in " ".join(result.output.split())
    assert flip in looked_at(*given, "--keypoint-pairs", "0-1")[0]


def test_masks_of_objects(tmp_path: Path) -> None:
    document = coco_document()
    document["annotations"][0] |= {
        "iscrowd": 1,
        "segmentation": {"counts": [0, 48 * 24, 48 * 24], "size": [48, 48]},
    }
    write_coco(tmp_path / "data", document)
    target = str(tmp_path / "page.html")
    text, _ = looked_at(str(tmp_path / "data"), "--masks", "--versions", "1", "--output", target)
    found = figures(text)
    assert not any(one.findall("polygon") for one in found)
    assert [len(one.findall("image")) for one in found] == [2, 2, 1, 1, 2, 2, 2, 2, 2, 2]
    overlay = picture(found[6].findall("image")[1])  # of 3.jpg, as it is stored
    assert overlay.shape == (48, 48, 4)
    assert (overlay[:, :24, 3] > 0).all()  # the crowd
    crowd, same_class, other, nothing = (
        overlay[y, x].tolist() for y, x in ((40, 2), (22, 38), (4, 45), (44, 30))
    )
    assert crowd == same_class != other
    assert nothing == [0, 0, 0, 0]


@pytest.mark.slow
def test_epochs_differ_and_seeds_repeat(tmp_path: Path) -> None:
    write_coco(tmp_path / "data")
    source = fastload.open_source(tmp_path / "data").source
    transform = default_transform(64, source)
    first, again, other = (
        shown_rows(source, transform, count=2, versions=2, seed=seed) for seed in (1, 1, 2)
    )
    assert [row.name for row in first] == ["0.jpg", "4.jpg"]
    for row, same, changed in zip(first, again, other, strict=True):
        _, one, two = row.versions
        assert np.array_equal(one.pixels, same.versions[1].pixels)
        assert not np.array_equal(one.pixels, two.pixels)
        assert not np.array_equal(one.pixels, changed.versions[1].pixels)


@pytest.mark.slow
def test_a_transform_of_ones_own(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path / "data", classes=2, per_class=2)
    file = tmp_path / "transforms.py"
    file.write_text(
        "import torch\nfrom torchvision.transforms import v2\n"
        "def train():\n"
        "    return v2.Compose([v2.CenterCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, True),\n"
        "        v2.Normalize([0.5] * 3, [0.2] * 3)])\n"
        "light = v2.CenterCrop(24)\n"
    )
    for name, size in (("train", 16), ("light", 24)):
        target = str(tmp_path / f"{name}.html")
        text, _ = looked_at(
            str(folder), "--transform", f"{file}:{name}", "--output", target, "--images", "2"
        )
        assert f'viewBox="0 0 {size} {size}"' in text
        assert ("stretched" in text) == (name == "train")
        assert "label class_0" in text
    result = CliRunner().invoke(app, ["look", str(folder), "--transform", f"{file}:none"])
    assert result.exit_code == 1
    assert "has no none" in result.output


def test_masks_lie_over_the_images(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    (tmp_path / "masks").mkdir()
    for number, (height, width) in enumerate(SIZES):
        mask = np.zeros((height, width), np.uint8)
        mask[5:10, 3:20] = 2
        mask[0, 0] = 255
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    source = fastload.open_source(tmp_path).source
    rows = shown_rows(source, None, count=2, versions=0, seed=0)
    text = page(rows, title="<a>", summary="b", transform="c", classes=None)
    assert "&lt;a&gt;" in text
    assert style_sheet() in text, "in the frame of all pages"
    for figure in figures(text):
        overlay = picture(figure.findall("image")[1])
        covered = np.zeros(overlay.shape[:2], bool)
        covered[5:10, 3:20] = True
        assert np.array_equal(overlay[..., 3] > 0, covered)


def test_of_panoptic_data_the_first_class_is_seen_too(tmp_path: Path) -> None:
    source = fastload.open_source(write_panoptic(tmp_path)).source
    rows = shown_rows(source, None, count=5, versions=0, seed=0)
    text = page(rows, title="a", summary="b", transform="c", classes=source.classes)
    for number, figure in enumerate(figures(text)):
        overlay = picture(figure.findall("image")[1])
        assert np.array_equal(overlay[..., 3] > 0, classes_of(number) != 255)


def test_samples_are_named_below_the_folder_of_all(tmp_path: Path) -> None:
    source = fastload.open_source(write_photo_folder(tmp_path / "photos")).source
    rows = shown_rows(source, None, count=2, versions=0, seed=0)
    assert [row.name for row in rows] == ["class_0/0.jpg", "class_1/2.jpg"]
    rows = shown_rows(replace(source, name="mine"), None, count=2, versions=0, seed=0)
    assert [row.name for row in rows] == ["class_0/0.jpg", "class_1/2.jpg"]


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["look", "nowhere", "--output", str(tmp_path / "no" / "x")])
    assert (result.exit_code, "there is no folder" in result.output) == (1, True)


@pytest.mark.parametrize("arguments", [["nowhere"], ["{data}", "--transform", "x"]])
def test_errors_are_said_plainly(arguments: list[str], tmp_path: Path) -> None:
    write_images(tmp_path / "data" / "cat")
    given = [argument.replace("{data}", str(tmp_path / "data")) for argument in arguments]
    result = CliRunner().invoke(app, ["look", *given, "--output", str(tmp_path / "x.html")])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert not (tmp_path / "x.html").exists()


def test_all_views_of_a_pipeline(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path / "data", classes=2, per_class=2)
    settings = ("local_crops_number=2", "global_crops_size=40", "local_crops_scale=[0.1,0.2]")
    options = [part for text in settings for part in ("--pipeline-option", text)]
    target = str(tmp_path / "page.html")
    text, _ = looked_at(
        *(str(folder), "--pipeline", "dinov2", *options, "--images", "2", "--versions", "2"),
        *("--output", target),
    )
    assert f"fastload.pipelines.dinov2({', '.join(settings)})" in text
    found = figures(text)
    titles = [one.attrib["aria-label"] for one in found[: len(found) // 2]]
    views = [f"epoch {epoch}, view {view}" for epoch in range(2) for view in range(1, 5)]
    assert titles == ["as stored", *views]
    sizes = [one.attrib["viewBox"] for one in found[1:5]]
    assert sizes == ["0 0 40 40", "0 0 40 40", "0 0 96 96", "0 0 96 96"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pipeline", "dinov"], "there are .*Did you mean dinov2"),
        (["--pipeline", "torchvision_classification_mixing"], "for batch_transform= of"),
        (["--pipeline", "ijepa_masks"], "for batch_transform= of create_loader"),
        (["--pipeline", "ffcv_sizes"], "for order= of create_loader"),
        (["--pipeline", "dinov2", "--transform", "a.py:b"], "give one of the two"),
        (["--pipeline-option", "a=1"], "it is for --pipeline"),
        (["--pipeline", "dinov2", "--pipeline-option", "crops=1"], "no argument 'crops'"),
        (["--pipeline", "dinov2", "--pipeline-option", "crops"], "must be NAME=VALUE"),
        (
            ["--pipeline", "dinov2", "--pipeline-option", "global_crops_size=big"],
            "global_crops_size=big'.*int",
        ),
    ],
)
def test_what_is_wrong_with_a_pipeline_is_said(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    folder = write_photo_folder(tmp_path / "data", classes=1, per_class=1)
    result = CliRunner().invoke(
        app, ["look", str(folder), *arguments, "--output", str(tmp_path / "page.html")]
    )
    assert result.exit_code == 1
    assert re.search(words, " ".join(result.output.split()))
