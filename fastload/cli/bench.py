"""`fastload bench`: decoders, loaders, stores, two runs side by side; and what all commands that
measure share.

Settings are options, progress is shown on the way, files are written at the end.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from fastload.cli.commands import Commands
from fastload.errors import ConfigurationError
from fastload.files import check_output
from fastload.terminal import output, plain_errors
from fastload.tools.bench import DecodeSettings, IoSettings, LoaderSettings

if TYPE_CHECKING:
    from rich.console import Console

    from fastload.tools.measure.results import Results
    from fastload.tools.measure.rounds import Progress


def names(text: str) -> tuple[str, ...]:
    """ "a, b" as ("a", "b")."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(text: str, option: str) -> tuple[int, ...]:
    """ "4,1,2" as (1, 2, 4). Raises ConfigurationError, which names the option."""
    try:
        return tuple(sorted({int(word) for word in names(text)}))
    except ValueError as error:
        raise ConfigurationError(
            f"{option}: {text!r} must be whole numbers separated by commas, as 1,2,4."
        ) from error


# -- Settings as options ---------------------------------------------------------------------------


def takes(**settings: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of some dataclasses, as its `Annotated` says; tuples
    are typed as lists with commas.

    Args:
        settings: by the name under which the command gets the filled dataclass.
    """
    offered = {name: list(_options(given)) for name, given in settings.items()}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapper(**typed: Any) -> None:
            with plain_errors():
                filled = {
                    name: settings[name](
                        **{option.name: value(typed[option.name]) for option, value in options}
                    )
                    for name, options in offered.items()
                }
            command(**filled)

        parameters = [option for options in offered.values() for option, _ in options]
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        # Both are where typer looks, in one version or another.
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


def _options(settings: type[Any]) -> Iterator[tuple[inspect.Parameter, Callable[[Any], Any]]]:
    """For each field its option, and what makes its value of what was typed."""
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        hint = hints[field.name]
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        if not hasattr(hint, "__metadata__"):
            continue
        inner, info = get_args(hint)
        items = [
            get_args(t)[0]
            for t in (inner, *get_args(inner))
            if getattr(t, "__origin__", None) is tuple
        ]
        if items:
            hint = Annotated[str | None, info] if default is None else Annotated[str, info]
            default = None if default is None else ",".join(map(str, default))  # type: ignore[arg-type]
        parameter = inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint
        )
        yield parameter, partial(_value, items, f"--{field.name.replace('_', '-')}")


def _value(items: list[type], option: str, typed: Any) -> Any:
    if not items or typed is None:
        return typed
    return numbers(typed, option) if items[0] is int else names(typed)


# -- Progress, files -------------------------------------------------------------------------------


@contextlib.contextmanager
def progress_of_rounds(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal that goes when it is done; in a log, a line for each round."""
    from fastload.tools.measure.table import progress_bar

    started: set[int] = set()
    with progress_bar(console) as update:

        def report(progress: Progress) -> None:
            if console.is_terminal:
                what = f"round {progress.round}" if progress.round else "warm-up"
                update(progress.share, f"{what}: {progress.entry.contestant} {progress.entry.mode}")
            elif progress.round not in started:
                started.add(progress.round)
                console.print(
                    f"Round {progress.round}." if progress.round else "Warm-up.", style="dim"
                )

        yield report


@dataclass(frozen=True)
class Files:
    """Where to write the results; None: not at all."""

    json: Annotated[
        Path | None, typer.Option(help="Write everything here, for `fastload bench compare`.")
    ] = None
    csv: Annotated[Path | None, typer.Option(help="Write a line for each row here.")] = None
    html: Annotated[Path | None, typer.Option(help="Write a page with charts here.")] = None
    png: Path | None = None

    @property
    def places(self) -> dict[str, Path]:
        """Those that are asked for, by option without its dashes."""
        return {
            field.name: path
            for field in fields(self)
            if (path := getattr(self, field.name)) is not None
        }

    def check(self) -> None:
        """Refuse, before minutes of measuring, what cannot be written after them.

        Raises:
            ConfigurationError: the place is no good; the message names the option.
            BackendUnavailableError: what draws the charts is not installed.
        """
        for name, path in self.places.items():
            if name in ("html", "png"):
                from fastload.tools.measure.page import require_charts

                require_charts(f"--{name}")
            check_output(path, f"--{name}")

    def keep(self, results: Results) -> None:
        """Write what there is so far, as JSON and CSV: charts come at the end, and so does what is
        wrong with the place."""
        for name, path in self.places.items():
            if name in _TEXTS:
                with contextlib.suppress(OSError):
                    _TEXTS[name](results, path)

    def write(
        self, results: Results, console: Console, **writers: Callable[[Results, Path], None]
    ) -> None:
        """Write them and name them. Raises OSError, and typer.Exit(130) if the run was stopped.

        Args:
            writers: of what is neither JSON nor CSV, by option. Without one, the file is not
                written.
        """
        writers |= _TEXTS
        for name, path in self.places.items():
            if name in writers:
                writers[name](results, path)
                console.print(f"Written: {path}", soft_wrap=True)
        if not results.complete:
            raise typer.Exit(130)


@dataclass(frozen=True)
class FilesWithoutPage(Files):
    """Of a benchmark that has no charts: `--html` is no option."""

    html: Path | None = None


def _write_json(results: Results, path: Path) -> None:
    from fastload.tools.measure.results import to_json, write_text

    write_text(path, to_json(results))


def _write_csv(results: Results, path: Path) -> None:
    from fastload.tools.measure.results import to_csv, write_text

    write_text(path, to_csv(results))


_TEXTS = {"json": _write_json, "csv": _write_csv}
"""What writes results as text, by option."""

# -- The commands ----------------------------------------------------------------------------------

bench = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure decoders, loaders and stores on this machine.",
)

Settings = TypeVar("Settings", DecodeSettings, LoaderSettings)


@bench.command()
@takes(settings=LoaderSettings, files=Files)
def loader(settings: LoaderSettings, files: Files) -> None:
    """Measure which loader keeps a trainer busy on this machine, and what there is to gain.

    Ctrl-C ends it early and keeps what was measured. A backend that is not installed is listed with
    what to install.
    """
    with plain_errors():
        from fastload.tools.bench.loader import run_loader_benchmark
        from fastload.tools.bench.loader_report import print_loader, write_html

        _run(settings, files, run_loader_benchmark, print_loader, write_html)


@bench.command()
@takes(settings=DecodeSettings, files=Files)
def decode(settings: DecodeSettings, files: Files) -> None:
    """Compare the speed of decoders of JPEG, PNG or WebP, and how far their pixels are from the
    reference.

    Ctrl-C ends it early and keeps what was measured. A decoder that is not installed is listed with
    what to install.
    """
    with plain_errors():
        from fastload.tools.bench.decode import run_decode_benchmark
        from fastload.tools.bench.decode_report import print_decode, write_html

        _run(settings, files, run_decode_benchmark, print_decode, write_html)


@bench.command()
@takes(settings=IoSettings, files=FilesWithoutPage)
def io(settings: IoSettings, files: Files) -> None:
    """Measure what an object store or web server gives, and whether a trainer would wait for it.

    Reads whole images at random, by requests of their own: some thousands, which the store may
    charge for.
    """
    with plain_errors():
        from fastload.tools.bench.io import print_io, run_io_benchmark

        files.check()
        console = output()
        with progress_of_rounds(console) as report:
            results = run_io_benchmark(settings, on_progress=report)
        print_io(results, console)
        files.write(results, console)


def _run(
    settings: Settings,
    files: Files,
    measure: Callable[..., Results],
    show: Callable[[Results, Console], None],
    write_html: Callable[[Results, Path], None],
) -> None:
    """Measure, print, write."""
    from fastload.tools.measure.images import sample_images

    files.check()
    console = output()

    def say(line: str) -> None:
        console.print(line, style="dim", soft_wrap=True)

    with sample_images(settings.folder, settings.images, say) as root:
        settings = replace(settings, folder=root, sample_set=settings.folder is None)
        with progress_of_rounds(console) as report:
            results = measure(settings, on_progress=report, say=say)
    show(results, console)
    files.write(results, console, html=write_html)


@bench.command()
def compare(
    before: Annotated[Path, typer.Argument(help="What `--json` wrote in the first run.")],
    after: Annotated[Path, typer.Argument(help="What `--json` wrote in the second.")],
) -> None:
    """Say what changed between two runs, and what of it is more than noise."""
    with plain_errors():
        from fastload.tools.bench.compare import compare_results, print_comparison
        from fastload.tools.measure.results import read_json

        print_comparison(compare_results(read_json(before), read_json(after)), output())
