"""Run by test_transformers.py, once for each rank: Hugging Face's Trainer with and without
fastload."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

import fastload
from fastload.integrations import trainer_callback


class Rows(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor(float(index))}


class Model(torch.nn.Module):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append([int(i) for i in labels])
        return {"loss": (self.weight * 0).sum() + labels.mean(), "logits": x * self.weight}


def metrics(prediction: Any) -> dict[str, float]:
    return {"sum": float(prediction.label_ids.sum()), "count": float(len(prediction.label_ids))}


class Ours(Trainer):
    """The one method that a user overrides; the one for evaluation likewise."""

    def get_train_dataloader(self) -> Any:
        existing = DataLoader(self.train_dataset, self.args.train_batch_size, shuffle=True)
        return self.accelerator.prepare(fastload.from_dataloader(existing))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        existing = DataLoader(self.eval_dataset, self.args.eval_batch_size)
        return self.accelerator.prepare(fastload.from_dataloader(existing))


def run(
    kind: Any, count: int, directory: str, *, resume: str | None = None, itself: bool = False
) -> dict[str, Any]:
    """`itself`: whether the Trainer is to skip the batches that were seen before, and not our
    callback."""
    model = Model()
    arguments = TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ignore_data_skip=not itself,
        seed=3,
    )
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=Rows(count),
        eval_dataset=Rows(count),
        compute_metrics=metrics,
        callbacks=[] if itself else [trainer_callback()],
    )
    trainer.train(resume_from_checkpoint=resume)
    figures = trainer.evaluate()
    return {
        "seen": model.seen,
        "steps": trainer.state.global_step,
        "figures": [figures["eval_sum"], figures["eval_count"]],
    }


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for count in (16, 17, 37):
        for name, kind in (("plain", Trainer), ("ours", Ours)):
            found[f"{name} {count}"] = run(kind, count, f"{sys.argv[1]}/{name}{count}")
    directory = f"{sys.argv[1]}/ours37"
    found["resumed"] = run(Ours, 37, directory, resume=f"{directory}/checkpoint-3")
    found["resumed by itself"] = run(
        Ours, 37, directory, resume=f"{directory}/checkpoint-3", itself=True
    )
    with open(f"{sys.argv[1]}/found.{os.environ.get('RANK', '0')}", "w") as file:
        json.dump(found, file)
