"""benchmarks/knobs.py: its turns and figures, on batches that are there at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import knobs
from benchmarks.inputs import ROOT
from tests.images import write_photo_folder


class Batches:
    """Epochs of 3 batches of 4, 4 and 2 images; notes who was asked."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name, self.asked = name, asked

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        self.asked.append(self.name)
        return iter([[torch.zeros(count, 1)] for count in (4, 4, 2)])


def test_rows_take_turns_and_every_second_round_is_backwards() -> None:
    asked: list[str] = []
    found = knobs.in_turns({name: Batches(name, asked) for name in "ab"}, 1e6, 3)
    assert "".join(asked) == "ab" + "ab" + "ba" + "ab"
    assert [row.images for row in found.values()] == [10, 10]
    for row in found.values():
        assert 0 <= row.waits <= 1
        assert row.first > 0
    asked.clear()
    knobs.in_turns({name: Batches(name, asked) for name in "ab"}, 1e6, 1, ahead=True)
    assert "".join(asked) == "ab" + "aabb"


def test_one_setting_of_the_usual_ones_is_changed(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path, per_class=2)
    for changed in knobs.KNOBS:
        loader = knobs.plain(folder, changed)
        expected = {**knobs.USUAL, **changed}
        if changed.get("num_workers") == 0:  # torch takes neither of them then
            expected.update(prefetch_factor=None, persistent_workers=False)
        assert {name: getattr(loader, name) for name in expected} == expected


@pytest.mark.slow
def test_clipping_is_a_part_of_the_step() -> None:
    threads = torch.get_num_threads()
    try:
        step, clip = knobs.clipping(1, size=32, batch=2)
    finally:
        torch.set_num_threads(threads)
    assert 0 < clip < step


def test_the_page_has_the_figures_of_the_file() -> None:
    page = (ROOT / "docs" / "knobs.md").read_text()
    found = json.loads((ROOT / "benchmarks" / "results" / "knobs-2core-epyc.json").read_text())
    for rows in found["tables"].values():
        for name, row in rows.items():
            words = ", ".join(
                f"`{word}`" if "=" in word or word in ("turbojpeg", "torch", "dali") else word
                for word in name.split(", ")
            )
            line = (
                f"| {words} | {row['first']:.2f} | {row['waits']:.0%} | "
                f"{1e3 * row['longest']:,.0f} | {row['rate']:.0f} | {row['images']} |"
            )
            assert line in page, line
    assert f"{1e3 * found['step_seconds']:,.0f} ms of one core" in page
    assert f"its gradients {1e3 * found['clip_seconds']:.1f} ms" in page
    assert f"medians of {found['rounds']} rounds" in page
    assert f"(load {found['load_before']:.1f} to {found['load_after']:.1f} on" in page
