"""JSON lines that name images: what scripts for vision-language models and diffusion read, against
Python's own reading; and lists of images of their own sizes, against Pillow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, DecodeError, FastloadError, SourceError
from fastload.tools.pack import pack
from tests.images import jpeg, photo
from tests.objectserver import ObjectServer
from tests.test_stores import upload

TALK = [{"from": "human", "value": "<image>\nWas ist das? 狐"}, {"from": "gpt", "value": "A fox."}]
ROWS: list[dict[str, Any]] = [
    {"id": "a", "image": "a.jpg", "conversations": TALK, "score": 0.5, "n": 1, "ids": [1, 2]},
    {"id": 7, "image": ["b.png", "in/c.jpg"], "conversations": [], "score": 2, "n": 2, "ids": []},
    {"id": "c", "conversations": TALK[:1], "score": -1, "n": 3, "ids": [5], "model": "x"},
    {"id": "d", "image": ["a.jpg"], "conversations": TALK, "score": 0, "n": 4, "ids": [6, 7, 8]},
]
SINGLE = [row | {"image": name} for row, name in zip(ROWS, ("b.png", "a.jpg") * 2, strict=True)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number, name in enumerate(("a.jpg", "in/c.jpg")):
        (tmp_path / name).write_bytes(jpeg(photo(20 + number, 31, seed=number)))
    Image.fromarray(photo(9, 40, seed=5)).save(tmp_path / "b.png")
    lines(tmp_path / "several.jsonl", ROWS)
    lines(tmp_path / "single.jsonl", SINGLE)
    return tmp_path


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    return path


def batches(opened: Any, size: int = 2, **options: Any) -> list[Any]:
    with fastload.create_loader(opened, size, num_workers=2, **options) as loader:
        return list(loader)


def pixels(path: Path) -> torch.Tensor:
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def paths_of(row: dict[str, Any]) -> list[str]:
    names = row.get("image", [])
    return [names] if isinstance(names, str) else names


def check_images(root: Path, images: list[Any], rows: list[dict[str, Any]]) -> None:
    for made, row in zip(images, rows, strict=True):
        expected = [pixels(root / name) for name in paths_of(row)]
        assert [one.shape for one in made] == [one.shape for one in expected]
        assert all(map(torch.equal, made, expected))


def check_values(batch: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    for name in ("id", "conversations"):
        assert batch[name] == [row[name] for row in rows]
    assert batch["score"].dtype == torch.float64
    assert batch["n"].dtype == torch.int64
    for name in ("score", "n"):
        assert batch[name].tolist() == [row[name] for row in rows]
    assert [row.tolist() for row in batch["ids"]] == [row["ids"] for row in rows]


@pytest.mark.parametrize("backend", ["turbojpeg", pytest.param("torch", marks=pytest.mark.whole)])
def test_several_images_a_sample(backend: str, root: Path) -> None:
    opened = fastload.open_source(root / "several.jsonl")
    assert list(opened.source.columns) == [
        *("images", "id", "conversations", "score", "n", "ids"),
    ]
    assert "left out: 'model', which 3 records of 4 lack, the first" in opened.notes[0]
    columns: Any = opened.source.columns["images"]
    assert columns.lengths.tolist() == [1, 2, 0, 1]
    first, second = batches(opened, backend=backend)
    check_images(root, first["images"] + second["images"], ROWS)
    check_values(first, ROWS[:2])
    check_values(second, ROWS[2:])


def test_one_image_each_is_a_column_of_images(root: Path) -> None:
    crop = v2.CenterCrop(8)
    (batch,) = batches(root / "single.jsonl", 4, transform=crop)
    check_values(batch, SINGLE)
    for made, row in zip(batch["image"], SINGLE, strict=True):
        assert torch.equal(made, crop(pixels(root / row["image"])))


def test_a_list_and_another_folder(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    rows = [*SINGLE[:2], SINGLE[2] | {"image": str(root / "in" / "c.jpg")}]
    rows.append(SINGLE[3] | {"image": f"file://{root}/b.png"})
    (elsewhere / "chat.json").write_text(json.dumps(rows, indent=1))
    with pytest.raises(
        SourceError, match=r"entry 0: \S*/b.png: no such file \(and 1 more\).*image_"
    ):
        fastload.open_source(elsewhere / "chat.json")
    opened = fastload.open_source(elsewhere / "chat.json", image_root=root)
    files = opened.source.encoded["image"]
    names = [files.describe(row) for row in range(4)]
    assert names == [str(root / name) for name in ("b.png", "a.jpg", "in/c.jpg", "b.png")]


def test_native_sizes_of_any_data_set(root: Path) -> None:
    """A processor as a function of whole columns gets tensors, of single samples Pillow's."""
    opened = fastload.open_source(root / "single.jsonl", roles={"image": "image_list"})
    columns = fastload.CollateColumns(lambda columns: columns["image"])
    check_images(
        root, [one for batch in batches(opened, collate_fn=columns) for one in batch], SINGLE
    )
    samples = [sample for batch in batches(opened, collate_fn=list) for sample in batch]
    for sample, row in zip(samples, SINGLE, strict=True):
        (image,) = sample["image"]
        with Image.open(root / row["image"]) as expected:
            assert np.array_equal(np.array(image), np.array(expected.convert("RGB")))
        assert sample["conversations"] == row["conversations"]


def test_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo(20, 30, seed=1)).save(tmp_path / "a.jpg", exif=exif)
    path = lines(tmp_path / "t.jsonl", [{"images": ["a.jpg"]}, {"images": []}])
    (lying,) = batches(path)
    assert lying["images"][0][0].shape == (3, 20, 30)
    (batch,) = batches(fastload.open_source(path, roles={"images": "image_list:upright"}))
    with Image.open(tmp_path / "a.jpg") as image:
        turned = np.array(ImageOps.exif_transpose(image))
    assert np.array_equal(batch["images"][0][0].permute(1, 2, 0).numpy(), turned)
    options = fastload.BackendOptions(exif_orientation=True)
    with pytest.raises(ConfigurationError, match="'images'.*turned by their role"):
        batches(path, options=options)
    with pytest.raises(SourceError, match="the only setting is 'upright'"):
        fastload.open_source(path, roles={"images": "image_list:grey"})


def test_further_images(root: Path) -> None:
    rows = [
        {"image": "a.jpg", "conditioning_image": "in/c.jpg", "mask_file_name": "b.png", "text": "x"}
    ]
    opened = fastload.open_source(lines(root / "t.jsonl", rows))
    assert {name: column.role for name, column in opened.source.columns.items()} == {
        "image": "image",
        "conditioning_image": "image",
        "mask": "mask",
        "text": "text",
    }


def test_fields(root: Path) -> None:
    opened = fastload.open_source(root / "several.jsonl", fields=("model", "image", "n"))
    assert list(opened.source.columns) == ["model", "images", "n"]
    (batch,) = batches(opened, 4)
    assert batch["model"] == [None, None, "x", None]
    with pytest.raises(ConfigurationError, match="has no field 'size'; there are id, image"):
        fastload.open_source(root / "several.jsonl", fields=("image", "size"))
    with pytest.raises(SourceError, match="left out: 'model'"):
        fastload.open_source(root / "several.jsonl", strict=True)


def test_values_that_do_not_go_together_are_objects(root: Path) -> None:
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    values: list[Any] = [[[1, 2], [3]], [[]], deep]
    mixed: list[Any] = [1, "x", [2.5]]
    rows = [{"image": "a.jpg", "v": v, "m": m} for v, m in zip(values, mixed, strict=True)]
    (batch,) = batches(lines(root / "t.jsonl", rows), 3, transform=v2.CenterCrop(8))
    assert batch["v"] == values
    assert batch["m"] == mixed


def test_whole_numbers_are_never_rounded(root: Path) -> None:
    """float64 has 2^53 and 2^53 + 2, and none between them."""

    def opened(*values: Any) -> Any:
        rows = [{"image": "a.jpg", "n": value} for value in values]
        return fastload.open_source(lines(root / "t.jsonl", rows))

    assert batches(opened(2**53 + 1, 0))[0]["n"].tolist() == [2**53 + 1, 0]
    assert batches(opened(2**53 + 2, 0.5))[0]["n"].tolist() == [2.0**53 + 2, 0.5]
    assert batches(opened([2**53 + 1, 0.5], [1]))[0]["n"] == [[2**53 + 1, 0.5], [1]]
    with pytest.raises(SourceError, match=r"line 2: 'n' is 9007199254740993, which float64 rounds"):
        opened(0.5, 2**53 + 1)
    with pytest.raises(SourceError, match=r"line 1: 'n' is a number beyond 64 bits"):
        opened(2**63, 1)


@pytest.mark.parametrize(
    "objects", [{"bbox": [[1, 2, 3, 4]], "kind": ["x"]}, [{"kind": "x", "bbox": [1, 2, 3, 4]}]]
)
def test_boxes_in_objects_are_not_left_where_they_were(
    objects: Any, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [{"image": "a.jpg", "objects": objects}] * 2
    opened = fastload.open_source(lines(root / "t.jsonl", rows))
    assert batches(opened, transform=v2.Grayscale(3))[0]["objects"] == [objects] * 2
    with pytest.raises(ConfigurationError, match=r"column 'objects'.*'json:unmoved'"):
        batches(opened, transform=v2.CenterCrop(8))
    stays = fastload.open_source(opened, roles={"objects": "json:unmoved"})
    assert batches(stays, transform=v2.CenterCrop(8))[0]["objects"] == [objects] * 2
    shards = tmp_path_factory.mktemp("packed")
    pack(stays.source, shards, progress=False)
    packed = fastload.open_source(shards)
    assert batches(packed, transform=v2.CenterCrop(8))[0]["objects"] == [objects] * 2


def test_labels(root: Path) -> None:
    rows = [{"image": "a.jpg", "label": label} for label in ("fox", "dog", "fox")]
    path = lines(root / "t.jsonl", rows)
    opened = fastload.open_source(path, classes=["dog", "fox"])
    assert opened.source.values["label"].at(np.arange(3)).tolist() == [1, 0, 1]
    assert opened.source.classes == ("dog", "fox")
    assert fastload.open_source(path).source.columns["label"].role == "text"
    with pytest.raises(SourceError, match=r"t.jsonl: line 1: the label 'fox' is none of 1 class"):
        fastload.open_source(path, classes=["dog"])


REFUSED: dict[str, tuple[str, str]] = {
    "cut off": ('{"image": "a.jpg"}\n{"image": ', "line 2 is no JSON"),
    "deep": ('{"image": "a.jpg"}\n{"image": ' + "[" * 9_999 + "}", "line 2 is no JSON"),
    "too deep": (
        '{"image": "a.jpg", "n": ' + '[{"a": ' * 99 + "1" + "}]" * 99 + "}",
        "line 1: has objects within objects, more than 64 deep",
    ),
    "a list": ('{"image": "a.jpg"}\n\n["a.jpg"]', "line 3: must be an object"),
    "no path": ('{"image": "a.jpg"}\n{"image": {"bytes": 1}}', r"line 2: 'image' is .*no path"),
    "no image": ('{"image": "a.jpg"}\n{"image": "a.txt"}', r"line 2: 'image' is 'a.txt', no path"),
    "not there": ('{"image": "a.jpg"}\n{"image": "z.jpg"}', r"line 2: \S*/z.jpg: no such file"),
    "two fields": ('{"image": "a.jpg", "path": "b.png"}', "'image' or 'path'; say so"),
    "called so": ('{"file_name": "a.jpg", "image": 3}', "has a field 'image' beside the images"),
    "too large": ('{"image": "a.jpg", "n": 36893488147419103232}', "line 1: 'n' .*beyond 64 bits"),
    "no UTF-8": ('{"image": "a.jpg"}\n{"image": "\udcff.jpg"}', "is no UTF-8"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, root: Path) -> None:
    text, message = REFUSED[case]
    (root / "t.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FastloadError, match=message) as caught:
        fastload.open_source(root / "t.jsonl")
    assert "t.jsonl" in str(caught.value)


def test_what_is_none(root: Path) -> None:
    for name, text in (
        ("t.json", '{"images": [{"file_name": "a.jpg"}], "annotations": []}'),
        ("t.jsonl", '{"text": "a"}'),
        ("u.json", '[{"image_id": 3, "bbox": [1, 2, 3, 4]}]'),
    ):
        (root / name).write_text(text)
        with pytest.raises(SourceError) as caught:
            fastload.open_source(root / name)
        assert "JSON lines of images" not in str(caught.value).split("it opens")[0]


def test_a_long_first_line(root: Path) -> None:
    rows = [{"conversations": ["x" * 70_000], "image": "a.jpg"}, {"image": "a.jpg", "t": 1}]
    rows = [{"image": "a.jpg", "text": "x" * 70_000}]
    assert len(fastload.open_source(lines(root / "t.jsonl", rows)).source) == 1


@pytest.mark.parametrize("backend", ["turbojpeg", pytest.param("torch", marks=pytest.mark.whole)])
def test_an_image_that_cannot_be_read(backend: str, root: Path) -> None:
    opened = fastload.open_source(root / "several.jsonl")
    (root / "in" / "c.jpg").write_bytes(b"\xff\xd8\xffnothing")
    with pytest.raises(DecodeError, match=r"in/c.jpg"):
        batches(opened, backend=backend)
    good = batches(opened, on_error="substitute", backend=backend)
    assert good[0]["id"][0] == "a"
    assert good[0]["id"][1] in ("a", "c", "d")
    check_values(good[0], [row for n in good[0]["id"] for row in ROWS if row["id"] == n])
    check_images(root, good[0]["images"], [r for n in good[0]["id"] for r in ROWS if r["id"] == n])
    (root / "in" / "c.jpg").unlink()
    with pytest.raises(DecodeError, match=r"in/c.jpg.*cannot be read"):
        batches(opened, 1, backend=backend)


@pytest.mark.whole
def test_a_cache_and_a_part(root: Path, tmp_path: Path) -> None:
    opened = fastload.open_source(root / "several.jsonl")
    fastload.build_cache(opened, tmp_path / "cache")
    (batch,) = batches(tmp_path / "cache", 4)
    check_images(root, batch["images"], ROWS)
    check_values(batch, ROWS)
    part = opened.source.take(np.array([3, 1]))
    (batch,) = batches(part)
    check_images(root, batch["images"], [ROWS[3], ROWS[1]])


@pytest.mark.whole
def test_in_a_store(root: Path, server: ObjectServer) -> None:
    upload(root, server)
    (batch,) = batches("s3://bucket/several.jsonl", 4)
    check_images(root, batch["images"], ROWS)
    (batch,) = batches("s3://bucket/single.jsonl", 4, transform=v2.CenterCrop(8))
    check_values(batch, SINGLE)
    lines(root / "t.jsonl", [{"image": "/a.jpg"}])
    upload(root, server)
    with pytest.raises(SourceError, match=r"names /a.jpg, a file of one machine"):
        fastload.open_source("s3://bucket/t.jsonl")


def test_states_are_of_the_same_lines(root: Path) -> None:
    def fingerprint(rows: list[dict[str, Any]]) -> str:
        return fastload.open_source(lines(root / "t.jsonl", rows)).source.fingerprint

    first = fingerprint(ROWS)
    assert fingerprint(ROWS) == first
    assert fingerprint([ROWS[0], *ROWS[1:3], ROWS[3] | {"conversations": []}]) != first
    assert fingerprint([ROWS[0] | {"image": ["a.jpg", "a.jpg"]}, *ROWS[1:]]) != first
