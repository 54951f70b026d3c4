"""Where the objects of a store are on the web: URLs that the native core fetches.

Signatures are made just before a request, of S3 by obstore or as it makes them (`s3_signatures`),
of Azure by ourselves (`azure_signatures`), so that none is kept, and each is made with the
credentials that are current. Google's URLs are not signed: a token goes with each request
(`google`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

from fastload.stores import google
from fastload.stores.azure_signatures import BlobSignatures
from fastload.stores.google import TRUE

# How long a signature is valid. A request is sent at once, or when those before it have answers;
# one that is repeated is signed again. Credentials that end before end it, too.
VALID = timedelta(minutes=15)
# Settings of obstore for S3 that change requests in ways that the core does not know.
_OTHER_WAY = re.compile(
    "AWS_(PROXY|ALLOW_INVALID|S3_EXPRESS|SSE|SERVER_SIDE|HTTP2|USER_AGENT|REQUEST_PAYER|"
    "DEFAULT_CONTENT|CHECKSUM)"
)
# The settings of Azure that are known here: another one may ask for other credentials.
_AZURE = re.compile(
    "AZURE_(STORAGE_)?(ACCOUNT_NAME|(ACCOUNT|ACCESS|MASTER)_KEY|SAS_(KEY|TOKEN)|USE_EMULATOR)$|"
    "AZURE_(ALLOW_HTTP|SKIP_SIGNATURE|(STORAGE_)?ENDPOINT)$"
)
_NO_KEYS = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "none")
_ANY = "bm9uZQ=="
"""A key of nobody's."""
_EMULATOR = (
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
)
"""Account and key of every emulator of Azure, as its manual publishes them."""
# Keys that obstore refuses, with a remedy: it is asked for them.
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


class Addresses:
    """URLs of the objects of a store."""

    def __init__(
        self, url: str, obstore: Any, opened: Callable[..., Any], no_tokens: str = ""
    ) -> None:
        """
        Args:
            url: of the store.
            opened: makes a client of obstore, with more options.
            no_tokens: why there are no tokens for Google's store; "" where there are, or none are
                needed.
        """
        self._obstore = obstore
        self.top, self._safe = "", "/~"
        """What the URLs of objects begin with."""
        self._query = ""
        self._blobs: BlobSignatures | None = None
        self._signs = False
        self.why_not = ""
        """Why obstore fetches the objects, where it does; else empty."""
        scheme = url.partition(":")[0]
        names = {name.upper(): value for name, value in os.environ.items() if value}
        if scheme in ("http", "https"):
            self.top, self._safe = f"{url}/", "/~!$&'()*+,;=:@"
        elif scheme in ("az", "abfs", "abfss"):
            self._of_azure(url, names, opened)
        elif scheme == "gs":
            self.top, self.why_not = f"{google.top(names)}/{url.partition('://')[2]}/", no_tokens
        elif found := next(filter(_OTHER_WAY.match, sorted(names)), ""):
            self.why_not = f"{found} is set, which libcurl is not given"
        elif url.endswith("--x-s3"):
            self.why_not = "a directory bucket asks for a session of its own"
        else:
            self.top = self._unsigned(opened, aws_skip_signature=False, **_NO_KEYS)
            self._signs = names.get("AWS_SKIP_SIGNATURE", "").lower() not in TRUE

    def _of_azure(self, url: str, names: Mapping[str, str], opened: Callable[..., Any]) -> None:
        azure = sorted(name for name in names if name.startswith("AZURE_"))
        if found := next((name for name in azure if not _AZURE.match(name)), ""):
            self.why_not = f"{found} is set, which libcurl is not given"
            return
        emulator = any(names[name].lower() in TRUE for name in azure if "EMULATOR" in name)
        keys = [names[name] for name in azure if name.endswith("_KEY") and "SAS" not in name]
        tokens = [names[name] for name in azure if "SAS" in name]
        key = keys[0] if keys else _EMULATOR[1] if emulator else ""
        skips = names.get("AZURE_SKIP_SIGNATURE", "").lower() in TRUE
        if len({*keys}) > 1 or len({*tokens}) > 1 or not (skips or key or tokens):
            self.why_not = "the credentials are no key of the account and no SAS token"
            return
        self.top = self._unsigned(
            opened, azure_skip_signature=False, azure_storage_account_key=_ANY
        )
        if not skips and key:
            accounts = [names[name] for name in azure if name.endswith("ACCOUNT_NAME")]
            host = (urlsplit(self.top).hostname or "").partition(".")[0]
            account = _EMULATOR[0] if emulator else (accounts or [host])[0]
            try:
                self._blobs = BlobSignatures(self.top, account, key)
            except ValueError as error:
                self.why_not = str(error)
        elif not skips:
            self._query = f"?{tokens[0].removeprefix('?')}"

    def _unsigned(self, opened: Callable[..., Any], **keys: Any) -> str:
        """The URL of a bucket: that of any object, signed with no credentials of anybody, without
        its parameters."""
        client = opened(credential_provider=None, **keys)
        text = str(self._obstore.sign(client, "GET", "x", VALID)).partition("?")[0]
        return text.removesuffix("x")

    def of(
        self, names: Sequence[str], sign: Callable[[Sequence[str]], list[str]]
    ) -> list[str] | None:
        """The URLs of objects, signed by `sign` where the bucket is not open to anybody. None: a
        key is of those that obstore refuses, with the remedy. Raises as `sign`."""
        if any(map(_ODD.search, names)):
            return None
        if self._signs:
            return sign(names)
        try:
            if self._blobs is not None:
                return self._blobs.of(names, VALID)
            return [self.top + quote(name, safe=self._safe) + self._query for name in names]
        except UnicodeEncodeError:  # bytes that are no UTF-8
            return None
