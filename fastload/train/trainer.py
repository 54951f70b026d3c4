"""The trainer, from top to bottom: a run, its epochs, a step, a validation.

A step's gradients are those of the mean loss of all samples of the window, over all batches of all
ranks: each rank adds up (the sum of its samples' losses) / (samples of the window), and ranks are
added up. How many samples a window has follows from the order alone, so that it need not be asked
of the other ranks; and a window of fewer batches at an epoch's end, or a smaller last batch, weighs
its samples like any other.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastload import Loader
from fastload.errors import ConfigurationError, FastloadError, counted
from fastload.spans import SpanLog
from fastload.tools.monitor import phase_range, rank_path, write_trace
from fastload.train import checkpoint
from fastload.train.components import Components
from fastload.train.config import RunConfig, TrainConfig
from fastload.train.distributed import Stopped, Stopping, World, idle_gpus, open_world
from fastload.train.log import RunLog
from fastload.train.results import DeviceWatch, EpochRecord, StepProfiler, Summary, Throughput
from fastload.train.tasks import PendingSums, Task, draws_of


def train(config: TrainConfig, *, console: Console | None = None, warmup: int = 1) -> Summary:
    """Train to the end, to `max_steps`, or until SIGTERM or Ctrl-C; the state is saved then, and at
    each epoch's end.

    Under torchrun, every process calls this. Seeds the global random generators of torch, numpy and
    Python.

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
        stack.enter_context(algorithms(run))
        world = stack.enter_context(open_world(run))
        return _Run(config, world, console, warmup, stack).go_on()


def evaluate(config: TrainConfig, *, console: Console | None = None) -> dict[str, float]:
    """Validate once and train nothing: the weights of the checkpoint that `resume` says, averaged
    ones where it has some; without one those that the network starts with. Nothing is written.

    Under torchrun, every process calls this.

    Args:
        config: of the run; the same on every rank.
        console: where rank 0 tells of it; standard output by default.

    Returns:
        The results by name, as of an epoch's validation.

    Raises:
        ConfigurationError: there is nothing to validate on; a setting that cannot be honoured.
        StateMismatchError: the checkpoint is of another network.
        FastloadError: whatever the loader raises.
    """
    with ExitStack() as stack:
        stack.enter_context(algorithms(config.run))
        world = stack.enter_context(open_world(config.run))
        saved = world.broadcast(checkpoint.state_to_evaluate(config) if world.rank == 0 else None)
        components = Components(config, world, stack)
        data, task, network = components.data, components.task, components.network
        if data.val is None:
            raise ConfigurationError(f"evaluate: {data.remark}.")
        if saved is None:
            task.study(data.source)
            whose = f"the weights {config.model.weights or 'drawn from the seed'}"
        else:
            path, state = saved
            task.load_state_dict(state["task"])
            network.load_state_dict(state["ema"] or state["model"])
            averaged = ", averaged weights" if state["ema"] else ""
            whose = f"{path} (epoch {state['epoch']}, step {state['step']:,}{averaged})"
        results = validate(network, data.val, task, precision=components.precision)
        if world.rank == 0:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in results.items())
            count = counted(data.val.sampler.order.length, "sample")
            (console or Console()).print(
                f"{config.model.model}, {whose}, on {count}: {shown}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        return results


@contextmanager
def algorithms(run: RunConfig) -> Iterator[None]:
    """Within: only algorithms that give the same bits every time; or those that cuDNN finds
    fastest, by trying them on every new shape or by its own rules. And TF32, if it is asked for."""
    deterministic, benchmark = run.deterministic, run.cudnn_benchmark
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    precision = torch.get_float32_matmul_precision()
    if run.tf32:
        torch.set_float32_matmul_precision("high")
    if deterministic:
        # cuBLAS reads it when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic or before[0])
    torch.backends.cudnn.benchmark = benchmark and not deterministic
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
        torch.set_float32_matmul_precision(precision)


class _Report(NamedTuple):
    """What is to be reported of some steps."""

    sums: PendingSums
    """Of the epoch so far."""
    step: int
    """Optimizer steps of the run."""
    done: int
    """Optimizer steps of the epoch."""
    at: float
    """When that was [seconds of time.perf_counter]."""
    lr: float


class _Run:
    """A run on this rank."""

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        console: Console | None,
        warmup: int,
        stack: ExitStack,
    ) -> None:
        self._began = time.perf_counter()
        self._config = config
        self._world = world
        self._out = Path(config.checkpoint.out)
        state = world.broadcast(checkpoint.state_to_resume(config) if world.rank == 0 else None)
        self._components = Components(config, world, stack)
        self._train = self._components.data.train
        self._progress = checkpoint.Progress(config, self._components, world)
        remark = self._progress.begin() if state is None else self._progress.load(state)
        self._throughput = Throughput(
            self._components.clock, warmup=warmup, trace=config.log.trace is not None
        )
        self._spans = SpanLog() if config.log.trace else None
        self._train.record(self._spans)
        self._watch = stack.enter_context(DeviceWatch(world))
        progress, unit = self._progress, self._components.task.unit
        log = RunLog(
            config,
            unit,
            rank=world.rank,
            records=progress.records,
            step=progress.step,
            console=console,
        )
        self._log = stack.enter_context(log)
        self._profiler = StepProfiler(
            world.device, config.log.profile_steps, skip=warmup, say=self._log.say
        )
        self._stopping = stack.enter_context(Stopping(world))
        self._reported: dict[str, float] = {}
        """The sums of this epoch, over all ranks, when it was last reported."""
        self._reported_at = (0.0, 0)
        """When that was [seconds], and after how many steps of the epoch."""
        self._reports: deque[_Report] = deque()
        """What is to be reported, in order, when its sums have come from the device."""
        changed = [] if state is None else checkpoint.changed_settings(config, state)
        self._introduce(remark, resumed=state is not None, changed=changed)

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
                self._log.part_epoch(self._record())
        except Stopped:
            interrupted = True
            self._tell_reports(pending=0)
            self._throughput.end()
            self._save()
            self._log.say(
                f"stopped after step {self._progress.step:,}, saved {self._out / checkpoint.LAST}; "
                "the same command goes on from there."
            )
        self._profiler.close()
        self._write_trace()
        self._log.conclude(self._throughput.idle)
        return self._summary(interrupted)

    @property
    def _enough(self) -> bool:
        """Whether `max_steps` are done."""
        limit = self._config.schedule.max_steps
        return limit is not None and self._progress.step >= limit

    # -- An epoch ----------------------------------------------------------------------------------

    def _train_epoch(self) -> None:
        """Train for the rest of an epoch, or as much of it as `max_steps` leaves."""
        progress, every = self._progress, self._config.checkpoint.save_steps
        done = progress.batch // self._config.optimizer.accumulate
        self._log.begin_epoch(progress.epoch, steps=self._components.windows, done=done)
        self._reported, self._reported_at = progress.sums.total(), (time.perf_counter(), done)
        self._components.model.train()
        batches = iter(self._train)
        self._throughput.begin()
        while progress.batch < len(self._train) and not self._enough:
            self._profiler.begin_step()
            samples = self._step(batches)
            self._profiler.end_step()
            self._throughput.step(samples)
            done += 1
            if progress.batch == len(self._train):
                next(batches, None)  # the loader's epoch ends when it is asked for more
            if progress.step % self._config.log.log_steps == 0 or progress.batch == len(
                self._train
            ):
                self._report_loss(done)
            self._stopping.check()
            if (
                every is not None
                and progress.step % every == 0
                and progress.batch < len(self._train)
            ):
                self._save()
        self._tell_reports(pending=0)
        self._throughput.end()

    def _end_epoch(self) -> None:
        """Validate, tell, and keep."""
        record = self._record()
        progress = self._progress
        best = progress.end_epoch(record)
        self._log.end_epoch(record)
        copies = [checkpoint.BEST] if best else []
        every = self._config.checkpoint.save_epochs
        if every is not None and progress.epoch % every == 0:
            copies.append(f"epoch-{progress.epoch:04d}.pt")
        self._save(*copies)

    def _record(self) -> EpochRecord:
        """The epoch so far, validated. A collective."""
        progress, components = self._progress, self._components
        sums = progress.sums.total()
        began = time.perf_counter()
        loader, task, check = components.data.val, components.task, self._stopping.check
        val = None
        if loader is not None:
            val = validate(
                components.validated, loader, task, precision=components.precision, check=check
            )
        return EpochRecord(
            epoch=progress.epoch,
            step=progress.step,
            samples=int(sums["samples"]),
            lr=self._lr,
            train=task.result(sums),
            val=val,
            images_per_second=self._throughput.epoch_rate,
            wait_share=self._throughput.epoch_wait_share,
            seconds=self._throughput.epoch_seconds,
            val_seconds=time.perf_counter() - began,
        )

    def _save(self, *copies: str) -> None:
        """Write last.pt, and the same under other names. A collective."""
        # A state that cannot be gone on with must not take the place of one that can.
        self._require_finite(self._progress.sums.read(), self._progress.step)
        state = self._progress.state()
        if state is not None:
            checkpoint.save(self._out / checkpoint.LAST, state)
            for name in copies:
                checkpoint.copy_checkpoint(self._out / checkpoint.LAST, self._out / name)

    # -- A step ------------------------------------------------------------------------------------

    def _step(self, batches: Iterator[Any]) -> int:
        """Train on a window, the next batches up to `accumulate`, and update the weights. Returns
        its samples."""
        progress, model, clock = self._progress, self._components.model, self._components.clock
        first = progress.batch
        window = range(first, min(first + self._config.optimizer.accumulate, len(self._train)))
        samples = sum(global_samples(self._train, number) for number in window)
        clock.begin()
        with phase_range("step"):
            for number in window:
                if number > first:
                    clock.mark("wait")
                with phase_range("wait"):
                    batch = next(batches)
                clock.mark("compute")
                # Only the last one's gradients are exchanged, with those of the others added up.
                last = number == window[-1]
                with (
                    nullcontext()
                    if last or not isinstance(model, DistributedDataParallel)
                    else model.no_sync()
                ):
                    self._gradients(batch, number, samples)
            clock.mark("update")
            self._update()
        clock.end()
        progress.batch, progress.step = window.stop, progress.step + 1
        return samples

    def _gradients(self, batch: Any, number: int, samples: int) -> None:
        """Add the part of a batch of the epoch to the gradients of a window of so many samples."""
        components, task = self._components, self._components.task
        inputs = task.prepare(batch, draws_of(self._train, epoch=self._progress.epoch, step=number))
        with components.precision:
            output = task.output(components.model, inputs)
            losses = task.losses(output, inputs.target)
        own = _has_own(self._train, number)
        # DistributedDataParallel divides the sum over the ranks by their number.
        share = self._world.world_size / samples if own else 0.0
        components.scaler.scale(losses.sum() * share).backward()
        if own:
            with torch.no_grad():
                self._progress.sums.add(task.metrics(output, inputs.target, losses))

    def _update(self) -> None:
        components = self._components
        scaler = self._components.scaler
        optimizer = self._components.optimizer
        if self._config.optimizer.clip_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(
                components.network.parameters(), self._config.optimizer.clip_norm
            )
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if scaler.is_enabled():
            # A step, whether or not the scaler has skipped it: to know that would be to wait for
            # the device.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                components.schedule.step()
        else:
            components.schedule.step()
        if components.average is not None:
            components.average.update(components.network)

    # -- Reports ---------------------------------------------------------------------------------

    @property
    def _lr(self) -> float:
        return float(self._components.optimizer.param_groups[0]["lr"])

    def _require_finite(self, sums: Mapping[str, float], step: int) -> None:
        """Raise FastloadError where the sum of an epoch's losses, as of a step, is infinite or not
        a number."""
        if not math.isfinite(sums["loss"]):
            raise FastloadError(
                f"step {step:,}: the loss is {sums['loss']}. The learning rate "
                f"{self._components.rate.value:g} may be too high (--lr, --warmup-epochs, "
                "--clip-norm), or a sample broken; the last checkpoint is from before."
            )

    def _report_loss(self, done: int) -> None:
        """Ask for the sums after so many steps of the epoch, over all ranks. A collective.

        The device is not waited for: what has not come yet is reported at the next report, or at
        the end of the epoch.
        """
        sums, step = self._progress.sums.total_later(), self._progress.step
        self._reports.append(
            _Report(sums, step=step, done=done, at=time.perf_counter(), lr=self._lr)
        )
        self._tell_reports(pending=1)

    def _tell_reports(self, *, pending: int) -> None:
        """Tell of each report: the mean since the one before. Up to `pending` may be left whose
        sums have not come."""
        while self._reports and (len(self._reports) > pending or self._reports[0].sums.ready):
            report = self._reports.popleft()
            sums, done = report.sums.values(), report.done
            self._require_finite(sums, report.step)
            mean = (sums["loss"] - self._reported["loss"]) / (
                sums["samples"] - self._reported["samples"]
            )
            seconds = (report.at - self._reported_at[0]) / (done - self._reported_at[1])
            self._reported, self._reported_at = sums, (report.at, done)
            if self._config.log.step_lines:
                results = self._components.task.result(sums).items()
                shown = ", ".join(f"{name} {value:.4f}" for name, value in results)
                self._log.say(
                    f"step {done}/{self._components.windows}: {shown}; {seconds:.3f} s a step"
                )
            rate, wait = self._throughput.epoch_rate, self._throughput.epoch_wait_share
            self._log.progress(done, rate=rate, wait=wait, loss=mean)
            self._log.scalars(report.step, {"step/loss": mean, "step/lr": report.lr})

    def _introduce(self, remark: str | None, *, resumed: bool, changed: list[str]) -> None:
        """What the run is, in some lines."""
        world = self._world
        config = self._config
        components = self._components
        progress = self._progress
        schedule, data, say = config.schedule, components.data, self._log.say
        ranks, epochs = counted(world.world_size, "process"), counted(schedule.epochs, "epoch")
        count = sum(
            parameter.numel()
            for parameter in components.network.parameters()
            if parameter.requires_grad
        )
        say(
            f"{config.model.model}, {counted(count, 'parameter')}, on {world.device.type}, "
            f"{ranks}; {data.source.name}: {data.source.summary}"
        )
        if (idle := idle_gpus(world)) is not None:
            say(idle)
        if schedule.warmup != schedule.warmup_epochs:
            say(
                f"warm-up: half of this run, {schedule.warmup:g} of {epochs}, in place of the "
                f"{schedule.warmup_epochs:g} of a longer one"
            )
        for note in data.notes:
            say(note)
        if data.remark is not None:
            say(
                data.remark
                + ("; best_by has no effect" if config.checkpoint.best_by is not None else "")
            )
        say(
            f"a step: batch {config.optimizer.batch_size} x {ranks} x "
            f"{config.optimizer.accumulate} accumulated = {components.global_batch:,} "
            f"{components.task.unit}; {counted(components.windows, 'step')} an epoch; "
            f"{components.rate.sentence}"
        )
        if resumed:
            say(
                f"resumed at epoch {progress.epoch}, batch {progress.batch}, step {progress.step:,}"
            )
        if changed:
            finished = (
                ", without effect on a finished run" if progress.epoch >= schedule.epochs else ""
            )
            say(f"changed since the checkpoint{finished}: {', '.join(changed)}")
        if remark is not None:
            say(remark)
        if progress.epoch >= schedule.epochs:
            say(
                f"the run in {self._out} is finished: nothing is left of its {epochs}; give more "
                "with --epochs, or another folder with --out."
            )

    def _write_trace(self) -> None:
        if self._spans is not None and self._config.log.trace is not None:
            path = rank_path(self._config.log.trace, self._world.rank, self._world.world_size)
            path.parent.mkdir(parents=True, exist_ok=True)
            metadata = {"model": self._config.model.model, "data": self._config.data.data}
            write_trace(
                path, self._spans, self._throughput.timeline, metadata, rank=self._world.rank
            )

    def _summary(self, interrupted: bool) -> Summary:
        device, idle, data = self._world.device, self._throughput.idle, self._components.data
        uses = self._watch.stop()
        spent = self._throughput.cpu_seconds
        cpu = sum(self._world.gather(spent) or [spent])
        return Summary(
            epochs=tuple(self._progress.records),
            steps=self._progress.step,
            seconds=time.perf_counter() - self._began,
            images_per_second=self._throughput.rate,
            measured_steps=0 if idle is None else idle.steps,
            cpu_seconds=None if idle is None else cpu,
            idle=idle,
            gpu=self._watch.reading,
            peak_device_memory=torch.cuda.max_memory_allocated(device)
            if device.type == "cuda"
            else None,
            devices=tuple(use for rank in self._world.gather(uses) or [uses] for use in rank),
            substituted=self._train.stats().substituted,
            best=self._progress.best,
            best_by=self._components.best_by[0],
            interrupted=interrupted,
            samples=len(data.source),
            val_samples=0 if data.val is None else data.val.sampler.order.length,
            global_batch=self._components.global_batch,
            lr=self._components.rate.value,
            world_size=self._world.world_size,
            device=str(device),
            stopped_by=self._stopping.signal,
        )


def global_samples(loader: Loader, batch: int) -> int:
    """Different samples in a batch of an epoch, over all ranks."""
    order = loader.sampler.order
    size = order.batch_size * order.shard.world_size
    return int(min(size, order.length - batch * size))


def _has_own(loader: Loader, batch: int) -> bool:
    """Whether this rank's part of a batch is its own. A batch of fewer samples than ranks is filled
    up with samples that other ranks have too; those must not count twice."""
    size, shard = global_samples(loader, batch), loader.sampler.order.shard
    first, last = (size * rank // shard.world_size for rank in (shard.rank, shard.rank + 1))
    return bool(first < last)


# -- Validation ------------------------------------------------------------------------------------


def validate(
    model: nn.Module,
    loader: Loader,
    task: Task,
    *,
    precision: AbstractContextManager[Any],
    check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The task's result over all samples of all ranks, the same on every rank. A collective.

    Args:
        model: the network itself, not its DistributedDataParallel: ranks may have different numbers
            of samples, and must not wait for each other within the epoch. Evaluated with rank 0's
            buffers (running statistics of batch normalisation), which are those that a checkpoint
            holds.
        loader: not shuffled, `drop_last=False`; a rank may get empty batches.
        task: what is counted.
        precision: the autocast that training runs in; entered once a batch.
        check: called before each batch, of which all ranks have the same number; ends the
            validation by raising.
    """
    _take_buffers_of_rank_0(model)
    evaluation = task.evaluation(loader.device)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for step, batch in enumerate(loader):
                check()
                # Always the draws of epoch 0: results of different epochs are to be compared.
                inputs = task.prepare(batch, draws_of(loader, epoch=0, step=step))
                if not len(inputs.model_input):
                    continue
                with precision:
                    output = task.output(model, inputs)
                evaluation.add(output, inputs.target)
    finally:
        model.train(training)
    return evaluation.result()


def _take_buffers_of_rank_0(model: nn.Module) -> None:
    """Each rank has followed the statistics of its own batches since the last exchange."""
    if dist.is_available() and dist.is_initialized():
        for buffer in model.buffers():
            if buffer.is_floating_point():
                values = buffer.contiguous()
                dist.broadcast(values, src=0)
                buffer.copy_(values)
