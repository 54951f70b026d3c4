"""`backends/rows.py`: rows read and rendered in Python: pixels, sizes, failures, and the order of
columns."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from fastload.backends.rows import Buffers, settled_size
from fastload.decode import DecodeSettings, available_decoders
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError
from fastload.recipe import Recipe
from fastload.render.host import decode_jpeg
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, PixelArray, ValueArray
from tests import images
from tests.host import CROP, draws_of, encoded, photos, photos_of, reader_of, source_of

DECODERS = [row.name for row in available_decoders() if row.available]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return images.write_photo_folder(tmp_path / "photos", classes=2, per_class=6)


def expected_pixels(source: Source, transform: Any, draws: Draws) -> np.ndarray:
    """The same geometry by torchvision's functions, one image at a time."""
    plan = Recipe.from_transform(transform).split().geometry
    column = source.columns["image"]
    assert isinstance(column, EncodedImages)
    rows = []
    decoded = [decode_jpeg(column.read(int(index))) for index in draws.indices]
    geometry = plan.resolve(draws, np.array([pixels.shape[:2] for pixels in decoded]))
    for row, pixels in enumerate(decoded):
        box, size, window = (
            a[row].tolist() for a in (geometry.box, geometry.size, geometry.window)
        )
        planes = torch.from_numpy(pixels).permute(2, 0, 1)
        planes = functional.resized_crop(planes, *box, size=size, antialias=True)
        planes = functional.crop(planes, *window)
        if geometry.flip[row, 0]:
            planes = functional.horizontal_flip(planes)
        rows.append(planes.permute(1, 2, 0).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "transform", [CROP, v2.Compose([v2.Resize(36), v2.CenterCrop(32)])], ids=["train", "evaluate"]
)
def test_pixels_against_torchvision(folder: Path, transform: Any, decoder: str) -> None:
    source, draws = photos(folder), draws_of(5, 0, 11, 3, 3, 8)
    batch = reader_of(source, transform, decoder=decoder).batch(draws)
    assert list(batch.columns) == ["image", "label"]
    pixels = np.asarray(batch.columns["image"])
    assert pixels.shape == (6, 32, 32, 3)
    assert np.abs(pixels.astype(int) - expected_pixels(source, transform, draws)).max() <= 1
    assert np.asarray(batch.columns["label"]).tolist() == [50, 0, 110, 30, 30, 80]
    assert not batch.failures


def test_pickles(folder: Path) -> None:
    reader = reader_of(photos(folder), CROP)
    copy = pickle.loads(pickle.dumps(reader))
    draws = draws_of(1, 2)
    assert np.array_equal(copy.batch(draws).columns["image"], reader.batch(draws).columns["image"])


def test_slices_are_the_rows_of_the_batch(folder: Path) -> None:
    reader, draws = reader_of(photos(folder), CROP), draws_of(5, 4, 3, 2, 1, 0, 11)
    whole = reader.batch(draws)
    (size,) = [plan.out_size for plan in reader.images._recipe.geometries]
    assert size == (32, 32)
    buffers = reader.buffers(len(draws), [size])
    for rows in (slice(0, 3), slice(3, 4), slice(4, 7)):
        assert not reader.fill(draws.take(rows), buffers.take(rows))
    for name, array in buffers.images.items():
        assert np.array_equal(array, whole.columns[name])


def test_failures_name_the_file_and_leave_zeros(folder: Path) -> None:
    paths = sorted(folder.glob("*/*.jpg"))
    paths[1].write_bytes(b"")
    paths[2].write_bytes(images.HTML)
    paths[3].write_bytes(images.truncated(paths[3].read_bytes()))
    paths[4].write_bytes(images.torn(paths[4].read_bytes()))
    paths[5].unlink()
    batch = reader_of(photos_of(paths), CROP).batch(draws_of(*range(7)))
    assert [failure.row for failure in batch.failures] == [1, 2, 3, 4, 5]
    for failure in batch.failures:
        assert isinstance(failure.error, DecodeError)
        assert str(failure.error).startswith(f"{paths[failure.row]}: ")
        assert not np.asarray(batch.columns["image"])[failure.row].any()
    assert "No such file" in str(batch.failures[-1].error)
    assert np.asarray(batch.columns["image"])[[0, 6]].any(axis=(1, 2, 3)).all()


def test_geometry_errors_are_failures(tmp_path: Path) -> None:
    for name, size in [("small.jpg", 20), ("large.jpg", 50)]:
        (tmp_path / name).write_bytes(images.jpeg(images.photo(size, size)))
    source = photos_of([tmp_path / "small.jpg", tmp_path / "large.jpg"])
    batch = reader_of(source, v2.RandomCrop(32)).batch(draws_of(1, 0))
    assert [failure.row for failure in batch.failures] == [1]
    assert str(batch.failures[0].error).startswith(str(tmp_path / "small.jpg"))


def test_masks_get_the_same_geometry_and_nearest(tmp_path: Path) -> None:
    classes = images.labels(60, 80)
    (tmp_path / "image.png").write_bytes(images.png(np.repeat(classes[..., None], 3, axis=2)))
    (tmp_path / "mask.png").write_bytes(images.palette_mask_png(classes))
    source = source_of(
        image=encoded([tmp_path / "image.png"] * 8),
        mask=encoded([tmp_path / "mask.png"] * 8, role="mask"),
    )
    nearest = v2.RandomResizedCrop(32, interpolation=InterpolationMode.NEAREST)
    # Of a tensor; Pillow's nearest differs.
    transform = v2.Compose([v2.ToImage(), nearest, v2.RandomHorizontalFlip()])
    batch = reader_of(source, transform).batch(draws_of(*range(8)))
    mask = np.asarray(batch.columns["mask"])
    assert mask.shape == (8, 32, 32, 1)
    assert np.array_equal(np.repeat(mask, 3, axis=3), batch.columns["image"])
    # A smooth filter for the image leaves the mask nearest: only class numbers, and the same ones.
    smooth = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
    assert np.array_equal(
        reader_of(source, smooth).batch(draws_of(*range(8))).columns["mask"], mask
    )
    resized = reader_of(source, v2.Resize((20, 30))).batch(draws_of(0)).columns["mask"]
    reference = functional.resize(tv_tensors.Mask(torch.from_numpy(classes)[None]), [20, 30])
    assert np.array_equal(np.asarray(resized)[0, ..., 0], reference[0].numpy())


def test_mask_of_another_size(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(images.jpeg(images.photo(60, 80)))
    (tmp_path / "mask.png").write_bytes(images.png(images.labels(60, 81)))
    source = source_of(
        image=encoded([tmp_path / "image.jpg"]), mask=encoded([tmp_path / "mask.png"], role="mask")
    )
    batch = reader_of(source, v2.Resize((20, 30))).batch(draws_of(0))
    message = str(batch.failures[0].error)
    assert message.startswith(f"{tmp_path / 'mask.png'}: 81 x 60")
    assert f"{tmp_path / 'image.jpg'}" in message
    assert "80 x 60" in message
    assert not any(np.asarray(column).any() for column in batch.columns.values())


def test_a_bad_mask_fails_its_row_once(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(images.jpeg(images.photo(60, 80)))
    (tmp_path / "mask.png").write_bytes(images.png(images.photo(60, 80)))  # in colour
    source = source_of(
        image=encoded([tmp_path / "image.jpg"]), mask=encoded([tmp_path / "mask.png"], role="mask")
    )
    batch = reader_of(source, v2.Resize((20, 30))).batch(draws_of(0))
    assert [str(failure.error).split(": ")[0] for failure in batch.failures] == [
        str(tmp_path / "mask.png")
    ]
    assert not np.asarray(batch.columns["image"]).any()


def test_pixel_columns() -> None:
    pictures = [images.photo(40, 40 + n, seed=n) for n in range(3)]
    flat = np.concatenate([picture.reshape(-1) for picture in pictures])
    offsets = np.cumsum([0] + [picture.size for picture in pictures[:-1]])
    sizes = np.array([picture.shape[:2] for picture in pictures], np.int32)
    ragged = source_of(
        image=PixelArray(flat, sizes=sizes, offsets=offsets),
        tokens=ValueArray(np.ones((3, 5), np.int32)),
    )
    batch = reader_of(ragged, v2.CenterCrop(40)).batch(draws_of(2, 0))
    assert np.array_equal(np.asarray(batch.columns["image"])[0], pictures[2][:, 1:41])
    assert np.array_equal(np.asarray(batch.columns["image"])[1], pictures[0])
    assert np.asarray(batch.columns["tokens"]).shape == (2, 5)

    fixed = source_of(
        image=PixelArray(np.stack([picture[:, :40] for picture in pictures])[..., :1], channels=1)
    )
    batch = reader_of(fixed, None).batch(draws_of(1))
    assert np.array_equal(np.asarray(batch.columns["image"])[0], pictures[1][:, :40, :1])


def test_size_known_only_from_the_files(folder: Path) -> None:
    reader = reader_of(photos(folder), None)
    assert [plan.out_size for plan in reader.images._recipe.geometries] == [None]
    same = reader.batch(draws_of(0, 0))
    assert np.asarray(same.columns["image"]).shape == (2, 40, 56, 3)
    with pytest.raises(
        ConfigurationError,
        match=r"0\.jpg \(40 x 56\) and .*1\.jpg \(43 x 56\) differ.*batch_size=1",
    ):
        reader.batch(draws_of(0, 1))


def test_exif_orientation_changes_the_size_before_geometry(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(images.jpeg(images.photo(40, 60), orientation=6))
    source = photos_of([tmp_path / "a.jpg"])
    upright = reader_of(source, None, settings=DecodeSettings(exif_orientation=True)).batch(
        draws_of(0)
    )
    stored = reader_of(source, None).batch(draws_of(0))
    assert np.array_equal(
        np.asarray(upright.columns["image"])[0],
        np.rot90(np.asarray(stored.columns["image"])[0], k=-1),
    )


@pytest.mark.parametrize("transform", [CROP, v2.CenterCrop(30)], ids=["a size", "one crop"])
def test_rows_that_are_read_again_replace_those_alone(folder: Path, transform: Any) -> None:
    paths = sorted(folder.glob("*/*.jpg"))
    paths[6].write_bytes(b"")
    reader, draws = reader_of(photos_of(paths), transform), draws_of(0, 5, 6, 7, 9)
    whole = np.asarray(reader.batch(draws).columns["image"])
    out = reader.buffers(5, [whole.shape[1:3]])
    out.images["image"][:] = 77
    failures = reader.fill_again(draws, out, [1, 2, 4])
    assert [failure.row for failure in failures] == [2]
    assert str(paths[6]) in str(failures[0].error)
    assert np.array_equal(out.images["image"][[1, 2, 4]], whole[[1, 2, 4]])
    assert (out.images["image"][[0, 3]] == 77).all()


def test_the_columns_of_a_finished_batch_are_in_the_order_of_the_source() -> None:
    values = {name: ValueArray(np.arange(4) + 10 * n) for n, name in enumerate("cab")}
    pixels = PixelArray(np.zeros((4, 8, 8, 3), np.uint8))
    source = source_of(c=values["c"], image=pixels, a=values["a"], b=values["b"])
    batch = reader_of(source, None).batch(draws_of(3, 1))
    assert list(batch.columns) == ["c", "image", "a", "b"]
    assert [batch.columns[name].tolist() for name in "cab"] == [[3, 1], [13, 11], [23, 21]]


def test_a_slice_of_buffers_is_the_same_memory() -> None:
    whole = Buffers({"image": np.zeros((5, 2, 2, 3), np.uint8)}, (np.zeros((5, 6, 2)),))
    part = whole.take(slice(1, 3))
    part.images["image"][:], part.points[0][:] = 1, 2
    assert whole.images["image"].any(axis=(1, 2, 3)).tolist() == [False, True, True, False, False]
    assert whole.points[0].any(axis=(1, 2)).tolist() == [False, True, True, False, False]


def test_failed_rows_are_placed_harmlessly(folder: Path) -> None:
    placed = reader_of(photos(folder), CROP).images.place(draws_of(1, 0, 2))
    (before,) = placed.geometries
    assert placed.harmless([(32, 32)]) == [before]
    failed = replace(placed, failures={1: DecodeError("bad")})
    (after,) = failed.harmless([(32, 32)])
    assert (after.box[1].tolist(), after.size[1].tolist()) == ([0, 0, 1, 1], [1, 1])
    assert after.window[1].tolist() == [0, 0, 32, 32]
    for name in ("box", "size", "window", "flip"):
        assert np.array_equal(getattr(after, name)[[0, 2]], getattr(before, name)[[0, 2]]), name
    assert before.box[1].tolist() != [0, 0, 1, 1], "what was resolved is left as it was"


@pytest.mark.parametrize(
    ("transform", "size"),
    [
        (None, (40, 60)),
        (v2.CenterCrop(24), (24, 24)),
        (v2.Resize(20), (20, 30)),
        (v2.RandomCrop(48), None),  # which no image of 40 x 60 has
        (v2.RandomCrop(48, pad_if_needed=True), (48, 48)),
    ],
    ids=["as stored", "crop", "resized", "too large a crop", "padded crop"],
)
def test_a_size_is_settled_where_no_draw_can_change_it(transform: Any, size: Any) -> None:
    plan = Recipe.from_transform(transform).split().geometry
    pixels = PixelArray(np.zeros((3, 40, 60, 3), np.uint8))
    assert settled_size(source_of(image=pixels), plan) == size


def test_no_size_is_settled_for_images_of_several_sizes_or_in_files(folder: Path) -> None:
    plan = Recipe.from_transform(v2.CenterCrop(24)).split().geometry
    small, large = (PixelArray(np.zeros((3, n, n, 3), np.uint8)) for n in (30, 40))
    assert settled_size(source_of(image=small, mask=small), plan) == (24, 24)
    assert settled_size(source_of(image=small, mask=large), plan) is None
    assert settled_size(photos(folder), plan) is None


def test_a_decoder_that_does_not_exist_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="'no such'"):
        reader_of(photos(folder), CROP, decoder="no such")
