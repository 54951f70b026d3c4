"""S3, Google Cloud Storage, Azure and HTTP, by obstore (extra `remote`).

Credentials come from the environment, as obstore's manual lists them (`AWS_ACCESS_KEY_ID`,
`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`), from the files of AWS's tools
(`aws`), or from the machine's role.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload.stores import aws, google, transfers
from fastload.stores.addresses import VALID, Addresses
from fastload.stores.base import Data, Piece, Range, Store, StoreError, words_of
from fastload.stores.s3_signatures import NAME, Signer
from fastload.stores.seen import Entry, Listed, version_of
from fastload.stores.transfers import EXPIRED, Transfers

if TYPE_CHECKING:
    from fastload.stores import wide

SWITCH = "FASTLOAD_CLIENT"
"""The variable of the environment that chooses who reads objects: "libcurl" or "obstore"."""
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ALLOWED = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""By scheme, the variable that allows requests without TLS."""
# Longest times for a connection, between two pieces of an answer, and for a whole answer (at most
# 16 MB, so 270 kB/s).
_CONNECT, _SILENCE, _ANSWER = timedelta(seconds=10), timedelta(seconds=15), timedelta(seconds=60)
# Seconds within which a folder is listed one request after the other.
_SOON = 2.0
# Seconds for which a client's credentials count as current; whether those of files have changed is
# known at once.
_RENEWED_AFTER = 10.0
# obstore's message for a key that it cannot address: one with an empty name, `.` or `..` between
# slashes, or with control characters.
_ODD_KEY = re.compile(
    r'(?:invalid path|Could not parse path): .*?Path "(.*?)"(?::| contained)', re.S
)
# A listing that was refused, which has no exception of its own.
_REFUSED = re.compile(r"status code: 40[13]\b")
# Where obstore asks for the credentials of a cloud machine's role, after it found none elsewhere.
_NO_CREDENTIALS = re.compile(r"//169\.254\.169\.254|token request")
# All of an object, where a part of it was asked for.
_NO_PARTS = re.compile("Range request not supported|non-partial response")
# What a message with its details says, and what to do about it; the first that fits counts.
_REMEDIES = tuple(
    (re.compile(said), remedy)
    for said, remedy in (
        (
            "dns error|NameResolutionError",
            "The host has no address (DNS): check its name in the URL, or in the endpoint of the "
            "environment, and the network of this machine.",
        ),
        (
            "ConnectError|kind: Connect",
            "There is no connection: check the host in the URL, or the endpoint of the "
            "environment, and proxies and firewalls on the way.",
        ),
        (
            "certificate",
            "The host is not trusted: name the file of your certificates in SSL_CERT_FILE, or "
            "check proxies on the way.",
        ),
        (
            "TimedOut",
            "No answer came in time: check the network and proxies on the way, and whether the "
            "store answers others.",
        ),
        (
            "without LOCATION|AuthorizationHeaderMalformed",
            "The bucket is in another region: set AWS_REGION.",
        ),
        (r"status code: (5\d\d|429)", "The store refuses or fails: try again later."),
        (
            _NO_PARTS.pattern,
            "All of something was given where a part of the object was asked for: check the "
            "network, and proxies on the way, for a page to log in.",
        ),
        ("HTTP error", "The connection breaks off: check the network and proxies on the way."),
    )
)


class _LateError(StoreError):
    """A listing is not there in time."""


class ObjectStore(Store):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client: Any = importlib.import_module("obstore")
        self._refusals = tuple(
            getattr(self._client.exceptions, name)
            for name in ("PermissionDeniedError", "UnauthenticatedError")
        )
        self._lists = not url.startswith("http")
        # Azure is asked for all names, whatever comes before; a directory bucket has no order.
        self._lists_after = url.startswith(("s3", "gs")) and not url.endswith("--x-s3")
        self.gives_parts = False
        """Whether a part of an object was once given as a part."""
        self._making = threading.Lock()
        self._tokens: google.Tokens | None = None
        self._no_tokens = ""
        """Why there are none for Google's store."""
        self._store, self._made = self._opened(), time.monotonic()
        self._addresses: Addresses | None = None
        self._transfers: Transfers | None = None
        self._signer: Signer | None = None
        self._why_not = ""
        """Why obstore reads objects, and not the core."""
        self._choose()

    def _choose(self) -> None:
        """Have the native core fetch, where it can."""
        asked = os.environ.get(SWITCH, "")
        if asked not in ("", "libcurl", "obstore"):
            raise StoreError(
                f"{SWITCH}={asked!r}: libcurl or obstore is expected; take it away to have the "
                "faster one that there is."
            )
        if asked == "obstore":
            self._why_not = f"{SWITCH} says so"
            return
        if why_not := transfers.missing():
            self._why_not = why_not
            return
        try:
            addresses = Addresses(self.url, self._client, self._opened, self._no_tokens)
        except BaseException as error:
            if not (isinstance(error, Exception) or _is_panic(error)):
                raise
            self._why_not = "there is no URL by these settings"
            return  # obstore says what is wrong with the settings when it is asked for something
        if addresses.why_not:
            self._why_not = addresses.why_not
            return
        times = [each.total_seconds() for each in (_CONNECT, _SILENCE, _ANSWER)]
        self._addresses = addresses
        self._transfers = Transfers(self, addresses.top, times, self.flight.rate)

    def _opened(self, **more: Any) -> Any:
        """A client with current credentials."""
        # `Store` repeats requests in one way for all stores, so obstore does not.
        self._of_files = aws.settings() if self.url.startswith("s3") else {}
        options: dict[str, Any] = {"connect_timeout": _CONNECT, "timeout": _ANSWER}
        provided: dict[str, Any] = {}
        if tuple(map(int, self._client.__version__.split(".")[:2])) >= (0, 11):
            # Older clients do not know this option.
            options["read_timeout"] = _SILENCE
        is_s3, url = self.url.startswith("s3"), self.url
        if url.startswith("gs"):
            self._tokens, self._no_tokens = self._tokens_of_google()
            if self._tokens is not None:
                provided["credential_provider"] = self._tokens
        # An endpoint that is given as `http:` is used without TLS, as in a local network.
        endpoints = [os.environ.get(name, "") for name in _ENDPOINTS] if is_s3 else [url]
        allowed = os.environ.get(_ALLOWED.get(self.url.partition(":")[0], ""), "").lower()
        if allowed == "true" or any(endpoint.startswith("http:") for endpoint in endpoints):
            options["allow_http"] = True
        return self._client.store.from_url(
            url,
            client_options=options,
            retry_config={"max_retries": 0},
            **(provided | self._of_files | more),
        )

    def _tokens_of_google(self) -> tuple[google.Tokens | None, str]:
        """Where the core fetches, which is given them; else why there are none."""
        if os.environ.get(SWITCH) == "obstore" or transfers.missing():
            return None, ""  # `_choose` says why
        names = {name.upper(): value for name, value in os.environ.items() if value}
        try:
            return google.tokens(names), ""
        except google.NoTokensError as why_not:
            return None, str(why_not)

    def by_whom(self) -> str:
        if self._transfers is None:
            return f"by obstore {self._client.__version__}, as {self._why_not}"
        compared = [f"{count} by {name}" for name, count in self._transfers.compared.items()]
        words = (
            f"bytes compared with their checksums: {', '.join(compared)}"
            if compared
            else "no answer so far had a checksum that bytes were compared with"
        )
        return f"by {self._transfers.fetched_by} in the native core; {words}"

    # -- What `Transfers` asks for -----------------------------------------------------------------

    @property
    def client(self) -> object:
        return self._store

    def urls(self, names: Sequence[str]) -> list[str] | None:
        if self._addresses is None:
            return None
        tokens = self._tokens
        if tokens is not None and not tokens.current():
            # In a thread of the store, as in `_signed`.
            self._all(lambda _: tokens.asked(), names[:1])
        return self._addresses.of(names, self._signed)

    def token(self) -> str:
        return "" if self._tokens is None else self._tokens.latest()

    def _signed(self, names: Sequence[str]) -> list[str]:
        def sign(_: str) -> list[str]:
            signed: list[str] = self._denied(self._client.sign, "GET", [*names], VALID)
            return signed

        if self._has_keys():
            signer = self._signer
            if signer is None or not signer.current(self._store):
                client, self._signer = self._store, None
                pattern: str = self._denied(self._client.sign, "GET", [NAME], VALID)[0]
                signer = self._signer = Signer(client, pattern, self._secret())
            with contextlib.suppress(UnicodeEncodeError):  # obstore has the words
                if signer.fits:
                    return signer.of(names)
            return sign("")
        # In a thread of the store: to ask for credentials may take a while, and fail.
        return self._all(sign, names[:1])[0]

    def _has_keys(self) -> bool:
        """Whether the credentials are keys that were given, so that signing asks nobody."""
        given = "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ
        return given or "aws_secret_access_key" in self._of_files

    def _secret(self) -> str:
        found = self._of_files.get("aws_secret_access_key")
        return str(found or os.environ.get("AWS_SECRET_ACCESS_KEY", ""))

    def renewed(self, used: Any) -> bool:
        return self._renewed(used) is not None

    def no_parts(self) -> Exception:
        """The error where all of an object is given in place of a part."""
        if self.gives_parts:  # so this answer is not of the store: a proxy's, or a page to log in
            return OSError("non-partial response: another part came than was asked for")
        return StoreError(
            f"{self.url}: this server gives a whole file where a part of it is asked for, as "
            "python -m http.server does; serve the files by one that knows Range requests (nginx, "
            "caddy, an object store), or download them."
        )

    def _read_all(self, requests: Sequence[Range]) -> list[Data]:
        if self._transfers is not None and requests:
            self._check_process()
            client = self._store  # before they are signed: another thread may replace it
            urls = self.urls([request.name for request in requests])
            if urls is not None:
                return self._transfers.read(requests, urls, client)
        return super()._read_all(requests)

    # -- Single requests, by obstore ---------------------------------------------------------------

    def _renewed(self, used: Any) -> Any:
        """A client with current credentials, in place of one that was refused; None where the files
        still have the same ones, and the client is too young for others to have changed."""
        with self._making:
            old = time.monotonic() - self._made >= _RENEWED_AFTER
            changed = self.url.startswith("s3") and self._of_files != aws.settings()
            if self._store is used and (old or changed):
                self._store, self._made = self._opened(), time.monotonic()
                if self.url.startswith(("az", "abfs")):  # it has the key or token itself
                    now = Addresses(self.url, self._client, self._opened)
                    if self._addresses is not None and not now.why_not:
                        self._addresses = now
            return None if self._store is used else self._store

    def _read(self, name: str, start: int, length: int | None) -> Piece:
        if length == 0:
            return Piece(b"")
        options: dict[str, Any] = {}
        if length is not None:
            options["range"] = (start, start + length)
        elif start:
            options["range"] = {"offset": start}
        answer = self._denied(self._client.get, name, options=options)
        self.gives_parts |= bool(options)
        meta = answer.meta  # a new dict each time
        version = version_of(meta["size"], self._etag(meta))
        # Not copied: a copy of 110 kB takes 50 us, most of them for the kernel to find the memory.
        return Piece(memoryview(answer.bytes()), version, by_etag=bool(meta["e_tag"]))

    def _etag(self, item: Any) -> str:
        return self.tag_of(item["e_tag"] or "", int(item["last_modified"].timestamp()))

    def tag_of(self, etag: str, modified: int) -> str:
        """What tells versions apart: the ETag, or where a server has none the time of modification,
        in whole seconds (listings have fractions, headers do not)."""
        if etag:
            self.gives_etags = True
            return etag
        return f"modified {modified}" if modified > 0 else ""

    def entries_of(self, folders: Sequence[str]) -> list[Listed]:
        found = self._all(self._listed_soon, folders)
        return [
            self._listed_wide(folder) if one is None else one
            for folder, one in zip(folders, found, strict=True)
        ]

    def _listed_soon(self, folder: str) -> Listed | None:
        """What is in a folder; None where it may be so much that it is listed by several requests
        at once."""
        try:
            return Listed.of(self._list(folder, within=_SOON if self._lists_after else None))
        except _LateError:
            return None

    def _listed_wide(self, folder: str) -> Listed:
        """What is in a folder of very many objects, or of a store that is slow."""
        from fastload.stores import wide

        def page_after(name: str) -> wide.Page | None:
            return self._page(folder, name, wide.PAGE)

        def all_of(asked: Sequence[wide.Asked]) -> list[wide.Part | None]:
            return self._all(
                lambda one: wide.part_of(one, page_after), asked, lambda _: folder or "its top"
            )

        where = [os.environ.get(name, "") for name in _ENDPOINTS]
        where += ["" if self._addresses is None else self._addresses.top]
        listed = wide.listed(all_of, "\n".join([self.url, folder, *where]))
        return self._all(self._listed, [folder])[0] if listed is None else listed

    def _page(self, folder: str, after: str, most: int) -> wide.Page | None:
        """The objects of a folder after a name, so many at most. None: there are folders in it, or
        perhaps: an object without bytes may stand for one, and its name is without the slash."""
        from fastload.stores import wide

        prefix = f"{folder}/" if folder else ""

        def asked(client: Any) -> Sequence[Any]:
            offset = f"{prefix}{after}" if after else None
            stream = self._client.list(client, prefix or None, offset=offset, chunk_size=most)
            return next(iter(stream), [])

        entries, items = list[Entry](), self._denied(asked)
        for item in items:
            path = item["path"]
            if path.strip("/") == folder:
                continue
            name = path.removeprefix(prefix)
            if "/" in name or not item["size"]:
                return None
            entries.append(Entry(name, False, item["size"], self._etag(item)))
        return wide.Page(entries, len(items) >= most)

    def _list(self, folder: str, within: float | None = None) -> list[Entry]:
        """`within`: seconds, after which it is left alone. Raises _LateError."""
        if not self._lists:
            raise StoreError(
                f"{self.url}/{folder}: a web server does not list its files; give the .tar shards "
                "by name ('https://host/shard-{000..012}.tar')."
            )
        prefix = f"{folder}/" if folder else ""
        try:
            listed = self._denied(partial(self._level, within), prefix or None)
        except Exception as error:
            if "status code: 404" in str(error):  # a folder that is not there is an empty list
                raise StoreError(
                    f"{self.url}: there is no such bucket; check its name, and the endpoint or the "
                    "account in the environment."
                ) from None
            raise
        entries = [
            Entry(name.rstrip("/").rpartition("/")[2], True) for name in listed["common_prefixes"]
        ]
        for item in listed["objects"]:
            # Some programs write an object `folder/` for the folder itself, whose path here is
            # without the slash.
            if item["path"].strip("/") != folder:
                base = item["path"].removeprefix(prefix)
                entries.append(Entry(base, False, item["size"], self._etag(item)))
        return entries

    def _level(self, within: float | None, client: Any, prefix: str | None) -> Any:
        if within is None:
            return self._client.list_with_delimiter(client, prefix)

        async def found() -> Any:
            return await asyncio.wait_for(
                self._client.list_with_delimiter_async(client, prefix), within
            )

        try:
            return asyncio.run(found())
        except asyncio.TimeoutError:
            raise _LateError from None

    def _info(self, name: str) -> Entry | None:
        try:
            item = self._denied(self._client.head, name)
        except FileNotFoundError:
            return None
        return Entry(name.rpartition("/")[2], False, item["size"], self._etag(item))

    def _write(self, name: str, data: bytes | Path) -> None:
        if not self._lists:
            super()._write(name, data)
        self._denied(self._client.put, name, data)

    def _remove(self, name: str) -> None:
        self._denied(self._client.delete, name)

    def _denied(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call obstore; where access is denied, once more with current credentials. Raises
        PermissionError: access is denied, as for files. StoreError: obstore cannot address the
        key, or make a request of the settings."""
        client: Any = self._store
        for again in (True, False):
            try:
                return function(client, *arguments, **options)
            except Exception as error:
                if odd := _ODD_KEY.search(str(error)):
                    raise StoreError(
                        f"{self.url}: the key {odd[1]!r} cannot be read: it has two slashes side "
                        "by side, '.' or '..' between slashes, or a control character (a tab, a "
                        "line break); copy the object to another key, or leave it out of the "
                        "folder."
                    ) from None
                if _NO_PARTS.search(str(error)) and not self.gives_parts:
                    raise self.no_parts() from None
                if not (isinstance(error, self._refusals) or _is_refusal(str(error))):
                    raise
                words = self.denial(str(error))
            except BaseException as error:
                if not _is_panic(error):
                    raise
                raise StoreError(
                    f"{self.url}: no request can be made ({words_of(error)}); an endpoint in the "
                    "environment begins with http:// or https://, such as http://127.0.0.1:9000."
                ) from None
            client = self._renewed(client) if again else None
            if client is None:
                break
        raise PermissionError(13, words)

    def denial(self, text: str) -> str:
        """Why access was denied, from a store's answer, which itself may have names of keys in
        it."""
        if "RequestTimeTooSkewed" in text:
            return "access denied, as the clock of this machine is wrong; set it"
        if EXPIRED.search(text):
            return "access denied, as the credentials have expired; renew them"
        if not self._lists:
            return "access denied; web servers are asked without credentials: download the data"
        return "access denied; check the credentials in the environment"

    def remedy(self, error: Exception) -> str:
        text = str(error)
        if _NO_CREDENTIALS.search(text):
            prefix = {"s3": "AWS", "gs": "GOOGLE"}.get(self.url[:2], "AZURE")
            return (
                "There are no credentials in the environment or the usual files, and this machine "
                f"has no role that gives them: set them, or {prefix}_SKIP_SIGNATURE=true where "
                "anybody may read."
            )
        remedies = (remedy for said, remedy in _REMEDIES if said.search(text))
        return next(remedies, super().remedy(error))


def _is_panic(error: BaseException) -> bool:
    """Whether it is of obstore's Rust, which is no Exception."""
    return type(error).__name__ == "PanicException"


def _is_refusal(text: str) -> bool:
    if EXPIRED.search(text):
        return True
    return _REFUSED.search(text) is not None and not _NO_CREDENTIALS.search(text)
