"""Which pixels of each image are padding, as a column of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastload.errors import ConfigurationError
from fastload.recipe.columns import ColumnOperation
from fastload.recipe.operation import ImageState, register
from fastload.recipe.transforms import ForLoaders


class PaddingMask(ForLoaders):
    """Adds a column to a batch, (B, H, W) bool: True where a pixel shows padding, and no part of
    the image. Images must come out in one size.

    Anywhere in a Compose that a loader is given; called by itself it raises, as it does not see
    what the transforms before it did.
    """

    works_on = "makes a column of the batches of a loader"

    def __init__(self, name: str = "padding_mask") -> None:
        """
        Args:
            name: of the column.

        Raises:
            ConfigurationError: it is none.
        """
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"PaddingMask({name!r}): give the name of a column.")
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


@register
@dataclass(frozen=True)
class AddPaddingMask(ColumnOperation):
    """See `PaddingMask`."""

    transforms = (PaddingMask,)
    asks = "PaddingMask"

    name: str = "padding_mask"

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> AddPaddingMask:
        return cls(transform.name)

    @property
    def adds_columns(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        return ((self.name, "padding_mask"),)
