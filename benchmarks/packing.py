"""What packing costs: `python -m benchmarks.packing FOLDER [--images 2000] [--rounds 3]`.

Writes the JPEGs of a folder (one folder per class) as shards, copied byte for byte, and reduced to
a short side of 256 pixels: by fastload, and by what is installed of webdataset, LitData and
MosaicML's streaming, each with its own writer and, for the reduced ones, Pillow, as their manuals
do it. All write with one thread or process, so that the processor time is that of a core.
Contestants take turns; each prints its processor time an image (worker processes included), when it
returns, and when its files are on the disk: fastload returns then, for the others the benchmark
calls fsync. In brackets the median of how many times fastload's it is, within a round.

With `--ray`: by threads of this process, one a core, beside a Ray cluster of as many nodes of one
core each on this machine, whose worker processes are there already (a first round does not count).
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image

from fastload.machine import usable_cores
from fastload.tools.measure.clock import cpu_seconds
from fastload.tools.pack import PackOptions, pack

SIZE = 64 << 20
"""Of a shard [bytes]."""
SIDE, QUALITY = 256, 90
WHAT = ("copied", "reduced")
KINDS = ("processor", "returns after", "on the disk after")
"""Of times; in brackets how many times fastload's."""
SUFFIXES = (".jpg", ".jpeg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", nargs="+", choices=WHAT, default=WHAT)
    parser.add_argument("--ray", action="store_true", help="beside a Ray cluster")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        count = linked(options.folder, source, options.images)
        if not count:
            parser.error(f"{options.folder}: there are no JPEGs in folders of classes in it")
        if options.ray:
            beside_ray(source, count, options.rounds, Path(folder) / "out")
            return
        for what in options.what:
            compare(
                source,
                count,
                None if what == "copied" else SIDE,
                options.rounds,
                Path(folder) / "out",
            )


def linked(folder: Path, target: Path, most: int) -> int:
    """At most so many images, as links: those there are again and again."""
    paths = sorted(path for path in folder.glob("*/*") if path.suffix.lower() in SUFFIXES)
    for number in range(most if paths else 0):
        path = paths[number % len(paths)]
        link = target / path.parent.name / f"{number:06}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            link.hardlink_to(path.resolve())
        except OSError:  # of another file system
            link.symlink_to(path.resolve())
    return most if paths else 0


def compare(source: Path, count: int, short_side: int | None, rounds: int, out: Path) -> None:
    writers = {name: write for name, (module, write) in WRITERS.items() if find_spec(module)}
    missing = ", ".join(sorted(WRITERS.keys() - writers.keys()))
    title = "copied" if short_side is None else f"reduced to {short_side}, quality {QUALITY}"
    print(f"{count} images, {title}; not installed: {missing or 'none'}", flush=True)
    spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in writers}
    for turn in range(rounds):
        order = list(writers.items())
        for name, write in order if turn % 2 == 0 else reversed(order):
            began = processor_time(), time.perf_counter()
            write(source, out, short_side)
            used, returned = processor_time() - began[0], time.perf_counter() - began[1]
            sync(out)
            spent[name].append((used, returned, time.perf_counter() - began[1]))
            shutil.rmtree(out)
    for name, rows in spent.items():
        texts = []
        columns = zip(
            KINDS, zip(*spent["fastload"], strict=True), zip(*rows, strict=True), strict=True
        )
        for kind, ours, theirs in columns:
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            texts.append(f"{kind} {statistics.median(theirs) / count * 1e6:5.0f} us ({ratio:.2f})")
        print(f"{name:22} {', '.join(texts)}")


def sync(folder: Path) -> None:
    """Have the files on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def beside_ray(source: Path, count: int, rounds: int, out: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    cores = usable_cores()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(cores - 1):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    spent: dict[str, list[tuple[float, float]]] = {"threads": [], "Ray": []}
    for turn in range(rounds + 1):
        for name, address in (("threads", None), ("Ray", cluster.address)):
            began = time.perf_counter(), cpu_seconds()
            options = PackOptions(size=SIZE // 16, short_side=SIDE, quality=QUALITY)
            pack(str(source), out, options, num_workers=cores, ray=address, progress=False)
            if turn:  # before, nodes start processes
                spent[name].append((time.perf_counter() - began[0], cpu_seconds() - began[1]))
            shutil.rmtree(out)
    for what, number in (("seconds", 0), ("processor time", 1)):
        times = {name: [each[number] for each in found] for name, found in spent.items()}
        each = ", ".join(
            f"{name} {statistics.median(found) / count * 1e6:,.0f} us an image"
            for name, found in times.items()
        )
        ratios = [b / a for a, b in zip(times["threads"], times["Ray"], strict=True)]
        print(f"{what}: {each}; Ray {statistics.median(ratios):.2f} of threads, cores: {cores}")
    ray.shutdown()
    cluster.shutdown()


def processor_time() -> float:
    own, others = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def samples(source: Path, short_side: int | None) -> Iterator[tuple[str, bytes, int]]:
    """(name, JPEG, label) as the manuals of the others read them."""
    for label, folder in enumerate(sorted(source.iterdir())):
        for path in sorted(folder.iterdir()):
            yield path.stem, encoded(path, short_side), label


def encoded(path: Path, short_side: int | None) -> bytes:
    data = path.read_bytes()
    if short_side is None:
        return data
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
        scale = short_side / min(image.size)
        if scale < 1:
            width, height = (round(side * scale) for side in image.size)
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def by_fastload(source: Path, out: Path, short_side: int | None) -> None:
    quality = None if short_side is None else QUALITY
    options = PackOptions(size=SIZE, short_side=short_side, quality=quality)
    pack(source, out, options, num_workers=1, progress=False)


def by_webdataset(source: Path, out: Path, short_side: int | None) -> None:
    import webdataset

    out.mkdir()
    with webdataset.ShardWriter(str(out / "%06d.tar"), maxsize=SIZE, verbose=0) as sink:
        for name, data, label in samples(source, short_side):
            sink.write({"__key__": name, "jpg": data, "cls": label})


def by_streaming(source: Path, out: Path, short_side: int | None) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit=SIZE) as sink:
        for _, data, label in samples(source, short_side):
            sink.write({"image": data, "label": label})


def by_litdata(source: Path, out: Path, short_side: int | None) -> None:
    import litdata

    inputs = [
        (str(path), label, short_side)
        for label, folder in enumerate(sorted(source.iterdir()))
        for path in sorted(folder.iterdir())
    ]
    litdata.optimize(
        fn=for_litdata, inputs=inputs, output_dir=str(out), chunk_bytes=SIZE, num_workers=1
    )


def for_litdata(item: tuple[str, int, int | None]) -> dict[str, Any]:
    path, label, short_side = item
    return {"image": encoded(Path(path), short_side), "label": label}


def by_parquet(source: Path, out: Path, short_side: int | None) -> None:
    """As `datasets` writes: a row group of 100 images, uncompressed."""
    import pyarrow as pa
    from pyarrow import parquet

    out.mkdir()
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.int64())])
    rows: list[tuple[str, bytes, int]] = []
    with parquet.ParquetWriter(out / "0.parquet", schema) as sink:
        for row in samples(source, short_side):
            rows.append(row)
            if len(rows) == 100:
                write_group(pa, sink, schema, rows)
                rows = []
        if rows:
            write_group(pa, sink, schema, rows)


def write_group(pa: Any, sink: Any, schema: Any, rows: list[tuple[str, bytes, int]]) -> None:
    pictures = [{"bytes": data, "path": name} for name, data, _ in rows]
    sink.write_table(pa.table([pictures, [label for *_, label in rows]], schema=schema))


Writer = Callable[[Path, Path, int | None], None]
WRITERS: dict[str, tuple[str, Writer]] = {
    "fastload": ("fastload", by_fastload),
    "webdataset ShardWriter": ("webdataset", by_webdataset),
    "streaming MDSWriter": ("streaming", by_streaming),
    "litdata optimize": ("litdata", by_litdata),
    "pyarrow Parquet": ("pyarrow", by_parquet),
}
"""The module that must be there, and who writes."""

if __name__ == "__main__":
    main()
