"""I-JEPA's pretraining: a crop of each image, and which of its patches the context and the targets
have.

Follows the paper: Assran et al., 2023, "Self-supervised learning from images with a joint-embedding
predictive architecture", section 3 (four targets of 0.15 to 0.2 of the image, of aspect ratios of
0.75 to 1.5; a square context of 0.85 to 1, without what the targets show). What the paper leaves
open is as the authors' code (github.com/facebookresearch/ijepa at 52c1ae9, CC BY-NC 4.0) was seen
to do it when it was run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torchvision.transforms import v2

from fastload.arguments import flag, integer, require
from fastload.errors import ConfigurationError
from fastload.pipelines.normalised import are_numbers, checked_scale, to_floats
from fastload.sampler.nested import Size

Range = tuple[float, float]
Masks = list[torch.Tensor]
_TRIALS = 20
"""Places of a context that are tried before it may keep what one target more shows."""
_STEPS = 1000
"""Of the random number of a size, where the least is looked for."""


def ijepa(crop_size: int = 224, crop_scale: Range = (0.3, 1.0)) -> v2.Compose:
    """A transform of RGB images into float32 (3, `crop_size`, `crop_size`), normalised by
    ImageNet's mean and deviation. `ijepa_masks()` is its `batch_transform`.

    Args:
        crop_size: of the image [pixels].
        crop_scale: the share of the image's area that a crop has.

    Raises:
        ConfigurationError: the size is below 1, or the scale no (low, high) above 0 and at most 1.
    """
    size = integer("crop_size", crop_size, 1)
    scale = checked_scale("crop_scale", crop_scale)
    return v2.Compose([v2.RandomResizedCrop(size, scale=scale), *to_floats()])


def ijepa_masks(
    input_size: int | tuple[int, int] = 224,
    patch_size: int = 16,
    enc_mask_scale: Range = (0.85, 1.0),
    pred_mask_scale: Range = (0.15, 0.2),
    aspect_ratio: Range = (0.75, 1.5),
    nenc: int = 1,
    npred: int = 4,
    min_keep: int = 10,
    *,
    allow_overlap: bool = False,
) -> Callable[..., tuple[list[Any], Masks, Masks]]:
    """The `batch_transform`: of the parts of a batch, such as images and labels, a tuple of the
    list of these, the masks of the contexts and those of the targets: each a list of int64 (B, K),
    numbers of patches, row by row, in order.

    All targets of a batch have one size, and so have all contexts before targets are taken out. K
    is that of the sample with the fewest patches; of others the last are left out.

    Args:
        input_size: side of the images, or (height, width) [pixels].
        patch_size: side of a patch [pixels].
        enc_mask_scale: the share of all patches that a context has.
        pred_mask_scale: the share that a target has.
        aspect_ratio: of targets, height by width.
        nenc: contexts of an image.
        npred: targets of an image.
        min_keep: contexts and targets have more patches than that.
        allow_overlap: whether contexts keep what targets show.

    Raises:
        ConfigurationError: a number is below 1, a range none, an image has fewer than two patches
            one way, or a context or a target could have `min_keep` patches or fewer; and of a batch
            whose images have another size.
    """
    sides = input_size if isinstance(input_size, tuple | list) else (input_size, input_size)
    require("input_size", len(sides) == 2, "a side, or (height, width)", input_size)
    patch = integer("patch_size", patch_size, 1)
    height, width = (integer("input_size", side, 1) // patch for side in sides)
    words = f"at least {2 * patch} pixels, two patches, each way"
    require("input_size", min(height, width) >= 2, words, input_size)
    good = are_numbers(aspect_ratio, 2) and 0 < aspect_ratio[0] <= aspect_ratio[1]
    require("aspect_ratio", good, "(low, high) with 0 < low <= high", aspect_ratio)
    grid, keep = (height, width), integer("min_keep", min_keep, 1)
    context = _Sizes(grid, checked_scale("enc_mask_scale", enc_mask_scale), (1.0, 1.0))
    target = _Sizes(grid, checked_scale("pred_mask_scale", pred_mask_scale), aspect_ratio)
    for name, sizes in (("enc_mask_scale", context), ("pred_mask_scale", target)):
        if sizes.least <= keep:
            raise ConfigurationError(
                f"{name}: some would have {sizes.least} of {height} x {width} patches, and "
                f"min_keep={keep} wants more; give a larger share, or a smaller min_keep."
            )
    counts = integer("nenc", nenc, 1), integer("npred", npred, 1)
    overlap = flag("allow_overlap", allow_overlap)
    return _Masks((sides[0], sides[1]), context, target, counts, keep, overlap)


class _Sizes:
    """Heights and widths of blocks of patches."""

    def __init__(self, grid: Size, scale: Range, ratio: Range) -> None:
        self.grid, self._scale, self._ratio = grid, scale, ratio
        every = {self.at(step / _STEPS) for step in range(_STEPS + 1)}
        self.least = min(height * width for height, width in every)

    def at(self, part: float) -> Size:
        """By a number from 0 to 1, of which both the share and the aspect ratio are functions; a
        block leaves a row and a column free."""
        scale, ratio = (low + part * (high - low) for low, high in (self._scale, self._ratio))
        count = int(self.grid[0] * self.grid[1] * scale)
        height, width = round(math.sqrt(count * ratio)), round(math.sqrt(count / ratio))
        return min(height, self.grid[0] - 1), min(width, self.grid[1] - 1)

    def places(self, size: Size, count: int) -> torch.Tensor:
        """(count, height, width) bool: of each block the patches in it, which are never of the last
        row or column."""
        inside = []
        for length, side in zip(self.grid, size, strict=True):
            start = torch.randint(0, length - side, (count, 1), device="cpu")
            at = torch.arange(length, device="cpu")
            inside.append((at >= start) & (at < start + side))
        return inside[0][:, :, None] & inside[1][:, None, :]


class _Masks:
    """A class, so that it can be pickled."""

    def __init__(
        self,
        sides: Size,
        context: _Sizes,
        target: _Sizes,
        counts: tuple[int, int],
        min_keep: int,
        allow_overlap: bool,
    ) -> None:
        self._sides, self._context, self._target, self._counts = sides, context, target, counts
        self._min_keep, self._allow_overlap = min_keep, allow_overlap

    def __call__(self, *parts: Any) -> tuple[list[Any], Masks, Masks]:
        images, (contexts, targets) = parts[0] if parts else None, self._counts
        if not isinstance(images, torch.Tensor) or images.shape[2:] != self._sides:
            height, width = self._sides
            found = getattr(images, "shape", type(images).__name__)
            raise ConfigurationError(
                f"batch_transform: ijepa_masks is for images of {height} x {width} pixels, the "
                f"first part of a batch, and got {found}; "
                "give it the input_size that the transform makes."
            )
        of_target = self._target.at(float(torch.rand((), device="cpu")))
        of_context = self._context.at(float(torch.rand((), device="cpu")))
        shown = [self._target.places(of_target, len(images)) for _ in range(targets)]
        allowed = [torch.ones_like(shown[0])]  # without the first n targets
        for block in [] if self._allow_overlap else shown:
            allowed.append(allowed[-1] & ~block)
        made = [self._contexts(of_context, allowed) for _ in range(contexts)]
        of_contexts = [_numbers(one).to(images.device) for one in made]
        return [*parts], of_contexts, [_numbers(one).to(images.device) for one in shown]

    def _contexts(self, size: Size, allowed: list[torch.Tensor]) -> torch.Tensor:
        """(B, height, width) bool: of each sample those of a block that are allowed."""
        found = torch.zeros_like(allowed[0])
        left = torch.arange(len(found), device="cpu")
        for among in reversed(allowed):
            for _ in range(_TRIALS):
                blocks = self._context.places(size, len(left)) & among[left]
                enough = blocks.sum((1, 2)) > self._min_keep
                found[left[enough]] = blocks[enough]
                left = left[~enough]
                if not len(left):
                    return found
        raise AssertionError("a block that keeps all of its patches has enough")


def _numbers(masks: torch.Tensor) -> torch.Tensor:
    """(B, K) int64 of (B, height, width) bool."""
    flat = masks.flatten(1)
    least = int(flat.sum(1).min())
    order = torch.argsort(~flat, dim=1, stable=True)
    return order[:, :least].contiguous()
