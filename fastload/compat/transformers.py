"""Hugging Face's transformers: a callback for its Trainer."""

from __future__ import annotations

from typing import Any


def trainer_callback() -> Any:
    """A callback for Hugging Face's Trainer, so that it resumes in the middle of an epoch.

    Needed only with `TrainingArguments(ignore_data_skip=True)`: without that the Trainer skips the
    batches itself, by Accelerate's `skip_first_batches`, and the loader reads nothing for those.

    Returns:
        A transformers.TrainerCallback, to be given as `Trainer(callbacks=[...])`.
    """
    from transformers import TrainerCallback

    class Resume(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
        """Moves the loader to the Trainer's own count of steps."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **things: Any) -> None:
            loader: Any = things.get("train_dataloader")
            if not hasattr(loader, "skip") or not state.global_step or not args.ignore_data_skip:
                return
            accumulated = args.gradient_accumulation_steps
            epoch, updates = divmod(state.global_step, -(-len(loader) // accumulated))
            loader.set_epoch(epoch)
            loader.skip(updates * accumulated)

    return Resume()
