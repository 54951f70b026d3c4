"""The comparison with peers: its input, its processes and its verdicts. Speed is not tested."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from benchmarks import inputs
from benchmarks.environments import Environment, add_our_packages
from benchmarks.peers import comparison
from benchmarks.peers.__main__ import bars, other_pixels
from benchmarks.peers.comparison import Comparison, Peer
from benchmarks.peers.contestants import (
    CONTESTANTS,
    ENVIRONMENTS,
    FASTLOAD_NORMALISED,
    FASTLOAD_TURBOJPEG,
    FFCV_JPEG,
    OPENCV,
    PILLOW,
    PILLOW_SMALL,
    SIMPLEJPEG,
    TIMM,
    Row,
    fastload,
)
from benchmarks.peers.serve import Contestant
from benchmarks.peers.setting import Setting, random_crop
from benchmarks.peers.stored import beton
from fastload.errors import SourceError, WorkerError
from fastload.tools.measure.results import Measurement, Round
from tests.images import write_photo_folder

HERE = [sys.executable]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    small = inputs.small_images(tmp_path, 96)
    return Setting(photographs="", small=str(small), files="", batch_size=16, threads=1)


def rounds(*rates: float) -> tuple[Round, ...]:
    return tuple(Round(samples=round(10 * rate), seconds=10.0, cpu_seconds=20.0) for rate in rates)


def test_few_photographs_are_repeated_and_none_is_left_out(tmp_path: Path) -> None:
    for part, label in (("train", "cat"), ("train", "dog"), ("val", "dog")):
        folder = tmp_path / "source" / part / label
        folder.mkdir(parents=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / "same_name.jpg")
        (folder / "notes.txt").write_text("not an image")
    found = inputs.photographs(tmp_path / "source", tmp_path / "work", 10)
    links = [path.resolve() for path in found.folder.glob("*/*")]
    originals = sorted((tmp_path / "source").rglob("*.jpg"))
    assert found.files == len(links) == 12
    assert sorted(set(links)) == originals
    assert all(links.count(path) == 4 for path in originals)
    assert sorted(path.resolve() for path in found.few.glob("*/*")) == originals


def test_reduced_photographs(tmp_path: Path) -> None:
    folder = tmp_path / "photographs-1" / "few" / "cat"
    folder.mkdir(parents=True)
    for number in range(6):
        Image.fromarray(np.full((60, 100, 3), 40 * number, np.uint8)).save(folder / f"{number}.jpg")
    sizes = {}
    for side, suffix in ((50, ".png"), (64, ".jpg")):
        made = inputs.reduced(folder.parent, tmp_path, 3, side=side, suffix=suffix)
        found = inputs.photographs(made, tmp_path, 7, (suffix,))
        assert (found.distinct, found.files) == (3, 9)
        with Image.open(next(found.folder.glob(f"cat/*{suffix}"))) as image:
            sizes[image.format] = image.size
    assert sizes == {"PNG": (50, 30), "JPEG": (64, 64)}


def test_a_folder_without_photographs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="DATA=folder"):
        inputs.photographs(tmp_path, tmp_path / "work", 10)


@pytest.mark.whole
def test_a_contestant_counts_whole_batches_and_stays_warm(setting: Setting) -> None:
    peer = Peer(PILLOW_SMALL, setting, HERE, "stream")
    try:
        assert peer.run(0.0).samples == 0
        for _ in range(2):
            work = peer.run(0.05)
            assert work.samples > 0
            assert work.samples % setting.batch_size == 0
            assert work.seconds is not None
            assert work.seconds >= 0.05
            assert work.cpu_seconds is not None
            assert work.metrics["mean_pixel"] is not None
        assert peer.version
    finally:
        peer.close()


@pytest.mark.whole
def test_epochs_have_a_gap_and_memory(setting: Setting) -> None:
    peer = Peer(PILLOW_SMALL, replace(setting, epochs=3), HERE, "epochs")
    try:
        metrics = peer.run(1.0).metrics
    finally:
        peer.close()
    assert metrics["ends"] == 3
    assert metrics["ordinary_seconds"] > 0
    assert metrics["longest_gap_in_ordinary_intervals"] > -1
    assert metrics["memory_growth_share"] > -1
    assert metrics["most_bytes"] > 1e6


@pytest.mark.whole
def test_what_a_contestant_raises_is_reported(setting: Setting) -> None:
    with pytest.raises(OSError, match="No such file"):
        Peer(PILLOW, setting, HERE, "stream")  # there are no photographs
    with pytest.raises(WorkerError, match="StopIteration"):
        Peer(Row("nobody", "photographs", None), setting, HERE, "stream")


def test_a_process_that_ends_is_an_error(setting: Setting) -> None:
    with pytest.raises(WorkerError, match="ended with exit code 1"):
        Peer(PILLOW_SMALL, setting, ["/bin/false"], "stream")


@pytest.mark.slow
def test_crops_are_drawn_as_torchvision_draws_them() -> None:
    draw = random.Random(0)
    ours = np.array([random_crop(draw, 500, 300) for _ in range(4000)])
    torch.manual_seed(0)
    image = torch.zeros(1, 300, 500)
    theirs = np.array(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    )
    theirs = theirs[:, [1, 0, 3, 2]]  # top, left, height, width
    assert (ours >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= [500, 300]).all()
    # Standard errors are some 2 pixels.
    assert ours.mean(0) == pytest.approx(theirs.mean(0), abs=8)
    assert ours.std(0) == pytest.approx(theirs.std(0), abs=8)


def test_bars_compare_round_by_round() -> None:
    # The machine was twice as fast in the first round.
    ours, theirs = (
        rounds(600, 300, 330),
        rounds(120, 60, 66),
    )
    measured = [
        Measurement(FASTLOAD_TURBOJPEG.contestant, FASTLOAD_TURBOJPEG.task, rounds=ours),
        Measurement(PILLOW.contestant, PILLOW.task, rounds=theirs),
        Measurement(FFCV_JPEG.contestant, FFCV_JPEG.task, rounds=rounds(400, 200, 220)),
    ]
    verdicts = {verdict.what: verdict for verdict in bars(measured)}
    faster = verdicts["fastload turbojpeg / DataLoader, Pillow (photographs)"]
    assert faster.value == pytest.approx(5.0)
    assert faster.found is not None
    assert faster.found.most == pytest.approx(5.0)
    assert faster.reached
    missed = verdicts["fastload turbojpeg / FFCV, JPEG q90 (photographs)"]
    assert missed.value == pytest.approx(1.5)
    assert missed.reached is False
    assert str(missed).startswith("MISSED by 28.6%")
    cost = verdicts["fastload turbojpeg / DataLoader, Pillow (photographs), by processor time"]
    assert cost.value == pytest.approx(5.0)
    assert verdicts["fastload turbojpeg / DALI, CPU (photographs)"].reached is None


@pytest.mark.whole
@pytest.mark.parametrize("row", [OPENCV, SIMPLEJPEG, TIMM, FASTLOAD_NORMALISED])
def test_what_people_put_into_a_dataloader_gives_the_same_images(
    row: Row, setting: Setting, tmp_path: Path
) -> None:
    for package in ("cv2", "albumentations", "simplejpeg", "timm"):
        pytest.importorskip(package)
    folder = write_photo_folder(tmp_path / "photographs", classes=2, per_class=16)
    given = replace(setting, photographs=str(folder), files=str(tmp_path), batch_size=4)
    means = []
    for name, task in ((PILLOW.contestant, PILLOW.task), (row.contestant, row.task)):
        contestant = Contestant(name, task, given)  # which looks at shapes and types
        means.append(contestant.stream(0.01)["metrics"]["mean_pixel"])
    assert means[1] == pytest.approx(means[0], rel=0.1)


def test_an_environment_that_works_is_left_as_it_is(tmp_path: Path) -> None:
    said: list[str] = []
    python = Environment("own", ("nothing",), "import json").python(tmp_path)
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert Environment("own", ("nothing",), "import json").make(tmp_path, said.append) == ""
    assert said == []


def test_an_environment_that_cannot_be_had_says_what_the_system_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("benchmarks.environments.subprocess.run", lambda command, **_: None)
    lacking = ENVIRONMENTS["ffcv"].make(tmp_path, said.append)
    assert lacking.startswith("ffcv needs: sudo apt-get install")
    assert "libopencv-dev" in lacking
    assert said[-1] == lacking


@pytest.mark.slow
def test_an_environment_sees_our_packages_after_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "own"], check=True)
    python = Environment("own", (), "").python(tmp_path)
    add_our_packages(python)
    command = [
        python,
        "-c",
        "import json, sys, numpy; print(json.dumps([numpy.__file__, sys.path]))",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    file, path = json.loads(done.stdout)
    assert file == np.__file__
    packages = [place for place in path if place.endswith("site-packages")]
    assert packages[0].startswith(str(tmp_path))


def test_other_pixels_are_noticed() -> None:
    def row(contestant: str, mean: float) -> Measurement:
        return Measurement(
            contestant, "photographs", rounds=(Round(1, 1.0, 1.0, {"mean_pixel": mean}),)
        )

    warnings = other_pixels([row("a", 110.0), row("b", 111.0), row("black", 3.0)])
    assert len(warnings) == 1
    assert "black" in warnings[0]


def test_every_bar_is_about_rows_that_take_part() -> None:
    made_up = [Measurement(row.contestant, row.task, rounds=rounds(1.0)) for row in CONTESTANTS]
    compared = [verdict for verdict in bars(made_up) if "/" in verdict.what]
    assert compared
    assert all(verdict.found is not None for verdict in compared)


@pytest.mark.slow
def test_other_photographs_get_a_cache_of_their_own_in_the_same_work_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does a FFCV file of photographs; that of the small images, which are made here, is written
    once."""
    monkeypatch.setattr(comparison, "LEAST", 70)
    monkeypatch.setattr(comparison, "SMALL", 32)
    settings = []
    for number in range(2):
        folder = tmp_path / f"photographs {number}" / "cat"
        folder.mkdir(parents=True)
        pixels = np.random.default_rng(number).integers(0, 256, (300, 300, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "1.jpg")
    for number in (0, 1, 0):
        given = Namespace(
            work=tmp_path / "work", data=tmp_path / f"photographs {number}", threads=1
        )
        settings.append(Comparison(given, [], lambda line: None).setting)
        assert Path(settings[-1].files, "cache").is_dir()
    first, second, again = settings
    assert first == again
    assert first.files != second.files
    assert beton(first, "jpeg") != beton(second, "jpeg")
    assert beton(first, "small") == beton(second, "small")
    assert next(iter(fastload(second, "cache").epoch())).shape[1:] == (3, 224, 224)
