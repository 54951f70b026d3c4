"""Where the objects of a store are on the web: URLs that the native core fetches.

Signatures are obstore's. They are made just before a request (8 us each, by arithmetic on this
machine), so that none is kept, and each is made with the credentials that are current.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import quote

# How long a signature is valid. A request is sent at once, or when those before it have answers;
# one that is repeated is signed again. Credentials that end before end it, too.
VALID = timedelta(minutes=15)
_TRUE = frozenset({"1", "true", "on", "yes", "y"})
# Settings of obstore for S3 that change requests in ways that the core does not know.
_OTHER_WAY = re.compile(
    "AWS_(PROXY|ALLOW_INVALID|S3_EXPRESS|SSE|SERVER_SIDE|HTTP2|USER_AGENT|REQUEST_PAYER|"
    "DEFAULT_CONTENT|CHECKSUM)"
)
# Keys that obstore refuses, with a remedy: it is asked for them.
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


class Addresses:
    """URLs of the objects of a store."""

    def __init__(self, url: str, obstore: Any, opened: Callable[..., Any]) -> None:
        """
        Args:
            url: of the store.
            opened: makes a client of obstore, with more options.
        """
        self._obstore = obstore
        self.top, self._safe, self._signs = "", "/~", False
        """What the URLs of objects begin with."""
        self.why_not = ""
        """Why obstore fetches the objects, where it does; else empty."""
        scheme = url.partition(":")[0]
        names = {name.upper(): value for name, value in os.environ.items()}
        if scheme in ("http", "https"):
            self.top, self._safe = f"{url}/", "/~!$&'()*+,;=:@"
        elif scheme not in ("s3", "s3a"):
            self.why_not = "not every identity of this store can sign a URL on this machine"
        elif found := next(filter(_OTHER_WAY.match, sorted(names)), ""):
            self.why_not = f"{found} is set, which libcurl is not given"
        elif url.endswith("--x-s3"):
            self.why_not = "a directory bucket asks for a session of its own"
        else:
            self.top = self._unsigned(opened)
            self._signs = names.get("AWS_SKIP_SIGNATURE", "").lower() not in _TRUE

    def _unsigned(self, opened: Callable[..., Any]) -> str:
        """The URL of a bucket: that of any object, signed with no credentials of anybody, without
        its parameters."""
        keys = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "none")
        client = opened(aws_skip_signature=False, credential_provider=None, **keys)
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
            return [self.top + quote(name, safe=self._safe) for name in names]
        except UnicodeEncodeError:  # bytes that are no UTF-8
            return None
