"""What may be asked of a backend beyond reading rows, cutting images and resizing them once: one
table, a row a need.

A row says what the need is, when it is there (by source, split recipe and arguments), which
argument asks for it, and in which words it is refused. Asked by `backend="auto"`, by each refusal,
by `explain()`, by the manual's page of backends, and inside a backend by what makes the images. To
add one: a field of `Abilities`, a row of `NEEDS`, and who of ours can do it (`HOST`, `CORE`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fastload.errors import ConfigurationError, FastloadError, UnsupportedTransformError, counted
from fastload.recipe import SplitRecipe
from fastload.recipe.operation import qualified_name
from fastload.sources.base import Source


class Asked(Protocol):
    """What batches are to be made of: a `Workload` or a `Context`."""

    @property
    def source(self) -> Source: ...

    @property
    def recipe(self) -> SplitRecipe: ...

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any] | None: ...

    @property
    def padded(self) -> bool: ...


@dataclass(frozen=True)
class Abilities:
    """What a backend, or a part of one, can do. It is not given work that it does not name here."""

    runs_opaque: bool = False
    """Whether it runs Python on single samples: opaque transforms, a Dataset's own code, collate
    functions."""
    runs_datasets: bool = False
    """Whether it serves samples that a Dataset's own Python code makes; so does what
    `runs_opaque`."""
    views: bool = False
    """Whether it makes several views of an image: `recipe.geometries`, each into
    a column of its own (`Context.outputs`)."""
    moves_columns: bool = False
    """Whether it moves the columns of `source.moved` with the images, by `recipe.points`."""
    draws_masks: bool = False
    """Whether it puts masks in the place of the shapes of objects (columns whose kind is
    `drawn`)."""
    resamples_again: bool = False
    """Whether it makes what a `Geometry` has `later`: warps, a second resampling. A backend that
    renders by `fastload.render.host.render_row` does."""
    colours_images: bool = False
    """Whether it does what a `Geometry` has for `colour`. A backend that renders by
    `fastload.render.host.render_row` does."""
    joins_images: bool = False
    """Whether it makes samples of several images of the source (`recipe.composite`)."""
    pads_images: bool = False
    """Whether it pads images of several sizes to the largest of a batch where `Context.padded` asks
    for it, and adds the column `SIZES`. What the padding holds is undefined: the form of the batch
    leaves it out, or clears it."""
    one_channel: bool = False
    """Whether it serves grey images as they are stored, with one channel (`mode="unchanged"`); so
    does what is `deep`."""
    sizes_batches: bool = False
    """Whether it makes the images of each batch in the size that its draws say, by
    `recipe.of(draws)`."""
    deep: bool = False
    """Whether it serves images that are not in the usual format: of more than 8 bits, or grey with
    one channel (`mode="unchanged"`)."""


HOST = Abilities(
    views=True,
    moves_columns=True,
    draws_masks=True,
    resamples_again=True,
    colours_images=True,
    joins_images=True,
    pads_images=True,
    sizes_batches=True,
    deep=True,
)
"""Of the code that the built-in backends of the host share (`fastload.backends.rows`)."""
CORE = Abilities(
    views=True,
    moves_columns=True,
    draws_masks=True,
    resamples_again=True,
    colours_images=True,
    sizes_batches=True,
)
"""Of the native core, of samples that are one image each."""


@dataclass(frozen=True)
class Need:
    """A row of the table."""

    what: str
    """For the manual: "several views of an image"."""
    argument: str
    """The one that asks for it."""
    task: Callable[[Asked], str]
    """What is to be done, after "it can" or "it cannot": "make 2 views of each image". Empty where
    it is not asked for."""
    abilities: tuple[str, ...]
    """The fields of `Abilities` of which one does it."""
    remedy: str = ""
    """What to do to keep the backend."""
    error: type[FastloadError] = ConfigurationError
    in_python: bool = False
    """Whether it is to run Python on single samples."""

    def is_met(self, can: Abilities) -> bool:
        return any(getattr(can, ability) for ability in self.abilities)

    def refusal(self, task: str, backend: str, others: Sequence[str]) -> FastloadError:
        """For a backend that cannot do it; `others` can."""
        remedies = ["use backend=" + " or ".join(map(repr, others))] if others else []
        remedies += [self.remedy] if self.remedy else []
        words = f"{self.argument}: backend {backend!r} cannot {task}"
        return self.error(f"{words}; {', or '.join(remedies)}." if remedies else f"{words}.")


def _collate_fn(asked: Asked) -> str:
    if asked.collate_fn is None:
        return ""
    return f"give single samples to {qualified_name(asked.collate_fn)}"


def _opaque(asked: Asked) -> str:
    if asked.recipe.opaque is None or asked.collate_fn is not None:
        return ""
    return f"run {' and '.join(asked.recipe.reasons)}, in Python on single samples"


def _dataset(asked: Asked) -> str:
    column = next(iter(asked.source.objects.values()), None)
    if column is None:
        return ""
    return f"run the Python code of {column.producer}, which makes the samples"


def _views(asked: Asked) -> str:
    if not asked.recipe.several_views:
        return ""
    return f"make {counted(len(asked.recipe.geometries), 'view')} of each image"


def _moved(asked: Asked) -> str:
    if not (asked.source.moved and asked.recipe.moves_pixels):
        return ""
    return f"move {', '.join(map(repr, asked.source.moved))} with the images of {asked.source.name}"


def _drawn(asked: Asked) -> str:
    drawn = asked.source.drawn
    return f"draw the masks of {asked.source.name} ({drawn[0]!r})" if drawn else ""


def _again(asked: Asked) -> str:
    return "warp images or resample them twice" if asked.recipe.resamples_again else ""


def _colour(asked: Asked) -> str:
    if not asked.recipe.colours_images:
        return ""
    return "change the colours of images before their geometry"


def _several(asked: Asked) -> str:
    most = asked.recipe.composite.most
    return "" if most == 1 else f"make a sample of up to {counted(most, 'image')}"


def _padded(asked: Asked) -> str:
    return "pad images of several sizes to the largest of a batch" if asked.padded else ""


def _sized(asked: Asked) -> str:
    count = len(asked.recipe.sized)
    return f"make each batch in one of {counted(count, 'size')}" if count else ""


def _stored(asked: Asked, *, deep: bool) -> str:
    for name, column in asked.source.images.items():
        if not column.usual_format and deep == (column.dtype != np.uint8):
            what = f"{column.dtype} pixels" if deep else "one channel"
            return f"serve {name!r} of {asked.source.name} as it is stored, with {what}"
    return ""


def _one_channel(asked: Asked) -> str:
    return _stored(asked, deep=False)


def _deep(asked: Asked) -> str:
    return _stored(asked, deep=True)


NEEDS: tuple[Need, ...] = (
    Need(
        "a `collate_fn`, which takes single samples",
        "collate_fn",
        _collate_fn,
        ("runs_opaque",),
        "leave collate_fn out",
        in_python=True,
    ),
    Need(
        "transforms that run in Python, one sample at a time",
        "transform",
        _opaque,
        ("runs_opaque",),
        "leave the transform out",
        UnsupportedTransformError,
        in_python=True,
    ),
    Need(
        "samples that a Dataset's own Python code makes",
        "source",
        _dataset,
        ("runs_opaque", "runs_datasets"),
        in_python=True,
    ),
    Need(
        "several views of an image (`fastload.Views`)",
        "transform",
        _views,
        ("views",),
        "leave Views out",
    ),
    Need(
        "boxes, keypoints and the like that move with the images",
        "transform",
        _moved,
        ("moves_columns",),
        "leave what moves the images out",
    ),
    Need(
        "masks of objects (`masks=True`)",
        "masks",
        _drawn,
        ("draws_masks",),
        "leave masks out",
    ),
    Need(
        "warps, and images that are resampled twice",
        "transform",
        _again,
        ("resamples_again",),
        "give it one resize and no warp",
    ),
    Need(
        "colour before the geometry",
        "transform",
        _colour,
        ("colours_images",),
        "put colour after the crops and resizes",
    ),
    Need(
        "samples of several images (`fastload.Mosaic`, `MixUp`, `CutMix`, `CopyPaste`)",
        "transform",
        _several,
        ("joins_images",),
        "leave Mosaic and the like out",
    ),
    Need(
        'images of several sizes in a batch (`collate_fn="detr"`, `"torchvision"`; patches)',
        "transform",
        _padded,
        ("pads_images",),
        "add a Letterbox, a Resize or a crop to a fixed (height, width) to transform",
    ),
    Need(
        "a size for each batch (`order=fastload.Buckets(...)`, `MultiScale`, `Progressive`)",
        "order",
        _sized,
        ("sizes_batches",),
        "leave it out",
    ),
    Need(
        'grey images with one channel (`mode="unchanged"`)',
        "mode",
        _one_channel,
        ("one_channel", "deep"),
        "leave mode out",
    ),
    Need(
        'images of more than 8 bits (`mode="unchanged"`)',
        "mode",
        _deep,
        ("deep",),
        "convert them to 8 bits",
    ),
)
"""In the order in which they are refused."""


def needs_in(asked: Asked) -> dict[Need, str]:
    """The needs that are there, and of each what is to be done (`Need.task`)."""
    tasks = ((need, need.task(asked)) for need in NEEDS)
    return {need: task for need, task in tasks if task}


def lacking(can: Abilities, asked: Asked) -> dict[Need, str]:
    """Those of `needs_in` that are not met."""
    return {need: task for need, task in needs_in(asked).items() if not need.is_met(can)}
