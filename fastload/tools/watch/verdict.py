"""What the GPU waited for, in words, and the line to change.

From outside a script it can be seen that a GPU did nothing, and what everything else did meanwhile.
The rules, the first that holds; "idle time" is the time in which the driver said less than 50% of
the GPU that was used least:

1. No GPU was watched or used: the verdict says so, and what the processor did.
2. All GPUs were used 90% of the time or more: computing.
3. Another GPU was at 90% or more in half of the idle time or more: gradients. The kernel that
   exchanges them waits on the GPU, and the driver counts a waiting kernel as use.
4. The thread that queues the GPU's work took 70% of a core or more in the idle time, or was ready
   to: the host. If the watched processes read 1 MB/s or more meanwhile, and nothing else of theirs
   worked, that thread may be making the data itself: data.
5. That thread took less, and all else that the script started took 0.3 cores or more (or was ready
   to), or read 1 MB/s or more from storage, or the machine received 1 MB/s or more: data.
6. Nothing of this: it is not known, and the verdict says so.

`fastload train` marks its phases itself: its verdict (`verdict_of_shares`) is read from them, not
guessed from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from fastload.errors import counted
from fastload.tools.watch.record import Moment, Watched

Cause = Literal["computing", "data", "gradients", "host", "unknown", "no GPU"]

BUSY = 0.9  # mean utilisation from which on nothing outside the GPU is worth changing
IDLE = 0.5  # utilisation below which a moment is idle
FEEDER = 0.7  # of a core: the thread that queues work does little else than work
WORK = 0.3  # cores: enough of the others for saying that they work
FLOW = 1e6  # bytes/s: enough for saying that data are read
FOREIGN = 0.25  # of the cores: enough for saying that others disturb
NOTABLE = 0.1  # share of the time from which on a cause in the shares is named


class Verdict(NamedTuple):
    cause: Cause
    words: str
    change: str = ""  # the line to change, with what it does


def verdict(watched: Watched) -> Verdict:
    """Of what was seen so far."""
    moments = [moment for moment in watched.moments if moment.seconds > 0]
    if not moments:
        return Verdict("unknown", "It ended before anything was seen.")
    of_gpus = _of_gpus(watched, moments)
    foreign = _mean(moments, lambda moment: moment.foreign)
    if foreign >= FOREIGN * watched.cores:
        words = (
            f"{of_gpus.words} Other processes took {foreign:.1f} of the "
            f"{counted(watched.cores, 'core')} meanwhile: repeat it on a quiet machine before you "
            "change anything."
        )
        of_gpus = of_gpus._replace(words=words)
    return of_gpus


def _of_gpus(watched: Watched, moments: Sequence[Moment]) -> Verdict:
    seen = [moment for moment in moments if moment.lowest is not None]
    used = [gpu for gpu in watched.gpus if gpu.used and gpu.busy_share is not None]
    ours = _mean(moments, lambda moment: moment.others + (moment.feeder or 0.0))
    if not seen or not used:
        why = watched.reason or "no GPU that the driver tells of was used by it"
        return Verdict(
            "no GPU",
            f"No GPU was watched ({why}), so whether a device waited is not known. The script took "
            f"{ours:.1f} of {counted(watched.cores, 'core')}{_reading(moments)}.",
        )
    busy = min(gpu.busy_share or 0.0 for gpu in used)
    windows = sum(gpu.idle_windows for gpu in used)
    at_zero = sum(gpu.idle_seconds for gpu in used) / sum(gpu.seconds for gpu in used)
    first = (
        f"The GPU was used {busy:.0%} of the time"
        if len(used) == 1
        else f"The GPU that was used least was used {busy:.0%} of the time"
    )
    first += f", at 0% {at_zero:.0%} of it in {counted(windows, 'window')}"
    idle = [moment for moment in seen if (moment.lowest or 0.0) < IDLE]
    if busy >= BUSY:
        return Verdict(
            "computing",
            f"{first}: it computes. The driver counts time in which at least one kernel runs, "
            "however small, and does not see gaps below a sixth of a second.",
            "larger batches, --amp bf16 or torch.compile make the GPU itself faster; a loader "
            "cannot",
        )
    if not idle:
        return Verdict(
            "unknown",
            f"{first}, and never below {IDLE:.0%} at one look: gaps this short cannot be "
            "distinguished from outside. `fastload.monitor.step_clock` measures them in the "
            "script.",
        )
    cause = _when_idle(idle, watched)
    return cause._replace(words=f"{first}. {cause.words}")


def _when_idle(idle: Sequence[Moment], watched: Watched) -> Verdict:
    seconds = sum(moment.seconds for moment in idle)
    others_full = sum(moment.seconds for moment in idle if (moment.highest or 0.0) >= BUSY)
    if others_full >= 0.5 * seconds:
        return _gradients(others_full / seconds, watched)
    feeders = [moment for moment in idle if moment.feeder is not None]
    feeder = (
        _mean(feeders, lambda moment: (moment.feeder or 0.0) + moment.feeder_queued)
        if feeders
        else None
    )
    others = _mean(idle, lambda moment: moment.others)
    wanted = others + _mean(idle, lambda moment: moment.queued)
    read = _mean(idle, lambda moment: moment.read or 0.0)
    cached = _mean(idle, lambda moment: moment.cached or 0.0)
    received = _mean(idle, lambda moment: moment.received)
    reads = read + cached >= FLOW
    if feeder is not None and feeder >= FEEDER:
        worked = f"Meanwhile the thread that queues its work took {feeder:.0%} of a core"
        if reads and wanted < WORK:
            return Verdict(
                "data",
                f"{worked}, nothing else of the script worked, and it read {_rate(read + cached)}: "
                "the thread probably makes the batches itself (num_workers=0), so the GPU waits "
                "for data.",
                "train = fastload.from_dataloader(train)  # or DataLoader(..., num_workers=4)",
            )
        return Verdict(
            "host",
            f"{worked}: it waits for the host. That is Python beside the GPU (logging, .item(), "
            "printing, many small kernels); what exactly, `fastload.monitor.profile_steps` shows.",
            "model = torch.compile(model)  # or a larger batch; and no .item() in each step",
        )
    if wanted >= WORK or read >= FLOW or received >= FLOW:
        return _data(feeder, others, wanted, read, received, idle, watched)
    quiet = (
        "nothing that was watched worked"
        if feeder is None
        else f"the thread that queues work took {feeder:.0%}"
    )
    return Verdict(
        "unknown",
        f"What it waited for is not known: meanwhile {quiet}, all else {others:.1f} of a core, "
        f"{_rate(read)} came from storage and little over the network. It may be a lock, a sleep, "
        "another machine, or a first download.",
    )


def _gradients(share: float, watched: Watched) -> Verdict:
    words = (
        f"In {share:.0%} of that time another GPU was at {BUSY:.0%} or more: the GPUs wait for "
        "each other's gradients, and the kernel that waits counts as use."
    )
    if watched.gpu_processes <= 1:
        return Verdict(
            "gradients",
            f"{words} One process holds all GPUs, as DataParallel does.",
            "torchrun --nproc-per-node N train.py, with DistributedDataParallel(model) in place of "
            "DataParallel(model)",
        )
    return Verdict(
        "gradients",
        f"{words} There is a process a GPU, so one rank is slower than the others, or the exchange "
        "is.",
        "with model.no_sync():  # for all but the last of some accumulated batches; and batches of "
        "equal work",
    )


def _data(
    feeder: float | None,
    others: float,
    wanted: float,
    read: float,
    received: float,
    idle: Sequence[Moment],
    watched: Watched,
) -> Verdict:
    foreign = _mean(idle, lambda moment: moment.foreign)
    slept = (
        ""
        if feeder is None
        else f"the thread that queues its work took or wanted {feeder:.0%} of a core, "
    )
    words = (
        f"Meanwhile {slept}all else of the script {others:.1f} of {counted(watched.cores, 'core')}"
    )
    words += f" (it was ready to use {wanted:.1f})" if wanted > others + WORK else ""
    words += f", {_rate(read)} came from storage" if read >= FLOW else ""
    words += f", {_rate(received)} over the network" if received >= FLOW else ""
    words += ": it waits for data."
    if wanted + (feeder or 0.0) + foreign >= 0.8 * watched.cores:
        return Verdict(
            "data",
            f"{words} The cores are full: more workers cannot help, less work for a sample can.",
            "train = fastload.from_dataloader(train)  # or a cache: fastload cache build",
        )
    if wanted >= WORK:
        return Verdict(
            "data",
            f"{words} There are cores left.",
            f"DataLoader(..., num_workers={watched.cores})  # or train = "
            "fastload.from_dataloader(train)",
        )
    where = "storage" if read >= received else "the network"
    return Verdict(
        "data",
        f"{words} The cores rest: {where} is the limit.",
        'train = fastload.create_loader(..., backend="cache")  # reads once; or more workers',
    )


def verdict_of_shares(shares: Mapping[str, float]) -> Verdict:
    """Of a run that marks its phases: shares of the device's time by activity, which add up to
    1."""
    busy = shares.get("compute", 0.0) + shares.get("update", 0.0)
    losses: dict[str, tuple[Cause, str, str]] = {
        "wait": ("data", "data", "--tune, --num-workers, or --backend cache"),
        "copy": (
            "data",
            "the copy of batches to the device",
            "--backend cache --backend-option storage=device",
        ),
        "exchange": (
            "gradients",
            "gradients of other ranks",
            "--accumulate, or a larger --batch-size",
        ),
        "launch": (
            "host",
            "the host, which queued no work",
            "--compile, a larger --batch-size, or --log-steps",
        ),
    }
    worst = max(losses, key=lambda name: shares.get(name, 0.0))
    cause, name, change = losses[worst]
    lost = shares.get(worst, 0.0)
    if lost < NOTABLE:
        return Verdict("computing", f"The device was busy {busy:.1%} of the time: it computes.")
    return Verdict(
        cause,
        f"The device was busy {busy:.1%} of the time and waited {lost:.1%} for {name}.",
        change,
    )


def _reading(moments: Sequence[Moment]) -> str:
    read = _mean(moments, lambda moment: moment.read or 0.0)
    return f" and read {_rate(read)} from storage" if read >= FLOW else ""


def _mean(moments: Sequence[Moment], of: Callable[[Moment], float]) -> float:
    """Weighted by length."""
    return sum(moment.seconds * of(moment) for moment in moments) / sum(
        moment.seconds for moment in moments
    )


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e6:,.1f} MB/s"
