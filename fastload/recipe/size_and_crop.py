"""The sizes that images had, and where they were cut, as columns of a batch: what SDXL is
conditioned on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastload.errors import ConfigurationError
from fastload.recipe.columns import ColumnOperation
from fastload.recipe.operation import ImageState, register
from fastload.recipe.transforms import ForLoaders


class SizeAndCrop(ForLoaders):
    """Adds two columns to a batch, each (B, 2) int64: the height and the width that an image had,
    and the top and the left of what is shown of it after it was resized, and mirrored [pixels].
    With `fastload.Views` each is a list, of a tensor for each view.

    Anywhere in a Compose that a loader is given; called by itself it raises, as it does not see
    what the transforms before it did.
    """

    works_on = "makes columns of the batches of a loader"

    def __init__(self, sizes: str = "original_sizes", corners: str = "crop_top_lefts") -> None:
        """
        Args:
            sizes, corners: the names of the columns.

        Raises:
            ConfigurationError: they are no two names.
        """
        names = sizes, corners
        if not all(isinstance(name, str) and name for name in names) or sizes == corners:
            raise ConfigurationError(
                f"SizeAndCrop(sizes={sizes!r}, corners={corners!r}): give two names."
            )
        self.sizes, self.corners = names

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sizes!r}, {self.corners!r})"


@register
@dataclass(frozen=True)
class AddSizeAndCrop(ColumnOperation):
    """See `SizeAndCrop`."""

    transforms = (SizeAndCrop,)
    asks = "SizeAndCrop"

    sizes: str = "original_sizes"
    corners: str = "crop_top_lefts"

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> AddSizeAndCrop:
        return cls(transform.sizes, transform.corners)

    @property
    def adds_columns(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]
        return (self.sizes, "original_size"), (self.corners, "crop_corner")
