"""An order that lets samples which lie side by side be read together, for data in a store, where a
request costs more than the bytes of a sample.

The data set is cut into blocks of consecutive samples, in each epoch at other places. The blocks
come in a random order, and this sequence is cut into as many lanes as the window says. A global
batch takes as many samples of each lane, one after the other, so that they come from as many blocks
as there are lanes, and all samples of a block within so many batches. A lane belongs to the same
rows of every global batch, so that one rank alone reads its blocks, and the batches do not depend
on how many ranks there are.

Lanes begin at different places of their first blocks. Otherwise all would come to the end of a
block in the same batch, and as many requests would be made at once. The first samples of each lane
are read without the rest of their block, so that the first batch does not wait for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

from fastload.errors import ConfigurationError, counted
from fastload.sampler.block_order import LEAST_WINDOW, BlockOrder
from fastload.sampler.order import EpochOrder, Int64Array, Ordering

ROW_GROUP = "row group"
"""Of `BlockShuffle.block`; also what `Ordering.knowing` asks for: the first samples of row
groups."""


@dataclass(frozen=True)
class BlockShuffle(Ordering):
    """A shuffle of blocks of neighbours: `create_loader(..., order=BlockShuffle())`.

    Raises:
        ConfigurationError: a number is none, or below 1.
    """

    block: int | Literal["row group"] = 32
    """Consecutive samples of the data set that are read together; "row group": those of each row
    group of Parquet files."""
    window: int | None = None
    """How many blocks the samples come from at the same time, over all ranks: a multiple of the
    global batch size, or a divisor of it that is a multiple of the number of ranks. None: the least
    multiple of the global batch size that is at least 64."""

    _values: Callable[[str], Int64Array] | None = field(
        default=None, kw_only=True, repr=False, compare=False
    )
    """See `Ordering.knowing`."""

    def __post_init__(self) -> None:
        for name, other in (("block", ROW_GROUP), ("window", None)):
            value: Any = getattr(self, name)
            number = isinstance(value, Integral) and not isinstance(value, bool)
            if not (number and value >= 1) and not (type(value) is type(other) and value == other):
                words = f", or {other!r}" if other else ""
                raise ConfigurationError(
                    f"order: {name} of a BlockShuffle must be an int of at least 1{words}, got "
                    f"{value!r}."
                )

    def knowing(
        self,
        sizes: Callable[[], Int64Array],
        values: Callable[[str], Int64Array] | None = None,
    ) -> Ordering:
        return replace(self, _values=values) if self.block == ROW_GROUP else self

    def applied_to(self, order: EpochOrder) -> EpochOrder:
        """The same samples in batches of the same size. Raises ConfigurationError: the window does
        not fit them, or the ranks are shared as a DistributedSampler does it."""
        order.require_own_share("order (BlockShuffle)")
        return order.in_blocks(self) or self.fitted(order)

    def fitted(self, order: EpochOrder) -> BlockOrder:
        """The order of all samples, shuffled so. Raises ConfigurationError: the window does not fit
        them."""
        whole, ranks = order.global_batch_size, order.shard.world_size
        window = -(-LEAST_WINDOW // whole) * whole if self.window is None else int(self.window)
        if window % whole and (whole % window or window % ranks):
            raise ConfigurationError(
                f"order: the window of a BlockShuffle must be a multiple of the global batch "
                f"size, {whole}, or a divisor of it that is a multiple of the "
                f"{counted(ranks, 'rank')}, got {window}. Leave it out, or give "
                f"{_nearest(window, whole, ranks)}."
            )
        settings: dict[str, Any] = {
            "shuffle": True,
            "drop_last": order.drop_last,
            "seed": order.seed,
            "window": window,
        }
        if self.block == ROW_GROUP:
            from fastload.sampler.row_groups import RowGroupOrder

            assert self._values is not None, "the loader says where row groups begin"
            begins = self._values(ROW_GROUP)
            return RowGroupOrder.of(order.length, order.batch_size, order.shard, begins, **settings)
        block = int(self.block)
        return BlockOrder(order.length, order.batch_size, order.shard, block=block, **settings)


def _nearest(window: int, whole: int, ranks: int) -> int:
    """The window that fits and is nearest."""
    above = -(-window // whole) * whole
    divisors = [each for each in range(ranks, whole, ranks) if whole % each == 0]
    return min([above, *divisors], key=lambda each: abs(each - window))
