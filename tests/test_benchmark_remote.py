"""The benchmark of remote data measures what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.remote import contestants
from benchmarks.remote.contestants import BATCH, SIZE, Contestant, Row, Setting


class Batches:
    """Three of them an epoch."""

    def __iter__(self) -> Iterator[Any]:
        images = torch.zeros((BATCH, 3, SIZE, SIZE), dtype=torch.uint8)
        yield from [(images, images)] * 3


@pytest.mark.parametrize("remote", [True, False])
def test_of_what_is_fetched_the_first_epoch_alone_is_measured(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("x", lambda _: Batches(), remote=remote)
    monkeypatch.setattr(contestants, "ROWS", (row,))
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setattr("os.environ", {})
    contestant = Contestant("x", Setting("", "", (0,), str(tmp_path), 8 * BATCH))
    assert contestant.round(0.0, 0.0)["samples"] == BATCH
    # Two batches of warm-up at most, so that there is something left to measure.
    measured = contestant.round(0.2, 0.2)["samples"]
    assert measured == BATCH if remote else measured > 3 * BATCH
