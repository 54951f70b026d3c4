"""Actors of Ray Data make the images that a Loader gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torchvision.transforms import v2

import fastload
from tests.clients.processes import run_cold
from tests.images import write_photo_folder

pytest.importorskip("ray", reason="pip install .[ray]")


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_actors_make_the_images_of_a_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    folder, left = tmp_path / "photographs", tmp_path / "left"
    write_photo_folder(folder, per_class=6)
    left.mkdir()
    run_cold("ray_map.py", str(folder), str(left))
    transform = v2.Compose([v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4, 0.4)])
    wanted = set()
    with fastload.create_loader(folder, transform=transform, seed=3) as loader:
        for epoch in range(2):
            for index, (images, labels) in enumerate(loader):
                name = f"{epoch}.{index}.{int(labels[0])}.npy"
                wanted.add(name)
                assert np.array_equal(np.load(left / name), images[0].numpy()), name
    assert {path.name for path in left.iterdir()} == wanted
