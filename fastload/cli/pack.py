"""`fastload pack`: a data set written again as shards."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from fastload.cli.commands import Format, Split
from fastload.errors import ConfigurationError, counted
from fastload.terminal import output, plain_errors

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def pack(
    source: Annotated[
        str, typer.Argument(help="What create_loader takes: a folder of classes, a URL, shards.")
    ],
    dest: Annotated[
        str, typer.Argument(help="Where the shards go: a new or empty folder, or a URL.")
    ],
    to: Annotated[
        str,
        typer.Option(
            help="tar (as WebDataset), parquet (as Hugging Face) or cache (decoded pixels)."
        ),
    ] = "tar",
    size: Annotated[str, typer.Option(help="How large a shard is, about.")] = "1GB",
    short_side: Annotated[
        int | None,
        typer.Option(
            help="Reduce images to this many pixels on the shorter side, as JPEG. Without it all "
            "are copied, byte for byte."
        ),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Quality of JPEGs made by --short-side. Without it: 90.")
    ] = None,
    shuffle: Annotated[
        int | None, typer.Option(help="Mix the samples, by this seed.", metavar="SEED")
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(help="Shares of train and val (and test), at random.", metavar="0.9,0.1"),
    ] = None,
    split: Split = None,
    format: Format = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A sample that cannot be read is an error.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads. Without it: one a core.")] = (
        None
    ),
    ray: Annotated[
        str | None,
        typer.Option(help="Have the nodes of a Ray cluster do it.", metavar="ADDRESS"),
    ] = None,
) -> None:
    """Write SOURCE again below DEST, as shards or as a cache, with its labels and classes, in its
    order.

    The names and bytes follow from the samples and the options alone. When it was interrupted, the
    same command goes on with what is missing.
    """
    with plain_errors():
        from fastload.tools.pack import PackOptions, pack, pack_caches

        if split is not None and re.fullmatch(r"[\d.,\s]+", split):
            raise ConfigurationError(
                f"--split: names a part of SOURCE, got {split!r}; of shares: --shares {split}."
            )
        if to not in ("tar", "parquet", "cache"):
            raise ConfigurationError(f"--to: must be tar, parquet or cache, got {to!r}.")
        options = PackOptions(
            format="tar" if to == "cache" else to,  # type: ignore[arg-type]
            size=_bytes(size),
            short_side=short_side,
            quality=quality,
            shuffle=shuffle,
            shares=_shares(shares),
        )
        if to == "cache":
            if ray is not None:
                raise ConfigurationError(
                    "--ray: a cache is written by one machine, to its own disk; leave --ray out, "
                    "or pack shards."
                )
            caches = pack_caches(
                source,
                dest,
                options,
                split=split,
                format=format,
                num_workers=workers,
                strict=strict,
            )
            for cache in caches:
                output().print(str(cache), soft_wrap=True)
            output().print("fastload cache info says what is in it.")
            return
        packed = pack(
            source,
            dest,
            options,
            split=split,
            format=format,
            num_workers=workers,
            strict=strict,
            ray=ray,
        )
        output().print(f"{packed.place}  {packed.summary}", soft_wrap=True)
        if packed.found:
            output().print(f"{counted(packed.found, 'shard')} of them were there already.")
        if packed.rejected:
            output().print(
                f"{counted(packed.rejected, 'sample')} left out, which cannot be read: the report "
                "names them."
            )
        output().print(packed.report, soft_wrap=True)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?B)?\s*", text.upper())
    if match is None:
        raise ConfigurationError(f"--size: must be as 500MB or 1GB, got {text!r}.")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        return () if text is None else tuple(float(share) for share in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--shares: must be as 0.9,0.1, got {text!r}.") from None
