"""Street scenes and masks of their classes as Cityscapes has them: a folder for each split, in it
one for each city.

    cityscapes/
    ├── leftImg8bit/
    │   ├── train/
    │   │   └── aachen/
    │   │       └── aachen_000000_000019_leftImg8bit.png
    │   └── val/
    └── gtFine/
        ├── train/
        │   └── aachen/
        │       ├── aachen_000000_000019_gtFine_labelIds.png
        │       ├── aachen_000000_000019_gtFine_labelTrainIds.png
        │       ├── aachen_000000_000019_gtFine_instanceIds.png
        │       └── aachen_000000_000019_gtFine_color.png
        └── val/

Gives `image` (uint8) and `mask` (uint8, class numbers), sorted by city and name. Where there are
labelIds and labelTrainIds, `fields=("image", "labelTrainIds")` says which, and the column is called
so. Instances, colours and polygons are not served.
"""

from __future__ import annotations

import os
import re

from fastload import stores
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import folders
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut
from fastload.sources.names import refuse_splits, split_named
from fastload.sources.pairing import Side, by_stem, paired, without

_IMAGES, _MASKS = "leftImg8bit", "gtFine"
_IMAGE = f"_{_IMAGES}"
_MASK = re.compile(rf".+_{_MASKS}_(labelIds|labelTrainIds)")


def is_cityscapes(spec: object) -> bool:
    """A folder with `leftImg8bit` and `gtFine` in it."""
    return isinstance(spec, str) and all(
        stores.is_folder(os.path.join(spec, name)) for name in (_IMAGES, _MASKS)
    )


def open_cityscapes(root: str, options: OpenOptions) -> Opened:
    """Open image and mask pairs of a split: columns `image` and `mask`, or what `fields` calls it.

    Raises:
        ConfigurationError: another split, or other fields, than there are.
        SourceError: no split is named; there are labelIds and labelTrainIds, and `fields` does not
            say which; an image without a mask, or the reverse.
    """
    masked = folders.subfolders(os.path.join(root, _MASKS))
    splits = [name for name in folders.subfolders(os.path.join(root, _IMAGES)) if name in masked]
    if not splits:
        raise SourceError(
            f"{root}: {_IMAGES} and {_MASKS} have no split in common; each must have train/ and "
            "val/, with a folder for each city."
        )
    split = split_named(splits, options.split or "")
    if split is None:
        refuse_splits(root, splits, options.split)
    place, of_masks = f"{_IMAGES}/{split}", f"{_MASKS}/{split}"
    left_out = LeftOut(root, strict=options.strict)
    images = by_stem(root, place, folders.images_below(root, place, left_out))
    other = next((path for stem, path in images.items() if not stem.endswith(_IMAGE)), None)
    if other is not None:
        raise SourceError(
            f"{os.path.join(root, other)}: is no image of Cityscapes, as its name does not end in "
            f"{_IMAGE}; rename it, or move it out of the folder."
        )
    by_ids: dict[str, list[str]] = {}
    for path in folders.images_below(root, of_masks):
        match = _MASK.fullmatch(os.path.splitext(path)[0])
        if match is not None:
            by_ids.setdefault(match[1], []).append(path)
    if not images or not by_ids:
        wanted = f"{of_masks}: no *_{_MASKS}_labelIds.png" if images else f"{place}: no images"
        raise SourceError(f"{os.path.join(root, wanted)} in the folders of cities; put them there.")
    ids = _ids_of_masks(root, by_ids, options.fields)
    ending = f"_{_MASKS}_{ids}"
    source = paired(
        root,
        Side(without(_IMAGE, images), f"{place}/", _IMAGE),
        Side(without(ending, by_stem(root, of_masks, by_ids[ids])), f"{of_masks}/", ending),
        name=f"{root} ({split})",
        format="Cityscapes",
        column="mask" if options.fields is None else ids,
    )
    return Opened(source, notes=(f"masks: *{ending}", *left_out.notes()))


def _ids_of_masks(root: str, by_ids: dict[str, list[str]], fields: tuple[str, ...] | None) -> str:
    """Which masks are wanted."""
    ways = " or ".join(f"fields=('image', '{ids}')" for ids in sorted(by_ids))
    if fields is not None:
        if len(fields) != 2 or fields[0] != "image" or fields[1] not in by_ids:
            raise ConfigurationError(f"fields={fields!r}: {root} has {ways}.")
        return fields[1]
    if len(by_ids) > 1:
        raise SourceError(
            f"{root}: has labelIds, which number all classes, and labelTrainIds, which number "
            f"those of the benchmark, with 255 for all others; say which are the masks: {ways}."
        )
    return next(iter(by_ids))


FORMAT = Format(
    name="cityscapes",
    title="Cityscapes",
    recognise=is_cityscapes,
    open=open_cityscapes,
    options=("split", "fields"),
    remote=True,
    signs=("gtFine",),
    files=(),
    packages=(),
    parts=("leftImg8bit", "gtFine"),
    certain=is_cityscapes,
)
