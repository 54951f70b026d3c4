"""Neighbours in files of a store are read by one request, under a shuffle of blocks: the samples
are those of local files, however the store fails."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import BlockShuffle
from fastload.sampler import EpochOrder, Shard
from tests import images
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer

CROP = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip()])
SHARDS, PER_SHARD = 3, 40
SAMPLES = SHARDS * PER_SHARD
SHUFFLE = BlockShuffle(8, 8)
SPEC = "s3://bucket/shards"


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier keeps nothing on a disk that is 95% full, as this machine's may be."""
    usage = SimpleNamespace(total=1 << 40, used=0, free=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 photographs with masks and labels in three tar shards."""
    folder = tmp_path_factory.mktemp("shards")
    photos = [images.jpeg(images.photo(24 + row, 40, seed=row)) for row in range(PER_SHARD)]
    for number in range(SHARDS):
        write_shard(folder / f"s-{number}.tar", photos, number * PER_SHARD)
    return folder


def write_shard(path: Path, photos: list[bytes], first: int, mask: bytes = b"") -> None:
    with tarfile.open(path, "w") as archive:
        for row, data in enumerate(photos, first):
            files = {"jpg": data, "cls": str(row).encode()} | ({"mask.png": mask} if mask else {})
            for ending, content in files.items():
                info = tarfile.TarInfo(f"{row:04}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


@pytest.fixture(params=["tier", "no tier"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "no tier":
        monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    return bool(request.param == "tier")


def upload(shards: Path, server: ObjectServer) -> None:
    for path in shards.iterdir():
        server.objects[f"bucket/shards/{path.name}"] = path.read_bytes()


def create(source: Any, **more: Any) -> fastload.Loader:
    arguments = {"shuffle": SHUFFLE, "transform": CROP, "seed": 5, **more}
    return fastload.create_loader(source, arguments.pop("batch_size", 8), **arguments)


def batches(loader: Any) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(column.cpu().clone() for column in batch) for batch in loader]


def check_equal(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def reads(server: ObjectServer) -> list[tuple[str, int, int]]:
    """(object, first byte, end) of each range that was asked for."""
    found = []
    for method, path, asked in server.requests:
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        if method == "GET" and span is not None:
            found.append((path, int(span[1]), int(span[2]) + 1))
    return found


def groups_of(epochs: int, rank: int = 0, world: int = 1, since: int = 0) -> list[list[int]]:
    order = SHUFFLE.applied_to(
        EpochOrder(SAMPLES, 8 // world, Shard(rank, world), shuffle=True, seed=5)
    )
    return [
        sorted(group.tolist())
        for epoch in range(epochs)
        for step in range(since if epoch == 0 else 0, order.steps)
        for group in order.together(epoch, step, since if epoch == 0 else 0, order.epoch(epoch))
    ]


def pieces_of(groups: list[list[int]]) -> int:
    """Requests for these, which stretch over the ends of shards or not."""
    return sum(len({row // PER_SHARD for row in group}) for group in groups)


@contestants("turbojpeg", "dali")
def test_the_samples_are_those_of_local_shards_by_few_requests(
    contestant: Contestant, kept: bool, shards: Path, server: ObjectServer, tmp_path: Path
) -> None:
    upload(shards, server)
    arguments: dict[str, Any] = {"shuffle": SHUFFLE, "transform": CROP, "seed": 5, "batch_size": 8}
    arguments["prefetch_factor"] = 2
    with contestant.create(str(shards), tmp_path, **arguments) as loader:
        local = batches(loader)
    with contestant.create(SPEC, tmp_path / "x", **arguments) as loader:
        server.requests.clear()
        check_equal(batches(loader), local)
        assert "read together  neighbours in files of the store, 64 samples" in loader.explain()
    found = reads(server)
    # All groups of the epoch, those of a few batches that were made ahead, and nothing else.
    ahead = pieces_of(groups_of(2)) - pieces_of(groups_of(1))
    assert 0 <= len(found) - pieces_of(groups_of(1)) <= ahead
    print(len(found), pieces_of(groups_of(1)), ahead, sorted(map(len, groups_of(1))))
