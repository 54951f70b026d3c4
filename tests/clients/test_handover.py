"""Loaders that are passed to a framework's functions: these get the DataLoader, and what they make
of it is adopted. A framework of our own stands for the others, which `test_property.py` asks."""

from __future__ import annotations

import inspect
import logging
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import fastload
from fastload.compat import handover
from fastload.errors import ConfigurationError
from fastload.loader import Loader

FRAMEWORK = """
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

class Around:
    def __init__(self, loader, device):
        self._dataloader, self.device = loader, device
    def __iter__(self):
        return iter(self._dataloader)

given = []

def half(loader, *, size=2, device=None):
    given.append(type(loader))
    batches = BatchSampler(SequentialSampler(range(len(loader.dataset) // 2)), size, False)
    made = DataLoader(loader.dataset, batch_sampler=batches)
    return made if device is None else Around(made, device)
"""


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("a_framework")
    exec(FRAMEWORK, vars(module))
    module.Around.__module__ = "a_framework"
    monkeypatch.setitem(sys.modules, "a_framework", module)
    monkeypatch.setitem(handover.FUNCTIONS, "a_framework", ("half",))
    monkeypatch.setitem(handover.AROUND, "a_framework.Around", "_dataloader")
    return module


def loader(**arguments: Any) -> Loader:
    existing = DataLoader(TensorDataset(torch.arange(8)), 4)
    return fastload.from_dataloader(existing, **arguments)


def values(batches: Any) -> list[Any]:
    return [batch[0].tolist() for batch in batches]


def test_it_gets_the_dataloader_and_its_own_is_adopted(framework: ModuleType) -> None:
    half = framework.half  # as `from framework import half`, before there is a Loader
    made = half(loader(seed=5), size=3)
    assert framework.given == [DataLoader]
    assert type(made) is Loader
    assert values(made) == [[0, 1, 2], [3]]
    assert made.config.seed == 5, "with the same arguments"


def test_its_object_around_a_dataloader_stays(framework: ModuleType) -> None:
    made = framework.half(loader=loader(), device=torch.device("cpu"))
    assert type(made) is framework.Around
    assert type(made._dataloader) is Loader
    assert values(made) == [[0, 1], [2, 3]]
    again = framework.half(made._dataloader)
    assert framework.given == [DataLoader, DataLoader]
    assert type(again) is Loader


def test_what_is_made_of_an_object_around_a_loader_is_adopted(framework: ModuleType) -> None:
    made = framework.half(loader(), device=torch.device("cpu"))
    made.dataset = made._dataloader.dataset
    assert type(framework.half(made)) is Loader
    assert framework.given[-1] is framework.Around, "which it knows better than its inside"


def test_from_dataloader_adopts_inside_an_object_around(framework: ModuleType) -> None:
    existing = DataLoader(TensorDataset(torch.arange(8)), 4)
    made = fastload.from_dataloader(framework.half(existing, device=torch.device("cpu")))
    assert type(made) is framework.Around
    assert type(made._dataloader) is Loader
    assert values(made) == [[0, 1], [2, 3]]


def test_what_is_inside_an_object_around_is_adopted_once(framework: ModuleType) -> None:
    existing = DataLoader(TensorDataset(torch.arange(8)), 4)
    around = framework.half(existing, device=torch.device("cpu"))
    inside = fastload.from_dataloader(around, seed=5)._dataloader
    assert type(inside) is Loader
    assert fastload.from_dataloader(around, seed=5)._dataloader is inside
    assert values(around) == [[0, 1], [2, 3]]
    with pytest.raises(ConfigurationError, match="a fastload Loader already"):
        fastload.from_dataloader(around, seed=6)


def test_other_arguments_pass_as_they_are(framework: ModuleType) -> None:
    loader()
    existing = DataLoader(TensorDataset(torch.arange(8)), 4)
    made = framework.half(existing, size=4)
    assert type(made) is DataLoader
    assert values(made) == [[0, 1, 2, 3]]
    assert list(inspect.signature(framework.half).parameters) == ["loader", "size", "device"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'sizes'"):
        framework.half(existing, sizes=4)
    assert isinstance(made.batch_sampler, BatchSampler)
    assert isinstance(made.batch_sampler.sampler, SequentialSampler)


def test_a_framework_that_is_imported_later_is_known_when_it_looks(
    framework: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "a_framework")
    ours = loader()
    monkeypatch.setitem(sys.modules, "a_framework", framework)
    assert getattr(ours, "_is_prepared", False) is False, "as Accelerate asks before it prepares"
    assert type(framework.half(ours)) is Loader


# -- Frameworks that are not named -----------------------------------------------------------------

REBUILDS = """
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

def rebuilt(loader):
    half = BatchSampler(SequentialSampler(range(len(loader.dataset) // 2)), 2, False)
    return DataLoader(
        loader.dataset, batch_sampler=half, collate_fn=loader.collate_fn
    )
"""


def stranger(ours: Any) -> Any:
    """What a framework makes of a Loader, of which fastload does not know."""
    module = ModuleType("a_stranger")
    exec(compile(REBUILDS, "a_stranger.py", "exec"), vars(module))
    return module.rebuilt(ours)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.WARNING, logger="fastload")
    return [record.getMessage() for record in caplog.records]


def test_a_plain_loader_of_a_loaders_parts_says_so(caplog: pytest.LogCaptureFixture) -> None:
    made = stranger(loader())
    assert type(made) is DataLoader
    assert warned(caplog) == [], "it may still be adopted"
    for _ in range(2):
        assert values(made) == [[0, 1], [2, 3]]
    (text,) = warned(caplog)
    assert "a_stranger.py:6 made a DataLoader" in text
    assert "loader = fastload.from_dataloader(loader)" in text


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_loader_of_torchdatas_says_so(caplog: pytest.LogCaptureFixture) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    ours = loader()
    made = torchdata.StatefulDataLoader(ours.dataset, 4, collate_fn=ours.collate_fn)
    assert values(made) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    (text,) = warned(caplog)
    assert f"{__file__}:" in text
    assert "made a StatefulDataLoader" in text


def test_one_that_is_adopted_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    made = fastload.from_dataloader(stranger(loader()))
    assert values(made) == [[0, 1], [2, 3]]
    assert values(made.existing) == [[0, 1], [2, 3]]
    assert warned(caplog) == []


@pytest.mark.parametrize("iterated", [False, True])
def test_a_scripts_own_loader_over_the_same_data_says_nothing(
    caplog: pytest.LogCaptureFixture, iterated: bool
) -> None:
    ours = loader()
    assert (len(ours.dataset), ours.batch_size, ours.drop_last) == (8, 4, False)
    if iterated:
        assert ours.num_workers == 0  # as a framework looks before it iterates
        list(ours)
    assert values(DataLoader(ours.existing.dataset, 8)) == [list(range(8))]
    assert warned(caplog) == []


def test_opacus_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Its loader for differential privacy is made of another one's parts."""
    opacus = pytest.importorskip("opacus.data_loader", reason="pip install opacus")
    made = opacus.DPDataLoader.from_data_loader(loader())
    list(made)
    (text,) = warned(caplog)
    assert "made a DPDataLoader" in text
    again = fastload.from_dataloader(opacus.DPDataLoader.from_data_loader(loader()))
    assert (len(list(again)), len(warned(caplog))) == (2, 1)


MAKER = """
from torch.utils.data import DataLoader, DistributedSampler

class OfEpochs(DistributedSampler):
    pass

class DeepSpeedDataLoader:
    def __init__(self, dataset, batch_size, workers=0, collate_fn=None):
        self.dataset, self.batch_size, self.workers = dataset, batch_size, workers
        self.collate_fn, self.data, self.passes = collate_fn, None, 0
        self.data_sampler = OfEpochs(dataset, 2, 1)
    def __iter__(self):
        self.data_sampler.set_epoch(self.passes)
        self.passes += 1
        self._create_dataloader()
        return self
    def __next__(self):
        return next(self.data)
    def _create_dataloader(self):
        self.dataloader = DataLoader(
            self.dataset, batch_size=self.batch_size, sampler=self.data_sampler,
            num_workers=self.workers, collate_fn=self.collate_fn, drop_last=False,
        )
        self.data = (batch for batch in self.dataloader)
        return self.dataloader
"""
"""DeepSpeed's object for `training_data=`, as far as making loaders goes."""


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("deepspeed.runtime.dataloader")
    exec(MAKER, vars(module))
    module.DeepSpeedDataLoader.__module__ = module.__name__
    return module.DeepSpeedDataLoader


def test_an_object_that_makes_loaders_gets_one_loader(maker: Any) -> None:
    data = TensorDataset(torch.arange(14))
    plain, ours = maker(data, 3), maker(data, 3)
    assert fastload.from_dataloader(ours) is ours
    assert ours.data is None, "nothing was started"
    for _ in range(3):
        assert values(ours) == values(plain)
        assert type(ours.dataloader) is Loader
    first = ours.dataloader
    assert ours.passes == plain.passes == 3
    for one in (plain, ours):
        one.batch_size, one.dataset = 2, TensorDataset(torch.arange(14) * 10)
        one.data_sampler.dataset = one.dataset
    assert values(ours) == values(plain)
    assert ours.dataloader is not first, "it gave other arguments"


def test_what_it_makes_is_refused_at_once_if_it_cannot_be_adopted(maker: Any) -> None:
    theirs = maker(TensorDataset(torch.arange(8)), 4)
    with pytest.raises(ConfigurationError, match="shard: the DataLoader's OfEpochs"):
        fastload.from_dataloader(theirs, shard=fastload.Shard(0, 2))
    assert "_create_dataloader" not in vars(theirs)
    assert len(values(theirs)) == 1


def test_an_object_that_makes_its_loader_otherwise_is_refused(
    maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker, "_create_dataloader", lambda self: iter(self.data))
    with pytest.raises(ConfigurationError, match="does not make its DataLoader by _create"):
        fastload.from_dataloader(maker(TensorDataset(torch.arange(8)), 4))
    monkeypatch.delattr(maker, "_create_dataloader")
    with pytest.raises(ConfigurationError, match="a loader of your own"):
        fastload.from_dataloader(maker(TensorDataset(torch.arange(8)), 4))
