"""A transform as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastload.fingerprint import fingerprint_of
from fastload.recipe.lower import Origin, lower
from fastload.recipe.operation import Operation
from fastload.recipe.split import SplitRecipe, opaque_split, split

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """The operations that make a training image out of a source image, in order.

    The position of an operation in `ops` is the stream of its random draws, wherever it runs. Two recipes are equal
    if their operations are.
    """

    ops: tuple[Operation, ...] = ()
    origins: tuple[Origin, ...] = field(default=(), compare=False, repr=False)
    """The transforms that the operations were lowered from, which run where operations cannot; () if made by hand."""

    @classmethod
    def from_transform(cls, transform: Any) -> Recipe:
        """Lower a torchvision transform, v2 or v1, or any callable on an image; None is the empty recipe.

        What has no equivalent operation becomes `Opaque`, with the reason.

        Raises:
            ConfigurationError: something that is not callable, or works on batches (MixUp, CutMix).
        """
        if isinstance(transform, Recipe):
            return transform
        origins = tuple(lower(transform))
        return cls(tuple(op for origin in origins for op in origin.ops), origins)

    @property
    def fingerprint(self) -> str:
        """32 hex digits, equal for equal recipes in any process. Opaque transforms count by their qualified name."""
        return fingerprint_of(*(op.identity for op in self.ops))

    @property
    def is_opaque(self) -> bool:
        """Whether any operation could not be lowered."""
        return any(op.is_opaque for op in self.ops)

    def split(self, fixed_size: tuple[int, int] | None = None) -> SplitRecipe:
        """Say which operation runs where, for a source whose images are all (height, width) = `fixed_size`, or differ.

        Raises:
            ConfigurationError: operations that no image can go through in this order.
            UnsupportedTransformError: a recipe made by hand whose operations cannot all be placed.
        """
        return split(self.ops, self.origins, fixed_size)

    def as_opaque(self, reason: str) -> SplitRecipe:
        """All of it as the user's own transforms, one sample at a time, for what needs finished samples.

        Args:
            reason: why, for messages.
        """
        return opaque_split(self.ops, self.origins, reason)

    def __str__(self) -> str:
        return "\n".join(f"{stream}: {op.describe()}" for stream, op in enumerate(self.ops)) or "(no operation)"
