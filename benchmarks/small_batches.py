"""What a small batch of small arrays costs, beside plain tensor indexing with the same arithmetic.

    python -m benchmarks.small_batches                    # 28x28 grey, normalised: batches of 64, 128 and 512
    python -m benchmarks.small_batches --rounds 21

The two take turns; of each round the ratio is kept, and the median of the ratios is shown, for the time on the clock
and for the processor time of the whole process (which other users of the machine disturb less). "wait" is the share of
its time that a trainer waits for batches whose steps take one millisecond, in which it needs no processor.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch
from torchvision.transforms import v2

import fastload

SAMPLES = 60_000
MEAN, STD = 0.2860, 0.3530
BATCHES = 100
"""Of one turn."""
STEP = 0.001
"""Of the trainer [seconds]."""

Batch = tuple[torch.Tensor, torch.Tensor]


def plain(images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> Iterator[Batch]:
    """Endless shuffled batches by indexing: nothing ahead of time, nothing to resume."""
    while True:
        for rows in torch.randperm(SAMPLES).split(batch_size):
            if len(rows) == batch_size:
                yield images[rows].to(torch.float32).div_(255).sub_(MEAN).div_(STD), labels[rows]


def turn(batches: Iterator[Batch]) -> tuple[float, float]:
    """(seconds, processor seconds) of a batch."""
    begun, cpu = time.perf_counter(), time.process_time()
    for _ in itertools.islice(batches, BATCHES):
        pass
    return (time.perf_counter() - begun) / BATCHES, (time.process_time() - cpu) / BATCHES


def waiting(batches: Iterator[Batch]) -> float:
    """Share of the time that the trainer waits."""
    waited, begun = 0.0, time.perf_counter()
    for _ in range(5 * BATCHES):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        time.sleep(STEP)
    return waited / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=11, help="turns of each (default: %(default)s)")
    parser.add_argument("--batch-sizes", default="64,128,512", help="(default: %(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8), rng.integers(0, 10, SAMPLES)
    steps: list[Callable[..., object]] = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*steps, v2.Normalize([MEAN], [STD])])
    print(f"{'batch':>6}{'fastload':>12}{'indexing':>12}{'ratio':>8}{'processor':>12}{'wait':>8}")
    for batch_size in map(int, given.batch_sizes.split(",")):
        arguments = {"shuffle": True, "drop_last": True, "transform": transform}
        with fastload.create_loader((images, labels), batch_size, **arguments) as loader:
            ours: Iterator[Batch] = itertools.chain.from_iterable(itertools.repeat(loader))
            theirs = plain(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels), batch_size)
            turns = [(turn(ours), turn(theirs)) for _ in range(given.rounds + 1)][1:]  # the first one warms up
            mine, other = (median(pair[side][0] for pair in turns) * 1e6 for side in (0, 1))
            clock, cpu = (median(a[kind] / b[kind] for a, b in turns) for kind in (0, 1))
            print(
                f"{batch_size:>6}{mine:>9.0f} us{other:>9.0f} us{clock:>8.2f}{cpu:>12.2f}{waiting(ours):>8.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
