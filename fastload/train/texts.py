"""Texts with labels, from TSV, CSV or JSON lines: tokenised once, then rows of token ids like any
array.

A table's first line names its columns. `text` (or `sentence`, `document`) and `label` are read;
labels are whole numbers from 0 on, or words, which become the classes in alphabetical order.
Padding is added by the row, up to the longest text of the file; `TextClassification` cuts each
batch to its own longest.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fastload.errors import ConfigurationError, SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.locks import exclusive_lock
from fastload.machine import cache_home
from fastload.sources import Opened, Source, ValueArray
from fastload.sources.names import SPLITS
from fastload.train.models import import_library

logger = logging.getLogger("fastload")

# The key of token ids in a batch of text.
TOKENS = "input_ids"
# RoBERTa's id of padding; 0 begins a text, 2 ends it.
PADDING = 1
_BEGIN, _END = 0, 2
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
# The most tokens of a vocabulary made from the texts.
_VOCABULARY = 8192
_FORMATS = (".tsv", ".csv", ".jsonl")
_TEXT_COLUMNS = ("text", "sentence", "document")
# Names of files to validate on; the first that exists is taken.
VALIDATION = (*SPLITS["val"], *SPLITS["test"])
_NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?", re.IGNORECASE)
_VERSION = 1


class _Table(NamedTuple):
    path: Path
    texts: list[str]
    labels: list[str]


def open_texts(
    data: str, val_data: str | None, *, tokenizer: str | None, length: int
) -> tuple[Opened, Opened | None]:
    """The training texts, and the validation texts if there are any; the source's details have the
    vocabulary's size.

    Args:
        data: a file, or a folder with train.tsv (.csv, .jsonl) and perhaps val.tsv, dev.tsv and so
            on.
        val_data: a file to validate on.
        tokenizer: a name on the Hugging Face hub, or a folder. None: a byte-level BPE made from the
            training texts.
        length: tokens kept of a text, begin and end included; the rest is cut off, counted, and
            reported once.
    """
    train, beside = _find(data)
    val = beside if val_data is None else _find(val_data)[0]
    tables = [_read(path) for path in (train, val) if path is not None]
    classes = _classes(tables)
    encoder = _encoder(tokenizer, tables[0].texts)
    opened = []
    for table in tables:
        tokens, truncated = _tokenised(table, encoder, length)
        labels = np.array(
            [classes.index(label) if classes else int(label) for label in table.labels], np.int64
        )
        source = Source(
            {TOKENS: ValueArray(tokens), "label": ValueArray(labels)},
            fingerprint_of(encoder.key, length, tokens, labels),
            str(table.path),
            layout="dict",
            classes=classes or None,
            format="texts",
            details={"vocabulary": encoder.vocabulary},
        )
        opened.append(Opened(source))
        if truncated and os.environ.get("RANK", "0") == "0":  # once, however many ranks
            words = "%s: %d of %d texts are longer than %d tokens and were cut off (--text-length)"
            logger.warning(words, table.path, truncated, len(tokens), length)
    return opened[0], opened[1] if len(opened) > 1 else None


# -- Files -----------------------------------------------------------------------------------------


def _find(data: str) -> tuple[Path, Path | None]:
    """The file to train on, and the one to validate on, if it is a folder with one."""
    path = Path(data).expanduser()
    if not path.is_dir():
        return path, None

    def named(*names: str) -> Path | None:
        files = (path / f"{name}{ending}" for name in names for ending in _FORMATS)
        return next((file for file in files if file.is_file()), None)

    train = named("train")
    if train is None:
        raise SourceError(
            f"{path}: there is no train.tsv, train.csv or train.jsonl in it; give the file itself."
        )
    return train, named(*VALIDATION)


def _read(path: Path) -> _Table:
    if path.suffix not in _FORMATS:
        raise SourceError(
            f"{path}: texts are in .tsv, .csv or .jsonl files, with a column text and a column "
            "label."
        )
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(
                _rows_of_objects(path, file)
                if path.suffix == ".jsonl"
                else _rows_of_table(path, file)
            )
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from error
    if not rows:
        raise SourceError(f"{path}: no texts found.")
    return _Table(path, [text for text, _ in rows], [label for _, label in rows])


def _rows_of_objects(path: Path, file: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(file, 1):
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise SourceError(f"{path}, line {number}: is no JSON ({error}).") from error
        text, label = _columns(path, row if isinstance(row, dict) else {})
        yield str(row[text]), str(row[label])


def _rows_of_table(path: Path, file: Iterable[str]) -> Iterator[tuple[str, str]]:
    quoting: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    table = csv.reader(file, **quoting)
    names = next(table, [])
    text, label = map(names.index, _columns(path, names))
    for row in table:
        if len(row) != len(names):
            raise SourceError(
                f"{path}, line {table.line_num}: {counted(len(row), 'column')}, but the first line "
                f"has {len(names)}."
            )
        yield row[text], row[label]


def _columns(path: Path, names: Iterable[str]) -> tuple[str, str]:
    """Those of the text and of the label."""
    names = list(names)
    text = next((name for name in _TEXT_COLUMNS if name in names), None)
    if text is None or "label" not in names:
        missing = "label" if text is not None else "text"
        raise SourceError(
            f"{path}: there is no column {missing!r}; the first line (or each JSON object) must "
            "name a column text (or sentence, document) and a column label, found "
            f"{', '.join(map(repr, names)) or 'none'}."
        )
    return text, "label"


def _classes(tables: Sequence[_Table]) -> tuple[str, ...]:
    """Names by label, where labels are words; () where they are numbers."""
    path, train = tables[0].path, set(tables[0].labels)
    if len(train) < 2:
        raise SourceError(
            f"{path}: every text has the label {tables[0].labels[0]!r}; there is nothing to tell "
            "apart."
        )
    numbers = all(label.isascii() and label.isdigit() for label in train)
    if not numbers and all(map(_NUMBER.fullmatch, train)):
        wrong = next(label for label in sorted(train) if not label.isdigit())
        raise SourceError(
            f"{path}: the label {wrong!r} is no whole number from 0 on; give such, or words."
        )
    for table in tables[1:]:
        unknown = sorted(set(table.labels) - train)
        if unknown:
            raise SourceError(
                f"{table.path}: has labels that {path} has not: {', '.join(unknown[:5])}."
            )
    return () if numbers else tuple(sorted(train))


# -- Tokens ----------------------------------------------------------------------------------------


class _Encoder(NamedTuple):
    encode: Callable[[list[str]], list[list[int]]]
    """Texts to token ids, without begin and end."""
    vocabulary: int
    key: str
    """Of two encoders with one key the tokens are the same."""


def _encoder(name: str | None, texts: Sequence[str]) -> _Encoder:
    """The tokenizer of this name, or without one, made from these texts."""
    if name is None:
        bpe = import_library("tokenizers").ByteLevelBPETokenizer()
        bpe.train_from_iterator(
            texts,
            vocab_size=_VOCABULARY,
            min_frequency=2,
            special_tokens=_SPECIAL,
            show_progress=False,
        )
        key = hashlib.sha256(bpe.to_str().encode()).hexdigest()
        return _Encoder(
            lambda some: [encoding.ids for encoding in bpe.encode_batch(some)],
            int(bpe.get_vocab_size()),
            key,
        )
    try:
        tokenizer = import_library("transformers").AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"tokenizer {name!r}: {error}") from error
    ids = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    if ids != (_BEGIN, PADDING, _END):
        raise ConfigurationError(
            f"tokenizer {name!r}: begin, padding and end are {ids}, and of RoBERTa's tokenizers "
            f"they are {(_BEGIN, PADDING, _END)}; take one of those."
        )
    return _Encoder(
        lambda some: tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"],
        len(tokenizer),
        fingerprint_of(name, len(tokenizer)),
    )


def _tokenised(table: _Table, encoder: _Encoder, length: int) -> tuple[npt.NDArray[np.int32], int]:
    """(N, L) token ids, padded, as a memory map, and how many texts were cut off. The first to ask
    makes them."""
    folder = cache_home() / "texts" / fingerprint_of(_VERSION, encoder.key, length, table.texts)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _tokenise(table, encoder, length, folder)
    truncated = msgspec.json.decode((folder / "truncated.json").read_bytes(), type=int)
    return np.load(folder / "tokens.npy", mmap_mode="r"), truncated


def _tokenise(table: _Table, encoder: _Encoder, length: int, folder: Path) -> None:
    """Write the folder, all of it or nothing."""
    encoded = encoder.encode(table.texts)
    truncated = sum(len(ids) > length - 2 for ids in encoded)
    tokens = np.full(
        (len(encoded), 2 + max(min(len(ids), length - 2) for ids in encoded)), PADDING, np.int32
    )
    for row, ids in zip(tokens, encoded, strict=True):
        kept = [_BEGIN, *ids[: length - 2], _END]
        row[: len(kept)] = kept
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        beside = Path(temporary) / folder.name
        beside.mkdir()
        np.save(beside / "tokens.npy", tokens)
        (beside / "truncated.json").write_bytes(msgspec.json.encode(truncated))
        os.replace(beside, folder)
