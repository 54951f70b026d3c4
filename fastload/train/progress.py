"""How far a run has come, and the state of everything in it: into a checkpoint, and out of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastload.train.config import TrainConfig
from fastload.train.metrics import MetricSums
from fastload.train.parts import Parts
from fastload.train.randomness import generator_state, seed_generators, set_generator_state
from fastload.train.summary import EpochRecord
from fastload.train.world import World

__all__ = ["Progress"]


class Progress:
    """Where a run is. Between two steps, this and the parts are all that there is to know about it."""

    def __init__(self, config: TrainConfig, parts: Parts, world: World) -> None:
        self._config = config
        self._parts = parts
        self._world = world
        self.epoch = 0
        """Epochs that are complete, validation included."""
        self.batch = 0
        """Batches of the next one that are trained on."""
        self.step = 0
        """Optimizer steps of the run."""
        self.sums = MetricSums(parts.task.counted, world.device)
        """Of those batches, on this rank."""
        self.best: float | None = None
        """Best result of a validation."""
        self.records: list[EpochRecord] = []

    def begin(self) -> str | None:
        """The state before the first step. Returns what the task says of its data."""
        studied = self._parts.task.study(self._parts.data.source)
        self._seed_this_rank()
        return studied

    @property
    def epoch_sums(self) -> dict[str, float]:
        """Of the batches of this epoch, over all ranks. A collective."""
        total = MetricSums(self._parts.task.counted, self._world.device)
        total.load_state_dict(self.sums.state_dict())
        total.all_reduce()
        return total.read()

    def end_epoch(self, record: EpochRecord) -> bool:
        """Count an epoch as complete. Returns whether it is the best one so far."""
        self.records.append(record)
        self.epoch, self.batch = self.epoch + 1, 0
        self.sums = MetricSums(self._parts.task.counted, self._world.device)
        if record.val is None:
            return False
        name, direction = self._parts.task.best
        result = record.val[name]
        better = self.best is None or (result > self.best if direction == "max" else result < self.best)
        if better:
            self.best = result
        return better

    def state(self) -> dict[str, Any] | None:
        """Everything, as plain values and tensors, on rank 0; None elsewhere. A collective."""
        parts = self._parts
        ranks = self._world.gather({"generators": generator_state(self._world.device), "sums": self.sums.state_dict()})
        if ranks is None:
            return None
        return {
            "config": asdict(self._config),
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.step,
            "best": self.best,
            "records": [record.to_dict() for record in self.records],
            "model": parts.network.state_dict(),
            "ema": None if parts.average is None else parts.average.module.state_dict(),
            "ema_updates": 0 if parts.average is None else int(parts.average.n_averaged),
            "optimizer": parts.optimizer.state_dict(),
            "scheduler": parts.schedule.state_dict(),
            "scaler": parts.scaler.state_dict(),
            "task": parts.task.state_dict(),
            "loader": parts.data.train.state_dict(),
            "ranks": ranks,
        }

    def load(self, state: Mapping[str, Any]) -> str | None:
        """Go on from a state; learning rate and schedule are those of the configuration, at that step.

        Returns:
            What is not as it would have been, if anything.

        Raises:
            StateMismatchError: the loader or the task is another one.
        """
        parts = self._parts
        parts.data.train.load_state_dict(state["loader"])
        parts.task.load_state_dict(state["task"])
        parts.network.load_state_dict(state["model"])
        if parts.average is not None:
            parts.average.module.load_state_dict(state["ema"])
            parts.average.n_averaged.fill_(state["ema_updates"])
        if parts.scaler.is_enabled() and state["scaler"]:
            parts.scaler.load_state_dict(state["scaler"])
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]
        self.best = state["best"]
        self.records = [EpochRecord(**record) for record in state["records"]]
        self._load_optimizer(state)
        return self._load_ranks(state["ranks"])

    def _load_optimizer(self, state: Mapping[str, Any]) -> None:
        optimizer, schedule = self._parts.optimizer, self._parts.schedule
        configured = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["scheduler"] | {"base_lrs": schedule.base_lrs})
        shares = [share(self.step) for share in schedule.lr_lambdas]
        for group, settings, share in zip(optimizer.param_groups, configured, shares, strict=True):
            group.update(settings)
            group["lr"] = settings["initial_lr"] * share

    def _load_ranks(self, ranks: list[dict[str, Any]]) -> str | None:
        rank, world_size = self._world.rank, self._world.world_size
        if len(ranks) == world_size:
            self.sums.load_state_dict(ranks[rank]["sums"])
            set_generator_state(ranks[rank]["generators"], self._world.device)
            return None
        self._seed_this_rank()
        if rank == 0:
            sums = [each["sums"] for each in ranks]
            self.sums.load_state_dict({name: sum(each[name] for each in sums) for name in sums[0]})
        return (
            f"saved by {len(ranks)} processes and resumed by {world_size}: the samples are the ones that would have "
            "come, dropout and the like draw other numbers."
        )

    def _seed_this_rank(self) -> None:
        """The network's own random choices, such as dropout, differ between ranks."""
        seed_generators(self._config.run.seed, self.step, self._world.rank)
