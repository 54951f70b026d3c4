"""Several views of one image: `fastload.Views`, and the operation that it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fastload.errors import ConfigurationError, counted
from fastload.recipe.lower import lower_all
from fastload.recipe.operation import (
    ImageState,
    NotLowerableError,
    Operation,
    Size,
    register_lowering,
)

__all__ = ["Branches", "Views"]


class Views:
    """Several views of one image, as in SimCLR, MoCo and DINO: a transform each, each with random
    numbers of its own.

        transform = fastload.Views(v2.Compose([...]), v2.Compose([...]))

    As `transform` of a loader (or of the data set), batches hold a list of tensors in place of the
    images: one (B, C, H, W) for each view, which may differ in size. What the views need of a file
    is decoded once. Shared steps may come first, in a Compose that ends with the Views. Called by
    itself it is a transform as any other.
    """

    def __init__(self, *transforms: Any) -> None:
        """
        Args:
            *transforms: one for each view, at least one, each torchvision's or any callable on an
                image; or a list of them. One that comes twice makes two different views.

        Raises:
            ConfigurationError: there is none, or one is not callable.
        """
        if len(transforms) == 1 and isinstance(transforms[0], list | tuple):
            transforms = tuple(transforms[0])
        if not transforms:
            raise ConfigurationError(
                "Views() needs at least one transform: fastload.Views(first, second)."
            )
        for transform in transforms:
            if transform is not None and not callable(transform):
                raise ConfigurationError(
                    f"Views contains {transform!r}, which is not callable; pass transforms."
                )
        self.transforms: tuple[Callable[..., Any] | None, ...] = transforms

    def __call__(self, *inputs: Any) -> Any:
        """A tuple of the views of an image; of an image and a mask, a tuple for each of them."""
        views = [
            (inputs if len(inputs) > 1 else inputs[0]) if t is None else t(*inputs)
            for t in self.transforms
        ]
        return tuple(views) if len(inputs) == 1 else tuple(zip(*views, strict=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.transforms))})"


@dataclass(frozen=True)
class Branches(Operation):
    """The last operation of a recipe that makes several images of one. The streams of its
    operations count on from its own position, branch by branch."""

    makes_views = True

    branches: tuple[tuple[Operation, ...], ...]

    @property
    def inner(self) -> tuple[Operation, ...]:
        return tuple(op for branch in self.branches for op in branch)

    @property
    def is_opaque(self) -> bool:  # type: ignore[override]
        return any(op.is_opaque for op in self.inner)

    def size_after(self, size: Size | None) -> Size | None:
        return None

    def each_through(self, ops: tuple[Operation, ...]) -> Branches:
        return Branches(tuple((*branch, *ops) for branch in self.branches))

    @property
    def identity(self) -> str:
        branches = (", ".join(op.identity for op in branch) for branch in self.branches)
        # Fingerprints of saved states hold this name.
        return f"Fork({'; '.join(branches)})"

    def describe(self) -> str:
        return counted(len(self.branches), "view")

    def paths(self, before: tuple[Operation, ...]) -> list[list[tuple[int, Operation]]]:
        shared, stream = list(enumerate(before)), len(before)
        result = []
        for branch in self.branches:
            result.append([*shared, *enumerate(branch, stream)])
            stream += len(branch)
        return result


def _views(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    origins = [lower_all(inner, replace(image)) for inner in transform.transforms]
    branches = tuple(tuple(op for origin in branch for op in origin.ops) for branch in origins)
    if any(isinstance(op, Branches) for branch in branches for op in branch):
        raise NotLowerableError("Views within Views; list all of them in one")
    image.forked = True
    return (Branches(branches),)


register_lowering("a fork", (Views,), _views)
