"""Python programs that start warm: forks of a process that has imported torch and torchvision,
seconds saved for each.

For what a program does, not for how an interpreter starts or ends: nothing registered with `atexit`
runs at its end.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.waiting import LIMIT

START_METHOD = "forkserver"
CONTEXT = multiprocessing.get_context(START_METHOD)
# One fork server for all tests of a process. What the tests import while they are collected is not
# in it.
CONTEXT.set_forkserver_preload(
    ["torch", "torchvision.transforms.v2", "tests.train_job", "fastload.train.trainer"]
)


@dataclass(frozen=True)
class Done:
    """How a program ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def reserved_port() -> int:
    """A port of loopback that is given to nobody else while this process runs. A server that sets
    SO_REUSEADDR, as torch's store does, can listen there: the socket that keeps it does not."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    atexit.register(keeper.close)
    return int(keeper.getsockname()[1])


def ranks(world_size: int) -> list[Mapping[str, str]]:
    """The variables that torchrun sets, for each rank of one machine."""
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(reserved_port()),
        "WORLD_SIZE": str(world_size),
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def run(
    *command: str,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = LIMIT,
) -> Done:
    """`python SCRIPT ARGUMENTS...` in `directory`; see `run_all`."""
    return run_all(
        [command], directory=directory, environments=[environment or {}], timeout=timeout
    )[0]


def run_all(
    commands: list[tuple[str, ...]],
    *,
    directory: Path,
    environments: list[Mapping[str, str]],
    timeout: float = LIMIT,
) -> list[Done]:
    """Run programs side by side; variables of `environments` are added to those of this process.

    Raises:
        TimeoutError: one had not ended after `timeout` seconds; all are killed by then.
    """
    with tempfile.TemporaryDirectory() as printed:
        processes = []
        for number, (command, variables) in enumerate(zip(commands, environments, strict=True)):
            values = {**os.environ, **variables}
            process = CONTEXT.Process(
                target=_main, args=(command, str(directory), values, f"{printed}/{number}")
            )
            process.start()
            processes.append(process)
        try:
            for command, process in zip(commands, processes, strict=True):
                process.join(timeout)
                if process.exitcode is None:
                    raise TimeoutError(f"{' '.join(command)} still ran after {timeout:g} s")
        finally:
            for process in processes:
                process.kill()
                process.join()
        texts = [
            [Path(f"{printed}/{n}.{name}").read_text() for name in ("out", "err")]
            for n in range(len(commands))
        ]
        return [
            Done(process.exitcode or 0, *text)
            for process, text in zip(processes, texts, strict=True)
        ]


def _main(
    command: tuple[str, ...], directory: str, environment: dict[str, str], printed: str
) -> None:
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{printed}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    multiprocessing.set_start_method(None, force=True)  # its own worker processes: Python's default
    torch.set_num_threads(1)  # the data is small, and other tests run beside it
    sys.argv = list(command)
    sys.path[0] = str((Path(directory) / command[0]).parent)
    code: object = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.exit(code)  # type: ignore[arg-type]
