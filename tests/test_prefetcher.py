"""The prefetcher's thread: its table of states, and what the trainer gets whatever happens to
either of the two."""

from __future__ import annotations

import itertools
import re
import threading
import weakref
from queue import Empty
from typing import Any

import pytest
import torch

from fastload.backends.base import HostBatch, Work
from fastload.device import DeviceStage
from fastload.draws import Draws
from fastload.errors import DecodeError, FastloadError, OnError, WorkerError
from fastload.loader import production
from fastload.loader.production import (
    READY,
    TRANSITIONS,
    Event,
    Prefetcher,
    Production,
    State,
)
from fastload.recipe.outputs import Outputs
from fastload.recipe.split import BatchProgram
from fastload.sampler import EpochOrder, Schedule
from fastload.sources.kinds import VALUE
from tests.recorder import Recorder
from tests.waiting import LIMIT, wait_until

ORDER = EpochOrder(24, 2, shuffle=True)


def production_of(backend: Recorder, on_error: OnError = "raise") -> Production:
    stage = DeviceStage(
        device=torch.device("cpu"),
        programs=(BatchProgram(()),),
        outputs=Outputs.of_kinds({"value": VALUE}),
    )
    return Production(backend, stage, Schedule(ORDER), ORDER, on_error)


class Prefetched:
    """A prefetcher over a Recorder, which has started at a position."""

    def __init__(
        self, backend: Recorder, position: tuple[int, int] = (0, 0), *, ahead: bool = True
    ) -> None:
        self.stage = DeviceStage(
            device=torch.device("cpu"),
            programs=(BatchProgram(()),),
            outputs=Outputs.of_kinds({"value": VALUE}),
        )
        schedule = Schedule(ORDER, ahead=ahead)
        production = Production(backend, self.stage, schedule, ORDER)
        production.begin(position)
        production.start()
        self.prefetcher = Prefetcher(production, self.stage)
        self.prefetcher.begin(None)

    def next(self) -> list[int]:
        values, _ = self.prefetcher.next().batch
        found: list[int] = values.tolist()
        return found

    def __enter__(self) -> Prefetched:
        return self

    def __exit__(self, *_: object) -> None:
        self.prefetcher.stop()


def batch_at(epoch: int, step: int) -> list[int]:
    found: list[int] = ORDER.epoch(epoch)[ORDER.batch(step)].tolist()
    return found


def test_the_table_in_the_docstring_is_the_one_that_runs() -> None:
    rows = [
        re.findall(r"[A-Z]+|(?<=\|) +(?=\|)", line)
        for line in (Prefetcher.__doc__ or "").splitlines()
    ]
    header, *states = [[cell.strip() for cell in row] for row in rows if len(row) > 5]
    assert header == [event.name for event in Event]
    drawn = {
        (State[name], Event[event]): State[after]
        for name, *cells in states
        for event, after in zip(header, cells, strict=True)
        if after
    }
    assert drawn == TRANSITIONS


def test_batches_come_in_order_over_the_ends_of_epochs() -> None:
    with Prefetched(Recorder(), (0, 10)) as prefetched:
        positions = [(0, 10), (0, 11), *((1, step) for step in range(12)), (2, 0)]
        assert [prefetched.next() for _ in positions] == [
            batch_at(*position) for position in positions
        ]


def test_it_makes_as_many_as_it_may_and_then_one_for_each_that_is_taken() -> None:
    backend = Recorder(depth=3)
    with Prefetched(backend) as prefetched:
        for taken in range(5):
            wait_until(lambda: prefetched.prefetcher.state is State.FULL)
            # Those that the trainer has, those that are ready, and those in flight.
            assert len(backend.started) == taken + READY + 3
            prefetched.next()
            wait_until(lambda taken=taken: len(backend.started) == taken + 1 + READY + 3)


def test_it_waits_at_the_end_of_an_epoch_where_it_may_not_go_on() -> None:
    backend = Recorder()
    with Prefetched(backend, (0, 9), ahead=False) as prefetched:
        assert [prefetched.next() for _ in range(3)] == [batch_at(0, step) for step in (9, 10, 11)]
        wait_until(lambda: prefetched.prefetcher.state is State.WAITING)
        assert len(backend.started) == 3
        with pytest.raises(WorkerError, match="no batch is left"):
            prefetched.next()
        prefetched.prefetcher.begin((1, 0))
        assert prefetched.next() == batch_at(1, 0)


def test_its_thread_keeps_no_batch_that_the_trainer_has() -> None:
    backend = Recorder()
    with Prefetched(backend) as prefetched:
        wait_until(lambda: prefetched.prefetcher.state is State.FULL)
        backend.hold = threading.Event()
        for _ in range(READY):
            values, _ = prefetched.prefetcher.next().batch
        wait_until(lambda: prefetched.prefetcher.state is State.MAKING)
        kept = weakref.ref(values)
        del values
        try:
            assert kept() is None
        finally:
            backend.hold.set()


@pytest.mark.parametrize("moment", ["while it waits for the backend", "when it is full"])
def test_a_new_start_throws_away_what_was_made_before(moment: str) -> None:
    backend = Recorder()
    with Prefetched(backend) as prefetched:
        prefetched.next()
        wait_until(lambda: prefetched.prefetcher.state is State.FULL)
        if moment != "when it is full":
            backend.hold = threading.Event()
            prefetched.next()
            wait_until(lambda: prefetched.prefetcher.state is State.MAKING)
        prefetched.prefetcher.begin((4, 5))
        prefetched.prefetcher.begin((7, 2))
        if backend.hold is not None:
            backend.hold.set()
        assert [prefetched.next() for _ in range(3)] == [batch_at(7, step) for step in (2, 3, 4)]
        assert backend.cancelled >= 1


def test_after_an_error_it_waits_for_a_new_start() -> None:
    bad = batch_at(0, 3)[0]
    backend = Recorder(bad=frozenset({bad}))
    with Prefetched(backend, (0, 1)) as prefetched:
        assert [prefetched.next() for _ in range(2)] == [batch_at(0, 1), batch_at(0, 2)]
        with pytest.raises(DecodeError, match=f"file {bad}: broken"):
            prefetched.next()
        wait_until(lambda: prefetched.prefetcher.state is State.WAITING)
        cancelled = backend.cancelled
        assert cancelled == backend.depth, "the one that failed, and those after it"
        prefetched.prefetcher.begin((0, 4))
        assert prefetched.next() == batch_at(0, 4)
        assert backend.cancelled == cancelled, "there was nothing in flight"


def test_stopping_ends_the_thread_and_the_wait_of_the_trainer() -> None:
    backend = Recorder()
    prefetched = Prefetched(backend)
    prefetched.next()
    wait_until(lambda: prefetched.prefetcher.state is State.FULL)
    for _ in range(READY):
        prefetched.next()
    backend.hold = threading.Event()
    said: list[str] = []

    def wait() -> None:
        try:
            for _ in itertools.count():
                prefetched.next()
        except FastloadError as error:
            said.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    stopping = threading.Thread(target=prefetched.prefetcher.stop)
    stopping.start()
    waiting.join()
    backend.hold.set()
    stopping.join()
    assert "closed while a batch was waited for" in said[0]
    wait_until(lambda: prefetched.prefetcher.state is State.STOPPED)
    assert prefetched.prefetcher.stopping
    prefetched.prefetcher.stop()  # a second time


def test_stop_returns_when_the_batch_that_is_being_made_is_done() -> None:
    backend = Recorder()
    prefetched = Prefetched(backend)
    prefetched.next()
    wait_until(lambda: prefetched.prefetcher.state is State.FULL)
    backend.hold = threading.Event()
    prefetched.next()
    wait_until(lambda: prefetched.prefetcher.state is State.MAKING)
    thread = prefetched.prefetcher._thread
    assert thread is not None
    assert thread.daemon, "a script that ends without closing is not kept from ending"
    assert not prefetched.prefetcher.stopping
    stopping = threading.Thread(target=prefetched.prefetcher.stop)
    stopping.start()
    stopping.join(0.1)
    assert stopping.is_alive()
    backend.hold.set()
    stopping.join(LIMIT)
    assert not stopping.is_alive()
    assert not thread.is_alive()


def test_a_thread_that_stays_in_the_users_code_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("_PATIENCE", "_FREED"):
        monkeypatch.setattr(production, patience, 0.01)
    inside, given_up = threading.Event(), threading.Event()

    class Staying(Recorder):
        def result(self, draws: Draws) -> HostBatch:
            while not given_up.wait(0.001):
                inside.set()
            return super().result(draws)

    prefetched = Prefetched(Staying()).prefetcher
    assert inside.wait(LIMIT)
    prefetched.stop()
    thread = prefetched._thread
    assert thread is not None
    assert thread.is_alive(), "it was asked to end, and has not heard it"
    try:
        prefetched.end()
        thread.join(LIMIT)
        assert not thread.is_alive()
    finally:
        given_up.set()


def test_stopping_what_was_never_started() -> None:
    backend = Recorder()
    never = Prefetcher(None, None)  # type: ignore[arg-type]
    never.stop()
    assert never.stopping
    assert not backend.started


def test_it_may_be_stopped_by_code_that_its_own_thread_runs() -> None:
    class Closing(Recorder):
        """Stops the prefetcher while a batch is made, as a data set that closes its Loader."""

        prefetcher: Any = None
        said: BaseException | None = None

        def result(self, draws: Draws) -> HostBatch:
            if self.prefetcher is not None:
                try:
                    self.prefetcher.stop()
                except RuntimeError as error:
                    self.said = error
            return super().result(draws)

    backend = Closing()
    prefetched = Prefetched(backend)
    wait_until(lambda: prefetched.prefetcher.state is State.FULL)
    backend.prefetcher = prefetched.prefetcher
    prefetched.next()
    wait_until(lambda: prefetched.prefetcher.state is State.STOPPED)
    assert backend.said is None


def test_a_start_that_is_interrupted_leaves_no_thread_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C while `start` waits for the thread, which runs by then."""
    started: list[threading.Thread] = []

    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            started.append(self)
            if len(started) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        Prefetched(backend := Recorder())
    started[0].join(LIMIT)
    assert not started[0].is_alive()
    assert len(backend.started) == backend.depth, "it has made nothing"
    with Prefetched(Recorder()) as prefetched:
        assert prefetched.next() == batch_at(0, 0)
    assert len(started) == 2


def test_a_thread_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(production, "_PATIENCE", 0.01)
    prefetched = Prefetched(Recorder())
    prefetched.prefetcher.stop()
    wait_until(lambda: prefetched.prefetcher.state is State.STOPPED)
    prefetched.prefetcher.begin((0, 0))
    with pytest.raises(WorkerError, match="own thread has ended"):
        prefetched.next()


def test_a_batch_that_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(production, "_PATIENCE", 0.01)
    backend = Recorder()
    backend.hold = threading.Event()
    with Prefetched(backend) as prefetched:
        later = threading.Timer(0.1, backend.hold.set)  # ten times as long
        later.start()
        assert prefetched.next() == batch_at(0, 0)
        later.join()


def test_what_comes_at_the_end_of_a_wait_is_taken_where_the_thread_has_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late:
        """Empty as long as it is waited for, and a moment later no more."""

        def __init__(self, queue: Any) -> None:
            self._waits = iter([True])
            self._queue = queue
            self.empty = queue.empty

        def get(self, timeout: float) -> Any:
            if next(self._waits, False):
                raise Empty
            return self._queue.get(timeout=timeout)

    prefetched = Prefetched(Recorder())
    wait_until(lambda: prefetched.prefetcher.state is State.FULL)
    prefetched.prefetcher.stop()
    wait_until(lambda: prefetched.prefetcher.state is State.STOPPED)
    batches = prefetched.prefetcher._batches
    monkeypatch.setattr(prefetched.prefetcher, "_batches", Late(batches))
    assert prefetched.next() == batch_at(0, 0)


def test_what_the_handler_of_a_dead_child_raises_is_a_worker_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Recorded:
        def get(self, timeout: float) -> Any:
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

        def put(self, _: Any) -> None:
            """Nobody reads it."""

    with Prefetched(Recorder()) as prefetched:
        monkeypatch.setattr(prefetched.prefetcher, "_batches", Recorded())
        with pytest.raises(WorkerError, match=r"killed by signal: Killed\. .*memory"):
            prefetched.next()


def test_the_stage_is_claimed_by_the_thread_that_works_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, bool]] = []
    here = threading.get_ident()
    threads: list[int] = []
    monkeypatch.setattr(
        Production,
        "make",
        lambda self, make=Production.make: threads.append(torch.get_num_threads()) or make(self),
    )
    for name in ("prepare", "claim_thread"):
        monkeypatch.setattr(
            DeviceStage,
            name,
            lambda self, name=name: seen.append((name, threading.get_ident() == here)),
        )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Prefetched(Recorder()) as prefetched:
            prefetched.next()
    finally:
        torch.set_num_threads(before)
    assert seen[0] == ("prepare", True)
    assert ("claim_thread", False) in seen
    assert set(threads) == {1}, "torch's threads are the trainer's"


class Failing(Recorder):
    """Whose cancellation fails, too."""

    def result(self, draws: Draws) -> HostBatch:
        raise WorkerError("worker 3 died.")

    def cancel(self, draws: Draws) -> None:
        super().cancel(draws)
        raise WorkerError("and cannot be cancelled.")


def test_the_first_error_is_the_one_that_is_raised() -> None:
    with Prefetched(Failing()) as prefetched, pytest.raises(WorkerError, match="worker 3 died"):
        prefetched.next()


def test_all_in_flight_are_cancelled_the_last_first_whatever_one_raises() -> None:
    class Cancelled(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.indices: list[list[int]] = []

        def cancel(self, draws: Draws) -> None:
            self.indices.append(draws.indices.tolist())
            if len(self.indices) == 1:
                raise WorkerError("it cannot be cancelled.")

    backend = Cancelled()
    production = production_of(backend)
    production.begin((0, 2))
    production.start()
    with pytest.raises(WorkerError, match="cannot be cancelled"):
        production.cancel()
    assert backend.indices == [batch_at(0, step) for step in (4, 3, 2)]
    production.begin((0, 1))
    assert len(backend.indices) == 3, "none is left"
    made = production.make()
    assert made is not None
    assert made.batch[0].tolist() == batch_at(0, 1)


def test_a_backend_hears_where_epochs_begin_and_starts_again() -> None:
    class Listening(Recorder):
        def start(self, draws: Draws) -> Work:
            if draws.begins:
                self.started.append((-1, []))
            return super().start(draws)

    backend = Listening(depth=2, bad=frozenset({batch_at(0, 11)[1]}))
    production = production_of(backend, "substitute")
    for position, batches in (((0, 10), 3), ((1, 1), 1), ((1, 1), 1)):
        production.begin(position)
        for _ in range(batches):
            production.make()
    epochs = [epoch for epoch, _ in backend.started]
    # One is started as soon as one is made; of epoch 0 at last a sample in place of another.
    assert epochs == [-1, 0, 0, -1, 1, 1, 0, 1, *[-1, 1, 1, 1] * 2]
