"""Scripts of clients, run as their users run them: a process of their own, or one for each rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**variables: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | variables


def run_script(name: str, *arguments: str, ranks: int = 1) -> None:
    """Run a script of this folder; with `ranks` > 1 once for each, in the environment that torchrun
    makes.

    Raises:
        AssertionError: one of them failed; with the end of what it printed.
    """
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(HERE / name), *arguments],
            env=environment(
                **({"RANK": str(rank), "LOCAL_RANK": str(rank), **common} if ranks > 1 else {})
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=500)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    codes = [process.returncode for process in running]
    assert codes == [0] * ranks, "\n".join(text[-4000:] for text in printed)


def result(directory: Path, name: str, rank: int) -> Any:
    """What a rank has left behind."""
    return json.loads((directory / f"{name}.{rank}").read_text())
