"""The base classes of the operations of a recipe, and their registry.

An operation is a frozen dataclass whose fields have torchvision's names and meanings. No other code
of fastload has a list of operations; other packages add theirs with `register`. Sizes are (height,
width) in pixels; boxes and paddings are in pixels; probabilities in [0, 1]. Values that torchvision
would refuse at the first image raise ConfigurationError at construction.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import torch

from fastload.draws import BoolArray, Draws
from fastload.errors import ConfigurationError, counted
from fastload.geometry import GeometryPlan, Padding, Resampling
from fastload.geometry.plan import GeometryStep, WarpSampling
from fastload.geometry.points import PointMap
from fastload.modules import modules_in, text_of
from fastload.render.drawn import Conversion
from fastload.render.steps import Steps

Size = tuple[int, int]


def _whole(number: Any) -> int:
    if int(number) != number:
        raise NotLowerableError(f"{number!r} is no whole number")
    return int(number)


_NUMBERS: dict[Any, Callable[[Any], Any]] = {
    **dict.fromkeys((float, "float"), float),
    **dict.fromkeys((int, "int"), _whole),
    **dict.fromkeys((bool, "bool"), bool),
}
"""By the type of a field: it is a name where the annotations of its module are strings."""


@dataclass
class ImageState:
    """What is known of the image before the next transform."""

    tensor: bool = False
    """Whether it is a tensor. (Data sets give PIL images.)"""
    pure: bool = False
    """Whether such a tensor is a plain one, not a `tv_tensors.Image`."""
    masks_left_alone: bool = False
    """Whether masks and boxes are plain tensors, too, which torchvision leaves as they are."""
    dtype: torch.dtype = torch.uint8
    known: bool = True
    """False after an opaque transform."""
    forked: bool = False
    """Whether there are several views of it."""
    cropped: bool = False
    """Whether these are crops of it, in the same state, of which transforms take each."""


class NotLowerableError(Exception):
    """Why a transform of a known type has no equivalent operation: it then runs as the user wrote
    it."""


class Operation:
    """Base class; derive from `GeometryOperation` or `PixelOperation`. Subclasses are frozen
    dataclasses."""

    transforms: ClassVar[tuple[type, ...]] = ()
    """The types of transforms that `from_transform` takes; exactly these, because a subclass may do
    anything."""
    is_opaque: ClassVar[bool] = False
    """Whether only Python can run it, on one sample at a time."""
    moves_pixels: ClassVar[bool] = True
    """Whether it may move pixels. Boxes and points in the image must then be moved, too."""
    light: ClassVar[bool] = False
    """Whether it costs no more than a multiplication for each value."""
    drops_boxes: ClassVar[bool] = False
    """Whether its `move` drops boxes (`PointMap.dropping`)."""
    only_columns: ClassVar[bool] = False
    """Whether it leaves all pixels alone, and works on columns that go with the images, by
    `move`."""
    adds_columns: tuple[tuple[str, str], ...] = ()
    """Columns that batches get because of it: the name and the kind of each."""
    asks: ClassVar[str] = ""
    """The name of the transform that it is, where it `adds_columns`."""
    around_masks: tuple[float, float, float] | None = None
    """Boxes are to be put around masks, and objects dropped, as these numbers of
    `backends.around.Around` say. None: boxes stay as they are."""
    hides_points: ClassVar[bool] = False
    """Whether keypoints that leave the picture are to be no longer labelled."""
    takes_several: ClassVar[bool] = False
    """Whether it makes a sample of several images of the source (`fastload.recipe.composite`)."""
    loses_masks: ClassVar[str] = ""
    """Why masks cannot follow it; empty where `apply_to_masks` does what is right."""
    has_steps: ClassVar[bool] = False
    """Whether `colour_steps` says what it does to uint8 images of 1 or 3 channels. One kernel on a
    GPU, or the native core, then does it."""
    has_float_steps: ClassVar[bool] = False
    """Whether the native core does it to float32 images in host memory
    (`fastload.recipe.floats_by_core`)."""
    of_any_channels: ClassVar[bool] = False
    """Whether these steps are of images of any number of channels."""
    of_bytes: ClassVar[bool] = False
    """Whether it takes uint8 images alone."""
    of_any_size: ClassVar[bool] = False
    """Whether its steps are `ColourSteps` that do not depend on the size of images. As the first
    operations of a recipe such may be done to each image as a whole, before its geometry."""
    pointwise: ClassVar[bool] = False
    """Whether each output pixel depends on the same input pixel alone, in the same way for all
    pixels of a sample. Crops and flips that come after it may then run before it; no other
    operation that moves pixels may."""
    writes_places: ClassVar[bool] = False
    """Whether it only writes to some places of images, in place where they lie in the memory that
    `into` was given."""

    makes_views: ClassVar[bool] = False
    """Whether it is the last operation, and makes several images of one."""

    def paths(self, before: tuple[Operation, ...]) -> list[list[tuple[int, Operation]]]:
        """(stream, operation) of all that makes each view, those `before` it included."""
        return [list(enumerate((*before, self)))]

    def each_through(self, ops: tuple[Operation, ...]) -> Operation:
        """The same, followed by these operations on each image; where it `makes_views`."""
        raise NotImplementedError(f"{type(self).__name__} does not define each_through(ops)")

    @property
    def inner(self) -> tuple[Operation, ...]:
        """The operations that it is made of, of which a sample may go through some alone."""
        return ()

    @property
    def exchanges_sides(self) -> bool:
        """Whether it may mirror images, so that left and right change places."""
        return any(op.exchanges_sides for op in self.inner)

    @property
    def always_exchanges_sides(self) -> bool:
        """Whether it mirrors every image, once."""
        return False

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Operation | None:
        """The operation that does what a transform of one of the types in `transforms` does to an
        image in this state; None if it does nothing. To be defined, except where all settings are
        numbers, which the transform has under the same names.

        Raises:
            NotLowerableError: with these settings there is none; the message says why.
            ConfigurationError: it is to be defined.
        """
        settings = {}
        for one in dataclasses.fields(cls):  # type: ignore[arg-type]  # all of them are
            if one.type not in _NUMBERS or not hasattr(transform, one.name):
                raise _undefined(cls, transform, one.name)
            settings[one.name] = _NUMBERS[one.type](getattr(transform, one.name))
        return cls(**settings)

    def size_after(self, size: Size | None) -> Size | None:
        """(height, width) of what it makes of images of this size; None where images differ or it
        is not known. Raises ConfigurationError: it cannot be applied to images of this size."""
        return size

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise ConfigurationError if images of this dtype are refused."""
        if self.of_bytes and dtype != torch.uint8:
            raise ConfigurationError(
                f"{self.describe()} needs uint8 images, got {dtype}; put it before the ToDtype "
                "that converts them, or read images of 8 bits."
            )
        for op in self.inner:
            op.check_dtype(dtype)

    def output_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What images of `dtype` become."""
        return dtype

    def rescaling(self, dtype: torch.dtype) -> float | None:
        """For an operation that only converts images of `dtype` to another dtype: the number that
        it
        divides the values by. Geometry that comes after it may then run before it. None: it does
        more."""
        return None

    def fits_batches(self, size: Size | None) -> bool:
        """Whether it can work on batches of images of this size; None: they differ in size before
        it."""
        return True

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """Work on a batch.

        Args:
            images: (B, C, H, W), uint8 or floating point, in any memory format; not to be changed.
            draws: random numbers of the B samples: `draws.uniform(stream, count)`. What becomes of
                a sample may not depend on the others of its batch.
            stream: of this operation.

        Returns:
            (B, C', H', W'); may be `images` itself.

        Raises:
            ConfigurationError: it cannot take such images.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define apply(images, draws, stream)"
        )

    def into(self, out: torch.Tensor) -> Operation:
        """The same operation, whose result may be written to `out`, if it has its shape and dtype,
        and be that. Here: one that does not."""
        return self

    def reads_once(self, images: torch.Tensor) -> bool:
        """Whether `apply` has no intermediate results of these images: then a whole batch costs no
        more than its samples one by one."""
        return False

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        """What `apply` does to B uint8 images of this shape (C, H, W), as numbers; for operations
        that have steps. Raises ConfigurationError: it cannot take such images."""
        raise NotImplementedError(f"{type(self).__name__} has no steps")

    def conversion(self, channels: int) -> Conversion | None:
        """What `apply` does to uint8 images, where that is a multiplication, an addition and
        another dtype; else None."""
        return None

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """`apply` to the (B, 1, H, W) masks of the same samples. Here: masks stay as they are."""
        return masks

    @property
    def loses_points(self) -> str:
        """Why it is not known where it moves a point of an image; empty where `move` knows."""
        return f"{self.describe()} does not say where it puts pixels" if self.moves_pixels else ""

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        """Where points of the source images are after the operation, if `points` says where they
        are before; for operations that lose no points. Samples that it does not fit get any points:
        they fail where pixels are made."""
        return points

    def applied(self, p: float) -> Operation | None:
        """The operation that does this one with a probability, for `RandomApply`; None: there is no
        single one."""
        return None

    def fuse(self, following: Operation, dtype: torch.dtype) -> Operation | None:
        """One operation that does to images of `dtype` what this one and the following do, in one
        pass; or None. For operations without random numbers."""
        return None

    def describe(self) -> str:
        """The operation as one would write it: its first field, and what differs from the
        defaults."""
        shown = []
        for position, field in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]  # subclasses are
            value = getattr(self, field.name)
            if value != field.default or (position == 0 and value is not None):
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def identity(self) -> str:
        """Equal for equal operations in any process; part of saved states."""
        inside = type(self).__module__.startswith("fastload.recipe.")
        name = repr(self) if inside else f"{type(self).__module__}.{self!r}"
        # Fields that came later are not in `repr`: recipes without them keep their fingerprints.
        late = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are
            if not field.repr and field.compare and getattr(self, field.name) != field.default
        ]
        return " ".join([name, *late])

    def reason_not_placed(self, before: Operation | None) -> str:
        """Why it fits neither where images are decoded nor on batches. `before`: the operation
        before it."""
        after = "the source" if before is None else before.describe()
        return f"{self.describe()} (it comes after {after}, where images still differ in size)"


class PixelOperation(Operation):
    """Changes values of pixels and leaves them where they are. Define `apply`."""

    moves_pixels = False


class GeometryOperation(GeometryStep, Operation):
    """Moves pixels. Define `compose`; see `GeometryStep` for the defaults, which are those of a
    plain crop.

    It runs where images are decoded if it composes with the operations before it, and else on
    batches. In both cases `compose` draws its random numbers and makes its geometry, and the same
    code renders it.
    """

    @property
    def exchanges_sides(self) -> bool:
        return self.mirrors

    def size_after(self, size: Size | None) -> Size | None:
        if size is None or self.draws_size:
            return self.out_size
        # By resolving it, so that known sizes and sizes met at run time get the same verdict.
        geometry = self._plan(0).resolve(Draws(0, 0, np.zeros(1, dtype=np.int64)), np.array([size]))
        if geometry.errors:
            raise ConfigurationError(
                f"transform does not fit images of {size[0]}x{size[1]} pixels: {geometry.errors[0]}"
            )
        return int(geometry.out_sizes[0, 0]), int(geometry.out_sizes[0, 1])

    def fits_batches(self, size: Size | None) -> bool:
        """Only a batch of images of one size can be cut, padded or resized."""
        return self.mirrors or (size is not None and not self.draws_size)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        channels, padding = images.shape[1], self.padding_for(None) or Padding()
        if len(padding.fill) not in (1, channels):
            raise ConfigurationError(
                f"{type(self).__name__}(fill={padding.fill}) has "
                f"{counted(len(padding.fill), 'value')} for images of "
                f"{counted(channels, 'channel')}; give 1 or {channels}."
            )
        return self._render(images, draws, stream, self._plan(stream).resampling)

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self._render(masks, draws, stream, self._plan(stream).mask_resampling)

    @property
    def loses_points(self) -> str:
        padding = self.padding_for(None)
        if padding is None or padding.mode == "constant":
            return ""
        return f"{padding.mode!r} padding shows parts of an image more than once"

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        return self._moved(points, draws, stream, self.clipped_rows(points.sizes, draws, stream))

    def _moved(
        self, points: PointMap, draws: Draws, stream: int, applies: BoolArray | None
    ) -> PointMap:
        """`applies`: as of `PointMap.then`."""
        sizes = points.sizes
        geometry = self._plan(stream).resolve(draws, sizes, points.crops)
        exact = self.resampling is not None and self.resampling.of_masks == "nearest-exact"
        return points.then(geometry, clips=self.clips, applies=applies, exact=exact)

    @property
    def warp_samplings(self) -> tuple[WarpSampling, WarpSampling]:
        """How it makes the pixels of images and of masks, if it `warps`."""
        raise NotImplementedError(f"{type(self).__name__} does not define warp_samplings")

    def _render(
        self, pixels: torch.Tensor, draws: Draws, stream: int, resampling: Resampling
    ) -> torch.Tensor:
        from fastload.render.device import render_batch

        sizes = np.broadcast_to(np.array(pixels.shape[-2:]), (len(draws), 2))
        geometry = self._plan(stream).resolve(draws, sizes)
        if geometry.errors:
            raise ConfigurationError(next(iter(geometry.errors.values())))
        return render_batch(pixels, geometry, resampling)

    def _plan(self, stream: int) -> GeometryPlan:
        """Of this operation alone: the same boxes, windows, flips and pixels that a backend would
        make."""
        resampling, padding = self.resampling or Resampling(), self.padding_for(None) or Padding()
        return GeometryPlan(
            ((stream, self),),
            None,
            resampling.interpolation,
            resampling.antialias,
            *padding,
            mask_interpolation=resampling.of_masks,
        )


@dataclass(frozen=True)
class Opaque(Operation):
    """A transform that could not be lowered; runs one sample at a time in the `torch` backend."""

    is_opaque = True

    transform: Callable[[Any], Any]
    reason: str
    """Why it could not be lowered, for the error message and `explain()`."""

    def size_after(self, size: Size | None) -> Size | None:
        return None

    def fits_batches(self, size: Size | None) -> bool:
        return False

    def describe(self) -> str:
        return qualified_name(self.transform)

    @property
    def identity(self) -> str:
        return f"Opaque({qualified_name(self.transform)})"

    def reason_not_placed(self, before: Operation | None) -> str:
        return f"{qualified_name(self.transform)} ({self.reason})"


def qualified_name(transform: Any) -> str:
    """Module and name of a function, or of the class of an object: the same in every process."""
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"


Lowering: TypeAlias = Callable[[Any, ImageState], tuple[Operation, ...]]
_Registered = TypeVar("_Registered", bound=type[Operation])

_PACKAGES = {
    "timm": "fastload.recipe.of_timm",
    "albumentations": "fastload.recipe.of_albumentations",
}
"""By package, the module of ours that registers its transforms; imported when the first of them is
met."""

_lowerings: dict[type, tuple[str, Lowering]] = {}
"""By the exact type of a transform: the name of what it is lowered to, for messages, and the
function that does it."""
_callers: dict[type, Callable[[Any], Callable[..., Any]]] = {}
"""By a base class of transforms that do not take an image: a function that makes a callable of one
that does."""


def register(cls: _Registered) -> _Registered:
    """Make an operation known: from now on the transforms that it names are lowered to it. Use it
    as a decorator, above `@dataclass(frozen=True)`; CONTRIBUTING.md has an example.

    Raises:
        ConfigurationError: it is no frozen dataclass derived from Operation, names no transforms,
            or names one that belongs to another operation already.
    """
    name = getattr(cls, "__qualname__", repr(cls))
    parameters = getattr(cls, "__dataclass_params__", None)
    if (
        not (isinstance(cls, type) and issubclass(cls, Operation))
        or parameters is None
        or not parameters.frozen
    ):
        raise ConfigurationError(
            f"register({name}): an operation is a frozen dataclass derived from PixelOperation or "
            "GeometryOperation; put @dataclass(frozen=True) below @register."
        )
    if not cls.transforms:
        raise ConfigurationError(
            f"register({name}): `transforms` is empty; name the types that it is lowered from."
        )

    def lowering(transform: Any, image: ImageState) -> tuple[Operation, ...]:
        operation = cls.from_transform(transform, image)
        return () if operation is None else (operation,)

    register_lowering(name, cls.transforms, lowering)
    return cls


def register_lowering(name: str, transforms: tuple[type, ...], lowering: Lowering) -> None:
    """Have transforms of these exact types lowered by a function, to any number of operations."""
    for kind in transforms:
        _load_modules_of(kind)
        if kind in _lowerings:
            raise ConfigurationError(
                f"register({name}): {kind.__module__}.{kind.__qualname__} is lowered to "
                f"{_lowerings[kind][0]} already; "
                "register a transform class of your own."
            )
    _lowerings.update(dict.fromkeys(transforms, (name, lowering)))


def _undefined(cls: type, transform: Any, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"transform: {cls.__name__} does not say how it is made of {type(transform).__name__}: "
        f"without a from_transform each field must be a float, an int or a bool, which the "
        f"transform has under the same name, and {name!r} is none. Define "
        f"{cls.__name__}.from_transform(cls, transform, image)."
    )


class CopiedTransform:
    """What runs a copy of a transform: it does not see what is changed in that one later."""

    given: Any


def register_caller(base: type, caller: Callable[[Any], Callable[..., Any]]) -> None:
    """Wrap transforms of this type, and of types derived from it, before they are called:
    `caller(transform)` gives a callable that takes an image and its masks and returns them. For the
    last transform, the result of its method `as_last`, if it has one, is called in its place."""
    _callers[base] = caller


def called_as(transform: Any) -> Any:
    """The function that runs a transform as Python code: itself, unless a caller is registered for
    its type."""
    for base in type(transform).__mro__:
        _load_modules_of(base)
        if base in _callers:
            return _callers[base](transform)
    return transform


def lowering_of(kind: type) -> Lowering | None:
    """How transforms of exactly this type are lowered, or None."""
    _load_modules_of(kind)
    for module in _modules_by_name().get(_UNKNOWN, ()):
        importlib.import_module(module)
    known = _lowerings.get(kind)
    return None if known is None else known[1]


def _load_modules_of(kind: type) -> None:
    """Import the modules of ours that say that they lower transforms of a type."""
    package = kind.__module__.partition(".")[0]
    if package in _PACKAGES:
        importlib.import_module(_PACKAGES[package])
    for module in _modules_by_name().get(kind.__name__, ()):
        importlib.import_module(module)


_LOWERED = re.compile(
    r"\n(?:    transforms(?:: .+)? = |register_lowering\(\s*\"[^\"]*\",\s*)\(([^)]*)\)"
)
"""In the text of a module: the types that an operation names, or that `register_lowering` is given,
as in (v1.Resize, v2.Resize)."""
_UNKNOWN = "?"
"""In place of a name: of modules whose text is not there."""


@functools.cache
def _modules_by_name() -> dict[str, tuple[str, ...]]:
    """By the name of a class of transforms, the modules of this package that lower it, as they say
    in their text. Which is lowered by which is known by the types, once they are loaded."""
    modules: dict[str, tuple[str, ...]] = {}
    package = sys.modules[__name__.rpartition(".")[0]]
    for module in modules_in(package.__name__, package.__path__):
        text = "" if module in _PACKAGES.values() else text_of(module)
        types = [_UNKNOWN] if text is None else ", ".join(_LOWERED.findall(text)).split(",")
        for name in {each.rpartition(".")[2].strip() for each in types} - {""}:
            modules[name] = (*modules.get(name, ()), module)
    return modules
