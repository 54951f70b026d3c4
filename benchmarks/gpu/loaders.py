"""One loader that has all cores, or several processes that share them, as the ranks of a node do:
images a second of all together, and of the slowest. All deliver to one GPU, so that copies and
kernels of the loaders share that, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.gpu.feeds import decoding, of_loader, rate_of
from benchmarks.gpu.setting import Found, Setting
from benchmarks.inputs import ROOT
from fastload.tools.measure.images import training
from fastload.tools.measure.process import Child
from fastload.tools.measure.results import Round

SIDE_BY_SIDE = "loaders side by side"
"""The mode of the rows."""
_START = 60.0
"""Seconds for a process to import torch and to open the GPU, and for its first batch."""


def run(setting: Setting, found: Found) -> None:
    cores = len(os.sched_getaffinity(0))
    for count in setting.loaders:
        threads = max(1, cores // count)
        found.attempt(
            f"{count} x {threads} threads",
            SIDE_BY_SIDE,
            partial(_together, setting, count, threads),
            {"loaders": count},
            least=4 * setting.rate_seconds,
        )


def _together(setting: Setting, count: int, threads: int) -> Round:
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        children = [Child(cwd=ROOT) for _ in range(count)]
        for child in children:
            stack.callback(child.close)
        list(pool.map(lambda child: _open(child, setting, threads), children))
        rounds = list(pool.map(lambda child: child.ask("rate", limit=_START), children))
    rates = [each.rate for each in rounds]
    seconds = max(each.seconds for each in rounds)
    metrics = {"slowest_rate": min(rates), "fastest_rate": max(rates)}
    cpu = sum(each.cpu_seconds or 0.0 for each in rounds)
    return Round(round(sum(rates) * seconds), seconds, cpu, metrics)


def _open(child: Child, setting: Setting, threads: int) -> None:
    child.open("benchmarks.gpu.loaders:Emptied", setting, threads, limit=_START)


class Emptied:
    """A loader in a process of its own, whose batches nobody uses."""

    def __init__(self, setting: Setting, threads: int) -> None:
        self._setting = setting
        variant = next(v for v in decoding(setting) if not v.may_die)
        variant = replace(variant, num_workers=threads)
        given = {"batch_size": setting.batch_size, "transform": training(setting.size)}
        self._loader = variant.create(setting, **given)
        self._sizes: Iterator[int] = (len(labels) for _, labels in of_loader(self._loader))
        next(self._sizes)

    def rate(self) -> Round:
        setting, ahead = self._setting, self._loader.batches_in_flight
        return rate_of(
            self._sizes, seconds=2 * setting.rate_seconds, device=setting.where(), ahead=ahead
        )

    def close(self) -> None:
        self._loader.close()
