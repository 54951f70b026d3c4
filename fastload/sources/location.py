"""Paths as people write them: with `~`, relative, as patterns of shards."""

from __future__ import annotations

import glob
import os
import re
from typing import Any

from fastload.errors import SourceError

__all__ = ["locate"]

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_REMOTE = re.compile(r"^(\w+://|pipe:)")


def locate(spec: Any) -> Any:
    """A path as an existing absolute one, a pattern or a list of `.tar` paths as a list of those; others unchanged.

    Raises:
        SourceError: there is nothing at the path, the pattern matches nothing, or it is not in the file system.
    """
    if isinstance(spec, str | os.PathLike):
        path = os.fspath(spec)
        if not isinstance(path, str):
            raise SourceError(f"The path {path!r} is bytes; decode it first: os.fsdecode(path).")
        return _existing(path) if not _is_pattern(path) else _matches(path)
    if isinstance(spec, list | tuple) and spec and all(_is_shard_path(item) for item in spec):
        found: list[str] = []
        for item in map(os.fspath, spec):
            found.extend(_matches(item) if _is_pattern(item) else [_existing(item)])
        return found
    return spec


def _is_shard_path(item: object) -> bool:
    return isinstance(item, str | os.PathLike) and str(item).lower().endswith(".tar")


def _is_pattern(path: str) -> bool:
    return not os.path.lexists(_absolute(path)) and (glob.has_magic(path) or _RANGE.search(path) is not None)


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _existing(path: str) -> str:
    absolute = _absolute(path)
    if not path:
        raise SourceError("The source is an empty string; give the path of a data set.")
    if not os.path.exists(absolute):
        if _REMOTE.match(path):
            raise SourceError(f"{path}: only local files can be read at random; download the data, or mount them.")
        raise SourceError(f"{absolute}: no such file or folder; check the path.")
    return absolute


def _matches(pattern: str) -> list[str]:
    """Files of a pattern, sorted; every one of a numbered range must be there."""
    numbers = _RANGE.search(pattern)
    if numbers:
        first, last = numbers[1], numbers[2]
        names = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        return [path for name in names for path in _range_member(pattern.replace(numbers[0], name, 1))]
    found = sorted(glob.glob(_absolute(pattern)))
    if not found:
        raise SourceError(f"{pattern}: no file matches this pattern; check it, and the folder {os.getcwd()!r}.")
    return found


def _range_member(path: str) -> list[str]:
    return _matches(path) if _is_pattern(path) else [_existing(path)]
