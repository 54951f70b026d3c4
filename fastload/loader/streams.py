"""Data sets that can only be iterated: what a DataLoader of torch makes of them, which epoch they
are in, and where in it a saved state is.

Adopted ones are in the epoch that the script sets. On streaming data sets of Hugging Face that
`create_loader` opens, each epoch is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from fastload.backends.objects import SharedStream, TransformedStream
from fastload.backends.streamed import StreamBackend
from fastload.compat.torchdata import is_stateful
from fastload.errors import ConfigurationError, StateMismatchError
from fastload.fingerprint import fingerprint_of
from fastload.loader.config import LoaderConfig
from fastload.loader.worker_seeds import WorkerSeeds
from fastload.recipe import Recipe
from fastload.sampler import Shard, Shuffle
from fastload.sources.given import is_huggingface_stream
from fastload.sources.huggingface_streams import can_seek, identity_of, split_by_node

_SHUFFLES = "dataset.shuffle(seed=..., buffer_size=...) gives it an order, and each epoch another"


def refuse_of_streams(config: LoaderConfig, *, exact_evaluation: bool = False) -> None:
    """Raise ConfigurationError for what needs samples by index, where there are none."""
    name = type(config.source).__name__
    asked = {
        f"backend: {config.backend!r}": config.backend not in ("auto", StreamBackend.name),
        "exact_evaluation": exact_evaluation,
        "on_error: 'substitute'": config.on_error != "raise",
        "options": config.options is not None,
        "assume_plain": config.assume_plain,
    }
    if not config.adopted:
        asked |= {
            "dtype": config.dtype is not None,
            "sampler": config.sampler is not None,
            "batch_sampler": config.batch_sampler is not None,
            "collate_fn: of columns": config.collate is not None,
            "split": config.split is not None,
            "a Recipe as transform": isinstance(config.transform, Recipe),
        }
    remedy = "Leave it out, or make the data set map-style (__getitem__ and __len__)."
    if config.order is not None:
        argument = "shuffle" if config.order == Shuffle() else "order"
        asked, remedy = {argument: True}, f"Leave it out: {_SHUFFLES}."
    elif not config.adopted and config.prefetch_factor is not None and not config.num_workers:
        asked = {"prefetch_factor without num_workers": True}
        remedy = "Worker processes read ahead: give num_workers, too."
    for argument, given in asked.items():
        if given:
            raise ConfigurationError(
                f"{argument}: {name} is an IterableDataset, of which torch's DataLoader makes "
                f"the batches, one after the other. {remedy}"
            )


def dataloader_of(config: LoaderConfig, shard: Shard) -> DataLoader[Any]:
    """A DataLoader over this rank's part of the data set: like the one that was adopted, or by the
    arguments of `create_loader`. Raises ConfigurationError: the data set is split for others."""
    existing = config.existing
    if existing is not None and shard == Shard() and not is_stateful(existing):
        return existing
    size = None if config.unbatched else config.batch_size
    dataset = config.source
    if is_huggingface_stream(dataset):
        dataset = split_by_node(dataset, shard)
    elif shard.world_size > 1:
        dataset = SharedStream(dataset, shard, size or 1, config.drop_last)
    if existing is not None:
        dataloader: DataLoader[Any] = DataLoader.__new__(DataLoader)
        vars(dataloader).update(vars(existing), dataset=dataset, _iterator=None)
        return dataloader
    if config.transform is not None:
        assert not isinstance(config.transform, Recipe)  # `refuse_of_streams` has refused it.
        moves = Recipe.from_transform(config.transform).moves_pixels
        dataset = TransformedStream(dataset, config.transform, config.seed, moves)
    workers = config.num_workers or 0
    arguments: dict[str, Any] = {
        "num_workers": workers,
        "prefetch_factor": config.prefetch_factor,
        "persistent_workers": workers > 0,
        "worker_init_fn": config.workers.init,
        "multiprocessing_context": config.workers.start_method if workers else None,
        "timeout": config.workers.timeout if workers else 0,
    }
    return DataLoader(
        dataset,
        batch_size=size,
        drop_last=config.drop_last,
        collate_fn=config.collate_fn,
        **arguments,
    )


def fingerprint(dataset: Any) -> str:
    """The fingerprint of what is known of the data set before it is read."""
    name = f"{type(dataset).__module__}.{type(dataset).__name__}"
    known = identity_of(dataset) if is_huggingface_stream(dataset) else ()
    return fingerprint_of("stream", name, *known)


def notes_of(config: LoaderConfig, shard: Shard) -> list[str]:
    """What the user should know, for `explain()`."""
    notes = [f"{type(config.source).__name__}: it can only be iterated"]
    if not is_huggingface_stream(config.source):
        return notes
    if shard.world_size > 1:
        notes.append(
            "shared among the ranks as by datasets.distributed.split_dataset_by_node: they may get "
            "different numbers of batches"
        )
    if not config.adopted:
        notes.append(f"its own order: {_SHUFFLES}")
        if config.num_workers:
            notes.append("each worker reads files of its own: the order depends on num_workers")
    return notes


class StreamPlace:
    """Which epoch a data set is in, and where in it."""

    def __init__(
        self, given: Any, loader: DataLoader[Any], seeds: WorkerSeeds, *, sets_epochs: bool
    ) -> None:
        """`given`: the user's data set, of which the loader serves a part. `sets_epochs`: each is
        set on it."""
        served: Any = loader.dataset
        self._given: Any = given
        self._loader = loader
        self._seeds = seeds
        self._served: Any = served.dataset if isinstance(served, TransformedStream) else served
        self._sets_epochs = sets_epochs
        self._seeks = loader.num_workers == 0 and can_seek(self._served)
        self._began: int | None = None
        """The data set's own epoch when it was last iterated from its start."""
        self._sought: tuple[int, int, Mapping[str, Any]] | None = None
        """(epoch, step, state of the data set) that it goes on with."""

    def choose(self, epoch: int) -> None:
        """Have the data set begin this epoch the next time it is iterated, if it has
        `set_epoch`."""
        for dataset in (self._given, self._served):
            if callable(set_epoch := getattr(dataset, "set_epoch", None)):
                set_epoch(epoch)

    def begin(self, epoch: int, step: int) -> int:
        """It is about to be iterated, up to the batch `step`. Returns the one that comes first."""
        if self._sets_epochs:
            self.choose(epoch)
            # So that nothing is drawn from torch's global generator, which is the trainer's.
            self._loader.generator = self._seeds(epoch)
        elif is_huggingface_stream(self._given) and self._served is not self._given:
            self._served.set_epoch(self._given.epoch)  # the script's
        self._began = self._epoch()
        sought, self._sought = self._sought, None
        if sought is None or sought[:2] != (epoch, step) or sought[2]["epoch"] != self._began:
            return 0
        self._served.load_state_dict(sought[2])
        return step

    def began(self) -> None:
        """It is being iterated: the next time it starts at its beginning."""
        if self._seeks:
            self._served.load_state_dict(None)

    def state(self, at: tuple[int, int], served: tuple[int, int]) -> dict[str, Any]:
        """What a saved state has of the data set. `at`: (epoch, step) where the trainer is;
        `served`: that of the batch that comes next out of the data set."""
        inside = at[1] > 0 and at == served
        epoch = self._began if inside else self._epoch()
        state: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
        if self._sought is not None and self._sought[:2] == at:
            state["position"] = self._sought[2]
        elif inside and self._seeks:
            state["position"] = self._served.state_dict()
        return state

    def load(self, state: Any, at: tuple[int, int]) -> None:
        """Go on where a state of the data set was saved. Raises StateMismatchError: it is none."""
        if not isinstance(state, Mapping):
            raise StateMismatchError(f"state: 'dataset' must be a dict, got {state!r:.80}.")
        epoch, position = state.get("epoch"), state.get("position")
        if epoch is not None:
            if type(epoch) is not int or epoch < 0:
                raise StateMismatchError(f"state: the data set's epoch is {epoch!r}.")
            self.choose(epoch)
        self._sought = None
        if not self._seeks or position is None:
            return  # it is read up to there
        mine = self._served.state_dict()
        if _kind_of(position) != _kind_of(mine):
            raise StateMismatchError(
                f"state: the place in the data set is of {_kind_of(position)}, and this data set "
                f"has {_kind_of(mine)}. Make it in the same way, or start the epoch again with "
                "set_epoch()."
            )
        self._sought = (*at, position)

    def _epoch(self) -> int | None:
        epoch = getattr(self._given, "epoch", None)
        return epoch if type(epoch) is int and hasattr(self._given, "set_epoch") else None


def _kind_of(position: Any) -> list[str]:
    """The types of the nested parts of a state of `datasets`, the outermost first."""
    types, inner = [], position.get("examples_iterable") if isinstance(position, Mapping) else None
    while isinstance(inner, Mapping):
        types.append(str(inner.get("type")))
        inner = inner.get("examples_iterable")
    return types
