"""Augmentation pipelines beside their originals; `python -m benchmarks.pipelines --help`.

`pipeline` has the value that describes one, each `of_*` file those of a family. `judge` compares
what comes out, `speed` how fast, and `picture` draws both for the manual.
"""
