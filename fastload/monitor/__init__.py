"""What a trainer and its GPU spend their time on: the driver's view, the device's own timeline, traces and pictures.

`gpu.py` asks the driver. `steps.py` is the clock that a trainer marks its phases on, `stamps.py` how it tells the
device's time, `idle.py` the sums; `exchange.py` marks the exchange of gradients. `profiler.py` looks at every kernel of
a few steps. `trace.py` and `picture.py` show what was seen.
"""

from fastload.monitor.exchange import mark_exchange
from fastload.monitor.gpu import GpuMonitor, GpuReading
from fastload.monitor.idle import Activity, Gap, IdleSummary, Phase, Segment, Step
from fastload.monitor.picture import draw_timelines
from fastload.monitor.profiler import DeviceProfile, phase_range, profile_steps
from fastload.monitor.steps import StepClock, step_clock
from fastload.monitor.trace import merge_traces, rank_path, write_trace

__all__ = [
    "Activity",
    "DeviceProfile",
    "Gap",
    "GpuMonitor",
    "GpuReading",
    "IdleSummary",
    "Phase",
    "Segment",
    "Step",
    "StepClock",
    "draw_timelines",
    "mark_exchange",
    "merge_traces",
    "phase_range",
    "profile_steps",
    "rank_path",
    "step_clock",
    "write_trace",
]
