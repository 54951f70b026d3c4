"""Images that are much larger than what is made of them, resized by the native core.

In processes of their own, for a read beyond a row may end the process.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fastload import native
from tests import warm

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")

# (format, height, width, size, interpolation). The first two ended the process with AVX-512, the
# third with all others: each weight row was as long as the longest one, and those of the last
# columns were read to their full length, which is 2 s (bilinear) or 6 s (bicubic) bytes beyond the
# pixels for an image that gets s times smaller.
LARGE = {
    "wide-jpeg": ("JPEG", 300, 20_000, 32, "bicubic"),
    "wide-png": ("PNG", 200, 13_000, 24, "bilinear"),
    "wider-png": ("PNG", 16, 60_000, 8, "bicubic"),
    "tall-jpeg": ("JPEG", 20_000, 300, 32, "bicubic"),
}
_LOAD = """
import ctypes, faulthandler, sys, warnings
import numpy as np, torch
import fastload
from fastload.errors import ConfigurationError
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
if sys.platform == "linux":
    ctypes.CDLL(None).mallopt(-6, 173)  # M_PERTURB: memory that is freed is overwritten
faulthandler.enable()
warnings.simplefilter("ignore")
Image.MAX_IMAGE_PIXELS = None
for case in sys.argv[2:]:
    folder, size, interpolation = case.split(",")
    print(folder, flush=True)  # the last one is the one that ended the process
    resize = v2.Resize((int(size),) * 2, InterpolationMode(interpolation), antialias=True)
    options = {"transform": resize, "num_workers": 1}
    found = {}
    for backend in sys.argv[1].split(","):
        source = folder
        if backend == "cache":
            source = fastload.build_cache(folder, folder + "-cache", progress=False)
        with fastload.create_loader(source, 2, backend=backend, **options) as loader:
            for images, _ in loader:
                found[backend] = images
    assert all(torch.equal(found["turbojpeg"], images) for images in found.values()), folder
    np.save(folder + ".npy", found["turbojpeg"].permute(0, 2, 3, 1).numpy())
"""


def resize_all(home: Path, backends: str, *cases: str) -> None:
    """What the backends make of folders, which must be the same, into `FOLDER.npy`; each case is
    "FOLDER,SIZE,INTERPOLATION"."""
    (home / "load.py").write_text(_LOAD)
    done = warm.run(
        "load.py", backends, *cases, directory=home, environment={"XDG_CACHE_HOME": str(home)}
    )
    assert done.returncode == 0, (
        f"ended with {done.returncode} at {done.stdout.split()[-1:]}:\n{done.stderr[-3000:]}"
    )


def write(folder: Path, kind: str, height: int, width: int) -> None:
    (folder / "a").mkdir(parents=True)
    rng = np.random.default_rng(height + width)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    for number in range(2):
        name = folder / "a" / f"{number}.{kind.lower()}"
        Image.fromarray(pixels[::-1] if number else pixels).save(name, kind, compress_level=1)


@pytest.mark.whole
def test_sound_images_much_larger_than_their_output(tmp_path: Path) -> None:
    for case, (kind, height, width, _, _) in LARGE.items():
        write(tmp_path / case, kind, height, width)
    resize_all(
        tmp_path,
        "turbojpeg,cache",
        *(f"{tmp_path / case},{size},{how}" for case, (*_, size, how) in LARGE.items()),
    )
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for case, (kind, _, _, size, how) in LARGE.items():
        found: npt.NDArray[np.uint8] = np.load(tmp_path / f"{case}.npy")
        assert len(found) == 2
        for number, pixels in enumerate(found):
            with Image.open(tmp_path / case / "a" / f"{number}.{kind.lower()}") as image:
                expected = np.asarray(
                    image.convert("RGB").resize((size, size), filters[how], reducing_gap=None)
                )
            # Pillow rounds the weights in another way.
            assert np.abs(pixels.astype(int) - expected).max() <= 2, case


@pytest.mark.reliability
def test_the_largest_png_that_the_limit_admits(tmp_path: Path) -> None:
    """13,000 x 13,000 grey pixels: 169 million, where 179 million are allowed."""
    (tmp_path / "data" / "a").mkdir(parents=True)
    Image.new("L", (13_000, 13_000), 137).save(tmp_path / "data" / "a" / "0.png")
    resize_all(tmp_path, "turbojpeg", f"{tmp_path / 'data'},24,bilinear")
    assert (np.load(tmp_path / "data.npy") == 137).all()


_KERNELS = """
import sys
import numpy as np
from fastload import native
from fastload.errors import ConfigurationError
from fastload.geometry import Geometry, Resampling
from fastload.sources.columns import PixelArray

SHRINKS = (
    (65_500, 8, "bicubic"),
    (7_000, 224, "bilinear"),
    (2_400, 224, "bicubic"),
    (40_000, 3, "bilinear"),
)
made = {}
for simd in ("avx512", "avx2", "sse4.1", "neon", "plain"):
    try:
        pool = native.NativePool(1, simd=simd)
    except ConfigurationError:
        continue
    for width, size, interpolation in SHRINKS:
        pixels = np.random.default_rng(width).integers(0, 256, (1, 8, width, 3), dtype=np.uint8)
        box = np.array([[0, 0, 8, width]], np.int32)
        window = np.array([[0, 0, 8, size]], np.int32)
        flip = np.zeros((1, 2), np.bool_)
        out = np.empty((1, 8, size, 3), np.uint8)
        placed = Geometry(box, window[:, 2:].copy(), window, flip)
        sampling = Resampling(interpolation=interpolation)
        array, row = PixelArray(pixels), np.array([0])
        pending = pool.gather_batch(array, row, geometry=placed, out=out, sampling=sampling)
        assert pending.wait() == []
        made.setdefault((width, size), []).append(out)
    pool.close()
assert all(np.array_equal(one, outs[0]) for outs in made.values() for one in outs)
print(len(made))
"""


@pytest.mark.slow
def test_wide_rows_with_every_instruction_set(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(_KERNELS)
    done = warm.run("kernels.py", directory=tmp_path)
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stderr[-3000:]}"
    assert done.stdout.strip() == "4"


@pytest.mark.reliability
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitizer", ["", "address,undefined"])
def test_no_read_goes_beyond_a_row(tmp_path: Path, sanitizer: str) -> None:
    """Rows that end at a page that nobody may read, and the same with AddressSanitizer."""
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        pytest.skip("building needs cmake and g++: apt-get install cmake g++ libjpeg-dev")
    root = Path(__file__).parents[1]
    options = ["-DFASTLOAD_PYTHON=OFF", "-DFASTLOAD_STRESS=ON", f"-DFASTLOAD_SANITIZE={sanitizer}"]
    subprocess.run(
        ["cmake", "-S", str(root), "-B", str(tmp_path), *options], check=True, capture_output=True
    )
    make = ["cmake", "--build", str(tmp_path), "--target", "bounds", "--parallel", "2"]
    subprocess.run(make, check=True, capture_output=True)
    done = subprocess.run(
        [tmp_path / "tests" / "native" / "bounds"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
