"""For frameworks in which one changed line is not enough; the others need nothing from here (see docs/clients.md)."""

from __future__ import annotations

from typing import Any

from fastload.errors import ConfigurationError
from fastload.loader import Loader


def trainer_callback() -> Any:
    """A callback for Hugging Face's Trainer, so that it resumes in the middle of an epoch.

    Needed only with `TrainingArguments(ignore_data_skip=True)`: without that the Trainer skips the batches itself, by
    Accelerate's `skip_first_batches`, and the loader reads nothing for those.

    Returns:
        A transformers.TrainerCallback, to be given as `Trainer(callbacks=[...])`.
    """
    from transformers import TrainerCallback

    class Resume(TrainerCallback):
        """Puts the loader where the Trainer's own count of steps is."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **things: Any) -> None:
            loader = things.get("train_dataloader")
            if not isinstance(loader, Loader) or not state.global_step or not args.ignore_data_skip:
                return
            accumulated = args.gradient_accumulation_steps
            epoch, updates = divmod(state.global_step, -(-len(loader) // accumulated))
            loader.set_epoch(epoch)
            loader.skip(updates * accumulated)

    return Resume()


def stateful_dataloader_state(loader: Loader) -> dict[str, Any]:
    """Where a Loader stands, for torchdata's StatefulDataLoader: the way back from fastload.

    Its `load_state_dict` takes this where it has no worker processes (`num_workers=0`), the same batch size and the
    same data in order. The other way, `Loader.load_state_dict` takes a StatefulDataLoader's state as it is.

    Raises:
        ConfigurationError: the loader's order is a random one, or the user's own, which that one cannot go on with.
    """
    order = loader.sampler.order
    if not order.sequential:
        raise ConfigurationError(
            f"loader: a StatefulDataLoader cannot go on in this order ({order.describe()}). Finish the epoch here."
        )
    step = loader.state_dict()["step"]
    samples = sum(len(order.batch(n)) for n in range(step))
    unused = ("_index_sampler_state", "_IterableDataset_len_called", "_shared_seed", "fetcher_state", "dataset_state")
    return dict.fromkeys(unused) | {
        "_sampler_iter_state": {"samples_yielded": samples},
        "_sampler_iter_yielded": step,
        "_num_yielded": step,
        "_iterator_finished": False,
    }
