"""`from_dataloader`: the one-line change for code that already has a DataLoader."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from fastload.arguments import checks_names
from fastload.backends.base import BackendOptions
from fastload.compat.handover import adopted_inside
from fastload.compat.torchdata import is_stateful
from fastload.errors import OnError
from fastload.loader.adoption import config_of, on_device
from fastload.loader.config import MOVED
from fastload.loader.loader import Loader
from fastload.sampler import Shard

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from fastload.sampler.mesh import MeshShard

logger = logging.getLogger("fastload")


@checks_names(MOVED)
def from_dataloader(
    existing: DataLoader[Any],
    *,
    backend: str = "auto",
    device: str | torch.device = "cpu",
    batch_transform: Any = None,
    seed: int | None = None,
    shard: Shard | MeshShard | DeviceMesh | ProcessGroup | str | Sequence[str] | None = None,
    exact_evaluation: bool = False,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    on_error: OnError = "raise",
    options: BackendOptions | None = None,
    assume_plain: bool = False,
) -> Loader:
    """A Loader that yields what this DataLoader would, faster.

    It stays the user's DataLoader: `loader.existing` is that object, the attributes of the Loader
    are its attributes, for reading and writing, methods of a subclass are called on it, and
    `isinstance(loader, TheirClass)` holds. At each `iter()` it is read again: data set, samplers,
    batch sizes, collate function, workers, epochs, generators. None of its workers is started.

    What changes is logged and listed by `explain()`. Random orders that torch draws from its global
    generator, and random choices, come from fastload's seed: they have the same distribution as
    torch's, but are not the same. All other orders are those of the sampler. Images are contiguous
    unless `memory_format` says otherwise, so that code with `.view` still works.

    Args:
        existing: a torch.utils.data.DataLoader. Over an IterableDataset batches come as it gives
            them, and resuming reads up to the saved position. A StatefulDataLoader of torchdata is
            continued at its position, if its order is not random. Of a framework that puts an
            object of its own around a DataLoader (Accelerate's DataLoaderShard and
            DataLoaderDispatcher, Fabric's, Ray Train's, timm's PrefetchLoader, DeepSpeed's), that
            object: the Loader takes the place of the DataLoader in it, and it is returned itself.
        backend: "auto", or the name of one, as in `create_loader`.
        device: where the batches are delivered.
        batch_transform: of whole batches, on the device, as in `create_loader`.
        seed: None takes that of the DistributedSampler, of the loader's generator, or of
            `torch.manual_seed`.
        shard: None takes that of the DistributedSampler. Without one, a DataLoader gives every rank
            all samples, and so does this: 0 of 1; on several ranks the first `iter()` warns of it.
            A `fastload.Shard`, a mesh or group as in `create_loader`, or "auto" for the rank that
            is found at the first `iter()`, divides them.
        exact_evaluation: serve every sample once, where a DistributedSampler (or `shard`) would
            repeat or drop some to make the ranks equal; the last batch may then differ in size from
            rank to rank, and be empty.
        dtype: of the images delivered, as in `create_loader`. None: the transform's.
        memory_format: of the images delivered. None: contiguous.
        on_error: "raise", or "substitute", as in `create_loader`.
        options: of the backend, as in `create_loader`.
        assume_plain: your word that the data set only gives the images that it lists, by its
            `transform`, so that fastload may read them, although it does not know the data set's
            code. See `open_source`.

    Raises:
        ConfigurationError: something whose meaning could not be kept: a subclass that overrides
            iteration, or what needs samples by index, of an IterableDataset. The message names it.
        FastloadError: everything that `create_loader` raises.
        Exception: whatever the dataset's or the transform's own code raises, as it is.
    """
    arguments = {
        "backend": backend,
        "device": device,
        "batch_transform": batch_transform,
        "seed": seed,
        "shard": shard,
        "exact_evaluation": exact_evaluation,
        "dtype": dtype,
        "memory_format": memory_format,
        "on_error": on_error,
        "options": options,
        "assume_plain": assume_plain,
    }
    return adopted_inside(existing, functools.partial(_adopted, arguments))  # type: ignore[no-any-return]


def _adopted(
    arguments: Mapping[str, Any], existing: DataLoader[Any], device: torch.device | None
) -> Loader:
    """See `config_of`. One that was adopted with these arguments stays: Hugging Face's Trainer
    keeps the loaders of persistent workers, and gives them to the script's method again."""
    if type(existing) is Loader:
        adoption = existing.config.adoption
        if adoption is not None and adoption.arguments == on_device(arguments, device):
            return existing
    config = config_of(arguments, existing, device)
    for note in config.notes:
        logger.info("from_dataloader %s", note)
    loader = Loader(config)
    if is_stateful(existing) and getattr(existing, "_iterator", None) is not None:
        loader.load_state_dict(existing.state_dict())  # type: ignore[attr-defined]  # goes on where that one is
    return loader
