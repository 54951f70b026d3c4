"""Where a Loader's batches come from: by position, on demand or ahead, after whatever interrupted
it."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload.backends.base import HostBatch
from fastload.draws import Draws
from fastload.errors import DecodeError
from fastload.loader.production import OnDemand, Prefetcher
from fastload.sampler import EpochOrder
from tests.interrupts import interrupted_at
from tests.recorder import Recorder, indices_of, loader_over

LOADER_FILES = tuple(
    f"fastload/loader/{name}.py"
    for name in (
        "feed",
        "prefetcher",
        "production",
        "schedule",
        "iterator",
        "cursor",
        "loader",
        "stats",
    )
)


class Here(Recorder):
    """Works in the calling thread, and notes which that is, and that no two do at once."""

    background = False

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.threads: set[int] = set()
        self._busy = threading.Lock()

    def result(self, draws: Draws) -> HostBatch:
        assert self._busy.acquire(blocking=False)
        try:
            self.threads.add(threading.get_ident())
            return super().result(draws)
        finally:
            self._busy.release()


class Light(Here):
    """Could work in the background, but there is little to do."""

    background = True
    light = True


def maker_of(loader: fastload.Loader) -> Any:
    next(iter(loader))
    return loader._progress.feed._maker


@pytest.mark.parametrize(
    ("backend", "wanted"), [(Recorder, Prefetcher), (Here, OnDemand), (Light, OnDemand)]
)
def test_a_thread_is_used_where_it_is_of_use(backend: Any, wanted: type) -> None:
    with loader_over(backend(), EpochOrder(40, 2)) as loader:
        assert type(maker_of(loader)) is wanted


@pytest.mark.parametrize(
    ("transform", "wanted"),
    [
        (None, OnDemand),
        (
            v2.Compose(
                [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
            ),
            OnDemand,
        ),
        (v2.Compose([v2.ToImage(), v2.ColorJitter(0.1, 0.1, 0.1, 0.1)]), Prefetcher),
        (v2.RandomResizedCrop(8), Prefetcher),
    ],
    ids=["none", "converted", "colour", "crop"],
)
def test_small_arrays_need_no_thread_where_little_is_done_to_them(
    transform: Any, wanted: type
) -> None:
    images = np.zeros((16, 8, 8, 3), np.uint8)
    with fastload.create_loader(
        (images, np.arange(16)), 4, transform=transform, backend="cache"
    ) as loader:
        assert type(maker_of(loader)) is wanted


@pytest.mark.parametrize("backend", [Here, Light])
def test_on_demand_all_is_done_in_the_trainers_thread(backend: Any) -> None:
    made = backend()
    with loader_over(made, EpochOrder(40, 2, shuffle=True)) as loader:
        found = indices_of(loader) + indices_of(loader)
    assert found == [rows for _, rows in made.started[:40]]
    assert made.threads == {threading.get_ident()}
    assert made.cancelled <= made.depth


def story(backend: Any) -> list[Any]:
    """Early ends, chosen epochs, states: the same for any backend."""
    rng, found = np.random.default_rng(5), []
    with loader_over(backend, EpochOrder(50, 3, shuffle=True)) as loader:
        for _ in range(60):
            for values, noise in itertools.islice(loader, int(rng.integers(0, 20))):
                found += [*values.tolist(), *noise.ravel().tolist()]
                if rng.random() < 0.1:
                    time.sleep(0.001)
            state = loader.state_dict()
            match int(rng.integers(4)):
                case 0:
                    loader.set_epoch(int(rng.integers(5)))
                case 1:
                    loader.load_state_dict(state)
    return found


@pytest.mark.slow
def test_it_makes_no_difference_who_makes_the_batches() -> None:
    assert story(Light(depth=4)) == story(Recorder(depth=4)) == story(Here(depth=1))


@pytest.mark.parametrize("backend", [Recorder, Here, Light])
def test_after_an_error_the_batches_that_follow_come(backend: Any) -> None:
    with loader_over(backend(bad=frozenset({7})), EpochOrder(12, 2)) as loader:
        iterator = iter(loader)
        assert [next(iterator)[0].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(DecodeError, match="file 7: broken"):
            next(iterator)
        assert [values.tolist() for values, _ in iterator] == [[8, 9], [10, 11]]


def interrupted_and_gone_on(backend: Any, step: int, batches_before: int) -> bool:
    """Interrupts `next` at a step of it, goes on with the same iterator, then with the next
    epoch."""
    order = EpochOrder(12, 2, shuffle=True)
    expected = [
        [order.epoch(epoch)[order.batch(at)].tolist() for at in range(6)] for epoch in range(2)
    ]
    with loader_over(backend, order) as loader:
        iterator = iter(loader)
        found = [next(iterator)[0].tolist() for _ in range(batches_before)]
        interrupted = interrupted_at(step, LOADER_FILES, lambda: next(iterator))
        rest = [values.tolist() for values, _ in iterator]
        # The batch itself is lost where the interrupt comes after it was counted.
        assert found + rest in (
            expected[0],
            expected[0][:batches_before] + expected[0][batches_before + 1 :],
        )
        assert indices_of(loader) == expected[1]
    return interrupted


@pytest.mark.whole
@pytest.mark.parametrize("batches_before", [0, 2, 5])
@pytest.mark.parametrize("backend", [Recorder, Light])
def test_an_interrupt_at_any_step_of_next_leaves_nothing_behind(
    backend: Any, batches_before: int
) -> None:
    steps = 0
    while interrupted_and_gone_on(backend(), steps, batches_before):
        steps += 1
    assert steps > 20


@pytest.mark.whole
def test_an_interrupt_at_any_step_of_a_new_start_leaves_nothing_behind() -> None:
    order = EpochOrder(12, 2, shuffle=True)
    interrupted, step = True, 0
    while interrupted:
        with loader_over(Recorder(), order) as loader:
            next(iter(loader))
            loader.set_epoch(4)
            interrupted = interrupted_at(
                step, LOADER_FILES, lambda loader=loader: next(iter(loader))
            )  # type: ignore[misc]
            loader.set_epoch(5)
            assert indices_of(loader) == [
                order.epoch(5)[order.batch(at)].tolist() for at in range(6)
            ]
        step += 1
    assert step > 20


@pytest.mark.whole
def test_an_interrupt_while_it_stops_leaves_nothing_behind() -> None:
    """As between the epochs of an adopted DataLoader whose workers are started again."""
    order = EpochOrder(12, 2)
    interrupted, step = True, 0
    while interrupted:
        with loader_over(Recorder(), order) as loader:
            next(iter(loader))
            interrupted = interrupted_at(step, LOADER_FILES, loader._progress.feed.rest)
            assert len(indices_of(loader)) == 6
        step += 1
    assert step > 10
