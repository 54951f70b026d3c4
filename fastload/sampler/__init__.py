"""Which samples, in what order, on which rank: fastload's own order, that of a user's sampler, that
of a stream."""

from fastload.sampler.order import EndOfOrder, EpochOrder, Int64Array, Order, Shard, Tail
from fastload.sampler.users import BatchOrder, ForeignOrder, StreamOrder, UncountedOrder, has_length

__all__ = [
    "BatchOrder",
    "EndOfOrder",
    "EpochOrder",
    "ForeignOrder",
    "Int64Array",
    "Order",
    "Shard",
    "StreamOrder",
    "Tail",
    "UncountedOrder",
    "has_length",
]
