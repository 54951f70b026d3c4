"""`fastload bench loader`: every backend, and the plain DataLoader, through the same recipe into a trainer.

`contestants.py` lists who is measured with which settings, `benchmark.py` runs it all, `verdict.py` says in words what
came out.
"""
