"""A figure in the manual says where it comes from: its command, machine, date and repetitions, or
its source.

A figure is a number with a unit of measurement (%, s, ms, images/s, MiB, times ...) in the text of
a page, not in code. It belongs to the section that it stands in. A section with figures has one of

- all of: a command (`python -m benchmarks...`, `make bench-peers`, `fastload ...`), a machine ("2
  cores", a GPU's name), a date (2026-11-22) and a number of repetitions ("5 rounds", "once", "one
  run a row", "three seeds"), or "not recorded" in place of the number;
- an owner: "*Reported*" or "Source:";
- a comment `<!-- figures: WHY -->`, for numbers that nobody measured: bounds, settings, examples.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from fastload.tools.measure.statistics import summarise

ROOT = Path(__file__).parents[1]
MANUAL = sorted((ROOT / "docs").rglob("*.md"))

_FIGURE = re.compile(
    r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?: to \d[\d,.]*)? ?"
    r"(?:%|images/s|img/s|samples/s|texts/s|MP/s|GB/s|MB/s|GFLOP/s|ms\b|µs\b|s\b(?!-)|seconds?\b|min\b|minutes\b|hours?\b"
    r"|times\b|MiB\b|GiB\b)"
)
_COMMAND = re.compile(
    r"python -m benchmarks|make bench|fastload "
    r"(?:bench|sweep|train|demo|watch)|fastload\.train|details \w+"
)
_MACHINE = re.compile(r"\b(?:\d+|two|one) (?:\w+ )?cores?\b|EPYC|i9-|Xeon|H100|H200|RTX")
_DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_TIMES = re.compile(
    r"\b(?:\d+|two|three|five|seven|all) (?:\w+ "
    r")?(?:rounds|runs|turns|seeds|repetitions|times)\b|\bonce\b|\bone run\b"
    r"|median|seeds? \d|not\s+recorded|一次|三个种子|\d+ 轮"
)
_OWNER = re.compile(r"\*(?:Reported|报告)\*|\bSource: ")


def figures_without(text: str) -> list[str]:
    """Of a page: "heading: figure: what is missing", one for each section that does not say where
    it is from."""
    found = []
    for section in re.split(r"(?m)^(?=##? )", text):
        prose = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^```.*?^```", "", section))
        figure = _FIGURE.search(prose)
        if (
            figure is None
            or _OWNER.search(section)
            or re.search(r"<!-- figures: [^>]{10,}-->", section)
        ):
            continue
        wanted = {"command": _COMMAND, "machine": _MACHINE, "date": _DATE, "repetitions": _TIMES}
        missing = [name for name, pattern in wanted.items() if not pattern.search(section)]
        if missing:
            found.append(f"{section.splitlines()[0]}: {figure[0]}: no {', '.join(missing)}")
    return found


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_figures_say_where_they_come_from(page: Path) -> None:
    assert figures_without(page.read_text()) == []


def test_a_figure_without_is_found() -> None:
    whole = (
        "## Fast\n\nIt makes 1,200 images/s on 2 cores, 2026-11-22, 5 rounds (`fastload "
        "bench loader`).\n"
    )
    assert figures_without(whole) == []
    for part, missing in (
        (" on 2 cores", "machine"),
        (", 2026-11-22", "date"),
        (", 5 rounds", "repetitions"),
    ):
        assert figures_without(whole.replace(part, "")) == [
            f"## Fast: 1,200 images/s: no {missing}"
        ]
    assert figures_without("## Slow\n\nIt takes 3 s.\n") == [
        "## Slow: 3 s: no command, machine, date, repetitions"
    ]
    assert figures_without("## Slow\n\n*Reported* by the author: it takes 3 s.\n") == []
    assert (
        figures_without("## Bound\n\n<!-- figures: a bound that tests hold -->\nAt most 5%.\n")
        == []
    )
    assert figures_without("## Code\n\n```\nsleep 3 s\n```\nand `--limit 3 s`.\n") == []


def test_the_chinese_recipes_have_the_same_figures() -> None:
    english, chinese = (
        (ROOT / "docs" / name).read_text() for name in ("recipes.md", "recipes.zh-CN.md")
    )
    tables = "## What the sources got wrong", "## 来源中的错误"
    ran = "## What we ran", "## 我们跑的结果"

    def rows(page: str) -> list[list[str]]:
        lines = [
            line
            for line in page.splitlines()
            if line.startswith("|") and re.match(r"\| \d[\d,]*(?: \||\uff0c|, )", line)
        ]
        return [re.findall(r"\d[\d,.]*\d|\d", line) for line in lines]

    assert rows(english.split(tables[0])[0]) == rows(chinese.split(tables[1])[0])
    assert len(rows(english.split(tables[0])[0])) == 27

    ours = [
        _figures(page.split(title)[1]) for page, title in zip((english, chinese), ran, strict=True)
    ]
    assert ours[0] == ours[1]
    assert len(ours[0]) > 30
    assert re.findall(r"(?ms)^```.*?^```", english) == re.findall(r"(?ms)^```.*?^```", chinese)
    assert re.findall(
        r"`([a-z]+[\w-]*)`", "".join(re.findall(r"(?m)^## .*$", english))
    ) == re.findall(r"`([a-z]+[\w-]*)`", "".join(re.findall(r"(?m)^## .*$", chinese)))


def test_the_chinese_knobs_have_the_same_figures() -> None:
    english, chinese = (
        (ROOT / "docs" / name).read_text() for name in ("knobs.md", "knobs.zh-CN.md")
    )
    rows = [[found for found in _figures(page) if len(found) >= 5] for page in (english, chinese)]
    assert rows[0] == rows[1]
    assert len(rows[0]) >= 17
    assert re.findall(r"(?ms)^```.*?^```", english) == re.findall(r"(?ms)^```.*?^```", chinese)
    assert english.count("\n## ") == chinese.count("\n## ")


def _figures(page: str) -> list[list[str]]:
    """Of each row of a table, and of each block of text in no order: languages differ in it."""
    blocks = re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^```.*?^```", "", page)).split("\n\n")
    lines = [
        line for block in blocks for line in (block.splitlines() if "|--" in block else [block])
    ]
    return [sorted(re.findall(r"\d[\d,.]*\d|\d", line)) for line in lines]


# -- Against the files of the results --------------------------------------------------------------

RESULTS = ROOT / "benchmarks" / "results"


def rounds_of(file: str) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """By contestant, mode and number of cores (0: all), the rounds of a file."""
    measured = json.loads((RESULTS / file).read_text())["measurements"]
    return {
        (row["contestant"], row["mode"], row["parameters"].get("cores", 0)): row["rounds"]
        for row in measured
    }


def of_all_turns(rounds: list[dict[str, Any]]) -> list[str]:
    """The cells of a row: rate, share of the synthetic rate, the lowest one, turns and seconds,
    cores. The synthetic rate of a turn is its own over its share."""
    seconds = sum(turn["seconds"] for turn in rounds)
    samples = sum(turn["samples"] for turn in rounds)
    shares = [turn["metrics"]["of_synthetic_share"] for turn in rounds]
    there = sum(turn["samples"] / share for turn, share in zip(rounds, shares, strict=True))
    cores = sum(turn["metrics"]["host_cores"] * turn["seconds"] for turn in rounds) / seconds
    return [
        f"{samples / seconds:,.0f}",
        f"{samples / there:.1%}",
        f"{min(shares):.1%}",
        f"{len(rounds)}, {seconds:.1f}",
        f"{cores:.1f}",
    ]


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_gpu_tables_are_all_turns_of_the_file(page: str) -> None:
    text = (ROOT / page).read_text()
    table = [line.strip("| \n").split(" | ") for line in text.splitlines() if "%" in line]
    shown = [cells[1:] for cells in table if len(cells) == 6]
    rounds, pairs = rounds_of("gpu-h100-16core.json"), "training resnet50, in paired turns"
    by_cores = "training resnet50, by cores"
    assert shown == [
        of_all_turns(rounds[key])
        for key in (
            ("fastload cache, disk", pairs, 0),
            ("fastload turbojpeg", pairs, 0),
            ("fastload cache, device", pairs, 0),
            ("fastload torch", pairs, 0),
            ("fastload dali, cpu", "training resnet50", 0),
            ("DataLoader, 16 workers", "training resnet50", 0),
            ("fastload cache, disk", f"{by_cores}, in paired turns", 4),
            ("fastload turbojpeg", by_cores, 4),
            ("DataLoader", by_cores, 4),
        )
    ]


def test_the_remote_table_is_medians_of_the_rounds() -> None:
    """Of images a second and of images a CPU second, and of neither the total."""
    page = (ROOT / "benchmarks" / "README.md").read_text()
    rounds = rounds_of("remote-2core-epyc-zen4.json")
    mode = "images from a store with 30 ms"

    def medians(name: str) -> list[str]:
        turns = rounds[name, mode, 1]
        return [
            f"{median(turn['samples'] / turn[of] for turn in turns):,.0f}"
            for of in ("seconds", "cpu_seconds")
        ]

    rows: dict[str, list[str]] = {}
    for line in page.splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) >= 3:
            name = cells[0].strip("*").replace(" 0.2.76", "")
            rows.setdefault(name, [cell.strip("*") for cell in cells[1:3]])
    for name in (
        "fastload, objects",
        "fastload, objects, no tier",
        "fastload, objects, no tier, TLS",
        "fastload, objects, by obstore",
        "fastload, objects, no tier, by obstore",
        "fastload, tar in blocks",
        "fastload, tar in blocks, no tier",
        "fastload, objects, epoch 2",
        "fastload, objects, epoch 3",
        "LitData",
    ):
        assert rows[name] == medians(name), name
    local = [medians(name) for name in ("fastload, local files", "fastload, local tar")]
    assert rows["fastload, local files; local tar"] == [
        "; ".join(both) for both in zip(*local, strict=True)
    ]


def test_figures_of_benchmarks_have_a_file_or_say_that_there_is_none() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    without = []
    for section in re.split(r"(?m)^(?=##+ )", page):
        figures = _FIGURE.search(re.sub(r"`[^`\n]*`", "", section)) or "\n|---|" in section
        if (
            figures
            and not re.search(r"\(results/[\w.-]+\.json\)", section)
            and not re.search(r"no\s+file\s+was\s+kept", section)
            and not re.search(r"<!-- figures: [^>]{10,}-->", section)
        ):
            without.append(section.splitlines()[0])
    assert without == []
    for file in re.findall(r"\(results/([\w.-]+)\)", page):
        assert (RESULTS / file).is_file(), file


def ratio_cell(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """How many times as many images a second: "median (quartiles)" over the rounds."""
    rates = [[turn["samples"] / turn["seconds"] for turn in rounds] for rounds in (ours, theirs)]
    found = summarise([mine / other for mine, other in zip(*rates, strict=True)])
    digits = 2 if found.median < 10 else 1 if found.median < 20 else 0
    return f"{found.median:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_peers_are_the_rounds_of_the_file_and_the_worst_for_us_is_first(page: str) -> None:
    text = (ROOT / page).read_text().translate({0xFF08: "(", 0xFF09: ")"}).replace(" 到 ", " to ")
    text = re.sub(r"(\d)\(", r"\1 (", text)
    (file,) = re.findall(r"\(benchmarks/results/(peers-[\w.-]+)\)", text)
    text = text[: text.index("(benchmarks/results/pipelines-")]
    tables: list[list[str]] = []
    for line in text.splitlines():
        cells = re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", line)
        if line.startswith("|") and cells:
            tables.append(cells)
    rounds = {
        (name, mode): turns for (name, mode, _), turns in rounds_of(file).items() if len(turns) > 1
    }

    def beside(ours: str, theirs: str, mode: str = "photographs") -> str:
        return ratio_cell(rounds[ours, mode], rounds[theirs, mode])

    ours = "fastload turbojpeg", "fastload turbojpeg, seek index"
    cache = "fastload cache, short side 256"
    peers = [
        [beside(one, name) for one in ours]
        for name, mode in rounds
        if mode == "photographs" and not name.startswith(("fastload", "limit", "FFCV, raw"))
    ]
    assert tables == [
        *sorted(peers, key=lambda cells: float(cells[0].split()[0])),
        [beside(ours[0], "timm, PrefetchLoader", "normalised photographs")],
        [
            beside(cache, "FFCV, raw, short side 256"),
            beside(cache, "FFCV, raw, long side 256"),
            beside("fastload cache", "FFCV", "small images"),
            beside("fastload cache", "DataLoader, Pillow", "small images"),
        ],
    ]


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_pipelines_are_those_of_the_file_and_the_worst_beside_its_bar_is_first(
    page: str,
) -> None:
    text = (ROOT / page).read_text().translate({0xFF08: "(", 0xFF09: ")", 0xFF0C: ","})
    text = re.sub(r"(\d)\(", r"\1 (", text.replace(" 到 ", " to "))
    pattern = r"^\| `(\w+)`.* \| ([\d.]+ \([\d.]+ to [\d.]+\)) \| ([\d.]+)(.*) \|$"
    seen: set[str] = set()
    _, *parts = re.split(r"\(benchmarks/results/(pipelines-[\w.-]+)\)", text)
    for file, table in zip(parts[::2], parts[1::2], strict=True):
        shown = re.findall(pattern, table, re.MULTILINE)
        verdicts = json.loads((RESULTS / file).read_text())["verdicts"]
        rows = []
        for verdict in verdicts:
            if verdict["what"] in seen:
                continue
            share, bar = verdict["found"], verdict["bound"]
            least, most = f"{share['least']:.2f}", f"{share['most']:.2f}"
            cells = verdict["what"].split(",")[0], f"{share['median']:.2f} ({least} to {most})"
            rows.append((share["median"] / bar, (*cells, f"{bar:g}"), share["median"] < bar))
        rows.sort()
        assert [cells[:3] for cells in shown] == [cells for _, cells, _ in rows], file
        assert [bool(cells[3]) for cells in shown] == [missed for _, _, missed in rows], file
        seen |= {verdict["what"] for verdict in verdicts}
    assert seen


def test_the_picture_of_the_first_page_has_the_figures_of_the_file() -> None:
    script: Any = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "gain_picture.py")))
    text = script.picture(script.measured())
    assert script.PICTURE.read_text() == text, "run python scripts/gain_picture.py"
    rounds = rounds_of("gpu-h100-16core.json")
    for contestant, mode, name, _ in script.BARS:
        rate, share, *_ = of_all_turns(rounds[contestant, mode, script.CORES])
        assert re.search(rf">{name}</text>\s+<text[^>]*>{share}, {rate} images/s\s*</text>", text)
        for page in ("README.md", "README.zh-CN.md", "docs/index.md", "docs/index.zh-CN.md"):
            line = re.search(r"!\[(.*)\]\((docs/)?gain.svg\)", (ROOT / page).read_text())
            assert line is not None
            assert share in line[1], page
