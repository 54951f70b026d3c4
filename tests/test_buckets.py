"""Batches of one image size each: which images are in which bucket, the order of the batches, and
their pixels, on every backend that makes them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

import fastload
from fastload.decode import sizes as sizes_of_images
from fastload.decode.sizes import UNREADABLE, image_sizes
from fastload.errors import ConfigurationError, DecodeError, StateMismatchError
from fastload.files import DecodeSettings
from fastload.recipe import Recipe
from fastload.recipe.sized import sized
from fastload.sampler import BlockShuffle, EpochOrder, Shard, Shuffle
from fastload.sampler.buckets import BucketOrder, Buckets
from fastload.sources import Ragged, RaggedArray, Source, ValueArray
from fastload.sources.columns import EncodedImages, PixelArray
from fastload.stores import StoreError
from tests import images
from tests.host import encoded

SIZES = [(24, 32), (32, 24), (28, 28), (16, 48)]
TRAIN = v2.Compose(
    [v2.RandomResizedCrop(28), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32)]
)
COVER = v2.Compose([v2.Resize(28), v2.CenterCrop(28), v2.ToImage()])


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """(count, 2): sizes of images, of all ratios from 1:4 to 4:1."""
    rng = np.random.default_rng(seed)
    ratios = np.exp(rng.uniform(-math.log(4), math.log(4), count) / 2)
    return np.stack([(60 / ratios), (60 * ratios)], axis=1).astype(np.int64)


def order_of(
    of: np.ndarray,
    batch_size: int,
    *,
    inner: Any = None,
    shard: Shard | None = None,
    drop_last: bool = False,
    **options: Any,
) -> BucketOrder:
    buckets = Buckets(inner, **(options or {"sizes": SIZES}))
    order = EpochOrder(len(of), batch_size, shard or Shard(), drop_last=drop_last, seed=3)
    return buckets.knowing(lambda: of).applied_to(order)


def batches_of(order: BucketOrder, epoch: int = 0) -> list[tuple[tuple[int, int], list[int]]]:
    """(size, samples) of each."""
    indices = order.epoch(epoch)
    draws = [order.draws(epoch, step, indices, None) for step in range(order.steps)]
    made = []
    for one in draws:
        assert one.size is not None
        made.append((one.size, one.indices.tolist()))
    return made


# -- Which bucket ----------------------------------------------------------------------------------


def test_an_image_is_in_the_bucket_of_the_nearest_ratio() -> None:
    sizes = pictures(500)
    order = order_of(sizes, 1, area=512 * 512)
    mine = np.log(sizes[:, 1] / sizes[:, 0])
    theirs = np.array([math.log(width / height) for height, width in order.shapes])
    nearest = np.abs(mine[:, None] - theirs).argmin(axis=1)
    assert np.array_equal(order.which, nearest)


def test_of_two_ratios_as_near_the_taller_is_taken() -> None:
    # 4:1 and 1:1 are as far from 2:1.
    order = order_of(np.array([[20, 40], [41, 20], [40, 20]]), 1, sizes=[(32, 32), (16, 64)])
    assert [order.shapes[n] for n in order.which] == [(32, 32), (32, 32), (32, 32)]


@pytest.mark.parametrize(("area", "step", "ratio"), [(512 * 512, 64, 4.0), (1024 * 1024, 32, 2.0)])
def test_the_sizes_of_an_area(area: int, step: int, ratio: float) -> None:
    sizes = Buckets(area=area, step=step, max_ratio=ratio).all_sizes
    side = math.isqrt(area)
    assert (side, side) in sizes
    for height, width in sizes:
        assert height % step == width % step == 0
        assert height * width <= area
        # No other multiple fits beside the one side.
        assert max(height * (width + step), (height + step) * width) > area
        assert max(height, width) <= ratio * min(height, width)
        assert (width, height) in sizes


# -- The order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [None, Shuffle(), BlockShuffle(4, 8)], ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_the_same_global_batches(inner: Any, drop_last: bool) -> None:
    sizes = pictures(203)
    whole = order_of(sizes, 8, inner=inner, drop_last=drop_last)
    one = batches_of(whole, epoch=2)
    seen = sorted(index for _, batch in one for index in batch)
    if drop_last:
        assert len(seen) == len(set(seen)) == 203 - whole.left_out
        assert {len(batch) for _, batch in one} == {8}
        assert whole.left_out == sum(int(n) % 8 for n in np.bincount(whole.which))
    else:
        assert seen == list(range(203))
    for size, batch in one:
        assert {whole.shapes[whole.which[index]] for index in batch} == {size}
    for world in (2, 4):
        ranks = [
            order_of(sizes, 8 // world, inner=inner, drop_last=drop_last, shard=Shard(rank, world))
            for rank in range(world)
        ]
        assert {rank.steps for rank in ranks} == {whole.steps}
        assert sum(rank.own_samples for rank in ranks) >= whole.own_samples
        parts = [batches_of(rank, epoch=2) for rank in ranks]
        for step, (size, batch) in enumerate(one):
            assert {part[step][0] for part in parts} == {size}
            joined = [index for part in parts for index in part[step][1]]
            # Where there are fewer samples than ranks, some repeat one.
            assert list(dict.fromkeys(joined)) == batch or sorted(set(joined)) == sorted(batch)


def test_batches_of_all_buckets_come_in_a_random_order() -> None:
    order = order_of(pictures(400), 4, inner=Shuffle())
    full = int((order.counts // 4).sum())
    firsts = [[size for size, _ in batches_of(order, epoch)][:full] for epoch in range(2)]
    assert firsts[0] != firsts[1]
    for sizes in firsts:  # each half has batches of each bucket
        assert set(sizes[: full // 2]) == set(sizes[full // 2 :]) == set(order.shapes)


def test_without_a_shuffle_a_batch_comes_when_it_is_full() -> None:
    order = order_of(pictures(100), 4)
    full = int((order.counts // 4).sum())
    made = [batch for _, batch in batches_of(order)]
    assert [batch[-1] for batch in made[:full]] == sorted(batch[-1] for batch in made[:full])
    assert all(batch == sorted(batch) for batch in made)


def test_neighbours_are_read_together_by_the_rank_that_needs_them() -> None:
    sizes = pictures(300)
    for rank in range(2):
        order = order_of(sizes, 8, inner=BlockShuffle(16, 16), shard=Shard(rank, 2))
        assert isinstance(order, BucketOrder)
        indices, since = order.epoch(1), 3
        later: list[int] = []
        for step in range(since, order.steps):
            later += order.draws(1, step, indices, None).indices.tolist()
        announced: list[int] = []
        for step in range(since, order.steps):
            mine = set(order.draws(1, step, indices, None).indices.tolist())
            for group in order.together(1, step, since, indices):
                assert mine & set(group.tolist())  # this batch needs some
                assert len(group) <= 16
                assert np.ptp(np.sort(group)) < 16 or np.ptp(np.sort((group + 150) % 300)) < 16
                announced += group.tolist()
        assert len(announced) == len(set(announced))  # each once
        assert set(announced) <= set(later)
        assert len(announced) > 0.8 * len(later)


def test_what_replaces_a_sample_is_of_its_bucket() -> None:
    order = order_of(pictures(60), 4, inner=Shuffle())
    indices = order.epoch(0)
    for step, (_, batch) in enumerate(batches_of(order)):
        for chance in ((0.0, 0.0), (0.4, 0.7), (0.99, 0.99)):
            chosen = order.any_sample(0, step, indices, chance)
            assert order.which[chosen] == order.which[batch[0]]


def test_a_small_bucket_is_an_error_or_joins_the_nearest(caplog: Any) -> None:
    sizes = np.array([[30, 30]] * 9 + [[16, 60]] * 2 + [[40, 30]] * 10)
    with pytest.raises(ConfigurationError, match=r"16x48 \(2\).*never be seen.*small='nearest'"):
        order_of(sizes, 4, drop_last=True)
    with caplog.at_level(logging.WARNING, "fastload"):
        made = order_of(sizes, 4, drop_last=True, sizes=SIZES, small="nearest")
    assert "leaves out 5 in each epoch, the same each time" in caplog.text
    assert (16, 48) not in made.shapes
    assert [made.shapes[n] for n in made.which[9:11]] == [(28, 28)] * 2  # (24, 32) has none
    assert order_of(sizes, 4).samples == 21  # all are seen in smaller batches


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Buckets(), "sizes=.*or area="),
        (lambda: Buckets(sizes=SIZES, area=4096), "one of the two"),
        (lambda: Buckets(sizes=[]), "1 to 1,000 sizes"),
        (lambda: Buckets(sizes=[(24, 0)]), "pairs"),
        (lambda: Buckets(sizes=[24]), "pairs"),
        (lambda: Buckets(sizes=24), "pairs"),
        (lambda: Buckets(area=10**12, step=1), "1 to 1,000 sizes"),
        (lambda: Buckets(sizes=[(24, 32), (48, 64)]), "one aspect ratio"),
        (lambda: Buckets(area=1000), "area.*4,096"),
        (lambda: Buckets(area=4096, step=0), "step"),
        (lambda: Buckets(area=4096, max_ratio=0.5), "max_ratio"),
        (lambda: Buckets(sizes=SIZES, small="drop"), "small"),
        (lambda: Buckets("shuffle", sizes=SIZES), "another order"),
        (lambda: Buckets(Buckets(sizes=SIZES), sizes=SIZES), "cannot be inside"),
        (lambda: Buckets(fastload.NodePlacement(), sizes=SIZES), "cannot be inside"),
    ],
)
def test_buckets_that_there_cannot_be(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


# -- The sizes of images ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number, (height, width) in enumerate(pictures(26).tolist()):
        (root / f"class_{number % 2}").mkdir(exist_ok=True)
        data = images.jpeg(images.photo(height, width, seed=number))
        (root / f"class_{number % 2}" / f"{number:02}.jpg").write_bytes(data)
    return root


def test_sizes_are_those_of_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        images.jpeg(images.photo(20, 31)),
        images.jpeg(images.photo(20, 31), orientation=6),
        images.png(images.photo(17, 12)),
        b"no image",
    ]
    paths = [tmp_path / f"{n}.jpg" for n in range(5)]
    for path, data in zip(paths, made, strict=False):
        path.write_bytes(data)
    Image.fromarray(images.photo(9, 11)).save(tmp_path / "4.jpg", format="BMP")
    source = Source({"image": encoded(paths)}, "sizes", "sizes")
    wanted = [[20, 31], [20, 31], [17, 12], [*UNREADABLE], [9, 11]]
    for core in (True, False):
        if not core:
            monkeypatch.setattr(sizes_of_images.native, "available", lambda: False)
        assert image_sizes(source, DecodeSettings()).tolist() == wanted
        turned = image_sizes(source, DecodeSettings(exif_orientation=True)).tolist()
        assert turned == [[20, 31], [31, 20], *wanted[2:]]


def test_a_store_without_an_answer_is_an_error_and_no_size() -> None:
    class Away(EncodedImages):
        waits = True

        def __len__(self) -> int:
            return 3

        def read(self, index: int) -> bytes:
            raise StoreError("no answer")

    with pytest.raises(DecodeError, match="no answer"):
        image_sizes(Source({"image": Away()}, "away", "away"), DecodeSettings())


def test_sizes_are_read_once(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes_of_images, "FEWEST_KEPT", 8)
    source = fastload.open_source(folder).source
    first = image_sizes(source, DecodeSettings())
    assert sorted(first.tolist()) == sorted(pictures(26).tolist())
    (kept,) = (own_cache / "sizes").glob("*.sizes")
    with monkeypatch.context() as patch:
        patch.setattr(sizes_of_images, "_read", None)
        assert np.array_equal(image_sizes(source, DecodeSettings()), first)
    kept.write_bytes(kept.read_bytes()[:-5])  # damaged: read again
    assert np.array_equal(image_sizes(source, DecodeSettings()), first)


# -- The pixels ------------------------------------------------------------------------------------


BACKENDS = ["turbojpeg", "torch", "cache"]


@pytest.mark.slow
@pytest.mark.parametrize("transform", [TRAIN, COVER], ids=["train", "cover"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_pixels_are_those_of_a_loader_of_one_size(
    folder: Path, own_cache: Path, backend: str, transform: Any
) -> None:
    options: dict[str, Any] = {"backend": backend, "num_workers": 0 if backend == "torch" else 1}
    order = Buckets(Shuffle(), sizes=SIZES)
    with fastload.create_loader(folder, 3, order=order, transform=transform, **options) as loader:
        assert loader.shapes == order.all_sizes
        batches = list(loader.batch_sampler)
        made = [(batch[0], indices) for batch, indices in zip(loader, batches, strict=True)]
        assert len(made) == len(loader)
        assert sorted(index for _, some in made for index in some) == list(range(26))
    assert {tuple(pixels.shape[2:]) for pixels, _ in made} <= set(order.all_sizes)
    files = sorted(folder.glob("*/*.jpg"))
    for size in SIZES[:2]:
        mine = [(pixels, some) for pixels, some in made if tuple(pixels.shape[2:]) == size]
        if transform is TRAIN:
            one = v2.Compose([v2.RandomResizedCrop(size), *TRAIN.transforms[1:]])
            again = fastload.create_loader(
                folder, batch_sampler=[some for _, some in mine], transform=one, **options
            )
            with again:
                for (pixels, _), (wanted, _) in zip(mine, again, strict=True):
                    assert torch.equal(pixels, wanted)
            continue
        for pixels, some in mine:
            for row, index in enumerate(some):
                with Image.open(files[index]) as picture:
                    wanted = covered(picture.convert("RGB"), size)
                difference = (pixels[row].float() - wanted.float()).abs()
                assert difference.max() <= 2


def covered(picture: Image.Image, size: tuple[int, int]) -> torch.Tensor:
    """Resized to cover a size, and cut to it, by torchvision."""
    width, height = picture.size
    ratio = max(size[0] / height, size[1] / width)
    resized = [max(size[0], int(height * ratio + 1e-9)), max(size[1], int(width * ratio + 1e-9))]
    return functional.center_crop(
        functional.pil_to_tensor(functional.resize(picture, resized, antialias=True)), list(size)
    )


def test_boxes_go_with_the_images(folder: Path) -> None:
    paths = sorted(folder.glob("*/*.jpg"))
    sizes = image_sizes(Source({"image": encoded(paths)}, "f", "f"), DecodeSettings())
    boxes = [np.array([[0.0, 0.0, width, height]]) for height, width in sizes.tolist()]
    columns = {
        "image": encoded(paths),
        "boxes": RaggedArray(Ragged.of(boxes), role="boxes"),
        "labels": RaggedArray(Ragged.of([np.zeros(1, np.int64)] * 26), role="instances"),
    }
    source = Source(columns, "boxes", "boxes", "dict")
    transform = v2.Compose([v2.Resize(28), v2.CenterCrop(28)])
    with fastload.create_loader(
        source, 3, order=Buckets(sizes=SIZES), transform=transform
    ) as loader:
        for batch in loader:
            height, width = batch["image"].shape[2:]
            for one in batch["boxes"].values.tolist():  # all of the image is all of the crop
                assert one == pytest.approx([0.0, 0.0, width, height])


def test_arrays_and_colour_on_the_host(own_cache: Path) -> None:
    pixels = np.stack([images.photo(30, 45, seed=n) for n in range(8)])
    source = Source({"image": PixelArray(pixels), "label": ValueArray(np.arange(8))}, "a", "a")
    jitter = v2.Compose([v2.RandomResizedCrop(28), v2.ColorJitter(0.4), v2.ToImage()])
    one = v2.Compose([v2.RandomResizedCrop((24, 32)), *jitter.transforms[1:]])
    with (
        fastload.create_loader(source, 4, order=Buckets(sizes=SIZES), transform=jitter) as loader,
        fastload.create_loader(source, 4, transform=one) as fixed,
    ):
        for (mine, labels), (wanted, others) in zip(loader, fixed, strict=True):
            assert torch.equal(mine, wanted)
            assert torch.equal(labels, others)


# -- The loader ------------------------------------------------------------------------------------


def loader_of(folder: Path, batch_size: int = 4, **options: Any) -> fastload.Loader:
    given: dict[str, Any] = {"order": Buckets(Shuffle(), sizes=SIZES), "transform": TRAIN}
    return fastload.create_loader(folder, batch_size, **(given | options))


@pytest.mark.slow
def test_a_state_goes_on_where_it_was_at_any_world_size(folder: Path) -> None:
    with loader_of(folder) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        rest = [(images, labels) for images, labels in batches]
    with loader_of(folder) as again:
        again.load_state_dict(state)
        for (mine, _), (wanted, _) in zip(again, rest, strict=True):
            assert torch.equal(mine, wanted)
    ranks = [loader_of(folder, 2, shard=Shard(rank, 2)) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(state)
    for parts in zip(*ranks, rest, strict=True):
        *mine, (wanted, _) = parts
        joined = torch.cat([images for images, _ in mine])
        assert torch.equal(joined[: len(wanted)] if len(wanted) == 1 else joined, wanted)
    for rank in ranks:
        rank.close()
    with loader_of(folder, order=Buckets(Shuffle(), sizes=SIZES[:3])) as other:
        with pytest.raises(StateMismatchError, match="buckets"):
            other.load_state_dict(state)


def test_shuffle_beside_buckets(folder: Path) -> None:
    order = Buckets(sizes=SIZES)
    with (
        loader_of(folder) as one,
        loader_of(folder, order=order, shuffle=True) as same,
        loader_of(folder, order=order) as in_order,
    ):
        assert list(one.batch_sampler) == list(same.batch_sampler)
        assert list(one.batch_sampler) != list(in_order.batch_sampler)
        assert "in 4 buckets, shuffled" in one.explain()
        assert "RandomResizedCrop(size=(28, 28)), to the batch's size" in one.explain()
    with pytest.raises(ConfigurationError, match="leave shuffle out"):
        loader_of(folder, shuffle=True)


def test_a_replacement_is_of_the_same_bucket(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "class_0").mkdir()
    for path in folder.glob("class_0/*.jpg"):
        (tmp_path / "class_0" / path.name).write_bytes(path.read_bytes())
    bad = tmp_path / "class_0" / "02.jpg"
    bad.write_bytes(images.truncated(bad.read_bytes(), keep=0.3))
    options = {"options": fastload.backends.turbojpeg.TurboJpegOptions(check_whole=True)}
    with loader_of(tmp_path, order=Buckets(sizes=SIZES), backend="turbojpeg", **options) as loader:
        with pytest.raises(DecodeError, match="02.jpg"):
            list(loader)
    with loader_of(
        tmp_path,
        order=Buckets(sizes=SIZES),
        backend="turbojpeg",
        on_error="substitute",
        **options,
    ) as loader:
        assert sum(len(images) for images, _ in loader) == 13
        assert loader.stats().substituted == 1


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (None, "exactly one operation.*none"),
        (v2.Resize(28), "exactly one operation.*none"),
        (v2.Compose([v2.Resize((40, 40)), v2.CenterCrop(28)]), "Resize.*and CenterCrop"),
        (v2.Compose([v2.Resize(32), v2.CenterCrop(28)]), "Resize.shorter=32. before CenterCrop"),
        (v2.Compose([v2.Resize(28), v2.CenterCrop((28, 32))]), "Resize.shorter=28. before"),
        (v2.Compose([v2.ScaleJitter((28, 28)), v2.RandomCrop(28)]), "ScaleJitter"),
        (v2.Compose([v2.CenterCrop(28), v2.Pad(2)]), "another size in the end"),
        (v2.Compose([v2.CenterCrop(28), lambda image: image]), "runs in Python"),
        (fastload.Views(v2.CenterCrop(28), v2.CenterCrop(28)), "several views .Views"),
    ],
)
def test_transforms_of_which_the_size_is_not_known(
    folder: Path, transform: Any, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        loader_of(folder, transform=transform)


def test_what_a_framework_makes_of_the_batches_is_refused(folder: Path) -> None:
    with loader_of(folder) as loader:
        plain = loader._handed_over()
        kept = loader._adopted_again(plain, None)
        assert list(kept.batch_sampler) == list(loader.batch_sampler)
        kept.close()
        dealt = torch.utils.data.DataLoader(plain.dataset, batch_sampler=[[0, 1], [2, 3]])
        with pytest.raises(ConfigurationError, match="deals them by itself.*shard='auto'"):
            loader._adopted_again(dealt, None)


def test_what_buckets_cannot_be_beside(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="collate_fn.*single samples"):
        loader_of(folder, collate_fn=list)
    with pytest.raises(ConfigurationError, match="Mosaic.* sample of several images"):
        sized(Recipe.from_transform(fastload.Mosaic(28)), SIZES)
    with pytest.raises(ConfigurationError, match="has none"):
        fastload.create_loader({"tokens": np.zeros((4, 3))}, order=Buckets(sizes=SIZES))
    with pytest.raises(ConfigurationError, match="sampler"):
        loader_of(folder, sampler=[0, 1])
