"""Whether files that lie beside images say where objects are in them, by their first bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fastload import stores
from fastload.sources.formats import FORMATS
from fastload.sources.image_files import DOCUMENTS

_LABELME = (b'"shapes"', b'"imagePath"')
_LOOKED_AT = 1 << 16
_MOST_READ = 4
"""Files of each ending: the first of as many folders."""


def objects_beside(paths: Iterable[str]) -> tuple[str, str] | None:
    """The first of some files that holds annotations of objects, and in words what these are. At
    most four of each ending are read."""
    read = dict.fromkeys(DOCUMENTS, 0)
    for path in sorted(paths):
        suffix = os.path.splitext(path)[1].lower()
        if read.get(suffix, _MOST_READ) >= _MOST_READ:
            continue
        read[suffix] += 1
        for form in FORMATS:
            if form.annotates is not None and suffix in form.documents and form.annotates(path):
                return path, form.title
        if suffix == ".json" and _looks_like_labelme(path):
            return path, "images and LabelMe annotations"
    return None


def _looks_like_labelme(path: str) -> bool:
    text = stores.look(path, _LOOKED_AT)
    return all(name in text for name in _LABELME)
