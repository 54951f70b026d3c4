"""The trainer: one run, from its configuration to its summary.

`train` goes through the epochs. What it goes through them with is in files of its own: `distributed` (processes and
devices), `components` (data, network, optimizer), `engine` (one optimizer step, a validation), `checkpoint` (what is
saved, and how), `stopping` (signals), `throughput` (speed and idle time), `log`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console

from fastload.errors import FastloadError, counted
from fastload.monitor import rank_path, write_trace
from fastload.spans import SpanLog
from fastload.train import checkpoint
from fastload.train.components import build
from fastload.train.config import TrainConfig
from fastload.train.distributed import World, open_world
from fastload.train.engine import Window, precision, validate
from fastload.train.log import open_log
from fastload.train.randomness import algorithms
from fastload.train.results import EpochRecord, Summary
from fastload.train.stopping import Stopped, Stopping
from fastload.train.throughput import DeviceWatch, StepProfiler, Throughput


def train(config: TrainConfig, *, console: Console | None = None, warmup: int = 1) -> Summary:
    """Train to the end, to `max_steps`, or until SIGTERM or Ctrl-C; the state is saved then, and at each epoch's end.

    Under torchrun, every process calls this. Seeds the global random generators of torch, numpy and Python.

    Args:
        config: of the run; the same on every rank.
        console: where rank 0 tells of it; standard output by default.
        warmup: first steps of this process, which the summary's speed and idle time leave out.

    Raises:
        ConfigurationError: a setting that cannot be honoured.
        StateMismatchError: the checkpoint to go on from is of another run.
        CheckpointError: it could not be written.
        FastloadError: the loss is not finite, or another rank died; and whatever the loader raises.
    """
    with ExitStack() as stack:
        run = config.run
        stack.enter_context(algorithms(deterministic=run.deterministic, benchmark=run.cudnn_benchmark))
        world = stack.enter_context(open_world(run))
        return _Run(config, world, console, warmup, stack).go_on()


class _Run:
    """A run on this rank."""

    def __init__(
        self, config: TrainConfig, world: World, console: Console | None, warmup: int, stack: ExitStack
    ) -> None:
        self._began = time.perf_counter()
        self._config = config
        self._world = world
        self._out = Path(config.checkpoint.out)
        state = world.broadcast(checkpoint.state_to_resume(config) if world.rank == 0 else None)
        self._components = build(config, world, stack)
        self._train = self._components.data.train
        self._window = Window(self._components, config.optimizer)
        self._progress = checkpoint.Progress(config, self._components, world)
        remark = self._progress.begin() if state is None else self._progress.load(state)
        self._throughput = Throughput(self._components.clock, warmup=warmup, trace=config.log.trace is not None)
        self._spans = SpanLog() if config.log.trace else None
        self._train.record(self._spans)
        self._watch = stack.enter_context(DeviceWatch(world))
        self._log = stack.enter_context(
            open_log(
                config.log,
                self._out,
                rank=world.rank,
                epochs=config.schedule.epochs,
                unit=self._components.task.unit,
                first_epoch=self._progress.epoch,
                first_step=self._progress.step,
                console=console,
            )
        )
        self._profiler = StepProfiler(world.device, config.log.profile_steps, skip=warmup, say=self._log.say)
        self._stopping = stack.enter_context(Stopping(world))
        self._told = (0.0, 0.0)
        """Samples of this epoch and the sum of their losses, over all ranks, when it was last told of."""
        self._told_at = (0.0, 0)
        """When that was [seconds], and after how many steps of the epoch."""
        self._introduce(remark, resumed=state is not None)

    def go_on(self) -> Summary:
        """Train, from wherever the run is."""
        interrupted = False
        try:
            while self._progress.epoch < self._config.schedule.epochs and not self._enough:
                if self._progress.batch < len(self._train):
                    self._train_epoch()
                if self._progress.batch == len(self._train):
                    self._end_epoch()
            if self._progress.batch:  # max_steps, within an epoch
                self._save()
                self._log.part_epoch(self._record().to_dict(), step=self._progress.step)
        except Stopped:
            interrupted = True
            self._throughput.end()
            self._save()
            self._log.say(
                f"stopped after step {self._progress.step:,}, saved {self._out / checkpoint.LAST}; the same command "
                "goes on from there."
            )
        self._profiler.close()
        self._write_trace()
        return self._summary(interrupted)

    def _train_epoch(self) -> None:
        """The rest of an epoch, or as much of it as `max_steps` leaves."""
        progress, every = self._progress, self._config.checkpoint.save_steps
        done = progress.batch // self._config.optimizer.accumulate
        self._log.begin_epoch(progress.epoch, steps=self._components.windows, done=done)
        sums = progress.epoch_sums
        self._told = sums["samples"], sums["loss"]
        self._told_at = time.perf_counter(), done
        self._components.model.train()
        batches = iter(self._train)
        self._throughput.begin()
        while progress.batch < len(self._train) and not self._enough:
            self._profiler.begin_step()
            count, samples = self._window.step(batches, progress.sums, epoch=progress.epoch, first=progress.batch)
            self._profiler.end_step()
            self._throughput.step(samples)
            progress.batch += count
            progress.step += 1
            done += 1
            if progress.batch == len(self._train):
                next(batches, None)  # the loader's epoch ends when it is asked for more
            if progress.step % self._config.log.log_steps == 0 or progress.batch == len(self._train):
                self._tell_loss(done)
            self._stopping.check()
            if every is not None and progress.step % every == 0 and progress.batch < len(self._train):
                self._save()
        self._throughput.end()

    def _end_epoch(self) -> None:
        """Validate, tell, and keep."""
        record = self._record()
        progress = self._progress
        best = progress.end_epoch(record)
        self._log.end_epoch(record.to_dict(), step=progress.step)
        every = self._config.checkpoint.save_epochs
        kept = every is not None and progress.epoch % every == 0
        self._save(*([checkpoint.BEST] if best else []), *([checkpoint.epoch_file(progress.epoch)] if kept else []))

    def _record(self) -> EpochRecord:
        """The epoch so far, validated. A collective."""
        progress, components = self._progress, self._components
        sums = progress.epoch_sums
        began = time.perf_counter()
        val = None
        if components.data.val is not None:
            val = validate(
                components.validated,
                components.data.val,
                components.task,
                precision=precision(self._config.optimizer, self._world.device),
                check=self._stopping.check,
            )
        return EpochRecord(
            epoch=progress.epoch,
            step=progress.step,
            samples=int(sums["samples"]),
            lr=float(components.optimizer.param_groups[0]["lr"]),
            train=components.task.result(sums),
            val=val,
            images_per_second=self._throughput.epoch_rate,
            wait_share=self._throughput.epoch_wait_share,
            seconds=self._throughput.epoch_seconds,
            val_seconds=time.perf_counter() - began,
        )

    @property
    def _enough(self) -> bool:
        """Whether `max_steps` are done."""
        limit = self._config.schedule.max_steps
        return limit is not None and self._progress.step >= limit

    def _save(self, *copies: str) -> None:
        """Write last.pt, and the same under other names. A collective."""
        self._require_finite(
            self._progress.sums.read()
        )  # a state that cannot be gone on with must not take the place of one that can
        state = self._progress.state()
        if state is not None:
            checkpoint.save(self._out / checkpoint.LAST, state)
            for name in copies:
                checkpoint.copy_checkpoint(self._out / checkpoint.LAST, self._out / name)

    def _require_finite(self, sums: Mapping[str, float]) -> None:
        """Raise FastloadError where the sum of an epoch's losses is infinite or not a number."""
        if not math.isfinite(sums["loss"]):
            raise FastloadError(
                f"step {self._progress.step:,}: the loss is {sums['loss']}. The learning rate "
                f"{self._components.rate.value:g} may be too high (--lr, --warmup-epochs, --clip-norm), or a sample "
                "broken; the last checkpoint is from before."
            )

    def _tell_loss(self, done: int) -> None:
        """The mean since the last time, over all ranks. A collective."""
        sums = self._progress.epoch_sums
        self._require_finite(sums)
        samples, loss = (sums[name] - before for name, before in zip(("samples", "loss"), self._told, strict=True))
        self._told = sums["samples"], sums["loss"]
        mean = loss / samples if samples else None
        if self._config.log.step_lines:
            results = self._components.task.result(sums) if sums["samples"] else {}
            told = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
            since = time.perf_counter()
            seconds, self._told_at = (since - self._told_at[0]) / max(done - self._told_at[1], 1), (since, done)
            self._log.say(f"step {done}/{self._components.windows}: {told}; {seconds:.3f} s a step")
        self._log.progress(done, rate=self._throughput.epoch_rate, wait=self._throughput.epoch_wait_share, loss=mean)
        if mean is not None:
            lr = float(self._components.optimizer.param_groups[0]["lr"])
            self._log.scalars(self._progress.step, {"step/loss": mean, "step/lr": lr})

    def _introduce(self, remark: str | None, *, resumed: bool) -> None:
        """What the run is, in some lines."""
        world, config, components, progress = self._world, self._config, self._components, self._progress
        ranks = counted(world.world_size, "process")
        count = sum(parameter.numel() for parameter in components.network.parameters() if parameter.requires_grad)
        self._log.say(
            f"{config.model.model}, {counted(count, 'parameter')}, on {world.device.type}, {ranks}; "
            f"{components.data.source.name}: {components.data.source.summary}"
        )
        schedule = config.schedule
        if schedule.warmup != schedule.warmup_epochs:
            self._log.say(
                f"warm-up: half of this run, {schedule.warmup:g} of {counted(config.schedule.epochs, 'epoch')}, in "
                f"place of the {schedule.warmup_epochs:g} of a longer one"
            )
        if components.data.remark is not None:
            moot = "; best_by is moot" if config.checkpoint.best_by is not None else ""
            self._log.say(components.data.remark + moot)
        self._log.say(
            f"a step: batch {config.optimizer.batch_size} x {ranks} x {config.optimizer.accumulate} accumulated = "
            f"{components.global_batch:,} {components.task.unit}; {counted(components.windows, 'step')} an epoch; "
            f"{components.rate.sentence}"
        )
        if resumed:
            self._log.say(f"resumed at epoch {progress.epoch}, batch {progress.batch}, step {progress.step:,}")
        if remark is not None:
            self._log.say(remark)
        if progress.epoch >= config.schedule.epochs:
            self._log.say(
                f"nothing is left of its {counted(config.schedule.epochs, 'epoch')}; give more with --epochs, or "
                "another folder with --out."
            )

    def _write_trace(self) -> None:
        if self._spans is not None and self._config.log.trace is not None:
            path = rank_path(self._config.log.trace, self._world.rank, self._world.world_size)
            path.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"model": self._config.model.model, "data": self._config.data.data}
            write_trace(path, self._spans, self._throughput.timeline, metadata, rank=self._world.rank)

    def _summary(self, interrupted: bool) -> Summary:
        device, idle, data = self._world.device, self._throughput.idle, self._components.data
        uses = self._watch.stop()
        return Summary(
            epochs=tuple(self._progress.records),
            steps=self._progress.step,
            seconds=time.perf_counter() - self._began,
            images_per_second=self._throughput.rate,
            measured_steps=0 if idle is None else idle.steps,
            idle=idle,
            gpu=self._watch.reading,
            peak_device_memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
            devices=tuple(use for rank in self._world.gather(uses) or [uses] for use in rank),
            substituted=self._train.stats().substituted,
            best=self._progress.best,
            best_by=self._components.best_by[0],
            interrupted=interrupted,
            samples=data.samples,
            val_samples=0 if data.val is None else data.val.sampler.order.length,
            global_batch=self._components.global_batch,
            lr=self._components.rate.value,
            world_size=self._world.world_size,
            device=str(device),
            stopped_by=self._stopping.signal,
        )
