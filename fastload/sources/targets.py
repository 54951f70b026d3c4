"""What the cells of a table say of an image where they are numbers: one class of several columns
(one-hot), several classes at once (multi-label), or numbers to be predicted (regression).

    image_id,healthy,rust,scab      image,smiling,young      image,x,y
    a,0,1,0                         a,1,1                    a,0.25,12.5
    b,1,0,0                         b,0,1                    b,0.5,8
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError, counted

Floats = npt.NDArray[np.float32]
Meaning = Literal["class", "classes", "numbers"]
"""One class an image, several, or numbers."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[0-9]+,[0-9]+")
_TRUTHS = {"true": 1.0, "false": 0.0}
"""As pandas writes the columns of `get_dummies`."""


class Training(NamedTuple):
    """What the training split says, which other splits follow."""

    meaning: Meaning
    names: tuple[str, ...]
    """Of classes, or of columns of numbers."""
    place: str
    """Its table or folder, for messages."""


class Cells(NamedTuple):
    """Cells of some columns of a table, a row for each image."""

    path: str
    titles: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: Sequence[int]
    """Of these rows in the table, counted from 1; a header is row 1."""
    images: Sequence[str]

    def describe(self, row: int) -> str:
        """How messages name a row."""
        return f"{self.path}: row {self.numbers[row]}: {self.images[row]}"


class _Numbers(dict[str, float]):
    """The number that a text is, nan where it is none, kept for the next of the same."""

    def __missing__(self, text: str) -> float:
        with np.errstate(over="ignore"):
            number = float(np.float32(text)) if _NUMBER.fullmatch(text) else float("nan")
        number = _TRUTHS.get(text.lower(), number)
        self[text] = number = number if np.isfinite(number) else float("nan")
        return number


def numbers_of(rows: Iterable[Sequence[str]]) -> Floats:
    """The numbers of rows of cells; nan where a cell is none."""
    known = _Numbers()
    return np.array([[known[cell] for cell in row] for row in rows], dtype=np.float32)


def some_have_fractions(numbers: Floats) -> npt.NDArray[np.bool_]:
    """Of each column whether one of its numbers is not whole."""
    fractions: npt.NDArray[np.bool_] = (np.nan_to_num(numbers) % 1 != 0).any(0)
    return fractions


def all_numbers(cells: Cells) -> Floats:
    """The numbers of the cells. Raises SourceError: one is none; the message names the row."""
    numbers = numbers_of(cells.rows)
    odd = np.isnan(numbers)
    if odd.any():
        row, column = np.argwhere(odd)[0].tolist()
        text = cells.rows[row][column]
        odd_one = "is empty" if not text else f"is {text[:40]!r}, which is no number"
        raise SourceError(
            f"{cells.describe(row)}: column {cells.titles[column]!r} {odd_one}, where others are; "
            "write it, or remove the row and the image."
        )
    return numbers


def meaning_of(
    cells: Cells, numbers: Floats, training: Training | None, *, wanted: bool, split: str | None
) -> tuple[Meaning, Floats]:
    """What several columns of numbers mean, or a single one that holds no classes; and their
    numbers, 0 and 1 where they say classes.

    Args:
        training: what the training split says.
        wanted: whether the user names the columns as targets.
        split: that of the images; without a training split it may be of several classes although
            each image has one.

    Raises:
        SourceError: it is not known; or they are not as in the training split.
    """
    if wanted and len(cells.titles) == 1:
        return "numbers", numbers
    classes = _as_classes(numbers) if len(cells.titles) > 1 else None
    one_each = classes is not None and bool((classes.sum(1) == 1).all())
    if wanted:
        return ("numbers", numbers) if classes is None else ("classes", classes)
    if training is not None:
        if training.meaning == "numbers":
            return "numbers", numbers
        if classes is None or (training.meaning == "class" and not one_each):
            raise SourceError(_unlike(cells, numbers, classes, training))
        return training.meaning, classes
    if classes is None:
        whole = [*np.flatnonzero(~some_have_fractions(numbers))]
        if whole:
            raise SourceError(
                f"{cells.path}: it is not known what its columns of numbers are: "
                f"{', '.join(cells.titles)} ({cells.titles[whole[0]]!r} has whole numbers, as "
                f"classes and counts are). {remedy(cells.titles)}"
            )
        return "numbers", numbers
    if one_each and split in ("val", "test"):
        raise SourceError(
            f"{cells.path}: each image has one class, and whether images have several at once is "
            "for the training data to say, which is not there. Put the training split beside it; "
            f"or say that they have one: open_source(..., classes={_some(cells.titles)}), by "
            f"label; or several: open_source(..., target={_some(cells.titles)})."
        )
    return ("class" if one_each else "classes"), classes


def _as_classes(numbers: Floats) -> Floats | None:
    """0 and 1 for each column; -1 and 1, as CelebA has them, as these. None: other numbers."""
    values = {*np.unique(numbers).tolist()}
    if values <= {0.0, 1.0}:
        return numbers
    return (numbers > 0).astype(np.float32) if values <= {-1.0, 1.0} else None


def _unlike(cells: Cells, numbers: Floats, classes: Floats | None, training: Training) -> str:
    """What does not go together with the training split, for a message."""
    if classes is None:
        row = int(np.flatnonzero(~np.isin(numbers, (0, 1)).all(1))[0])
        column = int(np.flatnonzero(~np.isin(numbers[row], (0, 1)))[0])
        what = f"column {cells.titles[column]!r} has {cells.rows[row][column]!r}, not 0 or 1"
    else:
        row = int(np.flatnonzero(classes.sum(1) != 1)[0])
        what = f"has {counted(int(classes[row].sum()), 'class')}"
    each = "one class an image" if training.meaning == "class" else "0 or 1 for each class"
    return (
        f"{cells.describe(row)}: {what}, and {training.place} has {each}. Correct it; or open both "
        f"as what they are: open_source(..., target={_some(cells.titles)})."
    )


def remedy(titles: Sequence[str]) -> str:
    """How to say which columns are numbers to be predicted, of those that there are."""
    table = "a table of two columns, file and label, in its place."
    if not titles:
        return f"Write {table}"
    return (
        "Name the numbers to be predicted, or classes of which an image may have several: "
        f"open_source(..., target={_some(titles)}); or write {table}"
    )


def _some(titles: Sequence[str]) -> str:
    return f"[{', '.join(map(repr, titles[:3]))}{', ...' if titles[3:] else ''}]"


def refuse_several_in_one(texts: Iterable[str], title: str, path: str) -> None:
    """Raise SourceError if labels are lists of classes: words or numbers with a mark between that
    are labels by themselves, too; `a|b`; or any with spaces in a column called tags or the like."""
    labels = [*Counter(texts)]
    alone = {*labels}
    for label in labels:
        for mark in ("|", ";", ",", " "):
            words = [word.strip() for word in label.split(mark)]
            if len(words) < 2 or not all(words) or _DECIMAL_COMMA.fullmatch(label):
                continue
            if (
                mark == "|"
                or alone.issuperset(words)
                or all(re.fullmatch(r"[0-9]+", word) for word in words)
                or title.lower() in _SEVERAL
            ):
                raise SourceError(
                    f"{path}: the label {label[:60]!r} is several classes by its parts; write a "
                    "column of 0 and 1 for each class, as pandas makes them: "
                    f"table[{title!r}].str.get_dummies({mark!r}). If it is the name "
                    "of one class, give all of them: fastload.open_source(folder, classes=[...])."
                )


_SEVERAL = ("tags", "tag", "attributes", "attribute_ids", "keywords", "classes")
