"""The recipe `fashion-mnist-mlp-dp` on one device, by fastload and as the plain PyTorch script that it was.

`python -m benchmarks.fashion FOLDER --json results.json` trains both in turn, each run in a process of its own, once
for each seed, and the modern preset `fashion-mnist-mlp` once to its end. FOLDER has the four files of Fashion-MNIST
(Debian: dataset-fashion-mnist). Times are those of the whole job but for the imports; ratios are taken within a seed.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from fastload.measure import process
from fastload.measure.clock import cpu_seconds
from fastload.measure.results import Measurement, Round, new_results, ratios, to_json, write_text
from fastload.train import preset, train
from fastload.train.networks import mlp

RECIPE, MODERN = "fashion-mnist-mlp-dp", "fashion-mnist-mlp"
_EPOCHS, _SAMPLES = 5, 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="worker processes of the plain DataLoader")
    parser.add_argument("--modern", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rounds: dict[str, list[Round]] = {"plain PyTorch": [], "fastload": [], MODERN: []}
    with tempfile.TemporaryDirectory(prefix="fastload-fashion-") as room:
        raw = Path(room) / "FashionMNIST" / "raw"
        raw.mkdir(parents=True)
        for file in arguments.folder.glob("*-ubyte.gz"):
            with gzip.open(file) as packed, open(raw / file.stem, "wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        for seed in range(arguments.seeds):
            jobs: list[tuple[str, str, tuple[object, ...]]] = [
                ("plain PyTorch", "plain", (room, seed, arguments.workers)),
                ("fastload", "fast", (RECIPE, str(arguments.folder), seed, room)),
            ]
            for name, function, given in jobs if seed % 2 == 0 else jobs[::-1]:
                rounds[name].append(_run(name, function, given))
        if arguments.modern:
            rounds[MODERN].append(_run(MODERN, "fast", (MODERN, str(arguments.folder), 0, room)))
    rows = [Measurement(name, "train", rounds=tuple(found)) for name, found in rounds.items()]
    wall = ratios(rows[0], rows[1], lambda r: r.seconds)
    cpu = ratios(rows[0], rows[1], lambda r: r.cpu_seconds)
    note = (
        f"The plain script takes {median(wall):.2f} times as long as fastload ({min(wall):.2f} to {max(wall):.2f}), "
        f"and {median(cpu):.2f} times the processor time ({min(cpu):.2f} to {max(cpu):.2f})."
    )
    print(note)
    if arguments.json is not None:
        settings = {"workers": arguments.workers, "threads": torch.get_num_threads(), "seeds": arguments.seeds}
        write_text(arguments.json, to_json(new_results("fashion", settings, rows, notes=[note])))


def _run(name: str, function: str, given: tuple[object, ...]) -> Round:
    outcome = process.run(f"benchmarks.fashion:{function}", *given, limit=3600)
    if 0 not in outcome.answers:
        raise SystemExit(f"{name}: {outcome.words}\n{outcome.output}")
    found: Round = outcome.answers[0]
    print(
        f"{name}: {found.seconds:.1f} s, {found.cpu_seconds:.1f} s of processor time, {dict(found.metrics)}", flush=True
    )
    return found


def fast(name: str, folder: str, seed: int, room: str) -> Round:
    """A preset, on the CPU in one process."""
    out = f"{room}/{name}-{seed}"
    config = preset(name, data=folder, seed=seed, parallel="none", device="cpu", out=out, progress=False)
    began, cpu = time.perf_counter(), cpu_seconds()
    summary = train(config)
    seconds, wait = time.perf_counter() - began, summary.idle.wait_share if summary.idle is not None else None
    samples = sum(epoch.samples for epoch in summary.epochs)
    return Round(samples, seconds, cpu_seconds() - cpu, {**summary.final, "wait_share": wait})


def plain(root: str, seed: int, workers: int) -> Round:
    """What a tutorial has: a data set in Python, a DataLoader, a loop."""
    torch.manual_seed(seed)
    began, cpu = time.perf_counter(), cpu_seconds()
    sets = [FashionMNIST(root, train=part, transform=ToTensor()) for part in (True, False)]
    loaders = [DataLoader(part, batch_size=1024, num_workers=workers) for part in sets]
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
            right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loaders[1])
    seconds = time.perf_counter() - began
    metrics = {"top1": right / len(sets[1]), "wait_share": waited / seconds}
    return Round(_EPOCHS * _SAMPLES, seconds, cpu_seconds() - cpu, metrics)


if __name__ == "__main__":
    main()
