"""Arrays on a device, whose batches one kernel draws and makes: the one in CUDA C run by the native
core on the CPU, the one in Triton by its interpreter, against the operations that it takes the
place of, the very bits. On a GPU (FASTLOAD_TEST_DEVICE=cuda) the kernel itself."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload.backends import cache
from fastload.backends.cache import CacheOptions
from fastload.cache import resident
from fastload.draws import Draws
from fastload.geometry import Geometry, GeometryPlan, Resampling
from fastload.recipe import Recipe
from fastload.recipe.outputs import Outputs
from fastload.render import drawn, fused
from fastload.render.device import render_on_device
from fastload.render.drawn import DrawnGeometry, OrderOnDevice, PendingImages
from fastload.sources import open_source
from tests.backends import DEVICE
from tests.launches import WAYS, Launched
from tests.simulated_gpu import LazyGpu, LazyStream, OnGpu

COUNT, SIZE = 10, (9, 11)
FLOATS = [
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize((0.48, 0.45, 0.4), (0.22, 0.23, 0.25)),
]


@pytest.fixture(params=WAYS)
def launched(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Launched:
    """The kernels that are launched, in order; they are on."""
    return Launched(monkeypatch, request.param)


def pixels(channels: int = 3, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *SIZE, channels), dtype=np.uint8)


def loader(source: Any, transform: Any, **given: Any) -> fastload.Loader:
    return fastload.create_loader(
        source,
        4,
        transform=transform,
        backend="cache",
        device=DEVICE,
        **({"options": CacheOptions(storage="device"), "shuffle": True, "seed": 3} | given),
    )


def served(source: Any, transform: Any, **given: Any) -> list[Any]:
    """All that two epochs bring, one tensor after the other."""
    with loader(source, transform, **given) as made:
        batches = [batch for _ in range(2) for batch in made]
    parts = [part for b in batches for part in (b.values() if isinstance(b, dict) else b)]
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in parts[:1])
    return [part.cpu() for part in parts]


def check(
    launched: Launched, kernels: list[str], source: Any, transform: Any, **given: Any
) -> None:
    """The batches are those of the operations of torch; these kernels make the three of each epoch
    as one, and those that are made ahead."""
    found = served(source, transform, **given)
    assert launched[: 2 * len(kernels)] == kernels * 2
    launched.clear()
    os.environ[fused.SWITCH] = "0"
    expected = served(source, transform, **given)
    assert launched == [], "switched off"
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


FLIPS = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(0.3)]
CROPS: dict[str, list[Any]] = {
    "padded": [v2.RandomCrop((9, 8), padding=4, fill=31), *FLIPS],
    "flips before and after": [*FLIPS, v2.RandomCrop((6, 8), padding=(0, 1, 2, 3)), *FLIPS],
    "edge": [FLIPS[1], v2.RandomCrop((12, 14), padding=4, padding_mode="edge"), FLIPS[0]],
    "reflect": [v2.RandomCrop((12, 14), padding=4, padding_mode="reflect"), FLIPS[0]],
    "symmetric": [v2.RandomCrop((12, 14), padding=4, padding_mode="symmetric")],
    "no padding": [v2.RandomCrop((5, 6))],
    "only flips": FLIPS,
    "never, always": [v2.RandomHorizontalFlip(0.0), v2.RandomVerticalFlip(1.0)],
    "nothing": [v2.Identity()],
}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("padded", 3),
        *(
            pytest.param(name, channels, marks=pytest.mark.slow)
            for name, channels in [("padded", 1), ("reflect", 1), *((name, 3) for name in CROPS)]
            if (name, channels) != ("padded", 3)
        ),
    ],
)
def test_crops_and_flips_are_drawn_by_one_kernel(
    launched: Launched, name: str, channels: int
) -> None:
    source = (pixels(channels), np.arange(COUNT))
    check(launched, ["drawn"], source, v2.Compose(CROPS[name]))


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_normalising_and_the_dtype_to_deliver_are_in_the_same_launch(
    launched: Launched, dtype: Any
) -> None:
    transform = v2.Compose([*CROPS["padded"], *FLOATS])
    check(launched, ["drawn"], (pixels(), np.arange(COUNT)), transform, dtype=dtype)


@pytest.mark.whole
def test_a_value_a_channel_lies_outside(launched: Launched) -> None:
    transform = v2.RandomCrop(8, padding=3, fill=(9, 120, 250))
    check(launched, ["drawn"], (pixels(), np.arange(COUNT)), transform)


@pytest.mark.whole
def test_masks_are_cut_as_their_images(launched: Launched) -> None:
    source = {"image": pixels(), "mask": pixels(1), "label": np.arange(COUNT)}
    transform = v2.RandomCrop(8, padding=3, fill={tv_tensors.Image: 7, "others": 1})
    check(launched, ["drawn", "drawn"], source, transform)
    launched.clear()
    os.environ[fused.SWITCH] = launched.way
    kernels = ["drawn", "drawn", "normalise"]
    check(launched, kernels, source, v2.Compose([*CROPS["padded"], *FLOATS]))


@pytest.mark.whole
def test_what_follows_that_is_more_than_a_conversion_gets_bytes(launched: Launched) -> None:
    source = (pixels(), np.arange(COUNT) % 3)
    jitter = v2.Compose([*CROPS["padded"], v2.ColorJitter(0.4)])
    check(
        launched,
        ["drawn", "recolour"],
        source,
        jitter,
        options=CacheOptions(storage="device", place="device"),
    )
    launched.clear()
    os.environ[fused.SWITCH] = launched.way
    floats, mixing = v2.Compose([*CROPS["padded"], *FLOATS]), v2.MixUp(num_classes=3)
    check(launched, ["drawn", "normalise"], source, floats, batch_transform=mixing)


@pytest.mark.whole
def test_a_subset_takes_its_own_rows(launched: Launched) -> None:
    opened = open_source((pixels(count=30), np.arange(30)))
    source = replace(opened, source=opened.source.take(np.arange(3, 23, 2)))
    check(launched, ["drawn"], source, v2.RandomCrop(8, padding=3))


@pytest.mark.slow
def test_samples_that_come_twice_have_draws_of_their_own(launched: Launched) -> None:
    source = (pixels(), np.arange(COUNT))
    given: dict[str, Any] = {"sampler": [4, 1, 1, 1, 0, 4, 4], "shuffle": False}
    found = served(source, v2.RandomCrop(6, padding=3), **given)
    assert "drawn" not in launched
    os.environ[fused.SWITCH] = "0"
    expected = served(source, v2.RandomCrop(6, padding=3), **given)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.whole
def test_nothing_but_the_order_of_an_epoch_travels(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def spy(values: np.ndarray, device: torch.device) -> torch.Tensor:
        sent.append(len(values))
        return torch.from_numpy(values).to(device)

    monkeypatch.setattr(drawn, "on_device", spy)
    monkeypatch.setattr(resident, "on_device", spy)
    served((pixels(), np.arange(COUNT)), v2.Compose([*CROPS["padded"], *FLOATS]))
    # Of batches of the third epoch, too, which are made ahead.
    assert set(sent) == {3 + COUNT}
    assert 2 <= len(sent) <= 4
    sent.clear()
    halves = fastload.Shard(1, 2)
    served((pixels(), np.arange(COUNT)), v2.RandomCrop(6), shard=halves)
    assert set(sent) == {3 + COUNT // 2}, "of this rank"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "epoch", "index"),
    [(0, 0, 0), (1, 1, 1), (2**64 - 1, 2**32 - 1, 2**40 - 9), (0xC0FFEE << 33, 16, 2**32 - 4)],
)
def test_numbers_are_those_of_the_host(
    launched: Launched, seed: int, epoch: int, index: int
) -> None:
    plan = plan_of(
        v2.Compose([*FLIPS, v2.RandomCrop((15, 4), padding=(7, 12, 5, 10), padding_mode="edge")])
    )
    images = torch.from_numpy(pixels()).to(DEVICE).view(-1, 3)
    draws = Draws(seed, epoch, index + np.arange(8, dtype=np.int64))
    rows = np.arange(8, dtype=np.int64)[::-1].copy()
    geometry = DrawnGeometry.of(plan, SIZE)
    assert geometry is not None
    order = OrderOnDevice(draws, draws.indices, rows, DEVICE)
    made = PendingImages(images, geometry, plan.resampling, order, 2, 5).make()
    os.environ[fused.SWITCH] = "0"
    there = slice(2, 7)
    expected = render_on_device(
        images,
        start=rows[there] * SIZE[0] * SIZE[1],
        width=np.full(5, SIZE[1]),
        geometry=plan.resolve(draws.take(there), np.array([SIZE] * 5)),
        resampling=plan.resampling,
        out_size=(15, 4),
    )
    assert torch.equal(made.cpu(), expected.permute(0, 3, 1, 2).cpu())


def plan_of(transform: Any) -> GeometryPlan:
    return Recipe.from_transform(transform).split(SIZE).geometry


@pytest.mark.whole
@pytest.mark.parametrize(("most", "room", "as_one"), [(2, 1 << 20, 2), (16, 3 << 10, 1)])
def test_as_many_batches_are_made_as_one_as_there_is_room_for(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, most: int, room: int, as_one: int
) -> None:
    source, transform = (pixels(), np.arange(COUNT)), v2.Compose([v2.RandomCrop(6), *FLIPS])
    expected = served(source, transform)
    monkeypatch.setattr(cache, "_MOST_AT_ONCE", most)
    monkeypatch.setattr(cache, "_room_on", lambda device: room)  # a batch takes 1,728 bytes
    launched.clear()
    with loader(source, transform) as made:
        found = [part.cpu() for batch in made for part in batch]
        loaded, in_flight = made.state_dict(), made.batches_in_flight
    assert launched[: -(-3 // as_one)] == ["drawn"] * -(-3 // as_one)  # an epoch has three
    # Three are submitted; of one more all but the one that was handed out are left; two are ready.
    assert in_flight == 3 * as_one + (as_one - 1) + 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected[:6], strict=True))
    assert loaded["epoch"] == 1


@pytest.mark.whole
@pytest.mark.parametrize("step", range(3))
def test_a_batch_among_those_that_are_made_as_one_is_resumed_at(
    launched: Launched, step: int
) -> None:
    source, transform = (pixels(), np.arange(COUNT)), v2.Compose([v2.RandomCrop(6), *FLIPS])
    expected = served(source, transform)
    with loader(source, transform) as made:
        batches = iter(made)
        for _ in range(step):
            next(batches)
        state = made.state_dict()
    with loader(source, transform) as made:
        made.load_state_dict(state)
        found = [part.cpu() for _ in range(2) for batch in made for part in batch]
    assert len(found) == 2 * (6 - step)
    assert all(torch.equal(a, b) for a, b in zip(found, expected[2 * step :], strict=True))


@pytest.mark.whole
def test_what_is_done_with_a_batch_as_a_whole_is_done_with_each(launched: Launched) -> None:
    transform = v2.Compose([v2.RandomCrop(6), *FLOATS])
    mix = v2.MixUp(num_classes=COUNT)
    check(
        launched,
        ["drawn", "normalise"] * 3,
        (pixels(), np.arange(COUNT)),
        transform,
        batch_transform=mix,
    )


@pytest.mark.whole
@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomResizedCrop(8),
        v2.Pad(2),
        v2.CenterCrop(6),
        v2.Compose([v2.RandomCrop(8), v2.RandomCrop(6)]),
        v2.RandomCrop(20, pad_if_needed=True),
        v2.RandomRotation(10),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_other_geometry_is_left_to_the_operations_of_torch(
    launched: Launched, transform: Any
) -> None:
    assert DrawnGeometry.of(plan_of(transform), SIZE) is None
    with loader((pixels(), np.arange(COUNT)), transform) as made:
        next(iter(made))
        assert "one kernel" not in made.explain()
    assert "drawn" not in launched


def test_explain_says_so(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    with loader((pixels(), np.arange(COUNT)), v2.RandomCrop(8)) as made:
        next(iter(made))
        assert "one kernel, which draws, cuts, mirrors and converts" in made.explain()
        monkeypatch.setenv(fused.SWITCH, "0")
        assert "batched tensor operations" in made.explain()


@pytest.mark.skipif(DEVICE.type != "cpu", reason="memory that nobody writes to takes none there")
@pytest.mark.parametrize("resized", [True, False])
def test_images_are_found_that_lie_beyond_2_gib(launched: Launched, resized: bool) -> None:
    """The numbers of their bytes are more than 31 bits hold."""
    side, last = 16, (1 << 31) // (16 * 16 * 3) + 1
    memory = np.zeros((last + 1, side, side, 3), np.uint8)
    memory[last] = np.random.default_rng(0).integers(0, 256, memory[0].shape)
    flat = torch.from_numpy(memory).view(-1, 3)
    assert flat.numel() > 1 << 31
    if resized:
        whole = np.array([(0, 0, side, side)])
        half = Geometry(whole, whole[:, 2:] // 2, whole // 2, np.zeros((1, 2), dtype=np.bool_))
        resampling, width = Resampling("bilinear"), np.array([side])

        def render(pixels: torch.Tensor, first: int) -> torch.Tensor:
            start = np.array([first * side * side])
            return fused.render(pixels, start, width, half, resampling, (side // 2, side // 2))

        alone = torch.from_numpy(memory[last:].copy()).view(-1, 3)
        assert torch.equal(render(flat, last), render(alone, 0))
        return
    draws, rows = Draws(0, 0, np.arange(2)), np.array([last, 0])
    order = OrderOnDevice(draws, draws.indices, rows, DEVICE)
    geometry = DrawnGeometry((side, side), (side, side), (), None)
    made = PendingImages(flat, geometry, Resampling(), order, 0, 2).make()
    assert np.array_equal(made.permute(0, 2, 3, 1).numpy(), memory[[last, 0]])


def test_an_order_is_sent_once_for_each_stream_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On another stream than that of its copy it might not be there yet."""
    stream = [1]
    for module in (resident, drawn):
        monkeypatch.setattr(module, "stream_of", lambda device: stream[0])
    source = open_source((pixels(), np.arange(COUNT))).source
    split = Recipe.from_transform(v2.Identity()).split(SIZE)
    plan, outputs = split.geometry, Outputs.of(source, split)
    served_from = resident.ResidentSource(source, [plan], outputs, torch.device("cpu"))
    whole = np.arange(COUNT)
    draws = Draws(0, 0, whole[2:5])
    first = served_from._order(draws, whole, "image")
    assert served_from._order(draws, whole, "image") is first
    stream[0] = 2
    second = served_from._order(draws, whole, "image")
    assert second is not first
    assert (first.stream, second.stream) == (1, 2)


def test_an_order_that_is_read_on_another_stream_is_kept_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, other = LazyGpu(monkeypatch), LazyStream(9)

    def there(values: Any) -> Any:
        made = torch.as_tensor(values).as_subclass(OnGpu)
        made.recorded = []
        return made

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, device, **given: empty(*size, **given))
    monkeypatch.setattr(drawn, "constants", lambda values, device: values)
    nothing = SimpleNamespace(drawn=lambda *given, **named: None)
    monkeypatch.setattr(drawn, "kernels", lambda device: nothing)
    order: Any = SimpleNamespace(table=there([0]), rows=None, stream=gpu.current.cuda_stream)
    geometry = DrawnGeometry(SIZE, SIZE, (), None)
    images = PendingImages(there(pixels().reshape(-1, 3)), geometry, Resampling(), order, 0, 2)
    images.make()
    assert not order.table.recorded
    with torch.cuda.stream(other):  # type: ignore[arg-type]
        images.make()
    assert order.table.recorded == [other]
