"""Checkpoints: how far a run has come, and the state of everything in it.

A checkpoint is one file of plain values, with all that a run needs to go on as if nothing had
happened:

    state = torch.load("runs/mine/best.pt", weights_only=True, map_location="cpu")
    model.load_state_dict(state["ema"] or state["model"])

The weights have the names of the plain network. A file is whole or not there: it is written beside
its place and then renamed. Rank 0 alone reads and writes; the other ranks get its result, and need
not see the folder.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastload.errors import CheckpointError, ConfigurationError, StateMismatchError, counted
from fastload.files import check_regular, open_regular, replacing, sync_folder
from fastload.train.components import Components, seed_generators
from fastload.train.config import TrainConfig
from fastload.train.distributed import World
from fastload.train.results import EpochRecord
from fastload.train.settings import all_fields, find_field
from fastload.train.tasks import MetricSums

VERSION = 1
LAST = "last.pt"
BEST = "best.pt"

# Settings that a run cannot change on the way. (The loader compares its own: data, batches, order,
# transforms.)
_BINDING = (
    "task",
    "model",
    "model_option",
    "num_classes",
    "ema",
    "accumulate",
    "optimizer",
    "decay_all",
    "best_by",
    "seed",
)

# Those of them that weights depend on.
_OF_THE_NETWORK = ("task", "model", "model_option", "num_classes")

# What `Progress.state` gives.
_KEYS = (
    "config",
    "epoch",
    "batch",
    "step",
    "best",
    "records",
    "model",
    "ema",
    "ema_updates",
    "optimizer",
    "scheduler",
    "scaler",
    "task",
    "loader",
    "ranks",
)


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, or leave what is there as it is. Raises CheckpointError."""
    with _replacing(path) as beside, open(beside, "wb") as file:
        torch.save({"version": VERSION, **state}, file)
        file.flush()
        os.fsync(file.fileno())


def copy_checkpoint(path: Path, copy: Path) -> None:
    """The same checkpoint under a second name: a link where the file system has them, for files
    here never change."""
    with _replacing(copy) as beside:
        try:
            os.link(path, beside)
        except OSError:
            with open_regular(path) as source, open(beside, "wb") as file:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fsync(file.fileno())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """As `files.replacing`, kept over a power cut. Raises CheckpointError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as beside:
            yield beside
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch says a failed write in a RuntimeError
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({error}). Is the disk full, or the "
            "folder not yours? Choose another with --out."
        ) from error


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint, tensors on the CPU. Raises ConfigurationError, or StateMismatchError for
    another version."""
    try:
        check_regular(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigurationError(
            f"resume: {path} is not there; give the path of a checkpoint, auto, or never."
        ) from None
    except Exception as error:  # damage shows in any way
        # What torch says of damage is the advice to load it unsafely.
        what = (
            error if isinstance(error, OSError) else "it is damaged, or not a file of plain values"
        )
        raise ConfigurationError(
            f"resume: {path} cannot be read as a checkpoint ({what}); give another one, or "
            "--resume never."
        ) from None
    version = state.get("version") if isinstance(state, dict) else None
    if version != VERSION:
        raise StateMismatchError(
            f"resume: {path} is a checkpoint of version {version!r}, this is {VERSION}; give "
            "another one, or --resume never."
        )
    checked: dict[str, Any] = state
    return checked


def state_to_resume(config: TrainConfig) -> dict[str, Any] | None:
    """The state that a run goes on from; None if it starts from the beginning.

    Raises StateMismatchError for a run that this configuration cannot go on with; both sides are
    named.
    """
    resume, last = config.checkpoint.resume, Path(config.checkpoint.out) / LAST
    if resume == "never" or (resume == "auto" and not last.exists()):
        return None
    path = last if resume == "auto" else Path(resume)
    state = load(path)
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise StateMismatchError(
            f"resume: {path} is no whole checkpoint, it lacks {', '.join(missing)}; give another "
            "one, or --resume never."
        )
    mine, theirs = _binding(asdict(config)), _binding(state["config"])
    differing = [name for name in mine if mine[name] != theirs[name]]
    if differing:
        rows = "; ".join(
            f"{name}: checkpoint {theirs[name]!r}, now {mine[name]!r}" for name in differing
        )
        raise StateMismatchError(
            f"resume: {path} is of a run that differs in {rows}. Give the same settings, another "
            "folder (--out), or --resume never to start again in this one."
        )
    return state


def state_to_evaluate(config: TrainConfig) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint that `resume` says, and where it is; None for the weights that the network
    starts with. Raises StateMismatchError: it is of another network."""
    resume, last = config.checkpoint.resume, Path(config.checkpoint.out) / LAST
    if resume == "never" or (resume == "auto" and not last.exists()):
        return None
    path = last if resume == "auto" else Path(resume)
    state = load(path)
    mine, theirs = _binding(asdict(config)), _binding(state["config"])
    differing = [name for name in _OF_THE_NETWORK if mine[name] != theirs[name]]
    if differing:
        rows = "; ".join(
            f"{name}: checkpoint {theirs[name]!r}, now {mine[name]!r}" for name in differing
        )
        raise StateMismatchError(f"resume: {path} is of a network that differs in {rows}.")
    return path, state


def changed_settings(config: TrainConfig, state: Mapping[str, Any]) -> list[str]:
    """Options that are not what they were when the checkpoint was written: "--lr 0.2 (was 0.1)"."""
    now, changed = asdict(config), []
    for field in all_fields().values():
        if field.name == "resume":
            continue
        mine, theirs = (
            group[field.table] if field.table else group for group in (now, state["config"])
        )
        value, before = mine[field.name], theirs.get(field.name, field.default)
        if value != before:
            changed.append(f"{field.option} {value} (was {before})")
    return changed


def _binding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a checkpoint does not have are newer than it; their defaults applied then."""
    settings = {}
    for field in map(find_field, _BINDING):
        group = config[field.table] if field.table else config
        settings[field.name] = group.get(field.name, field.default)
    return settings


# -- What is in it ---------------------------------------------------------------------------------


class Progress:
    """Where a run is. Between two steps, this and the components are all that there is to know
    about it."""

    def __init__(self, config: TrainConfig, components: Components, world: World) -> None:
        self._config = config
        self._components = components
        self._world = world
        self.epoch = 0
        """Epochs that are complete, validation included."""
        self.batch = 0
        """Batches of the next one that are trained on."""
        self.step = 0
        """Optimizer steps of the run."""
        self.sums = MetricSums(components.task.counted, world.device)
        """The sums over those batches, on this rank."""
        self.best: float | None = None
        """Best result of a validation."""
        self.records: list[EpochRecord] = []

    def begin(self) -> str | None:
        """The state before the first step. Returns what the task says of its data."""
        studied = self._components.task.study(self._components.data.source)
        self._seed_this_rank()
        return studied

    def end_epoch(self, record: EpochRecord) -> bool:
        """Count an epoch as complete. Returns whether it is the best one so far."""
        self.records.append(record)
        self.epoch, self.batch = self.epoch + 1, 0
        self.sums = MetricSums(self._components.task.counted, self._world.device)
        if record.val is None:
            return False
        name, direction = self._components.best_by
        result = record.val[name]
        better = self.best is None or (
            result > self.best if direction == "max" else result < self.best
        )
        if better:
            self.best = result
        return better

    def state(self) -> dict[str, Any] | None:
        """Everything, as plain values and tensors, on rank 0; None elsewhere. A collective."""
        components = self._components
        ranks = self._world.gather(
            {"generators": generator_state(self._world.device), "sums": self.sums.read()}
        )
        if ranks is None:
            return None
        return {
            "config": asdict(self._config),
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "best": self.best,
            "records": [asdict(record) for record in self.records],
            "model": components.network.state_dict(),
            "ema": None if components.average is None else components.average.module.state_dict(),
            "ema_updates": 0 if components.average is None else components.average.updates,
            "optimizer": components.optimizer.state_dict(),
            "scheduler": components.schedule.state_dict(),
            "scaler": components.scaler.state_dict(),
            "task": components.task.state_dict(),
            "loader": components.data.train.state_dict(),
            "ranks": ranks,
        }

    def load(self, state: Mapping[str, Any]) -> str | None:
        """Go on from a state; learning rate and schedule are those of the configuration, at that
        step.

        Returns what is not as it would have been, if anything. Raises StateMismatchError if loader
        or task are others.
        """
        components = self._components
        try:
            components.data.train.load_state_dict(state["loader"])
        except StateMismatchError as error:
            raise StateMismatchError(
                f"resume: the checkpoint cannot be gone on with here: {error} (Or give another "
                "folder, --out, or --resume never to start again in this one.)"
            ) from error
        components.task.load_state_dict(state["task"])
        components.network.load_state_dict(state["model"])
        if components.average is not None:
            components.average.module.load_state_dict(state["ema"])
            components.average.updates = int(state["ema_updates"])
        if components.scaler.is_enabled() and state["scaler"]:
            components.scaler.load_state_dict(state["scaler"])
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]
        self.best = state["best"]
        self.records = [EpochRecord(**record) for record in state["records"]]
        self._load_optimizer(state)
        return self._load_ranks(state["ranks"])

    def _load_optimizer(self, state: Mapping[str, Any]) -> None:
        optimizer, schedule = self._components.optimizer, self._components.schedule
        theirs, ours = (
            [len(group["params"]) for group in groups]
            for groups in (state["optimizer"]["param_groups"], optimizer.param_groups)
        )
        if theirs != ours:
            raise StateMismatchError(
                f"resume: the checkpoint has optimizer groups of {theirs} tensors, and here they "
                f"are of {ours}: weight decay is left off other parameters. (Those that a network "
                "names by no_weight_decay count now.) Give --resume never to start again, or go on "
                "with the fastload that wrote it."
            )
        configured = [
            {name: group[name] for name in group if name != "params"}
            for group in optimizer.param_groups
        ]
        # Where a step is counted follows from `fused`, which may be another one here.
        groups = [
            group | {"fused": settings["fused"]}
            for group, settings in zip(state["optimizer"]["param_groups"], configured, strict=True)
        ]
        optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        schedule.load_state_dict(state["scheduler"] | {"base_lrs": schedule.base_lrs})
        shares = [share(self.step) for share in schedule.lr_lambdas]
        for group, settings, share in zip(optimizer.param_groups, configured, shares, strict=True):
            group.update(settings)
            group["lr"] = settings["initial_lr"] * share

    def _load_ranks(self, ranks: list[dict[str, Any]]) -> str | None:
        rank, world_size = self._world.rank, self._world.world_size
        if len(ranks) == world_size:
            self.sums.load(ranks[rank]["sums"])
            set_generator_state(ranks[rank]["generators"], self._world.device)
            return None
        self._seed_this_rank()
        if rank == 0:
            sums = [each["sums"] for each in ranks]
            self.sums.load({name: sum(each[name] for each in sums) for name in sums[0]})
        return (
            f"saved by {counted(len(ranks), 'process')} and resumed by {world_size}: the samples "
            "are the ones that would have come, dropout and the like draw other numbers."
        )

    def _seed_this_rank(self) -> None:
        """The network's own random choices, such as dropout, differ between ranks."""
        seed_generators(self._config.run.seed, self.step, self._world.rank)


def generator_state(device: torch.device) -> dict[str, Any]:
    """The state of the generators that `seed_generators` seeds, in a form that
    `torch.load(weights_only=True)` reads."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [
            name,
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            position,
            has_gauss,
            gauss,
        ],
        "python": random.getstate(),
    }


def set_generator_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Go on from there. A state from another kind of device leaves this device's generator as it
    is."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
