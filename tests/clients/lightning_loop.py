"""Run by test_lightning.py: a LightningModule that notes which samples it gets, over two
processes."""

from __future__ import annotations

import json
import sys
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastload

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 2,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def loader(count: int, *, ours: bool, train: bool, created: bool = False) -> Any:
    data = TensorDataset(torch.arange(count), torch.arange(count).float())
    if created:
        return fastload.create_loader(data, 4, shuffle=train)
    existing = DataLoader(data, 4, shuffle=train)
    return fastload.from_dataloader(existing) if ours else existing


class Notes(L.LightningModule):
    def __init__(self, count: int, *, ours: bool, created: bool = False) -> None:
        super().__init__()
        self.created = created
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.count, self.ours = count, ours
        self.seen: list[Any] = []

    def note(self, kind: str, batch: Any) -> torch.Tensor:
        self.seen.append([kind, self.current_epoch, batch[0].tolist()])
        return self.weight.sum() * 0 + batch[1].mean()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.note("train", batch)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("figure", self.note("val", batch), sync_dist=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.0)

    def train_dataloader(self) -> Any:
        return loader(self.count, ours=self.ours, train=True, created=self.created)

    def val_dataloader(self) -> Any:
        return loader(self.count, ours=self.ours, train=False, created=self.created)


class Save(L.Callback):
    """Checkpoints in the middle of the second epoch and at the end of the first."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
        if trainer.global_step == 7:
            trainer.save_checkpoint(f"{self.path}/middle.ckpt")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(f"{self.path}/end.ckpt")


def compare(directory: str) -> dict[str, Any]:
    """With and without, from a hook and as an argument."""
    found: dict[str, Any] = {}
    for count in (16, 17, 37):
        for way in ("plain", "hook", "argument", "created"):
            ours = way != "plain"
            module = Notes(count, ours=ours, created=way == "created")
            trainer = L.Trainer(max_epochs=2, strategy="ddp", num_sanity_val_steps=1, **QUIET)
            loaders = (
                [loader(count, ours=ours, train=train) for train in (True, False)]
                if way == "argument"
                else []
            )
            trainer.fit(module, *loaders)
            kind = type(trainer.train_dataloader).__name__
            found[f"{way} {count}"] = [kind, module.seen, float(trainer.callback_metrics["figure"])]
    return found


def resume(directory: str) -> dict[str, Any]:
    """What is left of a run after each checkpoint, and what a new run gets from there."""
    found: dict[str, Any] = {}
    for name, begin in (("", 0), ("middle", 7), ("end", 5)):
        module = Notes(37, ours=True)
        trainer = L.Trainer(
            max_epochs=3,
            strategy="ddp",
            num_sanity_val_steps=0,
            limit_val_batches=0,
            callbacks=[Save(directory)],
            **QUIET,
        )
        path = f"{directory}/{name}.ckpt"
        trainer.fit(module, ckpt_path=path if name else None, weights_only=False)
        found[name or "whole"] = [begin, module.seen]
    return found


class Spawned(Notes):
    """Its processes are copies of this one, which get the loaders pickled and leave nothing behind
    but a file."""

    directory = ""

    def on_fit_end(self) -> None:
        with open(f"{self.directory}/spawn.{self.global_rank}", "w") as file:
            json.dump({"spawn": [type(self.trainer.train_dataloader).__name__, self.seen]}, file)


def spawn(directory: str) -> None:
    module = Spawned(17, ours=True)
    module.directory = directory
    trainer = L.Trainer(max_epochs=1, strategy="ddp_spawn", num_sanity_val_steps=0, **QUIET)
    trainer.fit(module, loader(17, ours=True, train=True), loader(17, ours=True, train=False))


if __name__ == "__main__":
    what, directory = sys.argv[1:]
    found = {"compare": compare, "resume": resume, "spawn": spawn}[what](directory)
    if found is not None:
        with open(f"{directory}/{what}.{torch.distributed.get_rank()}", "w") as file:
            json.dump(found, file)
