"""JPEGs that stay in the memory of a device, `CacheOptions(storage="device", compressed=True)`: the
samples of the host, bit for bit, with the kernels run on the host in the driver's place."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import create_loader, native
from fastload.backends.cache import CacheOptions
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.cache import resident_files
from fastload.errors import BackendUnavailableError, CacheError, ConfigurationError, DecodeError
from fastload.render import jpegs_on_device
from fastload.render.jpegs_on_device import MEMORY, ON_HOST, ChunkArguments, DeviceDecoder
from tests import images, mixed_jpegs
from tests.mixed_jpegs import GOOD, assert_same, batches

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

CROP = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])
AHEAD = 8
"""Images of batches that are made before they are asked for."""
CROP_BYTES, IS_RESIDENT = 560, 90
"""Size of a `Crop` (batch.cuh), and where `is_resident` is in it."""


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ON_HOST, "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return mixed_jpegs.write(tmp_path / "mixed")


Make = Callable[..., fastload.Loader]


@pytest.fixture
def make(folder: Path, tmp_path: Path) -> Iterator[Make]:
    """Loaders of files that are resident, or with `by_host=True` of the host."""
    made = list[fastload.Loader]()

    def loader(data: Path = folder, *, by_host: bool = False, **options: Any) -> fastload.Loader:
        own = {"exif_orientation": options.pop("exif_orientation", False)}
        given: Any = TurboJpegOptions(**own)
        if not by_host:
            directory = tmp_path / "kept"
            given = CacheOptions(
                storage="device", compressed=True, directory=directory, progress=False, **own
            )
        options = {"transform": CROP, "shuffle": True, "num_workers": 1, **options}
        backend = "turbojpeg" if by_host else "cache"
        made.append(create_loader(data, 4, backend=backend, options=given, **options))
        return made[-1]

    yield loader
    for one in made:
        one.close()


def test_the_samples_are_those_of_the_host(make: Make, folder: Path) -> None:
    """From the first epoch on, with nothing read from files that are resident: they may go."""
    wanted = batches(make(by_host=True), 3)
    loader = make()
    found = batches(loader)
    for name in ("a/0", "a/1", "a/2", "a/3", "b/0"):
        (folder / f"{name}.jpg").unlink()
    assert_same([*found, *batches(loader, 2)], wanted)
    on_device = loader.stats().on_device
    assert on_device is not None
    assert 3 * GOOD <= on_device.images <= 3 * GOOD + AHEAD
    assert on_device.refused == 0
    assert on_device.left["no JPEG of one scan with 1 or 3 components"] >= 3 * 3
    assert on_device.left["not in the seek index yet, or too small for it"] >= 3
    said = loader.explain()
    assert "compressed  6 of 10 images, " in said
    assert "storage     device: compressed images in the memory of cpu" in said
    assert "compressed=True: 100% of each batch for the device; " in said


def test_what_is_copied_for_a_batch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and weights, and no data."""
    sent, run = list[int](), DeviceDecoder._sent

    def spy(decoder: DeviceDecoder, buffer: Any) -> torch.Tensor:
        sent.append(len(buffer))
        return run(decoder, buffer)

    monkeypatch.setattr(DeviceDecoder, "_sent", spy)
    crop = v2.CenterCrop(16)
    loader = make(transform=crop)
    assert_same(batches(loader, 2), batches(make(by_host=True, transform=crop), 2))
    # Of each of four images at most: 560 bytes, 72 and its weights for the resize, and 36 for each
    # of at most 9 segments.
    assert len(sent) >= 5
    assert max(sent) <= 4 * (560 + 72 + 2 * 16 * 6 + 9 * 36 + 64)


def test_data_on_the_device_that_are_not_what_they_were(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crops of them are refused and made again by the host; then the file is noted, and its data
    come with the batch."""
    wanted = batches(make(by_host=True), 4)
    changed, of_batch = set[int](), list[int]()

    def run(name: str, blocks: int, threads: int, arguments: ChunkArguments) -> None:
        for number in range(arguments.crop_count if "segments" in name else 0):
            crop = arguments.crops + CROP_BYTES * number
            at = ctypes.c_uint64.from_address(crop).value
            if not ctypes.c_uint8.from_address(crop + IS_RESIDENT).value:
                of_batch.append(number)
            elif not changed:
                for byte in range(0, 2000, 10):
                    ctypes.c_uint8.from_address(at + byte).value ^= 0x5A
                changed.add(at)
        jpegs_on_device.run_here(name, blocks, threads, arguments)

    monkeypatch.setattr(jpegs_on_device, "launch_on", lambda device: run)
    loader = make()
    assert_same(batches(loader, 4), wanted)
    on_device = loader.stats().on_device
    assert on_device is not None
    assert on_device.refused == 1
    assert 1 <= len(of_batch) <= 4
    assert loader.stats().decoded["noted"] == GOOD + 1
    assert "1 refused and made again" in loader.explain()


@pytest.mark.whole
def test_a_run_goes_on_where_it_was(make: Make) -> None:
    """On the host, too, from the same state; and the other way round."""
    wanted = batches(make(by_host=True), 3)
    for first, second in [(False, False), (False, True), (True, False)]:
        loader = make(by_host=first)
        found, iterator = batches(loader), iter(loader)
        found.append([part.clone() for part in next(iterator)])
        state = loader.state_dict()
        other = make(by_host=second)
        other.load_state_dict(state)
        assert_same([*found, *batches(other, 2)], wanted)


@pytest.mark.whole
def test_each_rank_holds_all(make: Make) -> None:
    for rank in range(2):
        shard = fastload.Shard(rank, 2)
        loader = make(shard=shard)
        assert_same(batches(loader, 2), batches(make(by_host=True, shard=shard), 2))
        assert "6 of 10 images" in loader.explain()


@pytest.mark.whole
def test_images_are_in_several_blocks_of_memory(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = batches(make(by_host=True), 2)
    monkeypatch.setattr(resident_files, "_PART", 1)
    monkeypatch.setattr(resident_files, "_SLICE", 2)
    monkeypatch.setattr(resident_files, "_AT_ONCE", 3)
    loader = make()
    assert_same(batches(loader, 2), wanted)
    backend: Any = loader._parts.backend
    assert len(backend._backend._pixels._images._blocks) > 3
    assert "6 of 10 images" in loader.explain()


@pytest.mark.whole
def test_images_that_are_turned_upright_are_not_resident(make: Make) -> None:
    loader = make(exif_orientation=True)
    assert_same(batches(loader, 2), batches(make(by_host=True, exif_orientation=True), 2))
    assert "5 of 10 images" in loader.explain()


@pytest.mark.whole
def test_samples_of_an_archive(make: Make, tmp_path: Path) -> None:
    """Bytes that Python's threads read: once."""
    import zipfile

    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for label in range(2):
            for number in range(4):
                data = images.jpeg(images.photo(150, 200 + 8 * number, seed=label * 9 + number))
                archive.writestr(f"class_{label}/{number}.jpg", data)
    loader = make(path, num_workers=2)
    assert_same(batches(loader, 2), batches(make(path, by_host=True), 2))
    assert "8 of 8 images" in loader.explain()


@pytest.mark.whole
def test_views_and_batches_of_several_sizes(make: Make) -> None:
    views = fastload.Views([CROP, v2.RandomResizedCrop((18, 40))])
    order = fastload.Buckets(fastload.Shuffle(), sizes=[(24, 32), (32, 24)])
    sized = {"order": order, "shuffle": False, "transform": v2.RandomResizedCrop(24)}
    assert_same(batches(make(**sized), 2), batches(make(by_host=True, **sized), 2))
    found, wanted = (
        [
            [*images, label]
            for _ in range(2)
            for images, label in make(by_host=host, transform=views)
        ]
        for host in (False, True)
    )
    assert_same(found, wanted)


@pytest.mark.whole
def test_boxes_are_moved_with_images_that_are_resident(make: Make, tmp_path: Path) -> None:
    """Their sizes are those of the headers that the host keeps."""
    root, document = tmp_path / "coco", dict[str, Any]()
    document |= {"images": [], "annotations": [], "categories": [{"id": 1, "name": "one"}]}
    (root / "train2017").mkdir(parents=True)
    for number in range(6):
        name, height, width = f"{number}.jpg", 150 + number, 200
        path = root / "train2017" / name
        path.write_bytes(images.jpeg(images.photo(height, width, seed=number)))
        size = {"height": height, "width": width}
        document["images"].append({"id": number, "file_name": name, **size})
        given = {"image_id": number, "bbox": [10 + number, 20, 100, 90], "area": 9000}
        document["annotations"].append({"id": number, "category_id": 1, "iscrowd": 0, **given})
    (root / "annotations").mkdir()
    path = root / "annotations" / "instances_train2017.json"
    path.write_text(json.dumps(document))
    loader, by_host = make(path), make(path, by_host=True)
    for one, other in zip([*loader, *loader], [*by_host, *by_host], strict=True):
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["boxes"].values, other["boxes"].values)
    on_device = loader.stats().on_device
    assert on_device is not None
    assert on_device.images >= 12


def test_a_damaged_image_is_the_same_error(make: Make, tmp_path: Path) -> None:
    root = images.write_photo_folder(tmp_path / "damaged", per_class=4, size=(150, 200))
    path = root / "class_1" / "1.jpg"
    path.write_bytes(path.read_bytes()[:1500])
    (root / "class_0" / "2.jpg").write_bytes(b"no image")
    (root / "class_0" / "3.jpg").write_bytes(b"")
    errors = []
    for by_host in (False, True):
        iterator, found = iter(make(root, by_host=by_host, shuffle=False)), list[str]()
        for _ in range(2):
            with pytest.raises(DecodeError) as failed:
                next(iterator)
            found.append(str(failed.value))
        errors.append(found)
    assert errors[0] == errors[1]
    kinds = [make(root, by_host=by_host, on_error="substitute") for by_host in (False, True)]
    assert_same(batches(kinds[0], 2), batches(kinds[1], 2))


def test_memory_of_the_device_that_does_not_hold_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error when the loader is made, by some of the files; or when the images are read."""
    words = r"compressed=True: .* takes .* or more, .* are free there\..* Use smaller files .*pack"
    monkeypatch.setattr(resident_files, "_free_on", lambda device: 2 * MEMORY + 20_000)
    with pytest.raises(CacheError, match=words):
        make()
    monkeypatch.setattr(resident_files, "about_bytes", lambda column: 0)
    with pytest.raises(CacheError, match=words):
        next(iter(make()))


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ({"storage": "disk"}, {}, "it is for storage='device'"),
        ({"short_side": 96}, {}, "fastload pack --short-side"),
        ({"fill": "while-training"}, {}, "while-training"),
        ({"verify": True}, {}, "verify=True"),
        ({}, {"transform": v2.Compose([v2.ColorJitter(0.5), CROP])}, "recolours.*'turbojpeg'"),
    ],
)
def test_what_cannot_be_resident_is_refused(
    folder: Path, options: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    options = {"storage": "device", "compressed": True, **options}
    given = {"transform": CROP, **given}
    with pytest.raises(ConfigurationError, match=words):
        create_loader(folder, 4, backend="cache", options=CacheOptions(**options), **given)


def test_arrays_and_places_without_a_gpu_are_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = (np.zeros((8, 30, 30, 3), np.uint8), np.arange(8))
    options = CacheOptions(storage="device", compressed=True)
    with pytest.raises(ConfigurationError, match="it takes compressed images"):
        create_loader(arrays, 4, backend="cache", options=options, transform=CROP)
    monkeypatch.delenv(ON_HOST)
    with pytest.raises(BackendUnavailableError, match=r"compressed=True: batches go to cpu"):
        make()


@pytest.mark.whole
def test_a_folder_that_cannot_be_made(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = CacheOptions(storage="device", compressed=True, directory=tmp_path / "file" / "x")
    with (
        create_loader(folder, 4, backend="cache", options=options, transform=CROP) as loader,
        pytest.raises(CacheError, match="directory: .* cannot be made"),
    ):
        next(iter(loader))


def test_a_file_of_points_that_is_something_else(make: Make, tmp_path: Path) -> None:
    """The error names the option of this backend; `turbojpeg` has another one."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "points.seek").write_bytes(b"no index" * 99)
    with pytest.raises(CacheError, match=r"^directory: .*points\.seek.* no seek index.* Remove it"):
        next(iter(make()))


def test_images_that_are_refused_after_a_batch_of_them_was_started(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has their headers alone, and they are resident no more when it is planned: their files are
    read after all."""
    wanted, kind = batches(make(by_host=True)), native.load().ResidentImages
    monkeypatch.setattr(kind, "place", lambda images, number, address: None)
    monkeypatch.setattr(kind, "resident", lambda images, numbers: np.ones(len(numbers), np.uint8))
    loader = make()
    assert_same(batches(loader), wanted)
    on_device = loader.stats().on_device
    assert on_device is not None
    assert on_device.images == 0
