"""What each backend says to each file of a folder of odd images, beside what Pillow and torchvision
say.

    make corpora CORPORA=folder
    python scripts/corpora.py FOLDER --columns pillow,torchvision,torch,turbojpeg --files

Every reader works in a process of its own; a file that ends it or takes too long is a verdict too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp"}
SIZE = 64
"""Images are compared at this size, squeezed [pixels]."""
NEAR = 12
"""Differences up to this are those of decoders and resamplers."""
SECONDS = 30.0
"""A file that takes longer is a hang."""
REFERENCES = ("pillow", "torchvision")
BACKENDS = ("decode_jpeg", "torch", "turbojpeg", "turbojpeg-threads", "cache", "dali")


class Verdict(msgspec.Struct):
    """What one reader says to one file."""

    word: str
    """"reads", "warns" (and reads), "refuses", "fails" (an error that is not fastload's own),
    "crash" or "hang"."""
    detail: str = ""
    off: int = 0
    """Greatest difference from Pillow's pixels, where both read it [of 255]."""


def squeezed(pixels: Any) -> Any:
    """(SIZE, SIZE, 3) uint8 from (3, H, W)."""
    from torchvision.transforms.v2 import functional

    return functional.resize(pixels, [SIZE, SIZE], antialias=True).permute(1, 2, 0).numpy()


def with_pillow(path: Path) -> Any:
    import torch
    from PIL import Image

    with Image.open(path) as image:
        # Pillow would clip these at 255; torchvision takes the high byte.
        if image.mode.startswith("I;16"):
            array = np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
        else:
            array = np.array(image.convert("RGB"))
    return squeezed(torch.from_numpy(array).permute(2, 0, 1))


def with_torchvision(path: Path) -> Any:
    from torchvision.io import ImageReadMode, decode_image

    return squeezed(decode_image(str(path), ImageReadMode.RGB))


def with_decode_jpeg(path: Path) -> Any:
    import fastload

    return fastload.decode_jpeg(path, size=(SIZE, SIZE))


def with_loader(backend: str) -> Callable[[Path], Any]:
    """Reads one file as a data set of one class."""
    from torchvision.transforms import v2

    import fastload
    from fastload.backends.cache import CacheOptions
    from fastload.backends.turbojpeg import TurboJpegOptions

    name, _, threads = backend.partition("-")

    def read(path: Path) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "data", "class")
            root.mkdir(parents=True)
            # A name that class folders know; what is in the file is for the reader to say.
            (root / f"image{'.jpg' if kind_of(path) == 'JPEG' else '.png'}").symlink_to(
                path.resolve()
            )
            options: Any = None
            if name == "cache":
                options = CacheOptions(directory=Path(folder, "cache"), progress=False)
            elif threads:
                options = TurboJpegOptions(decoder="simplejpeg")
            with fastload.create_loader(
                root.parent,
                backend=name,
                num_workers=0 if name == "torch" else 1,
                transform=v2.Resize((SIZE, SIZE)),
                options=options,
            ) as loader:
                images, _ = next(iter(loader))
                return images[0].permute(1, 2, 0).numpy()

    return read


def reader(column: str) -> Callable[[Path], Any]:
    functions = {
        "pillow": with_pillow,
        "torchvision": with_torchvision,
        "decode_jpeg": with_decode_jpeg,
    }
    return functions[column] if column in functions else with_loader(column)


def judge(read: Callable[[Path], Any], path: Path, reference: Any) -> tuple[Verdict, Any]:
    """One file by one reader; and the pixels."""
    from fastload.errors import FastloadError

    with tempfile.TemporaryFile() as errors:  # where libraries in C complain
        kept = os.dup(2)
        os.dup2(errors.fileno(), 2)
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                pixels = read(path)
        except FastloadError as error:
            return Verdict("refuses", str(error)), None
        except Exception as error:
            foreign = read not in (with_pillow, with_torchvision)
            return Verdict(
                "fails" if foreign else "refuses", f"{type(error).__name__}: {error}"
            ), None
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        errors.seek(0)
        words = errors.read().decode(errors="replace") + "".join(
            str(one.message)
            for one in warned
            if "deprecated since torchvision" not in str(one.message)
        )
    off = 0 if reference is None else int(np.abs(pixels.astype(int) - reference.astype(int)).max())
    return Verdict("warns" if words else "reads", words[:200], off), pixels


def work(column: str) -> None:
    """A reader's process: paths on standard input, verdicts on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("fastload").setLevel(logging.ERROR)  # a folder of one class is meant here
    read = reader(column)
    for line in sys.stdin:
        path, reference = Path(line.rstrip("\n")), None
        if column != "pillow":
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reference = with_pillow(path)
        print(
            msgspec.json.encode(judge(read, path, reference)[0]).decode(), file=answers, flush=True
        )


def verdicts(column: str, paths: list[Path]) -> Iterator[Verdict]:
    """One for each path, in order."""
    command = [sys.executable, __file__, "--reader", column, "."]
    process = None
    for path in paths:
        if process is None:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        late = False
        with contextlib.suppress(BrokenPipeError):
            print(path, file=process.stdin, flush=True)
            late = not select.select([process.stdout], [], [], SECONDS)[0]
            line = "" if late else process.stdout.readline()
        if line:
            yield msgspec.json.decode(line, type=Verdict)
            continue
        process.kill()
        status = process.wait()
        process = None
        yield (
            Verdict("hang", f"more than {SECONDS:.0f} s")
            if late
            else Verdict("crash", f"status {status}")
        )
    if process is not None:
        process.communicate()


def images_in(folder: Path) -> list[Path]:
    found = (
        path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    return sorted(path for path in found if "\n" not in str(path))


def kind_of(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(12)
    kinds = {
        b"\xff\xd8": "JPEG",
        b"\x89PNG": "PNG",
        b"GIF8": "GIF",
        b"RIFF": "WebP",
        b"II*\0": "TIFF",
        b"MM\0*": "TIFF",
    }
    return next((kind for magic, kind in kinds.items() if start.startswith(magic)), "other")


def main(
    folder: Annotated[Path, typer.Argument(help="searched for images, whatever their depth")],
    columns: Annotated[str, typer.Option(help="readers, separated by commas")] = ",".join(
        (*REFERENCES, *BACKENDS)
    ),
    limit: Annotated[
        int, typer.Option(help="every n-th file only, so that about so many are read; 0: all")
    ] = 0,
    files: Annotated[
        bool, typer.Option(help="list the files on which readers disagree, with their words")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="where to write every verdict")] = None,
    reader: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Print the table of verdicts. Ends with 1 if a reader crashed, hung or failed with an error
    not fastload's own."""
    if reader:
        work(reader)
        return
    console = Console() if sys.stdout.isatty() else Console(width=200)
    paths = images_in(folder)
    if not paths:
        raise typer.BadParameter(f"{folder}: no images found; scripts/fetch_corpora.sh gets some")
    if limit:
        paths = paths[:: max(1, len(paths) // limit)]
    names = columns.split(",")
    table: dict[Path, dict[str, Verdict]] = {path: {} for path in paths}
    for column in names:
        with console.status(f"{column}: {len(paths)} files"):
            for path, verdict in zip(paths, verdicts(column, paths), strict=True):
                table[path][column] = verdict
    if json is not None:
        json.write_bytes(msgspec.json.encode({str(path): row for path, row in table.items()}))
    report(console, names, table, files=files)
    words = Counter(verdict.word for row in table.values() for verdict in row.values())
    if words["crash"] or words["hang"] or words["fails"]:
        raise typer.Exit(1)


def report(
    console: Console, names: list[str], table: dict[Path, dict[str, Verdict]], *, files: bool
) -> None:
    groups: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path, row in table.items():
        groups[(kind_of(path), *(_short(row[name]) for name in names))].append(path)
    shown = Table("files", "kind", *names, "for example")
    for key, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        shown.add_row(str(len(members)), *key, members[0].name[-40:])
    console.print(shown)
    ours = [name for name in names if name not in REFERENCES]
    references = [name for name in names if name in REFERENCES]
    apart = [
        path
        for path, row in table.items()
        if len({row[name].word in ("reads", "warns") for name in ours}) > 1
    ]
    lost = [
        path
        for path, row in table.items()
        if references
        and all(row[name].word == "reads" for name in references)
        and any(row[name].word not in ("reads", "warns") for name in ours)
    ]
    off = [path for path, row in table.items() if any(row[name].off > NEAR for name in ours)]
    console.print(f"{len(table)} files; fastload's readers disagree on {len(apart)}")
    console.print(
        f"{len(lost)} that {' and '.join(references)} read without a warning are refused by "
        "one of fastload's"
    )
    console.print(f"{len(off)} are delivered with pixels more than {NEAR} of 255 from Pillow's")
    if not files:
        return
    for path in sorted({*apart, *lost, *off}):
        console.print(f"\n{path}", highlight=False, markup=False, soft_wrap=True)
        for name in names:
            verdict = table[path][name]
            console.print(
                f"  {name:<18} {_short(verdict):<10} {' '.join(verdict.detail.split())[:160]}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


def _short(verdict: Verdict) -> str:
    return f"{verdict.word} ±{verdict.off}" if verdict.off > NEAR else verdict.word


if __name__ == "__main__":
    typer.run(main)
