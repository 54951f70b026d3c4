"""Ultralytics' own pipeline of YOLO, from its package, beside ours (`detection.py --ultralytics`).

Its licence is the AGPL. So the package is in an environment of its own and is only run; nothing
here is made after its source. Its settings are those of `detection_yolo.py`; its batches are uint8
(16, 3, 640, 640) and rows of boxes, as ours.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.environments import Environment
from benchmarks.inputs import ROOT
from fastload.tools.measure.clock import cpu_seconds

ENVIRONMENT = Environment("ultralytics", ("ultralytics",), "import ultralytics", "libgl1")
WORK = ROOT / "build" / "peers"
_PATIENCE = 300.0
"""For its imports, and for it to look at all images once [seconds]."""


def as_yolo(coco: Path, target: Path, classes: int = 80) -> Path:
    """The images and boxes of a COCO folder as YOLO's: images/train, labels/train, data.yaml."""
    from PIL import Image

    from benchmarks.detection_yolo import Annotated

    images, labels = target / "images" / "train", target / "labels" / "train"
    for folder in (images, labels):
        folder.mkdir(parents=True)
    found = Annotated.of(coco)
    for path, boxes in zip(map(Path, found.paths), found.boxes, strict=True):
        (images / path.name).symlink_to(path.resolve())
        with Image.open(path) as image:
            width, height = image.size
        rows = [
            f"{kind:.0f} {(x + right) / 2 / width:.6f} {(y + bottom) / 2 / height:.6f} "
            f"{(right - x) / width:.6f} {(bottom - y) / height:.6f}"
            for kind, x, y, right, bottom in boxes.tolist()
        ]
        (labels / path.with_suffix(".txt").name).write_text("\n".join(rows))
    names = "".join(f"  {number}: class {number}\n" for number in range(classes))
    (target / "data.yaml").write_text(
        f"path: {target}\ntrain: images/train\nval: images/train\nnames:\n{names}"
    )
    return target


class Pipeline:
    """Its loader, in a process of its environment, for `fastload.tools.measure.process.Child`."""

    def __init__(self, folder: Path, batch: int, workers: int) -> None:
        from benchmarks import detection_yolo as yolo

        os.environ |= {"YOLO_CONFIG_DIR": str(folder), "YOLO_OFFLINE": "true"}
        # Where it finds albumentations, it blurs and greys one image in a hundred.
        sys.modules["albumentations"] = None  # type: ignore[assignment]
        from ultralytics.cfg import get_cfg
        from ultralytics.data import (
            build_dataloader,
            build_yolo_dataset,
        )
        from ultralytics.data.utils import (
            check_det_dataset,
        )

        hue, saturation, value = yolo.GAINS
        settings = get_cfg(
            overrides={
                "task": "detect",
                "mode": "train",
                "imgsz": yolo.SIZE,
                "cache": False,
                "mosaic": 1.0,
                "mixup": yolo.MIXUP,
                "translate": yolo.TRANSLATE,
                "scale": yolo.SCALE[1] - 1,
                "degrees": 0.0,
                "shear": 0.0,
                "perspective": 0.0,
                "hsv_h": hue,
                "hsv_s": saturation,
                "hsv_v": value,
                "fliplr": 0.5,
                "flipud": 0.0,
                "copy_paste": 0.0,
                "bgr": 0.0,
                "workers": workers,
                "batch": batch,
            }
        )
        data = check_det_dataset(str(folder / "data.yaml"), autodownload=False)
        dataset = build_yolo_dataset(settings, data["train"], batch, data, mode="train")
        self._loader: Any = build_dataloader(dataset, batch, workers, shuffle=True)
        self._batch, self._ahead = batch, 2 * workers
        self._epoch = iter(self._loader)
        images = self._next()["img"]
        wanted = (batch, 3, yolo.SIZE, yolo.SIZE)
        if tuple(images.shape) != wanted or str(images.dtype) != "torch.uint8":
            raise ValueError(f"a batch of {tuple(images.shape)} {images.dtype}, not {wanted} uint8")

    def version(self) -> str:
        import ultralytics

        return str(ultralytics.__version__)

    def run(self, seconds: float) -> dict[str, Any]:
        """Batches as fast as they come, after those that were ready."""
        for _ in range(self._ahead):
            self._next()
        taken, started, used = 0, time.perf_counter(), cpu_seconds()
        while not taken or time.perf_counter() < started + seconds:
            self._next()
            taken += 1
        took, used = time.perf_counter() - started, cpu_seconds() - used
        return {"samples": taken * self._batch, "seconds": took, "cpu_seconds": used}

    def _next(self) -> Any:
        """A batch; the last one of an epoch may be smaller, and is left out."""
        while True:
            batch = next(self._epoch, None)
            if batch is None:
                self._epoch = iter(self._loader)
            elif len(batch["img"]) == self._batch:
                return batch


class Rival:
    """The same as a runner."""

    def __init__(self, coco: Path, folder: Path, batch: int, workers: int) -> None:
        """Raises as `Child.open`."""
        from fastload.tools.measure.process import Child

        if not folder.exists():
            as_yolo(coco, folder)
        self._child = Child(launcher=[str(ENVIRONMENT.python(WORK))], cwd=ROOT)
        self.close = self._child.close
        try:
            self._child.open(
                "benchmarks.detection_ultralytics:Pipeline",
                *(folder, batch, workers),
                limit=_PATIENCE,
            )
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> Any:
        from fastload.tools.measure.rounds import Work

        if not seconds:
            return Work(0)
        return Work(**self._child.ask("run", seconds, limit=_PATIENCE + 20 * seconds))
