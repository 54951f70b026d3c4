"""Images with their masks beside them in one folder, by an ending that all masks have.

    scans/
    ├── 0001.jpg
    ├── 0001_mask.png
    ├── 0002.jpg
    └── 0002_mask.png

Gives `image` (uint8) and `mask` (uint8, or as its file is stored), sorted by the image's name. The
ending may be _mask, _seg, _segmentation, _gt, _groundtruth, _label, _matte or _annotation, with
another sign before it. Every image has one mask.
"""

from __future__ import annotations

import os
import re

from fastload import stores
from fastload.errors import SourceError
from fastload.sources import folders
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name
from fastload.sources.names import mask_among, masks_among
from fastload.sources.pairing import Side, by_stem, paired, without

_NUMBERED = re.compile(r".*\d")


def has_masks_among(spec: object) -> bool:
    """A folder without folders in it, that has a mask of an image beside it."""
    if not isinstance(spec, str) or not stores.is_folder(spec) or folders.subfolders(spec):
        return False
    mask = mask_among(filter(is_image_name, folders.files_in(spec)))
    return mask is not None and is_image_name(mask[1])


def open_pairs_beside(root: str, options: OpenOptions) -> Opened:
    """Open image and mask pairs: columns `image` and `mask`, sorted by the image's name.

    Raises SourceError: masks of several endings; several masks of an image (`x_mask_1`); an image
    without a mask, or a mask without its image.
    """
    left_out = LeftOut(root, strict=options.strict)
    names = []
    for name in folders.files_in(root, left_out):
        if is_image_name(name):
            names.append(name)
        else:
            left_out.add(name)
    first: dict[str, str] = {}
    for mask, image in masks_among(names).items():
        ending = _stem(mask)[len(_stem(image)) :]
        first.setdefault(ending, mask)
    if not first:
        raise SourceError(f"{root}: no image in it has a mask beside it, such as x_mask.png.")
    ending = next(iter(first))
    if len(first) > 1 or _NUMBERED.fullmatch(ending):
        raise SourceError(
            f"{root}: has masks of several kinds, or several of an image "
            f"({', '.join([*first.values()][:3])}), and one is served with each; keep those of one "
            "ending (x_mask.png) beside the images, and join what are masks of one image."
        )
    stems = {name: _stem(name) for name in names}
    masks = by_stem(root, "", [name for name in names if stems[name].endswith(ending)])
    images = by_stem(root, "", [name for name in names if not stems[name].endswith(ending)])
    source = paired(
        root,
        Side(images, ""),
        Side(without(ending, masks), "", ending),
        name=root,
        format="image and mask pairs",
    )
    return Opened(source, notes=left_out.notes())


def _stem(name: str) -> str:
    return os.path.splitext(name)[0]


FORMAT = Format(
    name="pairs_beside",
    title="images and masks in one folder",
    recognise=has_masks_among,
    open=open_pairs_beside,
    remote=True,
    signs=("*[-_. ][agmlsAGMLS]*.*",),
    files=(),
    packages=(),
    generality=1,
    fallback=True,
)
