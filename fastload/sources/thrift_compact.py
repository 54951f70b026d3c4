"""Thrift's compact protocol, as far as the metadata of Parquet files need it
(github.com/apache/thrift, doc/specs/thrift-compact-protocol.md): structs as dicts from the number
of a field to its value, lists as lists, strings as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Struct = dict[int, Any]

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 32
"""Structs and lists within each other; those of Parquet are 6 deep."""


class ThriftError(ValueError):
    """Bytes that are no such metadata."""


def read_struct(data: bytes | memoryview, start: int = 0) -> tuple[Struct, int]:
    """(a struct, the place after it). Raises ThriftError: there is none, or it does not end."""
    view = memoryview(data)
    try:
        return _struct(view, start, _DEEPEST)
    except IndexError:
        raise ThriftError("the metadata end before they should") from None


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise ThriftError("a number of more than 64 bits")


def _zigzag(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _byte(data: memoryview, at: int) -> tuple[int, int]:
    return data[at], at + 1


def _skipped_double(data: memoryview, at: int) -> tuple[bytes, int]:
    return _taken(data, at, 8)


def _binary(data: memoryview, at: int) -> tuple[bytes, int]:
    size, at = _varint(data, at)
    return _taken(data, at, size)


def _taken(data: memoryview, at: int, size: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise IndexError
    return bytes(data[at : at + size]), at + size


_PLAIN: dict[int, Callable[[memoryview, int], tuple[Any, int]]] = {
    _BYTE: _byte,
    _I16: _zigzag,
    _I32: _zigzag,
    _I64: _zigzag,
    _DOUBLE: _skipped_double,
    _BINARY: _binary,
}


def _struct(data: memoryview, at: int, depth: int) -> tuple[Struct, int]:
    struct: Struct = {}
    number = 0
    while True:
        header = data[at]
        at += 1
        if not header:
            return struct, at
        kind = header & 15
        if header >> 4:
            number += header >> 4
        else:
            number, at = _zigzag(data, at)
        if kind <= _FALSE:  # the value of a bool is its type
            struct[number] = kind == _TRUE
        else:
            struct[number], at = _value(data, at, kind, depth)


def _value(data: memoryview, at: int, kind: int, depth: int) -> tuple[Any, int]:
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain(data, at)
    if not depth:
        raise ThriftError(f"structs and lists more than {_DEEPEST} deep")
    if kind == _STRUCT:
        return _struct(data, at, depth - 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth - 1)
    raise ThriftError(f"a value of type {kind}")


def _list(data: memoryview, at: int, depth: int) -> tuple[list[Any], int]:
    header = data[at]
    at += 1
    size, kind = header >> 4, header & 15
    if size == 15:
        size, at = _varint(data, at)
    if size > len(data) - at:  # each takes a byte at least
        raise IndexError
    values = []
    for _ in range(size):
        if kind <= _FALSE:
            value, at = _byte(data, at)
        else:
            value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


# -- Written ---------------------------------------------------------------------------------------


class I32(int):
    """A number that is written as one of 32 bits; a plain int is one of 64."""


def written(struct: Struct) -> bytes:
    """A struct as bytes: of ints, `I32`s, strings as bytes, structs, and lists of one type."""
    out, last = bytearray(), 0
    for number in sorted(struct):
        value = struct[number]
        kind = _kind_of(value)
        if number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            out += _unsigned(number << 1)
        out += _bytes_of(value)
        last = number
    return bytes(out) + b"\0"


def _kind_of(value: Any) -> int:
    if isinstance(value, int):
        return _I32 if isinstance(value, I32) else _I64
    if isinstance(value, bytes):
        return _BINARY
    return _STRUCT if isinstance(value, dict) else _LIST


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, int):
        return _unsigned(value << 1 if value >= 0 else (-value << 1) - 1)
    if isinstance(value, bytes):
        return _unsigned(len(value)) + value
    if isinstance(value, dict):
        return written(value)
    kind = _kind_of(value[0])
    head = bytes([len(value) << 4 | kind]) if len(value) < 15 else bytes([0xF0 | kind])
    size = b"" if len(value) < 15 else _unsigned(len(value))
    return head + size + b"".join(map(_bytes_of, value))


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
