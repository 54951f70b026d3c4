"""MAE's pretraining: github.com/facebookresearch/mae as `mae`. Its licence is not a free one
(CC BY-NC 4.0): the script is run, and stopped when it makes its DataLoader."""

from __future__ import annotations

import builtins
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from unittest import mock

import timm
import torch

from benchmarks.pipelines.classes import of_fastload, one, plain, seen
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Pipeline, Setting, Side, folder_of_classes
from fastload import pipelines
from fastload.pipelines.normalised import MEAN, STD

SIZE = 224


class _StoppedError(Exception):
    """The script has made its data set."""


def dataset(originals: Path, data: Path, size: int) -> Any:
    """What the script hands to its DataLoader. It wants versions of timm and torch that are long
    gone, of which it uses nothing up to there."""

    def stop(dataset: Any, *_: Any, **__: Any) -> NoReturn:
        raise _StoppedError(dataset)

    old = ModuleType("torch._six")
    old.inf = float("inf")  # type: ignore[attr-defined]
    with (
        tempfile.TemporaryDirectory() as logs,
        mock.patch.dict(sys.modules, {"torch._six": old}),
        mock.patch.object(sys, "path", [str(originals / "mae"), *sys.path]),
        mock.patch.object(timm, "__version__", "0.3.2"),
        mock.patch.object(builtins, "print"),  # it puts another one in its place
        mock.patch.object(torch.utils.data, "DataLoader", stop),
    ):
        script = module(originals / "mae/main_pretrain.py", "main_pretrain")
        given = {"data_path": data, "input_size": size, "output_dir": logs, "log_dir": logs}
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        try:
            script.main(script.get_args_parser().parse_args(words))
        except _StoppedError as stopped:
            return stopped.args[0]
    raise SystemExit("mae/main_pretrain.py made no DataLoader")


def data(source: Path, work: Path, least: int) -> Path:
    """The script reads the folder `train` of what it is given."""
    folder = folder_of_classes(source, work, least)
    named = folder.parent / "as-train" / "train"
    named.parent.mkdir(exist_ok=True)
    if not named.exists():
        named.symlink_to(folder)
    return named


def loader(setting: Setting) -> Any:
    size = setting.size(SIZE)
    return plain(dataset(setting.originals, setting.data.parent, size), setting)


def operations(originals: Path) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train", "class", "x.jpg")  # its data set wants one, and does not read
        file.parent.mkdir(parents=True)
        file.touch()
        return dataset(originals, Path(folder), SIZE).transform, pipelines.mae()


PIPELINES = (
    Pipeline(
        "mae",
        "mae",
        Side(loader, *seen(one, MEAN, STD)),
        of_fastload(lambda on: pipelines.mae(on.size(SIZE)), one),
        batch_size=64,
        bar=4.0,
        operations=operations,
        data=data,
    ),
)
