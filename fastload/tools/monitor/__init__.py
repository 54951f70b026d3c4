"""What a trainer and its GPU spend their time on: the driver's view, the device's own timeline,
traces and pictures.

`gpu.py` asks the driver. `steps.py` is the clock that a trainer marks its phases on, by the
device's own time, `idle.py` the sums. `profiler.py` looks at every kernel of a few steps.
`timeline.py` shows it all, as a trace or a picture.
"""

from fastload.tools.monitor.gpu import GpuMonitor, GpuReading
from fastload.tools.monitor.idle import Activity, Gap, IdleSummary, Phase, Segment, Step
from fastload.tools.monitor.profiler import DeviceProfile, phase_range, profile_steps
from fastload.tools.monitor.steps import StepClock, mark_exchange, step_clock
from fastload.tools.monitor.timeline import draw_timelines, merge_traces, rank_path, write_trace

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
