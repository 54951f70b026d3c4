"""Sizes that grow with the epochs: github.com/google/automl as `automl`, of whose training script
the loop over the stages is run, and github.com/libffcv/ffcv-imagenet as `ffcv-imagenet`, whose
`get_resolution` is run, without what trains."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.pipelines.of_torchvision import PIPELINES as CLASSIFICATION
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Judgement, Pipeline, Setting
from fastload import pipelines
from fastload.sampler.scales import Progressive

_ISIZES = (192, 208, 224, 240, 300, 384)
"""Of EfficientNetV2-B0 to -L."""
_RAMPS = ((11, 13, 16), (17, 20, 24), (23, 27, 32), (29, 34, 40), (41, 48, 56), (65, 76, 88))
"""First and last epoch, and how many, of `rn50_configs`; the last is the default."""


def of_stages(originals: Path, isize: int, epochs: int, ibase: int | None) -> list[int]:
    """By epoch the sizes that `main_tf2.py` trains with, in four stages."""
    file = originals / "automl" / "efficientnetv2" / "main_tf2.py"
    loop = next(
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "not config.train.stages"
    )
    sizes = [0] * epochs
    model = mock.Mock()

    def fit(size: int, *, initial_epoch: int, epochs: int, **_: Any) -> None:
        sizes[initial_epoch:epochs] = [size] * (epochs - initial_epoch)

    model.fit = fit
    data = SimpleNamespace(ibase=ibase, ram=10, mixup_alpha=0, cutmix_alpha=0)
    train = SimpleNamespace(stages=4, sched=True, epochs=epochs)
    names = {
        "config": SimpleNamespace(data=data, train=train),
        "train_size": isize,
        "model": model,
        "np": np,
        "get_dataset": lambda *, image_size, **_: image_size,
        "steps_per_epoch": 1,
        "strategy": "gpu",
        "filter_callbacks": lambda _: None,
        "ckpt_callback": None,
        "tb_callback": None,
        "rstr_callback": None,
    }
    exec(compile(ast.Module(loop.orelse, []), str(file), "exec"), names)
    return sizes


def trainer(originals: Path) -> Any:
    """FFCV's, whose decorators only fill in arguments."""
    bare = [
        *("ffcv", "ffcv.pipeline", "ffcv.pipeline.operation", "ffcv.loader", "ffcv.transforms"),
        *("ffcv.fields", "ffcv.fields.rgb_image", "ffcv.fields.basics", "torchmetrics"),
        *("fastargs", "fastargs.decorators", "fastargs.validation"),
    ]
    found = {name: mock.MagicMock() for name in bare}
    found["fastargs.decorators"].param = lambda _: lambda function: function
    with mock.patch.dict(sys.modules, found):
        return module(originals / "ffcv-imagenet" / "train_imagenet.py", "ffcv_imagenet")


def differing(order: Progressive, wanted: list[int]) -> int:
    """In how many epochs another size is said."""
    firsts = sorted(order.sizes)
    found = [
        order.sizes[max(first for first in firsts if first <= epoch)]
        for epoch in range(len(wanted))
    ]
    return sum((side, side) != one for side, one in zip(wanted, found, strict=True))


def same_stages(setting: Setting) -> list[Judgement]:
    wrong = count = 0
    for isize in _ISIZES:
        for epochs in (4, 90, 350, 351):
            for ibase in (128, None):
                wanted = of_stages(setting.originals, isize, epochs, ibase)
                order = pipelines.efficientnetv2_sizes(isize, epochs=epochs, ibase=ibase)
                wrong, count = wrong + differing(order, wanted), count + epochs
    return [Judgement(f"of {count:,} epochs, of another size", wrong, 0, False)]


def same_ramps(setting: Setting) -> list[Judgement]:
    own, wrong, count = trainer(setting.originals).ImageNetTrainer, 0, 0
    for start, end, epochs in (*_RAMPS, (0, 0, 30), (3, 60, 64)):
        for low, high in ((160, 192), (160, 160), (96, 256), (100, 229)):
            wanted = [own.get_resolution(None, n, low, high, end, start) for n in range(epochs)]
            order = pipelines.ffcv_sizes(low, high, start_ramp=start, end_ramp=end)
            wrong, count = wrong + differing(order, wanted), count + epochs
    return [Judgement(f"of {count:,} epochs, of another size", wrong, 0, False)]


_SIDES = CLASSIFICATION[0].original, CLASSIFICATION[0].ours
"""Not asked: what is judged are the sizes of epochs."""

PIPELINES = tuple(
    Pipeline(name, "progressive", *_SIDES, 1, None, exact=True, same=same, drawn=False)
    for name, same in (("efficientnetv2_sizes", same_stages), ("ffcv_sizes", same_ramps))
)
