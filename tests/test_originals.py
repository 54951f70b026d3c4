"""Which pipeline stands for a class of another repository: by its name, wherever an object of it
lies."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from fastload import modules, originals, pipelines
from fastload.loader import served
from fastload.originals import pipeline_for
from tests.images import write_photo_folder


def of(name: str) -> Any:
    """An object of a class of this module and name, which is a transform."""
    module, _, cls = name.rpartition(".")
    crop = v2.Compose([v2.RandomResizedCrop(8), v2.ToImage()])
    methods = {"__module__": module, "__call__": lambda self, image: crop(image)}
    return type(cls, (), methods)()


class OwnCode(Dataset[Any]):
    """A data set of the user's own code, with a transform at some depth."""

    def __init__(self, folder: Path | str, transform: Any) -> None:
        self.data, self.steps = ImageFolder(str(folder)), {"train": [transform]}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image, label = self.data[index]
        return self.steps["train"][0](image), label


def wrapped(folder: Path, transform: Any) -> Any:
    return Subset(Subset(OwnCode(folder, transform), [0, 1, 2]), [1, 2])


CROPS = "dinov2.data.augmentations.DataAugmentationDINO"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo_folder(tmp_path_factory.mktemp("photos"), classes=2, per_class=2)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        (CROPS, "fastload.pipelines.dinov2(...)"),
        (f"third_party.{CROPS}", "fastload.pipelines.dinov2(...)"),
        ("references.classification.presets.ClassificationPresetEval", "classification_eval("),
        ("presets.DetectionPresetTrain", "fastload.pipelines.torchvision_detection(...)"),
        ("main_dino.DataAugmentationDINO", "fastload.pipelines.dino(...)"),
        ("yolox.data.data_augment.TrainTransform", "fastload.pipelines.yolox(...)"),
        ("main_ibot.DataAugmentationiBOT", "fastload.pipelines.ibot(...)"),
        ("lightly.transforms.byol_transform.BYOLTransform", "fastload.pipelines.byol(...)"),
        ("lightly.transforms.swav_transform.SwaVTransform", "fastload.pipelines.swav(...)"),
        ("dataset.cifar.TransformFixMatch", "fastload.pipelines.fixmatch(...)"),
        ("my_dino.DataAugmentationDINO", None),
        ("dinov3.data.augmentations.DataAugmentationDINO", None),
        ("my_presets.ClassificationPresetTrain", None),
        ("DataAugmentationDINO.augmentations", None),
    ],
)
def test_by_module_and_name(name: str, named: str | None) -> None:
    said = pipeline_for(v2.Compose([v2.Resize(9), of(name)]))
    assert said is None if named is None else named in str(said)


def test_every_class_has_a_pipeline_and_every_name_a_module() -> None:
    assert originals._originals()
    for name, function in originals._originals().items():
        assert function in pipelines.__all__
        assert name.count(".") >= 1


@pytest.mark.parametrize("wrap", [ImageFolder, OwnCode, wrapped])
def test_explain_and_a_warning_name_it(
    folder: Path, wrap: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served._warn_of_python.cache_clear()
    existing = DataLoader(wrap(folder, of(CROPS)), batch_size=2)
    with caplog.at_level(logging.WARNING), fastload.from_dataloader(existing) as loader:
        assert "that fastload.pipelines.dinov2(...) follows" in loader.explain()
    assert "pipelines.dinov2(...)" in caplog.text


def test_nothing_is_named_where_no_python_runs(folder: Path) -> None:
    class Presets:
        def __init__(self) -> None:
            self.transforms = v2.Compose([v2.RandomResizedCrop(8), v2.ToImage()])

        def __call__(self, image: Any) -> Any:
            return self.transforms(image)

    Presets.__module__, Presets.__qualname__ = "presets", "ClassificationPresetTrain"
    with fastload.from_dataloader(DataLoader(ImageFolder(str(folder), Presets()))) as loader:
        assert "pipelines" not in loader.explain()


def test_objects_that_hold_each_other_and_long_lists_are_looked_through() -> None:
    one: Any = of("mine.One")
    one.other = [one, *range(1000), of(CROPS)]
    assert pipeline_for(one) is None
    one.other = [one, of(CROPS)]
    assert pipeline_for(one) is not None


def test_without_its_text_a_constant_is_that_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "fastload.pipelines.of_dinov2"
    read = modules.constant(module, "ORIGINALS")
    assert read == {CROPS: "dinov2"}
    assert modules.constant(module, "ORIGINAL") is None
    monkeypatch.setattr(modules, "text_of", lambda module: None)
    assert modules.constant(module, "ORIGINALS") == read
