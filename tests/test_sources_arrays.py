"""Arrays, tensors and `.npy` files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import Opened, Source, open_source
from fastload.sources.columns import PixelImages, Values

RNG = np.random.default_rng(0)
PHOTOS = RNG.integers(0, 256, (6, 8, 10, 3), dtype=np.uint8)
LABELS = np.arange(6)


def pixels(source: Source, name: str = "image") -> np.ndarray[Any, Any]:
    column = source.columns[name]
    assert isinstance(column, PixelImages)
    assert column.channels == column.array.shape[3]
    return column.array


def values(source: Source, name: str) -> np.ndarray[Any, Any]:
    column = source.columns[name]
    assert isinstance(column, Values)
    return column.array


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, np.int64])
def test_images_and_labels(dtype: type) -> None:
    source = open_source((PHOTOS, LABELS.astype(dtype))).source
    assert list(source.columns) == ["image", "label"]
    assert source.layout == "tuple"
    assert np.shares_memory(pixels(source), PHOTOS)
    assert values(source, "label").dtype == np.int64
    assert values(source, "label").tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (PHOTOS, PHOTOS),
        (PHOTOS[..., 0], PHOTOS[..., :1]),
        (PHOTOS[..., :1], PHOTOS[..., :1]),
        (PHOTOS.transpose(0, 3, 1, 2), PHOTOS),
        (torch.from_numpy(PHOTOS).permute(0, 3, 1, 2), PHOTOS),
        (torch.from_numpy(PHOTOS), PHOTOS),
        (torch.from_numpy(PHOTOS[..., 0]), PHOTOS[..., :1]),
        # Both readings fit: numpy's and torch's own order.
        (PHOTOS[:, :3], PHOTOS[:, :3]),
        (torch.from_numpy(PHOTOS[:, :3]), PHOTOS[:, :3].transpose(0, 2, 3, 1)),
    ],
)
def test_layouts_of_images(images: Any, expected: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(pixels(open_source((images, LABELS)).source), expected)


@pytest.mark.parametrize(
    "array",
    [PHOTOS.astype(np.float32), PHOTOS[:, :, :, [0, 1]], PHOTOS[:, 0, 0], PHOTOS.astype(np.int64)],
)
def test_what_does_not_look_like_images_is_passed_on(array: np.ndarray[Any, Any]) -> None:
    source = open_source((array, LABELS.astype(np.int32))).source
    assert list(source.columns) == ["value", "value_1"]
    assert np.shares_memory(values(source, "value"), array)
    assert values(source, "value_1").dtype == np.int32


def test_images_and_masks() -> None:
    source = open_source((PHOTOS, PHOTOS[..., 0], LABELS)).source
    assert [(name, column.role) for name, column in source.columns.items()] == [
        ("image", "image"),
        ("mask", "mask"),
        ("label", "value"),
    ]


def test_token_ids_in_a_dict() -> None:
    ids, mask = RNG.integers(0, 9, (6, 4), dtype=np.int32), torch.ones(6, 4, dtype=torch.bool)
    source = open_source({"input_ids": ids, "attention_mask": mask, "labels": ids - 100}).source
    assert source.layout == "dict"
    assert list(source.columns) == ["input_ids", "attention_mask", "labels"]
    np.testing.assert_array_equal(values(source, "labels"), ids - 100)
    assert values(source, "attention_mask").dtype == np.bool_


def test_images_in_a_dict() -> None:
    source = open_source(
        {"label": LABELS, "image": PHOTOS, "mask": PHOTOS[..., 0], "other": PHOTOS}
    ).source
    assert [column.role for column in source.columns.values()] == [
        "value",
        "image",
        "mask",
        "value",
    ]


def test_npy_files_are_memory_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", PHOTOS)
    np.save(tmp_path / "y.npy", LABELS)
    pair = open_source((tmp_path / "x.npy", str(tmp_path / "y.npy"))).source
    assert isinstance(pixels(pair), np.memmap)
    np.testing.assert_array_equal(pixels(pair), PHOTOS)
    tokens = open_source({"input_ids": tmp_path / "y.npy"}).source
    assert isinstance(values(tokens, "input_ids"), np.memmap)
    single = open_source(tmp_path / "y.npy").source
    assert single.name == str(tmp_path / "y.npy")
    assert values(single, "value").tolist() == LABELS.tolist()


def test_mapped_images_with_channels_first_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ascontiguousarray(PHOTOS.transpose(0, 3, 1, 2)))
    with pytest.raises(SourceError, match=r"x\.npy: .*channels first.*\(N, H, W, C\)"):
        open_source((tmp_path / "x.npy", LABELS))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ((PHOTOS, LABELS[:5]), ["0 has 6", "1 has 5", "one row a sample"]),
        ({"a": LABELS, "b": LABELS[1:]}, ["'a' has 6", "'b' has 5"]),
        ((np.array([[1], [1, 2]], dtype=object), LABELS[:2]), ["dtype object", "pad rows"]),
        ({"text": np.array([b"a", b"b"])}, ["'text'", "dtype |S1"]),
        ((np.zeros((0, 4, 4, 3), np.uint8), LABELS[:0]), ["no samples"]),
        ((PHOTOS, LABELS - 1), ["sample 0 has the label -1", "0 or more"]),
        ((PHOTOS, np.full(6, 2**63, np.uint64)), ["9223372036854775808", "6 samples"]),
        ((np.array(3),), ["single number"]),
        ((PHOTOS, np.ma.masked_equal(LABELS, 1)), ["array 1", "masked array", "filled"]),  # type: ignore[no-untyped-call]
        ((PHOTOS, torch.zeros(6).to_sparse()), ["sparse", "to_dense().cpu()"]),
        ((torch.zeros(6, dtype=torch.bfloat16),), ["bfloat16", "tensor.float()"]),
        ((torch.zeros(6, device="meta"),), ["meta", ".cpu()"]),
        ((PHOTOS, [0, 1, 2, 3, 4, 5]), ["1: list", "numpy.asarray"]),
        ({"train": range(3)}, ["'train': range", "numpy.asarray"]),
        ((), ["tuple of ()"]),
        (["a.jpg", "b.jpg"], ["2 items", "'a.jpg'", "give the folder"]),
        (None, ["None", "expected a path"]),
        (b"data/train", ["b'data/train'", "expected a path"]),
    ],
)
def test_bad_arrays(spec: Any, words: list[str]) -> None:
    with pytest.raises(SourceError) as error:
        open_source(spec)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be memory-mapped"),
        (b"<html>", "cannot be memory-mapped"),
        (None, "cannot be memory-mapped"),
    ],
)
def test_bad_npy_files(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "x.npy"
    if content is None:
        np.save(path, PHOTOS)
        content = path.read_bytes()[:-1]
    path.write_bytes(content)
    with pytest.raises(SourceError, match=rf"x\.npy: {words}"):
        open_source(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match=r"x\.npy: .*numpy\.save"):
        open_source(path)
    with pytest.raises(SourceError, match="no such file"):
        open_source({"x": tmp_path / "y.npy"})


def test_classes_bound_the_labels() -> None:
    assert open_source((PHOTOS, LABELS), classes=list("abcdef")).source.classes == tuple("abcdef")
    with pytest.raises(
        SourceError, match=r"array 1: sample 5 has the label 5, labels must be 0 to 4 \(5 classes\)"
    ):
        open_source((PHOTOS, LABELS), classes=list("abcde"))
    with pytest.raises(ConfigurationError, match=r"expected a list of strings, such as \['abc'\]"):
        open_source((PHOTOS, LABELS), classes="abc")
    with pytest.raises(
        ConfigurationError, match=r"split='test' means nothing to the format 'arrays'"
    ):
        open_source((PHOTOS, LABELS), split="test")


def test_fingerprint_follows_content_dtype_and_names() -> None:
    changed = PHOTOS.copy()
    changed[3, 4, 5, 1] ^= 1
    specs: list[Any] = [
        (PHOTOS, LABELS),
        (changed, LABELS),
        (PHOTOS, LABELS[::-1].copy()),
        {"image": PHOTOS, "label": LABELS},
        {"image": PHOTOS, "other": LABELS},
        {"image": PHOTOS, "label": LABELS.astype(np.int32)},
    ]
    assert len({open_source(spec).source.fingerprint for spec in specs[:3]}) == 3
    assert len({open_source(spec).source.fingerprint for spec in specs[3:]}) == 3
    assert (
        open_source((PHOTOS.copy(), LABELS)).source.fingerprint
        == open_source((PHOTOS, LABELS)).source.fingerprint
    )


def test_fingerprint_of_a_large_array_reads_little_of_it(tmp_path: Path) -> None:
    def fingerprint(shape: tuple[int, ...], row: int | None = None) -> str:
        array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, shape)
        if row is not None:
            array[row] = 1
        del array
        return open_source({"x": tmp_path / "x.npy"}).source.fingerprint

    rows = 1 << 15
    fingerprints = {
        fingerprint((rows, 1024)),
        fingerprint((rows, 1024), 0),
        fingerprint((rows, 1024), rows - 1),
    }
    assert len(fingerprints | {fingerprint((rows + 1, 1024)), fingerprint((rows, 512, 2))}) == 5


def test_what_is_open_already() -> None:
    opened = open_source((PHOTOS, LABELS))
    assert open_source(opened) is opened
    assert open_source(opened.source) == Opened(opened.source)
    with pytest.raises(
        ConfigurationError, match=r"split='train' means nothing to an opened source"
    ):
        open_source(opened, split="train")
