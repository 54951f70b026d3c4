"""Augmentation pipelines beside their originals.

    python -m benchmarks.pipelines ORIGINALS --data FOLDER --judge
    python -m benchmarks.pipelines ORIGINALS --data FOLDER --speed --json results.json
    python -m benchmarks.pipelines ORIGINALS --only dinov2 --pictures docs/pipelines

ORIGINALS has a clone of each repository, called as there: `vision`, `dinov2` and so on; the files
that begin with `of_` say which. Their own files are run; timm, lightly, open_clip_torch and
ultralytics are packages.

`--judge`: lowered from the original's transforms and from ours, the operations are equal; numbers
of 20,000 samples of each side are distributed alike (two-sample Kolmogorov-Smirnov tests), or,
where nothing is random, the pixels agree. `--speed`: images a second, in turns, with equal numbers
of processes and threads; the loaders start afresh in each round, and ratios are taken within one.
`--processor`: processor time an image, in turns, each side in one process.
`--pictures`: twelve samples of both sides, of public-domain images that scikit-image brings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console

from benchmarks.pipelines import (
    of_deit,
    of_detectron2,
    of_detr,
    of_diffusers,
    of_dino,
    of_dinov2,
    of_fixmatch,
    of_hrnet,
    of_ibot,
    of_ijepa,
    of_lightly,
    of_mae,
    of_mask2former,
    of_mmsegmentation,
    of_moco_v3,
    of_nnunet,
    of_open_clip,
    of_progressive,
    of_rfdetr,
    of_rtdetrv2,
    of_simclr,
    of_smp,
    of_timm,
    of_torchvision,
    of_torchvision_detection,
    of_torchvision_segmentation,
    of_vitpose,
    of_yolo,
    of_yolo_tasks,
    of_yolov7,
    of_yolox,
)
from benchmarks.pipelines.judge import judge
from benchmarks.pipelines.picture import draw
from benchmarks.pipelines.pipeline import Pipeline, Setting
from benchmarks.pipelines.processor import processor_time
from benchmarks.pipelines.speed import measured, verdicts
from fastload.machine import usable_cores
from fastload.tools.measure.results import Measurement, new_results, to_json, write_text
from fastload.tools.measure.statistics import Verdict, summarise
from fastload.tools.measure.table import print_fitting

FAMILIES = (
    of_torchvision,
    of_timm,
    of_deit,
    of_mae,
    of_open_clip,
    of_simclr,
    of_dino,
    of_dinov2,
    of_ibot,
    of_lightly,
    of_moco_v3,
    of_fixmatch,
    of_ijepa,
    of_torchvision_segmentation,
    of_smp,
    of_mmsegmentation,
    of_nnunet,
    of_detectron2,
    of_mask2former,
    of_detr,
    of_diffusers,
    of_rfdetr,
    of_rtdetrv2,
    of_torchvision_detection,
    of_yolo,
    of_yolo_tasks,
    of_yolov7,
    of_yolox,
    of_hrnet,
    of_vitpose,
    of_progressive,
)
PIPELINES: tuple[Pipeline, ...] = tuple(row for family in FAMILIES for row in family.PIPELINES)


def judged(pipelines: Sequence[Pipeline], given: argparse.Namespace) -> list[Verdict]:
    found = []
    for pipeline in pipelines:
        for one in judge(
            pipeline, given.originals, given.data, given.work, given.workers, given.samples
        ):
            mark = "" if one.passed else f": WRONG, {one.bound:g} is the bar"
            print(f"{pipeline.name}: {one.what}: {one.found:.4g}{mark}", flush=True)
            what, value = f"{pipeline.name}: {one.what}", summarise([one.found])
            found.append(Verdict(what, one.bound, one.at_least, True, "", value))
    return found


def public_domain(work: Path) -> Path:
    """Four photographs of scikit-image: NASA's and CC0."""
    from skimage import data

    folder = work / "public-domain"
    for name in ("astronaut", "chelsea", "coffee", "rocket"):
        target = folder / name / f"{name}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(getattr(data, name)()).save(target, quality=95)
    return folder


def table(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """The worst row first."""
    rows = [(verdict, verdict.found) for verdict in verdicts]
    measured = [(verdict, found) for verdict, found in rows if found is not None]
    return [
        {
            "pipeline": verdict.what,
            "times as fast": f"{found.median:.2f}",
            "rounds": f"{found.least:.2f} to {found.most:.2f}",
            "bar": f"{verdict.bound:g}",
        }
        for verdict, found in sorted(measured, key=lambda row: row[1].median / row[0].bound)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("originals", type=Path)
    parser.add_argument("--data", type=Path, help="class folders with JPEGs, or train and val")
    parser.add_argument("--work", type=Path, default=Path("build/pipelines"))
    parser.add_argument(
        "--only", nargs="+", default=[""], help="pipelines whose name has one of these in it"
    )
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--samples", type=int, default=20_000, help="(default: %(default)s)")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--processor", action="store_true", help="processor time an image")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="(default: %(default)s)")
    parser.add_argument("--images", type=int, default=1024, help="an epoch (default: %(default)s)")
    parser.add_argument("--adopted", action="store_true", help="measure from_dataloader, too")
    parser.add_argument("--pictures", type=Path, help="write a JPEG for each page there")
    parser.add_argument("--json", type=Path, help="write what was found there")
    given = parser.parse_args(arguments)
    measures = given.judge or given.speed or given.processor
    if not (measures or given.pictures):
        parser.error("say what to do: --judge, --speed, --processor, --pictures FOLDER")
    if measures and given.data is None:
        parser.error("--judge, --speed and --processor need --data FOLDER")
    for only in given.only:
        if not any(only in row.name for row in PIPELINES):
            names = ", ".join(row.name for row in PIPELINES)
            parser.error(f"--only {only}: there are {names}")
    pipelines = [row for row in PIPELINES if any(only in row.name for only in given.only)]
    given.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    bars = judged(pipelines, given) if given.judge else []
    failed = any(bar.reached is False for bar in bars)
    rows: tuple[Measurement, ...] = ()
    complete = True
    if given.speed:
        done = measured(
            pipelines,
            given.originals,
            given.data,
            given.work,
            workers=given.workers,
            rounds=given.rounds,
            seconds=given.seconds,
            images=given.images,
            adopted=given.adopted,
        )
        rows, complete, found = (
            done.measurements,
            done.complete,
            verdicts(pipelines, done.measurements),
        )
        bars += found
        if found:  # else nothing could be measured, which the lines above say
            print_fitting(Console(highlight=False), table(found))
    if given.processor:
        setting = Setting(given.originals, given.data, 1, 0)
        for line in processor_time(pipelines, setting, given.data, given.work, images=given.images):
            print(line, flush=True)
    if given.pictures:
        images = public_domain(given.work)
        pages = {row.page: row for row in reversed(pipelines) if row.drawn}
        for page, pipeline in pages.items():
            draw(pipeline, given.originals, images, given.work, given.pictures / f"{page}.jpg")
    if given.json:
        settings = {"samples": given.samples, "images": given.images, "workers": given.workers}
        notes = [f"timm {metadata.version('timm')}, pillow {metadata.version('pillow')}"]
        results = new_results(
            "pipelines", settings, rows, complete=complete, notes=notes, verdicts=bars
        )
        write_text(given.json, to_json(results))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
