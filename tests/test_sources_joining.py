"""`fastload.join`: every sample gets the rows of its own key, from files, tables, archives and
other data sets; what is missing, twice or ambiguous is refused by name, or left out and counted."""

from __future__ import annotations

import csv
import json
import os
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, DecodeError, FastloadError, SourceError
from fastload.sources import EncodedFiles
from tests.images import jpeg, photo
from tests.objectserver import ObjectServer
from tests.test_stores import upload

STEMS = ["cat/a", "cat/b", "dog/a", "dog/c", "dog/d"]
"""In the order of the data set."""
SHUFFLED = [3, 0, 4, 2, 1]


def latent(number: int) -> Any:
    return np.arange(6, dtype=np.float16).reshape(2, 3) + 10 * number


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes, and what belongs to them, each in an order of its own."""
    root = tmp_path_factory.mktemp("joined")

    def file(path: str) -> Path:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        return root / path

    for number, stem in enumerate(STEMS):
        file(f"images/{stem}.jpg").write_bytes(jpeg(photo(20 + number, 30, seed=number)))
        np.save(file(f"latents/{stem}.npy"), latent(number))
        file(f"captions/{stem}.txt").write_text(f" Bär {number}\n")
        mask = np.full((20 + number, 30), number, np.uint8)
        Image.fromarray(mask).save(file(f"masks/{stem}_mask.png"))
    order = [STEMS[n] for n in SHUFFLED]
    by_stem = {STEMS[n]: latent(n) for n in SHUFFLED}
    np.savez(root / "stored.npz", **by_stem)
    np.savez_compressed(root / "deflated.npz", **by_stem)
    save_file({k: torch.from_numpy(v) for k, v in by_stem.items()}, root / "keyed.safetensors")
    every = np.stack([latent(n) for n in range(5)])
    tensors = {"latent": torch.from_numpy(every), "half": torch.from_numpy(every).bfloat16()}
    save_file(tensors, root / "rows.safetensors")
    np.savez(root / "rows.npz", latent=every, other=np.zeros(3))
    np.save(root / "rows.npy", every)
    rows = [
        {"file_name": f"{stem}.jpg", "text": f"Bär {STEMS.index(stem)}", "more": {"n": [stem]}}
        for stem in order
    ]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (root / "list.json").write_text(json.dumps(rows))
    (root / "by_key.json").write_text(json.dumps({row["file_name"]: row["text"] for row in rows}))
    with (root / "rows.csv").open("w", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["image", "text", "score"])
        writer.writerows([s, f"Bär {STEMS.index(s)}", STEMS.index(s) / 2] for s in order)
    return root


def served(opened: Any, name: str) -> Any:
    column = opened.source.columns[name]
    rows = column.at(np.arange(len(column)))
    return column.kind.objects(rows) if column.kind.python_objects else rows


LATENTS: dict[str, Callable[[Path], tuple[Any, str]]] = {
    "folder": lambda root: (root / "latents", "name"),
    "npz": lambda root: (root / "stored.npz", "name"),
    "deflated": lambda root: (root / "deflated.npz", "name"),
    "safetensors": lambda root: (root / "keyed.safetensors", "name"),
    "dict": lambda root: ({f"{STEMS[n]}.jpg": latent(n) for n in SHUFFLED}, "name"),
    "tensors by number": lambda root: (
        {n: torch.from_numpy(latent(n)) for n in SHUFFLED},
        "index",
    ),
    "rows of safetensors": lambda root: (root / "rows.safetensors", "index"),
    "rows of npz": lambda root: (str(root / "rows.npz"), "index"),
    "npy": lambda root: (root / "rows.npy", "index"),
    "array": lambda root: (np.load(root / "rows.npy"), "index"),
    "data set": lambda root: (
        fastload.open_source({"latent": np.load(root / "rows.npy")}),
        "index",
    ),
}


@pytest.mark.parametrize("partner", LATENTS)
def test_arrays(partner: str, root: Path) -> None:
    given, by = LATENTS[partner](root)
    opened = fastload.join(root / "images", {"latent": given}, by=by)
    np.testing.assert_array_equal(served(opened, "latent"), [latent(n) for n in range(5)])
    assert served(opened, "latent").dtype == np.float16
    assert list(opened.source.columns) == ["image", "label", "latent"]
    # Some samples of it, in another order.
    some = opened.source.take(np.array([4, 1]))
    np.testing.assert_array_equal(some.values["latent"].at(np.array([0, 1]))[1], latent(1))


CAPTIONS: dict[str, Any] = {
    "captions": None,
    "rows.jsonl": "text",
    "list.json": "text",
    "by_key.json": None,
    "rows.csv": "text",
}


@pytest.mark.parametrize("partner", CAPTIONS)
def test_texts(partner: str, root: Path) -> None:
    given = fastload.Partner(root / partner, value=CAPTIONS[partner])
    opened = fastload.join(root / "images", {"caption": given}, by="name")
    assert served(opened, "caption") == [f"Bär {n}" for n in range(5)]


def test_other_values_of_tables(root: Path) -> None:
    opened = fastload.join(
        root / "images", {"more": root / "rows.jsonl", "score": root / "rows.csv"}, by="name"
    )
    assert served(opened, "more") == [{"n": [stem]} for stem in STEMS]
    np.testing.assert_array_equal(served(opened, "score"), np.arange(5) / 2)


def test_parquet(root: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {
        "key": [STEMS[n] for n in SHUFFLED],
        "text": [f"Bär {n}" for n in SHUFFLED],
        "ids": [list(range(n)) for n in SHUFFLED],
        "n": SHUFFLED,
    }
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    partner = fastload.Partner(tmp_path / "t.parquet", key="key")
    opened = fastload.join(root / "images", dict.fromkeys(("text", "ids", "n"), partner), by="name")
    assert served(opened, "text") == [f"Bär {n}" for n in range(5)]
    assert [row.tolist() for row in served(opened, "ids")] == [list(range(n)) for n in range(5)]
    assert served(opened, "n").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("backend", ["turbojpeg", "torch"])
@pytest.mark.whole
def test_batches(backend: str, root: Path) -> None:
    """Masks go with the images; all else is the sample's own, whatever the order."""
    opened = fastload.join(
        root / "images",
        {
            "latent": root / "keyed.safetensors",
            "mask": fastload.Partner(root / "masks", ending="_mask.png"),
            "caption": root / "captions",
            "number": {stem: n for n, stem in enumerate(STEMS)},
        },
        by="name",
    )
    crop = v2.RandomCrop(8)
    with fastload.create_loader(
        opened, 2, shuffle=True, seed=3, transform=crop, backend=backend, num_workers=2
    ) as loader:
        seen = []
        for batch in loader:
            for row, number in enumerate(batch["number"].tolist()):
                seen.append(number)
                assert batch["label"][row] == (0 if number < 2 else 1)
                assert torch.equal(batch["latent"][row], torch.from_numpy(latent(number)))
                assert (batch["mask"][row] == number).all()
                assert batch["mask"].shape[1:] == batch["image"].shape[2:] == (8, 8)
                assert batch["caption"][row] == f"Bär {number}"
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert seen != sorted(seen)


def test_rows_of_variable_length_and_bfloat16(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    rows = [torch.randn(n, 3, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    save_file({STEMS[n]: rows[n].bfloat16() for n in SHUFFLED}, path)
    with pytest.raises(SourceError, match=r"e.safetensors: .* is BF16\[.*ragged=True"):
        fastload.join(root / "images", {"e": path}, by="name")
    opened = fastload.join(root / "images", {"e": fastload.Partner(path, ragged=True)}, by="name")
    for row, expected in zip(served(opened, "e"), rows, strict=True):
        np.testing.assert_array_equal(row, expected.bfloat16().float())
    half = fastload.Partner(root / "rows.safetensors", value="half")
    opened = fastload.join(root / "images", {"half": half}, by="index")
    np.testing.assert_array_equal(served(opened, "half"), [latent(n) for n in range(5)])
    assert served(opened, "half").dtype == np.float32


def test_lengths_of_rows_in_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of parts of a file follow from their places; a budget goes by them."""
    rows = [torch.ones(n + 1, 3) * n for n in range(5)]
    save_file({STEMS[n]: rows[n].bfloat16() for n in SHUFFLED}, tmp_path / "e.safetensors")
    for stem, row in zip(STEMS, rows, strict=True):
        (tmp_path / "npy" / stem).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "npy" / f"{stem}.npy", row.numpy())
    given = {
        "e": fastload.Partner(tmp_path / "e.safetensors", ragged=True),
        "n": fastload.Partner(tmp_path / "npy", ragged=True),
        "caption": fastload.Partner(root / "captions"),
    }
    opened = fastload.join(root / "images", given, by="name")
    columns: dict[str, Any] = dict(opened.source.values)
    assert columns["n"].lengths.tolist() == [1, 2, 3, 4, 5]
    assert columns["caption"].lengths.tolist() == [len(f"Bär {n}".encode()) for n in range(5)]
    some = opened.source.take(np.array([4, 1])).values["e"]
    with monkeypatch.context() as patched:
        patched.delattr(EncodedFiles, "read_many")  # nothing is read
        assert columns["e"].lengths.tolist() == [1, 2, 3, 4, 5]
        assert getattr(some, "lengths").tolist() == [5, 2]  # noqa: B009
    order = fastload.Budget(fastload.Shuffle(), total=6, cost="e")
    with fastload.create_loader(opened, order=order, transform=v2.Resize((8, 8))) as loader:
        for batch in loader:
            assert 0 < sum(map(len, batch["e"])) <= 6


def test_by_a_column(root: Path) -> None:
    """Several samples may have one key."""
    words = {"1": "dogs", "0": "cats", "7": "none"}
    opened = fastload.join(root / "images", {"word": words}, by="label")
    assert served(opened, "word") == ["cats", "cats", "dogs", "dogs", "dogs"]
    assert any("3 rows, of which 1 of no sample" in note for note in opened.notes)
    again = fastload.join(opened, {"n": {"dogs": 2, "cats": 3}}, by="word")
    assert served(again, "n").tolist() == [3, 3, 2, 2, 2]


def test_another_data_set(root: Path) -> None:
    masks = fastload.open_source(root / "masks", format="images")
    with pytest.raises(SourceError, match="has no partner of 5 samples of 5"):
        fastload.join(root / "images", {"mask": masks}, by="name")
    images = fastload.open_source(root / "images", format="images")
    opened = fastload.join(images, {"same": images}, by="name")
    assert opened.source.encoded["same"].describe(3) == str(root / "images" / "dog" / "c.jpg")
    opened = fastload.join(images, {"mask": masks}, by="index")
    assert opened.source.images["mask"].role == "mask"


def test_drop(root: Path) -> None:
    some = {STEMS[n]: latent(n) for n in (4, 1)} | {"dog/z": latent(9)}
    with pytest.raises(
        SourceError, match=r"no partner of 3 samples of 5, the first \S*cat/a.jpg; .*'drop'"
    ):
        fastload.join(root / "images", {"latent": some}, by="name")
    opened = fastload.join(root / "images", {"latent": some}, by="name", missing="drop")
    np.testing.assert_array_equal(served(opened, "latent"), [latent(1), latent(4)])
    assert opened.source.values["label"].at(np.arange(2)).tolist() == [0, 1]
    assert [note for note in opened.notes if "3 samples of 5 left out" in note]
    assert "no partner of 3 samples, 3 rows, of which 1 of no sample" in " ".join(opened.notes)
    with pytest.raises(SourceError, match="no sample has all partners"):
        fastload.join(root / "images", {"latent": {"x": 1}}, by="name", missing="drop")


def test_names(root: Path) -> None:
    def joined(*keys: str) -> list[int]:
        opened = fastload.join(
            root / "images", {"n": {key: n for n, key in enumerate(keys)}}, by="name"
        )
        return list(served(opened, "n").tolist())

    deep = [f"images/{stem}.jpg" for stem in STEMS]
    assert joined(*deep) == [0, 1, 2, 3, 4]
    assert joined(*(str(root / path) for path in deep)) == [0, 1, 2, 3, 4]
    assert joined("cat/a", "./b.jpg".replace("./", "./cat/"), "dog\\a", "dog/c", "dog/d") == [
        *range(5)
    ]
    with pytest.raises(SourceError, match=r"key 'a' may be \S*cat/a.jpg or \S*dog/a.jpg"):
        joined("a", "b", "c", "d")
    with pytest.raises(SourceError, match=r"'cat/a.jpg': is a second partner of \S*cat/a.jpg"):
        joined("cat/a", "cat/a.jpg")
    with pytest.raises(SourceError, match="no partner of 1 sample of 5"):
        joined("cat/a", "b", "dog/a", "dog/c", "dog/d")  # b may be one that lies in the folder
    with pytest.raises(SourceError, match="no partner of 5 samples of 5.*its keys are such as"):
        joined("elsewhere/cat/a")


def test_names_with_backslashes_and_spaces_are_their_own(tmp_path: Path) -> None:
    """On a system where these are letters of names."""
    names = ["a\\b", "a/b", " b", "b"]
    for name in names:
        (tmp_path / f"{name}.jpg").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(photo(8, 8, seed=0)))
    opened = fastload.open_source(tmp_path, format="images")
    ids = {f"{tmp_path}/{name}.jpg": number for number, name in enumerate(names)}
    joined = fastload.join(opened, {"n": {name: n for n, name in enumerate(names)}}, by="name")
    paths = [opened.source.describe(n) for n in range(4)]
    assert served(joined, "n").tolist() == [ids[path] for path in paths]


def test_a_name_in_the_folder_itself_is_its_own(tmp_path: Path) -> None:
    for path in ("a.jpg", "b/a.jpg", "b/a.png"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.fromarray(photo(8, 8, seed=1)).save(tmp_path / path)
    images = fastload.open_source(tmp_path, format="images")
    opened = fastload.join(images, {"n": {"a": 5, "b/a.png": 6, "b/a.jpg": 7}}, by="name")
    assert served(opened, "n").tolist() == [5, 7, 6]
    with pytest.raises(SourceError, match="key 'b/a' may be"):
        fastload.join(images, {"n": {"b/a": 5}}, by="name")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '{"2": "c", "0": "a", "4": "e", "1": "b", "3": "d"}'),
        ("t.json", json.dumps({n: {"name": "no key", "t": "abcde"[n]} for n in (2, 0, 4, 1, 3)})),
        ("t.jsonl", "".join(f'{{"index": {n}, "t": "{"abcde"[n]}"}}\n' for n in (2, 0, 4, 1, 3))),
        ("t.csv", "index,t\n2,c\n0,a\n4,e\n1,b\n3,d\n"),
    ],
)
def test_keys_in_a_table_are_followed_by_index_too(
    name: str, text: str, root: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    partner = fastload.Partner(tmp_path / name, value="t" if "t" in text else None)
    opened = fastload.join(root / "images", {"text": partner}, by="index")
    assert served(opened, "text") == [*"abcde"]


def test_types_that_json_does_not_have(root: Path, tmp_path: Path) -> None:
    """They would come as texts: bytes in base64."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"name": STEMS, "n": [b"a"] * 5, "inner": [{"a": [1.5]}] * 5})
    parquet.write_table(table, tmp_path / "t.parquet")
    partner = fastload.Partner(tmp_path / "t.parquet", value="inner")
    opened = fastload.join(root / "images", {"n": partner}, by="name")
    assert served(opened, "n") == [{"a": [1.5]}] * 5
    with pytest.raises(SourceError, match=r"column 'n' is of binary, which JSON does not have"):
        fastload.join(root / "images", {"n": tmp_path / "t.parquet"}, by="name")


def test_twice_in_a_table(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [f'{{"file_name": "{stem}", "n": 1}}\n' for stem in (*STEMS, STEMS[2])]
    path.write_text("".join(lines))
    with pytest.raises(SourceError, match=r"t.jsonl: line 6: is a second partner of .* line 3;"):
        fastload.join(root / "images", {"n": path}, by="name")


BAD: dict[str, tuple[str, str, str]] = {
    "no JSON": ("t.jsonl", '{"file_name": "a", "n": 1}\n{"file_name"', "line 2 is no JSON"),
    "deep": ("t.jsonl", '{"n": ' + "[" * 9_999 + "}", "line 1 is no JSON"),
    "deep, too": ("t.json", "[" * 9_999, "is no JSON"),
    "a list": ("t.jsonl", "[1]", "line 1 is no object"),
    "no value": ("t.jsonl", '{"file_name": "a", "n": 1}\n{"file_name": "b"}', "line 2: has no 'n'"),
    "no key": ("t.jsonl", '{"file_name": "a", "n": 1}\n{"n": 2}', "line 2: has the key None"),
    "no columns": ("t.jsonl", '{"a": 1, "b": 2}', "holds the keys is not known"),
    "a short row": ("t.csv", "file,n\na,1\nb\n", "row 3 has 1 cell"),
    "empty": ("t.csv", "", "has no rows"),
    "an open quote": ("t.csv", 'file,n\na,"b\nc,d\n', "is no CSV .unexpected end"),
    "a long cell": ("t.csv", f"file,n\na,{'b' * 140_000}\n", "is no CSV .field larger"),
    "a key twice": ("t.json", '{"a": {"n": 1}, "b": {"n": 1}, "a": {"n": 2}}', "the key 'a' twice"),
    "not UTF-8": ("t.csv", "file,n\n\udcff,1\n", "is no UTF-8"),
    "an odd JSON": ("t.json", "3", "neither a list of objects nor an object"),
    "text": ("t.txt", "a 1", "none of the files that are joined"),
    "no safetensors": ("t.safetensors", "abcdefghij", "cannot be read as safetensors"),
    "no npz": ("t.npz", "abcdefghij", "cannot be read"),
    "no npy": ("t.npy", "abcdefghij", "cannot be memory-mapped"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read(case: str, root: Path, tmp_path: Path) -> None:
    name, text, message = BAD[case]
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    by = "index" if name.endswith("npy") else "name"
    with pytest.raises(FastloadError, match=message) as caught:
        fastload.join(root / "images", {"n": tmp_path / name}, by=by)
    assert name in str(caught.value)


CHANGES = ["shape", "offset", "dtype", "length", "short", "hole", "twice", "fraction", "infinity"]


@pytest.mark.parametrize("change", [*CHANGES, "dimensions", "numbers"])
def test_damaged_safetensors(change: str, root: Path, tmp_path: Path) -> None:
    header = {"a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}
    if change == "shape":
        header["a"]["shape"] = [2, 4]
    if change == "offset":
        header["a"]["data_offsets"] = [4, 16]
    if change == "dtype":
        header["a"]["dtype"] = "F8_E4M3"
    if change == "hole":
        header["b"] = {"dtype": "F16", "shape": [0, 3], "data_offsets": [4, 4]}
    if change in ("fraction", "infinity"):
        header["a"]["shape"] = [2.5 if change == "fraction" else float("inf"), 3]
    if change in ("dimensions", "numbers"):
        odd = [1] * 80 if change == "dimensions" else [2**62, 2**62]
        header["b"] = {"dtype": "F16", "shape": [0, *odd], "data_offsets": [12, 12]}
    text = json.dumps(header).replace("Infinity", "1e999").encode()
    if change == "twice":
        text = text[:-1] + b', "a": {"dtype": "F16", "shape": [1, 3], "data_offsets": [6, 12]}}'
    length = len(text) + (10**12 if change == "length" else 0)
    data = struct.pack("<Q", length) + text + bytes(12 if change != "short" else 11)
    (tmp_path / "t.safetensors").write_bytes(data)
    with pytest.raises(SourceError, match=r"t\.safetensors: "):
        fastload.join(root / "images", {"n": tmp_path / "t.safetensors"}, by="name")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "length": ({"partners": {"n": [1, 2]}}, "has 2 rows, and .* nobody knows which row is whose"),
    "no keys": ({"partners": {"n": np.arange(5)}, "by": "name"}, "no keys"),
    "not a number": ({"partners": {"n": {"a": 1}}}, "'a' is no number of a sample, from 0 to 4"),
    "number too high": ({"partners": {"n": {5: 1}}}, "'5' is no number of a sample"),
    "shapes": ({"partners": {"n": {0: [1], 1: [1, 2]}}}, r"1: is int64\[2\], and .* int64\[1\]"),
    "missing": ({"partners": {"n": [1] * 5}, "missing": "skip"}, "must be 'error' or 'drop'"),
    "no column": ({"partners": {"n": {"a": 1}}, "by": "size"}, "no such column; there are image"),
    "not keys": ({"partners": {"n": {"a": 1}}, "by": "image"}, "neither texts nor whole numbers"),
    "there": ({"partners": {"label": [1] * 5}}, "has a column 'label' already"),
    "nothing": ({"partners": {}}, "a dict from the names of columns"),
    "an object": ({"partners": {"n": object()}}, "rows are taken from"),
    "role": ({"partners": {"n": fastload.Partner([1] * 5, role="mask")}}, "cannot be that"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, root: Path) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises((ConfigurationError, SourceError), match=message):
        fastload.join(root / "images", **({"by": "index"} | arguments))


def test_samples_without_names_or_columns(root: Path) -> None:
    arrays = fastload.open_source({"image": np.zeros((2, 4, 4, 3), np.uint8)})
    with pytest.raises(ConfigurationError, match="have no names; join by='index'"):
        fastload.join(arrays, {"n": {"a": 1}}, by="name")
    dataset = torch.utils.data.TensorDataset(torch.zeros(3))

    class Own(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return dataset[index]

    with pytest.raises(ConfigurationError, match=r"made by Python code \(Own\)"):
        fastload.join(Own(), {"n": [1, 2, 3]}, by="index")


def test_a_row_unlike_the_first(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload.sources.places._SAMPLED", 1)
    for stem in STEMS:
        (tmp_path / stem).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{stem}.npy", np.zeros(3 if stem == "dog/c" else 2))
    opened = fastload.join(root / "images", {"n": tmp_path}, by="name")
    with fastload.create_loader(opened, 1, transform=v2.CenterCrop(8)) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with pytest.raises(DecodeError, match=r"dog/c.npy: holds float64\[3\], and the first"):
            next(batches)
    (tmp_path / "dog" / "c.npy").unlink()
    with pytest.raises(DecodeError, match=r"dog/c.npy: cannot be read"):
        served(opened, "n")


def test_states_are_of_the_same_partners(root: Path, tmp_path: Path) -> None:
    def fingerprint(by: str = "name", **partners: Any) -> str:
        return fastload.join(root / "images", partners, by=by).source.fingerprint

    def kept(change: int = 0) -> Path:
        path = tmp_path / "t.safetensors"
        rows = {STEMS[n]: torch.from_numpy(latent(n + change * (n == 2))) for n in SHUFFLED}
        save_file(rows, path)
        return path

    first = fingerprint(n=kept())
    assert fingerprint(n=kept()) == first
    assert fingerprint(n=kept(1)) != first
    assert fingerprint(m=kept()) != first
    words = dict.fromkeys(STEMS, "a")
    assert fingerprint(n=words) != fingerprint(n=words | {"dog/d": "b"})


@pytest.mark.whole
def test_a_cache_has_them(root: Path, tmp_path: Path) -> None:
    partners = {"latent": root / "stored.npz", "caption": root / "captions"}
    opened = fastload.join(root / "images", partners, by="name")
    fastload.build_cache(opened, tmp_path / "cache")
    cached = fastload.open_source(tmp_path / "cache")
    np.testing.assert_array_equal(served(cached, "latent"), [latent(n) for n in range(5)])
    assert served(cached, "caption") == [f"Bär {n}" for n in range(5)]
    # A cache knows the names of its samples.
    again = fastload.join(cached, {"n": {stem: n for n, stem in enumerate(STEMS)}}, by="name")
    assert served(again, "n").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.whole
def test_in_a_store(root: Path, server: ObjectServer) -> None:
    upload(root, server)
    url = "s3://bucket"
    partners = {
        "folder": f"{url}/latents",
        "npz": f"{url}/deflated.npz",
        "keyed": f"{url}/keyed.safetensors",
        "caption": f"{url}/captions",
        "text": f"{url}/rows.jsonl",
    }
    opened = fastload.join(f"{url}/images", partners, by="name")
    for name in ("folder", "npz", "keyed"):
        np.testing.assert_array_equal(served(opened, name), [latent(n) for n in range(5)])
    for name in ("caption", "text"):
        assert served(opened, name) == [f"Bär {n}" for n in range(5)]


def test_rows_are_read_when_they_are_needed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = EncodedFiles.read_many

    def counted(self: EncodedFiles, indices: Any) -> Any:
        read.extend(indices.tolist())
        return whole(self, indices)

    monkeypatch.setattr(EncodedFiles, "read_many", counted)
    opened = fastload.join(root / "images", {"latent": root / "latents"}, by="name")
    assert read == [0]  # its dtype and shape are those of all
    opened.source.values["latent"].at(np.array([3, 1]))
    assert read == [0, 3, 1]


@pytest.mark.parametrize("mixed", [False, True])
def test_a_file_of_rows_that_changes_is_an_error(mixed: bool, root: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_file({STEMS[n]: torch.from_numpy(latent(n)) for n in SHUFFLED}, path)
    opened = fastload.join(root / "images", {"n": path}, by="name")
    if mixed:
        opened = fastload.mix({"a": opened, "b": opened})
    with fastload.create_loader(opened, 5, transform=v2.CenterCrop(8)) as loader:
        next(iter(loader))
        save_file({STEMS[n]: torch.from_numpy(latent(n)) for n in reversed(SHUFFLED)}, path)
        with pytest.raises(FastloadError, match=r"t.safetensors: was written again"):
            next(iter(loader))


@pytest.mark.parametrize("kind", ["safetensors", "rows", "npz"])
def test_a_file_of_rows_that_changes_meanwhile_is_an_error(
    kind: str, root: Path, tmp_path: Path
) -> None:
    """Before a loader is made, and within an epoch."""
    path = tmp_path / ("t.npz" if kind == "npz" else "t.safetensors")

    def write(order: list[int]) -> None:
        if kind == "npz":
            np.savez(path, **{STEMS[n]: latent(n) for n in order})
        elif kind == "rows":
            save_file({"n": torch.from_numpy(np.stack([latent(n) for n in order]))}, path)
        else:
            save_file({STEMS[n]: torch.from_numpy(latent(n)) for n in order}, path)
        # Clocks of files move every 4 ms or so: two writes may have one time.
        times.append(times[-1] + 1_000_000_000)
        os.utime(path, ns=(times[-1], times[-1]))

    times = [1_700_000_000_000_000_000]
    write(SHUFFLED)
    by = "index" if kind == "rows" else "name"
    opened = fastload.join(root / "images", {"n": path}, by=by)
    served(opened, "n")
    write(SHUFFLED[::-1])
    with pytest.raises(SourceError, match=rf"{path.name}: was written again"):
        served(opened, "n")
    with pytest.raises(SourceError, match=rf"{path.name}: was written again"):
        fastload.create_loader(opened, 5, transform=v2.CenterCrop(8))


def test_npy_files_in_other_forms(tmp_path: Path) -> None:
    """Of another order in memory, and of another version of the format."""
    rows = [np.arange(6.0).reshape(2, 3) + n for n in range(4)]
    (tmp_path / "n").mkdir()
    for n, row in enumerate(rows):
        with (tmp_path / "n" / f"{n}.npy").open("wb") as file:
            order = np.asfortranarray(row) if n == 1 else row
            np.lib.format.write_array(file, order, version=(3, 0) if n == 2 else (1, 0))
    opened = fastload.join({"x": np.arange(4)}, {"n": tmp_path / "n"}, by="index")
    np.testing.assert_array_equal(served(opened, "n"), rows)


def test_npy_files_with_several_arrays_are_refused(root: Path, tmp_path: Path) -> None:
    for stem in STEMS:
        (tmp_path / stem).parent.mkdir(exist_ok=True)
        with (tmp_path / f"{stem}.npy").open("wb") as file:
            np.save(file, np.arange(3))
            np.save(file, np.arange(3))
    with pytest.raises(SourceError, match=r"a\.npy: .* bytes follow the first array"):
        fastload.join(root / "images", {"n": tmp_path}, by="name")


def test_twice_in_an_archive(root: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", **{stem: np.zeros(1) for stem in STEMS})
    with zipfile.ZipFile(tmp_path / "t.npz", "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's own, of the name
        archive.writestr("cat/a.npy", archive.read("cat/b.npy"))
    with pytest.raises(SourceError, match=r"t\.npz: cat/a is in it twice"):
        fastload.join(root / "images", {"n": tmp_path / "t.npz"}, by="name")


def test_a_mix_that_lacks_samples_does_not_locate_them(root: Path) -> None:
    mixed = fastload.mix({"a": root / "images", "b": root / "images"}, origin=True)
    whole = fastload.join(mixed, {"n": dict.fromkeys(STEMS, 1)}, by="name")
    assert whole.locate(5) == ("b", 0)
    some = fastload.join(mixed, {"n": dict.fromkeys(STEMS[1:], 1)}, by="name", missing="drop")
    assert served(some, "origin").tolist() == [0] * 4 + [1] * 4
    assert not hasattr(some, "locate")


def test_messages_say_keys_and_files(root: Path) -> None:
    opened = fastload.join(root / "images", {"n": root / "rows.npy"}, by="index")
    assert re.search(r"'n' joined by index: \S*rows.npy", " ".join(opened.notes))
