"""The extension module, as fastload/native/bindings.cpp defines it; used through fastload.native.pool only."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes1D = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

def formats() -> dict[str, str]: ...
def uniforms(
    indices: Int64Array,
    repeats: Int64Array | None,
    seed: int,
    epoch: int,
    stream: int,
    out: npt.NDArray[np.float64],
) -> None: ...
def integers(
    indices: Int64Array,
    repeats: Int64Array | None,
    seed: int,
    epoch: int,
    stream: int,
    out: npt.NDArray[np.uint64],
) -> None: ...

class Encoded:
    @staticmethod
    def buffers(buffers: Sequence[bytes | bytearray | memoryview | Bytes1D]) -> Encoded: ...
    @staticmethod
    def files(
        root: bytes,
        blob: Bytes1D,
        ends: Int64Array,
        rows: Int64Array,
        offsets: Int64Array | None,
        lengths: Int64Array | None,
    ) -> Encoded: ...
    def __len__(self) -> int: ...

class Geometries:
    @staticmethod
    def given(
        box: Int32Array,
        size: Int32Array,
        window: Int32Array,
        flip: npt.NDArray[np.bool_],
        bicubic: npt.NDArray[np.bool_] | None = None,
    ) -> Geometries: ...
    @staticmethod
    def drawn_crops(
        uniforms: npt.NDArray[np.float64],
        flip: npt.NDArray[np.bool_],
        size: tuple[int, int],
        scale: tuple[float, float],
        ratio: tuple[float, float],
        log_ratio: tuple[float, float],
        bicubic: npt.NDArray[np.bool_] | None = None,
    ) -> Geometries: ...
    @staticmethod
    def resized(
        flip: npt.NDArray[np.bool_],
        size: tuple[int, int] | None,
        shorter: int,
        longest: int,
        crop: tuple[int, int] | None,
    ) -> Geometries: ...
    @staticmethod
    def padded_crops(
        uniforms: npt.NDArray[np.float64],
        flip: npt.NDArray[np.bool_],
        size: tuple[int, int],
        before: tuple[int, int],
        after: tuple[int, int],
    ) -> Geometries: ...
    @staticmethod
    def whole(flip: npt.NDArray[np.bool_]) -> Geometries: ...
    def resolve(self, sizes: Int64Array, out: Int32Array) -> None: ...
    def __len__(self) -> int: ...

class Resampling:
    def __init__(self, filter: int, antialias: bool, padding: int, fill: tuple[int, int, int, int]) -> None: ...

class View:
    def __init__(self, geometries: Geometries, out: npt.NDArray[np.uint8], resampling: Resampling) -> None: ...

class Ticket:
    def wait(self) -> list[tuple[int, int, str]]: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...

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
    def close(self) -> None: ...
    def decode(
        self,
        images: Encoded,
        views: list[View],
        max_pixels: int,
        exif: bool,
        whole: bool,
        draft: bool = False,
        here: bool = False,
    ) -> Ticket: ...
    def decode_flat(
        self,
        images: Encoded,
        geometries: Geometries,
        out: Bytes1D,
        offsets: Int64Array,
        sizes: Int32Array,
        resampling: Resampling,
        max_pixels: int,
        exif: bool,
        whole: bool,
        draft: bool = False,
    ) -> Ticket: ...
    def read_headers(self, images: Encoded, out: Int32Array, max_pixels: int, here: bool = False) -> Ticket: ...
    def gather(
        self,
        array: npt.NDArray[np.uint8],
        rows: Int64Array,
        geometries: Geometries,
        out: npt.NDArray[np.uint8],
        resampling: Resampling,
        here: bool = False,
    ) -> Ticket: ...
    def gather_flat(
        self,
        array: Bytes1D,
        offsets: Int64Array,
        sizes: Int32Array,
        rows: Int64Array,
        geometries: Geometries,
        out: npt.NDArray[np.uint8],
        resampling: Resampling,
    ) -> Ticket: ...
