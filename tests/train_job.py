"""Small training runs in processes of their own, which can be made to die where a test wants it.

Processes start warm; under torchrun:
`python -m torch.distributed.run ... -m tests.train_job JOB.json`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fastload.train import TrainConfig, train
from fastload.train.settings import merged
from tests import warm
from tests.waiting import LIMIT

SIDE = 8


def write_arrays(folder: Path, name: str, samples: int, *, seed: int = 0) -> str:
    """Images that a network can tell apart, and labels 0 to 2; what `--data` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, samples)
    images = rng.integers(0, 120, (samples, SIDE, SIDE, 3)) + 60 * labels[:, None, None, None]
    paths = folder / f"{name}-images.npy", folder / f"{name}-labels.npy"
    np.save(paths[0], images.astype(np.uint8))
    np.save(paths[1], labels)
    return f"{paths[0]},{paths[1]}"


def settings(data: str, out: Path, **given: Any) -> dict[str, Any]:
    """Of a run of some seconds on the CPU; by field name."""
    return {
        "data": data,
        "out": str(out),
        "augment": "flip",
        "image_size": (SIDE, SIDE),
        "num_workers": 1,
        "model": "fastload:mlp",
        "batch_size": 4,
        "epochs": 3,
        "lr": 0.05,
        "reference_batch": None,
        "progress": False,
        "device": "cpu",
        "deterministic": True,
        **given,
    }


def config(data: str, out: Path, **given: Any) -> TrainConfig:
    return merged(settings(data, out, **given))


@dataclass(frozen=True)
class Fault:
    """What happens when a rank calls its network: once, in the first attempt of torchrun."""

    act: str
    """"exit", "raise", "sleep", or the name of a signal that the process sends itself; after
    "group-", to its process group too, as torchrun does and a terminal."""
    call: int
    """Which call, 0-based, of those in training or in validation."""
    rank: int = 0
    validation: bool = False

    def happens(self, rank: int, call: int, training: bool) -> bool:
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        return first and (rank, call, not training) == (self.rank, self.call, self.validation)

    def happen(self) -> None:
        match self.act:
            case "exit":
                os._exit(3)
            case "raise":
                raise ValueError("the network has had enough")
            case "sleep":
                print("sleeping", flush=True)
                time.sleep(2 * LIMIT)
            case name:
                send = os.killpg if name.startswith("group-") else os.kill
                send(os.getpid(), signal.Signals[name.removeprefix("group-")])


class Network(nn.Module):
    """A small network of whatever makes resuming hard."""

    def __init__(
        self, *, dropout: float, normalise: bool, spare: bool = False, fault: Fault | None = None
    ) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2) if spare else None
        """Takes part in nothing."""
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(3 * SIDE * SIDE, 16),
            nn.BatchNorm1d(16) if normalise else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(16, 3),
        )
        self._fault = fault
        self._calls = {True: 0, False: 0}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self._fault is not None and self._fault.happens(
            int(os.environ.get("RANK", "0")), self._calls[self.training], self.training
        ):
            self._fault.happen()
        self._calls[self.training] += 1
        return self.layers(images)


def detector(classes: int) -> nn.Module:
    """A Faster R-CNN of torchvision's with two convolutions, for images some 50 pixels wide."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    backbone: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.ReLU(),
    )
    backbone.out_channels = 8
    return FasterRCNN(
        backbone,
        classes + 1,
        min_size=48,
        max_size=96,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        rpn_anchor_generator=AnchorGenerator(((12, 24),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], output_size=2, sampling_ratio=2),
        rpn_post_nms_top_n_train=20,
        rpn_post_nms_top_n_test=20,
        box_batch_size_per_image=16,
        box_score_thresh=0.0,
        # MultiScaleRoIAlign keeps the scale that it takes from the sizes of its first batch. With
        # padding to 32, of images so small, another first batch would have another scale.
        size_divisible=8,
    )


@dataclass(frozen=True)
class Job:
    settings: dict[str, Any]
    dropout: float = 0.0
    normalise: bool = False
    spare: bool = False
    own: bool = True
    """Whether the network is one of this file, or the one that the settings name."""
    detects: int = 0
    """Classes of `detector`, where that is the network."""
    fault: dict[str, Any] | None = field(default=None)

    def run(self, summary: Path | None = None) -> None:
        from fastload.train import components

        torch.set_num_threads(1)
        fault = None if self.fault is None else Fault(**self.fault)
        if self.detects:
            components.create_model = lambda *args, **kwargs: detector(self.detects)
        elif self.own:
            components.create_model = lambda *args, **kwargs: Network(
                dropout=self.dropout, normalise=self.normalise, spare=self.spare, fault=fault
            )
        found = train(merged(self.settings))
        if summary is not None:
            summary.write_text(found.to_json())


def _rank_main(job: Job, variables: Mapping[str, str], path: Path) -> None:
    os.setpgid(0, 0)
    output = os.open(path.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115, multiprocessing's may be anything
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.update(variables)
    torch.set_num_threads(1)
    job.run(path.with_suffix(".json"))


def start(job: Job, folder: Path, *, ranks: int = 1) -> list[BaseProcess]:
    """Start the ranks; what they print is in rank0.txt and so on, their summaries in rank0.json."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = warm.ranks(ranks) if ranks > 1 else [{}]
    found = []
    for rank in range(ranks):
        process = warm.CONTEXT.Process(
            target=_rank_main, args=(job, variables[rank], folder / f"rank{rank}")
        )
        process.start()
        found.append(process)
    return found


def finish(processes: Iterable[BaseProcess], *, within: float = LIMIT) -> list[int]:
    """The exit codes, a signal's negative."""
    deadline = time.monotonic() + within
    codes = []
    processes = list(processes)
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
            codes.append(None)
        else:
            codes.append(process.exitcode)
    assert None not in codes, f"still running after {within} s: {codes}"
    return codes


def run(job: Job, folder: Path, *, ranks: int = 1) -> dict[str, Any]:
    """To its end, which must be a good one. Returns the summary of rank 0."""
    codes = finish(start(job, folder, ranks=ranks))
    assert codes == [0] * ranks, "".join(said(folder, rank) for rank in range(ranks))
    for rank in range(ranks):
        assert not re.search("Traceback|Warning", said(folder, rank)), said(folder, rank)
    return json.loads((folder / "rank0.json").read_text())


def said(folder: Path, rank: int = 0) -> str:
    return (folder / f"rank{rank}.txt").read_text()


def to_json(job: Job) -> str:
    return json.dumps(asdict(job))


if __name__ == "__main__":
    from torch.distributed.elastic.multiprocessing.errors import record

    record(Job(**json.loads(Path(sys.argv[1]).read_text())).run)()
