"""Benchmarks of decoders (`decode/`) and of loaders that feed a trainer (`loader/`), on the kit `fastload.measure`.

`compare.py` says what changed between two runs.
"""
