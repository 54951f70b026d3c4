"""FixMatch's views of images without labels, a weak and a strong one, and its images with labels.

Follows `TransformFixMatch` of `dataset/cifar.py`, and `dataset/randaugment.py`, of
github.com/kekmodel/FixMatch-pytorch (MIT) at 040be3b. Sohn et al., 2020, "FixMatch: Simplifying
semi-supervised learning with consistency and confidence".
"""

from __future__ import annotations

from torchvision.transforms import v2

from fastload.arguments import integer
from fastload.pipelines.normalised import Floats, to_floats
from fastload.recipe.fixmatch import FixMatchAugment
from fastload.recipe.views import Views

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)

ORIGINALS = {"dataset.cifar.TransformFixMatch": "fixmatch"}


def fixmatch(
    mean: Floats = CIFAR10_MEAN,
    std: Floats = CIFAR10_STD,
    *,
    size: int = 32,
    n: int = 2,
    m: int = 10,
) -> Views:
    """A transform of RGB images into a weak and a strong view, float32 (3, `size`, `size`),
    normalised. A batch holds a list of two (B, 3, H, W) tensors.

    Args:
        mean: of the pixels, 0..1, by channel. The original's of CIFAR-100 is (0.5071, 0.4867,
            0.4408).
        std: their deviation; of CIFAR-100 (0.2675, 0.2565, 0.2761).
        size: of a view [pixels]; the original has images of 32 and views of 32.
        n: how many of the 14 operations the strong view goes through, each with probability 0.5.
        m: below this, and from 1 on, is their magnitude, a whole number; 10 is full strength.

    Raises:
        ConfigurationError: the size is below 9 (an eighth of it is mirrored at each border), `n`
            below 1, `m` not from 2 to 10, or `mean` and `std` are not three numbers each.
    """
    last = to_floats(mean, std)
    weak = _moved(size)
    return Views(v2.Compose([*weak, *last]), v2.Compose([*weak, FixMatchAugment(n, m), *last]))


def fixmatch_labeled(
    mean: Floats = CIFAR10_MEAN, std: Floats = CIFAR10_STD, *, size: int = 32
) -> v2.Compose:
    """The transform of the images that have labels: the weak view alone.

    Args:
        mean: of the pixels, 0..1, by channel.
        std: their deviation.
        size: of the image [pixels].

    Raises:
        ConfigurationError: as of `fixmatch`.
    """
    return v2.Compose([*_moved(size), *to_floats(mean, std)])


def _moved(size: int) -> tuple[v2.Transform, ...]:
    padding = int(integer("size", size, 9) * 0.125)
    return v2.RandomHorizontalFlip(), v2.RandomCrop(size, padding, padding_mode="reflect")
