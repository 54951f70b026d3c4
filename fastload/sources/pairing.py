"""Images and masks that belong together by their names, and the source of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import NamedTuple

from fastload.errors import SourceError, and_more
from fastload.fingerprint import fingerprint_of
from fastload.sources import folders
from fastload.sources.base import Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles


class Side(NamedTuple):
    """The images of some pairs, or the masks."""

    files: dict[str, str]
    """Path relative to the base by what both partners have in common."""
    place: str
    """What their paths have before that."""
    ending: str = ""
    """What their stems have after it."""


def by_stem(base: str, folder: str, paths: Iterable[str]) -> dict[str, str]:
    """Paths relative to `base` by those below `folder` without extension, in their order. Raises
    SourceError: two of one stem."""
    path_of: dict[str, str] = {}
    for path in paths:
        stem = os.path.splitext(path)[0][len(folder) + 1 if folder else 0 :]
        if stem in path_of:
            raise SourceError(
                f"{os.path.join(base, path)}: {path_of[stem]} has the same stem, so its partner is "
                "ambiguous; rename or remove one of the two."
            )
        path_of[stem] = path
    return path_of


def common_ending(images: dict[str, str], masks: dict[str, str]) -> str:
    """What the stems of all masks have after those of the images; "" where they are equal."""
    if any(stem in images for stem in masks):
        return ""
    first = next(iter(masks))
    longest = max((stem for stem in images if first.startswith(stem)), key=len, default=first)
    ending = first[len(longest) :]
    # 11.png beside 1.png is another number.
    return "" if longest[-1:].isdigit() and ending[:1].isdigit() else ending


def without(ending: str, files: dict[str, str]) -> dict[str, str]:
    """The files by their stems without an ending, where they have it."""
    return {stem.removesuffix(ending): path for stem, path in files.items()}


def paired(
    base: str, images: Side, masks: Side, *, name: str, format: str, column: str = "mask"
) -> Source:
    """Columns `image` and `mask` (or what `column` says), in the order of the images. Raises
    SourceError: an image or a mask has no partner."""
    for ours, theirs, role in ((images, masks, "image"), (masks, images, "mask")):
        alone = [stem for stem in ours.files if stem not in theirs.files]
        if alone:
            raise SourceError(
                f"{os.path.join(base, ours.files[alone[0]])}: this {role} has no partner "
                f"{theirs.place}{alone[0]}{theirs.ending}.*{and_more(alone)}; add the missing "
                "file, or remove this one."
            )
    partners = (masks.files[stem] for stem in images.files)
    columns = {
        "image": EncodedFiles(PathTable.of(images.files.values(), base)),
        column: EncodedFiles(PathTable.of(partners, base), "mask"),
    }
    digests, sizes = (
        [each.paths.digest() for each in columns.values()],
        map(folders.sampled_sizes, columns.values()),
    )
    some = itertools.chain.from_iterable(map(folders.sampled_bytes, columns.values()))
    return Source(columns, fingerprint_of("pairs", *digests, *sizes, *some), name, format=format)
