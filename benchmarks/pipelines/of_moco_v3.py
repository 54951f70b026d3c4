"""MoCo v3's views: github.com/facebookresearch/moco-v3 as `moco-v3`. Its licence is not a free one
(CC BY-NC 4.0): the script is run, and stopped when it makes its data set."""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack
from types import ModuleType
from typing import Any, NoReturn
from unittest import mock

import torch
import torchvision
from torch import distributed, multiprocessing

from benchmarks.pipelines.classes import of_fastload, of_image_folder, several
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Pipeline, Setting
from fastload import pipelines

SIZE = 224


class _StoppedError(Exception):
    """The script makes its data set."""


def original(setting: Setting) -> Any:
    """The transform that the script gives its data set. It wants GPUs and a group of processes, of
    which it uses nothing up to there, and a timm that is long gone for models that it does not make
    here."""

    def stop(root: Any, transform: Any, *_: Any, **__: Any) -> NoReturn:
        raise _StoppedError(transform)

    def nothing(*_: Any, **__: Any) -> None: ...

    def one(*_: Any, **__: Any) -> int:
        return 1

    def first(*_: Any, **__: Any) -> int:
        return 0

    folder = setting.originals / "moco-v3"
    board = ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = mock.MagicMock()  # type: ignore[attr-defined]
    absent = {"torch.utils.tensorboard": board, "vits": mock.MagicMock()}
    words = ["main_moco.py", "--multiprocessing-distributed", "--world-size", "1", "--rank", "0"]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, absent))
        for owner, name, instead in (
            (sys, "path", [str(folder), *sys.path]),
            (sys, "argv", [*words, "--dist-url", "tcp://localhost:1", str(setting.data)]),
            (sys, "stdout", mock.MagicMock()),  # it prints its model
            (torchvision.datasets, "ImageFolder", stop),
            (multiprocessing, "spawn", lambda run, nprocs, args: run(0, *args)),
            (torch.cuda, "device_count", one),
            (torch.cuda, "set_device", nothing),
            (torch.nn.Module, "cuda", lambda model, *_: model),
            (torch.nn.parallel, "DistributedDataParallel", lambda model, **_: model),
            (distributed, "init_process_group", nothing),
            (distributed, "barrier", nothing),
            (distributed, "get_world_size", one),
            (distributed, "get_rank", first),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            module(folder / "main_moco.py", "main_moco").main()
        except _StoppedError as stopped:
            transform = stopped.args[0]
            for chain in (transform.base_transform1, transform.base_transform2):
                chain.transforms[0].size = (setting.size(SIZE), setting.size(SIZE))
            return transform
    raise SystemExit("moco-v3/main_moco.py made no ImageFolder")


PIPELINES = (
    Pipeline(
        "moco_v3",
        "moco_v3",
        of_image_folder(original, several),
        of_fastload(lambda on: pipelines.moco_v3(size=on.size(SIZE)), several),
        batch_size=32,
        bar=4.0,
    ),
)
