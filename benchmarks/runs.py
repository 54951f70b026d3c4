"""What the README and docs/recipes.md tell of whole runs.

    python -m benchmarks.runs timelines PICTURE.png --consume 1200
    python -m benchmarks.runs fashion FOLDER --json results.json
    python -m benchmarks.runs texts FOLDER
    python -m benchmarks.runs curves RUN/epochs.jsonl PICTURE.png --result iou

`timelines` draws when a trainer works and when it waits. `fashion` compares the recipe with a plain
PyTorch script. `texts` makes two classes of texts for the text recipe.

`timelines` trains the same network on the same JPEGs, fed by a plain DataLoader and by fastload,
and draws both on one scale of time. Nothing else should be running.

`fashion` trains both in turn, each run in a process of its own, once for each seed, and the modern
preset once. FOLDER has the four files of Fashion-MNIST (Debian: dataset-fashion-mnist). Times are
of the whole job except for the imports.

`texts` writes train.tsv (10,000) and dev.tsv (1,000): paragraphs from the docstrings of torch
(label 0) and of transformers (label 1). The same versions of the two packages give the same files.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gzip
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata, resources
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader

import fastload
from benchmarks.details import beside_the_first
from benchmarks.gpu.feeds import Feed
from benchmarks.gpu.training import Trainer, of_torchvision, train
from fastload.errors import WorkerError
from fastload.machine import usable_cores
from fastload.tools.measure import process
from fastload.tools.measure.clock import cpu_seconds
from fastload.tools.measure.images import training
from fastload.tools.measure.loaders import Batch, PlainLoader
from fastload.tools.measure.photographs import write_photographs
from fastload.tools.measure.results import describe_machine, new_results, to_json, write_text
from fastload.tools.measure.rounds import Entry, Work, measure
from fastload.tools.measure.table import print_fitting
from fastload.tools.monitor import Phase, draw_timelines

RECIPE, MODERN = "fashion-mnist-mlp-dp", "fashion-mnist-mlp"
_EPOCHS, _SAMPLES = 5, 60_000
_PACKAGES = ("torch", "transformers")
_SIZES = {"train": 10_000, "dev": 1_000}
_NAMES = re.compile("|".join(_PACKAGES), re.IGNORECASE)
"""What would give the answer away."""


# -- before and after ------------------------------------------------------------------------------


class _Pause:
    """A simulated trainer: a pause for each batch."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.device = torch.device("cpu")

    def step(self, batch: Batch, mark: Callable[[Phase], None]) -> None:
        mark("compute")
        time.sleep(len(batch[0]) / self._rate)


def timelines(given: argparse.Namespace) -> None:
    device, size, workers = torch.device(given.device), given.batch_size, usable_cores()
    trainer: Trainer = (
        _Pause(given.consume) if given.consume else of_torchvision(given.network, device)
    )
    found = {}
    with tempfile.TemporaryDirectory(prefix="fastload-timelines-") as temporary:
        folder = given.folder or write_photographs(temporary, 1024) / "train"
        before = PlainLoader(folder, training(), size, device, workers=workers)
        after = fastload.create_loader(
            folder, size, shuffle=True, transform=training(), backend="turbojpeg", device=device
        )
        for name, loader in (
            (f"DataLoader,\n{workers} workers", before),
            ("fastload\nturbojpeg", after),
        ):
            feed = Feed(loader)
            train(feed, trainer, steps=5)
            clock = train(feed, trainer, given.seconds, keep=True)
            feed.close()
            found[name], idle = clock.steps(wait=True), clock.summary(wait=True)
            rate = f"{size * idle.steps / idle.seconds:,.0f} images/s"
            print(
                f"{' '.join(name.split())}: {rate}; busy {idle.busy_share:.1%}, wait "
                f"{idle.wait_share:.1%}"
            )
    what = f"Simulated trainer of {given.consume:g} images/s" if given.consume else given.network
    machine = describe_machine()
    where = (
        machine.gpus[0]
        if machine.gpus and device.type == "cuda"
        else f"{machine.affinity_cores} cores"
    )
    title, note = f"{what}, batches of {size} JPEGs", f"{machine.cpu}, {where}"
    draw_timelines(given.picture, found, given.seconds, title=title, note=note)
    print(machine, given.picture, sep="\n")


# -- Fashion-MNIST ---------------------------------------------------------------------------------


class TrainingRunner:
    """A whole training in a process of its own, with another seed in each round; the warm-up does
    nothing."""

    def __init__(self, function: str, *given: object) -> None:
        self._function, self._given, self._seed = function, given, 0

    def run(self, seconds: float) -> Work:
        if not seconds:
            return Work(0)
        done = process.run(
            f"benchmarks.runs:{self._function}", *self._given, self._seed, limit=3600
        )
        if done.answer is None:
            raise WorkerError(f"{done.words}\n{done.output}")
        self._seed += 1
        print(self._function, self._given[-1], done.answer.metrics, flush=True)
        work: Work = done.answer
        return work

    def close(self) -> None:
        """Nothing is held."""


def fashion(given: argparse.Namespace) -> None:
    folder = str(given.folder)
    with tempfile.TemporaryDirectory(prefix="fastload-fashion-") as temporary:
        raw = Path(temporary, "FashionMNIST", "raw")
        raw.mkdir(parents=True)
        for file in given.folder.glob("*-ubyte.gz"):
            with gzip.open(file) as packed, open(raw / file.stem, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        both = [
            Entry(
                "fastload", "train", {}, lambda: TrainingRunner("fast", temporary, folder, RECIPE)
            ),
            Entry("plain PyTorch", "train", {}, lambda: TrainingRunner("plain", temporary)),
        ]
        modern = Entry(
            MODERN, "train", {}, lambda: TrainingRunner("fast", temporary, folder, MODERN)
        )
        rows = [
            *measure(both, rounds=given.seeds, warmup_seconds=0).measurements,
            *measure([modern], rounds=1, warmup_seconds=0).measurements,
        ]
    print_fitting(Console(highlight=False), beside_the_first(rows))
    if given.json is not None:
        settings = {"threads": torch.get_num_threads(), "seeds": given.seeds}
        write_text(given.json, to_json(new_results("fashion", settings, rows)))


def fast(temporary: str, folder: str, name: str, seed: int) -> Work:
    """A preset, on the CPU in one process."""
    from fastload.train import preset, train

    out = f"{temporary}/{name}-{seed}"
    config = preset(
        name, data=folder, seed=seed, parallel="none", device="cpu", out=out, progress=False
    )
    began, cpu = time.perf_counter(), cpu_seconds()
    summary = train(config)
    seconds, wait = (
        time.perf_counter() - began,
        summary.idle.wait_share if summary.idle is not None else None,
    )
    samples = sum(epoch.samples for epoch in summary.epochs)
    return Work(
        samples, seconds, cpu_seconds() - cpu, metrics={**summary.final, "wait_share": wait}
    )


def plain(root: str, seed: int) -> Work:
    """What a tutorial has: a data set in Python, a DataLoader, a loop."""
    from torchvision.datasets import FashionMNIST
    from torchvision.transforms import ToTensor

    from fastload.train.models import mlp

    torch.manual_seed(seed)
    began, cpu = time.perf_counter(), cpu_seconds()
    sets = [FashionMNIST(root, train=part, transform=ToTensor()) for part in (True, False)]
    loaders = [DataLoader(part, batch_size=1024) for part in sets]
    model = mlp(1, 10, (28, 28))
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
    loss_of = nn.CrossEntropyLoss()
    right = waited = 0.0
    for _ in range(_EPOCHS):
        model.train()
        asked = time.perf_counter()
        for images, labels in loaders[0]:
            waited += time.perf_counter() - asked
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            asked = time.perf_counter()
        model.eval()
        with torch.no_grad():
            right = sum(
                (model(images).argmax(1) == labels).sum().item() for images, labels in loaders[1]
            )
    seconds = time.perf_counter() - began
    metrics = {"top1": right / len(sets[1]), "wait_share": waited / seconds}
    return Work(_EPOCHS * _SAMPLES, seconds, cpu_seconds() - cpu, metrics=metrics)


def texts(given: argparse.Namespace) -> None:
    found = [sorted(set(paragraphs(Path(str(resources.files(package)))))) for package in _PACKAGES]
    both = set(found[0]) & set(found[1])
    rng = random.Random(0)
    chosen = []
    for label, every in enumerate(found):
        own = [text for text in every if text not in both]
        chosen += [
            (text, label) for text in rng.sample(own, sum(_SIZES.values()) // len(_PACKAGES))
        ]
    rng.shuffle(chosen)
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, size in _SIZES.items():
        part, chosen = chosen[:size], chosen[size:]
        with open(given.folder / f"{name}.tsv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(
                file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None
            )
            writer.writerows([("text", "label"), *part])
    print(
        ", ".join(f"{package} {metadata.version(package)}" for package in _PACKAGES),
        "->",
        given.folder,
    )


def paragraphs(package: Path) -> Iterator[str]:
    """Those of at least eight words in all docstrings, on one line each, without the packages' own
    names."""
    for path in sorted(package.rglob("*.py")):
        try:
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates
        for node in nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for block in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    text = _NAMES.sub("it", " ".join(block.split()))
                    if len(text.split()) >= 8 and not text.startswith((">>>", "```")):
                        yield text


def curves(given: argparse.Namespace) -> None:
    """Losses, and the result that counts, by epoch."""
    from matplotlib import pyplot

    records = [msgspec.json.decode(line) for line in given.epochs.read_bytes().splitlines()]
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axes, name in zip(both, ("loss", given.result), strict=True):
        for part, colour in (("train", "#0969da"), ("val", "#bc4c00")):
            values = [record[part][name] for record in records]
            axes.plot(
                [1 + record["epoch"] for record in records], values, "o-", color=colour, label=part
            )
        axes.set(xlabel="epoch", title=name, ylim=(0, None))
        axes.grid(color="#d8dee4")
        axes.legend(frameon=False)
    figure.savefig(given.picture, dpi=100)


# -- the command -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    def command(
        function: Callable[[argparse.Namespace], None], *paths: str
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(
            function.__name__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        added.set_defaults(function=function)
        for name in paths:
            added.add_argument(name, type=Path)
        return added

    add = command(timelines, "picture").add_argument
    add("folder", type=Path, nargs="?", help="class folders of JPEGs (made on the spot without)")
    add("--batch-size", type=int, default=64)
    add("--network", default="resnet50", help="torchvision's name of one")
    add(
        "--consume",
        type=float,
        help="simulate a trainer of so many images/s, which takes no processor time, instead",
    )
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--seconds", type=float, default=4.0, help="of each loader")
    add = command(fashion, "folder").add_argument
    add("--seeds", type=int, default=3)
    add("--json", type=Path)
    command(texts, "folder")
    command(curves, "epochs", "picture").add_argument(
        "--result", default="top1", help="beside the loss: top1, iou..."
    )
    given = parser.parse_args()
    given.function(given)


if __name__ == "__main__":
    main()
