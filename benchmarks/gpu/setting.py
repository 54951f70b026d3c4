"""What all parts are given: sizes, folders, the device. Plain values, because every part is a process of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch

__all__ = ["DRY", "FULL", "Setting"]


@dataclass(frozen=True)
class Setting:
    """The defaults are those of a measurement on a large GPU; `DRY` has the smallest ones that run all of the code."""

    device: str = "cuda"
    photos: str = ""
    """A folder of class folders of JPEG files."""
    cache: str = ""
    """The folder of fastload's cache of them."""
    out: str = ""
    """Where pictures and logs go."""
    images: int = 8192
    """Files an epoch; fewer photographs are repeated under other names."""
    batch_size: int = 256
    size: int = 224
    """Side of the images that the networks see [pixels]."""
    short_side: int = 256
    """Of the cached images [pixels]."""
    networks: tuple[str, ...] = ("resnet50", "resnet18")
    """Of torchvision, in the order in which they are measured."""
    compile: bool = True
    dataloader_workers: tuple[int, ...] = (0, 4, 16)
    rounds: int = 3
    """At most; the time of the part may end before."""
    turn_seconds: float = 2.5
    """Of one contestant in one round."""
    profile_seconds: float = 1.0
    """Of one contestant under torch.profiler."""
    kept_steps: int = 100
    """How long a batch is kept while the trainer works."""
    check_batch_size: int = 64
    """Of the checks of correctness."""
    contract: str = ""
    """Chooses among the contract tests, as pytest's -k. Empty: all."""
    threads: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Of the loader: decoding and interference."""
    rate_seconds: float = 1.2
    """Of measuring one rate, where no network is trained."""
    small_images: int = 50_000
    """Of 32x32."""
    small_batch_sizes: tuple[int, ...] = (512, 2048, 8192, 32768)
    small_training_batch_size: int = 512

    def where(self) -> torch.device:
        """The device, with its number."""
        device = torch.device(self.device)
        return torch.device("cuda", device.index or 0) if device.type == "cuda" else device

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(path: Path) -> Setting:
        """What was written by `to_json`."""
        found = json.loads(path.read_text())
        tuples = {field.name for field in fields(Setting) if isinstance(getattr(FULL, field.name), tuple)}
        return Setting(**{name: tuple(value) if name in tuples else value for name, value in found.items()})


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
    profile_seconds=0.2,
    kept_steps=4,
    check_batch_size=4,
    contract="resume_from_every_step or agree_on_every_random",
    threads=(1, 2),
    rate_seconds=0.1,
    small_images=512,
    small_batch_sizes=(64, 256),
    small_training_batch_size=64,
)
