"""Orders in which each node reads a part of the data set, and parts that move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.sampler import NodePlacement, PlacedOrder, Shard
from tests import images, warm
from tests.objectserver import ObjectServer

SHAPES = [  # samples, nodes, ranks, batch size, drop_last
    (96, 2, 2, 4, False),
    (101, 2, 4, 4, False),
    (109, 4, 8, 2, False),
    (103, 4, 8, 2, True),
    (1000, 3, 3, 7, True),
    (50, 1, 2, 4, False),
    (20, 4, 4, 3, False),
]


def orders(
    samples: int, nodes: int, world: int, batch: int, drop_last: bool = False, **more: Any
) -> list[PlacedOrder]:
    """Of each rank."""
    return [
        PlacedOrder(
            samples,
            batch,
            Shard(rank, world),
            shuffle=True,
            drop_last=drop_last,
            nodes=nodes,
            **more,
        )
        for rank in range(world)
    ]


def read(order: PlacedOrder, epoch: int) -> list[int]:
    """By a rank, in an epoch."""
    return [index for batch in order.batches(epoch) for index in batch]


@pytest.mark.parametrize(("samples", "nodes", "world", "batch", "drop_last"), SHAPES)
def test_an_epoch_has_each_sample_once_and_a_node_those_of_its_part(
    samples: int, nodes: int, world: int, batch: int, drop_last: bool
) -> None:
    ranks = orders(samples, nodes, world, batch, drop_last, seed=3)
    for epoch in (0, 1, 5):
        seen = [read(order, epoch) for order in ranks]
        every = sorted(index for part in seen for index in part)
        if drop_last:
            assert len(every) == samples // (batch * world) * batch * world
            assert len(set(every)) == len(every)
        else:
            assert every == list(range(samples))
        parts = [ranks[0].part_of(node, epoch) for node in range(nodes)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(samples))
        for rank, own in enumerate(seen):
            assert set(own) <= set(parts[rank * nodes // world].tolist())
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_a_part_moves_by_its_share_and_comes_to_every_node() -> None:
    order = orders(1000, 4, 4, 5, moved=0.1)[2]
    parts = [set(order.part_of(2, epoch).tolist()) for epoch in range(41)]
    assert all(len(one - other) == 25 for one, other in zip(parts[1:], parts, strict=False))
    assert len(set.union(*parts[:31])) == 1000  # (nodes - 1) / moved epochs after the first
    assert parts[40] == parts[0]
    fixed = orders(1000, 4, 4, 5, moved=0.0)[2]
    assert set(fixed.part_of(2, 9).tolist()) == parts[0]


def test_batches_of_an_epoch_are_those_of_its_order() -> None:
    ranks = orders(103, 2, 4, 3, seed=1)
    whole = np.asarray(ranks[0].epoch(2))
    for order in ranks:
        assert order.epoch(2).tolist() == whole.tolist()
        for step, batch in enumerate(order.batches(2)):
            assert batch == whole[order.batch(step)].tolist()


@pytest.mark.whole
def test_the_order_within_a_part_is_drawn_again_and_uniform() -> None:
    order = orders(4096, 2, 2, 8, moved=0.0)[0]
    one, other = (np.array(read(order, epoch)) for epoch in (0, 1))
    assert sorted(one.tolist()) == sorted(other.tolist())
    assert (one == other).sum() < 10
    assert (abs(np.diff(one)) == 1).sum() < 12
    places = []
    for seed in range(3000):
        small = orders(12, 2, 2, 6, seed=seed, moved=0.0)[0]
        part = small.part_of(0, 0).tolist()
        places.append([part.index(index) for index in read(small, 0)])
    for place in range(6):
        counts = np.bincount(np.array(places)[:, place], minlength=6)
        assert abs(counts - 500).max() < 100  # five deviations


def test_ten_billion_samples_take_no_memory() -> None:
    order = PlacedOrder(10**10, 256, Shard(7999, 8000), shuffle=True, nodes=1000, moved=0.1, seed=1)
    found = order.draws(3, 2, order.epoch(3), None).indices
    assert len(np.unique(found)) == 256
    assert 10**9 < found.max() < 10**10


def arrays(samples: int = 40) -> tuple[Any, Any]:
    return np.arange(samples, dtype=np.float32), np.arange(samples)


def labels(batches: Any) -> list[int]:
    return [int(label) for batch in batches for label in batch[1]]


def test_a_state_goes_on_with_more_ranks_on_the_same_nodes() -> None:
    def loader(rank: int, world: int, batch: int, **more: Any) -> Any:
        placement = NodePlacement(**{"nodes": 2, **more})
        shard = Shard(rank, world)
        return fastload.create_loader(arrays(), batch, order=placement, shard=shard)

    with loader(0, 2, 4) as one, loader(1, 2, 4) as other:
        batches = [iter(one), iter(other)]
        for each in batches:
            next(each)
        state = one.state_dict()
        rest = sorted(labels(batches[0]) + labels(batches[1]))
    found = []
    for rank in range(4):
        with loader(rank, 4, 2) as now:
            now.load_state_dict(state)
            found += labels(now)
    assert sorted(found) == rest
    for more in ({"nodes": 1}, {"moved": 0.2}):
        with loader(0, 2, 4, **more) as wrong, pytest.raises(StateMismatchError, match="placement"):
            wrong.load_state_dict(state)


def test_nodes_are_counted_by_torchrun_s_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with fastload.create_loader(arrays(), 2, order=NodePlacement()) as loader:
        assert "node 1 of 2 reads 20 of 40 samples in an epoch, 2 of them new" in str(
            loader.explain()
        )
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ConfigurationError, match=r"order: .*NodePlacement\(nodes=...\)"):
        fastload.create_loader(arrays(), 2, order=NodePlacement())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shuffle": True}, "leave shuffle out"),
        ({"sampler": list(range(40))}, "leave it out where a sampler is given"),
        (
            {"shard": Shard(0, 4)},
            "4 ranks of a NodePlacement cannot be divided evenly among 3 nodes",
        ),
    ],
)
def test_placements_that_mean_nothing(arguments: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        fastload.create_loader(arrays(), 2, order=NodePlacement(nodes=3), **arguments)


@pytest.mark.parametrize("options", [{"nodes": 0}, {"moved": 1.5}, {"moved": float("nan")}])
def test_options_that_mean_nothing(options: Any) -> None:
    with pytest.raises(ConfigurationError, match="order: "):
        NodePlacement(**options)


NODE = """
from torchvision.transforms import v2
import fastload

with fastload.create_loader(
    "s3://bucket/train", 4, transform=v2.Resize((8, 8)),
    order=fastload.NodePlacement(moved=0.05),
) as loader:
    print(loader.batches_in_flight)
    for _ in range(2):
        print(sum(len(labels) for _, labels in loader))
"""


@pytest.mark.whole
def test_nodes_with_disks_of_their_own_fetch_their_parts_alone(
    server: ObjectServer, tmp_path: Path
) -> None:
    """Two nodes of one rank, each with a tier of its own, in processes: of 40 images a node fetches
    its 20, and in each later epoch, those made ahead too, the one that has come to it."""
    for row in range(40):
        data = images.jpeg(images.photo(16, 16, seed=row))
        server.objects[f"bucket/train/{row % 2}/{row:02}.jpg"] = data
    (tmp_path / "node.py").write_text(NODE)
    for rank in range(2):
        server.requests.clear()
        more = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "XDG_CACHE_HOME": str(tmp_path / f"node{rank}"),
            "FASTLOAD_TIER": str(tmp_path / f"node{rank}" / "tier"),
        }
        done = warm.run("node.py", directory=tmp_path, environment=more)
        ahead, *samples = map(int, done.stdout.split())
        assert samples == [20, 20], done.stderr
        epochs = range(2 + -(-ahead // 5))  # of 5 batches
        whole = [
            path.rpartition("/")[2]
            for method, path, asked in server.requests
            if method == "GET" and path.endswith(".jpg") and not asked
        ]
        names = sorted(server.objects)
        order = PlacedOrder(40, 4, Shard(rank, 2), shuffle=True, nodes=2, moved=0.05)
        parts = [
            {names[index].rpartition("/")[2] for index in order.part_of(rank, epoch).tolist()}
            for epoch in epochs
        ]
        assert parts[0] | parts[1] <= set(whole) <= set.union(*parts)
        assert len(set.union(*parts)) < 40
        assert len(whole) == len(set(whole))  # what is on the disk is not asked for again
