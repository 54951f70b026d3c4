"""The sample set: reproducible, decodable, learnable, and with the statistics of photographs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import get_sampling

from fastload.errors import ConfigurationError
from fastload.tools.measure.photographs import SCENES, write_photographs

COUNT = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photographs(tmp_path_factory.mktemp("photographs"), COUNT, seed=3)


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def pixels(path: Path, mode: str) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert(mode), np.float64)


@pytest.mark.whole
def test_the_same_bytes_for_the_same_seed(folder: Path, tmp_path: Path) -> None:
    assert digest(write_photographs(tmp_path / "again", COUNT, seed=3)) == digest(folder)
    other = digest(write_photographs(tmp_path / "other", 8, seed=4))
    assert not set(other.values()) & set(digest(folder).values())


@pytest.mark.slow
def test_class_folders_of_equal_size_in_both_parts(folder: Path) -> None:
    for part, each in (("train", 13), ("val", 3)):
        counts = {entry.name: len(list(entry.iterdir())) for entry in (folder / part).iterdir()}
        assert counts == dict.fromkeys(SCENES, each)
    assert len(set(digest(folder).values())) == COUNT, "no image twice"


@pytest.mark.slow
def test_progress_rises_to_one(tmp_path: Path) -> None:
    shares: list[float] = []
    write_photographs(tmp_path, 8, progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) == 8
    assert shares[-1] == 1.0


@pytest.mark.slow
def test_sizes_and_settings_are_those_of_photographs(folder: Path) -> None:
    files = sorted(folder.rglob("*.jpg"))
    sizes, samplings = [], set()
    for path in files:
        with Image.open(path) as image:
            assert image.format == "JPEG"
            sizes.append(image.size)
            samplings.add(get_sampling(image))
    assert len(set(sizes)) > COUNT // 2
    assert all(230 <= side <= 620 for size in sizes for side in size)
    assert {0, 2} <= samplings, "4:4:4 and 4:2:0 at least"
    bits = np.array(
        [8 * path.stat().st_size / np.prod(size) for path, size in zip(files, sizes, strict=True)]
    )
    assert 3.0 < bits.mean() < 6.5, (
        "bits per pixel; white noise has some 12 at these qualities, flat shapes below 1"
    )
    assert bits.max() > 2 * bits.min(), "busy images and plain ones"


@pytest.mark.whole
def test_gradients_are_heavy_tailed_and_spectra_fall_as_in_nature(folder: Path) -> None:
    kurtoses, slopes = [], []
    for path in sorted(folder.rglob("*.jpg")):
        image = pixels(path, "L")
        gradient = np.diff(image, axis=1)
        kurtoses.append(((gradient - gradient.mean()) ** 4).mean() / gradient.var() ** 2)
        side = min(image.shape) // 2 * 2
        window = np.hanning(side)
        patch = image[:side, :side]
        power = np.abs(np.fft.fft2((patch - patch.mean()) * window[:, None] * window)) ** 2
        radius = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None, :])
        edges = np.geomspace(0.02, 0.35, 10)
        band = np.digitize(radius, edges)
        means = [power[band == index].mean() for index in range(1, 10)]
        slopes.append(np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(means), 1)[0])
    assert np.median(kurtoses) > 6, "3 for Gaussian noise, above 6 with occluding objects"
    assert -3.3 < np.mean(slopes) < -2.0, "power falls with the square of the frequency, roughly"


@pytest.mark.slow
def test_scenes_can_be_is_measurable_by_colour(folder: Path) -> None:
    def mean_colours(part: str) -> tuple[np.ndarray, list[str]]:
        files = sorted((folder / part).rglob("*.jpg"))
        rows = [pixels(path, "RGB").mean((0, 1)) for path in files]
        return np.stack(rows), [path.parent.name for path in files]

    colours, names = mean_colours("train")
    colours /= colours.sum(1, keepdims=True)
    centres = {name: colours[[n == name for n in names]].mean(0) for name in SCENES}
    seen, truth = mean_colours("val")
    seen /= seen.sum(1, keepdims=True)
    guesses = [
        min(centres, key=lambda name: float(((row - centres[name]) ** 2).sum())) for row in seen
    ]
    right = np.mean([guess == name for guess, name in zip(guesses, truth, strict=True)])
    assert right > 0.5, "chance is 0.25"


@pytest.mark.parametrize("count", [7, 0])
def test_too_few_are_refused_by_name(tmp_path: Path, count: int) -> None:
    with pytest.raises(ConfigurationError, match="count="):
        write_photographs(tmp_path / "none", count)
    assert not (tmp_path / "none").exists()
