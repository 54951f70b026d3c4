"""Training by pipelines beside their originals: whether loss curves differ.

    python -m benchmarks.pipelines.training dino ORIGINALS --data CIFAR --json results.json
    python -m benchmarks.pipelines.training yolo --work build/pipelines --json results.json

The same network is trained from the same weights, by the original's loader and by ours, with each
of some seeds: the seed makes the weights, the order of the images and what is drawn for them. A
curve is the mean loss of each tenth of the steps. Ours agrees where two exact, two-sided
permutation tests have p of at least 0.025 each, which is 0.05 together (Bonferroni):

- of the mean loss of the runs, and
- of the largest of the ten differences between mean curves, each divided by the deviation of all
  runs there.

To see what the tests can tell, further sets of runs have a pipeline that is wrong on purpose.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from fastload.tools.measure.results import describe_machine, write_text

LEAST = 0.025
TENTHS = 10
FEWEST = 5
"""Seeds. The least p of n runs of each of two sides is 2 / C(2 n, n): 0.029 of four, above LEAST,
so that no curves would differ; 0.008 of five."""
SIDES = ORIGINAL, OURS, WRONG = "original", "fastload", "wrong"

Curve = npt.NDArray[np.float64]
"""(10,), or (runs, 10): the mean loss of each tenth of the steps."""
Curves = dict[str, list[list[float]]]
"""By side, those of all seeds."""


@dataclass(frozen=True)
class Agreement:
    """Of the curves of two sets of runs, (seeds, 10) each."""

    p: float
    """Of the mean loss of a run."""
    p_of_curve: float
    """Of the tenth at which the mean curves differ most."""
    within: int
    """At how many tenths the mean of the second set is between the least and the largest of the
    first. With five runs of one distribution it is outside at one of seven (13.5%)."""

    @classmethod
    def of(cls, wanted: npt.ArrayLike, found: npt.ArrayLike) -> Agreement:
        first, second = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
        mean = second.mean(axis=0)
        within = (first.min(axis=0) <= mean) & (mean <= first.max(axis=0))
        means = (one.mean(axis=1, keepdims=True) for one in (first, second))
        return cls(p_of_permutations(*means), p_of_permutations(first, second), int(within.sum()))

    @property
    def passed(self) -> bool:
        return min(self.p, self.p_of_curve) >= LEAST


def p_of_permutations(first: Curve, second: Curve) -> float:
    """Of the largest difference between the means of two sets of rows, each column divided by its
    deviation: the part of all ways to divide the rows into two sets of these sizes for which it is
    at least as large."""
    every = np.concatenate([first, second])
    every = every / np.maximum(every.std(axis=0), 1e-12)
    found = []
    for chosen in combinations(range(len(every)), len(first)):
        which = np.isin(np.arange(len(every)), chosen)
        found.append(np.abs(every[which].mean(axis=0) - every[~which].mean(axis=0)).max())
    # The first way is as they are.
    return float(np.mean(np.array(found) >= found[0] - 1e-9))


def curve(losses: Sequence[float]) -> Curve:
    """Raises ValueError: there are fewer than ten."""
    if len(losses) < TENTHS:
        raise ValueError(f"{len(losses)} steps; a curve needs {TENTHS}")
    return np.array([part.mean() for part in np.array_split(np.asarray(losses), TENTHS)])


Train = Callable[[str, int], list[float]]
"""With the side and the seed: the loss of each step."""


def trained(train: Train, seeds: Sequence[int], folder: Path, sides: Sequence[str] = SIDES) -> None:
    """All runs, the sides in turns, each into a file of its own. What is there is not done
    again."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for side in sides:
            path = folder / f"{side}-{seed}.json"
            if path.exists():
                continue
            began = time.process_time()
            found = [round(float(one), 5) for one in curve(train(side, seed))]
            used = time.process_time() - began
            print(f"{side}, seed {seed}: {found}, {used:.0f} s of processor", flush=True)
            write_text(path, json.dumps(found) + "\n")


def gathered(folder: Path, seeds: Sequence[int], sides: Sequence[str] = SIDES) -> Curves:
    """Raises FileNotFoundError: a run is missing."""
    return {
        side: [json.loads((folder / f"{side}-{seed}.json").read_text()) for seed in seeds]
        for side in sides
    }


def judged(curves: Curves) -> dict[str, Agreement]:
    """Of all sides but the original, beside it."""
    return {
        side: Agreement.of(curves[ORIGINAL], found)
        for side, found in curves.items()
        if side != ORIGINAL
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--only", type=int, help="train with this seed alone, and do not judge")
    parser.add_argument("--work", type=Path, default=Path("build/pipelines"))
    parser.add_argument("--json", type=Path, help="write what was found there")
    kinds = parser.add_subparsers(dest="kind", required=True)
    dino = kinds.add_parser("dino")
    dino.add_argument("originals", type=Path, help="with a clone of facebookresearch/dino as dino")
    dino.add_argument("--data", type=Path, required=True, help="CIFAR as class folders of JPEGs")
    dino.add_argument("--steps", type=int, default=60, help="(default: %(default)s)")
    dino.add_argument("--batch", type=int, default=16, help="(default: %(default)s)")
    yolo = kinds.add_parser("yolo")
    yolo.add_argument("--images", type=int, default=200, help="(default: %(default)s)")
    yolo.add_argument("--epochs", type=int, default=2, help="(default: %(default)s)")
    yolo.add_argument("--batch", type=int, default=8, help="(default: %(default)s)")
    given = parser.parse_args(arguments)
    if given.only is None and given.seeds < FEWEST:
        parser.error(
            f"--seeds: {given.seeds} cannot show that curves differ; give {FEWEST} or more, or "
            "--only to train without a verdict"
        )
    torch.set_num_threads(1)
    sides: Sequence[str] = SIDES
    if given.kind == "dino":
        from benchmarks.pipelines import training_dino

        settings = {"steps": given.steps, "batch": given.batch}
        train = training_dino.training(given.originals, given.data, given.steps, given.batch)
    else:
        from benchmarks.pipelines import training_yolo

        settings = {"images": given.images, "epochs": given.epochs, "batch": given.batch}
        train = training_yolo.training(given.work, given.images, given.epochs, given.batch)
        sides = training_yolo.SIDES
    numbers = "-".join(map(str, settings.values()))
    folder = given.work / f"training-{given.kind}-{numbers}"
    seeds = range(given.seeds) if given.only is None else [given.only]
    trained(train, seeds, folder, sides)
    if given.only is not None:
        return
    curves = gathered(folder, seeds, sides)
    agreements = judged(curves)
    for side, one in agreements.items():
        print(
            f"{side}: p {one.p:.3g} of the mean loss, {one.p_of_curve:.3g} of the curve; at "
            f"{one.within} of {TENTHS} tenths the mean is in the spread of the original"
        )
    if given.json:
        found = {side: asdict(one) for side, one in agreements.items()}
        machine = msgspec.to_builtins(describe_machine())
        kept = {
            "benchmark": f"training {given.kind}",
            "machine": machine,
            "settings": {"seeds": given.seeds, **settings},
            "found": found,
            "curves": curves,
        }
        write_text(given.json, json.dumps(kept, indent=1) + "\n")
    if not agreements[OURS].passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
