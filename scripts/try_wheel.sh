#!/usr/bin/env bash
# Installs a wheel of fastload as a machine without compiler and libjpeg would, and decodes with its native core there.
#
#   scripts/try_wheel.sh PYTHON WHEEL      (installs torch and torchvision, several GB)
#
# What is hidden: compilers (an empty PATH but for the interpreter's own folder) and, where mount namespaces may be made,
# the system's libjpeg and libturbojpeg.
set -euo pipefail

python=$1
wheel=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/env"
env -u CC -u CXX PATH="$work/env/bin" "$work/env/bin/python" -m pip --disable-pip-version-check -q install "$wheel"

cat >"$work/try.py" <<'PYTHON'
import ctypes, pathlib, sys, tempfile

for name in ("libjpeg.so.62", "libjpeg.so.8", "libturbojpeg.so.0", "libisal.so.2", "libwebp.so.7"):
    try:
        print(f"    the system's {ctypes.CDLL(name)._name} can be loaded: it could not be hidden")
    except OSError:
        print(f"    {name} cannot be loaded")  # before torchvision brings one of its own

import numpy as np
from PIL import Image
from torchvision.transforms import v2

import fastload
from fastload import native

pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
with tempfile.TemporaryDirectory() as folder:
    for kind in ("cat", "dog"):
        pathlib.Path(folder, kind).mkdir()
        for number in range(4):
            suffix, quality = [(".jpg", 95), (".png", 95), (".webp", 95), (".jpg", 50)][number]
            Image.fromarray(pixels).save(pathlib.Path(folder, kind, f"{number}{suffix}"), quality=quality)
    with fastload.create_loader(folder, batch_size=4, transform=v2.CenterCrop((40, 60))) as loader:
        batches = list(loader)
        words = loader.explain()
    plain = np.asarray(Image.open(pathlib.Path(folder, "cat", "0.jpg")))
assert native.available(), "the wheel came without its native core"
assert "native core" in words, words
assert " PNG by the core" in words and " WEBP by the core" in words, words
assert len(batches) == 2 and np.array_equal(batches[0][0][0].permute(1, 2, 0).numpy(), plain)
print(f"    Python {sys.version.split()[0]}: fastload {fastload.__version__}, native core, pixels as Pillow's")
PYTHON

hide='for f in $(ls /usr/lib/*/libjpeg.so* /usr/lib/*/libturbojpeg.so* /usr/lib/*/libisal.so* /usr/lib/*/libwebp.so* /usr/lib64/libjpeg.so* /usr/lib64/libturbojpeg.so* 2>/dev/null); do mount --bind /dev/null "$(readlink -f "$f")"; done'
if unshare -m true 2>/dev/null; then
    unshare -m sh -c "$hide; cd '$work' && exec env -i HOME='$work' PATH='$work/env/bin' '$work/env/bin/python' try.py"
else
    (cd "$work" && env -i HOME="$work" PATH="$work/env/bin" "$work/env/bin/python" try.py)
fi
