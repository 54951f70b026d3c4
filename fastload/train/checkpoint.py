"""Checkpoints: everything that a run needs to go on as if nothing had happened, in one file of plain values.

    state = torch.load("runs/mine/best.pt", weights_only=True, map_location="cpu")
    model.load_state_dict(state["ema"] or state["model"])

The weights have the names of the plain network. A file is whole or not there: it is written beside its place and then
renamed. Rank 0 alone reads and writes; the other ranks are told, and need not see the folder.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fastload.errors import CheckpointError, ConfigurationError, StateMismatchError
from fastload.train.config import TrainConfig

__all__ = ["BEST", "LAST", "copy_checkpoint", "epoch_file", "load", "save", "state_to_resume"]

VERSION = 1
LAST = "last.pt"
BEST = "best.pt"

_BINDING = {
    "": ("task",),
    "model": ("model", "num_classes", "ema"),
    "optimizer": ("accumulate", "optimizer"),
    "run": ("seed",),
}
"""Settings by table that a run cannot change on the way. (The loader compares its own: data, global
batch, order, transforms.)"""


def epoch_file(epoch: int) -> str:
    """Name of the checkpoint after so many epochs."""
    return f"epoch-{epoch:04d}.pt"


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, or leave what is there as it is.

    Raises:
        CheckpointError: the disk is full, or the folder cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            torch.save({"version": VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch says a failed write in a RuntimeError
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({error}). Is the disk full, or the folder not yours? "
            "Choose another with --out."
        ) from error


def copy_checkpoint(path: Path, copy: Path) -> None:
    """The same checkpoint under a second name: a link where the file system has them, for files here never change."""
    beside = copy.with_name(f".{copy.name}.{os.getpid()}.tmp")
    try:
        try:
            os.link(path, beside)
        except OSError:
            shutil.copyfile(path, beside)
        os.replace(beside, copy)
    except OSError as error:
        raise CheckpointError(f"{copy}: the checkpoint could not be written ({error}). Is the disk full?") from error


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint, tensors on the CPU.

    Raises:
        ConfigurationError: no such file, or no checkpoint.
        StateMismatchError: one of another version.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigurationError(
            f"resume: {path} is not there; give the path of a checkpoint, auto, or never."
        ) from None
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise ConfigurationError(
            f"resume: {path} cannot be read as a checkpoint ({error}); give another one, or --resume never."
        ) from error
    version = state.get("version") if isinstance(state, dict) else None
    if version != VERSION:
        raise StateMismatchError(
            f"resume: {path} is a checkpoint of version {version!r}, this is {VERSION}; give another one, or --resume "
            "never."
        )
    found: dict[str, Any] = state
    return found


def state_to_resume(config: TrainConfig) -> dict[str, Any] | None:
    """The state that a run goes on from; None if it begins anew.

    Raises:
        ConfigurationError: no such file, or no checkpoint.
        StateMismatchError: a checkpoint of a run that this configuration cannot go on with; both sides are named.
    """
    resume, last = config.checkpoint.resume, Path(config.checkpoint.out) / LAST
    if resume == "never" or (resume == "auto" and not last.exists()):
        return None
    path = last if resume == "auto" else Path(resume)
    state = load(path)
    mine, theirs = _binding(asdict(config)), _binding(state["config"])
    differing = [name for name in mine if mine[name] != theirs[name]]
    if differing:
        rows = "; ".join(f"{name}: checkpoint {theirs[name]!r}, now {mine[name]!r}" for name in differing)
        raise StateMismatchError(
            f"resume: {path} is of a run that differs in {rows}. Give the same settings, another folder (--out), or "
            "--resume never to begin anew in this one."
        )
    return state


def _binding(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (config[table] if table else config)[name] for table, names in _BINDING.items() for name in names}


def _sync_folder(folder: Path) -> None:
    """Make a rename outlast a power cut; not every file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
