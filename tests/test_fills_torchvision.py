"""Fills and dtypes of images and of masks, as torchvision has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload.errors import ConfigurationError
from tests.images import photo

KINDS: dict[str, list[Any]] = {
    "PIL": [],
    "Image": [v2.ToImage()],
    "Tensor": [v2.PILToTensor()],
    "wrapped": [v2.PILToTensor(), v2.ToImage()],
    "back": [v2.ToImage(), v2.ToPILImage()],
}
FILLS: dict[str, Any] = {
    "each": {Image.Image: 10, tv_tensors.Image: 20, torch.Tensor: 30, tv_tensors.Mask: 40},
    "others": {tv_tensors.Image: 20, "others": 7},
    "image": {tv_tensors.Image: 20},
    "tensor": {torch.Tensor: 20, tv_tensors.Mask: 3},
    "pillow": {Image.Image: 20, "others": 3},
}


def by_torchvision(transform: Any) -> tuple[torch.Tensor, torch.Tensor]:
    image, mask = v2.Compose(transform)(Image.fromarray(photo(40, 50)), a_mask())
    return v2.functional.pil_to_tensor(image) if isinstance(image, Image.Image) else image, mask


def a_mask() -> Any:
    return tv_tensors.Mask(torch.from_numpy(photo(40, 50, seed=1)[..., 0].copy())[None])


def first_batch(chain: list[Any]) -> Any:
    source = {"image": photo(40, 50)[None], "mask": a_mask().numpy()}
    with fastload.create_loader(
        source, 1, transform=v2.Compose(chain), shuffle=False, num_workers=1
    ) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_dict_is_read_by_the_exact_type_of_images(kind: str, fill: str) -> None:
    chain = [*KINDS[kind], v2.Pad(3, fill=FILLS[fill])]
    image, mask = by_torchvision(chain)
    batch = first_batch(chain)
    assert torch.equal(batch["image"][0], image.as_subclass(torch.Tensor))
    assert torch.equal(batch["mask"][0].reshape(mask.shape), mask.as_subclass(torch.Tensor))


def test_masks_are_left_alone_after_they_were_made_plain_tensors() -> None:
    chain = [v2.ToImage(), v2.ToPureTensor(), v2.RandomHorizontalFlip(1.0)]
    image, mask = by_torchvision(chain)
    batch = first_batch(chain)
    assert torch.equal(batch["image"][0], image)
    assert torch.equal(batch["mask"][0].reshape(mask.shape), mask)
    assert torch.equal(mask, a_mask().as_subclass(torch.Tensor))


WARPS = {
    "rotation": v2.RandomRotation,
    "affine": v2.RandomAffine,
}


@pytest.mark.parametrize("fill", [30.2, 30.5, 30.7, 31.5])
@pytest.mark.parametrize("kind", ["PIL", "Image", "Tensor"])
@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("batched", [False, True])
def test_warps_round_fractions(warp: str, kind: str, fill: float, batched: bool) -> None:
    chain = [*KINDS[kind], WARPS[warp]((90, 90), fill=fill)]
    if batched:
        chain.insert(0, v2.CenterCrop(30))
    image, mask = by_torchvision(chain)
    batch = first_batch(chain)
    corner = image.as_subclass(torch.Tensor)[:, 0, 0]
    assert (batch["image"][0, :, 0, 0] == corner).all()
    assert (batch["mask"][0].flatten()[0] == mask.flatten()[0]).all()


def test_a_fraction_that_pixels_go_over_into_is_refused() -> None:
    chain = [
        v2.ToImage(),
        v2.RandomRotation(30, fill=30.7, interpolation=v2.InterpolationMode.BILINEAR),
    ]
    with pytest.raises(ConfigurationError, match=r"give fill=\(31.0,\)"):
        first_batch(chain)


def test_convert_image_dtype_is_refused_with_masks() -> None:
    mask = a_mask()
    assert v2.ConvertImageDtype(torch.float32)(mask).dtype == torch.float32
    with pytest.raises(
        ConfigurationError, match="makes masks torch.float32, too; after v2.ToImage\\(\\) give"
    ):
        first_batch([v2.ToImage(), v2.ConvertImageDtype(torch.float32), v2.Normalize([0.5], [1])])
    instead = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)
    batch = first_batch([v2.ToImage(), instead])
    assert (batch["image"].dtype, batch["mask"].dtype) == (torch.float32, torch.uint8)
