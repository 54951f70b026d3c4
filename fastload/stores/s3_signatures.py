"""Signatures of the URLs of objects (AWS Signature Version 4 in query parameters), many at once.

obstore takes 8 us for one. Here all but the path is made once, of a URL that obstore has signed:
its date, scope, parameters and host; this way takes 3 us.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Sequence
from urllib.parse import parse_qs, quote, urlsplit

NAME = "x"
"""The name of the object whose URL is the pattern."""
# Seconds for which a pattern is used, of which the signatures have the date: they are valid for
# less by as much.
_LASTS = 60.0
# Names that stand in a URL as they are (RFC 3986, unreserved characters).
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]*")


class Signer:
    """Signs with the key of one client of obstore."""

    def __init__(self, client: object, pattern: str, secret: str) -> None:
        """
        Args:
            pattern: the URL of `NAME`, signed by the client.
            secret: the key that it is signed with, as far as known.
        """
        self.client, self._until = client, time.monotonic() + _LASTS
        place, _, parameters = pattern.partition("?")
        self._query = parameters.rpartition("&X-Amz-Signature=")[0]
        self._top = place.removesuffix(NAME)
        url, given = urlsplit(self._top), parse_qs(self._query)
        scope = given.get("X-Amz-Credential", [""])[0].partition("/")[2]
        date = given.get("X-Amz-Date", [""])[0]
        self._key = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            self._key = hmac.digest(self._key, part.encode(), "sha256")
        self._before = f"GET\n{url.path}"
        ordered = "&".join(sorted(self._query.split("&")))
        self._after = f"\n{ordered}\nhost:{url.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
        self._words = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n"
        self.fits = self.of([NAME]) == [pattern]
        """Whether it signs as the client does: else the secret is another, or the way is."""

    def current(self, client: object) -> bool:
        """Whether it may be used for this client now."""
        return self.client is client and time.monotonic() < self._until

    def of(self, names: Sequence[str]) -> list[str]:
        """The URLs of objects. Raises UnicodeEncodeError: a name has bytes that are no UTF-8."""
        urls = list[str]()
        for name in names:
            path = name if _PLAIN.fullmatch(name) else quote(name, safe="/~")
            request = f"{self._before}{path}{self._after}".encode()
            words = self._words + hashlib.sha256(request).hexdigest()
            signature = hmac.digest(self._key, words.encode(), "sha256").hex()
            urls.append(f"{self._top}{path}?{self._query}&X-Amz-Signature={signature}")
        return urls
