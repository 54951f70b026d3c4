"""fastload: a data loader for PyTorch. One iterator, several interchangeable backends, and the same
samples from each.

    import fastload

    train = fastload.create_loader("data/train", batch_size=256, shuffle=True, transform=...)
    train = fastload.from_dataloader(train)  # or from a DataLoader that you have

Names are imported when first used: `import fastload` loads neither torch nor any backend, and
changes no global state.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # Checkers take it for true. To import typing takes 7 ms of 8.
if TYPE_CHECKING:
    from typing import Any

    from fastload.backends import BackendOptions as BackendOptions
    from fastload.backends import available_backends as available_backends
    from fastload.cache import build_cache as build_cache
    from fastload.errors import BackendUnavailableError as BackendUnavailableError
    from fastload.errors import DecodeError as DecodeError
    from fastload.errors import StateMismatchError as StateMismatchError
    from fastload.errors import UnsupportedTransformError as UnsupportedTransformError
    from fastload.loader import CollateColumns as CollateColumns
    from fastload.loader import Loader as Loader
    from fastload.loader import create_loader as create_loader
    from fastload.loader.from_dataloader import from_dataloader as from_dataloader
    from fastload.recipe import Recipe as Recipe
    from fastload.recipe.transforms import HSV as HSV
    from fastload.recipe.transforms import CopyPaste as CopyPaste
    from fastload.recipe.transforms import CutMix as CutMix
    from fastload.recipe.transforms import DropObjects as DropObjects
    from fastload.recipe.transforms import FixedSizeCrop as FixedSizeCrop
    from fastload.recipe.transforms import Letterbox as Letterbox
    from fastload.recipe.transforms import MixUp as MixUp
    from fastload.recipe.transforms import Mosaic as Mosaic
    from fastload.recipe.transforms import RandomSizedBBoxSafeCrop as RandomSizedBBoxSafeCrop
    from fastload.recipe.transforms import ResizeToPatches as ResizeToPatches
    from fastload.recipe.views import Views as Views
    from fastload.render.host import decode_jpeg as decode_jpeg
    from fastload.sampler import BlockShuffle as BlockShuffle
    from fastload.sampler import NodePlacement as NodePlacement
    from fastload.sampler import Shard as Shard
    from fastload.sampler import Shuffle as Shuffle
    from fastload.sampler.balanced import Balanced as Balanced
    from fastload.sampler.buckets import Buckets as Buckets
    from fastload.sampler.budgets import Budget as Budget
    from fastload.sampler.mesh import MeshShard as MeshShard
    from fastload.sampler.packed import Packed as Packed
    from fastload.sampler.scales import BatchSize as BatchSize
    from fastload.sampler.scales import MultiScale as MultiScale
    from fastload.sampler.scales import Progressive as Progressive
    from fastload.sampler.weighted import WeightedShuffle as WeightedShuffle
    from fastload.sampler.weights import WeightSchedule as WeightSchedule
    from fastload.sources import open_source as open_source
    from fastload.sources.joining import join as join
    from fastload.sources.mixture import mix as mix
    from fastload.sources.partners import Partner as Partner
    from fastload.sources.ragged import Ragged as Ragged

__version__ = "0.1.0"

# The module that defines each public name.
_MODULES = {
    "HSV": "fastload.recipe.transforms",
    "BackendOptions": "fastload.backends",
    "BackendUnavailableError": "fastload.errors",
    "Balanced": "fastload.sampler.balanced",
    "BatchSize": "fastload.sampler.scales",
    "BlockShuffle": "fastload.sampler",
    "Budget": "fastload.sampler.budgets",
    "Buckets": "fastload.sampler.buckets",
    "CollateColumns": "fastload.loader",
    "CopyPaste": "fastload.recipe.transforms",
    "CutMix": "fastload.recipe.transforms",
    "DecodeError": "fastload.errors",
    "DropObjects": "fastload.recipe.transforms",
    "FixedSizeCrop": "fastload.recipe.transforms",
    "Letterbox": "fastload.recipe.transforms",
    "Loader": "fastload.loader",
    "MeshShard": "fastload.sampler.mesh",
    "MixUp": "fastload.recipe.transforms",
    "Mosaic": "fastload.recipe.transforms",
    "MultiScale": "fastload.sampler.scales",
    "NodePlacement": "fastload.sampler",
    "Partner": "fastload.sources.partners",
    "Packed": "fastload.sampler.packed",
    "Progressive": "fastload.sampler.scales",
    "RandomSizedBBoxSafeCrop": "fastload.recipe.transforms",
    "Ragged": "fastload.sources.ragged",
    "Recipe": "fastload.recipe",
    "ResizeToPatches": "fastload.recipe.transforms",
    "Shard": "fastload.sampler",
    "Shuffle": "fastload.sampler",
    "StateMismatchError": "fastload.errors",
    "UnsupportedTransformError": "fastload.errors",
    "Views": "fastload.recipe.views",
    "WeightSchedule": "fastload.sampler.weights",
    "WeightedShuffle": "fastload.sampler.weighted",
    "available_backends": "fastload.backends",
    "build_cache": "fastload.cache",
    "create_loader": "fastload.loader",
    "decode_jpeg": "fastload.render.host",
    "from_dataloader": "fastload.loader.from_dataloader",
    "join": "fastload.sources.joining",
    "mix": "fastload.sources.mixture",
    "open_source": "fastload.sources",
}
_SUBPACKAGES = ("monitor", "pipelines", "train")

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"fastload.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value  # the next use finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES})
