"""`create_loader`: a Loader from the arguments that a DataLoader has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from fastload.backends.base import BackendOptions
from fastload.errors import OnError
from fastload.loader.choices import Place
from fastload.loader.config import LoaderConfig
from fastload.loader.loader import Loader
from fastload.recipe import Recipe
from fastload.sampler import Shard


def create_loader(
    source: Any,
    batch_size: int = 1,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
    transform: Callable[..., Any] | Recipe | None = None,
    batch_transform: Callable[..., Any] | None = None,
    backend: str = "auto",
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    pin_memory: bool | None = None,
    sampler: Iterable[int] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    collate: Literal["detr", "torchvision", "yolo"] | Callable[[dict[str, Any]], Any] | None = None,
    seed: int = 0,
    shard: Shard | Literal["auto"] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.channels_last,
    on_error: OnError = "raise",
    tune: bool = False,
    place: Place = "auto",
    options: BackendOptions | None = None,
    split: str | None = None,
    strict: bool = False,
    format: str | None = None,
    assume_plain: bool = False,
    generator: torch.Generator | None = None,
    batch_sampler: Iterable[list[int]] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: Any = None,
    timeout: float = 0.0,
    persistent_workers: bool = True,
    in_order: bool = True,
    pin_memory_device: str = "",
) -> Loader:
    """Make a Loader. Names and defaults are those of torch.utils.data.DataLoader where it has them.

    Args:
        source: a folder of classes, a folder with `images/` and `masks/`, images with a table of
            their labels, CIFAR or IDX files, `.tar` shards, a built cache, arrays or tensors (a
            tuple (images, labels), or a dict), `.npy` files, or any map-style Dataset.
        batch_size: samples a batch on this rank.
        shuffle: a new order every epoch, from (seed, epoch).
        drop_last: leave out the last, incomplete global batch. If False, every sample comes exactly
            once an epoch, and the last batch is divided among the ranks. If that batch has fewer
            samples than there are ranks and the order is not shuffled: with `shard=Shard(...)` some
            ranks get an empty batch (B = 0); with `shard=None` or "auto" they get samples of the
            batch before it.
        transform: torchvision transforms (v2 or v1), a Recipe, or any function of one sample's
            image. None: the dataset's own transform, or else uint8 pixels without changes.
        batch_transform: torchvision v2.MixUp or CutMix, whose random numbers then depend on (seed,
            epoch, batch) alone; or any function of the batch's parts. Runs on the device.
        backend: "auto", "torch", "turbojpeg", "cache", "dali", or one registered by a third party.
        num_workers: how many threads or processes. None: chosen for this machine.
        prefetch_factor: batches that each worker makes ahead. None: chosen by the backend.
        pin_memory: use page-locked host memory. None: if `device` is a GPU.
        sampler: the indices of this rank, in order; in place of `shuffle`. One of a class that is
            not known is read as far ahead as a DataLoader with these `num_workers` and
            `prefetch_factor` reads it, None counting as 0 workers: it may look at what the trainer
            does.
        collate_fn: makes a batch from a list of samples. Only a backend that runs Python on single
            samples can call it.
        collate: the form of batches of images with boxes (`docs/detection.md`): "torchvision", a
            list of images and a list of dicts; "detr", images, a mask of padding and a list of
            dicts; "yolo", images and (T, 6) targets. Or a function of the columns of a finished
            batch by name, on `device`, called by the thread that makes it. None: a list or dict of
            the columns.
        seed: the order and every random choice follow from it.
        shard: this process's rank among those that share the data. None: from torch.distributed,
            else from torchrun's environment, else 0 of 1. "auto": the same, but read at the first
            `iter()`, for loaders that are made before `init_process_group`.
        device: where the batches are delivered.
        dtype: dtype of the images delivered; values keep their range. None: the transform's (uint8
            if it converts nothing).
        memory_format: memory format of the images delivered.
        on_error: "raise"; or "substitute": replace a sample that cannot be read by another sample
            of this rank, log it once, and count it in `stats()`.
        tune: with backend="auto", choose by measuring the candidates on this data for some seconds;
            likewise the place, with place="auto".
        place: where the operations of colour run that a batch of uint8 images begins with
            (ColorJitter, RandomGrayscale, GaussianBlur, RandAugment, TrivialAugmentWide, AugMix,
            RandomApply of these). "device": there, after the copy. "host": before it, by the
            threads of the native core, with the same pixels as on a CPU. "auto": on the device, or
            by `tune`; `explain()` says which.
        options: the chosen backend's options (a frozen dataclass), or a BackendOptions, which holds
            the options that all backends have.
        split: which part of a source that has several: "train", "val", "test". None: all of it; of
            CIFAR, IDX and archives of splits, the training part.
        strict: refuse a data set some of whose files are not served (formats that Pillow cannot
            read, images without a label). False: `explain()` counts and names them, once.
        format: what the source is, where its names leave that open: "folder" (one folder a
            class), "images" (without labels), "table", "pairs", "coco", "voc", "yolo", "tar",
            "parquet", "cifar", "idx", "arrays", "dataset", "cache", or a registered one. None: it
            is recognised.
        assume_plain: your word that a torch Dataset whose code fastload does not know only gives
            the images that it lists (`samples`, a list of (path, label), or those of a data set in
            it), by its `transform`. So images are read by fastload, and its code is skipped. Labels
            come from its code where that can make them without images: it is asked for those of an
            epoch when that starts. The first sample of each epoch, and 1 in 200, are made by its
            code as well; where one differs, the next `next()` raises a ConfigurationError that
            names it.
        generator: a torch.Generator whose seed is taken in place of `seed`; no number is drawn from
            it.
        batch_sampler: this rank's own batches, lists of indices, in place of batch_size, shuffle,
            sampler, drop_last.
        worker_init_fn, multiprocessing_context, timeout: settings of worker processes, as in
            DataLoader. A backend that uses threads has none, and `explain()` says so.
        persistent_workers, in_order: must be True: workers live as long as the Loader, and batches
            come in order.
        pin_memory_device: must be ""; give `device` instead.

    Returns:
        A Loader that yields [images, labels] on `device`: images (B, C, H, W), labels (B,) int64,
        masks (B, H, W) uint8. A batch is a list where a sample is a tuple, as torch's
        `default_collate` makes it, and a dict where the source has named columns.

    Raises:
        ConfigurationError: an argument is wrong, or cannot have an effect.
        SourceError: the data cannot be opened as a data set.
        UnsupportedTransformError: the backend asked for cannot run this transform; the message
            names those that can.
        BackendUnavailableError: the backend's package is not installed.
    """
    return Loader(LoaderConfig.of_arguments(**locals()))
