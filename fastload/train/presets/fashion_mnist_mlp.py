"""Fashion-MNIST with a perceptron of three layers."""

from __future__ import annotations

from fastload.train.presets.base import Preset

__all__ = ["PRESET"]

PRESET = Preset(
    name="fashion-mnist-mlp",
    about="a perceptron (784-512-512-10) on Fashion-MNIST: the network of PyTorch's quickstart tutorial, with AdamW",
    data="the four files of https://github.com/zalandoresearch/fashion-mnist (data/fashion), in one folder",
    command="fastload train fashion-mnist-mlp --data fashion-mnist/ --out runs/mlp",
    settings={
        "task": "classification",
        "model": "fastload:mlp",
        "augment": "none",
        "image_size": (28, 28),
        "mean": (0.2860,),
        "std": (0.3530,),
        "channels_last": False,
        "batch_size": 128,
        "optimizer": "adamw",
        "lr": 1e-3,
        "reference_batch": None,
        "weight_decay": 0.01,
        "epochs": 20,
        "schedule": "cosine",
        "warmup_epochs": 1,
        "out": "runs/fashion-mnist-mlp",
    },
)
