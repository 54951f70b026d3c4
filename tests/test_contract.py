"""What every backend promises, tested on all of them by the same code."""

from __future__ import annotations

import gc
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

import fastload
from fastload.backends import backend_class
from fastload.backends.base import traits_of
from fastload.draws import Draws
from fastload.errors import ConfigurationError, FastloadError, StateMismatchError
from fastload.recipe import Recipe
from tests.backends import DEVICE, Contestant, contestants
from tests.images import jpeg, photo, png
from tests.waiting import wait_until

SAMPLES = 23
SIZE = 32
RRC_FLIP = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
PADDED_CROP = v2.Compose(
    [v2.Resize(40, antialias=True), v2.RandomCrop(SIZE, padding=6), v2.RandomHorizontalFlip()]
)
RESIZE_CENTER = v2.Compose([v2.Resize(40, antialias=True), v2.CenterCrop(SIZE)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class folder of 23 images of many sizes and kinds: colour layouts, grey, progressive, a
    PNG."""
    root = tmp_path_factory.mktemp("photos")
    kinds: list[dict[str, Any]] = [
        {},
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"progressive": True},
    ]
    for index in range(SAMPLES):
        name = root / ("cat", "dog", "fox")[index % 3] / f"{index:03d}.jpg"
        name.parent.mkdir(exist_ok=True)
        pixels = photo(
            50 + 7 * index % 61, 60 + 11 * index % 47, seed=index, channels=1 if index == 7 else 3
        )
        if index == 11:
            name.with_suffix(".png").write_bytes(png(pixels))
        else:
            name.write_bytes(jpeg(pixels, **kinds[index % len(kinds)]))
    return root


@pytest.fixture
def create(folder: Path, tmp_path: Path) -> Any:
    """create(contestant, **arguments) -> Loader over the folder, closed at the end of the test."""
    made: list[fastload.Loader] = []

    def make(contestant: Contestant, source: Any = None, **arguments: Any) -> fastload.Loader:
        arguments = {"batch_size": 4, "transform": RRC_FLIP, "shuffle": True, "seed": 5} | arguments
        made.append(contestant.create(folder if source is None else source, tmp_path, **arguments))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def epoch_of(loader: fastload.Loader) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(loader)


def same(a: Any, b: Any) -> bool:
    """Equal, and on the same device."""
    return len(a) == len(b) and all(
        torch.equal(x, y)
        for left, right in zip(a, b, strict=True)
        for x, y in zip(left, right, strict=True)
    )


def order_of(folder: Path, loader: fastload.Loader, epoch: int) -> np.ndarray:
    return loader.sampler.order.epoch(epoch)


def check_bound(contestant: Contestant, got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Pixels within the bound that the backend publishes."""
    difference = (got.cpu().to(torch.int16) - wanted.to(torch.int16)).abs().float()
    if contestant.psnr is None:
        assert difference.max() <= 2, f"largest difference {difference.max()}"
        assert difference.mean() <= 0.2, f"mean difference {difference.mean()}"
    else:
        mse = difference.square().mean().item()
        psnr = float("inf") if mse == 0 else 10 * np.log10(255**2 / mse)
        assert psnr >= contestant.psnr, f"PSNR {psnr:.1f} dB"


# -- the same samples


@contestants()
def test_order_and_labels_are_a_function_of_seed_and_epoch(
    contestant: Contestant, create: Any, folder: Path
) -> None:
    reference = ImageFolder(str(folder))
    loader = create(contestant)
    for epoch in range(2):
        labels = torch.cat([labels for _, labels in loader])
        order = order_of(folder, loader, epoch)
        assert labels.dtype == torch.int64
        assert labels.tolist() == [reference.targets[i] for i in order]
        assert sorted(order.tolist()) == list(range(SAMPLES))


@contestants()
@pytest.mark.parametrize(
    "transform",
    [RRC_FLIP, RESIZE_CENTER, PADDED_CROP],
    ids=["rrc-flip", "resize-center", "padded-crop"],
)
def test_pixels_agree_with_torchvision_on_the_same_boxes(
    contestant: Contestant, create: Any, folder: Path, transform: Any
) -> None:
    reference = ImageFolder(str(folder))
    plan = Recipe.from_transform(transform).split().geometry
    loader = create(contestant, transform=transform)
    got = torch.cat([images for images, _ in loader])
    assert got.dtype == torch.uint8
    assert got.shape == (SAMPLES, 3, SIZE, SIZE)
    for row, index in enumerate(order_of(folder, loader, 0).tolist()):
        image = F.pil_to_tensor(reference[index][0])
        geometry = plan.resolve(Draws(5, 0, np.array([index])), np.array([image.shape[-2:]]))
        wanted = F.resized_crop(
            image, *geometry.box[0].tolist(), geometry.size[0].tolist(), antialias=True
        )
        top, left, height, width = geometry.window[0].tolist()
        wanted = F.crop(wanted, top, left, height, width)
        if geometry.flip[0, 0]:
            wanted = F.horizontal_flip(wanted)
        check_bound(contestant, got[row], wanted)


@contestants()
def test_backends_agree_on_every_random_choice(contestant: Contestant, create: Any) -> None:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
            v2.RandomErasing(p=0.5),
        ]
    )
    plain = Contestant("torch-0", "torch", {"num_workers": 0})
    wanted = torch.cat([images for images, _ in create(plain, transform=transform)])
    got = torch.cat([images for images, _ in create(contestant, transform=transform)])
    assert got.dtype == torch.float32
    # The erased boxes hold exactly zero: they must be in the same places, whatever the resampler.
    assert torch.equal((got == 0).all(1), (wanted == 0).all(1))
    step = 1 / 255 / 0.25
    assert (got - wanted).abs().mean() <= (0.2 if contestant.psnr is None else 1.0) * step


@pytest.mark.whole
@contestants()
@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
def test_noise_is_the_same_everywhere_and_jpegs_are_torchvisions(
    contestant: Contestant, create: Any
) -> None:
    """Of the pixels that a backend makes; after a resume, too."""
    plain = Contestant("torch-0", "torch", {"num_workers": 0})
    steps = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]

    def images_of(who: Contestant, *more: Any) -> torch.Tensor:
        loader = create(who, transform=v2.Compose([*steps, *more]))
        first = next(iter(loader))
        second = create(who, transform=v2.Compose([*steps, *more]))
        second.load_state_dict(loader.state_dict())
        return torch.cat([images.cpu() for images, _ in [first, *second]])

    noise = v2.GaussianNoise(0.05, 0.2, clip=False)  # bytes wrap around
    clean = images_of(contestant)
    found, wanted = (
        images_of(who, noise).int() - images_of(who).int() & 255 for who in (contestant, plain)
    )
    assert torch.equal(found, wanted)
    assert len(torch.unique(found)) > 200
    made = images_of(contestant, v2.JPEG(30))
    for image, own in zip(made, clean, strict=True):
        assert torch.equal(image, F.jpeg(own.contiguous(), 30))


@contestants()
def test_shuffling_differs_by_epoch_and_by_seed(contestant: Contestant, create: Any) -> None:
    # No random crop: it is the order alone that must differ.
    loader, other = (create(contestant, transform=RESIZE_CENTER, seed=seed) for seed in (5, 6))
    first, second = epoch_of(loader), epoch_of(loader)
    assert not same(first, second)
    assert not same(first, epoch_of(other))


@contestants()
def test_random_choices_differ_by_epoch(contestant: Contestant, create: Any) -> None:
    loader = create(contestant, shuffle=False)
    assert not same(epoch_of(loader), epoch_of(loader))


@contestants("turbojpeg", "torch-2", "cache-disk", "dali")
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("workers", [1, 3])
def test_worker_count_changes_nothing(contestant: Contestant, create: Any, workers: int) -> None:
    assert same(
        epoch_of(create(contestant, num_workers=workers)),
        epoch_of(create(contestant, num_workers=2)),
    )


# -- ranks


@contestants()
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_same_global_batches(
    contestant: Contestant, create: Any, world: int
) -> None:
    alone = create(contestant, batch_size=8)
    ranks = [
        create(contestant, batch_size=8 // world, shard=fastload.Shard(rank, world))
        for rank in range(world)
    ]
    assert {len(loader) for loader in ranks} == {len(alone)}
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert torch.equal(torch.cat([images for images, _ in parts]), whole[0])
        assert torch.equal(torch.cat([labels for _, labels in parts]), whole[1])


@contestants()
def test_evaluation_counts_each_sample_once_over_all_ranks(
    contestant: Contestant, create: Any, folder: Path
) -> None:
    targets = ImageFolder(str(folder)).targets
    ranks = [
        create(contestant, batch_size=5, shuffle=False, shard=fastload.Shard(r, 4))
        for r in range(4)
    ]
    batches = [epoch_of(loader) for loader in ranks]
    assert {len(b) for b in batches} == {len(loader) for loader in ranks} == {2}
    labels = [torch.cat([batch[step][1] for batch in batches]) for step in range(2)]
    assert torch.cat(labels).tolist() == targets


@contestants()
def test_a_rank_without_samples_gets_an_empty_batch_in_evaluation(
    contestant: Contestant, create: Any
) -> None:
    loader = create(contestant, batch_size=4, shuffle=False, shard=fastload.Shard(0, 5))
    batches = epoch_of(loader)  # 23 samples: one global batch of 20, then 3 for 5 ranks
    assert [len(labels) for _, labels in batches] == [4, 0]
    assert batches[1][0].shape == (0, 3, SIZE, SIZE)


@contestants()
def test_length_is_stable_and_drop_last_drops(contestant: Contestant, create: Any) -> None:
    keep, drop = create(contestant), create(contestant, drop_last=True)
    assert (len(keep), len(drop)) == (6, 5)
    for _ in range(3):
        assert [len(labels) for _, labels in keep] == [4] * 5 + [3]
        assert [len(labels) for _, labels in drop] == [4] * 5
    assert (len(keep), len(drop)) == (6, 5)


# -- resume


@contestants()
def test_resume_from_every_step(contestant: Contestant, create: Any) -> None:
    loader = create(contestant)
    states, batches = [], []
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    resumed = create(contestant)
    for step, state in enumerate(states[: len(loader) + 2]):
        resumed.load_state_dict(state)
        rest = epoch_of(resumed)
        end = len(loader) * (1 if step < len(loader) else 2)
        assert same(rest, batches[step + 1 : end]), f"after step {step}"
        if step == len(loader) - 1:
            assert same(epoch_of(resumed), batches[end : end + len(loader)]), (
                "the epoch after the end of one"
            )


@contestants()
def test_resume_twice_in_a_row_and_between_epochs(contestant: Contestant, create: Any) -> None:
    loader = create(contestant)
    everything = [batch for _ in range(3) for batch in loader]
    first = create(contestant)
    iterator = iter(first)
    got = [next(iterator) for _ in range(2)]
    second = create(contestant)
    second.load_state_dict(first.state_dict())
    iterator = iter(second)
    got += [next(iterator) for _ in range(2)]
    third = create(contestant)
    third.load_state_dict(second.state_dict())
    got += epoch_of(third)
    between = create(contestant)
    between.load_state_dict(third.state_dict())
    for epoch in (1, 2):
        between.set_epoch(epoch)  # what a trainer does; it must not lose the place
        got += epoch_of(between)
    assert same(got, everything)


@contestants()
def test_resume_at_another_world_size(contestant: Contestant, create: Any) -> None:
    alone = create(contestant, batch_size=8)
    whole = epoch_of(alone)
    pair = [create(contestant, batch_size=4, shard=fastload.Shard(rank, 2)) for rank in range(2)]
    iterators = [iter(loader) for loader in pair]
    for iterator in iterators:
        next(iterator)
    state = pair[0].state_dict()
    assert state == pair[1].state_dict()
    resumed = create(contestant, batch_size=8)
    resumed.load_state_dict(state)
    assert same(epoch_of(resumed), whole[1:])


@contestants("turbojpeg")
def test_state_of_another_loader_is_refused(
    contestant: Contestant, create: Any, tmp_path: Path
) -> None:
    state = create(contestant).state_dict()
    other = tmp_path / "other" / "cat"
    other.mkdir(parents=True)
    for index in range(SAMPLES):
        (other / f"{index}.jpg").write_bytes(jpeg(photo(40, 40, seed=index)))
    for arguments, word in (
        ({"seed": 9}, "seed"),
        ({"batch_size": 2}, "global_batch_size"),
        ({"shuffle": False}, "shuffle"),
        ({"transform": RESIZE_CENTER}, "recipe"),
        ({"source": other.parent}, "source"),
    ):
        with pytest.raises(StateMismatchError, match=word):
            create(contestant, **arguments).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="version"):
        create(contestant).load_state_dict({"epoch": 1})


# -- living with it


def open_resources() -> tuple[int, int, int]:
    """Threads, file descriptors, and resident memory in bytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (
        threading.active_count(),
        len(os.listdir("/proc/self/fd")),
        pages * os.sysconf("SC_PAGE_SIZE"),
    )


@pytest.mark.whole
@contestants()
def test_breaking_off_fifty_times_leaks_nothing(contestant: Contestant, create: Any) -> None:
    loader = create(contestant, batch_size=8, transform=v2.RandomResizedCrop(160, antialias=True))

    def break_off(times: int) -> None:
        for _ in range(times):
            for step, _ in enumerate(loader):
                if step == 1:
                    break

    break_off(5)
    before = open_resources()
    break_off(50)
    after = open_resources()
    assert after[0] <= before[0]
    # A batch on its way from a worker process holds a descriptor for each of its two columns.
    assert after[1] <= before[1] + 2 * loader.batches_in_flight
    assert after[2] <= before[2] + 25e6, "one leaked batch each time would be 31 MB"


@contestants()
def test_nothing_starts_before_the_first_next_and_all_stops_at_close(
    contestant: Contestant, create: Any
) -> None:
    create(contestant).close()  # imports and library-wide threads happen now
    before = threading.active_count()
    loader = create(contestant)
    iterator = iter(loader)
    assert threading.active_count() == before
    next(iterator)
    loader.close()
    loader.close()
    # The feeder of a multiprocessing queue ends when it likes.
    wait_until(lambda: threading.active_count() <= before)
    with pytest.raises(FastloadError):
        next(iter(loader))


@contestants()
def test_two_loaders_at_once(contestant: Contestant, create: Any) -> None:
    wanted = epoch_of(create(contestant))
    a, b = create(contestant), create(contestant)
    pairs = list(zip(a, b, strict=True))
    assert same([x for x, _ in pairs], wanted)
    assert same([y for _, y in pairs], wanted)


@contestants()
def test_batches_may_be_kept(contestant: Contestant, create: Any) -> None:
    loader = create(contestant, batch_size=2)
    kept, copies = [], []
    for _ in range(2):
        for images, labels in loader:
            kept.append((images, labels))
            copies.append((images.clone(), labels.clone()))
    assert same(kept, copies)


@contestants("turbojpeg")
def test_a_new_iterator_ends_the_old_one(contestant: Contestant, create: Any) -> None:
    loader = create(contestant)
    old = iter(loader)
    next(old)
    next(iter(loader))
    with pytest.raises(FastloadError, match="iter"):
        next(old)


@contestants()
def test_batches_come_in_the_dtype_and_memory_format_asked_for(
    contestant: Contestant, create: Any
) -> None:
    images, labels = next(iter(create(contestant)))
    assert images.device.type == labels.device.type == DEVICE.type
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    halves, labels = next(
        iter(create(contestant, dtype=torch.float16, memory_format=torch.contiguous_format))
    )
    assert halves.dtype == torch.float16
    assert halves.is_contiguous()
    assert labels.dtype == torch.int64
    assert torch.equal(halves, images.half()), "values keep their range"


def random_states() -> list[Any]:
    """Of every generator that code may share with the loader."""
    of_torch = [torch.random.get_rng_state()] + (
        [torch.cuda.get_rng_state(DEVICE)] if DEVICE.type == "cuda" else []
    )
    return [
        random.getstate(),
        np.random.get_state()[1].tolist(),
        *(state.tolist() for state in of_torch),
    ]


@contestants()
def test_iterating_leaves_the_global_random_state_alone(
    contestant: Contestant, create: Any
) -> None:
    loader = create(contestant, transform=Blur() if contestant.opaque else RRC_FLIP)
    before = random_states()
    epoch_of(loader)
    assert random_states() == before


# -- pairs, masks, opaque transforms


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pairs")
    for kind in ("images", "masks"):
        (root / kind).mkdir()
    for index in range(6):
        pixels = photo(48 + index, 64, seed=index)
        (root / "images" / f"{index}.jpg").write_bytes(jpeg(pixels))
        (root / "masks" / f"{index}.png").write_bytes(
            png((pixels[:, :, :1] > 128).astype(np.uint8) * 255)
        )
    return root


@contestants()
@pytest.mark.parametrize(
    "crop", [v2.RandomCrop(40), v2.RandomResizedCrop(40, antialias=True)], ids=["cut", "resized"]
)
def test_masks_take_the_same_geometry_and_no_colour(
    contestant: Contestant, create: Any, pairs: Path, crop: Any
) -> None:
    transform = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.ColorJitter(0.5, 0.5)])
    loader = create(contestant, pairs, transform=transform, batch_size=3, shuffle=False)
    images, masks = (torch.cat(column) for column in zip(*loader, strict=True))
    assert images.shape == (6, 3, 40, 40)
    assert masks.shape == (6, 40, 40)
    assert masks.dtype == torch.uint8
    plan = Recipe.from_transform(transform).split().geometry
    for index in range(6):
        mask = F.pil_to_tensor(Image.open(pairs / "masks" / f"{index}.png"))
        geometry = plan.resolve(Draws(5, 0, np.array([index])), np.array([mask.shape[-2:]]))
        wanted = F.crop(mask, *geometry.box[0].tolist())
        wanted = F.resize(
            wanted, geometry.size[0].tolist(), interpolation=InterpolationMode.NEAREST
        )
        wanted = F.crop(wanted, *geometry.window[0].tolist())
        if geometry.flip[0, 0]:
            wanted = F.horizontal_flip(wanted)
        assert torch.equal(masks[index].cpu(), wanted[0])


@contestants()
def test_samples_of_several_images_are_the_same_everywhere(
    contestant: Contestant, create: Any, pairs: Path
) -> None:
    mosaic = fastload.Mosaic(24, p=0.8, mask_fill=9)
    transform = v2.Compose([mosaic, v2.RandomCrop(24), v2.RandomHorizontalFlip()])
    arguments: dict[str, Any] = {"transform": transform, "shuffle": True, "seed": 2}
    if not traits_of(backend_class(contestant.backend)).joins_images:
        with pytest.raises(ConfigurationError, match="a sample of up to 4 images"):
            create(contestant, pairs, batch_size=4, **arguments)
        return
    with fastload.create_loader(
        pairs, batch_size=4, backend="torch", num_workers=0, **arguments
    ) as loader:
        wanted = [torch.cat(column) for column in zip(*[*loader, *loader], strict=True)]
    loader = create(contestant, pairs, batch_size=4, **arguments)
    first = next(iter(loader))
    second = create(contestant, pairs, batch_size=4, **arguments)
    second.load_state_dict(loader.state_dict())
    batches = [first, *second, *second]
    images, masks = (torch.cat(column) for column in zip(*batches, strict=True))
    assert images.shape == (12, 3, 24, 24)
    assert torch.equal(masks.cpu(), wanted[1])
    assert (images.cpu().int() - wanted[0].int()).abs().max() <= 2


class Blur:
    """A transform of the user's own."""

    def __call__(self, image: Any) -> Any:
        return image.convert("RGB").resize((SIZE, SIZE)).rotate(float(torch.rand(()) * 90))


@contestants()
def test_a_collate_function_runs_in_torch_and_is_refused_elsewhere(
    contestant: Contestant, create: Any
) -> None:
    for transform in (None, RRC_FLIP):
        if contestant.opaque:
            assert len(next(iter(create(contestant, transform=transform, collate_fn=list)))) == 4
            continue
        with pytest.raises(ConfigurationError, match="collate_fn"):
            create(contestant, transform=transform, collate_fn=list)


@contestants()
def test_opaque_transforms_run_in_torch_and_are_refused_by_name_elsewhere(
    contestant: Contestant, create: Any
) -> None:
    transform = v2.Compose([Blur(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    if not contestant.opaque:
        with pytest.raises(fastload.UnsupportedTransformError, match=r"Blur.*torch"):
            create(contestant, transform=transform)
        return
    loader = create(contestant, transform=transform)
    first = epoch_of(loader)
    assert first[0][0].dtype == torch.float32
    again = create(contestant, transform=transform, batch_size=8)
    assert torch.equal(torch.cat([i for i, _ in first]), torch.cat([i for i, _ in again]))
    resumed = create(contestant, transform=transform)
    iterator = iter(resumed)
    next(iterator)
    other = create(contestant, transform=transform)
    other.load_state_dict(resumed.state_dict())
    assert same(epoch_of(other), first[1:])
