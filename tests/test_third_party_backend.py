"""A backend of somebody else's, found through the entry point of its distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fastload
from fastload.backends.base import BackendOptions
from fastload.errors import ConfigurationError

BACKEND = '''
from collections import deque

from fastload.backends.base import BackendOptions, HostBatch


class MyBackend:
    """As short as the contract allows: columns of values, in the calling thread."""

    name = "mine"
    depth = 2
    background = False
    Options = BackendOptions

    def __init__(self, context, options):
        self.context = context
        self.max_pixels = options.max_pixels
        self.queue = deque()

    def submit(self, draws):
        self.queue.append(draws)

    def receive(self):
        return self.reread(self.queue.popleft())

    def reread(self, draws):
        return HostBatch({name: column.at(draws.indices) for name, column in self.context.source.columns.items()})

    def cancel(self):
        self.queue.clear()

    def close(self):
        self.queue.clear()

    def explain(self):
        return {"mine": f"by hand, {self.max_pixels} pixels"}
'''
TOKENS = {"input_ids": np.arange(60).reshape(20, 3)}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that registers the backend "mine", as pip would leave it."""
    (tmp_path / "my_package_backend.py").write_text(BACKEND)
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fastload.backends]\nmine = my_package_backend:MyBackend\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_it_is_listed_and_serves_the_same_batches() -> None:
    assert "mine" in [row.name for row in fastload.available_backends()]
    options = BackendOptions(max_pixels=77)
    arguments = {"batch_size": 4, "shuffle": True, "seed": 3}
    with fastload.create_loader(TOKENS, backend="mine", options=options, **arguments) as loader:
        got = [batch["input_ids"] for _ in range(2) for batch in loader]
        assert loader.backend == "mine"
        assert "by hand, 77 pixels" in loader.explain()
    with fastload.create_loader(TOKENS, backend="torch", num_workers=0, **arguments) as loader:
        wanted = [batch["input_ids"] for _ in range(2) for batch in loader]
    assert len(got) == 10
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_without_its_distribution_the_name_is_not_known() -> None:
    with pytest.raises(ConfigurationError, match=r"'mine' is not known; choose 'auto' or one of 'torch'"):
        fastload.create_loader(TOKENS, backend="mine")
