"""Sources from outside the package: bytes, pixels and values from anywhere, on every backend, and
formats to open them.

The classes here are all that somebody with a database or an object store would write.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, DecodeError, SourceError, WorkerError
from fastload.sources import (
    EncodedFiles,
    EncodedImages,
    Format,
    OpenOptions,
    PixelImages,
    Source,
    ValueArray,
    Values,
    fingerprint_of,
    opening,
    register_format,
)
from fastload.sources.buffers import PathTable
from tests import images
from tests.backends import Contestant, contestants
from tests.test_sources_folders import touch

CROP = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])


class Store(EncodedImages):
    """Images as they lie in a database: bytes by key. Begin of what a user would write."""

    def __init__(self, blobs: dict[str, bytes], role: Any = "image") -> None:
        self.blobs, self.keys, self._role = blobs, sorted(blobs), role

    @property
    def role(self) -> Any:
        return self._role

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, index: int) -> bytes:
        blob = self.blobs[self.keys[index]]
        if not blob:
            raise OSError(f"the store has lost {self.keys[index]}")
        return blob

    def describe(self, index: int) -> str:
        return f"store://photos/{self.keys[index]}"


def source_of(blobs: dict[str, bytes]) -> Source:
    labels = np.arange(len(blobs)) % 3
    columns = {"image": Store(blobs), "label": ValueArray(labels)}
    return Source(
        columns, fingerprint_of("store", *blobs, labels), "store://photos", classes=("a", "b", "c")
    )


# End of it.


@pytest.fixture
def blobs() -> dict[str, bytes]:
    kept = {f"{n:02}": images.jpeg(images.photo(40 + 3 * n, 60, seed=n)) for n in range(11)}
    kept["05"] = images.png(images.photo(50, 44, seed=5))
    return kept


def in_folder(blobs: dict[str, bytes], folder: Path) -> Source:
    """The same samples as files."""
    folder.mkdir()
    for key, blob in blobs.items():
        if blob:
            (folder / key).write_bytes(blob)
    files = EncodedFiles(PathTable.of(sorted(blobs), str(folder)))
    return Source(
        {"image": files, "label": ValueArray(np.arange(len(blobs)) % 3)}, "f" * 32, str(folder)
    )


def batches(loader: fastload.Loader) -> list[tuple[torch.Tensor, ...]]:
    with loader:
        return [tuple(column.cpu().clone() for column in batch) for batch in loader]


def check_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 1
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.whole
@contestants()
@pytest.mark.parametrize(
    "transform",
    [CROP, v2.Compose([v2.Pad(2), v2.RandomCrop(32)])],
    ids=["boxes by the core", "boxes by Python"],
)
def test_bytes_from_anywhere_are_served_as_files_are(
    contestant: Contestant, blobs: dict[str, bytes], transform: Any, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 3,
        "transform": transform,
    }
    stored = contestant.create(source_of(blobs), tmp_path / "stored", **arguments)
    files = contestant.create(in_folder(blobs, tmp_path / "files"), tmp_path / "filed", **arguments)
    check_equal(batches(stored), batches(files))


@contestants()
def test_what_cannot_be_read_is_an_error_that_names_it(
    contestant: Contestant, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    blobs["07"] = b""
    loader = contestant.create(source_of(blobs), tmp_path, batch_size=4, transform=CROP)
    with pytest.raises(
        DecodeError, match=r"store://photos/07: cannot be read: the store has lost 07"
    ):
        batches(loader)


@pytest.mark.whole
@contestants()
def test_what_cannot_be_read_is_substituted(
    contestant: Contestant, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    blobs["07"], blobs["09"] = b"", images.HTML
    arguments: dict[str, Any] = {"batch_size": 4, "transform": CROP, "on_error": "substitute"}
    loader = contestant.create(source_of(blobs), tmp_path / "stored", **arguments)
    files = contestant.create(in_folder(blobs, tmp_path / "files"), tmp_path / "filed", **arguments)
    check_equal(batches(loader), batches(files))
    assert loader.stats().substituted >= 2  # samples of the next epoch, read ahead, count as well


@contestants("torch-0", "turbojpeg", "turbojpeg-threads", "dali")
def test_a_fault_of_the_column_itself_is_not_taken_for_a_bad_sample(
    contestant: Contestant, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    source = source_of(blobs)
    del blobs["07"]  # read() has a KeyError
    loader = contestant.create(
        source, tmp_path, batch_size=4, transform=CROP, on_error="substitute"
    )
    with pytest.raises((WorkerError, KeyError), match="07"):
        batches(loader)


@contestants("torch-0", "turbojpeg", "turbojpeg-threads", "dali")
def test_many_are_read_in_one_call(
    contestant: Contestant, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    calls: list[list[int]] = []

    class Batched(Store):
        def read_many(self, indices: npt.NDArray[np.int64]) -> list[bytes]:
            calls.append(indices.tolist())
            return [blobs[self.keys[index]] for index in indices.tolist()]

        def read(self, index: int) -> bytes:
            raise AssertionError("one at a time")

    blobs["05"] = blobs["04"]  # no sample that the native core gives back
    source = Source({"image": Batched(blobs)}, "b" * 32, "batched")
    assert len(batches(contestant.create(source, tmp_path, batch_size=6, transform=CROP))) == 2
    assert {index for call in calls for index in call} == set(range(11))
    assert min(map(len, calls)) >= 2


def test_subsets_and_pickles_of_a_column(blobs: dict[str, bytes]) -> None:
    column = Store(blobs)
    part = column.take(np.array([9, 2, 5])).take(np.array([2, 0]))
    assert [part.read(n) for n in range(len(part))] == [blobs["05"], blobs["09"]]
    assert [part.describe(n) for n in range(2)] == ["store://photos/05", "store://photos/09"]
    again = pickle.loads(pickle.dumps(part))
    assert list(again.read_many(np.arange(2))) == [blobs["05"], blobs["09"]]
    assert part.role == "image"
    assert Store(blobs, "mask").take(np.arange(2)).channels == 1


class Rendered(PixelImages):
    """Pixels that are made when they are asked for."""

    def __init__(self, count: int, bad: int = -1) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        if index == self.bad:
            raise DecodeError(f"picture {index} cannot be drawn")
        return images.photo(40 + index, 50, seed=index)

    def take(self, indices: npt.NDArray[np.int64]) -> Any:
        raise NotImplementedError


class Squares(Values):
    """Numbers that are computed."""

    def __len__(self) -> int:
        return 9

    def at(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return np.stack([indices, indices**2], axis=1).astype(np.int32)

    def take(self, indices: npt.NDArray[np.int64]) -> Any:
        raise NotImplementedError


@contestants()
def test_pixels_and_values_from_anywhere(contestant: Contestant, tmp_path: Path) -> None:
    source = Source({"image": Rendered(9), "square": Squares()}, "r" * 32, "rendered")
    loader = contestant.create(source, tmp_path, batch_size=4, transform=v2.CenterCrop(32))
    got = batches(loader)
    pixels, numbers = (torch.cat(column) for column in zip(*got, strict=True))
    for index in range(9):
        wanted = v2.functional.center_crop(
            torch.from_numpy(images.photo(40 + index, 50, seed=index)).movedim(2, 0), 32
        )
        assert torch.equal(pixels[index], wanted)
    assert numbers.tolist() == [[n, n * n] for n in range(9)]


@contestants()
def test_a_picture_that_cannot_be_made(contestant: Contestant, tmp_path: Path) -> None:
    source = Source({"image": Rendered(9, bad=4)}, "r" * 32, "rendered")
    with pytest.raises(DecodeError, match="picture 4 cannot be drawn"):
        batches(contestant.create(source, tmp_path, batch_size=4, transform=v2.CenterCrop(32)))


def test_what_is_no_column_is_refused() -> None:
    with pytest.raises(
        SourceError, match=r"column 'image' is a list, which is no column.*EncodedImages"
    ):
        Source({"image": [b"", b""]}, "f", "test")  # type: ignore[dict-item]


# Formats


@pytest.fixture
def store_format(blobs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> list[OpenOptions]:
    """`store://photos` can be opened."""
    monkeypatch.setattr(opening, "_registered", [])
    seen: list[OpenOptions] = []

    def open_store(spec: str, options: OpenOptions) -> Source:
        seen.append(options)
        return source_of(blobs)

    form = Format(
        "photo store",
        lambda spec: str(spec).startswith("store://"),
        open_store,
        frozenset({"split"}),
    )
    register_format(form)
    return seen


def test_a_registered_format_is_opened_by_all_that_open(
    store_format: list[OpenOptions], blobs: dict[str, bytes], tmp_path: Path
) -> None:
    opened = fastload.open_source("store://photos", split="test")
    assert opened.source.describe(3) == "store://photos/03"
    assert store_format[0].split == "test"
    given = batches(fastload.create_loader(source_of(blobs), batch_size=4, transform=CROP))
    check_equal(
        batches(fastload.create_loader("store://photos", batch_size=4, transform=CROP)), given
    )
    directory = fastload.build_cache("store://photos", tmp_path / "cache", progress=False)
    cached = fastload.create_loader(directory, batch_size=4, transform=CROP)
    assert [labels.tolist() for _, labels in batches(cached)] == [
        labels.tolist() for _, labels in given
    ]


def test_a_registered_format_is_held_to_its_options(store_format: list[OpenOptions]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"labels='fine' means nothing to the format 'photo store'"
    ):
        fastload.open_source("store://photos", labels="fine")
    assert not store_format


def test_the_last_registered_format_comes_first(
    store_format: list[OpenOptions], tmp_path: Path
) -> None:
    numbers = Source({"value": ValueArray(np.arange(4))}, "n" * 32, "numbers")
    register_format(
        Format(
            "everything", lambda spec: True, lambda spec, options: fastload.sources.Opened(numbers)
        )
    )
    assert fastload.open_source(tmp_path).source is numbers
    assert fastload.open_source("store://photos").source is numbers
    register_format(Format("everything", lambda spec: False, lambda spec, options: numbers))
    assert fastload.open_source("store://photos").source.name == "store://photos"


def test_an_unknown_format_is_refused_with_the_nearest(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg")
    with pytest.raises(
        ConfigurationError,
        match=r"format='foldr': there is no such format; .*Did you mean folder\?",
    ):
        fastload.create_loader(fastload.open_source(tmp_path, format="foldr"))
    with pytest.raises(
        SourceError,
        match=r"format='pairs' .*Leave format out.*class folder",
    ):
        fastload.open_source(tmp_path, format="pairs")
    with pytest.raises(
        ConfigurationError, match=r"format='folder' means nothing to an opened source"
    ):
        fastload.open_source(fastload.open_source(tmp_path), format="folder")
    assert fastload.open_source(tmp_path, format="folder").source.format == "class folder"
