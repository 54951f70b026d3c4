"""JPEGs of any sampling in any order of scans, written from coefficients: encoders write only some.

The entropy coding is that of ITU-T T.81, annexes F (sequential) and G (progressive).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Coefficients = npt.NDArray[np.int64]
"""Of a component: (rows of blocks, blocks in a row, 64) in zigzag order, whole MCUs."""

SAMPLINGS: dict[str, tuple[tuple[int, int], ...]] = {
    "grey": ((1, 1),),
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
}
"""Blocks of each component in a MCU, across and down."""


@dataclass(frozen=True)
class Scan:
    components: tuple[int, ...]
    first: int = 0
    last: int = 63
    high: int = 0
    low: int = 0


@dataclass(frozen=True)
class Picture:
    height: int
    width: int
    sampling: tuple[tuple[int, int], ...]
    coefficients: list[Coefficients]


def noise(height: int, width: int, sampling: str, rng: np.random.Generator) -> Picture:
    """Random blocks: some with every coefficient, some with a few, some with none."""
    factors = SAMPLINGS[sampling]
    across, down = (max(factor[i] for factor in factors) for i in (0, 1))
    columns, rows = -(-width // (8 * across)), -(-height // (8 * down))
    planes = []
    for h, v in factors:
        shape = (rows * v, columns * h)
        share = rng.choice([0.0, 0.05, 0.3, 0.9], (*shape, 1))
        size = 60.0 / (1 + np.arange(64)) * rng.choice([0.3, 2.0], (*shape, 1))
        plane = np.rint(rng.standard_normal((*shape, 64)) * size).astype(np.int64)
        plane[rng.random((*shape, 64)) > share] = 0
        plane[..., 0] = np.clip(rng.normal(0, 40, shape), -120, 120).astype(np.int64)
        planes.append(plane)
    return Picture(height, width, factors, planes)


def transformed(plane: npt.NDArray[np.float64], quantiser: int) -> Coefficients:
    """Of values from -128 to 127 (whole blocks), by T.81's equation A.3.3, quantised."""
    k = np.arange(8)
    cosines = np.cos((2 * k[None, :] + 1) * k[:, None] * np.pi / 16) / 2
    cosines[0] /= np.sqrt(2)
    rows, columns = (size // 8 for size in plane.shape)
    blocks = plane.reshape(rows, 8, columns, 8).swapaxes(1, 2)
    made = np.rint(cosines @ blocks @ cosines.T / quantiser).astype(np.int64)
    # Diagonals, of which each second one is walked upwards (T.81, figure 5).
    zigzag = sorted(np.ndindex(8, 8), key=lambda at: (sum(at), at[0] if sum(at) % 2 else at[1]))
    down, across = np.array(zigzag).T
    return made[..., down, across]


def script(components: int, rng: np.random.Generator) -> list[Scan]:
    """Scans of a progressive file: bands and bits of each component cut at random, in any order in
    which each has what it builds on."""
    together = bool(rng.random() < 0.5)
    groups = [tuple(range(components))] if together else [(i,) for i in range(components)]
    chains = []
    for group in groups:
        low = int(rng.integers(0, 4))
        chains.append([Scan(group, 0, 0, 0, low)])
        chains[-1] += [Scan(group, 0, 0, bit + 1, bit) for bit in reversed(range(low))]
    after = [next(k for k, group in enumerate(groups) if i in group) for i in range(components)]
    started = [False] * len(chains)
    waiting: list[tuple[int, list[Scan]]] = [(-1, chain) for chain in chains]
    for i in range(components):
        cuts = sorted(rng.choice(np.arange(2, 64), int(rng.integers(0, 4)), replace=False))
        for first, stop in zip([1, *cuts], [*cuts, 64], strict=True):
            low = int(rng.integers(0, 4))
            band = [Scan((i,), int(first), int(stop) - 1, 0, low)]
            band += [
                Scan((i,), int(first), int(stop) - 1, bit + 1, bit) for bit in reversed(range(low))
            ]
            waiting.append((after[i], band))
    scans = []
    while waiting:
        ready = [k for k, (needs, _) in enumerate(waiting) if needs < 0 or started[needs]]
        chosen = int(rng.choice(ready))
        chain = waiting[chosen][1]
        scans.append(chain.pop(0))
        for k, known in enumerate(chains):
            started[k] = started[k] or known is chain
        if not chain:
            del waiting[chosen]
    return scans


def write(
    picture: Picture,
    scans: Sequence[Scan] | None = None,
    *,
    progressive: bool = False,
    restart: int = 0,
    quantiser: int = 8,
) -> bytes:
    """The file. Without `scans` it is baseline, with all components in one; `restart` is in MCUs,
    which are blocks in a scan of one component."""
    count = len(picture.sampling)
    parts = [b"\xff\xd8", segment(0xDB, bytes([0]) + bytes([quantiser]) * 64)]
    frame = bytes([8]) + picture.height.to_bytes(2, "big") + picture.width.to_bytes(2, "big")
    for number, (h, v) in enumerate(picture.sampling):
        frame += (bytes([count]) if number == 0 else b"") + bytes([number + 1, h << 4 | v, 0])
    parts.append(segment(0xC2 if progressive else 0xC0, frame))
    if restart:
        parts.append(segment(0xDD, restart.to_bytes(2, "big")))
    for scan in scans or [Scan(tuple(range(count)))]:
        parts += written(picture, scan, progressive, restart)
    return b"".join(parts) + b"\xff\xd9"


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


Symbol = tuple[int, int, int, int]
"""The table (0 for DC, 1 for AC, -1 for none), the symbol, and the bits after it: how many, and
their value."""


def written(picture: Picture, scan: Scan, progressive: bool, restart: int) -> Iterator[bytes]:
    """Its tables, header and data."""
    intervals = list(symbols(picture, scan, progressive, restart))
    codes: dict[int, dict[int, tuple[int, int]]] = {}
    for table in (0, 1):
        used = Counter(symbol for part in intervals for t, symbol, _, _ in part if t == table)
        body, codes[table] = prefix_code(used)
        yield segment(0xC4, bytes([table << 4]) + body)
    header = bytes([len(scan.components)])
    header += b"".join(bytes([component + 1, 0]) for component in scan.components)
    yield segment(0xDA, header + bytes([scan.first, scan.last, scan.high << 4 | scan.low]))
    for number, part in enumerate(intervals):
        bits = "".join(
            (format(codes[table][symbol][1], f"0{codes[table][symbol][0]}b") if table >= 0 else "")
            + (format(value, f"0{size}b") if size else "")
            for table, symbol, size, value in part
        )
        bits += "1" * (-len(bits) % 8)
        data = int(bits or "0", 2).to_bytes(len(bits) // 8, "big")
        yield data.replace(b"\xff", b"\xff\x00")
        if number < len(intervals) - 1:
            yield bytes([0xFF, 0xD0 + number % 8])


def prefix_code(used: Counter[int]) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """The table's bytes, and length and code of each symbol. The commonest have 2 to 7 bits, the
    rarest 16, which is more than tables of lookups have."""
    ordered = [symbol for symbol, _ in used.most_common()] or [0]
    lengths = [min(i + 2, 9) if i < 6 else 9 for i in range(len(ordered))]
    for i in range(max(6, len(ordered) - 3), len(ordered)):
        lengths[i] = 16
    counts = bytes(lengths.count(length) for length in range(1, 17))
    codes, code = {}, 0
    for symbol, length, before in zip(ordered, lengths, [2, *lengths], strict=False):
        code <<= length - before
        codes[symbol] = (length, code)
        code += 1
    return counts + bytes(ordered), codes


def symbols(
    picture: Picture, scan: Scan, progressive: bool, restart: int
) -> Iterator[list[Symbol]]:
    """Of each restart interval."""
    mcus = list(blocks_of(picture, scan))
    for start in range(0, len(mcus), restart or len(mcus)):
        found: list[Symbol] = []
        before = [0] * len(picture.sampling)
        band = Band(scan, found)
        for mcu in mcus[start : start + (restart or len(mcus))]:
            for component, block in mcu:
                if scan.first > 0:
                    (band.first if scan.high == 0 else band.refine)(block)
                elif scan.high > 0:
                    found.append((-1, 0, 1, int(block[0]) >> scan.low & 1))
                else:
                    value = int(block[0]) >> scan.low
                    found.append(sized(0, 0, value - before[component]))
                    before[component] = value
                    if not progressive:
                        band.sequential(block)
        band.end()
        yield found


def blocks_of(picture: Picture, scan: Scan) -> Iterator[list[tuple[int, Coefficients]]]:
    """The blocks of each MCU, with the number of their component."""
    across, down = (max(factor[i] for factor in picture.sampling) for i in (0, 1))
    if len(scan.components) == 1:
        (component,) = scan.components
        h, v = picture.sampling[component]
        plane = picture.coefficients[component]
        height, width = -(-picture.height * v // down), -(-picture.width * h // across)  # samples
        for y in range(-(-height // 8)):
            for x in range(-(-width // 8)):
                yield [(component, plane[y, x])]
        return
    for row in range(-(-picture.height // (8 * down))):
        for column in range(-(-picture.width // (8 * across))):
            yield [
                (component, picture.coefficients[component][row * v + y, column * h + x])
                for component in scan.components
                for h, v in [picture.sampling[component]]
                for y in range(v)
                for x in range(h)
            ]


def sized(table: int, run: int, value: int) -> Symbol:
    size = abs(value).bit_length()
    return table, run << 4 | size, size, value if value >= 0 else value + (1 << size) - 1


class Band:
    """The AC coefficients of the blocks of a scan."""

    def __init__(self, scan: Scan, found: list[Symbol]) -> None:
        self.scan, self.found = scan, found
        self.ended = 0  # blocks without a coefficient more
        self.corrections: list[Symbol] = []  # of these blocks

    def sequential(self, block: Coefficients) -> None:
        run = 0
        for value in block[1:].tolist():
            if value == 0:
                run += 1
                continue
            self.found += [(1, 0xF0, 0, 0)] * (run // 16)
            self.found.append(sized(1, run % 16, value))
            run = 0
        if run:
            self.found.append((1, 0, 0, 0))

    def values(self, block: Coefficients) -> list[int]:
        part = block[self.scan.first : self.scan.last + 1].tolist()
        return [(abs(value) >> self.scan.low) * (1 if value > 0 else -1) for value in part]

    def first(self, block: Coefficients) -> None:
        run = 0
        for value in self.values(block):
            if value == 0:
                run += 1
                continue
            self.end()
            self.found += [(1, 0xF0, 0, 0)] * (run // 16)
            self.found.append(sized(1, run % 16, value))
            run = 0
        self.more(run > 0)

    def refine(self, block: Coefficients) -> None:
        values = self.values(block)
        new = [k for k, value in enumerate(values) if abs(value) == 1]
        run, corrections = 0, list[Symbol]()
        for k, value in enumerate(values):
            if value == 0:
                run += 1
                continue
            # Sixteen zeros are only said where a new coefficient follows.
            while run > 15 and new and k <= new[-1]:
                self.end()
                self.found += [(1, 0xF0, 0, 0), *corrections]
                run, corrections = run - 16, []
            if abs(value) > 1:
                corrections.append((-1, 0, 1, abs(value) & 1))
                continue
            self.end()
            self.found += [(1, run << 4 | 1, 1, int(value > 0)), *corrections]
            run, corrections = 0, []
        self.corrections += corrections
        self.more(run > 0 or bool(corrections))

    def more(self, ends: bool) -> None:
        self.ended += ends
        if self.ended == 0x7FFF:
            self.end()

    def end(self) -> None:
        """Says how many blocks have ended."""
        if self.ended:
            size = self.ended.bit_length() - 1
            self.found.append((1, size << 4, size, self.ended - (1 << size)))
        self.found += self.corrections
        self.ended, self.corrections = 0, []
