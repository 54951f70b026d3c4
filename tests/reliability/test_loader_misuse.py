"""A Loader that is used by several threads, closed while it is waited for, or given a state that is
none."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError, FastloadError, StateMismatchError
from tests import images
from tests.backends import CONTESTANTS, Contestant, contestants
from tests.reliability.outside import outside
from tests.waiting import LIMIT, wait_until

RESIZE = v2.Resize((16, 16))
ARRAYS = (np.zeros((24, 8, 8, 3), np.uint8), np.arange(24))


class Slow(torch.utils.data.Dataset[Any]):
    """A sample takes a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.zeros(3), index


class Gated(Slow):
    """A sample takes until a file is there."""

    def __init__(self, opened: Path) -> None:
        super().__init__(0.0)
        self.opened = opened

    def __getitem__(self, index: int) -> Any:
        wait_until(self.opened.exists)
        return super().__getitem__(index)


def iterate_in_two_threads(name: str, folder: str) -> list[str]:
    """What two threads end with that iterate over one Loader again and again."""
    contestant = next(c for c in CONTESTANTS if c.name == name)
    words: list[str] = []
    with contestant.create(
        images.write_photo_folder(Path(folder, "data")), Path(folder), transform=RESIZE
    ) as loader:

        def work() -> None:
            try:
                for _ in range(30):
                    for _batch in loader:
                        pass
                words.append("done")
            except FastloadError as error:
                words.append(str(error))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(len(labels) for _, labels in loader) == 6, "it is as good as before"
    return words


@contestants()
def test_two_threads_on_one_loader(contestant: Contestant, tmp_path: Path) -> None:
    words = outside(iterate_in_two_threads, contestant.name, str(tmp_path)).answer
    assert len(words) == 2
    for word in words:
        assert (
            word == "done"
            or "another thread is waiting" in word
            or "this iterator has ended" in word
        )


def test_the_second_thread_gets_an_error_while_the_first_one_waits(tmp_path: Path) -> None:
    gated = Gated(tmp_path / "opened")
    with fastload.create_loader(gated, 2, backend="torch", num_workers=1) as loader:
        first = iter(loader)
        waiting = threading.Thread(target=next, args=(first,))
        waiting.start()
        wait_until(lambda: bool(loader._progress.one_thread._inside))
        with pytest.raises(
            FastloadError, match="another thread is waiting in iter\\(\\) or next\\(\\)"
        ):
            iter(loader)
        assert waiting.is_alive(), "the error came while the first one waited"
        gated.opened.touch()
        waiting.join()
        _, indices = next(first)
        assert indices.tolist() == [2, 3], "the first thread goes on undisturbed"


@pytest.mark.parametrize("workers", [1, 0])
def test_closing_ends_a_wait(workers: int) -> None:
    loader = fastload.create_loader(Slow(1.0), 2, backend="torch", num_workers=workers)
    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.extend(loader)
        except FastloadError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.5)
    loader.close()
    waiting.join(LIMIT)
    assert not waiting.is_alive()
    assert "closed" in str(ended[-1])


BAD_EPOCHS: list[Any] = [
    "1",
    1.0,
    None,
    True,
    -1,
    1 << 31,
    float("nan"),
    np.float64(1),
    [1],
    np.array([1, 2]),
]


@pytest.mark.parametrize("epoch", BAD_EPOCHS, ids=repr)
def test_epochs_that_are_none(epoch: Any) -> None:
    with fastload.create_loader(ARRAYS, 4, shuffle=True) as loader:
        with pytest.raises(ConfigurationError, match="epoch: must be an int from 0 to 2147483647"):
            loader.set_epoch(epoch)
        state = loader.state_dict()
        with pytest.raises(StateMismatchError):
            loader.load_state_dict({**state, "epoch": epoch})
        with pytest.raises(StateMismatchError):
            loader.load_state_dict(
                {**state, "step": 7 if isinstance(epoch, int) and epoch == 1 << 31 else epoch}
            )
        assert loader.state_dict() == state
        loader.set_epoch(np.int64(3))
        loader.set_epoch((1 << 31) - 1)
        assert len(list(loader)) == 6


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(data=st.data())
def test_states_with_something_else_in_them(data: st.DataObject) -> None:
    with fastload.create_loader(ARRAYS, 4, shuffle=True, seed=5) as loader:
        state = loader.state_dict()
        changed = json.loads(json.dumps(state))
        key = data.draw(
            st.sampled_from(
                [*changed, "whole", "array", *(("order", inner) for inner in changed["order"])]
            )
        )
        value = data.draw(ANYTHING)
        if key == "whole":
            changed = value
        elif key == "array":
            changed[data.draw(st.sampled_from([*changed]))] = np.zeros(3)
        elif isinstance(key, tuple):
            changed["order"][key[1]] = value
        else:
            changed[key] = value
        if repr(changed) == repr(state):
            return
        try:
            loader.load_state_dict(changed)
        except StateMismatchError:
            assert loader.state_dict() == state
        else:  # another place of the same data
            assert key in ("epoch", "step") or value == state.get(key) or isinstance(key, tuple)
            loader.set_epoch(0)
        next(iter(loader))
