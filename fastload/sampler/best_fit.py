"""Rows of a fixed length, filled by best fit: of sequences, from the longest on, each goes into the
row that it leaves the least of, or into a new one (best fit decreasing; D. Johnson, "Near-optimal
bin packing algorithms", 1973: 11/9 of the fewest rows that there can be, and four, at most).

Sequences of one length are placed together. The row that the first of them fits best is, as long
as another one fits, the best for the next: what is left of it has become less. So each row is
filled in turn, and rows of which as much is left are filled at once. That takes some steps for each
length, however many sequences have it.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from fastload.draws import Int64Array


def best_fit(lengths: Int64Array, capacity: int) -> Int64Array:
    """(n,) the row of each sequence, numbered from 0; those of one row have at most `capacity`
    together.

    Args:
        lengths: (n,) int64, each 0 to `capacity`. Of two as long the first one is placed first.
    """
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order]
    begins = np.flatnonzero(np.r_[True, sizes[1:] != sizes[:-1]])[: len(sizes)]
    ends = np.r_[begins[1:], len(sizes)][: len(begins)]
    placed = np.empty(len(lengths), dtype=np.int64)
    rows = 0
    left: dict[int, list[Int64Array]] = {}
    """By how much is left of them, of which no row is without: parts of arrays of rows."""
    lefts: list[int] = []
    """The keys of `left`, ascending."""

    def keep(rest: int, some: Int64Array) -> None:
        if rest not in left:
            insort(lefts, rest)
            left[rest] = []
        left[rest].append(some)

    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        size = int(sizes[begin])
        if size == 0:  # no room is needed
            rows = max(rows, 1)
            placed[order[begin:end]] = 0
            break
        while begin < end:
            at = bisect_left(lefts, size)
            fresh = at == len(lefts)
            rest = capacity if fresh else lefts[at]
            each = rest // size
            if fresh:
                count = -(-(end - begin) // each)
                some = np.arange(rows, rows + count)
                rows += count
            else:
                some = left[rest].pop()
                if not left[rest]:
                    del left[rest], lefts[at]
            full = min(len(some), (end - begin) // each)
            if full:
                placed[order[begin : begin + full * each]] = np.repeat(some[:full], each)
                begin += full * each
                if rest > each * size:
                    keep(rest - each * size, some[:full])
            some = some[full:]
            if len(some) and begin < end:  # fewer sequences than fit into one row
                placed[order[begin:end]] = some[0]
                keep(rest - (end - begin) * size, some[:1])
                begin, some = end, some[1:]
            if len(some):
                keep(rest, some)
    return placed
