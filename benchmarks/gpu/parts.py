"""The parts by name, and the process that one of them runs in: `python -m benchmarks.gpu.parts NAME ...`

A part is a module with `run(setting, found)`. It looks at `found.left` and leaves out what it has no time for.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from benchmarks.gpu.found import Found
from benchmarks.gpu.setting import Setting

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True)
class Part:
    """One of the questions."""

    title: str
    weight: float
    """Its share of the time, relative to the others."""

    def runner(self, name: str) -> Callable[[Setting, Found], None]:
        module = import_module(f"benchmarks.gpu.{name}")
        return cast("Callable[[Setting, Found], None]", module.run)


PARTS: dict[str, Part] = {
    "contract": Part("the contract suite and the checks on photographs", 16),
    "streams": Part("batches, used at once and kept", 10),
    "decode": Part("decoding on the GPU, on the CPU, on both", 11),
    "cifar": Part("CIFAR-10 resident on the GPU", 7),
    "threads": Part("the loader's threads and the trainer's steps", 11),
    # Last: what the others leave of their time makes more rounds.
    "idle": Part("idle time of the GPU while networks are trained", 45),
}


def main(name: str, setting: str, answer: str, seconds: str) -> None:
    faulthandler.enable()
    PARTS[name].runner(name)(Setting.read(Path(setting)), Found(Path(answer), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
