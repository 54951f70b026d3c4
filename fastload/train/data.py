"""The data of a run: found, split into training and validation, and given to loaders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload
from fastload import BackendOptions, Loader, open_source
from fastload.backends import backend_class
from fastload.draws import Draws, Stream
from fastload.errors import ConfigurationError, SourceError, counted, did_you_mean
from fastload.pipelines import named
from fastload.sources import Opened, Source
from fastload.sources.folders import sampled_rows, splits_of
from fastload.sources.keypoints import is_points
from fastload.sources.names import split_of
from fastload.sources.opening import format_of_objects
from fastload.train.config import DataConfig, TrainConfig
from fastload.train.masks import NO_CLASS, check_alike, mask_classes
from fastload.train.models import Shape
from fastload.train.settings import NONE
from fastload.train.texts import TOKENS, VALIDATION, open_texts

_NO_VALIDATION = (
    "nothing is validated: no validation data beside the training data (--val-data; "
    "--train-share 0.9 takes some)"
)


# What autocast computes in, by the setting `amp`.
AMP_DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What a run reads. Batches are on the device: (images, labels), (images, masks), (list of
    images, list of dicts of objects), or {"input_ids": tokens}."""

    train: Loader
    """Shuffled and in complete global batches, unless the configuration says otherwise."""
    val: Loader | None
    """In order, every sample once over all ranks: the last batches of some ranks are smaller, even
    empty."""
    source: Source
    """The training data themselves, for what must be known of them before training."""
    shape: Shape
    """The shape of the network that is trained on them."""
    remark: str | None = None
    """Why nothing is validated, where that is so."""
    notes: tuple[str, ...] = ()
    """Further notes about them, for the log."""


def open_data(config: TrainConfig, *, shard: fastload.Shard, device: torch.device) -> TrainingData:
    """Open the training and validation data of a run. Nothing is read before the loaders are
    iterated."""
    opened, validation = _open(config)
    source = opened.source
    sources = [source, *([validation.source] if isinstance(validation, Opened) else [])]
    for each in sources:
        _check_kind(each, config)
    num_classes = _num_classes(sources, config)
    notes: list[str] = []
    if config.task == "detection":
        opened, left_out = with_objects(_without_points(opened))
        if isinstance(validation, Opened):
            validation = _without_points(validation)
        source = opened.source
        if left_out:
            notes.append(f"left out of training: {counted(left_out, 'image')} without objects")
    batch = config.optimizer.batch_size
    global_batch = config.optimizer.batch_size * shard.world_size
    drop_last = config.data.drop_last and len(source) >= global_batch
    last = len(source) % global_batch
    if not config.data.shuffle and not drop_last and 0 < last < shard.world_size:
        raise ConfigurationError(
            f"drop_last: the last batch of {source.name} has {counted(last, 'sample')} for "
            f"{counted(shard.world_size, 'rank')}, and in order they cannot be shared out; leave "
            "it out (--drop-last), shuffle, or take another batch size."
        )
    images = next(iter(source.images.values()), None)
    channels = 1 if images is None else images.channels
    training, evaluation = None, None
    image_size, normalised = config.data.image_size, True
    resized = config.data.augment == "multiscale"
    if config.data.pipeline is not None and config.task == "detection":
        training, evaluation, resized, note = _of_detector(config, source)
        normalised = v2.Normalize in map(type, evaluation.transforms)
        notes.append(note)
    elif config.data.pipeline is not None:
        training, evaluation, image_size, note = _of_pipeline(config, source, num_classes)
        notes.append(note)
    elif images is not None:
        training, evaluation = _transforms(config, source, channels, num_classes)
    options = backend_options(config.data.backend, config.data.backend_option)
    common: dict[str, Any] = {
        "backend": config.data.backend,
        "options": options,
        "num_workers": config.data.num_workers,
        "prefetch_factor": config.data.prefetch_factor,
        "on_error": config.data.on_error,
        "memory_format": torch.channels_last
        if config.model.channels_last
        else torch.contiguous_format,
        "seed": config.run.seed,
        "shard": shard,
        "device": device,
    }
    if config.task == "detection":
        # Torchvision's detectors resize the images themselves, in float32.
        common["collate_fn"] = "torchvision"
    elif images is not None and (dtype := AMP_DTYPES[config.optimizer.amp]) is not None:
        common["dtype"] = dtype  # what autocast would make of the images at once
    train = fastload.create_loader(
        opened,
        batch,
        shuffle=config.data.shuffle,
        drop_last=drop_last,
        transform=training,
        batch_transform=_mix(config, num_classes),
        **common | {"options": replace(options, tune=config.data.tune)},
    )
    val = None
    if isinstance(validation, Opened):
        val = fastload.create_loader(validation, batch, transform=evaluation, **common)
    return TrainingData(
        train=train,
        val=val,
        source=source,
        shape=Shape(
            task=config.task,
            num_classes=num_classes,
            in_channels=channels,
            image_size=image_size,
            vocabulary=source.details.get("vocabulary"),
            resized=resized,
            normalised=normalised,
        ),
        remark=validation if isinstance(validation, str) else None,
        notes=tuple(notes),
    )


# -- Which data ------------------------------------------------------------------------------------


Validation = Opened | str
"""What is validated on, or why nothing is."""


def _open(config: TrainConfig) -> tuple[Opened, Validation]:
    settings = config.data
    if settings.data is None:
        raise ConfigurationError("data: none given; say --data with a folder, an archive or files.")
    val: Validation
    if config.task == "text-classification":
        train, texts = open_texts(
            settings.data,
            settings.val_data,
            tokenizer=settings.tokenizer,
            length=settings.text_length,
        )
        val = texts or _NO_VALIDATION
    else:
        own = settings.val and settings.val_data is None
        train, val = _open_splits(settings.data, config.task, settings.split, validated=own)
        if settings.val_data is not None:
            whole, part = _open_splits(settings.val_data, config.task, None, validated=settings.val)
            val = whole if isinstance(part, str) else part
    share = settings.train_share
    if share is not None:
        if isinstance(val, Opened):
            raise ConfigurationError(
                f"train_share: {share:g} of the data is to be trained on, but {settings.data} is "
                f"validated on {val.source.name}; give --train-share none (a preset may set one), "
                "or data without a validation part."
            )
        train, val = _split(train, share, config.run.seed)
    return train, val if settings.val else "nothing is validated, as --no-val says"


def _split(opened: Opened, share: float, seed: int) -> tuple[Opened, Opened]:
    """Samples to train on and the others, both in the order of the data: which ones is a function
    of the seed alone."""
    source = opened.source
    keys = Draws(seed, 0, np.arange(len(source))).integers(Stream.SPLIT)
    count = round(share * len(source))
    if not 0 < count < len(source):
        raise ConfigurationError(
            f"train_share: {share:g} of the {counted(len(source), 'sample')} of {source.name} "
            f"leaves none to {'train' if not count else 'validate'} on; give another share, or "
            "--train-share none and --val-data."
        )
    shuffled = np.argsort(keys, kind="stable")
    train, val = (
        replace(opened, source=source.take(np.sort(part)))
        for part in (shuffled[:count], shuffled[count:])
    )
    return train, val


def _open_splits(
    data: str, task: str, split: str | None, *, validated: bool
) -> tuple[Opened, Validation]:
    """The part to train on and the one to validate on; all of it, where it has no splits."""
    folder = Path(data).expanduser()
    arrays = {file.stem: str(file) for file in folder.glob("*.npy")} if folder.is_dir() else {}
    if "train" in arrays:
        train = _open_files(arrays["train"], task)
        beside = next((arrays[name] for name in VALIDATION if name in arrays), None)
        return train, _NO_VALIDATION if beside is None else _open_files(beside, task)
    # Trains may be a class, beside others that are no splits.
    whole = data.endswith(".npy") or (
        (folder / "train").is_dir() and "train" not in splits_of(str(folder))
    )
    if whole and split is None:
        return _open_files(data, task), _NO_VALIDATION
    # Of what has masks of classes as well, the boxes are wanted.
    boxes = format_of_objects(str(folder)) if task == "detection" else None
    form = None if boxes is None else boxes.name
    try:
        train = open_source(data, split=split or "train", format=form)
    except ConfigurationError:
        if split is not None:
            raise
        return _open_files(data, task), _NO_VALIDATION
    others = [
        name for name in VALIDATION if validated and split_of(name) != split_of(split or "train")
    ]
    for name in others:
        try:
            return train, open_source(data, split=name, format=form)
        except ConfigurationError:
            continue  # there is no such split
        except SourceError as error:
            if split_of(name) != "test":
                raise
            # A test split may have no labels, as a competition's.
            return (
                train,
                f"nothing is validated: {error}",
            )
    return train, _NO_VALIDATION


def _open_files(data: str, task: str) -> Opened:
    """Data without splits, .npy files of images and labels with a comma between, or one of token
    ids."""
    if task == "masked-lm":
        return open_source({TOKENS: data} if data.endswith(".npy") else data)
    files = tuple(part.strip() for part in data.split(","))
    return open_source(
        files if len(files) > 1 and all(file.endswith(".npy") for file in files) else data
    )


def backend_options(backend: str, texts: Sequence[str]) -> BackendOptions:
    """Options of a backend from NAME=VALUE, as its own class says."""
    kind: Any = BackendOptions if backend == "auto" else backend_class(backend).Options
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in hints or not value:
            rest = did_you_mean(name, hints) or f" It has {', '.join(hints)}."
            raise ConfigurationError(
                f"backend_option {text!r}: backend {backend!r} has no such option.{rest}"
            )
        # Paths are given as texts here.
        hint = str | None if Path in get_args(hints[name]) else hints[name]
        try:
            given[name] = msgspec.convert(None if value == NONE else value, hint, strict=False)
        except msgspec.ValidationError as error:
            known = ", ".join(map(str, get_args(hints[name])))
            choices = f"; take one of {known}" if get_origin(hints[name]) is Literal else ""
            raise ConfigurationError(f"backend_option {text!r}: {error}{choices}.") from error
    options: BackendOptions = kind(**given)
    return options


# -- What it is ------------------------------------------------------------------------------------


def _check_kind(source: Source, config: TrainConfig) -> None:
    """Refuse data of another task, before a network is made for them."""
    roles = [column.role for column in source.columns.values()]
    fits, wanted = {
        "classification": (
            roles[0] == "image" and "label" in source.columns,
            "images with labels (a folder of classes, CIFAR, IDX...)",
        ),
        "segmentation": (
            roles == ["image", "mask"],
            "images with masks (a folder with images/ and masks/)",
        ),
        "detection": (
            len(source.images) == 1 and {"boxes", "labels"} <= set(source.instances),
            "images with boxes (a folder of COCO, PASCAL VOC or YOLO)",
        ),
        "text-classification": (
            source.format == "texts",
            "texts with labels (.tsv, .csv or .jsonl)",
        ),
        "masked-lm": (
            TOKENS in source.values,
            "token ids (a .npy file of (N, L) integers, or a folder with train.npy and val.npy)",
        ),
    }[config.task]
    if not fits:
        raise SourceError(
            f"{source.name}: {config.task} needs {wanted}; these are {source.format} with the "
            f"columns {', '.join(source.columns)}. Choose the task that fits (--task), or other "
            "data."
        )
    if config.task == "masked-lm":
        _check_tokens(source, config.model.num_classes)


def _check_tokens(source: Source, vocabulary: int | None) -> None:
    if vocabulary is None:
        raise ConfigurationError(
            "num_classes: masked-lm needs the size of the vocabulary, the last id of which is the "
            "mask token; say --num-classes 50265 for RoBERTa's."
        )
    some = source.values[TOKENS].at(sampled_rows(len(source)))
    if some.ndim != 2 or some.dtype.kind not in "iu":
        shape = (len(source), *some.shape[1:])
        raise SourceError(
            f"{source.name}: token ids are (N, L) integers, found {some.dtype} of shape {shape}."
        )
    if some.min() < 0 or some.max() >= vocabulary:
        raise ConfigurationError(
            f"num_classes: the vocabulary has ids from 0 to {vocabulary - 1}, but {source.name} "
            f"has ids from {some.min()} to {some.max()}; give the size of the tokenizer's "
            "vocabulary."
        )


def _num_classes(sources: Sequence[Source], config: TrainConfig) -> int:
    """The number of classes of the training data and, if any, of the validation data, whose labels
    must mean the same."""
    asked = config.model.num_classes
    if config.task == "segmentation":
        classes = mask_classes(sources[0]) if asked is None else asked
        for other in sources[1:] if classes == 1 else ():
            check_alike(sources[0], other)
        return classes
    if config.task == "masked-lm":
        return 1 if asked is None else asked
    names = sources[0].classes or ()
    for other in sources[1:]:
        if names and other.classes and other.classes != names:
            differing = sorted(set(names) ^ set(other.classes)) or list(other.classes)
            raise SourceError(
                f"{other.name}: its classes are not those of {sources[0].name}, so that its labels "
                f"mean others (differing: {', '.join(differing[:5])}); make the two alike."
            )
    needed = max(len(names), *(_largest_label(source, config.task) for source in sources))
    if asked is not None and asked < needed:
        raise ConfigurationError(
            f"num_classes: the data have {counted(needed, 'class')}, got {asked}; give at least "
            f"{needed}."
        )
    return needed if asked is None else asked


def _largest_label(source: Source, task: str) -> int:
    """How many classes there are by the labels."""
    every = np.arange(len(source))
    if task != "detection":
        return 1 + int(source.values["label"].at(every).max())
    labels: Any = source.instances["labels"].at(every)
    first = 0 if source.classes is not None else 1  # without names they are served as they are
    if len(labels.values) and labels.values.min() < first:
        raise SourceError(
            f"{source.name}: it has the label {labels.values.min()}; torchvision's detectors take "
            "0 for the background, so that labels of classes without names are 1 and up. Add 1, or "
            "give the classes names."
        )
    return int(labels.values.max(initial=first - 1)) + 1 - first


def _without_points(opened: Opened) -> Opened:
    """Without keypoints, of which these networks learn nothing: which of them are left and right
    need not be known to mirror images."""
    source = opened.source
    points = [name for name, column in source.values.items() if is_points(column)]
    kept = {name: column for name, column in source.columns.items() if name not in points}
    return replace(opened, source=replace(source, columns=kept)) if points else opened


def with_objects(opened: Opened) -> tuple[Opened, int]:
    """Images with objects to learn from, as torchvision's reference trains on, and how many were
    left out: those without any but crowds, and boxes of no more than a pixel of width or height."""
    source = opened.source
    every = np.arange(len(source))
    columns: dict[str, Any] = {name: column.at(every) for name, column in source.instances.items()}
    boxes = columns["boxes"]
    good = (boxes.values[:, 2:] - boxes.values[:, :2] > 1).all(1)
    if "iscrowd" in columns:
        good &= columns["iscrowd"].values == 0
    kept = np.unique(boxes.rows_of_values[good])
    if not len(kept):
        raise SourceError(f"{source.name}: there are no objects in it to learn from.")
    if len(kept) == len(source):
        return opened, 0
    return replace(opened, source=source.take(kept)), len(source) - len(kept)


# -- What is done to it ----------------------------------------------------------------------------


def _transforms(
    config: TrainConfig, source: Source, channels: int, num_classes: int
) -> tuple[v2.Compose, v2.Compose]:
    """For training, and for validation. Masks and boxes get the same geometry as their images."""
    data = config.data
    if len(data.mean) not in (1, channels):
        raise ConfigurationError(
            f"mean: {len(data.mean)} numbers, but {source.name} has images of {channels} "
            "channel(s); give --mean and --std as many."
        )
    finish = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(list(data.mean), list(data.std)),
    ]
    if config.task == "detection":
        return v2.Compose([*_of_detection(data), *finish]), v2.Compose(finish)
    first = next(iter(source.images.values()))
    size = [*data.image_size]
    resize: list[Any] = (
        [] if first.fixed_size == data.image_size else [v2.Resize(size, antialias=True)]
    )
    training, evaluate = _of_one_size(config, resize, num_classes)
    return v2.Compose([*training, *finish]), v2.Compose([*evaluate, *finish])


_FINISH = (v2.ToImage, v2.ToDtype, v2.Normalize)
"""What a pipeline ends in."""


def _of_pipeline(
    config: TrainConfig, source: Source, num_classes: int
) -> tuple[v2.Compose, v2.Compose, tuple[int, int], str]:
    """For training, and for validation, by a pipeline; the size of its images; and what it is."""
    data = config.data
    name, options = str(data.pipeline), data.pipeline_option
    _check_pipeline(config, source, num_classes)
    training, size = _transform_of_one_size(name, options, "pipeline")
    if size is None:
        raise ConfigurationError(
            f"pipeline: {name} makes images of several sizes, and the networks here take batches "
            "of one; take another."
        )
    note = f"training images by {named.shown(name, options)}; validation images "
    fitting = f"{name}_eval" if f"{name}_eval" in named.transforms() else None
    chosen = data.val_pipeline or fitting
    if chosen is not None:
        evaluation, fixed = _transform_of_one_size(chosen, data.val_pipeline_option, "val_pipeline")
        if fixed is not None:
            ours, theirs = map(_normalisation, (training, evaluation))
            if ours != theirs:
                raise ConfigurationError(
                    f"val_pipeline_option: {chosen} makes images with {theirs}, and {name} those "
                    f"of training with {ours}; give both the same mean and std."
                )
            how = named.shown(chosen, data.val_pipeline_option)
            return training, evaluation, size, f"{note}by {how}"
    if data.val_pipeline or data.val_pipeline_option:
        given = "val_pipeline" if data.val_pipeline else "val_pipeline_option"
        why = "makes images of several sizes, and batches have one" if chosen else "is not there"
        raise ConfigurationError(
            f"{given}: {chosen or f'{name}_eval'} {why}. Leave it out, or take another."
        )
    _, shown = _of_one_size(
        replace(config, data=replace(config.data, image_size=size, augment="rrc-flip")),
        [v2.Resize([*size])],
        num_classes,
    )
    finish = [step for step in training.transforms if type(step) in _FINISH]
    return training, v2.Compose([*shown, *finish]), size, f"{note}of {size[0]} x {size[1]} pixels"


_DETECTORS = ("detr", "rfdetr", "rtdetrv2", "torchvision_detection")
"""Pipelines whose images torchvision's detectors take."""


def _of_detector(config: TrainConfig, source: Source) -> tuple[v2.Compose, v2.Compose, bool, str]:
    """For training, by a pipeline of detection, and for validation; whether the training images
    have their size then, or the network resizes them; and what it is.

    Boxes are cut off at the edges of their image, and those of which nothing is left are left out,
    as the originals do when they read annotations. A validation is on images as they are stored."""
    data = config.data
    name = str(data.pipeline)
    if name not in _DETECTORS:
        raise ConfigurationError(
            f"pipeline: {name} does not make what torchvision's detectors take; take one of "
            f"{', '.join(_DETECTORS)}, or leave it out, and choose by augment."
        )
    given = "val_pipeline" if data.val_pipeline else "val_pipeline_option"
    if data.val_pipeline or data.val_pipeline_option:
        raise ConfigurationError(
            f"{given}: detectors are validated on images as they are stored, normalised as those "
            "of training. Leave it out; the network resizes them to --image-size."
        )
    _check_channels(source)
    transform: v2.Compose = named.transform_named(name, data.pipeline_option)
    steps = [
        v2.ClampBoundingBoxes(),
        fastload.DropObjects(min_size=0, min_area=0),
        *transform.transforms,
    ]
    made = fastload.Recipe.from_transform(transform).ops
    resized = any(getattr(operation, "resampling", None) is not None for operation in made)
    finish = [step for step in transform.transforms if type(step) in _FINISH]
    shorter, longer = data.image_size
    note = (
        f"training images by {named.shown(name, data.pipeline_option)}; validation images as they "
        f"are stored; the network resizes {'those of validation' if resized else 'both'}: "
        f"--image-size {shorter},{longer}"
    )
    return v2.Compose(steps), v2.Compose(finish), resized, note


def _normalisation(transform: v2.Compose) -> str:
    steps = [step for step in transform.transforms if type(step) is v2.Normalize]
    return ", ".join(map(repr, steps)) or "no normalisation"


def _check_pipeline(config: TrainConfig, source: Source, num_classes: int) -> None:
    """Raises ConfigurationError: pipelines are not for such data."""
    if config.task not in ("classification", "segmentation"):
        raise ConfigurationError(
            f"pipeline: it is for images, not for {config.task}; leave it out."
        )
    if config.task == "segmentation" and num_classes == 1:
        raise ConfigurationError(
            "pipeline: of segmentation into several classes. Beside an image its masks are 255, no "
            "class, and in masks of one class there are pixels of that class and others alone; "
            "leave it out, and choose by augment."
        )
    _check_channels(source)


def _check_channels(source: Source) -> None:
    """Raises ConfigurationError: pipelines are not for images of so many."""
    channels = next(iter(source.images.values())).channels
    if channels != 3:
        raise ConfigurationError(
            f"pipeline: it is for RGB images, and {source.name} has images of "
            f"{counted(channels, 'channel')}; leave it out, and choose by augment."
        )


def _transform_of_one_size(
    name: str, options: Sequence[str], setting: str
) -> tuple[v2.Compose, tuple[int, int] | None]:
    """The transform of a pipeline, and the size of all images that it makes; None: they differ."""
    transform = named.transform_named(name, options, setting=setting)
    if not isinstance(transform, v2.Compose):
        raise ConfigurationError(
            f"{setting}: {name} makes several views of an image, and the networks here learn from "
            "one; take another."
        )
    size: tuple[int, int] | None = None
    for operation in fastload.Recipe.from_transform(transform).ops:
        size = operation.size_after(size)
        for column, _ in operation.adds_columns:
            raise ConfigurationError(
                f"{setting}: {name} adds {column!r} to batches, which the networks here do not "
                "learn from; take another."
            )
    return transform, size


def _of_one_size(
    config: TrainConfig, resize: list[Any], num_classes: int
) -> tuple[list[Any], list[Any]]:
    """The geometry of training and of validation, to the image size."""
    augment, task = config.data.augment, config.task
    height, width = config.data.image_size
    size = [height, width]
    flip = v2.RandomHorizontalFlip()
    zoom = v2.RandomResizedCrop(size, antialias=True)
    # Torchvision's reference for segmentation: 520 for a crop of 480, from half to twice of it.
    scaled = v2.RandomResize(min(size) * 13 // 24, min(size) * 13 // 6, antialias=True)
    # What is beside the image is of no class; of masks of one class it is not of that.
    beside = {tv_tensors.Image: 0, tv_tensors.Mask: 0 if num_classes == 1 else NO_CLASS}
    training: dict[str, list[Any]] = {
        "none": resize,
        "flip": [*resize, flip],
        "crop-flip": [*resize, v2.RandomCrop(size, padding=[width // 8, height // 8]), flip],
        "rrc-flip": [zoom, flip],
        "trivial": [zoom, flip, v2.TrivialAugmentWide()],
        "rand": [zoom, flip, v2.RandAugment()],
        "scale-crop": [scaled, flip, v2.RandomCrop(size, pad_if_needed=True, fill=beside)],
    }
    if augment not in training:
        raise ConfigurationError(
            f"augment: {augment} is for detection; take one of {', '.join(training)}."
        )
    if augment in ("trivial", "rand") and task == "segmentation":
        raise ConfigurationError(
            f"augment: {augment} moves the image but not its mask; take rrc-flip for segmentation."
        )
    if zoom not in training[augment] or task != "classification":
        return training[augment], resize
    # Seven eighths of the shorter side are shown: training objects look larger than they are, by
    # the random crops.
    shown = [v2.Resize(max(size) * 8 // 7, antialias=True), v2.CenterCrop(size)]
    return training[augment], shown


def _of_detection(data: DataConfig) -> list[Any]:
    """The geometry of training detectors, as in torchvision's references. The network resizes."""
    shorter, longer = data.image_size
    # For 800: 480, 512, ... 800.
    sizes = [shorter * part // 25 for part in range(15, 26)]
    flip = v2.RandomHorizontalFlip()
    training: dict[str, list[Any]] = {
        "none": [],
        "flip": [flip],
        "multiscale": [v2.RandomShortestSize(sizes, max_size=longer, antialias=True), flip],
    }
    if data.augment not in training:
        raise ConfigurationError(
            f"augment: {data.augment} is not for detection; take one of {', '.join(training)}."
        )
    return [*training[data.augment], v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes()]


def _mix(config: TrainConfig, num_classes: int) -> Callable[..., Any] | None:
    """MixUp, CutMix, or one of them for each batch."""
    alphas = {v2.MixUp: config.optimizer.mixup, v2.CutMix: config.optimizer.cutmix}
    mixes = [
        kind(alpha=alpha, num_classes=num_classes) for kind, alpha in alphas.items() if alpha > 0
    ]
    if mixes and config.task != "classification":
        raise ConfigurationError(
            f"mixup, cutmix: they mix the labels of images, which {config.task} has not; leave "
            "them out."
        )
    return v2.RandomChoice(mixes) if len(mixes) > 1 else next(iter(mixes), None)
