"""Checkpoints of the reference trainer: what killed saves leave, power that fails, and files that
are none."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload.errors import CheckpointError, ConfigurationError, FastloadError, StateMismatchError
from fastload.train import checkpoint
from tests.train_job import config

STATE: dict[str, Any] = {
    **dict.fromkeys(("epoch", "batch", "step", "ema_updates"), 0),
    **{
        key: {} for key in ("config", "model", "optimizer", "scheduler", "scaler", "task", "loader")
    },
    **dict.fromkeys(("best", "ema", "records", "ranks")),
}


def dead_process() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def test_the_next_save_removes_what_killed_ones_have_left(tmp_path: Path) -> None:
    here, dead = platform.node(), dead_process()
    left = [tmp_path / f".last.pt.{here}.{dead}.tmp", tmp_path / f".best.pt.{here}.{dead}.tmp"]
    kept = [
        tmp_path / f".last.pt.{here}.{os.getppid()}.tmp",  # somebody alive is writing it
        tmp_path / f".last.pt.other-machine.{dead}.tmp",  # nobody here can know
        tmp_path / ".last.pt.notes.tmp",
    ]
    for path in (*left, *kept):
        path.write_bytes(b"started")
    checkpoint.save(tmp_path / "last.pt", STATE)
    checkpoint.copy_checkpoint(tmp_path / "last.pt", tmp_path / "best.pt")
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)
    assert checkpoint.load(tmp_path / "best.pt")["step"] == 0


class Disk:
    """What would be on the disk if the power failed now: the calls that make things last, in
    order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[tuple[str, str]] = []
        self.fail_at = -1
        real_sync, real_replace = os.fsync, os.replace

        def fsync(descriptor: int) -> None:
            self._note("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            real_sync(descriptor)

        def replace(source: Any, target: Any) -> None:
            self._note("replace", os.fspath(target))
            real_replace(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)

    def _note(self, what: str, path: str) -> None:
        self.said.append((what, os.path.basename(path) if what == "replace" else path))
        if len(self.said) - 1 == self.fail_at:
            raise OSError(5, "Input/output error")


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_content_then_name_then_folder(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name never lasts longer than what it names, for the copy as for the checkpoint."""
    if not links:
        monkeypatch.setattr(
            os, "link", lambda *paths: (_ for _ in ()).throw(OSError(1, "no links here"))
        )
    disk = Disk(monkeypatch)
    checkpoint.save(tmp_path / "last.pt", STATE)
    checkpoint.copy_checkpoint(tmp_path / "last.pt", tmp_path / "best.pt")
    kinds = [
        ("file" if path != str(tmp_path) else "folder") if what == "fsync" else path
        for what, path in disk.said
    ]
    copied = ["best.pt", "folder"] if links else ["file", "best.pt", "folder"]
    assert kinds == ["file", "last.pt", "folder", *copied]


def test_a_disk_that_fails_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path / "last.pt", {**STATE, "step": 1})
    checkpoint.copy_checkpoint(tmp_path / "last.pt", tmp_path / "best.pt")
    disk = Disk(monkeypatch)
    for moment in range(5):
        disk.said, disk.fail_at = [], moment
        with contextlib.suppress(CheckpointError):
            checkpoint.save(tmp_path / "last.pt", {**STATE, "step": 2 + moment})
            checkpoint.copy_checkpoint(tmp_path / "last.pt", tmp_path / "best.pt")
        for name in ("last.pt", "best.pt"):
            assert checkpoint.load(tmp_path / name)["step"] in range(1, 3 + moment)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "last.pt"], (
            "nothing is left over"
        )


class Unsafe:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    checkpoint.save(path, STATE)
    whole = path.read_bytes()
    contents: list[bytes] = [
        b"",
        b"x",
        whole[: len(whole) // 2],
        whole[:-40],
        b"PK\x03\x04" + bytes(100),
    ]
    contents += [pickle.dumps(Unsafe()), pickle.dumps({"version": 1})]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(FastloadError) as caught:
            checkpoint.load(path)
        assert str(path) in str(caught.value)
        assert "weights_only" not in str(caught.value)
    for unsafe in (Unsafe(), {"version": 1, "model": Unsafe()}):
        torch.save(unsafe, path)
        with pytest.raises(
            ConfigurationError, match="damaged, or not a file of plain values"
        ) as caught:
            checkpoint.load(path)
        assert "weights_only" not in str(caught.value)
    resume = config("data", tmp_path)
    for key in STATE:
        checkpoint.save(path, {name: value for name, value in STATE.items() if name != key})
        with pytest.raises(StateMismatchError, match=f"it lacks {key};"):
            checkpoint.state_to_resume(resume)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="not a regular file"):
        checkpoint.load(path)
