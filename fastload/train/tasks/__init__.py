"""What can be trained. A new task is a class beside these, a line here, and its name in `TrainConfig.task`."""

from __future__ import annotations

from fastload.train.config import TrainConfig
from fastload.train.tasks.base import Inputs, MetricSums, Task, draws_of
from fastload.train.tasks.images import Classification, Segmentation
from fastload.train.tasks.text import MaskedLanguage, TextClassification

__all__ = ["Inputs", "MetricSums", "Task", "create_task", "draws_of"]


def create_task(config: TrainConfig, *, num_classes: int) -> Task:
    """The task that the configuration names.

    Args:
        config: of the run.
        num_classes: outputs of the network; of masked-lm, the size of the vocabulary with the mask token as its last.
    """
    match config.task:
        case "classification":
            return Classification(num_classes=num_classes, label_smoothing=config.optimizer.label_smoothing)
        case "segmentation":
            return Segmentation(weighted=config.optimizer.positive_weight == "masks")
        case "masked-lm":
            return MaskedLanguage(num_classes=num_classes)
        case "text-classification":
            return TextClassification(num_classes=num_classes, label_smoothing=config.optimizer.label_smoothing)
