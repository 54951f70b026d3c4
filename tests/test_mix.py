"""Several data sets as one: their columns, and what a Loader serves of a mix by weights."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, SourceError, StateMismatchError
from fastload.sources import (
    EncodedFiles,
    PixelArray,
    Ragged,
    RaggedArray,
    Source,
    ValueArray,
    open_source,
)
from fastload.sources.columns import EncodedImages
from tests import images
from tests.objectserver import ObjectServer

CROP = v2.Compose([v2.RandomResizedCrop(28), v2.RandomHorizontalFlip()])
SIZES = [(24, 32), (32, 24), (28, 28)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three folders of two classes: 40, 12 and 20 JPEGs of several sizes."""
    root = tmp_path_factory.mktemp("mix")
    rng = np.random.default_rng(0)
    for name, count in (("a", 20), ("bb", 6), ("c", 10)):
        for label in ("cat", "dog"):
            folder = root / name / label
            folder.mkdir(parents=True)
            for number in range(count):
                height, width = rng.integers(30, 70, 2).tolist()
                data = images.jpeg(images.photo(height, width, seed=number + len(name)))
                (folder / f"{number:02}.jpg").write_bytes(data)
    return {name: str(root / name) for name in ("a", "bb", "c")}


def arrays(count: int, seed: int = 0, **more: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return {"image": pixels, "label": np.arange(count, dtype=np.int64), **more}


def batches(loader: Any) -> list[dict[str, Any]]:
    with loader:
        return list(loader)


# -- One data set ----------------------------------------------------------------------------------


def test_samples_of_all_one_after_the_other(folders: dict[str, str]) -> None:
    mixed = fastload.mix(folders)
    assert len(mixed) == 72
    assert (mixed.locate(39), mixed.locate(40)) == (("a", 39), ("bb", 0))
    assert mixed.locate(71) == ("c", 19)
    with pytest.raises(IndexError, match="sample 72 of 72"):
        mixed.locate(72)
    files = mixed.source.columns["image"]
    assert type(files) is EncodedFiles  # which the native core reads
    for index in range(72):
        name, within = mixed.locate(index)
        alone = open_source(folders[name]).source
        assert files.describe(index) == alone.describe(within)
        at = np.array([index])
        assert mixed.source.values["label"].at(at) == alone.values["label"].at(at * 0 + within)
    with fastload.create_loader(mixed, 16, transform=CROP) as loader:
        labels = torch.cat([batch[1] for batch in loader]).tolist()
    assert labels == [0] * 20 + [1] * 20 + [0] * 6 + [1] * 6 + [0] * 10 + [1] * 10


def test_without_weights_each_sample_comes_once(folders: dict[str, str]) -> None:
    mixed = fastload.mix(folders, origin=True)
    for order in (fastload.Shuffle(), fastload.BlockShuffle(4, 8), fastload.NodePlacement(1)):
        with fastload.create_loader(mixed, 8, order=order, transform=CROP) as loader:
            origin = torch.cat([batch[2] for batch in loader])
        assert torch.bincount(origin).tolist() == [40, 12, 20], order


@pytest.mark.parametrize("copied", [0, 1 << 30])
def test_arrays_in_one_or_several(copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastload.sources import concatenated

    monkeypatch.setattr(concatenated, "_COPIED", copied)
    one, other = arrays(5), arrays(3, 1)
    mixed = fastload.mix({"one": one, "other": other}, origin=True)
    assert (mixed.source.pixels["image"].in_array() is not None) == bool(copied)
    expected = np.concatenate([one["image"], other["image"]])
    for given in (mixed, pickle.loads(pickle.dumps(mixed))):
        (batch,) = batches(fastload.create_loader(given, 8))
        pixels = batch["image"].permute(0, 2, 3, 1).numpy()
        assert np.array_equal(pixels, expected)
        assert batch["label"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
        assert batch["origin"].tolist() == [0] * 5 + [1] * 3
    rows = np.array([6, 0, 3])
    part = mixed.source.take(rows)
    assert part.values["label"].at(np.arange(3)).tolist() == [1, 0, 3]
    assert np.array_equal(part.pixels["image"].pixels(0), expected[6])


def test_rows_of_variable_length() -> None:
    def source(rows: list[list[int]]) -> Source:
        ragged = Ragged.of([np.array(row, dtype=np.int64) for row in rows])
        return Source({"ids": RaggedArray(ragged)}, str(rows), "rows", layout="dict")

    mixed = fastload.mix({"x": source([[1], [2, 3], []]), "y": source([[4, 5, 6], [7]])})
    column = mixed.source.values["ids"]
    rows = column.at(np.array([3, 0, 4, 1, 2]))
    assert [row.tolist() for row in rows] == [[4, 5, 6], [1], [7], [2, 3], []]
    assert column.take(np.array([4, 3])).lengths.tolist() == [1, 3]  # type: ignore[attr-defined]


class Bytes(EncodedImages):
    """Compressed images in memory."""

    def __init__(self, data: list[bytes]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def read(self, index: int) -> bytes:
        return self.data[index]


def test_compressed_images_that_lie_in_different_ways(folders: dict[str, str]) -> None:
    data = [images.jpeg(images.photo(40, 40, seed=n)) for n in range(5)]
    memory = Source(
        {"image": Bytes(data), "label": ValueArray(np.zeros(5, dtype=np.int64))},
        "memory",
        "memory",
        classes=("cat", "dog"),
    )
    mixed = fastload.mix({"files": folders["bb"], "memory": memory})
    column = mixed.source.encoded["image"]
    assert column.read(12) == data[0]
    assert next(iter(column.read_many(np.array([16, 0])))) == data[4]
    with fastload.create_loader(mixed, 17, transform=v2.Resize((28, 28))) as loader:
        (batch,) = loader
    alone = fastload.create_loader(memory, 5, transform=v2.Resize((28, 28)))
    with alone:
        assert torch.equal(next(iter(alone))[0], batch[0][12:])


class Numbers(Dataset[Any]):
    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.first + index)


def test_samples_that_code_of_the_users_makes() -> None:
    mixed = fastload.mix({"x": Numbers(0), "y": Numbers(100)}, weights=(1, 1))
    with fastload.create_loader(mixed, 4, shuffle=True, num_workers=0) as loader:
        served = torch.cat(list(loader)).tolist()
    assert sorted(served) == [0, 1, 2, 3, 100, 101, 102, 103]


def test_common_columns_by_choice() -> None:
    more = arrays(4, score=np.zeros(4, dtype=np.float32))
    with pytest.raises(SourceError, match=r"'y' image, label, score.*columns='common'"):
        fastload.mix({"x": arrays(3), "y": more})
    mixed = fastload.mix({"x": arrays(3), "y": more}, columns="common")
    assert list(mixed.source.columns) == ["image", "label"]
    assert mixed.notes == ("y: left out, as not all sources have them: score",)


# -- By weights ------------------------------------------------------------------------------------

WEIGHTS = {"a": 1, "bb": 1, "c": 2}


def mixed_of(folders: dict[str, str], **options: Any) -> Any:
    return fastload.mix(folders, **{"weights": WEIGHTS, "origin": True, **options})


@pytest.mark.parametrize("drop_last", [False, pytest.param(True, marks=pytest.mark.whole)])
@pytest.mark.parametrize(
    "order",
    [
        pytest.param(None, marks=pytest.mark.whole),
        fastload.Shuffle(),
        fastload.BlockShuffle(4, 8),
        pytest.param(fastload.Buckets(sizes=SIZES), marks=pytest.mark.whole),
        fastload.Buckets(fastload.Shuffle(), sizes=SIZES, small="nearest"),
        pytest.param(
            fastload.Buckets(fastload.BlockShuffle(4, 8), sizes=SIZES), marks=pytest.mark.whole
        ),
    ],
    ids=["in order", "shuffle", "blocks", "buckets", "shuffled buckets", "buckets of blocks"],
)
def test_each_order_on_top(folders: dict[str, str], order: Any, drop_last: bool) -> None:
    """The shares; all ranks together; a state in the middle, loaded by another number of ranks."""
    mixed = mixed_of(folders, until=64)

    def loader(batch_size: int, shard: Any = None) -> Any:
        return fastload.create_loader(
            mixed, batch_size, order=order, transform=CROP, drop_last=drop_last, shard=shard, seed=2
        )

    with loader(4) as one:
        epochs = [list(one) for _ in range(2)]
        said = one.explain()
        assert "a 0.25, bb 0.25, c 0.5" in said
        assert [len(epoch) for epoch in epochs] == [len(one)] * 2
    origin = torch.cat([batch[2] for epoch in epochs for batch in epoch])
    counts = torch.bincount(origin) / len(origin)
    assert torch.allclose(counts, torch.tensor([0.25, 0.25, 0.5]), atol=0.08)
    if not drop_last:
        assert len(origin) == 128
        assert isinstance(order, fastload.Buckets) or counts.tolist() == [0.25, 0.25, 0.5]
    ranks = [loader(2, fastload.Shard(rank, 2)) for rank in range(2)]
    parts = [batches(rank) for rank in ranks]
    for whole, *halves in zip(epochs[0], *parts, strict=True):
        # Of a last batch of one sample each rank has that.
        assert torch.equal(whole[0], torch.cat([half[0] for half in halves])[: len(whole[0])])
    with loader(4) as first:
        iterator = iter(first)
        for _ in range(3):
            next(iterator)
        state = first.state_dict()
    halves = [loader(2, fastload.Shard(rank, 2)) for rank in range(2)]
    for half in halves:
        half.load_state_dict(state)
    rest = [batches(half) for half in halves]
    assert len(rest[0]) == len(epochs[0]) - 3
    for whole, *both in zip(epochs[0][3:], *rest, strict=True):
        assert torch.equal(whole[0], torch.cat([half[0] for half in both])[: len(whole[0])])


def test_sizes_and_numbers_of_batches_on_top(folders: dict[str, str]) -> None:
    mixed = mixed_of(folders, until=96)
    scaled = fastload.MultiScale(fastload.Shuffle(), sizes=[24, 28])
    grown = fastload.BatchSize(
        fastload.Progressive(fastload.Shuffle(), sizes={0: 24, 1: 28}), sizes={0: 4, 2: 8}
    )
    for order, size in ((scaled, 4), (grown, 1)):
        with fastload.create_loader(mixed, size, order=order, transform=CROP) as loader:
            epochs = [list(loader) for _ in range(3)]
            state = loader.state_dict()
        for epoch in epochs:
            assert torch.bincount(torch.cat([batch[2] for batch in epoch])).tolist() == [24, 24, 48]
            crops = torch.cat([batch[0].flatten(1)[:, :300] for batch in epoch])
            assert len(crops.unique(dim=0)) == 96  # each sample of "bb" comes twice
        assert len(epochs[2]) == (24 if order is scaled else 12)
        with fastload.create_loader(mixed, size, order=order, transform=CROP) as again:
            again.load_state_dict(state)
            assert again.epoch == 3
    uneven = mixed_of(folders, until=97, homogeneous=True)
    with pytest.raises(ConfigurationError, match="all global batches divide"):
        fastload.create_loader(uneven, order=grown, transform=CROP)


def test_budgets_packing_and_equal_work_on_top() -> None:
    rng = np.random.default_rng(0)

    def source(first: int) -> Source:
        rows = [np.full(n, first + row) for row, n in enumerate(rng.integers(1, 30, 40).tolist())]
        columns = {
            "tokens": RaggedArray(Ragged.of(rows)),
            "number": ValueArray(np.arange(first, first + 40)),
        }
        return Source(columns, f"{first}", "rows", layout="dict")

    mixed = fastload.mix({"x": source(0), "y": source(100)}, weights=(1, 3), until=96)
    orders: list[tuple[Any, int]] = [
        (fastload.Budget(fastload.Shuffle(), total=64, cost="tokens"), 1),
        (fastload.Packed(fastload.Shuffle(), length=64), 2),
        (fastload.Balanced(fastload.Shuffle(), cost="tokens"), 6),
    ]
    for order, size in orders:
        with fastload.create_loader(mixed, size, order=order, seed=1) as loader:
            epochs = [list(loader) for _ in range(3)]
            state = loader.state_dict()
        numbers = [torch.cat([batch["number"] for batch in epoch]).numpy() for epoch in epochs]
        for epoch in numbers:
            assert np.bincount(epoch // 100).tolist() == [24, 72], order
        # 72 of each 40 of "y" in an epoch: all passes through it are whole.
        assert sorted(np.unique(np.concatenate(numbers), return_counts=True)[1].tolist())[-1] == 6
        with fastload.create_loader(mixed, size, order=order, seed=1) as again:
            again.load_state_dict(state)
            assert again.epoch == 3


def test_a_sample_that_comes_again_has_another_crop(folders: dict[str, str]) -> None:
    mixed = fastload.mix({"bb": folders["bb"]}, weights=[1], until=48)
    with fastload.create_loader(mixed, 48, transform=CROP, seed=1) as loader:
        (batch,) = loader
    crops = batch[0].reshape(4, 12, -1)
    assert not any(torch.equal(crops[0, n], crops[p, n]) for p in (1, 2, 3) for n in range(12))


def test_batches_of_one_source_each(folders: dict[str, str]) -> None:
    mixed = fastload.mix(folders, homogeneous=True, origin=True, until=72)
    with fastload.create_loader(mixed, 6, shuffle=True, transform=CROP) as loader:
        kinds = [batch[2].unique().tolist() for batch in loader]
        assert "each batch of one source" in loader.explain()
    assert all(len(kind) == 1 for kind in kinds)
    assert np.bincount(np.concatenate(kinds)).tolist() == [7, 2, 3]  # of 6.67, 2, 3.33
    with pytest.raises(ConfigurationError, match="beside Buckets a mix cannot have homogeneous"):
        fastload.create_loader(mixed, 6, order=fastload.Buckets(sizes=SIZES), transform=CROP)


def test_backends_serve_the_same_mix(folders: dict[str, str]) -> None:
    mixed = mixed_of(folders, until=20)

    def served(**options: Any) -> list[torch.Tensor]:
        arguments = {"shuffle": True, "transform": CROP, "seed": 3, **options}
        with fastload.create_loader(mixed, 8, **arguments) as loader:
            return [batch[0] for batch in loader]

    expected = served()
    for options in ({"backend": "cache"}, {"backend": "torch", "num_workers": 0}):
        found = served(**options)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), options


def test_damaged_images_are_replaced_and_counted(tmp_path: Path) -> None:
    for name in ("x", "y"):
        for number in range(6):
            data = images.jpeg(images.photo(40, 40, seed=number))
            if (name, number) == ("x", 2):
                data = data[:40]
            (tmp_path / name / "k").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "k" / f"{number}.jpg").write_bytes(data)
    mixed = fastload.mix({n: tmp_path / n for n in ("x", "y")}, weights=(1, 1))
    with fastload.create_loader(
        mixed, 4, shuffle=True, transform=CROP, on_error="substitute"
    ) as loader:
        assert sum(len(batch[0]) for batch in loader) == 12
        assert loader.stats().substituted == 1


# -- A transform a source --------------------------------------------------------------------------

FIXED = v2.Compose([v2.Resize(30), v2.CenterCrop(28)])
REST = v2.Compose(
    [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
)


@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_each_source_has_its_transform(folders: dict[str, str], backend: str) -> None:
    """The pixels are those that each source has alone."""
    chosen = {name: folders[name] for name in ("a", "bb")}
    given = {"a": CROP, "bb": FIXED}

    def loader(data: Any, transform: Any) -> Any:
        workers = {"num_workers": 0} if backend == "torch" else {}
        return fastload.create_loader(data, 52, transform=transform, backend=backend, **workers)

    with loader(fastload.mix(chosen, transforms=given), REST) as mixed:
        (whole,) = mixed
        said = mixed.explain()
    assert "a: RandomResizedCrop(size=(28, 28)) -> decode" in said
    assert "bb: CenterCrop(size=(28, 28)) -> decode" in said
    alone = []
    for name, transform in given.items():
        with loader(chosen[name], v2.Compose([transform, REST])) as one:
            (batch,) = one
            alone.append(batch[0])
    assert torch.equal(whole[0], torch.cat(alone))


def test_transforms_by_source_in_buckets(folders: dict[str, str]) -> None:
    chosen = {name: folders[name] for name in ("a", "bb")}
    plain = v2.CenterCrop(28)
    given = {"a": v2.RandomResizedCrop(28), "bb": v2.Compose([v2.Resize(28), plain])}
    mixed = fastload.mix(chosen, transforms=given, origin=True)
    order = fastload.Buckets(fastload.Shuffle(), sizes=SIZES)
    with fastload.create_loader(mixed, 4, order=order) as loader:
        sizes = {tuple(batch[0].shape[2:]) for batch in loader}
    assert sizes == set(SIZES)


def test_a_data_set_keeps_the_transform_that_it_has(folders: dict[str, str]) -> None:
    from torchvision.datasets import ImageFolder

    sources = {"a": ImageFolder(folders["a"], CROP), "bb": folders["bb"]}
    mixed = fastload.mix(sources, transforms={"bb": FIXED})
    with fastload.create_loader(mixed, 52) as loader:
        (batch,) = loader
    with fastload.create_loader(folders["a"], 40, transform=CROP) as alone:
        assert torch.equal(batch[0][:40], next(iter(alone))[0])


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ({"b": CROP}, "'b' is no source of the mix; they are a, bb. Did you mean bb"),
        ([CROP, CROP], "by the names of sources"),
        ({"a": CROP}, "that of 'bb' makes images of several sizes"),
        (
            {"a": CROP, "bb": v2.RandomResizedCrop(24)},
            r"images of \(28, 28\) and 'bb' of \(24, 24\)",
        ),
        (
            {"a": CROP, "bb": v2.Resize((28, 28), v2.InterpolationMode.BICUBIC)},
            "resample or pad in other ways",
        ),
        (
            {"a": CROP, "bb": v2.Compose([v2.Resize((28, 28)), v2.RandomSolarize(128)])},
            "differ in what is done to whole batches",
        ),
        (
            {"a": CROP, "bb": v2.Compose([v2.Resize((28, 28)), lambda image: image])},
            "that of 'bb' runs in Python",
        ),
        (
            {"a": CROP, "bb": fastload.Views([v2.Resize((28, 28)), v2.Resize((28, 28))])},
            "that of 'bb' makes several images",
        ),
    ],
)
def test_transforms_that_cannot_be_in_one_batch(
    folders: dict[str, str], transforms: Any, message: str
) -> None:
    chosen = {name: folders[name] for name in ("a", "bb")}
    with pytest.raises(ConfigurationError, match=f"transforms: .*{message}"):
        fastload.create_loader(fastload.mix(chosen, transforms=transforms), 4)


# -- States ----------------------------------------------------------------------------------------


def test_weights_and_sources_may_change_where_that_is_asked_for(folders: dict[str, str]) -> None:
    def loader(names: str, goes_on: bool = False, **options: Any) -> Any:
        chosen = {name: folders[name] for name in names.split()}
        mixed = fastload.mix(chosen, until=32, goes_on=goes_on, origin=True, **options)
        return fastload.create_loader(mixed, 4, shuffle=True, transform=CROP)

    with loader("a bb", weights=(1, 1)) as old:
        iterator = iter(old)
        seen = [next(iterator) for _ in range(5)]
        state = old.state_dict()
    for changed in (loader("a bb", weights=(1, 3)), loader("a bb c", weights=(1, 1, 1))):
        with changed, pytest.raises(StateMismatchError, match="differs in .*mixture: state"):
            changed.load_state_dict(state)
    new = loader("c a", goes_on=True, weights=(1, 3))
    with new:
        first = next(iter(new))  # made ahead, and dropped
        new.load_state_dict(state)
        assert new.epoch == 1
        batches_of_it = list(new)
        assert len(batches_of_it) == 8
        assert not torch.equal(first[0], batches_of_it[0][0])
        again = new.state_dict()
    with loader("c a", goes_on=True, weights=(1, 3)) as same:
        same.load_state_dict(again)
        assert (same.epoch, same.state_dict()) == (2, again)
    assert sum(int((batch[2] == 0).sum()) for batch in seen) in range(8, 13)


def texts(count: int, seed: int) -> dict[str, Any]:
    lengths = np.random.default_rng(seed).integers(1, 20, count)
    return {"tokens": fastload.Ragged.of([np.arange(n) for n in lengths]), "n": np.arange(count)}


ORDERS: dict[str, Any] = {
    "budget": lambda size: ({}, fastload.Budget(fastload.Shuffle(), total=8 * size, cost="tokens")),
    "packed": lambda size: (
        {"batch_size": size // 4},
        fastload.Packed(fastload.Shuffle(), length=32),
    ),
}


@pytest.mark.whole
@pytest.mark.parametrize("kind", ORDERS)
def test_epochs_cut_by_cost_go_on_between_two_of_them(kind: str) -> None:
    """With another source, and batches of another size, so that epochs have other steps."""
    x, y, z = texts(50, 0), texts(60, 1), texts(70, 2)

    def loader(size: int, sources: Any, weights: Any) -> Any:
        options, order = ORDERS[kind](size)
        mixed = fastload.mix(sources, weights=weights, until=60, goes_on=True)
        return fastload.create_loader(mixed, order=order, **options)

    for old_size, new_size in ((4, 8), (8, 4)):
        with (
            loader(old_size, {"x": x, "y": y}, [1, 1]) as old,
            loader(new_size, {"x": x, "z": z, "y": y}, [1, 2, 1]) as new,
        ):
            for _ in zip(range(len(old) - 2), iterator := iter(old), strict=False):
                pass
            with pytest.raises(StateMismatchError, match="in the middle of an epoch of Buckets"):
                new.load_state_dict(old.state_dict())
            list(iterator)
            for _ in zip(range(len(old)), old, strict=False):  # the loop has not ended yet
                pass
            new.load_state_dict(old.state_dict())
            assert (new.state_dict()["epoch"], new.state_dict()["step"]) == (2, 0)
            for _ in range(6):
                for _ in new:
                    state = new.state_dict()
                    with loader(new_size, {"x": x, "z": z, "y": y}, [1, 2, 1]) as same:
                        same.load_state_dict(state)
                        assert same.state_dict() == state
                step = {**state, "step": state["step"] + 1}
                with pytest.raises(StateMismatchError, match="not a place|says how far"):
                    new.load_state_dict(step)


def test_buckets_that_were_left_in_the_middle_are_refused_whatever_the_batch() -> None:
    sources = {"x": arrays(50), "y": arrays(60)}

    def loader(batch_size: int, weights: Any) -> Any:
        mixed = fastload.mix(sources, weights=weights, until=64, goes_on=True)
        order = fastload.Buckets(fastload.Shuffle(), sizes=[(8, 8)])
        return fastload.create_loader(mixed, batch_size, order=order, transform=CROP)

    with loader(4, (1, 1)) as old, loader(16, (1, 2)) as new:  # 16 and 4 batches an epoch
        for step, _ in enumerate(old):
            state = old.state_dict()
            if step < 15:
                with pytest.raises(StateMismatchError, match="in the middle of an epoch"):
                    new.load_state_dict(state)
        new.load_state_dict(state)
        assert (new.epoch, len(list(new))) == (1, 4)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_states_by_torch_distributed_checkpoint(tmp_path: Path) -> None:
    """Of the same mix, and of one with another source."""
    import torch.distributed.checkpoint as dcp

    one, other = {"n": np.arange(40)}, {"n": np.arange(100, 120)}

    def loader(sources: Any, **options: Any) -> Any:
        mixed = fastload.mix(sources, weights="equal", until=32, **options)
        return fastload.create_loader(mixed, 4, shuffle=True)

    with loader({"x": one, "y": other}) as first:
        iterator = iter(first)
        seen = [next(iterator) for _ in range(3)]
        dcp.save({"loader": first}, checkpoint_id=tmp_path, no_dist=True)
        rest = [batch["n"].tolist() for batch in iterator]
    with loader({"x": one, "y": other}) as same:
        dcp.load({"loader": same}, checkpoint_id=tmp_path, no_dist=True)
        assert [batch["n"].tolist() for batch in same] == rest
    with loader({"x": one, "z": other, "y": other}, goes_on=True) as changed:
        dcp.load({"loader": changed}, checkpoint_id=tmp_path, no_dist=True)
        assert changed.epoch == 1
        mine = [n for batch in (*seen, *changed) for n in batch["n"].tolist() if n < 40]
    assert len(set(mine)) == len(mine)  # "x" goes on: none of 40 comes twice


def test_another_seed_is_refused_all_the_same(folders: dict[str, str]) -> None:
    mixed = mixed_of(folders, goes_on=True)
    with fastload.create_loader(mixed, 4, seed=1, transform=CROP) as one:
        state = one.state_dict()
    with (
        fastload.create_loader(mixed, 4, seed=2, transform=CROP) as other,
        pytest.raises(StateMismatchError, match="seed"),
    ):
        other.load_state_dict(state)


def test_a_state_without_what_was_taken_is_refused(folders: dict[str, str]) -> None:
    with fastload.create_loader(mixed_of(folders), 4, transform=CROP) as loader:
        state = loader.state_dict()
        del state["carried"]
        with pytest.raises(StateMismatchError, match="how far the sources of the mix were read"):
            loader.load_state_dict(state)


# -- Bad input -------------------------------------------------------------------------------------


def test_other_classes_are_refused_with_the_remedy(folders: dict[str, str], tmp_path: Path) -> None:
    for label in ("bird", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.jpg").write_bytes(images.jpeg(images.photo(30, 30)))
    with pytest.raises(SourceError, match=r"from label 0 on they differ.*'bird', 'cat', 'dog'"):
        fastload.mix({"a": folders["a"], "other": tmp_path})
    every = ["bird", "cat", "dog"]
    mixed = fastload.mix(
        {
            "a": open_source(folders["a"], classes=every),
            "other": open_source(tmp_path, classes=every),
        }
    )
    assert mixed.source.classes == tuple(every)
    labels = mixed.source.values["label"].at(np.arange(42))
    assert np.bincount(labels).tolist() == [1, 20, 21]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"label": np.zeros(2, dtype=np.int32)}, "int64.*int32"),
        ({"label": np.zeros((2, 3), dtype=np.int64)}, r"shape \(\).*shape \(3,\)"),
        ({"image": np.zeros((2, 8, 8, 1), dtype=np.uint8)}, "column 'image'"),
    ],
)
def test_columns_that_hold_something_else_are_refused(other: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        fastload.mix({"x": arrays(3), "y": arrays(2) | other})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": {}}, "data sets by name"),
        ({"sources": ["x"]}, "data sets by name"),
        ({"sources": {"": 1}}, "names must be strings"),
        ({"columns": "all"}, "'equal' or 'common'"),
        ({"until": 10}, "until: it is for mixes with weights"),
        ({"goes_on": True}, "goes_on: it is for mixes with weights"),
        ({"weights": (1, 1), "until": "longest"}, "'first_exhausted', 'all_exhausted'"),
        ({"weights": (1, 1), "until": 0}, "at least 1 sample"),
        ({"weights": (1, 1), "until": True}, "'first_exhausted', 'all_exhausted'"),
        ({"weights": lambda epoch: (1, 1)}, "until=5, of all sources together"),
        ({"weights": (0, 0)}, "all are 0"),
        ({"homogeneous": 1}, "homogeneous: must be True or False"),
    ],
)
def test_bad_arguments(options: Any, message: str) -> None:
    given = {"sources": {"x": arrays(3), "y": arrays(2)}} | options
    with pytest.raises(ConfigurationError, match=message):
        fastload.mix(given.pop("sources"), **given)


def test_sizes_of_batches_by_which_epochs_would_end_elsewhere_are_refused() -> None:
    mixed = fastload.mix({"x": arrays(30), "y": arrays(20)}, weights=[1, 1], homogeneous=True)
    sizes = fastload.Progressive(fastload.Shuffle(), sizes={0: 8, 3: 16})
    for inner in (fastload.Shuffle(), sizes, fastload.Balanced(sizes)):
        order = fastload.BatchSize(inner, sizes={0: 8, 1: 7})
        with pytest.raises(ConfigurationError, match="would have other numbers of samples"):
            fastload.create_loader(mixed, order=order, transform=CROP)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (fastload.BatchSize(fastload.Shuffle(), sizes={0: 8, 1: 4}), "or of steps, by which"),
        (fastload.Packed(fastload.Shuffle(), length=32), "Packed .* cannot change by step"),
        (fastload.Budget(fastload.Shuffle(), total=32, cost="tokens"), "cannot change by step"),
    ],
)
def test_weights_by_step_need_steps_of_one_size(order: Any, message: str) -> None:
    schedule = fastload.WeightSchedule({0: (1, 0), 3: (0, 1)}, by="step")
    mixed = fastload.mix({"x": texts(30, 0), "y": texts(20, 1)}, weights=schedule, until=48)
    with pytest.raises(ConfigurationError, match=message):
        fastload.create_loader(mixed, order=order)


def test_what_cannot_be_part_of_a_mix() -> None:
    with pytest.raises(ConfigurationError, match="'x' is a mix by weights"):
        fastload.mix({"x": fastload.mix({"y": arrays(3)}, weights=[1])})
    with pytest.raises(ConfigurationError, match="join: y is a mix with weights"):
        fastload.join(
            fastload.mix({"y": arrays(3)}, weights=[1]), {"more": np.zeros(3)}, by="index"
        )
    with pytest.raises(ConfigurationError, match="there is a column 'origin' already"):
        fastload.mix({"x": arrays(3, origin=np.zeros(3))}, origin=True)
    with pytest.raises(ConfigurationError, match="sampler: the weights of fastload.mix decide"):
        fastload.create_loader(fastload.mix({"y": arrays(3)}, weights=[1]), 1, sampler=[0, 1])


def test_pixels_that_are_not_in_one_array_are_of_equal_kind() -> None:
    grey = Source(
        {"image": PixelArray(np.zeros((2, 8, 8, 1), dtype=np.uint8), channels=1)}, "g", "grey"
    )
    deep = Source({"image": PixelArray(np.zeros((2, 8, 8, 3), dtype=np.uint16))}, "d", "deep")
    with pytest.raises(SourceError, match="1 channel of uint8.*3 channels of uint16"):
        fastload.mix({"grey": grey, "deep": deep})


# -- In a store ------------------------------------------------------------------------------------


@pytest.mark.whole
def test_sources_in_a_store(
    tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sets of shards, and one in a store beside one that is local: the samples of local ones;
    neighbours are read together."""
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    local, remote = {}, {}
    for number, name in enumerate(("x", "y")):
        path = tmp_path / name / "s-0.tar"
        path.parent.mkdir()
        with tarfile.open(path, "w") as archive:
            for row in range(40):
                data = images.jpeg(images.photo(96 + row, 160, seed=row + number))
                for ending, content in {"jpg": data, "cls": str(row).encode()}.items():
                    info = tarfile.TarInfo(f"{row:04}.{ending}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        server.objects[f"bucket/{name}/s-0.tar"] = path.read_bytes()
        local[name], remote[name] = str(path.parent), f"s3://bucket/{name}"

    def loader(sources: Any) -> Any:
        mixed = fastload.mix(sources, weights={"x": 2, "y": 1}, until=60)
        order = fastload.BlockShuffle(8, 8)
        return fastload.create_loader(mixed, 8, order=order, transform=CROP, seed=4)

    with loader(local) as here:
        expected = [[batch[0] for batch in here] for _ in range(2)]
    for sources in (remote, {"x": local["x"], "y": remote["y"]}):
        with loader(sources) as there:
            server.requests.clear()
            for epoch in expected:
                served = [batch[0] for batch in there]
                assert all(torch.equal(a, b) for a, b in zip(served, epoch, strict=True))
        reads = sum(method == "GET" for method, _, _ in server.requests)
        assert 0 < reads < 110  # of 120 samples, and some of the third epoch


# -- Sources of several columns --------------------------------------------------------------------


def test_a_mix_of_joined_sources(folders: dict[str, str]) -> None:
    """Each row has the partner of its own source's image."""
    plain = {name: open_source(folders[name]) for name in ("a", "bb")}
    counts = {name: len(one.source) for name, one in plain.items()}
    numbers = {name: np.arange(n) + 100 * (name == "bb") for name, n in counts.items()}
    joined = {
        name: fastload.join(
            plain[name],
            {"code": numbers[name], "caption": {n: f"{name} {n}" for n in range(counts[name])}},
            by="index",
        )
        for name in plain
    }
    mixed = fastload.mix(joined, weights={"a": 1, "bb": 1}, until=24, origin=True)
    whole = {
        name: batches(fastload.create_loader(one, counts[name], transform=v2.Resize((16, 16))))[0]
        for name, one in joined.items()
    }
    seen = set()
    for batch in batches(
        fastload.create_loader(mixed, 5, shuffle=True, transform=v2.Resize((16, 16)))
    ):
        for row, (code, caption, origin) in enumerate(
            zip(batch["code"].tolist(), batch["caption"], batch["origin"].tolist(), strict=True)
        ):
            name, index = ("bb", code - 100) if code >= 100 else ("a", code)
            assert (caption, origin) == (f"{name} {index}", name == "bb")
            assert torch.equal(batch["image"][row], whole[name]["image"][index])
            assert batch["label"][row] == whole[name]["label"][index]
            seen.add(name)
    assert seen == {"a", "bb"}


def test_a_mix_of_lists_of_images(tmp_path: Path) -> None:
    """Lists of 0 to 3 images of several sizes: the same pixels as each source alone gives."""
    opened = {}
    for name, samples in (("one", 7), ("other", 5)):
        root = tmp_path / name
        root.mkdir()
        rows = []
        for number in range(samples):
            files = [f"{number}_{place}.png" for place in range((number + len(name)) % 4)]
            for place, file in enumerate(files):
                photo = images.photo(8 + number, 9 + place, seed=number + 50 * len(name))
                Image.fromarray(photo).save(root / file)
            rows.append({"image": files, "number": number, "text": f"{name} {number}"})
        (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        opened[name] = open_source(root / "rows.jsonl")
    mixed = fastload.mix(opened, weights={"one": 1, "other": 1}, until="all_exhausted")
    whole = {
        name: batches(fastload.create_loader(one, len(one.source)))[0]
        for name, one in opened.items()
    }
    seen = set()
    for batch in batches(fastload.create_loader(mixed, 3, shuffle=True)):
        lists = list(batch["images"])
        for row, text in enumerate(batch["text"]):
            name, number = text.split()
            expected = list(whole[name]["images"])[int(number)]
            assert batch["number"][row] == int(number)
            assert len(lists[row]) == len(expected) == (int(number) + len(name)) % 4
            assert all(torch.equal(a, b) for a, b in zip(lists[row], expected, strict=True))
            seen.add(text)
    assert len(seen) == 12
