"""On one core fastload starts one worker process, unless it is asked to start more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import warm
from tests.images import jpeg, photo

PROGRAM = """
import os, sys, warnings

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
# torch warns when there are more workers than cores.
warnings.filterwarnings("error", "This DataLoader will create")

import fastload
from torchvision.transforms import v2

def opaque(image):
    return image

if __name__ == "__main__":
    from fastload.machine import usable_cores

    assert usable_cores() == 1
    small = v2.Resize((8, 8))
    for backend in ("torch", "turbojpeg"):
        with fastload.create_loader("data", 2, backend=backend, transform=small) as loader:
            assert len(list(loader)) == 3
            print(loader.explain())
    with fastload.create_loader("data", 2, transform=v2.Compose([opaque, small])) as loader:
        assert len(list(loader)) == 3
        print(loader.explain())
    try:
        options = {"backend": "torch", "transform": small, "num_workers": 2}
        with fastload.create_loader("data", 2, **options) as loader:
            list(loader)
    except UserWarning as warning:
        print("warned:", warning)
"""


@pytest.mark.slow
def test_on_one_core_there_is_one_worker_process_unless_more_are_asked_for(tmp_path: Path) -> None:
    for index in range(6):
        path = tmp_path / "data" / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(photo(20, 30, seed=index)))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = warm.run("program.py", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 worker process (one for each usable core)") == 2
    assert "warned: This DataLoader will create 2 worker processes" in done.stdout
