"""The pages of `fastload bench` and `fastload sweep`, as text and in a real Chromium, on a desktop
and on a phone."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from fastload.cli.app import app
from fastload.distribution import install_command
from fastload.errors import BackendUnavailableError
from fastload.tools.bench import decode_report, loader_report
from fastload.tools.look.page import page as look
from fastload.tools.look.samples import Row, Shown
from fastload.tools.measure import page as pages
from fastload.tools.measure.results import Failure, Latency, Machine, Measurement, Results, Round
from fastload.tools.sweep import report as sweep_report
from tests.test_sweep import constructed, row

needs_charts = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="needs matplotlib: pip install .[report]"
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
    return tuple(
        Round(int(rate * f), 1.0, 2.0, {name: v * f for name, v in metrics.items()})
        for f in (0.9, 1.0, 1.15)
    )


def _loader_row(
    contestant: str, rate: float, workers: int | str = "default", prefetch: int | str = "default"
) -> Measurement:
    wave = tuple((t / 40, 0.5 + 0.5 * math.copysign(1, math.sin(t * rate))) for t in range(80))
    return Measurement(
        contestant,
        "training",
        {} if contestant == "trainer alone" else {"workers": workers, "prefetch": prefetch},
        rounds=_rounds(
            rate,
            wait_share=0.2,
            first_batch_seconds=0.3,
            gpu_busy_share=0.8,
            gpu_idle_windows=2,
            gpu_idle_seconds=0.4,
        ),
        peak_memory=2_000_000_000,
        failures=(Failure("/data/class/<bad>.jpg", "truncated & wrong"),)
        if contestant == "torch"
        else (),
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
        Measurement(
            "missing", "training", status="unavailable", note='Install it: pip install "missing"'
        ),
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
    return Results(
        "loader", "2026-01-02T03:04:05+00:00", "0.1.0", _MACHINE, settings, tuple(rows), notes=notes
    )


def decode_results() -> Results:
    """All that a decode benchmark can have."""
    rows = [
        Measurement(
            name,
            mode,
            {"from": source, "threads": threads, "resampling": "own"},
            rounds=_rounds(
                300.0 * threads * (n + 1),
                pixels_per_second=1e8,
                pixel_difference_max=n,
                pixel_difference_mean=0.1,
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
    return Results(
        "decode",
        "2026-01-02T03:04:05+00:00",
        "0.1.0",
        _MACHINE,
        settings,
        tuple(rows),
        complete=False,
    )


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a benchmark with all that it can have, written once."""
    folder = tmp_path_factory.mktemp("pages")
    results = {"loader": loader_results, "decode": decode_results, "sweep": constructed}

    def page(benchmark: str) -> Path:
        path = folder / f"{benchmark}.html"
        if not path.exists():
            write_html(results[benchmark](), path)
        return path

    return page


@pytest.fixture(scope="module", params=["loader", "decode", "sweep"])
def page(request: pytest.FixtureRequest, page_of: Callable[[str], Path]) -> Path:
    return page_of(request.param)


def write_html(results: Results, path: Path) -> None:
    """Its own page."""
    report: Any = {"loader": loader_report, "decode": decode_report, "sweep": sweep_report}[
        results.benchmark
    ]
    report.write_html(results, path)


@pytest.mark.whole
@needs_charts
def test_page_needs_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 1_500_000
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text)
    assert not re.findall(r"@import|url\((?!#)", text)
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids)), (
        "a clipping path of one chart must not be taken for that of another"
    )


@pytest.mark.whole
@needs_charts
def test_page_says_what_was_found(page_of: Callable[[str], Path]) -> None:
    text = page_of("loader").read_text()
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
    assert "Stopped early" in page_of("decode").read_text()


def _decoded(
    contestant: str, rates: tuple[float, ...], threads: int = 2, source: str = "memory"
) -> Measurement:
    rounds = tuple(Round(int(rate), 1.0, 1.0, {"pixels_per_second": rate}) for rate in rates)
    return Measurement(
        contestant, "full", {"from": source, "threads": threads, "resampling": "own"}, rounds=rounds
    )


@pytest.mark.parametrize(
    ("native", "words"),
    [
        (
            (400, 401, 402),
            "Full decode with 2 threads: `native` is the fastest, 401 img/s, 1.34 times the next, "
            "`simplejpeg`; 4.0 times `pillow`.",
        ),
        (
            (310, 200, 400),
            "`native` (310 img/s) and `simplejpeg` (300) lie within the scatter of the rounds.",
        ),
        (
            (400, 401),
            "`native` (400 img/s) before `simplejpeg` (300), by too few rounds to be sure.",
        ),
    ],
)
def test_the_verdict_on_decoders_claims_no_more_than_the_rounds_show(
    native: tuple[float, ...], words: str
) -> None:
    rows = [
        _decoded("pillow", (100, 101, 99)),
        _decoded("simplejpeg", (300, 301, 299)),
        _decoded("native", native),
    ]
    assert decode_report.verdict([*rows, _decoded("opencv", (900, 901, 902), threads=1)]).endswith(
        words
    )
    assert decode_report.verdict([_decoded("pillow", (5, 5, 5))]).endswith(
        "`pillow` gives 5 img/s."
    )
    assert decode_report.verdict([]) == ""


@pytest.mark.whole
@needs_charts
def test_tables_are_in_the_order_of_the_charts_below_a_verdict(tmp_path: Path) -> None:
    speeds = {"pillow": (100, 50), "simplejpeg": (300, 500), "native": (400, 200)}
    rows = [
        _decoded(name, (rate * threads, rate * threads + 1, rate * threads - 1), threads, source)
        for name, rates in speeds.items()
        for source, rate in zip(("memory", "page cache"), rates, strict=True)
        for threads in (2, 1)
    ]
    write_html(
        msgspec.structs.replace(decode_results(), measurements=tuple(rows)), tmp_path / "page.html"
    )
    text = (tmp_path / "page.html").read_text()
    assert text.index(
        '<p class="verdict">Full decode with 2 threads: <code>native</code>'
    ) < text.index("<figure>")
    cells = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td[^>]*>(\d)</td>", text)
    memory = [name for name in ("native", "simplejpeg", "pillow") for _ in range(2)]
    cached = [name for name in ("simplejpeg", "native", "pillow") for _ in range(2)]
    assert [name for name, _, _ in cells] == memory + cached
    assert [threads for _, _, threads in cells] == ["1", "2"] * 6
    for chart, order in zip(
        re.findall(r"<figure>.*?</figure>", text, re.DOTALL), (memory, cached), strict=False
    ):
        seen = [name for name in re.findall(r">([a-z]+)</text>", chart) if name in speeds]
        assert seen[:3] == order[::2]

    write_html(loader_results(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    cells = re.findall(r"<tr><td>(.*?)</td>", text)
    chart = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)[0]
    bars = [
        name
        for name in re.findall(r">([\w ,]+)</text>", chart.partition("narrow")[0])
        if name.split(",")[0] in cells
    ]
    assert cells[0] == "trainer alone"
    assert cells[1 : len(bars) + 1] == [name.split(",")[0] for name in bars]


@pytest.mark.whole
@needs_charts
def test_charts_are_as_wide_as_the_page_and_no_line_crosses_their_labels(tmp_path: Path) -> None:
    from fastload.tools.measure import charts

    style = charts.style_sheet()
    body = re.search(r"body \{[^}]*padding: (\d+)px; max-width: (\d+)px", style)
    assert body is not None
    assert int(body[2]) - 2 * int(body[1]) == charts.WIDE
    assert "max-width" not in re.findall(r"figure \{[^}]*\}", style)[0]
    drawn = charts.bars(
        "t",
        "u",
        [charts.Bar(f"b{n}", n, n, n, charts.SERIES[n]) for n in range(1, 5)],
        limit=(3, "so"),
    ).html
    assert f'viewBox="0 0 {charts.WIDE} ' in drawn
    # Each label (four values and the limit's, in both widths) stands on paper, which is drawn after
    # the lines.
    assert drawn.count("fill: var(--paper)") == 2 * 5
    for chart in drawn.split('class="narrow"'):
        assert chart.rindex("stroke-dasharray") < chart.index("fill: var(--paper)")


@pytest.mark.whole
@needs_charts
def test_tables_say_that_they_go_on_where_a_phone_cannot_show_them() -> None:
    wide = pages.table([{f"h{n}": "1" for n in range(9)}], text_columns=())
    assert "Scroll sideways: 9 columns." in wide
    assert "Scroll sideways" not in pages.table([{"a": "1", "b": "2"}], text_columns=())
    from fastload.tools.measure import charts

    style = charts.style_sheet()
    assert re.search(r"\.scroll \{[^}]*background-attachment: local, scroll", style), (
        "a shadow where it goes on"
    )
    assert re.search(r"td:first-child \{[^}]*position: sticky", style), "the names stay in sight"
    assert re.search(r"@media \(max-width: 860px\) \{[^@]*\.hint \{ display: block", style)


@needs_charts
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_contestants_are_apart_and_stand_out(scheme: str) -> None:
    from fastload.tools.measure import charts

    light, dark = charts.style_sheet().split("@media (prefers-color-scheme: dark)")
    variables = dict(
        re.findall(r"--(\w+): (#\w+)", light if scheme == "light" else dark.split("* {")[0])
    )
    colours = [variables[f"c{number}"] for number in range(len(charts.SERIES))]
    paper = _luminance(_rgb(variables["paper"]))
    for colour in colours:
        ink = _luminance(_rgb(colour))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 3, (
            f"{colour}: WCAG 2.2, 1.4.11 asks for 3"
        )
    places = [_oklab(colour) for colour in colours]
    apart = {(a, b): math.dist(places[a], places[b]) for a in range(len(places)) for b in range(a)}
    assert min(apart.values()) > 0.12, min(apart, key=lambda pair: apart[pair])


@pytest.mark.whole
@needs_charts
def test_same_results_give_the_same_page(page_of: Callable[[str], Path], tmp_path: Path) -> None:
    write_html(decode_results(), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == page_of("decode").read_bytes()


@pytest.mark.whole
@needs_charts
@pytest.mark.parametrize("results", [loader_results(), decode_results()], ids=["loader", "decode"])
def test_a_run_stopped_at_once_has_a_page_too(results: Results, tmp_path: Path) -> None:
    rows = tuple(
        msgspec.structs.replace(row, rounds=(), status="not run", series={})
        for row in results.measurements
    )
    write_html(
        msgspec.structs.replace(results, measurements=rows, complete=False), tmp_path / "page.html"
    )
    assert "no round was finished" in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_without_matplotlib_it_says_so_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match=re.escape(install_command("report"))):
        pages.require_charts()
    done = CliRunner().invoke(
        app, ["bench", "loader", str(tmp_path), "--html", str(tmp_path / "page.html")]
    )
    assert done.exit_code == 1
    assert install_command("report") in done.output


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
        *(
            "headless",
            "no-sandbox",
            "disable-gpu",
            "disable-dev-shm-usage",
            "no-first-run",
            "disable-sync",
        ),
        *("disable-background-networking", "disable-component-update", f"user-data-dir={profile}"),
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    yield opened
    opened.quit()


_CHARTS = """
const shown = [...document.querySelectorAll('svg')].filter(svg => svg.getClientRects().length);
return shown.map(svg => ({
  box: svg.getBoundingClientRect().toJSON(),
  shapes: svg.querySelectorAll('path').length,
  unfilled: [...svg.querySelectorAll('path')].filter(
    path => /var/.test(path.getAttribute('style') || '') && getComputedStyle(path).fill === ''
  ).length,
  texts: [...svg.querySelectorAll('text')].map(text => {
    const box = text.getBoundingClientRect();
    return {text: text.textContent, left: box.left, right: box.right, top: box.top,
            bottom: box.bottom,
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
        and min(a["bottom"], b["bottom"]) - max(a["top"], b["top"])
        > 4  # boxes have room above and below the letters
    ]


@pytest.mark.whole
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


@pytest.mark.whole
@needs_charts
def test_page_fits_a_phone_without_scrolling_sideways(browser: Any, page: Path) -> None:
    _open(browser, page, 390)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    assert browser.execute_script("return window.innerWidth") == 390


@pytest.mark.whole
@needs_charts
def test_the_table_of_a_sweep_is_not_cut(browser: Any, tmp_path: Path) -> None:
    """Two GPUs, and all that can be tried, of which one is said once, as all rows have it."""
    whole = row("ddp", 2, 64, 9000.0, wait=0.1, launch=0.1, exchange=0.1)
    whole = replace(whole, memory=(3 << 30, 3 << 30), utilisation=(0.98, 0.97))
    rows = [
        replace(
            whole,
            cell=replace(whole.cell, batch=batch, backend=name, num_workers=4, amp="bf16"),
        )
        for name in ("turbojpeg", "cache")
        for batch in (64, 128)
    ]
    sweep_report.write_html(constructed(rows), tmp_path / "page.html")
    _open(browser, tmp_path / "page.html", 1280)
    (hidden,) = browser.execute_script(
        "return [...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    )
    assert hidden <= 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 1280
    text = (tmp_path / "page.html").read_text()
    assert "<p>In all rows: workers 4, amp bf16.</p>" in text
    assert ">backend</th>" in text
    assert ">amp</th>" not in text


@pytest.mark.whole
def test_a_sample_and_three_versions_of_it_stand_side_by_side(browser: Any, tmp_path: Path) -> None:
    picture = Shown("as stored", np.zeros((8, 8, 3), np.uint8), False, {})
    text = look([Row("a.jpg", [picture] * 4)], title="a", summary="b", transform="c", classes=None)
    (tmp_path / "look.html").write_text(text)
    for width, columns in ((1280, 4), (390, 1)):
        _open(browser, tmp_path / "look.html", width)
        lefts = (
            "return new Set([...document.querySelectorAll('figure')].map(e => e.offsetLeft)).size"
        )
        assert browser.execute_script(lefts) == columns


@pytest.mark.whole
@needs_charts
def test_console_has_nothing_to_complain_of(browser: Any, page: Path) -> None:
    browser.get_log("browser")  # what other pages left
    _open(browser, page, 1280)
    assert browser.get_log("browser") == []


@pytest.mark.whole
@needs_charts
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_paper(browser: Any, page: Path, scheme: str) -> None:
    _open(browser, page, 1280, scheme)
    paper = _luminance(
        browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    )
    assert (paper > 0.5) == (scheme == "light")
    colours = (
        "return [...new Set([...document.querySelectorAll('svg text, p, td, th, dt')].map(e => "
        "%s))]"
    )
    for colour in browser.execute_script(
        colours % "getComputedStyle(e)[e.closest('svg') ? 'fill' : 'color']"
    ):
        ink = _luminance(colour)
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4.5, f"{colour}: WCAG 2.2, 1.4.3 asks for 4.5"


def _luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)" (WCAG 2.2)."""
    channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def _rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[start : start + 2], 16)) for start in (1, 3, 5))})"


def _oklab(colour: str) -> list[float]:
    """Where a colour is in Oklab, in which distances are about as people see them (Ottosson,
    2020)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = np.array(
        [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    )
    cones = [
        [0.41222147, 0.53633254, 0.05144599],
        [0.2119035, 0.6806995, 0.10739696],
        [0.08830246, 0.28171884, 0.6299787],
    ]
    axes = [
        [0.21045426, 0.79361779, -0.00407205],
        [1.9779985, -2.42859221, 0.45059371],
        [0.02590404, 0.78277177, -0.80867577],
    ]
    return [float(value) for value in np.array(axes) @ np.cbrt(np.array(cones) @ linear)]
