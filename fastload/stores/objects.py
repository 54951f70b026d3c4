"""S3, Google Cloud Storage, Azure and HTTP, by obstore (extra `remote`).

Credentials come from the environment, as obstore's manual lists them (`AWS_ACCESS_KEY_ID`,
`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`), or from the machine's role.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastload.stores.base import Entry, Piece, Store, StoreError, version_of

SCHEMES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"})
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CONNECT, _ANSWER = timedelta(seconds=10), timedelta(seconds=60)


class ObjectStore(Store):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client: Any = importlib.import_module("obstore")
        self._refusals = tuple(
            getattr(self._client.exceptions, name)
            for name in ("PermissionDeniedError", "UnauthenticatedError")
        )
        self._lists = not url.startswith("http")
        # Retried here in one way for all stores, so not there.
        options: dict[str, Any] = {"connect_timeout": _CONNECT, "timeout": _ANSWER}
        # A store on the local network has an endpoint without TLS: who named it so meant it.
        endpoints = (
            [os.environ.get(name, "") for name in _ENDPOINTS] if url.startswith("s3") else [url]
        )
        if any(endpoint.startswith("http:") for endpoint in endpoints):
            options["allow_http"] = True
        self._store: Any = self._client.store.from_url(
            url, client_options=options, retry_config={"max_retries": 0}
        )

    def _read(self, name: str, start: int, length: int | None) -> Piece:
        if length == 0:
            return Piece(b"")
        options: dict[str, Any] = {}
        if length is not None:
            options["range"] = (start, start + length)
        elif start:
            options["range"] = {"offset": start}
        found = self._denied(self._client.get, name, options=options)
        return Piece(bytes(found.bytes()), version_of(found.meta["size"], _etag(found.meta)))

    def _list(self, folder: str) -> list[Entry]:
        if not self._lists:
            raise StoreError(
                f"{self.url}/{folder}: a web server does not list its files; give the .tar "
                "shards by name "
                "('https://host/shard-{000..012}.tar')."
            )
        prefix = f"{folder}/" if folder else ""
        found = self._denied(self._client.list_with_delimiter, prefix or None)
        entries = [
            Entry(name.rstrip("/").rpartition("/")[2], True) for name in found["common_prefixes"]
        ]
        for item in found["objects"]:
            base = item["path"].removeprefix(prefix)
            if base:  # some programs write an object for the folder itself
                entries.append(Entry(base, False, item["size"], _etag(item)))
        return entries

    def _info(self, name: str) -> Entry | None:
        try:
            item = self._denied(self._client.head, name)
        except FileNotFoundError:
            return None
        return Entry(name.rpartition("/")[2], False, item["size"], _etag(item))

    def _write(self, name: str, data: bytes | Path) -> None:
        if not self._lists:
            super()._write(name, data)
        self._denied(self._client.put, name, data)

    def _remove(self, name: str) -> None:
        self._denied(self._client.delete, name)

    def _denied(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call obstore; that access is denied is a PermissionError, as of files."""
        try:
            return function(self._store, *arguments, **options)
        except self._refusals:
            raise PermissionError(
                13, "access denied; check the credentials in the environment"
            ) from None


def _etag(item: Any) -> str:
    """What tells versions apart: the ETag; of servers without one, when it was modified, in
    seconds (listings have fractions, headers have not)."""
    if item["e_tag"]:
        return str(item["e_tag"])
    modified = int(item["last_modified"].timestamp())
    return f"modified {modified}" if modified > 0 else ""
