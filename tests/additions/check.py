"""What a decoder, a format, an operation, a column and a preset must do once they are added. Run by
`tests/test_contributing.py` in a copy of the package that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastload.recipe.inverted import Inverted  # type: ignore[import-not-found]
from torchvision.transforms import v2
from typer.testing import CliRunner

from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.cli.app import app
from fastload.draws import Draws
from fastload.recipe import Recipe
from fastload.recipe.crops import CornerCrop  # type: ignore[attr-defined]
from fastload.tools.bench import DecodeSettings
from fastload.tools.bench.decode import run_decode_benchmark
from tests.backends import Contestant, contestants
from tests.images import jpeg, photo

COUNT = 9
PLAIN = Contestant("torch-0", "torch", {"num_workers": 0})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    (root / "only").mkdir()
    for index in range(COUNT):
        pixels = photo(40 + index, 50, seed=index)
        (root / "only" / f"{index}.jpg").write_bytes(jpeg(pixels))
    return root


def batch_of(
    contestant: Contestant, source: Any, directory: Path, transform: Any = None, **arguments: Any
) -> Any:
    """All samples in one batch."""
    transform = v2.CenterCrop(32) if transform is None else transform
    arguments = {"batch_size": COUNT, "transform": transform, "seed": 3} | arguments
    with contestant.create(source, directory, **arguments) as loader:
        return next(iter(loader))


def close(contestant: Contestant, got: torch.Tensor, wanted: torch.Tensor) -> bool:
    difference = (got.cpu().int() - wanted.int()).abs().float()
    return bool(difference.mean() <= 3.0 if contestant.psnr else difference.max() <= 2)


def test_the_decoder_decodes_and_is_measured(folder: Path, tmp_path: Path) -> None:
    options = TurboJpegOptions(decoder="by-hand")
    chosen = Contestant("", "turbojpeg", {"options": options})
    got, _ = batch_of(chosen, folder, tmp_path)
    assert close(PLAIN, got, batch_of(PLAIN, folder, tmp_path)[0])
    assert "by-hand" in CliRunner().invoke(app, ["doctor"]).output
    small: dict[str, Any] = {"modes": ("full",), "readings": ("memory",), "threads": (1,)}
    results = run_decode_benchmark(DecodeSettings(folder, seconds=0.0, rounds=1, **small))
    assert [row.status for row in results.measurements if row.contestant == "by-hand"] == [
        "measured"
    ]


@contestants()
def test_the_format_is_recognised(contestant: Contestant, folder: Path, tmp_path: Path) -> None:
    listing = tmp_path / "train.listing"
    order = [*range(0, COUNT, 2), *range(1, COUNT, 2)]
    listing.write_text("".join(f"{n} {folder}/only/{n}.jpg\n" for n in order))
    images, labels = batch_of(contestant, str(listing), tmp_path)
    assert labels.tolist() == order
    assert close(contestant, images, batch_of(PLAIN, folder, tmp_path)[0][order])


@contestants()
def test_the_colour_operation_changes_what_was_drawn(
    contestant: Contestant, folder: Path, tmp_path: Path
) -> None:
    transform = v2.Compose([Inverted(0.4), v2.RandomCrop(32)])
    assert not Recipe.from_transform(transform).is_opaque
    plain = v2.Compose([Inverted(0.0), v2.RandomCrop(32)])
    wanted, _ = batch_of(PLAIN, folder, tmp_path / "plain", plain)
    chosen = Draws(3, 0, np.arange(COUNT)).uniform(0, 1)[:, 0] < 0.4
    assert 0 < chosen.sum() < COUNT
    wanted[chosen] = 255 - wanted[chosen]
    got, _ = batch_of(contestant, folder, tmp_path, transform)
    assert close(contestant, got, wanted)


@contestants()
def test_the_crop_cuts_what_was_drawn(contestant: Contestant, folder: Path, tmp_path: Path) -> None:
    got, _ = batch_of(contestant, folder, tmp_path, v2.Compose([CornerCrop(24)]))
    right = Draws(3, 0, np.arange(COUNT)).uniform(0, 1)[:, 0] < 0.5
    assert 0 < right.sum() < COUNT
    for index in range(COUNT):
        whole, _ = batch_of(PLAIN, folder, tmp_path / str(index), v2.CenterCrop((40 + index, 50)))
        corner = whole[index][:, -24:, -24:] if right[index] else whole[index][:, -24:, :24]
        assert close(contestant, got[index], corner), index


@contestants("torch", "turbojpeg", "cache", "dali")
def test_the_column_is_moved_with_the_images(contestant: Contestant, tmp_path: Path) -> None:
    images = np.stack([photo(40, 50, seed=index) for index in range(COUNT)])
    lines = np.array([[5.0, 4.0, 45.0, 36.0]] * COUNT)
    arrays = {"image": images, "lines": lines}
    for later in ([], [v2.ColorJitter(0.1)]):
        transform = v2.Compose([*later, v2.CenterCrop(32), v2.RandomHorizontalFlip(1.0)])
        if contestant.backend == "dali":
            continue  # arrays are nothing to it
        batch = batch_of(contestant, arrays, tmp_path, transform)
        # From x = 9 and y = 4 on, mirrored in 32 pixels; what leaves the image ends at its edge.
        assert batch["lines"].tolist() == [[32.0, 0.0, 0.0, 32.0]] * COUNT


def test_the_preset_is_listed() -> None:
    from fastload.train.settings import find_preset, preset_files

    assert "by-hand" in preset_files()
    assert find_preset("by-hand").about == "SGD, by hand"
