"""What the native core is told of a plan: how pixels are made, and, where it can, how boxes are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastload.draws import Draws
from fastload.geometry import Geometry, GeometryPlan, Interpolation, PaddingMode, Resampling
from fastload.geometry.boxes import Composition
from fastload.native import available, load

if TYPE_CHECKING:
    from fastload.native import _core

_FILTERS: dict[Interpolation, int] = {"nearest": 0, "nearest-exact": 1, "bilinear": 2, "bicubic": 3}
_PADDINGS: dict[PaddingMode, int] = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}


def native_resampling(resampling: Resampling) -> _core.Resampling:
    """The same for the extension."""
    fill = [min(max(round(value), 0), 255) for value in resampling.fill]
    fill = fill * 4 if len(fill) == 1 else [*fill, 0, 0, 0]
    kind: type[_core.Resampling] = load().Resampling
    red, green, blue, alpha = fill[:4]
    filter_code, padding_code = _FILTERS[resampling.interpolation], _PADDINGS[resampling.padding_mode]
    return kind(filter_code, resampling.antialias, padding_code, (red, green, blue, alpha))


@dataclass(frozen=True)
class FusedGeometry:
    """A plan and its draws, resolved by the core itself as soon as it knows the size of an image. Made by `fuse`."""

    native: _core.Geometries
    resamples: bool
    """Whether boxes are resampled to another size."""
    bicubic: npt.NDArray[np.bool_] | None = None
    """As of a `Geometry`."""

    def __len__(self) -> int:
        return len(self.native)

    def resolve(self, sizes: npt.NDArray[np.int64]) -> Geometry:
        """What the core will do for images of these (B, 2) sizes; the same pixels as of `GeometryPlan.resolve`."""
        out = np.empty((len(self), 12), dtype=np.int32)
        self.native.resolve(np.ascontiguousarray(sizes, dtype=np.int64), out)
        return Geometry(out[:, :4], out[:, 4:6], out[:, 6:10], out[:, 10:].astype(np.bool_), bicubic=self.bicubic)


def fuse(plan: GeometryPlan, draws: Draws) -> FusedGeometry | None:
    """Let the core turn draws into boxes itself, so that a file is opened once.

    Returns:
        None where the core does not know the plan: then read the headers, `resolve`, and give the `Geometry`. It knows
        whole images, RandomCrop with padding, RandomResizedCrop, and Resize with or without CenterCrop, each followed
        by any flips.
    """
    ops = list(plan.ops)
    mirrored = Composition(np.ones((len(draws), 2), dtype=np.int64))
    while ops and ops[-1][1].mirrors:
        stream, flip = ops.pop()
        flip.compose(mirrored, draws.uniform(stream, flip.uniforms))
    flips = np.ascontiguousarray(mirrored.mirror[:, ::-1])
    core: type[_core.Geometries] = load().Geometries
    if not ops:
        return FusedGeometry(core.whole(flips), resamples=False)
    (stream, first), *rest = ops
    then = tuple(op for _, op in rest)
    uniforms = draws.uniform(stream, first.uniforms or 1)
    geometries = first.native(core, uniforms, flips, then)
    return None if geometries is None else FusedGeometry(geometries, plan.resamples, first.bicubic_rows(uniforms))


def resolve(plan: GeometryPlan, draws: Draws, sizes: npt.NDArray[np.int64]) -> Geometry:
    """`plan.resolve(draws, sizes)` in one call of the core, where it is built and knows the plan; the same pixels."""
    if available():
        fused = fuse(plan, draws)
        geometry = None if fused is None else fused.resolve(sizes)
        # A size of 0: the plan cannot be applied to some image. Python has the words for it.
        if geometry is not None and geometry.size.all():
            return geometry
    return plan.resolve(draws, sizes)
