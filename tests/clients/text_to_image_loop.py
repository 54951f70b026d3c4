"""The loop of diffusers' train_text_to_image.py, in buckets of aspect ratios, on a tiny model of
random weights: by a data set and batch sampler as such scripts have them, and by fastload.

    python text_to_image_loop.py FOLDER    # with train.jsonl and its images; writes found.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision.transforms import v2
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast, set_seed

import fastload

SIZES = [(32, 32), (24, 48), (48, 24)]
BATCH, EPOCHS = 2, 2
FINISH = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]


class Photographs(Dataset[dict[str, Any]]):
    """As a script has it: an image, cut to the size of its bucket, and its caption."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "train.jsonl").read_text().splitlines()
        self.folder, self.rows = folder, [json.loads(line) for line in lines]
        self.buckets = []
        for row in self.rows:
            with Image.open(folder / row["file_name"]) as image:
                ratio = image.width / image.height
            near = [abs(np.log(width / height) - np.log(ratio)) for height, width in SIZES]
            self.buckets.append(int(np.argmin(near)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        height, width = SIZES[self.buckets[index]]
        with Image.open(self.folder / self.rows[index]["file_name"]) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
        scale = max(height / pixels.shape[1], width / pixels.shape[2])
        size = [
            max(n, int(side * scale))
            for n, side in zip((height, width), pixels.shape[1:], strict=True)
        ]
        pixels = v2.functional.resize(pixels, size, antialias=True)
        return {
            "image": v2.Compose([v2.CenterCrop((height, width)), *FINISH])(pixels),
            "text": self.rows[index]["text"],
        }


class BucketBatches(Sampler[list[int]]):
    """Batches of one bucket each: when one is full; and what is left of each."""

    def __init__(self, buckets: list[int]) -> None:
        self.buckets = buckets

    def __iter__(self) -> Iterator[list[int]]:
        filled: dict[int, list[int]] = {}
        for index, bucket in enumerate(self.buckets):
            batch = filled.setdefault(bucket, [])
            batch.append(index)
            if len(batch) == BATCH:
                yield filled.pop(bucket)
        yield from (filled[bucket] for bucket in sorted(filled))


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<pad>", "<end>"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<end>"
    )


def run(loader: Any, texts: list[str]) -> dict[str, Any]:
    """Two epochs: the captions, shapes and loss of each step."""
    set_seed(0)
    tokenizer = tokenizer_of(texts)
    vae = AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
    )
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_attention_heads=2,
            num_hidden_layers=2,
            max_position_embeddings=16,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).eval()
    schedule = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
    noises = torch.Generator().manual_seed(7)
    losses, seen, shapes = [], [], []
    for _ in range(EPOCHS):
        for batch in loader:
            images = batch["image"]
            ids = tokenizer(
                batch["text"],
                padding="max_length",
                max_length=16,
                truncation=True,
                return_tensors="pt",
            ).input_ids
            with torch.no_grad():
                latents = vae.encode(images.contiguous()).latent_dist.mode()
                hidden = encoder(ids)[0]
            noise = torch.randn(latents.shape, generator=noises)
            steps = torch.randint(0, 100, (len(latents),), generator=noises)
            made = unet(schedule.add_noise(latents, noise, steps), steps, hidden).sample
            loss = torch.nn.functional.mse_loss(made, noise)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            seen.append(list(batch["text"]))
            shapes.append(list(images.shape))
    return {"losses": losses, "seen": seen, "shapes": shapes}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    data = Photographs(place)
    texts = [row["text"] for row in data.rows]
    found = {"theirs": run(DataLoader(data, batch_sampler=BucketBatches(data.buckets)), texts)}
    ours = fastload.create_loader(
        place / "train.jsonl",
        BATCH,
        order=fastload.Buckets(sizes=SIZES),
        transform=v2.Compose([v2.Resize(32), v2.CenterCrop(32), *FINISH]),
    )
    with ours:
        found["ours"] = run(ours, texts)
    (place / "found.json").write_text(json.dumps(found))
