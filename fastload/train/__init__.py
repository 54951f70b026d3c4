"""The reference trainer: fed by the loader, from one CPU to several machines, from the same command
line.

    from fastload.train import preset, train

    summary = train(preset("cifar10-vgg19", data="cifar-10-python.tar.gz", epochs=1))

What needs torch is imported when first used: `import fastload.train` does not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fastload.train.config import (
    CheckpointConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from fastload.train.settings import preset

if TYPE_CHECKING:
    from fastload.train.results import Summary
    from fastload.train.trainer import evaluate, train

__all__ = [
    "CheckpointConfig",
    "DataConfig",
    "LogConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "ScheduleConfig",
    "Summary",
    "TrainConfig",
    "evaluate",
    "preset",
    "train",
]

_MODULES = {
    "Summary": "fastload.train.results",
    "evaluate": "fastload.train.trainer",
    "train": "fastload.train.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
