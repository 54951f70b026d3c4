"""Frameworks that make another loader of the one that they are given: they get the plain DataLoader
that a Loader stands for, do with it what they always do, and what they have made is adopted.

None of them asks a loader to make itself again: Accelerate, Lightning, Fabric and Ray each make a
DataLoader in a function of theirs. `hand_over` lets it know Loaders, where the framework is
imported; whatever else it is given, it takes as before. Of a framework that is not named here,
`read_by_others` notices that it makes a DataLoader of what a Loader says, and warns of it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastload.errors import ConfigurationError

logger = logging.getLogger("fastload")

FUNCTIONS = {
    "accelerate.data_loader": ("prepare_data_loader", "skip_first_batches"),
    "lightning.fabric.fabric": ("Fabric._setup_dataloader",),
    "lightning.pytorch.utilities.data": ("_update_dataloader",),
    "lightning_fabric.fabric": ("Fabric._setup_dataloader",),
    "pytorch_lightning.utilities.data": ("_update_dataloader",),
    "ray.train.torch.train_loop_utils": ("_TorchAccelerator.prepare_data_loader",),
    "ray.train.v2.torch.train_loop_utils": ("prepare_data_loader",),
}
"""Those that make a loader of a loader, by module."""

AROUND = {
    "accelerate.data_loader.DataLoaderShard": "base_dataloader",
    "accelerate.data_loader.DataLoaderDispatcher": "base_dataloader",
    "accelerate.data_loader.SkipDataLoader": "base_dataloader",
    "lightning.fabric.wrappers._FabricDataLoader": "_dataloader",
    "lightning_fabric.wrappers._FabricDataLoader": "_dataloader",
    "ray.train.torch.train_loop_utils._WrappedDataLoader": "_dataloader",
    "timm.data.loader.PrefetchLoader": "loader",
}
"""Classes of objects that frameworks put around a DataLoader, and the attribute that they iterate
over."""

MAKING = {"deepspeed.runtime.dataloader.DeepSpeedDataLoader": "_create_dataloader"}
"""Classes of objects that make a DataLoader at each `iter()`, and their method that does it."""

Adopt = Callable[["DataLoader[Any]", "torch.device | None"], Any]
"""Of a DataLoader, and the device to which a framework will copy its batches, if it is known: a
Loader."""


def hand_over() -> None:
    """Let those functions of frameworks that are imported know Loaders, once."""
    for module, paths in FUNCTIONS.items():
        if module in sys.modules:
            for path in paths:
                function: Any = sys.modules[module]
                for name in path.split("."):
                    function = getattr(function, name, None)
                if isinstance(function, FunctionType):
                    _replace(function, _handed_over)


def _replace(function: Any, calls: Callable[..., Any]) -> None:
    """Let a function call another one, once, which gets the original and its arguments. Scripts and
    modules may have imported it by any name: it gets another code. Of a decorated function, the one
    inside."""
    function = inspect.unwrap(function)
    if hasattr(function, "_handing_over"):
        return
    original = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    original.__kwdefaults__ = function.__kwdefaults__
    function._handing_over = functools.partial(calls, original)
    function.__signature__ = inspect.signature(original)  # for those who ask for its arguments
    function.__defaults__, function.__kwdefaults__ = None, {"_through": function._handing_over}
    function.__code__ = _through.__code__


def _through(*args: Any, _through: Any = None, **named: Any) -> Any:
    return _through(*args, **named)


def _handed_over(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a framework's function with DataLoaders in the place of Loaders, and adopt its result as
    the Loader was."""
    things = [*args, *named.values()]
    loaders = [*filter(_is_loader, things), *filter(_is_loader, map(inner_of, things))]
    if not loaders:
        return original(*args, **named)
    theirs = original(*map(_plain, args), **{name: _plain(named[name]) for name in named})
    return adopted_inside(theirs, loaders[0]._adopted_again)


def _is_loader(thing: Any) -> bool:
    return hasattr(type(thing), "_adopted_again")


def _plain(thing: Any) -> Any:
    return thing._handed_over() if _is_loader(thing) else thing


def _class_of(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _name_of_inner(thing: Any) -> str | None:
    return AROUND.get(_class_of(thing))


def inner_of(thing: Any) -> Any:
    """What an object of a framework's iterates over; None: it is no such object."""
    name = _name_of_inner(thing)
    return None if name is None else vars(thing).get(name)


def adopted_inside(theirs: Any, adopt: Adopt) -> Any:
    """What a framework has made, with a Loader in the place of the DataLoader: that Loader, or the
    framework's object around it, which keeps its flags, remainders, devices and seeds."""
    name = _name_of_inner(theirs)
    if (method := MAKING.get(_class_of(theirs))) is not None:
        _adopt_what_it_makes(theirs, method, adopt)
        return theirs
    if name is None:
        _forget(theirs)
        return adopt(theirs, None)
    kept = vars(theirs)
    _forget(kept[name])
    device = kept.get("device", kept.get("_device"))
    kept[name] = adopt(kept[name], device)
    if name == "base_dataloader":
        kept["_update_state_dict"] = functools.partial(_keep_state, weakref.ref(theirs))
        _keep_state(weakref.ref(theirs))
    return theirs


def _adopt_what_it_makes(theirs: Any, method: str, adopt: Adopt) -> None:
    """Let an object that makes a DataLoader at each `iter()` get a Loader of it: the same one as
    long as it gives the same arguments. Its method stays, and finds another `DataLoader`. Raises
    what `adopt` raises."""
    function = getattr(type(theirs), method, None)
    if function is None or "DataLoader" not in function.__code__.co_names:
        raise ConfigurationError(
            f"existing: this {type(theirs).__name__} does not make its DataLoader by {method}, as "
            "versions known to fastload do. Give the framework a loader of your own that was "
            "adopted."
        )
    arguments: list[Any] = []
    loaders: list[Any] = []

    def make(*args: Any, **named: Any) -> Any:
        given = [*args, *named.items()]
        if not (loaders and _are_same(given, arguments)):
            arguments[:], loaders[:] = given, [adopt(DataLoader(*args, **named), None)]
        return loaders[0]

    def tried(*args: Any, **named: Any) -> tuple[()]:
        make(*args, **named)
        return ()

    finding = FunctionType(
        function.__code__,
        {**function.__globals__, "DataLoader": tried},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    before = dict(vars(theirs))
    finding(theirs)  # What cannot be adopted is an error now; nothing is iterated over.
    vars(theirs).clear()
    vars(theirs).update(before)
    finding.__globals__["DataLoader"] = make
    vars(theirs)[method] = functools.partial(finding, theirs)


def _are_same(given: list[Any], before: list[Any]) -> bool:
    """Whether arguments, those with names as (name, value), are the same objects or numbers."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return all(map(same, a, b))
        return a is b or (isinstance(a, int | str) and type(a) is type(b) and a == b)

    return len(given) == len(before) and all(map(same, given, before))


def _keep_state(wrapper: Callable[[], Any]) -> None:
    """In the place of a method of Accelerate's, which at each batch would bring the state of
    whatever has a `state_dict` into the form of a StatefulDataLoader's."""
    dataloader = wrapper()
    if dataloader.use_stateful_dataloader:
        dataloader.dl_state_dict = dataloader.base_dataloader.state_dict()


# -- Frameworks that are not named above -----------------------------------------------------------

_TELLING = frozenset(inspect.signature(DataLoader.__init__).parameters) - {
    "self",
    "batch_size",
    "drop_last",
}
"""What one reads of a loader to make another one: the data set, and at least one more of these."""


_MADE = {
    "torch.utils.data": "DataLoader",
    "torchdata.stateful_dataloader": "StatefulDataLoader",
}
"""Classes of loaders whose constructor calls that of no other one, by module."""


class _Read(threading.local):
    """What this thread has read of a Loader since it last iterated over one."""

    names: frozenset[str] = frozenset()
    reference: weakref.ref[Any] | None = None
    """To the Loader."""

    @property
    def loader(self) -> Any:
        return None if self.reference is None else self.reference()


_read = _Read()


def read_by_others(loader: Any, name: str) -> None:
    """An attribute of a Loader is read, maybe by someone who does not know Loaders and makes a
    DataLoader of what it says."""
    hand_over()  # to a framework that was imported later, and looks at this one
    if name in _TELLING:
        _read.names = (_read.names if _read.loader is loader else frozenset()) | {name}
        _read.reference = weakref.ref(loader)
        for module, name_of_class in _MADE.items():
            if module in sys.modules:
                _replace(getattr(sys.modules[module], name_of_class).__init__, _made_by_others)


def nothing_read() -> None:
    """A Loader is iterated over: what was read of it was not for another one."""
    _read.names = frozenset()


def _made_by_others(
    original: Callable[..., Any], dataloader: Any, /, *args: Any, **named: Any
) -> None:
    """A DataLoader is made. One that is made of what a Loader says is marked: its first iterator is
    a warning, unless it was adopted by then."""
    original(dataloader, *args, **named)
    loader = _read.loader
    if loader is None or "dataset" not in _read.names or len(_read.names) < 2:
        return
    inside = (__file__, inspect.getfile(DataLoader))
    frames = traceback.walk_stack(None)  # from here outwards, without the text of the lines
    places = ((frame.f_code.co_filename, number) for frame, number in frames)
    filename, number = next(place for place in places if place[0] not in inside)
    if dataloader.dataset is loader.existing.dataset and Path(__file__).parents[1] not in (
        Path(filename).parents
    ):
        marked = functools.partial(_first_iterator, dataloader, f"{filename}:{number}")
        vars(dataloader)["_get_iterator"] = marked


def _first_iterator(dataloader: Any, place: str) -> Any:
    _forget(dataloader)
    name = type(dataloader).__qualname__
    logger.warning(
        f"{place} made a {name} of what a fastload Loader says, and its batches come without "
        f"fastload. Adopt it, where it is handed to you: loader = fastload.from_dataloader(loader)"
    )
    return dataloader._get_iterator()


def _forget(dataloader: Any) -> None:
    getattr(dataloader, "__dict__", {}).pop("_get_iterator", None)
