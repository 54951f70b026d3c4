"""Samples with what is in them, as one page for a browser. It needs no network and no script."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastload import Ragged
from fastload.tools.look.samples import Row, Shown
from fastload.tools.measure.page import document

_COLOURS = (
    *("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080"),
    *("#f032e6", "#808000", "#9a6324", "#800000", "#000075", "#469990"),
)
"""Of classes, by label."""
_MASK_ALPHA = 140
"""Opacity of a mask's colour over the image, of 255."""
_QUALITY = 85
_STYLE = """
body { max-width: none; } h2 { font-size: 15px; margin: 24px 0 8px; }
.row { display: grid; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr)); gap: 12px; }
figure { margin: 0; }
figcaption { font-weight: 400; font-size: 13px; color: var(--muted); margin: 4px 0 0; }
svg { background: var(--grid); overflow: hidden; }
rect, polygon { fill-opacity: 0; stroke-width: 2; vector-effect: non-scaling-stroke; }
polygon { fill-opacity: .3; } .crowd { stroke-dasharray: 6 4; }
text { font-size: 12px; font-weight: 600; paint-order: stroke; stroke: #fff; stroke-width: 3; }
"""
"""Added to the style of all pages."""


def page(
    rows: Sequence[Row], *, title: str, summary: str, transform: str, classes: Sequence[str] | None
) -> str:
    """The HTML. `transform`: what makes the versions after the first, in words."""
    about = f"{summary}. Left as stored, then as the transform makes it in each epoch: {transform}"
    body = "".join(_row(row, classes) for row in rows)
    return document(title, about, {}, lead=body, style=_STYLE)


def _row(row: Row, classes: Sequence[str] | None) -> str:
    figures = "".join(_figure(one, classes) for one in row.versions)
    return f'<h2>{escape(row.name)}</h2>\n<div class="row">\n{figures}</div>\n'


def _figure(shown: Shown, classes: Sequence[str] | None) -> str:
    height, width = shown.pixels.shape[:2]
    words = [shown.title, f"{width} x {height}", *_facts(shown.columns, classes)]
    words += ["colours stretched to be seen"] if shown.stretched else []
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(shown.title)}">\n'
        f'<image width="{width}" height="{height}" href="{_jpeg(shown.pixels)}"/>\n'
        f"{''.join(_drawn(shown, classes))}</svg>\n"
        f"<figcaption>{escape(', '.join(words))}</figcaption></figure>\n"
    )


def _facts(columns: Mapping[str, Any], classes: Sequence[str] | None) -> Iterator[str]:
    """What is not drawn: the label of an image, how many objects there are."""
    label = columns.get("label")
    if isinstance(label, torch.Tensor) and label.ndim == 0:
        yield f"label {_class(int(label), classes)}"
    if "boxes" in columns:
        yield f"boxes: {len(columns['boxes'])}"


def _drawn(shown: Shown, classes: Sequence[str] | None) -> Iterator[str]:
    columns, (height, width) = shown.columns, shown.pixels.shape[:2]
    mask = columns.get("mask")
    if isinstance(mask, torch.Tensor) and mask.ndim == 2:
        # Where pixels have the classes of segments, 0 is one of them, and no background.
        href = _overlay(mask.numpy(), first=0 if "is_thing" in columns else 1)
        yield f'<image width="{width}" height="{height}" href="{href}"/>\n'
    labels = columns.get("labels")
    crowds = columns.get("iscrowd")

    def colour(number: int) -> str:
        own = number if labels is None else int(labels[number])
        return _COLOURS[own % len(_COLOURS)]

    masks = columns.get("masks")
    if isinstance(masks, torch.Tensor) and masks.ndim == 3 and len(masks):
        href = _overlay_of_objects(masks.numpy(), [colour(number) for number in range(len(masks))])
        yield f'<image width="{width}" height="{height}" href="{href}"/>\n'
    polygons = columns.get("polygons")
    if isinstance(polygons, Ragged):
        for number, outlines in enumerate(polygons):
            for outline in outlines:
                corners = " ".join(f"{x:.2f},{y:.2f}" for x, y in outline.tolist())
                own = colour(number)
                yield f'<polygon points="{corners}" fill="{own}" stroke="{own}"/>\n'
    boxes = columns.get("boxes")
    for number, box in enumerate([] if boxes is None else boxes.reshape(-1, 4).tolist()):
        left, top, right, bottom = box
        own = colour(number)
        crowd = crowds is not None and bool(crowds[number])
        dashed = ' class="crowd"' if crowd else ""
        yield (
            f'<rect x="{left:.2f}" y="{top:.2f}" width="{max(right - left, 0):.2f}" '
            f'height="{max(bottom - top, 0):.2f}" stroke="{own}"'
            f"{dashed}/>\n"
        )
        if labels is not None:
            name = escape(_class(int(labels[number]), classes) + (" (crowd)" if crowd else ""))
            yield f'<text x="{left + 2:.2f}" y="{top + 12:.2f}" fill="{own}">{name}</text>\n'
    points = columns.get("keypoints")
    for number, pose in enumerate([] if points is None else points.tolist()):
        for x, y, *visible in pose if isinstance(pose[0], list) else [pose]:
            if not visible or visible[0] > 0:
                yield (
                    f'<circle cx="{x + 0.5:.2f}" cy="{y + 0.5:.2f}" r="2.5" '
                    f'fill="{colour(number)}"/>\n'
                )


def _class(label: int, classes: Sequence[str] | None) -> str:
    known = classes is not None and 0 <= label < len(classes)
    return classes[label] if known else str(label)  # type: ignore[index]


def _jpeg(pixels: npt.NDArray[np.uint8]) -> str:
    return _encoded(Image.fromarray(pixels), "JPEG", quality=_QUALITY)


def _overlay(mask: npt.NDArray[Any], *, first: int) -> str:
    """The class of each pixel as a colour, a PNG; classes below `first` and 255, which is none,
    stay clear."""
    table = np.zeros((256, 4), np.uint8)
    for label in range(first, 255):
        table[label] = _seen_through(_COLOURS[label % len(_COLOURS)])
    return _encoded(Image.fromarray(table[mask.astype(np.uint8)], "RGBA"), "PNG")


def _overlay_of_objects(masks: npt.NDArray[np.uint8], colours: Sequence[str]) -> str:
    """(n, H, W) masks of objects, the later ones above, each in its colour."""
    picture = np.zeros((*masks.shape[1:], 4), np.uint8)
    for mask, colour in zip(masks, colours, strict=True):
        picture[mask != 0] = _seen_through(colour)
    return _encoded(Image.fromarray(picture, "RGBA"), "PNG")


def _seen_through(colour: str) -> tuple[int, ...]:
    """Red, green, blue and alpha of "#rrggbb"."""
    return (*(int(colour[at : at + 2], 16) for at in (1, 3, 5)), _MASK_ALPHA)


def _encoded(image: Image.Image, form: str, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
