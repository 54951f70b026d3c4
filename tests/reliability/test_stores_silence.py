"""A store that takes requests and never answers, or not to the end: a program that is interrupted,
one that ends, and a loader that is closed do not wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import images
from tests.objectserver import ObjectServer
from tests.waiting import wait_until

URL = "s3://bucket/train"
SOON = 120.0
"""Seconds: an interpreter with torch in it takes one to end, on a busy machine far more. Who waits
for an answer waits longer by far: the limits of these programs are PATIENT."""
PATIENT = """
    from datetime import timedelta
    from fastload.stores import objects
    objects._SILENCE = objects._ANSWER = timedelta(seconds=1000)
"""
BACKENDS = {
    "turbojpeg": "backend='turbojpeg'",
    "python": "backend='turbojpeg', options=TurboJpegOptions(decoder='pillow')",
    "torch-0": "backend='torch', num_workers=0",
    "torch-2": "backend='torch', num_workers=2",
    "cache": "backend='cache', options=CacheOptions(directory='cache', progress=False)",
    "filling": "backend='cache', options=CacheOptions(directory='cache', fill='while-training')",
}
START = f"""{PATIENT}    import gc, os, signal, sys, time
    import fastload.errors
    from fastload import create_loader
    from fastload.backends.cache import CacheOptions
    from fastload.backends.turbojpeg import TurboJpegOptions
    from torchvision.transforms import v2

    def opened():
        # Opening reads some headers; a second one asks for listings alone.
        loader().close()
        print("opened", flush=True)
        sys.stdin.readline()

    def loader():
        return create_loader("{{url}}", 2, transform=v2.Resize((16, 16)), {{backend}})
"""

pytestmark = pytest.mark.reliability


@pytest.fixture
def stored(tmp_path: Path, server: ObjectServer) -> list[str]:
    """The names of eight photographs in the store, in the order of the data set."""
    folder = images.write_photo_folder(tmp_path / "data" / "train", classes=2, per_class=4)
    names = []
    for path in sorted(folder.rglob("*.jpg")):
        names.append(f"bucket/train/{path.relative_to(folder)}")
        server.objects[names[-1]] = path.read_bytes()
    return names


def started(directory: Path, program: str, backend: str, *, url: str = URL) -> Program:
    script = directory / "program.py"
    body = textwrap.indent(textwrap.dedent(program), "    ")
    text = textwrap.dedent(START.format(url=url, backend=backend))
    # Worker processes are spawned, and import it.
    script.write_text(f"{text}\nif __name__ == '__main__':\n{body}")
    return Program([sys.executable, str(script)], directory)


class Program:
    """A process in a group of its own."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._errors = directory / "errors"
        with open(self._errors, "wb") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def says(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{line}\n", self._errors.read_text()

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.close()

    def ends(self, seconds: float = SOON) -> tuple[int, str]:
        """Its exit status and what it wrote to stderr; fails if it does not end in time."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        began = time.monotonic()
        try:
            code = self.process.wait(seconds)
            print(f"ended after {time.monotonic() - began:.1f} s")
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            pytest.fail(f"still there after {seconds} s: {self._errors.read_text()}")
        return code, self._errors.read_text()


def asked(server: ObjectServer, names: list[str]) -> Callable[[], bool]:
    """Whether one of these objects was asked for as a whole or in part."""
    return lambda: any(server.reads_of(name) for name in names)


# Within a body, the others wait in the functions that these three wait in.
@pytest.mark.parametrize(
    ("backend", "fault"),
    [(name, "mute") for name in BACKENDS]
    + [(name, "stall") for name in ("turbojpeg", "torch-0", "cache")],
)
def test_ctrl_c_while_a_batch_is_waited_for(
    backend: str, fault: str, stored: list[str], server: ObjectServer, tmp_path: Path
) -> None:
    program = started(tmp_path, "opened()\nfor batch in loader(): pass", BACKENDS[backend])
    program.says("opened")
    server.requests.clear()
    server.faults.update({name: [fault] * 10_000 for name in stored})
    program.goes_on()
    wait_until(asked(server, stored))
    time.sleep(0.5)
    program.process.send_signal(signal.SIGINT)
    code, errors = program.ends()
    assert code == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_collection_and_the_end_of_a_program(
    backend: str, stored: list[str], server: ObjectServer, tmp_path: Path
) -> None:
    """The first batch is there, and the next ones are being read."""
    if backend == "cache":  # the whole of it is read before the first batch
        work = """
            import threading
            opened()
            for end in (lambda one: one.close(), lambda one: None):
                one, errors = loader(), []
                def wait():
                    try:
                        next(iter(one))
                    except fastload.errors.FastloadError as error:
                        errors.append(error)
                thread = threading.Thread(target=wait, daemon=True)
                thread.start()
                time.sleep(1.5)
                began = time.monotonic()
                one.close()
                thread.join()
                took = time.monotonic() - began
                assert took < 60, took
                print("ended" if "closed" in str(errors[0]) else errors[0], flush=True)
                del one
            threading.Thread(target=lambda: next(iter(loader())), daemon=True).start()
            time.sleep(1.5)
            print("end", flush=True)
        """
    else:
        work = """
            opened()
            for end in (lambda one: one.close(), lambda one: None):
                one = loader()
                next(iter(one))
                time.sleep(0.5)
                began = time.monotonic()
                end(one)
                del one
                gc.collect()
                took = time.monotonic() - began
                assert took < 60, took
                print("ended", flush=True)
            one = loader()
            batches = iter(one)
            next(batches)
            time.sleep(0.5)
            print("end", flush=True)
        """
    program = started(tmp_path, textwrap.dedent(work), BACKENDS[backend])
    program.says("opened")
    server.faults.update({name: ["mute"] * 10_000 for name in stored[2:]})
    program.goes_on()
    for line in ("ended", "ended", "end"):
        program.says(line)
    code, errors = program.ends()
    assert code == 0, errors
    assert "Traceback" not in errors or backend == "cache", errors


@pytest.mark.parametrize("what", ["listing", "shards", "index"])
def test_ctrl_c_while_a_data_set_is_opened(
    what: str, stored: list[str], server: ObjectServer, tmp_path: Path
) -> None:
    url = URL
    if what == "shards":
        url = f"{server.url}/shard-{{000..011}}.tar"
        server.objects.update({f"shard-{number:03d}.tar": bytes(20_000) for number in range(12)})
        server.faults.update({f"shard-{number:03d}.tar": ["mute"] * 99 for number in range(12)})
    else:
        server.faults["list"] = ["mute"] * 99
    if what == "index":
        command = f"{textwrap.dedent(PATIENT)}\nfrom fastload.cli import main\nmain()"
        program = Program([sys.executable, "-c", command, "index", URL], tmp_path)
    else:
        program = started(tmp_path, "loader()", "backend='turbojpeg'", url=url)
    path = "shard-" if what == "shards" else "list-type"
    wait_until(lambda: any(each[0] == "GET" and path in each[1] for each in server.requests))
    time.sleep(0.3)
    program.process.send_signal(signal.SIGINT)
    code, errors = program.ends()
    assert code == (130 if what == "index" else -signal.SIGINT), errors
