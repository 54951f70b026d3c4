"""The order of a mixture: samples of several components (the data sets of `fastload.mix`) by
weights, as a function of (seed, epoch, place).

An epoch has a fixed number of samples, and of each component a number by its share. `Merge` says
which component comes at a place, and how many of it before. Each component is gone through again
and again, each pass in an order of its own, and goes on in an epoch where it was left in the one
before: no sample comes twice before every other sample of its component has come once.

Nothing but a few stretches of the epoch under way is kept, whatever the number of samples.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, cast

import numpy as np

from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, StateMismatchError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sampler.block_order import BlockOrder
from fastload.sampler.blocks import ROW_GROUP, BlockShuffle
from fastload.sampler.merging import Merge
from fastload.sampler.order import EpochOrder, Int64Array, Position
from fastload.sampler.passes import Cell, MixtureEpoch, Repeats
from fastload.sampler.weights import Pieces, Weights, apportioned

Until = Literal["first_exhausted", "all_exhausted"] | int
# What may be another in a state that another mixture goes on from, by the keys of states.
_CHANGED = frozenset(
    ("source", "length", "mixture", "global_batch_size", "drop_last", "buckets", "cuts")
)


@dataclass(frozen=True)
class Mixture:
    """What a mixture is of, and how much of each there is."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Samples of each component."""
    weights: Weights
    until: Until = "first_exhausted"
    """When an epoch ends: when a component would begin its next pass; when all have been gone
    through; or after a number of samples."""
    homogeneous: bool = False
    """Whether each global batch is of one component."""
    fingerprints: tuple[str, ...] = ()
    """Of the components, for states."""
    goes_on: bool = False
    """Whether a state of another mixture is accepted, see `fastload.mix`."""

    @cached_property
    def starts(self) -> Int64Array:
        """(components,): the index of the first sample of each, in all of them together."""
        sizes = np.array(self.sizes, dtype=np.int64)
        return cast("Int64Array", np.cumsum(sizes) - sizes)

    def units(self, whole: int, *, drop_last: bool) -> int:
        """Samples of an epoch; where each global batch, of `whole` samples, is of one component,
        such batches. Raises ConfigurationError: there are none."""
        of_batches, until = self.homogeneous, self.until
        if isinstance(until, int):
            units = until // whole if of_batches else until
            why = f"until={until} is less than a global batch of {whole}"
        else:
            used = [(n, share) for n, share in enumerate(self.weights.exact()) if share]
            sizes = [self.sizes[n] // whole if of_batches else self.sizes[n] for n, _ in used]
            ends = [Fraction(size) / share for size, (_, share) in zip(sizes, used, strict=True)]
            first = until == "first_exhausted"
            units = ends[0].__floor__() if first else ends[0].__ceil__()
            for end in ends:
                units = min(units, end.__floor__()) if first else max(units, end.__ceil__())
            least = self.names[used[ends.index(min(ends))][0]]
            why = f"{least!r} has too few samples for its weight and a global batch of {whole}"
        if drop_last and not of_batches:
            units = units // whole * whole
        if units < 1:
            raise ConfigurationError(
                f"until: {why}, so that an epoch has no batch. Use a smaller batch_size, another "
                "weight, or until=<a number of samples>."
            )
        return units

    def order(self, order: EpochOrder) -> MixtureOrder:
        """The order of this mixture, in batches of the size of another one. Raises
        ConfigurationError: an epoch would have no batch, or the ranks are shared as a
        DistributedSampler does it."""
        order.require_own_share("weights (of fastload.mix)")
        made = MixtureOrder(
            order.length,
            order.batch_size,
            order.shard,
            shuffle=order.shuffle,
            drop_last=order.drop_last,
            seed=order.seed,
            tail="exact",
            mixture=self,
        )
        _ = made.units
        return made


@dataclass(frozen=True, eq=False)
class _Groups:
    """Samples in groups of which each epoch has as many: the buckets of `Buckets`."""

    which: Any
    """(length,): the group of each sample."""
    totals: Int64Array
    """(groups,): samples of each in an epoch."""
    cells: tuple[Cell, ...]
    component: tuple[int, ...]
    """(cells,)"""
    group: Int64Array
    """(cells,)"""
    expected: tuple[Fraction, ...]
    """(cells,): samples of each in an epoch, on average."""


@dataclass(frozen=True)
class MixtureOrder(EpochOrder):
    """The order of a mixture by weights."""

    weighted: ClassVar[bool] = True
    own_batches: ClassVar[bool] = True
    mixture: Mixture = field(kw_only=True)
    blocks: BlockShuffle | None = None
    """How the samples of a component are shuffled; None: all of them, or not at all."""
    groups: _Groups | None = field(default=None, repr=False, compare=False)
    _start: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """{"epoch": where counting began, "taken": samples of each cell before}; empty: at 0. Copies of
    this order, of other sizes of batches, have the same one."""
    _taken: dict[tuple[int, int], Int64Array] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """See `taken_before`; by the version of `_start`, and epoch."""

    @cached_property
    def units(self) -> int:
        """See `Mixture.units`."""
        return self.mixture.units(self.global_batch_size, drop_last=self.drop_last)

    @property
    def counted_by(self) -> Any:
        return self.units, self.unit, id(self.groups), self.by_step and self.global_batch_size

    @property
    def by_step(self) -> bool:
        return self.mixture.weights.by_step

    @property
    def samples(self) -> int:
        return self.units * self.unit

    @property
    def unit(self) -> int:
        """Samples of one component that come together: 1, or a global batch."""
        return self.global_batch_size if self.mixture.homogeneous else 1

    @property
    def sequential(self) -> bool:
        return False

    # -- What there is of each

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        if self.groups is not None:
            return self.groups.cells
        of = self.mixture
        parts = zip(of.names, of.sizes, of.starts.tolist(), strict=True)
        return tuple(Cell(name, size, start) for name, size, start in parts)

    @cached_property
    def seeds(self) -> list[int]:
        """Of each cell: by its name, so that others may come before it."""
        return [_seed_of(self.seed, cell.name) for cell in self.cells]

    def pieces(self, epoch: int) -> Pieces:
        """The shares over an epoch, of units."""
        if self.groups is not None:
            shares = np.array([float(e) for e in self.groups.expected])
            return Pieces(np.array([0.0, float(self.units)]), (shares / shares.sum())[None])
        in_step = self.global_batch_size // self.unit
        return self.mixture.weights.pieces(epoch, self.units, in_step)

    def counts(self, epoch: int) -> Int64Array:
        """(cells,): units of each in an epoch."""
        if self.groups is not None:
            return self._counts_in_groups(self.groups, epoch)
        weights = self.mixture.weights
        if weights.constant is not None:
            return self._constant_counts
        pieces = self.pieces(epoch)
        parts = np.diff(pieces.edges)[:, None] * pieces.shares
        # A product of matrices is rounded otherwise by other processors.
        return apportioned([math.fsum(column) for column in parts.T.tolist()], self.units)

    @cached_property
    def _constant_counts(self) -> Int64Array:
        return apportioned(self.mixture.weights.exact(), self.units)

    def _counts_in_groups(self, groups: _Groups, epoch: int) -> Int64Array:
        """Of each group its cells get together what the group has; each gets what it has on
        average, rounded up or down so that it has that over all epochs (systematic sampling; W.
        Madow, 1949)."""
        starts = Draws(self.seed, epoch, np.arange(len(groups.totals))).uniform(
            Stream.MIXTURE_ORDER, 1
        )[:, 0]
        counts = np.zeros(len(groups.cells), dtype=np.int64)
        for number, start in enumerate(starts.tolist()):
            cells = np.flatnonzero(groups.group == number)
            sums = [Fraction(0)]
            for cell in cells.tolist():
                sums.append(sums[-1] + groups.expected[cell])
            begin = Fraction(start)
            points = np.array([max(0, (end - begin).__ceil__()) for end in sums])
            counts[cells] = np.diff(points)
        return counts

    def taken_before(self, epoch: int) -> Int64Array:
        """(cells,): samples of each that came in the epochs before."""
        begin = self._start.get("epoch", 0)
        zero: Int64Array = self._start.get("taken", np.zeros(len(self.cells), dtype=np.int64))
        if epoch <= begin:
            return zero
        if self.groups is None and self.mixture.weights.constant is not None:
            return cast("Int64Array", zero + (epoch - begin) * self.unit * self._constant_counts)
        version = self._start.get("version", 0)
        # A copy, as another thread may write.
        done = (e for v, e in list(self._taken) if v == version and begin < e <= epoch)
        known = max(done, default=begin)
        taken = self._taken.get((version, known), zero)
        for before in range(known, epoch):
            taken = taken + self.unit * self.counts(before)
        self._taken[version, epoch] = taken
        return taken

    def taken_at(self, epoch: int, step: int) -> Int64Array:
        """(cells,): samples of each that came before a step of an epoch."""
        place = min(step * self.global_batch_size, self.samples)
        merge = self.merge(epoch)
        within = self.unit * merge.counts_before(place // self.unit)
        return self.taken_before(epoch) + within

    def merge(self, epoch: int) -> Merge:
        shift = 0
        if not self.mixture.weights.by_step:
            drawn = Draws(self.seed, epoch, np.zeros(1, dtype=np.int64)).uniform(Stream.MIXTURE, 1)
            shift = int(drawn[0, 0] * self.units)
        return Merge(self.counts(epoch), self.seeds, epoch, self.pieces(epoch), shift)

    # -- The order

    def epoch(self, epoch: int) -> Int64Array:
        # Who asks for parts gets arrays.
        return cast("Int64Array", MixtureEpoch(self.samples, self, epoch))

    @property
    def repeating(self) -> bool:
        if self.groups is not None or self.mixture.weights.constant is None:
            return True
        each = zip((self._constant_counts * self.unit).tolist(), self.mixture.sizes, strict=True)
        # Where epochs divide a pass evenly, none has the end of one and the beginning of the next.
        odd = any(count and size % count for count, size in each)
        return odd or bool(np.any(self._start.get("taken", 0)))

    def repeats(self, indices: Int64Array) -> Int64Array | None:
        if not self.repeating:
            return None
        order: Any = indices
        if isinstance(order, MixtureEpoch):
            return cast("Int64Array", Repeats(order.length, order))
        return super().repeats(indices)

    def in_blocks(self, blocks: BlockShuffle) -> MixtureOrder:
        if blocks.block == ROW_GROUP:
            raise ConfigurationError(
                f"order: a BlockShuffle of blocks of a {blocks.block!r} is for one data set, and "
                "this is a mix; give a number of samples."
            )
        # As of all samples: raises what does not fit.
        plain = EpochOrder(self.length, self.batch_size, self.shard, seed=self.seed)
        fitting = blocks.fitted(plain)
        settled = replace(blocks, block=fitting.block, window=fitting.window)
        return replace(self, shuffle=True, blocks=settled)

    def in_groups(self, which: Any, count: int) -> MixtureOrder:
        of = self.mixture
        if of.homogeneous or of.weights.constant is None:
            what = "homogeneous=True" if of.homogeneous else "weights that change"
            raise ConfigurationError(
                f"order: beside Buckets a mix cannot have {what}: the batches of all buckets come "
                "in an order of their own. Leave one of the two out."
            )
        expected: dict[tuple[int, int], Fraction] = {}
        members: dict[tuple[int, int], Int64Array] = {}
        wanted = self._constant_counts.tolist()
        parts = zip(wanted, of.sizes, of.starts.tolist(), strict=True)
        for component, (samples, size, start) in enumerate(parts):
            here = np.asarray(which[start : start + size])
            by_group = np.argsort(here, kind="stable")
            ends = np.cumsum(np.bincount(here, minlength=count))
            for group, mine in enumerate(np.split(by_group, ends[:-1])):
                if len(mine) and samples:
                    members[component, group] = start + mine.astype(np.int64)
                    expected[component, group] = Fraction(samples * len(mine), size)
        sums = [
            sum((e for (_, g), e in expected.items() if g == n), Fraction(0)) for n in range(count)
        ]
        totals = apportioned(sums, self.units)
        scaled = [e * int(totals[g]) / sums[g] for (_, g), e in expected.items()]
        cells = tuple(
            Cell(f"{of.names[component]}/{group}", len(mine), 0, mine)
            for (component, group), mine in members.items()
        )
        components, numbers = zip(*expected, strict=True)
        groups = _Groups(which, totals, cells, components, np.array(numbers), tuple(scaled))
        return replace(self, groups=groups)

    def group_counts(self, which: Any, count: int) -> Int64Array:
        if self.groups is not None and self.groups.which is which:
            return self.groups.totals
        return super().group_counts(which, count)

    # -- Neighbours that are read together

    def block_order(self, cell: int) -> BlockOrder:
        """That of the passes of a cell, where samples are shuffled in blocks."""
        assert self.blocks is not None
        assert self.blocks.window is not None
        return BlockOrder(
            self.cells[cell].size,
            self.batch_size,
            self.shard,
            shuffle=True,
            seed=self.seeds[cell],
            block=int(self.blocks.block),
            window=self.blocks.window,
        )

    @property
    def groups_in_use(self) -> int:
        """All ranks need samples of each block."""
        if self.blocks is None:
            return 0
        return len(self.cells) * int(self.blocks.window or 0)

    @property
    def group_size(self) -> int:
        return 0 if self.blocks is None else int(self.blocks.block)

    def neighbours(self, epoch: int, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        owner, places, _ = self._neighbours(epoch, positions)
        return owner, places

    def _neighbours(
        self, epoch: int, positions: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """`neighbours`, and the samples."""
        whole = MixtureEpoch(self.samples, self, epoch)
        merge, taken = whole.merge, whole.taken
        mine = self.unit * merge.counts
        component, ordinal = whole.parts(positions)
        owners, places, samples, first = [], [], [], 0
        for number in np.unique(component).tolist():
            order, cell = self.block_order(number), self.cells[number]
            count, within = np.divmod(taken[number] + ordinal[component == number], cell.size)
            for passed in np.unique(count).tolist():
                owner, at = order.neighbours(passed, within[count == passed])
                there = passed * cell.size + at - taken[number]
                inside = (there >= 0) & (there < mine[number])
                owner, at, there = owner[inside], at[inside], there[inside]
                units, rest = np.divmod(there, self.unit)
                place = merge.place_of(np.full_like(units, number), units) * self.unit + rest
                owners.append(owner + first)
                places.append(place)
                samples.append(cell.samples(order.computed(passed).at(at)))
                first += int(owner.max(initial=-1)) + 1
        return np.concatenate(owners), np.concatenate(places), np.concatenate(samples)

    def together(
        self, epoch: int, step: int, since: int, indices: Int64Array
    ) -> Sequence[Int64Array]:
        positions = self.batch(step)
        if self.blocks is None or not len(positions):
            return ()
        owner, at, samples = self._neighbours(epoch, positions)
        whole, world = self.global_batch_size, self.shard.world_size
        steps, rest = np.divmod(at, whole)
        sizes = np.minimum(whole, self.samples - steps * whole)
        mine = ((rest + 1) * world - 1) // sizes == self.shard.rank
        mine &= steps >= since
        owner, steps, samples = owner[mine], steps[mine], samples[mine]
        first = np.full(int(owner.max(initial=-1)) + 1, self.steps)
        np.minimum.at(first, owner, steps)
        groups = [samples[owner == one] for one in np.flatnonzero(first == step)]
        return [group for group in groups if len(group) > 1]

    # -- States

    def reproducible(self) -> dict[str, Any]:
        of = self.mixture
        mixture: dict[str, Any] = {
            "components": dict(zip(of.names, of.fingerprints, strict=False)),
            "weights": of.weights.reproducible(),
            "samples": self.samples,
            "homogeneous": of.homogeneous,
        }
        if self.blocks is not None:
            mixture |= {"block": self.blocks.block, "window": self.blocks.window}
        # One text: torch.distributed.checkpoint loads the keys that a new loader has, and another
        # mix has other names.
        return super().reproducible() | {"order": "mixture", "mixture": json.dumps(mixture)}

    @property
    def may_differ(self) -> frozenset[str]:
        return _CHANGED if self.mixture.goes_on else frozenset()

    def carried(self, epoch: int, step: int) -> str:
        return json.dumps(
            {
                "began": self._began,
                "before": self._named(self.taken_before(self._began)),
                "taken": self._named(self.taken_at(epoch, step)),
                "at": [epoch, step],
                "of": self._identities,
            }
        )

    @property
    def _began(self) -> int:
        return int(self._start.get("epoch", 0))

    @cached_property
    def _identities(self) -> dict[str, str]:
        """Of each cell: by what its samples are known."""
        known = dict(zip(self.mixture.names, self.mixture.fingerprints, strict=True))
        in_groups = "" if self.groups is None else fingerprint_of(np.asarray(self.groups.which))
        return {
            cell.name: f"{known[self.mixture.names[number]]}{in_groups}"
            for number, cell in zip(self._components, self.cells, strict=True)
        }

    @property
    def _components(self) -> list[int]:
        """The component of each cell."""
        if self.groups is None:
            return list(range(len(self.cells)))
        return list(self.groups.component)

    def _named(self, taken: Int64Array) -> dict[str, int]:
        return {cell.name: count for cell, count in zip(self.cells, taken.tolist(), strict=True)}

    def go_on(self, carried: Any, place: Position, *, changed: bool) -> Position:
        epoch, step = place
        began, before, taken, of, at = _read(carried)
        if at not in (place, (epoch, 0), (epoch + 1, 0)):
            raise StateMismatchError(
                f"state: it is of epoch {epoch}, step {step}, and says how far the sources of the "
                f"mix were read at {at}. Pass what Loader.state_dict() returned."
            )
        if not changed:
            tried = replace(self, _start={})
            tried._begin(began, before)
            if tried._named(tried.taken_at(*at)) != taken:
                raise StateMismatchError(
                    "state: the weights of this mix, by a function of the epoch, are others than "
                    "those of the epochs before it, so that it is not known which samples are "
                    "left. Give the same function, or fastload.mix(..., goes_on=True)."
                )
            self._begin(began, before)
            return place
        if step and at == (epoch, 0):
            raise StateMismatchError(
                "state: it was taken in the middle of an epoch of Buckets, Budget or Packed, of a "
                "mix that has changed since: which samples were taken is not known. Take states "
                "to be changed between two epochs."
            )
        kept = {
            name: count
            for name, count in taken.items()
            if self._identities.get(name) == of.get(name)
        }
        epoch = at[0] + (at[1] > 0)
        self._begin(epoch, kept)
        return epoch, 0

    def _begin(self, epoch: int, taken: Mapping[str, int]) -> None:
        """Count from an epoch on, before which so many samples of each cell were taken; of cells
        that are not named none."""
        counts = np.array([taken.get(cell.name, 0) for cell in self.cells], dtype=np.int64)
        version = self._start.get("version", 0) + 1
        self._start.update(epoch=epoch, taken=counts, version=version)

    # -- For a person

    @property
    def _kind(self) -> str:
        each = f"mixed by weights ({self.mixture.weights.describe()})"
        if self.mixture.homogeneous:
            each += ", each batch of one source"
        if self.blocks is not None:
            return f"{each}, shuffled in blocks of {counted(int(self.blocks.block), 'sample')}"
        return f"{each}, shuffled" if self.shuffle else each

    def explain(self) -> str:
        counts = self._constant_counts if self.mixture.weights.constant is not None else None
        rows = [self.describe()]
        for number, name in enumerate(self.mixture.names):
            size = self.mixture.sizes[number]
            row = f"{name}: {counted(size, 'sample')}"
            if counts is not None:
                mine = int(counts[number]) * self.unit
                row += f", {mine:,} in an epoch: {mine / size:.3g} of a pass"
            rows.append(row)
        return "\n".join(rows)


def _seed_of(seed: int, name: str) -> int:
    """64 bits."""
    digest = hashlib.blake2b(f"{seed} {name}".encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def _read(carried: Any) -> tuple[int, dict[str, int], dict[str, int], dict[str, str], Position]:
    """What `MixtureOrder.carried` has written. Raises StateMismatchError: it is something else."""
    try:
        given = json.loads(carried)
        began, of = given["began"], given["of"]
        before, taken = given["before"], given["taken"]
        epoch, step = given["at"]
        good = all(type(n) is int and 0 <= n < 1 << 32 for n in (began, epoch, step))
        for counts in (before, taken):
            good = good and all(type(n) is int and 0 <= n < 1 << 62 for n in counts.values())
        if good and all(type(one) is str for one in of.values()):
            return began, before, taken, of, (epoch, step)
    except (TypeError, ValueError, KeyError, AttributeError):
        pass
    raise StateMismatchError(
        f"state: it does not say how far the sources of the mix were read, got {carried!r:.80}. "
        "Pass what Loader.state_dict() returned."
    )
