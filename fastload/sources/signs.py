"""Whether a path or an object has the signs of a format, so that its file is worth loading."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from typing import Any

from fastload.files import is_remote
from fastload.sources.folders import subfolders
from fastload.sources.formats import Format
from fastload.sources.listing import listing_of
from fastload.sources.names import SPLITS

_WORDS = [word for words in SPLITS.values() for word in words]


def fits(form: Format, place: Any) -> bool:
    """Whether a place, as `opening.locate` gives it, has the signs of a format: of what it is,
    `Format.signs`, `Format.files` or `Format.packages`."""
    at = place[0] if isinstance(place, list) and place else place
    if not isinstance(at, str):
        return form.packages is None or any(
            cls.__module__.partition(".")[0] in form.packages for cls in type(place).__mro__
        )
    if isinstance(place, str) and not is_remote(place) and os.path.isdir(place):
        return form.signs is None or _has_any(place.rstrip("/"), form.signs)
    name = os.path.basename(at).lower()
    return form.files is None or any(fnmatch.fnmatchcase(name, sign) for sign in form.files)


def _has_any(folder: str, signs: Sequence[str]) -> bool:
    above, name = map(glob.escape, os.path.split(folder))
    inside = os.path.join(above, name)
    for sign in _spelt(signs):
        part, _, rest = sign.partition("/")
        if glob.has_magic(part) and glob.has_magic(rest):
            if _has_in_folders(folder, sign):
                return True
            continue
        pattern = (
            os.path.join(above, sign.removeprefix("../").replace("{name}", name))
            if sign.startswith("../")
            else os.path.join(inside, sign)
        )
        if next(glob.iglob(pattern), None) is not None:
            return True
    return False


def _spelt(signs: Sequence[str]) -> Iterator[str]:
    """The signs, one with {split} in it once for each word."""
    for sign in signs:
        if "{split}" in sign:
            yield from (sign.replace("{split}", word) for word in _WORDS)
        else:
            yield sign


def _has_in_folders(folder: str, sign: str) -> bool:
    """Whether one of the folders in a local folder has a file that is no image, by a pattern for
    both names. If this is a folder of classes, they are listed once for this and the images."""
    listing = listing_of(folder, subfolders(folder))
    if listing is None:
        return next(glob.iglob(os.path.join(glob.escape(folder), sign)), None) is not None
    names = (path.split("/") for path in listing.others)
    return any(
        len(parts) == 2
        and not any(part.startswith(".") for part in parts)
        and all(map(fnmatch.fnmatchcase, parts, sign.split("/")))
        for parts in names
    )
