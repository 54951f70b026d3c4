"""`fastload cache`: build a cache ahead of time, and see what is in one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fastload.terminal import output, plain_errors

if TYPE_CHECKING:
    from fastload.sources.built_cache import Manifest

cache = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Samples decoded once, kept as tensors.")


@cache.command()
def build(
    source: Annotated[str, typer.Argument(help="What create_loader takes: a folder of classes, an archive, shards.")],
    directory: Annotated[
        Path | None, typer.Option(help="Where to put it. Without it: under ~/.cache/fastload, where loaders look.")
    ] = None,
    short_side: Annotated[
        int | None,
        typer.Option(min=1, help="Reduce images to this many pixels on the shorter side. Smaller, but not exact."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Decoding threads. Without it: one a core.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Note damaged samples and go on.")] = False,
    split: Annotated[str | None, typer.Option(help="Which part of SOURCE, where it has several: train, val.")] = None,
) -> None:
    """Decode all samples of SOURCE once. A cache that is there already is left as it is."""
    with plain_errors():
        import fastload

        built = fastload.build_cache(
            source,
            directory,
            short_side=short_side,
            num_workers=workers,
            on_error="substitute" if skip_bad else "raise",
            split=split,
        )
        _describe(built)


@cache.command()
def info(directory: Annotated[Path, typer.Argument(help="A directory that `fastload cache build` printed.")]) -> None:
    """Say what a cache holds, how large it is, and whether it is whole."""
    with plain_errors():
        _describe(directory)


@cache.command()
def verify(directory: Annotated[Path, typer.Argument(help="A directory that `fastload cache build` printed.")]) -> None:
    """Read a cache whole and hold every file against the checksum that was noted when it was written."""
    with plain_errors():
        from fastload.cache import verify_cache

        manifest = verify_cache(directory)
        files = sum(len(column.arrays) for column in manifest.columns.values())
        output().print(f"{directory}: {files} files are as they were written", soft_wrap=True)


def _describe(directory: Path) -> None:
    from fastload.cache import open_cache
    from fastload.sources.built_cache import read_manifest

    open_cache(directory)  # refuses a cache that is damaged
    rows = _rows(read_manifest(directory), directory)
    width = max(len(name) for name, _ in rows)
    console = output()
    console.print(str(directory), soft_wrap=True, style="bold")
    for name, value in rows:
        console.print(f"{name:<{width}}  {value}", soft_wrap=True)


def _rows(manifest: Manifest, directory: Path) -> list[tuple[str, str]]:
    size = sum(entry.stat().st_size for entry in os.scandir(directory) if entry.is_file())
    rows = [
        ("source", f"{manifest.source} ({manifest.source_format})"),
        ("samples", f"{manifest.samples:,}"),
        ("resolution", manifest.variant.describe()),
        ("size", f"{size / 1e6:,.1f} MB"),
        ("built", f"in {manifest.seconds:.1f} s, decoder {manifest.decoder}"),
    ]
    for name, column in manifest.columns.items():
        arrays = ", ".join(f"{array.dtype} {list(array.shape)}" for array in column.arrays.values())
        rows.append((name, f"{column.kind}: {arrays}"))
    if manifest.classes is not None:
        shown = ", ".join(manifest.classes[:10]) + (", ..." if len(manifest.classes) > 10 else "")
        rows.append(("classes", f"{len(manifest.classes)}: {shown}"))
    if manifest.failed:
        rows.append(("damaged", f"{manifest.failed} samples, noted in the manifest"))
    return rows
