"""`fastload bench decode`: every decoder there is, on the same images, in the same modes.

`inputs.py` says what is to be decoded, `decoders.py` and `batches.py` are how each does it, `contestants.py` lists
them, `passes.py` is the clock, `differences.py` compares pixels, `benchmark.py` runs it all, `report.py` shows
it.
"""
