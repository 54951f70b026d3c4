"""Folders of very many objects, listed by several requests at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload import stores
from fastload.stores import objects, wide
from fastload.stores.seen import Entry, Listed
from fastload.stores.wide import PAGE, Asked, Page, Part
from tests.objectserver import ObjectServer, object_server

COUNT = 20_000
KINDS: dict[str, Callable[[int], str]] = {
    "numbers": lambda number: f"{number:012}.jpg",
    "numbers of any length": lambda number: f"{number}.jpg",
    "hexadecimal": lambda number: f"{hashlib.md5(b'%d' % number).hexdigest()}.png",
    "words": lambda number: f"ILSVRC2012_val_{number:08}.JPEG",
    "one long prefix": lambda number: f"{'x' * 40}{number:06}",
    "other letters": lambda number: f"{chr(0x4E00 + number % 5000)}{number}.jpg",
}


class Names:
    """A stand-in for a store, with objects in order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = sorted(names, key=str.encode)
        self.requests = 0
        self.rounds = 0
        self.before = 0
        """Requests for a listing that nothing disturbed."""
        self.left: int | None = None
        """Rounds until it fails; None: it does not."""

    def entry(self, name: str) -> Entry:
        return Entry(name, False, 1 + len(name), f"tag of {name}")

    def page_after(self, after: str) -> Page | None:
        import bisect

        first = bisect.bisect_right(self.names, after)
        found = self.names[first : first + PAGE]
        return Page([self.entry(name) for name in found], len(found) == PAGE)

    def all_of(self, asked: Sequence[Asked]) -> list[Part | None]:
        if self.left == 0:
            raise OSError("killed")
        self.left = None if self.left is None else self.left - 1
        assert len(asked) <= wide.AT_ONCE
        self.requests += len(asked)
        self.rounds += 1
        return [wide.part_of(one, self.page_after) for one in asked]

    def right(self) -> Listed:
        return Listed.of([self.entry(name) for name in self.names])


def same(found: Listed | None, right: Listed) -> bool:
    return (
        found is not None
        and all(
            np.array_equal(getattr(found, name), getattr(right, name))
            for name in ("names", "ends", "sizes", "versions")
        )
        and (found.sums, found.versioned, found.stamp) == (right.sums, right.versioned, right.stamp)
    )


@pytest.fixture(autouse=True)
def written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is listed is written to disk after each round."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(wide, "_SAVED_EVERY", 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_all_names_come_once_and_in_order_by_few_requests(kind: str) -> None:
    store = Names([KINDS[kind](number) for number in range(COUNT)])
    assert same(wide.listed(store.all_of, kind), store.right())
    assert store.requests <= COUNT // PAGE + wide.MOST_CUTS + 1
    if kind != "other letters":  # of which the first names say nothing
        assert store.rounds <= COUNT // PAGE // 2


@pytest.mark.parametrize("count", [0, 1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE])
def test_folders_of_few(count: int) -> None:
    store = Names([f"{number:05}" for number in range(count)])
    assert same(wide.listed(store.all_of, "few"), store.right())


def test_cuts_lie_between_and_each_is_short() -> None:
    digits = sorted("0123456789.jpg")
    for after, end in (
        ("", None),
        ("000123.jpg", None),
        ("000123.jpg", "1"),
        ("5", "50"),
        ("5", "6"),
    ):
        found = wide.places(after, end, digits, 31)
        assert found == sorted({*found})
        assert len(found) <= 31
        assert all(after < name and (end is None or name < end) for name in found)
    assert len(wide.places("000123.jpg", "1", digits, 31)) > 10
    assert wide.places("5", "5.", digits, 31) == []


@pytest.fixture
def killed() -> Names:
    """A listing that ended after some rounds."""
    store = Names([KINDS["hexadecimal"](number) for number in range(COUNT)])
    wide.listed(store.all_of, "whole")
    store.before, store.left = store.requests, 3
    with pytest.raises(OSError, match="killed"):
        wide.listed(store.all_of, "s3://bucket")
    store.left, store.requests = None, 0
    return store


def test_a_listing_that_was_killed_goes_on_where_it_was(killed: Names) -> None:
    assert same(wide.listed(killed.all_of, "s3://bucket"), killed.right())
    assert killed.requests < killed.before
    killed.requests = 0
    assert same(wide.listed(killed.all_of, "s3://bucket"), killed.right())
    assert killed.requests >= killed.before, "what was finished is not kept"


def test_what_was_kept_is_for_the_same_folder_alone(killed: Names) -> None:
    other = Names([f"{number:05}" for number in range(3000)])
    assert same(wide.listed(other.all_of, "s3://another"), other.right())


@pytest.mark.parametrize("change", ["removed", "written again", "added"])
def test_what_was_kept_is_left_where_the_store_says_something_else(
    change: str, killed: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everywhere: of some ranges the last objects are looked at."""
    if change == "removed":
        killed.names = killed.names[::2]
    elif change == "added":
        killed.names = sorted([*killed.names, *(name + "a" for name in killed.names)])
    else:
        monkeypatch.setattr(killed, "entry", lambda name: Entry(name, False, 5, "another"))
    assert same(wide.listed(killed.all_of, "s3://bucket"), killed.right())


@pytest.mark.parametrize("damage", ["cut", "flipped", "state", "old"])
def test_damaged_and_old_parts_are_not_used(
    damage: str, killed: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = wide._Kept("s3://bucket")._folder
    part = max(folder.glob("*.npz"), key=lambda path: path.stat().st_size)
    data = part.read_bytes()
    if damage == "cut":
        part.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        with np.load(part) as found:
            at = data.index(found["names"].tobytes())
        part.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    elif damage == "state":
        (folder / "state.json").write_text('{"ranges": [[1, 2]]}')
    else:
        monkeypatch.setattr(wide, "_GOOD_FOR", -1.0)
    assert same(wide.listed(killed.all_of, "s3://bucket"), killed.right())
    assert killed.requests >= killed.before


def test_what_nobody_goes_on_with_is_removed(killed: Names) -> None:
    folder = wide._Kept("s3://bucket")._folder
    beside = folder.parent / "local.index"  # what `sources.listing` keeps
    beside.write_text("")
    few = Names(["1"])
    wide.listed(few.all_of, "s3://another")
    assert folder.is_dir()
    for path in (folder, beside):
        os.utime(path, (0, 0))
    wide.listed(few.all_of, "s3://another")
    assert not folder.exists()
    assert beside.exists()


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    store = Names([f"{number:05}" for number in range(9000)])
    assert same(wide.listed(store.all_of, "x"), store.right())


def test_a_store_that_does_not_begin_where_it_should() -> None:
    store = Names([f"{number:05}" for number in range(3000)])
    monkey: Any = store
    begin = store.page_after
    monkey.page_after = lambda _: begin("")
    assert wide.listed(store.all_of, "x") is None


# -- By obstore ------------------------------------------------------------------------------------


@pytest.fixture
def many(server: ObjectServer) -> ObjectServer:
    server.page = 50
    for number in range(500):
        server.objects[f"bucket/d/{number:06}.jpg"] = b"%d" % number
    return server


def listings(server: ObjectServer) -> int:
    return sum("list-type=2" in path for _, path, _ in server.requests)


@pytest.mark.parametrize("more", [{}, {"d/0": b"", "d/": b""}, {"d/a/x": b"1"}, {"d/a/": b""}])
@pytest.mark.parametrize("scheme", ["s3"])
def test_what_takes_long_is_listed_so(
    more: dict[str, bytes], scheme: str, many: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders, objects for folders and objects without bytes are found as before."""
    many.objects |= {f"bucket/{name}": data for name, data in more.items()}
    stores.forget()
    right = stores.remote_entries(f"{scheme}://bucket/d")
    assert listings(many) == 11 if "d/0" in more or "d/a/x" in more or "d/a/" in more else 10
    monkeypatch.setattr(objects, "_SOON", 0.0)
    monkeypatch.setattr(wide, "PAGE", 50)
    many.requests.clear()
    found = stores.remote_entries(f"{scheme}://bucket/d")
    assert same(found, right)
    asked = [path for _, path, _ in many.requests if "start-after" in path]
    assert len(asked) > 3 if not more else True


def test_no_request_begins_after_a_name_that_no_key_has(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "." and ".." are names between others, which obstore refuses."""
    server.page = 50
    for number in range(300):
        server.objects[f"bucket/d/-({number:03}).jpg"] = b"%d" % number
    right = stores.remote_entries("s3://bucket/d")
    monkeypatch.setattr(objects, "_SOON", 0.0)
    monkeypatch.setattr(wide, "PAGE", 50)
    assert same(stores.remote_entries("s3://bucket/d"), right)


@pytest.mark.parametrize("by", ["libcurl", "obstore"])
def test_what_is_kept_of_a_folder_is_of_its_store_at_that_address(
    by: str, many: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server may have a bucket of the same name."""
    monkeypatch.setenv("FASTLOAD_CLIENT", by)
    monkeypatch.setattr(objects, "_SOON", 0.0)
    of_folders = list[str]()
    monkeypatch.setattr(wide, "listed", lambda _, identity: of_folders.append(identity))
    with object_server() as other:
        other.objects |= many.objects
        for url in (many.url, other.url, many.url):
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            stores.forget()
            assert len(stores.remote_entries("s3://bucket/d")) == 500
    first, second, third = of_folders
    assert first == third != second


def test_one_request_after_the_other_where_that_is_soon_over(many: ObjectServer) -> None:
    stores.remote_entries("s3://bucket/d")
    assert not any("start-after" in path for _, path, _ in many.requests)


def test_a_page_that_fails_is_asked_for_again(
    many: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = stores.remote_entries("s3://bucket/d")
    monkeypatch.setattr(objects, "_SOON", 0.0)
    monkeypatch.setattr(wide, "PAGE", 50)
    many.faults["list"] = ["", "", "503", "", "", "reset", ""]
    assert same(stores.remote_entries("s3://bucket/d"), right)


# -- What is made of it ----------------------------------------------------------------------------


def test_names_and_states_of_many_are_those_of_each() -> None:
    entries = [Entry(f"{n:05}", n % 7 == 0, n, f"{n}") for n in range(9000) if n % 3]
    entries.append(Entry("00004", True))  # a folder and an object of one name
    found = Listed.of(entries)
    assert [*found.named()] == [(entry.name, entry.is_folder) for entry in found]

    def one(name: str) -> tuple[int, int]:
        place = found.place_of(name)
        none = place < 0 or found[place].is_folder
        return (0, -1) if none else (found[place].version, found[place].size)

    in_order = [f"{n:05}" for n in range(9000)]
    there = [entry.name for entry in found]
    for names in (in_order, there, there[::-1], there[::5], there[4000:] + there[:100], ["", "9"]):
        assert [*found.states_of(names)] == list(map(one, names))
    assert [*Listed.of([]).states_of(["a"])] == [(0, -1)]
