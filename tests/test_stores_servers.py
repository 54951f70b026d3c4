"""Real stores on loopback, and a proxy in front of them that makes faults. Where a store is not
installed, its tests are skipped, with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

import fastload
from fastload import stores
from fastload.errors import DecodeError
from fastload.sources import open_source
from fastload.stores import base, transfers
from fastload.stores.base import ChangedError, Range, StoreError
from tests import images, servers
from tests.faultproxy import FaultProxy, fault_proxy
from tests.objectserver import object_server

CROP = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
S3 = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
S3 |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@dataclass
class Here:
    """A store that runs."""

    url: str
    """Of a bucket that is empty at first: `s3://bucket`."""
    proxy: FaultProxy
    settings: dict[str, str]
    write: Callable[[str, bytes], object] = lambda url, data: stores.write(url, data)
    """(URL, bytes): what an object is written by."""


@pytest.fixture(scope="module", params=["seaweedfs", "moto", "azurite", "gcs", "fakegcs"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Here]:
    pytest.importorskip("obstore", reason="obstore, of the extra `remote`, is not installed")
    folder = tmp_path_factory.mktemp("server")
    with ExitStack() as stack:
        if request.param == "gcs":
            # Google's protocol as obstore speaks it is that of S3, as far as it goes here: writing
            # too, of which fake-gcs-server knows another way only.
            endpoint = stack.enter_context(object_server()).url
        else:
            try:
                endpoint = stack.enter_context(getattr(servers, request.param)(folder))
            except servers.NotHere as reason:
                pytest.skip(str(reason))
        proxy = stack.enter_context(fault_proxy(endpoint))
        if request.param == "azurite":
            servers.azure_container(endpoint, "bucket")
            settings = {
                "AZURE_STORAGE_USE_EMULATOR": "true",
                "AZURITE_BLOB_STORAGE_URL": proxy.url,
            }
            yield Here("az://bucket", proxy, settings)
        elif request.param in ("gcs", "fakegcs"):
            account = {"gcs_base_url": proxy.url, "disable_oauth": True}
            account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            settings = {
                "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account),
                "GOOGLE_ALLOW_HTTP": "true",
            }
            found = Here("gs://bucket", proxy, settings)
            if request.param == "fakegcs":
                servers.gcs_bucket(endpoint, "bucket")
                found.write = lambda url, data: servers.gcs_put(
                    endpoint, "bucket", url.removeprefix("gs://bucket/"), data
                )
            yield found
        else:
            servers.put(f"{endpoint}/bucket")
            yield Here("s3://bucket", proxy, S3 | {"AWS_ENDPOINT_URL": proxy.url})


@pytest.fixture
def here(running: Here, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Iterator[Here]:
    for name, value in running.settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(base, "_FIRST_WAIT", 0.001)
    stores.forget()
    yield running
    running.proxy.faults.clear()
    stores.forget()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of four photographs, in `train`."""
    folder = tmp_path_factory.mktemp("data") / "train"
    return images.write_photo_folder(folder, classes=2, per_class=4)


def upload(folder: Path, here: Here, url: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            here.write(f"{url}/{path.relative_to(folder)}", path.read_bytes())


def batches(spec: Any, **arguments: Any) -> list[torch.Tensor]:
    given = {"shuffle": True, "transform": CROP, "backend": "turbojpeg"}
    with fastload.create_loader(spec, 4, **(given | arguments)) as loader:
        return [column.clone() for batch in loader for column in batch]


@pytest.mark.whole
def test_the_samples_are_those_on_disk(here: Here, local: Path) -> None:
    where = f"{here.url}/photographs"
    upload(local, here, f"{where}/train")
    here.write(f"{where}/tar/0.tar", images.shard_of(local))
    (local.parent / "tar").mkdir(exist_ok=True)
    (local.parent / "tar" / "0.tar").write_bytes(images.shard_of(local))
    for name in ("train", "tar"):
        ours, theirs = batches(f"{where}/{name}"), batches(local.parent / name)
        assert len(ours) == len(theirs) == 4
        assert all(map(torch.equal, ours, theirs)), name
        with fastload.create_loader(f"{where}/{name}", 4, transform=CROP) as loader:
            assert "by the index" in str(loader.explain())  # which the store has not changed since


@pytest.mark.whole
def test_a_version_is_the_same_from_a_listing_and_from_an_answer(here: Here, local: Path) -> None:
    name = f"{here.url}/one/1.bin"
    here.write(name, b"first")
    store, inside = stores.store_of(name)
    (listed,) = store.entries("one")
    assert listed.version == store.info(inside).version > 0  # type: ignore[union-attr]
    assert stores.read(name, 1, 3, listed.version) == b"irs"
    here.write(name, b"other")
    assert stores.read(name, 1, 3, listed.version) == b"irs"  # by the local tier
    with pytest.raises(ChangedError, match=r"1\.bin: this object has changed"):
        stores.read(name, 0, 3, listed.version)
    stores.remove(name)
    with pytest.raises(FileNotFoundError):
        stores.read(name)
    stores.remove(name)


@pytest.mark.whole
def test_odd_names_are_read_by_the_core(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a core and libcurl are; and by obstore the same."""
    if transfers.missing():
        pytest.skip(transfers.missing())
    names = ["a b.bin", "\u00fc.bin", "a+b&c=d.bin", "100%25.bin", "x'(1)!~.bin"]
    for name in names:
        here.write(f"{here.url}/odd/{name}", name.encode())
    assert "by libcurl/" in stores.by_whom(here.url)
    for client in ("libcurl", "obstore"):
        monkeypatch.setenv("FASTLOAD_CLIENT", client)
        stores.forget()
        with stores.seen_kept():
            assert {name for name, _ in stores.entries(f"{here.url}/odd")} == {*names}
            versions = stores.versions_of(f"{here.url}/odd/{name}" for name in names).tolist()
        assert all(versions)
        wanted = [
            Range(f"{here.url}/odd/{name}", 0, None, version)
            for name, version in zip(names, versions, strict=True)
        ]
        assert stores.read_many(wanted, by_tier=False) == [name.encode() for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["503", "reset", "reset half", "cut", "slow"])
def test_what_passes_is_tried_again(fault: str, here: Here) -> None:
    data, name = os.urandom(200_000), f"{here.url}/faults/{fault}.bin"
    here.write(name, data)
    here.proxy.faults[f"{fault}.bin"] = [fault, fault]
    assert stores.read(name, 0, len(data)) == data
    assert stores.read_many([Range(name, 5, 10), Range(name, 150_000, 7)]) == [
        data[5:15],
        data[150_000:150_007],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("503", StoreError),
        ("403", PermissionError),
        ("cut", StoreError),
        ("etag", ChangedError),
    ],
)
def test_what_does_not_pass_is_an_error_with_the_url(
    fault: str, kind: type[Exception], here: Here
) -> None:
    name = f"{here.url}/wrong/{fault}.bin"
    here.write(name, os.urandom(100_000))
    store, inside = stores.store_of(name)
    found = store.info(inside)
    assert found is not None
    here.proxy.faults[f"{fault}.bin"] = [fault] * 50
    with pytest.raises(kind, match=rf"{fault}\.bin") as caught:
        stores.read(name, 0, 100_000, found.version)
    assert "secret details" not in str(caught.value)


@pytest.mark.slow
def test_a_redirect_gives_the_bytes_or_an_error(here: Here) -> None:
    data, name = os.urandom(100_000), f"{here.url}/faults/redirect.bin"
    here.write(name, data)
    here.proxy.faults["redirect.bin"] = ["redirect"]
    try:
        assert stores.read(name) == data
    except OSError as error:  # what was signed for one host is refused by another
        assert name in str(error)  # noqa: PT017 - either is right
    assert here.proxy.faults["redirect.bin"] == []


@pytest.mark.whole
def test_an_object_that_was_replaced_is_an_error_that_names_it(here: Here, local: Path) -> None:
    where = f"{here.url}/replaced"
    upload(local, here, where)
    opened = open_source(where)
    here.write(f"{where}/class_1/1.jpg", images.jpeg(images.photo(24, 24, seed=99)))
    with pytest.raises(DecodeError, match=r"class_1/1\.jpg: .*has changed"):
        batches(opened)
    again = open_source(where)  # the index is not used
    assert not any("by the index" in note for note in again.notes)


@pytest.mark.whole
def test_a_folder_of_more_objects_than_a_listing_has(here: Here) -> None:
    if here.url.startswith("az"):
        pytest.skip("a page of a listing of Azurite has 5,000 objects")
    names = [f"many/{number:05}.bin" for number in range(1_050)]
    for name in names:
        here.write(f"{here.url}/{name}", b"x")
    store, _ = stores.store_of(f"{here.url}/many")
    found = store.entries("many")
    assert [f"many/{entry.name}" for entry in found] == names
