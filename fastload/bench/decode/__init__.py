"""`fastload bench decode`: every decoder there is, on the same images, in the same modes.

`inputs.py` says what is to be decoded, `passes.py` what a contestant is and how it is timed; `decoders.py` lists them,
`pillow.py` and `batches.py` are those that take more than a few lines. `differences.py` compares pixels, `benchmark.py`
runs it all, `report.py` shows it.
"""
