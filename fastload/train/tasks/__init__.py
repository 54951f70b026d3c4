"""What can be trained: what a batch becomes, what is minimised, and what is counted. One file a
kind of task.

A new task is a class here, a line in `create_task`, and its name in `TrainConfig.task`.
"""

from __future__ import annotations

from fastload.errors import ConfigurationError
from fastload.train.config import TrainConfig
from fastload.train.tasks.base import (
    Evaluation,
    Inputs,
    MetricSums,
    PendingSums,
    Task,
    draws_of,
)
from fastload.train.tasks.classification import Classification, TextClassification
from fastload.train.tasks.detection import Detection
from fastload.train.tasks.language import MaskedLanguage
from fastload.train.tasks.segmentation import MultiClassSegmentation, Segmentation

__all__ = [
    "Classification",
    "Detection",
    "Evaluation",
    "Inputs",
    "MaskedLanguage",
    "MetricSums",
    "MultiClassSegmentation",
    "PendingSums",
    "Segmentation",
    "Task",
    "TextClassification",
    "create_task",
    "draws_of",
]


def create_task(config: TrainConfig, *, num_classes: int) -> Task:
    """The task that the configuration names, for a network of so many outputs. Raises
    ConfigurationError: its loss has no place for a setting."""
    one_class = config.task == "segmentation" and num_classes == 1
    if config.optimizer.label_smoothing and (
        one_class or config.task in ("detection", "masked-lm")
    ):
        task = "segmentation into one class" if one_class else config.task
        raise ConfigurationError(
            f"label_smoothing: the loss of {task} has none, got "
            f"{config.optimizer.label_smoothing}; leave it out."
        )
    match config.task:
        case "classification":
            return Classification(num_classes, config.optimizer.label_smoothing)
        case "segmentation" if num_classes == 1:
            return Segmentation(weighted=config.optimizer.positive_weight == "masks")
        case "segmentation":
            return MultiClassSegmentation(num_classes, config.optimizer.label_smoothing)
        case "detection":
            return Detection(evaluates=config.data.val)
        case "masked-lm":
            return MaskedLanguage(num_classes)
        case "text-classification":
            return TextClassification(num_classes, config.optimizer.label_smoothing)
