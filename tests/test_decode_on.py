"""JPEGs decoded on a device through the loader: the samples of the host, bit for bit, with the
kernels run on the host in the driver's place (FASTLOAD_CUDA_ON_HOST=1)."""

from __future__ import annotations

import ctypes
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import create_loader, native
from fastload.backends.base import HostBatch
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.errors import BackendUnavailableError, ConfigurationError, DecodeError
from fastload.loader.substitution import _put
from fastload.render import jpegs_on_device
from fastload.render.jpeg_share import DeviceShare
from fastload.render.jpegs_on_device import ON_HOST, ChunkArguments
from fastload.render.pending_jpegs import PendingJpegs
from tests import images, mixed_jpegs
from tests.mixed_jpegs import GOOD, assert_same, batches
from tests.simulated_gpu import GPU, LazyGpu

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

CROP = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()])
NORMALISED = v2.Compose(
    [
        v2.RandomResizedCrop((20, 28), interpolation=v2.InterpolationMode.BICUBIC),
        v2.RandomVerticalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
    ]
)
WHOLE = v2.Compose([v2.Resize(40), v2.CenterCrop((48, 36)), v2.Pad(2)])


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ON_HOST, "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_jpegs.write(tmp_path_factory.mktemp("mixed"))


Make = Callable[..., fastload.Loader]


@pytest.fixture
def make(folder: Path, tmp_path: Path) -> Iterator[Make]:
    made = list[fastload.Loader]()

    def loader(
        decode_on: Any = "device", data: Path = folder, *, index: str = "", **options: Any
    ) -> fastload.Loader:
        own = {
            name: options.pop(name)
            for name in ("exif_orientation", "check_whole")
            if name in options
        }
        options = {"transform": CROP, "shuffle": True, "num_workers": 1, **options}
        made.append(
            create_loader(
                data,
                4,
                backend="turbojpeg",
                options=TurboJpegOptions(
                    decode_on=decode_on, seek_index=tmp_path / (index or str(decode_on)), **own
                ),
                **options,
            )
        )
        return made[-1]

    yield loader
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("decode_on", "transform"),
    [
        pytest.param("device", CROP, id="device, crop"),
        pytest.param("auto", CROP, id="auto, crop", marks=pytest.mark.whole),
        pytest.param("device", NORMALISED, id="device, floats", marks=pytest.mark.whole),
        pytest.param("device", WHOLE, id="device, whole images", marks=pytest.mark.whole),
    ],
)
def test_the_samples_are_those_of_the_host(make: Make, decode_on: str, transform: Any) -> None:
    """The first epoch notes the points of all images at once, the others are decoded by them."""
    loader = make(decode_on, transform=transform)
    assert_same(batches(loader, 4), batches(make("host", transform=transform), 4))
    found = loader.stats().on_device
    assert found is not None
    assert found.refused == 0
    if decode_on == "device":
        # Of the first two batches, two more are started ahead: some images are decoded twice.
        assert 3 * GOOD - 8 <= found.images <= 4 * GOOD
        assert found.share == 1.0
        assert found.left["no JPEG of one scan with 1 or 3 components"] >= 4 * 3
        assert loader.stats().decoded["device"] == found.images
        assert found.nbytes > 0
        assert found.seconds > 0
        assert f"{found.images} images decoded there" in loader.explain()
    else:
        assert 0 <= found.share <= 1


@pytest.mark.whole
def test_images_that_are_turned_upright_are_left(make: Make) -> None:
    loader = make(exif_orientation=True, check_whole=True)
    assert_same(batches(loader, 2), batches(make("host", exif_orientation=True), 2))
    found = loader.stats().on_device
    assert found is not None
    assert found.left["turned by its EXIF orientation"] >= 2


def test_a_share_of_each_batch_is_decoded_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four images the first two; the others are decoded by the host in the same batch."""
    wanted = batches(make("host"), 3)
    monkeypatch.setattr(DeviceShare, "measured", lambda share, **_: None)
    loader = make("auto")
    loader._parts.backend._backend._pixels._share._value = 0.5
    assert_same(batches(loader, 3), wanted)
    found = loader.stats().on_device
    assert found is not None
    assert 2 <= found.images <= 2 * GOOD


@pytest.mark.whole
def test_a_run_goes_on_where_it_was(make: Make) -> None:
    """On the host, too, from the same state; and the other way round."""
    wanted = batches(make("host"), 3)
    steps = len(wanted) // 3
    for first, second in [("device", "device"), ("device", "host"), ("host", "auto")]:
        loader = make(first, index="one")
        found, iterator = batches(loader), iter(loader)
        found.append([part.clone() for part in next(iterator)])
        state = loader.state_dict()
        other = make(second, index="one")
        other.load_state_dict(state)
        assert_same([*found, *batches(other, 2)], wanted)
    assert steps == 3


@pytest.mark.whole
def test_ranks_have_their_own_samples(make: Make) -> None:
    for rank in range(2):
        shard = fastload.Shard(rank, 2)
        assert_same(batches(make("device", shard=shard), 2), batches(make("host", shard=shard), 2))


@pytest.mark.whole
def test_samples_of_an_archive_are_planned_slice_by_slice(make: Make, tmp_path: Path) -> None:
    """Bytes that Python's threads read (deflated members of a zip file), in slices of a batch."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "photos.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for label in range(2):
            for number in range(4):
                data = images.jpeg(images.photo(150, 200 + 8 * number, seed=label * 9 + number))
                archive.writestr(f"class_{label}/{number}.jpg", data)
    archived = tmp_path / "photos.zip"
    loader = make("device", archived, num_workers=2)
    assert_same(batches(loader, 3), batches(make("host", archived, num_workers=2), 3))
    found = loader.stats().on_device
    assert found is not None
    assert found.images >= 8


@pytest.mark.whole
def test_images_of_several_batch_sizes(make: Make) -> None:
    order = fastload.Buckets(fastload.Shuffle(), sizes=[(24, 32), (32, 24)])
    crop = v2.RandomResizedCrop(24)
    given: dict[str, Any] = {"order": order, "shuffle": False, "transform": crop}
    assert_same(batches(make("device", **given), 2), batches(make("host", **given), 2))


VIEWS = fastload.Views([CROP, v2.RandomResizedCrop((18, 40)), CROP])


@pytest.mark.whole
def test_views_of_an_image_are_decoded_each_by_itself(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them that is refused has all made again."""
    wanted = [[*views, label] for views, label in batches_of_views(make("host", transform=VIEWS))]
    loader = make("device", transform=VIEWS)
    assert_same([[*views, label] for views, label in batches_of_views(loader)], wanted)
    found = loader.stats().on_device
    assert found is not None
    assert found.images % 3 == 0
    assert found.images >= 3 * (2 * GOOD - 4)
    launch = changed_data(1)
    monkeypatch.setattr(jpegs_on_device, "launch_on", lambda device: launch)
    loader = make("device", transform=VIEWS, index="again")
    assert_same([[*views, label] for views, label in batches_of_views(loader)], wanted)
    found = loader.stats().on_device
    assert found is not None
    assert found.refused > 0


def batches_of_views(loader: Any) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
    """Of three epochs."""
    return [([view.clone() for view in views], label) for _ in range(3) for views, label in loader]


@pytest.mark.whole
def test_boxes_are_moved_with_images_that_are_decoded_there(make: Make, tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 1, "name": "one"}],
    }
    root = tmp_path / "coco"
    (root / "train2017").mkdir(parents=True)
    for number in range(6):
        name, height, width = f"{number}.jpg", 150 + number, 200
        (root / "train2017" / name).write_bytes(
            images.jpeg(images.photo(height, width, seed=number))
        )
        size = {"height": height, "width": width}
        document["images"].append({"id": number, "file_name": name, **size})
        box = [10 + number, 20, 100, 90]
        given = {"image_id": number, "bbox": box, "area": 9000, "category_id": 1, "iscrowd": 0}
        document["annotations"].append({"id": number, **given})
    (root / "annotations").mkdir()
    path = root / "annotations" / "instances_train2017.json"
    path.write_text(json.dumps(document))
    loaders = [make(decode_on, path) for decode_on in ("device", "host")]
    found, wanted = ([*one, *one, *one] for one in loaders)
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one["image"], other["image"])
        for name in ("boxes", "labels"):
            a, b = one[name], other[name]
            assert torch.equal(a.values, b.values)
            assert torch.equal(a.offsets, b.offsets)
    on_device = loaders[0].stats().on_device
    assert on_device is not None
    assert on_device.images >= 6


# -- Verdicts


def changed_data(number: int) -> jpegs_on_device.Launch:
    """A launch that changes a bit of the data of some crops before they are decoded."""
    launched = iter(range(1 << 30))

    def run(name: str, blocks: int, threads: int, arguments: ChunkArguments) -> None:
        if name == "fastload_decode_segments" and next(launched) % 2 == number:
            for crop in range(0, arguments.crop_count, 2):
                at = (
                    arguments.batch
                    + ctypes.c_uint64.from_address(arguments.crops + 560 * crop).value
                )
                for byte in range(0, 400, 40):
                    ctypes.c_uint8.from_address(at + byte).value ^= 0x5A
        jpegs_on_device.run_here(name, blocks, threads, arguments)

    return run


def test_an_image_that_is_refused_is_made_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is dropped: it is noted again, and decoded on the device in the next epoch."""
    wanted = batches(make("host"), 4)
    launch = changed_data(1)
    monkeypatch.setattr(jpegs_on_device, "launch_on", lambda device: launch)
    loader = make("device")
    assert_same(batches(loader, 4), wanted)
    found = loader.stats().on_device
    assert found is not None
    assert found.refused > 0
    assert found.images > 0
    assert loader.stats().decoded["refused"] == found.refused
    # b/4.jpg is noted, too. Two batches that are made at once may both note an image again.
    assert GOOD + 1 < loader.stats().decoded["noted"] <= GOOD + 1 + 2 * found.refused
    assert f"{found.refused} refused and made again" in loader.explain()


@pytest.mark.whole
def test_a_device_with_other_pixels_is_an_error(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first images are made by the host, too; with "auto" the host then decodes all."""
    wanted = batches(make("host"), 3)

    right = jpegs_on_device.DeviceDecoder.make

    def wrong(decoder: Any, plan: Any, out: torch.Tensor) -> torch.Tensor:
        failures = right(decoder, plan, out)
        out[:, 0, 3, 0] ^= 1
        return failures

    monkeypatch.setattr(jpegs_on_device.DeviceDecoder, "make", wrong)
    loader = make("device")
    batches(loader)
    with pytest.raises(BackendUnavailableError, match=r"cpu makes other pixels of \d of \d images"):
        batches(loader, 2)
    monkeypatch.setattr(DeviceShare, "of", lambda share, count: 0 if share.stopped else count)
    loader = make("auto")
    with caplog.at_level(logging.WARNING):
        assert_same(batches(loader, 3), wanted)
    assert "which decodes all from here on" in caplog.text
    found = loader.stats().on_device
    assert found is not None
    assert "other pixels" in found.stopped
    assert "the host alone (decode_on='auto'): cpu makes other pixels" in loader.explain()


@pytest.mark.whole
def test_a_device_that_cannot_launch(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is known only when kernels are compiled."""
    wanted = batches(make("host"), 2)

    def none(device: torch.device) -> None:
        raise BackendUnavailableError("this GPU has 50: decode on the host.")

    monkeypatch.setattr(jpegs_on_device, "launch_on", none)
    with pytest.raises(BackendUnavailableError, match="decode on the host"):
        batches(make("device"))
    monkeypatch.setattr(DeviceShare, "of", lambda share, count: 0 if share.stopped else count)
    assert_same(batches(make("auto", index="other"), 2), wanted)
    assert "this GPU has 50" in caplog.text


# -- Memory of the host that copies read


@pytest.mark.parametrize(("trusted", "refused"), [(True, False), (True, True), (False, True)])
def test_rows_are_on_the_device_before_their_memory_is_used_again(
    monkeypatch: pytest.MonkeyPatch, trusted: bool, refused: bool
) -> None:
    """Copies that are not waited for are done as late as can be. The memory of the host's rows
    belongs to a later batch when `make` returns: rows of the host, one that the device has refused,
    and with `trusted=False` those of which it makes other pixels."""
    gpu, host = LazyGpu(monkeypatch), np.zeros((4, 2, 2, 3), np.uint8)
    host[1], host[3] = 11, 13  # made by the host
    dropped, copied = list[Any](), torch.Tensor.copy_

    def copy(to: torch.Tensor, part: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        gpu.current.work.append(partial(copied, to, part))  # type: ignore[arg-type]
        if not non_blocking:
            gpu.current.run()
        return to

    class Decoder:
        device, nbytes = GPU, 0

        def __init__(self) -> None:
            self.trusted = trusted

        def make(self, plan: Any, out: torch.Tensor) -> torch.Tensor:
            gpu.current.work.append(lambda: out.__setitem__([0, 2], 50))
            return torch.tensor([0, refused], dtype=torch.int32)

    def again(rows: Any) -> dict[int, Exception]:
        for row in rows:
            host[row] = 20 + row
        return {}

    on_gpu = {"empty": lambda shape, dtype, device: torch.full(shape, 99, dtype=dtype)}
    names = ("uint8", "from_numpy", "cat", "Tensor", "cuda")
    monkeypatch.setattr(
        "fastload.render.pending_jpegs.torch",
        SimpleNamespace(**on_gpu, **{name: getattr(torch, name) for name in names}),
    )
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    plan = SimpleNamespace(left=np.array([0, 6, 0, 6]), drop=dropped.append)
    share = DeviceShare(fixed=False)
    pending = PendingJpegs(host, [(0, plan)], again, share, 0.0, 0.0)  # type: ignore[list-item]
    made, errors = pending.make(Decoder())  # type: ignore[arg-type]
    assert (errors, dropped) == ({}, [[2]] if refused else [])
    host[:] = 255
    gpu.current.run()
    assert made[:, 0, 0, 0].tolist() == [50 if trusted else 20, 11, 22 if refused else 50, 13]
    assert bool(share.stopped) is not trusted


# -- Samples that cannot be read


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    root = images.write_photo_folder(tmp_path / "damaged", per_class=4, size=(150, 200))
    path = root / "class_1" / "1.jpg"
    path.write_bytes(path.read_bytes()[:1500])
    (root / "class_0" / "2.jpg").write_bytes(b"no image")
    return root


def test_a_damaged_image_is_the_same_error(make: Make, damaged: Path) -> None:
    errors = []
    for decode_on in ("device", "host"):
        loader = make(decode_on, damaged, shuffle=False)
        iterator, found = iter(loader), list[str]()
        for _ in range(2):
            with pytest.raises(DecodeError) as failed:
                next(iterator)
            found.append(str(failed.value))
        errors.append(found)
    assert errors[0] == errors[1]


@pytest.mark.whole
def test_a_damaged_image_is_substituted(make: Make, damaged: Path) -> None:
    loaders = [
        make(decode_on, damaged, on_error="substitute", transform=transform)
        for transform in (CROP, NORMALISED)
        for decode_on in ("device", "host")
    ]
    found = [batches(loader, 3) for loader in loaders]
    assert_same(found[0], found[1])
    assert_same(found[2], found[3])
    assert [loader.stats().substituted for loader in loaders] == [6] * 4


def test_a_substitute_may_be_made_on_another_device_than_its_batch() -> None:
    """A batch of which nothing was planned is on the host."""

    class OnGpu(torch.Tensor):
        def __array__(self, *_: Any) -> Any:
            raise TypeError("can't convert a tensor of a GPU to numpy")

    batch = HostBatch({"image": np.zeros((2, 4, 5, 3), np.uint8), "label": np.array([1, 2])})
    image = torch.full((1, 4, 5, 3), 7, dtype=torch.uint8).as_subclass(OnGpu)
    other = HostBatch({"image": image, "label": np.array([9])})
    _put(batch, {1: other}, {1: DecodeError("a.jpg")})
    assert batch.columns["image"][1].min() == 7
    assert batch.columns["image"][0].max() == 0
    assert batch.columns["label"].tolist() == [1, 9]


@pytest.mark.whole
def test_an_image_that_is_refused_and_cannot_be_read_any_more(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was removed after its bytes were planned."""
    root = images.write_photo_folder(tmp_path / "some", per_class=4, size=(150, 200))
    batches(make("device", root, index="one"))
    launch = changed_data(0)

    def run(name: str, blocks: int, threads: int, arguments: ChunkArguments) -> None:
        launch(name, blocks, threads, arguments)
        (root / "class_0" / "0.jpg").unlink(missing_ok=True)

    monkeypatch.setattr(jpegs_on_device, "launch_on", lambda device: run)
    loader = make("device", root, index="one", shuffle=False)
    with pytest.raises(DecodeError, match="0.jpg"):
        next(iter(loader))


# -- What is refused, and what "auto" does


def test_where_there_is_no_gpu(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = batches(make("host"), 2)
    monkeypatch.delenv(ON_HOST)
    with pytest.raises(
        BackendUnavailableError, match=r"decode_on='device': batches go to cpu.*'host'"
    ):
        make("device")
    loader = make("auto")
    assert_same(batches(loader, 2), wanted)
    assert "the host alone (decode_on='auto'): batches go to cpu" in loader.explain()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("fastload.render.nvrtc.why_not", lambda: "cuda-bindings is not installed.")
    assert jpegs_on_device.why_not(torch.device("cuda")) == "cuda-bindings is not installed."


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ({"decode_on": "gpu"}, {}, "decode_on: must be 'auto', 'host' or 'device'"),
        ({"decoder": "pillow"}, {}, "only the native core"),
        ({"draft": True}, {"transform": v2.RandomResizedCrop(24)}, "draft=True"),
        ({"seek_index": False}, {}, r"needs a seek index, and there is off"),
        ({"seek_index": "auto"}, {}, "fewer images than 256"),
        ({}, {"transform": v2.RandomCrop(16, pad_if_needed=True), "collate_fn": None}, ""),
        ({}, {"transform": v2.RandomRotation(9)}, "to a size that the transform fixes"),
        ({}, {"transform": v2.Compose([v2.ColorJitter(0.5), CROP])}, "recolours"),
        ({"place": "host"}, {"transform": v2.Compose([CROP, v2.ColorJitter(0.5)])}, "place="),
    ],
)
def test_what_cannot_be_decoded_there_is_refused(
    folder: Path, tmp_path: Path, options: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    options = {"decode_on": "device", "seek_index": tmp_path / "index", **options}
    given = {"transform": CROP, **given}

    def build() -> fastload.Loader:
        return create_loader(
            folder, 4, backend="turbojpeg", options=TurboJpegOptions(**options), **given
        )

    if not words:
        build().close()
        return
    with pytest.raises(ConfigurationError, match=words):
        build()


# -- The share


def batches_a_second(
    share: Any, *, decode: float, plan: float, device: float, step: float
) -> float:
    """Of a trainer whose steps take so long, with batches of 256 in flight as in the loader.

    Args:
        share: None, or a `DeviceShare`.
        decode, plan: what an image takes all threads of the host [ms].
        device: what an image takes the device; a batch takes 3 ms more [ms].
        step: of the trainer [ms].
    """
    pool, now, last, trainer = 0.0, 0.0, 0.0, 0.0
    work, taken = list[tuple[float, int]](), list[float]()

    def start() -> None:
        nonlocal pool
        count = 0 if share is None else share.of(256)
        pool = max(pool, now) + count * plan + (256 - count) * decode
        work.append((pool, count))

    for _ in range(3):
        start()
    for number in range(3000):
        if number >= 2:
            now = max(now, taken[number - 2])
        ready, count = work[number]
        host, on_device = max(ready - now, 0.0), 3 + count * device if count else 0.0
        now += host
        start()
        now += on_device
        if share is not None:
            share.measured(host=host, device=on_device, between=now - last)
        last, trainer = now, max(trainer, now)
        taken.append(trainer)
        trainer += step
    return 3000 / trainer * 1000


@pytest.mark.parametrize(
    ("case", "gain"),
    [
        pytest.param({"decode": 0.263, "plan": 0.046, "device": 0.002, "step": 45}, 1.4, id="core"),
        pytest.param({"decode": 0.13, "plan": 0.023, "device": 0.002, "step": 30}, 1.1, id="cores"),
        pytest.param({"decode": 0.066, "plan": 0.011, "device": 1.0, "step": 5}, 0.99, id="slow"),
        pytest.param({"decode": 0.25, "plan": 0.046, "device": 0.25, "step": 5}, 1.2, id="equal"),
        pytest.param({"decode": 0.01, "plan": 0.002, "device": 0.002, "step": 45}, 1.0, id="idle"),
    ],
)
def test_a_share_helps_or_costs_nothing(case: dict[str, float], gain: float) -> None:
    """In simulated time, with what was measured of the host (docs/gpu-decode.md)."""
    share = DeviceShare(fixed=False)
    assert batches_a_second(share, **case) >= 0.999 * gain * batches_a_second(None, **case)
    if gain <= 1:
        assert share.so_far().share <= 1 / 8


# -- Processes


@pytest.mark.whole
def test_a_loader_goes_to_another_process(make: Make, tmp_path: Path) -> None:
    loader = make("device", index="one")
    wanted = batches(loader, 2)
    (tmp_path / "loader.pickle").write_bytes(pickle.dumps(make("device", index="one")))
    program = (
        "import pickle, sys, torch\n"
        "loader = pickle.load(open(sys.argv[1], 'rb'))\n"
        "made = [[part.clone() for part in batch] for _ in range(2) for batch in loader]\n"
        "assert loader.stats().on_device.images > 0\n"
        "torch.save(made, sys.argv[2])\n"
    )
    paths = [str(tmp_path / "loader.pickle"), str(tmp_path / "made.pt")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True)
    assert_same(torch.load(paths[1]), wanted)
