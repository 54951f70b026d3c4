"""The pages of `fastload bench` and `fastload sweep`, as text and in a real Chromium, on a desktop and on a phone."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from fastload.bench.decode import report as decode_report
from fastload.bench.loader import report as loader_report
from fastload.cli.app import app
from fastload.errors import BackendUnavailableError
from fastload.measure import page as pages
from fastload.measure.machine import Machine
from fastload.measure.results import Failure, Latency, Measurement, Results, Round
from fastload.sweep import report as sweep_report
from tests.test_sweep import constructed

needs_charts = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="needs matplotlib: pip install fastload[report]"
)

_MACHINE = Machine(
    cpu="Processor <of> 64 cores & more",
    cores=64,
    affinity_cores=16,
    quota_cores=12.5,
    simd=("avx2", "avx512bw"),
    memory=128 << 30,
    system="Linux-6.8-x86_64-with-glibc2.39",
    python="3.12.3",
    gpus=("NVIDIA H100 80GB HBM3, 80 GiB, driver 555.42",),
    libraries={"torch": "2.8.0", "libjpeg-turbo of Pillow": "3.1"},
)


def _rounds(rate: float, **metrics: float) -> tuple[Round, ...]:
    return tuple(Round(int(rate * f), 1.0, 2.0, {name: v * f for name, v in metrics.items()}) for f in (0.9, 1.0, 1.15))


def _loader_row(
    contestant: str, rate: float, workers: int | str = "default", prefetch: int | str = "default"
) -> Measurement:
    wave = tuple((t / 40, 0.5 + 0.5 * math.copysign(1, math.sin(t * rate))) for t in range(80))
    return Measurement(
        contestant,
        "training",
        {} if contestant == "trainer alone" else {"workers": workers, "prefetch": prefetch},
        rounds=_rounds(
            rate, wait_share=0.2, first_batch_seconds=0.3, gpu_busy_share=0.8, gpu_idle_windows=2, gpu_idle_seconds=0.4
        ),
        peak_memory=2_000_000_000,
        failures=(Failure("/data/class/<bad>.jpg", "truncated & wrong"),) if contestant == "torch" else (),
        series={"trainer_busy": wave, "gpu_utilisation": wave},
    )


def loader_results() -> Results:
    """All that a loader benchmark can have."""
    contestants = ("turbojpeg", "torch", "cache", "dali", "a_backend_of_a_third_party")
    rows = [
        _loader_row("trainer alone", 12_345),
        *(_loader_row("DataLoader", 680 * n, workers=n) for n in (0, 4)),
        *(_loader_row(name, 1500 + 900 * n) for n, name in enumerate(contestants)),
        *(_loader_row(name, 500 * n, workers=n) for name in contestants for n in (1, 2, 4, 16)),
        *(_loader_row(name, 800 * n, prefetch=n) for name in contestants for n in (1, 2)),
        Measurement("missing", "training", status="unavailable", note='Install it: pip install "missing"'),
    ]
    settings: dict[str, Any] = {
        "folder": "/data/" + "a_long_name_without_any_space/" * 6,
        "images": 1024,
        "batch_size": 64,
    }
    settings |= {
        "device": "cuda:0",
        "network": "resnet50",
        "consume": None,
        "workers": [1, 2, 4, 16],
        "prefetch": [1, 2],
    }
    settings |= {"rounds": 3, "seconds": 10.0}
    notes = ("Your trainer takes 12,345 img/s; `turbojpeg` gives 1,500 <b>.", "A second note.")
    return Results("loader", "2026-01-02T03:04:05+00:00", "0.1.0", _MACHINE, settings, tuple(rows), notes=notes)


def decode_results() -> Results:
    """All that a decode benchmark can have."""
    rows = [
        Measurement(
            name,
            mode,
            {"from": source, "threads": threads, "resampling": "own"},
            rounds=_rounds(
                300.0 * threads * (n + 1), pixels_per_second=1e8, pixel_difference_max=n, pixel_difference_mean=0.1
            ),
            latency=Latency(0.003, 0.009, 100),
            memory_growth=8_000_000,
        )
        for n, name in enumerate(("pillow", "pillow-simd", "simplejpeg", "native-region"))
        for mode, source in (("full", "memory"), ("full", "page cache"), ("crop224", "memory"))
        for threads in (1, 2, 8)
    ]
    settings: dict[str, Any] = {
        "folder": "sample set",
        "images": 128,
        "megapixels": 23.4,
        "rounds": 5,
        "modes": ["full"],
    }
    return Results("decode", "2026-01-02T03:04:05+00:00", "0.1.0", _MACHINE, settings, tuple(rows), complete=False)


@pytest.fixture(scope="module", params=["loader", "decode", "sweep"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / f"{request.param}.html"
    write_html({"loader": loader_results, "decode": decode_results, "sweep": constructed}[request.param](), path)
    return path


def write_html(results: Results, path: Path) -> None:
    """Its own page."""
    report: Any = {"loader": loader_report, "decode": decode_report, "sweep": sweep_report}[results.benchmark]
    report.write_html(results, path)


@needs_charts
def test_page_needs_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 1_500_000
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert not re.findall(r"@import|url\((?!#)", text)
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids)), "a clipping path of one chart must not be taken for that of another"


@pytest.mark.slow
@needs_charts
def test_page_says_what_was_found(tmp_path: Path) -> None:
    write_html(loader_results(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    for expected in (
        "<code>turbojpeg</code> gives 1,500 &lt;b&gt;.",
        "A second note.",
        "pip install &quot;missing&quot;",
        "/data/class/&lt;bad&gt;.jpg",
        "Processor &lt;of&gt; 64 cores &amp; more",
        "NVIDIA H100",
        "Throughput against workers",
        "Throughput against batches of prefetch",
        "GPU utilisation",
    ):
        assert expected in text, expected
    assert "Stopped early" not in text
    write_html(decode_results(), tmp_path / "page.html")
    assert "Stopped early" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
@needs_charts
def test_same_results_give_the_same_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_html(decode_results(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@needs_charts
@pytest.mark.parametrize("results", [loader_results(), decode_results()], ids=["loader", "decode"])
def test_a_run_stopped_at_once_has_a_page_too(results: Results, tmp_path: Path) -> None:
    rows = tuple(msgspec.structs.replace(row, rounds=(), status="not run", series={}) for row in results.measurements)
    write_html(msgspec.structs.replace(results, measurements=rows, complete=False), tmp_path / "page.html")
    assert "no round was finished" in (tmp_path / "page.html").read_text()


def test_without_matplotlib_it_says_so_before_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match=r"pip install \"fastload\[report\]\""):
        pages.require_charts()
    done = CliRunner().invoke(app, ["bench", "loader", str(tmp_path), "--html", str(tmp_path / "page.html")])
    assert done.exit_code == 1
    assert "fastload[report]" in done.output


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs a browser: sudo apt-get install -y chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run", "disable-sync"),
        *("disable-background-networking", "disable-component-update", f"user-data-dir={profile}"),
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield opened
    opened.quit()


_CHARTS = """
return [...document.querySelectorAll('svg')].filter(svg => svg.getClientRects().length).map(svg => ({
  box: svg.getBoundingClientRect().toJSON(),
  shapes: svg.querySelectorAll('path').length,
  unfilled: [...svg.querySelectorAll('path')].filter(
    path => /var/.test(path.getAttribute('style') || '') && getComputedStyle(path).fill === ''
  ).length,
  texts: [...svg.querySelectorAll('text')].map(text => {
    const box = text.getBoundingClientRect();
    return {text: text.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom,
            size: parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width
                  / svg.viewBox.baseVal.width};
  }),
}));
"""


def _open(browser: Any, page: Path, width: int, scheme: str = "light") -> list[dict[str, Any]]:
    """The charts that are seen."""
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 700}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())
    charts: list[dict[str, Any]] = browser.execute_script(_CHARTS)
    return charts


def _overlapping(texts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (a["text"], b["text"])
        for number, a in enumerate(texts)
        for b in texts[:number]
        if min(a["right"], b["right"]) - max(a["left"], b["left"]) > 1
        and min(a["bottom"], b["bottom"]) - max(a["top"], b["top"]) > 4  # boxes have room above and below the letters
    ]


@needs_charts
@pytest.mark.parametrize("width", [1280, 390, 360])
def test_charts_are_drawn_and_readable(browser: Any, page: Path, width: int) -> None:
    charts = _open(browser, page, width)
    assert len(charts) == {"loader": 6, "decode": 5, "sweep": 2}[page.stem]
    for chart in charts:
        assert chart["box"]["width"] > 280
        assert chart["box"]["height"] > 100
        assert chart["shapes"] > 5
        assert chart["unfilled"] == 0
        assert chart["texts"]
        for text in chart["texts"]:
            assert text["size"] >= 9, text
            assert -1 <= text["left"] <= text["right"] <= width + 1, text
        assert not _overlapping(chart["texts"])


@needs_charts
def test_page_fits_a_phone_without_scrolling_sideways(browser: Any, page: Path) -> None:
    _open(browser, page, 390)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    assert browser.execute_script("return window.innerWidth") == 390


@needs_charts
def test_console_has_nothing_to_complain_of(browser: Any, page: Path) -> None:
    browser.get_log("browser")  # what other pages left
    _open(browser, page, 1280)
    assert browser.get_log("browser") == []


@needs_charts
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(browser: Any, page: Path, scheme: str) -> None:
    _open(browser, page, 1280, scheme)
    paper = _luminance(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert (paper > 0.5) == (scheme == "light")
    colours = "return [...new Set([...document.querySelectorAll('svg text, p, td, th, dt')].map(e => %s))]"
    for colour in browser.execute_script(colours % "getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color']"):
        ink = _luminance(colour)
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4.5, f"{colour}: WCAG 2.2, 1.4.3 asks for 4.5"


def _luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)" (WCAG 2.2)."""
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
