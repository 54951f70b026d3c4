"""`python -m fastload`: the command `fastload`."""

from __future__ import annotations

from fastload.cli import main

main()
