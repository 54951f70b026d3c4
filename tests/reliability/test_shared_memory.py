"""The shared memory of a container, 64 MB by default, and worker processes whose batches get lost
on the way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, FastloadError
from tests import images
from tests.reliability.outside import mounting, outside

SMALL = ("mount -t tmpfs -o size=64m tmpfs /dev/shm",)


def iterate(folder: str, side: int, opaque: bool) -> list[Any]:
    """(kind of error, words) or ("done", samples)."""
    source = images.write_photo_folder(Path(folder, "data"), per_class=64, size=(24, 24))
    transform: Any = v2.Resize((side, side))
    if opaque:
        resize = v2.Compose([v2.ToImage(), v2.Resize((side, side))])

        def transform(image: Any) -> Any:
            return resize(image)

    loader = fastload.create_loader(source, 16, backend="torch", num_workers=2, transform=transform)
    try:
        return ["done", sum(len(labels) for _, labels in loader)]
    except FastloadError as error:
        return [type(error).__name__, str(error)]


@mounting
def test_too_little_is_said_before_a_worker_starts(tmp_path: Path) -> None:
    ended = outside(iterate, str(tmp_path), 640, False, mounts=SMALL)
    kind, words = ended.answer
    assert kind == "ConfigurationError"
    for part in ("19.7 MB", "5 batches", "--shm-size", "--ipc=host", "prefetch_factor=1"):
        assert part in words
    assert not ended.survivors


@mounting
def test_enough_is_enough(tmp_path: Path) -> None:
    assert outside(iterate, str(tmp_path), 128, False, mounts=SMALL).answer == ["done", 128]


@mounting
def test_what_no_check_can_know(tmp_path: Path) -> None:
    """Batches of the user's own code are of no known size: the error comes when there is no room,
    and it comes."""
    ended = outside(iterate, str(tmp_path), 1024, True, mounts=SMALL)
    kind, words = ended.answer
    assert kind in ("WorkerError", "DecodeError", "ConfigurationError")
    assert "shared memory" in words or "/dev/shm" in words
    assert not ended.survivors


class Lost(torch.utils.data.Dataset[Any]):
    """One of its batches cannot be sent."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3), index


class Unsendable:
    def __reduce__(self) -> Any:
        raise RuntimeError("this cannot be sent")


def collate(samples: list[Any]) -> Any:
    return [sample[1] for sample in samples] if samples[0][1] < 32 else Unsendable()


def lose_a_batch() -> list[str]:
    with fastload.create_loader(
        Lost(), 4, backend="torch", num_workers=2, collate_fn=collate
    ) as loader:
        try:
            return [str(len(list(loader)))]
        except FastloadError as error:
            return [type(error).__name__, str(error)]


def test_a_batch_that_cannot_be_sent_is_an_error() -> None:
    """torch's worker prints what went wrong, and its trainer waits for ever."""
    ended = outside(lose_a_batch)
    assert ended.answer[0] == "WorkerError"
    assert "this cannot be sent" in ended.output
    assert not ended.survivors


def run_short_of_descriptors(folder: str) -> list[Any]:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    return iterate(folder, 64, False)


def test_256_descriptors(tmp_path: Path) -> None:
    assert outside(run_short_of_descriptors, str(tmp_path)).answer == ["done", 128]


def test_the_check_leaves_alone_what_fits(tmp_path: Path) -> None:
    source = images.write_photo_folder(tmp_path / "data")
    loader = fastload.create_loader(
        source, 2, backend="torch", num_workers=1, transform=v2.Resize((16, 16))
    )
    with loader:
        assert len(list(loader)) == 3
    assert issubclass(ConfigurationError, FastloadError)
    assert os.path.exists("/dev/shm")
