"""The `dali` backend on its own: what the suite over all backends does not reach."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.backends.base import Context, HostBatch
from fastload.backends.dali import DaliBackend, DaliOptions, _device_id
from fastload.backends.dali_graph import DaliPipeline, decode_regions, regions_of
from fastload.backends.rows import RowReader
from fastload.distribution import install_command
from fastload.draws import Draws
from fastload.errors import (
    BackendUnavailableError,
    ConfigurationError,
    DecodeError,
    UnsupportedTransformError,
    WorkerError,
)
from fastload.geometry import Geometry, GeometryPlan
from fastload.recipe import Recipe
from fastload.recipe.crops import Resize
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles, PixelArray, ValueArray
from tests.host import InOrder, made_by
from tests.images import HTML, cmyk_jpeg, huge_png_header, jpeg, labels, photo, png, truncated
from tests.waiting import LIMIT

dali = pytest.importorskip("nvidia.dali", reason='DALI is not installed: pip install ".[dali]"')

Pixels = npt.NDArray[np.uint8]
BOUND = 45.0
"""PSNR [dB] to torchvision that the backend publishes for the CPU."""

CROP_FLIP = v2.Compose(
    [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
)
MODES = {
    "nearest-exact": InterpolationMode.NEAREST_EXACT,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}


def source_of(folder: Path, files: dict[str, bytes], **columns: Any) -> Source:
    """A source of these files and of their numbers as labels."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    image = EncodedFiles(PathTable.of(files, root=str(folder)))
    return Source(
        {"image": image, **columns, "label": ValueArray(np.arange(len(files)))},
        "0" * 32,
        str(folder),
    )


def backend_of(
    source: Source, transform: Any, *, batch_size: int = 8, **options: Any
) -> DaliBackend:
    recipe = Recipe.from_transform(transform).split()
    return DaliBackend(Context(source, recipe, batch_size, num_workers=2), DaliOptions(**options))


def draws_of(indices: Any, *, epoch: int = 0, seed: int = 3) -> Draws:
    return Draws(seed, epoch, np.asarray(indices, dtype=np.int64))


def batch_of(backend: DaliBackend, draws: Draws) -> HostBatch:
    return made_by(backend, draws)


def without_dali(backend: DaliBackend, draws: Draws) -> HostBatch:
    """As the other backends make it."""
    context, options = backend._context, backend._options
    settings, decoder = options.decode_settings, options.decoder
    reader = RowReader(context.source, context.recipe, settings=settings, decoder=decoder)
    return reader.batch(draws)


def psnr(got: Any, wanted: Any) -> float:
    apart = np.asarray(got, np.float64) - np.asarray(wanted, np.float64)
    error = np.square(apart).sum() / max(1, apart.size)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def decoded(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


def expected(pixels: Pixels, geometry: Geometry, row: int, plan: GeometryPlan) -> Pixels:
    """Row `row` of the geometry by torchvision: crop, resize, pad, crop, flip."""
    top, left, height, width = geometry.box[row].tolist()
    image = torch.from_numpy(pixels).permute(2, 0, 1)[:, top : top + height, left : left + width]
    size = geometry.size[row].tolist()
    if size != [height, width]:
        image = F.resize(
            image, size, interpolation=MODES[plan.interpolation], antialias=plan.antialias
        )
    top, left, height, width = geometry.window[row].tolist()
    before = [max(0, -left), max(0, -top)]
    padding = [*before, max(0, left + width - size[1]), max(0, top + height - size[0])]
    if any(padding):
        fill = list(plan.fill) if plan.padding_mode == "constant" else None
        image = F.pad(image, padding, fill=fill, padding_mode=plan.padding_mode)
    image = F.crop(image, top + before[1], left + before[0], height, width)
    if geometry.flip[row, 0]:
        image = F.horizontal_flip(image)
    if geometry.flip[row, 1]:
        image = F.vertical_flip(image)
    return np.asarray(image.permute(1, 2, 0))


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """Good images of many sizes and kinds."""
    kinds: list[dict[str, Any]] = [
        {},
        {"subsampling": "4:4:4"},
        {"progressive": True},
        {"subsampling": "4:2:2"},
    ]
    found = {
        f"{i}.jpg": jpeg(photo(50 + 13 * i, 90 + 7 * i % 40, seed=i), **kinds[i % 4])
        for i in range(8)
    }
    found["grey.jpg"] = jpeg(photo(70, 61, seed=20, channels=1))
    found["grey progressive.jpg"] = jpeg(photo(70, 61, seed=21, channels=1), progressive=True)
    found["colour.png"] = png(photo(66, 91, seed=22))
    found["palette.png"] = png(photo(66, 91, seed=23), mode="P")
    found["alpha.png"] = png(photo(66, 91, seed=24), mode="RGBA")
    return found


@pytest.fixture
def backend(tmp_path: Path, files: dict[str, bytes]) -> Iterator[DaliBackend]:
    made = backend_of(source_of(tmp_path / "good", files), CROP_FLIP, batch_size=16)
    yield made
    made.close()


# -- pixels

TRANSFORMS = {
    "random resized crop": [v2.RandomResizedCrop(48)],
    "enlarged": [v2.RandomResizedCrop((150, 170), scale=(0.1, 0.4))],
    "bicubic": [v2.RandomResizedCrop(48, interpolation=InterpolationMode.BICUBIC)],
    "nearest-exact": [v2.RandomResizedCrop(48, interpolation=InterpolationMode.NEAREST_EXACT)],
    "no antialias": [v2.ToImage(), v2.RandomResizedCrop(48, antialias=False)],
    "resize, centre": [v2.Resize(48), v2.CenterCrop(40)],
    "resize, larger centre": [v2.Resize(32), v2.CenterCrop(48)],
    "resize, random crop": [v2.Resize(48), v2.RandomCrop((40, 36))],
    "resize, padded crop": [
        v2.Resize((48, 56)),
        v2.RandomCrop((48, 56), padding=(3, 5, 7, 9), fill=(9, 120, 240)),
    ],
    "resize, reflect": [
        v2.Resize((48, 56)),
        v2.RandomCrop((48, 56), padding=12, padding_mode="reflect"),
    ],
    "centre": [v2.CenterCrop((40, 44))],
    "crop": [v2.RandomCrop(40)],
    **{
        f"crop, {mode}": [v2.RandomCrop(60, padding=20, padding_mode=mode)]
        for mode in ("constant", "edge", "reflect", "symmetric")
    },
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_pixels_agree_with_torchvision_on_the_same_boxes(
    tmp_path: Path, files: dict[str, bytes], name: str
) -> None:
    flips = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()]
    transform = v2.Compose([*TRANSFORMS[name], *flips])
    plan = Recipe.from_transform(transform).split().geometry
    backend = backend_of(source_of(tmp_path, files), transform, batch_size=len(files))
    draws = draws_of(range(len(files)))
    try:
        batch = batch_of(backend, draws)
    finally:
        backend.close()
    sources = [decoded(data) for data in files.values()]
    geometry = plan.resolve(draws, np.array([pixels.shape[:2] for pixels in sources]))
    assert not batch.failures
    assert geometry.flip.any(axis=0).all()
    assert not geometry.flip.all(axis=0).any()
    for row, pixels in enumerate(sources):
        wanted = expected(pixels, geometry, row, plan)
        if plan.resamples and plan.interpolation != "nearest-exact":
            assert psnr(batch.columns["image"][row], wanted) >= BOUND, list(files)[row]
        else:
            assert np.array_equal(batch.columns["image"][row], wanted), list(files)[row]


@pytest.mark.parametrize(
    ("mode", "frame"), [(InterpolationMode.BILINEAR, 1), (InterpolationMode.BICUBIC, 2)]
)
def test_where_an_image_ends_the_edge_is_repeated(
    tmp_path: Path, mode: InterpolationMode, frame: int
) -> None:
    """Of a reduced image DALI's outermost pixels lean towards the source's edge; the bound holds
    for all others."""
    pixels = photo(210, 330, seed=3) // 2
    pixels[[0, -1]] = pixels[:, [0, -1]] = 255
    resize = v2.Resize((24, 32), interpolation=mode)
    backend = backend_of(source_of(tmp_path, {"framed.png": png(pixels)}), resize)
    got = batch_of(backend, draws_of([0])).columns["image"][0]
    backend.close()
    wanted = resize(torch.from_numpy(pixels).permute(2, 0, 1)).permute(1, 2, 0)
    assert psnr(got, wanted) < BOUND, "DALI has learnt it: docs/guarantees.md can promise more"
    inside = (slice(frame, -frame), slice(frame, -frame))
    assert psnr(got[inside], wanted[inside]) >= BOUND


def test_only_what_the_window_shows_is_decoded() -> None:
    plan = Recipe.from_transform(v2.Compose([v2.Resize(100), v2.CenterCrop(20)])).split().geometry
    geometry = plan.resolve(draws_of([0]), np.array([[200, 300]]))
    regions = regions_of(geometry, np.array([0]), plan)
    assert (regions.shape[0] <= 40 + 2 * 4).all()  # twice the window, and the filter's reach
    assert (regions.start[0] >= [80 - 4, 130 - 4]).all()


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe((Resize((8, 8), interpolation="nearest"),)),
        Recipe((Resize((8, 8), interpolation="bicubic", antialias=False),)),
    ],
    ids=["nearest", "bicubic without antialias"],
)
def test_interpolations_that_dali_does_otherwise_are_refused(
    tmp_path: Path, files: dict[str, bytes], recipe: Recipe
) -> None:
    with pytest.raises(UnsupportedTransformError, match="'torch'"):
        backend_of(source_of(tmp_path, files), recipe)


# -- rows and columns


def test_rare_kinds_get_the_pixels_of_the_other_backends(tmp_path: Path) -> None:
    deep = (photo(40, 50, seed=3, channels=1)[..., 0].astype(np.uint16) << 8) + 7
    gif = io.BytesIO()
    Image.fromarray(photo(40, 50, seed=4)).save(gif, format="GIF")
    inks = [Image.fromarray(photo(40, 50, seed=ink, channels=1)[..., 0]) for ink in range(4)]
    cmyk = io.BytesIO()
    Image.merge("CMYK", inks).save(cmyk, format="JPEG")
    animated = io.BytesIO()
    first, *others = [Image.fromarray(photo(40, 50, seed=frame)) for frame in (5, 6, 7)]
    first.save(animated, format="PNG", save_all=True, append_images=others, default_image=True)
    rare = {
        "cmyk.jpg": cmyk.getvalue(),
        "plain.jpg": jpeg(photo(40, 50, seed=2)),
        "deep.png": png(deep),
        "picture.gif": gif.getvalue(),
        "animated.png": animated.getvalue(),
    }
    backend = backend_of(source_of(tmp_path, rare), v2.CenterCrop(40), batch_size=5)
    draws = draws_of([3, 1, 2, 0, 4])
    try:
        batch, wanted = batch_of(backend, draws), without_dali(backend, draws)
    finally:
        backend.close()
    assert not batch.failures
    assert batch.columns["label"].tolist() == [3, 1, 2, 0, 4]
    assert np.array_equal(batch.columns["image"], wanted.columns["image"])
    assert np.array_equal(batch.columns["image"][2][..., 0], (deep >> 8)[:, 5:45])
    assert np.array_equal(batch.columns["image"][4], photo(40, 50, seed=5)[:, 5:45])


@pytest.mark.parametrize("upright", [False, True])
def test_orientation_is_followed_when_asked_and_ignored_otherwise(
    tmp_path: Path, upright: bool
) -> None:
    turned = {f"{k}.jpg": jpeg(photo(40, 60, seed=k), orientation=k) for k in range(1, 9)}
    backend = backend_of(source_of(tmp_path, turned), v2.CenterCrop(32), exif_orientation=upright)
    try:
        images = [batch_of(backend, draws_of([index])).columns["image"][0] for index in range(8)]
        assert "dali failures" not in backend.explain()
    finally:
        backend.close()
    for orientation in range(1, 9):
        pixels = decoded(turned[f"{orientation}.jpg"])
        if upright:
            pixels = np.rot90(pixels, {3: 2, 4: 2, 6: 3, 5: 3, 8: 1, 7: 1}.get(orientation, 0))
            pixels = pixels[:, ::-1] if orientation in (2, 4, 5, 7) else pixels
        top, left = (pixels.shape[0] - 32) // 2, (pixels.shape[1] - 32) // 2
        assert np.array_equal(images[orientation - 1], pixels[top : top + 32, left : left + 32]), (
            orientation
        )


def test_masks_and_pixels_get_the_geometry_of_their_image(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    sizes = [decoded(data).shape[:2] for data in files.values()]
    masks = {f"{i}.png": png(labels(*size, seed=i)) for i, size in enumerate(sizes)}
    (tmp_path / "masks").mkdir()
    for name, data in masks.items():
        (tmp_path / "masks" / name).write_bytes(data)
    mask = EncodedFiles(PathTable.of(masks, root=str(tmp_path / "masks")), role="mask")
    backend = backend_of(
        source_of(tmp_path / "images", files, mask=mask), CROP_FLIP, batch_size=len(files)
    )
    draws = draws_of(range(len(files)))
    try:
        batch, wanted = batch_of(backend, draws), without_dali(backend, draws)
    finally:
        backend.close()
    assert list(batch.columns) == ["image", "mask", "label"]
    assert np.array_equal(batch.columns["mask"], wanted.columns["mask"])
    assert psnr(batch.columns["image"], wanted.columns["image"]) >= BOUND


def test_sources_without_compressed_images_need_no_dali_pipeline() -> None:
    array = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    source = Source(
        {"image": PixelArray(array), "label": ValueArray(np.arange(6))}, "0" * 32, "arrays"
    )
    backend = backend_of(source, None)
    try:
        batch = batch_of(backend, draws_of([4, 2]))
    finally:
        backend.close()
    assert np.array_equal(batch.columns["image"], array[[4, 2]])


def test_order_labels_and_batches_of_any_length(
    backend: DaliBackend, files: dict[str, bytes]
) -> None:
    order = np.random.default_rng(1).permutation(len(files))
    requests = [order[:8], order[8:], order[:1], order[:0], order]
    line = InOrder(backend).start(*map(draws_of, requests))
    for indices in requests:
        batch, wanted = line.next(), without_dali(backend, draws_of(indices))
        assert batch.columns["label"].tolist() == indices.tolist()
        assert batch.columns["image"].shape == (len(indices), 32, 32, 3)
        assert psnr(batch.columns["image"], wanted.columns["image"]) >= BOUND


def test_batches_are_written_to_the_buffers_given(tmp_path: Path, files: dict[str, bytes]) -> None:
    given: list[Pixels] = []

    def allocate(shape: tuple[int, ...]) -> Pixels:
        given.append(np.empty(shape, dtype=np.uint8))
        return given[-1]

    recipe = Recipe.from_transform(CROP_FLIP).split()
    context = Context(source_of(tmp_path, files), recipe, 4, num_workers=1, allocate=allocate)
    backend = DaliBackend(context, DaliOptions())
    try:
        batch = batch_of(backend, draws_of([0, 1, 2, 3]))
    finally:
        backend.close()
    assert batch.columns["image"] is given[0]


# -- bad files


def with_impossible_tables(data: bytes) -> bytes:
    """A JPEG, complete and with a good header, whose first Huffman table cannot be: DALI fails the
    whole batch."""
    start = data.index(b"\xff\xc4") + 5
    return data[:start] + b"\xff" * 16 + data[start + 16 :]


BAD = {
    "empty.jpg": b"",
    "page.jpg": HTML,
    "cut.jpg": truncated(jpeg(photo(60, 80))),
    "cut.png": truncated(png(photo(60, 80))),
    "bomb.png": huge_png_header(60_000, 60_000),
    "tables.jpg": with_impossible_tables(jpeg(photo(60, 80))),
    "small.jpg": jpeg(photo(20, 20)),
}


@pytest.mark.parametrize(
    ("name", "check"), [*((name, True) for name in BAD), ("tables.jpg", False)]
)
def test_a_bad_file_is_named_and_the_others_are_served(
    tmp_path: Path, files: dict[str, bytes], name: str, check: bool
) -> None:
    backend = backend_of(
        source_of(tmp_path, {**files, name: BAD[name]}),
        v2.RandomCrop(32),
        batch_size=4,
        check=check,
    )
    bad = len(files)
    try:
        requests = [[0, bad, 10, bad], [1, 2, 3, 4], [bad], [5]]  # all of them inside at once
        line = InOrder(backend).start(*map(draws_of, requests))
        for indices in requests:
            batch, wanted = line.next(), without_dali(backend, draws_of(indices))
            assert [failure.row for failure in batch.failures] == [
                r for r, i in enumerate(indices) if i == bad
            ]
            assert [str(failure.error) for failure in batch.failures] == [
                str(f.error) for f in wanted.failures
            ]
            for failure in batch.failures:
                assert isinstance(failure.error, DecodeError)
                assert name in str(failure.error)
                assert not batch.columns["image"][failure.row].any()
            assert np.array_equal(batch.columns["image"], wanted.columns["image"])
            assert batch.columns["label"].tolist() == indices
        assert ("dali failures" in backend.explain()) == (not check), "reported before DALI sees it"
    finally:
        backend.close()


def test_a_failed_pipeline_is_replaced_and_loses_no_other_batch(
    backend: DaliBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the pipeline has been fed the batches after already, and where one of these was
    cancelled."""
    collect = DaliPipeline.collect
    failing = iter([False, True, False, False, True])

    def collects(pipe: DaliPipeline) -> Any:
        pixels = collect(pipe)
        if next(failing, False):
            raise RuntimeError("Error in CPU operator `nvidia.dali.fn.decoders.image_slice`")
        return pixels

    monkeypatch.setattr(DaliPipeline, "collect", collects)
    line = InOrder(backend)
    for _ in range(2):
        for index in range(5):
            line.start(draws_of([index, 9]))
        for index in range(3):
            batch, wanted = line.next(), without_dali(backend, draws_of([index, 9]))
            assert batch.columns["label"].tolist() == [index, 9]
            assert psnr(batch.columns["image"], wanted.columns["image"]) >= BOUND
        line.cancel()
    assert backend.explain()["dali failures"].startswith("2,")


def test_a_pipeline_that_cannot_be_built_is_an_error_and_no_hang(
    backend: DaliBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(plan: GeometryPlan, **arguments: Any) -> Any:
        raise RuntimeError("no such device")

    monkeypatch.setattr("fastload.backends.dali.DaliPipeline", build)
    for _ in range(2):
        with pytest.raises(WorkerError, match="no such device"):
            batch_of(backend, draws_of([1]))


def failing(words: str) -> Any:
    """Takes the place of DaliPipeline: fails every batch in these words."""

    class Failing:
        def __init__(self, plan: GeometryPlan, **arguments: Any) -> None: ...

        def feed(self, encoded: list[Pixels], regions: Any) -> None: ...

        def collect(self) -> Pixels:
            raise RuntimeError(words)

        def close(self) -> None: ...

    return Failing


def test_what_dali_cannot_decode_but_others_can_is_served_and_logged(
    backend: DaliBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "fastload.backends.dali.DaliPipeline", failing("operator fn.decoders: unsupported")
    )
    draws = draws_of([3, 0, 12])
    batch, wanted = batch_of(backend, draws), without_dali(backend, draws)
    assert not batch.failures
    assert np.array_equal(batch.columns["image"], wanted.columns["image"])
    assert "unsupported" in caplog.text
    assert "dali failures" in backend.explain()


def test_what_is_no_files_fault_is_raised(
    backend: DaliBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload.backends.dali.DaliPipeline", failing("out of memory"))
    with pytest.raises(WorkerError, match="out of memory"):
        batch_of(backend, draws_of([3, 0, 12]))


# -- life


def test_no_thread_starts_before_the_first_batch(tmp_path: Path, files: dict[str, bytes]) -> None:
    before = threading.active_count()
    backend = backend_of(source_of(tmp_path, files), CROP_FLIP)
    assert threading.active_count() == before
    backend.close()
    backend.close()


def test_after_batches_that_were_cancelled_the_next_is_the_one_asked_for(
    backend: DaliBackend,
) -> None:
    line = InOrder(backend)
    for _ in range(20):
        for index in range(4):
            line.start(draws_of([index]))
        line.cancel()
        assert batch_of(backend, draws_of([7, 5])).columns["label"].tolist() == [7, 5]


def test_close_with_batches_outstanding_and_start_again(backend: DaliBackend) -> None:
    for _ in range(3):
        for index in range(4):
            backend.start(draws_of([index] * 16))
        backend.close()
        assert batch_of(backend, draws_of([2])).columns["label"].tolist() == [2]


def test_close_frees_a_thread_that_waits(backend: DaliBackend) -> None:
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                line.next()
        except BaseException as error:
            raised.append(error)

    line = InOrder(backend)
    for index in range(4):
        line.start(draws_of([index] * 16))
    waiting = threading.Thread(target=wait)
    waiting.start()
    backend.close()
    waiting.join(LIMIT)
    assert not waiting.is_alive()
    assert raised


def test_several_backends_at_once(tmp_path: Path, files: dict[str, bytes]) -> None:
    source = source_of(tmp_path, files)
    backends = [
        backend_of(source, CROP_FLIP),
        backend_of(source, v2.CenterCrop(40)),
        backend_of(source, CROP_FLIP),
    ]
    try:
        lines = [InOrder(one) for one in backends]
        for step in range(3):
            for line in lines:
                line.start(draws_of([step, 9], epoch=step))
        for step in range(3):
            first, _, third = (line.next().columns for line in lines)
            assert np.array_equal(first["image"], third["image"])
            assert first["label"].tolist() == [step, 9]
    finally:
        for one in backends:
            one.close()


@pytest.mark.parametrize("closed", [True, False])
def test_threads_end_with_the_backend_closed_or_abandoned(
    tmp_path: Path, files: dict[str, bytes], closed: bool
) -> None:
    source = source_of(tmp_path, files)
    for _ in range(3):
        backend = backend_of(source, CROP_FLIP)
        works = [backend.start(draws_of(indices)) for indices in ([1, 2, 3], [4])]
        works[0].result()
        works.clear()  # they keep the backend
        threads = [
            thread for thread in threading.enumerate() if thread.name.startswith("fastload-dali")
        ]
        assert threads
        if closed:
            backend.close()
            assert not any(thread.is_alive() for thread in threads)
        del backend
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()


@pytest.mark.reliability
def test_the_interpreter_exits_with_batches_outstanding(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    source_of(tmp_path, files)
    script = f"""
import sys
import fastload.backends.dali
assert "nvidia.dali" not in sys.modules, "imported by the import of the backend"
from tests.test_dali_backend import CROP_FLIP, EncodedFiles, PathTable, Source, backend_of, draws_of
image = EncodedFiles(PathTable.of({list(files)!r}, root={str(tmp_path)!r}))
backend = backend_of(Source({{"image": image}}, "0" * 32, "files"), CROP_FLIP)
for index in range(4):
    backend.start(draws_of([index] * 8))
print("reached the end")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "reached the end", "")


# -- arguments and availability


def test_without_dali_the_install_command_is_given(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(tmp_path, files)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "nvidia.dali", None)
        with pytest.raises(BackendUnavailableError, match=re.escape(install_command("dali"))):
            backend_of(source, CROP_FLIP)
    monkeypatch.setattr(dali, "__version__", "1.40.0")
    with pytest.raises(BackendUnavailableError, match=r"1\.40\.0.*--upgrade"):
        backend_of(source, CROP_FLIP)


@pytest.mark.parametrize(
    "options",
    [{"device": "gpu"}, {"num_threads": 0}, {"queue_depth": 0}],
    ids=lambda options: next(iter(options)),
)
def test_options_out_of_range_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        DaliOptions(**options)


def test_mixed_decoding_needs_a_loader_on_a_gpu(tmp_path: Path, files: dict[str, bytes]) -> None:
    with pytest.raises(ConfigurationError, match="device='cuda'"):
        backend_of(source_of(tmp_path, files), CROP_FLIP, device="mixed")


def test_decoding_on_the_gpu_is_never_chosen_unasked() -> None:
    """It has been reported to end the process: not by "auto", and not to see how fast it is."""
    assert _device_id("auto", torch.device("cuda", 1)) is None
    assert _device_id("mixed", torch.device("cuda", 1)) == 1
    arrays = (np.zeros((4, 8, 8, 3), np.uint8), np.arange(4))
    with pytest.raises(ConfigurationError, match=r"tune: .* end the process"):
        fastload.create_loader(arrays, 2, options=DaliOptions(device="mixed", tune=True))
    fastload.create_loader(
        arrays, 2, backend="dali", options=DaliOptions(device="cpu", tune=True)
    ).close()


def test_the_graph_of_mixed_decoding_cuts_what_was_decoded_whole(
    backend: DaliBackend, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same graph with its operators on the CPU: the very pixels of region decoding."""
    given: list[dict[str, Any]] = []
    decode = dali.fn.decoders.image

    def on_cpu(encoded: Any, **options: Any) -> Any:
        given.append(dict(options))
        del options["hw_decoder_load"]
        return decode(encoded, **(options | {"device": "cpu"}))

    draws = draws_of(range(len(files)))
    wanted = batch_of(backend, draws).columns["image"].copy()
    backend.close()
    monkeypatch.setattr(dali.fn.decoders, "image", on_cpu)
    monkeypatch.setattr(
        "fastload.backends.dali_graph.decode_regions",
        lambda *graph, mixed: decode_regions(*graph, mixed=True),
    )
    assert np.array_equal(batch_of(backend, draws).columns["image"], wanted)
    assert [(options["device"], options["hw_decoder_load"]) for options in given] == [
        ("mixed", 0.0)
    ]


def test_it_explains_itself(backend: DaliBackend) -> None:
    assert dali.__version__ in backend.explain()["dali"]
    assert "2 threads" in backend.explain()["dali"]
    assert backend.depth >= 2


@pytest.mark.gpu
def test_mixed_decoding_stays_on_the_gpu(tmp_path: Path, files: dict[str, bytes]) -> None:
    bad = {"bad.jpg": BAD["tables.jpg"], "cmyk.jpg": cmyk_jpeg(photo(40, 50, seed=1))}
    source = source_of(tmp_path, {**files, **bad})
    recipe = Recipe.from_transform(CROP_FLIP).split()
    backend = DaliBackend(
        Context(source, recipe, 16, device=torch.device("cuda", 0)), DaliOptions(device="mixed")
    )
    draws = draws_of(range(len(source)))
    try:
        batch, wanted = batch_of(backend, draws), without_dali(backend, draws)
    finally:
        backend.close()
    images = batch.columns["image"]
    assert isinstance(images, torch.Tensor)
    assert images.is_cuda
    assert [failure.row for failure in batch.failures] == [len(files)]
    for row in range(len(source)):
        assert psnr(images[row].cpu(), wanted.columns["image"][row]) >= 40.0
