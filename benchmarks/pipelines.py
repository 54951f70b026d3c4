"""Augmentation pipelines beside their originals: `python -m benchmarks.pipelines ORIGINALS --data
FOLDER`.

ORIGINALS has a clone of each repository, called as there: `vision` (github.com/pytorch/vision) and
`dinov2` (github.com/facebookresearch/dinov2). Their own files are run. First it is judged: whether
the original's transforms have the operations of ours, and whether the pixels of 2,000 samples are
distributed alike (two-sample Kolmogorov-Smirnov tests of the mean and deviation of each channel).
Then images a second: the original in a DataLoader, that DataLoader by `from_dataloader`, and
`create_loader` with the pipeline, whole epochs in turn, with equal numbers of processes or threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import fastload
from benchmarks.inputs import photographs
from fastload import pipelines
from fastload.recipe import Recipe

_SAMPLES = 2000
_LEAST_P = 1e-4
"""Of one test; of 78, as all pipelines have, one is below by chance once in 128 runs."""


@dataclass(frozen=True)
class Pipeline:
    name: str
    original: Callable[[Path], Any]
    """The transform that its repository trains with."""
    parts: Callable[[Any], Any]
    """The original's own transforms, put together as its code calls them."""
    views: Callable[[Any], list[torch.Tensor]]
    """The views of a sample that it has made."""
    ours: Callable[[], Any]
    batch: int


def module(file: Path, name: str) -> ModuleType:
    """A file of a repository, run as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, file
    assert spec.loader is not None, file
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def classification(originals: Path, **settings: Any) -> Any:
    presets = module(originals / "vision/references/classification/presets.py", "presets")
    return presets.ClassificationPresetTrain(**settings)


def dinov2(originals: Path) -> Any:
    package = ModuleType("dinov2_data")
    package.__path__ = [str(originals / "dinov2/dinov2/data")]  # without its __init__: xFormers
    sys.modules["dinov2_data"] = package
    module(originals / "dinov2/dinov2/data/transforms.py", "dinov2_data.transforms")
    made = module(originals / "dinov2/dinov2/data/augmentations.py", "dinov2_data.augmentations")
    # Of its ssl_default_config.yaml.
    return made.DataAugmentationDINO((0.32, 1.0), (0.05, 0.32), 8)


def crops_of_dinov2(made: Any) -> fastload.Views:
    large, small = made.geometric_augmentation_global, made.geometric_augmentation_local
    first, second, local = made.global_transfo1, made.global_transfo2, made.local_transfo
    chains = [(large, first), (large, second), *[(small, local)] * made.local_crops_number]
    return fastload.Views(*(v1.Compose(list(chain)) for chain in chains))


NEW = {"crop_size": 176, "auto_augment_policy": "ta_wide", "random_erase_prob": 0.1}
PIPELINES = (
    Pipeline(
        "torchvision_classification",
        lambda folder: classification(folder, crop_size=224),
        lambda made: made.transforms,
        lambda sample: [sample],
        pipelines.torchvision_classification,
        128,
    ),
    Pipeline(
        "torchvision_classification, newer recipe",
        lambda folder: classification(folder, **NEW),
        lambda made: made.transforms,
        lambda sample: [sample],
        lambda: pipelines.torchvision_classification(**NEW),  # type: ignore[arg-type]
        128,
    ),
    Pipeline(
        "torchvision_classification, AutoAugment",
        lambda folder: classification(folder, crop_size=224, auto_augment_policy="imagenet"),
        lambda made: made.transforms,
        lambda sample: [sample],
        lambda: pipelines.torchvision_classification(auto_augment_policy="imagenet"),
        128,
    ),
    Pipeline(
        "dinov2",
        dinov2,
        crops_of_dinov2,
        lambda sample: [*sample["global_crops"], *sample["local_crops"]],
        pipelines.dinov2,
        32,
    ),
)


def judge(pipeline: Pipeline, original: Any, folder: Path) -> None:
    """Raise SystemExit unless ours does what the original does."""
    theirs = Recipe.from_transform(pipeline.parts(original)).ops
    ours = Recipe.from_transform(pipeline.ours()).ops
    if theirs != ours:
        raise SystemExit(f"{pipeline.name}: the original has {theirs}, ours {ours}")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = ImageFolder(str(folder), original)
    rows = np.random.default_rng(0).integers(0, len(data), _SAMPLES)
    wanted = [
        np.stack([moments(view[None])[0] for view in pipeline.views(data[row][0])]) for row in rows
    ]
    loader = fastload.create_loader(
        folder, transform=pipeline.ours(), batch_size=50, sampler=rows.tolist(), seed=1
    )
    found: list[npt.NDArray[np.float64]] = []
    with loader:
        for images, _ in loader:
            views = images if isinstance(images, list | tuple) else [images]
            found += [*np.stack([moments(view) for view in views], axis=1)]
    first, second = np.stack(wanted), np.stack(found)
    numbers = zip(first.reshape(_SAMPLES, -1).T, second.reshape(_SAMPLES, -1).T, strict=True)
    least = min(p_of(*pair) for pair in numbers)
    print(f"{pipeline.name}: equal operations; least p of {first[0].size} tests {least:.4f}")
    if least < _LEAST_P:
        raise SystemExit(f"{pipeline.name}: pixels are distributed otherwise")


def moments(images: torch.Tensor) -> npt.NDArray[np.float64]:
    """(B, 6): mean and standard deviation of each channel of (B, 3, H, W) images."""
    pixels = images.flatten(2)
    return torch.cat([pixels.mean(2), pixels.std(2)], dim=1).double().numpy()


def p_of(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Of a two-sample Kolmogorov-Smirnov test, by the asymptotic distribution."""
    places = np.sort(np.concatenate([first, second]))
    below = [np.searchsorted(np.sort(x), places, side="right") / len(x) for x in (first, second)]
    distance = np.abs(below[0] - below[1]).max()
    scaled = distance * np.sqrt(len(first) * len(second) / (len(first) + len(second)))
    terms = [(-1) ** (k - 1) * np.exp(-2 * (k * scaled) ** 2) for k in range(1, 101)]
    return float(np.clip(2 * np.sum(terms), 0, 1)) if scaled > 0.2 else 1.0


def contestants(
    pipeline: Pipeline, original: Any, folder: Path, workers: int
) -> dict[str, Callable[[], Any]]:
    def plain() -> DataLoader[Any]:
        return DataLoader(
            ImageFolder(str(folder), original),
            batch_size=pipeline.batch,
            shuffle=True,
            num_workers=workers,
            drop_last=True,
            persistent_workers=True,
        )

    return {
        "original, DataLoader": plain,
        "original, from_dataloader": lambda: fastload.from_dataloader(plain()),
        "create_loader, pipeline": lambda: fastload.create_loader(
            folder,
            transform=pipeline.ours(),
            batch_size=pipeline.batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
        ),
    }


def rates(loaders: dict[str, Any], batch: int, rounds: int) -> Iterator[tuple[str, float]]:
    """Images a second of whole epochs, in turn; the first of each is not counted."""
    for number in range(rounds + 1):
        for name, loader in loaders.items():
            started, batches = time.perf_counter(), 0
            for _ in loader:
                batches += 1
            if number:
                yield name, batch * batches / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("originals", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="a folder of class folders")
    parser.add_argument("--work", type=Path, default=Path("build/pipelines"))
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--judge", action="store_true", help="do not measure")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    data = photographs(given.data, given.work, given.images)
    print(data)
    results: dict[str, dict[str, list[float]]] = {}
    for pipeline in PIPELINES:
        if given.only not in pipeline.name:
            continue
        original = pipeline.original(given.originals)
        judge(pipeline, original, data.few)
        if given.judge:
            continue
        makers = contestants(pipeline, original, data.folder, given.workers)
        loaders = {name: make() for name, make in makers.items()}
        row: dict[str, list[float]] = {name: [] for name in loaders}
        for name, rate in rates(loaders, pipeline.batch, given.rounds):
            row[name].append(rate)
            print(f"  {name}: {rate:.0f} img/s", flush=True)
        del loaders
        base = statistics.median(row["original, DataLoader"])
        for name, found in row.items():
            middle = statistics.median(found)
            print(
                f"{pipeline.name}: {name}: {middle:.0f} img/s ({min(found):.0f} .. "
                f"{max(found):.0f}), {middle / base:.2f} times"
            )
        results[pipeline.name] = row
        if given.json is not None:
            given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
