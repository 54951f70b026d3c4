"""Text with RoBERTa, from scratch."""

from __future__ import annotations

from fastload.train.presets.base import Preset

__all__ = ["PRESET"]

PRESET = Preset(
    name="text-roberta",
    about="RoBERTa-base on text, from scratch: the network of Liu et al. (2019, arXiv:1907.11692); 256 sequences a "
    "step, rate and warm-up as for BERT (Devlin et al., 2019, appendix A.2)",
    data="any text as rows of token ids: text/train.npy and text/val.npy of (N, L) integers, L at most 512 "
    "(the README has the lines that make them)",
    command="torchrun --nproc-per-node 4 -m fastload.train text-roberta --data text/ --batch-size 16 --accumulate 4 "
    "--amp bf16 --out runs/roberta",
    settings={
        "task": "masked-lm",
        "model": "transformers:roberta",
        "num_classes": 50265,
        "channels_last": False,
        "batch_size": 16,
        "accumulate": 16,
        "optimizer": "adamw",
        "lr": 1e-4,
        "reference_batch": None,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "epochs": 40,
        "schedule": "cosine",
        "warmup_epochs": 0.4,
        "out": "runs/text-roberta",
    },
)
