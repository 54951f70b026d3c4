"""What is done to the samples of a Loader, for the person who calls `explain()`."""

from __future__ import annotations

import torch

from fastload.backends.base import Workload, available_backends
from fastload.backends.needs import needs_in
from fastload.render import fused


def explained(
    workload: Workload, *, memory_format: torch.memory_format, collate: str, read_together: str
) -> dict[str, str]:
    """The rows of what is done to samples, what that needs, and how they are delivered.

    `collate`: the form of the batches; empty: the columns. `read_together`: the columns whose
    neighbours are; empty where the order keeps none together.
    """
    split = workload.recipe
    rows = {
        "transforms": "\n".join(f"{row.transform} -> {row.where}" for row in split.placement)
        or "none"
    }
    if read_together:
        rows["read together"] = read_together
    if several := split.composite.describe(len(workload.source)):
        rows["samples"] = several
    if split.reasons:
        rows["in Python because of"] = "\n".join(split.reasons)
    if needs := _needs_of(workload):
        rows["needs"] = "\n".join(needs)
    rows["delivered"] = f"on {workload.device}, {memory_format}".replace("torch.", "")
    if collate:
        rows["delivered"] += f", collate_fn={collate}"
    if workload.padded:
        alone = collate == repr("torchvision") and workload.device.type == "cpu"
        how = "each image in its own size" if alone else "images padded to the largest of a batch"
        rows["delivered"] += f", {how}"
    if workload.device.type == "cpu" and any(op.has_float_steps for op in split.ops):
        from fastload.recipe.floats_by_core import explained_floats

        rows["floats"] = explained_floats(split.programs)
    if workload.device.type == "cuda":
        rows["kernels"] = fused.explained(workload.device)
    return rows


def _needs_of(workload: Workload) -> list[str]:
    """What a backend must be able to do, and which ones here are not. Why Python runs on single
    samples has a row of its own."""
    rows = [row for row in available_backends() if row.available]
    needs = []
    for need, task in needs_in(workload).items():
        if need.in_python:
            continue
        unable = [row.name for row in rows if not need.is_met(row.traits)]
        cannot = f" ({' and '.join(unable)} cannot)" if unable else ""
        needs.append(f"{need.argument}: to {task}{cannot}")
    return needs
