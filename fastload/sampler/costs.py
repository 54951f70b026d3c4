"""What each sample costs, as whole numbers: pixels, tokens, whatever the time or memory of a step
follows.

Sums of whole numbers are the same on every machine and in every order, which those of
floating-point numbers are not: all ranks come to the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import ConfigurationError, counted
from fastload.sampler.nested import NestedOrdering
from fastload.sampler.order import EpochOrder, Int64Array, Ordering

PIXELS = "pixels"
"""The cost of an image by its size."""
_MOST = 1 << 40
"""The highest cost of a sample, so that no sum of a million overflows."""
_FRACTIONS = 1 << 30
"""What the highest of costs that are no whole numbers becomes."""


@dataclass(frozen=True)
class CostedOrdering(NestedOrdering):
    """An order that needs to know what each sample costs."""

    cost: str | npt.ArrayLike | Callable[[Int64Array], Any] = field(default=PIXELS, kw_only=True)
    """What each sample costs: "pixels", height x width by the headers; the name of a column of
    numbers, or of rows of variable length, such as tokens, whose lengths count (of a text its bytes
    in UTF-8); (samples,) numbers; or a function that gives them for (samples,) indices."""
    _sizes: Callable[[], Int64Array] | None = field(
        default=None, kw_only=True, repr=False, compare=False
    )
    _values: Callable[[str], Int64Array] | None = field(
        default=None, kw_only=True, repr=False, compare=False
    )
    """See `Ordering.knowing`."""

    def knowing(
        self,
        sizes: Callable[[], Int64Array],
        values: Callable[[str], Int64Array] | None = None,
    ) -> Ordering:
        inner = None if self.order is None else self.order.knowing(sizes, values)
        return replace(self, order=inner, _sizes=sizes, _values=values)

    def _costs(self, order: EpochOrder, *, whole: bool) -> Int64Array:
        """(samples,) int64. `whole`: whether only whole numbers will do. Raises ConfigurationError:
        they are none, or not one for each sample."""
        given, name = self.cost, type(self).__name__
        if isinstance(given, str) and given == PIXELS:
            assert self._sizes is not None, "the loader says the sizes"
            costs: Any = self._sizes().prod(axis=1)
        elif isinstance(given, str):
            assert self._values is not None, "the loader says the values"
            costs = self._values(given)
        elif callable(given):
            costs = np.asarray(given(np.arange(order.length, dtype=np.int64)))
        else:
            costs = np.asarray(given)
        said = repr(given) if isinstance(given, str) else getattr(given, "__name__", "the array")
        if costs.shape != (order.length,) or costs.dtype.kind not in "iuf":
            raise ConfigurationError(
                f"order: cost of {name} must be a number for each of "
                f"{counted(order.length, 'sample')}, and {said} gives {costs.dtype} of shape "
                f"{costs.shape}."
            )
        good = np.isfinite(costs) & (costs >= 0) & (costs <= _MOST)
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            raise ConfigurationError(
                f"order: costs of {name} must be from 0 to 2**40, and {said} gives {costs[at]} for "
                f"sample {at}."
            )
        if len(costs) and not costs.any():
            raise ConfigurationError(
                f"order: all costs of {name} are 0 by {said}, so that nothing can be made equal; "
                "give others."
            )
        if costs.dtype.kind != "f":
            return np.asarray(costs, dtype=np.int64)
        if (costs == np.floor(costs)).all():
            return np.asarray(costs, dtype=np.int64)
        if whole:
            raise ConfigurationError(
                f"order: costs of {name} must be whole numbers, and {said} gives fractions; round "
                "them up."
            )
        return np.asarray(np.rint(costs * (_FRACTIONS / costs.max())), dtype=np.int64)
