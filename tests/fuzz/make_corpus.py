"""Small images of every kind as seeds for the fuzz targets: `python -m tests.fuzz.make_corpus
DIRECTORY`.

Each target has a folder there. Each file starts with the eight bytes by which the target chooses
its box and options.
"""

from __future__ import annotations

import struct
import sys
import zlib
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from tests import exif_cases, images, jpegs, pngs

KINDS = {
    "444": {"subsampling": "4:4:4"},
    "422": {"subsampling": "4:2:2", "quality": 97},
    "420": {"subsampling": "4:2:0"},
    "440": {"subsampling": "4:4:0"},
    "411": {"subsampling": "4:1:1"},
    "optimised": {"subsampling": "4:2:0", "optimize": True},
    "fine": {"subsampling": "4:4:4", "quality": 100},
    "coarse": {"subsampling": "4:2:0", "quality": 5},
    "rgb": {"keep_rgb": True},
    "restarts": {"subsampling": "4:2:0", "restart_marker_blocks": 2},
    "restart-rows": {"subsampling": "4:2:2", "restart_marker_rows": 1},
    "wide-tables": {"qtables": [[900] * 64, [3] * 64]},
    "upside-down": {"orientation": 6},
    "progressive": {"progressive": True},
    "progressive-444": {"progressive": True, "subsampling": "4:4:4"},
    "progressive-restarts": {
        "progressive": True,
        "subsampling": "4:2:2",
        "restart_marker_blocks": 2,
    },
}


def seeds() -> dict[str, bytes]:
    """Name and contents of each seed."""
    rng = np.random.default_rng(0)
    found: dict[str, bytes] = {}
    for height, width in [(1, 1), (8, 8), (17, 33), (50, 70)]:
        picture = images.photo(height, width)
        for kind, options in KINDS.items():
            found[f"{height}x{width}-{kind}"] = images.jpeg(picture, **{"quality": 80, **options})
        grey = images.jpeg(picture[..., :1])
        frame = grey.index(b"\xff\xc0")
        for factor in (1, 2, 3):  # as many rows of blocks at once, for libjpeg
            declared = grey[: frame + 11] + bytes([factor << 4 | factor]) + grey[frame + 12 :]
            found[f"{height}x{width}-grey-{factor}"] = declared
        found[f"{height}x{width}-cmyk"] = images.cmyk_jpeg(picture)
        for sampling in jpegs.SAMPLINGS:
            noise = jpegs.noise(height, width, sampling, rng)
            scans = jpegs.script(len(noise.sampling), rng)
            name = f"{height}x{width}-scans-{sampling.replace(':', '')}"
            found[name] = jpegs.write(noise, scans, progressive=True, restart=len(scans) % 3)
    made = {name: rng.bytes(8) + data for name, data in found.items()}
    for name, data in found.items():  # the whole image through a warp (`compare_chains`)
        head = rng.bytes(8)
        made[f"{name}-warped"] = head[:6] + bytes([head[6] | 6, head[7] | 28]) + data
    return made


def seek_seeds() -> dict[str, bytes]:
    """Images in one scan of at least some rows of MCUs. Two bytes more say how many bytes of the
    rest change the index; the others are the file (`seek.cpp`)."""
    rng = np.random.default_rng(3)
    found: dict[str, bytes] = {}
    for height, width in [(40, 70), (100, 90), (130, 200)]:
        picture = images.photo(height, width)
        for kind, options in KINDS.items():
            if "progressive" in kind:
                continue
            data = images.jpeg(picture, **{"quality": 60, **options})
            for changes in (0, 3, 12):
                head = rng.bytes(8) + bytes([changes, 0]) + rng.bytes(changes)
                found[f"{height}x{width}-{kind}-{changes}"] = head + data
    return found


def pair_seeds() -> dict[str, bytes]:
    """Two files one after the other. Eleven bytes before them choose boxes, how they are read, and
    where the second begins (`pairs.cpp`)."""
    rng = np.random.default_rng(5)
    files = [data[8:] for data in seeds().values()]
    files += [data[10:] for name, data in seek_seeds().items() if name.endswith("-0")]
    found: dict[str, bytes] = {}
    for number in range(400):
        a, b = (files[rng.integers(len(files))] for _ in range(2))
        # The first number that leads to this place, rounded down as there.
        split = -(-len(a) * 65536 // len(a + b))
        if split < 65536 and len(a + b) < 16_000:
            found[f"pair-{number}"] = rng.bytes(9) + split.to_bytes(2, "big") + a + b
    return found


def format_seeds() -> dict[str, bytes]:
    """For PNG and WebP. Where the sixth byte is odd, rows stand in place of compressed data
    (`formats.cpp`)."""
    rng = np.random.default_rng(1)
    found: dict[str, bytes] = {}
    for height, width in [(1, 1), (9, 13), (34, 21)]:
        picture = images.photo(height, width)
        for number, (_, data, _) in enumerate(pngs.every_kind(picture)):
            found[f"png-{height}x{width}-{number}"] = rng.bytes(5) + b"\0" + rng.bytes(2) + data
            if number % 2 == 0:  # in one piece
                rows = [
                    (k, zlib.decompress(b) if k == b"IDAT" else b) for k, b in pngs.chunks(data)
                ]
                found[f"rows-{height}x{width}-{number}"] = (
                    rng.bytes(5) + b"\1" + rng.bytes(2) + pngs.joined(rows)
                )
        for lossless, mode in product((False, True), ("RGB", "RGBA")):
            image = Image.fromarray(picture).convert(mode)
            data = images._save(image, format="WEBP", lossless=lossless)
            found[f"webp-{height}x{width}-{mode}-{lossless}"] = rng.bytes(8) + data
    return found


def resample_seeds() -> dict[str, bytes]:
    """Any bytes choose an image and a geometry (`resample.cpp`); a third of these begin with a wide
    image."""
    rng = np.random.default_rng(2)
    found = {}
    for number in range(300):
        choices = bytearray(rng.bytes(32 + 32 * (number % 3)))
        choices[0] = number % 4  # which way
        if number % 3 == 0:  # a height of up to 40 rows, then a width by two bytes
            choices[1], choices[2], choices[3] = 0, choices[2] % 40, 255
        found[f"choices-{number}"] = bytes(choices)
    return found


def warp_seeds() -> dict[str, bytes]:
    """Any bytes choose an image and a map (`warp.cpp`)."""
    rng = np.random.default_rng(4)
    return {f"choices-{number}": rng.bytes(120) for number in range(100)}


def colour_seeds() -> dict[str, bytes]:
    """Any bytes choose images, and what is done to their colours (`colour.cpp`); half of these have
    small ones."""
    rng = np.random.default_rng(5)
    found = {}
    for number in range(300):
        choices = bytearray(rng.bytes(40 + 80 * (number % 4)))
        if number % 2 == 0:
            choices[2], choices[4] = choices[2] % 160, choices[4] % 160  # sides of one byte
        found[f"choices-{number}"] = bytes(choices)
    return found


def float_seeds() -> dict[str, bytes]:
    """Any bytes choose images, and what is done to them as floats (`floats.cpp`); half of these
    have small ones."""
    return _seeds_of_images(10, 600, sides=(2, 4))


def neighbour_seeds() -> dict[str, bytes]:
    """Any bytes choose images, and what is done to them (`neighbours.cpp`); half of these have
    small ones."""
    return _seeds_of_images(9, 90, sides=(3, 5))


def noise_seeds() -> dict[str, bytes]:
    """Any bytes choose images and noise (`noise.cpp`); half of these have small ones."""
    return _seeds_of_images(7, 70, sides=(3, 5))


def recompress_seeds() -> dict[str, bytes]:
    """Any bytes choose images and qualities (`recompress.cpp`); half of these have small ones."""
    return _seeds_of_images(8, 16, sides=(2, 4))


def _seeds_of_images(seed: int, length: int, sides: tuple[int, int]) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    found = {}
    for number in range(200):
        choices = bytearray(rng.bytes(length))
        if number % 2 == 0:
            for at in sides:  # of one byte
                choices[at] %= 160
        found[f"choices-{number}"] = bytes(choices)
    return found


def mask_seeds() -> dict[str, bytes]:
    """Any bytes choose images, geometries and shapes (`masks.cpp`); of most the numbers are of
    their units."""
    rng = np.random.default_rng(5)
    return {
        f"choices-{number}": bytes(rng.integers(4 * (number % 4 > 0), 240, 900, dtype=np.uint8))
        for number in range(200)
    }


def join_seeds() -> dict[str, bytes]:
    """Two bytes say how many of those after them choose the table (`join.cpp`); the others are the
    file of an image."""
    rng = np.random.default_rng(6)
    found: dict[str, bytes] = {}
    files = [data[8:] for data in list(seeds().values())[::4]]
    files += [images.png(images.photo(height, height + 9)) for height in (1, 20, 60)]
    for number, data in enumerate(files):
        count = int(rng.integers(60, 500))
        choices = bytearray(rng.bytes(count))
        # No canvas, one that is all seen, or of which any part is.
        choices[8] = (0, 100, 255)[number % 3]
        found[f"choices-{number}"] = count.to_bytes(2, "big") + bytes(choices) + data
    return found


def tier_seeds() -> dict[str, bytes]:
    """Files of the local tier as the core writes them, and numbers that choose ranges and what is
    changed (`tier.cpp`)."""
    rng = np.random.default_rng(7)
    # The first of the digests there: 64-bit numbers by Knuth's generator, the top byte of each.
    digest, state = bytearray(16), 1
    for at in range(16):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        digest[at] = state >> 56 if at else 0
    found: dict[str, bytes] = {}
    for lines in (1, 3, 64):
        for length in (1, 300):
            content = rng.bytes(length)
            table = b"".join(
                (bytes(digest) if line == lines // 2 else rng.bytes(16))
                + struct.pack("<QQI", 0, length, zlib.crc32(content))
                for line in range(lines)
            )
            end = struct.pack("<8sI", b"fltier2\n", lines)
            found[f"file-{lines}-{length}"] = b"\0" + content + table + end
    for count in (0, 5, 63, 69):
        for changes in (0, 4, 40):
            head = bytes([1, count, changes])
            found[f"ranges-{count}-{changes}"] = head + rng.bytes(changes) + rng.bytes(400)
    return found


def exif_seeds() -> dict[str, bytes]:
    """Images whose metadata say how they are turned (`exif.cpp`)."""
    found = [*exif_cases.jpegs(), *exif_cases.pngs(), *exif_cases.webps()]
    return {f"case-{number}": data for number, (_, data) in enumerate(found[::3])}


def answer_seeds() -> dict[str, bytes]:
    """Headers of answers as stores write them (`answer.cpp`)."""
    heads = [
        b'HTTP/1.1 200 OK\r\nETag: "9a0364b9e99bb480dd25e1f0284c8555"\r\n'
        b"Content-Length: 110000\r\n",
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-10/110000\r\n"
        b"Content-Length: 6\r\n",
        b"HTTP/1.1 503 Slow Down\r\nRetry-After: 2\r\nContent-Length: 0\r\n",
        b'HTTP/1.1 200 OK\r\nEtag: W/"0x8D"\r\nLast-Modified: Sun, 22 Nov 2026 10:00:00 GMT\r\n'
        b"Content-MD5: 1B2M2Y8AsgTpgAmY7PhCfg==\r\n",
        b"HTTP/1.1 200 OK\r\nx-amz-checksum-crc32: i9aeUg==\r\nx-amz-checksum-type: FULL_OBJECT\r\n"
        b"x-goog-hash: crc32c=AAAAAA==,md5=1B2M2Y8AsgTpgAmY7PhCfg==\r\n",
        b"HTTP/1.1 307 Moved\r\nLocation: http://there/x\r\n\r\nHTTP/1.1 200 OK\r\n",
    ]
    return {f"head-{number}": head for number, head in enumerate(heads)}


if __name__ == "__main__":
    for name, found in (
        ("decode", seeds()),
        ("seek", seek_seeds()),
        ("device", seek_seeds()),
        ("pairs", pair_seeds()),
        ("formats", format_seeds()),
        ("resample", resample_seeds()),
        ("warp", warp_seeds()),
        ("colour", colour_seeds()),
        ("floats", float_seeds()),
        ("neighbours", neighbour_seeds()),
        ("noise", noise_seeds()),
        ("recompress", recompress_seeds()),
        ("masks", mask_seeds()),
        ("join", join_seeds()),
        ("tier", tier_seeds()),
        ("exif", exif_seeds()),
        ("answer", answer_seeds()),
    ):
        directory = Path(sys.argv[1], name)
        directory.mkdir(parents=True, exist_ok=True)
        for seed, data in found.items():
            (directory / seed).write_bytes(data)
        print(f"{len(found)} seeds in {directory}")
