"""Ranks of a tensor, context or pipeline parallel group must get the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fastload
from fastload.compat.parallel import shares_a_model
from fastload.errors import ConfigurationError

DATA = TensorDataset(torch.arange(16))


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """This process is rank 2 of 4, and the others are not there."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=2, world_size=4, store=fake.FakeStore())
    yield
    dist.destroy_process_group()


def test_without_process_groups_nothing_shows() -> None:
    assert shares_a_model() == ""


@pytest.mark.parametrize("names", [("dp", "tp"), ("pp", "dp"), ("dp_replicate", "cp")])
def test_a_mesh_in_which_ranks_share_a_model_asks_for_the_shard(
    four_ranks: None, names: Any
) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    with pytest.raises(ConfigurationError, match=r"group 'mesh_(tp|pp|cp)' of 2 ranks.*shard=fast"):
        fastload.create_loader(DATA, 4)
    with pytest.raises(ConfigurationError, match="must get the same samples"):
        fastload.create_loader(DATA, 4, shard="auto")
    with pytest.raises(ConfigurationError, match="must get the same samples"):
        fastload.from_dataloader(DataLoader(DATA, 4), shard="auto")
    place = mesh[next(name for name in names if name.startswith("dp"))]
    shard = fastload.Shard(place.get_local_rank(), place.size())
    with fastload.create_loader(DATA, 4, shard=shard) as loader:
        assert len(loader) == 2
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, 2, shard.rank, shuffle=False)
    existing = DataLoader(DATA, 4, sampler=sampler)
    with fastload.from_dataloader(existing) as loader:
        assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in existing]


def test_a_mesh_of_data_parallel_ranks_does_not(four_ranks: None) -> None:
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    with fastload.create_loader(DATA, 2) as loader:
        assert (loader.shard.rank, loader.shard.world_size) == (2, 4)
