"""What columns of objects ask of a Loader: what is refused beside them, and which form their
batches get. Only where there are such columns, or `collate=` is given."""

from __future__ import annotations

from fastload import native
from fastload.errors import ConfigurationError
from fastload.loader import collate
from fastload.loader.config import LoaderConfig
from fastload.recipe import SplitRecipe
from fastload.recipe.mix import Mix
from fastload.sources.base import Source


def check(config: LoaderConfig, source: Source, *, turned: bool) -> None:
    """Raise ConfigurationError if boxes and the like would no longer belong to their images, or
    BackendUnavailableError if what draws masks is not built.

    `turned`: whether images are turned by their EXIF tag.
    """
    if turned:
        source.refuse_turning()
    if source.drawn:
        native.load()  # complains if it is not there
    if source.drawn and config.collate_fn is not None:
        raise ConfigurationError(
            f"masks: those of {source.name} are drawn for whole batches, and collate_fn takes "
            "single samples; give collate in its place, or leave masks out."
        )
    if source.drawn and not source.images:
        raise ConfigurationError(
            f"masks: {source.name} has {source.drawn[0]!r}, which are drawn in images, and no "
            "images; leave that column out."
        )
    if not isinstance(config.batch_transform, Mix):
        return
    objects = [name for name, column in source.values.items() if column.ragged]
    objects += [name for name in source.moved if name not in objects]
    if objects:
        raise ConfigurationError(
            f"batch_transform: {type(config.batch_transform).__name__} mixes images and one label "
            f"of each, and {source.name} has {', '.join(map(repr, objects))}, which it would not "
            "mix. Leave it out, or give a function of the batch."
        )


def check_split(split: SplitRecipe, source: Source, *, sieves: bool) -> None:
    """Raise ConfigurationError if a transform drops boxes, or depends on boxes, that there are not,
    or moves images in a way that says nothing of where points go. `sieves`: whether it drops
    boxes."""
    wants = f"{split.needs_objects} depends on" if split.needs_objects else ""
    wants = wants or ("SanitizeBoundingBoxes drops" if sieves else "")
    if wants and not any(column.kind.judges for column in source.instances.values()):
        raise ConfigurationError(
            f"transform: {wants} boxes, and {source.name} has none in rows of "
            f"variable length (columns: {', '.join(source.columns)}). Leave it out, or give boxes "
            "as a fastload.Ragged."
        )
    for name, column in source.moved.items() if split.loses_points else ():
        raise ConfigurationError(
            f"transform: column {name!r} of {source.name} ({column.role}) goes with the images, "
            f"and {split.loses_points}, so that it is not known where it would be. Leave that out, "
            "or serve the samples from a torch Dataset that transforms both."
        )


def collate_of(
    config: LoaderConfig, source: Source, *, several_views: bool
) -> collate.Collate | None:
    """The function that `collate=` means; None where it is not given. Raises ConfigurationError:
    see `fastload.loader.collate`."""
    if config.collate is None:
        return None
    return collate.collate_of(config.collate, source, several_views=several_views)
