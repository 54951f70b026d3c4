"""What `tests/test_contributing.py` adds to a copy of the package, one file each, and `check.py`,
the tests that run there."""
