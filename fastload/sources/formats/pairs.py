"""Images and their masks in two folders: side by side, in splits, or listed as PASCAL VOC and
CamVid list them.

    data/                camvid/             VOC2012/
    ├── images/          ├── train/          ├── JPEGImages/2007_000032.jpg
    │   └── 1.jpg        │   └── 1.png       ├── SegmentationClass/2007_000032.png
    └── masks/           ├── trainannot/     └── ImageSets/Segmentation/
        └── 1.png        │   └── 1.png           ├── train.txt
                         └── val/                └── val.txt

Gives `image` and `mask`, sorted by the image's path. In nnU-Net's folders,
`imagesTr/case_0000.png` goes with `labelsTr/case.png`.
"""

from __future__ import annotations

import os
import re

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, and_more
from fastload.sources import folders
from fastload.sources.annotation_json import is_of_segments
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name
from fastload.sources.names import refuse_splits, split_named, split_of, splits_in
from fastload.sources.pairing import Side, by_stem, common_ending, paired, without

_OF_NNUNET = "imagesTr"
"""What nnU-Net calls it; the names of the images in it end with the number of their channel."""
_IMAGES = ("images", "image", "imgs", "img", "JPEGImages", _OF_NNUNET)
_MASKS = (
    "masks",
    "mask",
    "labels",
    "label",
    "annotations",
    "annotation",
    "annot",
    "SegmentationClass",
    "labelsTr",
)
_BESIDE = tuple(
    link + name
    for name in ("annot", "masks", "mask", "labels", "label", "gt")
    for link in ("", "_", "-")
)
"""What the name of a folder of masks adds to that of the images beside it: train, trainannot; val,
val_labels."""
_ALSO_MASKS = re.compile(
    r"(\d(st|nd|rd)[-_ ]?)?manual[-_ ]?\d*|gt|ground[-_ ]?truths?|seg|segmentations?|vessels?|"
    r"targets?|labels?|masks?|annotations?",
    re.IGNORECASE,
)
"""What folders of masks are called elsewhere. Beside one of them, `mask` may be a field of view, as
in DRIVE, HRF and others of the retina."""
_FIELD_OF_VIEW = re.compile(r"\d+_(training|test)_mask")
"""DRIVE's names of such masks, which lie alone beside the test images."""
_LISTS = ("ImageSets/Segmentation", "")
"""Where files that list the images of a split are: train.txt, val.txt."""
_LARGEST_LIST = 1 << 28


def is_pairs(spec: object) -> bool:
    """A folder with a folder of images and one of masks in it; or one of images, with that of their
    masks beside it."""
    pair = _folders(spec) if isinstance(spec, str) else None
    return pair is not None and not _holds_segments(os.path.join(pair[0], pair[2]))


def has_masks(root: str) -> bool:
    """Whether there are images in the folder of masks: without, it may hold annotations."""
    base, _, masks = _folders(root) or ("", "", "")
    mask = is_pairs(root) and next(folders.images_below(base, masks), None)
    return mask not in (None, False)


def _holds_segments(folder: str) -> bool:
    """Whether a folder has COCO's segments: its PNGs hold ids."""
    names = [name for name in folders.files_in(folder) if name.endswith(".json")]
    return any(map(is_of_segments, (*names, *folders.subfolders(folder))))


def _has_images(folder: str) -> bool:
    return any(map(is_image_name, folders.files_in(folder)))


def open_pairs(root: str, options: OpenOptions) -> Opened:
    """Open image and mask pairs: columns `image` and `mask`, sorted by the image's path.

    Partners have the same path below their folders except for the extension, and for an ending that
    all masks have (`1.png` and `1_L.png`); `11.png` is no mask of `1.png`. Two folders of masks, or
    of images, are refused. Where both folders have folders of splits in them, or
    lists say which image is in which split, `options.split` must name one.
    """
    base, image_folder, mask_folder = _folders(root) or ("", "", "")
    if base == root:
        _refuse_two(root, image_folder, _IMAGES, "images")
        _refuse_two(root, mask_folder, _MASKS, "masks")
        _refuse_field_of_view(root, image_folder, mask_folder)
    listed = None
    splits = pair_splits(root)
    if splits:
        name = split_named(splits, options.split or "")
        if name is None:
            refuse_splits(root, list(splits), options.split)
        if splits[name] is None:
            image_folder, mask_folder = f"{image_folder}/{name}", f"{mask_folder}/{name}"
        listed = splits[name]
    elif options.split is not None:
        raise ConfigurationError(
            f"split={options.split!r}: the pairs in {root} have no splits; leave it out."
        )
    left_out = LeftOut(root, strict=options.strict)
    images, masks = (_by_stem(base, folder, left_out) for folder in (image_folder, mask_folder))
    if not images or not masks:
        empty = mask_folder if images else image_folder
        names = ", ".join(folders.files_in(os.path.join(base, empty))[:3])
        raise SourceError(
            f"{root}: the folder {empty} holds no images{f' (found {names})' if names else ''}; "
            "expected images and masks under equal names in two folders, both as image files."
            f"{_other_layout(names)}"
        )
    if image_folder == _OF_NNUNET:
        images = _of_one_file(base, images)
    ending = common_ending(images, masks)
    masks = without(ending, masks)
    if listed is not None:
        images, masks = (
            {stem: path for stem, path in files.items() if os.path.basename(stem) in listed}
            for files in (images, masks)
        )
        named: dict[str, str] = {}
        for stem in images:
            other = named.setdefault(os.path.basename(stem), stem)
            if other != stem:
                raise SourceError(
                    f"{os.path.join(base, image_folder)}: the list of the split {name!r} names "
                    f"{os.path.basename(stem)}, which may be {other} or {stem}; rename one of the "
                    "two."
                )
        missing = sorted(listed.difference(named))
        if missing:
            raise SourceError(
                f"{os.path.join(base, image_folder)}: {missing[0]}.* is missing, which the list of "
                f"the split {name!r} names{and_more(missing)}; add it, or correct the list."
            )
    source = paired(
        base,
        Side(images, f"{image_folder}/"),
        Side(masks, f"{mask_folder}/", ending),
        name=root,
        format="image and mask pairs",
    )
    notes = () if not splits else (f"the split {name!r}: {image_folder} and {mask_folder}",)
    return Opened(source, notes=(*notes, *left_out.notes()))


def _of_one_file(base: str, images: dict[str, str]) -> dict[str, str]:
    """nnU-Net's images by the names of their cases. Raises SourceError: an image has no number, or
    one of another channel."""
    wrong = [path for stem, path in images.items() if not stem.endswith("_0000")]
    if wrong:
        raise SourceError(
            f"{os.path.join(base, wrong[0])}: the names of nnU-Net's images end with _0000, and an "
            "image has one file here, grey or RGB. Channels in files of their own (_0001) are not "
            "read: put them into one image, or leave them out."
        )
    return without("_0000", images)


def _other_layout(names: str) -> str:
    """What to do where files in place of masks are of another format."""
    if ".txt" in names:
        return (
            " Labels of YOLO need the names of their classes beside the two folders: one in each "
            "line of a classes.txt, or a data.yaml with train: images and names: [...]."
        )
    return ""


def pair_splits(root: str) -> dict[str, frozenset[str] | None]:
    """The splits of pairs by name: the names of the images in them, None where each has folders of
    its own.

    Where a list says what is not in the training split (`valid.txt`), that is the rest.
    """
    pair = _folders(root)
    if pair is None or pair[0] != root:
        return {}
    _, images, masks = pair
    splits = folders.subfolders(os.path.join(root, images))
    if splits and all(map(split_of, splits)):
        return {name: None for name in splits if stores.is_folder(os.path.join(root, masks, name))}
    for folder in filter(stores.is_folder, (os.path.join(root, place) for place in _LISTS)):
        stems = [name[:-4] for name in folders.files_in(folder) if name.endswith(".txt")]
        lists = {
            stem: _names(os.path.join(folder, f"{stem}.txt"))
            for stem in stems
            if split_of(stem) or stem == "trainval"
        }
        if lists and "train" not in splits_in(lists):
            everything = frozenset(
                os.path.basename(stem) for stem in _by_stem(root, images, LeftOut(root))
            )
            return {"train": everything.difference(*lists.values()), **lists}
        if lists:
            return {**lists}
    return {}


def _folders(root: str) -> tuple[str, str, str] | None:
    """(base, folder of the images, folder of the masks), both relative to the base."""

    def first(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if stores.is_folder(os.path.join(root, name))), None)

    images, masks = first(_IMAGES), first(_MASKS)
    if images and masks:
        return root, images, masks
    root = root.rstrip("/")
    base = stores.parent_of(root)
    if base == root:
        return None
    name = os.path.basename(root)
    beside = next((name + ending for ending in _BESIDE if stores.is_folder(root + ending)), None)
    if (
        beside is None
        or folders.subfolders(root)
        or not any(map(is_image_name, folders.files_in(root)))
    ):
        return None
    return base, name, beside


def _refuse_two(root: str, chosen: str, names: tuple[str, ...], what: str) -> None:
    """Raise SourceError if another folder holds images, too: it is not known which is meant."""
    for name in names:
        other = os.path.join(root, name)
        if name == chosen or not stores.is_folder(other):
            continue
        if next(folders.images_below(root, name), None) is not None and not (
            os.path.isdir(other) and os.path.samefile(other, os.path.join(root, chosen))
        ):
            raise SourceError(
                f"{root}: {chosen} and {name} both hold images, so that it is not known which are "
                f"the {what}; move the other one out of the folder, or rename it."
            )


def _refuse_field_of_view(root: str, images: str, chosen: str) -> None:
    """Raise SourceError if another folder may have the masks, or what is called so is a field of
    view."""
    others = [
        name
        for name in folders.subfolders(root)
        if name not in (*_IMAGES, *_MASKS) and _ALSO_MASKS.fullmatch(name)
    ]
    other = next((name for name in others if _has_images(os.path.join(root, name))), None)
    first = min(folders.files_in(os.path.join(root, chosen)), default="")
    if other is None and not _FIELD_OF_VIEW.fullmatch(os.path.splitext(first)[0]):
        return
    both = f"{chosen} and {other} both hold images" if other else f"{chosen} has DRIVE's names"
    raise SourceError(
        f"{root}: {both}, so that it is not known which are the masks: beside photographs of the "
        "retina, mask is the field of view. Put images and masks into images/ and masks/ of a "
        "folder without others, under equal names (1.tif and 1.png)."
    )


def _names(path: str) -> frozenset[str]:
    """The names in a list of images, without folder and extension.

    Raises:
        SourceError: the list cannot be read, or names an image twice: how often it is wanted is
            unknown.
    """
    try:
        data = stores.read_up_to(path, _LARGEST_LIST, version=stores.noted(path))
        lines = data.decode("utf-8-sig", "replace").splitlines()
    except OSError as error:
        raise SourceError(
            f"{path}: this list of images cannot be read ({error.strerror or error})."
        ) from error
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            name = os.path.splitext(os.path.basename(line.split()[0]))[0]
            if name in line_of:
                raise SourceError(
                    f"{path}: lines {line_of[name]} and {number} both name {name}; an image is "
                    "served once an epoch: remove one of the lines (or give the order yourself: "
                    "sampler=)."
                )
            line_of[name] = number
    return frozenset(line_of)


def _by_stem(base: str, folder: str, left_out: LeftOut) -> dict[str, str]:
    return by_stem(base, folder, folders.images_below(base, folder, left_out))


FORMAT = Format(
    name="pairs",
    title="images and masks in two folders",
    recognise=is_pairs,
    open=open_pairs,
    options=("split",),
    remote=True,
    signs=(
        *("masks", "mask", "labels", "label", "annotations", "annotation", "annot"),
        *("SegmentationClass", "labelsTr"),
        *("../{name}annot", "../{name}_annot", "../{name}-annot"),
        *("../{name}masks", "../{name}_masks", "../{name}-masks"),
        *("../{name}mask", "../{name}_mask", "../{name}-mask"),
        *("../{name}labels", "../{name}_labels", "../{name}-labels"),
        *("../{name}label", "../{name}_label", "../{name}-label"),
        *("../{name}gt", "../{name}_gt", "../{name}-gt"),
    ),
    files=(),
    packages=(),
    parts=(
        *("images", "image", "imgs", "img", "JPEGImages", "imagesTr", "labelsTr"),
        *("masks", "mask", "labels", "label", "annotations", "annotation", "annot"),
        *("SegmentationClass", "ground_truth"),
    ),
    no_parts=("with_mask", "without_mask", "label_0", "label_1", "n95_mask", "no-label"),
    certain=has_masks,
    common=True,
)
