"""`fastload bench io`: what a store gives, by requests in flight."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastload.cli.app import app
from fastload.errors import ConfigurationError
from fastload.tools.bench import IoSettings
from fastload.tools.bench.io import run_io_benchmark, verdict
from fastload.tools.measure.results import Measurement, Round
from tests import images
from tests.objectserver import ObjectServer
from tests.waiting import LIMIT


@pytest.fixture
def bucket(tmp_path: Path, server: ObjectServer) -> ObjectServer:
    folder = images.write_photo_folder(tmp_path / "data", classes=2, per_class=4)
    for path in folder.rglob("*.jpg"):
        server.objects[f"bucket/train/{path.relative_to(folder)}"] = path.read_bytes()
    server.requests.clear()
    return server


def settings(url: str = "s3://bucket/train", **more: object) -> IoSettings:
    return IoSettings(url, **{"in_flight": (1, 4), "seconds": 0.0, "rounds": 2, **more})  # type: ignore[arg-type]


@pytest.mark.slow
def test_images_are_read_whole_one_a_request(bucket: ObjectServer) -> None:
    found = run_io_benchmark(settings())
    reads = [path for method, path, part in bucket.requests if (method, part) == ("GET", "")]
    reads = [path for path in reads if path.endswith(".jpg")]
    asked = sum(each.samples for row in found.measurements for each in row.rounds)
    assert [row.parameters["in_flight"] for row in found.measurements] == [1, 4]
    # Two warm-ups read as many as there are threads, and are not counted.
    assert len(reads) == asked + 1 + 4
    sizes = {len(data) for data in bucket.objects.values()}
    for row in found.measurements:
        each = row.metric("bytes_each")
        assert each is not None
        assert min(sizes) <= each.median <= max(sizes)


@pytest.mark.slow
def test_as_many_are_in_flight_as_asked(
    bucket: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read waits until four threads have come: with fewer in flight none would end."""
    from fastload.stores.base import Store

    barrier = threading.Barrier(4, timeout=LIMIT)
    read = Store.read

    def together(self: Store, *wanted: object) -> bytes:
        barrier.wait()
        return read(self, *wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "read", together)
    found = run_io_benchmark(settings(in_flight=(4,), rounds=1))
    assert found.measurements[0].rounds[0].samples == 4


def row(in_flight: int, rate: float) -> Measurement:
    done = Round(samples=1000, seconds=1000 / rate, metrics={"bytes_each": 100_000.0})
    return Measurement("s3://bucket", "random images", {"in_flight": in_flight}, rounds=(done,))


def test_the_verdict_says_what_is_needed_and_what_gives_it() -> None:
    rows = (row(1, 30), row(32, 900), row(64, 1500), row(128, 1600))
    words = verdict(rows, 1000, "gs://bucket")
    assert "1,000 images a second are 100 MB and 1,000 requests a second at 100 kB" in words
    assert "64 requests in flight gave 1,500." in words
    words = verdict(rows, 3000, "gs://bucket")
    assert "The most that was seen is 1,600, with 128 in flight: a trainer would wait" in words
    assert "S3" not in words
    assert "S3 answers 5,500" in verdict(rows, 8000, "s3://bucket")


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(bucket: ObjectServer, tmp_path: Path) -> None:
    out = tmp_path / "io.json"
    given = ["s3://bucket/train", "--in-flight", "2", "--time", "0", "--rounds", "1"]
    done = CliRunner().invoke(app, ["bench", "io", *given, "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "s3://bucket/train: 8 images" in done.output
    assert "in flight" in done.output
    assert json.loads(out.read_text())["benchmark"] == "io"


@pytest.mark.parametrize("in_flight", [(), (0,), (1, 300)])
def test_numbers_of_requests_out_of_range_are_refused(in_flight: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match="--in-flight: .* from 1 to 256"):
        run_io_benchmark(settings(in_flight=in_flight))


def test_what_is_no_number_is_named_as_it_was_typed() -> None:
    done = CliRunner().invoke(app, ["bench", "io", "s3://bucket/train", "--in-flight", "a"])
    assert done.exit_code == 1
    assert "--in-flight: 'a' must be whole numbers" in done.output


def test_a_local_folder_is_refused(tmp_path: Path) -> None:
    folder = images.write_photo_folder(tmp_path / "data", classes=2, per_class=1)
    with pytest.raises(ConfigurationError, match="not read from a store; give the URL"):
        run_io_benchmark(settings(str(folder)))


def test_without_a_url_and_with_options_that_mean_nothing_it_says_how_it_is_called() -> None:
    for given in ([], ["s3://bucket/train", "--html", "page.html"]):
        done = CliRunner().invoke(app, ["bench", "io", *given])
        assert done.exit_code == 2
        assert ("--html" if given else "url") in done.output
