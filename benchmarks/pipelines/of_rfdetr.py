"""RF-DETR: github.com/roboflow/rf-detr as `rf-detr`. It makes the sizes of batches in its training
step, which is left out on both sides, and judged by itself."""

from __future__ import annotations

import ast
import random
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.pipelines.fed import fed
from benchmarks.pipelines.objects import coco_of
from benchmarks.pipelines.of_detr import batches, same, same_eval, sides
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting
from fastload import pipelines

_SEED = 3
_BASE = {"expanded_scales": True, "patch_size": 14, "num_windows": 4}
"""What `RFDETRBaseConfig` and `TrainConfig` give its `make_coco_transforms_square_div_64`."""


def original(originals: Path) -> tuple[Any, Any]:
    """Its modules of COCO and of batches."""
    root = originals / "rf-detr" / "rfdetr"
    for name, folder in (("rfdetr", root), ("rfdetr.datasets", root / "datasets")):
        if name not in sys.modules:  # without its __init__, which needs what it trains with
            sys.modules[name] = ModuleType(name)
            sys.modules[name].__path__ = [str(folder)]
    from rfdetr.datasets import coco
    from rfdetr.util import misc

    return coco, misc


def dataset(setting: Setting, images: str = "train") -> Any:
    coco, _ = original(setting.originals)
    names = setting.data / "annotations" / "instances_train2017.json"
    transforms = coco.make_coco_transforms_square_div_64(
        images, 560, multi_scale=images == "train", skip_random_resize=True, **_BASE
    )
    transforms = setting.sized(transforms, "sizes", "min_size", "max_size")
    return coco.CocoDetection(setting.data / "train2017", names, transforms=transforms)


def theirs(setting: Setting, images: str = "train") -> DataLoader[Any]:
    return batches(setting, dataset(setting, images), original(setting.originals)[1])


def step_of_sizes(originals: Path) -> Any:
    """The lines of its training step that make the size of a batch, as a function of its
    `NestedTensor` and the number of the step."""
    coco, _ = original(originals)
    file = originals / "rf-detr" / "rfdetr" / "engine.py"
    (step,) = (
        one
        for one in ast.walk(ast.parse(file.read_text()))
        if isinstance(one, ast.If) and ast.unparse(one.test).startswith("args.multi_scale and")
    )
    lines = compile(ast.Module([step], []), str(file), "exec")
    args = SimpleNamespace(
        multi_scale=True, do_random_resize_via_padding=False, resolution=560, **_BASE
    )
    scales = coco.compute_multi_scale_scales

    def made(samples: Any, it: int) -> Any:
        known = {"F": functional, "torch": torch, "random": random, "args": args}
        exec(lines, {**known, "samples": samples, "it": it, "compute_multi_scale_scales": scales})
        return samples

    return made


def same_batches(setting: Setting) -> list[Judgement]:
    """Of each size, batches that are padded in several ways."""
    _, misc = original(setting.originals)
    made, ours = step_of_sizes(setting.originals), pipelines.rfdetr_batches()
    count, apart, other = 0, 0.0, 0
    sizes = set[int]()
    generator = torch.Generator().manual_seed(_SEED)
    for number in range(11):
        for padded in (0, 1, 100, 301):
            images = torch.randn(2, 3, 840, 840, generator=generator)
            mask = torch.zeros(2, 840, 840, dtype=torch.bool)
            mask[1, 840 - padded :], mask[1, :, 840 - padded :] = True, True
            with fed(lambda _, number=number: iter([(number + 0.5) / 11])):  # type: ignore[misc]
                wanted = made(misc.NestedTensor(images.clone(), mask.clone()), count)
            with fed(lambda _, number=number: iter([(number + 0.5) / 11])):  # type: ignore[misc]
                found, masked, _ = ours(images, mask, [])
            count += 1
            sizes.add(found.shape[-1])
            if found.shape != wanted.tensors.shape or not torch.equal(masked, wanted.mask):
                other += 1
                continue
            apart = max(apart, float((found - wanted.tensors).abs().max()))
    return [
        Judgement("sizes", float(len(sizes)), 11.0, True),
        Judgement(f"of {count} batches, of other sizes or masks", float(other), 0.0, False),
        Judgement("largest difference of a number", apart, 0.0, False),
        *drawn_sizes(ours),
    ]


def drawn_sizes(ours: Any) -> list[Judgement]:
    """Whether sizes are drawn evenly: p of Pearson's chi-squared test of 11,000 batches."""
    image, mask = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.bool)
    drawn = [ours(image, mask, [])[0].shape[-1] for _ in range(11_000)]
    _, counts = np.unique(drawn, return_counts=True)
    distance = float(((counts - 1000) ** 2 / 1000).sum())
    least = float(torch.special.gammaincc(torch.tensor(5.0), torch.tensor(distance / 2)))
    return [Judgement("p of 11,000 sizes, drawn evenly", least, 1e-3, True)]


PIPELINES = (
    Pipeline(
        "rfdetr",
        "rfdetr",
        *sides(theirs, "train", pipelines.rfdetr()),
        batch_size=4,
        bar=2.5,
        data=coco_of,
        same=partial(same, dataset, pipelines.rfdetr()),
    ),
    Pipeline(
        "rfdetr_batches",
        "rfdetr",
        *sides(theirs, "train", pipelines.rfdetr()),
        batch_size=4,
        bar=None,
        exact=True,
        data=coco_of,
        same=same_batches,
    ),
    Pipeline(
        "rfdetr_eval",
        "rfdetr",
        *sides(theirs, "val", pipelines.rfdetr_eval()),
        batch_size=4,
        bar=None,
        exact=True,
        data=partial(coco_of, beyond=True),
        same=partial(same_eval, dataset, pipelines.rfdetr_eval()),
    ),
)
