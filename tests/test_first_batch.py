"""How much of fastload a process loads and enters, from the call of `create_loader` with a class
folder to the first batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import warm
from tests.images import write_photo_folder

MODULES = 110
"""Of fastload, loaded by then. What only other data sets, transforms, backends or devices need is
loaded where it is met: by a registry that reads what modules say of themselves, as in
`fastload.modules`, or by an import in the function that met it."""
LINES = 3800
"""Lines with code of the functions entered by then, those called by import statements left out."""

SCRIPT = """
import json, sys, threading
from pathlib import Path
import torch
from torchvision.transforms import v2

for name in [name for name in sys.modules if name.partition(".")[0] == "fastload"]:
    if name != "fastload.native._core":  # it cannot be loaded twice
        del sys.modules[name]
import fastload

create_loader = fastload.create_loader
root, entered = str(Path(fastload.__file__).parent), set()

def imported(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(root):
            return True
        frame = frame.f_back
    return False

def profile(frame, event, argument):
    code = frame.f_code
    new = event == "call" and code not in entered and code.co_filename.startswith(root)
    if new and not imported(frame):
        entered.add(code)

transform = v2.Compose([
    v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3),
])
threading.setprofile(profile)
sys.setprofile(profile)
loader = create_loader(sys.argv[1], 4, shuffle=True, transform=transform)
images, labels = next(iter(loader))
sys.setprofile(None)
threading.setprofile(None)
loader.close()
assert images.shape == (4, 3, 16, 16)
modules = sorted(name for name in sys.modules if name.partition(".")[0] == "fastload")
lines = {(code.co_filename, line) for code in entered for *_, line in code.co_lines() if line}
print(json.dumps({"modules": modules, "lines": len(lines)}))
"""


@pytest.mark.slow
def test_a_first_batch_of_a_class_folder_loads_and_enters_so_much_at_most(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(SCRIPT)
    folder = write_photo_folder(tmp_path / "data")
    done = warm.run("first.py", str(folder), directory=tmp_path)
    assert done.returncode == 0, done.stderr
    passed = json.loads(done.stdout)
    print(f"{len(passed['modules'])} modules, {passed['lines']} lines")  # `pytest -s` shows it
    assert len(passed["modules"]) <= MODULES, passed["modules"]
    assert passed["lines"] <= LINES
