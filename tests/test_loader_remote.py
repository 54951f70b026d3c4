"""Images in a store: how far past the end of an epoch they are read, and what does not decode."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.pixels_native import NativePixels
from fastload.errors import ConfigurationError
from fastload.loader.production import Prefetcher, State
from fastload.sources import open_source
from fastload.stores.tier import digest_of, tier
from tests import images
from tests.objectserver import ObjectServer
from tests.waiting import wait_until

RESIZE = v2.Resize((16, 16))
OPAQUE = v2.Compose([RESIZE, v2.Lambda(lambda image: image)])
IMAGES, BATCH = 16, 2
SHARE = 8
"""The part of an epoch that may be read past its end."""


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier keeps nothing on a disk that is 95% full, as this machine's may be."""
    usage = SimpleNamespace(total=1 << 40, used=0, free=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.fixture
def local(tmp_path: Path, server: ObjectServer) -> Path:
    """Two classes of photographs, here and in `s3://bucket/train`."""
    folder = images.write_photo_folder(
        tmp_path / "data" / "train", classes=2, per_class=IMAGES // 2
    )
    for path in folder.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    return folder


def reads(server: ObjectServer) -> int:
    return sum(method == "GET" and path.endswith(".jpg") for method, path, _ in server.requests)


def rows(loader: Any) -> list[torch.Tensor]:
    return [row for batch, _ in loader for row in batch]


@pytest.mark.whole
@pytest.mark.parametrize("options", [{}, {"backend": "torch", "num_workers": 0}])
def test_little_is_read_past_the_end_of_an_epoch_where_nothing_keeps_it(
    options: dict[str, Any], local: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    arguments = {"transform": RESIZE, "shuffle": True, **options}
    with fastload.create_loader(local, BATCH, **arguments) as plain:
        epochs = [rows(plain) for _ in range(3)]
    with fastload.create_loader("s3://bucket/train", BATCH, **arguments) as loader:
        assert f"at most {IMAGES // BATCH // SHARE} batch before" in loader.explain()
        for number, right in enumerate(epochs):
            server.requests.clear()
            found = rows(loader)
            assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
            # Those of the epoch, of which some were read before it began; and some past its end.
            assert reads(server) <= IMAGES + IMAGES // SHARE, number
        iterator = iter(loader)  # An epoch that is left, and one that begins after it.
        next(iterator)
        assert len(rows(loader)) == IMAGES


@pytest.mark.whole
def test_what_is_kept_is_read_as_far_ahead_as_there_is_room(
    local: Path, server: ObjectServer
) -> None:
    with fastload.create_loader("s3://bucket/train", BATCH, transform=RESIZE) as loader:
        server.requests.clear()
        for _ in range(2):
            assert len(rows(loader)) == IMAGES
        assert "each image once" in loader.explain()
    assert reads(server) == IMAGES


@pytest.mark.whole
@pytest.mark.parametrize("tier_size", ["0", "1GB"])
def test_the_first_batch_is_read_before_others_are_asked_for(
    tier_size: str, local: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", tier_size)
    paths = sorted(local.rglob("*.jpg"))[:BATCH]
    names = [f"bucket/train/{path.relative_to(local)}" for path in paths]
    with fastload.create_loader("s3://bucket/train", BATCH, transform=RESIZE) as loader:
        server.requests.clear()
        server.faults[names[0]] = ["503"]  # so that it is asked for twice
        next(iter(loader))
    asked = [path[1:] for method, path, _ in server.requests if method == "GET"]
    assert sorted(asked[: BATCH + 1]) == sorted([names[0], *names])


@pytest.mark.parametrize("tier_size", ["0", "1GB"])
def test_the_first_batch_is_read_by_small_tasks_and_others_by_large_ones(
    tier_size: str, tmp_path: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", tier_size)
    folder = images.write_photo_folder(tmp_path / "train", classes=1, per_class=2)
    kept = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
    for number in range(160):
        server.objects[f"bucket/train/a/{number:03}.jpg"] = kept[number % 2]
    tasks: list[list[int]] = [[], []]
    start = NativePixels._start_reading

    def noted(self: NativePixels, work: Any, *others: Any) -> Any:
        parts = start(self, work, *others)
        tasks[not work.draws.waited_for] = [part.first for part in parts]
        return parts

    monkeypatch.setattr(NativePixels, "_start_reading", noted)
    with fastload.create_loader("s3://bucket/train", 80, transform=RESIZE, num_workers=2) as loader:
        first, second = (images for images, _ in loader)
    assert torch.equal(first, second)
    assert tasks == [[0, 16, 32, 48, 64], [0, 64]]


@pytest.mark.whole
@pytest.mark.parametrize(("batches", "in_flight"), [("1 byte", 1), ("3", 3)])
def test_batches_ahead_are_bounded_in_bytes(
    batches: str, in_flight: int, local: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the listing says how many bytes objects have, and then the index."""
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    with fastload.create_loader(local, BATCH, transform=RESIZE) as plain:
        right = rows(plain)
    paths = sorted(local.rglob("*.jpg"))
    for path in paths:  # all of one length
        size = max(each.stat().st_size for each in paths)
        data = path.read_bytes().ljust(size, b"\0")
        server.objects[f"bucket/train/{path.relative_to(local)}"] = data
    most = 1 if batches == "1 byte" else in_flight * BATCH * size + BATCH
    monkeypatch.setenv("FASTLOAD_READ_AHEAD", f"{most}B")
    for _ in range(2):
        with fastload.create_loader("s3://bucket/train", BATCH, transform=RESIZE) as loader:
            assert f"at most {most / 1e9:.1f} GB at once" in loader.explain()
            server.faults.update({name: ["slow"] for name in server.objects})
            server.slow_at_once = 0
            found = rows(loader)
        assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
        assert 0 < server.slow_at_once <= in_flight * BATCH


def test_a_bound_that_is_no_number_of_bytes(
    local: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_READ_AHEAD", "much")
    with pytest.raises(ConfigurationError, match="FASTLOAD_READ_AHEAD='much'"):
        fastload.create_loader("s3://bucket/train", BATCH, transform=RESIZE)


@pytest.mark.whole
def test_nothing_of_an_epoch_after_the_last_one_is_fetched(
    local: Path, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    arguments: dict[str, Any] = {"transform": RESIZE, "shuffle": True}
    with fastload.create_loader(local, BATCH, **arguments) as plain:
        epochs = [rows(plain) for _ in range(3)]
    arguments["options"] = fastload.BackendOptions(last_epoch=1)
    with fastload.create_loader("s3://bucket/train", BATCH, **arguments) as loader:
        assert "nothing of an epoch after 1" in loader.explain()
        server.requests.clear()
        found = [rows(loader) for _ in range(2)]
        maker = loader._progress.feed._maker
        assert isinstance(maker, Prefetcher)
        # It has nothing to do, and not only to wait for the trainer.
        wait_until(lambda: maker.state is State.WAITING)
        assert reads(server) == 2 * IMAGES
        found.append(rows(loader))  # which is asked for nevertheless
        assert reads(server) == 3 * IMAGES
    for right, each in zip(epochs, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(each, right, strict=True))


def poison(column: Any, row: int) -> None:
    """As a fastload kept it that took whatever came for an image."""
    kept, wanted = tier(), column.range_of(row)
    assert kept is not None
    kept.put(digest_of(wanted.name, *wanted[1:]), b"<html>Log in</html>")
    wait_until(lambda: not kept._looking)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backend": "torch", "num_workers": 0},
        {"backend": "torch", "num_workers": 0, "transform": OPAQUE},
    ],
)
def test_what_does_not_decode_is_fetched_once_more(
    options: dict[str, Any], local: Path, server: ObjectServer
) -> None:
    arguments = {"transform": RESIZE, **options}
    with fastload.create_loader(local, BATCH, **arguments) as plain:
        right = rows(plain)
    opened = open_source("s3://bucket/train")
    with fastload.create_loader(opened, BATCH, **arguments) as loader:
        assert len(rows(loader)) == IMAGES  # all are kept
    for row in (3, 8, 9):
        poison(opened.source.columns["image"], row)
    server.requests.clear()
    with fastload.create_loader(opened, BATCH, **arguments) as loader:
        found = rows(loader)
        assert loader.stats().substituted == 0
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    assert reads(server) == 3
