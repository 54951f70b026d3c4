"""The formats of data sets that fastload knows: how each is recognised, and what opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastload.sources.arrays import is_arrays, open_arrays, remote_npy
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.cifar import CIFAR_SIGNS, is_cifar, open_cifar, remote_cifar
from fastload.sources.coco import COCO_PARTS, COCO_SIGNS, has_coco_content, is_coco, open_coco
from fastload.sources.datasets import is_dataset, open_known_dataset
from fastload.sources.folders import (
    CLASSES,
    FOLDER_PARTS,
    is_class_folder,
    open_class_folder,
    open_images,
)
from fastload.sources.huggingface import is_huggingface, open_huggingface
from fastload.sources.idx import is_idx, open_idx, remote_idx
from fastload.sources.lance import LANCE_SIGNS, is_lance, open_lance
from fastload.sources.mds import INDEX, is_mds, open_mds
from fastload.sources.open_images import OPEN_IMAGES_SIGNS, is_open_images, open_open_images
from fastload.sources.pairs import NO_PAIR_PARTS, PAIR_PARTS, PAIR_SIGNS, is_pairs, open_pairs
from fastload.sources.panoptic import PANOPTIC_PARTS, PANOPTIC_SIGNS, is_panoptic, open_panoptic
from fastload.sources.parquet import is_parquet, open_parquet
from fastload.sources.supervision_objects import is_supervision, open_supervision
from fastload.sources.tables import IMAGE_FOLDERS, is_labelled_by_table, open_labelled_by_table
from fastload.sources.tar_shards import is_tar_shards, open_tar_shards, remote_compressed
from fastload.sources.voc import VOC_PARTS, VOC_SIGNS, is_voc, open_voc
from fastload.sources.yolo import YOLO_PARTS, YOLO_SIGNS, has_yolo_labels, is_yolo, open_yolo
from fastload.sources.zip_archives import is_zip, open_zip


@dataclass(frozen=True)
class Format:
    """One format: how it is recognised, and how it is opened."""

    name: str
    """A short name: what `format=` takes."""
    recognise: Callable[[Any], bool]
    """Whether it is of this format: called with an existing path (absolute str), a list of shard
    paths (str), or any other object; a registered format's with the specification as it was given.
    Must be cheap."""
    open: Callable[[Any, OpenOptions], Opened | Source]
    options: frozenset[str] = frozenset()
    """Names of the `OpenOptions` that mean something to it; `strict` and `masks` are for all."""
    title: str = ""
    """What it is, in words, for messages."""
    remote: bool = False
    """Whether it reads URLs as well as paths (`fastload.stores`)."""
    by_name_only: bool = False
    """Whether it is opened only where `format=` asks for it, although it may be recognised."""
    signs: tuple[str, ...] | None = None
    """Paths relative to a local folder, with * for any name: a folder that has none of them is not
    of this format, and `recognise` is not asked. A sign may begin with "../{name}", {name} being
    the folder's own. None: it is always asked; (): no folder is of this format."""
    parts: tuple[str, ...] = ()
    """Names of folders in its data sets, which are names of no class."""
    no_parts: tuple[str, ...] = ()
    """Names that look like these, and are of classes. A test tries all pairs of both, of all
    formats."""
    fallback: bool = False
    """Whether it is opened only if no other format opens the same path, or `format=` asks for it.
    It is given the whole folder and `split`, not the subfolder of that name."""
    copies: Callable[[str], list[str]] | None = None
    """Of a format that reads local files alone: the files of a URL that are its data set, which are
    copied to the local disk; none where it is not of this format. It looks into them where their
    names are common."""
    certain: Callable[[str], bool] | None = None
    """For a fallback: whether not only the names but also the content of a path are of this format.
    If another format opens the path as well, it is refused as ambiguous; except for masks, which
    are noted."""

    @property
    def description(self) -> str:
        return f"{self.name!r} ({self.title})" if self.title else repr(self.name)


FORMATS: tuple[Format, ...] = (
    Format(
        "cifar",
        is_cifar,
        open_cifar,
        frozenset({"split", "labels"}),
        "CIFAR-10 or CIFAR-100",
        signs=CIFAR_SIGNS,
        copies=remote_cifar,
    ),
    Format(
        "idx",
        is_idx,
        open_idx,
        frozenset({"split", "classes"}),
        "IDX files, as of MNIST",
        signs=("*-images?idx3-ubyte*", ".*-images?idx3-ubyte*", "raw", "*/raw", ".*/raw"),
        copies=remote_idx,
    ),
    Format(
        "coco",
        is_coco,
        open_coco,
        frozenset({"split"}),
        "images and COCO annotations",
        remote=True,
        signs=COCO_SIGNS,
        parts=COCO_PARTS,
        fallback=True,
        certain=has_coco_content,
    ),
    Format(
        "panoptic",
        is_panoptic,
        open_panoptic,
        frozenset({"split"}),
        "images and COCO's panoptic annotations",
        remote=True,
        signs=PANOPTIC_SIGNS,
        parts=PANOPTIC_PARTS,
        fallback=True,
        certain=is_panoptic,
    ),
    Format(
        "voc",
        is_voc,
        open_voc,
        frozenset({"split", "classes"}),
        "images and PASCAL VOC annotations",
        remote=True,
        signs=VOC_SIGNS,
        parts=VOC_PARTS,
        fallback=True,
        certain=is_voc,
    ),
    Format(
        "yolo",
        is_yolo,
        open_yolo,
        frozenset({"split"}),
        "a YOLO folder with data.yaml",
        remote=True,
        signs=YOLO_SIGNS,
        parts=YOLO_PARTS,
        fallback=True,
        certain=has_yolo_labels,
    ),
    Format(
        "openimages",
        is_open_images,
        open_open_images,
        frozenset({"split"}),
        "images and Open Images annotations",
        remote=True,
        signs=OPEN_IMAGES_SIGNS,
        fallback=True,
        certain=is_open_images,
    ),
    Format(
        "pairs",
        is_pairs,
        open_pairs,
        frozenset({"split"}),
        "images and masks in two folders",
        remote=True,
        signs=PAIR_SIGNS,
        parts=PAIR_PARTS,
        no_parts=NO_PAIR_PARTS,
    ),
    Format(
        "tar",
        is_tar_shards,
        open_tar_shards,
        frozenset({"split", "fields", "classes"}),
        "tar archives",
        True,
        signs=("*.tar", ".*.tar"),
        copies=remote_compressed,
    ),
    Format("zip", is_zip, open_zip, frozenset({"split"}), "zip archives of images", True, signs=()),
    Format(
        "parquet",
        is_parquet,
        open_parquet,
        frozenset({"split", "fields", "classes"}),
        "Parquet files with images",
        True,
        signs=("*.parquet", ".*.parquet"),
    ),
    Format(
        "mds",
        is_mds,
        open_mds,
        frozenset({"fields", "classes"}),
        "MDS shards of MosaicML's Streaming",
        True,
        signs=(INDEX,),
    ),
    Format(
        "lance",
        is_lance,
        open_lance,
        frozenset({"fields", "classes"}),
        "a Lance data set",
        signs=LANCE_SIGNS,
    ),
    Format(
        "table",
        is_labelled_by_table,
        open_labelled_by_table,
        frozenset({"classes"}),
        "images and a table",
        True,
        signs=("*.*", ".*", *IMAGE_FOLDERS),
    ),
    Format(
        "images",
        is_class_folder,
        open_images,
        title="images without labels",
        remote=True,
        by_name_only=True,
    ),
    Format(
        "folder",
        is_class_folder,
        open_class_folder,
        frozenset({"split", "classes"}),
        "one folder a class",
        True,
        parts=FOLDER_PARTS,
        no_parts=CLASSES,
    ),
    Format(
        "huggingface",
        is_huggingface,
        open_huggingface,
        frozenset({"fields"}),
        "a Dataset of Hugging Face's datasets",
    ),
    Format(
        "supervision",
        is_supervision,
        open_supervision,
        title="a DetectionDataset of supervision",
        signs=(),
    ),
    Format(
        "arrays",
        is_arrays,
        open_arrays,
        frozenset({"classes"}),
        "arrays, tensors, .npy files",
        copies=remote_npy,
    ),
    Format("dataset", is_dataset, open_known_dataset, title="a map-style torch Dataset"),
)
"""In the order in which they are tried: the first that recognises a specification opens it; those
that are a `fallback` come after all others."""
