"""The examples run as they are, on small data."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import warm
from tests.images import jpeg, photo, png

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples")
    for index in range(16):
        path = root / "classes" / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(photo(64, 72, seed=index)))
    for index in range(8):
        for part in ("images", "masks"):
            (root / "pairs" / part).mkdir(parents=True, exist_ok=True)
        pixels = photo(80, 96, seed=index)
        (root / "pairs" / "images" / f"{index}.jpg").write_bytes(jpeg(pixels))
        (root / "pairs" / "masks" / f"{index}.png").write_bytes(
            png((pixels[:, :, :1] > 128).astype(np.uint8))
        )
    return root


def run(*command: str, directory: Path) -> str:
    done = warm.run(*command, directory=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_here() -> None:
    named = Path(__file__).read_text()
    assert [
        path.name for path in EXAMPLES.iterdir() if path.is_file() and path.name not in named
    ] == []


@pytest.mark.whole
def test_a_folder_is_learnt_and_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    data = str(folder / "classes")
    settings = (data, data, "--batch-size", "4", "--size", "32", "--model", "shufflenet_v2_x0_5")
    script = str(EXAMPLES / "folder_ddp.py")
    first = run(script, *settings, "--epochs", "1", directory=tmp_path)
    assert first.splitlines()[-1].startswith("epoch 1: ")
    assert "of 16 right" in first
    again = run(script, *settings, "--epochs", "2", directory=tmp_path)
    assert [line.split(":")[0] for line in again.splitlines() if line.startswith("epoch")] == [
        "epoch 2"
    ]


@pytest.mark.whole
def test_two_processes_count_every_sample_once(folder: Path, tmp_path: Path) -> None:
    data = str(folder / "classes")
    settings = (
        data,
        data,
        "--batch-size",
        "4",
        "--size",
        "32",
        "--model",
        "shufflenet_v2_x0_5",
        "--epochs",
        "1",
    )
    command = (str(EXAMPLES / "folder_ddp.py"), *settings)
    first, second = warm.run_all([command] * 2, directory=tmp_path, environments=warm.ranks(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "of 16 right" in first.stdout


def test_masks_follow_their_images(folder: Path, tmp_path: Path) -> None:
    script = str(EXAMPLES / "segmentation.py")
    assert "epoch 2: loss" in run(
        script, str(folder / "pairs"), "--epochs", "2", directory=tmp_path
    )


def test_the_line_that_adopts_a_loader(folder: Path, tmp_path: Path) -> None:
    printed = run(
        str(EXAMPLES / "adopt.py"), str(folder / "classes"), "--batch-size", "4", directory=tmp_path
    )
    assert "times as fast" in printed


@pytest.mark.parametrize(
    ("notebook", "printed"),
    [
        ("first_look.ipynb", "largest difference of 255: "),
        ("why_the_gpu_waits.ipynb", r"the trainer waits \d+% of the time"),
    ],
)
def test_a_notebook_runs_from_top_to_bottom(notebook: str, printed: str, tmp_path: Path) -> None:
    cells = [
        cell
        for cell in json.loads((EXAMPLES / notebook).read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    program = tmp_path / "notebook.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    kept = "".join("".join(output.get("text", "")) for cell in cells for output in cell["outputs"])
    assert re.search(printed, kept), "its outputs are kept: run it, and save it"
    assert re.search(printed, run(str(program), directory=tmp_path))


class StandIn:
    """As much of torchtitan's class as the example needs."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config:
        pass


def test_torchtitans_loader_goes_on_at_another_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torchtitan", "torchtitan.components", "torchtitan.components.data"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    theirs: Any = types.ModuleType("torchtitan.components.data.loader")
    theirs.BaseDataLoader = StandIn
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    module = runpy.run_path(str(EXAMPLES / "torchtitan_loader.py"))
    cls, rows, length = module["FastloadDataLoader"], 24, 8
    tokens = np.arange(rows)[:, None] * 100 + np.arange(length + 1)
    np.save(tmp_path / "tokens.npy", tokens)

    def made(ranks: int) -> list[Any]:
        config = cls.Config(tokens=str(tmp_path / "tokens.npy"))
        return [
            cls(
                config,
                dp_world_size=ranks,
                dp_rank=rank,
                max_context_length=length,
                num_tokens_per_batch=8 // ranks * length,
                tokenizer=None,
            )
            for rank in range(ranks)
        ]

    def step(iterators: list[Any]) -> list[int]:
        """The rows of a step of all ranks."""
        firsts = []
        for inputs, labels in map(next, iterators):
            assert torch.equal(labels, inputs["input"] + 1)
            assert inputs["positions"].tolist() == list(range(length)) * (len(labels) // length)
            firsts += inputs["input"][::length].tolist()
        return sorted(firsts)

    four = made(4)
    iterators = [iter(loader) for loader in four]
    steps = [step(iterators)]
    states = [loader.state_dict() for loader in four]
    steps += [step(iterators) for _ in range(4)]
    assert sorted(row for rows in steps[:3] for row in rows) == (np.arange(rows) * 100).tolist(), (
        "an epoch"
    )
    assert steps[3] != steps[0], "another order in the next one"
    two = made(2)
    for loader in two:
        loader.load_state_dict({})
        loader.load_state_dict(states[0])
    again = [iter(loader) for loader in two]
    assert [step(again) for _ in range(4)] == steps[1:]
    for loader in four + two:
        loader.close()
