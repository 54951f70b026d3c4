"""Whether a pipeline does what its original does."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.pipelines.pipeline import Judgement, Numbers, Pipeline, Setting, Side, pixels_near
from fastload.recipe import Recipe

LEAST = 1e-3
"""What the least p-value of a pipeline, times the number of its tests, may be: 1 pipeline in 1,000
falls below by chance (Bonferroni)."""
_FEW, _SIDE, _EPOCH = 64, 160, 1024


def judge(
    pipeline: Pipeline, originals: Path, photographs: Path, work: Path, workers: int, samples: int
) -> list[Judgement]:
    """What was found. A few photographs and small crops are used: what is drawn for a sample, and
    how it is done, depend on neither. Where nothing is random, it is all photographs, as they
    are."""
    torch.manual_seed(0)
    judged = []
    if pipeline.operations is not None:
        theirs, ours = (Recipe.from_transform(t).ops for t in pipeline.operations(originals))
        if theirs != ours:
            raise SystemExit(f"{pipeline.name}: the original has {theirs}, ours {ours}")
        judged.append(Judgement(f"{len(ours)} operations equal", 1.0, 1.0, True))
    if pipeline.exact:
        data = pipeline.data(photographs, work, 1)
        setting = Setting(originals, data, pipeline.batch_size, workers, shuffle=False)
        apart = pipeline.same or partial(pixels_apart, pipeline)
        return [*judged, *apart(setting)]
    data = pipeline.data(few_and_small(photographs, work), work, _EPOCH)
    setting = Setting(originals, data, pipeline.batch_size, workers, small=True)
    if pipeline.same is not None:
        judged += pipeline.same(replace(setting, shuffle=False, small=False))
    wanted, found = (
        gathered(side, setting, samples) for side in (pipeline.original, pipeline.ours)
    )
    if wanted.keys() != found.keys():
        raise SystemExit(f"{pipeline.name}: {set(wanted) ^ set(found)} is of one side only")
    p_values = {name: p_of(wanted[name], found[name]) for name in wanted}
    name = min(p_values, key=lambda name: p_values[name])
    least = min(1.0, p_values[name] * len(p_values))
    count, size = len(p_values), len(wanted[name])
    what = f"least p of {count} tests of {size:,} samples, times {count} ({name})"
    return [*judged, Judgement(what, least, LEAST, True)]


def gathered(side: Side, setting: Setting, samples: int) -> Numbers:
    """Of so many samples, over as many epochs as they take."""
    found: defaultdict[str, list[npt.NDArray[np.float64]]] = defaultdict(list)
    loader = side.loader(setting)
    for batch in islice(_endless(loader), math.ceil(samples / setting.batch_size)):
        for name, numbers in side.numbers(batch).items():
            # Copies: the numbers themselves lie between large arrays that are freed, and memory in
            # pieces is not used again. 20,000 samples of 320 pixels took 22 GB so.
            found[name].append(numbers.copy())
    return {name: np.concatenate(numbers) for name, numbers in found.items()}


def _endless(loader: Iterable[Any]) -> Iterable[Any]:
    while True:
        yield from loader


def pixels_apart(pipeline: Pipeline, setting: Setting) -> list[Judgement]:
    """Of one epoch in order."""
    most, total, count = 0, 0.0, 0
    sides = (pipeline.original, pipeline.ours)
    for batches in zip(*(side.loader(setting) for side in sides), strict=True):
        tiles = (side.tiles(batch) for side, batch in zip(sides, batches, strict=True))
        for theirs, ours in zip(*tiles, strict=True):
            apart = np.abs(theirs.astype(int) - ours)
            most, total, count = max(most, int(apart.max())), total + float(apart.mean()), count + 1
    return pixels_near(most, total / count, f"over {count} images")


def p_of(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Of a two-sample Kolmogorov-Smirnov test, by the asymptotic distribution. Where values repeat,
    as counts do, the true p-value is larger."""
    places = np.sort(np.concatenate([first, second]))
    below = [np.searchsorted(np.sort(x), places, side="right") / len(x) for x in (first, second)]
    distance = np.abs(below[0] - below[1]).max()
    scaled = distance * np.sqrt(len(first) * len(second) / (len(first) + len(second)))
    terms = [(-1) ** (k - 1) * np.exp(-2 * (k * scaled) ** 2) for k in range(1, 101)]
    return float(np.clip(2 * np.sum(terms), 0, 1)) if scaled > 0.2 else 1.0


def few_and_small(source: Path, work: Path) -> Path:
    """Some photographs of the class folders of `source`, the shorter side 160 pixels."""
    parts = [source / part for part in ("train", "val") if (source / part).is_dir()] or [source]
    files = sorted(file for part in parts for file in part.glob("*/*.jp*g"))
    folder = work / "few-and-small"
    if not folder.exists():
        for file in files[:: max(1, len(files) // _FEW)][:_FEW]:
            target = folder / file.parent.name / f"{file.stem}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(file) as image:
                share = _SIDE / min(image.size)
                size = round(image.width * share), round(image.height * share)
                image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(target, quality=92)
    return folder
