"""Google's store by tokens: a server on loopback gives them to the real google-auth, and another
one has the objects."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from torchvision.transforms import v2

import fastload
from fastload import stores
from fastload.stores import base, google, objects, transfers
from tests import images
from tests.objectserver import ObjectServer

if transfers.missing():
    pytest.skip(f"{transfers.missing()}", allow_module_level=True)
pytest.importorskip("google.auth", reason="google-auth, of the extra `google`, is not installed")


@dataclass
class TokenServer:
    """Gives the tokens "token-1", "token-2" and so on."""

    lasts: int = 3600
    """Seconds that a token is valid."""
    faults: list[int] = field(default_factory=list)
    """What the next requests get in place of one: a status."""
    asked: list[dict[str, list[str]]] = field(default_factory=list)
    """The form of each request."""
    given: int = 0
    url: str = ""


@pytest.fixture
def giver() -> Iterator[TokenServer]:
    state = TokenServer()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            state.asked.append(parse_qs(text))
            status = state.faults.pop(0) if state.faults else 200
            answer: dict[str, Any] = {"error": "invalid_grant", "error_description": "no account"}
            if status == 200:
                state.given += 1
                answer = {"access_token": f"token-{state.given}", "expires_in": state.lasts}
                answer["token_type"] = "Bearer"
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}/token"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield state
        server.shutdown()


@pytest.fixture(scope="module")
def private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


@pytest.fixture
def account(
    giver: TokenServer,
    server: ObjectServer,
    private_key: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> dict[str, Any]:
    """A service account of these servers, which the environment names; `gs://bucket/x` is
    there."""
    server.objects["bucket/x"] = b"data"
    made = {
        "type": "service_account",
        "client_email": "reader@project.iam.gserviceaccount.com",
        "private_key": private_key,
        "private_key_id": "1",
        "token_uri": giver.url,
        "gcs_base_url": server.url,
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(made))
    monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
    monkeypatch.setattr(base, "_FIRST_WAIT", 0.001)
    stores.forget()
    return made


def by_whom() -> str:
    return stores.by_whom("gs://bucket/x")


def test_both_clients_read_with_one_token(
    account: dict[str, Any], giver: TokenServer, server: ObjectServer
) -> None:
    server.objects["bucket/a b/%c"] = b"more"
    assert stores.read("gs://bucket/x") == b"data"
    assert stores.read("gs://bucket/a b/%c", 1, 2) == b"or"
    assert "libcurl/" in by_whom()
    assert stores.entries("gs://bucket/a b") == [("%c", False)]  # by obstore
    stores.write("gs://bucket/new", b"written")
    assert server.objects["bucket/new"] == b"written"
    assert set(server.signed) == {"Bearer token-1"}
    assert len(giver.asked) == 1
    assert "assertion" in giver.asked[0], "a statement that the key of the account has signed"


@pytest.mark.parametrize("name", ["GOOGLE_SERVICE_ACCOUNT", "google_service_account_path"])
def test_an_account_in_a_file(
    name: str,
    account: dict[str, Any],
    server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv(name, str(tmp_path / "account.json"))
    assert stores.read("gs://bucket/x") == b"data"
    assert "libcurl/" in by_whom()
    assert server.signed == ["Bearer token-1"]


def test_an_open_bucket_of_an_account_in_a_file(
    account: dict[str, Any],
    giver: TokenServer,
    server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Is asked for where the file says, and without a token."""
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    (tmp_path / "account.json").write_text(json.dumps(account | {"disable_oauth": True}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    assert stores.read("gs://bucket/x") == b"data"
    assert "libcurl/" in by_whom()
    assert (server.signed, giver.asked) == ([""], [])


def test_application_default_credentials(
    account: dict[str, Any],
    giver: TokenServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of a user, in the usual file: whose URLs are Google's own."""
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", giver.url)
    folder = tmp_path / ".config" / "gcloud"
    folder.mkdir(parents=True)
    user = {"type": "authorized_user", "client_id": "a", "client_secret": "b"}
    user["refresh_token"] = "c"
    (folder / "application_default_credentials.json").write_text(json.dumps(user))
    store, _ = stores.store_of("gs://bucket/x")
    assert isinstance(store, objects.ObjectStore)
    assert store.urls(["x"]) == ["https://storage.googleapis.com/bucket/x"]
    assert store.token() == "token-1"
    assert giver.asked[0]["refresh_token"] == ["c"]


@pytest.mark.parametrize("product", ["Google Compute Engine\n", "Other\n"])
def test_a_machine_of_google(
    product: str, account: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    (tmp_path / "product").write_text(product)
    monkeypatch.setattr(google, "_PRODUCT", str(tmp_path / "product"))
    assert ("libcurl/" in by_whom()) == product.startswith("Google")
    assert ("no machine of Google's" in by_whom()) == product.startswith("Other")


def test_a_token_is_asked_for_again_before_it_ends(
    account: dict[str, Any], giver: TokenServer, server: ObjectServer
) -> None:
    giver.lasts = 100  # less than what google-auth leaves of it
    for number in (1, 2):
        assert stores.read("gs://bucket/x") == b"data"
        assert server.signed[-1] == f"Bearer token-{number}"


def test_a_token_that_is_refused_is_replaced(
    account: dict[str, Any],
    server: ObjectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objects, "_RENEWED_AFTER", 0.0)
    server.faults["bucket/x"] = ["401"]
    assert stores.read("gs://bucket/x") == b"data"
    assert server.signed == ["Bearer token-1", "Bearer token-2"]


def test_that_google_gives_no_token_is_an_error(
    account: dict[str, Any], giver: TokenServer, private_key: str
) -> None:
    giver.faults = [400] * 9
    with pytest.raises(PermissionError, match=r"no token .*invalid_grant.*gs://bucket/x") as caught:
        stores.read("gs://bucket/x")
    assert private_key[40:80] not in str(caught.value)
    assert len(giver.asked) == 1


def test_no_answer_about_a_token_may_pass(
    account: dict[str, Any], giver: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # google-auth asks three times itself.
    at_once = SimpleNamespace(sleep=lambda _: None)
    monkeypatch.setattr("google.auth._exponential_backoff.time", at_once)
    giver.faults = [503] * 4
    assert stores.read("gs://bucket/x") == b"data"
    assert len(giver.asked) == 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"GOOGLE_BEARER_TOKEN": "x"}, "GOOGLE_BEARER_TOKEN is set"),
        ({"GOOGLE_BASE_URL": "http://127.0.0.1:1"}, "GOOGLE_BASE_URL is set"),
        ({"GOOGLE_ALLOW_HTTP": "false"}, "not sent by http:"),
        ({"FASTLOAD_CLIENT": "obstore"}, "FASTLOAD_CLIENT says so"),
    ],
)
def test_where_obstore_fetches(
    settings: dict[str, str],
    words: str,
    account: dict[str, Any],
    giver: TokenServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert words in by_whom()
    assert "by obstore " in by_whom()
    assert giver.asked == []


def test_without_google_auth(account: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    assert "google-auth is not installed" in by_whom()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "external_account"}, "'external_account'"),
        ({"type": "authorized_user"}, "google-auth cannot use"),
        ({"type": "service_account", "universe_domain": "example.com"}, "of example.com"),
    ],
)
def test_credentials_that_obstore_alone_has(
    change: dict[str, str],
    words: str,
    account: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("GOOGLE_SERVICE_ACCOUNT_KEY")
    (tmp_path / "some.json").write_text(json.dumps(change))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "some.json"))
    with pytest.raises(google.NoTokensError, match=words):
        google.tokens(dict(os.environ))


def test_a_token_is_in_no_state(
    account: dict[str, Any], server: ObjectServer, tmp_path: Path, own_cache: Path
) -> None:
    folder = images.write_photo_folder(tmp_path / "train", classes=2, per_class=4)
    for path in folder.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    with fastload.create_loader("gs://bucket/train", 4, transform=v2.CenterCrop(32)) as loader:
        assert sum(len(batch[1]) for batch in loader) == 8
        state = pickle.dumps(loader.state_dict())
        words = loader.explain()
    assert "Bearer token-1" in server.signed
    assert b"token-1" not in state
    assert "token-1" not in words
    kept = [path for path in own_cache.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"token-1" in path.read_bytes() for path in kept)
