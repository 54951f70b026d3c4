"""How long the GPU stands still while networks are trained: every contestant beside batches that are there already.

All feeds stay open; they take turns, every second round in reverse order. A turn begins when what lay ready has been
used up. At the end each contestant runs once more under torch.profiler, which sees the kernels themselves.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.feeds import SYNTHETIC, Feed, Row, rows
from benchmarks.gpu.found import Found
from benchmarks.gpu.network import Training, of_torchvision
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timeline import draw, shown
from benchmarks.gpu.turns import profiled, turn
from fastload.errors import BackendUnavailableError
from fastload.monitor import GpuMonitor

__all__ = ["run", "summarise_rows"]


def run(setting: Setting, found: Found) -> None:
    monitor = GpuMonitor(setting.where() if setting.where().type == "cuda" else "cpu")
    found.save("driver", monitor.reason or "asked by NVML")
    open_feeds: dict[str, Feed] = {}
    contestants = rows(setting)
    networks: dict[str, Any] = {}
    try:
        for number, network in enumerate(setting.networks):
            share = found.left / (len(setting.networks) - number)
            results = _Results(found, networks, network)
            _measure(setting, network, contestants, open_feeds, monitor, results, found.left - share)
    finally:
        for feed in open_feeds.values():
            feed.close()


class _Results:
    """Of one network, saved with every turn."""

    def __init__(self, found: Found, networks: dict[str, Any], network: str) -> None:
        self.found = found
        self._networks = networks
        self._rows: dict[str, dict[str, Any]] = {}
        networks[network] = {"rows": self._rows}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows.values())

    def row(self, name: str) -> dict[str, Any]:
        return self._rows.setdefault(name, {"name": name, "turns": []})

    def save(self) -> None:
        """With what follows from all turns so far."""
        summarise_rows(self.rows)
        self.found.save("networks", {n: {"rows": list(v["rows"].values())} for n, v in self._networks.items()})


def _measure(
    setting: Setting,
    network: str,
    contestants: list[Row],
    feeds: dict[str, Feed],
    monitor: GpuMonitor,
    results: _Results,
    reserve: float,
) -> None:
    """One network; the part must have `reserve` seconds left at the end of it."""
    found = results.found
    training = of_torchvision(network, setting.where(), compiled=setting.compile)
    synthetic = next(row for row in contestants if row.name == SYNTHETIC).open()
    for _ in range(3):  # compiles, and chooses convolutions
        training.step(next(synthetic))
    training.synchronize()
    profiler_takes = len(contestants) * 2 * setting.profile_seconds
    for number in range(setting.rounds):
        for row in reversed(contestants) if number % 2 else contestants:
            if number and found.left - reserve < setting.turn_seconds + profiler_takes:
                found.note(f"{network}: round {number + 1} was ended by the time of the part")
                break
            _take_turn(setting, row, training, feeds, monitor, results)
        else:
            continue
        break
    for row in contestants:
        if found.left - reserve < 2 * setting.profile_seconds:
            found.note(f"{network}: no time was left for the profiler from {row.name} on")
            break
        if row.name in feeds:
            _profile(setting, row, training, feeds, results)
    _draw(setting, network, results)


def _take_turn(
    setting: Setting,
    row: Row,
    training: Training,
    feeds: dict[str, Feed],
    monitor: GpuMonitor,
    results: _Results,
) -> None:
    into = results.row(row.name)
    into["fastload"] = row.fastload
    if into.get("status") in ("unavailable", "failed"):
        return
    try:
        if row.name not in feeds:
            feeds[row.name] = row.open()
        figures, steps = turn(feeds[row.name], training, setting.batch_size, setting.turn_seconds, monitor)
    except BackendUnavailableError as error:
        into.update(status="unavailable", note=str(error))
    except Exception as error:  # of a contestant: the others' minutes must not go with it
        into.update(status="failed", note=f"{type(error).__name__}: {error}")
        feed = feeds.pop(row.name, None)
        if feed is not None:
            feed.close()
    else:
        into["status"] = "measured"
        into["turns"].append(figures)
        into["timeline"] = shown(steps)
    results.save()


def _profile(setting: Setting, row: Row, training: Training, feeds: dict[str, Feed], results: _Results) -> None:
    try:
        results.row(row.name)["profile"] = profiled(feeds[row.name], training, setting.profile_seconds)
    except Exception as error:  # of the profiler, or of a contestant: the rates are there already
        results.found.note(f"{row.name}: the profiler gave nothing: {type(error).__name__}: {error}")
    results.save()


def _draw(setting: Setting, network: str, results: _Results) -> None:
    try:
        draw(Path(setting.out) / f"timeline-{network}.png", results.rows, f"{network}, batches of {setting.batch_size}")
    except Exception as error:  # matplotlib may not be there, and the next network is still to be measured
        results.found.note(f"{network}: no picture: {error}")


def summarise_rows(found: list[dict[str, Any]]) -> None:
    """Medians over the turns, and the share of the synthetic rate, turn by turn."""
    synthetic = next((row["turns"] for row in found if row["name"] == SYNTHETIC), [])
    for row in found:
        if not row["turns"]:
            continue
        for name in ("images_per_second", "busy_share", "gaps_over_5_ms", "host_cpu_share"):
            row[name] = median(turn[name] for turn in row["turns"])
        shares = [
            mine["images_per_second"] / theirs["images_per_second"]
            for mine, theirs in zip(row["turns"], synthetic, strict=False)
        ]
        row["of_synthetic"] = median(shares) if shares else None
        windows = [turn["driver"]["idle_windows"] for turn in row["turns"] if "driver" in turn]
        row["windows_at_0"] = sum(windows) if windows else None
