"""torchdata: its classes that stand for torch's, and the states of its StatefulDataLoader, both
ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastload.errors import ConfigurationError, StateMismatchError, counted
from fastload.sampler import Order


def is_torchdatas(thing: Any) -> bool:
    """Whether it is one of torchdata's classes that stand for torch's and do the same, or an object
    of one."""
    cls = thing if isinstance(thing, type) else type(thing)
    return cls.__module__.startswith("torchdata.stateful_dataloader")


def is_stateful(loader: Any) -> bool:
    """Whether it is a StatefulDataLoader, which iterates as a DataLoader does and counts."""
    return any(is_torchdatas(cls) for cls in type(loader).__mro__ if "__iter__" in vars(cls))


def position_of_torchdata_state(state: Any, order: Order, epoch: int) -> tuple[int, int] | None:
    """The place in a state of torchdata's StatefulDataLoader, which names no epoch; None: it is no
    such state.

    Raises StateMismatchError: the order is a random one or the user's own, which is another one
    here.
    """
    # Accelerate adds that to states of any other kind.
    if not isinstance(state, Mapping) or "_iterator_finished" not in state or "version" in state:
        return None
    snapshot = state.get("_snapshot")
    if isinstance(snapshot, Mapping):  # of worker processes
        counts: list[Any] = [snapshot.get("_snapshot_step"), state.get("_steps_since_snapshot")]
    else:
        counts = [state.get("_num_yielded")]
    if any(type(count) is not int for count in counts):
        raise StateMismatchError(
            "state: it is of torchdata's StatefulDataLoader, but does not say how far it came."
        )
    steps = sum(counts)
    if not order.sequential or not 0 <= steps <= order.steps:
        raise StateMismatchError(
            f"state: it is of torchdata's StatefulDataLoader, after {counted(steps, 'batch')}, and "
            f"this loader ({order.describe()}) does not give them in that order. Finish that epoch "
            "there, or begin one here with set_epoch()."
        )
    return (epoch + 1, 0) if state["_iterator_finished"] else (epoch, steps)


def stateful_dataloader_state(loader: Any) -> dict[str, Any]:
    """Where a Loader stands, for torchdata's StatefulDataLoader: the way back from fastload.

    Its `load_state_dict` takes this where it has no worker processes (`num_workers=0`), the same
    batch size and the same data in order. The other way, `Loader.load_state_dict` takes a
    StatefulDataLoader's state as it is.

    Args:
        loader: a Loader of `create_loader` or `from_dataloader`.

    Raises:
        ConfigurationError: the loader's order is a random one, or the user's own, which that one
            cannot go on with.
    """
    order = loader._parts.order
    if not order.sequential:
        raise ConfigurationError(
            f"loader: a StatefulDataLoader cannot go on in this order ({order.describe()}). Finish "
            "the epoch here."
        )
    step = loader.state_dict()["step"]
    samples = sum(len(order.batch(n)) for n in range(step))
    unused = (
        "_index_sampler_state",
        "_IterableDataset_len_called",
        "_shared_seed",
        "fetcher_state",
        "dataset_state",
    )
    return dict.fromkeys(unused) | {
        "_sampler_iter_state": {"samples_yielded": samples},
        "_sampler_iter_yielded": step,
        "_num_yielded": step,
        "_iterator_finished": False,
    }
