"""`fastload bench loader`: every backend, and the plain DataLoader, through the same recipe into a trainer.

`feeds.py` opens what gives batches, `trainer.py` is what takes them and knows when it was busy, `steps.py` what that
comes to; `runner.py` puts them together for the measuring core. `rows.py` lists who is measured with which settings,
`benchmark.py` runs it all, `verdict.py` says in words what came out.
"""
