"""A backend of a third party, found through the entry point of its distribution."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends import base
from fastload.backends.base import (
    BackendOptions,
    Dependency,
    HostBatch,
    MadeHere,
    Traits,
    Work,
)
from fastload.backends.tolerance import PixelDifference, Tolerance
from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError, ConfigurationError

BACKEND = '''
from functools import partial

from fastload.backends.base import BackendOptions, HostBatch, MadeHere


class MyBackend:
    """As short as the contract allows: columns of values, in the calling thread."""

    name = "mine"
    depth = 2
    background = False
    Options = BackendOptions

    def __init__(self, context, options):
        self.context = context
        self.max_pixels = options.max_pixels

    def start(self, draws):
        return MadeHere(partial(self.batch, draws))

    def batch(self, draws):
        columns = self.context.source.columns
        return HostBatch({name: column.at(draws.indices) for name, column in columns.items()})

    def close(self):
        pass

    def explain(self):
        return {"mine": f"by hand, {self.max_pixels} pixels"}
'''
TOKENS = {"input_ids": np.arange(60).reshape(20, 3)}


DESCRIBED = """
from fastload.backends.base import Fit, Dependency, Traits

NUMPY = Dependency("numpy", "pip install numpy")


class DescribedBackend(MyBackend):
    name = "described"
    traits = Traits(summary="by hand", prepares=True, requires=NUMPY)

    @classmethod
    def fit(cls, workload):
        return Fit(1.0 if workload.arrays else 0.0, "nobody knows these arrays better")

class LackingBackend(MyBackend):
    traits = Traits(requires=Dependency("no_such_package", "pip install no-such-package"))
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that registers backends, as pip would leave it; one of them cannot be
    imported."""
    (tmp_path / "my_package_backend.py").write_text(BACKEND + DESCRIBED)
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    registered = {
        "mine": "MyBackend",
        "described": "DescribedBackend",
        "lacking": "LackingBackend",
        "gone": "Gone",
    }
    lines = [f"{name} = my_package_backend:{cls}\n" for name, cls in registered.items()]
    (info / "entry_points.txt").write_text("[fastload.backends]\n" + "".join(lines))
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


@pytest.mark.usefixtures("installed")
def test_what_it_says_of_itself_is_listed() -> None:
    found = {row.name: row for row in fastload.available_backends()}
    assert list(found)[-4:] == ["described", "gone", "lacking", "mine"]
    assert found["mine"].traits == Traits()
    assert found["described"].traits.summary == "by hand"
    assert found["lacking"].available is False
    assert found["lacking"].remedy == "pip install no-such-package"
    assert found["gone"].available is False
    assert "AttributeError" in found["gone"].remedy
    with pytest.raises(
        BackendUnavailableError, match=r"'lacking'.*no_such_package.*pip install no-such-package"
    ):
        fastload.create_loader(TOKENS, backend="lacking")


@pytest.mark.usefixtures("installed")
def test_auto_takes_the_one_that_says_it_suits_best() -> None:
    loader = fastload.create_loader(TOKENS, 4)
    assert loader.backend == "described"
    assert "described: nobody knows these arrays better" in loader.explain()
    # It runs no Python on samples.
    assert fastload.create_loader(TOKENS, 4, collate_fn=list).backend == "torch"


def test_the_packages_installed_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[dict[str, str]] = []

    def counted(**group: str) -> Any:
        reads.append(group)
        return entry_points(**group)

    monkeypatch.setattr(base, "entry_points", counted)
    monkeypatch.syspath_prepend("another path")
    for _ in range(2):
        fastload.create_loader(TOKENS, 4).close()
    assert reads == [{"group": "fastload.backends"}]


@pytest.mark.usefixtures("installed")
def test_tuning_measures_it_as_it_does_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        import_module("fastload.loader.tune"),
        "samples_per_second",
        lambda order, stage, feed: 900.0 if feed._backend.name == "mine" else 100.0,
    )
    with fastload.create_loader(
        TOKENS, 4, num_workers=0, options=fastload.BackendOptions(tune=True)
    ) as loader:
        assert loader.backend == "mine"
        assert "described: 100 samples/s" in loader.explain()


def test_a_tolerance_is_a_bound_on_pixels() -> None:
    wanted = torch.full((2, 3, 8, 8), 100, dtype=torch.uint8)
    near, far = wanted.clone(), wanted + 3
    near[0, 0, 0] += 2
    assert PixelDifference.between(wanted, wanted) == PixelDifference(0, 0.0, float("inf"))
    assert Tolerance().allows(PixelDifference.between(near, wanted))
    assert not Tolerance().allows(PixelDifference.between(far, wanted))
    assert not Tolerance(mean=0.01).allows(PixelDifference.between(near, wanted))
    own = Tolerance(psnr_cpu=40.0, psnr_gpu=35.0)
    difference = PixelDifference.between(far, wanted)
    assert difference.psnr == pytest.approx(38.59, abs=0.01)  # 20 log10(255 / 3)
    assert not own.allows(difference)
    assert own.allows(difference, on_gpu=True)
    assert (own.describe(), own.describe(on_gpu=True)) == ("PSNR 40 dB", "PSNR 35 dB")
    with pytest.raises(ValueError, match="cannot be compared"):
        PixelDifference.between(wanted, wanted.float())


def test_every_built_in_backend_describes_itself() -> None:
    found = {row.name: row.traits for row in fastload.available_backends()}
    assert all(traits.summary for traits in found.values())
    assert [name for name, traits in found.items() if traits.runs_opaque] == ["torch"]
    assert found["dali"].requires == Dependency(
        "nvidia.dali", install_command("dali"), "nvidia-dali"
    )


def test_without_its_distribution_the_name_is_not_known() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'mine' is not known; choose 'auto' or one of 'torch'"
    ):
        fastload.create_loader(TOKENS, backend="mine")


@pytest.mark.usefixtures("installed")
def test_a_backend_that_does_not_say_so_is_not_given_warps() -> None:
    arrays = {"image": np.zeros((4, 8, 8, 3), np.uint8)}
    with pytest.raises(ConfigurationError, match=r"'mine' cannot warp images"):
        fastload.create_loader(arrays, 2, backend="mine", transform=v2.RandomRotation(10))


class Slices:
    """Batches that are views of the data set."""

    name, depth, background = "slices", 1, False
    Options = BackendOptions

    def __init__(self, context: Any, options: Any) -> None:
        self.columns = context.source.columns

    def start(self, draws: Any) -> Work:
        return MadeHere(lambda: self.batch(draws))

    def batch(self, draws: Any) -> HostBatch:
        rows = slice(int(draws.indices[0]), int(draws.indices[-1]) + 1)
        return HostBatch({name: column.array[rows] for name, column in self.columns.items()})

    def close(self) -> None:
        """Nothing to stop."""

    def explain(self) -> dict[str, str]:
        return {}


def test_colour_on_the_host_is_never_written_into_the_data_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends = import_module("fastload.backends")
    found = backends.backend_class
    monkeypatch.setattr(
        import_module("fastload.loader.build"),
        "backend_class",
        lambda name: Slices if name == "slices" else found(name),
    )
    images = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    before = images.copy()
    jitter = v2.ColorJitter(0.9, 0.9)
    arrays = {"image": images, "label": np.arange(8)}
    with fastload.create_loader(arrays, 4, transform=jitter, backend="slices") as loader:
        assert "on the host" in loader.explain()
        epochs = [[batch["image"].clone() for batch in loader] for _ in range(2)]
    assert not torch.equal(epochs[0][0], torch.from_numpy(before[:4]).permute(0, 3, 1, 2))
    assert np.array_equal(images, before)
