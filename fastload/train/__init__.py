"""The reference trainer: fed by the loader, from one CPU to several machines, from the same command line.

    from fastload.train import preset, train

    summary = train(preset("cifar10-vgg19", data="cifar-10-python.tar.gz", epochs=1))

Names are imported when first used: `import fastload.train` does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from fastload.train.presets import preset
    from fastload.train.summary import Summary
    from fastload.train.trainer import train

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
    "preset",
    "train",
]

_HOMES = {
    "CheckpointConfig": "fastload.train.config",
    "DataConfig": "fastload.train.config",
    "LogConfig": "fastload.train.config",
    "ModelConfig": "fastload.train.config",
    "OptimizerConfig": "fastload.train.config",
    "RunConfig": "fastload.train.config",
    "ScheduleConfig": "fastload.train.config",
    "Summary": "fastload.train.summary",
    "TrainConfig": "fastload.train.config",
    "preset": "fastload.train.presets",
    "train": "fastload.train.trainer",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value  # next time it is found without coming here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
