"""Draws docs/gain.svg, the picture of the first page: how fast a GPU trains, fed by a DataLoader
and by two backends, from a file of benchmarks/results/.

    python scripts/gain_picture.py

The share is that of tests/test_docs_figures.py: over all turns together, the rate over that of the
same steps on a batch which is on the GPU already.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu-h100-16core.json"
PICTURE = ROOT / "docs" / "gain.svg"

BARS = (
    ("DataLoader", "training resnet50, by cores", "DataLoader and Pillow, 4 workers", "theirs"),
    ("fastload turbojpeg", "training resnet50, by cores", "fastload, JPEGs by turbojpeg", "ours"),
    (
        "fastload cache, disk",
        "training resnet50, by cores, in paired turns",
        "fastload, decoded once by cache",
        "ours",
    ),
)
"""Contestant and mode of the file, what the bar is called, its class."""
CORES = 4
TITLE = "Training speed, of what the GPU can do"
NOTE = ("ResNet-50 on one H100 with 4 CPU cores, photographs read", "from memory, 2026-11-26")

WIDTH, LEFT, HEIGHT = 480, 10, 22
STYLE = """
text { font: 15px system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
.title { font-weight: bold; font-size: 17px; }
.note { font-size: 13px; fill: #59636e; }
.end { text-anchor: end; }
.all { fill: #d8dee4; }
.theirs { fill: #8c959f; }
.ours { fill: #3f51b5; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .note { fill: #9198a1; }
  .all { fill: #3d444d; }
  .theirs { fill: #7d8590; }
  .ours { fill: #8c9eff; }
}
"""


def measured() -> list[tuple[float, float]]:
    """Of each bar: images a second, and the share of what the GPU can do."""
    rows = json.loads(RESULTS.read_text())["measurements"]
    return [_of(rows, contestant, mode) for contestant, mode, _, _ in BARS]


def _of(rows: list[dict[str, Any]], contestant: str, mode: str) -> tuple[float, float]:
    (row,) = (
        row
        for row in rows
        if (row["contestant"], row["mode"], row["parameters"].get("cores"))
        == (contestant, mode, CORES)
    )
    turns = row["rounds"]
    samples, seconds = (sum(turn[of] for turn in turns) for of in ("samples", "seconds"))
    there = sum(turn["samples"] / turn["metrics"]["of_synthetic_share"] for turn in turns)
    return samples / seconds, samples / there


def picture(figures: list[tuple[float, float]]) -> str:
    whole = WIDTH - 2 * LEFT
    said = "; ".join(
        f"{name}: {share:.1%}" for (_, _, name, _), (_, share) in zip(BARS, figures, strict=True)
    )
    parts = [f'<text class="title" x="{LEFT}" y="24">{TITLE}</text>']
    parts += [
        f'<text class="note" x="{LEFT}" y="{46 + 17 * row}">{line}</text>'
        for row, line in enumerate(NOTE)
    ]
    y = 66 + 17 * len(NOTE)
    for (_, _, name, kind), (rate, share) in zip(BARS, figures, strict=True):
        parts += [
            f'<text x="{LEFT}" y="{y}">{name}</text>',
            f'<text class="end" x="{WIDTH - LEFT}" y="{y}">{share:.1%}, {rate:,.0f} images/s'
            "</text>",
            f'<rect class="all" x="{LEFT}" y="{y + 7}" width="{whole}" height="{HEIGHT}" rx="4"/>',
            f'<rect class="{kind}" x="{LEFT}" y="{y + 7}" width="{whole * share:.1f}" '
            f'height="{HEIGHT}" rx="4"/>',
        ]
        y += 58
    height = y - 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{TITLE}. {said}">\n'
        f"<title>{TITLE}. {said}</title>\n<style>{STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(measured()))
