"""Images of several sizes in a batch, by the native core and by Python: the same pixels, boxes and
errors, also of files that the core gives back."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.backends.pixels_padded import PaddedPixels
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.geometry import Geometry, Resampling
from fastload.geometry.plan import View
from fastload.native.pool import NativePool
from fastload.sources import (
    EncodedFiles,
    EncodedImages,
    Ragged,
    RaggedArray,
    Source,
    ValueArray,
)
from fastload.sources.buffers import PathTable
from tests import exif_cases
from tests.images import cmyk_jpeg, jpeg, photo, png, truncated

SIZES = [(40, 61), (75, 33), (22, 90), (140, 30), (51, 120), (60, 60), (33, 47)]


def gif(size: tuple[int, int]) -> bytes:
    out = BytesIO()
    Image.fromarray(photo(*size)).save(out, "GIF")
    return out.getvalue()


FILES = [
    jpeg(photo(*SIZES[0], seed=1)),
    png(photo(*SIZES[1], seed=2)),
    jpeg(photo(*SIZES[2], seed=3), orientation=6),
    gif(SIZES[3]),  # the tallest, and the core does not even read its size
    cmyk_jpeg(photo(*SIZES[4], seed=4)),  # the widest; its size is read, and its pixels are not
    jpeg(photo(*SIZES[5], seed=5), progressive=True),
    jpeg(photo(*SIZES[6], seed=6)),
]


class InMemory(EncodedImages):
    def __init__(self, files: list[bytes]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> bytes:
        return self.files[index]


def source_of(files: list[bytes], folder: Path | None = None, objects: bool = True) -> Source:
    boxes = [np.array([[2.0, 3.0, 17.0 + n, 20.0]]) for n in range(len(files))]
    image: Any = InMemory(files)
    if folder is not None:
        paths = [folder / str(n) for n in range(len(files))]
        for path, data in zip(paths, files, strict=True):
            path.write_bytes(data)
        image = EncodedFiles(PathTable.of([str(path) for path in paths]))
    columns = {
        "image": image,
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
        "labels": RaggedArray(Ragged.of([np.arange(1)] * len(files)), role="instances"),
        "index": ValueArray(np.arange(len(files))),
    }
    if not objects:
        columns = {name: columns[name] for name in ("image", "index")}
    return Source(columns, "padded", "padded", "dict")


TRANSFORMS = {
    "none": None,
    "twice": v2.Compose(
        [
            v2.RandomShortestSize([20, 31, 44], max_size=90),
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(),
            v2.RandomShortestSize([25, 40]),
        ]
    ),
    "colour": v2.Compose(
        [v2.RandomPhotometricDistort(), v2.RandomZoomOut(side_range=(1.0, 1.5)), v2.ToImage()]
    ),
}


def batches(source: Source, transform: Any, **options: Any) -> tuple[list[Any], Any]:
    with fastload.create_loader(
        source,
        8,
        transform=transform,
        seed=4,
        collate_fn="torchvision",
        options=TurboJpegOptions(**options),
        on_error="substitute",
    ) as loader:
        made = list(loader)
        return made, loader.stats()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_core_makes_what_python_does(name: str, tmp_path: Path) -> None:
    source = source_of(FILES, tmp_path if name == "none" else None)
    found, stats = batches(source, TRANSFORMS[name])
    wanted, plain = batches(source, TRANSFORMS[name], decoder="pillow")
    assert stats.decoded["png"] >= 1
    assert stats.decoded["own"] >= 3, "JPEGs by the core"
    assert stats.decoded["python"] >= 2
    assert not plain.decoded
    for (images, targets), (others, expected) in zip(found, wanted, strict=True):
        for image, other, target, one in zip(images, others, targets, expected, strict=True):
            assert image.shape == other.shape
            assert (image.int() - other.int()).abs().max() <= (1 if name == "twice" else 0)
            assert target.keys() == one.keys()
            assert all(torch.equal(target[key], one[key]) for key in target)


def test_images_that_are_turned_upright() -> None:
    """As patches, in rows of which each has one image. The core cannot read the last one's EXIF."""
    files = [FILES[2], FILES[0], dict(exif_cases.pngs())["profile six, compressed"]]
    source, made = source_of(files, objects=False), []
    transform = v2.Compose([fastload.ResizeToPatches(8, 40), v2.ToImage()])
    for decoder in ("auto", "pillow"):
        order = fastload.Packed(length=64, tokens="patches", alone=True)
        options = TurboJpegOptions(decoder=decoder, exif_orientation=True)
        with fastload.create_loader(
            source, 3, order=order, transform=transform, options=options
        ) as loader:
            made.append(next(iter(loader)))
            assert ("own" in loader.stats().decoded) == (decoder == "auto")
    assert made[0]["patches"].shape[0] == 3
    assert all(torch.equal(made[0][name], made[1][name]) for name in ("patches", "position_ids"))


def test_what_cannot_be_read_is_an_error_or_replaced() -> None:
    files = [FILES[0], truncated(FILES[6]), b"no image", FILES[1]]
    found, stats = batches(source_of(files), TRANSFORMS["none"])
    assert stats.substituted == 2
    ((images, _),) = found
    assert {tuple(image.shape[1:]) for image in images} == {SIZES[0], SIZES[1]}


def test_who_makes_them_is_said_and_a_decoder_asked_for_is_used(tmp_path: Path) -> None:
    source = source_of(FILES, tmp_path)
    for decoder, words in (("auto", "decodes only what a crop needs"), ("pillow", "Pillow")):
        options = TurboJpegOptions(decoder=decoder)
        with fastload.create_loader(source, 2, collate_fn="detr", options=options) as loader:
            next(iter(loader))
            assert words in loader.explain().split("decoder")[1].split("\n")[0]
    with fastload.create_loader(source, 2, collate_fn="detr") as loader:
        images, outside, _ = next(iter(loader))
        assert not images[:, 0][outside].any()


def cut(boxes: np.ndarray) -> Geometry:
    windows = np.concatenate([np.zeros_like(boxes[:, :2]), boxes[:, 2:]], axis=1)
    numbers = [part.astype(np.int32) for part in (boxes, boxes[:, 2:], windows)]
    return Geometry(*numbers, np.zeros((len(boxes), 2), np.bool_))


def test_outputs_of_other_sizes_than_their_windows_are_refused() -> None:
    """And nothing is written beside an output."""
    pool = NativePool(1)
    boxes = np.array([[0, 0, 30, 20], [5, 4, 11, 13]])
    sizes = boxes[:, 2:].astype(np.int32)
    out = np.full((2, 30, 25, 3), 7, np.uint8)
    files = [png(photo(40, 50, seed=n)) for n in range(2)]
    view = View(cut(boxes), Resampling(), out, sizes)
    assert not pool.decode_views(files, [view]).wait()
    for made, (top, left, height, width), n in zip(out, boxes.tolist(), range(2), strict=True):
        part = photo(40, 50, seed=n)[top : top + height, left : left + width]
        assert (made[:height, :width] == part).all()
        assert (made[height:] == 7).all()
        assert (made[:, width:] == 7).all()
    wrong = View(cut(boxes), Resampling(), out, sizes - 1)
    assert [one.row for one in pool.decode_views(files, [wrong]).wait()] == [0, 1]
    for bad in ([[31, 20], [11, 13]], [[30, 26], [11, 13]], [[0, 20], [11, 13]], [[30, 20]]):
        view = View(cut(boxes), Resampling(), out, np.array(bad, np.int32))
        with pytest.raises(ValueError, match="sizes"):
            pool.decode_views(files, [view])


def test_a_decoder_of_the_core_alone_takes_them(tmp_path: Path) -> None:
    options = TurboJpegOptions(decoder="native")
    source = source_of(FILES[:2], tmp_path)
    assert PaddedPixels.can.pads_images
    with fastload.create_loader(source, 2, collate_fn="detr", options=options) as loader:
        assert len(list(loader)) == 1
