"""Runs a command for a process that may be killed: `python -I guarded.py FOLDER COMMAND ...`, by
its path.

It runs while its standard input is open. When that ends first (the process at the other end has
died, by SIGKILL too), the command is ended with all of its process group, and the folder is
removed. Standard library only.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

_LOOK = 0.2  # seconds between two looks whether the command has ended


def main(folder: str, command: list[str]) -> int:
    """Exit code of the command; 1: its caller has died."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None:
        if select.select([sys.stdin], [], [], _LOOK)[0] and not os.read(sys.stdin.fileno(), 1):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)
            return 1
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
