"""Which libjpeg the native core works with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastload import native
from tests.images import jpeg, photo
from tests.waiting import LIMIT

pytestmark = pytest.mark.skipif(not native.available(), reason="the native core is not built")


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to make another libjpeg")
def test_another_libjpeg_in_the_process_does_not_get_in_the_way(tmp_path: Path) -> None:
    """torchvision brings one of the same name for the dynamic linker, in some versions without what
    the core needs. The core's own is called as one of these two."""
    others = []
    for soname in ("libjpeg.so.62", "libjpeg.so.8"):
        others.append(str(tmp_path / soname))
        subprocess.run(
            ["cc", "-shared", f"-Wl,-soname,{soname}", "-x", "c", "/dev/null", "-o", others[-1]],
            check=True,
            timeout=LIMIT,
        )
    image = tmp_path / "image.jpg"
    image.write_bytes(jpeg(photo(20, 30)))
    program = f"""
import ctypes, pathlib
for other in {others}:
    ctypes.CDLL(other, mode=ctypes.RTLD_GLOBAL)
from fastload.native import NativePool
sizes, failures = NativePool(1).read_headers([pathlib.Path({str(image)!r}).read_bytes()])
assert not failures
assert sizes[0, :2].tolist() == [20, 30]
"""
    root = str(Path(__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert run.returncode == 0, run.stderr
