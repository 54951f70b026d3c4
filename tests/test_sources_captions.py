"""Captions beside images: what is served, and what is not mistaken for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload.errors import SourceError
from fastload.sources import open_source
from tests.images import jpeg, photo
from tests.objectserver import ObjectServer
from tests.test_sources_coco_remote import check_equal
from tests.test_sources_detection import write_images, yolo_lines
from tests.test_stores import upload

TEXTS = ["a fox in the snow", "", "zwei\nBären"]


def written(root: Path, texts: list[str] | None = None) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(TEXTS if texts is None else texts):
        (root / f"{number}.jpg").write_bytes(jpeg(photo(20, 30, seed=number)))
        (root / f"{number}.txt").write_text(f" {text}\n")
    return root


def test_each_text_goes_with_its_image(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "0.npz").write_bytes(b"latents")
    with fastload.create_loader(tmp_path, 1) as loader:
        assert [text for _, texts in loader for text in texts] == TEXTS
    assert "(.npz: 1; first 0.npz)" in str(open_source(tmp_path).notes)


def test_a_text_of_no_image_is_counted(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "licence.txt").write_text("free")
    assert "(.txt: 1; first licence.txt)" in str(open_source(tmp_path).notes)
    with pytest.raises(SourceError, match=r"licence\.txt"):
        open_source(tmp_path, strict=True)


def test_splits_and_folders(tmp_path: Path) -> None:
    for split in ("train", "val"):
        written(tmp_path / split)
    with pytest.raises(SourceError, match="split='train'"):
        open_source(tmp_path)
    with pytest.raises(SourceError, match="split='train'"):
        open_source(tmp_path, format="captions")
    for place, options in ((tmp_path, {"split": "val"}), (tmp_path / "val", {})):
        source = open_source(place, **options).source
        assert source.describe(0) == str(tmp_path / "val" / "0.jpg")
    both = tmp_path / "both"
    for name in ("10_fox", "1_dog"):
        written(both / name)
    with pytest.raises(SourceError, match="format='captions' or format='folder'"):
        open_source(both)
    assert len(open_source(both, format="captions").source) == 6


def test_labels_of_objects_are_no_captions(tmp_path: Path) -> None:
    write_images(tmp_path)
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(yolo_lines(number) if number == 3 else "")
    with pytest.raises(SourceError) as error:
        open_source(tmp_path)
    assert "images with captions" not in str(error.value)
    # Where the first files are of images without objects.
    (tmp_path / "3.txt").write_text("")
    (tmp_path / "4.txt").write_text("0 0.5 0.5 0.1 0.1\n1 0.5 0.5 0.1 0.1\n")
    with pytest.raises(SourceError, match=r"4\.txt: holds numbers"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("texts", "words"),
    [(["a fox", "3"], r"1\.txt: holds numbers \('3'\)"), (["", ""], "all 2 texts are empty")],
)
def test_what_holds_no_words_is_asked_for_by_name(
    texts: list[str], words: str, tmp_path: Path
) -> None:
    written(tmp_path, texts)
    with pytest.raises(SourceError, match=words):
        open_source(tmp_path)
    assert len(open_source(tmp_path, format="captions").source) == 2


def test_a_missing_text_and_one_that_is_no_utf8(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "2.txt").write_bytes(b"\xff")
    with pytest.raises(SourceError, match=r"2\.txt: is no UTF-8"):
        open_source(tmp_path)
    (tmp_path / "2.txt").unlink()
    with pytest.raises(SourceError, match=r"2\.jpg: has no text 2\.txt"):
        open_source(tmp_path)
    (tmp_path / "2.png").write_bytes(b"")
    (tmp_path / "2.txt").write_text("a")
    with pytest.raises(SourceError, match=r"2\.txt: is the text of 2\.jpg and of 2\.png"):
        open_source(tmp_path)


def test_a_table_of_labels_beside_captions(tmp_path: Path) -> None:
    written(tmp_path, ["0 1", "1 2", "2 0"])  # as a table of file and label would have it
    (tmp_path / "0.txt").write_text("0 is a fox")
    (tmp_path / "labels.csv").write_text("file,label\n0.jpg,1\n1.jpg,0\n2.jpg,1\n")
    with pytest.raises(SourceError, match="format='captions' or format='table'"):
        open_source(tmp_path)
    source = open_source(tmp_path, format="table").source
    assert source.values["label"].at(np.arange(3)).tolist() == [1, 0, 1]


def test_by_url(tmp_path: Path, server: ObjectServer) -> None:
    written(tmp_path / "train")
    upload(tmp_path, server)
    here = open_source(tmp_path / "train").source
    for _ in range(2):  # the second time by the index
        check_equal(open_source("s3://bucket/train").source, here)
