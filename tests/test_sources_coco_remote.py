"""COCO's annotations by URL: what the same files give on a disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten
from torchvision.transforms import v2

import fastload
from fastload.errors import SourceError
from fastload.sources import Source, open_source
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer
from tests.test_sources_detection import coco_document, write_coco
from tests.test_stores import upload

TRANSFORM = v2.Compose([v2.RandomIoUCrop(), v2.Resize((24, 24)), v2.RandomHorizontalFlip()])


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """`train2017/` and `annotations/`; the training file has outlines."""
    write_coco(tmp_path / "data")
    shutil.copytree(tmp_path / "data/train2017", tmp_path / "data/val2017")
    document = coco_document()
    document["categories"] = document["categories"][:2]  # of fewer objects: other labels
    known = [category["id"] for category in document["categories"]]
    document["annotations"] = [
        one for one in document["annotations"] if one["category_id"] in known
    ]
    path = tmp_path / "data/annotations/instances_val2017.json"
    path.write_text(json.dumps(document))
    return tmp_path / "data"


def check_equal(there: Source, here: Source) -> None:
    assert (there.fingerprint, there.classes) == (here.fingerprint, here.classes)
    assert there.details == here.details
    assert list(there.columns) == list(here.columns)
    rows = np.arange(len(here))
    for name, column in here.encoded.items():
        assert there.encoded[name].read_many(rows) == column.read_many(rows)
    for name, values in here.values.items():
        found, wanted = (one.at(rows) for one in (there.values[name], values))
        pairs = list(zip(flat(found), flat(wanted), strict=True))
        assert pairs
        assert all(np.array_equal(one, other) for one, other in pairs), name


def flat(batch: Any) -> list[Any]:
    """The arrays or tensors in it, of rows of variable length elements and offsets."""
    found: list[Any] = []
    for part in tree_flatten(batch)[0]:
        ragged = isinstance(part, fastload.Ragged)
        found += [*flat(part.values), part.offsets] if ragged else [part]
    return found


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("", {"split": "train"}),
        ("", {"split": "val"}),
        ("", {"split": "train", "masks": True}),
        ("", {"split": "train", "format": "coco"}),
        ("/annotations/instances_val2017.json", {}),
    ],
)
def test_the_columns_of_a_folder(
    place: str, options: dict[str, Any], local: Path, server: ObjectServer
) -> None:
    upload(local, server)
    there = open_source(f"s3://bucket{place}", **options)
    here = open_source(f"{local}{place}", **options)
    check_equal(there.source, here.source)
    assert there.notes == here.notes
    assert there.source.encoded["image"].versions.all()  # type: ignore[attr-defined]


def test_folders_of_roboflow(local: Path, server: ObjectServer, tmp_path: Path) -> None:
    """The annotations lie in the folder of each split."""
    for split in ("train", "valid"):
        shutil.copytree(local / "train2017", tmp_path / "set" / split)
        annotations = local / "annotations/instances_train2017.json"
        shutil.copy(annotations, tmp_path / "set" / split / "_annotations.coco.json")
    upload(tmp_path / "set", server)
    for split in ("train", "val"):
        check_equal(
            open_source("s3://bucket", split=split).source,
            open_source(tmp_path / "set", split=split).source,
        )
    check_equal(open_source("s3://bucket/valid").source, open_source(tmp_path / "set/valid").source)


@pytest.mark.parametrize(
    ("splits", "wanted"),
    [(["train2"], None), (["extra", "train"], "extra"), (["extra", "train"], None)],
)
def test_folders_of_roboflow_of_other_names(
    splits: list[str],
    wanted: str | None,
    local: Path,
    server: ObjectServer,
    tmp_path: Path,
) -> None:
    """One name says that they are splits; then all of them are, here and there."""
    for split in splits:
        shutil.copytree(local / "train2017", tmp_path / "set" / split)
        annotations = local / "annotations/instances_train2017.json"
        shutil.copy(annotations, tmp_path / "set" / split / "_annotations.coco.json")
    upload(tmp_path / "set", server)
    if len(splits) > 1 and wanted is None:
        for place in ("s3://bucket", tmp_path / "set"):
            with pytest.raises(SourceError, match="annotations of extra, train; say which: split="):
                open_source(place)
        return
    check_equal(
        open_source("s3://bucket", split=wanted).source,
        open_source(tmp_path / "set", split=wanted).source,
    )


def test_a_web_server(local: Path, server: ObjectServer) -> None:
    """It lists nothing: the file is named, and each image asked for."""
    upload(local, server)
    name = "annotations/instances_train2017.json"
    there = open_source(f"{server.url}/bucket/{name}").source
    check_equal(there, open_source(local / name).source)
    del server.objects["bucket/train2017/3.jpg"]
    with pytest.raises(SourceError, match=r"json: the image 3\.jpg is missing in http"):
        open_source(f"{server.url}/bucket/{name}")


ODD = ["50% off #1.jpg", "50%25.jpg", "what? no.jpg", "ü ~.jpg", "a+b&c=d;(1),'!$@.jpg"]


@pytest.mark.parametrize("place", ["s3:/", "{web}"])
def test_names_that_are_otherwise_in_addresses(
    place: str, server: ObjectServer, tmp_path: Path
) -> None:
    """`%`, `#`, `?`, spaces: a web server is asked for the file that is called so, and not for
    another one."""
    document = coco_document()
    name = Path(write_coco(tmp_path)).relative_to(tmp_path)
    for image, odd in zip(document["images"], ODD, strict=True):
        old = tmp_path / "train2017" / image["file_name"]
        image["file_name"] = odd
        old.rename(old.with_name(odd))
    (tmp_path / name).write_text(json.dumps(document))
    upload(tmp_path, server)
    server.objects["bucket/train2017/50%.jpg"] = b"another"
    here = open_source(tmp_path / name).source
    for _ in range(2):  # the second time by the index
        check_equal(open_source(f"{place.format(web=server.url)}/bucket/{name}").source, here)


@pytest.mark.parametrize("name", ["/etc/hostname", "../x.jpg", "a\ud800.jpg", "a//b.jpg", ""])
@pytest.mark.parametrize("place", ["s3:/", "{web}"])
@pytest.mark.parametrize("at", [0, 1])
def test_names_that_are_none(
    at: int, place: str, name: str, local: Path, server: ObjectServer
) -> None:
    document = coco_document()
    document["images"][at]["file_name"] = name
    upload(local, server)
    file = "bucket/annotations/instances_train2017.json"
    server.objects[file] = json.dumps(document).encode()
    with pytest.raises(SourceError, match=r"instances_train2017\.json|train2017"):
        open_source(f"{place.format(web=server.url)}/{file}")


def test_what_is_wrong_is_said_with_the_url(local: Path, server: ObjectServer) -> None:
    upload(local, server)
    with pytest.raises(SourceError, match=r"s3://bucket: has annotations of train2017, val2017; "):
        open_source("s3://bucket")
    del server.objects["bucket/train2017/3.jpg"]
    name = "s3://bucket/annotations/instances_train2017.json"
    with pytest.raises(SourceError, match=rf"{name}: the image 3\.jpg is missing in s3://bucket/t"):
        open_source(name)


def test_captions_are_no_objects(local: Path, server: ObjectServer) -> None:
    """Not class folders either: the photographs would be served without what was said of them."""
    upload(local / "train2017", server, "bucket/train2017")
    server.objects["bucket/annotations/captions_train2017.json"] = b"{}"
    with pytest.raises(SourceError, match="annotations of COCO other than of objects"):
        open_source("s3://bucket")


@pytest.mark.slow
@contestants(remote=True)
def test_batches(contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path) -> None:
    upload(local, server)
    made = []
    for number, place in enumerate(("s3://bucket", str(local))):
        source = open_source(place, split="train").source
        with contestant.create(
            source,
            tmp_path / str(number),
            batch_size=2,
            shuffle=True,
            transform=TRANSFORM,
            collate_fn="torchvision",
        ) as loader:
            made.append([flat(batch) for _ in range(2) for batch in loader])
    assert len(made[0]) > 4
    for ours, theirs in zip(*made, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
