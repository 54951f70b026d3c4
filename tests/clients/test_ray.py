"""Ray Train with two workers: a loader that is shared already is left alone, another one says what
to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.processes import result, run_cold

pytest.importorskip("ray", reason="pip install .[integrations]")


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_each_worker_gets_its_part_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    run_cold("ray_loop.py", str(tmp_path))
    ranks = [result(tmp_path, "found", rank) for rank in range(2)]
    for count in (16, 17, 37):
        for found in ranks:
            assert found[f"auto {count}"] == found[f"plain {count}"]
            assert "shard='auto'" in found[f"unshared {count}"]
        created = [
            index for found in ranks for batch in found[f"created {count}"] for index in batch
        ]
        assert sorted(created) == list(range(count)), "each sample exactly once"
