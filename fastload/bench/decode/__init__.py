"""`fastload bench decode`: every decoder there is, on the same images, in the same modes.

`task.py` says what is to be decoded, `contestants.py` lists who decodes, `steps.py` and `batches.py` are how each does
it, `passes.py` is the clock. Add a decoder: a class in `steps.py` and a line in `contestants.py`.

Nothing imports torch before a contestant needs it: Pillow-SIMD is measured in a process of its own
(`pillow_simd.py`) that has to be as light as its contestant.
"""
