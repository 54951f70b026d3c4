"""Exceptions raised by fastload.

Each message names the argument or file, says what was found (with `counted` numbers of things), and
gives the remedy. Every type derives from `FastloadError` and from the built-in exception a caller
would reach for without knowing fastload. All take one string, so that they survive pickling between
processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal

OnError = Literal["raise", "substitute"]
"""What a sample that cannot be read leads to: its error, or another sample in its place."""


def counted(count: int, thing: str) -> str:
    """A number of things in words: "1 sample", "1,200 images", "2 classes"."""
    if count == 1:
        return f"1 {thing}"
    return f"{count:,} {thing}{'es' if thing.endswith(('s', 'x', 'tch', 'nch')) else 's'}"


def and_more(names: Sequence[str]) -> str:
    """What follows the first of some names, if there are others: " (and 3 more)"."""
    return f" (and {len(names) - 1:,} more)" if names[1:] else ""


def did_you_mean(name: str, names: Iterable[str], *, most: int = 3) -> str:
    """The last sentence of a message, " Did you mean lr?"; nothing if no name is near."""
    near = get_close_matches(name, list(names), n=most, cutoff=0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""


class FastloadError(Exception):
    """Base class of everything that fastload raises on purpose."""


class ConfigurationError(FastloadError, ValueError):
    """An argument that cannot have its effect: its name, its value, and what would be accepted."""


class UnknownArgumentError(ConfigurationError, TypeError):
    """A call with an argument that there is not; the message has the nearest name. A TypeError, as
    Python's own."""


class SourceError(FastloadError, ValueError):
    """The data set cannot be opened as described: missing, empty, inconsistent, or of an unknown
    format."""


class BackendUnavailableError(FastloadError, ImportError):
    """A backend or decoder was asked for whose package is not installed; the message has the
    install command."""


class UnsupportedTransformError(FastloadError, ValueError):
    """A transform that this backend cannot run; the message names the backends that can."""


class DecodeError(FastloadError, ValueError):
    """A sample that cannot be turned into pixels; the message names the file and the decoder's own
    words."""

    read = True
    """Whether its bytes were read: it is they that are wrong."""


class SampleError(DecodeError):
    """A sample that cannot be made, because a dataset's or a transform's own code raised
    something."""

    raised: Exception | None = None
    """What it raised, where that can be passed between processes."""
    trace: str = ""
    """The traceback of that, as text."""
    of_code: bool = False
    """Whether the code is wrong, and not what it was given: no other sample takes the place of this
    one."""

    def as_raised(self) -> Exception:
        """What is raised to the user: the error of the user's own code as it is, the sample named
        in a note."""
        if self.raised is None:
            return self
        # Errors have notes from Python 3.11 on.
        if hasattr(self.raised, "add_note") and not getattr(self.raised, "__notes__", ()):
            self.raised.add_note(f"fastload: {self}")
        self.raised.__cause__ = SampleError(f"{self}\n{self.trace}")
        return self.raised


class StateMismatchError(FastloadError, ValueError):
    """A saved state that belongs to another data set, seed, batch size or recipe; both sides are
    printed."""


class WorkerError(FastloadError, RuntimeError):
    """A worker process or thread died (out of memory, killed, crashed) with work outstanding."""


class CancelledReadError(FastloadError, RuntimeError):
    """A read was given up: its loader was closed, or the program ends. The data may be good, so no
    other sample takes the place of the one that was read."""


class CacheError(FastloadError, OSError):
    """A cache that cannot be built or opened: disk full, directory not writable, damaged, built by
    someone else."""


class BeingBuiltError(CacheError):
    """A cache that another process is building just now."""


class PackError(FastloadError, OSError):
    """Shards that cannot be written: disk full, the target holds something else, another process
    writes there."""


class CheckpointError(FastloadError, OSError):
    """A checkpoint that cannot be written: disk full, directory not writable."""
