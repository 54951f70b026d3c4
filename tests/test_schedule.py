"""Which batch follows which, over the ends of epochs, and when a sampler of the user's is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastload.sampler import EndOfOrder, EpochOrder, Schedule

ORDER = EpochOrder(10, 4, shuffle=True)  # 3 batches: 4, 4 and 2 samples


class Asked:
    """As the order of a user's sampler: drawn when its epoch begins, and counted."""

    ahead = False
    steps = 3
    open_ended = False

    def outdated(self, epoch: int) -> bool:
        return False

    def steps_in(self, epoch: int) -> int:
        return self.steps

    def __init__(self, samples: int = 12) -> None:
        self.samples = samples
        self.epochs: list[int] = []

    def epoch(self, epoch: int) -> Any:
        self.epochs.append(epoch)
        return np.arange(self.samples) + 100 * epoch + 1000 * len(self.epochs)

    def repeats(self, order: Any) -> None:
        return None

    def draws(self, epoch: int, step: int, order: Any, repeats: Any) -> Any:
        rows = order[4 * step : 4 * step + 4]
        if not len(rows):
            raise EndOfOrder
        return rows.tolist()


def test_batches_follow_each_other_over_the_ends_of_epochs() -> None:
    schedule = Schedule(ORDER)
    assert schedule.next() is None, "nothing has been asked for"
    assert not schedule.ended
    schedule.begin((4, 1))
    for position in [(4, 1), (4, 2), (5, 0), (5, 1), (5, 2), (6, 0)]:
        asked = schedule.next()
        assert asked is not None
        found, draws = asked
        assert found == position
        epoch, step = position
        assert draws.epoch == epoch
        assert draws.indices.tolist() == ORDER.epoch(epoch)[ORDER.batch(step)].tolist()


@pytest.mark.parametrize(("ahead", "wanted"), [(True, (3, 0)), (False, None)])
def test_after_the_last_batch(ahead: bool, wanted: tuple[int, int] | None) -> None:
    schedule = Schedule(ORDER, ahead=ahead)
    assert [schedule.after((2, step)) for step in range(3)] == [(2, 1), (2, 2), wanted]


def test_it_stops_after_the_last_epoch_and_after_each_beyond_it() -> None:
    schedule = Schedule(ORDER, last_epoch=1)
    ends = [schedule.after((epoch, 2)) for epoch in range(4)]
    assert ends == [(1, 0), None, None, None]
    schedule.begin((0, 2))
    found = [schedule.next() for _ in range(5)]
    assert [one and one[0] for one in found] == [(0, 2), (1, 0), (1, 1), (1, 2), None]
    assert not schedule.ended
    schedule.begin((2, 0))
    asked = schedule.next()
    assert asked is not None
    assert asked[0] == (2, 0)


def test_it_stops_at_the_end_of_an_epoch_where_it_may_not_go_on() -> None:
    schedule = Schedule(ORDER, ahead=False)
    schedule.begin((0, 2))
    assert schedule.next() is not None
    assert schedule.next() is None
    assert not schedule.ended
    schedule.begin((1, 0))
    asked = schedule.next()
    assert asked is not None
    assert asked[0] == (1, 0)


def test_an_order_that_looks_ahead_is_drawn_once_an_epoch() -> None:
    drawn: list[int] = []

    class Counted(EpochOrder):
        def epoch(self, epoch: int) -> Any:
            drawn.append(epoch)
            return super().epoch(epoch)

    schedule = Schedule(Counted(10, 4, shuffle=True))
    schedule.ask_sampler((0, 0))
    assert drawn == []
    schedule.begin((0, 0))
    for _ in range(4):
        schedule.next()
    assert schedule.order_of(0).tolist() == ORDER.epoch(0).tolist()
    assert schedule.order_of(1).tolist() == ORDER.epoch(1).tolist()
    assert drawn == [0, 1], "the epoch before is kept, for samples that cannot be read"
    schedule.order_of(2)
    schedule.order_of(0)
    assert drawn == [0, 1, 2, 0], "and no more than that one"


def test_a_sampler_is_asked_once_at_the_start_of_its_epoch() -> None:
    order: Any = Asked()
    schedule = Schedule(order)
    schedule.ask_sampler((0, 0))
    schedule.begin((0, 0))
    first = schedule.next()
    assert order.epochs == [0]
    schedule.ask_sampler((0, 1))  # in the middle: it was asked
    assert order.epochs == [0]
    assert first == ((0, 0), [1000, 1001, 1002, 1003])
    schedule.ask_sampler((0, 0))  # from the start again: it may give another order
    schedule.begin((0, 0))
    assert order.epochs == [0, 0]
    assert schedule.next() == ((0, 0), [2000, 2001, 2002, 2003])
    schedule.ask_sampler((5, 2))  # a saved state is gone on with
    schedule.begin((5, 2))
    assert order.epochs == [0, 0, 5]
    assert schedule.next() == ((5, 2), [3508, 3509, 3510, 3511])
    assert schedule.next() is None, "the next epoch is asked for when it begins"
    assert order.epochs == [0, 0, 5]


def test_a_sampler_that_ends_early_says_so_once() -> None:
    order: Any = Asked(samples=4)
    schedule = Schedule(order)
    schedule.begin((0, 0))
    assert schedule.next() is not None
    assert (schedule.next(), schedule.ended) == (None, True)
    assert schedule.next() is None
    schedule.begin((1, 0))
    assert not schedule.ended
    assert schedule.next() is not None
