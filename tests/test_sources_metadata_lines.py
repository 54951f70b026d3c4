"""Images with a metadata.jsonl, against Hugging Face's reading of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload.errors import FastloadError, SourceError
from fastload.sources import Source, open_source
from tests.images import jpeg, photo
from tests.objectserver import ObjectServer
from tests.test_sources_coco_remote import check_equal
from tests.test_stores import upload

ROWS: list[dict[str, Any]] = [
    {"file_name": "b.jpg", "text": "two foxes", "score": 0.5, "tags": [1, 2], "label": "fox"},
    {"file_name": "a.jpg", "text": "", "score": 2, "tags": [], "label": "dog"},
    {"file_name": "more/c.jpg", "text": "Bär", "score": -1, "tags": [3], "label": "fox"},
]


def written(root: Path, rows: list[dict[str, Any]], prefix: str = "") -> Path:
    for number, row in enumerate(rows):
        path = root / row["file_name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(photo(20, 30, seed=number)))
    place = root.parent if prefix else root
    lines = [json.dumps(row | {"file_name": prefix + row["file_name"]}) for row in rows]
    with (place / "metadata.jsonl").open("a") as file:
        file.write("\n".join([*lines, "", ""]))
    return root


def rows_of(source: Source) -> list[dict[str, Any]]:
    every = np.arange(len(source))
    texts: Any = source.values["text"]
    found: dict[str, list[Any]] = {
        "file_name": [source.encoded["image"].describe(row) for row in every.tolist()],
        "text": texts.kind.objects(texts.at(every)),
        "score": source.values["score"].at(every).tolist(),
        "tags": [row.tolist() for row in source.values["tags"].at(every)],
        "label": [(source.classes or ())[row] for row in source.values["label"].at(every)],
    }
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def test_columns(tmp_path: Path) -> None:
    source = open_source(written(tmp_path, ROWS)).source
    assert list(source.columns) == ["image", "text", "score", "tags", "label"]
    expected = [row | {"file_name": str(tmp_path / row["file_name"])} for row in ROWS]
    assert rows_of(source) == expected
    chosen = open_source(tmp_path, fields=("text", "image")).source
    assert list(chosen.columns) == ["text", "image"]


@pytest.mark.slow
def test_as_hugging_face_reads_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    root = written(tmp_path / "data", ROWS)
    theirs = datasets.load_dataset(
        "imagefolder", data_dir=str(root), split="train", cache_dir=str(tmp_path / "cache")
    )
    images = theirs.cast_column("image", datasets.Image(decode=False))["image"]
    ours = {row["file_name"]: row for row in rows_of(open_source(root).source)}
    assert len(ours) == len(theirs)
    for image, row in zip(images, theirs.remove_columns("image"), strict=True):
        assert ours[image["path"]] == {"file_name": image["path"], **row}


@pytest.mark.parametrize("above", [False, True])
def test_splits(above: bool, tmp_path: Path) -> None:
    for split, rows in (("train", ROWS), ("validation", ROWS[2:])):
        written(tmp_path / split, rows, prefix=f"{split}/" if above else "")
    with pytest.raises(SourceError, match="split='train'"):
        open_source(tmp_path)
    for place, options in ((tmp_path, {"split": "val"}), (tmp_path / "validation", {})):
        source = open_source(place, **options).source
        assert source.classes == ("dog", "fox")
        assert source.values["label"].at(np.arange(1)).tolist() == [1]
    assert len(open_source(tmp_path, split="train").source) == 3


def test_words_of_a_lone_validation_split(tmp_path: Path) -> None:
    root = written(tmp_path / "val", ROWS)
    with pytest.raises(SourceError, match="a class may be missing in the val split"):
        open_source(root)
    assert open_source(root, classes=["fox", "dog", "cat"]).source.classes == ("fox", "dog", "cat")


def test_class_folders_may_be_meant(tmp_path: Path) -> None:
    rows = [{"file_name": f"{name}/1.jpg", "text": name} for name in ("cat", "dog")]
    written(tmp_path, rows)
    with pytest.raises(SourceError, match="format='jsonl' or format='folder'"):
        open_source(tmp_path)
    assert list(open_source(tmp_path, format="jsonl").source.columns) == ["image", "text"]
    (tmp_path / "metadata.jsonl").write_text('{"name": "pets"}\n')
    assert open_source(tmp_path).source.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 3 is no JSON"),
        ("[1]", "line 3 must be an object with the name of an image"),
        ('{"text": "x"}', "line 3 must be an object with the name of an image"),
        ('{"file_name": "x.jpg", "text": "x"}', r"line 3: x\.jpg is no image in"),
        ('{"file_name": "../x.jpg"}', "line 3: .* lies outside of the folder"),
        ('{"file_name": "a.jpg"}', "line 3: has no 'text'"),
        ('{"file_name": "a.jpg", "text": "x", "n": [[1], [1, 2]]}', "has no 'n'"),
    ],
)
def test_bad_lines(line: str, words: str, tmp_path: Path) -> None:
    rows = [{"file_name": f"{name}.jpg", "text": name} for name in "ab"]
    written(tmp_path, rows)
    text = (tmp_path / "metadata.jsonl").read_text().strip()
    (tmp_path / "metadata.jsonl").write_text(f"{text}\n{line}\n")
    with pytest.raises(FastloadError, match=words):
        open_source(tmp_path)


def test_messages_name_the_line_of_the_file_and_the_file_of_a_column(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS) / "metadata.jsonl"
    first, *more = path.read_text().splitlines()
    path.write_text("\n".join(["", first, "", *(line.replace('"dog"', "3") for line in more)]))
    with pytest.raises(SourceError, match=r"line 4: the label is 3, and before it, in .*: line 2"):
        open_source(tmp_path)
    path.write_text("\n".join([first.replace("[1, 2]", "[[1, 2]]"), *more]))
    with pytest.raises(SourceError, match=r"metadata\.jsonl: column 'tags'"):
        open_source(tmp_path)


def test_images_without_a_line_and_columns_of_objects(tmp_path: Path) -> None:
    rows = [{"file_name": f"{name}.jpg", "text": name, "objects": {"n": 1}} for name in "ab"]
    written(tmp_path, rows)
    opened = open_source(tmp_path)
    assert list(opened.source.columns) == ["image", "text"]
    assert any("objects (dict)" in note for note in opened.notes)
    (tmp_path / "c.jpg").write_bytes(b"")
    with pytest.raises(SourceError, match=r"c\.jpg: has no line in .*metadata\.jsonl"):
        open_source(tmp_path)


def test_by_url(tmp_path: Path, server: ObjectServer) -> None:
    for split, rows in (("train", ROWS), ("val", ROWS[2:])):
        written(tmp_path / split, rows)
    upload(tmp_path, server)
    for _ in range(2):  # the second time by the index
        for split in ("train", "val"):
            there = open_source("s3://bucket", split=split).source
            check_equal(there, open_source(tmp_path, split=split).source)
