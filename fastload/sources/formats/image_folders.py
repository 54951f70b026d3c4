"""All images in a folder, without labels.

    photographs/
    ├── 0001.jpg
    └── more/
        └── 0002.png

Gives `image`. Only where `format="images"` asks for it.
"""

from __future__ import annotations

from fastload import stores
from fastload.errors import SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import image_table, sampled_bytes, sampled_sizes
from fastload.sources.formats import Format
from fastload.sources.image_files import LeftOut


def is_folder(spec: object) -> bool:
    """Any folder; `open_images` raises what is wrong with it."""
    return isinstance(spec, str) and stores.is_folder(spec)


def open_images(root: str, options: OpenOptions) -> Opened:
    """Open all images in a folder and below, without labels: one column `image`, in the order of
    their paths.

    Never chosen by itself: only `format="images"` says that labels are not wanted.
    """
    left_out = LeftOut(root, strict=options.strict)
    files = EncodedFiles(image_table(root, [""], left_out)[0])
    if not len(files):
        raise SourceError(f"{root}: no images in it or below; give the folder that has them.")
    fingerprint = fingerprint_of(
        "images", files.paths.digest(), sampled_sizes(files), *sampled_bytes(files)
    )
    return Opened(
        Source({"image": files}, fingerprint, root, format="images"), notes=left_out.notes()
    )


FORMAT = Format(
    name="images",
    title="images without labels",
    recognise=is_folder,
    open=open_images,
    remote=True,
    by_name_only=True,
    files=(),
    packages=(),
    generality=2,
)
