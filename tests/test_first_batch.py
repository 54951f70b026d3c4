"""How many files of fastload a reader passes, from the call of `create_loader` with a class folder
to the first batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import warm
from tests.images import write_photo_folder

FILES = {
    "arguments.py": "whether create_loader has the arguments that it is given",
    "backends/base.py": "what a backend is, which there are, and which one fits",
    "backends/maker.py": "makes batches: images, values, rows that were given back",
    "backends/needs.py": "what a backend may be asked for: here nothing",
    "backends/pixels_native.py": "has the native core make the images",
    "backends/pixels.py": "who makes the images of a batch",
    "backends/rows.py": "the buffers of a batch, and its values",
    "backends/turbojpeg.py": "the backend chosen: its options, and what it is put together of",
    "compat/handover.py": "whether a framework is imported that makes loaders again",
    "compat/parallel.py": "whether ranks share a model, and so samples",
    "compat/dataloader.py": "why isinstance(loader, DataLoader) holds",
    "device.py": "the device stage",
    "draws.py": "all random numbers",
    "files.py": "what a path names: no URL; bytes of some images, for the fingerprint",
    "fingerprint.py": "of the data and of the recipe, for states and indexes",
    "geometry/plan.py": "the geometry of a recipe: its operations, added up",
    "host_memory.py": "memory of batches, used again",
    "known_code.py": "whether torchvision's functions are those that it defines",
    "loader/build.py": "a backend for it, and the parts put together",
    "loader/config.py": "the arguments, checked",
    "loader/feed.py": "the batch at any position",
    "loader/iterator.py": "an epoch under way: iter() and next(), and where the trainer is",
    "loader/loader.py": "create_loader and the Loader",
    "loader/production.py": "the steps that make one batch, and the thread that makes them ahead",
    "loader/rules.py": "whether the arguments are for this data set and transform",
    "loader/served.py": "the data set, its recipe, and its order",
    "machine.py": "how many cores there are",
    "native/extension.py": "whether the native core is built",
    "native/pool.py": "the native core, with numpy's types",
    "native/seek.py": "whether the JPEGs get an index of where decoding can start",
    "recipe/attributes.py": "what torchvision's transforms mean by their settings",
    "recipe/composite.py": "which images a sample is made of: here itself",
    "recipe/convert.py": "ToDtype and Normalize",
    "recipe/crops.py": "RandomResizedCrop and RandomHorizontalFlip",
    "recipe/lower.py": "from torchvision's transforms to operations",
    "recipe/operation.py": "what an operation is, and which there are",
    "recipe/outputs.py": "the columns of a batch, in order",
    "recipe/recipe.py": "which operation runs where",
    "recipe/split.py": "what runs where: the geometry, and the operations on batches",
    "sampler/order.py": "which samples come when",
    "sources/base.py": "a source: columns of equal length",
    "sources/buffers.py": "a million paths in two arrays",
    "sources/columns.py": "the columns: files, values",
    "sources/folders.py": "what is in folders",
    "sources/formats/__init__.py": "which formats there are",
    "sources/formats/class_folders.py": "a folder of classes",
    "sources/image_files.py": "which files are images, by name",
    "sources/listing.py": "what lies in the folders",
    "sources/kinds.py": "what becomes of the rows of a column",
    "sources/names.py": "whether the names of folders are of classes",
    "sources/opening.py": "which format it is",
    "sources/signs.py": "whether the folder has the signs of a format",
    "stores/reads.py": "ends reads when the loader is closed: of which store, is not asked before",
}
"""The files whose code runs, and what each is for here. The goal is 30. A part that this data set
does not need has none here: frameworks, stores, the log of spans, boxes, colour on the host,
kernels of a GPU. Two of these in one file would be over 650 lines, or about two things. What was
looked at last, and stays:

- `backends/maker`, `rows` and `pixels_native`: keeping batches in order, reading rows, and the core
  have each more to it than fits with another (329, 240 and 469 lines). `backends/pixels` chooses
  among `pixels_native`, `pixels_composite`, which is made of parts of that, and `pixels_python`,
  for two backends; `maker` has what all three derive from.
- `compat/dataloader`: a Loader is a DataLoader from its construction on: the constructor of that
  assigns sampler, batch sampler and collate function, which are shown in other forms there.
- `files`, `fingerprint`: states and indexes say which data they are of. Taken later, when one asks,
  it would be of the files as they are then, which may not be those that were served. The index of
  `native/seek` asks for it before the first batch in any case.
- `known_code`: what a script has put into a class of torchvision's is to run.
- `loader/feed` beside `production`: the first gives the batch of any position, the second makes the
  next one. `loader/served` beside `build`: what is served, and by what; in one file 720 lines.
- `machine`: cores, for all that start threads; the folder of caches, for all that keep files.
- `native/extension` beside `native/pool`: it is asked where the core was not built, too; and by
  `native/seek`, whose index the pool is given.
- `native/seek`: points are noted at the first decode already, so that the first batch needs it.
- `recipe/attributes` beside `crops` and `convert`: what a number, a pair or an interpolation of
  torchvision's may be is read in one way for all operations, with one message.
- `sources/buffers`, `kinds` and `columns`: paths without an object each; what becomes of rows, open
  to other packages; where rows are. The last one has 600 lines.
- `sources/image_files` beside `folders`: it is asked by archives, tables and annotations, too.
- `stores/reads`: closing a loader ends what a thread waits for: a store, or processes that read for
  it (backend "torch"), wherever the data are. Were it made for some loaders only, there would be
  two cases at each of the five places where the production begins, cancels or ends. Were it made by
  the first read from a store, that read would have to find the loader that waits for it, from a
  thread of the backend: which is what it is for."""

SCRIPT = """
import json, sys, threading
from pathlib import Path
import torch
from torchvision.transforms import v2
import fastload

create_loader = fastload.create_loader
root, entered = str(Path(fastload.__file__).parent), {}

def imported(frame):  # the statements of a module, and what they call, are no steps of the way
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(root):
            return True
        frame = frame.f_back
    return False

def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and not imported(frame):
        entered.setdefault(code.co_filename[len(root) + 1:], set()).add(code.co_name)

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
print(json.dumps({file: sorted(names) for file, names in entered.items()}))
"""


def passed(folder: Path) -> dict[str, list[str]]:
    """The functions that were called, by file."""
    (folder.parent / "first.py").write_text(SCRIPT)
    done = warm.run("first.py", str(folder), directory=folder.parent)
    assert done.returncode == 0, done.stderr
    entered: dict[str, list[str]] = json.loads(done.stdout)
    return entered


@pytest.mark.slow
def test_a_first_batch_of_a_class_folder_passes_these_files_only(tmp_path: Path) -> None:
    entered = passed(write_photo_folder(tmp_path / "data"))
    named = sum(not name.startswith("<") for names in entered.values() for name in names)
    print(f"{len(entered)} files, {named} functions")  # `pytest -s` shows it
    more = {file: names for file, names in entered.items() if file not in FILES}
    assert not more, "entered, and not needed before"
    assert not FILES.keys() - entered.keys(), "no longer entered: take the row out"
