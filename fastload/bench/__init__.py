"""Benchmarks that measure contestants side by side: `measure` runs them, `results` is what comes out.

`results.py` is the model and documents the JSON; `measure.py` has the contract of a contestant; `decode/` are the
decoders, `loader/` the loaders that feed a trainer, `report/` is the page with charts.
"""
