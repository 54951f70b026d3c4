"""Transforms of Hugging Face's data sets: batches are those of a DataLoader over the same data set,
whether their functions are known or run as they are written."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from tests import images

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")

LABELS = [0, 1, 1, 0, 1, 0]
MADE = v2.Compose([v2.Resize((16, 12)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
ARGS = Namespace(image="image", label="label", number=3)


def dataset_of(transform: Any, *, texts: bool = False, **more: Any) -> Any:
    photos = [images.jpeg(images.photo(20 + row, 30, seed=row)) for row in range(6)]
    columns: dict[str, Any] = {"image": [{"bytes": one, "path": None} for one in photos]}
    features: dict[str, Any] = {"image": datasets.Image()}
    columns |= {"label": LABELS} | ({"text": list("abcdef")} if texts else {})
    features |= {"label": datasets.ClassLabel(names=["cat", "dog"])}
    features |= {"text": datasets.Value("string")} if texts else {}
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    return made.with_transform(transform, **more)


def in_place(examples: Any) -> Any:
    """As in the manual of `datasets`."""
    examples["image"] = [MADE(image.convert("RGB")) for image in examples["image"]]
    return examples


def beside(examples: Any) -> Any:
    examples["pixel_values"] = [MADE(x.convert("RGB")) for x in examples["image"]]
    return examples


def moved(examples: Any) -> Any:
    examples["pixel_values"] = [MADE(img.convert("RGB")) for img in examples["image"]]
    del examples["image"]
    return examples


def popped(examples: Any) -> Any:
    examples["pixel_values"] = [MADE(x.convert("RGB")) for x in examples.pop("image")]
    return examples


def alone(examples: Any) -> Any:
    pictures = [MADE(image.convert("RGB")) for image in examples["image"]]
    return {"input": pictures}


def in_two_steps(examples: Any) -> Any:
    pictures = [image.convert("RGB") for image in examples[ARGS.image]]
    examples["image"] = [MADE(image) for image in pictures]
    return examples


def stacked(examples: Any) -> Any:
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    labels = torch.tensor([example["label"] for example in examples])
    return {"pixel_values": pixel_values, "labels": labels}


def stacked_at_once(batch: Any) -> Any:
    return {
        "x": torch.stack([x["pixel_values"] for x in batch]),
        "y": torch.tensor([x[ARGS.label] for x in batch]),
    }


def of_a_script() -> tuple[Any, Any]:
    """As in transformers' run_image_classification.py, where all is within `main`."""
    _train_transforms = v1.Compose([v1.Resize((16, 12)), v1.ToTensor()])
    data_args = Namespace(image_column_name="image", label_column_name="label")

    def train_transforms(example_batch: Any) -> Any:
        """Apply _train_transforms across a batch."""
        example_batch["pixel_values"] = [
            _train_transforms(pil_img.convert("RGB"))
            for pil_img in example_batch[data_args.image_column_name]
        ]
        return example_batch

    def collate_fn(examples: Any) -> Any:
        pixel_values = torch.stack([example["pixel_values"] for example in examples])
        labels = torch.tensor([example[data_args.label_column_name] for example in examples])
        return {"pixel_values": pixel_values, "labels": labels}

    return train_transforms, collate_fn


def halved(examples: Any) -> Any:
    examples["image"] = [MADE(image.convert("RGB")) / 2 for image in examples["image"]]
    return examples


def grey(examples: Any) -> Any:
    examples["image"] = [MADE(image.convert("L")) for image in examples["image"]]
    return examples


def with_more(examples: Any) -> Any:
    examples["image"] = [MADE(image.convert("RGB")) for image in examples["image"]]
    examples["twice"] = [2 * label for label in examples["label"]]
    return examples


def noisy(examples: Any) -> Any:
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    labels = torch.tensor([example["label"] for example in examples])
    return {"pixel_values": pixel_values + 1, "labels": labels}


def collator(**more: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="pip install .[integrations]")
    return transformers.DefaultDataCollator(**more)


KNOWN = {
    "the manual": lambda: (dataset_of(in_place), None),
    "with a text": lambda: (dataset_of(in_place, texts=True), None),
    "some columns": lambda: (dataset_of(in_place, columns=["image"]), None),
    "moved": lambda: (dataset_of(moved), None),
    "popped": lambda: (dataset_of(popped), None),
    "alone": lambda: (dataset_of(alone), None),
    "two steps": lambda: (dataset_of(in_two_steps), None),
    "stacked": lambda: (dataset_of(beside, texts=True), stacked),
    "stacked at once": lambda: (dataset_of(moved), stacked_at_once),
    "a script": lambda: (dataset_of(of_a_script()[0]), of_a_script()[1]),
    "transformers": lambda: (dataset_of(moved, texts=True), collator()),
}
AS_WRITTEN = {
    "a factor": lambda: (dataset_of(halved), None),
    "grey": lambda: (dataset_of(grey), None),
    "another column": lambda: (dataset_of(with_more), None),
    "all columns": lambda: (dataset_of(alone, columns=["image"], output_all_columns=True), None),
    "another sum": lambda: (dataset_of(beside), noisy),
    "numpy": lambda: (dataset_of(moved), collator(return_tensors="np")),
}


def assert_equal(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    assert list(found) == list(wanted)
    for key, values in wanted.items():
        assert type(found[key]) is type(values)
        if isinstance(values, torch.Tensor) and values.is_floating_point():
            # 2 of 255: see `Tolerance`
            torch.testing.assert_close(found[key], values, rtol=0, atol=2.01 / 255)
        elif isinstance(values, torch.Tensor):
            assert found[key].dtype == values.dtype
            assert torch.equal(found[key], values)
        else:
            assert repr(found[key]) == repr(values)


SLOW = ("numpy", "transformers")
"""They import transformers."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in (*KNOWN, *AS_WRITTEN)
    ],
)
def test_batches_are_those_of_the_dataloader(name: str) -> None:
    dataset, collate_fn = (KNOWN | AS_WRITTEN)[name]()
    existing = DataLoader(dataset, batch_size=4, collate_fn=collate_fn)
    with fastload.from_dataloader(existing) as loader:
        assert ("done without it" in loader.explain()) == (name in KNOWN)
        for found, wanted in zip(loader, existing, strict=True):
            assert_equal(found, wanted)


def test_create_loader_reads_it_without_its_code_too() -> None:
    with fastload.create_loader(dataset_of(in_place), batch_size=4) as loader:
        assert "done without it" in loader.explain()
        assert_equal(next(iter(loader)), next(iter(DataLoader(dataset_of(in_place), 4))))


def assert_the_users_error(existing: Any, error: type[Exception], words: str) -> None:
    for loader in (existing, fastload.from_dataloader(existing)):
        with pytest.raises(error, match=words):
            next(iter(loader))


def test_an_image_that_no_batch_can_hold_is_the_users_error() -> None:
    assert_the_users_error(DataLoader(dataset_of(beside), batch_size=4), TypeError, "PIL")


def test_views_that_a_function_cannot_stack_are_the_users_error() -> None:
    crops = v2.Compose([MADE, v2.FiveCrop(8)])

    def transform(examples: Any) -> Any:
        examples["pixel_values"] = [crops(x.convert("RGB")) for x in examples["image"]]
        return examples

    existing = DataLoader(dataset_of(transform), batch_size=4, collate_fn=stacked)
    assert_the_users_error(existing, TypeError, "got tuple")


@pytest.mark.slow
def test_a_label_that_is_a_text_is_the_users_error() -> None:
    plain = dataset_of(moved, texts=True).remove_columns("label")
    dataset = plain.rename_column("text", "label").with_transform(moved)
    existing = DataLoader(dataset, batch_size=4, collate_fn=collator())
    assert_the_users_error(existing, ValueError, "'str'")


def test_another_transform_counts_from_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of(in_place)
    existing = DataLoader(dataset, batch_size=4)
    with fastload.from_dataloader(existing) as loader:
        first = next(iter(loader))
        flipped = v2.Compose([v2.RandomHorizontalFlip(1.0), MADE])
        monkeypatch.setitem(globals(), "MADE", flipped)  # as a cell of a notebook that runs again
        second = next(iter(loader))
        assert_equal(second, next(iter(existing)))
        assert_equal({"x": second["image"].flip(3)}, {"x": first["image"]})
        dataset.set_transform(moved)
        assert list(next(iter(loader))) == ["label", "pixel_values"]
        monkeypatch.setattr(ARGS, "label", "pixel_values")
        dataset.set_transform(halved)
        assert_equal(next(iter(loader)), next(iter(existing)))


def test_another_key_of_the_labels_counts_from_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    existing = DataLoader(dataset_of(moved), batch_size=4, collate_fn=stacked_at_once)
    with fastload.from_dataloader(existing) as loader:
        assert next(iter(loader))["y"].tolist() == LABELS[:4]
        monkeypatch.setattr(ARGS, "label", "no such column")
        with pytest.raises(KeyError, match="no such column"):
            next(iter(loader))
