"""Classes that do nothing of their own: proved by their code, without running it."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch import nn

__all__ = ["changes_nothing", "delegate_of"]


def delegate_of(transform: Any) -> Any:
    """The transform that one hands its image to and whose result it returns, doing nothing else, or None.

    That is read off the compiled code of its `__call__` (or `forward`), as of torchvision's reference presets.
    """
    kind = type(transform)
    call = kind.__call__
    if isinstance(transform, nn.Module) and call is nn.Module.__call__:
        if transform._forward_hooks or transform._forward_pre_hooks:
            return None
        call = kind.forward
    if not isinstance(call, FunctionType) or _shape(call) != _DELEGATION:
        return None
    return getattr(transform, call.__code__.co_names[0], None)


def changes_nothing(kind: type, base: type) -> bool:
    """Whether a class derived from `base` overrides nothing that `base` has but how it is made and shown."""
    between = kind.__mro__[: kind.__mro__.index(base)]
    return all(name in _HARMLESS or not hasattr(base, name) for derived in between for name in vars(derived))


_HARMLESS = frozenset(
    [
        "__init__",
        "__doc__",
        "__module__",
        "__qualname__",
        "__repr__",
        "extra_repr",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__firstlineno__",
        "__static_attributes__",
        "__orig_bases__",
        "__parameters__",
        "__abstractmethods__",
        "_abc_impl",
        "__annotate_func__",
    ]
)


def _returned(self: Any, image: Any) -> Any:
    return self.inner(image)


def _shape(function: FunctionType) -> tuple[Any, ...]:
    """Code but for the names in it."""
    code = function.__code__
    return code.co_code, code.co_argcount, code.co_kwonlyargcount, len(code.co_names), code.co_flags & 0x0C


_DELEGATION = _shape(_returned)  # type: ignore[arg-type]
