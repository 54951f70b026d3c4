"""`fastload sweep`: batch sizes and parallel modes of a training run side by side, and what they
say in words.

`grid.py` says which runs there are and what a row is, `run.py` goes through all, each in processes
of its own; `advice.py` puts it into words, `report.py` shows it.
"""

from fastload.tools.sweep.grid import Cell, Mode, Row
from fastload.tools.sweep.run import SweepSettings, run_sweep

__all__ = ["Cell", "Mode", "Row", "SweepSettings", "run_sweep"]
