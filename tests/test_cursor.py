"""The cursor against a small model: a list of all that was said and done, read again for each
question."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastload.loader.cursor import Cursor

STEPS = 3
EVENTS = st.lists(
    st.one_of(
        st.just(("iter",)),
        st.just(("next",)),
        st.tuples(st.just("set_epoch"), st.integers(0, 4)),
        st.tuples(st.just("load"), st.integers(0, 4), st.integers(0, STEPS)),
    ),
    max_size=25,
)


class Model:
    """What a trainer gets: which batches an iterator gives, and from where the next iterator
    goes on."""

    def __init__(self) -> None:
        self.planned: tuple[int, int] | None = (0, 0)
        """Where the next iter() begins, if that has been said or follows from an epoch's end."""
        self.running: list[int] | None = None
        """[epoch, step, batches given] of the living iterator."""

    def iter(self) -> None:
        if self.planned is None:
            assert self.running is not None
            epoch, step, given = self.running
            self.planned = (epoch + 1, 0) if given else (epoch, step)
        self.running, self.planned = [*self.planned, 0], None

    def next(self) -> tuple[int, int] | None:
        if self.running is None:
            return None
        epoch, step, _ = self.running
        if step == STEPS:
            self.planned, self.running = self.planned or (epoch + 1, 0), None
            return None
        self.running[1] += 1
        self.running[2] += 1
        return epoch, step

    def set_epoch(self, epoch: int) -> None:
        if self.running is not None and not self.running[2]:
            if self.running[0] != epoch:  # nothing was given yet: it is this one's turn
                self.running = [epoch, 0, 0]
        elif self.running is not None or self.planned is None or self.planned[0] != epoch:
            self.planned = (epoch, 0)

    def load(self, epoch: int, step: int) -> None:
        self.planned, self.running = (epoch, step), None


@given(EVENTS)
def test_the_cursor_is_where_the_model_says(events: list[tuple[object, ...]]) -> None:
    cursor, model = Cursor(), Model()
    for event, *arguments in events:
        if event == "iter":
            model.iter()
            cursor.begin()
        elif event == "next" and model.running is not None:
            expected = model.next()
            if expected is None:
                assert cursor.step == STEPS
                cursor.end()
            else:
                assert (cursor.epoch, cursor.step) == expected
                cursor.take()
                assert cursor.position == (expected[0], expected[1] + 1)
        elif event == "set_epoch":
            model.set_epoch(*arguments)  # type: ignore[arg-type]
            cursor.choose(*arguments)  # type: ignore[arg-type]
        elif event == "load":
            model.load(*arguments)  # type: ignore[arg-type]
            cursor.move(*arguments)  # type: ignore[arg-type]
        if model.running is None:
            assert cursor.position == model.planned


def test_an_iterator_that_gave_nothing_costs_no_epoch() -> None:
    cursor = Cursor()
    cursor.move(2, 1)
    for _ in range(3):
        assert cursor.begin() == 2
        assert cursor.position == (2, 1)
    cursor.take()
    assert cursor.begin() == 3


def test_the_epoch_that_runs_is_named_between_iter_and_next() -> None:
    cursor = Cursor()
    cursor.begin()
    cursor.take()
    assert cursor.begin() == 1
    assert cursor.position == (1, 0)


def test_an_epoch_chosen_before_the_first_batch_is_the_one_that_comes() -> None:
    cursor = Cursor()
    cursor.begin()
    cursor.choose(5)
    assert (cursor.epoch, cursor.step) == (5, 0)
    cursor.take()
    cursor.choose(7)
    cursor.take()
    assert cursor.epoch == 5
    assert cursor.begin() == 7


def test_a_loaded_place_survives_set_epoch_of_the_same_epoch_only() -> None:
    cursor = Cursor()
    cursor.move(2, 1)
    cursor.choose(2)
    assert cursor.position == (2, 1)
    cursor.choose(3)
    assert cursor.position == (3, 0)
