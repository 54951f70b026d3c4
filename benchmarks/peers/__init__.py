"""fastload beside its peers: the same files, the same output, the same number of threads, in turns, in one run.

    make bench-peers                  # from a checkout; DATA=folder for your own photographs
    python -m benchmarks.peers --help

Reading order: `contestants/` (one small file a peer, each as its good users write it), `serve.py` (the measuring,
within the process of a contestant), `process.py` (the other end of the pipe), `comparison.py` (what is measured, in
order), `bars.py` (what must be reached).
"""
