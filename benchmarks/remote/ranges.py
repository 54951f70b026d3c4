"""What reading a part of each object would save: `python -m benchmarks.remote.ranges FOLDER`.

Of four crops of RandomResizedCrop(224) of each baseline JPEG: the share of its bytes up to the end
of the crop (the shortest beginning, to 200 bytes, of which the core makes the same pixels when an
end marker is put after it), and of its header with the crop's rows alone. Then what such a range of
an object costs beside the whole: processor time of the client alone, in turn, with SeaweedFS and a
proxy that makes each of its answers 30 ms late.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import obstore

from benchmarks.remote.late import Proxy
from fastload.draws import Draws
from fastload.geometry import Geometry
from fastload.native.pool import NativePool, resolve
from fastload.recipe import Recipe
from tests.servers import put, seaweedfs

_END = b"\xff\xd9"
_EXACT = 200
"""Bytes to which a beginning is found."""
_MCU = 16
"""Rows of pixels of one, at the most."""
_THREADS, _ROUNDS, _OBJECTS = 32, 9, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="class folders with JPEGs in them")
    files = [path.read_bytes() for path in sorted(parser.parse_args().folder.glob("*/*.jp*g"))]
    beginning, rows = shares(files)
    print(f"up to the end of the crop {beginning:.1%} of the bytes; header and rows {rows:.1%}")
    objects = [files[number % len(files)] for number in range(_OBJECTS)]
    with late_store(objects) as url:
        costs(url, [len(data) for data in objects], beginning, rows)


@contextmanager
def late_store(objects: Sequence[bytes]) -> Iterator[str]:
    """URL of a store with a bucket of `0.jpg`, `1.jpg`... that answers 30 ms late. It has the last
    core for itself, this process the others."""
    with tempfile.TemporaryDirectory(prefix="fastload-ranges-") as work, ExitStack() as stack:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[-1:])
        endpoint = stack.enter_context(seaweedfs(Path(work)))
        proxy = Proxy(endpoint, 0.03)
        stack.callback(proxy.close)
        os.sched_setaffinity(0, cores[:-1] or cores)
        put(f"{endpoint}/bucket")
        for number, data in enumerate(objects):
            put(f"{endpoint}/bucket/{number}.jpg", data)
        yield proxy.url


def shares(files: list[bytes]) -> tuple[float, float]:
    """Of all bytes, those up to the ends of crops, and those of headers and the rows of crops."""
    from torchvision.transforms import v2

    pool = NativePool(1)
    (plan,) = Recipe.from_transform(v2.RandomResizedCrop(224)).split().geometries
    total = beginning = rows = 0
    for number, data in enumerate(files):
        headers, bad = pool.read_headers([data])
        if bad or headers[0, 4]:
            continue  # progressive
        header = data.index(b"\xff\xda") + 14
        for epoch in range(4):
            draws = Draws(0, epoch, np.array([number]))
            geometry = resolve(plan, draws, headers[:, :2].astype(np.int64))
            top, end = int(geometry.box[0, 0]), _shortest(pool, data, geometry, header)
            above = header  # where the row of MCUs above the crop ends
            if top > _MCU:
                above = _shortest(pool, data, _row(top - _MCU, int(headers[0, 1])), header)
            total, beginning, rows = total + len(data), beginning + end, rows + header + end - above
    return beginning / total, rows / total


def _row(top: int, width: int) -> Geometry:
    """One row of pixels as it is."""
    box = np.array([[top, 0, 1, width]], np.int32)
    window = np.array([[0, 0, 1, width]], np.int32)
    return Geometry(box, box[:, 2:].copy(), window, np.zeros((1, 2), np.bool_))


def _shortest(pool: NativePool, data: bytes, geometry: Geometry, least: int) -> int:
    def pixels(compressed: bytes) -> npt.NDArray[np.uint8] | None:
        out = np.empty((1, *geometry.window[0, 2:], 3), np.uint8)
        failed = pool.decode_batch([compressed], geometry=geometry, out=out).wait()
        return None if failed else out

    wanted, most = pixels(data), len(data)
    assert wanted is not None
    while most - least > _EXACT:
        middle = (least + most) // 2
        found = pixels(data[:middle] + _END)
        if found is not None and np.array_equal(found, wanted):
            most = middle
        else:
            least = middle
    return most


def costs(endpoint: str, sizes: list[int], beginning: float, rows: float) -> None:
    """Print what each way costs an object [us of processor time]."""
    given: dict[str, Any] = {"aws_endpoint": endpoint, "aws_region": "us-east-1"}
    given |= {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    store: Any = obstore.store.from_url(
        "s3://bucket", client_options={"allow_http": True}, retry_config={"max_retries": 0}, **given
    )

    def get(number: int, start: float = 0.0, end: float = 1.0) -> None:
        span = int(sizes[number] * start), int(sizes[number] * end)
        found: Any = obstore.get(store, f"{number}.jpg", options={"range": span})
        if len(memoryview(found.bytes())) != span[1] - span[0]:
            raise ValueError(f"{number}.jpg: not the bytes that were asked for")

    def two(number: int) -> None:
        get(number, 0.0, 0.01)
        get(number, 0.01, rows)

    ways: dict[str, Callable[[int], None]] = {
        "whole": get,
        "up to the end of the crop": partial(get, end=beginning),
        "as many bytes as header and rows": partial(get, end=rows),
        "those in two requests": two,
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in range(1 + _ROUNDS):  # the first one makes the connections
            for name, way in ways.items():
                began = time.process_time()
                list(threads.map(way, range(len(sizes))))
                spent[name].append(1e6 * (time.process_time() - began) / len(sizes))
    for name, each in spent.items():
        print(f"{name}: {median(each[1:]):.0f} us an object")


if __name__ == "__main__":
    main()
