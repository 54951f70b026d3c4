"""Images whose metadata say how they are turned: in every place where Pillow looks, whole, cut off,
damaged and odd. No image is like its mirror image."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from tests.images import jpeg, photo, png
from tests.pngs import chunks, joined

TAG, SHORT, LONG = 0x0112, 3, 4
PHOTO = photo(18, 26)
MARK = b"Exif\0\0"
XMP_MARK = b"http://ns.adobe.com/xap/1.0/\0"
ENDS = {"<": b"II*\0", ">": b"MM\0*"}
Entry = tuple[int, int, int, bytes]


def tiff(
    order: str, entries: list[Entry], mark: bytes | None = None, after: bytes = b"", at: int = 8
) -> bytes:
    """A TIFF structure of one directory, and what comes after it."""
    lines = b"".join(
        struct.pack(f"{order}HHI", tag, kind, count) + value.ljust(4, b"\0")
        for tag, kind, count, value in entries
    )
    start = (ENDS[order] if mark is None else mark) + struct.pack(f"{order}I", at)
    return start + struct.pack(f"{order}H", len(entries)) + lines + b"\0\0\0\0" + after


def short(order: str, value: int, tag: int = TAG) -> Entry:
    return tag, SHORT, 1, struct.pack(f"{order}H", value)


def exif_data() -> Iterator[tuple[str, bytes]]:
    """EXIF data without the mark that precedes them in a JPEG."""
    for order in "<>":
        for value in range(11):
            yield f"{order}{value}", tiff(order, [short(order, value)])

        def one(kind: int, format: str, *values: float, order: str = order) -> bytes:
            data = struct.pack(order + format, *values)
            outside = struct.pack(f"{order}I", 8 + 2 + 12 + 4)
            value, after = (outside, data) if len(data) > 4 else (data, b"")
            count = len(values) // 2 if kind in (5, 10) else len(values)
            return tiff(order, [(TAG, kind, count, value)], after=after)

        for kind, format in enumerate("BBHIIbBhiifdI", 1):
            if kind not in (5, 10):
                yield f"{order}type {kind}", one(kind, format, 6)
                yield f"{order}type {kind}, 9", one(kind, format, 9)
                yield f"{order}type {kind}, several", one(kind, 3 * format, 6, 3, 1)
        for kind in (14, 15, 17, 0, 60000):
            yield f"{order}type {kind}", one(kind, "H", 6)
        yield f"{order}type 16", one(16, "Q", 6)
        for kind, format in ((5, "II"), (10, "ii")):
            for above, below in ((6, 1), (12, 2), (13, 2), (6, 0), (0, 6)):
                yield f"{order}type {kind}, {above}/{below}", one(kind, format, above, below)
        yield f"{order}-6/-1", one(10, "ii", -6, -1)
        yield f"{order}-6/1", one(10, "ii", -6, 1)
        for number in (6.5, float("nan"), float("inf"), -6.0, 1e300):
            yield f"{order}{number}", one(12, "d", number)
        six, three = short(order, 6), short(order, 3)
        none = (TAG, SHORT, 0, six[3])
        yield f"{order}no value", tiff(order, [none])
        for first in (three, none, (TAG, 2, 2, b"6"), (TAG, 99, 1, three[3])):
            yield f"{order}twice, {first}", tiff(order, [first, six])
        # Another tag, whose value lies outside of the data, or is longer than they are.
        for tag in (0x010E, TAG):
            for count, at in ((5, 10_000), (20, 2), (10_000, 8), (2**32 - 1, 8), (40, 0)):
                value = struct.pack(f"{order}I", at)
                entries = [(tag, 2, count, value), (tag, 2, count, value), six]
                yield f"{order}{tag} of {count} at {at}", tiff(order, entries, after=bytes(12))
        directory = tiff(order, [six])[8:]
        pointer = struct.pack(f"{order}I", 8 + 2 + 12 + 4)
        yield f"{order}sub-directory", tiff(order, [(0x8769, LONG, 1, pointer)], after=directory)
        second = tiff(order, [short(order, 7, 0x0100)])[:-4] + pointer + directory
        yield f"{order}second directory", second
        for at in (0, 7, 12, 26, 1000, 2**32 - 1):
            yield f"{order}directory at {at}", tiff(order, [six], at=at, after=bytes(8))
        for mark in (
            b"MM\x2a\0",
            b"II\0\x2a",
            b"MM\0\x2b",
            b"II\x2b\0",
            b"MM**",
            b"II  ",
            b"IM*\0",
        ):
            yield f"{order}{mark!r}", tiff(order, [six], mark)
        two = tiff(order, [short(order, 7, 0x0100), six])
        for cut in range(len(two)):
            yield f"{order}cut to {cut}", two[:cut]
    yield "marks", MARK + tiff("<", [short("<", 6)])
    yield "three marks", 2 * MARK + tiff("<", [short("<", 6)])
    yield "only a mark", MARK


def packets() -> Iterator[tuple[str, bytes]]:
    for text in (
        'tiff:Orientation="6"',
        "<tiff:Orientation>8</tiff:Orientation>",
        'tiff:Orientation="9"',
        'tiff:Orientation="0" tiff:Orientation="6"',
        'tiff:Orientation="67"',
        "tiff:Orientation='6'",
        "tiff:Orientation= tiff:Orientation>5",
        'exif:Orientation="6"',
        'tiff:Orientation=">',
        'tiff:Orientation="',
        "",
    ):
        yield text, b"<x:xmpmeta>" + text.encode() + b"</x:xmpmeta>"
    yield "at the end", b'tiff:Orientation="'


EXIFS, XMPS = dict(exif_data()), dict(packets())
SIX, THREE, NONE = (EXIFS["<6"], EXIFS[">3"], tiff("<", [short("<", 7, 0x0100)]))
EIGHT = b'<a tiff:Orientation="8"/>'


def app1(payload: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload


def jpegs() -> Iterator[tuple[str, bytes]]:
    plain = jpeg(PHOTO)
    frame, scan = plain.index(b"\xff\xc0"), plain.index(b"\xff\xda")

    def put(*segments: bytes, at: int = 2) -> bytes:
        return plain[:at] + b"".join(segments) + plain[at:]

    def exif(data: bytes) -> bytes:
        return app1(MARK + data)

    def xmp(packet: bytes) -> bytes:
        return app1(XMP_MARK + packet)

    yield "no metadata", plain
    for name, data in EXIFS.items():
        yield name, put(exif(data))
        yield f"{name}, and XMP", put(xmp(EIGHT), exif(data))
    for name, packet in XMPS.items():
        yield f"XMP {name}", put(xmp(packet))
        yield f"XMP {name}, EXIF without", put(exif(NONE), xmp(packet))
    for one, two in ((SIX, THREE), (THREE, SIX), (NONE, SIX), (SIX, NONE), (b"", SIX)):
        yield f"two segments {one!r} {two!r}", put(exif(one), exif(two))
    long = EXIFS["<type 3, several"]
    for cut in (3, 9, 15, 23, len(long) - 5, len(long) - 1):
        yield f"in two segments, {cut}", put(exif(long[:cut]), exif(long[cut:]))
        yield f"in three, {cut}", put(exif(long[:cut]), exif(long[cut:-1]), exif(long[-1:]))
    yield "two XMP", put(xmp(EIGHT), xmp(b'tiff:Orientation="5"'))
    yield "two XMP, none in the second", put(xmp(EIGHT), xmp(b"<a/>"))
    yield "extended XMP", put(app1(b"http://ns.adobe.com/xmp/extension/\0" + EIGHT))
    yield "after the frame", put(exif(SIX), at=frame + 19)
    yield "before the scan", put(exif(SIX), at=scan)
    yield "XMP before the scan", put(xmp(EIGHT), at=scan)
    yield "after the image", plain + exif(SIX)
    yield "in the scan", plain[:-2] + exif(SIX) + plain[-2:]
    yield "fill bytes", put(b"\xff\xff\xff", exif(SIX))
    yield "in a comment", put(b"\xff\xfe" + exif(SIX)[2:])
    yield "another mark", put(app1(b"Exif\0\1" + SIX))
    yield "a mark alone", put(app1(MARK), xmp(EIGHT))
    yield "empty segments", put(app1(b""), b"\xff\xe1\0\2", exif(SIX))
    # Several pictures in one file (CIPA DC-007).
    pictures, file = [Image.fromarray(PHOTO) for _ in range(2)], io.BytesIO()
    pictures[0].save(file, "MPO", save_all=True, append_images=pictures[1:], exif=MARK + SIX)
    yield "several pictures", file.getvalue()


def pngs() -> Iterator[tuple[str, bytes]]:
    plain = list(chunks(png(PHOTO)))
    pixels = next(n for n, (kind, _) in enumerate(plain) if kind == b"IDAT")

    def put(*extra: tuple[bytes, bytes], at: int = pixels) -> bytes:
        return joined([*plain[:at], *extra, *plain[at:]])

    def text(name: bytes, content: bytes) -> tuple[bytes, bytes]:
        return b"tEXt", name + b"\0" + content

    def packed(name: bytes, content: bytes) -> tuple[bytes, bytes]:
        return b"zTXt", name + b"\0\0" + zlib.compress(content)

    def packet(
        content: bytes, compress: bool = False, language: bytes = b""
    ) -> tuple[bytes, bytes]:
        body = zlib.compress(content) if compress else content
        flags = b"\1\0" if compress else b"\0\0"
        return b"iTXt", b"XML:com.adobe.xmp\0" + flags + language + b"\0\0" + body

    def profile(data: bytes) -> bytes:
        digits = (MARK + data).hex().encode()
        lines = [digits[n : n + 72] for n in range(0, len(digits), 72)]
        return b"\nexif\n%8d\n" % len(MARK + data) + b"\n".join(lines) + b"\n"

    last = len(plain) - 1
    yield "no metadata", put()
    for name, data in EXIFS.items():
        yield name, put((b"eXIf", data))
    for name, content in XMPS.items():
        yield f"XMP {name}", put(packet(content))
        yield f"XMP {name}, compressed", put(packet(content, compress=True), at=last)
        yield f"XMP {name}, EXIF without", put((b"eXIf", NONE), packet(content, language=b"en"))
    yield "after the pixels", put((b"eXIf", SIX), at=last)
    yield (
        "before and after",
        joined(
            [*plain[:pixels], (b"eXIf", SIX), *plain[pixels:last], (b"eXIf", THREE), plain[last]]
        ),
    )
    yield "two", put((b"eXIf", SIX), (b"eXIf", THREE))
    yield "after the end", joined([*plain, (b"eXIf", SIX)])
    raw = b"Raw profile type exif"
    for name, data in (("six", SIX), ("none", NONE), ("damaged", b"IM"), ("empty", b"")):
        yield f"profile {name}", put(text(raw, profile(data)))
        yield f"profile {name}, compressed", put(packed(raw, profile(data)), at=last)
        yield f"profile {name}, and XMP", put(packed(raw, profile(data)), packet(EIGHT))
        yield f"profile {name}, and eXIf", put(packed(raw, profile(data)), (b"eXIf", THREE))
    yield "profile of odd digits", put(text(raw, profile(SIX)[:-2]))
    yield "profile of one line", put(text(raw, b"exif"))
    yield "in a text", put(text(b"exif", MARK + SIX))
    yield "eXIf, in a text", put((b"eXIf", THREE), text(b"exif", MARK + SIX))
    yield "in a text, eXIf", put(text(b"exif", MARK + SIX), (b"eXIf", THREE))
    yield "XMP as text", put(text(b"XML:com.adobe.xmp", EIGHT))
    yield "two XMP", put(packet(EIGHT), packet(b'tiff:Orientation="5"'))
    yield "XMP without a text", put((b"iTXt", b"XML:com.adobe.xmp\0\0\0en"))
    yield "XMP cut off", put((b"iTXt", b"XML:com.adobe.xmp\0\0"))
    yield "XMP of an unknown compression", put((b"iTXt", b"XML:com.adobe.xmp\0\1\1\0\0" + EIGHT))
    yield "a name alone", put((b"tEXt", b"exif"))


def webps() -> Iterator[tuple[str, bytes]]:
    file = io.BytesIO()
    Image.fromarray(PHOTO).save(file, "WEBP", lossless=True)
    bare = file.getvalue()[12:]
    size = struct.pack("<I", PHOTO.shape[1] - 1)[:3] + struct.pack("<I", PHOTO.shape[0] - 1)[:3]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    def put(flags: int, *extra: bytes, extended: bool = True) -> bytes:
        first = chunk(b"VP8X", bytes([flags, 0, 0, 0]) + size) if extended else b""
        body = b"WEBP" + first + bare + b"".join(extra)
        return b"RIFF" + struct.pack("<I", len(body)) + body

    yield "no metadata", put(0, extended=False)
    for name, data in EXIFS.items():
        yield name, put(8, chunk(b"EXIF", data))
    for name, packet in XMPS.items():
        yield f"XMP {name}", put(4, chunk(b"XMP ", packet))
        yield f"XMP {name}, EXIF without", put(12, chunk(b"EXIF", NONE), chunk(b"XMP ", packet))
    yield "without its flag", put(4, chunk(b"EXIF", SIX))
    yield "XMP without its flag", put(8, chunk(b"XMP ", EIGHT))
    yield "not extended", put(0, chunk(b"EXIF", SIX), extended=False)
    yield "two", put(8, chunk(b"EXIF", SIX), chunk(b"EXIF", THREE))
    yield "two, the first empty", put(8, chunk(b"EXIF", b""), chunk(b"EXIF", THREE))
    yield "XMP first", put(12, chunk(b"XMP ", EIGHT), chunk(b"EXIF", SIX))


def avifs() -> Iterator[tuple[str, bytes]]:
    picture = Image.fromarray(PHOTO)
    for orientation in (None, *range(1, 10)):
        for packet in (b"", EIGHT):
            exif, file = Image.Exif(), io.BytesIO()
            if orientation is not None:
                exif[TAG] = orientation
            picture.save(file, "AVIF", exif=exif, xmp=packet, quality=100, speed=10)
            yield f"{orientation}, {packet!r}", file.getvalue()


def tiffs() -> Iterator[tuple[str, bytes]]:
    picture = Image.fromarray(PHOTO)
    for orientation in (None, *range(1, 10)):
        for packet in (b"", EIGHT, XMPS["<tiff:Orientation>8</tiff:Orientation>"]):
            tags, file = Image.Exif(), io.BytesIO()
            if orientation is not None:
                tags[TAG] = orientation
            if packet:
                tags[700] = packet
            picture.save(file, "TIFF", exif=tags)
            yield f"{orientation}, {packet!r}", file.getvalue()
