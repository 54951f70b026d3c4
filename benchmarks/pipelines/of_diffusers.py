"""diffusers' training of Stable Diffusion and SDXL: github.com/huggingface/diffusers as
`diffusers`. The scripts are run, and stopped when they give their data set its transform; models,
and the packages that make them, are stand-ins."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import torch
from PIL import Image

import fastload
from benchmarks.inputs import photographs
from benchmarks.pipelines.classes import numbers_of, plain, tiles_of
from benchmarks.pipelines.fed import fed
from benchmarks.pipelines.originals import module
from benchmarks.pipelines.pipeline import Judgement, Numbers, Pipeline, Setting, Side, Tile
from fastload import pipelines
from fastload.draws import Draws

SIZE = 512
LONGEST = 1024
"""Of the images [pixels]."""
_FEW, _SEED = 64, 3
_HALF = (0.5, 0.5, 0.5)
_ABSENT = (
    "accelerate",
    "accelerate.logging",
    "accelerate.state",
    "accelerate.utils",
    "diffusers",
    "diffusers.optimization",
    "diffusers.training_utils",
    "diffusers.utils",
    "diffusers.utils.hub_utils",
    "diffusers.utils.import_utils",
    "diffusers.utils.torch_utils",
)


class _StoppedError(Exception):
    """The script has its data set, and a transform for it."""


def captions_of(source: Path, work: Path, least: int) -> Path:
    """The photographs in one folder, with a text each in `metadata.jsonl`."""
    found = photographs(source, work, least)
    folder = work / f"captions-{found.folder.parent.name.rpartition('-')[2]}"
    if (folder / "metadata.jsonl").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[Path, Path] = {}
    lines = []
    for number, link in enumerate(sorted(found.folder.glob("*/*"))):
        file, target = link.resolve(), folder / f"{number:06}.jpg"
        if file in made:
            target.symlink_to(made[file].name)
        else:
            made[file] = target
            with Image.open(file) as opened:
                picture = opened.convert("RGB")
                picture.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
                picture.save(target, quality=92)
        lines.append(json.dumps({"file_name": target.name, "text": f"a photograph of {number}"}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


class Tokenizer:
    """A stand-in of CLIP's: letters are tokens."""

    model_max_length = 77

    def __call__(self, texts: list[str], **options: Any) -> Any:
        length = self.model_max_length
        ids = [[ord(letter) for letter in text[:length].ljust(length)] for text in texts]
        return SimpleNamespace(input_ids=torch.tensor(ids))


def original(setting: Setting, script: str, size: int) -> Any:
    """The data set that the script makes its DataLoader of."""

    def stop(dataset: Any, transform: Any) -> NoReturn:
        raise _StoppedError(dataset, transform)

    import datasets
    import transformers

    datasets.disable_progress_bars()
    absent = {name: mock.MagicMock() for name in _ABSENT}
    absent["accelerate"].__version__ = "1.0"
    absent["diffusers.utils"].is_wandb_available = lambda: False
    absent["diffusers.utils.import_utils"].is_torch_npu_available = lambda: False
    cache = setting.data.parent / "datasets"
    words = ["--pretrained_model_name_or_path", "none", "--train_data_dir", str(setting.data)]
    words += ["--resolution", str(size), "--random_flip", "--image_column", "image"]
    words += ["--caption_column", "text", "--output_dir", str(cache), "--cache_dir", str(cache)]
    file = setting.originals / "diffusers/examples/text_to_image" / f"{script}.py"
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, absent))
        found: ModuleType = module(file, script)
        for owner, name, instead in (
            (sys, "argv", [file.name, *words]),
            (datasets.Dataset, "with_transform", stop),
            (torch.optim, "AdamW", mock.MagicMock()),
            (transformers.CLIPTokenizer, "from_pretrained", lambda *_, **__: Tokenizer()),
            (transformers.CLIPTextModel, "from_pretrained", mock.MagicMock()),
            (transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Tokenizer()),
            (transformers.PretrainedConfig, "from_pretrained", mock.MagicMock()),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        if hasattr(found, "import_model_class_from_model_name_or_path"):
            by_name = "import_model_class_from_model_name_or_path"
            stack.enter_context(mock.patch.object(found, by_name, mock.MagicMock()))
        try:
            takes_words = found.main.__code__.co_argcount
            found.main(*([found.parse_args()] if takes_words else []))
        except _StoppedError as stopped:
            dataset, transform = stopped.args
            dataset.set_transform(transform)
            return dataset
    raise SystemExit(f"{file} gave its data set no transform")


def collated(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """As the `collate_fn` of `train_text_to_image.py`, of the other script's columns as well."""
    images = torch.stack([one["pixel_values"] for one in samples])
    batch = {"image": images.to(memory_format=torch.contiguous_format).float()}
    for name in ("original_sizes", "crop_top_lefts"):
        if name in samples[0]:
            batch[name] = torch.tensor([one[name] for one in samples])
    if "input_ids" in samples[0]:
        batch["input_ids"] = torch.stack([one["input_ids"] for one in samples])
    return batch


def tokenized(columns: dict[str, Any]) -> dict[str, Any]:
    """What the script does to texts, for whole batches."""
    texts = columns.pop("text")
    return {**columns, "input_ids": Tokenizer()(texts).input_ids}


def numbers(batch: Any) -> Numbers:
    made = dict(numbers_of([batch["image"]]))
    for name in ("original_sizes", "crop_top_lefts"):
        if name in batch:
            for part, column in zip(("first", "second"), batch[name].T, strict=True):
                made[f"{part} of {name}"] = column.double().numpy()
    if "input_ids" in batch:
        made["tokens"] = batch["input_ids"].double().mean(1).numpy()
    return made


def tiles(batch: Any) -> list[Tile]:
    return tiles_of([batch["image"]], _HALF, _HALF)


@dataclass(frozen=True)
class Script:
    name: str
    ours: Callable[..., Any]
    flips_first: bool

    def theirs(self, setting: Setting) -> Any:
        dataset = original(setting, self.name, setting.size(SIZE))
        return plain(dataset, setting, collate_fn=collated)

    def fastload(self, setting: Setting) -> fastload.Loader:
        texts = not self.flips_first
        return fastload.create_loader(
            setting.data,
            setting.batch_size,
            transform=self.ours(setting.size(SIZE), random_flip=True),
            collate_fn=fastload.CollateColumns(tokenized if texts else dict),
            shuffle=setting.shuffle,
            drop_last=setting.shuffle,
            num_workers=max(1, setting.workers),
            seed=_SEED,
        )

    def fed_numbers(self, draws: Draws, square: bool) -> Iterator[float]:
        """Of the flip, and of the crop, which is not drawn where the image is a square."""
        first, second = draws.uniform(1, 2)[0], draws.uniform(2, 2)[0]
        flip, crop = (first[0], second) if self.flips_first else (second[0], first)
        if self.flips_first:
            yield flip
            if flip < 0.5:
                yield 0.5  # asked for by a flip of probability 1
        if not square:
            yield from crop
        if not self.flips_first:
            yield flip

    def same(self, setting: Setting) -> list[Judgement]:
        dataset, size = original(setting, self.name, setting.size(SIZE)), setting.size(SIZE)
        apart, places, count = 0.0, 0, 0
        with self.fastload(setting) as loader:
            found = list(islice(_each(loader), _FEW))
        for number, ours in enumerate(found):
            draws = Draws(_SEED, 0, np.array([number]))
            with Image.open(setting.data / f"{number:06}.jpg") as picture:
                square = size * max(picture.size) // min(picture.size) == size
            with fed(lambda _, d=draws, s=square: self.fed_numbers(d, s)):  # type: ignore[misc]
                wanted = collated([dataset[number]])
            difference = (ours["image"] - wanted["image"]).abs().mean() * 127.5
            apart, count = max(apart, float(difference)), count + 1
            for name in wanted.keys() - {"image"}:
                places += int((ours[name] != wanted[name]).any())
        return [
            Judgement(f"of {count} with the same numbers, of other values", places, 0.0, False),
            Judgement("mean difference of the worst image, of 255", apart, 1.0, False),
        ]

    def pipeline(self, name: str) -> Pipeline:
        return Pipeline(
            name,
            "diffusers",
            Side(self.theirs, numbers, tiles),
            Side(self.fastload, numbers, tiles),
            batch_size=16,
            bar=2.5,
            same=self.same,
            data=captions_of,
        )


def _each(loader: Any) -> Iterator[dict[str, Any]]:
    for batch in loader:
        for row in range(len(batch["image"])):
            yield {name: column[row : row + 1] for name, column in batch.items()}


PIPELINES = (
    Script("train_text_to_image", pipelines.diffusers_text_to_image, False).pipeline(
        "diffusers_text_to_image"
    ),
    Script("train_text_to_image_sdxl", pipelines.diffusers_sdxl, True).pipeline("diffusers_sdxl"),
)
