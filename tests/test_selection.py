"""backend="auto": what the rule says of each kind of data, and what measuring makes of it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError
from tests.images import write_photo_folder

CROP = v2.RandomResizedCrop(16, antialias=True)
PAIRS = [(Image.new("RGB", (20, 20)), 0)] * 4
ARRAYS = (np.zeros((4, 20, 20, 3), np.uint8), np.zeros(4, np.int64))


@pytest.mark.parametrize(
    ("source", "arguments", "backend"),
    [
        ("folder", {}, "turbojpeg"),
        ("folder", {"transform": v2.Compose([v2.Lambda(lambda image: image), CROP])}, "torch"),
        ("folder", {"collate_fn": list}, "torch"),
        (PAIRS, {}, "torch"),
        (ARRAYS, {}, "cache"),
    ],
    ids=["JPEGs", "opaque transform", "collate function", "dataset", "arrays"],
)
def test_the_rule_follows_the_data_and_the_transform(
    tmp_path: Path, source: Any, arguments: dict[str, Any], backend: str
) -> None:
    if source == "folder":
        source = write_photo_folder(tmp_path)
    loader = fastload.create_loader(source, 2, num_workers=0, **({"transform": CROP} | arguments))
    assert loader.backend == backend
    assert f"{backend}: " in loader.explain()


@pytest.mark.slow
def test_tuning_measures_the_candidates_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fastload.loader.tune"), "MEASURED_SECONDS", 0.05)
    folder = write_photo_folder(tmp_path, per_class=8)
    transform = v2.RandomResizedCrop(16, antialias=True)
    with fastload.create_loader(
        folder, 4, transform=transform, options=fastload.BackendOptions(tune=True)
    ) as loader:
        text = loader.explain()
        assert "samples/s" in text
        assert "torch:" in text
        assert "turbojpeg:" in text
        assert len(list(loader)) == 4


@pytest.mark.parametrize("fastest", ["torch", "turbojpeg"])
def test_tuning_takes_the_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fastest: str
) -> None:
    monkeypatch.setattr(
        import_module("fastload.loader.tune"),
        "samples_per_second",
        lambda order, stage, feed: 900.0 if feed._backend.name == fastest else 100.0,
    )
    with fastload.create_loader(
        write_photo_folder(tmp_path), 2, transform=CROP, options=fastload.BackendOptions(tune=True)
    ) as loader:
        assert loader.backend == fastest
        assert f"{fastest}: 900 samples/s" in loader.explain()


def test_a_backend_whose_package_is_missing_is_an_error_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload.backends.base.find_spec", lambda name: None)
    folder = write_photo_folder(tmp_path)
    with pytest.raises(
        BackendUnavailableError, match=r"nvidia\.dali.*" + re.escape(install_command("dali"))
    ):
        fastload.create_loader(folder, 2, transform=CROP, backend="dali")
    assert {row.name: row.available for row in fastload.available_backends()}["dali"] is False
