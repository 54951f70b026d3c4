"""Images in Parquet files read where they lie: the same samples as of what pyarrow reads, in the
orders that let them be read a piece at a time, each piece once."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import v2

import fastload
from fastload import stores
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.sources import open_source, parquet_pieces
from fastload.sources.buffers import PathTable
from fastload.sources.parquet_images import ParquetImages
from fastload.sources.parquet_pieces import (
    Footer,
    Pieces,
    footers,
    needs_dictionary,
    pieces_of,
)
from fastload.sources.thrift_compact import I32, ThriftError, read_struct, written
from tests import images
from tests.objectserver import ObjectServer

pa = pytest.importorskip("pyarrow", reason="pyarrow, of the extra `parquet`, is not installed")
pq = pytest.importorskip("pyarrow.parquet")

COUNT, GROUP = 90, 8
PHOTOS = [images.jpeg(np.full((17, 19, 3), row, np.uint8)) for row in range(COUNT)]
TRANSFORM = v2.Compose([v2.Resize((16, 16)), v2.ToImage()])


def write(path: Path, rows: slice = slice(None), **options: Any) -> Path:
    structs = pa.array([{"bytes": data, "path": "x.jpg"} for data in PHOTOS[rows]])
    table = pa.table({"image": structs, "label": pa.array(range(COUNT)[rows], pa.int64())})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **{"row_group_size": GROUP, **options})
    return path


@pytest.fixture
def data(tmp_path: Path, own_cache: Path) -> Path:
    """Two files, with incomplete row groups at their ends."""
    write(tmp_path / "data" / "train-00000-of-00002.parquet", slice(0, 51))
    write(tmp_path / "data" / "train-00001-of-00002.parquet", slice(51, COUNT))
    return tmp_path / "data"


@pytest.fixture
def by_page(tmp_path: Path, own_cache: Path) -> Path:
    options = {"write_page_index": True, "data_page_size": 1000, "row_group_size": 30}
    write(tmp_path / "paged" / "train.parquet", use_dictionary=False, write_batch_size=4, **options)
    return tmp_path / "paged"


def column_of(loader: fastload.Loader) -> ParquetImages:
    column = loader._parts.source.columns["image"]
    assert isinstance(column, ParquetImages)
    return column


def epoch_of(loader: fastload.Loader) -> list[int]:
    """The labels of an epoch; each image is that of its label."""
    labels = []
    for pictures, numbers in loader:
        shown = pictures[:, 0].flatten(1).float().mean(dim=1)
        assert torch.allclose(shown, numbers.float(), atol=1)  # as a JPEG rounds it
        labels += numbers.tolist()
    return labels


def kept(own_cache: Path) -> list[Path]:
    return list((own_cache / "parquet").glob("*.bytes"))


# -- Pieces ----------------------------------------------------------------------------------------

VALUES = [b"x" * (row % 7) + bytes([row % 5]) * 900 for row in range(70)]


@pytest.mark.whole
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("paged", [False, True])
def test_pieces_are_what_pyarrow_reads(codec: str, paged: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    for gaps, version, words, page in itertools.product(
        (False, True), ("1.0", "2.0"), (False, True), (1 << 10, 1 << 15)
    ):
        values = [None if gaps and row % 9 == 3 else each for row, each in enumerate(VALUES)]
        structs = [
            None if each is None and row % 2 else {"path": "", "bytes": each, "n": [row]}
            for row, each in enumerate(values)
        ]
        kind = pa.struct(
            [("path", pa.string()), ("bytes", pa.binary()), ("n", pa.list_(pa.int8()))]
        )
        table = pa.table(
            {
                "label": range(70),
                "image": pa.array(structs, kind),
                "image.bytes": pa.array(values, pa.large_binary()),
            }
        )
        pq.write_table(
            table,
            path,
            row_group_size=30,
            compression=codec,
            use_dictionary=words,
            dictionary_pagesize_limit=4000,
            data_page_version=version,
            write_batch_size=3,
            data_page_size=page,
            write_page_index=paged,
            write_page_checksum=True,
        )
        ends = footers([str(path), str(path)])
        for name in ("image", "image.bytes"):
            pieces, lacking = pieces_of(ends, name)
            assert lacking == (0 if gaps else -1)
            assert pieces.by_page == paged
            states = np.array([end.state for end in ends])
            column = ParquetImages(PathTable.of([str(path)] * 2), name, pieces, states)
            for row, wanted in enumerate(values * 2):
                if wanted is None:
                    with pytest.raises(OSError, match=rf"no bytes.*row {row}"):
                        column.read(row)
                else:
                    assert column.read(row) == wanted


def test_metadata_are_written_as_they_are_read() -> None:
    numbers = [I32(number) for number in range(20)]
    struct = {1: I32(-3), 2: 1 << 40, 4: b"name", 30: [{1: b""}, {2: 7}], 31: numbers}
    assert read_struct(written(struct)) == (struct, len(written(struct)))
    for end in range(len(written(struct)) - 1):
        with pytest.raises(ThriftError):
            read_struct(written(struct)[:end])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bytes]]:
    """Files that hypothesis damages, and what is in them, by how they are written."""
    folder = tmp_path_factory.mktemp("damaged")
    kinds: dict[str, dict[str, Any]] = {
        "row groups": {},
        "pages": {
            "write_page_index": True,
            "data_page_size": 1000,
            "use_dictionary": False,
            "write_batch_size": 4,
        },
    }
    found = {}
    for kind, options in kinds.items():
        path = write(folder / kind / "x.parquet", slice(0, 30), **options)
        found[kind] = path, path.read_bytes()
    return found


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, float, int]]:
    """Changes of metadata: (what, where as a part of them, a byte)."""
    one = st.tuples(
        st.sampled_from(["flip", "set", "insert", "remove", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    )
    return draw(st.lists(one, min_size=1, max_size=6))


def edited(metadata: bytes, changes: list[tuple[str, float, int]]) -> bytes:
    data = bytearray(metadata)
    for what, where, byte in changes:
        at = int(where * max(1, len(data)))
        if what == "flip" and at < len(data):
            data[at] ^= 1 << byte % 8
        elif what == "set" and at < len(data):
            data[at] = byte
        elif what == "insert":
            data.insert(at, byte)
        elif what == "remove":
            del data[at : at + 1 + byte % 4]
        elif what == "repeat":
            data[at:at] = data[at : at + 1 + byte % 16]
    return bytes(data)


@pytest.mark.whole
@settings(deadline=None, max_examples=150, derandomize=True)
@given(kind=st.sampled_from(["row groups", "pages"]), changes=edits())
def test_damaged_metadata_are_refused(
    kind: str, changes: list[tuple[str, float, int]], small: dict[str, tuple[Path, bytes]]
) -> None:
    """Whatever they are, or all rows are of the file. With an offset index, which lies before them,
    damage may be there, too."""
    path, whole = small[kind]
    length = int.from_bytes(whole[-8:-4], "little")
    begin = len(whole) - 8 - length - (300 if kind == "pages" else 0)
    metadata = edited(whole[begin:-8], changes)
    size = len(metadata) - (300 if kind == "pages" else 0)
    path.write_bytes(whole[:begin] + metadata + max(0, size).to_bytes(4, "little") + b"PAR1")
    try:
        ends = footers([str(path)])
        pieces, _ = pieces_of(ends, "image")
        states = np.array([footer.state for footer in ends], np.int64)
        column = ParquetImages(PathTable.of([str(path)]), "image", pieces, states)
        found = [column.read(row) for row in range(len(column))]
    except (SourceError, OSError):  # and none of Python's own
        return
    # Metadata may name fewer rows, or other ones of the file, and say so throughout.
    assert {*found} <= {*PHOTOS[:30]}


def of(**fields: Any) -> bytes:
    """The metadata of a file of two rows in one row group of a column `x`, some fields of it
    another."""
    column = {4: I32(0), 7: 50, 9: 4, **fields.get("column", {})}
    group = {1: [{3: column, **fields.get("chunk", {})}], 3: fields.get("rows", 2)}
    names = [{4: b"schema", 5: I32(1)}, {1: I32(6), 3: I32(0), 4: fields.get("name", b"x")}]
    return written({2: names, 3: 2, 4: [group]})


def pieces_in(metadata: bytes, data: bytes = bytes(100)) -> Pieces:
    return pieces_of([Footer("x.parquet", len(data), (len(data), 0), 0, data, metadata)], "x")[0]


def test_encrypted_files_are_refused_by_that_word(tmp_path: Path) -> None:
    remedy = "; fastload has no keys: write the file again without encryption"
    with pytest.raises(SourceError, match=rf"Parquet \(a column is encrypted{remedy}"):
        pieces_in(of(chunk={8: {1: {}}}))
    with pytest.raises(SourceError, match=r"a column is in another file, .*y\.parquet"):
        pieces_in(of(chunk={1: b"y.parquet"}))
    (tmp_path / "x.parquet").write_bytes(bytes(100) + b"PARE")
    with pytest.raises(SourceError, match=f"its metadata are encrypted{remedy}"):
        footers([str(tmp_path / "x.parquet")])


def test_numbers_that_are_none_or_of_another_file_are_refused() -> None:
    assert pieces_in(of()).rows == 2
    for fields in (
        {"name": b"\xff"},
        {"rows": 3},
        {"rows": -2},
        {"column": {4: {1: 1}}},
        {"column": {7: 97}},
        {"column": {7: 1 << 62}},
        {"column": {9: b"4"}},
        {"column": {11: {1: 1}}},
        {"chunk": {4: 90, 5: I32(11)}},
        {"chunk": {4: -90, 5: I32(1)}},
        {"chunk": {4: 0, 5: I32(2**31 - 1)}},
    ):
        with pytest.raises(SourceError, match=r"x.parquet: cannot be read as Parquet"):
            pieces_in(of(**fields))
    for page in (
        {1: 4, 2: 9},
        {1: {1: 1}, 2: 9, 3: 0},
        {1: 4, 2: [1], 3: 0},
        {1: 1 << 69, 2: 9, 3: 0},
    ):
        index = written({1: [page]})
        with pytest.raises(SourceError, match="an offset index is damaged"):
            pieces_in(of(chunk={4: 0, 5: I32(len(index))}), index + bytes(100))
    for header in ({}, {5: 1}, {5: [1]}, {8: {1: 1}}):
        with pytest.raises(OSError, match="no page of data"):
            needs_dictionary(written(header))


# -- Orders ----------------------------------------------------------------------------------------


def test_in_order_nothing_is_unpacked_and_each_group_is_read_once(
    data: Path, own_cache: Path
) -> None:
    with fastload.create_loader(data, 7, transform=TRANSFORM) as loader:
        assert epoch_of(loader) == list(range(COUNT))
        assert column_of(loader).reader.decoded <= 2 * (7 + 5)  # some of the next epoch
        assert "Parquet where it lies, in 12 row groups" in str(loader.explain())
    assert kept(own_cache) == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_row_groups_come_whole_on_one_rank(ranks: int, data: Path, own_cache: Path) -> None:
    order = fastload.BlockShuffle("row group", window=6)
    epochs = []
    for rank in range(ranks):
        loader = fastload.create_loader(
            data,
            6 // ranks,
            order=order,
            transform=TRANSFORM,
            shard=fastload.Shard(rank, ranks),
            drop_last=True,
        )
        with loader:
            epochs.append(np.array(epoch_of(loader)).reshape(-1, 6 // ranks))
            # Once each, and once more where a lane ends within it; some of the next epoch.
            assert column_of(loader).reader.decoded <= 2 * (12 + 6)
            assert "in 12 row groups of some 8 rows, each read when" in str(loader.explain())
            second = epoch_of(loader)
    together = np.concatenate(epochs, axis=1)
    assert sorted(together.reshape(-1)) == list(range(COUNT))
    with fastload.create_loader(data, 6, order=order, transform=TRANSFORM, drop_last=True) as alone:
        assert np.array_equal(np.array(epoch_of(alone)).reshape(-1, 6), together)
        assert epoch_of(alone) != together.reshape(-1).tolist()
    assert second != epochs[-1].reshape(-1).tolist()
    assert kept(own_cache) == []


def test_a_state_goes_on_where_it_was(data: Path) -> None:
    def loader(window: int = 3) -> fastload.Loader:
        order = fastload.BlockShuffle("row group", window=window)
        return fastload.create_loader(data, 6, order=order, transform=TRANSFORM, seed=4)

    with loader() as first, loader() as second:
        wanted = [numbers.tolist() for _, numbers in first]
        batches = iter(second)
        for _ in range(13):
            next(batches)
        state = second.state_dict()
    with loader() as third:
        third.load_state_dict(state)
        assert [numbers.tolist() for _, numbers in third] == wanted[13:]
    with loader(6) as other, pytest.raises(fastload.StateMismatchError, match="blocks"):
        other.load_state_dict(state)


def test_at_random_images_are_unpacked_as_they_were(data: Path, own_cache: Path) -> None:
    with fastload.create_loader(data, 6, shuffle=True, transform=TRANSFORM) as loader:
        assert kept(own_cache) != []
        assert sorted(epoch_of(loader)) == list(range(COUNT))
        said = loader.explain()
        assert "at random; order=fastload.BlockShuffle('row group') reads them" in str(said)
    folder = open_source(data).source
    with fastload.create_loader(folder, 6, shuffle=True, transform=TRANSFORM) as again:
        assert again.state_dict()["source"] == loader.state_dict()["source"]


def test_blocks_that_are_much_smaller_than_row_groups_are_unpacked(
    data: Path, own_cache: Path
) -> None:
    order = fastload.BlockShuffle(2, window=6)
    with fastload.create_loader(data, 6, order=order, transform=TRANSFORM) as loader:
        assert "would be read some 4 times; order=" in str(loader.explain())
        assert sorted(epoch_of(loader)) == list(range(COUNT))
    assert len(kept(own_cache)) == 1


def test_pages_are_read_alone(by_page: Path, own_cache: Path) -> None:
    order = fastload.BlockShuffle(6, window=3)
    with fastload.create_loader(by_page, 6, order=order, transform=TRANSFORM) as loader:
        column = column_of(loader)
        assert 2 <= column.pieces.usual_rows <= 6
        assert sorted(epoch_of(loader)) == list(range(COUNT))
        rows = column.reader.decoded * column.pieces.usual_rows
        assert rows <= 4 * COUNT  # some of the next epoch; 30 rows a block would be 5.8 times
        assert "pages of some" in str(loader.explain())
    whole = fastload.BlockShuffle("row group", window=3)
    with fastload.create_loader(by_page, 6, order=whole, transform=TRANSFORM) as loader:
        assert sorted(epoch_of(loader)) == list(range(COUNT))
        assert column_of(loader).reader.decoded <= 2 * (len(column.pieces) + 3 * 2)
    assert kept(own_cache) == []


def test_mixes_and_worker_processes_take_what_is_unpacked(data: Path, own_cache: Path) -> None:
    mixed = fastload.mix({"a": data, "b": data}, weights={"a": 1, "b": 1})
    order = fastload.BlockShuffle(4)
    with fastload.create_loader(mixed, 6, order=order, transform=TRANSFORM) as loader:
        assert "of several data sets" in str(loader.explain())
        assert len(epoch_of(loader)) >= COUNT
    assert len(kept(own_cache)) == 1
    with pytest.raises(ConfigurationError, match="this is a mix; give a number of samples"):
        fastload.create_loader(mixed, 6, order=fastload.BlockShuffle("row group"))
    with fastload.create_loader(data, 6, backend="torch", transform=TRANSFORM) as loader:
        assert "worker processes share no memory" in str(loader.explain())


def test_row_groups_of_what_has_none(tmp_path: Path, own_cache: Path) -> None:
    images.write_photo_folder(tmp_path / "folder")
    for rows in ("row groups", 0, True):
        with pytest.raises(ConfigurationError, match="at least 1, or 'row group', got"):
            fastload.BlockShuffle(rows)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is for Parquet files"):
        fastload.create_loader(tmp_path / "folder", 2, order=fastload.BlockShuffle("row group"))


# -- Files -----------------------------------------------------------------------------------------


def test_from_a_bucket_a_group_is_a_request_and_the_tier_keeps_it(
    data: Path, server: ObjectServer, own_cache: Path
) -> None:
    names = sorted(path.name for path in data.iterdir())
    for name in names:
        server.objects[f"bucket/data/{name}"] = (data / name).read_bytes()
    order = fastload.BlockShuffle("row group", window=2)

    def gets() -> int:
        return sum(len(server.reads_of(f"bucket/data/{name}")) for name in names)

    with (
        fastload.create_loader("s3://bucket/data", 6, order=order, transform=TRANSFORM) as loader,
        fastload.create_loader(data, 6, order=order, transform=TRANSFORM) as here,
    ):
        before = gets()
        assert epoch_of(loader) == epoch_of(here)
        assert gets() - before <= 12
        after = gets()
        assert epoch_of(loader) == epoch_of(here)
        assert gets() == after
    assert kept(own_cache) == []


def test_a_file_that_is_written_again_is_an_error(data: Path) -> None:
    column = open_source(data).source.encoded["image"]
    column.read(0)
    write(data / "train-00001-of-00002.parquet", slice(0, COUNT - 51))
    os.utime(data / "train-00001-of-00002.parquet", ns=(1, 1))
    with pytest.raises(OSError, match="00001.* was written again since it was opened"):
        column.read(60)
    assert column.read(1) == PHOTOS[1]


@pytest.mark.parametrize("way", ["replaced", "in place"])
def test_another_of_the_same_size_and_time_is_an_error(way: str, data: Path) -> None:
    """As `rsync -t` and `cp -p` bring it."""
    path = data / "train-00001-of-00002.parquet"
    column = open_source(data).source.encoded["image"]
    whole, status = path.read_bytes(), path.stat()
    assert column.read(60) == PHOTOS[60]
    other = whole[:500] + bytes([whole[500] ^ 1]) + whole[501:]
    target = path if way == "in place" else data / "other"
    target.write_bytes(other)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    target.replace(path)
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    with pytest.raises(OSError, match="00001.* was written again since it was opened"):
        column.read(70)
    assert column.read(1) == PHOTOS[1]


def test_where_inodes_say_nothing_they_are_not_looked_at(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data / "train-00001-of-00002.parquet"
    monkeypatch.setattr(parquet_pieces, "_has_inodes", lambda _: False)
    column = open_source(data).source.encoded["image"]
    status = path.stat()
    shutil.copy2(path, data / "other")
    (data / "other").replace(path)
    assert path.stat().st_ino != status.st_ino
    assert column.read(60) == PHOTOS[60]


def test_a_file_that_is_written_again_while_it_is_read_is_an_error(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = open_source(data).source.encoded["image"]
    read = stores.read_views

    def slow(wanted: Any) -> Any:
        path = data / "train-00001-of-00002.parquet"
        write(path, slice(0, COUNT - 51))
        os.utime(path, ns=(1, 1))
        return read(wanted)

    monkeypatch.setattr(stores, "read_views", slow)
    with pytest.raises(OSError, match="00001.* was written again since it was opened"):
        column.read(60)


def test_what_others_unpacked_of_a_file_written_since_is_not_taken(data: Path) -> None:
    column = open_source(data).source.encoded["image"]
    path = data / "train-00001-of-00002.parquet"
    write(path, slice(0, COUNT - 51))
    os.utime(path, ns=(1, 1))
    assert open_source(data).source.encoded["image"].for_any_order().read(51) == PHOTOS[0]
    with pytest.raises(SourceError, match="00001.* was written again since it was opened"):
        column.for_any_order()


def test_damage_in_one_row_group_is_named_and_others_are_served(
    data: Path, own_cache: Path
) -> None:
    path = data / "train-00000-of-00002.parquet"
    place = pq.read_metadata(path).row_group(2).column(0)
    damaged = bytearray(path.read_bytes())
    begin = place.dictionary_page_offset or place.data_page_offset
    damaged[begin : begin + 20] = bytes(20)
    path.write_bytes(damaged)
    with (
        fastload.create_loader(data, 6, transform=TRANSFORM) as loader,
        pytest.raises(
            DecodeError, match=rf"00000-of-00002.parquet:image\[{2 * GROUP}\].*is damaged"
        ),
    ):
        epoch_of(loader)
    with fastload.create_loader(data, 6, transform=TRANSFORM, on_error="substitute") as loader:
        assert len(epoch_of(loader)) == COUNT
        assert loader.stats().substituted == GROUP


def test_a_column_travels_to_another_process(data: Path) -> None:
    column = open_source(data).source.encoded["image"]
    column.read(0)
    other = pickle.loads(pickle.dumps(column))
    assert [other.read(row) for row in range(COUNT)] == PHOTOS
    assert other.describe(60).endswith("00001-of-00002.parquet:image[9]")
    assert other.take(np.array([7, 3])).for_any_order().read(1) == PHOTOS[3]
