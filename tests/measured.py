"""Results to test with, small enough to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastload.tools.measure.results import Failure, Latency, Machine, Measurement, Results, Round

MACHINE = Machine(
    cpu="Some CPU",
    cores=8,
    affinity_cores=4,
    quota_cores=2.5,
    simd=("avx2",),
    memory=1 << 34,
    system="Linux",
    python="3.11",
    gpus=("Some GPU",),
    libraries={"torch": "2.5", "Pillow": "11"},
)


def row(contestant: str, rates: Sequence[float], **more: Any) -> Measurement:
    """A measured row whose rounds have these rates."""
    rounds = tuple(
        Round(100, 100 / rate, 0.2, {"pixels_per_second": rate * 1e5, "psnr_db": None})
        for rate in rates
    )
    settings: dict[str, Any] = {
        "mode": "full",
        "parameters": {"threads": 2},
        "rounds": rounds,
        "version": "1",
    }
    return Measurement(contestant, **(settings | more))


def results(*rows: Measurement, **more: Any) -> Results:
    settings: dict[str, Any] = {
        "benchmark": "decode",
        "created": "2026-01-01T00:00:00+00:00",
        "fastload": "0.1",
        "machine": MACHINE,
        "settings": {"folder": "x", "threads": [1, 2], "limit": None},
        "measurements": rows,
        "notes": ("a note",),
    }
    return Results(**(settings | more))


def full_results() -> Results:
    """With something in every field."""
    return results(
        row(
            "a",
            [100.0, 110.0, 105.0],
            latency=Latency(0.01, 0.02, 300),
            peak_memory=10,
            memory_growth=5,
            failures=(Failure("b.jpg", "damaged"),),
            series={"gpu_busy": ((0.0, 0.5), (0.1, 1.0))},
        ),
        Measurement("b", "any", status="unavailable", note="pip install b"),
        complete=False,
    )
