"""Whether a file that lies beside images says where objects are in them, by its first bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable

from fastload import stores
from fastload.sources.image_files import DOCUMENTS

_START = 1 << 16
"""Bytes looked at, at the beginning of a file and, of JSON, at its end."""
_COCO = (b'"images"', b'"annotations"', b'"categories"')
_COCO_OBJECT = (b'"annotations"', b'"image_id"', b'"category_id"', b'"bbox"')
_LVIS_IMAGE = (b'"images"', b'"coco_url"', b'"neg_category_ids"')
"""Of COCO's first object, and of LVIS's first image: the categories of LVIS, all 400 KB of them,
come last."""
_LABELME = (b'"shapes"', b'"imagePath"')
_VOC = (b"<annotation", b"<bndbox>")
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')
_YOLO_LINE = re.compile(rb"\d{1,5}( (0|1|0?\.\d+|[01]\.\d*)){4,}\s*")
"""A class number and four or more fractions."""
_MOST_READ = 4
"""Files of each ending: the first of as many folders."""


def looks_like_coco(path: str) -> bool:
    """Whether a file has the names of COCO's parts, or of one and what is in it, in its first and
    last 64 KiB."""
    text = _ends(path)
    if text.lstrip()[:1] != b"{":
        return False
    parts = sum(name in text for name in _COCO)
    return parts >= 2 or any(
        all(name in text for name in names) for names in (_COCO_OBJECT, _LVIS_IMAGE)
    )


def looks_like_panoptic(path: str) -> bool:
    """Whether a file of COCO's parts lists segments, in its first and last 64 KiB."""
    return b'"segments_info"' in _ends(path)


def first_image_of(path: str) -> str | None:
    """The first file name in COCO's JSON; None where none comes early."""
    found = _FILE_NAME.search(_start(path))
    try:
        return None if found is None else str(json.loads(found[1]))
    except ValueError:
        return None


def objects_beside(paths: Iterable[str]) -> tuple[str, str] | None:
    """The first of some files that holds annotations of objects, and of which format: "COCO",
    "PASCAL VOC", "YOLO" or "LabelMe". At most four of each ending are read."""
    read = dict.fromkeys(DOCUMENTS, 0)
    for path in sorted(paths):
        suffix = os.path.splitext(path)[1].lower()
        if read.get(suffix, _MOST_READ) >= _MOST_READ:
            continue
        read[suffix] += 1
        kind = _kind(path, suffix)
        if kind is not None:
            return path, kind
    return None


def _kind(path: str, suffix: str) -> str | None:
    text = _start(path)
    if suffix == ".json" and looks_like_coco(path):
        return "COCO"
    if suffix == ".json" and all(name in text for name in _LABELME):
        return "LabelMe"
    if suffix == ".xml" and all(name in text for name in _VOC):
        return "PASCAL VOC"
    line = text.split(b"\n", 1)[0]
    if suffix == ".txt" and b"." in line and _YOLO_LINE.fullmatch(line):
        return "YOLO"
    return None


def _ends(path: str) -> bytes:
    """The first bytes and, of JSON, the last."""
    text = _start(path)
    if text.lstrip()[:1] == b"{":
        text += stores.look(path, _START, max(0, stores.size_of(path) - _START))
    return text


def _start(path: str) -> bytes:
    """The first bytes."""
    return stores.look(path, _START)
