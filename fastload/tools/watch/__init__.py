"""`fastload watch`: what any training script does with its GPUs, cores and disks, and
what it waits for.

`sample.py` looks at a process with all that it started, at the GPUs and at the machine; `record.py`
keeps what was seen, in bounded memory, and writes and reads it; `verdict.py` says in words what the
GPU waited for; `run.py` runs a command and looks on, `beside.py` does so from within; `report.py`
shows it, at a terminal and as a page.
"""
