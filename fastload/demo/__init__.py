"""What `fastload demo` runs: a sample set, every backend on it, a comparison, a small training run."""
