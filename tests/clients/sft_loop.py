"""TRL's supervised fine-tuning of a tiny vision-language model from JSON lines: by its own data set
and loader, and by fastload's. Models are of random weights, the tokenizer is trained here.

    python sft_loop.py FOLDER    # with talks.jsonl and its images; writes found.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Image, List
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

import fastload

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|end|>{% endfor %}"
)
SIDE, PATCH, BATCH = 28, 14, 2


def processor_of(texts: list[str]) -> LlavaProcessor:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<unk>", "<pad>", "<image>", "<|user|>", "<|assistant|>", "<|end|>"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<|end|>"
    )
    images = CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    return LlavaProcessor(
        images,
        fast,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )


def model_of(processor: LlavaProcessor) -> LlavaForConditionalGeneration:
    small = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    vision = CLIPVisionConfig(
        **small, num_hidden_layers=2, image_size=SIDE, patch_size=PATCH, projection_dim=16
    )
    text = LlamaConfig(
        **small,
        num_hidden_layers=2,
        num_key_value_heads=2,
        vocab_size=len(processor.tokenizer),
        pad_token_id=processor.tokenizer.pad_token_id,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=processor.tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    set_seed(0)
    return LlavaForConditionalGeneration(config)


def run(folder: Path, *, ours: bool) -> dict[str, Any]:
    """One epoch: what the collate function was given, and the loss of each step."""
    rows = [json.loads(line) for line in (folder / "talks.jsonl").read_text().splitlines()]
    texts = [part["content"] for row in rows for part in row["messages"]]
    processor = processor_of(texts)
    seen: list[Any] = []

    class Trainer(SFTTrainer):
        """The one method that a user overrides."""

        def get_train_dataloader(self) -> Any:
            if not ours:
                return super().get_train_dataloader()
            return fastload.create_loader(
                folder / "talks.jsonl",
                self.args.train_batch_size,
                collate_fn=self.data_collator,
                num_workers=0,
            )

    columns = {name: [row[name] for row in rows] for name in ("images", "messages")}
    columns["images"] = [[str(folder / name) for name in row["images"]] for row in rows]
    dataset = Dataset.from_dict(columns).cast_column("images", List(Image()))
    trainer = Trainer(
        model_of(processor),
        SFTConfig(
            output_dir=str(folder / "out"),
            per_device_train_batch_size=BATCH,
            train_sampling_strategy="sequential",
            num_train_epochs=1,
            logging_steps=1,
            logging_strategy="steps",
            learning_rate=1e-3,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            max_length=None,
            remove_unused_columns=False,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=dataset,
        processing_class=processor,
    )
    collate = trainer.data_collator

    def noted(samples: list[dict[str, Any]]) -> Any:
        sums = [[int(np.asarray(one).sum()) for one in sample["images"]] for sample in samples]
        seen.append([[sample["messages"] for sample in samples], sums])
        return collate(samples)

    trainer.data_collator = noted
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = torch.cat([one.detach().flatten() for one in trainer.model.parameters()])
    return {
        "losses": losses,
        "seen": seen,
        "steps": trainer.state.global_step,
        "weights": [float(weights.double().sum()), float(weights.double().abs().sum())],
    }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    found = {"theirs": run(place, ours=False), "ours": run(place, ours=True)}
    (place / "found.json").write_text(json.dumps(found))
