"""A set of JPEGs that cost what photographs cost.

Random noise compresses badly and flat shapes too well; neither says anything about decoding. These
images have the statistics that decide a photograph's size and decode time:

- objects that occlude one another, their radii following a power law: the "dead leaves" model (Lee,
  Mumford, Huang: "Occlusion models for natural images", IJCV 2001), which gives edges and a
  heavy-tailed gradient distribution;
- surfaces with a 1/f amplitude spectrum (Field: "Relations between the statistics of natural images
  and the response properties of cortical cells", JOSA A 1987), luminance much stronger than chroma;
- a soft focus and sensor noise, both different from image to image.

Sizes, JPEG qualities and subsampling are mixed as in web photographs. Four kinds of scene differ in
palette, object shape and orientation, so that a small network can learn them. Everything follows
from one seed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from fastload.errors import ConfigurationError

Array = npt.NDArray[np.float32]
Colour = tuple[int, int, int]  # RGB, 0 to 255


class ClassLook(NamedTuple):
    """What the photographs of one class have in common."""

    top: Colour  # mean of the background at the upper edge; it runs to `bottom`
    bottom: Colour
    objects: tuple[Colour, ...]
    aspect: tuple[float, float]  # bounds of an object's width / height
    round: bool  # ellipses, or boxes
    roughness: float  # contrast of the surfaces, relative


SCENES: dict[str, ClassLook] = {
    "coast": ClassLook(
        (150, 190, 225),
        (70, 110, 140),
        ((205, 190, 160), (90, 120, 135), (235, 235, 230)),
        (2, 5),
        True,
        0.8,
    ),
    "forest": ClassLook(
        (120, 140, 90),
        (60, 65, 35),
        ((50, 80, 35), (90, 110, 45), (75, 60, 40)),
        (0.6, 1.6),
        True,
        1.3,
    ),
    "street": ClassLook(
        (165, 165, 170),
        (95, 92, 92),
        ((140, 130, 120), (70, 72, 80), (165, 105, 85)),
        (0.3, 0.8),
        False,
        0.9,
    ),
    "desert": ClassLook(
        (215, 160, 110),
        (165, 100, 60),
        ((190, 125, 70), (125, 75, 45), (230, 190, 140)),
        (1.2, 3),
        True,
        1.0,
    ),
}

_VAL_SHARE = 0.2
_FIELD = 1024  # side of the noise fields, in pixels: larger than any image, and periodic


def _surfaces(rng: np.random.Generator) -> list[Array]:
    """Noise with amplitude 1 / f**slope, from rough to smooth, by FFT, of unit variance; the last
    is white."""
    frequency = np.hypot(np.fft.fftfreq(_FIELD)[:, None], np.fft.rfftfreq(_FIELD)[None, :])
    frequency[0, 0] = 1.0
    fields = []
    for slope in (0.75, 0.9, 1.05, 1.25):
        spectrum = np.fft.rfft2(rng.standard_normal((_FIELD, _FIELD)))
        spectrum *= frequency**-slope
        spectrum[0, 0] = 0.0
        field = np.fft.irfft2(spectrum).astype(np.float32)
        fields.append(field / field.std())
    return [*fields, rng.standard_normal((_FIELD, _FIELD)).astype(np.float32)]


def _window(field: Array, rng: np.random.Generator, height: int, width: int) -> Array:
    y, x = int(rng.integers(_FIELD - height + 1)), int(rng.integers(_FIELD - width + 1))
    window = field[y : y + height, x : x + width]
    return window[:, ::-1] if rng.random() < 0.5 else window


def _photograph(
    scene: ClassLook, rng: np.random.Generator, surfaces: list[Array]
) -> npt.NDArray[np.uint8]:
    """One image: (H, W, 3) uint8 RGB, the longer side 500 pixels in most cases as in the usual
    photo collections."""
    short = int(np.clip(rng.normal(362, 36), 230, 500))
    long = 500 if rng.random() < 0.75 else int(rng.integers(short, 620))
    height, width = (short, long) if rng.random() < 0.75 else (long, short)

    # Busy scenes and plain ones: the spread of file sizes comes from here.
    clutter = float(np.exp(rng.normal(0.0, 0.7)))
    light = float(np.clip(rng.normal(1.0, 0.18), 0.6, 1.4))

    which = _occlude(scene, rng, height, width, clutter)
    count = int(which.max()) + 1

    palette = np.asarray(scene.objects, np.float32)[rng.integers(len(scene.objects), size=count)]
    # Lightness varies much more than hue, as it does under one light.
    palette *= np.exp(rng.normal(-0.1, 0.6, (count, 1))).astype(np.float32)
    palette += rng.normal(0.0, 7.0, (count, 3)).astype(np.float32)
    contrast = (np.exp(rng.normal(3.15, 0.65, count)) * scene.roughness * clutter**0.6).astype(
        np.float32
    )
    contrast = np.minimum(contrast, 60.0)

    ramp = np.linspace(0.0, 1.0, height, dtype=np.float32)[:, None, None]
    background = (
        np.asarray(scene.top, np.float32) * (1 - ramp) + np.asarray(scene.bottom, np.float32) * ramp
    )
    image = np.where((which == 0)[:, :, None], background, palette[which])
    *coloured, white = surfaces
    texture = coloured[round(float(rng.random()) * (len(coloured) - 1))]
    luminance = _window(texture, rng, height, width) * contrast[which]
    # Uneven light over the whole scene.
    luminance += 26.0 * _window(coloured[-1], rng, height, width)
    image += luminance[:, :, None]
    tint = _window(coloured[-1], rng, height, width) * (0.12 * contrast[which] + 5.0)
    image[:, :, 0] += tint
    image[:, :, 2] -= tint
    image *= light

    # The lens: sharp or a little soft. Then the sensor, whose noise no lens softens.
    picture = Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))
    picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.15, 0.8))))
    noise = _window(white, rng, height, width) * float(rng.gamma(2.0, 1.1))
    pixels = np.asarray(picture, dtype=np.float32) + noise[:, :, None]
    return np.clip(pixels + 0.5, 0, 255).astype(np.uint8)


def _occlude(
    scene: ClassLook, rng: np.random.Generator, height: int, width: int, clutter: float
) -> npt.NDArray[np.uint8]:
    """(H, W) uint8: which object is seen at each pixel; 0 is the background. Later objects cover
    earlier ones."""
    canvas = Image.new("L", (width, height))
    draw = ImageDraw.Draw(canvas)
    count = int(np.clip(120 * clutter, 20, 255))
    # Radii with density r**-3 between 3 and 130 pixels, by inversion; large ones first, so that
    # small ones are seen.
    low, high = 3.0**-2, 130.0**-2
    radii = np.sort((low + rng.random(count) * (high - low)) ** -0.5 * 1.6)[::-1]
    # More of them lower down: the ground.
    x = rng.random(count) * width
    y = (rng.random(count) ** 0.7) * height
    aspect = rng.uniform(*scene.aspect, count) ** 0.5
    for index, (r, cx, cy, a) in enumerate(zip(radii, x, y, aspect, strict=True)):
        box = (cx - r * a, cy - r / a, cx + r * a, cy + r / a)
        (draw.ellipse if scene.round else draw.rectangle)(
            box, fill=index + 1 if index < 254 else 255
        )
    return np.asarray(canvas)


def _encode(pixels: npt.NDArray[np.uint8], rng: np.random.Generator) -> bytes:
    """JPEG bytes: mostly 4:2:0, some 4:4:4 and 4:2:2, a few progressive, a few grey; two groups of
    quality."""
    drawn = rng.random()
    quality = int(rng.choice([96, 95, 94, 90, 85, 75], p=[0.45, 0.2, 0.1, 0.1, 0.08, 0.07]))
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    if drawn < 0.02:
        image.convert("L").save(buffer, "JPEG", quality=quality)
    elif drawn < 0.30:
        image.save(buffer, "JPEG", quality=quality, subsampling=0)
    else:
        subsampling = 1 if drawn < 0.33 else 2
        image.save(
            buffer, "JPEG", quality=quality, subsampling=subsampling, progressive=drawn > 0.97
        )
    return buffer.getvalue()


def write_photographs(
    folder: str | os.PathLike[str],
    count: int = 256,
    *,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Path:
    """Write `folder`/{train,val}/<scene>/<number>.jpg, a fifth of them to `val`, the same bytes for
    the same arguments.

    Args:
        count: images altogether, spread evenly over the four scenes.
        progress: called with the share done, 0 to 1, from this thread.

    Raises:
        ConfigurationError: `count` too small to give each scene an image in both parts.
        OSError: the folder cannot be written.
    """
    if count < 2 * len(SCENES):
        raise ConfigurationError(
            f"count={count}: each of the {len(SCENES)} scenes needs an image to train and one to "
            f"validate; ask for {2 * len(SCENES)} or more."
        )
    root = Path(folder)
    names = sorted(SCENES)
    for split in ("train", "val"):
        for name in names:
            (root / split / name).mkdir(parents=True, exist_ok=True)

    surfaces = _surfaces(np.random.default_rng([seed, 0]))
    val_each = max(1, min(round(count / len(names) * _VAL_SHARE), count // len(names) - 1))

    def write(index: int) -> None:
        # Its own generator: threads cannot change the images.
        rng = np.random.default_rng([seed, 1, index])
        name, number = names[index % len(names)], index // len(names)
        data = _encode(_photograph(SCENES[name], rng, surfaces), rng)
        (root / ("val" if number < val_each else "train") / name / f"{number:05d}.jpg").write_bytes(
            data
        )

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "fastload-photographs") as pool:
        for done, _ in enumerate(pool.map(write, range(count)), 1):
            progress(done / count)
    return root
