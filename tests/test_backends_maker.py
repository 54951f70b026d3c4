"""`backends/maker.py`: batches, rows that were given back, cancelling, closing. The images
are made by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from fastload.backends.base import Backend, Context, HostBatch, MadeHere, Work, made_now
from fastload.backends.maker import BATCHES_IN_FLIGHT, BatchInWork, BatchMaker, PixelMaker, Threads
from fastload.backends.rows import Buffers, RowReader
from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, WorkerError
from fastload.sources.base import Source
from fastload.sources.columns import EncodedImages, ValueArray
from tests import images
from tests.host import InOrder, context_of, draws_of, made_by, reader_of, source_of
from tests.waiting import LIMIT, wait_until

JPEGS = [images.jpeg(images.photo(20, 24, seed=n)) for n in range(8)]


class InMemory(EncodedImages):
    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return len(JPEGS)

    def read(self, index: int) -> bytes:
        return b"" if index in self.bad else JPEGS[index]

    def describe(self, index: int) -> str:
        return f"image {index}"


def source(*bad: int) -> Source:
    """Eight images, the bad ones without bytes, and labels 0, 10, ... 70."""
    return source_of(image=InMemory(*bad), label=ValueArray(np.arange(8) * 10))


class Part:
    """Rows of a batch that are done when they are asked for; notes what is called."""

    def __init__(
        self, name: str, log: list[str], lost: Callable[[], Iterable[tuple[int, Any]]] = list
    ) -> None:
        self.name, self.log, self._lost = name, log, lost

    def lost(self) -> Iterable[tuple[int, Any]]:
        self.log.append(f"{self.name} received")
        return self._lost()

    def cancel(self) -> None:
        self.log.append(f"{self.name} cancelled")

    def wait(self) -> None:
        self.log.append(f"{self.name} waited for")


class ByHand(PixelMaker):
    """Fills images with the number of the sample; `prepare` changes a batch before it is waited
    for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log: list[str] = []
        self.prepare: Callable[[BatchInWork, str], None] = lambda work, name: None
        self.started = 0

    def start(self, draws: Draws) -> BatchInWork:
        self.started += 1
        if draws.epoch == 404:
            raise ConfigurationError("transform: there is no such batch.")
        work = BatchInWork(draws, self._rows.buffers(len(draws), [(20, 24)], self._allocate))
        work.buffers.images["image"][:] = draws.indices[:, None, None, None] + 1
        self.prepare(work, f"batch {self.started}")
        return work

    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        return {"decoded": str(dict(decoded))}

    def close(self) -> None:
        self.log.append("closed")


class Maker(BatchMaker):
    name = "by-hand"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.opened = 0

    def _open(self) -> tuple[RowReader, PixelMaker]:
        self.opened += 1
        rows = reader_of(self._context.source, None)
        return rows, ByHand(self._context, rows, self._threads)

    @property
    def by_hand(self) -> ByHand:
        pixels = self._opened()[1]
        assert isinstance(pixels, ByHand)
        return pixels


@pytest.fixture
def made() -> Any:
    """made(*bad samples, **of the context) -> Maker; closed at the end of the test."""
    makers: list[Maker] = []

    def make(*bad: int, **options: Any) -> Maker:
        makers.append(Maker(context_of(source(*bad), None, **options)))
        return makers[-1]

    yield make
    for maker in makers:
        maker.close()


def pixels_of(batch: Any) -> list[int]:
    """The first pixel of each row."""
    return np.asarray(batch.columns["image"])[:, 0, 0, 0].tolist()


def test_batches_have_their_values(made: Any) -> None:
    maker = made()
    line = InOrder(maker).start(*(draws_of(*rows) for rows in ((3, 1), (2,), (0, 7))))
    batches = [line.next() for _ in range(3)]
    assert [pixels_of(batch) for batch in batches] == [[4, 2], [3], [1, 8]]
    assert [batch.columns["label"].tolist() for batch in batches] == [[30, 10], [20], [0, 70]]
    assert [batch.layout for batch in batches] == [None] * 3


def test_what_goes_before_the_first_batch_is_done_once_and_then(made: Any) -> None:
    maker = made()
    assert (maker.opened, maker.decoded, maker.explain()) == (0, {}, {})
    for _ in range(2):
        made_by(maker, draws_of(0))
    assert maker.opened == 1
    assert maker.light is False
    assert maker.explain() == {"decoded": "{}"}


def test_a_batch_that_cannot_be_is_an_error_when_its_turn_comes(made: Any) -> None:
    line = InOrder(made()).start(*(draws_of(5, epoch=epoch) for epoch in (0, 404, 1)))
    assert pixels_of(line.next()) == [6]
    with pytest.raises(ConfigurationError, match="no such batch"):
        line.next()
    assert pixels_of(line.next()) == [6]


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_that_were_given_back_are_read_in_python(made: Any, workers: int) -> None:
    maker = made(6, num_workers=workers)
    bad = DecodeError("image 1: damaged")

    def prepare(work: BatchInWork, name: str) -> None:
        lost = [(0, None), (4, None)], [(3, bad), (2, None)]
        work.parts += [Part(name, [], lambda rows=rows: rows) for rows in lost]

    maker.by_hand.prepare = prepare
    draws = draws_of(5, 0, 7, 1, 6, 2)
    batch = made_by(maker, draws)
    # Rows 0 and 2 could be read, 4 is bad for Python as well, and 3 comes with a verdict.
    assert [(failure.row, str(failure.error)[:8]) for failure in batch.failures] == [
        (3, "image 1:"),
        (4, "image 6:"),
    ]
    expected = reader_of(source(6), None).batch(draws)
    got = np.asarray(batch.columns["image"])
    assert np.array_equal(got[[0, 2]], np.asarray(expected.columns["image"])[[0, 2]])
    assert not got[[3, 4]].any()
    assert pixels_of(batch)[1] == 1
    assert pixels_of(batch)[5] == 3
    assert maker.decoded == {"python": 2}
    assert batch.columns["label"].tolist() == [50, 0, 70, 10, 60, 20]


def test_rows_known_to_have_no_pixels_before_any_part_are_failures(made: Any) -> None:
    maker = made()
    maker.by_hand.prepare = lambda work, name: work.failures.update({1: DecodeError("image 4: no")})
    batch = made_by(maker, draws_of(3, 4))
    assert [failure.row for failure in batch.failures] == [1]
    assert pixels_of(batch) == [4, 0]
    assert maker.decoded == {}


def test_an_error_of_a_part_ends_the_others_before_it_is_raised(made: Any) -> None:
    maker = made()
    log = maker.by_hand.log

    def broken() -> Any:
        raise WorkerError("the core failed")

    def prepare(work: BatchInWork, name: str) -> None:
        work.parts += [Part("a", log, broken), Part("b", log)]

    maker.by_hand.prepare = prepare
    work = maker.start(draws_of(0))
    with pytest.raises(WorkerError, match="the core failed"):
        work.result()
    assert log == ["a received", *("a cancelled", "b cancelled"), *("a waited for", "b waited for")]
    maker.by_hand.prepare = lambda work, name: None
    assert pixels_of(made_by(maker, draws_of(2))) == [3]


def test_cancel_drops_all_parts_and_then_waits_for_them(made: Any) -> None:
    maker = made()
    log = maker.by_hand.log
    maker.by_hand.prepare = lambda work, name: work.parts.extend([Part("a", log), Part("b", log)])
    first, impossible = (maker.start(draws_of(0, epoch=epoch)) for epoch in (0, 404))
    first.cancel()
    assert log == ["a cancelled", "b cancelled", "a waited for", "b waited for"]
    impossible.cancel()
    maker.by_hand.prepare = lambda work, name: None
    assert pixels_of(made_by(maker, draws_of(5))) == [6]


def test_close_ends_the_threads_first_and_may_be_repeated(made: Any) -> None:
    maker = made()
    log = maker.by_hand.log
    maker.by_hand.prepare = lambda work, name: work.parts.append(
        Part(name, log, lambda: [(0, None)])
    )
    made_by(maker, draws_of(0))  # a row is read in Python, which starts the threads
    named = "fastload-by-hand"
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(named)]
    assert threads
    at_close = []
    maker.by_hand.close = lambda: at_close.append([one.is_alive() for one in threads])
    for _ in range(2):
        maker.close()
    assert at_close == [[False] * len(threads)] * 2, "they may be calling what is closed after them"
    made_by(maker, draws_of(0))  # and starts them again


def test_close_drops_what_its_threads_have_not_started(made: Any) -> None:
    maker = made(num_workers=1)
    running, go_on = threading.Event(), threading.Event()

    def task() -> None:
        running.set()
        assert go_on.wait(LIMIT)

    tasks = [maker._threads.submit(task) for _ in range(3)]
    assert running.wait(LIMIT)
    closing = threading.Thread(target=maker.close)
    closing.start()
    wait_until(tasks[2].cancelled)
    go_on.set()
    closing.join(LIMIT)
    assert [task.cancelled() for task in tasks] == [False, True, True]
    with pytest.raises(WorkerError, match="'by-hand': it was closed meanwhile"):
        maker._threads.result(tasks[1])


def test_a_batch_may_be_waited_for_before_others(made: Any) -> None:
    maker = made()
    line = InOrder(maker).start(draws_of(1))
    maker._layout = "tuple"
    batch = made_by(maker, draws_of(6, 2))
    assert batch.layout == "tuple"
    assert batch.columns["label"].tolist() == [60, 20]
    assert pixels_of(batch) == [7, 3]
    assert pixels_of(line.next()) == [2]


def test_buffers_and_columns_may_be_made_when_the_batch_is_waited_for(made: Any) -> None:
    maker = made()
    later = Buffers({"image": np.full((1, 2, 2, 3), 99, np.uint8)})

    def buffers(work: BatchInWork, name: str) -> None:
        work.new_buffers = lambda: later

    def columns(work: BatchInWork, name: str) -> None:
        work.columns = lambda: {"image": "made elsewhere"}

    line = InOrder(maker)
    for prepare in (buffers, columns):
        maker.by_hand.prepare = prepare
        line.start(draws_of(4))
    first, second = line.next(), line.next()
    assert first.columns["image"] is later.images["image"]
    assert second.columns["image"] == "made elsewhere"
    assert [batch.columns["label"].tolist() for batch in (first, second)] == [[40], [40]]


@pytest.mark.parametrize(
    ("options", "depth"), [({}, BATCHES_IN_FLIGHT), ({"prefetch_factor": 7}, 7)]
)
def test_how_many_batches_are_in_flight(made: Any, options: dict[str, int], depth: int) -> None:
    maker = made(**options)
    assert maker.depth == maker.by_hand.depth == depth


def test_threads_start_with_the_first_call_and_again_after_close() -> None:
    threads = Threads(2, "mine")
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("fastload-mine")]
    for _ in range(2):
        thread = threads.submit(threading.current_thread).result()
        assert thread.name.startswith("fastload-mine")
        threads.close()
        threads.close()
        assert not thread.is_alive()


def test_what_a_thread_raises_that_is_not_about_a_sample_says_so() -> None:
    error = Threads(1, "mine").failure(KeyError("broken"))
    assert str(error).startswith("backend 'mine': a thread failed with KeyError: 'broken'.")
    assert "num_workers" in str(error)


def test_a_batch_that_is_made_at_once_waits_for_no_workers_turn() -> None:
    asked: list[Draws] = []

    class Noting:
        def start(self, draws: Draws) -> Work:
            asked.append(draws)
            return MadeHere(lambda: HostBatch({}))

    first = replace(draws_of(3), begins=True)
    made_now(cast("Backend", Noting()), first)
    assert (asked[0].begins, asked[0].indices.tolist()) == (False, [3])
