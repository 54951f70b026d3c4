"""Train a small U-Net-like network on images and masks: the same crop for both, colour for the
image only.

python examples/segmentation.py cracks/          # cracks/images/*.jpg and cracks/masks/*.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torchvision.transforms import v2

import fastload


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="a folder with images/ and masks/")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(64, scale=(0.3, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(brightness=0.2, contrast=0.2),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    network = nn.Sequential(
        *(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 1, 1),
        )
    ).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    with fastload.create_loader(
        args.data, batch_size=args.batch_size, shuffle=True, transform=transform, device=device
    ) as train:
        for epoch in range(args.epochs):
            total = 0.0
            for images, masks in train:  # (B, 3, 64, 64) float32 and (B, 64, 64) uint8
                loss = nn.functional.binary_cross_entropy_with_logits(
                    network(images)[:, 0], (masks > 0).float()
                )
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"epoch {epoch + 1}: loss {total / len(train):.4f}", flush=True)


if __name__ == "__main__":
    main()
