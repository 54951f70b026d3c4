"""Texts that go with the images: the same ones from every source, and on every backend."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.cache import CacheOptions
from fastload.errors import ConfigurationError, SourceError, StateMismatchError
from fastload.sources import open_source
from fastload.tools.pack import PackOptions, pack
from tests import images

WORDS = ["a cat", "", "zwei Bären 🐻", "line\nline", "x" * 1000, "猫", "end "]
PHOTOS = [images.jpeg(images.photo(20 + row, 30, seed=row)) for row in range(len(WORDS))]
SHAPE = v2.Compose([v2.Resize((16, 16)), v2.ToImage()])


def arrays(words: Any = None) -> dict[str, Any]:
    pixels = np.stack([images.photo(16, 16, seed=row) for row in range(len(WORDS))])
    numbers = np.arange(len(WORDS))
    return {"image": pixels, "caption": WORDS if words is None else words, "number": numbers}


def shards(folder: Path, texts: list[bytes]) -> str:
    """A tar shard of `0.jpg`, `0.txt` and `0.cls`, and so on."""
    path = folder / "0.tar"
    with tarfile.open(path, "w") as tar:
        for row, (photo, text) in enumerate(zip(PHOTOS, texts, strict=False)):
            for ending, data in (("jpg", photo), ("txt", text), ("cls", str(row).encode())):
                member = tarfile.TarInfo(f"{row}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


def served(source: Any, **options: Any) -> list[Any]:
    """The batches of two epochs."""
    with fastload.create_loader(source, 3, transform=SHAPE, **options) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "torch", "num_workers": 0},
        {"backend": "torch", "num_workers": 2},
        {"backend": "turbojpeg"},
        {"backend": "cache"},
    ],
    ids=["torch", "workers", "turbojpeg", "cache"],
)
def test_each_text_goes_with_its_image(options: dict[str, Any], tmp_path: Path) -> None:
    source = open_source([shards(tmp_path, [word.encode() for word in WORDS])])
    if options["backend"] == "cache":
        options["options"] = CacheOptions(directory=tmp_path / "cache", progress=False)
    seen = []
    for images_, texts, labels in served(source, shuffle=True, **options):
        assert isinstance(texts, list)
        assert images_.shape == (len(texts), 3, 16, 16)
        assert texts == [WORDS[label] for label in labels]
        seen += texts
    assert sorted(seen) == sorted(2 * WORDS)


@pytest.mark.parametrize("form", ["list", "tuple", "numpy", "in single samples"])
def test_texts_beside_arrays(form: str) -> None:
    words: Any = {"tuple": tuple(WORDS), "numpy": np.array(WORDS)}.get(form, WORDS)
    collate: Any = {"collate_fn": list} if form == "in single samples" else {}
    batches = served(arrays(words), **({"backend": "torch"} | collate if collate else {}))
    if collate:
        batches = [torch.utils.data.default_collate(batch) for batch in batches]
    for batch in batches:
        assert batch["caption"] == [str(words[number]) for number in batch["number"]]
    assert len(batches) == 6


def test_texts_in_a_tuple_are_texts() -> None:
    images = np.zeros((len(WORDS), 4, 4, 3), np.uint8)
    with fastload.create_loader((images, np.array(WORDS)), len(WORDS)) as loader:
        assert next(iter(loader))[1] == list(WORDS)


def test_a_dict_of_nothing_but_texts_is_no_data_set() -> None:
    with pytest.raises(SourceError):
        open_source({"caption": WORDS})


def test_a_text_that_cannot_be_written_is_named() -> None:
    with pytest.raises(SourceError, match=r"array 'caption', row 2: is no UTF-8"):
        open_source(arrays([*WORDS[:2], "\udc80", *WORDS[3:]]))


def test_a_text_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"1\.txt.*is no UTF-8"):
        open_source([shards(tmp_path, [b"good", b"bad \xff"])])


def test_prefixes_of_tar_fields_name_texts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name, data in [("0.jpg", PHOTOS[0]), ("0.short.txt", b"s"), ("0.long.txt", b"l")]:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    source = open_source([str(tmp_path / "0.tar")]).source
    assert list(source.columns) == ["image", "short", "long"]
    assert {source.columns[name].role for name in ("short", "long")} == {"text"}


def parquet(folder: Path, words: list[str | None], kind: Any) -> str:
    pa = pytest.importorskip("pyarrow")
    table = pa.table(
        {
            "image": pa.array(PHOTOS, pa.binary()),
            "caption": pa.array(words).cast(kind),
            "number": pa.array(range(len(WORDS))),
        }
    )
    pytest.importorskip("pyarrow.parquet").write_table(
        table, folder / "data.parquet", row_group_size=3
    )
    return str(folder / "data.parquet")


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_texts_of_parquet_files_are_served_where_they_are_asked_for(
    kind: str, tmp_path: Path
) -> None:
    pa = pytest.importorskip("pyarrow")
    arrow = pa.dictionary(pa.int32(), pa.string()) if kind == "dictionary" else getattr(pa, kind)()
    path = parquet(tmp_path, [*WORDS], arrow)
    opened = open_source(path)
    assert list(opened.source.columns) == ["image", "number"]
    assert "caption (texts, served where fields names them)" in opened.notes[0]
    source = open_source(path, fields=("image", "caption", "number"))
    for _, texts, numbers in served(source, shuffle=True):
        assert texts == [WORDS[number] for number in numbers]


def test_a_text_that_is_missing_is_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = parquet(tmp_path, [*WORDS[:4], None, *WORDS[5:]], pa.string())
    with pytest.raises(SourceError, match=r"column 'caption' has no text in row 4"):
        open_source(path, fields=("image", "caption"))


def test_bytes_of_a_table_that_are_no_text_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from fastload.sources.texts import text_of_arrow

    wrong = pa.chunked_array([pa.array([b"good", b"\xff"]).view(pa.string())])
    with pytest.raises(SourceError, match="column 'caption'.*UTF-?8"):
        text_of_arrow(wrong, "column 'caption'")


def test_a_slice_and_chosen_rows_of_a_table() -> None:
    pa = pytest.importorskip("pyarrow")
    from fastload.sources.texts import TEXT, text_of_arrow

    whole = pa.array(WORDS)
    part = text_of_arrow(pa.chunked_array([whole[2:5]]), "t")
    assert TEXT.objects(part.array) == WORDS[2:5]
    chosen = text_of_arrow(pa.chunked_array([whole[:3], whole[3:]]), "t", np.array([6, 0, 0]))
    assert TEXT.objects(chosen.array) == [WORDS[6], WORDS[0], WORDS[0]]
    assert len(text_of_arrow(pa.chunked_array([], pa.string()), "t")) == 0


def test_hugging_faces_strings_are_what_a_dataloader_gives() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    rows = {"image": [{"bytes": photo, "path": None} for photo in PHOTOS], "caption": WORDS}
    features = {"image": datasets.Image(), "caption": datasets.Value("string")}
    data = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    data = data.select([6, 2, 2, 0, 4])
    assert open_source(data).source.objects == {}
    words = [text for batch in served(data)[:2] for text in batch["caption"]]
    loader = torch.utils.data.DataLoader(data, collate_fn=lambda rows: rows[0]["caption"])
    assert words == list(loader)
    # A missing text stays what Hugging Face gives: its own code makes the samples.
    odd = datasets.Dataset.from_dict(
        {**rows, "caption": [*WORDS[:6], None]}, features=datasets.Features(features)
    )
    assert open_source(odd).source.objects


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_packed_texts_come_back(form: Any, tmp_path: Path) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow.parquet")
    source = open_source(arrays())
    pack(source, str(tmp_path / "packed"), PackOptions(format=form))
    batches = served(str(tmp_path / "packed"))
    assert len(batches) == 6
    for batch in batches:
        assert list(batch) == ["image", "caption", "number"]
        assert batch["caption"] == [WORDS[number] for number in batch["number"]]


def test_a_sample_in_place_of_a_damaged_one_brings_its_text(tmp_path: Path) -> None:
    texts = [word.encode() for word in WORDS]
    path = shards(tmp_path, texts)
    data = bytearray(Path(path).read_bytes())
    with tarfile.open(path) as tar:
        member = tar.getmember("2.jpg")
    data[member.offset_data : member.offset_data + 8] = bytes(8)
    Path(path).write_bytes(data)
    seen = []
    for _, words, labels in served([path], on_error="substitute"):
        assert words == [WORDS[label] for label in labels]
        seen += labels.tolist()
    assert 2 not in seen
    assert len(seen) == 14


def test_texts_and_samples_of_several_images_are_refused() -> None:
    boxes = fastload.Ragged.of([np.zeros((0, 4))] * len(WORDS))
    source = {"image": arrays()["image"], "boxes": boxes, "caption": WORDS}
    with pytest.raises(ConfigurationError, match="'caption', a text of each image"):
        fastload.create_loader(source, 3, transform=v2.Compose([fastload.Mosaic(32), SHAPE]))


def test_a_state_goes_on_with_the_texts() -> None:
    with fastload.create_loader(arrays(), 2, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch["caption"] for batch in batches]
    with fastload.create_loader(arrays(), 2, shuffle=True) as loader:
        loader.load_state_dict(state)
        assert [batch["caption"] for batch in loader] == rest
    with fastload.create_loader(arrays([*WORDS[:6], "other"]), 2, shuffle=True) as loader:
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(state)
