"""Two real processes, gloo, DistributedDataParallel: fed by one loader each, they learn what one
process learns."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torchvision.transforms import v2

import fastload
from tests import warm
from tests.images import write_photo_folder

TRANSFORM = v2.Compose(
    [v2.RandomResizedCrop(12, antialias=True), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
)
GLOBAL_BATCH = 8
EPOCHS = 2


def train(
    folder: str, backend: str, directory: str, *, distributed: bool
) -> tuple[torch.Tensor, list[int]]:
    """Weights after two epochs, and the number of samples of each batch on this rank."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 2)).double()
    world = torch.distributed.get_world_size() if distributed else 1
    if distributed:
        model = nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    options: Any = None
    if backend == "cache":
        from fastload.backends.cache import CacheOptions

        options = CacheOptions(directory=Path(directory), progress=False)
    sizes = []
    with fastload.create_loader(
        folder,
        GLOBAL_BATCH // world,
        shuffle=True,
        drop_last=True,
        transform=TRANSFORM,
        backend=backend,
        num_workers=1,
        seed=1,
        options=options,
    ) as loader:
        for _ in range(EPOCHS):
            for images, labels in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(images.double().contiguous()), labels).backward()
                optimiser.step()
                sizes.append(len(labels))
    return torch.cat([p.detach().flatten() for p in model.parameters()]), sizes


def rank_main(rank: int, port: int, folder: str, backend: str, directory: str) -> None:
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2"
    )
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        torch.save(
            train(folder, backend, f"{directory}/cache", distributed=True),
            f"{directory}/rank{rank}.pt",
        )
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["turbojpeg", "torch", "cache"])
def test_two_ranks_learn_what_one_process_learns(tmp_path: Path, backend: str) -> None:
    folder = str(write_photo_folder(tmp_path / "data", classes=2, per_class=10))
    alone, _ = train(folder, backend, str(tmp_path / "alone"), distributed=False)
    torch.multiprocessing.start_processes(  # type: ignore[no-untyped-call]
        rank_main,
        (warm.reserved_port(), folder, backend, str(tmp_path)),
        nprocs=2,
        start_method=warm.START_METHOD,
    )
    first, sizes = torch.load(tmp_path / "rank0.pt", weights_only=True)
    second, other_sizes = torch.load(tmp_path / "rank1.pt", weights_only=True)
    assert sizes == other_sizes == [GLOBAL_BATCH // 2] * (EPOCHS * (20 // GLOBAL_BATCH))
    assert torch.equal(first, second)
    assert torch.allclose(first, alone, atol=1e-12)
