"""The extension module fastload/native/bindings.cpp. Its callers check what users give, most of it
fastload.native.pool."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Pair = tuple[int, int]
Range = tuple[float, float]

def formats() -> dict[str, str]: ...
def can_fuse_colour() -> bool: ...
def uniforms(
    indices: Int64s, repeats: Int64s | None, seed: int, epoch: int, stream: int, out: Doubles
) -> None: ...
def integers(
    indices: Int64s,
    repeats: Int64s | None,
    seed: int,
    epoch: int,
    stream: int,
    out: UInt64s,
    simd: str = "auto",
) -> None: ...
def centre_boxes(
    boxes: Singles,
    offsets: Int64s,
    sizes: Int64s,
    one_size: bool,
    labels: Int64s | None,
    out: Singles,
) -> None: ...
def move_boxes(maps: Doubles, steps: Int32s, boxes: Doubles, kept: Bools) -> None: ...
def count_classes(mask: Bytes, rows: Int32s, columns: Int32s, out: Int64s) -> None: ...
def list_folders(
    root: bytes,
    folders: Sequence[bytes],
    endings: Sequence[bytes],
    suffixes: Sequence[bytes],
    never: Sequence[bytes],
    threads: int,
) -> tuple[bytes, Int64s, Int64s, list[tuple[int, bytes]], list[tuple[int, bytes]]] | None: ...
def folder_stamps(root: bytes, folders: Sequence[bytes], threads: int) -> Int64s: ...
def crc32c(data: Bytes, plain: bool = False) -> int: ...
def crc64nvme(data: Bytes, plain: bool = False) -> int: ...

# These four, and `Encoded.tier`, are not there where the core was built without ISA-L.
def read_png16(data: Bytes, out: npt.NDArray[np.uint16], simd: str = "auto") -> str: ...
def crc32(data: Bytes, value: int = 0) -> int: ...
def write_to_tier(
    folder: bytes,
    digests: Bytes,
    data: Sequence[bytes | bytearray | memoryview | Bytes],
    beside: str,
) -> int: ...
def look_in_tier(folder: bytes, digests: Bytes, out: Bools) -> None: ...
def lock_in_tier(file: int, digests: Bytes, out: Bools) -> None: ...
def warp(
    image: Bytes,
    out: Bytes,
    inverse: Doubles,
    bilinear: bool,
    fades: bool,
    mixes: bool,
    fill: Singles,
    simd: str = "auto",
) -> None: ...
def remap(
    image: Bytes,
    out: Bytes,
    x: Doubles,
    y: Doubles,
    bilinear: bool,
    fades: bool,
    mixes: bool,
    fill: Singles,
) -> None: ...

class Encoded:
    @staticmethod
    def buffers(buffers: Sequence[bytes | bytearray | memoryview | Bytes]) -> Encoded: ...
    @staticmethod
    def files(
        root: bytes,
        blob: Bytes,
        ends: Int64s,
        rows: Int64s,
        offsets: Int64s | None,
        lengths: Int64s | None,
    ) -> Encoded: ...
    @staticmethod
    def tier(
        folder: bytes,
        digests: Bytes,
        memory: Sequence[bytes | bytearray | memoryview | Bytes | None],
    ) -> Encoded: ...
    def __len__(self) -> int: ...

class ResidentImages:
    """Images whose data stay on a device, by number. Any thread may call `resident`, and `prepare`
    of other images."""

    def __init__(self, count: int) -> None: ...
    def prepare(
        self, first: int, files: Sequence[Bytes], index: SeekIndex, max_pixels: int, exif: bool
    ) -> tuple[Bytes, Int64s, Int64s, Int32s]: ...
    def place(self, number: int, address: int) -> None: ...
    def resident(self, numbers: Int64s) -> Bytes: ...
    @property
    def nbytes(self) -> int: ...

class DevicePlan:
    """Crops of a batch planned for a GPU: filled by one `Pool.decode`, after whose `wait` comes
    `finish`, by one thread; all but `left` and `drop` after that."""

    def __init__(
        self,
        images: int,
        share: int,
        memory: int,
        resident: ResidentImages | None = None,
        numbers: Sequence[int] = (),
    ) -> None: ...
    @property
    def left(self) -> Int32s: ...
    @property
    def boxes(self) -> Int32s: ...
    @property
    def buffer(self) -> Bytes: ...
    @property
    def tables(self) -> tuple[Pair, Pair, Pair, Pair]: ...
    @property
    def chunks(self) -> list[list[int]]: ...
    @property
    def pixel_bytes(self) -> int: ...
    @property
    def segments(self) -> int: ...
    def finish(self) -> None: ...
    def drop(self, images: Sequence[int]) -> None: ...

def kernel_argument_bytes(name: str) -> int: ...
def run_kernel_on_host(name: str, arguments: bytes, blocks: int, threads: int = 1) -> None: ...

class Geometries:
    @staticmethod
    def given(
        box: Int32s,
        size: Int32s,
        window: Int32s,
        flip: Bools,
        bicubic: Bools | None = None,
        flip_first: Bools | None = None,
    ) -> Geometries: ...
    @staticmethod
    def drawn_crops(
        uniforms: Doubles,
        flip: Bools,
        size: Pair,
        scale: Range,
        ratio: Range,
        log_ratio: Range,
        bicubic: Bools | None,
    ) -> Geometries: ...
    @staticmethod
    def resized(
        flip: Bools, size: Pair | None, shorter: int, longest: int, crop: Pair | None
    ) -> Geometries: ...
    @staticmethod
    def padded_crops(
        uniforms: Doubles, flip: Bools, size: Pair, before: Pair, after: Pair
    ) -> Geometries: ...
    @staticmethod
    def whole(flip: Bools) -> Geometries: ...
    def resolve(self, sizes: Int64s, out: Int32s) -> None: ...
    def __len__(self) -> int: ...

class Resampling:
    def __init__(self, filter: int, antialias: bool, padding: int, fill: Sequence[int]) -> None: ...

class Warps:
    def __init__(
        self,
        inverse: Doubles,
        sizes: Int32s,
        bilinear: bool,
        fades: bool,
        mixes: bool,
        fill: tuple[float, float, float],
    ) -> None: ...

class View:
    def __init__(
        self,
        geometries: Geometries,
        out: Bytes,
        resampling: Resampling,
        kinds: Int32s | None = None,
        numbers: Singles | None = None,
        fused: bool = False,
        later: Geometries | None = None,
        later_resampling: Resampling | None = None,
        sizes: Int32s | None = None,
        warped: Warps | None = None,
    ) -> None: ...

class CanvasLayer:
    def __init__(
        self, size: Pair, fades: bool, mixes: bool, fill: tuple[float, float, float]
    ) -> None: ...

class Canvases:
    def __init__(
        self,
        first: CanvasLayer,
        second: CanvasLayer,
        windows: Int32s,
        corners: Int32s,
        seen: Int32s,
        inverse: Doubles,
        flips: Bools,
    ) -> None: ...

class Ticket:
    def wait(self) -> list[tuple[int, int, str]]: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...

class SeekIndex:
    def __init__(
        self, path: bytes, images: int, limit: int, only_cheap: bool = False, every: int = 64
    ) -> None: ...
    def flush(self) -> None: ...
    @property
    def is_writable(self) -> bool: ...
    def contents(self) -> tuple[int, int, int, int]: ...

class Pool:
    def __init__(self, threads: int, simd: str, always_libjpeg: bool = False) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def simd(self) -> str: ...
    @property
    def decoded(self) -> dict[str, int]: ...
    @property
    def reduced(self) -> int: ...
    @property
    def indexed(self) -> int: ...
    @property
    def narrowed(self) -> int: ...
    @property
    def noted(self) -> int: ...
    def close(self) -> None: ...
    def decode(
        self,
        columns: list[tuple[Encoded, list[View]]],
        max_pixels: int,
        exif: bool,
        whole: bool,
        draft: bool,
        here: bool,
        index: SeekIndex | None = None,
        plans: Sequence[DevicePlan] = (),
    ) -> Ticket: ...
    def encode_jpeg(self, image: Bytes, quality: int) -> bytes: ...
    def read_headers(self, images: Encoded, out: Int32s, max_pixels: int, here: bool) -> Ticket: ...
    def gather(
        self,
        array: Bytes,
        offsets: Int64s | None,
        sizes: Int32s | None,
        rows: Int64s,
        view: View,
        here: bool,
    ) -> Ticket: ...
    def recolour(
        self,
        images: Bytes,
        kinds: Int32s,
        numbers: Singles,
        weights: Singles | None,
        bilinear: bool,
        fill: Singles | None,
        fused: bool,
        here: bool = False,
    ) -> Ticket: ...
    def convert(
        self,
        images: Bytes,
        scale: Singles,
        offset: Singles,
        out: Singles,
        fused: bool,
        here: bool = False,
    ) -> Ticket: ...
    def blur(
        self, images: Bytes, down: Singles, across: Singles, rows: Bools | None, fused: bool
    ) -> Ticket: ...
    def convolve(
        self, images: Bytes, kernels: Singles, rows: Bools | None, fused: bool, here: bool = False
    ) -> Ticket: ...
    def median(self, images: Bytes, sides: Int32s, here: bool = False) -> Ticket: ...
    def clahe(
        self, images: Bytes, limits: Doubles, down: int, across: int, here: bool = False
    ) -> Ticket: ...
    def add_noise(
        self,
        images: Bytes,
        keys: UInt64s,
        scales: Singles,
        shifts: Singles,
        rows: Bools | None,
        clips: bool,
        shared: bool,
        here: bool = False,
    ) -> Ticket: ...
    def normals(self, keys: UInt64s, out: Singles, here: bool = False) -> Ticket: ...
    def box_normals(
        self, keys: UInt64s, boxes: Int64s, out: Singles, here: bool = False
    ) -> Ticket: ...
    def change_floats(
        self,
        images: Bytes | Singles,
        out: Singles,
        channels_last: bool,
        scale: Singles | None,
        offset: Singles | None,
        matrices: Doubles | None,
        turned: Bools | None,
        kinds: Int32s,
        applies: Bools,
        numbers: Singles,
        keys: UInt64s,
        mirrors: Bools | None,
        here: bool = False,
    ) -> Ticket: ...
    def turn_masks(
        self,
        masks: npt.NDArray[Any],
        out: npt.NDArray[Any],
        matrices: Doubles,
        turned: Bools,
        here: bool = False,
    ) -> Ticket: ...
    def recompress(
        self, images: Bytes, qualities: Int32s, blue_first: bool, here: bool = False
    ) -> Ticket: ...
    def join(
        self,
        images: Encoded,
        members: Geometries,
        resampling: Resampling,
        offsets: Int64s,
        on: Canvases | None,
        weights: Singles | None,
        rectangles: Int32s | None,
        masks: Bools | None,
        out: Bytes,
        max_pixels: int,
        exif: bool,
        whole: bool,
        index: SeekIndex | None,
    ) -> Ticket: ...
    def draw_masks(
        self,
        shapes: Doubles,
        objects: Int64s,
        images: Int64s,
        maps: Doubles,
        steps: Int32s,
        out: Bytes,
        here: bool,
    ) -> Ticket: ...

class Answer:
    row: int
    code: int
    other_part: bool
    seconds: float
    sound: bool
    ok: bool
    size: int
    status: int
    length: int
    total: int
    odd: bool
    etag: bytes
    modified: bytes
    retry_after: bytes
    checksums: bytes
    body: Bytes

def version_of(size: int, etag: bytes) -> int: ...

class Fetch:
    def __init__(self) -> None: ...
    def take(self, least: int, seconds: float) -> list[Answer]: ...
    def take_sound(
        self, least: int, seconds: float
    ) -> tuple[list[int], list[memoryview], list[float], list[Answer]]: ...
    def waiting(self, longer: float = 0.0) -> list[tuple[int, float]]: ...

class Fetcher:
    def __init__(
        self,
        connect: float,
        silence: float,
        answer: float,
        ca_file: str = "",
        ca_folder: str = "",
        proxy: str = "",
        agent: str = "",
        headers: Sequence[str] = (),
        limit: int = 32,
        rate: float = 0.0,
    ) -> None: ...
    @staticmethod
    def version() -> str: ...
    @staticmethod
    def words(code: int) -> str: ...
    def ask(
        self,
        fetch: Fetch,
        rows: Sequence[int],
        urls: Sequence[str],
        starts: Sequence[int],
        lengths: Sequence[int],
        versions: Sequence[int] = (),
        token: str = "",
    ) -> None: ...
    def drop(self, fetch: Fetch) -> None: ...
    def set_limit(self, limit: int) -> None: ...
    def waited(self) -> bool: ...
    def close(self, seconds: float) -> None: ...
    paced: bool
    running: bool
    connections: int
