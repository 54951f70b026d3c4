"""`python -m benchmarks.pipelines.training`: loss curves that differ are found out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.pipelines.training import (
    FEWEST,
    LEAST,
    ORIGINAL,
    OURS,
    SIDES,
    WRONG,
    Agreement,
    curve,
    gathered,
    judged,
    main,
    p_of_permutations,
    trained,
)
from benchmarks.pipelines.training_yolo import Batches, feeding, shapes


def test_the_permutation_test_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    for shift in (0.0, 0.5, 3.0):
        first, second = random.normal(size=5), random.normal(size=5) + shift

        def difference(a: object, b: object) -> float:
            return float(np.mean(a) - np.mean(b))  # type: ignore[arg-type]

        wanted = stats.permutation_test((first, second), difference, n_resamples=np.inf)
        found = p_of_permutations(first[:, None], second[:, None])
        assert found == pytest.approx(wanted.pvalue)


def test_curves_agree_where_they_come_from_one_distribution() -> None:
    random = np.random.default_rng(1)
    mean = np.linspace(5, 3, 10)
    seen = []
    for _ in range(60):
        wanted, found = (
            mean + random.normal(0, 0.1, (5, 1)) + random.normal(0, 0.1, (5, 10)) for _ in range(2)
        )
        seen.append(Agreement.of(wanted, found).passed)
    assert sum(seen) >= 52, "57 are expected"
    lower = Agreement.of(wanted, found - 0.8)
    assert (lower.passed, lower.within) == (False, 0)
    assert lower.p == pytest.approx(2 / 252), "the least that five runs of each can have"
    bent = Agreement.of(wanted, found + np.linspace(-1, 1, 10))
    assert not bent.passed
    assert bent.p_of_curve < 0.02


def test_so_few_seeds_that_no_curves_can_differ_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for seeds in (FEWEST - 1, FEWEST):
        apart = Agreement.of(np.zeros((seeds, 10)), np.ones((seeds, 10)))
        assert (apart.p < LEAST) == (seeds >= FEWEST)
    with pytest.raises(SystemExit):
        main(["--seeds", str(FEWEST - 1), "yolo"])
    assert "--seeds: 4 cannot show that curves differ; give 5 or more" in capsys.readouterr().err


def test_a_curve_has_the_means_of_tenths() -> None:
    assert curve([float(step // 3) for step in range(30)]).tolist() == list(range(10))
    with pytest.raises(ValueError, match="9 steps; a curve needs 10"):
        curve([1.0] * 9)


def test_runs_are_kept_and_not_repeated(tmp_path: Path) -> None:
    seen = []

    def train(side: str, seed: int) -> list[float]:
        seen.append((side, seed))
        return [seed + (5.0 if side == WRONG else 0.0)] * 20

    trained(train, [0, 1], tmp_path)
    assert seen == [(side, seed) for seed in (0, 1) for side in SIDES]
    trained(train, range(3), tmp_path)
    assert seen[6:] == [(side, 2) for side in SIDES]
    curves = gathered(tmp_path, range(3))
    assert curves[ORIGINAL] == [[float(seed)] * 10 for seed in range(3)]
    found = judged(curves)
    assert found[OURS].within == 10
    assert found[WRONG].within == 0
    with pytest.raises(FileNotFoundError):
        gathered(tmp_path, range(4))


def test_shapes_are_where_their_rows_say(tmp_path: Path) -> None:
    folder = shapes(tmp_path, 6)
    files = sorted((folder / "images" / "train").iterdir())
    assert len(files) == 6
    for file in files:
        pixels = np.asarray(Image.open(file)).astype(int)
        height, width = pixels.shape[:2]
        rows = (folder / "labels" / "train" / f"{file.stem}.txt").read_text().splitlines()
        # The last one is on top of the others.
        kind, x, y, w, h = map(float, rows[-1].split())
        assert kind in (0, 1, 2)
        left, top = round((x - w / 4) * width), round((y + h / 8) * height)
        right, bottom = round((x + w / 4) * width), round((y + 3 * h / 8) * height)
        if kind == 0:  # a box has one colour
            assert pixels[top:bottom, left:right].std((0, 1)).max() < 8
    assert shapes(tmp_path, 6) == folder


def test_batches_have_the_form_of_the_originals(tmp_path: Path) -> None:
    folder = shapes(tmp_path, 6)
    with feeding(folder, 4, OURS, 0) as loader, feeding(folder, 4, OURS, 0) as same:
        batches = Batches(loader, None)
        assert len(batches) == 2
        found = list(batches)
        wrong = list(Batches(same, None, misplaced=True))
    for batch, other in zip(found, wrong, strict=True):
        count = len(batch["img"])
        for image in range(count):
            own = batch["bboxes"][batch["batch_idx"] == image]
            moved = other["bboxes"][other["batch_idx"] == (image + 1) % count]
            assert torch.equal(own, moved)
        assert (other["batch_idx"].diff() >= 0).all()
    assert [batch["img"].shape for batch in found] == [(4, 3, 160, 160), (2, 3, 160, 160)]
    for batch in found:
        count = len(batch["cls"])
        assert batch["cls"].shape == (count, 1)
        assert batch["bboxes"].shape == (count, 4)
        assert set(batch["batch_idx"].tolist()) <= set(range(len(batch["img"])))
    assert json.dumps(found[0]["ori_shape"]) == json.dumps([[160, 160]] * 4)
