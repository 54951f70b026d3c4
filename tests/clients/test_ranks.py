"""A mix, and samplers of the user's own, under a process group of two ranks: global batches, steps,
states."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import pytest

from tests.clients.mix_loop import TAKEN
from tests.clients.processes import result, run_script


@pytest.mark.whole
def test_two_ranks_serve_together_what_one_does(tmp_path: Path) -> None:
    for ranks in (1, 2, 1):  # The first leaves a state for two, and they one for the last.
        run_script("mix_loop.py", str(tmp_path), ranks=ranks)
    alone, pair = result(tmp_path, "mix1", 0), [result(tmp_path, "mix2", r) for r in range(2)]
    for name, one in alone.items():
        parts = [rank[name] for rank in pair]
        for epoch in range(2):
            halves = [part["epochs"][epoch] for part in parts]
            assert one["epochs"][epoch] == [a + b for a, b in zip_longest(*halves)], name
            assert {len(half) for half in halves} == {one["length"]} == {parts[0]["length"]}
        assert one["epochs"][0] != one["epochs"][1] or name == "batch sampler"
        for served in (one, *parts):
            assert served["first"] == served["epochs"][0][:TAKEN]
            assert served["own"] == served["epochs"][0][TAKEN:], "by its own state"
        for served in (one, *parts):
            if "mix" in name:
                assert served["rest"] == served["epochs"][0][TAKEN:], "by that of the other world"
            else:
                assert served["rest"].startswith("state: "), "it is of this rank's own sampler"
