"""Data sets of Hugging Face's `datasets`: the samples that a DataLoader over them gets."""

from __future__ import annotations

import gc
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import fastload
from fastload import native
from fastload.backends.tolerance import PixelDifference, Tolerance
from fastload.errors import SourceError
from fastload.sources import open_source
from fastload.sources.formats.huggingface import ArrowImages
from fastload.tools.pack import PackOptions, pack
from fastload.tools.pack.contents import with_orientation
from fastload.tools.pack.plan import ShardFormat
from tests import images
from tests.backends import Contestant, contestants

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")

SIZES = [(20 + row, 30) for row in range(7)]
PHOTOS = [images.jpeg(images.photo(*size, seed=row)) for row, size in enumerate(SIZES)]
LABELS = [0, 1, 1, 0, 1, 0, 1]
SHAPE = v2.Compose([v2.Resize((16, 16)), v2.ToImage()])


def made(photos: list[bytes] = PHOTOS, **more: Any) -> Any:
    """As `load_dataset` makes it: a table of structs of bytes and a path."""
    columns = {
        "image": [{"bytes": photo, "path": f"{row}.jpg"} for row, photo in enumerate(photos)],
        "label": LABELS,
        **{name: values for name, (values, _) in more.items()},
    }
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            **{name: feature for name, (_, feature) in more.items()},
        }
    )
    return datasets.Dataset.from_dict(columns, features=features)


def on_disk(dataset: Any, folder: Path) -> Any:
    """Mapped from several Arrow files, in many chunks."""
    dataset.save_to_disk(str(folder), num_shards=2)
    return datasets.load_from_disk(str(folder))


def by_a_dataloader(dataset: Any) -> dict[str, torch.Tensor]:
    """All samples, by Hugging Face's own code and torchvision."""

    class Samples(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, row: int) -> Any:
            sample = dataset[row]
            return {**sample, "image": SHAPE(sample["image"].convert("RGB"))}

    return next(iter(DataLoader(Samples(), batch_size=len(dataset))))


def assert_same(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], psnr: float | None = None
) -> None:
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert found[name].dtype == values.dtype, name
        if name != "image":
            assert torch.equal(found[name].cpu(), values), name
    difference = PixelDifference.between(found["image"].cpu(), wanted["image"])
    assert Tolerance(psnr_cpu=psnr).allows(difference), difference


@pytest.mark.slow
@contestants()
def test_samples_are_those_of_a_dataloader(contestant: Contestant, tmp_path: Path) -> None:
    numbers = {
        "weight": ([0.5 * row for row in range(7)], datasets.Value("float32")),
        "year": (list(range(2000, 2007)), datasets.Value("uint16")),
        "sharp": ([row % 2 == 0 for row in range(7)], datasets.Value("bool")),
    }
    dataset = on_disk(made(**numbers), tmp_path / "saved").select([6, 2, 2, 0, 5])
    assert open_source(dataset).source.encoded
    with contestant.create(dataset, tmp_path, batch_size=5, transform=SHAPE) as loader:
        found = next(iter(loader))
    assert_same(found, by_a_dataloader(dataset), contestant.psnr)


@contestants()
def test_images_are_turned_upright_as_by_datasets(contestant: Contestant, tmp_path: Path) -> None:
    turned = [with_orientation(photo, row + 1) for row, photo in enumerate(PHOTOS)]
    dataset = made(turned)
    assert Image.open(io.BytesIO(turned[5])).getexif()[0x0112] == 6
    with contestant.create(dataset, tmp_path, batch_size=7, transform=SHAPE) as loader:
        found = next(iter(loader))
    assert_same(found, by_a_dataloader(dataset), contestant.psnr)


def test_what_is_packed_is_turned_upright_too(tmp_path: Path) -> None:
    dataset = made([with_orientation(photo, row + 1) for row, photo in enumerate(PHOTOS)])
    formats: tuple[ShardFormat, ...] = ("tar", "parquet")
    for to in formats:
        pack(dataset, tmp_path / to, PackOptions(format=to), progress=False)
        with fastload.create_loader(tmp_path / to, 7, transform=SHAPE) as loader:
            assert_same(next(iter(loader)), by_a_dataloader(dataset))


def test_images_stored_as_paths_are_read_as_files(tmp_path: Path) -> None:
    for row, photo in enumerate(PHOTOS):
        (tmp_path / f"{row}.jpg").write_bytes(photo)
    paths = [str(tmp_path / f"{row}.jpg") for row in range(7)]
    dataset = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    source = open_source(dataset.select([3, 1])).source
    assert [source.describe(row) for row in range(2)] == [paths[3], paths[1]]
    assert source.encoded["image"].in_files(np.arange(2)) is not None
    with fastload.create_loader(dataset.select([3, 1]), 2, transform=SHAPE) as loader:
        assert_same(next(iter(loader)), by_a_dataloader(dataset.select([3, 1])))


def test_the_order_of_select_and_shuffle_is_kept(tmp_path: Path) -> None:
    dataset = on_disk(made(), tmp_path / "saved").shuffle(seed=3).select(range(1, 6))
    source = open_source(dataset).source
    assert source.values["label"].at(np.arange(5)).tolist() == dataset["label"][:]
    with_bytes = dataset.cast_column("image", datasets.Image(decode=False))
    column = source.encoded["image"]
    assert [column.read(row) for row in range(5)] == [row["image"]["bytes"] for row in with_bytes]
    assert column.read_start(2, 10) == column.read(2)[:10]
    assert source.classes == ("cat", "dog")
    assert with_bytes[4]["image"]["path"] in source.describe(4)


def test_a_column_travels_as_names_of_files(tmp_path: Path) -> None:
    photos = [images.jpeg(images.photo(200, 300, seed=row), quality=95) for row in range(7)]
    column = open_source(on_disk(made(photos), tmp_path / "saved")).source.encoded["image"]
    sent = pickle.dumps(column)
    assert len(sent) < len(photos[0])
    assert [pickle.loads(sent).read(row) for row in range(7)] == photos


@pytest.mark.parametrize("chunks", [1, 3])
def test_images_are_handed_to_the_core_as_they_lie_in_the_table(
    chunks: int, tmp_path: Path
) -> None:
    parts = [made().select(range(7)) for _ in range(chunks)]
    dataset = on_disk(datasets.concatenate_datasets(parts), tmp_path / "saved").select([5, 0, 6, 3])
    column = open_source(dataset).source.encoded["image"]
    assert isinstance(column, ArrowImages)
    del dataset, parts
    wanted = [PHOTOS[row] for row in (5, 0, 6, 3)]
    for indices in ([0, 1, 2, 3], [3, 0]):
        views = column.views(np.array(indices))
        assert [bytes(view) for view in views] == [wanted[index] for index in indices]
        again = column.views(np.array(indices))
        assert all(map(np.shares_memory, views, again))
    taken = column.take(np.array([2, 0]))
    del column, again
    gc.collect()
    assert [bytes(view) for view in views] == [wanted[3], wanted[0]], "the file stays mapped"
    assert np.shares_memory(taken.views(np.array([1]))[0], views[1])


@pytest.mark.skipif(not native.available(), reason="the native core is not built here")
def test_only_views_of_the_table_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = on_disk(made(), tmp_path / "saved")

    def refuse(*_: Any) -> None:
        raise AssertionError("a copy was made")

    monkeypatch.setattr(ArrowImages, "read", refuse)
    with fastload.create_loader(dataset, 7, transform=SHAPE, backend="turbojpeg") as loader:
        assert_same(next(iter(loader)), by_a_dataloader(dataset))


def test_the_fingerprint_is_of_the_samples(tmp_path: Path) -> None:
    saved = on_disk(made(), tmp_path / "saved")
    first = open_source(saved).source.fingerprint
    assert open_source(made()).source.fingerprint == first
    assert open_source(saved.select([1, 0, 2, 3, 4, 5, 6])).source.fingerprint != first
    other = [*PHOTOS[:-1], images.jpeg(images.photo(26, 30, seed=99))]
    assert open_source(made(other)).source.fingerprint != first


def test_the_fingerprint_knows_the_order_of_images_of_equal_lengths() -> None:
    pictures = [images.png(np.full((8, 8, 3), row, np.uint8)) for row in range(200)]
    assert len({*map(len, pictures[10:30])}) == 1
    columns = {"image": [{"bytes": picture, "path": None} for picture in pictures]}
    features = datasets.Features({"image": datasets.Image()})
    whole = datasets.Dataset.from_dict(columns, features=features)

    def fingerprint(rows: list[int]) -> str:
        return open_source(whole.select(rows)).source.fingerprint

    swapped = [*range(13), 14, 13, *range(15, 200)]  # neither of those whose bytes are sampled
    assert fingerprint(swapped) != fingerprint([*range(200)])
    assert fingerprint(swapped) == fingerprint(swapped)


def test_the_fingerprint_knows_the_names_of_the_classes() -> None:
    other = made().cast_column("label", datasets.ClassLabel(names=["dog", "cat"]))
    assert open_source(other).source.values["label"].at(np.arange(7)).tolist() == LABELS
    assert open_source(other).source.fingerprint != open_source(made()).source.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda d: datasets.concatenate_datasets([d, d]).select([8, 1]),
        lambda d: datasets.interleave_datasets([d, d]),
        lambda d: d.with_format(None, columns=["label", "image"]),
    ],
    ids=["concatenate", "interleave", "format"],
)
def test_columns_come_in_the_order_of_the_data_set(change: Any) -> None:
    dataset = change(made(age=([5] * 7, datasets.Value("int64"))))
    with fastload.create_loader(dataset, len(dataset), transform=SHAPE) as loader:
        assert_same(next(iter(loader)), by_a_dataloader(dataset))


def halves(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"half": [label / 2 for label in batch["label"]]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.with_transform(halves), "its transform makes them"),
        (lambda d: d.with_format("numpy"), "its format makes them"),
        (
            lambda d: d.with_format(None, columns=["image"], output_all_columns=True),
            "its format makes them",
        ),
        (lambda d: d.add_column("data", [b"a"] * 7), "column 'data' (binary)"),
        (lambda d: d.add_column("gap", [1, None, 3, 4, 5, 6, 7]), "rows without a value"),
        (lambda d: d.cast_column("image", datasets.Image(mode="L")), "of the mode 'L'"),
        (lambda d: d.cast_column("image", datasets.Image(decode=False)), "not to be decoded"),
        (lambda d: d.remove_columns("image"), "no column of images"),
        (
            lambda d: (
                d.remove_columns("label")
                .add_column("label", [0, 1, -1, 0, 0, 0, 0])
                .cast(d.features)
            ),
            "has the label -1",
        ),
    ],
)
def test_what_is_not_understood_runs_as_it_is(change: Any, why: str) -> None:
    opened = open_source(change(made()))
    assert list(opened.source.columns) == ["item"]
    assert why in opened.notes[0]
    assert "as fast as under a DataLoader" in opened.notes[0]


def test_a_transform_of_the_users_makes_the_samples() -> None:
    with fastload.create_loader(made().with_transform(halves), 7, num_workers=0) as loader:
        assert next(iter(loader))["half"].tolist() == [label / 2 for label in LABELS]


def test_a_transform_that_is_set_later_counts_from_the_next_epoch() -> None:
    """As under a DataLoader without workers, and as a transform of torchvision's data sets does."""
    dataset = made()
    with fastload.create_loader(dataset, 7, transform=v2.CenterCrop(9), num_workers=0) as loader:
        first, same = next(iter(loader)), next(iter(loader))
        assert list(first) == list(same) == ["image", "label"]
        dataset.set_transform(lambda batch: {"image": batch["image"]} | halves(batch))
        assert next(iter(loader))["half"].tolist() == [label / 2 for label in LABELS]
        dataset.reset_format()
        assert torch.equal(next(iter(loader))["image"], first["image"])


def test_a_collate_function_gets_the_samples_of_datasets() -> None:
    def sizes(samples: list[Any]) -> list[Any]:
        return [(sample["image"].size, sample["label"]) for sample in samples]

    with fastload.create_loader(made(), 3, collate_fn=sizes, num_workers=0) as loader:
        wanted = [((30, height), label) for (height, _), label in zip(SIZES, LABELS, strict=True)]
        assert next(iter(loader)) == wanted[:3]


def test_fields_choose_columns() -> None:
    dataset = made(text=([b"a"] * 7, datasets.Value("binary")))
    assert list(open_source(dataset, fields=["label", "image"]).source.columns) == [
        "label",
        "image",
    ]
    with pytest.raises(SourceError, match=r"no column 'pixels'; there are image, label, text"):
        open_source(dataset, fields=["pixels"])
    with pytest.raises(SourceError, match=r"fields=\('image', 'text'\): its column 'text'"):
        open_source(dataset, fields=["image", "text"])
