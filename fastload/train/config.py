"""What a training run is, as frozen data: every field is an option on the command line and a line of a TOML file.

A group is a table of the file (`[optimizer]`), a field a key (`lr = 0.1`) and, with dashes, an option (`--lr 0.1`):
field names are therefore unique over all groups. Nothing here imports torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args, get_origin, get_type_hints

from fastload.errors import ConfigurationError


class _Choices:
    """Holds every field that is one of some words to these words."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                _require(name, getattr(self, name), getattr(self, name) in get_args(hint), _either(get_args(hint)))


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Choices):
    """What is trained on, and how it is loaded. Takes whatever `fastload.create_loader` takes as a path."""

    data: str | None = None
    """Training data: a folder (with train/ and val/ in it, both are found), an archive, IDX or .npy files, a cache."""
    val_data: str | None = None
    """Validation data, where it is not beside the training data. Without any, nothing is validated."""
    split: float | None = None
    """Share of the data to train on, such as 0.85, where they have no validation part; which samples, the seed says."""
    shuffle: bool = True
    """A new order every epoch."""
    drop_last: bool = True
    """Leave out the last, incomplete global batch of an epoch, unless there is no other."""
    augment: Literal["none", "flip", "crop-flip", "rrc-flip", "trivial", "rand"] = "rrc-flip"
    """none: resize to the image size; flip: and mirror; crop-flip: pad by an eighth, crop, mirror (CIFAR); rrc-flip:
    random resized crop, mirror (ImageNet); trivial: rrc-flip and TrivialAugmentWide; rand: rrc-flip and
    RandAugment."""
    image_size: tuple[int, int] = (224, 224)
    """(height, width) the network gets [pixels]."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Subtracted from each channel, after scaling to 0..1."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Divides each channel."""
    tokenizer: str | None = None
    """Of texts: a name on the Hugging Face hub, or a folder. Without it: a byte-level BPE of the training texts."""
    text_length: int = 512
    """Tokens kept of a text; the rest is cut off."""
    backend: str = "auto"
    """The loader's backend."""
    backend_option: tuple[str, ...] = ()
    """Options of that backend, NAME=VALUE, such as storage=device and short_side=256 of cache."""
    tune: bool = False
    """Choose the backend by measuring the candidates on this data for some seconds."""
    num_workers: int | None = None
    """Threads or processes of the loader. Without it: what suits this machine."""
    prefetch_factor: int | None = None
    """Batches in flight for each worker. Without it: what suits the backend."""
    on_error: Literal["raise", "substitute"] = "raise"
    """A sample that cannot be read ends the run, or is replaced by another one and counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("split", self.split, self.split is None or 0 < self.split < 1, "a share between 0 and 1")
        _require("image_size", self.image_size, all(side > 0 for side in self.image_size), "sides of at least 1")
        _require("std", self.std, all(value > 0 for value in self.std), "numbers above 0")
        _require("text_length", self.text_length, self.text_length >= 3, "at least 3")
        _require("tune", self.tune, not self.tune or self.backend == "auto", "off where a backend is given")
        _require("mean", self.mean, len(self.mean) == len(self.std), f"as many numbers as std, {len(self.std)}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Choices):
    """The network."""

    model: str = "torchvision:resnet50"
    """LIBRARY:NAME, the library being torchvision, timm, smp, transformers or fastload."""
    model_option: tuple[str, ...] = ()
    """What its library is to be told besides, NAME=VALUE, such as zero_init_residual=true of torchvision:resnet50."""
    num_classes: int | None = None
    """Outputs. Without it: as many as the data has classes."""
    weights: str | None = None
    """Pretrained weights to download, by the library's name for them ("DEFAULT"; of smp "imagenet"). Without it: none,
    from scratch."""
    sync_batchnorm: bool = False
    """Normalise over the batches of all ranks together; otherwise each rank normalises its own."""
    channels_last: bool = True
    """Memory format of images and network."""
    compile: bool = False
    """torch.compile; the first steps take minutes."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is validated."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("model", self.model, self.model.count(":") >= 1, "LIBRARY:NAME, such as torchvision:resnet50")
        _require("ema", self.ema, self.ema is None or 0 < self.ema < 1, "a decay between 0 and 1, such as 0.9999")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(_Choices):
    """Batch, loss and optimizer."""

    batch_size: int = 64
    """Samples in a batch on each rank."""
    accumulate: int = 1
    """Batches whose gradients make one optimizer step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The update rule. Weight decay is added to the gradient by sgd and adam, taken off the weights by adamw."""
    lr: float = 0.1
    """Learning rate at the reference batch, after warm-up."""
    reference_batch: int | None = 256
    """Global batch that `lr` is for: it is scaled in proportion to the real one. 0, as None: not scaled."""
    momentum: float = 0.9
    """Of SGD, or beta1 of Adam and AdamW."""
    nesterov: bool = True
    """Nesterov's form of SGD's momentum."""
    weight_decay: float = 1e-4
    """Left off biases and normalisation layers, unless `decay_all`."""
    decay_all: bool = False
    """Weight decay on all parameters."""
    clip_norm: float | None = None
    """Largest norm of all gradients together."""
    label_smoothing: float = 0.0
    """Of the classification loss, 0 to 1."""
    positive_weight: Literal["masks", "none"] = "masks"
    """Of the segmentation loss. masks: negative pixels to positive ones in the training masks; none: plain BCE."""
    mixup: float = 0.0
    """Alpha of MixUp; 0: none."""
    cutmix: float = 0.0
    """Alpha of CutMix; 0: none. With both, each batch takes one of them."""
    amp: Literal["none", "bf16", "fp16"] = "none"
    """Automatic mixed precision; fp16 with a gradient scaler."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("batch_size", self.batch_size, self.batch_size >= 1, "at least 1")
        _require("accumulate", self.accumulate, self.accumulate >= 1, "at least 1")
        _require("lr", self.lr, self.lr > 0, "a rate above 0")
        if self.reference_batch == 0:
            object.__setattr__(self, "reference_batch", None)
        _require("reference_batch", self.reference_batch, (self.reference_batch or 1) >= 1, "at least 1, or 0 for none")
        _require("momentum", self.momentum, 0 <= self.momentum < 1, "0 or more, below 1")
        _require("weight_decay", self.weight_decay, self.weight_decay >= 0, "0 or more")
        _require("clip_norm", self.clip_norm, self.clip_norm is None or self.clip_norm > 0, "a norm above 0")
        _require("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "0 or more, below 1")
        _require("mixup", self.mixup, self.mixup >= 0, "0 or more")
        _require("cutmix", self.cutmix, self.cutmix >= 0, "0 or more")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(_Choices):
    """How long, and the learning rate on the way."""

    epochs: int = 90
    """Passes over the training data."""
    max_steps: int | None = None
    """Ends the run after so many optimizer steps, for trying out; the schedule stays that of all epochs."""
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    """cosine: to 0 over all epochs; step: times `gamma` at each of `milestones`, or every `step_epochs`."""
    warmup_epochs: float = 0.0
    """Epochs in which the rate rises linearly from 1% to the whole."""
    milestones: tuple[float, ...] = ()
    """Epochs at which a step schedule falls."""
    step_epochs: float | None = None
    """Epochs after which a step schedule falls again and again, in place of milestones."""
    gamma: float = 0.1
    """What it falls by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("epochs", self.epochs, self.epochs >= 1, "at least 1")
        _require("max_steps", self.max_steps, self.max_steps is None or self.max_steps >= 1, "at least 1")
        _require("warmup_epochs", self.warmup_epochs, 0 <= self.warmup_epochs < self.epochs, "0 or more, below epochs")
        _require("gamma", self.gamma, 0 < self.gamma <= 1, "above 0, at most 1")
        _require("step_epochs", self.step_epochs, self.step_epochs is None or self.step_epochs > 0, "above 0")
        rising = list(self.milestones) == sorted(self.milestones)
        given = self.schedule != "step" or bool(self.milestones) or self.step_epochs is not None
        wanted = "rising epochs for a step schedule, such as 30,60,80, where there is no step_epochs"
        _require("milestones", self.milestones, rising and given, wanted)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(_Choices):
    """What is kept on disk, and where a run goes on."""

    out: str = "runs/fastload"
    """Folder of this run: last.pt, best.pt, epochs.jsonl, TensorBoard's files."""
    resume: str = "auto"
    """auto: from last.pt in the folder where there is one; never; or the path of a checkpoint."""
    best_by: str | None = None
    """Which result of the validation makes an epoch the best one: loss, top1, iou... Without it: what the task says."""
    save_epochs: int | None = None
    """Also keep a checkpoint of every so many epochs, as epoch-0010.pt."""
    save_steps: int | None = None
    """Write last.pt after every so many optimizer steps too, not only at the end of an epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("save_epochs", self.save_epochs, self.save_epochs is None or self.save_epochs >= 1, "at least 1")
        _require("save_steps", self.save_steps, self.save_steps is None or self.save_steps >= 1, "at least 1")


@dataclass(frozen=True, kw_only=True)
class LogConfig(_Choices):
    """What is told while it runs. Rank 0 tells it."""

    progress: bool = True
    """A progress bar with images a second, loss and wait %; on a pipe, a line an epoch."""
    tensorboard: bool = False
    """Write scalars for TensorBoard."""
    log_steps: int = 10
    """Steps between two readings of the loss: a reading waits for the device."""
    step_lines: bool = False
    """Print a line at each reading: the epoch's results so far, and the seconds of a step."""
    trace: str | None = None
    """Write a Perfetto trace of loader, copy and steps here; other ranks add their rank to the name."""
    profile_steps: int = 0
    """Profile so many steps with torch.profiler and report every gap on the device's timeline."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require("log_steps", self.log_steps, self.log_steps >= 1, "at least 1")
        _require("profile_steps", self.profile_steps, self.profile_steps >= 0, "0 or more")


@dataclass(frozen=True, kw_only=True)
class RunConfig(_Choices):
    """Where and how it runs."""

    device: str = "auto"
    """auto: this rank's GPU if there is one; cpu; cuda; cuda:1."""
    devices: tuple[int, ...] = ()
    """GPUs by number, 0,3: those of dp, or of the ranks of this machine in turn. Without it: all. The numbers are those
    of torch: CUDA_VISIBLE_DEVICES hides the others and counts those that are left from 0, and nvidia-smi's numbers are
    the same only with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    parallel: Literal["auto", "none", "dp", "ddp"] = "auto"
    """auto: ddp under torchrun, else none; dp: DataParallel over all GPUs of this process, for comparison."""
    find_unused_parameters: bool = False
    """Of ddp: for networks that leave parameters out of a step; it costs a search after each forward pass."""
    cudnn_benchmark: bool = True
    """Have cuDNN try its algorithms on each new shape: fixed shapes gain, ever changing ones lose."""
    seed: int = 0
    """Of the weights, the order and every random choice."""
    deterministic: bool = False
    """Only algorithms that give the same bits every time; slower."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device) is not None
        _require("device", self.device, known, "auto, cpu, cuda or cuda:1")
        _require("seed", self.seed, self.seed >= 0, "0 or more")
        different = len(set(self.devices)) == len(self.devices) and min(self.devices, default=0) >= 0
        _require("devices", self.devices, different, "different numbers of GPUs, such as 0,3")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(_Choices):
    """A whole run."""

    task: Literal["classification", "segmentation", "masked-lm", "text-classification"] = "classification"
    """What the loss and the metrics are."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run.parallel == "dp" and self.model.compile:
            raise ConfigurationError(
                "compile: DataParallel makes new copies of the network in threads at every step, which torch.compile "
                "cannot follow; leave --compile out, or take --parallel ddp under torchrun."
            )


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigurationError(f"{name}: must be {wanted}, got {value!r}.")
