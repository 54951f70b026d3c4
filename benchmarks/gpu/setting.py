"""What every part is given, and what it finds: each is a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from msgspec import structs

from fastload.tools.measure.child import report
from fastload.tools.measure.results import Measurement, Parameter, Round
from fastload.tools.measure.rounds import status_of


@dataclass(frozen=True)
class Setting:
    """The defaults are those of a measurement on a large GPU; `DRY` has the smallest ones that run
    all of the code."""

    device: str = "cuda"
    photos: str = ""  # a folder of class folders of JPEG files
    kept: str = ""  # where backends keep what they make of them; the cache is there already
    out: str = ""  # where pictures and logs go
    jpeg_headers: str = ""  # where headers for the native core may lie, if the system has none
    only: tuple[
        str, ...
    ] = ()  # contestants of a process that may die; empty: all those that may not
    images: int = 8192  # files an epoch; fewer photographs are repeated under other names
    batch_size: int = 256
    size: int = 224  # side of the images that the networks see [pixels]
    short_side: int = 256  # of the cached images [pixels]
    # Of torchvision, in the order in which they are measured.
    networks: tuple[str, ...] = (
        "resnet50",
        "resnet18",
    )
    compile: bool = True
    dataloader_workers: tuple[int, ...] = (0, 4, 16)
    rounds: int = 2  # at most; the time of the part may end before
    turn_seconds: float = 2.5  # of one contestant in one round
    pairs: int = 12  # of turns of the two best feeds, at most: rounds cannot tell 99.5% from 99%
    pair_seconds: float = 2.0  # of one turn of a pair
    profile_seconds: float = 1.0  # of one contestant under torch.profiler
    kept_steps: int = 100  # how long a batch is kept while the trainer works
    check_batch_size: int = 64  # of the checks of correctness
    contract: str = ""  # chooses among the contract tests, as pytest's -k; empty: all
    threads: tuple[int, ...] = (1, 2, 4, 8, 16)  # of the loader: decoding and interference
    rate_seconds: float = 1.2  # of measuring one rate, where no network is trained
    soak_seconds: float = 120.0  # over many ends of epochs
    core_counts: tuple[int, ...] = (1, 2, 4, 8)  # that a process may use: "cores needed for 99.5%"
    cores: int = 0  # that this process may use; 0: all
    way: str = ""  # of a training, in which this process is fed
    loaders: tuple[int, ...] = (1, 2, 4, 8)  # processes that share the cores
    trainer_steps: int = 24  # of each way of the reference trainer
    small_images: int = 50_000  # of 32x32
    small_batch_sizes: tuple[int, ...] = (512, 2048, 8192, 32768)
    small_training_batch_size: int = 512
    small_training_steps: int = 300  # of one turn
    small_training_turns: int = (
        40  # pairs of turns, at most: until the share of a step is known well enough
    )

    def where(self) -> torch.device:
        """The device, with its number."""
        device = torch.device(self.device)
        return torch.device("cuda", device.index or 0) if device.type == "cuda" else device

    @property
    def gpu(self) -> bool:
        return self.where().type == "cuda"


FULL = Setting()
DRY = replace(
    FULL,
    device="cpu",
    images=24,
    batch_size=4,
    size=32,
    short_side=48,
    networks=("shufflenet_v2_x0_5",),
    compile=False,
    dataloader_workers=(0, 1),
    rounds=1,
    turn_seconds=0.3,
    pairs=2,
    pair_seconds=0.2,
    profile_seconds=0.2,
    kept_steps=4,
    check_batch_size=4,
    contract="resume_from_every_step or agree_on_every_random",
    threads=(1, 2),
    rate_seconds=0.1,
    soak_seconds=2.0,
    core_counts=(1, 2),
    loaders=(1, 2),
    trainer_steps=4,
    small_images=512,
    small_batch_sizes=(64, 256),
    small_training_batch_size=8,
    small_training_steps=3,
    small_training_turns=3,
)


class Found:
    """What a part has found so far. The parent gets it at once: a part that is killed leaves
    what it had."""

    def __init__(self, seconds: float) -> None:
        """
        Args:
            seconds: that the part may take.
        """
        self.rows: dict[object, Measurement] = {}
        self.notes: list[str] = []
        """What a reader must know about the figures."""
        self.deadline = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Time that the part has left [seconds]."""
        return self.deadline - time.monotonic()

    def save(self, row: Measurement) -> None:
        """Add a row, or replace the one with the same key."""
        self.rows[row.key] = row
        report(row)

    def attempt(
        self,
        contestant: str,
        mode: str,
        work: Callable[[], Round | Mapping[str, float | None]],
        parameters: Mapping[str, Parameter] = {},
        *,
        least: float = 2.0,
        note: Callable[[], str] = str,
    ) -> None:
        """Add the row of one round of what `work` gives: a rate, or further figures alone.

        What it raises is the row's note, for the others are still to be measured.

        Args:
            least: seconds that must be left for it.
            note: asked when it is done.
        """
        row = Measurement(contestant, mode, parameters, status="not run", note="no time was left")
        if self.left >= least:
            try:
                done = work()
                done = done if isinstance(done, Round) else Round(0, 0.0, 0.0, done)
                row = structs.replace(row, status="measured", note=note(), rounds=(done,))
            except Exception as error:
                status, words = status_of(error)
                row = structs.replace(row, status=status, note=words)
        self.save(row)

    def note(self, text: str) -> None:
        self.notes.append(text)
        report(text)
