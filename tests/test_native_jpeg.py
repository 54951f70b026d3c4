"""The core's own JPEG decoder: to the last bit the pixels of libjpeg-turbo's full decode, and its
verdicts."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from torchvision.transforms import v2

from fastload import create_loader, native
from tests import images, jpegs
from tests.cases import whole_but

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]

SIMD = ("avx512", "avx2", "sse4.1", "neon", "plain")
KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:0": {"subsampling": "4:4:0"},
    "4:2:0": {"subsampling": "4:2:0"},
    "4:1:1": {"subsampling": "4:1:1"},
    "own tables": {"optimize": True, "quality": 95},
    "RGB": {"keep_rgb": True},
    "restart markers": {"restart_marker_blocks": 3},
    "restart rows": {"subsampling": "4:2:2", "restart_marker_rows": 1},
    "16-bit quantisers": {"qtables": [[900] * 64, [3] * 64]},
    "every coefficient": {"subsampling": "4:4:4", "quality": 100},
    "hardly a coefficient": {"quality": 3},
    "progressive": {"progressive": True},
    "progressive 4:4:4": {"progressive": True, "subsampling": "4:4:4", "quality": 75},
    "progressive 4:2:2": {"progressive": True, "subsampling": "4:2:2", "restart_marker_blocks": 3},
    "progressive 4:4:0": {"progressive": True, "subsampling": "4:4:0"},
    "progressive RGB": {"progressive": True, "keep_rgb": True, "quality": 20},
    "progressive, 16-bit quantisers": {"progressive": True, "qtables": [[900] * 64, [3] * 64]},
}


class Decoder:
    """A pool of one thread, and what it makes of boxes of a file, each in its own size."""

    def __init__(self, simd: str = "auto", *, always_libjpeg: bool = False) -> None:
        self.core = native.load()
        self.pool = self.core.Pool(1, simd, always_libjpeg)

    def decode(
        self, data: bytes, boxes: list[Box], *, whole: bool = False, index: Any = None
    ) -> tuple[list[Pixels], list[Any]]:
        made, failures = [], []
        for box in boxes:
            out = np.zeros((1, *box[2:], 3), np.uint8)
            grid = np.array([(0, 0, *box[2:])], np.int32)
            geometries = self.core.Geometries.given(
                np.array([box], np.int32), grid[:, 2:].copy(), grid, np.zeros((1, 2), np.bool_)
            )
            view = self.core.View(geometries, out, self.core.Resampling(2, True, 0, (0, 0, 0, 0)))
            encoded = self.core.Encoded.buffers([np.frombuffer(data, np.uint8)])
            failures += self.pool.decode(
                [(encoded, [view])], 1 << 30, False, whole, draft=False, here=True, index=index
            ).wait()
            made.append(out[0])
        return made, failures

    def verdict(self, data: bytes, box: Box, *, whole: bool = False) -> str:
        """The words about damage, or ""."""
        failures = self.decode(data, [box], whole=whole)[1]
        return failures[0][2] if failures else ""


def boxes_of(height: int, width: int, count: int, seed: int = 0) -> list[Box]:
    rng = np.random.default_rng([seed, height, width])
    boxes: list[Box] = [
        (0, 0, height, width),
        (height - 1, width - 1, 1, 1),
        (0, width // 2, height, 1),
    ]
    for _ in range(count):
        h, w = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
        boxes.append(
            (int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w)
        )
    return boxes


def full_decode(data: bytes) -> Pixels:
    """By Pillow, which is libjpeg-turbo with its defaults."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def assert_equals_full_decode(decoder: Decoder, data: bytes, boxes: list[Box]) -> None:
    whole = full_decode(data)
    found, failures = decoder.decode(data, boxes)
    assert failures == []
    for pixels, (top, left, height, width) in zip(found, boxes, strict=True):
        wanted = whole[top : top + height, left : left + width]
        np.testing.assert_array_equal(pixels, wanted, err_msg=str((top, left, height, width)))


@pytest.mark.parametrize("kind", [*KINDS, "grey", "progressive grey"])
@pytest.mark.parametrize(
    ("height", "width"), [(40, 40), (33, 70), (16, 16), (49, 5), (7, 131), (1, 5)]
)
def test_every_box_is_the_crop_of_the_full_decode(height: int, width: int, kind: str) -> None:
    pixels = images.photo(height, width, channels=1 if "grey" in kind else 3)
    data = images.jpeg(pixels, **KINDS.get(kind, {"progressive": "progressive" in kind}))
    boxes = boxes_of(height, width, 30)
    decoder = Decoder()
    assert_equals_full_decode(decoder, data, boxes)
    assert decoder.pool.decoded["own"] == len(boxes)  # and not libjpeg-turbo


@pytest.mark.slow
@pytest.mark.parametrize(
    "subsampling", whole_but(["4:2:0"], ["4:4:4", "4:2:2", "4:4:0", "4:2:0", "4:1:1"])
)
def test_every_small_size(subsampling: str) -> None:
    decoder = Decoder()
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    for height in range(1, 40, 3):
        for width in range(1, 40):
            data = images.jpeg(noise[:height, :width], subsampling=subsampling)
            assert_equals_full_decode(decoder, data, boxes_of(height, width, 3))
    assert decoder.pool.decoded["own"] > 2000


@pytest.mark.slow
@pytest.mark.parametrize("simd", SIMD)
def test_every_instruction_set(simd: str) -> None:
    try:
        decoder = Decoder(simd)
    except ValueError:
        pytest.skip("not on this processor")
    noise = np.random.default_rng(1).integers(0, 256, (130, 200, 3), dtype=np.uint8)
    for picture in (noise, images.photo(130, 200)):
        for options in KINDS.values():
            assert_equals_full_decode(
                decoder, images.jpeg(picture, **options), boxes_of(130, 200, 5)
            )
    assert sum(decoder.pool.decoded.values()) == decoder.pool.decoded["own"]


def test_other_kinds_go_to_libjpeg_and_are_counted() -> None:
    picture = images.photo(40, 60)
    decoder = Decoder()
    box = [(0, 0, 40, 60)]
    arithmetic = images.jpeg(picture).replace(b"\xff\xc0", b"\xff\xc9", 1)
    assert decoder.verdict(arithmetic, box[0]) == Decoder(always_libjpeg=True).verdict(
        arithmetic, box[0]
    )
    # Too narrow to be smooth.
    assert_equals_full_decode(decoder, images.jpeg(picture[:, :3]), [(0, 0, 40, 3)])
    assert "4 components" in decoder.verdict(images.cmyk_jpeg(picture), box[0])
    assert_equals_full_decode(decoder, images.jpeg(picture), box)
    data = images.jpeg(picture)
    at = data.index(b"\xff\xdb")
    assert_equals_full_decode(decoder, data[:at] + b"garbage" + data[at:], box)
    counts = {
        kind: count for kind, count in decoder.pool.decoded.items() if kind not in ("png", "webp")
    }
    assert counts == {
        "own": 1,
        "coding": 1,
        "components": 1,
        "layout": 1,
        "unusual": 1,
        "forced": 0,
    }


def kind_of_scans(sampling: str, kind: str, rng: np.random.Generator) -> tuple[bytes, int, int]:
    """A file of random coefficients, and its height and width: "baseline", "scans" for one a
    component, or "progressive" in random bands and bits."""
    height, width = int(rng.integers(1, 71)), int(rng.integers(5, 71))
    picture = jpegs.noise(height, width, sampling, rng)
    components = len(picture.sampling)
    scans = {
        "baseline": None,
        "scans": [jpegs.Scan((int(i),)) for i in rng.permutation(components)],
        "progressive": jpegs.script(components, rng),
    }[kind]
    restart = int(rng.choice([0, 0, 1, 3, 7]))
    data = jpegs.write(picture, scans, progressive=kind == "progressive", restart=restart)
    return data, height, width


@pytest.mark.parametrize("kind", ["baseline", "scans", "progressive"])
@pytest.mark.parametrize("sampling", jpegs.SAMPLINGS)
def test_any_sampling_in_any_scans(sampling: str, kind: str) -> None:
    rng = np.random.default_rng(list((sampling + kind).encode()))
    decoder = Decoder()
    for _ in range(6):
        data, height, width = kind_of_scans(sampling, kind, rng)
        assert_equals_full_decode(decoder, data, boxes_of(height, width, 5))
    assert decoder.pool.decoded["own"] == 6 * 8


def in_scans(planes: list[Pixels], order: list[int]) -> bytes:
    """A baseline JPEG of three components of one size, each in a scan of its own, in this order;
    RGB by its marker."""
    parts = [images.jpeg(plane, quality=90) for plane in planes]
    first = parts[0]
    frame = first.index(b"\xff\xc0")
    tables = first.index(b"\xff\xc4")
    scan = first.index(b"\xff\xda")
    height, width = planes[0].shape
    header = (
        b"\xff\xc0\x00\x11\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + b"\x03"
    )
    header += b"\x01\x11\x00\x02\x11\x00\x03\x11\x00"
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
    whole = (
        first[:2] + adobe + first[first.index(b"\xff\xdb") : frame] + header + first[tables:scan]
    )
    for component in order:
        data = parts[component][parts[component].index(b"\xff\xda") + 10 : -2]
        whole += b"\xff\xda\x00\x08\x01" + bytes([component + 1]) + b"\x00\x00\x3f\x00" + data
    return whole + b"\xff\xd9"


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_a_scan_for_each_component(order: list[int]) -> None:
    """The first picture's standard tables serve all: Pillow writes the same ones into every grey
    file."""
    planes = [images.photo(45, 70, channels=1, seed=seed)[..., 0] for seed in range(3)]
    data = in_scans(planes, order)
    decoder = Decoder()
    assert_equals_full_decode(decoder, data, boxes_of(45, 70, 20))
    assert decoder.pool.decoded["own"] == 23
    # A component that is missing, or comes twice, is libjpeg's to judge.
    theirs = Decoder(always_libjpeg=True)
    for odd in ([0, 1], [0, 1, 2, 1]):
        data = in_scans(planes, odd)
        assert decoder.verdict(data, (0, 0, 45, 70)) == theirs.verdict(data, (0, 0, 45, 70))
    assert decoder.pool.decoded["own"] == 23


def test_progressive_files_that_leave_out_a_scan_are_left_to_libjpeg() -> None:
    """Each of the file's scans in turn is dropped, with the tables before it or without."""
    data = images.jpeg(images.photo(45, 70), progressive=True)
    starts = [match.start() for match in re.finditer(rb"\xff\xda\x00[\x08\x0c]", data)]
    ours, theirs = Decoder(), Decoder(always_libjpeg=True)
    box = (3, 5, 30, 40)
    assert len(starts) == 10
    for start, stop in zip(starts, [*starts[1:], len(data) - 2], strict=True):
        cut = data[:start] + data[stop:]
        (found,), failures = ours.decode(cut, [box])
        (wanted,), others = theirs.decode(cut, [box])
        assert [failure[1:] for failure in failures] == [failure[1:] for failure in others]
        np.testing.assert_array_equal(found, wanted)


def test_tables_do_not_outlive_their_file() -> None:
    """libjpeg keeps Huffman and quantisation tables from one file to the next."""
    data = images.jpeg(images.photo(30, 30), quality=50)
    start, stop = data.index(b"\xff\xdb"), data.index(b"\xff\xc0")
    without = data[:start] + data[stop:]
    box = (0, 0, 30, 30)
    assert "not defined" in Decoder().verdict(without, box)
    decoder = Decoder(always_libjpeg=True)
    assert decoder.verdict(data, box) == ""
    assert "not defined" in decoder.verdict(without, box)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """With one to three of the things that happen to files."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(2, len(changed)))
        match int(rng.integers(0, 6)):
            case 0:
                changed[at] ^= 1 << int(rng.integers(0, 8))
            case 1:
                changed[at] = int(rng.integers(0, 256))
            case 2:
                del changed[at : at + int(rng.integers(1, 20))]
            case 3:
                changed[at:at] = rng.bytes(int(rng.integers(1, 5)))
            case 4:
                changed[at : at + 2] = bytes([0xFF, int(rng.integers(0xC0, 0x100))])
            case _:
                del changed[max(at, 20) :]
    return bytes(changed)


def assert_verdicts_of_libjpeg(
    ours: Decoder, data: bytes, height: int, width: int, count: int, rng: np.random.Generator
) -> int:
    """Of so many damaged copies; and where the verdict is a good one, the pixels of libjpeg-turbo's
    full decode, of the rows down to the last of the box. Returns how many our decoder took."""
    header = data.index(b"\xff\xda")
    theirs = Decoder(always_libjpeg=True)
    good = 0
    for _ in range(count):
        bad = (
            damaged(data, rng)
            if rng.random() < 0.5
            else data[:header] + damaged(data[header:], rng)
        )
        box = boxes_of(height, width, 1, int(rng.integers(1 << 30)))[-1]
        whole = bool(rng.random() < 0.3)
        before = ours.pool.decoded["own"]
        (found,), failures = ours.decode(bad, [box], whole=whole)
        assert [failure[1] for failure in failures] == [
            f[1] for f in theirs.decode(bad, [box], whole=whole)[1]
        ], bad
        if not failures and ours.pool.decoded["own"] > before:
            top, left, h, w = box
            (rows,), failures = theirs.decode(bad, [(0, 0, top + h, width)])
            assert failures == []
            np.testing.assert_array_equal(found, rows[top:, left : left + w])
            good += 1
    return good


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_get_the_verdict_of_libjpeg(kind: str) -> None:
    data = images.jpeg(images.photo(45, 70), **KINDS[kind])
    rng = np.random.default_rng(list(kind.encode()))
    # Some damage lies where no one looks, or only changes the picture.
    assert assert_verdicts_of_libjpeg(Decoder(), data, 45, 70, 250, rng) > 10


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_rows_of_a_grey_picture_that_libjpeg_decodes_together_are_judged_together(
    factor: int,
) -> None:
    """It decodes as many rows of blocks at once as the component's factor says, with damage in the
    rows below the box."""
    data = bytearray(images.jpeg(images.photo(70, 40, channels=1)))
    frame = data.index(b"\xff\xc0")
    data[frame + 11] = 0x10 | factor
    scan = data.index(b"\xff\xda") + 10
    ours, theirs = Decoder(), Decoder(always_libjpeg=True)
    refused = 0
    for cut in range(scan, len(data), 9):
        short = bytes(data[:cut]) + b"\xff\xd9"
        for box in [(0, 0, 4, 40), (20, 8, 8, 8), (30, 0, 20, 40)]:
            found = ours.verdict(short, box)
            assert found == theirs.verdict(short, box), (cut, box)
            refused += found != ""
    assert refused > 0
    assert ours.pool.decoded["own"] > 0


@pytest.mark.parametrize("kind", ["scans", "progressive"])
def test_damage_in_any_scans_gets_the_verdict_of_libjpeg(kind: str) -> None:
    rng = np.random.default_rng(list(kind.encode()))
    decoder, good = Decoder(), 0
    for sampling in jpegs.SAMPLINGS:
        data, height, width = kind_of_scans(sampling, kind, rng)
        good += assert_verdicts_of_libjpeg(decoder, data, height, width, 60, rng)
    assert good > 10


def in_rows(data: bytes) -> list[bytes]:
    """A file with a restart marker after each row of MCUs, cut before these: headers and the first
    row, the other rows with their markers, the end marker."""
    scan = images.scan_start(data)
    cuts = [scan + at.start() for at in re.finditer(rb"\xff[\xd0-\xd7\xd9]", data[scan:])]
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
def test_rows_between_restart_markers_must_be_whole_and_in_order(subsampling: str) -> None:
    height, width = 300, 120
    picture = images.photo(height, width)
    data = images.jpeg(picture, subsampling=subsampling, restart_marker_rows=1)
    rows = in_rows(data)
    assert len(rows) > 18
    torn = rows[4][:2] + rows[5][2:]  # another row under this one's marker
    changed = {
        "as it is": rows,
        "eight rows are lost": rows[:3] + rows[11:],
        "a row is lost": rows[:4] + rows[5:],
        "a row comes twice": rows[:5] + rows[4:],
        "two rows are exchanged": [*rows[:4], rows[5], rows[4], *rows[6:]],
        "a row in place of another": [*rows[:4], torn, *rows[5:]],
        "a byte before a marker": [*rows[:4], b"\x55" + rows[4], *rows[5:]],
        "the end of a row is lost": [*rows[:4], rows[4][:-3], *rows[5:]],
        "all but the marker is lost": [*rows[:4], rows[4][:2], *rows[5:]],
        "no marker": [*rows[:4], rows[4][2:], *rows[5:]],
        "an odd marker": [*rows[:4], b"\xff\xd9" + rows[4][2:], *rows[5:]],
        "a marker after fill bytes": [*rows[:4], b"\xff" + rows[4], *rows[5:]],
        "no end marker": rows[:-1],
    }
    row = height // (len(rows) - 1)
    ours, theirs = Decoder(), Decoder(always_libjpeg=True)
    for name, parts in changed.items():
        bad = b"".join(parts)
        boxes = [(0, 0, row, 30), (4 * row, 5, 9, 40), (7 * row + 3, 90, 20, 30), (290, 0, 10, 120)]
        for box in [*boxes, (0, 0, height, width)]:
            for whole in (False, True):
                (found,), failures = ours.decode(bad, [box], whole=whole)
                (wanted,), others = theirs.decode(bad, [box], whole=whole)
                said = [failure[1:] for failure in failures]
                assert said == [failure[1:] for failure in others], (name, box, whole)
                np.testing.assert_array_equal(found, wanted, err_msg=f"{name} {box}")
    assert ours.pool.decoded["own"] > 30


def test_damage_above_and_in_the_box_counts_below_it_only_when_asked() -> None:
    data = images.jpeg(images.photo(64, 64))
    scan = data.index(b"\xff\xda")
    middle = (scan + len(data)) // 2
    torn = data[:middle] + b"\xff\xd3" + data[middle:]  # a restart marker where none belongs
    decoder = Decoder()
    assert decoder.verdict(torn, (48, 0, 8, 64)) != ""
    assert decoder.verdict(torn, (0, 0, 64, 8)) != ""
    assert decoder.verdict(torn, (0, 0, 8, 8)) == ""
    assert decoder.verdict(torn, (0, 0, 8, 8), whole=True) != ""
    assert decoder.verdict(data[:-2], (0, 0, 8, 8)) == "Premature end of JPEG file"


def test_explain_says_what_decoded_how_many(tmp_path: Path) -> None:
    for name, width in [("a", 40), ("b", 40), ("c", 3)]:  # the last is too narrow for the core
        (tmp_path / "kind").mkdir(exist_ok=True)
        (tmp_path / "kind" / f"{name}.jpg").write_bytes(images.jpeg(images.photo(40, width)))
    resized = v2.Resize((20, 20), antialias=True)
    with create_loader(tmp_path, batch_size=3, transform=resized, backend="turbojpeg") as loader:
        next(iter(loader))
        said = re.search(r"^decoded +layout (\d+), own (\d+)$", loader.explain(), re.MULTILINE)
        assert said is not None
        # More than of one batch: the next epochs are under way.
        assert int(said[1]) >= 1
        assert int(said[2]) >= 2
