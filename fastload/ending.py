"""Ending a thread that may be in the user's code, where it may stay for ever.

At the end of a program Python ends each thread that is left where that next wants the GIL. Inside
a function of torch that unwinds the stack through destructors, and the process is aborted (SIGABRT:
"terminate called without an active exception").
"""

from __future__ import annotations

import ctypes
import threading


def end_thread(thread: threading.Thread | None, patience: float, afterwards: float = 10.0) -> None:
    """Wait for a thread that was asked to end, unless it is the caller's. Where it has not ended
    after `patience` seconds, SystemExit is raised at the next line of Python that it runs, and it
    is waited for `afterwards` seconds more. What stays in one call into C for so long is left."""
    if thread is None or thread is threading.current_thread():
        return
    thread.join(patience)
    if thread.is_alive():
        number, exception = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, exception)
        thread.join(afterwards)
