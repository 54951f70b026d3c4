"""Bad conditions of a store and of the local tier, on every backend: the samples of local files, or
an error that names the object; never a wrong sample, and no waiting for ever.

Faults of single answers are in `tests/test_stores.py`, the tier by itself in `tests/test_tier.py`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import stores
from fastload.errors import DecodeError
from fastload.sources import open_source
from fastload.stores import objects
from tests import images
from tests.backends import Contestant, contestants
from tests.objectserver import ObjectServer
from tests.reliability.outside import outside
from tests.waiting import wait_until

pytestmark = pytest.mark.reliability
URL, NAME = "s3://bucket/train", "bucket/train/class_1/1.jpg"


@pytest.fixture
def local(
    tmp_path: Path, server: ObjectServer, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Two classes of four photographs, here and in the store, of which nobody waits long."""
    folder = images.write_photo_folder(tmp_path / "data" / "train", classes=2, per_class=4)
    for path in folder.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    monkeypatch.setattr(objects, "_SILENCE", timedelta(seconds=2))
    monkeypatch.setattr(objects, "_RENEWED_AFTER", 0.0)
    stores.forget()
    return folder


def epoch(contestant: Contestant, data: Any, directory: Path) -> list[torch.Tensor]:
    given: dict[str, Any] = {"batch_size": 4, "transform": v2.Resize((16, 16))}
    with contestant.create(data, directory, **given) as loader:
        return [batch.cpu().clone() for batch, _ in loader]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) == 2 and all(map(torch.equal, ours, theirs))


@contestants(remote=True)
def test_what_passes_gives_the_samples(
    contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path
) -> None:
    opened = open_source(URL)
    # Worker processes make their clients themselves: those wait for 15 seconds, and credentials
    # are renewed where they are older than 10.
    expired = [] if contestant.served else ["400 <Code>ExpiredToken</Code>"]
    server.faults[NAME] = ["stall", *expired]
    ours = epoch(contestant, opened, tmp_path / "remote")
    assert not server.faults[NAME]
    assert same(ours, epoch(contestant, str(local), tmp_path / "local"))


@contestants(remote=True)
@pytest.mark.parametrize("condition", ["clock", "credentials", "address"])
def test_what_does_not_pass_is_an_error_that_names_the_object(
    condition: str,
    contestant: Contestant,
    local: Path,
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = open_source(URL)
    place, words = rf"{URL}/class_\d/\d\.jpg", "tried 5 times"
    if condition == "address":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://no-such-host.invalid")
        stores.forget()
    else:
        code = "RequestTimeTooSkewed" if condition == "clock" else "ExpiredToken"
        words = "clock" if condition == "clock" else "expired"
        place, server.faults[NAME] = f"s3://{NAME}", [f"403 <Code>{code}</Code>"] * 10_000
    with pytest.raises(DecodeError, match=f"{place}: .*{words}"):
        epoch(contestant, opened, tmp_path / "remote")


@contestants(remote=True)
@pytest.mark.parametrize("condition", ["no disk", "full"])
def test_a_tier_that_takes_nothing_more(
    condition: str,
    contestant: Contestant,
    local: Path,
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if condition == "full":
        monkeypatch.setenv("FASTLOAD_TIER_SIZE", "2kB")
    else:
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setenv("FASTLOAD_TIER", str(tmp_path / "file" / "tier"))
    ours = epoch(contestant, URL, tmp_path / "remote")
    assert same(ours, epoch(contestant, str(local), tmp_path / "local"))


@contestants(remote=True)
def test_two_jobs_fill_one_tier(
    contestant: Contestant,
    local: Path,
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No read is made again because the machine is busy: they are counted.
    monkeypatch.setattr(objects, "_SILENCE", objects._ANSWER)
    stores.forget()
    opened, found = open_source(URL), dict[int, list[torch.Tensor]]()
    server.requests.clear()

    def job(number: int) -> None:
        found[number] = epoch(contestant, opened, tmp_path / f"job-{number}")

    jobs = [threading.Thread(target=job, args=(number,)) for number in range(2)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
    theirs = epoch(contestant, str(local), tmp_path / "local")
    assert all(same(found[number], theirs) for number in range(2))
    # Whole objects: reads for headers alone are not kept.
    assert [server.reads_of(name).count("") for name in server.objects] == [1] * 8


def read_to_the_end(started: str) -> None:
    batches = iter(fastload.create_loader(URL, 1, transform=v2.Resize((16, 16)), num_workers=1))
    next(batches)
    Path(started).touch()
    list(batches)


@contestants(remote=True)
def test_a_job_that_is_killed_while_it_fills_the_tier(
    contestant: Contestant, local: Path, server: ObjectServer, tmp_path: Path
) -> None:
    server.faults[NAME] = ["stall"]
    started = tmp_path / "started"

    def kill(process: psutil.Process) -> None:
        wait_until(started.exists)
        process.kill()

    outside(read_to_the_end, str(started), status=-signal.SIGKILL, during=kill)
    server.faults.clear()
    ours = epoch(contestant, URL, tmp_path / "remote")
    assert same(ours, epoch(contestant, str(local), tmp_path / "local"))


@contestants(remote=True)
def test_credentials_that_expire_meanwhile_are_renewed_once(
    contestant: Contestant,
    local: Path,
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In worker processes too, whose clients are a few seconds old."""
    if contestant.backend == "cache":
        pytest.skip("all is read before the first batch")
    file = tmp_path / "credentials"
    text = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret\n"
    file.write_text(text.format("OLD"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("FASTLOAD_TIER_SIZE", "0")
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setattr(objects, "_RENEWED_AFTER", 1e9)
    stores.forget()
    with contestant.create(URL, tmp_path, batch_size=1, transform=v2.Resize((16, 16))) as loader:
        first = [batch.cpu().clone() for batch, _ in loader]
        assert all("Credential=OLD/" in signed for signed in server.signed)
        file.write_text(text.format("NEW"))
        server.signed.clear()
        server.expired = "OLD"
        again: list[torch.Tensor] = []
        for _ in range(8):
            sent = len(server.signed)
            again += [batch.cpu().clone() for batch, _ in loader]
    assert len(first) == 8
    assert len(again) == 64
    assert all(map(torch.equal, again, 8 * first))
    keys = [re.findall("Credential=([A-Z]+)/", signed)[0] for signed in server.signed]
    # With the old ones, those that were in flight when the first was refused, read ahead for two or
    # three epochs; of the last epoch none.
    assert keys.count("NEW") >= 16
    assert "OLD" not in keys[sent:]


def two_ranks(client: str) -> list[list[int] | str]:
    """Of each rank of two, a checksum of each of its batches of two epochs, or the words of its
    error."""
    os.environ |= {"FASTLOAD_CLIENT": client, "LOCAL_WORLD_SIZE": "2"}
    pipes, found = [], list[list[int] | str]()
    for rank in range(2):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                answer: list[int] | str = checksums(URL, rank)
            except DecodeError as error:
                answer = str(error)
            os.write(writer, msgspec.json.encode(answer))
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    for number in pipes:
        with open(number, "rb") as pipe:
            found.append(msgspec.json.decode(pipe.read()))
        os.wait()
    return found


def checksums(data: str, rank: int) -> list[int]:
    given: dict[str, Any] = {"transform": v2.Resize((16, 16)), "shuffle": True, "num_workers": 1}
    with fastload.create_loader(data, 2, shard=fastload.Shard(rank, 2), **given) as loader:
        return [zlib.crc32(batch.numpy().tobytes()) for _ in range(2) for batch, _ in loader]


@pytest.mark.parametrize("client", ["libcurl", "obstore"])
@pytest.mark.parametrize(
    "fault", ["503", "429", "500", "reset", "truncated", "stall", "slow", "page", "dated page"]
)
def test_what_passes_gives_each_of_two_ranks_its_samples(
    fault: str, client: str, local: Path, server: ObjectServer
) -> None:
    """They share the tier."""
    theirs = [checksums(str(local), rank) for rank in range(2)]
    fastload.create_loader(URL, 2, transform=v2.Resize((16, 16))).close()  # makes the index
    server.faults = {name: [fault] for name in server.objects}
    assert outside(two_ranks, client).answer == theirs
    assert not any(server.faults.values())


@pytest.mark.parametrize("client", ["libcurl", "obstore"])
@pytest.mark.parametrize("fault", ["503", "403", "404", "truncated", "page"])
def test_what_does_not_pass_is_an_error_in_each_of_two_ranks(
    fault: str, client: str, local: Path, server: ObjectServer
) -> None:
    fastload.create_loader(URL, 2, transform=v2.Resize((16, 16))).close()
    server.faults = {name: [fault] * 10_000 for name in server.objects}
    words = outside(two_ranks, client).answer
    assert all(re.search(r"s3://bucket/train/class_\d/\d\.jpg: ", each) for each in words), words
