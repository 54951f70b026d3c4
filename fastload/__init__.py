"""fastload: a data loader for PyTorch. One iterator, interchangeable backends, the same samples from each.

    import fastload

    train = fastload.create_loader("data/train", batch_size=256, shuffle=True, transform=...)
    train = fastload.from_dataloader(train)  # or, from the DataLoader that you have

Names are imported when first used: `import fastload` loads neither torch nor any backend, and changes no global state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastload.backends import available_backends
    from fastload.cache import build_cache
    from fastload.errors import BackendUnavailableError, DecodeError, StateMismatchError, UnsupportedTransformError
    from fastload.loader import Loader, create_loader
    from fastload.loader.adopt import from_dataloader
    from fastload.recipe import Recipe, Views
    from fastload.render import decode_jpeg
    from fastload.sampler import Shard
    from fastload.sources import open_source

__all__ = [
    "BackendUnavailableError",
    "DecodeError",
    "Loader",
    "Recipe",
    "Shard",
    "StateMismatchError",
    "UnsupportedTransformError",
    "Views",
    "__version__",
    "available_backends",
    "build_cache",
    "create_loader",
    "decode_jpeg",
    "from_dataloader",
    "open_source",
]

__version__ = "0.1.0"

_HOMES = {
    "BackendUnavailableError": "fastload.errors",
    "DecodeError": "fastload.errors",
    "Loader": "fastload.loader",
    "Recipe": "fastload.recipe",
    "Shard": "fastload.sampler",
    "StateMismatchError": "fastload.errors",
    "UnsupportedTransformError": "fastload.errors",
    "Views": "fastload.recipe",
    "available_backends": "fastload.backends",
    "build_cache": "fastload.cache",
    "create_loader": "fastload.loader",
    "decode_jpeg": "fastload.render",
    "from_dataloader": "fastload.loader.adopt",
    "open_source": "fastload.sources",
}


_ROOMS = ("monitor", "train")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"fastload.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value  # next time it is found without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
