"""Who takes part: each as its good users write it, uint8 in host memory; and its process."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fastload.tools.measure.clock import cpu_seconds

SIZE, BATCH = 224, 64
BUCKET = "bucket"
_WARM = 4
"""Of what is fetched, one of so many images is for the warm-up at most: of 2,048 images an epoch is
over before the seconds of warm-up and measurement are."""


@dataclass(frozen=True)
class Setting:
    """What all are given."""

    folder: str
    """With `photographs`, and a folder of each format."""
    proxy: str
    cores: tuple[int, ...]
    caches: str
    """A folder for what is kept on local disk."""
    images: int = 0
    """How many photographs there are."""
    authority: str = ""
    """The file of the authority that certifies the proxy, where that is asked by TLS."""


# -- Who takes part: a function of a Setting that gives what can be iterated again and again -----


def fastload(
    setting: Setting,
    what: str,
    *,
    remote: bool,
    tier: bool = True,
    blocks: bool = False,
    client: str = "",
) -> Any:
    """`client`: who fetches objects, see `docs/stores.md`."""
    from torchvision.transforms import v2

    from fastload import BlockShuffle, Shuffle, create_loader

    os.environ["XDG_CACHE_HOME"] = setting.caches
    os.environ["FASTLOAD_TIER_SIZE"] = "20GB" if tier else "0"
    os.environ["FASTLOAD_CLIENT"] = client
    place = f"s3://{BUCKET}" if remote else setting.folder
    return create_loader(
        f"{place}/{what}",
        BATCH,
        order=BlockShuffle() if blocks else Shuffle(),
        drop_last=True,
        transform=_transform(v2),
        num_workers=len(setting.cores),
    )


def webdataset(setting: Setting) -> Any:
    import webdataset as wds
    from torchvision.transforms import v2

    urls = [f"{setting.proxy}/{BUCKET}/tar/{path.name}" for path in _shards(setting, "tar")]
    found = wds.WebDataset(urls, shardshuffle=len(urls)).shuffle(1000).decode("pil")
    transform = v2.Compose([_transform(v2), v2.PILToTensor()])
    made = found.to_tuple("jpg", "cls").map_tuple(transform, lambda label: label)
    # One process reads each shard: with more of them than shards some would have nothing to do.
    workers = min(len(setting.cores), len(urls))
    return wds.WebLoader(made.batched(BATCH, partial=False), batch_size=None, num_workers=workers)


def litdata(setting: Setting) -> Any:
    import litdata as package
    from torchvision.transforms import v2

    transform = _transform(v2)

    class Images(package.StreamingDataset):  # type: ignore[misc]  # mypy does not read it
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            return transform(found["image"]), found["label"]

    # It asks for TLS, and has no option for it.
    package.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    given = {"endpoint_url": setting.proxy, "region_name": "us-east-1"}
    given |= {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    source = Images(
        f"s3://{BUCKET}/litdata",
        cache_dir=f"{setting.caches}/litdata",
        shuffle=True,
        drop_last=True,
        storage_options=given,
    )
    return package.StreamingDataLoader(source, batch_size=BATCH, num_workers=len(setting.cores))


def streaming(setting: Setting) -> Any:
    import streaming as package
    from PIL import Image
    from torchvision.transforms import v2

    transform = v2.Compose([_transform(v2), v2.PILToTensor()])
    os.environ["S3_ENDPOINT_URL"] = setting.proxy
    package.base.util.clean_stale_shared_memory()

    class Images(package.StreamingDataset):  # type: ignore[misc]  # mypy does not read it
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            return transform(Image.open(io.BytesIO(found["image"])).convert("RGB")), found["label"]

    source = Images(
        remote=f"s3://{BUCKET}/mds", local=f"{setting.caches}/mds", shuffle=True, batch_size=BATCH
    )
    return _dataloader(source, setting, shuffle=False)


def s3torchconnector(setting: Setting) -> Any:
    from PIL import Image
    from s3torchconnector import (
        S3ClientConfig,
        S3MapDataset,
    )
    from torchvision.transforms import v2

    transform = v2.Compose([_transform(v2), v2.PILToTensor()])
    source = S3MapDataset.from_prefix(
        f"s3://{BUCKET}/photographs/",
        region="us-east-1",
        endpoint=setting.proxy,
        transform=lambda found: (transform(Image.open(found).convert("RGB")), 0),
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    return _dataloader(source, setting)


def fsspec(setting: Setting) -> Any:
    import fsspec as package
    from torchvision.transforms import v2

    transform = v2.Compose([_transform(v2), v2.PILToTensor()])
    options = {"anon": True, "client_kwargs": {"endpoint_url": setting.proxy}}
    names = package.filesystem("s3", **options).find(f"{BUCKET}/photographs")
    return _dataloader(_ByName(names, options, transform), setting)


class _ByName:
    """Objects by fsspec, as a Dataset of one's own has it."""

    def __init__(self, names: list[str], options: Any, transform: Any) -> None:
        self._names, self._options, self._transform = names, options, transform
        self._system: Any = None

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Any:
        import fsspec as package
        from PIL import Image

        if self._system is None:  # s3fs does not survive a fork
            self._system = package.filesystem("s3", skip_instance_cache=True, **self._options)
        data = self._system.cat_file(self._names[index])
        return self._transform(Image.open(io.BytesIO(data)).convert("RGB")), 0


def huggingface(setting: Setting) -> Any:
    import datasets as package
    from torchvision.transforms import v2

    transform = v2.Compose([_transform(v2), v2.PILToTensor()])
    names = [f"s3://{BUCKET}/parquet/{path.name}" for path in _shards(setting, "parquet")]
    options = {"anon": True, "client_kwargs": {"endpoint_url": setting.proxy}}
    found: Any = package.load_dataset(
        *("parquet",),
        data_files={"train": names},
        split="train",
        streaming=True,
        storage_options=options,
        cache_dir=f"{setting.caches}/huggingface",
    )
    found = found.cast_column("image", package.Image())

    def made(row: Any) -> Any:
        return {"image": transform(row["image"].convert("RGB")), "label": row["label"]}

    return _dataloader(found.shuffle(seed=0, buffer_size=1000).map(made), setting, shuffle=False)


def lance(setting: Setting) -> Any:
    import lance as package
    from torchvision.transforms import v2

    transform = v2.Compose([_transform(v2), v2.PILToTensor()])
    options = {"endpoint": setting.proxy, "allow_http": "true", "region": "us-east-1"}
    options |= {"access_key_id": "a", "secret_access_key": "b"}
    url = f"s3://{BUCKET}/lance/photographs.lance"
    count = package.dataset(url, storage_options=options).count_rows()
    source = _Rows(url, options, count, transform)
    # Lance has threads, which do not fork.
    return _dataloader(source, setting, multiprocessing_context="spawn")


class _Rows:
    """Rows of a Lance data set, a batch at a time, as its own Dataset of torch reads them."""

    def __init__(self, url: str, options: Any, count: int, transform: Any) -> None:
        self._url, self._options, self._count = url, options, count
        self._transform = transform
        self._found: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: list[int]) -> list[Any]:
        import lance as package
        from PIL import Image

        if self._found is None:
            self._found = package.dataset(self._url, storage_options=self._options)
        rows = self._found.take(indices).to_pylist()
        return [
            (self._transform(Image.open(io.BytesIO(row["image"])).convert("RGB")), row["label"])
            for row in rows
        ]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]


def _transform(v2: Any) -> Any:
    return v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])


def _dataloader(source: Any, setting: Setting, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    given = {"shuffle": True, "drop_last": True, "num_workers": len(setting.cores)} | options
    return DataLoader(source, BATCH, persistent_workers=True, **given)


def _shards(setting: Setting, what: str) -> list[Path]:
    return sorted(Path(setting.folder, what).glob(f"*.{what}"))


@dataclass(frozen=True)
class Row:
    """A contestant: a row of the table."""

    name: str
    open: Callable[[Setting], Any]
    needs: str = "fastload"
    """The package."""
    format: str = "photographs"
    """What it reads."""
    beside: str = ""
    """Of ours, the one that reads the same from local files."""
    other_way: str = ""
    """Of ours, the one that reads the same by another client; no goal is set for this one."""
    kept: int = 0
    """Whole epochs before the one that is measured: what it keeps on local disk is of these."""
    remote: bool = True
    tls: bool = False
    """Whether the store is asked by TLS."""


LOCAL, LOCAL_TAR = "fastload, local files", "fastload, local tar"
OBJECTS, TAR = "fastload, objects", "fastload, tar"
BLOCKS = "fastload, tar in blocks"
NO_TIER = "fastload, objects, no tier"
ROWS = (
    Row(LOCAL, partial(fastload, what="photographs", remote=False), remote=False),
    Row(LOCAL_TAR, partial(fastload, what="tar", remote=False), format="tar", remote=False),
    Row(OBJECTS, partial(fastload, what="photographs", remote=True), beside=LOCAL),
    Row(NO_TIER, partial(fastload, what="photographs", remote=True, tier=False), beside=LOCAL),
    Row(
        f"{OBJECTS}, by obstore",
        partial(fastload, what="photographs", remote=True, client="obstore"),
        other_way=OBJECTS,
    ),
    Row(
        f"{NO_TIER}, by obstore",
        partial(fastload, what="photographs", remote=True, tier=False, client="obstore"),
        other_way=NO_TIER,
    ),
    Row(
        f"{NO_TIER}, TLS",
        partial(fastload, what="photographs", remote=True, tier=False),
        beside=LOCAL,
        tls=True,
    ),
    Row(TAR, partial(fastload, what="tar", remote=True), format="tar", beside=LOCAL_TAR),
    Row(
        BLOCKS,
        partial(fastload, what="tar", remote=True, blocks=True),
        format="tar",
        beside=LOCAL_TAR,
    ),
    Row(
        f"{BLOCKS}, no tier",
        partial(fastload, what="tar", remote=True, tier=False, blocks=True),
        format="tar",
        beside=LOCAL_TAR,
    ),
    *(
        Row(
            f"{OBJECTS}, epoch {before + 1}",
            partial(fastload, what="photographs", remote=True),
            beside=LOCAL,
            kept=before,
        )
        for before in (1, 2)
    ),
    Row("fsspec under DataLoader", fsspec, "s3fs"),
    Row("s3torchconnector", s3torchconnector, "s3torchconnector"),
    Row("webdataset", webdataset, "webdataset", "tar"),
    Row("LitData", litdata, "litdata", "litdata"),
    Row("MosaicML streaming", streaming, "streaming", "mds"),
    Row("HF datasets, Parquet", huggingface, "datasets", "parquet"),
    Row("Lance", lance, "lance", "lance"),
)


# -- In a contestant's process ---------------------------------------------------------------------


class Contestant:
    """One row, for `fastload.tools.measure.process.Child`."""

    def __init__(self, name: str, setting: Setting) -> None:
        import torch

        os.sched_setaffinity(0, setting.cores)
        torch.set_num_threads(1)
        os.environ.update(
            AWS_ENDPOINT_URL=setting.proxy,
            AWS_ALLOW_HTTP="true",
            AWS_REGION="us-east-1",
            AWS_DEFAULT_REGION="us-east-1",
            AWS_ACCESS_KEY_ID="a",
            AWS_SECRET_ACCESS_KEY="b",
            AWS_EC2_METADATA_DISABLED="true",
        )
        if setting.authority:
            os.environ["SSL_CERT_FILE"] = setting.authority
        self._setting, self._given = setting, setting
        self._rounds = 0
        self._row = next(row for row in ROWS if row.name == name)
        self._warm = False
        self._loader: Any = None

    def round(self, seconds: float, warm_up: float) -> dict[str, Any]:
        """Open it, warm up, measure, close."""
        if not self._row.kept:
            self._empty_caches()
        if self._row.kept and not self._warm:
            for _ in range(self._row.kept):
                self.prepare()
                self.epoch()
            self._warm = True
        started = time.perf_counter()
        loader = self._row.open(self._setting)
        made = time.perf_counter()
        # Of what is fetched one epoch: in the next one it may be on local disk.
        first_alone = self._row.remote and not self._row.kept
        batches = _pairs(loader) if first_alone else _endless(loader)
        images = next(batches)[0]
        first, warm = time.perf_counter(), BATCH
        if tuple(images.shape) != (BATCH, 3, SIZE, SIZE) or str(images.dtype) != "torch.uint8":
            raise ValueError(f"a batch of {tuple(images.shape)} {images.dtype}")
        most = self._setting.images // _WARM if first_alone else sys.maxsize
        while time.perf_counter() < first + warm_up and warm < most:
            next(batches)
            warm += BATCH
        count, cpu, began = 0, cpu_seconds(), time.perf_counter()
        while not count or time.perf_counter() < began + seconds:
            if next(batches, None) is None:
                break
            count += 1
        took, burnt = time.perf_counter() - began, cpu_seconds() - cpu
        _close(loader)
        if not count:
            raise ValueError(f"{self._row.name}: an epoch ended before anything was measured")
        return {
            "samples": count * BATCH,
            "seconds": took,
            "cpu_seconds": burnt,
            "metrics": {"opened_seconds": made - started, "first_batch_seconds": first - made},
        }

    def _empty_caches(self) -> None:
        """Another folder. The files of the last one lose their content, but are not removed: for
        minutes afterwards ext4 looks among the removed for one that is free, for each that is made,
        which costs up to a tenth of the time of those that make many files."""
        for path in Path(self._setting.caches).rglob("*"):
            if path.is_file():
                os.truncate(path, 0)
        self._rounds += 1
        self._setting = replace(self._given, caches=f"{self._given.caches}/{self._rounds}")
        Path(self._setting.caches).mkdir(parents=True)

    def prepare(self) -> None:
        """Open it."""
        self._loader = self._row.open(self._setting)

    def epoch(self) -> int:
        """A whole epoch, and close. Returns how many images it had."""
        count = sum(len(batch[0]) for batch in _pairs(self._loader))
        _close(self._loader)
        return count


def _pairs(loader: Any) -> Iterator[Any]:
    """(images, labels), whatever a loader calls them."""
    for batch in loader:
        yield (batch["image"], batch["label"]) if isinstance(batch, dict) else batch


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from _pairs(loader)


def _close(loader: Any) -> None:
    with suppress(AttributeError):
        loader.close()
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
