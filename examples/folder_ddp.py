"""Train a classifier on a folder of classes, on one CPU, one GPU or several machines; stop it and
it goes on.

    python examples/folder_ddp.py data/train data/val
    torchrun --nproc-per-node 4 examples/folder_ddp.py data/train data/val

Nothing here is special to several processes but what DistributedDataParallel asks for: the loader
finds its own rank.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.transforms import v2

import fastload

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path, help="folder of classes")
    parser.add_argument("val", type=Path, help="folder of the same classes")
    parser.add_argument(
        "--model", default="resnet18", help="a classifier of torchvision (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--batch-size", type=int, default=64, help="on each rank (default: %(default)s)"
    )
    parser.add_argument(
        "--size", type=int, default=224, help="side of the images [pixels] (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", type=Path, default=Path("folder_ddp.pt"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    distributed = "RANK" in os.environ
    rank = int(os.environ.get("RANK", 0))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if distributed:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    finish = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    train = fastload.create_loader(
        args.train,
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        device=device,
        transform=v2.Compose([v2.RandomResizedCrop(args.size), v2.RandomHorizontalFlip(), *finish]),
    )
    val = fastload.create_loader(
        args.val,
        batch_size=args.batch_size,
        device=device,
        transform=v2.Compose([v2.Resize(args.size * 8 // 7), v2.CenterCrop(args.size), *finish]),
    )
    classes = len([folder for folder in args.train.iterdir() if folder.is_dir()])
    network = torchvision.models.get_model(args.model, num_classes=classes).to(
        device, memory_format=torch.channels_last
    )
    model: nn.Module = DistributedDataParallel(network) if distributed else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    first = 0
    if (
        args.checkpoint.exists()
    ):  # another run was stopped: go on with the batch that it would have had next
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train.load_state_dict(saved["loader"])
        first = saved["epoch"]

    for epoch in range(first, args.epochs):
        model.train()
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

        model.eval()
        counts = torch.zeros(2, dtype=torch.int64, device=device)  # right, all
        with torch.inference_mode():
            for (
                images,
                labels,
            ) in val:  # each sample once over all ranks: sum counts, do not average averages
                counts[0] += (network(images).argmax(1) == labels).sum()
                counts[1] += len(labels)
        if distributed:
            dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch + 1}: {int(counts[0])} of {int(counts[1])} right", flush=True)
            saved = {
                "model": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch + 1,
            }
            torch.save({**saved, "loader": train.state_dict()}, args.checkpoint)

    train.close()
    val.close()
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
