"""The formats of data sets, one a file of this package, which ends in its `FORMAT`: what it is
called, what its data sets look like, and what opens them.

That statement is read here as text, and the file is loaded when its signs fit. So all in it are
literals, and names of the file, which are looked up when they are first called.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastload.modules import Later, modules_in, text_of
from fastload.sources.base import Opened, OpenOptions, Source


@dataclass(frozen=True)
class Format:
    """One format: how it is recognised, and how it is opened."""

    name: str
    """A short name: what `format=` takes."""
    recognise: Callable[[Any], bool]
    """Whether it is of this format: called with an existing path (absolute str), a list of shard
    paths (str), or any other object; a registered format's with the specification as it was given.
    Must be cheap."""
    open: Callable[[Any, OpenOptions], Opened | Source]
    options: Collection[str] = ()
    """Names of the `OpenOptions` that mean something to it; `strict` and `masks` are for all."""
    title: str = ""
    """What it is, in words, for messages."""
    remote: bool = False
    """Whether it reads URLs as well as paths (`fastload.stores`)."""
    by_name_only: bool = False
    """Whether it is opened only where `format=` asks for it, although it may be recognised."""
    signs: tuple[str, ...] | None = None
    """Paths relative to a local folder, with * for any name and {split} for any word for training,
    validation or test: a folder that has none of them is not of this format, and `recognise` is not
    asked. A sign may begin with "../{name}", {name} being the folder's own. None: it is always
    asked; (): no folder is of this format."""
    files: tuple[str, ...] | None = None
    """The same of a file, and of the first of a list: patterns of its name in lower case."""
    lists: tuple[str, ...] = ()
    """Endings of the files of which a list is a data set, too."""
    packages: tuple[str, ...] | None = None
    """The same of an object that is no path: the packages that its class, or one that this is
    derived from, is of."""
    common: bool = False
    """Whether many folders have its names, so that only opening one tells whether it is meant."""
    generality: int = 0
    """Those of lower numbers are asked first: the higher, the more data sets of others look like
    one of this format."""
    parts: tuple[str, ...] = ()
    """Names of folders in its data sets, which are names of no class."""
    no_parts: tuple[str, ...] = ()
    """Names that look like these, and are of classes. A test tries all pairs of both, of all
    formats."""
    fallback: bool = False
    """Whether it is opened only if no other format opens the same path, or `format=` asks for it.
    It is given the whole folder and `split`, not the subfolder of that name."""
    copies: Callable[[str], list[str]] | None = None
    """Of a format that reads local files alone: the files of a URL that are its data set, which are
    copied to the local disk; none where it is not of this format. It looks into them where their
    names are common. It raises SourceError where only a disk will do, and they are too many."""
    certain: Callable[[str], bool] | None = None
    """Whether not only the names but also the content of a path are of this format. For a fallback:
    if another format opens the path as well, or another fallback is certain of it, too, it is
    refused as ambiguous. Of another: no fallback opens the path in its place, and one that is
    certain, too, is noted."""
    family: str = ""
    """Fallbacks of one family lie side by side in one data set, as the annotations of objects and
    of segments of one COCO: the first opens it, and the others are noted. Empty: of none."""
    annotates: Callable[[str], bool] | None = None
    """Whether a file that lies beside the images of a class folder has annotations of objects, as
    this format has them: then the folders are no classes."""
    documents: tuple[str, ...] = ()
    """Endings of the files that `annotates` is asked about."""
    datasets: Mapping[str, Callable[[Any], Opened]] = field(default_factory=dict)
    """Names of torchvision's classes whose data sets are of this format, and what opens them
    without their code. It raises SourceError where it cannot."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Classes of columns of its own that an index of remote data can hold
    (`fastload.sources.index`), by their names."""
    kept: Callable[[], list[Path]] | None = None
    """The files that it has written on this machine to read data sets by."""

    @property
    def description(self) -> str:
        return f"{self.name!r} ({self.title})" if self.title else repr(self.name)


# -- Reading what the files say --------------------------------------------------------------------


_ELSEWHERE = ("fastload.cache.reading",)
"""Modules of other packages that have a `FORMAT`: what reads a cache stands beside what writes it,
in a package that imports this one."""


def read_formats(modules: Collection[str]) -> tuple[Format, ...]:
    """What these modules say of their formats, in the order in which they are tried."""
    forms = [_format_of(module) for module in modules]
    return tuple(sorted(forms, key=lambda form: (form.generality, form.name)))


def _format_of(module: str) -> Format:
    text = text_of(module)
    if text is None:
        form: Format = importlib.import_module(module).FORMAT
        return form
    _, ends, call = text.rpartition("\nFORMAT = ")
    assert ends, f"{module} does not end in FORMAT = Format(...)"
    statement = ast.parse(call, mode="eval").body
    assert isinstance(statement, ast.Call)
    arguments = {each.arg: _value(module, each.value) for each in statement.keywords}
    return Format(**arguments)  # type: ignore[arg-type]  # keywords are strings


def _value(module: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return Later(module, node.id)
    if isinstance(node, ast.Dict):
        names = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(names, (_value(module, each) for each in node.values), strict=True))
    if isinstance(node, ast.Tuple):
        values: list[Any] = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                values += _value(module, each.value)
            else:
                values.append(_value(module, each))
        return tuple(values)
    return ast.literal_eval(node)


FORMATS = read_formats([*modules_in(__name__, __path__), *_ELSEWHERE])
"""All of fastload's own, in the order in which they are tried: the first that recognises a
specification opens it; those that are a `fallback` come after all others."""
