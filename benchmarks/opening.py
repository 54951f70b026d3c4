"""How long it takes to open a folder of very many objects, and how much memory:
`python -m benchmarks.opening --objects 10000000`.

A stand-in for obstore answers each listing after 50 ms with 1,000 objects, in this process, so that
nothing is measured but what fastload does with them and how many it asks for at once. `--plain`:
one request after the other, as before. What is opened is a flat folder of JPEGs.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import numpy as np
import obstore

from fastload.sources import open_source
from fastload.stores import objects, store_of

_PAGE = 1000
_WHEN = datetime(2026, 11, 30, tzinfo=timezone.utc)


class StandIn:
    """Objects `000000000.jpg` and so on in the folder `flat`."""

    def __init__(self, count: int, latency: float) -> None:
        from PIL import Image

        self._count, self._latency = count, latency
        self.requests = 0
        file = io.BytesIO()
        Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(file, "JPEG")
        self._data = file.getvalue()
        self.__version__, self.store, self.exceptions = "0.12.1", obstore.store, obstore.exceptions

    def _page(self, first: int) -> list[dict[str, Any]]:
        self.requests += 1
        size = len(self._data)
        numbers = range(first, min(first + _PAGE, self._count))
        return [
            {
                "path": f"flat/{number:09}.jpg",
                "size": size,
                "e_tag": f'"{number * 0x9E3779B97F4A7C15 & (1 << 64) - 1:032x}"',
                "last_modified": _WHEN,
                "version": None,
            }
            for number in numbers
        ]

    def list(
        self, client: Any, prefix: str, *, offset: str | None, chunk_size: int
    ) -> Iterator[list[dict[str, Any]]]:
        time.sleep(self._latency)
        first = 0
        if offset is not None:  # the number of names up to this one
            name = offset.removeprefix("flat/")
            low, high = 0, self._count
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if f"{middle:09}.jpg" <= name else (low, middle)
            first = low
        page = self._page(first)
        return iter([page] if page else [])

    def list_with_delimiter(self, client: Any, prefix: str | None) -> dict[str, Any]:
        if prefix is None or prefix != "flat/":
            return {"common_prefixes": ["flat"], "objects": []}
        found = list[dict[str, Any]]()
        for first in range(0, self._count, _PAGE):
            time.sleep(self._latency)
            found += self._page(first)
        return {"common_prefixes": [], "objects": found}

    async def list_with_delimiter_async(self, client: Any, prefix: str | None) -> dict[str, Any]:
        if prefix is None or prefix != "flat/":
            return {"common_prefixes": ["flat"], "objects": []}
        found = list[dict[str, Any]]()
        for first in range(0, self._count, _PAGE):
            await asyncio.sleep(self._latency)
            found += self._page(first)
        return {"common_prefixes": [], "objects": found}

    def get(self, client: Any, name: str, *, options: Mapping[str, Any]) -> Any:
        start, end = options.get("range", (0, len(self._data)))
        meta = self._page(int(name[5:14]))[0]
        return SimpleNamespace(bytes=lambda: self._data[start:end], meta=meta)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--objects", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds (default: 0.05)")
    parser.add_argument("--plain", action="store_true", help="one request after the other")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fastload-opening-") as caches:
        os.environ["XDG_CACHE_HOME"] = caches
        print(opened(given.objects, given.latency, plain=given.plain))


def opened(count: int, latency: float, *, plain: bool) -> str:
    """What it took to open a folder of so many objects."""
    os.environ |= {"FASTLOAD_CLIENT": "obstore", "AWS_SKIP_SIGNATURE": "true"}
    os.environ["AWS_REGION"] = "us-east-1"
    store, _ = store_of("s3://bucket/flat")
    assert isinstance(store, objects.ObjectStore)
    store._client = stand_in = StandIn(count, latency)
    store._lists_after = not plain
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    found = open_source("s3://bucket/flat", format="images")
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (
        f"{len(found.source):,} objects: {took:.1f} s, {stand_in.requests:,} requests, "
        f"{after.ru_utime - before.ru_utime:.1f} s of processor time, at most "
        f"{(after.ru_maxrss - before.ru_maxrss) / 1e3:,.0f} MB more than before, "
        f"{after.ru_maxrss / 1e3:,.0f} MB in all"
    )


if __name__ == "__main__":
    main()
