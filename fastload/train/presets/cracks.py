"""What the jobs on photographs of cracks have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CRACKS_DATA", "CRACKS_SETTINGS"]

CRACKS_DATA = (
    "https://github.com/cuilimeng/CrackForest-dataset, as cracks/{train,val}/{images,masks}: "
    "480x320 photographs, and PNG masks that are not 0 on the crack"
)

CRACKS_SETTINGS: Mapping[str, Any] = {
    "task": "segmentation",
    # A crop after padding by an eighth: moved and mirrored, at its own scale, as a crack's width tells it from a joint.
    "augment": "crop-flip",
    "image_size": (320, 480),
    "batch_size": 4,
    "optimizer": "adamw",
    "lr": 1e-3,
    "reference_batch": None,
    "weight_decay": 0.01,
    "clip_norm": 1.0,
    "epochs": 200,
    "schedule": "cosine",
    "warmup_epochs": 5,
}
"""The rate is that of a network that begins untrained. With an encoder's weights 2e-4 does, as in the examples of
segmentation-models-pytorch."""
