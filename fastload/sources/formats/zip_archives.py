"""Zip archives of class folders, or of images alone, read at random without being unpacked, on a
disk or in a store.

    data.zip
    ├── train/              or the folders of classes alone, or images alone
    │   ├── cat/0001.jpg
    │   └── dog/0002.jpg
    └── val/

Gives `image` and `label`; of images alone `image`.

Members that are stored as they are (`zip -0`) are ranges of the file, which the native core opens.
Deflated ones are inflated at each read.
Format: PKWARE's APPNOTE 6.3.9.
"""

from __future__ import annotations

import os
import zipfile

from fastload import stores
from fastload.errors import SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.archived_folders import archived_folders
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.columns import EncodedFiles
from fastload.sources.folders import sampled_bytes
from fastload.sources.formats import Format
from fastload.sources.image_files import DOCUMENTS, LeftOut, is_image_name, is_never_data
from fastload.sources.zip_members import InflatedFiles, files_in_zip, members_of, name_of

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".yaml", ".yml")
_MADE_ON_DOS = 0


def is_zip(spec: object) -> bool:
    """A file whose name ends in `.zip`."""
    return isinstance(spec, str) and spec.lower().endswith(".zip") and stores.is_file(spec)


def open_zip(path: str, options: OpenOptions) -> Opened:
    """Open the images of an archive: of several folders as classes, of one without labels.

    Raises:
        SourceError: the archive is damaged, encrypted or compressed by another method than deflate;
            it holds no images, or tables and annotations, which may say more than its folders.
    """
    left_out = LeftOut(path, strict=options.strict)
    files, others = _members(path, left_out)
    if not len(files):
        raise SourceError(f"{path}: no images in it.")
    notes = left_out.notes()
    opened = archived_folders(
        files,
        path,
        options.split,
        notes,
        others=others,
        as_one_set=f"unpack it ({_unzip(path)}) and give the folder with format='images'",
    )
    if opened is not None:
        return opened
    if options.split is not None:
        raise SourceError(f"split={options.split!r}: {path} has no splits; leave it out.")
    assert files.names is not None
    assert files.lengths is not None
    source = Source(
        {"image": files},
        fingerprint_of("zip", files.names.digest(), files.lengths, *sampled_bytes(files)),
        path,
        format="zip archive",
    )
    words = "images alone: nothing in the archive says what their labels are"
    return Opened(source, notes=(*notes, words))


def _members(path: str, left_out: LeftOut) -> tuple[EncodedFiles, list[str]]:
    """Its images, in the order of its directory, and the names of all else, of folders with a slash
    at the end."""
    remedy = f"unpack it ({_unzip(path)}) and give the folder."
    images: list[tuple[str, zipfile.ZipInfo]] = []
    listed = members_of(path)
    others = [name_of(member) or member.filename for member in listed if member.is_dir()]
    for member in listed:
        if member.is_dir():
            continue
        known = name_of(member)
        name = known or member.filename
        if member.create_system == _MADE_ON_DOS:
            name = name.replace("\\", "/")
        suffix = os.path.splitext(name)[1].lower()
        if is_image_name(name) and not any(map(is_never_data, name.split("/"))):
            if known is None:
                raise SourceError(
                    f"{path}: {name} has letters that are not ASCII, and the archive does not say "
                    f"in which code, so that classes may have other names and numbers; {remedy}"
                )
            images.append((name, member))
        elif suffix in _TABLES or (suffix in DOCUMENTS and not _is_about_itself(name)):
            raise SourceError(
                f"{path}: {name} may say more of the images than their folders do, and of a zip "
                f"archive only the folders are read; {remedy}"
            )
        else:
            left_out.add(name)
            others.append(name)
    return files_in_zip(path, images, remedy), others


def _unzip(path: str) -> str:
    path = os.path.basename(path) if stores.is_remote(path) else path
    return f"unzip {path} -d {path[:-4]}"


def _is_about_itself(name: str) -> bool:
    """Whether it is a text about the archive: README.txt, LICENSE.txt."""
    words = ("readme", "license", "licence", "copying", "notice", "citation")
    return os.path.basename(name).lower().startswith(words)


FORMAT = Format(
    name="zip",
    title="zip archives of images",
    recognise=is_zip,
    open=open_zip,
    options=("split",),
    remote=True,
    signs=(),
    files=("*.zip",),
    packages=(),
    columns={"InflatedFiles": InflatedFiles},
)
