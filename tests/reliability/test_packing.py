"""`fastload pack` under kill -9: the next run finishes it, with the bytes of a run that nobody
disturbed."""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from fastload.errors import PackError, SourceError
from fastload.sources import open_source
from fastload.tools.pack import PackOptions, pack
from tests.images import write_photo_folder
from tests.reliability.outside import mounting, outside

pyarrow = pytest.importorskip("pyarrow")
importlib.import_module("pyarrow.parquet")

pytestmark = pytest.mark.reliability


def started(source: Path, target: Path, format: str) -> int:
    """Pack in a child. Here nothing is packed, so that Arrow has no threads, which a child would
    not have."""
    assert pyarrow.parquet is not None, "imported once, not by each child"
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        options = PackOptions(size=9_000, format=format)  # type: ignore[arg-type]
        pack(str(source), target, options, progress=False, num_workers=2)
        code = 0
    finally:
        os._exit(code)


def content(target: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(target.iterdir())}


@pytest.mark.parametrize(("format", "kills"), [("tar", 40), ("parquet", 10)])
def test_killed_at_any_point_the_next_run_finishes_it(
    tmp_path: Path, format: str, kills: int
) -> None:
    source = write_photo_folder(tmp_path / "in", classes=3, per_class=10)
    began = time.monotonic()
    assert os.waitpid(started(source, tmp_path / "whole", format), 0)[1] == 0
    seconds = time.monotonic() - began
    whole, moments = content(tmp_path / "whole"), random.Random(7)
    finished, killed = 0, 0
    while killed < kills:
        target = tmp_path / f"out{finished}"
        began = time.monotonic()
        child = started(source, target, format)
        time.sleep(moments.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert status == 0
            assert content(target) == whole
            finished += 1
            # The first run met a busier machine: moments after the end would kill nobody.
            seconds = min(seconds, time.monotonic() - began)
            continue
        killed += 1
        about = target / "fastload.json"
        shards = list(target.glob("shard-*"))
        if shards and not json.loads(about.read_bytes())["whole"]:
            with pytest.raises(SourceError, match="has not finished"):
                open_source(target)
    last = tmp_path / f"out{finished}"
    assert os.waitpid(started(source, last, format), 0)[1] == 0
    assert content(last) == whole


def pack_there(source: str, target: str, kept: str) -> str:
    """What is said of it; what is in `target` then outlasts its file system as `kept`."""
    try:
        return pack(source, target, PackOptions(size=9_000), progress=False).summary
    except PackError as error:
        return str(error)
    finally:
        shutil.copytree(target, kept)


@mounting
@pytest.mark.parametrize("free", [8, 64, 128], ids=lambda free: f"{free} KiB")
def test_a_disk_that_is_full_then_is_not(tmp_path: Path, free: int) -> None:
    source = write_photo_folder(tmp_path / "in", classes=3, per_class=10)
    packed = pack(str(source), tmp_path / "whole", PackOptions(size=9_000), progress=False)
    assert packed.bytes > 128 << 10
    target = tmp_path / "disk"
    target.mkdir()
    disk = f"mount -t tmpfs -o size={free}k tmpfs {target}"
    arguments = str(source), str(target / "out"), str(tmp_path / "left")
    ended = outside(pack_there, *arguments, mounts=[disk])
    assert "the disk is full" in ended.answer
    assert "run the same command again" in ended.answer
    again = pack(str(source), tmp_path / "left", PackOptions(size=9_000), progress=False)
    assert content(tmp_path / "left") == content(tmp_path / "whole")
    assert (again.found > 0) == (free > 16), "what was whole is kept"
