"""Random generators and repeatability: seeds, their states in a checkpoint, algorithms that give the same bits again.

The loader's random numbers have no state. What is left is the network's own: dropout, stochastic depth.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fastload.draws import Draws


def seed_generators(seed: int, *place: int) -> None:
    """Seed the global generators of torch (every device), numpy and Python.

    Args:
        seed: of the run.
        place: what else tells this stream from others (step, rank): other numbers for other places.
    """
    for number in place:
        seed = int(Draws(seed, 0, np.array([number], dtype=np.int64)).integers(0)[0]) >> 1
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def generator_state(device: torch.device) -> dict[str, Any]:
    """The states of those generators, as `torch.load(weights_only=True)` can read them."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [name, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_generator_state(state: dict[str, Any], device: torch.device) -> None:
    """Go on from there. A state from another kind of device leaves this device's generator as it is."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])


@contextmanager
def algorithms(*, deterministic: bool, benchmark: bool) -> Iterator[None]:
    """Within: only algorithms that give the same bits every time; or those that cuDNN finds fastest, by trying them
    on every new shape (`benchmark`) or by its own rules.

    Raises (in torch, within): RuntimeError, by an operation that has no deterministic algorithm; it names itself.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    torch.use_deterministic_algorithms(deterministic or before[0])
    torch.backends.cudnn.benchmark = benchmark and not deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
