"""Run by test_frameworks.py, once for each rank: the same small training by a framework with a
DataLoader and with a fastload Loader; what it trained on, and the figure of its validation."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import fastload

COUNT, CLASSES, EPOCHS = 22, 4, 2
Found = dict[str, Any]
Wrap = Callable[[Any], Any]
"""Makes a Loader of a DataLoader, or leaves it."""


class Seen:
    """The first number of each sample, which is its index, for each batch that was trained on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def note(self, inputs: torch.Tensor) -> torch.Tensor:
        self.batches.append([int(index) for index in inputs[:, 0].tolist()])
        return inputs


class Network(torch.nn.Module):
    """Linear, with known weights; it notes what it is trained on."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.linear = torch.nn.Linear(3, CLASSES)
        with torch.no_grad():
            self.linear.weight.copy_(torch.linspace(-0.1, 0.1, 3 * CLASSES).view(CLASSES, 3))
            self.linear.bias.zero_()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(self.seen.note(inputs) if self.training else inputs)


def table(count: int = COUNT) -> TensorDataset:
    index = torch.arange(count)
    return TensorDataset(torch.stack([index, index % 5, index % 3], 1).float(), index % CLASSES)


def loader(*, train: bool, data: Dataset[Any] | None = None, kind: Any = DataLoader) -> Any:
    data = table() if data is None else data
    if dist.is_initialized():
        return kind(data, 4, sampler=DistributedSampler(data, shuffle=train))
    return kind(data, 4, shuffle=train)


# -- One function a framework ----------------------------------------------------------------------


def ignite(wrap: Wrap) -> Found:
    """`idist.auto_dataloader`, and an evaluation on the training loader between two epochs."""
    import ignite.distributed as idist
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Loss

    train, test = (
        wrap(idist.auto_dataloader(table(), batch_size=4 * idist.get_world_size(), shuffle=shuffle))
        for shuffle in (True, False)
    )
    seen = Seen()
    model, criterion = Network(seen), torch.nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, torch.optim.SGD(model.parameters(), 0.0), criterion)
    evaluator = create_supervised_evaluator(model, metrics={"loss": Loss(criterion)})
    figures = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate() -> None:
        for data in (train, test):
            evaluator.run(data)
            figures.append(evaluator.state.metrics["loss"])

    trainer.run(train, max_epochs=EPOCHS)
    return {"seen": seen.batches, "figures": figures}


def monai(wrap: Wrap) -> Found:
    """Its DataLoader, over a Dataset of dicts and its transforms, and its trainer."""
    import monai.data
    from monai.engines import SupervisedEvaluator, SupervisedTrainer
    from monai.handlers import MeanSquaredError, from_engine
    from monai.transforms import Compose, RandGaussianNoised, ScaleIntensityRanged, ToTensord

    rows, labels = table().tensors
    files = [
        {"image": row.numpy(), "label": np.eye(CLASSES, dtype=np.float32)[label]}
        for row, label in zip(rows, labels.tolist(), strict=True)
    ]
    steps = [ToTensord(["image", "label"]), ScaleIntensityRanged("image", 0, 2, 0, 2)]
    noise = [*steps, RandGaussianNoised("image", prob=1.0, std=0.01)]
    train, test = (
        wrap(
            loader(train=t, data=monai.data.Dataset(files, Compose(s)), kind=monai.data.DataLoader)
        )
        for t, s in ((True, noise), (False, steps))
    )
    seen, noted = Seen(), []

    class Rounded(Network):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.training:
                noted.extend(inputs[:, 1].as_subclass(torch.Tensor).tolist())
            return super().forward(inputs.round() if self.training else inputs)

    model: Any = Rounded(seen)
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=test,
        network=model,
        key_val_metric={"error": MeanSquaredError(output_transform=from_engine(["pred", "label"]))},
    )
    SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=EPOCHS,
        train_data_loader=train,
        network=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.0),
        loss_function=torch.nn.MSELoss(),
    ).run()
    evaluator.run()
    different = len({round(value % 1, 6) for value in noted})
    return {
        "seen": seen.batches,
        "figures": [evaluator.state.metrics["error"]],
        "random": different > 0.9 * len(noted),
    }


def keras(wrap: Wrap) -> Found:
    """`fit`, `evaluate` and `predict` of a DataLoader, with the torch backend."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.utils.set_random_seed(1)
    seen = Seen()

    class Noting(keras.layers.Layer):
        def call(self, inputs: torch.Tensor, training: bool = False) -> torch.Tensor:
            return seen.note(inputs) if training else inputs

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    model = keras.Sequential([keras.layers.Input((3,)), Noting(), keras.layers.Dense(CLASSES)])
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), criterion, run_eagerly=True)
    seen.batches.clear()  # what it was built with
    train, test = (wrap(loader(train=train)) for train in (True, False))
    history = model.fit(train, validation_data=test, epochs=EPOCHS, verbose=0).history
    summed = float(model.predict(test, verbose=0).sum())
    return {"seen": seen.batches, "figures": [*history["val_loss"], summed]}


def composer(wrap: Wrap) -> Found:
    """Its Trainer, which wants a DistributedSampler where there are several processes."""
    os.environ.setdefault("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))
    os.environ.setdefault("NODE_RANK", "0")
    from composer import Trainer
    from composer.models import ComposerClassifier

    seen = Seen()
    model = ComposerClassifier(module=Network(seen), num_classes=CLASSES)
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), 0.0),
        train_dataloader=wrap(loader(train=True)),
        eval_dataloader=wrap(loader(train=False)),
        max_duration=f"{EPOCHS}ep",
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    metrics = trainer.state.eval_metrics["eval"]
    return {
        "seen": seen.batches,
        "figures": [float(metric.compute()) for metric in metrics.values()],
    }


def fastai(wrap: Wrap) -> Found:
    """`DataLoaders` of DataLoaders, in a Learner; with several processes over a wrapped network."""
    import fastai.callback.progress  # noqa: F401  (gives a Learner its no_bar)
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import SGD

    seen = Seen()
    data = DataLoaders(*(wrap(loader(train=train)) for train in (True, False)))
    learner = Learner(data, Network(seen), loss_func=torch.nn.CrossEntropyLoss(), opt_func=SGD)
    if dist.is_initialized():
        learner.model = torch.nn.parallel.DistributedDataParallel(learner.model)
    with learner.no_bar(), learner.no_logging():
        learner.fit(EPOCHS, lr=0.0)
        return {"seen": seen.batches, "figures": [float(value) for value in learner.validate()]}


def skorch(wrap: Wrap) -> Found:
    """`iterator_train` and `iterator_valid`, which make loaders with a net's options."""
    from skorch import NeuralNetClassifier
    from skorch.helper import predefined_split

    def made(*args: Any, **options: Any) -> Any:
        return wrap(DataLoader(*args, **options))

    seen = Seen()
    net = NeuralNetClassifier(
        Network,
        module__seen=seen,
        criterion=torch.nn.CrossEntropyLoss,
        lr=0.0,
        batch_size=4,
        max_epochs=EPOCHS,
        iterator_train=made,
        iterator_train__shuffle=True,
        iterator_valid=made,
        train_split=predefined_split(table(9)),
        verbose=0,
    )
    net.fit(table(), y=None)
    summed = float(net.predict_proba(table(9)).sum())
    return {"seen": seen.batches, "figures": [*net.history[:, "valid_loss"], summed]}


def lightly(wrap: Wrap) -> Found:
    """A transform of its own of two views, as its examples have it."""
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform
    from PIL import Image

    class Pictures(Dataset[Any]):
        transform = SimCLRTransform(input_size=16, gaussian_blur=0.0)

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            picture = Image.new("RGB", (20, 18), (9 * index, 255 - 9 * index, 99))
            return self.transform(picture), index

    criterion, seen = NTXentLoss(), []
    batches = wrap(loader(train=True, data=Pictures()))
    for _ in range(EPOCHS):
        for (first, second), labels in batches:
            assert first.shape == second.shape == (len(labels), 3, 16, 16)
            assert torch.isfinite(criterion(first.flatten(1), second.flatten(1)))
            seen.append(labels.tolist())
    return {"seen": seen, "figures": []}


if __name__ == "__main__":
    name, directory = sys.argv[1:]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    found = {}
    for way, wrap in (("plain", lambda made: made), ("ours", fastload.from_dataloader)):
        torch.manual_seed(1)
        found[way] = globals()[name](wrap)
    with open(f"{directory}/found.{os.environ.get('RANK', '0')}", "w") as file:
        json.dump(found, file)
    if ranks > 1:
        dist.destroy_process_group()
