"""Training detectors: what is learnt from, what is counted, how it goes on after a stop; average
precision beside pycocotools."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from PIL import Image
from torch import nn

import fastload
from fastload.draws import Draws
from fastload.errors import BackendUnavailableError, ConfigurationError, SourceError
from fastload.train.average_precision import Objects, average_precision
from fastload.train.data import _largest_label, open_data
from fastload.train.settings import merged
from fastload.train.tasks import Detection
from fastload.train.tasks.base import Inputs
from fastload.train.trainer import validate
from tests import warm
from tests.images import write_photo_folder
from tests.test_sources_detection import coco_document, write_coco, write_voc
from tests.train_job import Job, run, said, settings

pytest.importorskip("pycocotools")

CPU = torch.device("cpu")
SIDES = (8, 20, 60, 180)


def write_objects(
    folder: Path, split: str, count: int, *, seed: int = 0, crowds: bool = False
) -> dict[str, Any]:
    """Images of two sizes with squares of two colours; the fourth has none. Returns the
    annotations."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 3, "name": "red"}, {"id": 9, "name": "green"}],
    }
    (folder / split).mkdir(parents=True)
    (folder / "annotations").mkdir(exist_ok=True)
    for number in range(count):
        height, width = ((48, 56), (56, 40))[number % 2]
        pixels = rng.integers(0, 60, (height, width, 3)).astype(np.uint8)
        found["images"].append(
            {"id": number + 1, "file_name": f"{number}.png", "height": height, "width": width}
        )
        for label in range(0 if number == 3 else 2):
            side = int(rng.integers(12, 24))
            x, y = (int(rng.integers(0, length - side)) for length in (width, height))
            pixels[y : y + side, x : x + side] = ([250, 30, 30], [30, 250, 30])[label]
            found["annotations"].append(
                {
                    "id": len(found["annotations"]) + 1,
                    "image_id": number + 1,
                    "category_id": (3, 9)[label],
                    "bbox": [x, y, side, side],
                    "area": 2000 if number == 1 else side * side * 0.8,
                    "iscrowd": int(crowds and number == 0 and label == 1),
                }
            )
        Image.fromarray(pixels).save(folder / split / f"{number}.png")
    (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(found))
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven images to train on, one of them without objects, and five to validate on."""
    folder = tmp_path_factory.mktemp("coco")
    write_objects(folder, "train2017", 7)
    write_objects(folder, "val2017", 5, seed=1, crowds=True)
    return folder


def draws(count: int) -> Draws:
    return Draws(0, 0, np.arange(count, dtype=np.int64))


def job(data: Path, out: Path, **given: Any) -> Job:
    common = {"task": "detection", "augment": "flip", "batch_size": 2, "lr": 0.01, "epochs": 2}
    return Job(settings(str(data), out, **{**common, **given}), detects=2)


# -- Average precision -----------------------------------------------------------------------------


def some_objects(
    rng: np.random.Generator, images: int, *, perfect: bool
) -> tuple[Objects, Objects]:
    """True objects of all sizes in images, and some that were found: the same, or moved, of another
    class, missing, too many."""
    count = 12 * images
    places = rng.uniform(0, 300, (count, 2))
    sides = rng.choice(SIDES, (count, 2)) * rng.uniform(0.8, 1.2, (count, 2))
    boxes = np.concatenate([places, places + sides], axis=1)
    labels, which = rng.integers(1, 5, count), np.repeat(np.arange(images) * 3, 12)
    crowds = np.zeros(count, np.bool_) if perfect else rng.random(count) < 0.1
    true = Objects(which, boxes, labels, sides.prod(1) * (1 if perfect else 0.7), crowds)
    if perfect:
        return true, true._replace(scores=rng.random(count))
    moved = boxes + rng.normal(0, 4, boxes.shape)
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    others = np.where(rng.random(count) < 0.2, rng.integers(1, 7, count), labels)
    kept = rng.random(count) < 0.8
    found = Objects(
        which[kept], moved[kept], others[kept], rng.random(kept.sum()), np.zeros(kept.sum(), bool)
    )
    return true, found


def by_pycocotools(true: Objects, found: Objects, images: Any, folder: Path) -> list[float]:
    """As its manual has it: a JSON file of annotations, and rows of detections."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def bbox(box: Any) -> list[float]:
        return [*box[:2], box[2] - box[0], box[3] - box[1]]

    document = {
        "images": [{"id": int(number)} for number in images],
        "categories": [{"id": label} for label in range(1, 7)],
        "annotations": [
            {
                "id": 500 - row,
                "image_id": int(true.images[row]),
                "category_id": int(true.labels[row]),
                "bbox": bbox(true.boxes[row].tolist()),
                "area": float(true.scores[row]),
                "iscrowd": int(true.crowds[row]),
            }
            for row in range(len(true.images))
        ],
    }
    (folder / "true.json").write_text(json.dumps(document))
    rows = [
        [n, *bbox(box), score, label]
        for n, box, score, label in zip(
            found.images, found.boxes.tolist(), found.scores, found.labels, strict=True
        )
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        api = COCO(str(folder / "true.json"))
        judged = COCOeval(api, api.loadRes(np.array(rows)), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    return [float(value) for value in judged.stats[:6]]


@pytest.mark.parametrize("seed", [0, 1])
def test_average_precision_is_that_of_pycocotools(seed: int, tmp_path: Path) -> None:
    true, found = some_objects(np.random.default_rng(seed), 8, perfect=False)
    images = np.arange(9) * 3  # the last has no objects
    got = average_precision(true, found, images)
    assert list(got.values()) == pytest.approx(by_pycocotools(true, found, images, tmp_path))
    assert 0.05 < got["map"] < 0.9
    assert {"map", "map50", "map75", "map_small", "map_medium", "map_large"} == set(got)


def test_what_is_found_exactly_is_perfect_and_what_is_elsewhere_is_nothing() -> None:
    rng = np.random.default_rng(2)
    true, found = some_objects(rng, 5, perfect=True)
    images = np.arange(5) * 3
    for value in average_precision(true, found, images).values():
        assert value == pytest.approx(1.0)
    moved = found._replace(boxes=found.boxes + 1000)
    assert set(average_precision(true, moved, images).values()) == {0.0}
    nothing = Objects(*(column[:0] for column in found))
    assert average_precision(true, nothing, images)["map"] == 0.0
    small = true.scores < 32**2
    some = Objects(*(column[small] for column in true))
    assert "map_large" not in average_precision(some, found, images)


def test_crowds_need_not_be_found_and_are_no_error() -> None:
    true, found = some_objects(np.random.default_rng(3), 4, perfect=True)
    images = np.arange(4) * 3
    spared = true._replace(crowds=np.arange(len(true.images)) % 5 == 0)
    lost = Objects(*(column[~spared.crowds] for column in found))
    for seen in (found, lost):
        assert average_precision(spared, seen, images)["map"] == pytest.approx(1.0)
    assert average_precision(true, lost, images)["map"] < 0.95


# -- Validation ------------------------------------------------------------------------------------


class Guesses(nn.Module):
    """What it finds is a function of the image: a box of the pixels that are bright, not quite."""

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        assert images, "empty batches are no business of the network's"
        found = []
        for image in images:
            boxes = []
            for channel in (0, 1):
                rows, columns = torch.nonzero(image[channel] > 0.7, as_tuple=True)
                if len(rows):
                    corners = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                    boxes.append(torch.stack(corners).float() + int(image.sum()) % 4)
            found.append(
                {
                    "boxes": torch.stack(boxes) if boxes else torch.zeros(0, 4),
                    "labels": torch.arange(1, len(boxes) + 1),
                    "scores": torch.linspace(0.5, 0.9, len(boxes)) + image.mean() / 10,
                }
            )
        return found


def validated(folder: Path, shard: fastload.Shard) -> dict[str, float]:
    given = {"task": "detection", "augment": "none", "mean": "0", "std": "1", "batch_size": 2}
    config = merged({}, given={**given, "data": str(folder), "num_workers": 1})
    opened = open_data(config, shard=shard, device=CPU)
    opened.train.close()
    assert opened.val is not None
    with opened.val as loader:
        return validate(Guesses(), loader, Detection(evaluates=True), precision=nullcontext())


def validate_as(rank: int, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=4)
    try:
        result = validated(Path(folder), fastload.Shard(rank, 4))
        (Path(out) / f"{rank}.json").write_text(json.dumps(result))
    finally:
        dist.destroy_process_group()


@pytest.mark.whole
def test_ranks_find_together_what_one_finds(data: Path, tmp_path: Path) -> None:
    """Five images on four ranks: two batches have one, or none."""
    alone = validated(data, fastload.Shard())
    torch.multiprocessing.start_processes(
        validate_as, (str(data), str(tmp_path)), nprocs=4, start_method=warm.START_METHOD
    )
    for rank in range(4):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == alone
    assert 0.05 < alone["map"] < 0.95


def test_validation_is_on_the_annotations_as_they_are(data: Path) -> None:
    """Beside pycocotools on the file itself: ids, areas and crowds are those of the annotations."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    path = data / "annotations" / "instances_val2017.json"
    rows = []
    for image in json.loads(path.read_text())["images"]:
        pixels = np.asarray(Image.open(data / "val2017" / image["file_name"]))
        tensor = torch.tensor(pixels).permute(2, 0, 1) / 255
        (found,) = Guesses()([tensor])
        for box, label, score in zip(*found.values(), strict=True):
            left, top, right, bottom = box.tolist()
            wanted = [left, top, right - left, bottom - top, float(score), (3, 9)[int(label) - 1]]
            rows.append([image["id"], *wanted])
    with contextlib.redirect_stdout(io.StringIO()):
        api = COCO(str(path))
        judged = COCOeval(api, api.loadRes(np.array(rows)), "bbox")
        judged.evaluate()
        judged.accumulate()
        judged.summarize()
    got = validated(data, fastload.Shard())
    names = ("map", "map50", "map75", "map_small", "map_medium")
    assert [got[name] for name in names] == pytest.approx(judged.stats[:5])


def test_a_validation_without_objects_is_refused() -> None:
    evaluation = Detection(evaluates=True).evaluation(CPU)
    with pytest.raises(SourceError, match="it has no samples"):
        evaluation.result()
    boxes, labels = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    one = {"boxes": boxes, "labels": labels}
    task = Detection(evaluates=False)
    inputs = task.prepare(([torch.zeros(3, 4, 4)], [one]), draws(1))
    evaluation.add([{**one, "scores": torch.zeros(0)}], inputs.target)
    with pytest.raises(SourceError, match="no objects in it to be found"):
        evaluation.result()


def test_pycocotools_is_asked_for_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.cocoeval", None)
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(BackendUnavailableError, match=r"pycocotools is not installed.*detection"):
        Detection(evaluates=True)
    Detection(evaluates=False)


# -- Training --------------------------------------------------------------------------------------


class Learns(nn.Module):
    """Keeps what it is given, as torchvision's detectors take it while training."""

    def forward(self, images: Any, targets: Any) -> dict[str, torch.Tensor]:
        self.given = images, targets
        return {"a": torch.tensor(0.5, requires_grad=True), "b": torch.tensor(0.25)}


def test_losses_are_summed_and_crowds_are_not_learnt() -> None:
    task = Detection(evaluates=False)
    boxes = torch.tensor([[1.0, 2, 30, 40], [3, 4, 20, 21]])
    objects = {"boxes": boxes, "labels": torch.tensor([2, 1]), "iscrowd": torch.tensor([0, 1])}
    other = {"boxes": boxes, "labels": torch.tensor([1, 1])}
    images = [torch.zeros(3, 48, 48), torch.zeros(3, 48, 50)]
    inputs: Inputs = task.prepare((images, [objects, other]), draws(2))
    network = Learns().train()
    output = task.output(network, inputs)
    losses = task.losses(output, inputs.target)
    assert losses.tolist() == [0.75, 0.75]
    assert losses.requires_grad
    given = network.given[1]
    assert given[0]["boxes"].tolist() == [[1, 2, 30, 40]]
    assert given[0]["labels"].tolist() == [2]
    assert len(given[1]["boxes"]) == 2
    with torch.no_grad():
        counts = task.metrics(output, inputs.target, losses)
    sums = {name: value.item() for name, value in counts.items()}
    assert task.result(sums) == {"loss": 0.75}


@pytest.mark.whole
def test_a_stopped_run_goes_on_to_the_same_bits(data: Path, tmp_path: Path) -> None:
    """Torchvision draws anchors and proposals from torch's generator, which is kept."""
    whole = run(job(data, tmp_path / "whole"), tmp_path / "a")
    assert "12 objects of 2 classes in 6 images" in said(tmp_path / "a")
    assert "left out of training: 1 image without objects" in said(tmp_path / "a")
    run(job(data, tmp_path / "out", max_steps=4), tmp_path / "b")
    resumed = run(job(data, tmp_path / "out"), tmp_path / "c")
    assert "resumed at epoch 1, batch 1, step 4" in said(tmp_path / "c")
    for mine, theirs in zip(resumed["epochs"], whole["epochs"], strict=True):
        for part in ("train", "val"):
            assert mine[part] == theirs[part]
    found, wanted = (
        torch.load(tmp_path / name / "last.pt", weights_only=True)["model"]
        for name in ("out", "whole")
    )
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.whole
def test_two_processes_train_one_detector(data: Path, tmp_path: Path) -> None:
    summary = run(job(data, tmp_path / "out", batch_size=1), tmp_path, ranks=2)
    assert summary["world_size"] == 2
    (first, _) = summary["epochs"]
    assert first["samples"] == 6
    assert set(first["train"]) == {"loss"}
    assert {"map", "map50", "map75"} <= set(first["val"])


# -- Its data --------------------------------------------------------------------------------------


def opened(data: Path | str, **given: Any) -> Any:
    common = {"task": "detection", "augment": "flip", "num_workers": 1, "batch_size": 5}
    config = merged({}, given={**common, "data": str(data), **given})
    found = open_data(config, shard=fastload.Shard(), device=CPU)
    for loader in (found.train, found.val):
        if loader is not None:
            loader.close()
    return found


def test_images_with_nothing_to_learn_from_are_left_out(tmp_path: Path) -> None:
    """Without objects, with a crowd alone, or with a box of a pixel."""
    document = coco_document()
    document["annotations"][-1] |= {"iscrowd": 1}  # of the third image
    document["annotations"][-2]["bbox"][2:] = [1, 20]  # of the fifth
    write_coco(tmp_path, document)
    found = opened(tmp_path)
    ids: Any = found.source.values["image_id"]
    assert ids.at(np.arange(len(ids))).tolist() == [50, 47]
    assert found.notes == ("left out of training: 3 images without objects",)
    assert found.shape.num_classes == 3


def test_keypoints_are_left_out(tmp_path: Path) -> None:
    """Which are left and right need not be known to mirror images that are learnt from."""
    document = coco_document()
    for one in document["annotations"]:
        one["keypoints"] = [1, 2, 2, 3, 4, 1]
    write_coco(tmp_path, document)
    assert "keypoints" in fastload.open_source(tmp_path, split="train2017").source.columns
    found = opened(tmp_path)
    assert {"image", "boxes", "labels"} <= set(found.source.columns)
    assert "keypoints" not in found.source.columns


def test_boxes_of_voc_are_meant_where_it_has_masks_too(tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "SegmentationClass").mkdir()
    for path in (tmp_path / "JPEGImages").iterdir():
        with Image.open(path) as image:
            mask = Image.new("L", image.size, 1)
        mask.save(tmp_path / "SegmentationClass" / f"{path.stem}.png")
    found = opened(tmp_path)
    assert found.source.format == "PASCAL VOC annotations"
    assert found.val is not None
    write_photo_folder(tmp_path / "photos", classes=2, per_class=2)
    with pytest.raises(SourceError, match="detection needs images with boxes"):
        opened(tmp_path / "photos")


def test_labels_without_names_begin_with_1(tmp_path: Path) -> None:
    boxes = fastload.Ragged.of([np.array([[1.0, 2, 30, 40]])])
    for label, names, wanted in ((1, None, 1), (0, ["a"], 1), (0, None, None)):
        arrays = {
            "image": np.zeros((1, 48, 48, 3), np.uint8),
            "boxes": boxes,
            "labels": fastload.Ragged.of([[label]]),
        }
        source = fastload.open_source(arrays, classes=names).source
        if wanted is None:
            with pytest.raises(SourceError, match="it has the label 0.*Add 1"):
                _largest_label(source, "detection")
        else:
            assert _largest_label(source, "detection") == wanted


def test_settings_of_other_tasks_are_refused(data: Path) -> None:
    with pytest.raises(ConfigurationError, match="rrc-flip is not for detection; take one of none"):
        opened(data, augment="rrc-flip")
    with pytest.raises(ConfigurationError, match="mixup, cutmix"):
        opened(data, mixup=0.2)
    with pytest.raises(ConfigurationError, match="DataParallel cuts tensors in parts"):
        merged({}, given={"task": "detection", "parallel": "dp"})


def test_multiscale_makes_the_sizes_of_torchvisions_reference(data: Path) -> None:
    config = {"task": "detection", "augment": "multiscale", "image_size": "50,60"}
    found = merged({}, given={**config, "data": str(data), "num_workers": 1, "batch_size": 2})
    made = open_data(found, shard=fastload.Shard(), device=CPU)
    assert made.shape.resized
    sides = set()
    with made.train as loader:
        for epoch in range(4):
            loader.set_epoch(epoch)
            for images, targets in loader:
                for image, objects in zip(images, targets, strict=True):
                    sides.add(min(image.shape[1:]))
                    assert max(image.shape[1:]) <= 60
                    assert (objects["boxes"][:, 2] <= image.shape[2]).all()
    assert sides <= {50 * part // 25 for part in range(15, 26)} | {47, 46, 45, 44, 43, 42}
    assert len(sides) > 4
    if made.val is not None:
        made.val.close()


# -- By a pipeline ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "option", "resized", "normalised"),
    [
        ("torchvision_detection", (), False, False),
        ("torchvision_detection", ("data_augmentation=ssd",), False, False),
        ("torchvision_detection", ("data_augmentation=multiscale",), True, False),
        ("torchvision_detection", ("data_augmentation=lsj",), True, False),
        ("detr", ("scales=[48,64]", "max_size=96"), True, True),
        ("rtdetrv2", ("size=64",), True, False),
        ("rfdetr", ("resolution=64", "patch_size=8", "num_windows=2"), True, True),
    ],
)
def test_who_resizes_and_normalises_images_of_a_pipeline(
    data: Path, name: str, option: tuple[str, ...], resized: bool, normalised: bool
) -> None:
    found = opened(data, pipeline=name, pipeline_option=option, image_size=(48, 64))
    assert (found.shape.resized, found.shape.normalised) == (resized, normalised)
    assert found.shape.image_size == (48, 64)
    note = found.notes[-1]
    assert f"training images by fastload.pipelines.{name}({', '.join(option)})" in note
    assert ("the network resizes those of validation" in note) == resized


def test_batches_of_a_pipeline_are_what_torchvisions_detectors_take(data: Path) -> None:
    """Images of training as the pipeline makes them, boxes in their pixels, labels from 1; of
    validation as they are stored, with the same normalisation."""
    given = {"pipeline": "detr", "pipeline_option": ("scales=[64]", "max_size=96")}
    config = {"task": "detection", "data": str(data), "batch_size": 6, "num_workers": 1, **given}
    found = open_data(merged({}, given=config), shard=fastload.Shard(), device=CPU)
    assert found.val is not None
    with found.train, found.val:
        images, objects = next(iter(found.train))
        shown, kept = next(iter(found.val))
    assert {min(image.shape[1:]) for image in images} == {64}
    for image, one in zip(images, objects, strict=True):
        height, width = image.shape[1:]
        assert one["boxes"].dtype == torch.float32
        assert (one["boxes"][:, 2:] > one["boxes"][:, :2]).all()
        assert (one["boxes"] <= torch.tensor([width, height] * 2) + 1e-3).all()
        assert one["boxes"].max() > 2, "pixels, not fractions"
        assert set(one["labels"].tolist()) <= {1, 2}
    assert [tuple(image.shape) for image in shown[:2]] == [(3, 48, 56), (3, 56, 40)]
    stored = torch.tensor(np.asarray(Image.open(data / "val2017" / "0.png"))).permute(2, 0, 1) / 255
    mean, std = (
        torch.tensor(n)[:, None, None] for n in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )
    assert torch.allclose(shown[0], (stored - mean) / std, atol=1e-5)
    wanted = json.loads((data / "annotations" / "instances_val2017.json").read_text())
    x, y, w, h = wanted["annotations"][0]["bbox"]
    assert kept[0]["boxes"][0].tolist() == [x, y, x + w, y + h]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pipeline": "yolo"}, "yolo does not make what torchvision's detectors take; .*rtdetrv2"),
        ({"pipeline": "mae"}, "mae does not make .*torchvision_detection, or leave it out"),
        ({"pipeline": "detr", "val_pipeline": "detr_eval"}, "val_pipeline: .*as they are stored"),
        (
            {"pipeline": "torchvision_detection", "pipeline_option": "data_augmentation=sdd"},
            "data_augmentation: must be one of 'hflip'",
        ),
        ({"pipeline": "detr", "pipeline_option": "size=8"}, "no argument 'size'"),
    ],
)
def test_pipelines_that_are_not_for_detectors_are_refused(
    data: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        opened(data, **given)


@pytest.mark.whole
def test_a_detector_learns_from_a_pipeline(data: Path, tmp_path: Path) -> None:
    """SSDlite; a stopped run goes on to the same bits."""
    given: dict[str, Any] = {
        "model": "torchvision:ssdlite320_mobilenet_v3_large",
        "pipeline": "torchvision_detection",
        "pipeline_option": "data_augmentation=ssdlite",
        "image_size": (320, 320),
        "batch_size": 2,
        "lr": 0.02,
        "epochs": 4,
        "task": "detection",
    }

    def ssdlite(out: str, **more: Any) -> Job:
        return Job(settings(str(data), tmp_path / out, **given, **more), own=False)

    whole = run(ssdlite("whole"), tmp_path / "a")
    assert "training images by fastload.pipelines.torchvision_detection(" in said(tmp_path / "a")
    losses = [epoch["train"]["loss"] for epoch in whole["epochs"]]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert all("map" in epoch["val"] for epoch in whole["epochs"])
    run(ssdlite("out", max_steps=4), tmp_path / "b")
    resumed = run(ssdlite("out"), tmp_path / "c")
    assert "resumed at epoch 1, batch 1, step 4" in said(tmp_path / "c")
    for mine, theirs in zip(resumed["epochs"], whole["epochs"], strict=True):
        assert mine["train"] == theirs["train"]
        assert mine["val"] == theirs["val"]
