"""Operations on floats by the native core: within the bounds beside torch's operations and numpy,
in whatever way the images lie, and by torch where the core does not know them."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import fastload
from fastload import native, pipelines
from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import by_core, intensities
from fastload.recipe.convert import Normalize, ToDtype
from fastload.recipe.crops import RandomHorizontalFlip, RandomVerticalFlip
from fastload.recipe.floats_by_core import FloatsByCore
from fastload.recipe.intensities import ChangeIntensities
from fastload.recipe.operation import Operation
from fastload.recipe.split import BatchProgram
from fastload.recipe.turned_and_scaled import TurnAndScale
from fastload.render.floats import KINDS, NUMBERS
from fastload.sources.kinds import IMAGE, MASK

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the native core")

COUNT, SIZE = 24, (37, 141)
"""Wider than the blocks of 128 columns that the core works on."""
KEPT = (30, 133)
BOUND = 3e-6
"""Of values from 0 to 1."""
DRAWS = Draws(3, 1, np.arange(COUNT))
CONVERT = (ToDtype(torch.float32, scale=False), Normalize((0.0,), (255.0,)))
TURN = TurnAndScale(KEPT, 0.5, (-math.pi, math.pi), 0.5, (0.7, 1.4))
FLIPS = (RandomVerticalFlip(), RandomHorizontalFlip())


def program(*ops: Operation) -> tuple[BatchProgram, BatchProgram]:
    """By torch, and by the core."""
    plain = BatchProgram(tuple(enumerate(ops)))
    _, (made,) = by_core.by_core([plain], torch.device("cpu"))
    assert isinstance(made, by_core.ProgramByCore)
    return plain, made


def both(columns: dict[str, torch.Tensor], *ops: Operation) -> list[dict[str, torch.Tensor]]:
    kinds = {"image": IMAGE, "mask": MASK}
    return [one(columns, kinds, DRAWS) for one in program(*ops)]


def pictures(channels: int, size: tuple[int, int] = SIZE) -> torch.Tensor:
    """(B, C, H, W) uint8, whose channels lie last: smooth, with edges and noise."""
    rng = np.random.default_rng(channels)
    rows, columns = np.mgrid[: size[0], : size[1]]
    wave = 90 + 60 * np.sin(rows / 5)[..., None] + 40 * ((columns // 20 % 2)[..., None])
    noise = rng.integers(-30, 30, (COUNT, *size, channels))
    return torch.from_numpy((wave + noise).clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2)


def certain(*kinds: int) -> Any:
    """These changes, of every sample."""
    chosen = tuple(float(kind in kinds) for kind in range(len(KINDS)))
    return mock.patch.object(intensities, "PROBABILITIES", chosen)


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_each_change_is_torchs(kind: int, channels: int) -> None:
    images = pictures(channels)
    with certain(kind):
        plain, made = both({"image": images}, *CONVERT, ChangeIntensities())
    unchanged = images.float() / 255
    assert (plain["image"] - unchanged).abs().mean() > 1e-3
    torch.testing.assert_close(made["image"], plain["image"], atol=BOUND, rtol=0)


@pytest.mark.parametrize("exponent", [0.5, 0.7, 1.0, 1.5, 2.0])
def test_powers_are_those_of_float64(exponent: float) -> None:
    """Of 0, of numbers next to it, and of all others; negative ones from the other end."""
    tiny = np.geomspace(1e-38, 1e-2, 3_000, dtype=np.float32)
    values = np.concatenate([[0.0], tiny, np.linspace(0, 1, 97_000, dtype=np.float32), [1.0]])
    values = np.resize(values.astype(np.float32), (250, 401))
    given = np.stack([values, -values])[None]
    numbers = np.zeros((1, 1, 2, NUMBERS), dtype=np.float32)
    numbers[..., 0] = exponent
    pool = native.NativePool(1)
    for kind, plane, sign in (("gamma", 0, 1), ("gamma_of_negative", 1, -1)):
        out = np.empty_like(given)
        pool.change_floats(
            given,
            out,
            kinds=np.array([KINDS.index(kind)], dtype=np.int32),
            applies=np.ones((1, 1, 2), dtype=np.bool_),
            numbers=numbers,
            keys=np.zeros((1, 1), dtype=np.uint64),
        ).wait()
        wanted = values.astype(np.float64) ** exponent
        wanted -= wanted.mean()
        wanted = wanted * (values.std(dtype=np.float64) / wanted.std()) + values.mean(
            dtype=np.float64
        )
        np.testing.assert_allclose(out[0, plane], sign * wanted, atol=5e-7)
    pool.close()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("channels", [2, 3])
def test_all_together_are_torchs(channels: int, floats: bool, channels_last: bool) -> None:
    images = pictures(channels)
    ops: list[Operation] = [*CONVERT, TURN, ChangeIntensities(), *FLIPS]
    if floats:
        images, ops = images / 255, ops[2:]
    if not channels_last:
        images = images.contiguous()
    masks = (pictures(1)[:, 0] // 64).contiguous()
    kinds = {"image": IMAGE, "mask": MASK}
    plain, by_the_core = program(*ops)
    wanted = plain({"image": images, "mask": masks}, kinds, DRAWS)
    memory: list[torch.Tensor] = []

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        form = torch.channels_last if channels_last else torch.contiguous_format
        memory.append(torch.full(shape, math.nan, dtype=dtype).contiguous(memory_format=form))
        return memory[-1]

    before = images.clone()
    made = by_the_core({"image": images, "mask": masks}, kinds, DRAWS, empty=empty)
    assert torch.equal(images, before)
    assert made["image"].data_ptr() == memory[0].data_ptr()
    # Places are computed in float32: a pixel of 141 is off by up to 2e-5, and so are its values.
    torch.testing.assert_close(made["image"], wanted["image"], atol=5e-5, rtol=0)
    assert (made["mask"] != wanted["mask"]).double().mean() < 1e-4
    assert made["mask"].shape == (COUNT, 1, *KEPT)


def test_the_middle_is_taken_of_what_is_not_turned() -> None:
    # An odd size of an even one: the middle of the image, rounded down, less that of what is kept.
    images = pictures(2, (38, 142))
    never = TurnAndScale((29, 131), 0.0, (0.0, 1.0), 0.0, (0.7, 1.4))
    plain, made = both({"image": images}, *CONVERT, never)
    expected = images[:, :, 19 - 14 : 19 - 14 + 29, 71 - 65 : 71 - 65 + 131].float() / 255
    torch.testing.assert_close(plain["image"], expected)
    torch.testing.assert_close(made["image"], expected)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    """To the last bit."""
    images, (_, made) = pictures(3), program(*CONVERT, TURN, ChangeIntensities(), *FLIPS)
    whole = made({"image": images}, {"image": IMAGE}, DRAWS)["image"]
    for row in range(0, COUNT, 5):
        alone = made({"image": images[row : row + 1]}, {"image": IMAGE}, DRAWS.take([row]))
        assert torch.equal(alone["image"][0], whole[row])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_masks_get_the_class_that_has_most_of_a_pixel(dtype: torch.dtype) -> None:
    """Beside the bilinear shares of all classes, in float64."""
    rng = np.random.default_rng(5)
    classes = rng.choice([0, 1, 200 if dtype == torch.uint8 else 40_000], (COUNT, 1, *SIZE))
    masks = torch.from_numpy(classes.astype(np.uint16)).to(dtype)
    _, made = program(TURN, ChangeIntensities())
    found = made({"mask": masks}, {"mask": MASK}, DRAWS)["mask"]
    assert found.dtype == dtype
    matrices, turned = TURN.matrices(DRAWS, 0)
    down, across = np.mgrid[: KEPT[0], : KEPT[1]]
    centred = np.stack([down - (KEPT[0] - 1) / 2, across - (KEPT[1] - 1) / 2])
    assert 0 < turned.sum() < COUNT
    for row in range(COUNT):
        mask, place = classes[row, 0], np.tensordot(matrices[row], centred, 1)
        if not turned[row]:
            top, left = (SIZE[0] // 2 - KEPT[0] // 2, SIZE[1] // 2 - KEPT[1] // 2)
            kept = mask[top : top + KEPT[0], left : left + KEPT[1]]
            np.testing.assert_array_equal(found[row, 0].numpy(), kept)
            continue
        y, x = place[0] + (SIZE[0] - 1) / 2, place[1] + (SIZE[1] - 1) / 2
        inside = (y > 0) & (y < SIZE[0] - 1) & (x > 0) & (x < SIZE[1] - 1)
        y, x = y[inside], x[inside]
        top, left = np.floor(y).astype(int), np.floor(x).astype(int)
        shares = {}
        for kind in np.unique(mask):
            shares[kind] = sum(
                (1 - abs(y - top - n)) * (1 - abs(x - left - m)) * (mask[top + n, left + m] == kind)
                for n in (0, 1)
                for m in (0, 1)
            )
        ordered = np.sort(np.stack([*shares.values()]), axis=0)
        clear = ordered[-1] - ordered[-2] > 2e-3
        best = np.array([*shares])[np.argmax(np.stack([*shares.values()]), axis=0)]
        np.testing.assert_array_equal(found[row, 0].numpy()[inside][clear], best[clear])
        assert clear.mean() > 0.9
        outside = (place[0] + (SIZE[0] - 1) / 2 < -0.01) | (place[1] + (SIZE[1] - 1) / 2 < -0.01)
        assert not found[row, 0].numpy()[outside].any()


def test_what_the_core_does_not_know_is_torchs() -> None:
    """Images of 16 bits are converted by torch; float64 is torch's from end to end."""
    images = pictures(3).int() * 200
    ops = (ToDtype(torch.float32, scale=False), TURN, ChangeIntensities())
    plain, made = both({"image": images.to(torch.uint16)}, *ops)
    torch.testing.assert_close(made["image"], plain["image"], atol=51_000 * 5e-5, rtol=0)
    plain, made = both({"image": images.double()}, TURN, ChangeIntensities(), *FLIPS)
    assert made["image"].dtype == torch.float64
    assert torch.equal(made["image"], plain["image"])


def test_passes_are_as_long_as_their_order_allows() -> None:
    def passes(*ops: Operation) -> list[int]:
        """How many operations each has."""
        _, made = program(*ops)
        found = [op for _, op in made._passes(torch.uint8)]
        return [len(op.ops) if isinstance(op, FloatsByCore) else 0 for op in found]

    change = ChangeIntensities()
    assert passes(*CONVERT, TURN, change, *FLIPS) == [5]
    assert passes(*CONVERT, change, change, FLIPS[0]) == [4]
    assert passes(TURN, TURN) == [1, 1]
    assert passes(FLIPS[0], change) == [0, 1]
    assert passes(change, Normalize((0.5,), (0.5,)), change) == [1, 0, 1]
    images = pictures(3) / 255
    normalise = Normalize((0.5,), (0.5,))
    plain, made = both({"image": images}, FLIPS[0], ChangeIntensities(), normalise, TURN, FLIPS[1])
    torch.testing.assert_close(made["image"], plain["image"], atol=1e-4, rtol=0)
    plain, made = both({"image": images}, ChangeIntensities(), TURN, ChangeIntensities())
    torch.testing.assert_close(made["image"], plain["image"], atol=1e-4, rtol=0)


def test_channels_may_have_means_of_their_own() -> None:
    normalise = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    plain, made = both({"image": pictures(3)}, ToDtype(), normalise, ChangeIntensities())
    torch.testing.assert_close(made["image"], plain["image"], atol=2e-5, rtol=0)


def test_a_loader_says_who_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same samples by torch, where the core is not built."""
    images = pictures(3).permute(0, 2, 3, 1).numpy()
    arrays = {"image": images, "mask": (images[..., 0] // 64).copy()}
    transform, found = pipelines.nnunet_2d((24, 20)), []
    for words in ("in one pass of the native core: ToDtype", "by torch: the native core is not"):
        with fastload.create_loader(arrays, 6, transform=transform, seed=4) as loader:
            rows = [line for line in str(loader.explain()).splitlines() if words in line]
            assert len(rows) == 1
            assert "ChangeIntensities() + Random" in rows[0] or "not built" in rows[0]
            parts = [(batch["image"], batch["mask"]) for batch in loader]
        found.append([torch.cat(column) for column in zip(*parts, strict=True)])
        monkeypatch.setattr(native, "available", lambda: False)
    torch.testing.assert_close(found[0][0], found[1][0], atol=5e-5, rtol=0)
    assert (found[0][1] != found[1][1]).double().mean() < 1e-3


def test_images_that_are_too_small_are_refused() -> None:
    small = torch.zeros((COUNT, 3, 20, 3))
    for one in program(ChangeIntensities(), FLIPS[0]):
        with pytest.raises(ConfigurationError, match="blurs with 7 pixels"):
            one({"image": small}, {"image": IMAGE}, DRAWS)


@pytest.mark.parametrize(
    "given",
    [
        {"out": np.zeros((2, 3, 7, 6), np.float32)},
        {"out": np.zeros((2, 1, 6, 6), np.float32)},
        {"out": np.zeros((2, 6, 6, 3), np.float32)},
        {"scale": None},
        {"offset": np.zeros(2, np.float32)},
        {"matrices": np.zeros((2, 2, 2))},
        {"matrices": np.zeros((1, 2, 2)), "turned": np.ones(2, np.bool_)},
        {"kinds": np.full(1, len(KINDS), np.int32)},
        {"kinds": np.full(1, -1, np.int32)},
        {"kinds": np.full(2, 1, np.int32)},
        {"kinds": np.full(1, KINDS.index("low_resolution"), np.int32)},
        {"applies": np.ones((2, 1, 2), np.bool_)},
        {"numbers": np.zeros((2, 1, 3, 13), np.float32)},
        {"keys": np.zeros((2, 2), np.uint64)},
        {"mirrors": np.ones((2, 1), np.bool_)},
        {"images": np.zeros((2, 3, 0, 6), np.uint8)},
        {"images": np.zeros((2, 3, 6, 6), np.uint8)[:, :, :3], "out": np.zeros((2, 3, 3, 6), "f4")},
    ],
    ids=lambda given: " ".join(given),
)
def test_tables_that_do_not_fit_are_refused(given: dict[str, Any]) -> None:
    sound: dict[str, Any] = {
        "images": np.zeros((2, 3, 6, 6), np.uint8),
        "out": np.zeros((2, 3, 6, 6), np.float32),
        "scale": np.ones(3, np.float32),
        "offset": np.zeros(3, np.float32),
        "kinds": np.full(1, KINDS.index("blur"), np.int32),
        "applies": np.ones((2, 1, 3), np.bool_),
        "numbers": np.zeros((2, 1, 3, NUMBERS), np.float32),
        "keys": np.zeros((2, 1), np.uint64),
    }
    pool = native.NativePool(1)
    pool.change_floats(**sound).wait()
    with pytest.raises(ValueError, match=r"needed|unknown|together|larger than half"):
        pool.change_floats(**(sound | given))
    masks, turned = np.zeros((2, 6, 6), np.uint8), np.ones(2, np.bool_)
    with pytest.raises(ValueError, match="at most the size"):
        pool.turn_masks(masks, np.zeros((2, 7, 6), np.uint8), np.zeros((2, 2, 2)), turned)
    with pytest.raises(ValueError, match="needed"):
        pool.turn_masks(masks, masks.copy(), np.zeros((2, 2, 2)), turned[:1])
    pool.close()
