"""timm's loaders: adopted as they are without the prefetcher, through its `.loader` with it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import fastload
from tests.clients.processes import result, run_script
from tests.images import write_photo_folder

data = pytest.importorskip("timm.data", reason="pip install .[integrations]")


def made(folder: Path, *, prefetcher: bool) -> Any:
    return data.create_loader(
        data.ImageDataset(str(folder)),
        (3, 32, 32),
        2,
        is_training=False,
        num_workers=0,
        use_prefetcher=prefetcher,
        device=torch.device("cpu"),
        persistent_workers=False,
    )


# timm leaves the files that it opens to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_batches_are_those_of_timm(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path)
    plain = made(folder, prefetcher=False)
    wrapped = made(folder, prefetcher=True)
    expected, expected_wrapped = list(plain), list(wrapped)
    assert fastload.from_dataloader(wrapped) is wrapped
    assert isinstance(wrapped.loader, fastload.Loader)
    with fastload.from_dataloader(plain) as loader, wrapped.loader:
        for ours, theirs in ((list(loader), expected), (list(wrapped), expected_wrapped)):
            assert len(ours) == len(theirs) == 3
            for (images, labels), (other_images, other_labels) in zip(ours, theirs, strict=True):
                # Without the prefetcher and its collate function the images are made natively,
                # within 2 of 255.
                assert (images.float() - other_images.float()).abs().mean() < 0.02
                assert torch.equal(labels, other_labels)


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_the_prefetchers_batches_are_made_natively_unless_they_are_mixed(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path)
    wrapped = made(folder, prefetcher=True)
    theirs = list(wrapped.loader)
    with fastload.from_dataloader(wrapped.loader) as loader:
        assert "turbojpeg" in str(loader.explain()).splitlines()[0]
        for (images, labels), (other_images, other_labels) in zip(loader, theirs, strict=True):
            assert (images.shape, images.dtype, labels.dtype) == (
                other_images.shape,
                torch.uint8,
                torch.int64,
            )
            assert images.stride() == other_images.stride()
            assert (images.float() - other_images.float()).abs().mean() < 2
            assert torch.equal(labels, other_labels)
    mixing = data.FastCollateMixup(mixup_alpha=1.0, num_classes=4)
    floats = data.create_transform((3, 32, 32))
    for dataset, collate in (
        (data.ImageDataset(str(folder), transform=floats), wrapped.loader.collate_fn),
        (wrapped.loader.dataset, mixing),
    ):
        with fastload.from_dataloader(DataLoader(dataset, 2, collate_fn=collate)) as loader:
            explained = " ".join(str(loader.explain()).split())
        assert explained.startswith("backend torch")
        assert (
            "leave it out, or give from_dataloader a function of whole batches, batch_transform"
            in explained
        )
        assert ("FastCollateMixup" if collate is mixing else "fast_collate") in explained


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("workers", [0, 1])
def test_mixup_is_turned_off_as_under_timm(tmp_path: Path, workers: int) -> None:
    made = data.create_loader(
        data.ImageDataset(str(write_photo_folder(tmp_path))),
        (3, 32, 32),
        2,
        is_training=True,
        no_aug=True,
        num_workers=workers,
        collate_fn=data.FastCollateMixup(mixup_alpha=1.0, num_classes=4, label_smoothing=0.0),
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    made.loader = fastload.from_dataloader(made.loader)
    with made.loader:
        assert made.mixup_enabled
        assert any(labels.max(1).values.min() < 1 for _, labels in made), "mixed"
        made.mixup_enabled = False
        assert not made.mixup_enabled
        assert all(labels.max(1).values.min() == 1 for _, labels in made), "one class each"


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_steps_and_figures_of_two_processes_are_those_of_timm(tmp_path: Path) -> None:
    run_script("timm_loop.py", str(tmp_path), ranks=2)
    ranks = [result(tmp_path, "found", rank) for rank in range(2)]
    for count, prefetcher in itertools.product((16, 17, 37), (True, False)):
        trained: list[list[int]] = [[], []]
        for found in ranks:
            plain, ours = (found[f"{way} {count} {prefetcher}"] for way in ("plain", "ours"))
            assert ours["length"] == plain["length"]
            assert [list(map(len, epoch)) for epoch in ours["seen"]] == [
                list(map(len, e)) for e in plain["seen"]
            ]
            assert ours["figures"] == plain["figures"]
            assert ours["pixels"] == plain["pixels"]
            for epoch, batches in enumerate(ours["seen"]):
                trained[epoch] += [index for batch in batches for index in batch]
        for epoch_seen in trained:
            # timm leaves out what fills no batch of training.
            assert len(set(epoch_seen)) == len(epoch_seen) == 8 * (-(-count // 2) // 4)
        assert trained[0] != trained[1]
