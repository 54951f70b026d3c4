"""A folder of very many objects, listed by several requests at once: each gives those after a name.

A request gives 1,000 objects and takes 50 to 200 ms: ten million take half an hour one after the
other. Here the names are cut into ranges, at characters that were seen in names; of each range a
page is asked for, all at once; ranges that are not over go on in the next round, and are cut again
where others are over. What was listed is kept on disk meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from fastload.machine import cache_home
from fastload.stores.seen import Entry, Listed, Listing

PAGE = 1000
"""Objects of a request."""
AT_ONCE = 32
"""Requests at once."""
MOST_CUTS = 512
"""Places at which names are cut, in all. Each makes one request more, at most, than one for 1,000
objects: the last page of a range is not full."""
# Seconds between two times that what was listed is written to disk, and for which that is good.
_SAVED_EVERY, _GOOD_FOR = 10.0, 3600.0
# Characters of a name that take part in the choice of a cut.
_DIGITS = 24


class Asked(NamedTuple):
    """A request for the first objects of a range."""

    after: str
    """Their names come after this one."""
    end: str | None
    """The last name of the range; None: there is no end."""


class Page(NamedTuple):
    """What a store answers."""

    entries: Sequence[Entry]
    full: bool
    """Whether others may follow."""


class Part(NamedTuple):
    """What a request gave of a range."""

    listed: Listed
    last: str
    """The last name; where there is none, `Asked.after`."""
    over: bool
    """Whether the range has no more."""
    characters: frozenset[str]
    """Of the names."""


AllOf = Callable[[Sequence[Asked]], Sequence[Part | None]]
"""Makes several requests at once, each a `part_of`."""


@dataclass
class _Range:
    """Names after one and up to another."""

    after: str
    """Up to here, all are in `parts`."""
    end: str | None
    over: bool = False
    parts: list[Listed] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """In which the first ones of these are."""


def part_of(asked: Asked, page_after: Callable[[str], Page | None]) -> Part | None:
    """What one request gives of a range; None where names do not tell what lies in the folder.

    Args:
        page_after: the first objects after a name ("" for the first of all); None: as above.
    """
    page = page_after(asked.after)
    if page is None:
        return None
    names = [entry.name for entry in page.entries]
    count, end = len(names), asked.end
    while end is not None and count and names[count - 1] > end:
        count -= 1
    listing = Listing()
    # A store that does not know where to begin gives the first objects again.
    if (names and names[0] <= asked.after) or not listing.extend(page.entries):
        return None
    if count < len(names):
        listing = Listing()
        listing.extend(page.entries[:count])
    last = names[count - 1] if count else asked.after
    over = not page.full or count < len(names)
    return Part(listing.built(), last, over, frozenset("".join(names[:count])))


def listed(all_of: AllOf, identity: str) -> Listed | None:
    """All objects of a folder; None where names do not tell what lies there. Raises what `all_of`
    does: then what there is lies on disk, and the next call for this folder goes on with it.

    Args:
        identity: of the folder and its store: what was kept for another one is not used.
    """
    kept = _Kept(identity)
    state = kept.load()
    if state is None or not _same(state.ranges, all_of):
        state = _State([_Range("", None)])
    while going := [each for each in state.ranges if not each.over][:AT_ONCE]:
        cut = state.cut(going)
        parts = all_of([Asked(one.after, one.end) for one in cut])
        for one, part in zip(cut, parts, strict=True):
            if part is None:
                kept.remove()
                return None
            one.parts.append(part.listed)
            one.after, one.over = part.last, part.over
            state.characters |= part.characters
        kept.save(state)
    kept.remove()
    return Listed.joined([part for each in state.ranges for part in each.parts])


@dataclass
class _State:
    """How far a listing is."""

    ranges: list[_Range]
    """In the order of their names; each begins where the one before ends."""
    characters: frozenset[str] = frozenset()
    cuts: int = 0

    def cut(self, going: Sequence[_Range]) -> list[_Range]:
        """These ranges, cut so that there are as many as may be asked for at once; they take their
        place."""
        spare = min(AT_ONCE - len(going), MOST_CUTS - self.cuts) if self.characters else 0
        characters, pieces = sorted(self.characters), dict[int, list[_Range]]()
        for number, one in enumerate(going):
            share = spare // len(going) + (number < spare % len(going))
            ends = [*places(one.after, one.end, characters, share), one.end]
            pieces[id(one)] = [one] + [_Range(str(end), None) for end in ends[:-1]]
            for piece, end in zip(pieces[id(one)], ends, strict=True):
                piece.end = end
            self.cuts += len(ends) - 1
        self.ranges = [each for one in self.ranges for each in pieces.get(id(one), [one])]
        return [each for one in going for each in pieces[id(one)]]


def places(after: str, end: str | None, characters: Sequence[str], most: int) -> list[str]:
    """At most so many names between two, of these characters, which are sorted.

    Where there is no end, nobody knows how far names go: half of them are the next ones, at
    different lengths ("0002", "001", "01" after "0001"), the others spread over first characters.
    Else they are spread evenly over all names that can be written.
    """
    if end is None:
        nexts = [
            after[:at] + characters[place]
            for at in range(len(after))
            if (place := bisect_right(characters, after[at])) < len(characters)
        ]
        firsts = characters[bisect_right(characters, after[:1]) :]
        names = {*_spread(nexts, most - min(most // 2, len(firsts)))}
        names |= {*_spread(firsts, most - len(names))}
    else:
        pairs = enumerate(zip(after, end, strict=False))
        common = next((at for at, (one, other) in pairs if one != other), len(after))
        low, high = (_number(name[common:], characters) for name in (after, end))
        evenly = ((high - low) * at // (most + 1) + low for at in range(1, most + 1))
        names = {
            after[:common] + _name_above(number, after[common:], characters) for number in evenly
        }
    names -= {".", ".."}  # no keys, which clients refuse to begin after
    return sorted(name for name in names if name > after and (end is None or name < end))


def _spread(names: Sequence[str], most: int) -> Sequence[str]:
    return names if len(names) <= most else [names[len(names) * at // most] for at in range(most)]


def _number(name: str, characters: Sequence[str]) -> int:
    """The place of a name among all of `_DIGITS` characters."""
    value, base = 0, len(characters) + 1
    for at in range(_DIGITS):
        digit = bisect_left(characters, name[at]) + 1 if at < len(name) else 0
        value = value * base + min(digit, base - 1)
    return value


def _name_above(number: int, name: str, characters: Sequence[str]) -> str:
    """The beginning of the name at this place, as short as it is behind another one."""
    digits, base = list[int](), len(characters) + 1
    for _ in range(_DIGITS):
        number, digit = divmod(number, base)
        digits.append(digit)
    above = ""
    while digits and digits[-1] and above <= name:
        above += characters[digits.pop() - 1]
    return above


def _same(ranges: Sequence[_Range], all_of: AllOf) -> bool:
    """Whether the store still says what it said: of some ranges the last objects are asked for."""
    checked = [each.parts[-1] for each in ranges if each.parts and len(each.parts[-1]) > 1]
    checked = checked[:: -(-len(checked) // AT_ONCE) or 1]
    firsts = [max(0, len(part) - PAGE) for part in checked]
    asked = [
        Asked(part[first].name, part[-1].name) for part, first in zip(checked, firsts, strict=True)
    ]
    for part, first, found in zip(checked, firsts, all_of(asked), strict=True):
        if found is None:
            return False
        begin, now = int(part.ends[first]), found.listed
        if not (
            np.array_equal(part.names[begin:], now.names)
            and np.array_equal(part.ends[first + 1 :] - begin, now.ends)
            and np.array_equal(part.sizes[first + 1 :], now.sizes)
            and np.array_equal(part.versions[first + 1 :], now.versions)
        ):
            return False
    return True


# -- On disk ---------------------------------------------------------------------------------------


class _Kept:
    """What was listed of a folder, in a folder of the cache, until it is listed. Where nothing can
    be written there, nothing is kept."""

    def __init__(self, identity: str) -> None:
        name = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16)
        self._folder = cache_home() / "listings" / name.hexdigest()
        self._saved_at = time.monotonic()
        self._remove_old()

    def load(self) -> _State | None:
        """What was kept within the last hour; None: there is nothing, or it is damaged."""
        try:
            state = self._folder / "state.json"
            if not 0 <= time.time() - state.stat().st_mtime < _GOOD_FOR:
                return None
            found = json.loads(state.read_text())
            ranges = [
                _Range(after, end, over, [_read(self._folder / name) for name in files], files)
                for after, end, over, files in found["ranges"]
            ]
            return _State(ranges, frozenset(found["characters"]), found["cuts"])
        except (OSError, ValueError, KeyError, TypeError, BadZipFile):
            return None

    def save(self, state: _State) -> None:
        """Write what is new, if the last time is some seconds ago."""
        if time.monotonic() - self._saved_at < _SAVED_EVERY:
            return
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for one in state.ranges:
                new = one.parts[len(one.files) :]
                if sum(map(len, new)):
                    one.parts[len(one.files) :] = [Listed.joined(new)]
                    one.files.append(_write(self._folder, one.parts[-1]))
            text = json.dumps(
                {
                    "ranges": [
                        [each.after, each.end, each.over, each.files] for each in state.ranges
                    ],
                    "characters": "".join(sorted(state.characters)),
                    "cuts": state.cuts,
                }
            )
            unfinished = self._folder / f"{os.getpid()}.tmp"
            unfinished.write_text(text)
            unfinished.replace(self._folder / "state.json")
        self._saved_at = time.monotonic()

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_old(self) -> None:
        """Of any folder: what nobody has written to for so long that it is not used again."""
        with suppress(OSError):
            for kept in self._folder.parent.iterdir():
                if kept.is_dir() and time.time() - kept.stat().st_mtime > _GOOD_FOR:
                    shutil.rmtree(kept, ignore_errors=True)


def _write(folder: Path, part: Listed) -> str:
    """A file with a name that no other process gives."""
    name = f"{os.getpid()}-{time.time_ns()}.npz"
    np.savez(
        folder / name,
        names=part.names,
        ends=part.ends,
        sizes=part.sizes,
        versions=part.versions,
        sums=np.frombuffer(part.sums.to_bytes(16, "little"), np.uint8),
        versioned=part.versioned,
    )
    return name


def _read(path: Path) -> Listed:
    with open(path, "rb") as file, np.load(file) as found:  # with a CRC-32 for each array
        return Listed(
            found["names"],
            found["ends"],
            found["sizes"],
            found["versions"],
            int.from_bytes(found["sums"].tobytes(), "little"),
            bool(found["versioned"]),
        )
