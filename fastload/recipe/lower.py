"""From torchvision transforms, v2 and v1, to operations.

A transform is known by its exact type: a subclass may do anything, so it stays opaque, unless it
overrides nothing of its base. One that hands its image to a known one and returns the result is
known by its code (`known_code`). Images are taken to enter as PIL images, as torchvision's datasets
give them, and to be tensors after ToImage, PILToTensor or ToTensor. It matters in two places: PIL
always antialiases, whatever `antialias` says, and PIL's "nearest" is the tensors' "nearest-exact".
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Generic, TypeVar

import torch
import torchvision.transforms as v1
from torch import nn
from torchvision.transforms import _presets as presets
from torchvision.transforms import v2

from fastload.errors import ConfigurationError
from fastload.known_code import delegate_of, methods_are_as_defined
from fastload.recipe.attributes import read_antialias, read_floats, read_interpolation, read_pair
from fastload.recipe.convert import MaskToDtype, Normalize, ToDtype
from fastload.recipe.crops import CenterCrop, Resize
from fastload.recipe.operation import (
    ImageState,
    NotLowerableError,
    Opaque,
    Operation,
    called_as,
    lowering_of,
    register_lowering,
)

_CONTAINERS = (v1.Compose, v2.Compose, nn.Sequential)
_EACH = (v2.ToImage, v2.ToDtype, v2.Normalize, v2.Identity)
"""Transforms without random numbers that do the same to each of several images."""
_BATCH_ONLY = (v2.MixUp, v2.CutMix)
_TO_PIL = (v1.ToPILImage, v2.ToPILImage)
_CONVERSIONS = (
    v1.ToTensor,
    v2.ToTensor,
    v1.PILToTensor,
    v2.PILToTensor,
    v2.ToImage,
    v2.ToPureTensor,
    *_TO_PIL,
)
"""Transforms that change the kind of object that an image is."""


@dataclass(frozen=True)
class Origin:
    """One transform that the user wrote, and the operations that it became."""

    transform: Callable[..., Any]
    ops: tuple[Operation, ...]
    converts: bool = False
    """Whether it changes what kind of object an image is (PIL image, array, tensor)."""


def lower(transform: Any) -> list[Origin]:
    """The transforms in the order they run, nested ones unpacked, each with its operations. Raises
    ConfigurationError: something that is not callable, such as a list; MixUp or CutMix, which do
    not work on single images."""
    return lower_all(transform, ImageState())


def lower_all(transform: Any, image: ImageState) -> list[Origin]:
    """As `lower`. `image`: the state of the image before, which is changed to the state after."""
    origins: list[Origin] = []
    for leaf in _leaves(transform):
        if not (image.cropped and _joins(origins, leaf, image)):
            image.cropped = False  # by a transform that takes all crops at once
            origins.append(lower_leaf(leaf, image))
    return origins


def _joins(origins: list[Origin], leaf: Any, image: ImageState) -> bool:
    """Whether a transform takes the crops that the last origin makes one by one, in the same way;
    the last origin makes then what comes after it."""
    # Of several plain tensors torchvision changes the first alone.
    if type(leaf) not in _EACH or image.pure:
        return False
    inside = replace(image, forked=False, cropped=False)
    origin = lower_leaf(leaf, inside)
    if any(op.is_opaque for op in origin.ops):
        return False
    vars(image).update(vars(inside), forked=True, cropped=True)
    crops = origins.pop()
    (views,) = crops.ops
    both = v2.Compose([crops.transform, leaf])
    each = (views.each_through(origin.ops),)
    origins.append(Origin(both, each, crops.converts or origin.converts))
    return True


def keeps_kind(transform: Any) -> bool:
    """Whether it surely gives a PIL image for a PIL image and a tensor for a tensor: torchvision's
    do, Lambda aside."""
    kind = type(transform)
    if (
        not kind.__module__.startswith("torchvision.transforms.")
        or kind in _CONVERSIONS
        or hasattr(transform, "lambd")
    ):
        return False
    return all(keeps_kind(inner) for inner in getattr(transform, "transforms", ()))


def known_kind(kind: type) -> type:
    """The type that a transform of this type may be taken for: its own, or that of the known one
    that it derives from without changing what that does."""
    for base in kind.__mro__:
        if lowering_of(base) is not None or base in _CONTAINERS:
            between = kind.__mro__[: kind.__mro__.index(base)]
            added: dict[str, Any] = {}
            for derived in between:
                added |= vars(derived)
            changed = any(
                name not in _HARMLESS and _changes(base, name, value)
                for name, value in added.items()
            )
            return kind if changed else base
    return kind


def _changes(base: type, name: str, value: Any) -> bool:
    """Whether a name that a derived class adds may change what the code of its base does: it is one
    of the base's, or of Python's, or makes an attribute that the base reads."""
    computed = hasattr(value, "__get__") and not isinstance(
        value, FunctionType | classmethod | staticmethod
    )
    return computed or hasattr(base, name) or (name.startswith("__") and name.endswith("__"))


class _PlainClass(ABC, Generic[TypeVar("T")]):  # type: ignore[misc]
    """All that Python itself adds to a class."""

    field: int


_HARMLESS = {*vars(_PlainClass), "__init__", "__repr__", "extra_repr"}
"""Names that a derived class may add: those of every class, and how an object is made and shown."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL = ("_global_forward_hooks", "_global_forward_pre_hooks")
"""Of `torch.nn.modules.module`, for all modules of the process."""


def is_untouched(thing: Any) -> bool:
    """Whether an object does what its class said when it was imported: no function is replaced in
    the object or in its class, and no hook of a torch module is set."""
    own = getattr(thing, "__dict__", {})
    if isinstance(thing, nn.Module) and (
        any(own.get(name) for name in _HOOKS)
        or any(getattr(nn.modules.module, name, None) for name in _HOOKS_OF_ALL)
    ):
        return False
    if any(callable(getattr(type(thing), name, None)) for name in own):
        return False
    return methods_are_as_defined(known_kind(type(thing)))


def _leaves(transform: Any) -> Iterator[Any]:
    if transform is None:
        return
    if _is_container(transform):
        for inner in transform if isinstance(transform, nn.Sequential) else transform.transforms:
            yield from _leaves(inner)
    elif not _is_registered(transform) and (inner := _delegate_of(transform)) is not None:
        yield from _leaves(inner)
    else:
        yield transform


def _is_registered(transform: Any) -> bool:
    """Whether there is an operation, or several, for transforms of its type."""
    return lowering_of(known_kind(type(transform))) is not None


def _delegate_of(transform: Any) -> Any:
    """The transform that it hands its image to, if it does nothing else; or None."""
    hooked = isinstance(transform, nn.Module) and not is_untouched(transform)
    return None if hooked else delegate_of(transform)


def _is_container(transform: Any) -> bool:
    """Whether it is torchvision's, and does to an image what those in it do, in their order."""
    if known_kind(type(transform)) not in _CONTAINERS or not is_untouched(transform):
        return False
    return isinstance(transform, nn.Sequential) or type(transform.transforms) in (
        list,
        tuple,
        nn.ModuleList,
    )


def lower_leaf(transform: Any, image: ImageState) -> Origin:
    """Lower a transform that is no container. `image`: the state of the image before it, which is
    changed to the state after it."""
    kind, was_tensor = known_kind(type(transform)), image.tensor
    if kind in _BATCH_ONLY:
        raise ConfigurationError(
            f"transform contains {kind.__name__}, which mixes the images of a batch; pass it "
            "as batch_transform."
        )
    if isinstance(transform, type) and transform.__module__.startswith("torchvision.transforms."):
        raise ConfigurationError(
            f"transform contains the class {transform.__name__}, which makes a transform; write "
            f"{transform.__name__}(...)."
        )
    if isinstance(transform, list | tuple):
        kinds = ", ".join(type(one).__name__ for one in transform)
        raise ConfigurationError(
            f"transform: a {type(transform).__name__} ({kinds}) may be steps, one after the other, "
            "or views of an image, one of each. Write v2.Compose([...]) of torchvision for steps, "
            "fastload.Views(...) for views."
        )
    if not callable(transform):
        raise ConfigurationError(
            f"transform contains {transform!r}, which is not callable; pass torchvision "
            "transforms, any callable on an image, or None."
        )
    lowering = lowering_of(kind)
    try:
        if image.forked:
            raise NotLowerableError(
                "it comes after Views and is given all of them; put it into each"
            )
        if lowering is None:
            raise NotLowerableError(_reason_unknown(transform))
        if not is_untouched(transform):
            raise NotLowerableError(
                "a hook is set on it or on all modules, or a method of it or of its class was "
                "replaced; take that back, and make a new one"
            )
        lowered = lowering(transform, image)
        if image.masks_left_alone and any(map(_changes_masks, lowered)):
            raise NotLowerableError(
                "it comes after v2.ToPureTensor, which has made plain tensors of masks and boxes, "
                "and does not change them; put ToPureTensor last"
            )
    except (NotLowerableError, ConfigurationError) as error:
        image.known = False
        opaque = Opaque(transform, str(error))
        return Origin(called_as(transform), (opaque,), kind in _CONVERSIONS)
    for op in lowered:
        image.dtype = op.output_dtype(image.dtype)
    if kind in _CONVERSIONS:
        # ToImage makes a tv_tensors.Image; what else makes a tensor of a PIL image, a plain one.
        image.pure = kind is not v2.ToImage and (
            image.pure or not was_tensor or kind is v2.ToPureTensor
        )
        image.tensor = kind not in _TO_PIL
        image.masks_left_alone |= kind is v2.ToPureTensor
    elif image.tensor and not was_tensor:
        image.pure = True
    converts = kind in _CONVERSIONS or image.tensor != was_tensor
    return Origin(called_as(transform), lowered, converts)


def _changes_masks(op: Operation) -> bool:
    return op.moves_pixels or op.only_columns or isinstance(op, MaskToDtype)


def _reason_unknown(transform: Any) -> str:
    kind = type(transform)
    for base in kind.__mro__[1:]:
        if lowering_of(base) is not None or base in _CONTAINERS:
            return (
                f"it is a subclass of {base.__name__} with code of its own, which may do something "
                f"else; use {base.__name__} itself"
            )
    if kind.__module__.startswith(("torchvision.", "albumentations.")):
        return "fastload has no batched form of it"
    attributes = _attributes_of(transform)
    if attributes:
        names = [f"x.{name}" for name in attributes]
        views = ", ".join(names if len(names) > 1 else names * 2)
        return (
            f"it has code of its own around transforms that fastload knows ({', '.join(names)}, x "
            "being this object); if it makes views of an image by them, write "
            f"fastload.Views({views}) in its place, one for each view; else give those transforms "
            "themselves"
        )
    if lowering_of(getattr(v2, kind.__name__, kind)) is not None:
        return (
            f"it is not torchvision's {kind.__name__}; use that one, or register an operation for "
            "it (fastload.recipe.register)"
        )
    return (
        "it is not a torchvision transform; leave it out, or register an operation for it "
        "(fastload.recipe.register)"
    )


def _attributes_of(transform: Any) -> dict[str, Any]:
    """The transforms that fastload knows among the attributes of an object, by name, those in lists
    included."""
    own = getattr(transform, "__dict__", {})
    attributes: dict[str, Any] = {}
    for name, value in {**own, **own.get("_modules", {})}.items():
        if isinstance(value, list | tuple | nn.ModuleList):
            attributes |= {f"{name}[{place}]": inner for place, inner in enumerate(value)}
        else:
            attributes[name] = value
    return {name: value for name, value in attributes.items() if _is_known(value)}


def _is_known(transform: Any) -> bool:
    return (
        _is_container(transform) or _is_registered(transform) or _delegate_of(transform) is not None
    )


def _to_pil_image(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    if not (image.known and image.dtype == torch.uint8 and transform.mode in (None, "RGB")):
        raise NotLowerableError("a conversion to a PIL image changes values here, or the mode")
    return ()


def _image_classification(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    interpolation = read_interpolation(transform.interpolation, image)
    antialias = read_antialias(transform.antialias, image)
    return (
        Resize(
            shorter=int(transform.resize_size[0]), interpolation=interpolation, antialias=antialias
        ),
        CenterCrop(read_pair(transform.crop_size)),
        ToDtype(torch.float32, scale=True),
        Normalize(read_floats(transform.mean), read_floats(transform.std)),
    )


register_lowering(
    "no operation",
    (v2.ToImage, v1.PILToTensor, v2.PILToTensor, v2.ToPureTensor, v2.Identity, nn.Identity),
    lambda transform, image: (),
)
register_lowering("no operation", (v1.ToPILImage, v2.ToPILImage), _to_pil_image)
register_lowering("four operations", (presets.ImageClassification,), _image_classification)
