"""`fastload sweep`: which batch size and which parallel mode a training run should have."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastload.cli.bench import Files, names, numbers
from fastload.errors import ConfigurationError
from fastload.terminal import output, plain_errors
from fastload.train.command import takes_train_options

if TYPE_CHECKING:
    from rich.console import Console

    from fastload.tools.sweep import Cell, Row

# What each run of a sweep has of its own.
_OWN = (
    "batch_size",
    "parallel",
    "max_steps",
    "epochs",
    "accumulate",
    "device",
    "backend",
    "num_workers",
    "prefetch_factor",
    "amp",
    "cudnn_benchmark",
    "compile",
)
# What a run of a sweep does not do.
_MOOT = (
    "out",
    "resume",
    "save_epochs",
    "save_steps",
    "progress",
    "tensorboard",
    "trace",
    "profile_steps",
)
_SEVERAL = (
    "; several values separated by commas are tried one by one. Without it: as the job has it."
)


@takes_train_options(without=(*_OWN, *_MOOT))
def sweep(
    preset: Annotated[
        str | None,
        typer.Argument(
            help="A job with its settings (fastload train --presets lists them); or compare, "
            "and two files of --json, "
            "or reported:PRESET and a file."
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="The two files of compare.", metavar="[A.json|reported:PRESET B.json]"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings, as for fastload train.")
    ] = None,
    batch_sizes: Annotated[
        str,
        typer.Option(
            "--batch-sizes", help="Samples of a batch on each process, separated by commas."
        ),
    ] = "16,32,64",
    parallel: Annotated[
        str,
        typer.Option(
            "--parallel", help="Parallel modes, separated by commas: none (one process), dp, ddp."
        ),
    ] = "none,ddp",
    processes: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Processes of ddp, and GPUs of dp. Without it: all GPUs, at least 2.",
        ),
    ] = None,
    accumulate: Annotated[
        str | None, typer.Option(help=f"Batches of a step{_SEVERAL}", metavar="1,10")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help=f"Where it runs{_SEVERAL}", metavar="cpu,cuda")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help=f"The loader's{_SEVERAL}", metavar="cache,torch")
    ] = None,
    num_workers: Annotated[
        str | None, typer.Option(help=f"The loader's{_SEVERAL}", metavar="1,2,4")
    ] = None,
    prefetch_factor: Annotated[
        str | None, typer.Option(help=f"The loader's{_SEVERAL}", metavar="2,4")
    ] = None,
    amp: Annotated[
        str | None, typer.Option(help=f"Mixed precision{_SEVERAL}", metavar="none,bf16")
    ] = None,
    cudnn_benchmark: Annotated[
        str | None,
        typer.Option(
            "--cudnn-benchmark", help=f"cuDNN tries its algorithms{_SEVERAL}", metavar="yes,no"
        ),
    ] = None,
    compile: Annotated[
        str | None, typer.Option("--compile", help=f"torch.compile{_SEVERAL}", metavar="yes,no")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Make each run a whole one, with validation. Without it: some steps of it."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Times that each run is made, in turn with all others. [3; of whole runs 1]"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are measured in each run.")] = 30,
    warmup: Annotated[
        int, typer.Option(min=1, help="Steps before them, which compile and warm up.")
    ] = 5,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1.0, help="Seconds after which a run is given up. [600; of whole runs none]"
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything here.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a line for each run here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts here.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the charts as a picture here.")] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Try batch sizes, parallel modes and more, and say what each spends its time on, and which to
    take.

    Each run trains for some steps, or to its end, in processes of its own. One that does not fit in
    memory is a row that says so. The files of --json and --csv are written again after each run, so
    that a sweep that is cut off leaves what it measured; Ctrl-C ends it early. `fastload sweep
    compare A.json B.json` sets two sweeps side by side, `fastload sweep compare reported:PRESET
    B.json` one beside what others measured of the preset.
    """
    with plain_errors():
        if preset == "compare":
            _compare(files or [])
            return
        from fastload.tools.sweep import SweepSettings, run_sweep
        from fastload.tools.sweep.grid import modes
        from fastload.tools.sweep.report import print_sweep, write_html, write_png
        from fastload.train.settings import find_preset, merged

        if files:
            raise ConfigurationError(
                f"{files[0]}: one job at a time; files follow `fastload sweep compare` only."
            )
        written = Files(json, csv, html, png)
        written.check()
        console = output()
        settings = SweepSettings(
            preset=preset or (str(config) if config else "defaults"),
            config=merged(find_preset(preset).settings if preset else {}, config, given),
            batch_sizes=numbers(batch_sizes, "--batch-sizes"),
            parallel=modes(names(parallel)),
            axes=_axes(
                accumulate=accumulate,
                device=device,
                backend=backend,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                amp=amp,
                cudnn_benchmark=cudnn_benchmark,
                compile=compile,
            ),
            processes=processes,
            epochs=epochs,
            rounds=rounds,
            steps=steps,
            warmup=warmup,
            timeout=timeout,
        )
        with _terminated_as_by_ctrl_c(), _progress(console) as report:
            results = run_sweep(settings, on_progress=report, on_results=written.keep)
        print_sweep(results, console)
        measured = any(row.status == "measured" for row in results.measurements)
        # Where nothing was measured there is no picture to draw.
        written.write(results, console, html=write_html, **({"png": write_png} if measured else {}))
        if not measured:
            raise typer.Exit(1)


def _axes(**typed: str | None) -> dict[str, tuple[Any, ...]]:
    """The values of those that were typed."""
    from fastload.train.settings import convert, find_field

    return {
        name: tuple(convert(find_field(name), _confirm(name, part)) for part in names(text))
        for name, text in typed.items()
        if text is not None
    }


def _confirm(name: str, text: str) -> str | bool:
    """What was typed; of a setting that is true or false, which."""
    from fastload.train.settings import find_field

    if find_field(name).kind is not bool:
        return text
    if text not in ("yes", "no"):
        raise ConfigurationError(
            f"--{name.replace('_', '-')}: must be yes, no or yes,no, got {text!r}."
        )
    return text == "yes"


def _compare(files: Sequence[str]) -> None:
    from fastload.tools.sweep.report import print_comparison, read_sweep
    from fastload.tools.sweep.reported import PREFIX, print_beside_reported, read_reported

    reported = [name for name in files if name.startswith(PREFIX)]
    for name in reported:
        read_reported(name)  # a name that is not known is said before anything else
    own = [read_sweep(Path(name)) for name in files if name not in reported]
    if (len(reported), len(own)) == (1, 1):
        print_beside_reported(reported[0], own[0], output())
    elif len(own) == 2 and not reported:
        print_comparison(own[0], own[1], output())
    else:
        raise ConfigurationError(
            "compare: give two files that `fastload sweep --json` wrote, or one of them and "
            f"{PREFIX}PRESET, for what others measured; got {', '.join(files) or 'nothing'}."
        )


@contextmanager
def _terminated_as_by_ctrl_c() -> Iterator[None]:
    """A scheduler's SIGTERM and a closed terminal's SIGHUP too leave no processes behind, and what
    was measured."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[Sequence[Row], Sequence[Cell]], None]]:
    """A line for each run that is done; on a terminal also what is under way."""
    from fastload.tools.measure.table import number

    with console.status("") as status:

        def report(rows: Sequence[Row], grid: Sequence[Cell]) -> None:
            if rows:
                row = rows[-1]
                came = (
                    row.status
                    if row.rate is None
                    else f"{number(row.rate)} a second, busy {row.busy:.0%}"
                )
                console.print(f"{len(rows)} of {len(grid)}: {_name(row.cell)}: {came}", style="dim")
            if len(rows) < len(grid):
                status.update(f"{len(rows) + 1} of {len(grid)}: {_name(grid[len(rows)])}")

        yield report


def _name(cell: Cell) -> str:
    return f"{cell.name}, batch {cell.batch}"
