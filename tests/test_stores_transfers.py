"""Objects fetched by the native core: what `Store` promises, by URLs signed by obstore."""

from __future__ import annotations

import gc
import hashlib
import hmac
import os
import re
import ssl
import threading
import time
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import obstore
import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import stores
from fastload.errors import CancelledReadError
from fastload.stores import aws, azure_signatures, base, objects, s3_signatures, transfers
from fastload.stores.base import ChangedError, Range, StoreError
from fastload.stores.reads import Reads
from fastload.stores.s3_signatures import Signer
from tests import images, servers
from tests.objectserver import ObjectServer, etag, object_server
from tests.waiting import LIMIT, wait_until

if transfers.missing():
    pytest.skip(f"{transfers.missing()}", allow_module_level=True)

CROP = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
URL = "s3://bucket/x"


@pytest.fixture(autouse=True)
def by_the_core(monkeypatch: pytest.MonkeyPatch, server: ObjectServer) -> None:
    monkeypatch.setenv("FASTLOAD_CLIENT", "libcurl")
    stores.forget()


def version(url: str = URL) -> int:
    with stores.seen_kept():
        stores.size_of(url)
        return int(stores.versions_of([url])[0])


def read(*wanted: Any, url: str = URL) -> bytes:
    return stores.read_many([Range(url, *wanted)], by_tier=False)[0]


def client() -> str:
    return stores.by_whom(URL)


def fetcher_of_the_store() -> Any:
    store, _ = stores.store_of(URL)
    assert isinstance(store, objects.ObjectStore)
    assert store._transfers is not None
    return store._transfers._fetcher


@pytest.mark.whole
@pytest.mark.parametrize("by", ["libcurl", "obstore"])
@pytest.mark.parametrize("what", ["train", "tar", "blocks"])
def test_the_samples_are_those_on_disk(
    by: str, what: str, server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_CLIENT", by)
    stores.forget()
    local = images.write_photo_folder(tmp_path / "data" / "train", classes=2, per_class=8)
    for path in local.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(local)}"] = path.read_bytes()
    (tmp_path / "data" / "tar").mkdir()
    (tmp_path / "data" / "tar" / "0.tar").write_bytes(images.shard_of(local))
    server.objects["bucket/tar/0.tar"] = images.shard_of(local)
    order = fastload.BlockShuffle(block=4, window=2) if what == "blocks" else fastload.Shuffle()
    name = "train" if what == "train" else "tar"

    def epochs(place: str) -> list[torch.Tensor]:
        given: dict[str, Any] = {"order": order, "transform": CROP, "backend": "turbojpeg"}
        with fastload.create_loader(f"{place}/{name}", 4, **given) as loader:
            found = [column.clone() for _ in range(2) for batch in loader for column in batch]
            if place.startswith("s3"):
                words = str(loader.explain())
                assert ("by libcurl/" in words) == (by == "libcurl")
                assert ("by obstore " in words) == (by == "obstore")
        return found

    ours, theirs = epochs("s3://bucket"), epochs(str(tmp_path / "data"))
    assert len(ours) == len(theirs) == 16
    assert all(map(torch.equal, ours, theirs))


# -- Whose bytes they are --------------------------------------------------------------------------

DATA = bytes(range(256)) * 40
FLIPPED = DATA[:5000] + bytes([DATA[5000] ^ 1]) + DATA[5001:]
CHECKSUMS = {
    "crc32": {"x-amz-checksum-crc32": "u847nQ==", "x-amz-checksum-type": "FULL_OBJECT"},
    "sha256": {"x-amz-checksum-sha256": "6WdgqHdocXvOvP0l3cfUa028laSwAU3vCAwIU599kNA="},
    "sha1": {"x-amz-checksum-sha1": "NoEumfLVkcURSnsJUZ6p19q6I4A="},
    "md5": {"Content-MD5": "w80m4H5VXAEW2yN/vAbZnA=="},
    "crc32c": {"x-amz-checksum-crc32c": "vYRs1w=="},
    "crc64": {
        "x-amz-checksum-crc64nvme": "4XY+hejrRZk=",
        "x-amz-checksum-type": "FULL_OBJECT",
    },
    "google": {"x-goog-hash": "crc32c=vYRs1w==,md5=w80m4H5VXAEW2yN/vAbZnA=="},
    "google, of parts": {"x-goog-hash": "crc32c=vYRs1w=="},
    "google, MD5": {"x-goog-hash": "md5=w80m4H5VXAEW2yN/vAbZnA=="},
}
"""Of DATA: by `openssl dgst -binary | base64`; of CRC-32 by `gzip` (its trailer), of CRC-32C by
the package google-crc32c 1.9.0, of CRC-64/NVME bit by bit."""


@pytest.mark.parametrize("kind", CHECKSUMS)
def test_a_bit_flipped_under_the_right_etag(kind: str, server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    server.more["bucket/x"] = CHECKSUMS[kind]
    wanted = version()
    assert read(0, None, wanted) == DATA
    server.etags["bucket/x"] = etag(DATA)
    server.objects["bucket/x"] = FLIPPED
    with pytest.raises(StoreError, match=r"s3://bucket/x: .* do not have the .*tried 5 times"):
        read(0, None, wanted)
    assert read(4999, 3, wanted) == FLIPPED[4999:5002], "of a part it is not known"


@pytest.mark.parametrize(
    "checksums",
    [
        {"x-amz-checksum-crc32": "AAAAAA==-2"},
        {"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-crc32c": "AAAAAA==-2"},
        {"x-amz-checksum-xxhash": "AAAAAAAAAAA="},
    ],
)
def test_checksums_that_say_nothing_of_the_bytes(
    checksums: dict[str, str], server: ObjectServer
) -> None:
    server.objects["bucket/x"] = DATA
    server.more["bucket/x"] = checksums
    assert read(0, None, version()) == DATA


def test_an_object_that_was_replaced(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    wanted = version()
    server.objects["bucket/x"] = FLIPPED
    for part in ((0, None), (5, 10)):
        with pytest.raises(ChangedError, match=r"s3://bucket/x: this object has changed"):
            read(*part, wanted)
    assert len(server.reads_of("bucket/x")) == 2


def test_an_answer_without_a_length(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    server.more["bucket/x"] = {"Content-Length": "1"}
    with pytest.raises(StoreError, match=r"header of the answer makes no sense; tried 5 times"):
        read(0, None)


@pytest.mark.parametrize("part", [(0, None), (5, None), (5, 10)])
def test_an_answer_in_chunks_that_ends_early(
    part: tuple[int, int | None], server: ObjectServer
) -> None:
    server.objects["bucket/x"] = DATA
    server.faults["bucket/x"] = ["chunks", "chunks"]
    start, length = part
    assert read(*part) == DATA[start : None if length is None else start + length]
    assert len(server.reads_of("bucket/x")) == 3


@pytest.mark.whole
def test_an_object_larger_than_memory_is_taken_for_at_once(server: ObjectServer) -> None:
    """64 MiB are taken for the first bytes, whatever the answer says, and more as they come."""
    block = os.urandom(1 << 20)
    server.objects["bucket/large"] = b"".join(row.to_bytes(4, "big") + block for row in range(150))
    data = read(url="s3://bucket/large")
    assert data == server.objects["bucket/large"]


# -- When it is asked for again --------------------------------------------------------------------


@pytest.mark.whole
def test_slow_ones_are_asked_for_twice(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    store, _ = stores.store_of(URL)
    for _ in range(10):
        stores.read_many([Range(f"{URL}", row * 3000, 1) for row in range(3)] * 10, by_tier=False)
    for row in range(100):
        server.objects[f"bucket/{row}"] = DATA
    stores.read_many([Range(f"s3://bucket/{row}") for row in range(100)], by_tier=False)
    server.faults["bucket/7"] = ["mute"]
    wanted = [Range(f"s3://bucket/{row}") for row in range(100)]
    assert stores.read_many(wanted, by_tier=False) == [DATA] * 100
    assert len(server.reads_of("bucket/7")) == 3
    assert store.flight.asked_twice >= 1


@pytest.mark.whole
def test_one_of_two_requests_fails_and_the_other_answers(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt is left after the second request for a slow object has failed."""
    monkeypatch.setattr(base, "ATTEMPTS", 1)
    server.objects["bucket/x"] = DATA
    store, _ = stores.store_of(URL)
    monkeypatch.setattr(store.flight, "patience", lambda _: 0.1)
    monkeypatch.setattr(store.flight, "may_ask_twice", lambda: True)
    server.faults["bucket/x"] = ["slow", "503"]
    assert read() == DATA
    assert len(server.reads_of("bucket/x")) == 2


def test_no_more_are_made_at_once_than_the_plan_says(server: ObjectServer) -> None:
    """Half as many after an answer 503."""
    names = [f"{number}" for number in range(8)]
    server.objects |= {f"bucket/{name}": DATA for name in names}
    store, _ = stores.store_of(URL)
    store.flight.limit = 8
    server.faults["bucket/0"] = ["503"]
    assert read(url="s3://bucket/0") == DATA
    assert store.flight.limit == 4
    server.faults |= {f"bucket/{name}": ["slow"] for name in names}
    wanted = [Range(f"s3://bucket/{name}") for name in names]
    assert stores.read_many(wanted, by_tier=False) == [DATA] * 8
    assert 1 <= server.slow_at_once <= 4


@pytest.mark.whole
def test_a_store_that_asks_to_wait_is_waited_for(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Till the time in which attempts begin is over; without it there were five of them."""
    monkeypatch.setattr(base, "_LAST_ATTEMPT", 1.0)
    server.objects["bucket/x"] = DATA
    server.faults["bucket/x"] = ["503"] * 9
    server.retry_after = "3600"
    with pytest.raises(StoreError, match=r"status code: 503; tried 2 times\. The store refuses"):
        read()


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("7", 7, 7),
        ("", 0, 0),
        ("soon", 0, 0),
        ("-3", 0, 0),
        ("\u0663", 0, 0),
        ("Sun, 22 Nov 2020 10:00:00 GMT", 0, 0),
        ("Wed, 22 Nov 2090 10:00:00 GMT", 1e9, 3e9),
    ],
)
def test_how_long_a_store_asks_to_wait(said: str, least: float, most: float) -> None:
    assert least <= transfers._seconds_of(said) <= most


def test_one_that_fails_ends_the_others(server: ObjectServer) -> None:
    server.objects |= {f"bucket/{row}": DATA for row in range(3)}
    server.faults["bucket/1"] = ["mute"]
    with pytest.raises(FileNotFoundError, match=r"no such object .*s3://bucket/gone"):
        stores.read_many([Range(f"s3://bucket/{name}") for name in (0, 1, "gone")], by_tier=False)
    assert stores.read_many([Range("s3://bucket/1")], by_tier=False) == [DATA]


def test_reads_that_are_ended(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is under way any more, either."""
    for name in ("_SILENCE", "_ANSWER"):
        monkeypatch.setattr(objects, name, timedelta(seconds=100_000))
    stores.forget()
    server.objects["bucket/x"] = DATA
    server.faults["bucket/x"] = ["mute"]
    reads, errors = Reads("over"), list[BaseException]()

    def wait() -> None:
        try:
            with reads.here():
                read()
        except CancelledReadError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(server.reads_of("bucket/x")))
    reads.end()
    thread.join(LIMIT)
    assert [str(error) for error in errors] == ["over"]
    fetcher = fetcher_of_the_store()
    wait_until(lambda: not fetcher.running)


# -- Who fetches -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"AWS_PROXY_URL": "http://127.0.0.1:1"}, "AWS_PROXY_URL is set"),
        ({"FASTLOAD_CLIENT": "obstore"}, "by obstore "),
    ],
)
def test_what_libcurl_is_not_given_is_left_to_obstore(
    setting: dict[str, str],
    words: str,
    server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    stores.forget()
    assert words in client()
    assert "libcurl/" not in client()


KEY = "bm9uZQ=="
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": KEY}
BLOB = "https://account.blob.core.windows.net/box/a%20b"


@pytest.mark.parametrize(
    ("url", "settings", "wanted"),
    [
        ("az://box", AZURE, f"{BLOB}?sp=r&se="),
        ("abfss://box@account.dfs.core.windows.net", AZURE, f"{BLOB}?sp=r&se="),
        ("abfss://box@account.dfs.core.windows.net", {"AZURE_STORAGE_ACCESS_KEY": KEY}, BLOB),
        (
            "az://box",
            {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_SAS_TOKEN": "?sv=1&sig=x%3D"},
            f"{BLOB}?sv=1&sig=x%3D",
        ),
        (
            "az://box",
            {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_SKIP_SIGNATURE": "true"},
            BLOB,
        ),
        ("az://box", AZURE | {"AZURE_CLIENT_ID": "x"}, "AZURE_CLIENT_ID is set"),
        ("az://box", AZURE | {"AZURE_STORAGE_TOKEN": "x"}, "AZURE_STORAGE_TOKEN is set"),
        ("az://box", AZURE | {"AZURE_ACCOUNT_KEY": "b3RoZXI="}, "no key of the account"),
        ("az://box", {"AZURE_STORAGE_ACCOUNT_NAME": "account"}, "no key of the account"),
        (
            "gs://box",
            {"GOOGLE_SKIP_SIGNATURE": "true"},
            "https://storage.googleapis.com/box/a%20b",
        ),
        ("gs://box", {"GOOGLE_BEARER_TOKEN": "x"}, "GOOGLE_BEARER_TOKEN is set"),
    ],
)
def test_who_fetches_from_azure_and_google(
    url: str, settings: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those who fetch by URLs, what these begin with."""
    for name in [name for name in os.environ if name.startswith(("AZURE", "GOOGLE"))]:
        monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    stores.forget()
    store, _ = stores.store_of(url)
    assert isinstance(store, objects.ObjectStore)
    urls = store.urls(["a b"])
    if urls is None:
        assert wanted in store.by_whom()
        assert "by obstore " in store.by_whom()
    else:
        assert urls[0].startswith(wanted)
        assert "libcurl/" in store.by_whom()
        assert KEY not in urls[0]


@pytest.mark.parametrize("kind", ["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"])
def test_what_gives_access_to_azure_is_renewed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of S3: read again from the environment."""
    for name in [name for name in os.environ if name.startswith("AZURE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    old, new = ("bm9uZQ==", "b3RoZXI=") if "KEY" in kind else ("sv=1&sig=old", "sv=1&sig=new")
    monkeypatch.setenv(kind, old)
    monkeypatch.setattr(azure_signatures, "datetime", Noon)
    stores.forget()
    store, _ = stores.store_of("az://box")
    assert isinstance(store, objects.ObjectStore)
    before = store.urls(["x"])
    monkeypatch.setenv(kind, new)
    assert store.urls(["x"]) == before
    monkeypatch.setattr(objects, "_RENEWED_AFTER", 0.0)
    assert store.renewed(store.client)
    renewed = store.urls(["x"])
    assert renewed is not None
    assert renewed != before
    if "SAS" in kind:
        assert renewed[0].endswith("?sv=1&sig=new")


def test_a_host_with_a_name_of_its_own_has_the_signatures_of_its_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(azure_signatures, "datetime", Noon)
    valid = timedelta(minutes=15)
    found = {
        azure_signatures.BlobSignatures(f"https://{host}/box/", "account", KEY)
        .of(["a b"], valid)[0]
        .partition("?")[2]
        for host in ("account.blob.core.windows.net", "data.example.org", "127.0.0.1:1/account")
    }
    assert len(found) == 1


class Noon(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Noon:
        return cls(2026, 11, 30, 12, tzinfo=tz)


def test_another_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOAD_CLIENT", "wget")
    stores.forget()
    with pytest.raises(fastload.errors.SourceError, match=r"FASTLOAD_CLIENT='wget': libcurl or"):
        stores.store_of(URL)


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_proxy_of_the_environment(
    name: str, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for the whole URL."""
    monkeypatch.setenv(name, server.url)
    for other in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.invalid:9000")
    stores.forget()
    server.objects["bucket/x"] = DATA
    assert read() == DATA
    assert "libcurl/" in client()


def test_signatures_are_of_the_keys_that_are_set(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    stores.forget()
    server.objects["bucket/x"] = DATA
    assert read() == DATA
    assert re.search(r"Credential=AKIAKEY/.*X-Amz-Expires=900&.*Signature=", server.signed[-1])
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    stores.forget()
    assert read() == DATA
    assert server.signed[-1] == ""


@pytest.mark.parametrize("token", ["", "a/b+c="])
def test_signatures_are_those_of_obstore(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    for name, value in (("ACCESS_KEY_ID", "KEY"), ("SECRET_ACCESS_KEY", "S/+"), ("REGION", "de")):
        monkeypatch.setenv(f"AWS_{name}", value)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    client: Any = obstore.store.from_url("s3://bucket", client_options={"allow_http": True})
    names = ["x", "a b/\u00fc~(1)!.jpg", "q*&=+%41?#;@:$,'", "photographs/1-2_3.jpg", "%", "x/y"]
    dates = set[str]()
    while len(dates) != 1:  # all in one second
        pattern, *urls = obstore.sign(client, "GET", ["x", *names], timedelta(minutes=15))
        dates = {re.findall("X-Amz-Date=([^&]*)", url)[0] for url in (pattern, *urls)}
    signer = Signer(client, pattern, "S/+")
    assert signer.fits
    assert signer.of(names) == urls
    assert ("Security-Token" in pattern) is bool(token)
    assert not Signer(client, pattern, "another").fits
    assert signer.current(client)
    assert not signer.current(object())
    monkeypatch.setattr(s3_signatures, "_LASTS", -1.0)
    assert not Signer(client, pattern, "S/+").current(client)


@pytest.mark.parametrize("known", [True, False])
def test_obstore_signs_where_the_secret_is_not_known(
    known: bool, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    stores.forget()
    store, _ = stores.store_of(URL)
    assert isinstance(store, objects.ObjectStore)
    if not known:
        monkeypatch.setattr(store, "_secret", lambda: "another")
    server.objects["bucket/x"] = DATA
    assert read() == DATA
    assert store._signer is not None
    assert store._signer.fits is known
    date, signed = re.findall("X-Amz-Date=([^&]*).*X-Amz-Signature=([^&]*)", server.signed[-1])[0]
    right = Signer(store.client, obstore.sign(store.client, "GET", "x", timedelta(minutes=15)), "")
    key = b"AWS4SECRET"
    for part in (date[:8], "us-east-1", "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    scope = f"{date[:8]}/us-east-1/s3/aws4_request"
    query = re.sub("(X-Amz-Date=)[^&]*", rf"\g<1>{date}", right._query)
    host = server.url.removeprefix("http://")
    request = f"GET\n/bucket/x\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    words = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    assert hmac.digest(key, words.encode(), "sha256").hex() == signed


def test_credentials_that_another_thread_renews_while_urls_are_signed(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old ones signed is denied, and asked for again with the new ones."""
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    stores.forget()
    server.objects["bucket/x"], server.expired = DATA, "OLD"
    store, _ = stores.store_of(URL)
    assert isinstance(store, objects.ObjectStore)
    sign, first = store.urls, store.client

    def renewed_meanwhile(names: list[str]) -> list[str] | None:
        urls = sign(names)
        if store.client is first:
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEW")
            store._store, store._made = store._opened(), time.monotonic()
        return urls

    monkeypatch.setattr(store, "urls", renewed_meanwhile)
    assert read() == DATA
    keys = [re.findall(r"Credential=(\w+)/", each)[0] for each in server.signed]
    assert keys == ["OLD", "NEW"]


@pytest.mark.whole
def test_no_second_has_more_requests_than_s3_gives(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < base.S3_RATE < 5500
    monkeypatch.setattr(base, "S3_RATE", 20)
    stores.forget()
    names = [f"{number}" for number in range(30)]
    server.objects |= {f"bucket/{name}": DATA for name in names}
    found = stores.read_many([Range(f"s3://bucket/{name}") for name in names], by_tier=False)
    assert found == [DATA] * 30
    assert fetcher_of_the_store().paced


def test_a_program_for_credentials_is_asked_when_a_request_is_signed(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: it may take long, and fail."""
    asked = list[int]()

    def provide() -> dict[str, Any]:
        asked.append(1)
        until = datetime.now(timezone.utc) + timedelta(hours=1)
        keys = {"access_key_id": "AKIAPROVIDED", "secret_access_key": "SECRET", "token": "TOKEN"}
        return keys | {"expires_at": until}

    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    monkeypatch.setattr(aws, "settings", lambda: {"credential_provider": provide})
    stores.forget()
    server.objects["bucket/x"] = DATA
    assert "libcurl/" in stores.by_whom(URL)
    assert not asked
    assert [read(), read()] == [DATA] * 2
    assert len(asked) == 1
    assert all("Credential=AKIAPROVIDED/" in each for each in server.signed)


def test_the_thread_goes_with_the_store(server: ObjectServer) -> None:
    server.objects["bucket/x"] = DATA
    assert read() == DATA
    fetcher = fetcher_of_the_store()
    assert fetcher.running
    stores.forget()
    gc.collect()
    assert not fetcher.running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `servers.certificates`."""
    try:
        return servers.certificates(tmp_path_factory.mktemp("authority"))
    except servers.NotHere as reason:
        pytest.skip(str(reason))


@pytest.mark.whole
def test_a_host_is_trusted_by_the_file_of_the_environment(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By both who read from it."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority / "host.pem", authority / "host.key")
    with object_server(tls) as server:
        server.objects["bucket/x"] = DATA
        url = f"{server.url}/bucket/x"
        monkeypatch.setenv("SSL_CERT_FILE", str(authority / "authority.pem"))
        stores.forget()
        assert read(0, None, version(url), url=url) == DATA
        assert "libcurl/" in stores.by_whom(url)
        monkeypatch.delenv("SSL_CERT_FILE")
        stores.forget()
        with pytest.raises(
            StoreError, match=r"tried 5 times\. The host is not trusted: .*SSL_CERT"
        ):
            read(url=url)
