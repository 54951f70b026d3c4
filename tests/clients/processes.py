"""Scripts of clients, run as their users run them: a process of their own, or one for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import warm

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


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
    makes. The processes start warm, see `tests.warm`.

    Raises:
        AssertionError: one of them failed; with the end of what it printed.
    """
    variables = warm.ranks(ranks) if ranks > 1 else [{}]
    done = warm.run_all(
        [(str(HERE / name), *arguments)] * ranks,
        directory=ROOT,
        environments=[{"OMP_NUM_THREADS": "1"} | dict(one) for one in variables],
        timeout=500,
    )
    codes = [one.returncode for one in done]
    assert codes == [0] * ranks, "\n".join((one.stdout + one.stderr)[-4000:] for one in done)


def run_cold(name: str, *arguments: str, timeout: float = 500) -> None:
    """`run_script` in a new interpreter, for what starts processes in ways of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / name), *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def result(directory: Path, name: str, rank: int) -> Any:
    """What a rank has left behind."""
    return json.loads((directory / f"{name}.{rank}").read_text())
