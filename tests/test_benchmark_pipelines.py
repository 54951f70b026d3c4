"""`python -m benchmarks.pipelines`: a pipeline that is another one is found out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from benchmarks.pipelines import objects
from benchmarks.pipelines.__main__ import PIPELINES, main, table
from benchmarks.pipelines.classes import numbers_of, one, seen, tiles_of
from benchmarks.pipelines.judge import judge, p_of
from benchmarks.pipelines.objects import Sample
from benchmarks.pipelines.of_torchvision_segmentation import masks_apart
from benchmarks.pipelines.originals import packages_of
from benchmarks.pipelines.picture import draw
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting, Side
from benchmarks.pipelines.speed import ORIGINAL, OURS, verdicts
from fastload.tools.measure.results import Measurement, Round

ROOT = Path(__file__).parents[1]


class Noise:
    """Batches of images of a mean and a deviation; other ones in each epoch."""

    def __init__(
        self, seed: int, mean: float = 0.0, deviation: float = 1.0, width: int = 6
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.mean, self.deviation, self.width = mean, deviation, width

    def __iter__(self) -> Iterator[Any]:
        for _ in range(2):
            images = torch.randn((8, 3, 6, self.width), generator=self.random)
            yield images * self.deviation + self.mean, torch.zeros(8)


def side(batches: Any) -> Side:
    return Side(lambda _: batches, *seen(one, (0.5,) * 3, (0.2,) * 3))


def pipeline(ours: Any, **settings: Any) -> Pipeline:
    return Pipeline(
        "noise",
        "noise",
        side(Noise(1)),
        side(ours),
        batch_size=8,
        bar=4.0,
        data=lambda source, work, least: work,
        **settings,
    )


def judged(row: Pipeline, folder: Path) -> list[bool]:
    judgements = judge(row, folder, folder, folder, 0, 400)
    assert {type(one.found) for one in judgements} == {float}, "JSON has no other numbers"
    return [one.passed for one in judgements]


def test_samples_that_are_distributed_otherwise_are_found(tmp_path: Path) -> None:
    assert judged(pipeline(Noise(2)), tmp_path) == [True]
    assert judged(pipeline(Noise(2, mean=0.1)), tmp_path) == [False]
    assert judged(pipeline(Noise(2, deviation=1.1)), tmp_path) == [False]
    assert judged(pipeline(Noise(2, width=7)), tmp_path) == [False]


def test_other_operations_are_found(tmp_path: Path) -> None:
    crop, wide = v2.RandomResizedCrop(8), v2.RandomResizedCrop(8, scale=(0.2, 1.0))
    same = pipeline(Noise(2), operations=lambda _: (crop, v2.RandomResizedCrop(8)))
    assert judged(same, tmp_path) == [True, True]
    with pytest.raises(SystemExit, match=r"noise: the original has .*scale"):
        judged(pipeline(Noise(2), operations=lambda _: (crop, wide)), tmp_path)


def test_where_nothing_is_random_pixels_are_compared(tmp_path: Path) -> None:
    images = torch.rand((8, 3, 6, 6))
    row = replace(pipeline(None), original=side([(images, None)]), exact=True)
    off = images.clone()
    off[0, 0, 0, 0] += 0.1  # 5 of 255
    for ours, passed in ((images, [True, True]), (off, [False, True])):
        assert judged(replace(row, ours=side([(ours, None)])), tmp_path) == passed


def test_where_nothing_is_random_samples_may_be_compared_by_a_function(tmp_path: Path) -> None:
    seen = []

    def same(setting: Setting) -> list[Judgement]:
        seen.append((setting.shuffle, setting.small))
        return [Judgement("apart", 0.0, 0.0, False)]

    row = replace(pipeline(None), exact=True, same=same)
    assert judged(row, tmp_path) == [True]
    assert seen == [(False, False)]


def test_masks_may_differ_on_borders_of_pixels_alone() -> None:
    mask = torch.arange(10).repeat(4, 1)  # of 4 x 4 pixels: columns 2 and 7 lie on borders
    image = torch.zeros(3, 4, 10)

    def passed(other: torch.Tensor, shown: torch.Tensor = image) -> list[bool]:
        found = masks_apart([(image, mask, (4, 4))], [(shown[None], other[None])])
        return [one.passed for one in found]

    on_border, beside = mask.clone(), mask.clone()
    on_border[:, 2] -= 1
    beside[:, 3] -= 1
    assert passed(mask) == passed(on_border) == [True] * 4
    assert passed(beside) == [True, True, True, False]
    assert passed(mask, image + 3) == [True, False, False, True]
    assert passed(mask[:, :9]) == [False, True, True, True]


def test_samples_of_an_evaluation_are_within_the_bounds_of_pixels_and_boxes() -> None:
    def sample(shift: float = 0.0, brighter: float = 0.0, label: int = 1) -> Sample:
        boxes = np.array([[1.0 + shift, 1, 5, 5]])
        return Sample(torch.full((3, 8, 8), 9.0 + brighter), boxes, np.array([label]))

    def passed(other: Sample) -> list[bool]:
        given = objects.nothing, lambda _: (8, 8), 0
        found = objects.compared(lambda _: sample(), [other], *given, exact=True)
        return [one.passed for one in found]

    assert passed(sample()) == [True] * 4
    assert passed(sample(shift=0.01)) == [True, False, True, True]
    assert passed(sample(brighter=2.5)) == [True, True, False, False]
    assert passed(sample(label=2)) == [False, True, True, True]


def test_p_values_of_equal_distributions_are_spread_evenly() -> None:
    random = np.random.default_rng(0)
    found = [p_of(*random.normal(size=(2, 500))) for _ in range(200)]
    assert 0.4 < np.mean(found) < 0.6
    assert 0.02 < np.mean(np.array(found) < 0.1) < 0.2


def test_mirrored_and_blurred_images_have_other_numbers() -> None:
    images = torch.rand((4, 3, 8, 8)) * torch.linspace(0, 1, 8)
    plain, mirrored = numbers_of([images]), numbers_of([images.flip(3)])
    key = "left less right, view 0"
    np.testing.assert_allclose(plain[key], -mirrored[key], rtol=1e-5)
    blurred = numbers_of([v2.functional.gaussian_blur(images, [3, 3], [1.0, 1.0])])
    key = "step between columns, view 0"
    assert (blurred[key] < plain[key]).all()


def test_tiles_hold_all_views() -> None:
    views = [torch.zeros(2, 3, 8, 8), torch.ones(2, 3, 8, 8), *[torch.ones(2, 3, 4, 4)] * 8]
    first, second = tiles_of(views, (0.0,) * 3, (1.0,) * 3)
    assert first.shape == second.shape == (16, 16, 3)
    assert not first[:8, :8].any()
    assert (first[:8, 8:] == 255).all()
    assert (first[8:] == 255).all()


def test_a_picture_has_both_sides(tmp_path: Path) -> None:
    dark, bright = Noise(1, mean=-3.0), Noise(1, mean=3.0)
    row = replace(pipeline(bright), original=side(dark))
    draw(row, tmp_path, tmp_path, tmp_path, tmp_path / "noise.jpg")
    with Image.open(tmp_path / "noise.jpg") as image:
        pixels = np.asarray(image)
    half = pixels.shape[0] // 2
    assert pixels[: half - 20].mean() < 100 < 200 < pixels[half + 20 :].mean()
    assert (tmp_path / "noise.jpg").stat().st_size <= 120_000


def test_how_many_times_as_fast_is_taken_within_a_round() -> None:
    def row(contestant: str, *seconds: float) -> Measurement:
        return Measurement(contestant, "noise", rounds=tuple(Round(10, s) for s in seconds))

    rows = [row(ORIGINAL, 4.0, 8.0, 6.0), row(OURS, 1.0, 2.0, 1.0)]
    (found,) = verdicts([pipeline(None)], rows)
    assert (found.value, found.bound, found.reached) == (4.0, 4.0, True)
    assert table([found])[0]["times as fast"] == "4.00"
    (missing,) = verdicts([pipeline(None)], rows[:1])
    assert missing.reached is None


def test_every_pipeline_has_a_page_with_a_picture() -> None:
    names = [row.name for row in PIPELINES]
    assert len(names) == len({*names})
    for page in {row.page for row in PIPELINES if row.drawn}:
        text = (ROOT / "docs" / "pipelines" / f"{page}.md").read_text()
        assert f"]({page}.jpg)" in text
        assert (ROOT / "docs" / "pipelines" / f"{page}.jpg").stat().st_size <= 120_000


def test_small_crops_are_a_quarter_of_the_sizes_that_a_function_has_set(tmp_path: Path) -> None:
    local = v2.Compose([v2.RandomResizedCrop(96), v2.RandomErasing()])
    made = v2.Compose(
        [
            v2.RandomApply([v2.Resize(64, max_size=132)]),
            v2.Resize(32),
            v2.SanitizeBoundingBoxes(min_size=8),
            *[local] * 2,
        ]
    )
    setting = Setting(tmp_path, tmp_path, 1, 0, small=True)
    apply, resize, boxes, first, second = setting.sized(made, "size", "max_size").transforms
    within = apply.transforms[0]
    assert (within.size, within.max_size) == ([16], 33)
    assert (resize.size, resize.max_size) == ([8], None)
    assert boxes.min_size == 8, "no size of an image"
    assert first is second
    assert first.transforms[0].size == (24, 24), "a shared part once"
    assert local.transforms[0].size == (96, 96), "of a copy"
    assert replace(setting, small=False).sized(made, "size") is made


def test_several_pipelines_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--pictures", "x", "--only", "dino", "none"])
    assert "--only none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--judge, --speed, --processor, --pictures"),
        (["--judge"], "--data"),
        (["--pictures", "x", "--only", "none"], "there are torchvision_classification"),
    ],
)
def test_what_is_missing_is_said(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), *arguments])
    assert words in capsys.readouterr().err


def test_samples_with_the_same_numbers_are_compared_at_their_true_size(tmp_path: Path) -> None:
    settings = list[Setting]()

    def same(setting: Setting) -> list[Judgement]:
        settings.append(setting)
        return []

    assert judged(pipeline(Noise(2), same=same), tmp_path) == [True]
    (setting,) = settings
    assert setting == replace(setting, small=False, shuffle=False)


def test_a_clone_that_is_not_there_is_named(tmp_path: Path) -> None:
    row = next(row for row in PIPELINES if row.name == "torchvision_classification")
    with pytest.raises(SystemExit, match=r"presets\.py is not there: clone"):
        row.original.loader(Setting(tmp_path, tmp_path, 1, 0))


def test_packages_of_two_repositories_have_the_same_name(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        package = tmp_path / name / "of_two_repositories"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "one.py").write_text(f"NUMBER = {number}")
    sys.modules["of_two_repositories"] = before = ModuleType("of_two_repositories")
    try:
        for number, name in enumerate(("first", "second")):
            with packages_of(tmp_path / name, "of_two_repositories"):
                assert number == import_module("of_two_repositories.one").NUMBER
            assert "of_two_repositories.one" not in sys.modules
        assert sys.modules["of_two_repositories"] is before
        assert str(tmp_path / "second") not in sys.path
    finally:
        del sys.modules["of_two_repositories"]


def test_last_digits_of_edges_are_no_difference() -> None:
    image, labels = torch.zeros(3, 8, 8), np.array([1])
    edges = [np.array([[1.0, 2.0, right, 7.0]]) for right in (8.0, 8.00001, 7.99999)]
    made = objects.numbers(lambda batch: batch)([Sample(image, box, labels) for box in edges])
    assert made["right of boxes"].tolist() == [8.0] * 3
