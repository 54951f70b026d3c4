"""What a new installation must do: decode images of three formats by the native core, with Pillow's
pixels. Run by `scripts/try_wheel.sh`, and by cibuildwheel after each build. With `--without-core`
it does the same where there is no core."""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from pathlib import Path

STARTED = time.perf_counter()
LIBRARIES = "libjpeg.so.62", "libjpeg.so.8", "libturbojpeg.so.0", "libisal.so.2", "libwebp.so.7"
SAVED = (".jpg", 95), (".png", 95), (".webp", 95), (".jpg", 50)


def report_libraries() -> None:
    """Before torchvision brings some of its own."""
    for name in LIBRARIES:
        try:
            print(f"    the system's {ctypes.CDLL(name)._name} can be loaded: it was not hidden")
        except OSError:
            print(f"    {name} cannot be loaded")


def main() -> None:
    import numpy as np
    from PIL import Image
    from torchvision.transforms import v2

    import fastload
    from fastload import native

    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("cat", "dog"):
            Path(folder, kind).mkdir()
            for number, (suffix, quality) in enumerate(SAVED):
                path = Path(folder, kind, f"{number}{suffix}")
                Image.fromarray(pixels).save(path, quality=quality)
        transform = v2.CenterCrop((40, 60))
        with fastload.create_loader(folder, batch_size=4, transform=transform) as loader:
            batches = list(loader)
            words = loader.explain()
        plain = np.asarray(Image.open(Path(folder, "cat", "0.jpg")))
    if "--without-core" not in sys.argv:
        assert native.available(), "the wheel came without its native core"
        assert "native core" in words, words
        assert "PNG (ISA-L)" in words, words
        assert "WEBP (libwebp)" in words, words
    assert len(batches) == 2
    assert np.array_equal(batches[0][0][0].permute(1, 2, 0).numpy(), plain)
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", the GIL is off"
    print(
        f"    Python {sys.version.split()[0]}{gil}: fastload {fastload.__version__}, "
        f"{'native core' if native.available() else 'no native core'}, "
        f"pixels as Pillow's, {time.perf_counter() - STARTED:.1f} s"
    )


if __name__ == "__main__":
    report_libraries()
    main()
