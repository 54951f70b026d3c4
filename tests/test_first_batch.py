"""How many files of fastload a reader passes, from the call of `create_loader` with a class folder
to the first batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.images import write_photo_folder

# Files whose code runs; 30 is the goal. What is not used is not entered: no framework, no log of
# spans, no columns that are moved, no kernels of a GPU. 8 are of the loader, 7 each of sources and
# recipe, 6 of backends, 13 others. Fewer would merge files that are about different things.
MOST = 42

SCRIPT = """
import importlib, json, sys, threading
from pathlib import Path
import torch
from torchvision.transforms import v2
import fastload

folder, *modules = sys.argv[1:]
create_loader = fastload.create_loader
for module in modules:  # what is imported at the first use: its statements are no steps of the way
    importlib.import_module(module)
root, entered = str(Path(fastload.__file__).parent), {}

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and code.co_name != "<module>":
        entered.setdefault(code.co_filename[len(root) + 1:], set()).add(code.co_name)

transform = v2.Compose([
    v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3),
])
threading.setprofile(profile)
sys.setprofile(profile)
loader = create_loader(folder, 4, shuffle=True, transform=transform)
images, labels = next(iter(loader))
sys.setprofile(None)
threading.setprofile(None)
loader.close()
assert images.shape == (4, 3, 16, 16)
loaded = sorted(name for name in sys.modules if name.startswith("fastload."))
print(json.dumps([loaded, {file: sorted(names) for file, names in entered.items()}]))
"""


def passed(folder: Path, *modules: str) -> tuple[list[str], dict[str, list[str]]]:
    """The modules that are loaded in the end, and the functions that were called, by file."""
    script = [sys.executable, "-c", SCRIPT, str(folder), *modules]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, entered = json.loads(done.stdout)
    return loaded, entered


@pytest.mark.slow
def test_a_first_batch_of_a_class_folder_passes_few_files(tmp_path: Path) -> None:
    folder = write_photo_folder(tmp_path / "data")
    modules, _ = passed(folder)
    _, entered = passed(folder, *modules)
    assert "loader/loader.py" in entered
    assert len(entered) <= MOST, "\n".join(
        f"{file}: {', '.join(names)}" for file, names in sorted(entered.items())
    )
