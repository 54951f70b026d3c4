"""The page about a packed data set: counts, sizes, formats, classes, what is missing, pictures."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from fastload.cache.samples import shrink, shrunk_by_core, shrunk_size
from fastload.decode.image import EncodedReader, ImageReader, reader_of
from fastload.decode.libraries import Pixels
from fastload.errors import DecodeError, counted
from fastload.files import DecodeSettings
from fastload.tools.measure.page import document, table
from fastload.tools.pack.contents import Contents, class_counts, jpeg
from fastload.tools.pack.plan import ShardJob, evenly_spaced
from fastload.tools.pack.target import Packed

_FEWEST_PICTURES, _MOST_PICTURES, _SIDE = 8, 24, 96
"""One of 64 samples, within these bounds; and pixels of the shorter side."""
_REJECTED, _CLASSES = 200, 200
"""Rows of these tables; how many more there are is said."""


def page_of(packed: Packed, contents: Contents, jobs: Sequence[ShardJob], pictures: str) -> str:
    """HTML, whole in itself. `pictures`: of `pictures_of`."""
    verdict = f"{packed.summary}."
    if packed.rejected:
        verdict += f" Left out, as it cannot be read: {counted(packed.rejected, 'sample')}."
    sections = {
        "Samples": pictures,
        "Left out": _rejected(packed),
        "Classes": _classes(packed, contents, jobs),
        "Images": table(
            [{"format": name, "images": f"{count:,}"} for name, count in _formats(packed)],
            text_columns=("format",),
        ),
        "Shards": table(
            [
                {
                    "shard": row.name,
                    "samples": f"{row.samples:,}",
                    "MB": f"{row.bytes / 1e6:,.1f}",
                    "CRC-32": row.crc32,
                }
                for row in packed.rows
            ],
            text_columns=("shard", "CRC-32"),
        ),
    }
    lead = f'<p class="verdict">{escape(verdict)}</p>\n'
    title = f"{contents.source.name.rstrip('/').rpartition('/')[2]}, packed"
    return document(title, contents.source.summary, sections, lead=lead)


def _formats(packed: Packed) -> list[tuple[str, int]]:
    formats = Counter[str]()
    for row in packed.rows:
        formats.update(row.formats)
    return formats.most_common()


def _rejected(packed: Packed) -> str:
    rows = [
        {"sample": f"{each.index:,}", "reason": each.reason}
        for row in packed.rows
        for each in row.rejected
    ]
    more = len(rows) - _REJECTED
    rest = f"<p>And {more:,} more; manifest.jsonl has all.</p>\n" if more > 0 else ""
    return table(rows[:_REJECTED], text_columns=("reason",)) + rest if rows else ""


def _classes(packed: Packed, contents: Contents, jobs: Sequence[ShardJob]) -> str:
    counts: dict[str, Counter[str]] = {}
    for job, row in zip(jobs, packed.rows, strict=True):
        left_out = np.array([each.index for each in row.rejected], dtype=np.int64)
        kept = job.rows[~np.isin(job.rows, left_out)]
        part = job.name.rpartition("/")[0] or "samples"
        counts.setdefault(part, Counter()).update(class_counts(contents.source, kept))
    names = list(dict.fromkeys(name for each in counts.values() for name in each))
    if not names:
        return ""
    rows: list[Mapping[str, str]] = [
        {"class": name, **{part: f"{each[name]:,}" for part, each in counts.items()}}
        for name in names[:_CLASSES]
    ]
    more = len(names) - _CLASSES
    rest = f"<p>And {counted(more, 'class')} more.</p>\n" if more > 0 else ""
    return table(rows, text_columns=("class",)) + rest


def _small(reader: ImageReader, index: int) -> Pixels:
    """(H, W, 3), the shorter side of `_SIDE` pixels. Raises DecodeError."""
    if isinstance(reader, EncodedReader):
        data, header, _ = reader.fetch(index)
        size = header.height, header.width
        pixels = shrunk_by_core(data, size, shrunk_size(size, _SIDE), draft=True)
        if pixels is not None:
            return pixels
    return shrink(reader.pixels(index), "image", _SIDE)


def pictures_of(contents: Contents) -> str:
    """Small copies of some of the images, as data in the page."""
    source = contents.source
    column = next(iter(source.images))
    reader = reader_of(source.images[column], DecodeSettings())
    pictures = []
    count = min(_MOST_PICTURES, max(_FEWEST_PICTURES, len(source) // 64))
    for index in evenly_spaced(len(source), count):
        try:
            pixels = _small(reader, index)
        except DecodeError:
            continue
        data = base64.b64encode(jpeg(pixels, 80)).decode()
        name = escape(contents.path(column, index), quote=True)
        pictures.append(
            f'<img src="data:image/jpeg;base64,{data}" height="{_SIDE}" alt="{name}" '
            f'title="{name}">'
        )
    return "\n".join(pictures) + "\n"
