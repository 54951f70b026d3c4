"""Packing by a Ray cluster of two nodes, of which nodes, drivers and workers are killed meanwhile:
the bytes are those of a local run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.processes import run_cold

pytest.importorskip("ray", reason="pip install .[ray]")


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_node_is_lost_and_the_shards_are_those_of_a_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    run_cold("ray_pack.py", str(tmp_path))
    local, cluster = tmp_path / "local", tmp_path / "cluster"
    names = sorted(path.name for path in local.iterdir())
    assert sorted(path.name for path in cluster.iterdir()) == names
    assert sum(name.endswith(".tar") for name in names) > 8
    for name in names:
        assert (cluster / name).read_bytes() == (local / name).read_bytes(), name
    assert (tmp_path / "nodes").read_text() == "2 before, 1 after"


@pytest.mark.parametrize(
    "kills",
    [pytest.param(6, marks=pytest.mark.whole), pytest.param(50, marks=pytest.mark.reliability)],
)
@pytest.mark.timeout(3700)
def test_killed_at_any_point_the_next_driver_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """Drivers, workers and nodes."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    run_cold("ray_kills.py", str(tmp_path), str(kills), timeout=3600)
    local = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
    found = list(tmp_path.glob("cluster*"))
    assert found
    for target in found:
        assert {path.name: path.read_bytes() for path in target.iterdir()} == local, target
    assert sum(map(int, re.findall(r"\d+", (tmp_path / "killed").read_text()))) == kills
