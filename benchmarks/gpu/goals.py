"""What must be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Verdict", "judge"]

_ALL_RESNET50, _BEST_RESNET18 = 0.98, 0.95
"""Of the rate with batches that are there already."""
_CIFAR, _CIFAR_SHARE = 20e6, 0.01


@dataclass(frozen=True)
class Verdict:
    """One goal beside what was found."""

    goal: str
    found: float | None
    """None: not measured."""
    bound: float
    at_least: bool = True
    unit: str = ""
    """"%": a share."""

    @property
    def reached(self) -> bool | None:
        if self.found is None:
            return None
        return self.found >= self.bound if self.at_least else self.found <= self.bound

    def __str__(self) -> str:
        wanted = f"{'>=' if self.at_least else '<='} {self._shown(self.bound)}"
        if self.found is None:
            return f"not measured    {self.goal} ({wanted})"
        word = "reached" if self.reached else f"MISSED{self._by()}"
        return f"{word:<15} {self.goal}: {self._shown(self.found)} ({wanted})"

    def _by(self) -> str:
        assert self.found is not None
        return f" by {abs(self.found / self.bound - 1):.1%}" if self.bound else ""

    def _shown(self, value: float) -> str:
        if self.unit == "%":
            return f"{value:.1%}"
        return f"{value:,.0f}{self.unit and ' ' + self.unit}"


def judge(parts: Mapping[str, Any]) -> list[Verdict]:
    """Every goal, from the results of all parts."""
    return [*_correct(parts), *_idle(parts.get("idle", {}).get("networks", {})), *_cifar(parts.get("cifar", {}))]


def _correct(parts: Mapping[str, Any]) -> Iterator[Verdict]:
    contract, streams = parts.get("contract", {}), parts.get("streams", {})
    suite = contract.get("suite", {})
    yield Verdict("contract tests that fail on the device", suite.get("failed"), 0, at_least=False)
    yield Verdict("checks on photographs that are not right", _wrong(contract.get("rows"), _CHECKS), 0, at_least=False)
    yield Verdict("backends whose batches change under the trainer", _wrong(streams.get("rows")), 0, at_least=False)


_CHECKS = ("pixels", "resume")


def _wrong(rows: Any, checks: tuple[str, ...] = ()) -> int | None:
    """Of all that was checked, how much is wrong or failed; None if nothing was checked."""
    found = [row[name] for row in rows or () for name in checks if name in row] if checks else rows or []
    checked = [item["status"] for item in found if item.get("status") in ("right", "WRONG", "failed")]
    return sum(status != "right" for status in checked) if checked else None


def _idle(networks: Mapping[str, Any]) -> Iterator[Verdict]:
    measured = {
        name: [row for row in found["rows"] if row.get("fastload") and row.get("of_synthetic") is not None]
        for name, found in networks.items()
    }
    every = measured.get("resnet50", [])
    if not every:
        yield Verdict("ResNet-50, every backend, of the synthetic rate", None, _ALL_RESNET50, unit="%")
    for row in every:
        yield Verdict(f"ResNet-50, {row['name']}, of the synthetic rate", row["of_synthetic"], _ALL_RESNET50, unit="%")
    windows = [row["windows_at_0"] for row in every if row.get("windows_at_0") is not None]
    yield Verdict(
        "ResNet-50, all backends, windows at 0% after the first batch",
        sum(windows) if windows else None,
        0,
        at_least=False,
    )
    best = max(measured.get("resnet18", []), key=lambda row: row["of_synthetic"], default=None)
    name = "" if best is None else f" ({best['name']})"
    yield Verdict(
        f"ResNet-18, the best backend{name}, of the synthetic rate",
        None if best is None else best["of_synthetic"],
        _BEST_RESNET18,
        unit="%",
    )


def _cifar(cifar: Mapping[str, Any]) -> Iterator[Verdict]:
    fastest = max((row["images_per_second"] for row in cifar.get("alone", [])), default=None)
    yield Verdict("CIFAR-10 resident on the device, the loader alone", fastest, _CIFAR, unit="img/s")
    share = cifar.get("training", {}).get("loader_share")
    yield Verdict("CIFAR-10 training, the loader's share of a step", share, _CIFAR_SHARE, at_least=False, unit="%")
