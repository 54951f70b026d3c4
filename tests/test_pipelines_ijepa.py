"""I-JEPA's masks: what the paper says of them, and what the original was seen to do."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload import pipelines
from fastload.errors import ConfigurationError

SIDE = 14


def drawn(count: int = 64, seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    images, labels = torch.zeros(1).expand(count, 3, 224, 224), torch.arange(count)
    parts, contexts, targets = pipelines.ijepa_masks(**settings)(images, labels)
    assert parts[0] is images
    assert parts[1] is labels
    return contexts, targets


def block(mask: torch.Tensor) -> tuple[int, int, int, int]:
    """First row and column, height and width of a target, which has all patches of a rectangle."""
    rows, columns = mask // SIDE, mask % SIDE
    top, left = int(rows.min()), int(columns.min())
    height, width = int(rows.max()) - top + 1, int(columns.max()) - left + 1
    wanted = [(top + y) * SIDE + left + x for y in range(height) for x in range(width)]
    assert mask.tolist() == wanted
    return top, left, height, width


def test_contexts_are_a_block_without_the_targets_and_cut_to_the_least() -> None:
    for seed in range(3):
        (context,), targets = drawn(seed=seed)
        assert context.dtype == torch.int64
        assert [mask.shape for mask in targets] == [targets[0].shape] * 4
        sizes = {block(row)[2:] for mask in targets for row in mask}
        assert len(sizes) == 1
        lengths = []
        for number, row in enumerate(context):
            taken = {one for mask in targets for one in mask[number].tolist()}
            left = [y * SIDE + x for y in range(13) for x in range(13)]
            left = [patch for patch in left if patch not in taken]
            assert row.tolist() == left[: len(row)]
            lengths.append(len(left))
        assert min(lengths) == context.shape[1] > 10


@pytest.mark.whole
def test_targets_have_the_sizes_and_places_of_the_original() -> None:
    """Of its sizes at 14 x 14 patches, which it was seen to have, and no others; and never in the
    last row or column."""
    tops, sizes = Counter[int](), Counter[tuple[int, int]]()
    for seed in range(300):
        _, targets = drawn(4, seed)
        top, left, height, width = block(targets[0][0])
        assert top + height < SIDE
        assert left + width < SIDE
        tops[top] += 1
        sizes[height, width] += 1
    assert set(sizes) == {(5, 6), (6, 6), (6, 5), (7, 5), (8, 5)}
    shares = [sizes[size] / 300 for size in ((7, 5), (5, 6), (6, 6), (6, 5), (8, 5))]
    np.testing.assert_allclose(shares, [0.37, 0.27, 0.19, 0.13, 0.04], atol=0.08)
    assert set(tops) == set(range(9))


def test_overlaps_further_contexts_and_other_sides() -> None:
    contexts, _ = drawn(allow_overlap=True)
    assert contexts[0].shape == (64, 13 * 13)
    contexts, targets = drawn(nenc=2, npred=3, enc_mask_scale=(0.5, 0.6))
    assert len(contexts) == 2
    assert len(targets) == 3
    assert not torch.equal(*contexts[:2]) or contexts[0].shape != contexts[1].shape
    torch.manual_seed(0)
    masks = pipelines.ijepa_masks((96, 160), 8)
    _, (context,), _ = masks(torch.zeros(5, 3, 96, 160))
    assert int(context.max()) < 12 * 20


def test_contexts_keep_what_targets_show_where_too_little_would_be_left() -> None:
    """Of a block of 4 x 4, with six targets."""
    settings = {"enc_mask_scale": (0.1, 0.1), "npred": 6, "min_keep": 11}
    overlaps = 0
    for seed in range(5):
        (context,), targets = drawn(32, seed, **settings)
        assert context.shape[1] > 11
        for number, row in enumerate(context):
            taken = {one for mask in targets for one in mask[number].tolist()}
            overlaps += bool(taken & set(row.tolist()))
    assert overlaps > 0


def test_a_loader_gives_the_same_masks_at_the_same_place() -> None:
    images = np.random.default_rng(0).integers(0, 256, (8, 40, 60, 3), dtype=np.uint8)
    made = []
    for _ in range(2):
        with fastload.create_loader(
            (images, np.arange(8)),
            4,
            transform=pipelines.ijepa(32),
            batch_transform=pickle.loads(pickle.dumps(pipelines.ijepa_masks(32, 2))),
            seed=3,
        ) as loader:
            made.append(list(loader))
    (first, second), again = made
    (pixels, labels), contexts, targets = first
    assert pixels.shape == (4, 3, 32, 32)
    assert labels.tolist() == [0, 1, 2, 3]
    assert len(contexts) == 1
    assert len(targets) == 4
    assert torch.equal(targets[0], again[0][2][0])
    assert not torch.equal(targets[0][:, :1], second[2][0][:, :1])


@pytest.mark.parametrize("parts", [(), ([1, 2],), (torch.zeros(2, 3, 160, 224),)])
def test_batches_of_other_images_are_refused(parts: Any) -> None:
    with pytest.raises(ConfigurationError, match="is for images of 224 x 224 pixels"):
        pipelines.ijepa_masks()(*parts)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pipelines.ijepa(0), "crop_size: must be an int of at least 1"),
        (lambda: pipelines.ijepa(crop_scale=(0.5, 0.3)), "crop_scale: must be"),
        (lambda: pipelines.ijepa_masks(224, 128), "input_size: must be at least 256 pixels"),
        (lambda: pipelines.ijepa_masks((1, 2, 3)), "input_size: must be a side, or"),
        (lambda: pipelines.ijepa_masks(224.0), "input_size: must be an int"),  # type: ignore[arg-type]
        (lambda: pipelines.ijepa_masks(aspect_ratio=(0, 1)), "aspect_ratio: must be"),
        (lambda: pipelines.ijepa_masks(nenc=0), "nenc: must be an int of at least 1"),
        (lambda: pipelines.ijepa_masks(96), "pred_mask_scale: some would have .* of 6 x 6 patches"),
        (lambda: pipelines.ijepa_masks(enc_mask_scale=(0.01, 1)), "enc_mask_scale: some would"),
        (lambda: pipelines.ijepa_masks(mask_ratio=0.75), "there is no argument 'mask_ratio'"),
    ],
)
def test_what_the_original_could_not_do_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
