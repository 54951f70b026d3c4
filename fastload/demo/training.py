"""A plain training loop: what a loader is for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fastload import Loader
from fastload.measure.loaders import SmallNetwork


@dataclass(frozen=True)
class Epoch:
    """What one epoch of training came to."""

    number: int
    """1-based."""
    loss: float
    """Mean training loss (cross entropy, nats) over the epoch."""
    accuracy: float
    """Share of the validation images that are classified correctly after the epoch, 0 to 1."""
    images_per_second: float
    """Training images, validation not counted."""


def train(
    train_loader: Loader,
    val_loader: Loader,
    *,
    classes: int,
    epochs: int,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[Epoch]:
    """Train a `SmallNetwork` with AdamW; the loaders put batches on the device the network goes to.

    Args:
        progress: called with the share done of all epochs, 0 to 1.
    """
    report = progress or (lambda share: None)
    device = train_loader.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = SmallNetwork(classes).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=0.05)
    steps = epochs * len(train_loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=max(steps, 2), pct_start=0.25)

    history = []
    for number in range(1, epochs + 1):
        network.train()
        started, total, seen = time.perf_counter(), torch.zeros((), device=device), 0
        for step, (images, labels) in enumerate(train_loader, 1):
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() * len(labels)
            seen += len(labels)
            report((number - 1 + step / len(train_loader)) / epochs)
        mean = float(total) / seen
        rate = seen / (time.perf_counter() - started)
        history.append(Epoch(number, mean, accuracy(network, val_loader), rate))
    return history


def accuracy(network: nn.Module, loader: Loader) -> float:
    """Share of the loader's images, 0 to 1, whose largest output is at their label."""
    network.eval()
    right, seen = 0, 0
    with torch.inference_mode():
        for images, labels in loader:
            right += int((network(images).argmax(1) == labels).sum())
            seen += len(labels)
    return right / seen
