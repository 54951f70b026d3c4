"""Whether the GPU ever stands still: a training of minutes over many ends of epochs, judged by its
longest gap; and a window around the end of an epoch in which every kernel is seen."""

from __future__ import annotations

import gc
from functools import partial
from statistics import median

import torch

from benchmarks.gpu.feeds import Feed, decoding, synchronize
from benchmarks.gpu.idle import gaps_of, ours
from benchmarks.gpu.setting import Found, Setting
from benchmarks.gpu.training import Training, of_torchvision, train
from fastload.tools.measure.clock import resident_memory
from fastload.tools.measure.results import Measurement, Round
from fastload.tools.measure.rounds import status_of
from fastload.tools.monitor import Step, profile_steps

SOAK, KERNELS_OF_AN_END = "training over many ends of epochs", "kernels at the end of an epoch"
"""The modes of the rows."""
GAP, STEP = "longest_gap_seconds", "median_step_seconds"
"""Metrics of both modes."""
_SLICES = 8
"""Parts of the training: what one has found is kept if the machine is lost in the next."""
_SETTLE = 20
"""Steps before the clock starts: the first batches fill buffers and caches."""
_AROUND = 6
"""Steps before and after the end of an epoch that are profiled."""


def run(setting: Setting, found: Found) -> None:
    variant = next(v for v in decoding(setting) if not v.may_die)
    name, network = variant.name, setting.networks[0]
    try:
        trainer = of_torchvision(network, setting.where())
        with_feed = ours(setting, variant)
    except Exception as error:
        status, words = status_of(error)
        found.save(Measurement(name, SOAK, status=status, note=words))
        return
    found.note(f"{network}, fed by {name}")
    try:
        trainer.warm_up(next(with_feed), compiled=setting.compile)
        _soak(setting, found, name, with_feed, trainer)
    except Exception as error:
        status, words = status_of(error)
        kept = next((row.rounds for row in found.rows.values() if row.mode == SOAK), ())
        found.save(Measurement(name, SOAK, status=status, note=words, rounds=kept))
    work = partial(_kernels, with_feed, trainer)
    found.attempt(name, KERNELS_OF_AN_END, work, least=5 * setting.rate_seconds)
    with_feed.close()


def _soak(setting: Setting, found: Found, name: str, feed: Feed, trainer: Training) -> None:
    """A round for each slice; the feed and the network go on from one to the next."""
    train(feed, trainer, steps=_SETTLE if setting.gpu else 2)
    gc.collect()
    host, free = resident_memory(), _free(trainer.device)
    rounds: list[Round] = []
    for _ in range(_SLICES):
        seconds = min(setting.soak_seconds / _SLICES, found.left - 2)
        if seconds <= 0:
            found.note("the time of the part ended the training")
            break
        epochs = feed.epochs
        clock = train(feed, trainer, seconds, keep=True)
        idle = clock.summary(wait=True)
        steps = clock.steps(wait=True)
        gaps = [gap_before(step) for step in steps]
        at = max(range(len(gaps)), key=gaps.__getitem__)
        metrics: dict[str, float | None] = {
            GAP: gaps[at],
            STEP: median(step.end - step.begin for step in steps),
            "at_step": at,
            "epoch_ends": feed.epochs - epochs,
            "wait_share": idle.wait_share,
            "busy_share": idle.busy_share,
            "host_growth_bytes": resident_memory() - host,
            "device_growth_bytes": free - _free(trainer.device),
        }
        rounds.append(Round(setting.batch_size * idle.steps, idle.seconds, None, metrics))
        found.save(Measurement(name, SOAK, rounds=tuple(rounds)))


def gap_before(step: Step) -> float:
    """The time from the end of the step before until the device computes for this one
    [seconds]."""
    total = 0.0
    for piece in step.segments:
        if piece.activity in ("compute", "update"):
            return total
        total += piece.seconds
    return total


def _free(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _kernels(feed: Feed, trainer: Training) -> dict[str, float | None]:
    """Up to some steps before the end of an epoch unseen, and then over it."""
    epoch = feed.epochs
    while feed.epochs == epoch:  # its length
        length = feed.taken
        train(feed, trainer, steps=1)
    before = length - _AROUND - feed.taken
    if before > 0:
        train(feed, trainer, steps=before)
    synchronize(trainer.device)
    epochs = feed.epochs
    with profile_steps(trainer.device) as profiling:
        clock = train(feed, trainer, steps=2 * _AROUND, keep=True)
    steps = clock.steps(wait=True)
    return {
        GAP: max(gaps_of(profiling.result), default=0.0),
        STEP: median(step.end - step.begin for step in steps),
        "steps": len(steps),
        "epoch_ends": feed.epochs - epochs,
        "busy_share": profiling.result.idle.busy_share,
    }
