"""A data set and what lies beside it, as one: `fastload.join`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from fastload.arguments import checks_names
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources import keys
from fastload.sources.base import Opened, Source, TransformsBySource
from fastload.sources.columns import Column
from fastload.sources.opening import open_source
from fastload.sources.partner_files import open_partner
from fastload.sources.partners import Partner, Rows, fingerprint_of_rows, number_of

__all__ = ["Partner", "join"]

logger = logging.getLogger("fastload")


@checks_names()
def join(
    source: Any,
    partners: Mapping[str, Any],
    *,
    by: str,
    missing: Literal["error", "drop"] = "error",
) -> Opened:
    """A data set with columns that lie elsewhere: latents, captions, embeddings, masks.

    Every sample gets the rows of its own key. Rows are read when a batch needs them, but for those
    of tables, which are read here.

    Args:
        source: a data set, as `open_source` takes it, or what that has opened.
        partners: by the names of the new columns, where their rows are, each also as a
            `fastload.Partner` that says more:

            - an array, a tensor, a list of texts, a `fastload.Ragged`, or a `.npy` file, of which
              row i is that of sample i: `by="index"`;
            - a `.npz` or `.safetensors` file with an array for each sample, named by its key; or
              with one array of a row for each sample (`by="index"`; of several arrays the one
              called as the column, or `Partner(path, value=...)`);
            - a table, `.jsonl`, `.csv`, `.tsv`, `.json` or `.parquet`, with a column of keys and
              one of values: numbers, lists of them, texts, or any values of JSON, which become
              objects of Python's;
            - a folder of `.npy` files, `.txt` files or images, named by their keys;
            - a dict by key, of arrays, texts or numbers;
            - what `open_source` has opened.

        by: what the keys are. "name": names of the samples' files, with folders above them or
            without, with their endings or without. "index": numbers of samples, from 0;
            what has no keys, such as an array, or a table without a column `index`, has a row for
            each sample. Or a column of the data set, of texts or whole numbers, of which several
            samples may have the same.
        missing: of a sample without a partner, "error"; or "drop", which leaves it out, and says
            how many.

    Returns:
        The data set, of which a sample is a dict: its own columns, then those of `partners`. Notes
        say what was left out, and how many rows are of no sample.

    Raises:
        SourceError: a partner cannot be read; a key is there twice, or may be several samples; a
            sample has no partner; an array has not one row for each sample. The message names the
            file and the key.
        ConfigurationError: an argument is wrong; it is not known which column is meant.
    """
    if missing not in ("error", "drop"):
        raise ConfigurationError(f"missing: must be 'error' or 'drop', got {missing!r}.")
    if not isinstance(by, str) or not by:
        raise ConfigurationError(f"by: must be 'name', 'index' or a column, got {by!r}.")
    if not isinstance(partners, Mapping) or not partners:
        raise ConfigurationError(
            "partners: a dict from the names of columns to where their rows are, such as "
            f"{{'latents': 'latents.safetensors'}}, got {partners!r}."
        )
    opened = open_source(source)
    _check(opened, partners, by)
    whole = opened.source
    columns, found, notes = dict[str, Column](), dict[str, keys.Found](), list[str]()
    identity: list[Any] = [whole.fingerprint, by]
    for name, given in partners.items():
        rows = open_partner(name, given, by)
        found[name], describe = _matched(whole, rows, by, missing)
        columns[name] = rows.column
        identity += [name, fingerprint_of_rows(rows)]
        absent = int((found[name].keys < 0).sum())
        if absent and missing == "error":
            words = keys.some_missing(rows.name, found[name], describe, rows.keys or ())
            raise SourceError(f"{words}; add it, or leave such samples out: missing='drop'.")
        notes.append(_note_of(name, rows, found[name], absent, by))
    good = np.flatnonzero(np.all([one.keys >= 0 for one in found.values()], axis=0))
    if not len(good):
        raise SourceError(
            f"{whole.name}: no sample has all partners ({'; '.join(notes)}); look at the keys."
        )
    if len(good) < len(whole):
        left = counted(len(whole) - len(good), "sample")
        notes.append(f"{left} of {len(whole):,} left out, which lack a partner")
        logger.warning("%s: %s.", whole.name, "; ".join(notes))
        whole = whole.take(good)
    for name, column in columns.items():
        taken = found[name].keys[good]
        same = len(taken) == len(column) and bool((taken == np.arange(len(taken))).all())
        columns[name] = column if same else column.take(taken)
        identity.append(taken)
    joined = Source(
        {**whole.columns, **columns},
        fingerprint_of("joined", *identity),
        opened.source.name,
        layout="dict",
        classes=whole.classes,
        format=whole.format,
        details=whole.details,
        upright=whole.upright,
    )
    if len(good) < len(opened.source):  # `Mixed.locate` counts the samples that were there
        opened = Opened(opened.source, opened.transform, opened.notes)
    return replace(opened, source=joined, notes=(*opened.notes, *notes), bare=None)


def _check(opened: Opened, partners: Mapping[str, Any], by: str) -> None:
    """Raise ConfigurationError: the data set cannot be joined to, or it is not known how."""
    source = opened.source
    if source.objects:
        producer = next(iter(source.objects.values())).producer
        raise ConfigurationError(
            f"join: the samples of {source.name} are made by Python code ({producer}), which may "
            "give any for an index; join there, or open its files: fastload.open_source(path)."
        )
    if source.mixture is not None or isinstance(opened.transform, TransformsBySource):
        raise ConfigurationError(
            f"join: {source.name} is a mix with weights or transforms by source. Join to each "
            "source, and mix those."
        )
    if opened.assumed is not None:
        raise ConfigurationError(
            f"join: {source.name} was opened with assume_plain; open its files by their path."
        )
    if by in ("name", "index") and by in source.columns:
        raise ConfigurationError(
            f"by={by!r}: {source.name} has a column of this name, and it is not known which is "
            "meant; open it without this column (fields=...), or rename it."
        )
    for name in partners:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"partners: {name!r} is no name of a column; give a text.")
        if name in source.columns:
            raise ConfigurationError(
                f"partners: {source.name} has a column {name!r} already; give another name."
            )


def _matched(source: Source, rows: Rows, by: str, missing: str) -> tuple[keys.Found, keys.Describe]:
    """Which row each sample has, and how messages name a sample."""
    if rows.keys is None:
        if by != "index":
            raise ConfigurationError(
                f"by={by!r}: {rows.name} has {number_of(rows)} and no keys; join it by='index', or "
                "give what has keys: a dict, a table, a folder, a .npz or .safetensors file with "
                "an array for each sample."
            )
        if len(rows.column) != len(source):
            raise SourceError(
                f"{rows.name}: has {number_of(rows)}, and {source.name} "
                f"{counted(len(source), 'sample')}, so that nobody knows which row is whose; give "
                "one with keys, and join by them, or one with as many rows."
            )
        return keys.Found(np.arange(len(source), dtype=np.int64), 0), source.describe
    if by == "name":
        return keys.by_name(source, rows.keys, rows.describe), source.describe
    if by == "index":
        found = keys.by_number(len(source), rows.keys, rows.name, rows.describe)
        return found, source.describe
    return keys.by_column(source, by, rows.keys, rows.describe)


def _note_of(name: str, rows: Rows, found: keys.Found, absent: int, by: str) -> str:
    words = f"{name!r} joined by {by}: {rows.name}"
    if absent:
        words += f", no partner of {counted(absent, 'sample')}"
    if found.unused:
        words += f", {number_of(rows)}, of which {found.unused:,} of no sample"
    return words
