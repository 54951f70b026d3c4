"""A tiny DINO: github.com/facebookresearch/dino as `dino`, whose network, head, loss, schedules and
crops are run. Its `train_dino` needs a GPU; the step below does what its `train_one_epoch` does,
in float32."""

from __future__ import annotations

import random
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.training import ORIGINAL, WRONG, Train
from fastload import pipelines

_LARGE, _SMALL, _CROPS = (0.4, 1.0), (0.05, 0.4), 4
_PATCH, _OUT, _WIDTH, _DEPTH, _HEADS = 32, 256, 64, 3, 2
_LR, _MOMENTUM, _CLIP = 1e-3, 0.99, 3.0


def _modules(originals: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    with mock.patch.object(sys, "path", [str(originals / "dino"), *sys.path]):
        main = module(originals / "dino/main_dino.py", "main_dino")
        import utils
        import vision_transformer

        return main, utils, vision_transformer


def _batches(main: Any, data: Path, batch: int, side: str, seed: int) -> Any:
    if side == ORIGINAL:
        crops = main.DataAugmentationDINO(_LARGE, _SMALL, _CROPS)
        images = ImageFolder(str(data), crops)
        return DataLoader(images, batch, shuffle=True, drop_last=True)
    views = pipelines.dino(_LARGE, _SMALL, _CROPS)
    if side == WRONG:
        views = fastload.Views(*map(_without_colour_and_blur, views.transforms))
    return fastload.create_loader(
        data, batch, transform=views, shuffle=True, drop_last=True, seed=seed, num_workers=1
    )


def _without_colour_and_blur(view: Any) -> v2.Compose:
    colour = (v2.RandomApply, v2.RandomGrayscale, v2.RandomSolarize)
    return v2.Compose([step for step in view.transforms if not isinstance(step, colour)])


def training(originals: Path, data: Path, steps: int, batch: int) -> Train:
    main, utils, transformer = _modules(originals)
    if not dist.is_initialized():  # its loss is of all processes
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    def network() -> Any:
        body = transformer.VisionTransformer(
            patch_size=_PATCH,
            embed_dim=_WIDTH,
            depth=_DEPTH,
            num_heads=_HEADS,
            mlp_ratio=4,
            qkv_bias=True,
            norm_layer=partial(nn.LayerNorm, eps=1e-6),
        )
        head = transformer.DINOHead(_WIDTH, _OUT, hidden_dim=256, bottleneck_dim=64)
        return utils.MultiCropWrapper(body, head)

    def train(side: str, seed: int) -> list[float]:
        for generator in (random.seed, np.random.seed, torch.manual_seed):
            generator(seed)
        student, teacher = network(), network().requires_grad_(False)
        teacher.load_state_dict(student.state_dict())
        loss_of = main.DINOLoss(_OUT, 2 + _CROPS, 0.04, 0.04, 0, 1)
        optimizer = torch.optim.AdamW(utils.get_params_groups(student))
        rates = utils.cosine_scheduler(_LR, 1e-5, 1, steps, warmup_epochs=0)
        decays = utils.cosine_scheduler(0.04, 0.4, 1, steps)
        momenta = utils.cosine_scheduler(_MOMENTUM, 1, 1, steps)
        losses: list[float] = []
        loader = _batches(main, data, batch, side, seed)
        for step, (crops, _) in enumerate(islice(loader, steps)):
            for number, group in enumerate(optimizer.param_groups):
                group["lr"] = rates[step]
                if number == 0:
                    group["weight_decay"] = decays[step]
            loss = loss_of(student(crops), teacher(crops[:2]), 0)
            optimizer.zero_grad()
            loss.backward()
            utils.clip_gradients(student, _CLIP)
            optimizer.step()
            with torch.no_grad():
                for ours, mean in zip(student.parameters(), teacher.parameters(), strict=True):
                    mean.mul_(momenta[step]).add_((1 - momenta[step]) * ours)
            losses.append(loss.item())
        if len(losses) < steps:
            raise SystemExit(f"{data} has images for {len(losses)} steps; give fewer --steps")
        return losses

    return train
