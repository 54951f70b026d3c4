"""MDS shards: written by hand as the format's page says, and by MosaicML's own writer where that is
installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.errors import DecodeError, SourceError
from fastload.sources import open_source
from tests.backends import Contestant, contestants
from tests.images import jpeg, photo, png
from tests.objectserver import ObjectServer
from tests.test_stores import upload

COLUMNS = {
    "box": "ndarray:float32:2,2",
    "class": "int",
    "image": "jpeg",
    "name": "str",
    "weight": "float16",
}
SIZES = {"box": 16, "class": 8, "image": None, "name": None, "weight": 2}


def sample(index: int) -> dict[str, bytes]:
    """One sample as the bytes of its columns."""
    return {
        "box": (np.arange(4, dtype="<f4") + index).tobytes(),
        "class": np.int64(index % 3).tobytes(),
        "image": jpeg(photo(30 + index, 44, seed=index)),
        "name": f"sample {index}".encode() * (index % 4),
        "weight": np.float16(index / 3).tobytes(),
    }


def write_shard(
    path: Path, samples: Sequence[Mapping[str, bytes]], sizes: Mapping[str, Any]
) -> int:
    packed = []
    for one in samples:
        head = [len(one[name]) for name, size in sizes.items() if size is None]
        packed.append(np.array(head, "<u4").tobytes() + b"".join(one[name] for name in sizes))
    config = b'{"format": "mds"}'
    first = 4 * (len(packed) + 2) + len(config)
    offsets = first + np.cumsum([0, *map(len, packed)])
    header = np.array([len(packed), *offsets], "<u4").tobytes()
    path.write_bytes(header + config + b"".join(packed))
    return path.stat().st_size


def write_mds(
    folder: Path,
    shards: Sequence[Sequence[Mapping[str, bytes]]],
    columns: Mapping[str, str] = COLUMNS,
    sizes: Mapping[str, int | None] = SIZES,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, samples in enumerate(shards):
        name = f"shard.{number:05}.mds"
        entries.append(
            {
                "format": "mds",
                "version": 2,
                "samples": len(samples),
                "column_names": list(columns),
                "column_encodings": list(columns.values()),
                "column_sizes": list(sizes.values()),
                "compression": None,
                "hashes": [],
                "raw_data": {
                    "basename": name,
                    "bytes": write_shard(folder / name, samples, sizes),
                    "hashes": {},
                },
                "zip_data": None,
                "size_limit": 1 << 26,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    every = [sample(index) for index in range(11)]
    return write_mds(tmp_path_factory.mktemp("mds") / "train", [every[:4], [], every[4:]])


def test_samples_are_those_of_the_index(folder: Path) -> None:
    opened = open_source(folder)
    source = opened.source
    assert (source.format, len(source), source.layout) == ("MDS shards", 11, "dict")
    assert list(source.columns) == ["box", "class", "image", "weight"]
    assert opened.notes == ("left out: 1 column of neither images nor numbers: name (str)",)
    order = np.array([10, 3, 4, 0])
    for row, index in enumerate(order.tolist()):
        wanted = sample(index)
        assert source.encoded["image"].read(index) == wanted["image"]
        for name in ("box", "class", "weight"):
            assert source.values[name].at(order)[row].tobytes() == wanted[name]
    assert source.encoded["image"].describe(4).endswith("shard.00002.mds:image[0]")
    assert open_source(folder.parent, split="train").source.fingerprint == source.fingerprint
    assert open_source(folder, format="mds").source.fingerprint == source.fingerprint


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["torch", "turbojpeg"])
def test_a_loader_serves_them(folder: Path, backend: str) -> None:
    opened = open_source(folder, fields=("image", "class"), classes=("a", "b", "c"))
    assert opened.source.classes == ("a", "b", "c")
    resize = v2.Resize((24, 20))
    with fastload.create_loader(opened, 4, transform=resize, backend=backend) as loader:
        batches = list(loader)
    assert torch.cat([batch["class"] for batch in batches]).tolist() == [i % 3 for i in range(11)]
    files = folder.parent / "files"
    files.mkdir(exist_ok=True)
    for index in range(11):
        (files / f"{index:02}.jpg").write_bytes(sample(index)["image"])
    given = open_source(files, format="images")
    with fastload.create_loader(given, 11, transform=resize, backend=backend) as loader:
        (wanted,) = next(iter(loader))
    assert torch.equal(torch.cat([batch["image"] for batch in batches]), wanted)


def test_pictures_of_pillow_and_images_as_bytes(tmp_path: Path) -> None:
    grey = Image.fromarray(photo(9, 12, channels=1)[..., 0])
    colour = Image.fromarray(photo(7, 5))
    numbers = photo(6, 8, channels=1)[..., 0]

    def pil(image: Image.Image) -> bytes:
        head = np.array([*image.size, len(image.mode)], "<u4").tobytes()
        return head + image.mode.encode() + image.tobytes()

    rows = [
        {"mask": pil(Image.fromarray(numbers)), "pic": pil(one), "raw": png(photo(5, 6, seed=k))}
        for k, one in enumerate((grey, colour))
    ]
    columns = {"mask": "pil", "pic": "pil", "raw": "bytes"}
    folder = write_mds(tmp_path / "mds", [rows], columns, dict.fromkeys(columns))
    source = open_source(folder).source
    assert list(source.pixels) == ["mask", "pic"]
    assert source.columns["mask"].role == "mask"
    assert source.pixels["pic"].sizes_of(np.arange(2)).tolist() == [[9, 12], [7, 5]]
    for index, image in enumerate((grey, colour)):
        assert np.array_equal(source.pixels["pic"].pixels(index), np.asarray(image.convert("RGB")))
    assert np.array_equal(source.pixels["mask"].pixels(0)[..., 0], numbers)
    assert source.encoded["raw"].read(1) == rows[1]["raw"]
    with fastload.create_loader(
        open_source(folder, fields=["pic"]), 2, transform=v2.Resize((8, 8))
    ) as loader:
        assert next(iter(loader))["pic"].shape == (2, 3, 8, 8)


def edited(folder: Path, change: Callable[[Any], None]) -> Path:
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"])
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def damaged(folder: Path, change: Callable[[npt.NDArray[np.uint32], bytearray], None]) -> Path:
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    change(np.frombuffer(data, "<u4", 6), data)
    path.write_bytes(data)
    return folder


def no_change(*_: Any) -> None: ...


def set_number(at: int, value: int) -> Callable[[Any, bytearray], None]:
    def change(numbers: Any, data: bytearray) -> None:
        number = value if value >= 0 else int(numbers[at]) + value
        data[4 * at : 4 * at + 4] = np.uint32(number).tobytes()

    return change


def set_head(numbers: Any, data: bytearray) -> None:
    at = int(numbers[1])
    data[at : at + 4] = np.uint32(1 << 30).tobytes()


@pytest.mark.parametrize(
    ("index", "shard", "words"),
    [
        (lambda shards: shards[0]["raw_data"].update(bytes=5), no_change, "says 5 with 4 samples"),
        (lambda shards: shards[0].update(samples=3), no_change, "offsets are damaged"),
        (lambda shards: shards[0].update(samples=-1), no_change, "negative number"),
        (lambda shards: shards[0].update(samples=1 << 40), no_change, "says"),
        (lambda shards: shards[0].update(version=3), no_change, "of version 3"),
        (lambda shards: shards[0].update(column_names=["a"]), no_change, "do not agree"),
        (lambda shards: shards[1].update(column_names=["a"]), no_change, "other columns"),
        (lambda shards: shards[0]["raw_data"].update(basename="../x.mds"), no_change, "not the na"),
        (lambda shards: shards[0]["raw_data"].update(basename="gone.mds"), no_change, "not there"),
        (lambda shards: shards[0].update(samples="4"), no_change, "cannot be read"),
        (lambda shards: shards.append(shards[0]), no_change, r"names shard\.00000\.mds twice"),
        (no_change, set_number(0, 7), "offsets are damaged"),
        (no_change, set_number(1, 1 << 31), "offsets are damaged"),
        (no_change, set_number(2, 0), "offsets are damaged"),
        (no_change, set_number(3, -1), "sizes of sample 1"),
        (no_change, set_head, "sizes of sample 0"),
    ],
)
def test_damage_is_an_error_that_names_the_file(
    tmp_path: Path, index: Any, shard: Any, words: str, server: ObjectServer
) -> None:
    folder = write_mds(tmp_path / "mds", [[sample(k) for k in range(4)], [sample(4)]])
    damaged(edited(folder, index), shard)
    upload(folder, server, "bucket/mds")
    for place in (str(folder), "s3://bucket/mds"):
        with pytest.raises(SourceError, match=words) as raised:
            open_source(place)
        assert place in str(raised.value)


@pytest.mark.slow
@contestants(remote=True)
def test_shards_in_a_store(
    contestant: Contestant, folder: Path, server: ObjectServer, tmp_path: Path
) -> None:
    upload(folder.parent, server)
    batches = []
    for number, place in enumerate((str(folder), "s3://bucket/train")):
        opened = open_source(place, classes=("a", "b", "c"), roles={"box": "unmoved"})
        assert opened.notes[:1] == open_source(folder).notes
        batches.append([opened.source.fingerprint])
        with contestant.create(
            opened, tmp_path / str(number), batch_size=4, shuffle=True, transform=v2.Resize((9, 9))
        ) as loader:
            batches[-1] += [batch[name].cpu() for batch in loader for name in sorted(batch)]
    here, there = batches
    assert here[0] == there[0]
    assert len(here) == len(there) > 12
    assert all(torch.equal(a, b) for a, b in zip(here[1:], there[1:], strict=True))


def test_shards_in_a_store_are_read_through_once(folder: Path, server: ObjectServer) -> None:
    """The index keeps where samples are, and the numbers; a shard that is replaced is an error."""
    upload(folder.parent, server)
    source = open_source("s3://bucket", split="train").source
    reads = server.reads_of("bucket/train/shard.00000.mds")
    assert sum(asked in ("", "bytes=0-") for asked in reads) == 1
    server.requests.clear()
    again = open_source("s3://bucket", split="train").source
    assert not server.reads_of("bucket/train/shard.00000.mds")
    assert again.fingerprint == source.fingerprint
    rows = np.arange(11)
    for name, column in source.values.items():
        assert np.array_equal(again.values[name].at(rows), column.at(rows))
    assert again.encoded["image"].read(1) == sample(1)["image"]
    server.objects["bucket/train/shard.00000.mds"] += b"1"
    with pytest.raises(OSError, match=r"s3://bucket/train/shard\.00000\.mds: .* has changed"):
        again.encoded["image"].read(2)


def test_an_index_that_is_another_than_the_one_listed(folder: Path, server: ObjectServer) -> None:
    """It says what the columns of the shards are, and these are read as they were listed."""
    upload(folder.parent, server)
    server.etags["bucket/train/index.json"] = "another"
    with pytest.raises(SourceError, match=r"train/index\.json: this object has changed"):
        open_source("s3://bucket/train")


@pytest.mark.parametrize("side", [1 << 12, 1 << 20, 1 << 40])
def test_numbers_of_any_size_in_a_shard_without_samples(side: int, tmp_path: Path) -> None:
    """Its index is all that says how large they are."""
    columns = {"box": f"ndarray:float32:{side},{side}", "image": "jpeg"}
    folder = write_mds(tmp_path / "x", [[]], columns, {"box": 4 * side**2, "image": None})
    with pytest.raises(SourceError, match=r"no samples found|claims values of"):
        open_source(folder)
    small = edited(folder, lambda shards: shards[0]["column_sizes"].__setitem__(0, 4))
    with pytest.raises(SourceError, match=r"no samples found|but the index says otherwise"):
        open_source(small)


def test_pixels_in_a_store_are_refused(tmp_path: Path, server: ObjectServer) -> None:
    one = {"image": np.array([1, 1, 3], "<u4").tobytes() + b"RGB" + bytes(3)}
    upload(write_mds(tmp_path / "x", [[one]], {"image": "pil"}, {"image": None}), server)
    with pytest.raises(SourceError, match="column 'image' is 'pil'.*local disk only"):
        open_source("s3://bucket")


def test_what_is_asked_for_and_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no column 'label'; there are box"):
        open_source(folder, fields=["label"])
    with pytest.raises(SourceError, match=r"neither images nor numbers: name \(str\)"):
        open_source(folder, fields=["image", "name"])
    with pytest.raises(SourceError, match="neither images nor numbers"):
        open_source(folder, strict=True)
    with pytest.raises(SourceError, match="no column of images"):
        open_source(folder, fields=["class"])
    with pytest.raises(SourceError, match="label"):
        open_source(folder, classes=("a", "b"))
    with pytest.raises(SourceError, match="none among image"):
        open_source(folder, fields=["image"], classes=("a", "b", "c"))
    other = {"format": "json", "raw_data": {"basename": "a", "bytes": 1}}
    (tmp_path / "index.json").write_text(json.dumps({"shards": [other], "version": 2}))
    with pytest.raises(SourceError) as raised:
        open_source(tmp_path)
    assert "MDS" not in str(raised.value)
    cut = write_mds(
        tmp_path / "cut", [[{"p": b"\x05\0\0\0\x05\0\0\0\x03\0\0\0RGB"}]], {"p": "pil"}, {"p": None}
    )
    with pytest.raises(DecodeError, match=r"p\[0\]"):
        open_source(cut).source.pixels["p"].pixels(0)


def test_pictures_of_more_than_8_bits_are_served_as_files_of_them_are(tmp_path: Path) -> None:
    """The upper 8 of 16 bits, and none of 32; Pillow's conversion to RGB makes 255 of most."""
    values = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    pictures = [Image.fromarray(values), Image.fromarray(values.astype(np.int32) * 7)]
    pictures.append(Image.fromarray(values.astype(np.float32)))
    rows = [
        {
            "p": np.array([*one.size, len(one.mode)], "<u4").tobytes()
            + one.mode.encode()
            + one.tobytes()
        }
        for one in pictures
    ]
    folder = write_mds(tmp_path / "mds", [rows], {"p": "pil"}, {"p": None})
    column = open_source(folder).source.pixels["p"]
    (tmp_path / "files").mkdir()
    pictures[0].save(tmp_path / "files" / "0.png")
    with fastload.create_loader(open_source(tmp_path / "files", format="images"), 1) as loader:
        batch = next(iter(loader))
    as_file = batch if isinstance(batch, torch.Tensor) else batch[0]
    assert np.array_equal(column.pixels(0), as_file[0].permute(1, 2, 0).numpy())
    for index in (1, 2):
        with pytest.raises(DecodeError, match=r"p\[\d\].*32 bits"):
            column.pixels(index)


def test_an_index_that_is_no_text_is_an_error(tmp_path: Path, folder: Path) -> None:
    """And so is one of another program in a folder of images, which need not be JSON at all."""
    broken = shutil.copytree(folder, tmp_path / "mds")
    data = (broken / "index.json").read_bytes()
    (broken / "index.json").write_bytes(data.replace(b"samples", b"s\xffmples"))
    with pytest.raises(SourceError):
        open_source(broken)
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "1.jpg").write_bytes(jpeg(photo(8, 8)))
    (tmp_path / "data" / "index.json").write_bytes(data.replace(b"samples", b"s\xffmples"))
    assert len(open_source(tmp_path / "data").source) == 1


def test_shards_of_its_own_writer(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="pip install mosaicml-streaming")
    folder = tmp_path / "mds"
    with streaming.MDSWriter(out=str(folder), columns=COLUMNS, size_limit=9000) as writer:
        for index in range(11):
            writer.write(
                {
                    **sample(index),
                    "name": f"sample {index}",
                    "box": np.arange(4, dtype=np.float32).reshape(2, 2) + index,
                }
            )
    source = open_source(folder).source
    dataset = streaming.StreamingDataset(local=str(folder), shuffle=False, batch_size=1)
    assert source.details["shards"] > 1
    for index in range(11):
        wanted = dataset[index]
        here = np.array([index])
        assert source.values["class"].at(here)[0] == wanted["class"]
        assert source.values["weight"].at(here)[0] == wanted["weight"]
        assert np.array_equal(source.values["box"].at(here)[0], wanted["box"])
        assert source.encoded["image"].read(index) == sample(index)["image"]
