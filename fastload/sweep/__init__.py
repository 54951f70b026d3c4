"""`fastload sweep`: batch sizes and parallel modes of a training run side by side, and what they say in words.

`grid.py` says which runs there are, `cell.py` starts one in processes of its own, `worker.py` is what runs in them,
`job.py` what the two tell each other, `run.py` goes through all; `results.py` is what comes out, `advice.py` puts it
into words, `table.py`, `page.py` and `plot.py` show it.
"""

from fastload.sweep.grid import Cell, Mode
from fastload.sweep.results import Row, Sweep, from_json, to_csv, to_json
from fastload.sweep.run import SweepSettings, run_sweep

__all__ = ["Cell", "Mode", "Row", "Sweep", "SweepSettings", "from_json", "run_sweep", "to_csv", "to_json"]
