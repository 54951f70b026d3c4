"""Ray Train with another number of workers goes on from a checkpoint in the middle of an epoch:
what is served then is what one process would have served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torchvision.transforms import v2

import fastload
from tests.clients.processes import run_cold
from tests.images import write_photo_folder

pytest.importorskip("ray", reason="pip install .[integrations]")

GLOBAL_BATCH = 8
STOP = 2
"""Batches of epoch 1 before the checkpoint."""


def found(directory: Path, name: str, workers: int) -> list[list[int]]:
    lines = [(directory / f"{name}.{rank}").read_text() for rank in range(workers)]
    return sorted(json.loads(line) for text in lines for line in text.splitlines())


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_another_number_of_workers_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    folder, storage = tmp_path / "photographs", tmp_path / "storage"
    write_photo_folder(folder, per_class=19)
    storage.mkdir()
    transform = v2.Compose([v2.RandomResizedCrop(24), v2.ToImage()])
    before, after = [], []
    with fastload.create_loader(
        folder, GLOBAL_BATCH, shuffle=True, transform=transform, seed=2
    ) as loader:
        for epoch in range(2):
            for step, (images, labels) in enumerate(loader):
                early = (epoch, step) < (1, STOP)
                for image, label in zip(images, labels.tolist(), strict=True):
                    sums = image.to(torch.int64).sum((1, 2)).tolist()
                    (before if early else after).append([epoch, label, *sums])
    assert len(after) > 2 * GLOBAL_BATCH
    assert len({tuple(one) for one in before + after}) == len(before + after)
    run_cold("ray_elastic.py", str(folder), str(storage))
    assert found(storage, "first", 2) == sorted(before)
    assert found(storage, "then-1", 1) == sorted(after)
    assert found(storage, "then-4", 4) == sorted(after)
