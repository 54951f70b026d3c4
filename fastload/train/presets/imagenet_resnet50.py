"""ImageNet with ResNet-50."""

from __future__ import annotations

from fastload.train.presets.base import Preset

__all__ = ["PRESET"]

PRESET = Preset(
    name="imagenet-resnet50",
    about="ResNet-50 on ImageNet-1k in 90 epochs, as Goyal et al. train it (2017, arXiv:1706.02677)",
    data="https://image-net.org/challenges/LSVRC/2012 (after registering), as imagenet/{train,val}/<class>/*.JPEG",
    command="torchrun --nproc-per-node 8 -m fastload.train imagenet-resnet50 --data imagenet/ "
    "--batch-size 128 --amp bf16 --out runs/resnet50",
    settings={
        "task": "classification",
        "model": "torchvision:resnet50",
        "augment": "rrc-flip",
        "image_size": (224, 224),
        "batch_size": 64,
        "optimizer": "sgd",
        "lr": 0.1,
        "reference_batch": 256,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "epochs": 90,
        "schedule": "step",
        "milestones": (30, 60, 80),
        "gamma": 0.1,
        "warmup_epochs": 5,
        "out": "runs/imagenet-resnet50",
    },
)
