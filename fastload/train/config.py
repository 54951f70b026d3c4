"""What a training run is, as frozen data: every field is an option on the command line and a line
of a TOML file.

A group is a table of the file (`[optimizer]`), a field a key (`lr = 0.1`) and, with dashes, an
option (`--lr 0.1`): field names are therefore unique over all groups. Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from fastload.errors import ConfigurationError


class Rule(NamedTuple):
    """What the values of a field must be, where its type does not say it; None always may be."""

    wanted: str
    """As a message says it."""
    holds: Callable[[Any], object]


_COUNT = Rule("at least 1", lambda count: count >= 1)
_FROM_0 = Rule("0 or more", lambda value: value >= 0)
_PART = Rule("0 or more, below 1", lambda part: 0 <= part < 1)
_SHARE = Rule("a share between 0 and 1", lambda share: 0 < share < 1)
_SPLIT = Rule(
    "the name of a part, such as trainval (a share is train_share)",
    lambda name: not re.fullmatch(r"[\d.]+", name),
)
_DIVISORS = Rule("numbers above 0", lambda values: min(values, default=1) > 0)
_NAME = Rule("LIBRARY:NAME, such as torchvision:resnet50", lambda name: ":" in name)


class _Group:
    """Checks every field against its rule, or against the words of its Literal."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            if get_origin(hint) is Literal:
                *words, last = get_args(hint)
                _require(name, value, value in (*words, last), f"{', '.join(words)} or {last}")
            for rule in getattr(hint, "__metadata__", ()):
                _require(name, value, value is None or rule.holds(value), rule.wanted)


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Group):
    """What is trained on, and how it is loaded. Takes whatever `fastload.create_loader` takes as a
    path.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    data: str | None = None
    """Training data: a folder (with train/ and val/ in it, both are found), an archive, IDX or .npy
    files, a cache."""
    val_data: str | None = None
    """Validation data, where it is not beside the training data. Without any, nothing is
    validated."""
    split: Annotated[str | None, _SPLIT] = None
    """Which part of the data to train on, where they have several: trainval."""
    train_share: Annotated[float | None, _SHARE] = None
    """Share of the data to train on, such as 0.85, where they have no validation part, which the
    others then are; which samples, the seed says."""
    val: bool = True
    """Validate after each epoch, where there is something to validate on."""
    shuffle: bool = True
    """A new order every epoch."""
    drop_last: bool = True
    """Leave out the last, incomplete global batch of an epoch, unless there is no other."""
    augment: Literal[
        "none", "flip", "crop-flip", "rrc-flip", "trivial", "rand", "scale-crop", "multiscale"
    ] = "rrc-flip"
    """none: resize to the image size; flip: and mirror; crop-flip: pad by an eighth, crop, mirror
    (CIFAR); rrc-flip: random resized crop, mirror (ImageNet); trivial: rrc-flip and
    TrivialAugmentWide; rand: rrc-flip and RandAugment; scale-crop: resize to half to twice the
    size, mirror, crop (segmentation). Of detection: none, flip (mirror), or multiscale (one of
    eleven sizes up to the image size, and mirror)."""
    pipeline: str | None = None
    """Of classification, and of segmentation into several classes: a pipeline of
    fastload.pipelines, such as torchvision_classification, in place of augment, image_size, mean
    and std. Of detection: torchvision_detection, detr, rtdetrv2 or rfdetr, in place of augment,
    mean and std."""
    pipeline_option: tuple[str, ...] = ()
    """Arguments of the pipeline, NAME=VALUE, such as crop_size=176."""
    val_pipeline: str | None = None
    """That of validation. Without it: the one whose name is that of the pipeline and _eval; where
    there is none that makes images of one size, as without pipelines, in the size and with the
    normalisation of the pipeline. Not of detection, which is validated on images as they are
    stored."""
    val_pipeline_option: tuple[str, ...] = ()
    """Its arguments, NAME=VALUE, such as resize_size=232."""
    image_size: Annotated[
        tuple[int, int], Rule("sides of at least 1", lambda sides: min(sides) > 0)
    ] = (224, 224)
    """(height, width) the network gets [pixels]. Of detection: the shorter side that the network
    resizes an image to, and the most that the longer may be."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Subtracted from each channel, after scaling to 0..1."""
    std: Annotated[tuple[float, ...], _DIVISORS] = (0.229, 0.224, 0.225)
    """Divides each channel."""
    tokenizer: str | None = None
    """Of texts: a name on the Hugging Face hub, or a folder. Without it: a byte-level BPE of the
    training texts."""
    text_length: Annotated[int, Rule("at least 3", lambda length: length >= 3)] = 512
    """Tokens kept of a text; the rest is cut off."""
    backend: str = "auto"
    """The loader's backend."""
    backend_option: tuple[str, ...] = ()
    """Options of that backend, NAME=VALUE, such as storage=device and short_side=256 of cache."""
    tune: bool = False
    """Choose the backend by measuring the candidates on this data for some seconds."""
    num_workers: int | None = None
    """Threads or processes of the loader. Without it: chosen for this machine; a preset's own is at
    most its cores."""
    prefetch_factor: int | None = None
    """Batches in flight for each worker. Without it: chosen by the backend."""
    on_error: Literal["raise", "substitute"] = "raise"
    """A sample that cannot be read ends the run, or is replaced by another one and counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            "tune",
            self.tune,
            not self.tune or self.backend == "auto",
            "off where a backend is given",
        )
        _require(
            "mean",
            self.mean,
            len(self.mean) == len(self.std),
            f"as many numbers as std, {len(self.std)}",
        )
        for name in ("pipeline_option", "val_pipeline", "val_pipeline_option"):
            value = getattr(self, name)
            good = self.pipeline is not None or not value
            _require(name, value, good, "left out, or given with a pipeline (--pipeline)")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Group):
    """The network.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    model: Annotated[str, _NAME] = "torchvision:resnet50"
    """LIBRARY:NAME, the library being torchvision, timm, smp, transformers or fastload."""
    model_option: tuple[str, ...] = ()
    """Further arguments for its library, NAME=VALUE, such as zero_init_residual=true of
    torchvision:resnet50."""
    num_classes: int | None = None
    """Outputs. Without it: as many as the data has classes. Of segmentation: 1 for masks of one
    class. Of detection: classes of objects."""
    weights: str | None = None
    """Pretrained weights to download, by the library's name for them ("DEFAULT"; of smp, and of
    torchvision for segmentation and detection, "imagenet": those of the encoder alone); of
    torchvision a .pth file, too. Without it: none, from scratch."""
    sync_batchnorm: bool = False
    """Normalise over the batches of all ranks together; otherwise each rank normalises its own."""
    channels_last: bool = True
    """Memory format of images and network."""
    compile: bool = False
    """torch.compile; the first steps take minutes."""
    ema: Annotated[
        float | None, Rule("a decay between 0 and 1, such as 0.9999", lambda decay: 0 < decay < 1)
    ] = None
    """Decay of an exponential moving average of the weights, which is then what is validated."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(_Group):
    """Batch, loss and optimizer.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    batch_size: Annotated[int, _COUNT] = 64
    """Samples in a batch on each rank."""
    accumulate: Annotated[int, _COUNT] = 1
    """Batches whose gradients make one optimizer step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The update rule. Weight decay is added to the gradient by sgd and adam, taken off the weights
    by adamw."""
    lr: Annotated[float, Rule("a rate above 0", lambda value: value > 0)] = 0.1
    """Learning rate at the reference batch, after warm-up."""
    reference_batch: int | None = 256
    """Global batch that `lr` is for: it is scaled in proportion to the real one. 0, as None: not
    scaled."""
    momentum: Annotated[float, _PART] = 0.9
    """Momentum of SGD, or beta1 of Adam and AdamW."""
    nesterov: bool = True
    """Nesterov's form of SGD's momentum."""
    weight_decay: Annotated[float, _FROM_0] = 1e-4
    """Left off biases and normalisation layers, unless `decay_all`."""
    decay_all: bool = False
    """Weight decay on all parameters."""
    clip_norm: Annotated[float | None, Rule("a norm above 0", lambda value: value > 0)] = None
    """Largest norm of all gradients together."""
    label_smoothing: Annotated[float, _PART] = 0.0
    """Label smoothing of the classification loss, 0 to 1."""
    positive_weight: Literal["masks", "none"] = "masks"
    """Weight of positive pixels in the loss of segmentation into one class. masks: negative pixels
    to positive ones in the training masks; none: plain BCE."""
    mixup: Annotated[float, _FROM_0] = 0.0
    """Alpha of MixUp; 0: none."""
    cutmix: Annotated[float, _FROM_0] = 0.0
    """Alpha of CutMix; 0: none. With both, each batch takes one of them."""
    amp: Literal["none", "bf16", "fp16"] = "none"
    """Automatic mixed precision; fp16 with a gradient scaler."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference_batch == 0:
            object.__setattr__(self, "reference_batch", None)
        _require(
            "reference_batch",
            self.reference_batch,
            (self.reference_batch or 1) >= 1,
            "at least 1, or 0 for none",
        )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(_Group):
    """How long, and the learning rate on the way.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    epochs: Annotated[int, _COUNT] = 90
    """Passes over the training data."""
    max_steps: Annotated[int | None, _COUNT] = None
    """Ends the run after so many optimizer steps, for trying out; the schedule stays that of all
    epochs."""
    schedule: Literal["cosine", "step", "poly", "constant"] = "cosine"
    """cosine: to 0 over all epochs; step: times `gamma` at each of `milestones`, or every
    `step_epochs`; poly: the share of the steps that is left, to the power of 0.9."""
    warmup_epochs: Annotated[float, _FROM_0] = 0.0
    """Epochs in which the rate rises linearly from 1% to the whole; half the run, where it is no
    longer than that."""
    milestones: tuple[float, ...] = ()
    """Epochs at which a step schedule falls."""
    step_epochs: Annotated[float | None, Rule("above 0", lambda value: value > 0)] = None
    """Epochs after which a step schedule falls again and again, in place of milestones."""
    gamma: Annotated[float, Rule("above 0, at most 1", lambda gamma: 0 < gamma <= 1)] = 0.1
    """What it falls by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = self.schedule == "step"
        of_others = "left out, or given with the step schedule (--schedule step)"
        _require("milestones", self.milestones, steps or not self.milestones, of_others)
        _require("step_epochs", self.step_epochs, steps or self.step_epochs is None, of_others)
        _require("gamma", self.gamma, steps or self.gamma == type(self).gamma, of_others)
        rising = list(self.milestones) == sorted(self.milestones)
        given = not steps or bool(self.milestones) or self.step_epochs is not None
        wanted = (
            "rising epochs for a step schedule, such as 30,60,80, where there is no step_epochs"
        )
        _require("milestones", self.milestones, rising and given, wanted)
        once = self.step_epochs is None or not self.milestones
        _require("milestones", self.milestones, once, "left out where there is step_epochs")

    @property
    def warmup(self) -> float:
        """Epochs of the warm-up as it is done: a few epochs for a trial go with a preset that warms
        up for five."""
        return self.warmup_epochs if self.warmup_epochs < self.epochs else self.epochs / 2


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(_Group):
    """What is kept on disk, and where a run goes on.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    out: str = "runs/fastload"
    """Folder of this run: last.pt, best.pt, epochs.jsonl, TensorBoard's files."""
    resume: str = "auto"
    """auto: from last.pt in the folder where there is one; never; or the path of a checkpoint."""
    best_by: str | None = None
    """Which result of the validation makes an epoch the best one: loss, top1, iou... Without it:
    what the task says."""
    save_epochs: Annotated[int | None, _COUNT] = None
    """Also keep a checkpoint of every so many epochs, as epoch-0010.pt."""
    save_steps: Annotated[int | None, _COUNT] = None
    """Write last.pt after every so many optimizer steps too, not only at the end of an epoch."""


@dataclass(frozen=True, kw_only=True)
class LogConfig(_Group):
    """What is reported while it runs. Rank 0 reports it.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    progress: bool = True
    """A progress bar with images a second, loss and wait %; on a pipe, a line an epoch."""
    tensorboard: bool = False
    """Write scalars for TensorBoard."""
    log_steps: Annotated[int, _COUNT] = 10
    """Steps between two readings of the loss: a reading waits for the device."""
    step_lines: bool = False
    """Print a line at each reading: the epoch's results so far, and the seconds of a step."""
    trace: str | None = None
    """Write a Perfetto trace of loader, copy and steps here; other ranks add their rank to the
    name."""
    profile_steps: Annotated[int, _FROM_0] = 0
    """Profile so many steps with torch.profiler and report every gap on the device's timeline."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(_Group):
    """Where and how it runs.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    device: Annotated[
        str, Rule("auto, cpu, cuda or cuda:1", re.compile(r"(auto|cpu|cuda(:\d+)?)$").match)
    ] = "auto"
    """auto: this rank's GPU if there is one; cpu; cuda; cuda:1."""
    devices: tuple[int, ...] = ()
    """GPUs by number, 0,3: those of dp, or of the ranks of this machine in turn. Without it: all.
    The numbers are those of torch: CUDA_VISIBLE_DEVICES hides the others and counts those that are
    left from 0, and nvidia-smi's numbers are the same only with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    parallel: Literal["auto", "none", "dp", "ddp"] = "auto"
    """auto: ddp under torchrun, else none; dp: DataParallel over all GPUs of this process, for
    comparison."""
    find_unused_parameters: bool = False
    """With ddp: for networks that leave parameters out of a step; it costs a search after each
    forward pass."""
    cudnn_benchmark: bool = True
    """Have cuDNN try its algorithms on each new shape: fixed shapes gain, ever changing ones
    lose."""
    tf32: bool = False
    """Matrix products of float32 by TF32 on GPUs that have it: faster, 10 bits of mantissa in place
    of 23. Convolutions take it anyway, as torch has it."""
    seed: Annotated[int, _FROM_0] = 0
    """Seed of the weights, the order and every random choice."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time; slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        different = (
            len(set(self.devices)) == len(self.devices) and min(self.devices, default=0) >= 0
        )
        _require("devices", self.devices, different, "different numbers of GPUs, such as 0,3")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(_Group):
    """A whole run.

    Raises:
        ConfigurationError: a value that a field cannot have; fields that exclude each other.
    """

    task: Literal[
        "classification", "segmentation", "detection", "masked-lm", "text-classification"
    ] = "classification"
    """What the loss and the metrics are."""
    data: DataConfig = field(default_factory=DataConfig)
    """What is trained on."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The network."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Batch, loss and optimizer."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How long."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """What is kept."""
    log: LogConfig = field(default_factory=LogConfig)
    """What is reported."""
    run: RunConfig = field(default_factory=RunConfig)
    """Where it runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run.parallel != "dp":
            return
        if self.task == "detection":
            raise ConfigurationError(
                "parallel: DataParallel cuts tensors in parts, and images of detection are a list "
                "of different sizes; take --parallel ddp under torchrun."
            )
        if self.model.compile:
            raise ConfigurationError(
                "compile: DataParallel makes new copies of the network in threads at every step, "
                "which torch.compile cannot follow; leave --compile out, or take --parallel ddp "
                "under torchrun."
            )
        if self.optimizer.amp == "bf16":
            raise ConfigurationError(
                "amp: DataParallel runs the network in threads of its own, where torch's autocast "
                "is always fp16; take --amp fp16, or --parallel ddp under torchrun."
            )
        if self.model.sync_batchnorm:
            raise ConfigurationError(
                "sync_batchnorm: DataParallel normalises each GPU's part of a batch by itself; "
                "take --parallel ddp."
            )


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigurationError(f"{name}: must be {wanted}, got {value!r}.")
