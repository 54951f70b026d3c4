"""What a trainer and its GPU spend their time on: the driver's view, the device's own timeline, traces and pictures."""

from fastload.monitor.exchange import mark_exchange
from fastload.monitor.gpu import GpuMonitor, GpuReading
from fastload.monitor.idle import Activity, Gap, IdleSummary, Phase, Segment, Step
from fastload.monitor.steps import StepClock, step_clock

__all__ = [
    "Activity",
    "Gap",
    "GpuMonitor",
    "GpuReading",
    "IdleSummary",
    "Phase",
    "Segment",
    "Step",
    "StepClock",
    "mark_exchange",
    "step_clock",
]
