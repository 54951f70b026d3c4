"""Whether files that lie beside images say where objects are in them, by their first bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable

from fastload.sources.formats import FORMATS
from fastload.sources.image_files import DOCUMENTS

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
    return None
