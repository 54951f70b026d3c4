"""A child's end of `fastload.tools.measure.process`: `python -m fastload.tools.measure.child`,
started by it.

Standard library only, so that it runs in environments that have nothing else of fastload's.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any

ADDRESS = "FASTLOAD_MEASURE_ADDRESS"  # environment variable: the socket on which the parent listens

_parent: Connection | None = None


def report(value: object) -> None:
    """Tell the parent something before the answer: how far it is, what was found so far. Nothing
    without a parent."""
    if _parent is not None:
        _parent.send(("report", value))


def main() -> None:
    """Do what the parent says, one request after the other, until it closes the connection."""
    global _parent
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        _parent = Connection(connection.detach())
    _parent.send(("hello", int(os.environ.get("RANK", "0"))))
    opened: Any = None
    while True:
        try:
            verb, what, arguments = _parent.recv()
        except (EOFError, ConnectionError):
            break
        try:
            if verb == "open":
                opened = resolve_name(what)(*arguments)
                answer = None
            elif verb == "ask":
                answer = getattr(opened, what)(*arguments)
            else:
                answer = resolve_name(what)(*arguments)
            message = pickle.dumps(("answer", answer))
        except Exception as error:
            classes = [f"{cls.__module__}.{cls.__qualname__}" for cls in type(error).__mro__]
            _parent.send(("error", (classes, str(error))))
            if verb == "run":
                traceback.print_exc()
                sys.exit(1)  # The launcher then ends the other processes.
            continue
        _parent.send_bytes(message)
        if verb == "run":
            return
    if hasattr(opened, "close"):
        opened.close()


if __name__ == "__main__":
    # Not this copy of the module, which is called __main__: `report` of the other one must know the
    # parent.
    from fastload.tools.measure import child

    child.main()
