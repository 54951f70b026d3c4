"""Signed URLs of Azure: shared access signatures (SAS) of single blobs by the key of an account.

obstore's have two faults: they begin to be valid at this very second, so that a clock that is a
second fast is refused, and names with characters that URLs escape are signed as they are escaped.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from urllib.parse import quote, urlsplit

_VERSION = "2022-11-02"
"""Of the service, whose string to sign is the one below."""


class BlobSignatures:
    """For reading the blobs of a container."""

    def __init__(self, top: str, account: str, key: str) -> None:
        """
        Args:
            top: the URL of the container, with a slash at its end.
            account: its name.
            key: of the account, in base64.

        Raises ValueError: the key is not in base64.
        """
        try:
            self._key = base64.b64decode(key, validate=True)
        except binascii.Error as error:
            raise ValueError("the key is not in base64") from error
        place = urlsplit(top)
        # The path of an emulator begins with the account, which is not in its host; nor is it where
        # a host has a name of its own.
        host = (place.hostname or "").partition(".")[0]
        named = host == account or not place.path.startswith(f"/{account}/")
        self._top, self._place = (
            top,
            f"/blob/{account}{place.path}" if named else f"/blob{place.path}",
        )

    def of(self, names: Sequence[str], valid: timedelta) -> list[str]:
        """The URLs of blobs, valid from now on; 8 us each. Raises UnicodeEncodeError: a name is no
        UTF-8.

        Azure's manual, "Create a service SAS", version 2020-12-06 and later: permissions, start,
        end, resource, identifier, addresses, protocols, version, kind of resource, snapshot,
        encryption scope, and five headers of the answer.
        """
        end = (datetime.now(timezone.utc) + valid).strftime("%Y-%m-%dT%H:%M:%SZ")
        given = f"sp=r&se={quote(end, safe='')}&sv={_VERSION}&sr=b&sig="
        urls = []
        for name in names:
            words = ["r", "", end, self._place + name, "", "", "", _VERSION, "b"] + 7 * [""]
            digest = hmac.digest(self._key, "\n".join(words).encode(), "sha256")
            signature = quote(base64.b64encode(digest).decode(), safe="")
            urls.append(f"{self._top}{quote(name, safe='/~')}?{given}{signature}")
        return urls
