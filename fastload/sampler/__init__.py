"""Which samples, in what order, on which rank: fastload's own order, that of a user's sampler, that
of a stream."""

from fastload.sampler.block_order import BlockOrder
from fastload.sampler.blocks import BlockShuffle
from fastload.sampler.feedback import FeedbackOrder, UncountedOrder
from fastload.sampler.order import (
    Compared,
    EndOfOrder,
    EpochOrder,
    Int64Array,
    Order,
    Ordering,
    Position,
    Schedule,
    Shard,
    ShardHere,
    Shuffle,
    Tail,
)
from fastload.sampler.placement import NodePlacement, PlacedOrder
from fastload.sampler.users import (
    ForeignOrder,
    StreamOrder,
    announce_epoch,
    has_length,
    is_seeded_here,
    never_looks,
    size_said_by,
)

__all__ = [
    "BlockOrder",
    "BlockShuffle",
    "Compared",
    "EndOfOrder",
    "EpochOrder",
    "FeedbackOrder",
    "ForeignOrder",
    "Int64Array",
    "NodePlacement",
    "Order",
    "Ordering",
    "PlacedOrder",
    "Position",
    "Schedule",
    "Shard",
    "ShardHere",
    "Shuffle",
    "StreamOrder",
    "Tail",
    "UncountedOrder",
    "announce_epoch",
    "has_length",
    "is_seeded_here",
    "never_looks",
    "size_said_by",
]
