"""`fastload index`: what takes long to find out about a data set, found once and kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastload.cli.commands import Format, Split
from fastload.errors import ConfigurationError, counted
from fastload.files import check_output
from fastload.terminal import output, plain_errors


def index(
    source: Annotated[
        str,
        typer.Argument(
            help="A URL that create_loader takes: s3://bucket/train, shards; or a folder of images."
        ),
    ],
    split: Split = None,
    format: Format = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="The file to write, to be stored with the data as 'fastload.index'. "
            "Without it: under ~/.cache/fastload, where loaders look.",
        ),
    ] = None,
    jpegs: Annotated[
        bool,
        typer.Option(
            "--jpegs",
            help="Instead of that, decode each JPEG once and keep at which places decoding can "
            "start: crops are then faster from the first epoch on. SOURCE may be a folder.",
        ),
    ] = False,
    every: Annotated[
        int,
        typer.Option(
            help="Of --jpegs: pixels from one place to the next, 64, 32 or 16. 32 is for decoding "
            "on a GPU: what one thread decodes is half as long, and the file twice as large.",
        ),
    ] = 64,
) -> None:
    """List SOURCE, read the headers of its shards, and keep names, sizes, versions and offsets.

    Loaders make such an index themselves, at the first opening on a machine. Made here it can be
    stored with the data, so that no machine needs to list them. Of a local folder its listing is
    kept, which holds while no folder in it changes.
    """
    with plain_errors():
        if to is not None:
            check_output(to, "--output")
        if every not in (16, 32, 64):
            raise ConfigurationError(f"--every: {every} pixels; 64, 32 or 16 are possible.")
        if jpegs:
            _note_points(source, to, split, every)
            return
        from fastload.sources.opening import make_index

        path, opened = make_index(source, split=split, format=format, to=to)
        size = path.stat().st_size / 1e6
        words = f"{opened.source.format}, {counted(len(opened.source), 'sample')}"
        output().print(f"{path}  {words}, {size:,.1f} MB", soft_wrap=True)
        if to is not None:
            output().print(
                f"Store it with the data: {source.rstrip('/')}/fastload.index", soft_wrap=True
            )


def _note_points(source: str, to: Path | None, split: str | None, every: int) -> None:
    from fastload.native.seek_filling import fill_seek_index

    index, filled = fill_seek_index(source, to, split=split, every=every)
    size = index.contents.bytes / 1e6
    words = f"seek index of {counted(index.contents.images, 'JPEG')}, {size:,.1f} MB"
    output().print(f"{index.path}  {words}", soft_wrap=True)
    output().print(
        f"{counted(filled.images, 'image')} read: {filled.noted:,} noted, {filled.known:,} known, "
        f"{filled.others:,} without (no baseline JPEGs, small, or damaged)",
        soft_wrap=True,
    )
