"""`fastload sweep`: batch sizes and parallel modes of a training run side by side, and what they say in words.

`grid.py` says which runs there are, `cell.py` starts one in processes of its own, `run.py` goes through all;
`results.py` is a row of what comes out, `advice.py` puts it into words, `report.py` shows it.
"""

from fastload.sweep.grid import Cell, Mode
from fastload.sweep.results import Row
from fastload.sweep.run import SweepSettings, run_sweep

__all__ = ["Cell", "Mode", "Row", "SweepSettings", "run_sweep"]
