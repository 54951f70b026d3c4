"""Scripts that read JSON lines of images and texts: TRL's fine-tuning of a vision-language model,
with its processor as collate function, and the loop of diffusers' train_text_to_image in buckets.
Each runs by its own loader and by fastload's: equal samples, steps and losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.processes import run_cold
from tests.images import jpeg, photo

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600)]


def written(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def found(script: str, folder: Path) -> tuple[Any, Any]:
    run_cold(script, str(folder))
    both = json.loads((folder / "found.json").read_text())
    return both["ours"], both["theirs"]


def test_fine_tuning_by_trl(tmp_path: Path) -> None:
    for package in ("trl", "accelerate", "datasets"):
        pytest.importorskip(package, reason="pip install .[integrations]")
    rows = []
    for n in range(7):  # one image or two each, of sizes of their own
        names = [f"{n}_{k}.jpg" for k in range(1 + n % 2)]
        for k, name in enumerate(names):
            picture = photo(30 + 5 * n, 40 + k, seed=2 * n + k)
            (tmp_path / name).write_bytes(jpeg(picture))
        talk = [
            {"role": "user", "content": f"What is in picture number {n} here ?"},
            {"role": "assistant", "content": f"There are {n} foxes in it ."},
        ]
        rows.append({"images": names, "messages": talk, "source": "web"})
    written(tmp_path, "talks.jsonl", rows)
    ours, theirs = found("sft_loop.py", tmp_path)
    assert ours["steps"] == theirs["steps"] == 4
    assert ours["seen"] == theirs["seen"]
    assert [len(messages) for messages, _ in ours["seen"]] == [2, 2, 2, 1]
    assert ours["losses"] == theirs["losses"]
    assert ours["weights"] == theirs["weights"]
    assert len(set(ours["losses"])) > 1


def test_text_to_image_in_buckets(tmp_path: Path) -> None:
    for package in ("diffusers", "transformers"):
        pytest.importorskip(package, reason="pip install .[integrations]")
    rows = []
    for n in range(11):
        height, width = [(50, 52), (40, 85), (90, 41)][n % 3]
        (tmp_path / f"{n}.jpg").write_bytes(jpeg(photo(height + n, width, seed=n)))
        rows.append({"file_name": f"{n}.jpg", "text": f"photograph {n} of a fox", "score": n / 2})
    written(tmp_path, "train.jsonl", rows)
    ours, theirs = found("text_to_image_loop.py", tmp_path)
    assert ours["seen"] == theirs["seen"]
    assert len(ours["seen"]) == 12
    assert ours["shapes"] == theirs["shapes"]
    assert len({tuple(shape[2:]) for shape in ours["shapes"]}) == 3
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)
