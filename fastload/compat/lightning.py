"""Lightning: the arguments that it makes loaders from again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def record_arguments(loader: Any, arguments: Mapping[str, Any]) -> None:
    """Lightning makes loaders again from the arguments that its hooks have recorded.

    Those need not be ours, for it cannot know of a class that is imported within a hook.
    """
    recorded = {"args": (), "kwargs": dict(arguments), "arg_names": (), "default_kwargs": {}}
    for name, value in recorded.items():
        object.__setattr__(loader, f"__pl_saved_{name}", value)
    object.__setattr__(loader, "__pl_attrs_record", [])
    object.__setattr__(loader, "__dataset", loader.dataset)
