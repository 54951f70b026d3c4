"""The store through which processes find each other, clean in every attempt.

torchrun keeps one store over restarts, with the addresses of the processes that have died still in it, and a process
that reads them first connects to nobody (pytorch issues 135712 and 167288). Nor does its count of restarts help: on
several machines each torchrun has its own. So the processes of an attempt agree on a name that no other attempt has,
and keep everything under it.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from fastload.errors import FastloadError

__all__ = ["meet"]

_POLL = 0.02
"""[seconds]"""


def meet(store: Any, rank: int, world_size: int, *, timeout: float = 600.0) -> Any:
    """The part of a store that is of these processes alone.

    Each process leaves a word that no process before it has left, and rank 0 answers to every word that it finds with
    the name of the attempt. It goes on until all have confirmed that, for it may have answered to the dead.

    Args:
        store: of `torch.distributed`, the same one in all processes.
        rank: of this process.
        world_size: how many there are.
        timeout: for all to come [seconds].

    Raises:
        FastloadError: they did not.
    """
    store = PrefixStore("fastload", store)
    if rank == 0:
        name = secrets.token_hex(8)
        _answer(store, name, set(range(1, world_size)), time.monotonic() + timeout)
    else:
        word = secrets.token_hex(8)
        store.set(f"word/{rank}", word)
        try:
            store.wait([f"answer/{word}"], timedelta(seconds=timeout))
        except RuntimeError as error:
            raise FastloadError(f"rank {rank}: no answer from rank 0 within {timeout:g} s ({error}).") from error
        name = store.get(f"answer/{word}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
    return PrefixStore(name, store)


def _answer(store: Any, name: str, missing: set[int], deadline: float) -> None:
    """To every word of every rank that has not confirmed, the name."""
    while True:
        missing = {rank for rank in missing if not store.check([f"confirmed/{name}/{rank}"])}
        if not missing:
            return
        if time.monotonic() > deadline:
            raise FastloadError(
                f"rank 0: ranks {', '.join(map(str, sorted(missing)))} have not come. Have they started?"
            )
        for rank in missing:
            if store.check([f"word/{rank}"]):
                store.set(f"answer/{store.get(f'word/{rank}').decode()}", name)
        time.sleep(_POLL)
