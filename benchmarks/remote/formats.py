"""What the contestants read: the photographs in each format, in a folder and in the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.remote.contestants import BUCKET

SHARD = 16 << 20
"""Bytes of a shard of LitData; the others have 64 MiB."""


def write(what: str, folder: Path) -> None:
    """The photographs in one of the formats, by its own writer."""
    from benchmarks import packing

    source, target = folder / "photographs", folder / what
    if what == "tar":
        packing.by_fastload(source, target, None)
    elif what == "mds":
        packing.by_streaming(source, target, None)
    elif what == "parquet":
        packing.by_parquet(source, target, None)
    elif what == "litdata":
        _write_litdata(source, target)
    elif what == "lance":
        _write_lance(source, target)


def _samples(source: Path) -> list[tuple[str, int]]:
    return [
        (str(path), label)
        for label, folder in enumerate(sorted(source.iterdir()))
        for path in sorted(folder.iterdir())
    ]


def _write_litdata(source: Path, target: Path) -> None:
    import litdata as package

    package.optimize(
        fn=jpeg_of,
        inputs=_samples(source),
        output_dir=str(target),
        chunk_bytes=SHARD,
        num_workers=1,
    )


def jpeg_of(item: tuple[str, int]) -> dict[str, Any]:
    """A JPEG that LitData stores as it is."""
    from PIL import Image

    return {"image": Image.open(item[0]), "label": item[1]}


def _write_lance(source: Path, target: Path) -> None:
    import lance as package
    import pyarrow as pa

    target.mkdir()
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    rows = _samples(source)

    def batches() -> Iterator[Any]:
        for start in range(0, len(rows), 100):
            part = rows[start : start + 100]
            columns = [[Path(path).read_bytes() for path, _ in part], [label for _, label in part]]
            yield pa.record_batch(
                [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)],
                schema,
            )

    package.write_dataset(batches(), str(target / "photographs.lance"), schema)


def copies(photographs: Path, target: Path, count: int) -> int:
    """So many files in class folders, those there are again and again. Returns their bytes."""
    paths = sorted(photographs.glob("*/*.jp*g"))
    if not paths:
        raise SystemExit(f"{photographs}: there are no JPEGs in folders of classes in it")
    total = 0
    for number_ in range(count):
        path = paths[number_ % len(paths)]
        copy = target / path.parent.name / f"{number_:06}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        total += copy.stat().st_size
    return total


def upload(folder: Path, endpoint: str) -> None:
    """Everything in a folder, to the store, past the proxy."""
    import obstore

    options: dict[str, Any] = {"aws_endpoint": endpoint, "aws_region": "us-east-1"}
    options |= {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    store: Any = obstore.store.from_url(
        f"s3://{BUCKET}", client_options={"allow_http": True}, **options
    )
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            obstore.put(store, str(path.relative_to(folder)), path)
