"""A decoder of a third party: named in options, listed by the doctor,
used for pixels."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload.backends.turbojpeg import TurboJpegOptions
from fastload.decode import Decoder, available_decoders, register_decoder
from fastload.decode.libraries import _DECODERS
from fastload.errors import BackendUnavailableError, ConfigurationError, DecodeError
from fastload.tools.bench import DecodeSettings
from fastload.tools.bench.decode import run_decode_benchmark
from tests.images import jpeg, photo


class Inverting:
    """Pillow's pixels upside-down in value, so that one sees who decoded."""

    name, version, strict = "inverting", "1", False

    def decode(self, data: bytes, *, out: np.ndarray | None = None) -> np.ndarray:
        try:
            return 255 - np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        except OSError as error:
            raise ValueError(str(error)) from error


def lacking() -> Decoder:
    raise BackendUnavailableError(
        "The decoder lacking is not available. Install it: pip install lacking"
    )


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_decoder("inverting", Inverting)
    register_decoder("lacking", lacking)
    yield
    for name in ("inverting", "lacking"):
        del _DECODERS[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "only").mkdir()
    for index in range(3):
        (tmp_path / "only" / f"{index}.jpg").write_bytes(jpeg(photo(32, 40, seed=index)))
    return tmp_path


def loader(folder: Path, decoder: str) -> fastload.Loader:
    return fastload.create_loader(
        folder,
        batch_size=3,
        transform=v2.CenterCrop(24),
        backend="turbojpeg",
        options=TurboJpegOptions(decoder=decoder),
    )


def test_it_makes_the_pixels_where_it_is_named(folder: Path) -> None:
    with loader(folder, "inverting") as ours, loader(folder, "pillow") as pillow:
        assert torch.equal(next(iter(ours))[0], 255 - next(iter(pillow))[0])
        assert "inverting 1" in ours.explain()


def test_what_it_raises_is_a_damaged_file(folder: Path) -> None:
    path = folder / "only" / "1.jpg"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\xff\xdb", b"\xff\xee"))  # no quantisation tables
    with loader(folder, "inverting") as ours, pytest.raises(DecodeError, match="1.jpg"):
        next(iter(ours))


def test_it_is_listed_with_the_others() -> None:
    rows = {row.name: row for row in available_decoders()}
    assert rows["inverting"].available
    assert (rows["lacking"].available, "pip install lacking" in rows["lacking"].hint) == (
        False,
        True,
    )


@pytest.mark.slow
def test_fastload_bench_decode_measures_it(folder: Path) -> None:
    settings = DecodeSettings(
        folder,
        decoders=("inverting", "lacking"),
        modes=("full",),
        readings=("memory",),
        threads=(1,),
        seconds=0.0,
        rounds=1,
    )
    inverting, lacking = run_decode_benchmark(settings).measurements
    assert (inverting.contestant, inverting.status) == ("inverting", "measured")
    assert inverting.version == "1"
    difference = inverting.metric("pixel_difference_max")
    assert difference is not None
    assert difference.median > 100
    assert (lacking.contestant, lacking.status) == ("lacking", "unavailable")
    assert "pip install lacking" in lacking.note


@pytest.mark.parametrize("name", ["pillow", "inverting", "auto", "native"])
def test_a_name_is_given_once(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name!r} already"):
        register_decoder(name, Inverting)
