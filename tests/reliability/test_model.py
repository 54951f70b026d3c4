"""A Loader is used in every order of calls, beside a model of it in some sixty lines that knows
nothing of its code."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torchvision.transforms import v2

import fastload
from fastload.errors import FastloadError
from tests import images

SAMPLES, BATCH = 11, 3
STEPS = -(-SAMPLES // BATCH)


class Model:
    """What the documentation says: epochs follow each other, a state resumes, `set_epoch` is for
    the next `iter`."""

    def __init__(self) -> None:
        self.epoch, self.step = 0, 0
        self.started = False
        """A batch of this epoch was taken."""
        self.next: tuple[int, int] | None = None
        """Where the next `iter` starts, if one was chosen."""

    def iter(self) -> None:
        if self.next is not None:
            self.epoch, self.step = self.next
        elif self.started:
            self.epoch, self.step = self.epoch + 1, 0
        self.started, self.next = False, None

    def take(self) -> int | None:
        """The step of the batch that comes; None at the end."""
        if self.step == STEPS:
            self.epoch, self.step = self.next or (self.epoch + 1, 0)
            self.started, self.next = False, None
            return None
        self.step, self.started = self.step + 1, True
        return self.step - 1

    def set_epoch(self, epoch: int) -> None:
        if self.started:
            self.next = (epoch, 0)
        elif epoch != self.epoch:
            self.epoch, self.step = epoch, 0

    def state(self) -> tuple[int, int]:
        return self.epoch, self.step

    def load(self, state: tuple[int, int]) -> None:
        self.epoch, self.step = state
        self.started, self.next = False, None


class Machine(RuleBasedStateMachine):
    """Rules are calls; what comes of each is checked against the model."""

    backend, arguments = "turbojpeg", {"num_workers": 2}

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="fastload-model-"))
        images.write_photo_folder(self.folder / "data", classes=SAMPLES, per_class=1, size=(12, 12))
        self.states: list[tuple[Any, tuple[int, int]]] = []
        self.orders: dict[int, list[int]] = {}

    @initialize()
    def create(self) -> None:
        self.model = Model()
        self.loader = self.make()
        self.batches: Any = None

    def make(self) -> fastload.Loader:
        return fastload.create_loader(
            self.folder / "data",
            BATCH,
            shuffle=True,
            seed=3,
            transform=v2.Resize((8, 8)),
            backend=self.backend,
            **self.arguments,
        )

    def order(self, epoch: int) -> list[int]:
        """Of labels, which are the indices; by a loader that nothing happens to."""
        if epoch not in self.orders:
            with fastload.create_loader(
                (np.zeros((SAMPLES, 4, 4, 3), np.uint8), np.arange(SAMPLES)),
                BATCH,
                shuffle=True,
                seed=3,
            ) as plain:
                plain.set_epoch(epoch)
                self.orders[epoch] = [int(label) for _, labels in plain for label in labels]
            assert sorted(self.orders[epoch]) == list(range(SAMPLES))
        return self.orders[epoch]

    @rule(count=st.integers(0, STEPS + 1))
    def begin(self, count: int) -> None:
        self.batches = iter(self.loader)
        self.model.iter()
        self.take_some(count)

    @precondition(lambda self: self.batches is not None)
    @rule(count=st.integers(1, STEPS + 1))
    def take(self, count: int) -> None:
        self.take_some(count)

    def take_some(self, count: int) -> None:
        for _ in range(count):
            epoch = self.model.epoch
            batch, step = next(self.batches, None), self.model.take()
            if step is None:
                assert batch is None
                self.batches = None
                return
            assert batch is not None
            assert batch[1].tolist() == self.order(epoch)[step * BATCH : (step + 1) * BATCH]

    @rule(epoch=st.integers(0, 4))
    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)
        self.model.set_epoch(epoch)

    def place_again(self) -> None:
        """As trainers do that name each epoch before it: one that is resumed must not lose its
        place by that."""
        self.set_epoch(self.model.epoch)
        state = self.loader.state_dict()
        assert (state["epoch"], state["step"]) == self.model.state()

    @precondition(lambda self: self.model.next is None)
    @rule()
    def save(self) -> None:
        state = self.loader.state_dict()
        assert (state["epoch"], state["step"]) == self.model.state()
        self.states.append((state, self.model.state()))

    @precondition(lambda self: self.states)
    @rule(data=st.data(), again=st.booleans())
    def load(self, data: st.DataObject, again: bool) -> None:
        state, place = data.draw(st.sampled_from(self.states))
        complete = self.model.started and self.model.step == STEPS
        self.loader.load_state_dict(state)
        self.model.load(place)
        if again:
            self.place_again()
        if self.batches is not None:
            # An iterator that gave all of its batches ends as ever; one that did not says why.
            with pytest.raises(StopIteration if complete else FastloadError):
                next(self.batches)
            self.batches = None

    @precondition(lambda self: self.model.next is None)
    @rule(close=st.booleans(), again=st.booleans())
    def another(self, close: bool, again: bool) -> None:
        """Closed or dropped, and a new one goes on from its state."""
        state = self.loader.state_dict()
        if close:
            self.loader.close()
        self.batches = None
        self.loader = self.make()
        self.loader.load_state_dict(state)
        self.model.load(self.model.state())
        if again:
            self.place_again()

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.loader.close()
        shutil.rmtree(self.folder)


class Workers(Machine):
    backend, arguments = "torch", {"num_workers": 1}


class Thread(Machine):
    backend, arguments = "torch", {"num_workers": 0}


COMMON: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "phases": [
        Phase.generate
    ],  # to make a failure short would take minutes: each try builds loaders
}
TestNative = Machine.TestCase
TestNative.settings = settings(max_examples=100, stateful_step_count=25, **COMMON)
TestThread = Thread.TestCase
TestThread.settings = settings(max_examples=100, stateful_step_count=25, **COMMON)
TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=10, stateful_step_count=15, **COMMON)
