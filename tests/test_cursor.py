"""The cursor against a small model: where it is after everything that may be said and done, in
every order; and what a saved state must say."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest

from fastload.errors import ConfigurationError, StateMismatchError
from fastload.loader.iterator import Cursor
from fastload.loader.states import checked_epoch, read_state

STEPS = 2
LENGTH = 5
"""Long enough for the end of an epoch, and for something that is said before or after it."""
EVENTS: list[tuple[str, tuple[int, ...]]] = [
    ("iter", ()),
    ("next", ()),
    ("set_epoch", (0,)),
    ("set_epoch", (3,)),
    ("skip", (1,)),
    ("load", (4, 1)),
]


class Model:
    """What a trainer gets: which batches an iterator gives, and from where the next iterator
    goes on."""

    def __init__(self) -> None:
        self.planned: tuple[int, int] | None = (0, 0)
        """Where the next iter() begins, if that has been said or follows from an epoch's end."""
        self.running: list[int] | None = None
        """[epoch, step, batches given] of the living iterator."""
        self.heeded = True
        """Whether no batch came after `planned` was said."""

    def iter(self) -> None:
        if self.planned is None:
            assert self.running is not None
            epoch, step, given = self.running
            self.planned = (epoch + 1, 0) if given else (epoch, step)
        self.running, self.planned = [*self.planned, 0], None

    def next(self) -> tuple[int, int] | None:
        assert self.running is not None
        epoch, step, _ = self.running
        if step == STEPS:
            self.planned, self.running = self.planned or (epoch + 1, 0), None
            return None
        self.running[1] += 1
        self.running[2] += 1
        self.heeded = False
        return epoch, step

    def set_epoch(self, epoch: int) -> None:
        if self.running is not None and not self.running[2]:
            if self.running[0] != epoch:  # nothing was given yet: it is this one's turn
                self.running = [epoch, 0, 0]
        elif self.running is not None or self.planned is None or self.planned[0] != epoch:
            self._plan((epoch, 0))

    def skip(self, steps: int) -> None:
        if self.running is not None and not self.running[2]:
            self.running = [self.running[0], steps, 0]
        elif self.planned is not None:
            self._plan((self.planned[0], steps))
        else:
            assert self.running is not None
            self._plan((self.running[0] + 1, steps))

    def load(self, epoch: int, step: int) -> None:
        self._plan((epoch, step))
        self.running = None

    def _plan(self, position: tuple[int, int]) -> None:
        self.planned, self.heeded = position, True

    @property
    def position(self) -> tuple[int, int]:
        """What a saved state says."""
        if self.running is None or (self.planned is not None and self.heeded):
            assert self.planned is not None
            return self.planned
        return self.running[0], self.running[1]

    @property
    def start(self) -> tuple[int, int]:
        """Where a copy of the loader begins."""
        if self.planned is not None or self.running is None:
            assert self.planned is not None
            return self.planned
        epoch, step, given = self.running
        return (epoch, 0) if given else (epoch, step)


def happen(cursor: Cursor, model: Model, event: str, given: tuple[int, ...]) -> None:
    """To both of them, which must agree after it."""
    if event == "iter":
        model.iter()
        assert model.running is not None
        assert cursor.begin() == model.running[0]
    elif event == "next" and model.running is not None:
        expected = model.next()
        if expected is None:
            assert cursor.step == STEPS
            cursor.end()
        else:
            assert (cursor.epoch, cursor.step) == expected
            cursor.take()
    elif event == "set_epoch":
        model.set_epoch(*given)
        cursor.choose(*given)
    elif event == "skip":
        model.skip(*given)
        cursor.skip(*given)
    elif event == "load":
        model.load(*given)
        cursor.move(*given)
    assert (cursor.position, cursor.start) == (model.position, model.start)
    assert cursor.taken == bool(model.running and model.running[2])


def explore(cursor: Cursor, model: Model, length: int, story: list[Any]) -> int:
    """Everything that may happen next, `length` times; how many events that were."""
    count = 0
    for event in EVENTS:
        if event[0] == "next" and model.running is None:
            continue
        now, then = copy.copy(cursor), copy.copy(model)
        then.running = copy.copy(model.running)
        try:
            happen(now, then, *event)
        except AssertionError as error:
            raise AssertionError(f"after {[*story, event]}") from error
        count += 1 + (explore(now, then, length - 1, [*story, event]) if length > 1 else 0)
    return count


def test_the_cursor_is_where_the_model_says_whatever_happens() -> None:
    assert explore(Cursor(), Model(), LENGTH, []) > 5_000


def test_the_cursor_is_where_the_model_says_after_long_stories() -> None:
    rng = random.Random(7)
    weights = [2, 6, 1, 1, 1, 0.3]
    for _ in range(100):
        cursor, model = Cursor(), Model()
        for event in rng.choices(EVENTS, weights, k=40):
            happen(cursor, model, *event)


def test_a_new_cursor_is_at_the_first_batch_and_has_given_none() -> None:
    assert Cursor() == Cursor(epoch=0, step=0, taken=False, chosen=None, went_on=False)
    cursor = Cursor()
    cursor.begin()
    cursor.take()
    cursor.choose(3)
    cursor.take()
    cursor.move(0, 0)
    assert cursor == Cursor(), "and so is one that was moved there"


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


@pytest.mark.parametrize("epoch", [0, 1, 2**31 - 1, np.int64(7), np.uint8(3)])
def test_numbers_of_epochs(epoch: Any) -> None:
    found = checked_epoch(epoch)
    assert (type(found), found) == (int, int(epoch))


@pytest.mark.parametrize("epoch", [-1, 2**31, True, 1.0, "1", None])
def test_what_is_no_number_of_an_epoch(epoch: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"epoch: must be an int from 0 to 2147483647"):
        checked_epoch(epoch)


MINE = {"seed": 5, "sampler": "shuffled", "source": "photos", "recipe": "crop"}
STATE = {
    "version": 1,
    "epoch": 2,
    "step": 6,
    "order": {"seed": 5, "sampler": "shuffled", "fingerprint": "abc"},
    "source": "photos",
    "recipe": "crop",
}


def test_what_a_state_says() -> None:
    assert read_state(STATE, MINE, lambda _: 6) == ((2, 6), "abc", "shuffled", False)
    assert read_state(STATE | {"epoch": 0, "step": 0}, MINE, lambda _: 6)[0] == (0, 0)
    assert read_state(STATE | {"epoch": 2**31 - 1}, MINE, lambda _: 6)[0] == (2**31 - 1, 6)
    without = STATE | {"order": {"seed": 5, "sampler": "shuffled"}}
    assert read_state(without, MINE, lambda _: 6) == ((2, 6), None, "shuffled", False)


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError("arrays have no single truth")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "loader state version 1, got None"),
        ([("version", 1)], "loader state version 1, got None"),
        (STATE | {"version": 2}, "loader state version 1, got 2"),
        (STATE | {"version": Incomparable()}, "loader state version 1"),
        (STATE | {"source": "others"}, "source: state 'others', this loader 'photos'"),
        (STATE | {"recipe": None}, "recipe: state None, this loader 'crop'"),
        (STATE | {"recipe": Incomparable()}, "recipe: state "),
        (STATE | {"order": {"seed": 6, "sampler": "shuffled"}}, "seed: state 6, this loader 5"),
        (STATE | {"order": {"seed": 5}}, "sampler: state None, this loader 'shuffled'"),
        (STATE | {"order": STATE["order"] | {"more": 1}}, "more: state 1, this loader None"),  # type: ignore[operator]
        (STATE | {"order": 7}, "seed: state None, this loader 5; sampler: state None"),
        (STATE | {"step": 7}, "epoch 2, step 7 is not a place in epochs of 6 batches"),
        (STATE | {"step": -1}, "epoch 2, step -1 is not a place"),
        (STATE | {"epoch": -1}, "epoch -1, step 6 is not a place"),
        (STATE | {"epoch": 2**31}, "epoch 2147483648, step 6 is not a place"),
        (STATE | {"epoch": True}, "epoch True, step 6 is not a place"),
        (STATE | {"step": 1.0}, "step 1.0 is not a place"),
    ],
)
def test_what_is_no_state_of_this_loader(state: Any, said: str) -> None:
    with pytest.raises(StateMismatchError) as refused:
        read_state(state, MINE, lambda _: 6)
    assert said in str(refused.value)
