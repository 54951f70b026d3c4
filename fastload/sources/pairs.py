"""Images with masks: `root/images/**/<stem>.<ext>` and `root/masks/**/<stem>.<ext>`."""

from __future__ import annotations

import os

from fastload.errors import SourceError
from fastload.sources.base import EncodedImages, Source, fingerprint_of
from fastload.sources.folder_scan import images_below, sampled_sizes
from fastload.sources.opening import Opened, OpenOptions
from fastload.sources.paths import PathTable

__all__ = ["is_pairs", "open_pairs"]


def is_pairs(spec: object) -> bool:
    """A folder with the subfolders `images` and `masks`."""
    return isinstance(spec, str) and all(os.path.isdir(os.path.join(spec, part)) for part in ("images", "masks"))


def open_pairs(root: str, options: OpenOptions) -> Opened:
    """Open image and mask pairs: columns `image` and `mask`, sorted by the image's path.

    Partners have the same path below `images` and `masks` but for the extension.

    Raises:
        SourceError: an image without a mask, a mask without an image, or two files of one stem; each is named.
    """
    images, masks = _by_stem(root, "images"), _by_stem(root, "masks")
    if not images and not masks:
        raise SourceError(f"{root}: the folders images and masks hold no images; expected pairs of equal names.")
    for ours, theirs, kind, other in ((images, masks, "image", "masks"), (masks, images, "mask", "images")):
        alone = [path for stem, path in ours.items() if stem not in theirs]
        if alone:
            more = f" (and {len(alone) - 1:,} more)" if len(alone) > 1 else ""
            stem = os.path.splitext(alone[0].split("/", 1)[1])[0]
            raise SourceError(
                f"{os.path.join(root, alone[0])}: this {kind} has no partner {other}/{stem}.*{more}; "
                "add the missing file, or remove this one."
            )
    image_paths = PathTable.of(images.values(), root)
    mask_paths = PathTable.of((masks[stem] for stem in images), root)
    source = Source(
        {"image": EncodedImages(image_paths), "mask": EncodedImages(mask_paths, "mask")},
        fingerprint_of(
            "pairs", image_paths.digest(), mask_paths.digest(), sampled_sizes(image_paths), sampled_sizes(mask_paths)
        ),
        root,
        format="image and mask pairs",
    )
    return Opened(source)


def _by_stem(root: str, part: str) -> dict[str, str]:
    """Path relative to `root` by path below `part` without extension, sorted."""
    found: dict[str, str] = {}
    for path in images_below(root, part):
        stem = os.path.splitext(path)[0].split("/", 1)[1]
        if stem in found:
            raise SourceError(
                f"{os.path.join(root, path)}: {found[stem]} has the same stem, so its partner is ambiguous; "
                "rename or remove one of the two."
            )
        found[stem] = path
    return found
