"""Access to Google Cloud Storage by tokens, which google-auth gets (extra `google`).

A token is valid for an hour and goes with each request; a signature of each URL (RSA) takes 260 us,
twice a request by obstore. obstore is handed the same tokens, so that both read as the same
identity, which is found where obstore finds it.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import threading
from collections.abc import Mapping
from datetime import timezone
from pathlib import Path
from typing import Any

from fastload.stores.base import words_of

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_PATHS = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
_HOST = "googleapis.com"
_PRODUCT = "/sys/class/dmi/id/product_name"
# Settings of obstore that change requests, or give a token, in ways that the core does not know.
_OTHER_WAY = re.compile(
    "GOOGLE_(PROXY|ALLOW_INVALID|HTTP2|USER_AGENT|DEFAULT_CONTENT|BASE_URL|BEARER_TOKEN)"
)
TRUE = frozenset({"1", "true", "on", "yes", "y"})
"""What obstore takes for yes, in small letters."""


class NoTokensError(Exception):
    """Why there are no tokens, so that obstore has credentials of its own."""


class Tokens:
    """Those of an identity, one after the other. All methods may be called by several threads.

    An instance is a `credential_provider` of obstore.
    """

    def __init__(self, credentials: Any, request: Any) -> None:
        """
        Args:
            credentials: of google-auth.
            request: google-auth's, with which it asks for tokens.
        """
        self._credentials, self._request = credentials, request
        self._asking = threading.Lock()

    def current(self) -> str:
        """A token that is valid for three minutes at least (google-auth's REFRESH_THRESHOLD is
        3:45), or nothing where one must be asked for."""
        return str(self._credentials.token) if self._credentials.valid else ""

    def latest(self) -> str:
        """The last one that was asked for; nothing before the first."""
        return str(self._credentials.token or "")

    def asked(self) -> str:
        """As `current`, but asked for where there is none: a request, or several.

        Raises:
            PermissionError: Google gives none for these credentials.
            OSError: no answer came, which may pass.
        """
        errors: Any = importlib.import_module("google.auth.exceptions")
        with self._asking:
            if not self._credentials.valid:
                try:
                    self._credentials.refresh(self._request)
                except errors.GoogleAuthError as error:
                    words = words_of(error)
                    if isinstance(error, errors.TransportError) or error.retryable:
                        raise OSError(f"no token came from Google: {words}\nHTTP error") from None
                    raise PermissionError(
                        13,
                        f"access denied, as Google gives no token for these credentials ({words}); "
                        "renew them",
                    ) from None
            return str(self._credentials.token)

    def __call__(self) -> dict[str, Any]:
        """As obstore asks for it: `token`, and `expires_at`, a time or None."""
        token, expiry = self.asked(), self._credentials.expiry  # without a zone, of UTC
        return {"token": token, "expires_at": expiry and expiry.replace(tzinfo=timezone.utc)}


def top(names: Mapping[str, str]) -> str:
    """What URLs begin with, before the name of the bucket. Raises as `_service_account`.

    Args:
        names: variables of the environment, in capitals.
    """
    base = _service_account(names).get("gcs_base_url", "https://storage.googleapis.com")
    return str(base).rstrip("/")


def tokens(names: Mapping[str, str]) -> Tokens | None:
    """Of the service account that the environment names; else of the file of application default
    credentials; else of the machine, where it is Google's. These are obstore's places, in its
    order. None: nothing needs a token.

    Args:
        names: variables of the environment, in capitals.

    Raises NoTokensError.
    """
    if found := next(filter(_OTHER_WAY.match, sorted(names)), ""):
        raise NoTokensError(f"{found} is set, which libcurl is not given")
    try:
        account = _service_account(names)
        if names.get("GOOGLE_SKIP_SIGNATURE", "").lower() in TRUE or account.get("disable_oauth"):
            return None
        if (
            top(names).startswith("http:")
            and names.get("GOOGLE_ALLOW_HTTP", "").lower() not in TRUE
        ):
            raise NoTokensError("tokens are not sent by http: unless GOOGLE_ALLOW_HTTP says so")
        request = importlib.import_module("google.auth.transport.requests").Request()
        return Tokens(_credentials(account, names), request)
    except ImportError:
        raise NoTokensError(
            "google-auth is not installed, which gets tokens (pip install google-auth requests)"
        ) from None
    except (OSError, ValueError) as error:  # google-auth's errors of this kind are ValueErrors
        raise NoTokensError(f"google-auth cannot use the credentials ({words_of(error)})") from None


def _credentials(account: Mapping[str, Any], names: Mapping[str, str]) -> Any:
    """Of google-auth. Raises ImportError, OSError, ValueError, NoTokensError."""
    kind, found = "service_account", account
    if not account:
        usual = os.path.expanduser("~/.config/gcloud/application_default_credentials.json")
        path = names.get("GOOGLE_APPLICATION_CREDENTIALS") or usual
        if path == usual and not os.path.exists(usual):
            if not _is_machine_of_google():
                raise NoTokensError("there are no credentials, and this is no machine of Google's")
            machine: Any = importlib.import_module("google.auth.compute_engine")
            return machine.Credentials(scopes=_SCOPES)
        found = _read(Path(path).read_text())
        kind = str(found.get("type"))
    if found.get("universe_domain", _HOST) != _HOST:
        raise NoTokensError(f"the credentials are of {found['universe_domain']}")
    if kind not in ("service_account", "authorized_user"):
        raise NoTokensError(f"credentials of the type {kind!r} are known to obstore alone")
    if kind == "service_account":
        theirs: Any = importlib.import_module("google.oauth2.service_account").Credentials
        return theirs.from_service_account_info(found, scopes=_SCOPES)
    theirs = importlib.import_module("google.oauth2.credentials").Credentials
    return theirs.from_authorized_user_info(found)


def _is_machine_of_google() -> bool:
    """Whether it has a server of metadata, which gives tokens. Where there is none google-auth
    would ask five times, with pauses of 1, 2, 4 and 8 s."""
    if "GCE_METADATA_HOST" in os.environ:
        return True
    try:
        return Path(_PRODUCT).read_text().startswith("Google")
    except OSError:
        return False


def _service_account(names: Mapping[str, str]) -> dict[str, Any]:
    """The one that the environment names; {} where it names none. Raises OSError, ValueError."""
    path = next((names[name] for name in _PATHS if name in names), "")
    text = Path(path).read_text() if path else names.get("GOOGLE_SERVICE_ACCOUNT_KEY", "{}")
    return _read(text)


def _read(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("an object of JSON is expected")
    return found
