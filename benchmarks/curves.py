"""The epochs of a training run as a picture: losses, and the result that counts.

`python -m benchmarks.curves RUN/epochs.jsonl PICTURE.png --result iou`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("epochs", type=Path, help="epochs.jsonl of a run")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--result", default="top1", help="beside the loss: top1, iou...")
    arguments = parser.parse_args()
    records = [msgspec.json.decode(line) for line in arguments.epochs.read_bytes().splitlines()]
    numbers = [1 + record["epoch"] for record in records]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, 2), ("loss", arguments.result), strict=True):
        for part, colour in (("train", "#0969da"), ("val", "#bc4c00")):
            axes.plot(numbers, [record[part][name] for record in records], "o-", color=colour, label=part)
        axes.set_xlabel("epoch")
        axes.set_title(name, loc="left")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(color="#d8dee4")
        axes.legend(frameon=False)
    figure.savefig(arguments.picture, dpi=100)


if __name__ == "__main__":
    main()
