"""URLs: of which store they are, and what the names in them stand for."""

from __future__ import annotations

import contextlib
import os
import re
from urllib.parse import quote, unquote, unquote_to_bytes

from fastload.errors import SourceError
from fastload.files import is_remote

SCHEMES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"})
"""Of stores that obstore reads; fsspec reads others."""
# A repository of Hugging Face, above which nothing can be listed: of a model hf://owner/name; with
# a revision after an @, of which two kinds have slashes.
_REPOSITORY = re.compile(
    r"hf://(?:(?:datasets|spaces|buckets)/)?[^/]+/[^/@]+(?:@(?:refs/(?:convert|pr)/)?[^/]+)?"
)
# A % that begins no byte, or a slash that is none between folders.
_NO_NAME = re.compile(r"%(?![0-9a-fA-F]{2})|%2[fF]")


def is_web(path: str) -> bool:
    """Whether a path is the URL of a web server, which lists nothing."""
    return path.startswith(("http://", "https://"))


def top_of(path: str) -> str:
    """`s3://bucket` of `s3://bucket/a/b`, of Hugging Face's the repository; of a local path
    nothing."""
    if match := _REPOSITORY.match(path):
        return match[0]
    return "/".join(path.split("/", 3)[:3]) if is_remote(path) else ""


def resolved(path: str) -> str:
    """The path without `.` and `..`; of a URL "" where that leads out of the store."""
    top = top_of(path)
    if not top:
        return os.path.normpath(path)
    name = os.path.normpath(path[len(top) :].lstrip("/") or ".")
    if name == ".." or name.startswith("../"):
        return ""
    return top if name == "." else f"{top}/{name}"


def parent_of(path: str) -> str:
    """The folder above; of the top of a store the top."""
    return path if path == top_of(path) else os.path.dirname(path)


def located(url: str) -> str:
    """The URL in the form used everywhere: no slash at its end; for `file://` the path.

    Raises:
        SourceError: it has credentials in it, which would be shown wherever the data set is named.
    """
    is_local = url.startswith("file://")
    authority = url.partition("://")[2].partition("/")[0]
    # `abfss://container@account` names a container; a colon before the @ would begin a password.
    place = url.startswith("abfs") and ":" not in authority.rpartition("@")[0]
    if ("@" in authority and not place) or (not is_local and ("?" in url or "#" in url)):
        raise SourceError(
            f"{url.partition('://')[0]}://...: credentials and parameters in a URL would be shown "
            "with every message; leave them out, and set them in the environment, as the store's "
            "own tools read them. (Of a name, ? is %3F and # is %23 in https://. Of an object "
            "store give the folder above such a name; a data set whose own folder has one is "
            "opened under another name: copy it.)"
        )
    if is_local:  # RFC 8089, and `pathlib.Path.as_uri`: %20 is a space
        path = url.removeprefix("file://").removeprefix("localhost")
        return os.fsdecode(unquote_to_bytes(os.fsencode(path)))
    return url.rstrip("/")


def name_of(url: str, name: str) -> str:
    """The name of an object, of that in its URL: web addresses have `%20` for a space (RFC 3986);
    keys of object stores are as they stand, as in the stores' own tools. Raises SourceError."""
    if "%" not in name or not is_web(url):
        return name
    if not _NO_NAME.search(name):
        with contextlib.suppress(UnicodeDecodeError):
            return unquote(name, errors="strict")
    raise SourceError(
        f"{url}: a % stands before the two digits of a byte of UTF-8, other than a slash's; write "
        "%25 for the sign itself."
    )


def spelt(folder: str, name: str) -> str:
    """A name below a folder as it stands in the URL: of a web server with `%20` for a space, and so
    on (RFC 3986); else unchanged. The inverse of what `store_of` does."""
    if not is_web(folder):
        return name
    return quote(name, safe="/!$&'()*+,;=:@", errors="surrogatepass")


def below(folder: str, name: str) -> str:
    """The path or URL of a file, by its name relative to a folder."""
    if not is_remote(folder):
        return os.path.join(folder, name)
    return f"{folder}/{spelt(folder, name)}"
