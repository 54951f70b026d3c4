"""fastload on a real GPU: whether it is right there, whether the GPU still waits, and how fast the parts are.

    python -m benchmarks.gpu.run --photos FOLDER --out DIR               # on a machine with an NVIDIA GPU
    python -m benchmarks.gpu.run --device cpu --dry-run --out DIR        # every part, tiny, without one

Reading order: `run.py` (the command), `setting.py` (what is measured, how long), then the parts, one file each, in the
order of `parts.py`; `goals.py` (what must be reached), `summary.py` and `timeline.py` (what is shown at the end).
"""
