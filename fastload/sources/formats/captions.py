"""Images with a text of the same name beside each, as diffusion models are trained on.

    photographs/
    ├── 0001.jpg
    ├── 0001.txt      a fox in the snow
    ├── 0002.png
    └── 0002.txt      two dogs

Gives `image` and `text`, without spaces and line breaks at its ends. Texts of nothing but numbers
are labels of another format, which are refused. An empty file is an empty text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Set

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, and_more
from fastload.fingerprint import fingerprint_of
from fastload.sources import folders
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut, is_image_name
from fastload.sources.names import refuse_splits, splits_among
from fastload.sources.texts import text_column, text_of_file
from fastload.stores.contents import contents, parts

_NUMBERS = re.compile(r"[-+.\deE\s]*\d[-+.\deE\s]*")
_LARGEST = 1 << 20
"""Bytes of a text."""


def has_captions(spec: object) -> bool:
    """A folder in which, or in the first folder of which, at least half of the images have a text
    beside them that is no list of objects."""
    if not isinstance(spec, str) or not stores.is_folder(spec):
        return False
    inner = folders.subfolders(spec)
    if any(map(is_image_name, folders.files_in(spec))):
        return _in_folder(spec)
    return bool(inner) and _in_folder(os.path.join(spec, inner[0]))


def _in_folder(folder: str) -> bool:
    from fastload.sources.beside import objects_beside

    names = folders.files_in(folder)
    there, images = set(names), [name for name in names if is_image_name(name)]
    texts = [text for image in images if (text := _text_of(image)) in there]
    if not texts or 2 * len(texts) < len(images):
        return False
    return objects_beside(os.path.join(folder, text) for text in texts) is None


class _Others(LeftOut):
    """What is neither an image nor the text of one."""

    def __init__(self, name: str, *, strict: bool) -> None:
        super().__init__(name, strict=strict)
        self._texts: list[str] = []

    def add(self, path: str) -> None:
        if path.endswith(".txt"):
            self._texts.append(path)
        else:
            super().add(path)

    def add_texts_but(self, own: Set[str]) -> None:
        """Count the texts that are of no image."""
        for path in self._texts:
            if path not in own:
                super().add(path)


def _text_of(image: str) -> str:
    return f"{os.path.splitext(image)[0]}.txt"


def open_captions(root: str, options: OpenOptions) -> Opened:
    """Open images and texts, in the folder and below: columns `image` and `text`, sorted by path.

    Raises:
        SourceError: an image without a text; two images of one text; a text of nothing but numbers,
            unless `format=` says that these are captions; one that is no UTF-8. The message names
            the file.
    """
    splits = splits_among(folders.subfolders(root))
    if options.split is not None:
        folder = folders.split_folder(root, options.split)
        if folder is None and splits:
            refuse_splits(root, splits, options.split)
        if folder is None:
            raise ConfigurationError(
                f"split={options.split!r}: {root} has no folder of this name; leave it out."
            )
        root = folder
    elif splits:
        refuse_splits(root, splits)
    left_out = _Others(root, strict=options.strict)
    images = list(folders.images_below(root, "", left_out))
    left_out.add_texts_but({*map(_text_of, images)})
    paths = [os.path.join(root, _text_of(image)) for image in images]
    of: dict[str, str] = {}
    for image, path in zip(images, paths, strict=True):
        if of.setdefault(path, image) != image:
            raise SourceError(
                f"{path}: is the text of {of[path]} and of {image}; rename one of the images."
            )
    read = [data for some in parts(paths) for data in contents(some, _LARGEST)]
    without = [image for image, data in zip(images, read, strict=True) if data is None]
    if without:
        raise SourceError(
            f"{os.path.join(root, without[0])}: has no text {_text_of(without[0])}"
            f"{and_more(without)}; write it (an empty file where nothing is to be said), or move "
            "the image out of the folder."
        )
    pairs = zip(paths, read, strict=True)
    texts = [text_of_file(path, data or b"").strip() for path, data in pairs]
    if not options.by_name:
        _refuse_numbers(root, paths, texts)
    column = text_column(texts, paths.__getitem__)
    files = EncodedFiles(PathTable.of(images, root))
    source = Source(
        {"image": files, "text": column},
        fingerprint_of(
            "captions",
            files.paths.digest(),
            folders.sampled_sizes(files),
            *folders.sampled_bytes(files),
            *column.array.arrays(),
        ),
        root,
        format="images with captions",
    )
    return Opened(source, notes=left_out.notes())


def _refuse_numbers(root: str, paths: list[str], texts: list[str]) -> None:
    odd = next((row for row, text in enumerate(texts) if _NUMBERS.fullmatch(text)), None)
    if odd is not None:
        raise SourceError(
            f"{paths[odd]}: holds numbers ({texts[odd][:40]!r}), as files of labels do, and no "
            "caption. Labels of objects in fractions need the names of the classes, one in each "
            "line of a classes.txt; numbers of classes a table of file and label. If these are "
            "captions: format='captions'."
        )
    if not any(texts):
        raise SourceError(
            f"{root}: all {len(texts):,} texts are empty. To have the images alone: "
            "format='images'; if these are captions: format='captions'."
        )


FORMAT = Format(
    name="captions",
    title="images with captions",
    recognise=has_captions,
    open=open_captions,
    options=("split",),
    remote=True,
    signs=("*.txt", "*/*.txt"),
    files=(),
    packages=(),
    generality=1,
    fallback=True,
    certain=has_captions,
)
