"""Ranks of a tensor, context or pipeline parallel group must get the same samples."""

from __future__ import annotations

import logging
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fastload
from fastload.compat.parallel import _warn_of_group
from fastload.errors import ConfigurationError
from fastload.sampler.mesh import shard_of

DATA = TensorDataset(torch.arange(16))
RANK = 5


def part(shard: Any) -> tuple[int, int]:
    with fastload.create_loader(DATA, 2, shard=shard) as loader:
        return loader.shard.rank, loader.shard.world_size


def start(rank: int, world: int) -> None:
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=rank, world_size=world, store=fake.FakeStore())


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """This process is rank 2 of 4, and the others are not there."""
    start(2, 4)
    yield
    dist.destroy_process_group()


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    """This process is rank 5 of 8, and the others are not there."""
    start(RANK, 8)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("names", [("dp", "tp"), ("pp", "dp"), ("dp_replicate", "cp")])
def test_a_mesh_in_which_ranks_share_a_model_asks_for_the_shard(
    four_ranks: None, names: Any
) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    with pytest.raises(ConfigurationError, match=r"group 'mesh_(tp|pp|cp)' of 2 ranks.*shard=mesh"):
        fastload.create_loader(DATA, 4)
    with pytest.raises(ConfigurationError, match="must get the same samples"):
        fastload.create_loader(DATA, 4, shard="auto")
    with pytest.raises(ConfigurationError, match="must get the same samples"):
        fastload.from_dataloader(DataLoader(DATA, 4), shard="auto")
    data = next(name for name in names if name.startswith("dp"))
    place = mesh[data]
    shard = fastload.Shard(place.get_local_rank(), place.size())
    for given in (shard, place, data, [data], place.get_group(), fastload.MeshShard(place)):
        assert part(given) == (shard.rank, 2)
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, 2, shard.rank, shuffle=False)
    existing = DataLoader(DATA, 4, sampler=sampler)
    with fastload.from_dataloader(existing) as loader:
        assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in existing]
    shared = DataLoader(DATA, 4)
    with (
        fastload.from_dataloader(shared, shard=place) as by_mesh,
        fastload.from_dataloader(shared, shard=shard) as by_numbers,
    ):
        assert [b[0].tolist() for b in by_mesh] == [b[0].tolist() for b in by_numbers]
        assert by_mesh.explain().count(f"part {shard.rank} of 2") == 1


def test_a_mesh_of_data_parallel_ranks_does_not(
    four_ranks: None, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    assert part(None) == (2, 4)
    assert part(mesh) == (2, 4)
    assert not caplog.records


def test_a_group_of_all_ranks_whose_name_says_what_it_is(four_ranks: None) -> None:
    """As Megatron makes it where a model takes all ranks."""
    dist.new_group(range(4), group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    with pytest.raises(ConfigurationError, match="TENSOR_MODEL_PARALLEL_GROUP' of 4 ranks"):
        fastload.create_loader(DATA, 4)


def test_several_dimensions_divide_the_data_together(eight_ranks: None) -> None:
    """Rank 5 of (2, 2, 2) is at (1, 0, 1)."""
    names = ("dp_replicate", "dp_shard", "tp")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    data = names[:2]
    assert part(mesh[data]) == part(data) == part(mesh[data]._flatten("dp")) == (2, 4)
    turned = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_shard", "tp", "dp_replicate"))
    assert part(turned["dp_shard", "dp_replicate"]) == (3, 4)
    assert part(fastload.MeshShard(fastload.Shard(1, 3))) == (1, 3)
    place = shard_of(mesh[data])
    assert place.note == "shard: part 2 of 4, divided among ranks 1, 3, 5, 7 of 8 processes"


def test_what_is_no_mesh_is_refused(eight_ranks: None) -> None:
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    nameless = init_device_mesh("cpu", (4, 2))
    elsewhere = init_device_mesh("cpu", (8,), mesh_dim_names=("dp",))
    for given, words in (
        (mesh, "the ranks of 'tp' must get the same samples"),
        (mesh["tp"], "the ranks of 'tp' must get the same samples"),
        (nameless, "it has no names"),
        ("data", "no mesh has such a dimension. The process groups here are: .*mesh_dp.*mesh_tp"),
        (dist.new_group([0, 1]), "a process group that this process is in"),
        (3, "must be a fastload.Shard, 'auto', None, a DeviceMesh"),
        ([], "must be a fastload.Shard"),
        (fastload.MeshShard(mesh["dp"], broadcast=mesh), "^broadcast: must be a DeviceMesh"),
        (
            fastload.MeshShard(mesh["dp"], broadcast=elsewhere),
            re.escape("of which ranks 1, 3, 5, 7 divide the data"),
        ),
    ):
        with pytest.raises(ConfigurationError, match=words):
            fastload.create_loader(DATA, 4, shard=given)
    init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "dp"))
    with pytest.raises(ConfigurationError, match="the ranks differ from mesh to mesh"):
        fastload.create_loader(DATA, 4, shard="dp")


def test_a_name_without_process_groups_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'dp', and no mesh.*groups here are: none"):
        fastload.create_loader(DATA, 4, shard="dp")


def test_batches_of_another_rank_need_an_order_of_our_own(eight_ranks: None) -> None:
    mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    shard = fastload.MeshShard(mesh["dp"], broadcast="tp")
    with pytest.raises(ConfigurationError, match="beside a sampler there is none"):
        fastload.create_loader(DATA, 4, sampler=[1, 2, 3], shard=shard)
    with pytest.raises(ConfigurationError, match="beside from_dataloader there is none"):
        fastload.from_dataloader(DataLoader(DATA, 4), shard=shard)


@pytest.mark.parametrize(
    ("sizes", "expected", "words"),
    [
        ({"dp_shard": 2, "tp": 4}, (1, 2), "by Accelerate's mesh .dp_shard"),
        ({"dp_replicate": 2, "dp_shard": 2, "cp": 2}, (2, 4), "dp_replicate, dp_shard"),
        ({"tp": 8}, (0, 1), "no data parallel dimension"),
    ],
)
def test_accelerates_mesh_is_asked(
    eight_ranks: None,
    sizes: dict[str, int],
    expected: tuple[int, int],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in with the public names of accelerate.state; tests/clients has the real one."""
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    data = [name for name in sizes if name.startswith("dp")]
    given = types.SimpleNamespace(dp_dim_names=data, non_data_parallel_size=2)
    state = types.SimpleNamespace(parallelism_config=given, device_mesh=mesh)
    module: Any = types.ModuleType("accelerate.state")
    module.is_initialized, module.AcceleratorState = lambda: True, lambda: state
    monkeypatch.setitem(sys.modules, "accelerate.state", module)
    for shard in (None, "auto"):
        assert part(shard) == expected
    with fastload.create_loader(DATA, 2, shard="auto") as loader:
        assert re.search(words, loader.explain())
    state.device_mesh = None
    with pytest.raises(ConfigurationError, match="Accelerate's SimpleNamespace with 2 ranks a"):
        fastload.create_loader(DATA, 2)


def test_a_group_of_some_ranks_is_warned_of_once(
    four_ranks: None, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_group.cache_clear()
    dist.new_group([0, 1, 2, 3])
    assert part(None) == (2, 4)
    assert not caplog.records, "of all ranks"
    dist.new_group([2, 3])
    with caplog.at_level(logging.WARNING):
        assert part(None) == part("auto") == (2, 4)
        assert part(fastload.Shard(1, 2)) == (1, 2)
    assert len(caplog.records) == 1
    assert "less than all 4 ranks" in caplog.text
